"""People, organisations, members and tokens in the database."""

import hmac
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import Connection, Row, bindparam, func, insert, select, update

from icefloe.catalog.model import Member, Organisation, Person, PersonKind, Role, Token
from icefloe.errors import AlreadyExistsError, ConflictError, ErrorKind
from icefloe.records import Record, replace
from icefloe.service.database import rows, tables

_LAST_USE_STEP: Final = timedelta(minutes=1)
"""How exactly the last use of a token is kept: not every request writes."""

type _Row = Row[*tuple[Any, ...]]


class Caller(Record):
    """Somebody whom the service knows, as a request finds them: with all roles at once."""

    person: Person
    roles: dict[str, Role]
    token: Token | None = None


def create_person(
    connection: Connection,
    person: Person,
    now: datetime,
    *,
    password_hash: str | None = None,
    issuer: str | None = None,
    subject: str | None = None,
) -> None:
    """Add somebody: with a password, or with the name that an identity provider knows."""
    rows.add(
        connection,
        tables.people,
        person,
        created_at=now,
        password_hash=password_hash,
        issuer=issuer,
        subject=subject,
    )


# A row for each role; one row without a role for somebody who is in no organisation.
_CALLER: Final = select(
    *rows.labelled(tables.people, Person), tables.members.c.organisation, tables.members.c.role
).select_from(tables.people.outerjoin(tables.members))
_CALLER_BY_NAME: Final = _CALLER.where(tables.people.c.name == bindparam("name"))
_CALLER_BY_TOKEN: Final = (
    _CALLER.add_columns(tables.tokens.c.digest, *rows.labelled(tables.tokens, Token))
    .join(tables.tokens, tables.tokens.c.person == tables.people.c.name)
    .where(tables.tokens.c.id == bindparam("token_id"))
)
_ROLES: Final = select(tables.members.c.organisation, tables.members.c.role).where(
    tables.members.c.person == bindparam("person")
)


def find_caller(connection: Connection, name: str) -> Caller | None:
    """Return somebody with all roles; None if unknown or disabled."""
    of_person = connection.execute(_CALLER_BY_NAME, {"name": name}).all()
    return _caller_of(of_person, None) if of_person else None


def _caller_of(of_person: Sequence[_Row], token: Token | None) -> Caller | None:
    person = rows.record_of(Person, of_person[0], tables.people)
    return None if person.disabled else Caller(person, _roles_in(of_person), token)


def roles_of(connection: Connection, person: str) -> dict[str, Role]:
    """Return somebody's roles, by organisation."""
    return _roles_in(connection.execute(_ROLES, {"person": person}).all())


def _roles_in(of_person: Sequence[_Row]) -> dict[str, Role]:
    return {row.organisation: Role(row.role) for row in of_person if row.role is not None}


def disable_person(connection: Connection, name: str, now: datetime) -> None:
    """Disable a person: all their tokens end, and their name stays taken."""
    people, tokens = tables.people, tables.tokens
    connection.execute(update(people).where(people.c.name == name).values(disabled=True))
    living = update(tokens).where(tokens.c.person == name, tokens.c.revoked_at.is_(None))
    connection.execute(living.values(revoked_at=now))


# Organisations


def create_organisation(
    connection: Connection, organisation: Organisation, founder: str, now: datetime
) -> None:
    """Add an organisation with its first admin. A name that was ever used is taken for good."""
    table = tables.retired_names
    taken = select(table).where(table.c.name == organisation.name)
    if connection.execute(taken).first() is not None:
        problem = f"{organisation.name} was the name of an organisation that was deleted"
        advice = "nobody may take its place: choose another name"
        raise AlreadyExistsError(f"{problem}; {advice}", ErrorKind.ENTRY_ALREADY_EXISTS)
    rows.add(connection, tables.organisations, replace(organisation, created_at=now))
    rows.add(connection, tables.members, Member(organisation.name, founder, Role.ADMIN))


