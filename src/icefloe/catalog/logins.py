"""Logins: which token goes to which service, and where the tokens of this person are kept.

A token is looked up in this order: the one that the program gives, the one that a command prints,
`ICEFLOE_TOKEN` if `ICEFLOE_SERVICE` names the service, and the file `logins.toml`. A token never
goes to a service that it is not for, whatever URL a program opens.
"""

import contextlib
import json
import os
import shlex
import subprocess
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

from icefloe.catalog.handles import service_origin
from icefloe.catalog.tokens import token_id
from icefloe.errors import ErrorKind, InvalidInputError, NotLoggedInError
from icefloe.records import Record, field, replace

TOKEN_VARIABLE: Final = "ICEFLOE_TOKEN"  # noqa: S105 - the name of a variable
SERVICE_VARIABLE: Final = "ICEFLOE_SERVICE"
_COMMAND_SECONDS: Final = 60


class Secret:
    """A text that is shown, logged and pickled nowhere.

    >>> Secret("icefloe_x")
    Secret('***')
    >>> f"{Secret('icefloe_x')}"
    '***'
    """

    __slots__ = ("__text",)

    def __init__(self, text: str) -> None:
        self.__text = text

    def reveal(self) -> str:
        """Return the text itself."""
        return self.__text

    def __repr__(self) -> str:
        return "Secret('***')"

    def __str__(self) -> str:
        return "***"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self.__text == other.reveal()

    def __hash__(self) -> int:
        return hash(self.__text)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret does not leave its process: let workers look up their own token")


class Login(Record):
    """A login at a service."""

    token: Secret | None = None
    person: str | None = None
    token_command: tuple[str, ...] | None = None


class Logins(Record):
    """The logins of a person on this machine."""

    current: str | None = None
    """The service of the last login, which `org/name` alone refers to."""
    services: Mapping[str, Login] = field(default_factory=dict)

    def with_login(self, service: str, login: Login) -> "Logins":
        """Return these logins with another one, which becomes the current one."""
        return Logins(service, {**self.services, service: login})

    def without(self, service: str) -> "Logins":
        """Return these logins without that of a service."""
        others = {name: login for name, login in self.services.items() if name != service}
        return Logins(None if self.current == service else self.current, others)


