"""Which storage serves a place of virtual chunks."""

import ipaddress
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Final
from urllib.parse import urlsplit

from icefloe.config import ObjectStoreConfig, S3Options, VirtualChunkContainer
from icefloe.config.urls import Prefix, parse_prefix
from icefloe.credentials import Credentials
from icefloe.engine.virtual.access import Grant
from icefloe.engine.virtual.destinations import check_destination, credentials_doubt
from icefloe.engine.virtual.matching import DEFAULT_CONTAINERS
from icefloe.engine.virtual.places import Place
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.storage import Storage
from icefloe.storage.guarded_options import guarded_http_spec
from icefloe.storage.platforms import tigris_spec
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
    without_secrets,
)

_BUCKET: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_GCS_ENDPOINTS: Final = frozenset({"google_base_url", "base_url"})
_AZURE_ENDPOINTS: Final = frozenset({"azure_storage_endpoint", "azure_endpoint", "endpoint"})


def open_store(
    place: Place,
    grant: Grant,
    *,
    trusted: Collection[VirtualChunkContainer] = (),
    home_region: str | None = None,
    prefixes: Iterable[Prefix] = (),
) -> Storage:
    """Describe the storage of a place, rooted at its bucket, web server or file system.

    Sends no request. Raises `InvalidInputError` if the credential would go to a server that only
    the repository's configuration names; without credentials such a one is read with care.

    Args:
        place: what is to be read; all places of its bucket and container have one storage.
        grant: by which it may be read.
        trusted: containers that the reader gave, rather than the repository.
        home_region: region of Amazon S3 that is taken where a container names none.
        prefixes: all that the reader authorised: between local files of theirs links may lead.
    """
    container = place.container
    is_doubted = container not in trusted and container not in DEFAULT_CONTAINERS
    if is_doubted:
        check_destination(container, grant.credential)
    spec = _spec(place, grant, home_region, prefixes)
    doubt = credentials_doubt(container) if is_doubted else None
    return Storage(spec if doubt is None else _doubted_spec(place, spec, doubt))


def _doubted_spec(place: Place, spec: Spec, doubt: str) -> GuardedHttpSpec:
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
        raise _unusable(place, f"it is reached with {doubt}")
    written = urlsplit(base).hostname or ""
    private = [written] if _is_literal(written) else []
    return guarded_http_spec(f"{base.rstrip('/')}{path}", options, private_hosts=private)


def _taken(options: Mapping[str, str], names: Collection[str]) -> tuple[str | None, dict[str, str]]:
    """Take the one option out that has one of several names; give it, and the others."""
    found = [value for name, value in options.items() if name.lower() in names]
    others = {name: value for name, value in options.items() if name.lower() not in names}
    return found[0] if len(found) == 1 else None, others


def _spec(place: Place, grant: Grant, home_region: str | None, prefixes: Iterable[Prefix]) -> Spec:
    """Map the description of a container to that of a storage, at the root of its bucket.

    For files only what the reader authorised counts, not the path that the store names beside
    it. Keys are taken as they are, never percent-encoded.
    """
    match place.container.store, grant.credential:
        case ObjectStoreConfig.LocalFileSystem(), Credentials.LocalFileSystemAccess():
            return LocalSpec("/", encodes_keys=False, confined_to=_paths(prefixes))
        case ObjectStoreConfig.Http() as store, Credentials.HttpAccess() as access:
            return _http_spec(place, store, grant, access)
        case ObjectStoreConfig.Gcs(opts), Credentials.Gcs(google):
            return replace(gcs_spec(_bucket(place), None, google, opts), encodes_keys=False)
        case ObjectStoreConfig.Azure(opts), Credentials.Azure(azure):
            given = dict(opts or {})
            account = given.pop("account", "")
            if not account:
                raise _unusable(place, "it does not say whose: give it azure_store(account=...)")
            spec = azure_spec(account, _bucket(place), None, azure, given)
            return replace(spec, encodes_keys=False)
        case store, Credentials.S3():
            return _s3_spec(place, store, grant.credential, home_region)
    raise _unusable(place, "its store cannot serve such urls")


def _s3_spec(
    place: Place, store: ObjectStoreConfig, credential: Credentials.S3, home_region: str | None
) -> S3Spec:
    match store:
        case ObjectStoreConfig.Tigris(options):
            return tigris_spec(
                _for_reading(options),
                _bucket(place),
                None,
                credential.credentials,
                use_weak_consistency=options.region is None,
            )
        case ObjectStoreConfig.S3(options) | ObjectStoreConfig.S3Compatible(options):
            chosen = _for_reading(options)
            if chosen.region is None and chosen.endpoint_url is None:
                chosen.region = home_region
            return s3_spec(chosen, _bucket(place), None, credential.credentials)
    raise _unusable(place, "its store cannot serve such urls")


def _http_spec(
    place: Place, store: ObjectStoreConfig.Http, grant: Grant, access: Credentials.HttpAccess
) -> GuardedHttpSpec:
    """Describe a web server; one that the reader authorised by its address may be private."""
    host = parse_prefix(grant.prefix).host or ""
    name = re.sub(r":[0-9]+$", "", host)
    return guarded_http_spec(
        f"{place.location.scheme}://{place.bucket}",
        store.opts,
        store.headers,
        private_hosts=[name] if _is_literal(name) else [],
        allow_private=access.allow_private,
    )


def _is_literal(host: str) -> bool:
    """Tell whether a host says by itself which machine it is."""
    if host == "localhost":
        return True
    try:
        ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True


def _paths(prefixes: Iterable[Prefix]) -> tuple[str, ...]:
    """Give the paths of the local files and folders among prefixes."""
    return tuple("/" + "/".join(each.segments) for each in prefixes if each.scheme == "file")


def _for_reading(options: S3Options) -> S3Options:
    chosen = copy_of(options)
    chosen.checksum_algorithm = None  # concerns writes only
    return chosen


def _bucket(place: Place) -> str:
    if not _BUCKET.fullmatch(place.bucket):
        raise _unusable(place, f"{place.bucket!r} cannot be the name of a bucket")
    return place.bucket


def _unusable(place: Place, reason: str) -> InvalidInputError:
    prefix = without_secrets(place.container.url_prefix)
    return InvalidInputError(
        f"the virtual chunk container {prefix!r} cannot be used: {reason}",
        ErrorKind.INVALID_CONFIG,
    )
