"""Open `obstore` clients for the description of a storage.

Keys from the profile files of the AWS tools are read here, because the client library does not
read them. Only keys written in the files are used: for single sign-on, assumed roles or an external
process, pass a function (`get_credentials`). No other module of the package reads variables of the
environment to reach a storage.

The threads of the clients start with the first request and serve the whole process. A child that
is forked later has the memory that says they run, but not the threads: it would wait for them
forever, so it is refused.
"""

import os
from collections.abc import Callable, Hashable, Mapping
from configparser import ConfigParser
from configparser import Error as ConfigError
from dataclasses import dataclass, field, fields
from datetime import timedelta
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from obstore.store import AzureStore, GCSStore, HTTPStore, S3Store

from icefloe.config import ChecksumAlgorithm, EffectiveStorageSettings
from icefloe.credentials import (
    AzureCredentials,
    AzureRefreshableCredential,
    AzureStaticCredentials,
    GcsBearerCredential,
    GcsCredentials,
    GcsStaticCredentials,
    S3Credentials,
    S3StaticCredentials,
)
from icefloe.errors import IcefloeError, StorageError
from icefloe.records import Record
from icefloe.storage.keys import encode_key
from icefloe.storage.obstore_errors import FOREIGN_ERRORS, translate
from icefloe.storage.specs import (
    TUNING_OPTIONS,
    AzureSpec,
    GcsSpec,
    Headers,
    HttpSpec,
    S3Spec,
)

if TYPE_CHECKING:
    from obstore.store import ClientConfig, ObjectStore, RetryConfig


_owner: int | None = None


def require_request_threads() -> None:
    """Refuse a request in a child of a process that made some before it forked."""
    global _owner  # noqa: PLW0603 - there is one set of threads in a process
    process = os.getpid()
    if _owner is None:
        _owner = process
    elif _owner != process:
        raise StorageError(
            "this process was forked from one that had used object storage already, and the"
            " threads that do requests stayed behind there. Start processes with"
            " multiprocessing.get_context('forkserver') or 'spawn', or fork before the first use"
        )


class CredentialSource:
    """A function that gives credentials to `obstore`, remembering why it last failed.

    `obstore` reports such a failure as a text of its own; ours says more and less.

    Args:
        get: returns credentials.
        form: writes them as `obstore` wants them.
        replace: replaces credentials that the storage refused, and tells whether it could.
    """

    def __init__(
        self,
        get: Callable[[], Any],
        form: Callable[[Any], dict[str, Any]],
        replace: Callable[[Any], bool] | None = None,
    ) -> None:
        self._get = get
        self._form = form
        self._replace = replace
        self._given: Any = None
        self.failure: IcefloeError | None = None

    def __call__(self) -> dict[str, Any]:
        """Get credentials."""
        try:
            self._given = self._get()
        except IcefloeError as failure:
            self.failure = failure
            raise
        self.failure = None
        return self._form(self._given)

    def replace_refused(self) -> bool:
        """Replace the credentials last given; return whether there are others now."""
        given = self._given
        return self._replace is not None and given is not None and self._replace(given)


class Clients(Record):
    """Open connections to one place; they differ where reads and writes send other headers."""

    reader: "ObjectStore"
    writer: "ObjectStore | None"
    """None makes the storage read-only."""
    place: str
    """What messages call it: no secrets."""
    encodes_keys: bool
    """Whether keys are percent-encoded in the storage (see `icefloe.storage.keys`)."""
    credential_source: CredentialSource | None = None
    can_sign: bool = False
    """Whether signed addresses are made with the very credentials that requests are sent with.

    Without credentials of its own, the client library signs with those of the machine.
    """


class Profile(Record):
    """The content of a profile."""

    credentials: S3StaticCredentials
    region: str | None


def profile_credentials() -> Profile | None:
    """Read the present profile; None if the environment itself holds keys, or there is none."""
    if "AWS_ACCESS_KEY_ID" in os.environ:
        return None
    name = os.environ.get("AWS_PROFILE", "default")
    keys = _section("AWS_SHARED_CREDENTIALS_FILE", "credentials", name)
    options = _section("AWS_CONFIG_FILE", "config", _config_name(name))
    settings = {**options, **keys}
    if "aws_access_key_id" not in settings or "aws_secret_access_key" not in settings:
        return None
    credentials = S3StaticCredentials(
        settings["aws_access_key_id"],
        settings["aws_secret_access_key"],
        settings.get("aws_session_token"),
    )
    from_environment = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    return Profile(credentials, None if from_environment else settings.get("region"))