def logins_path(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the file in which logins are kept.

    >>> print(logins_path({"XDG_CONFIG_HOME": "/home/ada/.config"}))
    /home/ada/.config/icefloe/logins.toml
    """
    return user_folder(environment) / "logins.toml"


def user_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of this person's settings; it may not exist."""
    home = environment.get("XDG_CONFIG_HOME")
    return (Path(home) if home else Path.home() / ".config") / "icefloe"


def read_logins(path: Path) -> Logins:
    """Read the logins that a file has; none if there is no file.

    Raise `InvalidInputError` for a file that others can read: its tokens may be stolen.
    """
    try:
        with path.open("rb") as file:
            if os.name == "posix" and os.fstat(file.fileno()).st_mode & 0o077:
                problem = f"other people can read the tokens in {path}"
                advice = f"run chmod 600 {path}, and log in again if they may have been read"
                raise InvalidInputError(f"{problem}: {advice}", ErrorKind.INVALID_CONFIG)
            content = tomllib.load(file)
    except (FileNotFoundError, NotADirectoryError):
        return Logins()
    except (OSError, tomllib.TOMLDecodeError) as error:
        problem = f"cannot read the logins in {path} ({type(error).__name__})"
        advice = "correct or delete the file, then log in again"
        raise InvalidInputError(f"{problem}: {advice}", ErrorKind.INVALID_CONFIG) from None
    try:
        services = {name: _login(entry) for name, entry in content.get("services", {}).items()}
    except (AttributeError, TypeError):
        problem = f"the logins in {path} have no known form: delete the file, then log in again"
        raise InvalidInputError(problem, ErrorKind.INVALID_CONFIG) from None
    return Logins(content.get("current"), services)


def _login(entry: Mapping[str, Any]) -> Login:
    token, command = entry.get("token"), entry.get("token_command")
    return Login(
        None if token is None else Secret(token),
        entry.get("person"),
        None if command is None else tuple(command),
    )


def write_logins(path: Path, logins: Logins) -> None:
    """Replace the file of logins at once; nobody else can read it."""
    write_private(path, _as_toml(logins))


def write_private(path: Path, text: str) -> None:
    """Replace a file in the folder of this person's settings at once; nobody else can read it."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor, name = tempfile.mkstemp(prefix=f".{path.stem}-", dir=path.parent)  # with mode 0600
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise


def _as_toml(logins: Logins) -> str:
    # Texts of JSON are texts of TOML, too.
    lines = [] if logins.current is None else [f"current = {json.dumps(logins.current)}"]
    for service, login in logins.services.items():
        lines += ["", f"[services.{json.dumps(service)}]"]
        if login.person is not None:
            lines.append(f"person = {json.dumps(login.person)}")
        if login.token is not None:
            lines.append(f"token = {json.dumps(login.token.reveal())}")
        if login.token_command is not None:
            lines.append(f"token_command = {json.dumps(list(login.token_command))}")
    return "\n".join([*lines, ""])


def current_service(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the service that `org/name` alone refers to; None if nobody is logged in."""
    named = environment.get(SERVICE_VARIABLE)
    if named:
        return service_origin(named)
    return read_logins(logins_path(environment)).current


class TokenSource:
    """The source of the token for a service; it is looked up on first use."""

    def __init__(
        self,
        service: str,
        token: str | Secret | None = None,
        token_command: str | Sequence[str] | None = None,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self.service: Final = service
        self.token_command: Final = _words(token_command)
        self._environment: Final = environment
        self._given = Secret(token) if isinstance(token, str) else token
        self._known: Secret | None = self._given
        self.given_id: str | None = None
        """The public part of a token that the program gave."""
        if self._given is not None:
            self.given_id = token_id(self._given.reveal())

    def get(self) -> Secret | None:
        """Return the token; None if nobody is logged in."""
        if self._known is None:
            self._known = self._look_up()
        return self._known

    def renew(self) -> bool:
        """Look the token up again, after the service refused it; return whether it is another."""
        refused, self._known = self._known, self._given or self._look_up()
        return self._known != refused

    def use(self, token: Secret | None) -> None:
        """Use a token from now on, as after a login; None to look it up again."""
        self._given, self._known, self.given_id = None, token, None

    def _look_up(self) -> Secret | None:
        if self.token_command is not None:
            return _run(self.token_command)
        token, service = (self._environment.get(n) for n in (TOKEN_VARIABLE, SERVICE_VARIABLE))
        if token and service and service_origin(service) == self.service:
            return Secret(token)
        login = read_logins(logins_path(self._environment)).services.get(self.service, Login())
        if login.token is None and login.token_command is not None:
            return _run(login.token_command)
        if login.token is None and token and not service:
            problem = f"{TOKEN_VARIABLE} is set, but nothing says that it is for {self.service}"
            raise NotLoggedInError(f"{problem}: set {SERVICE_VARIABLE}={self.service}, too")
        return login.token


def _words(command: str | Sequence[str] | None) -> tuple[str, ...] | None:
    if command is None:
        return None
    words = tuple(shlex.split(command)) if isinstance(command, str) else tuple(command)
    if not words:
        raise InvalidInputError("token_command is empty", ErrorKind.INVALID_CONFIG)
    return words


def _run(command: tuple[str, ...]) -> Secret:
    """Return the token that a command prints."""
    try:
        done = subprocess.run(  # noqa: S603 - a command of the user's own
            command, capture_output=True, text=True, check=False, timeout=_COMMAND_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        problem = f"the command {command[0]!r}, which prints tokens, failed"
        raise NotLoggedInError(f"{problem} with {type(error).__name__}") from None
    if done.returncode != 0 or not done.stdout.strip():
        # Its output may have a token in it, so it is not shown.
        problem = f"the command {command[0]!r} printed no token: it ended with {done.returncode}"
        raise NotLoggedInError(problem)
    return Secret(done.stdout.strip())


def remember_login(
    service: str, token: Secret, person: str, environment: Mapping[str, str] = os.environ
) -> Path:
    """Keep a token for later processes of this person; return the file that has it."""
    path = logins_path(environment)
    logins = read_logins(path)
    former = logins.services.get(service, Login())
    write_logins(path, logins.with_login(service, replace(former, token=token, person=person)))
    return path


def forget_login(service: str, environment: Mapping[str, str] = os.environ) -> None:
    """Forget the login at a service."""
    path = logins_path(environment)
    logins = read_logins(path)
    if service in logins.services:
        write_logins(path, logins.without(service))
