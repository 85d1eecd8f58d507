"""The reader's authorisations: locations of virtual chunks, each with a credential.

A container has two authors. The reader states, when opening, which URL prefixes may be read and
with which credentials. The store that serves a prefix (endpoint, region, options) usually comes
from the repository's own configuration, which anyone who can write to the repository decides.
So that such a person cannot have the reader's credentials sent to their own server, a stored
description is followed with credentials only if they end up at the platform's own servers;
otherwise the reader must pass the same container again, in the configuration passed to open.
"""

import logging
import re
from collections.abc import Iterable, Mapping
from typing import Final, assert_never
from urllib.parse import urlsplit

from icefloe.config import ObjectStoreConfig, S3Options, VirtualChunkContainer
from icefloe.credentials import (
    AnyCredential,
    AzureCredentials,
    Credentials,
    GcsCredentials,
    S3Credentials,
)
from icefloe.errors import ErrorKind, InvalidInputError, StorageError
from icefloe.records import Record
from icefloe.storage.addresses import is_metadata
from icefloe.storage.specs import without_secrets
from icefloe.values.urls import Prefix, parse_prefix
from icefloe.virtual_chunks.locations import PrefixTable

_REGION: Final = re.compile(r"[A-Za-z0-9-]+")
_AZURE_ACCOUNT: Final = re.compile(r"[a-z0-9]{3,24}")
_WELL_KNOWN_S3: Final = re.compile(
    r"s3\.amazonaws\.com"
    r"|s3[.-](dualstack\.)?[a-z]{2}(-[a-z]+)+-[0-9]+\.amazonaws\.com(\.cn)?"
    r"|t3\.storage\.dev|fly\.storage\.tigris\.dev"
    r"|[0-9a-f]{32}\.((eu|fedramp)\.)?r2\.cloudflarestorage\.com"
    r"|storage\.googleapis\.com"
)
_METADATA_NAMES: Final = frozenset({"metadata", "metadata.google.internal", "instance-data"})

_HARMLESS_OPTIONS: Final = frozenset(
    {
        "account",
        "connect_timeout",
        "http1_only",
        "http2_only",
        "pool_idle_timeout",
        "pool_max_idle_per_host",
        "timeout",
        "user_agent",
    }
)
"""Options of clients by name that cannot change where requests go, nor how well they are kept."""


def check_destination(container: VirtualChunkContainer, credential: AnyCredential) -> None:
    """Refuse a stored description that leads requests to where the reader never agreed to.

    Requests with credentials stay with the platform's own servers. Requests without any may go
    anywhere but to the services of the machine's own cloud that hand out credentials.
    """
    if is_anonymous(credential):
        doubt, consequence = anonymous_doubt(container), "Nothing is asked of it"
        way_out = ""
    else:
        doubt, consequence = credentials_doubt(container), "Your credentials are not sent there"
        way_out = "; or authorise it without credentials (anonymous=True)"
    if doubt is not None:
        raise InvalidInputError(
            f"the configuration stored in the repository says that {container.url_prefix!r} is"
            f" reached with {doubt}. {consequence} on its word alone. If you trust it, pass the"
            " same container yourself when you open the repository:"
            " config.set_virtual_chunk_container(VirtualChunkContainer("
            f"{container.url_prefix!r}, ...)) and Repository.open(storage, config=config, ...)"
            f"{way_out}",
            ErrorKind.UNAUTHORIZED_VIRTUAL_CHUNK_CONTAINER,
            url_prefix=container.url_prefix,
        )


def is_anonymous(credential: AnyCredential) -> bool:
    """Return whether nothing secret is sent with requests."""
    match credential:
        case Credentials.S3(way):
            return isinstance(way, S3Credentials.Anonymous)
        case Credentials.Gcs(way):
            return isinstance(way, GcsCredentials.Anonymous)
        case Credentials.Azure(way):
            return isinstance(way, AzureCredentials.Anonymous)
        case Credentials.LocalFileSystemAccess() | Credentials.HttpAccess():
            return True
        case _:
            assert_never(credential)


def credentials_doubt(container: VirtualChunkContainer) -> str | None:
    """Name what in the store of a container may lead credentials away from the platform."""
    match container.store:
        case ObjectStoreConfig.S3(options) | ObjectStoreConfig.S3Compatible(options):
            return _s3_doubt(options)
        case ObjectStoreConfig.Tigris(options):
            return _s3_doubt(options)
        case ObjectStoreConfig.Gcs(opts):
            return _options_doubt(opts)
        case ObjectStoreConfig.Azure(opts):
            return _azure_doubt(opts)
        case _:
            return None