def _config_name(profile: str) -> str:
    return profile if profile == "default" else f"profile {profile}"


def _section(variable: str, file_name: str, section: str) -> dict[str, str]:
    path = Path(os.environ.get(variable, f"~/.aws/{file_name}"))
    parser = ConfigParser(interpolation=None)
    try:
        parser.read(path.expanduser())
    except (OSError, UnicodeDecodeError, ConfigError, RuntimeError):
        return {}
    return dict(parser[section]) if parser.has_section(section) else {}


def _client_variables() -> list[tuple[str, str]]:
    """Return the variables of the environment that a client, when it is made, may look at."""
    return [
        (name, value)
        for name, value in os.environ.items()
        if name.startswith(("AWS_", "SSL_")) or name.lower().endswith("_proxy")
    ]


_NO_RETRIES: Final["RetryConfig"] = {"max_retries": 0, "retry_timeout": timedelta(0)}
"""`icefloe.storage.retrying` does that."""

_STALL_SECONDS: Final = 60
"""How long a transfer may stand still, where nothing else is said."""

_LONGEST_TRANSFER: Final = timedelta(days=1)
"""The client library would cut off every transfer after 30 seconds, moving or not."""

_CHECKSUM_NAMES: Final = {
    ChecksumAlgorithm.Sha256: "SHA256",
    ChecksumAlgorithm.Crc64Nvme: "CRC64NVME",
}

_OF_CLIENT: Final = TUNING_OPTIONS | {
    "allow_http",
    "allow_invalid_certificates",
    "connect_timeout",
    "proxy_url",
    "timeout",
    "user_agent",
}

_SHARED_CLIENTS: Final = 8

type ObjectSpec = S3Spec | GcsSpec | AzureSpec | HttpSpec
type AnyRefreshable = (
    S3Credentials.Refreshable | GcsCredentials.Refreshable | AzureCredentials.Refreshable
)


def open_clients(spec: ObjectSpec, settings: EffectiveStorageSettings, agent: str) -> Clients:
    """Make the clients for a place, which name themselves `agent`; no request is sent yet."""
    try:
        match spec:
            case S3Spec(credentials=S3Credentials.Static() | S3Credentials.Anonymous()):
                return _open_shared(_Shared.of(spec, settings, agent))
            case S3Spec():
                return _open_s3(spec, settings, agent)
            case GcsSpec():
                return _open_gcs(spec, settings, agent)
            case AzureSpec():
                return _open_azure(spec, settings, agent)
            case HttpSpec():
                return _open_http(spec, settings, agent)
    except FOREIGN_ERRORS as error:
        raise translate(error, "open", spec.place) from None


@dataclass(frozen=True, slots=True)
class _Shared:
    """The identity of a client and the settings to make it from."""

    key: tuple[Hashable, ...]
    spec: S3Spec = field(compare=False, repr=False)
    settings: EffectiveStorageSettings
    agent: str

    @classmethod
    def of(cls, spec: S3Spec, settings: EffectiveStorageSettings, agent: str) -> "_Shared":
        headers = (
            tuple(sorted(header_map.items()))
            for header_map in (spec.headers.reads, spec.headers.writes)
        )
        key = (
            os.getpid(),  # connections do not survive a fork
            *_client_variables(),
            spec.place,
            spec.can_write,
            spec.encodes_keys,
            *headers,
            *(getattr(spec.options, header_map.name) for header_map in fields(spec.options)),
            spec.credentials,
        )
        return cls(key, spec, settings, agent)


@lru_cache(maxsize=_SHARED_CLIENTS)
def _open_shared(shared: _Shared) -> Clients:
    """Return the same client for the same description, with its open connections.

    Making one takes milliseconds. Only where credentials are given and stay what they are.
    """
    return _open_s3(shared.spec, shared.settings, shared.agent)


