"""The functions that make storages.

Those for object stores have many parameters, most of which are also parameters of the function that
makes credentials, of `S3Options` or of the function that describes the storage. So they hand on
`locals()`, their arguments by name, and each name finds its place by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from inspect import signature
from typing import TYPE_CHECKING, Any

from icefloe.config import ChecksumAlgorithm, S3Options
from icefloe.storage.specs import (
    LocalSpec,
    MemorySpec,
    S3Spec,
    azure_spec,
    gcs_spec,
    http_spec,
    hugging_face_spec,
    r2_spec,
    redirect_spec,
    s3_object_store_spec,
    s3_spec,
    tigris_spec,
)
from icefloe.storage.storage import Storage

if TYPE_CHECKING:
    from icefloe.credentials import AnyCredential, GcsBearerCredential, S3StaticCredentials


def in_memory_storage() -> Storage:
    """Make an empty storage in memory, which other processes cannot see.

    >>> in_memory_storage().list_objects()
    []
    """
    return Storage(MemorySpec())


def local_filesystem_storage(path: str, *, durable: bool = False) -> Storage:
    """Use a local directory, which is made at the first write.

    Many processes and threads may commit to a repository in it at the same time. With
    `durable`, every write is on the disk before it counts, so it survives a loss of power.

    >>> local_filesystem_storage("/data/repo")
    icefloe.storage.local_filesystem_storage(path='/data/repo')
    """
    return Storage(LocalSpec.of(path, durable=durable))


def s3_storage(
    *,
    bucket: str,
    prefix: str | None,
    region: str | None = None,
    endpoint_url: str | None = None,
    allow_http: bool = False,
    access_key_id: str | None = None,
    secret_access_key: str | None = None,
    session_token: str | None = None,
    expires_after: datetime | None = None,
    anonymous: bool | None = None,
    from_env: bool | None = None,
    get_credentials: Callable[[], S3StaticCredentials] | None = None,
    scatter_initial_credentials: bool = False,
    force_path_style: bool = False,
    network_stream_timeout_seconds: int = 60,
    requester_pays: bool = False,
    checksum_algorithm: ChecksumAlgorithm | None = None,
    legacy_rooted_keys: bool | None = None,
    read_headers: dict[str, str] | None = None,
    write_headers: dict[str, str] | None = None,
    headers: dict[str, str] | None = None,
    anon: bool | None = None,
) -> Storage:
    """Use S3, or a storage that speaks its protocol.

    Of the checksum algorithms, `Sha256` and `Crc64Nvme` can be sent. Repositories whose keys
    begin with a slash (`legacy_rooted_keys=True`) cannot be reached.

    >>> s3_storage(bucket="climate", prefix="era5", region="eu-west-1", anonymous=True).spec.place
    's3://climate/era5'
    """
    return _s3_family(s3_spec, locals())


def s3_object_store_storage(
    *,
    bucket: str,
    prefix: str | None,
    region: str | None = None,
    endpoint_url: str | None = None,
    allow_http: bool = False,
    access_key_id: str | None = None,
    secret_access_key: str | None = None,
    session_token: str | None = None,
    expires_after: datetime | None = None,
    anonymous: bool | None = None,
    from_env: bool | None = None,
    force_path_style: bool = False,
    read_headers: dict[str, str] | None = None,
    write_headers: dict[str, str] | None = None,
    headers: dict[str, str] | None = None,
    anon: bool | None = None,
) -> Storage:
    """Use S3 with unusual characters of keys percent-encoded, as some repositories have it."""
    return _s3_family(s3_object_store_spec, locals())


def tigris_storage(
    *,
    bucket: str,
    prefix: str | None,
    region: str | None = None,
    endpoint_url: str | None = None,
    use_weak_consistency: bool = False,
    allow_http: bool = False,
    access_key_id: str | None = None,
    secret_access_key: str | None = None,
    session_token: str | None = None,
    expires_after: datetime | None = None,
    anonymous: bool | None = None,
    from_env: bool | None = None,
    get_credentials: Callable[[], S3StaticCredentials] | None = None,
    scatter_initial_credentials: bool = False,
    network_stream_timeout_seconds: int = 60,
    checksum_algorithm: ChecksumAlgorithm | None = None,
    legacy_rooted_keys: bool | None = None,
    read_headers: dict[str, str] | None = None,
    write_headers: dict[str, str] | None = None,
    headers: dict[str, str] | None = None,
    anon: bool | None = None,
) -> Storage:
    """Use Tigris: bound to one region, or read-only with `use_weak_consistency`."""
    return _s3_family(tigris_spec, locals())


def r2_storage(
    *,
    bucket: str | None = None,
    prefix: str | None = None,
    account_id: str | None = None,
    endpoint_url: str | None = None,
    region: str | None = None,
    allow_http: bool = False,
    access_key_id: str | None = None,
    secret_access_key: str | None = None,
    session_token: str | None = None,
    expires_after: datetime | None = None,
    anonymous: bool | None = None,
    from_env: bool | None = None,
    get_credentials: Callable[[], S3StaticCredentials] | None = None,
    scatter_initial_credentials: bool = False,
    network_stream_timeout_seconds: int = 60,
    checksum_algorithm: ChecksumAlgorithm | None = None,
    legacy_rooted_keys: bool | None = None,
    read_headers: dict[str, str] | None = None,
    write_headers: dict[str, str] | None = None,
    headers: dict[str, str] | None = None,
    anon: bool | None = None,
) -> Storage:
    """Use Cloudflare R2, by account or by endpoint; without a bucket the prefix starts with it.

    >>> r2_storage(prefix="bucket/path", account_id="abc", anonymous=True).spec.place
    's3://bucket/path'
    """
    return _s3_family(r2_spec, locals())


def hf_storage(
    *,
    bucket: str,
    prefix: str | None,
    namespace: str,
    access_key_id: str | None = None,
    secret_access_key: str | None = None,
    session_token: str | None = None,
    expires_after: datetime | None = None,
    from_env: bool | None = None,
    get_credentials: Callable[[], S3StaticCredentials] | None = None,
    scatter_initial_credentials: bool = False,
    network_stream_timeout_seconds: int = 60,
    legacy_rooted_keys: bool | None = None,
    read_headers: dict[str, str] | None = None,
    write_headers: dict[str, str] | None = None,
    headers: dict[str, str] | None = None,
) -> Storage:
    """Use a bucket of a namespace at Hugging Face."""
    return _s3_family(hugging_face_spec, locals())


def gcs_storage(
    *,
    bucket: str,
    prefix: str | None,
    service_account_file: str | None = None,
    service_account_key: str | None = None,
    application_credentials: str | None = None,
    bearer_token: str | None = None,
    anonymous: bool | None = None,
    from_env: bool | None = None,
    config: dict[str, str] | None = None,
    get_credentials: Callable[[], GcsBearerCredential] | None = None,
    scatter_initial_credentials: bool = False,
    read_headers: dict[str, str] | None = None,
    write_headers: dict[str, str] | None = None,
    headers: dict[str, str] | None = None,
    anon: bool | None = None,
) -> Storage:
    """Use Google Cloud Storage; `config` holds options of the client by name.

    >>> gcs_storage(bucket="climate", prefix="era5", anonymous=True).spec.place
    'gs://climate/era5'
    """
    arguments = locals()
    from icefloe.credentials import gcs_credentials

    credentials = _call_with(gcs_credentials, arguments)
    return Storage(gcs_spec(credentials=credentials, **arguments))


def azure_storage(
    *,
    account: str,
    container: str,
    prefix: str,
    access_key: str | None = None,
    sas_token: str | None = None,
    bearer_token: str | None = None,
    from_env: bool | None = None,
    anonymous: bool | None = None,
    config: dict[str, str] | None = None,
    anon: bool | None = None,
) -> Storage:
    """Use Azure Blob Storage; `config` holds options of the client by name.

    >>> azure_storage(account="acme", container="climate", prefix="era5").spec.place
    'az://acme/climate/era5'
    """
    arguments = locals()
    from icefloe.credentials import azure_credentials

    credentials = _call_with(azure_credentials, arguments)
    return Storage(azure_spec(credentials=credentials, **arguments))


def http_storage(
    base_url: str, opts: dict[str, str] | None = None, headers: dict[str, str] | None = None
) -> Storage:
    """Read from a web server; `opts` are options of the client by name (`timeout`, ...).

    >>> http_storage("https://data.example.org/repo")
    icefloe.storage.http_storage(base_url='https://data.example.org/repo')
    """
    return Storage(http_spec(base_url, opts, headers))


def redirect_storage(
    base_url: str, *, from_env: bool = False, trusted_endpoints: Sequence[str] = ()
) -> Storage:
    """Use the storage that a web address leads to by HTTP redirections.

    The last address must be that of a storage: `s3://`, `gs://`, `az://`, `r2://`,
    `tigris://`, or `https+icechunk://` (also `+ic`) for a web server. Requests there are
    unsigned, unless `from_env` says that credentials of the environment may be used there.
    Those are sent to the platforms' own servers only: should the address name an endpoint of
    its own, it must be one of `trusted_endpoints`.

    >>> redirect_storage("https://data.example.org/repo")
    icefloe.storage.redirect_storage(base_url='https://data.example.org/repo')
    """
    return Storage(redirect_spec(base_url, from_env=from_env, trusted_endpoints=trusted_endpoints))


def storage_from_url(
    url: str, *, anonymous: bool = False, credential: AnyCredential | None = None
) -> Storage:
    """Use the storage that a URL or path names, with credentials from the environment.

    Known are paths, `file:///path`, `memory://`, `s3://bucket/prefix`, `gs://bucket/prefix`,
    `az://account/container/prefix`, `r2://`, `tigris://`, `http://` and `https://`. Options
    follow as a query: `?region=eu-west-1&endpoint_url=https://...&anonymous=true`. A credential
    such as `icefloe.Credentials.S3(...)` takes the place of those of the environment.

    >>> storage_from_url("s3://climate/era5?region=eu-west-1&anonymous=true").spec.place
    's3://climate/era5'
    """
    from icefloe.storage.urls import spec_from_url

    return Storage(spec_from_url(url, anonymous=anonymous, credential=credential))


def _s3_family(describe: Callable[..., S3Spec], arguments: dict[str, Any]) -> Storage:
    """Make a storage that speaks the protocol of S3 from all arguments of a function above."""
    from icefloe.credentials import s3_credentials

    credentials = _call_with(s3_credentials, arguments)
    options = _call_with(S3Options, arguments)
    return Storage(describe(options, credentials=credentials, **arguments))


def _call_with[T](function: Callable[..., T], arguments: dict[str, Any]) -> T:
    """Call a function with the arguments that it has parameters for, and take these away."""
    names = signature(function).parameters.keys() & arguments.keys()
    return function(**{name: arguments.pop(name) for name in names})
