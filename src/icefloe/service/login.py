"""Local accounts and browser sessions: one-time links, passwords, cookies."""

import hashlib
import hmac
import secrets as random
import threading
from datetime import datetime, timedelta
from typing import Final

import msgspec
from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError
from sqlalchemy import Connection, select, update

from icefloe.catalog.model import Member, Person, PersonKind, Role
from icefloe.catalog.wire import AuditEntry
from icefloe.errors import (
    AccessDeniedError,
    ErrorKind,
    InvalidInputError,
    NotFoundError,
    NotLoggedInError,
)
from icefloe.records import Record, replace
from icefloe.service.database import accounts, audit, logins, rows, tables
from icefloe.service.database.accounts import Caller
from icefloe.service.database.logins import Login, LoginKind
from icefloe.service.runtime import Service

LINK_LIFETIME: Final = timedelta(days=3)
SESSION_LIFETIME: Final = timedelta(hours=12)
SHORTEST_PASSWORD: Final = 12
LONGEST_PASSWORD: Final = 1000
_MOST_HASHES_AT_ONCE: Final = 4

_hasher: Final = PasswordHasher()  # argon2id, with the parameters of RFC 9106
_hashing: Final = threading.BoundedSemaphore(_MOST_HASHES_AT_ONCE)
"""A hash takes 64 MiB of memory for its time."""
_OTHER_HASH: Final = (
    "$argon2id$v=19$m=65536,t=3,p=4$Z8rDa8Pb1FJ0ps9NVrLe/g"
    "$ZQpPsLUaKeGLGuQFNVIgCXK9MjLpVLLqTlQkEO7TRSk"
)
"""Verified for people without a password, so that these take as long as the others."""


class Invitation(Record, omit_defaults=True):
    """The account and the roles that a one-time link creates."""

    person: str | None = None
    """The name of the account; None to let them choose."""
    operator: bool = False
    organisation: str | None = None
    role: Role = Role.READER
    """In the organisation."""
    resets_password: bool = False
    """Whether the account exists already, and gets a new password."""
    first: bool = False
    """Whether this is for the first operator."""


class Session(Record):
    """A browser in which somebody is logged in."""

    caller: Caller
    secret: str

    def __repr__(self) -> str:
        return f"Session({self.caller.person.name})"


def digest_of(service: Service, kind: LoginKind, secret: str) -> bytes:
    """Return the digest under which a secret is stored."""
    return service.digest(f"{kind}:{secret}")


# One-time links


def create_link(
    service: Service, connection: Connection, invitation: Invitation, now: datetime
) -> str:
    """Store an invitation and return the link that accepts it, once."""
    secret = random.token_urlsafe(32)
    login = Login(LoginKind.LINK, now, now + LINK_LIFETIME, details=msgspec.to_builtins(invitation))
    logins.add(connection, digest_of(service, LoginKind.LINK, secret), login)
    return f"{service.settings.url.rstrip('/')}/join/{secret}"


def create_first_link(service: Service) -> str | None:
    """Return a link for the first operator; None if there is an operator who can log in.

    A link that an earlier start printed ends.
    """
    now = service.clock()
    invitation = Invitation(operator=True, first=True)
    with service.database.writing() as connection:
        table = tables.people
        query = select(table.c.name).where(
            table.c.operator, ~table.c.disabled, table.c.kind == PersonKind.PERSON
        )
        if connection.execute(query).first() is not None:
            return None
        _end_first_links(connection)
        return create_link(service, connection, invitation, now)


def create_password_link(service: Service, person: str) -> str:
    """Return a link by which somebody who has an account sets a new password."""
    with service.database.writing() as connection:
        account = rows.require(connection, tables.people, Person, name=person)
        if account.kind is not PersonKind.PERSON or account.disabled:
            problem = f"{person} cannot log in: a service account or a disabled person"
            raise InvalidInputError(problem, ErrorKind.INVALID_REQUEST)
        invitation = Invitation(person=person, resets_password=True)
        return create_link(service, connection, invitation, service.clock())


def find_invitation(service: Service, secret: str) -> Invitation:
    """Return the invitation of a link; raise `NotFoundError` if it was used or has ended."""
    with service.database.reading() as connection:
        return require_invitation(service, connection, secret)


def accept_by_password(
    service: Service, secret: str, name: str, password: str, request_id: str
) -> str:
    """Accept an invitation with a password, and return the name of the account."""
    invitation = find_invitation(service, secret)
    person = invitation.person or name.strip().lower()
    check_password(person, password)
    password_hash = _hash(password)
    now = service.clock()
    with service.database.writing() as connection:
        invitation = require_invitation(service, connection, secret)
        if invitation.resets_password:
            _set_password(connection, person, password_hash)
        else:
            new = new_person(person)
            create_member(connection, new, invitation, now, password_hash=password_hash)
        end_link(service, connection, secret, invitation)
        record(service, connection, person, "login:join", "by password", request_id)
    return person


def new_person(name: str, display_name: str = "", email: str | None = None) -> Person:
    """Return a person; raise `InvalidInputError` for a name that the service does not allow."""
    try:
        return msgspec.convert({"name": name, "display_name": display_name, "email": email}, Person)
    except msgspec.ValidationError:
        problem = f"{name!r} cannot be a name here: use a to z, 0 to 9, dots, dashes"
        raise InvalidInputError(problem, ErrorKind.INVALID_REQUEST) from None


def create_member(
    connection: Connection,
    person: Person,
    invitation: Invitation,
    now: datetime,
    *,
    password_hash: str | None = None,
    issuer: str | None = None,
    subject: str | None = None,
) -> None:
    """Create the account of somebody who accepts an invitation."""
    person = replace(person, operator=invitation.operator)
    accounts.create_person(
        connection, person, now, password_hash=password_hash, issuer=issuer, subject=subject
    )
    if invitation.organisation is not None:
        member = Member(invitation.organisation, person.name, invitation.role)
        accounts.set_member(connection, member)


