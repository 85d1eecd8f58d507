"""Which storage serves a virtual chunk container, and whether credentials may go there.

A container has two authors. The reader says, when opening, which url prefixes may be read and
with which credentials. The store that serves a prefix (endpoint, region, options) usually comes
from the repository's own configuration, which anyone who can write to the repository decides.
So that such a person cannot have the reader's credentials sent to a server of theirs, a stored
description is followed with credentials only if they end up at the platform's own servers;
otherwise the reader must give the same container again, in the configuration passed to open.
"""

import logging
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Final, assert_never
from urllib.parse import unquote, urlsplit

from icefloe.config import ObjectStoreConfig, S3Options, VirtualChunkContainer
from icefloe.credentials import (
    AnyCredential,
    AzureCredentials,
    Credentials,
    GcsCredentials,
    S3Credentials,
)
from icefloe.engine.virtual.urls import parse_location
from icefloe.errors import ErrorKind, InvalidInputError, StorageError
from icefloe.storage import Storage
from icefloe.storage.platforms import tigris_spec
from icefloe.storage.specs import (
    LocalSpec,
    Spec,
    azure_spec,
    copy_of,
    gcs_spec,
    http_spec,
    s3_spec,
    without_secrets,
)

_log: Final = logging.getLogger(__name__)

_BUCKET: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_REGION: Final = re.compile(r"[A-Za-z0-9-]+")
_AZURE_ACCOUNT: Final = re.compile(r"[a-z0-9]{3,24}")
_WELL_KNOWN_S3: Final = re.compile(
    r"s3\.amazonaws\.com"
    r"|s3[.-](dualstack\.)?[a-z]{2}(-[a-z]+)+-[0-9]+\.amazonaws\.com(\.cn)?"
    r"|t3\.storage\.dev|fly\.storage\.tigris\.dev"
)
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


def grants(
    containers: Iterable[VirtualChunkContainer], access: Mapping[str, AnyCredential | None]
) -> dict[str, AnyCredential]:
    """Give the credential of each container that the reader authorised, by url prefix.

    Entries for prefixes that no container has are ignored, as other versions may have them. A
    credential of another platform than the container's is an error.
    """
    listed = {_slashed(prefix): credential for prefix, credential in access.items()}
    return {
        container.url_prefix: _checked(container, listed[_slashed(container.url_prefix)])
        for container in containers
        if _slashed(container.url_prefix) in listed
    }


def open_store(
    container: VirtualChunkContainer,
    credential: AnyCredential,
    *,
    trusted: Collection[VirtualChunkContainer],
) -> Storage:
    """Describe the storage of a container, rooted at its bucket, host or file system.

    Sends no request. Raises `InvalidInputError` if the credential would go to a place that
    only the repository's configuration names.
    """
    if container not in trusted and not _is_anonymous(credential):
        _check_destination(container)
    return Storage(_spec(container, credential))


def how_to_authorise(container: VirtualChunkContainer) -> str:
    """Say what a reader has to write to read the chunks of a container."""
    _, example = _NEEDED[type(container.store)]
    return (
        "authorize_virtual_chunk_access=icefloe.containers_credentials("
        f"{{{container.url_prefix!r}: {example}}})"
    )


def _slashed(prefix: str) -> str:
    return prefix if prefix.endswith("/") else f"{prefix}/"


