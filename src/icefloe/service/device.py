"""Logging in a program without a browser: the device flow of RFC 8628.

A program asks for two codes. It shows the short one to its user, who approves it on a page of the
service in any browser, and asks with the long one until the answer is a token.
"""

import secrets as random
from datetime import timedelta
from enum import StrEnum
from typing import Any, Final

from icefloe.catalog.model import Token, TokenScope
from icefloe.catalog.tokens import new_token, token_id
from icefloe.catalog.wire import DeviceCode, DeviceToken
from icefloe.errors import ErrorKind, NotFoundError
from icefloe.records import Record
from icefloe.service.database import accounts, logins
from icefloe.service.database.logins import Login, LoginKind
from icefloe.service.domain.scopes import check_scope
from icefloe.service.login import digest_of, record
from icefloe.service.runtime import Service

LIFETIME: Final = timedelta(minutes=15)
INTERVAL: Final = 5
"""Seconds between two questions of a program."""
_LETTERS: Final = "BCDFGHJKLMNPQRSTVWXZ"
"""No vowels, so that a code is no word."""
_CODE_LENGTH: Final = 8


class DeviceState(StrEnum):
    """Why a program gets no token: error codes of RFC 8628 and RFC 6749."""

    PENDING = "authorization_pending"
    TOO_FAST = "slow_down"
    ENDED = "expired_token"
    DENIED = "access_denied"


class Device(Record):
    """A program that waits for approval, as its page shows it."""

    user_code: str
    client: str
    scope: TokenScope


def parse_scope(text: str) -> TokenScope:
    """Read the scope of RFC 6749: actions and repositories, with spaces between.

    >>> parse_scope("read lab/*")
    TokenScope(actions=('read',), repositories=('lab/*',))
    """
    words = text.split()
    repositories = tuple(word for word in words if "/" in word)
    actions = tuple(word for word in words if "/" not in word)
    scope = TokenScope(actions or ("write",), repositories or ("*/*",))
    check_scope(scope)
    return scope


def scope_text(scope: TokenScope) -> str:
    """Return a scope as RFC 6749 writes it."""
    return " ".join((*scope.actions, *scope.repositories))


def start(service: Service, client: str, scope: TokenScope) -> DeviceCode:
    """Return the codes for a program that wants a token."""
    secret, now = random.token_urlsafe(32), service.clock()
    user_code = "".join(random.choice(_LETTERS) for _ in range(_CODE_LENGTH))
    details = {
        "client": client,
        "scope": scope_text(scope),
        "state": DeviceState.PENDING,
        "interval": INTERVAL,
        "asked_at": None,
    }
    login = Login(LoginKind.DEVICE, now, now + LIFETIME, None, user_code, details)
    with service.database.writing() as connection:
        logins.add(connection, digest_of(service, LoginKind.DEVICE, secret), login)
    shown = _shown(user_code)
    page = f"{service.settings.url.rstrip('/')}/device"
    return DeviceCode(
        secret,
        shown,
        page,
        f"{page}?user_code={shown}",
        int(LIFETIME.total_seconds()),
        INTERVAL,
    )


def find(service: Service, user_code: str) -> Device:
    """Return the program that shows a code; raise `NotFoundError` if none does."""
    with service.database.reading() as connection:
        login = logins.find_device(connection, _plain(user_code), service.clock())
    if login is None or login.details["state"] != DeviceState.PENDING:
        raise _unknown()
    details = login.details
    return Device(_shown(_plain(user_code)), details["client"], parse_scope(details["scope"]))


def decide(
    service: Service, person: str, user_code: str, request_id: str, *, approved: bool
) -> None:
    """Approve or deny the program that shows a code."""
    code = _plain(user_code)
    with service.database.writing() as connection:
        login = logins.find_device(connection, code, service.clock())
        if login is None or login.details["state"] != DeviceState.PENDING:
            raise _unknown()
        details = dict(login.details) | {"state": "approved" if approved else DeviceState.DENIED}
        logins.change_device(connection, code, person=person, details=details)
        what = f"device {details['client']}"
        record(service, connection, person, "login:device", what, request_id, allowed=approved)


def poll(service: Service, device_code: str) -> DeviceToken | DeviceState:
    """Return a token if somebody approved the program; otherwise why there is none."""
    digest, now = digest_of(service, LoginKind.DEVICE, device_code), service.clock()
    with service.database.writing() as connection:
        login = logins.find(connection, LoginKind.DEVICE, digest, now)
        if login is None or login.user_code is None:
            return DeviceState.ENDED
        details: dict[str, Any] = dict(login.details)
        if details["state"] == DeviceState.DENIED:
            return DeviceState.DENIED
        if details["state"] == DeviceState.PENDING:
            asked_at = details["asked_at"]
            pause = None if asked_at is None else now.timestamp() - asked_at
            is_early = pause is not None and 0 <= pause < details["interval"]
            # RFC 8628: after `slow_down`, every interval is five seconds longer.
            details["interval"] += INTERVAL if is_early else 0
            details["asked_at"] = now.timestamp()
            logins.change_device(connection, login.user_code, details=details)
            return DeviceState.TOO_FAST if is_early else DeviceState.PENDING
        assert login.person is not None
        logins.remove(connection, digest)
        if accounts.find_caller(connection, login.person) is None:  # disabled since
            return DeviceState.DENIED
        secret, scope = new_token(), parse_scope(details["scope"])
        lifetime = timedelta(days=service.settings.device_token_days)
        token = Token(token_id(secret), details["client"], login.person, scope, now, now + lifetime)
        accounts.create_token(connection, token, service.digest(secret))
    return DeviceToken(
        secret, "Bearer", int(lifetime.total_seconds()), details["scope"], login.person
    )


def _plain(user_code: str) -> str:
    """Return a code as it is stored, however somebody typed it."""
    return "".join(letter for letter in user_code.upper() if letter in _LETTERS)


def _shown(user_code: str) -> str:
    return f"{user_code[:4]}-{user_code[4:]}"


def _unknown() -> NotFoundError:
    problem = "no program shows this code, or the code has ended: start again on the device"
    return NotFoundError(problem, ErrorKind.ENTRY_NOT_FOUND)
