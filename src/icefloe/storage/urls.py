"""Storages named by URL: for the command line, and as the targets of redirections.

==================================================== ==================================
URL                                                  storage
==================================================== ==================================
a path, or `file:///path`                            a local directory
`memory://`                                          this process's memory, empty
`s3://bucket/prefix`                                 S3; options below
`gs://bucket/prefix` (also `gcs`)                    Google Cloud Storage
`az://account/container/prefix`                      Azure Blob Storage
`r2://bucket/prefix?account_id=...`                  Cloudflare R2
`tigris://bucket/prefix?region=...`                  Tigris
`https://host/path` (also `http`, `https+icechunk`)  a web server, read-only
==================================================== ==================================

Options are written as a query (`?region=eu-west-1&anonymous=true`): `region`, `endpoint_url`,
`allow_http`, `anonymous`, `force_path_style`, `account_id`. Without `anonymous`, credentials
come from the environment. Secrets have no place in a URL and are refused.
"""

from typing import Final
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit, urlunsplit

from icefloe.config import S3Options
from icefloe.credentials import (
    AnyCredential,
    AnyS3Credential,
    AzureCredentials,
    Credentials,
    GcsCredentials,
    S3Credentials,
)
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.records import Record
from icefloe.storage.specs import (
    LocalSpec,
    MemorySpec,
    Spec,
    azure_spec,
    gcs_spec,
    http_spec,
    r2_spec,
    s3_spec,
    tigris_spec,
    without_secrets,
)
from icefloe.values import public_name

WEB_STORAGE_SCHEMES: Final = frozenset({"http+icechunk", "http+ic", "https+icechunk", "https+ic"})
_S3_OPTIONS: Final = frozenset({"region", "endpoint_url", "allow_http", "force_path_style"})
_OPTIONS: Final[dict[str, frozenset[str]]] = {
    "s3": _S3_OPTIONS | {"anonymous"},
    "r2": frozenset({"region", "account_id", "endpoint_url", "allow_http", "anonymous"}),
    "tigris": frozenset({"region", "endpoint_url", "allow_http", "anonymous"}),
    "gs": frozenset({"anonymous"}),
    "gcs": frozenset({"anonymous"}),
    "az": frozenset({"anonymous"}),
}


class _Address(Record):
    """A URL taken apart: bucket (or account), path, options."""

    scheme: str
    host: str
    path: str
    options: dict[str, str]

    def flag(self, name: str) -> bool:
        text = self.options.get(name, "false").lower()
        if text not in {"true", "false", "1", "0"}:
            raise _unfit(f"the option {name} must be true or false, not {text!r}")
        return text in {"true", "1"}

    def s3_options(self) -> S3Options:
        return S3Options(
            region=self.options.get("region"),
            endpoint_url=self.options.get("endpoint_url"),
            allow_http=self.flag("allow_http"),
            force_path_style=self.flag("force_path_style"),
        )


def spec_from_url(
    url: str, *, anonymous: bool = False, credential: AnyCredential | None = None
) -> Spec:
    """Describe the storage that a URL names; `anonymous` overrides what it says itself.

    Without a credential, one of the environment is used.
    """
    parts = _split(url)
    if credential is not None and (parts is None or parts.scheme.lower() not in _OPTIONS):
        kind = "a path" if parts is None else f"a {parts.scheme}:// URL"
        raise _unfit(f"{kind} takes no credential")
    if parts is None:
        return LocalSpec.of(url)
    scheme = parts.scheme.lower()
    match scheme:
        case "file":
            return _local(parts)
        case "memory":
            return MemorySpec()
        case "http" | "https":
            return http_spec(url)
        case _ if scheme in WEB_STORAGE_SCHEMES:
            web_scheme = scheme.partition("+")[0]
            return http_spec(urlunsplit(parts._replace(scheme=web_scheme)))
        case _ if scheme in _OPTIONS:
            return _cloud(_address(url, parts), anonymous=anonymous, credential=credential)
    if scheme == "icefloe":
        raise InvalidInputError(
            "a service, not a storage, is reached by 'icefloe' URLs: open the repository with"
            " icefloe.Client(...).get_repo('org/name')",
            ErrorKind.CANNOT_PARSE_URL,
        )
    schemes = ", ".join(sorted({"file", "memory", "http", "https", *_OPTIONS}))
    raise InvalidInputError(
        f"no storage is reached by {parts.scheme!r} URLs; known are {schemes}",
        ErrorKind.CANNOT_PARSE_URL,
    )