def _checked(container: VirtualChunkContainer, credential: AnyCredential | None) -> AnyCredential:
    needed, _ = _NEEDED[type(container.store)]
    if credential is None:
        _log.warning(
            "None as the credential of %r is deprecated: write %s",
            container.url_prefix,
            how_to_authorise(container),
        )
        credential = _stand_in(container.store)
    if not isinstance(credential, needed):
        given = "None" if credential is None else type(credential).__qualname__
        raise StorageError(
            f"the virtual chunk container {container.url_prefix!r} cannot be read with {given}:"
            f" open the repository with {how_to_authorise(container)}",
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


def _is_anonymous(credential: AnyCredential) -> bool:
    """Tell whether nothing secret is sent with requests."""
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


def _check_destination(container: VirtualChunkContainer) -> None:
    """Refuse a stored description that leads credentials away from the platform's servers."""
    match container.store:
        case ObjectStoreConfig.S3(options) | ObjectStoreConfig.S3Compatible(options):
            doubt = _s3_doubt(options)
        case ObjectStoreConfig.Tigris(options):
            doubt = _s3_doubt(options)
        case ObjectStoreConfig.Gcs(opts):
            doubt = _options_doubt(opts)
        case ObjectStoreConfig.Azure(opts):
            doubt = _azure_doubt(opts)
        case _:
            return
    if doubt is not None:
        raise InvalidInputError(
            f"the configuration stored in the repository says that {container.url_prefix!r} is"
            f" reached with {doubt}. Your credentials are not sent there on its word alone. If"
            " you trust it, pass the same container yourself when you open the repository:"
            " config.set_virtual_chunk_container(VirtualChunkContainer("
            f"{container.url_prefix!r}, ...)) and Repository.open(storage, config=config, ...);"
            " or authorise it without credentials (anonymous=True)",
            ErrorKind.UNAUTHORIZED_VIRTUAL_CHUNK_CONTAINER,
            url_prefix=container.url_prefix,
        )


def _s3_doubt(options: S3Options) -> str | None:
    if options.region is not None and not _REGION.fullmatch(options.region):
        return f"the region {options.region!r}, which is none"
    if options.endpoint_url is None:
        return None
    url = urlsplit(options.endpoint_url)
    is_well_known = (
        url.scheme == "https"
        and _WELL_KNOWN_S3.fullmatch(url.netloc) is not None
        and not options.allow_http
    )
    return None if is_well_known else f"the endpoint {without_secrets(options.endpoint_url)!r}"


def _options_doubt(opts: Mapping[str, str] | None) -> str | None:
    doubtful = sorted((opts or {}).keys() - _HARMLESS_OPTIONS)
    return f"the options {', '.join(doubtful)}" if doubtful else None


def _azure_doubt(opts: Mapping[str, str] | None) -> str | None:
    account = (opts or {}).get("account", "")
    if not _AZURE_ACCOUNT.fullmatch(account):
        return f"the account {account!r}, which is none"
    return _options_doubt(opts)


def _spec(container: VirtualChunkContainer, credential: AnyCredential) -> Spec:
    """Map the description of a container to that of a storage, at the root of its bucket.

    For files only the url prefix counts, which is what the reader authorised: not the path
    that the store names beside it. Keys are taken as they are, never percent-encoded.
    """
    match container.store, credential:
        case ObjectStoreConfig.LocalFileSystem(), Credentials.LocalFileSystemAccess():
            return LocalSpec("/", encodes_keys=False)
        case ObjectStoreConfig.Http(opts, headers), Credentials.HttpAccess():
            url = urlsplit(container.url_prefix)
            if "@" in url.netloc:
                raise _unusable(container, "credentials have no place in a URL: use headers")
            root = f"{url.scheme}://{url.netloc}"
            return replace(http_spec(root, opts, headers), encodes_keys=False)
        case (
            (ObjectStoreConfig.S3(options) | ObjectStoreConfig.S3Compatible(options)),
            Credentials.S3(s3),
        ):
            return s3_spec(_for_reading(options), _bucket(container), None, s3)
        case ObjectStoreConfig.Tigris(options), Credentials.S3(s3):
            return tigris_spec(
                _for_reading(options),
                _bucket(container),
                None,
                s3,
                use_weak_consistency=options.region is None,
            )
        case ObjectStoreConfig.Gcs(opts), Credentials.Gcs(google):
            return replace(gcs_spec(_bucket(container), None, google, opts), encodes_keys=False)
        case ObjectStoreConfig.Azure(opts), Credentials.Azure(azure):
            given = dict(opts or {})
            account = given.pop("account", "")
            spec = azure_spec(account, _bucket(container), None, azure, given)
            return replace(spec, encodes_keys=False)
    raise _unusable(container, "its store cannot serve such urls")


def _for_reading(options: S3Options) -> S3Options:
    chosen = copy_of(options)
    chosen.checksum_algorithm = None  # concerns writes only
    return chosen


def _bucket(container: VirtualChunkContainer) -> str:
    bucket = unquote(parse_location(container.url_prefix).host)
    if not _BUCKET.fullmatch(bucket):
        raise _unusable(container, f"{bucket!r} cannot be the name of a bucket")
    return bucket


def _unusable(container: VirtualChunkContainer, reason: str) -> InvalidInputError:
    return InvalidInputError(
        f"the virtual chunk container {without_secrets(container.url_prefix)!r} cannot be used:"
        f" {reason}",
        ErrorKind.INVALID_CONFIG,
    )
