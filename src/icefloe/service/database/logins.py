"""Browser sessions, one-time links and device codes in the database.

The database contains digests of what people carry, never the secrets themselves.
"""

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, delete, insert, select, update

from icefloe.records import Record, field
from icefloe.service.database import rows
from icefloe.service.database.tables import logins


class LoginKind(StrEnum):
    """The purpose of a row's secret."""

    SESSION = "session"
    """The cookie of a browser."""
    LINK = "link"
    """A link that works once: an invitation, or a new password."""
    DEVICE = "device"
    """A program that waits until somebody approves it."""
    PROVIDER = "provider"
    """A browser that is on its way to the identity provider and back."""


class Login(Record):
    """A row: what a secret is for, for whom, and until when."""

    kind: LoginKind
    created_at: datetime
    expires_at: datetime
    person: str | None = None
    user_code: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


def add(connection: Connection, digest: bytes, login: Login) -> None:
    """Store a login; those that have ended are deleted at the same time."""
    connection.execute(delete(logins).where(logins.c.expires_at <= login.created_at))
    connection.execute(insert(logins).values(rows.row_of(login, logins) | {"digest": digest}))


def find(connection: Connection, kind: LoginKind, digest: bytes, now: datetime) -> Login | None:
    """Return the login with a digest, locked for a change; None if it is unknown or has ended."""
    query = select(logins).where(logins.c.digest == digest, logins.c.kind == kind)
    row = connection.execute(query.with_for_update()).first()
    login = None if row is None else rows.record_of(Login, row)
    return None if login is None or now >= login.expires_at else login


def find_device(connection: Connection, user_code: str, now: datetime) -> Login | None:
    """Return the device that shows a code; None if no device shows it any more."""
    query = select(logins).where(logins.c.user_code == user_code, logins.c.expires_at > now)
    row = connection.execute(query.with_for_update()).first()
    return None if row is None else rows.record_of(Login, row)


def change_device(connection: Connection, user_code: str, **columns: Any) -> None:
    """Change columns of a device."""
    connection.execute(update(logins).where(logins.c.user_code == user_code).values(columns))


def remove(connection: Connection, digest: bytes) -> None:
    """Delete a login, if there is one with this digest."""
    connection.execute(delete(logins).where(logins.c.digest == digest))


def remove_sessions(connection: Connection, person: str, *, kept: bytes | None = None) -> None:
    """End all sessions of somebody, except one."""
    condition = (logins.c.kind == LoginKind.SESSION, logins.c.person == person)
    query = delete(logins).where(*condition)
    connection.execute(query if kept is None else query.where(logins.c.digest != kept))