def _cloud(address: _Address, *, anonymous: bool, credential: AnyCredential | None) -> Spec:
    unsigned = anonymous or address.flag("anonymous")
    if unsigned and credential is not None:
        raise _unfit("a storage is opened with a credential or anonymously: leave one out")
    match address.scheme:
        case "s3" | "r2" | "tigris":
            return _s3_family(address, _s3_access(address, credential, unsigned=unsigned))
        case "az":
            container, _, prefix = address.path.partition("/")
            azure = AzureCredentials.Anonymous() if unsigned else AzureCredentials.FromEnv()
            if credential is None:
                return azure_spec(address.host, container, prefix, azure)
            if not isinstance(credential, Credentials.Azure):
                raise _other_platform(address, credential)
            return azure_spec(address.host, container, prefix, credential.credentials)
        case _:
            google = GcsCredentials.Anonymous() if unsigned else GcsCredentials.FromEnv()
            if credential is None:
                return gcs_spec(address.host, address.path, google)
            if not isinstance(credential, Credentials.Gcs):
                raise _other_platform(address, credential)
            return gcs_spec(address.host, address.path, credential.credentials)


def _s3_access(
    address: _Address, credential: AnyCredential | None, *, unsigned: bool
) -> AnyS3Credential:
    if credential is None:
        return S3Credentials.Anonymous() if unsigned else S3Credentials.FromEnv()
    if not isinstance(credential, Credentials.S3):
        raise _other_platform(address, credential)
    return credential.credentials


def _s3_family(address: _Address, credentials: AnyS3Credential) -> Spec:
    options = address.s3_options()
    match address.scheme:
        case "s3":
            return s3_spec(options, address.host, address.path, credentials)
        case "r2":
            account = address.options.get("account_id")
            return r2_spec(options, address.host, address.path, account, credentials)
        case _:
            is_weak = options.region is None
            return tigris_spec(options, address.host, address.path, is_weak, credentials)


def _other_platform(address: _Address, credential: AnyCredential) -> InvalidInputError:
    kind = public_name(type(credential)).rpartition(".")[2]
    return InvalidInputError(
        f"a credential for {kind} does not open {address.scheme}:// URLs: give one of that"
        " platform",
        ErrorKind.INVALID_CREDENTIALS,
    )


def _split(url: str) -> SplitResult | None:
    """Take a URL apart; None for what is a path."""
    if "://" not in url:
        return None
    try:
        return urlsplit(url)
    except ValueError:  # whose text may repeat a password
        raise InvalidInputError(
            "a URL is malformed: write it like s3://bucket/prefix", ErrorKind.CANNOT_PARSE_URL
        ) from None


def _local(parts: SplitResult) -> LocalSpec:
    if parts.netloc not in {"", "localhost"}:
        raise _unfit("a file URL has no host: write file:///path")
    return LocalSpec.of(unquote(parts.path))


def _address(url: str, parts: SplitResult) -> _Address:
    scheme = parts.scheme.lower()
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    if unknown := options.keys() - _OPTIONS[scheme]:
        names = ", ".join(sorted(_OPTIONS[scheme]))
        raise _unfit(
            f"{without_secrets(url)!r} has unknown options ({', '.join(sorted(unknown))});"
            f" known are {names}"
        )
    if "@" in parts.netloc:
        raise _unfit("credentials have no place in a URL: set them in the environment")
    return _Address(scheme, parts.netloc, unquote(parts.path).strip("/"), options)


def _unfit(message: str) -> InvalidInputError:
    return InvalidInputError(message, ErrorKind.CANNOT_PARSE_URL)
