"""Credentials for Azure Blob Storage."""

# Aliases inside a class must be `TypeAlias`: a `type` statement makes no callable class.
# ruff: noqa: UP040

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any, Final, TypeAlias

from icefloe.credentials.choice import CredentialChoice, CredentialFamily, choose_one
from icefloe.credentials.refresh import Clock, Renewal, utc_now
from icefloe.values import Moment, Variant, secret, variant_of


class AzureStaticCredentials(Variant):
    """Fixed credentials for Azure: one of the variants below."""

    __slots__ = ()
    AccessKey: TypeAlias = "AzureAccessKey"
    SasToken: TypeAlias = "AzureSasToken"
    BearerToken: TypeAlias = "AzureBearerToken"


@variant_of(AzureStaticCredentials, "AccessKey")
class AzureAccessKey(AzureStaticCredentials):
    """The access key of a storage account."""

    key: str = secret()


@variant_of(AzureStaticCredentials, "SasToken")
class AzureSasToken(AzureStaticCredentials):
    """A shared access signature."""

    token: str = secret()


@variant_of(AzureStaticCredentials, "BearerToken")
class AzureBearerToken(AzureStaticCredentials):
    """A bearer token that is never renewed."""

    token: str = secret()


AnyAzureStaticCredential: TypeAlias = (
    AzureStaticCredentials.AccessKey
    | AzureStaticCredentials.SasToken
    | AzureStaticCredentials.BearerToken
)


class AzureRefreshableCredential(Variant):
    """The result of a function that renews Azure credentials: one of the variants below."""

    __slots__ = ()
    AccessKey: TypeAlias = "AzureRefreshableAccessKey"
    SasToken: TypeAlias = "AzureRefreshableSasToken"
    BearerToken: TypeAlias = "AzureRefreshableBearerToken"

    expires_after: Moment | None


@variant_of(AzureRefreshableCredential, "AccessKey")
class AzureRefreshableAccessKey(AzureRefreshableCredential):
    """The access key of a storage account, perhaps for a limited time."""

    key: str = secret()
    expires_after: Moment | None = None


@variant_of(AzureRefreshableCredential, "SasToken")
class AzureRefreshableSasToken(AzureRefreshableCredential):
    """A shared access signature, perhaps for a limited time."""

    token: str = secret()
    expires_after: Moment | None = None


@variant_of(AzureRefreshableCredential, "BearerToken")
class AzureRefreshableBearerToken(AzureRefreshableCredential):
    """A bearer token, perhaps for a limited time."""

    bearer: str = secret()
    expires_after: Moment | None = None


class AzureCredentials(Variant, metaclass=CredentialChoice):
    """Credentials for Azure Blob Storage: one of the variants below.

    Calling it chooses a variant by keyword arguments, as `azure_credentials` does.
    """

    __slots__ = ()
    FromEnv: TypeAlias = "AzureFromEnv"
    Anonymous: TypeAlias = "AzureAnonymous"
    Static: TypeAlias = "AzureStatic"
    Refreshable: TypeAlias = "AzureRefreshable"

    @staticmethod
    def choose_variant(**options: Any) -> "AnyAzureCredential":
        """Make the variant that keyword arguments of `azure_credentials` say."""
        return azure_credentials(**options)


@variant_of(AzureCredentials, "FromEnv")
class AzureFromEnv(AzureCredentials):
    """Credentials of the environment: variables, command line login, managed identity."""


@variant_of(AzureCredentials, "Anonymous")
class AzureAnonymous(AzureCredentials):
    """Unsigned requests, for public data."""


@variant_of(AzureCredentials, "Static")
class AzureStatic(AzureCredentials):
    """Fixed credentials that are given."""

    credentials: AnyAzureStaticCredential


@variant_of(AzureCredentials, "Refreshable")
class AzureRefreshable(AzureCredentials):
    """Credentials that a pickled function returns, asked again shortly before they end."""

    pickled_function: bytes = secret()
    current: AzureRefreshableCredential | None = None
    _renewal: Renewal = field(init=False, repr=False, compare=False, default_factory=Renewal)

    def get_credentials(self, clock: Clock = utc_now) -> AzureRefreshableCredential:
        """Return credentials good for a while yet; one call serves many waiting threads."""
        return self._renewal.get(
            self.pickled_function, self.current, AzureRefreshableCredential, clock
        )

    def replace_refused(self, refused: AzureRefreshableCredential, clock: Clock = utc_now) -> bool:
        """Replace what a store refused before its end; return whether there is a replacement."""
        return self._renewal.replace(
            self.pickled_function, refused, AzureRefreshableCredential, clock
        )


AnyAzureCredential: TypeAlias = (
    AzureCredentials.FromEnv
    | AzureCredentials.Anonymous
    | AzureCredentials.Static
    | AzureCredentials.Refreshable
)


def azure_from_env_credentials() -> AzureCredentials.FromEnv:
    """Use the credentials of the environment."""
    return AzureCredentials.FromEnv()


def azure_anonymous_credentials() -> AzureCredentials.Anonymous:
    """Send unsigned requests."""
    return AzureCredentials.Anonymous()


def azure_static_credentials(
    *,
    access_key: str | None = None,
    sas_token: str | None = None,
    bearer_token: str | None = None,
) -> AnyAzureStaticCredential:
    """Use exactly one of these credentials.

    >>> azure_static_credentials(access_key="very secret")
    icefloe.credentials.AzureStaticCredentials.AccessKey('***')
    """
    return choose_one("azure_static_credentials", _STATIC_KINDS, locals())


def azure_refreshable_credentials(
    get_credentials: Callable[[], AzureRefreshableCredential],
    scatter_initial_credentials: bool = False,  # noqa: FBT001, FBT002 - the drop-in signature
) -> AzureCredentials.Refreshable:
    """Use the credentials that a function returns, and call it again when they have expired.

    With `scatter_initial_credentials` it is called once now, and its result travels along
    when the credentials are pickled to workers.
    """
    return _FAMILY.refreshable(get_credentials, scatters=scatter_initial_credentials)


def azure_credentials(
    *,
    access_key: str | None = None,
    sas_token: str | None = None,
    bearer_token: str | None = None,
    from_env: bool | None = None,
    anonymous: bool | None = None,
    get_credentials: Callable[[], AzureRefreshableCredential] | None = None,
    scatter_initial_credentials: bool = False,
    anon: bool | None = None,
) -> AnyAzureCredential:
    """Make credentials of the kind that the arguments say; without any, from the environment.

    `anon` is another name of `anonymous`.
    """
    return _FAMILY.choose(locals())


_STATIC_KINDS: Final[Mapping[str, Callable[[str], AnyAzureStaticCredential]]] = {
    "access_key": AzureStaticCredentials.AccessKey,
    "sas_token": AzureStaticCredentials.SasToken,
    "bearer_token": AzureStaticCredentials.BearerToken,
}
_FAMILY: Final = CredentialFamily[AnyAzureCredential, AzureCredentials.Refreshable](
    "azure_credentials", AzureCredentials, azure_static_credentials, AzureRefreshableCredential
)
