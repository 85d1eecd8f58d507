"""The storages that serve the locations of virtual chunks, opened once per process."""

import ipaddress
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from typing import Final
from urllib.parse import urlsplit

from icefloe.config import (
    Attribution,
    ObjectStoreConfig,
    S3Options,
    StorageSettings,
    VirtualChunkContainer,
)
from icefloe.credentials import Credentials
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.forks import renew_lock_in_children
from icefloe.records import Record, replace
from icefloe.storage import Backend, Storage
from icefloe.storage.disk_cache import PlaceCache, cache_of
from icefloe.storage.guarded_http import guarded_http_spec
from icefloe.storage.specs import (
    AzureSpec,
    GcsSpec,
    GuardedHttpSpec,
    LocalSpec,
    S3Spec,
    Spec,
    azure_spec,
    copy_of,
    gcs_spec,
    s3_spec,
    tigris_spec,
    without_secrets,
)
from icefloe.values.urls import Prefix, parse_prefix
from icefloe.virtual_chunks.access import Grant, check_destination, credentials_doubt
from icefloe.virtual_chunks.locations import DEFAULT_CONTAINERS
from icefloe.virtual_chunks.resolve import ResolvedLocation

MOST_CLIENTS: Final = 64


class Client(Record):
    """An open storage, and by what it is known."""

    key: Hashable
    backend: Backend
    is_near: bool
    """Whether it reads from this machine, so that requests cost next to nothing."""
    kept: PlaceCache | None = None
    """Keeps bytes of its objects on a local disk."""


class Clients:
    """Opens each storage once, however many ask for it together.

    Only this many are kept, the most recently used: a repository may name any number of buckets.
    """

    def __init__(
        self,
        settings: StorageSettings | None = None,
        attribution: Attribution | None = None,
        *,
        most: int = MOST_CLIENTS,
    ) -> None:
        self._settings = settings
        self._attribution = attribution
        self._most = most
        self._lock = threading.Lock()
        renew_lock_in_children(self)
        self._open: OrderedDict[Hashable, Client] = OrderedDict()
        self.opened = 0
        """How many were opened so far."""

    def get(self, key: Hashable, describe: Callable[[], Storage]) -> Client:
        """Return the client that is known by a key; `describe` says what to open if there is none.

        The key stands for all that the description depends on.
        """
        with self._lock:  # opening takes milliseconds and sends no request
            client = self._open.get(key)
            if client is None:
                storage = describe()
                backend = storage.open(self._settings, self._attribution)
                is_near = isinstance(storage.spec, LocalSpec)
                client = Client(key, backend, is_near, cache_of(storage.spec))
                self._open[key] = client
                self.opened += 1
                if len(self._open) > self._most:
                    self._open.popitem(last=False)
            else:
                self._open.move_to_end(key)
            return client


_BUCKET: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_GCS_ENDPOINTS: Final = frozenset({"google_base_url", "base_url"})
_AZURE_ENDPOINTS: Final = frozenset({"azure_storage_endpoint", "azure_endpoint", "endpoint"})


def open_store(
    resolved: ResolvedLocation,
    grant: Grant,
    *,
    trusted: Collection[VirtualChunkContainer] = (),
    home_region: str | None = None,
    prefixes: Iterable[Prefix] = (),
) -> Storage:
    """Describe the storage of a location, rooted at its bucket, web server or file system.

    Sends no request. Raises `InvalidInputError` if the credential would go to a server that only
    the repository's configuration names; without credentials such a one is read with care.

    Args:
        resolved: what is to be read; all locations of its bucket and container have one storage.
        grant: by which it may be read.
        trusted: containers that the reader gave, rather than the repository.
        home_region: region of Amazon S3 that is taken where a container names none.
        prefixes: all that the reader authorised: between local files of theirs links may lead.
    """
    container = resolved.container
    is_doubted = container not in trusted and container not in DEFAULT_CONTAINERS
    if is_doubted:
        check_destination(container, grant.credential)
    spec = _spec(resolved, grant, home_region, prefixes)
    doubt = credentials_doubt(container) if is_doubted else None
    return Storage(spec if doubt is None else _doubted_spec(resolved, spec, doubt))


def _doubted_spec(resolved: ResolvedLocation, spec: Spec, doubt: str) -> GuardedHttpSpec:
    """Describe a bucket as a part of a web server, to be read without credentials.

    A server that only the repository names may be anybody's: it is read with a client that
    follows no redirection to another, and reads no more than it asked for. The clients of the
    clouds do none of that. An address of the reader's own network must be written as such: no
    name may turn out to be one.
    """
    options: dict[str, str] = {}
    match spec:
        case S3Spec():
            base = spec.endpoint
            path = f"/{spec.bucket}" if spec.uses_path_style else ""
        case GcsSpec():
            base, options = _taken(spec.config, _GCS_ENDPOINTS)
            path = f"/{spec.bucket}"
        case AzureSpec():
            base, options = _taken(spec.config, _AZURE_ENDPOINTS)
            path = f"/{spec.container}"
        case _:
            base, path = None, ""
    if base is None:
        raise _unusable(resolved, f"it is reached with {doubt}")
    written = urlsplit(base).hostname or ""
    private = [written] if _is_literal(written) else []
    return guarded_http_spec(f"{base.rstrip('/')}{path}", options, private_hosts=private)