def delete_organisation(connection: Connection, name: str, now: datetime) -> None:
    """Delete an organisation with all that the service keeps of it. No stored data is touched."""
    # Repositories refer to buckets without a cascade, so that no bucket in use is deleted.
    for table in (tables.repositories, tables.buckets):
        connection.execute(table.delete().where(table.c.organisation == name))
    prefix = f"bucket/{name}/"
    secrets = tables.secrets
    connection.execute(secrets.delete().where(secrets.c.name.startswith(prefix, autoescape=True)))
    rows.remove(connection, tables.organisations, name=name)
    connection.execute(insert(tables.retired_names).values(name=name, retired_at=now))


def set_member(connection: Connection, member: Member) -> None:
    """Set the role of somebody in an organisation, in place of an earlier one."""
    rows.require(connection, tables.people, Person, name=member.person)
    key = {"organisation": member.organisation, "person": member.person}
    before = rows.find(connection, tables.members, Member, **key)
    if before is None:
        rows.add(connection, tables.members, member)
        return
    if member.role is not Role.ADMIN:
        _keep_an_admin(connection, before)
    table = tables.members
    where = (table.c.organisation == member.organisation, table.c.person == member.person)
    connection.execute(update(table).where(*where).values(role=member.role))


def remove_member(connection: Connection, organisation: str, person: str) -> None:
    """Take somebody out of an organisation; the last admin stays."""
    key = {"organisation": organisation, "person": person}
    _keep_an_admin(connection, rows.require(connection, tables.members, Member, **key))
    rows.remove(connection, tables.members, **key)


def _keep_an_admin(connection: Connection, leaving: Member) -> None:
    """Refuse to let the last admin go who can log in."""
    members, people = tables.members, tables.people
    query = (
        select(func.count())
        .select_from(members.join(people, members.c.person == people.c.name))
        .where(
            members.c.organisation == leaving.organisation,
            members.c.role == Role.ADMIN,
            members.c.person != leaving.person,
            people.c.kind == PersonKind.PERSON,
            people.c.disabled.is_(False),
        )
    )
    # Two requests at once must not each see the other's admin.
    locked = select(tables.organisations.c.name).where(
        tables.organisations.c.name == leaving.organisation
    )
    connection.execute(locked.with_for_update())
    if leaving.role is Role.ADMIN and not connection.execute(query).scalar_one():
        problem = f"{leaving.person} is the last admin of {leaving.organisation}"
        advice = "make somebody else an admin first"
        raise ConflictError(message=f"{problem}: {advice}", kind=ErrorKind.ENTRY_IN_USE)


# Tokens


def create_token(connection: Connection, token: Token, digest: bytes) -> None:
    """Add a token, of which only a digest is kept."""
    rows.add(connection, tables.tokens, token, digest=digest)


def find_caller_by_token(
    connection: Connection, token_id: str, digest: bytes, now: datetime
) -> Caller | None:
    """Return who a token acts for; None if it is unknown, revoked or at its end."""
    of_token = connection.execute(_CALLER_BY_TOKEN, {"token_id": token_id}).all()
    if not of_token or not hmac.compare_digest(bytes(of_token[0].digest), digest):
        return None
    token = rows.record_of(Token, of_token[0], tables.tokens)
    if token.revoked_at is not None or (token.expires_at and now >= token.expires_at):
        return None
    return _caller_of(of_token, token)


def note_token_use(connection: Connection, token_id: str, now: datetime) -> None:
    """Remember that a token was used."""
    table = tables.tokens
    connection.execute(update(table).where(table.c.id == token_id).values(last_used_at=now))


def is_use_noteworthy(token: Token, now: datetime) -> bool:
    """Return whether the last use of a token is long enough ago to be written again."""
    return token.last_used_at is None or now - token.last_used_at >= _LAST_USE_STEP


def revoke_token(connection: Connection, token_id: str, now: datetime) -> None:
    """End a token at once."""
    table = tables.tokens
    query = update(table).where(table.c.id == token_id, table.c.revoked_at.is_(None))
    connection.execute(query.values(revoked_at=now))