def end_link(service: Service, connection: Connection, secret: str, invitation: Invitation) -> None:
    """Delete a link that was used; the first operator ends all links for first operators."""
    logins.remove(connection, digest_of(service, LoginKind.LINK, secret))
    if invitation.first:
        _end_first_links(connection)


def _end_first_links(connection: Connection) -> None:
    table = tables.logins
    links = connection.execute(select(table).where(table.c.kind == LoginKind.LINK)).all()
    for row in links:
        if row.details.get("first"):
            logins.remove(connection, bytes(row.digest))


def require_invitation(service: Service, connection: Connection, secret: str) -> Invitation:
    """Return the invitation of a link; raise `NotFoundError` if it was used or has ended."""
    digest = digest_of(service, LoginKind.LINK, secret)
    login = logins.find(connection, LoginKind.LINK, digest, service.clock())
    if login is None:
        problem = "this link was used already, or has ended: ask for a new one"
        raise NotFoundError(problem, ErrorKind.ENTRY_NOT_FOUND)
    return msgspec.convert(login.details, Invitation)


# Passwords


def check_password(person: str, password: str) -> None:
    """Raise `InvalidInputError` for a password that is easy to guess."""
    if len(password) < SHORTEST_PASSWORD or password.lower() in {person, person * 2}:
        problem = f"choose a password of at least {SHORTEST_PASSWORD} characters, not your name"
        raise InvalidInputError(problem, ErrorKind.INVALID_REQUEST)
    if len(password) > LONGEST_PASSWORD:
        problem = f"a password has at most {LONGEST_PASSWORD} characters"
        raise InvalidInputError(problem, ErrorKind.INVALID_REQUEST)


def log_in(service: Service, name: str, password: str, request_id: str) -> str:
    """Check a password and return the secret of a new session.

    Raise `NotLoggedInError`, which is the same for unknown names and for wrong passwords.
    """
    name = name.strip().lower()
    with service.database.reading() as connection:
        stored = _password_hash(connection, name)
    is_right = len(password) <= LONGEST_PASSWORD and _verify(stored or _OTHER_HASH, password)
    if stored is None or not is_right:
        if stored is not None:
            with service.database.writing() as connection:
                record(service, connection, name, "login", "by password", request_id, allowed=False)
        raise NotLoggedInError("the name or the password is wrong")
    return start_session(service, name, "by password", request_id)


def change_password(
    service: Service, session: Session, old: str, new: str, request_id: str
) -> None:
    """Set a new password, and end all other sessions of this person."""
    name = session.caller.person.name
    with service.database.reading() as connection:
        stored = _password_hash(connection, name)
    if stored is None or len(old) > LONGEST_PASSWORD or not _verify(stored, old):
        raise AccessDeniedError("the present password is wrong")
    check_password(name, new)
    password_hash = _hash(new)
    with service.database.writing() as connection:
        digest = digest_of(service, LoginKind.SESSION, session.secret)
        _set_password(connection, name, password_hash, kept=digest)
        record(service, connection, name, "self:change", "password", request_id)


def _password_hash(connection: Connection, name: str) -> str | None:
    table = tables.people
    query = select(table.c.password_hash).where(
        table.c.name == name, ~table.c.disabled, table.c.kind == PersonKind.PERSON
    )
    password_hash: str | None = connection.execute(query).scalar()
    return password_hash


def _set_password(
    connection: Connection, name: str, password_hash: str, *, kept: bytes | None = None
) -> None:
    """Store a new password, and end all sessions but one of this person."""
    table = tables.people
    query = update(table).where(table.c.name == name)
    connection.execute(query.values(password_hash=password_hash))
    logins.remove_sessions(connection, name, kept=kept)


def _hash(password: str) -> str:
    with _hashing:
        return _hasher.hash(password)


def _verify(password_hash: str, password: str) -> bool:
    try:
        with _hashing:
            return _hasher.verify(password_hash, password)
    except (VerificationError, InvalidHashError):
        return False


# Sessions


def start_session(service: Service, person: str, how: str, request_id: str) -> str:
    """Return the secret of a new session."""
    secret, now = random.token_urlsafe(32), service.clock()
    login = Login(LoginKind.SESSION, now, now + SESSION_LIFETIME, person)
    with service.database.writing() as connection:
        logins.add(connection, digest_of(service, LoginKind.SESSION, secret), login)
        record(service, connection, person, "login", how, request_id)
    return secret


def find_session(service: Service, connection: Connection, secret: str) -> Session | None:
    """Return the session with a secret; None if it has ended."""
    digest = digest_of(service, LoginKind.SESSION, secret)
    login = logins.find(connection, LoginKind.SESSION, digest, service.clock())
    caller = login and login.person and accounts.find_caller(connection, login.person)
    return Session(caller, secret) if caller else None


def end_session(service: Service, secret: str) -> None:
    """End a session."""
    with service.database.writing() as connection:
        logins.remove(connection, digest_of(service, LoginKind.SESSION, secret))


def csrf_token(service: Service, secret: str) -> str:
    """Return what a form must send along with a cookie, to show that our page sent it."""
    return hmac.digest(service.keys.pepper, f"csrf:{secret}".encode(), hashlib.sha256).hex()


def record(
    service: Service,
    connection: Connection,
    person: str,
    action: str,
    what: str,
    request_id: str,
    *,
    allowed: bool = True,
) -> None:
    """Write a login to the audit."""
    entry = AuditEntry(service.clock(), person, action, what, allowed, request_id)
    audit.append(connection, service.keys.audit, [entry])
