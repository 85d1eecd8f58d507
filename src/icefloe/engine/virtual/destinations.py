"""Whether credentials of the reader may be sent to where a container says its objects are.

A container has two authors. The reader says, when opening, which url prefixes may be read and
with which credentials. The store that serves a prefix (endpoint, region, options) usually comes
from the repository's own configuration, which anyone who can write to the repository decides.
So that such a person cannot have the reader's credentials sent to a server of theirs, a stored
description is followed with credentials only if they end up at the platform's own servers;
otherwise the reader must give the same container again, in the configuration passed to open.
"""

import re
from collections.abc import Mapping
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
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.storage.addresses import is_metadata
from icefloe.storage.specs import without_secrets

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
    """Tell whether a host is where clouds tell machines their own credentials.

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