def anonymous_doubt(container: VirtualChunkContainer) -> str | None:
    """Name what leads even a request without credentials to where none should go."""
    match container.store:
        case ObjectStoreConfig.S3(options) | ObjectStoreConfig.S3Compatible(options):
            endpoint = options.endpoint_url
        case ObjectStoreConfig.Tigris(options):
            endpoint = options.endpoint_url
        case _:
            return None
    if endpoint is None or not _tells_credentials(urlsplit(endpoint).hostname or ""):
        return None
    return f"the endpoint {without_secrets(endpoint)!r}, an address of this machine's own network"


def _tells_credentials(host: str) -> bool:
    """Return whether a host is where clouds tell machines their own credentials.

    A name is not looked up: this is a net below the rule that the reader chooses the prefixes.
    """
    return host.rstrip(".").lower() in _METADATA_NAMES or is_metadata(host)


def _s3_doubt(options: S3Options) -> str | None:
    if options.region is not None and not _REGION.fullmatch(options.region):
        return f"the region {options.region!r}, which is none"
    if options.endpoint_url is None:
        return None
    url = urlsplit(options.endpoint_url)
    if url.scheme != "https" or _WELL_KNOWN_S3.fullmatch(url.netloc) is None:
        return f"the endpoint {without_secrets(options.endpoint_url)!r}"
    return "an endpoint and allow_http" if options.allow_http else None


def _options_doubt(opts: Mapping[str, str] | None) -> str | None:
    doubtful = sorted((opts or {}).keys() - _HARMLESS_OPTIONS)
    return f"the options {', '.join(doubtful)}" if doubtful else None


def _azure_doubt(opts: Mapping[str, str] | None) -> str | None:
    account = (opts or {}).get("account", "")
    if not _AZURE_ACCOUNT.fullmatch(account):
        return f"the account {account!r}, which is none"
    return _options_doubt(opts)


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


class Grant(Record):
    """One entry of what the reader authorised, as it applies to a container."""

    prefix: str
    """As the reader wrote it."""
    credential: AnyCredential


class Access:
    """All authorisations of the reader: credentials by URL prefix (a last slash may be missing).

    Entries that are no prefixes of URLs authorise nothing.
    """

    def __init__(self, entries: Mapping[str, AnyCredential | None]) -> None:
        self.entries = dict(entries)
        self._prefixes = dict(_parsed(self.entries))
        self._table = PrefixTable([(prefix, text) for text, prefix in self._prefixes.items()])

    def check(self, containers: Iterable[tuple[Prefix, VirtualChunkContainer]]) -> None:
        """Refuse credentials of another platform than that of a container they would be for."""
        for container_prefix, container in containers:
            for text, prefix in self._prefixes.items():
                if prefix.covers(container_prefix) or container_prefix.covers(prefix):
                    self._grant(text, container)

    def grant_for(self, prefix: Prefix, container: VirtualChunkContainer) -> Grant | None:
        """Find the entry by which a place of a container may be read."""
        longest = self._table.longest(prefix)
        return None if longest is None else self._grant(longest[1], container)

    def covers(self, prefix: Prefix) -> bool:
        """Return whether a place may be read, in whatever container it is."""
        return self._table.longest(prefix) is not None

    def prefixes_in(self, container_prefix: Prefix, container: VirtualChunkContainer) -> list[str]:
        """List what may be read of a container: all of it, or the parts with an entry."""
        if any(prefix.covers(container_prefix) for prefix in self._prefixes.values()):
            return [container.url_prefix]
        return [text for text, prefix in self._prefixes.items() if container_prefix.covers(prefix)]

    @property
    def prefixes(self) -> tuple[tuple[str, Prefix], ...]:
        """All entries, as they are written and as they are compared."""
        return tuple(self._prefixes.items())

    def _grant(self, text: str, container: VirtualChunkContainer) -> Grant:
        return Grant(text, _fitting(container, text, self.entries[text]))


def how_to_authorise(container: VirtualChunkContainer, prefix: str | None = None) -> str:
    """Return the code that a reader needs to read the chunks of a container, or a part of it."""
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
        f" {how_to_authorise(container)}, or in xarray with authorize=[{prefix!r}]",
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
        credential_type = "None" if credential is None else type(credential).__qualname__
        raise StorageError(
            f"the virtual chunk container {container.url_prefix!r} cannot be read with"
            f" {credential_type}:"
            f" open the repository with {how_to_authorise(container, text)}",
            ErrorKind.STORAGE_OTHER,
        )
    return credential


def _stand_in(store: ObjectStoreConfig) -> AnyCredential | None:
    """Return the credential for which None stands."""
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
