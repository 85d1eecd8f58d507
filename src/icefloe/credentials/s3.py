"""Credentials for S3 and everything that speaks its protocol."""

# Aliases inside a class must be `TypeAlias`: a `type` statement makes no callable class.
# ruff: noqa: UP040

from collections.abc import Callable
from dataclasses import field
from datetime import datetime
from typing import Any, Final, TypeAlias

from icefloe.credentials.choice import CredentialChoice, CredentialFamily, require
from icefloe.credentials.refresh import Clock, Renewal, utc_now
from icefloe.values import Moment, Value, Variant, secret, value_class, variant_of


@value_class
class S3StaticCredentials(Value):
    """Keys for S3, perhaps for a limited time.

    >>> S3StaticCredentials("AKIAEXAMPLE0", "very secret")
    icefloe.credentials.S3StaticCredentials(
        access_key_id='AKIA***',
        secret_access_key='***',
        session_token=None,
        expires_after=None,
    )
    """

    access_key_id: str = secret(shown=4)
    secret_access_key: str = secret()
    session_token: str | None = secret(optional=True)
    expires_after: Moment | None = None


class S3Credentials(Variant, metaclass=CredentialChoice):
    """Credentials for S3: one of the variants below.

    Calling it chooses a variant by keyword arguments, as `s3_credentials` does.

    >>> S3Credentials(anon=True)
    icefloe.credentials.S3Credentials.Anonymous()
    """

    __slots__ = ()
    FromEnv: TypeAlias = "S3FromEnv"
    Anonymous: TypeAlias = "S3Anonymous"
    Static: TypeAlias = "S3Static"
    Refreshable: TypeAlias = "S3Refreshable"

    @staticmethod
    def choose_variant(**options: Any) -> "AnyS3Credential":
        """Make the variant that keyword arguments of `s3_credentials` say."""
        return s3_credentials(**options)


@variant_of(S3Credentials, "FromEnv")
class S3FromEnv(S3Credentials):
    """Credentials of the environment: variables, profile files, instance metadata."""


@variant_of(S3Credentials, "Anonymous")
class S3Anonymous(S3Credentials):
    """Unsigned requests, for public data."""


@variant_of(S3Credentials, "Static")
class S3Static(S3Credentials):
    """Keys that are given."""

    credentials: S3StaticCredentials


@variant_of(S3Credentials, "Refreshable")
class S3Refreshable(S3Credentials):
    """Keys that a pickled function returns, asked again shortly before they end."""

    pickled_function: bytes = secret()
    current: S3StaticCredentials | None = None
    _renewal: Renewal = field(init=False, repr=False, compare=False, default_factory=Renewal)

    def get_credentials(self, clock: Clock = utc_now) -> S3StaticCredentials:
        """Return keys that are good for a while yet; one call serves many waiting threads."""
        return self._renewal.get(self.pickled_function, self.current, S3StaticCredentials, clock)

    def replace_refused(self, refused: S3StaticCredentials, clock: Clock = utc_now) -> bool:
        """Replace what a store refused before its end; return whether there is a replacement."""
        return self._renewal.replace(self.pickled_function, refused, S3StaticCredentials, clock)


AnyS3Credential: TypeAlias = (
    S3Credentials.Static
    | S3Credentials.Anonymous
    | S3Credentials.FromEnv
    | S3Credentials.Refreshable
)


def s3_from_env_credentials() -> S3Credentials.FromEnv:
    """Use the credentials of the environment."""
    return S3Credentials.FromEnv()


def s3_anonymous_credentials() -> S3Credentials.Anonymous:
    """Send unsigned requests."""
    return S3Credentials.Anonymous()


def s3_static_credentials(
    *,
    access_key_id: str,
    secret_access_key: str,
    session_token: str | None = None,
    expires_after: datetime | None = None,
) -> S3Credentials.Static:
    """Use these keys."""
    return S3Credentials.Static(
        S3StaticCredentials(access_key_id, secret_access_key, session_token, expires_after)
    )


def s3_refreshable_credentials(
    get_credentials: Callable[[], S3StaticCredentials],
    scatter_initial_credentials: bool = False,  # noqa: FBT001, FBT002 - the drop-in signature
) -> S3Credentials.Refreshable:
    """Use the keys that a function returns, and call it again when they have expired.

    With `scatter_initial_credentials` it is called once now, and its result travels along
    when the credentials are pickled to workers.

    >>> def fetch() -> S3StaticCredentials:
    ...     return S3StaticCredentials("AKIAEXAMPLE0", "very secret")
    >>> s3_refreshable_credentials(fetch).get_credentials().access_key_id
    'AKIAEXAMPLE0'
    """
    return _FAMILY.refreshable(get_credentials, scatters=scatter_initial_credentials)


def s3_credentials(
    *,
    access_key_id: str | None = None,
    secret_access_key: str | None = None,
    session_token: str | None = None,
    expires_after: datetime | None = None,
    anonymous: bool | None = None,
    from_env: bool | None = None,
    get_credentials: Callable[[], S3StaticCredentials] | None = None,
    scatter_initial_credentials: bool = False,
    anon: bool | None = None,
) -> AnyS3Credential:
    """Make S3 credentials of the kind that the arguments say; without any, from the environment.

    `anon` is another name of `anonymous`.

    >>> s3_credentials(anonymous=True)
    icefloe.credentials.S3Credentials.Anonymous()
    """
    return _FAMILY.choose(locals())


def _static_keys(**keys: Any) -> S3StaticCredentials:
    needed = {name: keys[name] for name in ("access_key_id", "secret_access_key")}
    require("s3_credentials", "with static keys", **needed)
    return S3StaticCredentials(**keys)


_FAMILY: Final = CredentialFamily[AnyS3Credential, S3Credentials.Refreshable](
    "s3_credentials", S3Credentials, _static_keys, S3StaticCredentials
)
