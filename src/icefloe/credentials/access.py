"""Credentials of any platform under one type: what a reader grants to a virtual chunk container."""

# Aliases inside a class must be `TypeAlias`: a `type` statement makes no callable class.
# ruff: noqa: UP040

import warnings
from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, Final, TypeAlias, cast

from icefloe.credentials.azure import AnyAzureCredential, AzureCredentials
from icefloe.credentials.gcs import AnyGcsCredential, GcsCredentials
from icefloe.credentials.s3 import AnyS3Credential, S3Credentials, S3StaticCredentials
from icefloe.errors import ErrorKind, InvalidInputError, WrongTypeError
from icefloe.values import Variant, public_name, variant_of


class Credentials(Variant):
    """Credentials for one platform: one of the variants below."""

    __slots__ = ()
    S3: TypeAlias = "S3Access"
    Gcs: TypeAlias = "GcsAccess"
    Azure: TypeAlias = "AzureAccess"
    LocalFileSystemAccess: TypeAlias = "LocalAccess"
    HttpAccess: TypeAlias = "WebAccess"


@variant_of(Credentials, "S3")
class S3Access(Credentials):
    """Access to S3 and compatible storages."""

    credentials: AnyS3Credential


@variant_of(Credentials, "Gcs")
class GcsAccess(Credentials):
    """Access to Google Cloud Storage."""

    credentials: AnyGcsCredential


@variant_of(Credentials, "Azure")
class AzureAccess(Credentials):
    """Access to Azure Blob Storage."""

    credentials: AnyAzureCredential


@variant_of(Credentials, "LocalFileSystemAccess")
class LocalAccess(Credentials):
    """Leave to read local files."""


@variant_of(Credentials, "HttpAccess")
class WebAccess(Credentials):
    """Leave to read over HTTP(S).

    Servers at private, link-local and loopback addresses are only reached with `allow_private`,
    or if the authorised prefix itself is of such an address.

    >>> Credentials.HttpAccess(allow_private=True)
    icefloe.credentials.Credentials.HttpAccess(allow_private=True)
    """

    allow_private: bool = field(default=False, kw_only=True, repr=False)

    def __repr__(self) -> str:
        # By position, as other variants print, it would be a call that is not possible.
        shown = "allow_private=True" if self.allow_private else ""
        return f"{public_name(type(self))}({shown})"


AnyCredential: TypeAlias = (
    Credentials.S3
    | Credentials.Gcs
    | Credentials.Azure
    | Credentials.LocalFileSystemAccess
    | Credentials.HttpAccess
)

type Authorisations = Mapping[
    str,
    AnyCredential | S3Credentials | S3StaticCredentials | GcsCredentials | AzureCredentials | None,
]
"""Url prefix of a container of virtual chunks to a credential; None is deprecated."""

_PACKAGE: Final = str(Path(__file__).parents[1])

HttpAccess: Final = Credentials.HttpAccess()
LocalFileSystemAccess: Final = Credentials.LocalFileSystemAccess()


def containers_credentials(
    m: Authorisations,
) -> dict[str, AnyCredential | None]:
    """Turn url prefix -> credential into what `authorize_virtual_chunk_access` takes.

    None stands for access without explicit credentials, and is deprecated.

    >>> containers_credentials({"s3://bucket/": S3Credentials.Anonymous()})["s3://bucket/"]
    icefloe.credentials.Credentials.S3(icefloe.credentials.S3Credentials.Anonymous())
    """
    return {prefix: _wrapped(prefix, credential) for prefix, credential in m.items()}


def checked_authorisations(
    authorisations: Authorisations | None,
) -> dict[str, AnyCredential | None] | None:
    """Check what a reader authorises, and wrap bare credentials.

    Raise `WrongTypeError` for a value that is no credential, and warn of None.
    """
    if authorisations is None:
        return None
    if not isinstance(authorisations, Mapping):
        raise WrongTypeError(
            "authorize_virtual_chunk_access must be a dict from url prefixes to credentials, got "
            f"{type(authorisations).__name__}",
            ErrorKind.INVALID_CREDENTIALS,
        )
    for prefix, credential in authorisations.items():
        if credential is None:
            warnings.warn(
                f"None as the credential for {_shown(prefix)} in authorize_virtual_chunk_access is"
                f" deprecated: write {_instead_of_none(prefix)}",
                DeprecationWarning,
                skip_file_prefixes=(_PACKAGE,),
            )
    return containers_credentials(authorisations)


def credential_of_platform(prefix: str, *, is_anonymous: bool = False) -> AnyCredential:
    """Return the credential for a URL prefix: that of the environment, or none at all.

    >>> credential_of_platform("s3://era5/")
    icefloe.credentials.Credentials.S3(icefloe.credentials.S3Credentials.FromEnv())
    """
    match prefix.partition("://")[0].lower():
        case "file":
            return Credentials.LocalFileSystemAccess()
        case "http" | "https":
            return Credentials.HttpAccess()
        case "s3" | "tigris":
            return Credentials.S3(
                S3Credentials.Anonymous() if is_anonymous else S3Credentials.FromEnv()
            )
        case "gs" | "gcs":
            return Credentials.Gcs(
                GcsCredentials.Anonymous() if is_anonymous else GcsCredentials.FromEnv()
            )
        case "az" | "azure" | "abfs":
            return Credentials.Azure(
                AzureCredentials.Anonymous() if is_anonymous else AzureCredentials.FromEnv()
            )
    raise InvalidInputError(
        f"{_shown(prefix)} is not the URL of a place that can be authorised: write file:///…,"
        " s3://…, gs://…, az://… or https://…",
        ErrorKind.INVALID_CREDENTIALS,
    )


def _shown(prefix: str) -> str:
    """Quote a prefix, unless it has parts in which secrets may be."""
    return "a prefix" if any(mark in prefix for mark in "@?#") else repr(prefix)


def _instead_of_none(prefix: str) -> str:
    match prefix.partition(":")[0]:
        case "file":
            return "icefloe.credentials.LocalFileSystemAccess"
        case "http" | "https":
            return "icefloe.credentials.HttpAccess"
        case "gs" | "gcs":
            return "icefloe.gcs_credentials(anonymous=True), or from_env=True"
        case "az" | "azure" | "abfs":
            return "icefloe.azure_credentials(from_env=True)"
    return "icefloe.s3_credentials(from_env=True), or anonymous=True"


def _wrapped(prefix: str, credential: object) -> AnyCredential | None:
    if credential is None or isinstance(credential, Credentials):
        return cast("AnyCredential | None", credential)
    if isinstance(credential, S3StaticCredentials):
        return Credentials.S3(S3Credentials.Static(credential))
    for union, access in _ACCESS.items():
        if isinstance(credential, union):
            return access(credential)
    raise WrongTypeError(
        f"containers_credentials: {type(credential).__name__} is no credential for"
        f" {_shown(prefix)}; make one with s3_credentials, gcs_credentials or azure_credentials,"
        " or use LocalFileSystemAccess or HttpAccess",
        ErrorKind.INVALID_CREDENTIALS,
    )


_ACCESS: Final[dict[type, Callable[[Any], AnyCredential]]] = {
    S3Credentials: Credentials.S3,
    GcsCredentials: Credentials.Gcs,
    AzureCredentials: Credentials.Azure,
}
"""How to grant credentials of each platform."""
