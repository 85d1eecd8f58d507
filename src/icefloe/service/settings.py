"""Settings of the service: one TOML file, and the environment over it."""

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.records import Record, field

DEFAULT_URL: Final = "http://127.0.0.1:8321"
_VARIABLE: Final = "ICEFLOE_SERVICE_"

type PerMinute = Annotated[int, Meta(ge=1)]
type Minutes = Annotated[int, Meta(ge=15, le=60)]
type Hours = Annotated[int, Meta(ge=0, le=24 * 30)]


class RateLimits(Record, forbid_unknown_fields=True):
    """Limits on requests in a minute. Each worker process counts for itself."""

    requests: PerMinute = 3000
    """Requests of one person."""
    refusals: PerMinute = 60
    """Requests from one address with a token that is not valid."""
    logins: PerMinute = 10
    """Attempts to log in: for one name, and from one address."""
    device_codes: PerMinute = 20
    """Programs that ask to be logged in, from one address; and codes that one person types."""
    mints: PerMinute = 300
    """New credentials in the name of one person; those that are used again do not count."""


class OidcSettings(Record, forbid_unknown_fields=True):
    """The identity provider by which people log in."""

    issuer: str
    """As the provider writes it, like `https://login.example.org/realms/lab`."""
    client_id: str
    client_secret_file: Path | None = None
    client_secret_variable: str | None = None
    """The variable of the environment with the client's secret, instead of a file."""
    name: str = "your organisation"
    """What the button says."""
    scopes: tuple[str, ...] = ("openid", "profile", "email")
    creates_people: bool = True
    """Whether everybody whom the provider knows has an account; otherwise invitations count."""


class Settings(Record, forbid_unknown_fields=True):
    """All settings of the service."""

    folder: Path = Path("icefloe-service")
    """Where the embedded database and the master key are, unless named otherwise."""
    url: str = DEFAULT_URL
    """The address under which people reach the service."""
    database: str | None = None
    """The URL of the database; None for SQLite in the folder."""
    key_file: Path | None = None
    """The file with the master key; None for `key` in the folder, which is made if missing."""
    key_command: tuple[str, ...] = ()
    """A program with its arguments that prints the master key, to ask a key management service."""
    key_variable: str | None = None
    """The variable of the environment that contains the master key."""
    former_key_files: tuple[Path, ...] = ()
    """Former master keys, which still open secrets that they sealed."""
    former_key_commands: tuple[tuple[str, ...], ...] = ()
    """Programs that print former master keys."""
    token_files: dict[str, Path] = field(default_factory=dict)
    """Files with tokens by which the service logs in at a cloud without a secret, by organisation.

    Each organisation has a token of its own, which its applications trust.
    """
    allowed_endpoints: tuple[str, ...] = ()
    """Endpoints of object stores beside those of the platforms, like `http://minio:9000`."""
    allowed_origins: tuple[str, ...] = ()
    """Sites, like `https://maps.example.org`, whose pages may read data with a token."""
    allows_anonymous: bool = True
    """Whether public data on endpoints of the platforms needs no policy."""
    allows_organisations: bool = False
    """Whether everybody who is logged in may create organisations."""
    credential_minutes: Minutes = 60
    """How long vended credentials live."""
    probe_hours: Hours = 24
    """How often each bucket is probed again; 0 for never."""
    follow_minutes: Annotated[int, Meta(ge=0, le=1440)] = 0
    """How often filtered subscriptions follow their providers; 0 for on request only."""
    jobs_at_once: Annotated[int, Meta(ge=0, le=64)] = 2
    """How many updates and releases each worker process runs at a time; 0 for none."""
    device_token_days: Annotated[int, Meta(ge=1, le=366)] = 30
    """How long a token lives that a program got by the device flow."""
    most_body_bytes: Annotated[int, Meta(ge=1024)] = 1024 * 1024
    """The largest body of a request."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses of proxies that tell the address of a client by `X-Forwarded-For`."""
    limits: RateLimits = RateLimits()
    oidc: OidcSettings | None = None
    """The identity provider; without, people have passwords here."""

    @property
    def own_key_file(self) -> Path:
        """The file of a master key that the service made itself."""
        return self.folder / "key"

    @property
    def is_sqlite(self) -> bool:
        """Whether the database is a file of SQLite."""
        return self.database_url.startswith("sqlite")

    @property
    def is_https(self) -> bool:
        """Whether people reach the service by https."""
        return self.url.startswith("https://")

    @property
    def database_url(self) -> str:
        """The URL of the database."""
        return self.database or f"sqlite:///{self.folder / 'service.db'}"


def load_settings(path: Path | None, environment: Mapping[str, str] = os.environ) -> Settings:
    """Read the settings of a file, and those of variables like ICEFLOE_SERVICE_DATABASE over it."""
    values: dict[str, Any] = {}
    if path is not None:
        try:
            values = tomllib.loads(path.read_text())
        except OSError as error:
            problem = f"cannot read the settings in {path}: {error.strerror}"
            raise InvalidInputError(problem, ErrorKind.INVALID_CONFIG) from error
        except tomllib.TOMLDecodeError as error:
            problem = f"the settings in {path} are not TOML: {error}"
            raise InvalidInputError(problem, ErrorKind.INVALID_CONFIG) from error
    for name in Settings.__struct_fields__:
        text = environment.get(_VARIABLE + name.upper())
        if text is not None:
            values[name] = _from_text(text)
    try:
        return msgspec.convert(values, Settings, strict=False, dec_hook=_path)
    except msgspec.ValidationError as error:
        origin = f"the settings in {path}" if path else "the settings"
        raise InvalidInputError(f"{origin} are wrong: {error}", ErrorKind.INVALID_CONFIG) from None


def _from_text(text: str) -> Any:
    """Read the value of a variable: a list or a table of TOML, or plain text."""
    if text[:1] not in {"[", "{"}:
        return text
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _path(kind: type, value: Any) -> Any:
    if kind is Path:
        return Path(value).expanduser()
    raise NotImplementedError
