"""What the reader authorised: places of virtual chunks, each with a credential.

Nothing is authorised tacitly. A location may be read if an entry covers it, and the longest such
entry gives the credential, so an entry for a parent opens all that is below, and one below a
wide container only that part of it. Local files are opened by entries for local files only.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from icefloe.config import ObjectStoreConfig, S3Options, VirtualChunkContainer
from icefloe.config.urls import Prefix, parse_prefix
from icefloe.credentials import AnyCredential, Credentials, GcsCredentials, S3Credentials
from icefloe.engine.virtual.matching import PrefixTable
from icefloe.errors import ErrorKind, InvalidInputError, StorageError

_log: Final = logging.getLogger(__name__)

_NEEDED: Final[dict[type[ObjectStoreConfig], tuple[type[Credentials], str]]] = {
    ObjectStoreConfig.S3: (Credentials.S3, "icefloe.s3_credentials(...)"),
    ObjectStoreConfig.S3Compatible: (Credentials.S3, "icefloe.s3_credentials(...)"),
    ObjectStoreConfig.Tigris: (Credentials.S3, "icefloe.s3_credentials(...)"),
    ObjectStoreConfig.Gcs: (Credentials.Gcs, "icefloe.gcs_credentials(...)"),
    ObjectStoreConfig.Azure: (Credentials.Azure, "icefloe.azure_credentials(...)"),
    ObjectStoreConfig.Http: (Credentials.HttpAccess, "icefloe.credentials.HttpAccess"),
    ObjectStoreConfig.LocalFileSystem: (
        Credentials.LocalFileSystemAccess,
        "icefloe.credentials.LocalFileSystemAccess",
    ),
}


@dataclass(frozen=True, slots=True)
class Grant:
    """One entry of what the reader authorised, as it applies to a container."""

    prefix: str
    """As the reader wrote it."""
    credential: AnyCredential


class Access:
    """All that the reader authorised: url prefix (a last slash may be missing) to credential.

    Entries that are no prefixes of URLs authorise nothing.
    """

    def __init__(self, entries: Mapping[str, AnyCredential | None]) -> None:
        self.entries = dict(entries)
        self._prefixes = dict(_parsed(self.entries))
        self._table = PrefixTable([(prefix, text) for text, prefix in self._prefixes.items()])

    def check(self, containers: Iterable[tuple[Prefix, VirtualChunkContainer]]) -> None:
        """Refuse credentials of another platform than that of a container they would be for."""
        for place, container in containers:
            for text, prefix in self._prefixes.items():
                if prefix.covers(place) or place.covers(prefix):
                    self._grant(text, container)

    def grant_for(self, place: Prefix, container: VirtualChunkContainer) -> Grant | None:
        """Find the entry by which a place of a container may be read."""
        found = self._table.longest(place)
        return None if found is None else self._grant(found[1], container)

    def covers(self, place: Prefix) -> bool:
        """Tell whether a place may be read, in whatever container it is."""
        return self._table.longest(place) is not None

    def prefixes_in(self, place: Prefix, container: VirtualChunkContainer) -> list[str]:
        """List what may be read of a container: all of it, or the parts with an entry."""
        if any(prefix.covers(place) for prefix in self._prefixes.values()):
            return [container.url_prefix]
        return [text for text, prefix in self._prefixes.items() if place.covers(prefix)]

    @property
    def prefixes(self) -> tuple[tuple[str, Prefix], ...]:
        """All entries, as they are written and as they are compared."""
        return tuple(self._prefixes.items())

    def _grant(self, text: str, container: VirtualChunkContainer) -> Grant:
        return Grant(text, _fitting(container, text, self.entries[text]))


def how_to_authorise(container: VirtualChunkContainer, prefix: str | None = None) -> str:
    """Say what a reader has to write to read the chunks of a container, or a part of it."""
    return (
        "authorize_virtual_chunk_access=icefloe.containers_credentials("
        f"{{{prefix or container.url_prefix!r}: {credential_for(container)}}})"
    )


def credential_for(container: VirtualChunkContainer) -> str:
    """Write down the credential that a container needs, as Python."""
    return _NEEDED[type(container.store)][1]


def unauthorised(container: VirtualChunkContainer, location: str) -> InvalidInputError:
    """Describe that a location was not authorised, and what would authorise it."""
    prefix = container.url_prefix
    return InvalidInputError(
        f"the virtual chunk at {location!r} is in the container {prefix!r}, which you did not"
        " authorise. If you trust the repository to read from there, open it with"
        f" {how_to_authorise(container)}",
        ErrorKind.UNAUTHORIZED_VIRTUAL_CHUNK_CONTAINER,
        url_prefix=prefix,
    )


def _parsed(entries: Iterable[str]) -> Iterable[tuple[str, Prefix]]:
    for text in entries:
        try:
            yield text, parse_prefix(text)
        except InvalidInputError as reason:
            _log.warning("an entry of authorize_virtual_chunk_access is ignored: it %s", reason)


def _fitting(
    container: VirtualChunkContainer, text: str, credential: AnyCredential | None
) -> AnyCredential:
    needed, _ = _NEEDED[type(container.store)]
    if credential is None:
        credential = _stand_in(container.store)
    if not isinstance(credential, needed):
        given = "None" if credential is None else type(credential).__qualname__
        raise StorageError(
            f"the virtual chunk container {container.url_prefix!r} cannot be read with {given}:"
            f" open the repository with {how_to_authorise(container, text)}",
            ErrorKind.STORAGE_OTHER,
        )
    return credential


def _stand_in(store: ObjectStoreConfig) -> AnyCredential | None:
    """Give the credential for which None stands."""
    match store:
        case ObjectStoreConfig.S3(options) | ObjectStoreConfig.S3Compatible(options):
            return Credentials.S3(_s3_stand_in(options))
        case ObjectStoreConfig.Tigris(options):
            return Credentials.S3(_s3_stand_in(options))
        case ObjectStoreConfig.Gcs():
            return Credentials.Gcs(GcsCredentials.Anonymous())
        case ObjectStoreConfig.Http():
            return Credentials.HttpAccess()
        case ObjectStoreConfig.LocalFileSystem():
            return Credentials.LocalFileSystemAccess()
        case _:
            return None


def _s3_stand_in(options: S3Options) -> S3Credentials.Anonymous | S3Credentials.FromEnv:
    return S3Credentials.Anonymous() if options.anonymous else S3Credentials.FromEnv()
