"""From an answer of the service to storages, containers and credentials of the library.

`renew` is a function without parameters that returns a newer credential, and can also replace one
that the store refused. It travels to workers, so it is a handle that asks the service again, and
has no secret of a store in it.
"""

from collections.abc import Callable
from typing import Any, Protocol

from icefloe.catalog.model import Platform
from icefloe.catalog.wire import ContainerAnswer, CredentialAnswer, StoreAnswer
from icefloe.config import ObjectStoreConfig, S3Options, VirtualChunkContainer
from icefloe.credentials import (
    AzureCredentials,
    AzureRefreshableCredential,
    GcsBearerCredential,
    GcsCredentials,
    S3Credentials,
    S3StaticCredentials,
    azure_credentials,
    gcs_credentials,
    s3_credentials,
)
from icefloe.errors import ErrorKind, ServiceError
from icefloe.records import replace
from icefloe.storage import Storage
from icefloe.storage.specs import azure_spec, gcs_spec, s3_spec


class Renew(Protocol):
    """Returns newer credentials."""

    def __call__(self) -> CredentialAnswer:
        """Return a credential that is good for a while yet."""
        ...

    def replace(self, is_refused: Callable[[CredentialAnswer], bool]) -> CredentialAnswer:
        """Return another credential than one that the store refused."""
        ...


def storage_of(
    store: StoreAnswer, credential: CredentialAnswer, renew: Renew | None = None
) -> Storage:
    """Return the storage that an answer describes."""
    chosen = credentials_of(credential, store.platform, renew)
    match store.platform:
        case Platform.S3:
            return Storage(s3_spec(_s3_options(store), store.bucket, store.prefix, chosen))
        case Platform.GCS:
            return Storage(gcs_spec(store.bucket, store.prefix, chosen, config=_options(store)))
        case Platform.AZURE:
            account, options = store.account or "", _options(store)
            spec = azure_spec(account, store.bucket, store.prefix, chosen, config=options)
            return Storage(spec)


def container_of(answer: ContainerAnswer) -> VirtualChunkContainer:
    """Return the container that an answer describes, with the service's settings only."""
    store = answer.store
    kind: Any
    match store.platform:
        case Platform.S3:
            kind = ObjectStoreConfig.S3Compatible if store.endpoint else ObjectStoreConfig.S3
            config = kind(_s3_options(store))
        case Platform.GCS:
            config = ObjectStoreConfig.Gcs(_options(store))
        case Platform.AZURE:
            config = ObjectStoreConfig.Azure({"account": store.account or ""} | _options(store))
    return VirtualChunkContainer(answer.prefix, config, name=answer.name)


def credentials_of(credential: CredentialAnswer, platform: Platform, renew: Renew | None) -> Any:
    """Return credentials of the library; with `renew`, they are renewed before their end."""
    if credential.kind == "anonymous":
        anonymous = {
            Platform.S3: S3Credentials.Anonymous,
            Platform.GCS: GcsCredentials.Anonymous,
            Platform.AZURE: AzureCredentials.Anonymous,
        }
        return anonymous[platform]()
    if renew is not None:
        return _renewed(credential, renew)
    match credential.kind:
        case "s3":
            return S3Credentials.Static(_static(credential))
        case "gcs-token":
            return gcs_credentials(bearer_token=credential.values["token"])
        case "azure-sas":
            return azure_credentials(sas_token=credential.values["sas"])
    raise _unknown(credential)


class _Renewal:
    """Asks for a newer credential, in the form that the library's renewal expects."""

    def __init__(self, renew: Renew) -> None:
        self._renew = renew

    def __call__(self) -> Any:
        return _static(self._renew())

    def replace_refused(self, refused: Any) -> Any:
        def is_refused(credential: CredentialAnswer) -> bool:
            # Every answer of the service states its end again.
            return bool(_static(replace(credential, expires_at=refused.expires_after)) == refused)

        return _static(self._renew.replace(is_refused))


def _static(credential: CredentialAnswer) -> Any:
    values, end = credential.values, credential.expires_at
    match credential.kind:
        case "s3":
            return S3StaticCredentials(**values, expires_after=end)
        case "gcs-token":
            return GcsBearerCredential(values["token"], expires_after=end)
        case "azure-sas":
            return AzureRefreshableCredential.SasToken(values["sas"], expires_after=end)
    raise _unknown(credential)


def _renewed(credential: CredentialAnswer, renew: Renew) -> Any:
    get_credentials = _Renewal(renew)
    match credential.kind:
        case "s3":
            return s3_credentials(get_credentials=get_credentials)
        case "gcs-token":
            return gcs_credentials(get_credentials=get_credentials)
        case "azure-sas":
            return azure_credentials(get_credentials=get_credentials)
    raise _unknown(credential)


def _unknown(credential: CredentialAnswer) -> ServiceError:
    problem = f"the service sent a credential of the unknown kind {credential.kind!r}"
    advice = "is this client older than the service?"
    return ServiceError(f"{problem}: {advice}", ErrorKind.INVALID_CREDENTIALS)


def _s3_options(store: StoreAnswer) -> S3Options:
    return S3Options(
        region=store.region,
        endpoint_url=store.endpoint,
        allow_http=store.allow_http,
        force_path_style=store.path_style,
    )


def _options(store: StoreAnswer) -> dict[str, str]:
    options = {}
    if store.endpoint is not None:
        if store.platform is Platform.AZURE:
            account = f"/{store.account}" if store.path_style else ""
            options["endpoint"] = store.endpoint.rstrip("/") + account
        else:
            options["google_base_url"] = store.endpoint
    if store.allow_http:
        options["allow_http"] = "true"
    return options