def _open_s3(spec: S3Spec, settings: EffectiveStorageSettings, agent: str) -> Clients:
    options = spec.options
    config: dict[str, Any] = {
        "virtual_hosted_style_request": not spec.uses_path_style,
        "request_payer": options.requester_pays,
        "conditional_put": "etag",
        "skip_signature": isinstance(spec.credentials, S3Credentials.Anonymous),
    }
    if options.region is not None:
        config["region"] = options.region
    if spec.endpoint is not None:
        config["endpoint"] = spec.endpoint
    if options.checksum_algorithm is not None:
        config["checksum_algorithm"] = _CHECKSUM_NAMES[options.checksum_algorithm]
    provider, region = _s3_credentials(spec)
    if region is not None:
        config.setdefault("region", region)
    client_options = partial(
        _client_options,
        settings,
        agent,
        allow_http=options.allow_http,
        stall_seconds=options.network_stream_timeout_seconds,
    )
    return _open_bucket(S3Store, spec.bucket, spec, config, provider, client_options)


def _s3_credentials(spec: S3Spec) -> tuple[CredentialSource | None, str | None]:
    """Return a function that returns keys (None: the client finds them), and perhaps a region."""
    match spec.credentials:
        case S3Credentials.Static(given):
            # A function, since the client would mix given keys with the environment's token.
            return CredentialSource(lambda: given, _s3_keys), None
        case S3Credentials.Refreshable() as refreshable:
            return _renewing(refreshable, _s3_keys), None
        case S3Credentials.FromEnv():
            if (profile := profile_credentials()) is not None:
                return CredentialSource(lambda: profile.credentials, _s3_keys), profile.region
    return None, None


def _renewing(
    refreshable: AnyRefreshable, form: Callable[[Any], dict[str, Any]]
) -> CredentialSource:
    return CredentialSource(refreshable.get_credentials, form, refreshable.replace_refused)


def _s3_keys(credentials: S3StaticCredentials) -> dict[str, Any]:
    return {
        "access_key_id": credentials.access_key_id,
        "secret_access_key": credentials.secret_access_key,
        "token": credentials.session_token,
        "expires_at": credentials.expires_after,
    }


def _open_gcs(spec: GcsSpec, settings: EffectiveStorageSettings, agent: str) -> Clients:
    config, of_client = _part_config(spec.config)
    provider: CredentialSource | None = None
    match spec.credentials:
        case GcsCredentials.Anonymous():
            config["skip_signature"] = "true"
        case GcsCredentials.Static(GcsStaticCredentials.ServiceAccount(path)):
            config["service_account"] = path
        case GcsCredentials.Static(GcsStaticCredentials.ServiceAccountKey(key)):
            config["service_account_key"] = key
        case GcsCredentials.Static(GcsStaticCredentials.ApplicationCredentials(path)):
            config["application_credentials"] = path
        case GcsCredentials.Static(GcsStaticCredentials.BearerToken(token)):
            provider = CredentialSource(lambda: GcsBearerCredential(token), _gcs_token)
        case GcsCredentials.Refreshable() as refreshable:
            provider = _renewing(refreshable, _gcs_token)
    client_options = partial(_client_options, settings, agent, user_options=of_client)
    return _open_bucket(GCSStore, spec.bucket, spec, config, provider, client_options)


def _gcs_token(credentials: GcsBearerCredential) -> dict[str, Any]:
    return {"token": credentials.bearer, "expires_at": credentials.expires_after}


def _open_azure(spec: AzureSpec, settings: EffectiveStorageSettings, agent: str) -> Clients:
    client_config, of_client = _part_config(spec.config)
    config: dict[str, Any] = {"account_name": spec.account, **client_config}
    provider: CredentialSource | None = None
    match spec.credentials:
        case AzureCredentials.Anonymous():
            config["skip_signature"] = "true"
        case AzureCredentials.Static(AzureStaticCredentials.AccessKey(key)):
            config |= {"account_key": key, "credential_type": "access_key"}
        case AzureCredentials.Static(AzureStaticCredentials.SasToken(token)):
            config |= {"sas_key": token, "credential_type": "sas_token"}
        case AzureCredentials.Static(AzureStaticCredentials.BearerToken(token)):
            config |= {"token": token, "credential_type": "bearer_token"}
        case AzureCredentials.Refreshable() as refreshable:
            provider = _renewing(refreshable, _azure_token)
    client_options = partial(_client_options, settings, agent, user_options=of_client)
    return _open_bucket(AzureStore, spec.container, spec, config, provider, client_options)


