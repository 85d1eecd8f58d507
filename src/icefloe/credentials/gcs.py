"""Credentials for Google Cloud Storage."""

# Aliases inside a class must be `TypeAlias`: a `type` statement makes no callable class.
# ruff: noqa: UP040

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, field
from typing import Any, Final, TypeAlias

from icefloe.credentials.choice import CredentialChoice, CredentialFamily, choose_one
from icefloe.credentials.refresh import Clock, Renewal, utc_now
from icefloe.values import Moment, Value, Variant, secret, value_class, variant_of


@value_class
class GcsBearerCredential(Value):
    """A bearer token, perhaps for a limited time."""

    bearer: str = secret()
    _: KW_ONLY
    expires_after: Moment | None = None


class GcsStaticCredentials(Variant):
    """Fixed credentials for Google Cloud Storage: one of the variants below."""

    __slots__ = ()
    ServiceAccount: TypeAlias = "GcsServiceAccount"
    ServiceAccountKey: TypeAlias = "GcsServiceAccountKey"
    ApplicationCredentials: TypeAlias = "GcsApplicationCredentials"
    BearerToken: TypeAlias = "GcsBearerToken"


@variant_of(GcsStaticCredentials, "ServiceAccount")
class GcsServiceAccount(GcsStaticCredentials):
    """A file with the key of a service account."""

    path: str


@variant_of(GcsStaticCredentials, "ServiceAccountKey")
class GcsServiceAccountKey(GcsStaticCredentials):
    """The key of a service account itself, as JSON text."""

    key: str = secret()


@variant_of(GcsStaticCredentials, "ApplicationCredentials")
class GcsApplicationCredentials(GcsStaticCredentials):
    """A file with application credentials."""

    path: str


@variant_of(GcsStaticCredentials, "BearerToken")
class GcsBearerToken(GcsStaticCredentials):
    """A bearer token that is never renewed."""

    token: str = secret()


AnyGcsStaticCredential: TypeAlias = (
    GcsStaticCredentials.ServiceAccount
    | GcsStaticCredentials.ServiceAccountKey
    | GcsStaticCredentials.ApplicationCredentials
    | GcsStaticCredentials.BearerToken
)


class GcsCredentials(Variant, metaclass=CredentialChoice):
    """Credentials for Google Cloud Storage: one of the variants below.

    Calling it chooses a variant by keyword arguments, as `gcs_credentials` does.
    """

    __slots__ = ()
    Anonymous: TypeAlias = "GcsAnonymous"
    FromEnv: TypeAlias = "GcsFromEnv"
    Static: TypeAlias = "GcsStatic"
    Refreshable: TypeAlias = "GcsRefreshable"

    @staticmethod
    def choose_variant(**options: Any) -> "AnyGcsCredential":
        """Make the variant that keyword arguments of `gcs_credentials` say."""
        return gcs_credentials(**options)


@variant_of(GcsCredentials, "Anonymous")
class GcsAnonymous(GcsCredentials):
    """Unsigned requests, for public data."""


@variant_of(GcsCredentials, "FromEnv")
class GcsFromEnv(GcsCredentials):
    """Credentials of the environment: variables, default files, instance metadata."""


@variant_of(GcsCredentials, "Static")
class GcsStatic(GcsCredentials):
    """Fixed credentials that are given."""

    credentials: AnyGcsStaticCredential


@variant_of(GcsCredentials, "Refreshable")
class GcsRefreshable(GcsCredentials):
    """Tokens that a pickled function returns, asked again shortly before they end."""

    pickled_function: bytes = secret()
    current: GcsBearerCredential | None = None
    _renewal: Renewal = field(init=False, repr=False, compare=False, default_factory=Renewal)

    def get_credentials(self, clock: Clock = utc_now) -> GcsBearerCredential:
        """Return a token that is good for a while yet; one call serves many waiting threads."""
        return self._renewal.get(self.pickled_function, self.current, GcsBearerCredential, clock)

    def replace_refused(self, refused: GcsBearerCredential, clock: Clock = utc_now) -> bool:
        """Replace what a store refused before its end; return whether there is a replacement."""
        return self._renewal.replace(self.pickled_function, refused, GcsBearerCredential, clock)


AnyGcsCredential: TypeAlias = (
    GcsCredentials.Anonymous
    | GcsCredentials.FromEnv
    | GcsCredentials.Static
    | GcsCredentials.Refreshable
)


def gcs_from_env_credentials() -> GcsCredentials.FromEnv:
    """Use the credentials of the environment."""
    return GcsCredentials.FromEnv()


def gcs_anonymous_credentials() -> GcsCredentials.Anonymous:
    """Send unsigned requests."""
    return GcsCredentials.Anonymous()


def gcs_static_credentials(
    *,
    service_account_file: str | None = None,
    service_account_key: str | None = None,
    application_credentials: str | None = None,
    bearer_token: str | None = None,
) -> AnyGcsStaticCredential:
    """Use exactly one of these credentials.

    >>> gcs_static_credentials(bearer_token="very secret")
    icefloe.credentials.GcsStaticCredentials.BearerToken('***')
    """
    return choose_one("gcs_static_credentials", _STATIC_KINDS, locals())


def gcs_refreshable_credentials(
    get_credentials: Callable[[], GcsBearerCredential],
    scatter_initial_credentials: bool = False,  # noqa: FBT001, FBT002 - the drop-in signature
) -> GcsCredentials.Refreshable:
    """Use the tokens that a function returns, and call it again when they have expired.

    With `scatter_initial_credentials` it is called once now, and its result travels along
    when the credentials are pickled to workers.
    """
    return _FAMILY.refreshable(get_credentials, scatters=scatter_initial_credentials)


def gcs_credentials(
    *,
    service_account_file: str | None = None,
    service_account_key: str | None = None,
    application_credentials: str | None = None,
    bearer_token: str | None = None,
    from_env: bool | None = None,
    anonymous: bool | None = None,
    get_credentials: Callable[[], GcsBearerCredential] | None = None,
    scatter_initial_credentials: bool = False,
    anon: bool | None = None,
) -> AnyGcsCredential:
    """Make credentials of the kind that the arguments say; without any, from the environment.

    `anon` is another name of `anonymous`.
    """
    return _FAMILY.choose(locals())


_STATIC_KINDS: Final[Mapping[str, Callable[[str], AnyGcsStaticCredential]]] = {
    "service_account_file": GcsStaticCredentials.ServiceAccount,
    "service_account_key": GcsStaticCredentials.ServiceAccountKey,
    "application_credentials": GcsStaticCredentials.ApplicationCredentials,
    "bearer_token": GcsStaticCredentials.BearerToken,
}
_FAMILY: Final = CredentialFamily[AnyGcsCredential, GcsCredentials.Refreshable](
    "gcs_credentials", GcsCredentials, gcs_static_credentials, GcsBearerCredential
)