def _taken(options: Mapping[str, str], names: Collection[str]) -> tuple[str | None, dict[str, str]]:
    """Take the one option out that has one of several names; give it, and the others."""
    values = [value for name, value in options.items() if name.lower() in names]
    others = {name: value for name, value in options.items() if name.lower() not in names}
    return values[0] if len(values) == 1 else None, others


def _spec(
    resolved: ResolvedLocation, grant: Grant, home_region: str | None, prefixes: Iterable[Prefix]
) -> Spec:
    """Map the description of a container to that of a storage, at the root of its bucket.

    For files only what the reader authorised counts, not the path that the store names beside
    it. Keys are taken as they are, never percent-encoded.
    """
    match resolved.container.store, grant.credential:
        case ObjectStoreConfig.LocalFileSystem(), Credentials.LocalFileSystemAccess():
            return LocalSpec("/", encodes_keys=False, confined_to=_paths(prefixes))
        case ObjectStoreConfig.Http() as store, Credentials.HttpAccess() as access:
            return _http_spec(resolved, store, grant, access)
        case ObjectStoreConfig.Gcs(opts), Credentials.Gcs(google):
            bucket = gcs_spec(_bucket(resolved), None, google, config=opts)
            return replace(bucket, encodes_keys=False)
        case ObjectStoreConfig.Azure(opts), Credentials.Azure(azure):
            options = dict(opts or {})
            account = options.pop("account", "")
            if not account:
                raise _unusable(resolved, "it does not say whose: give it azure_store(account=...)")
            container = azure_spec(account, _bucket(resolved), None, azure, config=options)
            return replace(container, encodes_keys=False)
        case store, Credentials.S3():
            return _s3_spec(resolved, store, grant.credential, home_region)
    raise _unusable(resolved, "its store cannot serve such urls")


def _s3_spec(
    resolved: ResolvedLocation,
    store: ObjectStoreConfig,
    credential: Credentials.S3,
    home_region: str | None,
) -> S3Spec:
    match store:
        case ObjectStoreConfig.Tigris(options):
            return tigris_spec(
                _for_reading(options),
                _bucket(resolved),
                None,
                options.region is None,
                credential.credentials,
            )
        case ObjectStoreConfig.S3(options) | ObjectStoreConfig.S3Compatible(options):
            chosen = _for_reading(options)
            if chosen.region is None and chosen.endpoint_url is None:
                chosen.region = home_region
            return s3_spec(chosen, _bucket(resolved), None, credential.credentials)
    raise _unusable(resolved, "its store cannot serve such urls")


def _http_spec(
    resolved: ResolvedLocation,
    store: ObjectStoreConfig.Http,
    grant: Grant,
    access: Credentials.HttpAccess,
) -> GuardedHttpSpec:
    """Describe a web server; one that the reader authorised by its address may be private."""
    host = parse_prefix(grant.prefix).host or ""
    name = re.sub(r":[0-9]+$", "", host)
    return guarded_http_spec(
        f"{resolved.location.scheme}://{resolved.bucket}",
        store.opts,
        store.headers,
        private_hosts=[name] if _is_literal(name) else [],
        allow_private=access.allow_private,
    )


def _is_literal(host: str) -> bool:
    """Return whether a host says by itself which machine it is."""
    if host == "localhost":
        return True
    try:
        ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True


def _paths(prefixes: Iterable[Prefix]) -> tuple[str, ...]:
    """Return the paths of the local files and folders among prefixes."""
    return tuple("/" + "/".join(prefix.segments) for prefix in prefixes if prefix.scheme == "file")


def _for_reading(options: S3Options) -> S3Options:
    chosen = copy_of(options)
    chosen.checksum_algorithm = None  # concerns writes only
    return chosen


def _bucket(resolved: ResolvedLocation) -> str:
    if not _BUCKET.fullmatch(resolved.bucket):
        raise _unusable(resolved, f"{resolved.bucket!r} cannot be the name of a bucket")
    return resolved.bucket


def _unusable(resolved: ResolvedLocation, reason: str) -> InvalidInputError:
    prefix = without_secrets(resolved.container.url_prefix)
    return InvalidInputError(
        f"the virtual chunk container {prefix!r} cannot be used: {reason}",
        ErrorKind.INVALID_CONFIG,
    )