def _azure_token(credentials: AzureRefreshableCredential) -> dict[str, Any]:
    match credentials:
        case AzureRefreshableCredential.AccessKey(key):
            token = {"access_key": key}
        case AzureRefreshableCredential.SasToken(text):
            token = {"sas_token": text}
        case AzureRefreshableCredential.BearerToken(text):
            token = {"token": text}
    return {**token, "expires_at": credentials.expires_after}


def _open_http(spec: HttpSpec, settings: EffectiveStorageSettings, agent: str) -> Clients:
    store = HTTPStore(
        spec.url,
        client_options=_client_options(
            settings,
            agent,
            spec.headers,
            allow_http=spec.url.startswith("http:"),
            user_options=spec.config,
        ),
        retry_config=_NO_RETRIES,
    )
    return Clients(store, None, spec.place, spec.encodes_keys)


def _part_config(config: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Part options of a store from those of its HTTP client, which it would take and forget."""
    remaining = dict(config)
    of_client = {name: remaining.pop(name) for name in _OF_CLIENT & remaining.keys()}
    return remaining, of_client


def _open_bucket(
    make: Callable[..., "ObjectStore"],
    name: str,
    spec: S3Spec | GcsSpec | AzureSpec,
    config: Mapping[str, Any],
    provider: CredentialSource | None,
    client_options: Callable[[Mapping[str, str]], "ClientConfig"],
) -> Clients:
    """Make a client, or two if reads and writes send other headers."""
    prefix = encode_key(spec.prefix) if spec.prefix and spec.encodes_keys else spec.prefix

    def open_with(headers: Mapping[str, str]) -> "ObjectStore":
        return make(
            name,
            prefix=prefix or None,
            config=config,
            client_options=client_options(headers),
            retry_config=_NO_RETRIES,
            credential_provider=provider,
        )

    headers = Headers() if isinstance(spec, AzureSpec) else spec.headers
    reader = open_with(headers.reads)
    writer = reader if headers.reads == headers.writes else open_with(headers.writes)
    can_write = not isinstance(spec, S3Spec) or spec.can_write
    return Clients(
        reader,
        writer if can_write else None,
        spec.place,
        spec.encodes_keys,
        provider,
        can_sign=_can_sign(spec),
    )


def _can_sign(spec: S3Spec | GcsSpec | AzureSpec) -> bool:
    """Return whether a plain GET of a signed address is the same as a read of the client."""
    return (
        isinstance(spec, S3Spec)
        and not isinstance(spec.credentials, S3Credentials.Anonymous)
        and not spec.options.requester_pays
        and not spec.headers.reads
    )


def _client_options(
    settings: EffectiveStorageSettings,
    agent: str,
    headers: Mapping[str, str],
    *,
    allow_http: bool | None = None,
    stall_seconds: int | None = None,
    user_options: Mapping[str, str] | None = None,
) -> "ClientConfig":
    """Gather options of the HTTP client; those given by name win."""
    timeouts = settings.timeouts
    whole_ms = timeouts.operation_attempt_timeout_ms or timeouts.operation_timeout_ms
    stall_ms = timeouts.read_timeout_ms or (stall_seconds or _STALL_SECONDS) * 1000
    options: ClientConfig = {
        "user_agent": agent,
        "timeout": _LONGEST_TRANSFER if whole_ms is None else timedelta(milliseconds=whole_ms),
        "read_timeout": timedelta(milliseconds=stall_ms),
    }
    if timeouts.connect_timeout_ms is not None:
        options["connect_timeout"] = timedelta(milliseconds=timeouts.connect_timeout_ms)
    if allow_http is not None:
        options["allow_http"] = allow_http
    if headers:
        options["default_headers"] = dict(headers)
    return cast("ClientConfig", {**options, **(user_options or {})})
