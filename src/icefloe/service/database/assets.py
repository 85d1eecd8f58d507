"""Buckets, repositories and policies in the database."""

import secrets as random
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import msgspec
from sqlalchemy import Connection, bindparam, delete, exists, func, insert, select, update

from icefloe.catalog.model import Bucket, DeclaredContainer, Policy, Repository
from icefloe.errors import ConflictError, ErrorKind
from icefloe.records import Record, replace
from icefloe.service.database import rows, tables
from icefloe.service.domain.locations import segments_of


def new_id(kind: str) -> str:
    """Return a new random id, which begins with the kind of the thing.

    >>> new_id("policy")[:7]
    'policy-'
    """
    return f"{kind}-{random.token_hex(8)}"


# Repositories


def create_repository(connection: Connection, repository: Repository, now: datetime) -> None:
    """Add a repository, unless its place in the bucket overlaps with that of another one."""
    key = {"organisation": repository.organisation, "name": repository.bucket}
    rows.require(connection, tables.buckets, Bucket, **key)
    table = tables.repositories
    conditions = (
        table.c.organisation == repository.organisation,
        table.c.bucket == repository.bucket,
    )
    for other in rows.find_all(connection, table, Repository, *conditions):
        if do_overlap(other.prefix, repository.prefix):
            problem = f"its place overlaps with that of {other.full_name}, {other.prefix!r}"
            raise ConflictError(
                message=f"{problem}: choose another prefix", kind=ErrorKind.ENTRY_IN_USE
            )
    rows.add(connection, table, replace(repository, created_at=now))


def do_overlap(first: str, second: str) -> bool:
    """Return whether one of two prefixes is the other, or above it."""
    left, right = segments_of(first), segments_of(second)
    shared = min(len(left), len(right))
    return left[:shared] == right[:shared]


def set_containers(
    connection: Connection,
    repository: Repository,
    config_version: str | None,
    declared: Sequence[DeclaredContainer],
) -> None:
    """Remember the containers that a repository's configuration was last seen with."""
    repositories = tables.repositories
    of_repository = (
        repositories.c.organisation == repository.organisation,
        repositories.c.name == repository.name,
    )
    # This comes first, as it locks the repository: others may see the same at the same time.
    query = update(repositories).where(*of_repository)
    connection.execute(query.values(config_version=config_version))
    table = tables.containers
    key = {"organisation": repository.organisation, "repository": repository.name}
    where = [table.c[name] == value for name, value in key.items()]
    connection.execute(delete(table).where(*where))
    new = [
        key | {"position": position} | rows.row_of(container, table)
        for position, container in enumerate(declared)
    ]
    if new:
        connection.execute(insert(table), new)


_CONTAINERS: Final = (
    select(tables.containers)
    .where(
        tables.containers.c.organisation == bindparam("organisation"),
        tables.containers.c.repository == bindparam("repository"),
    )
    .order_by(tables.containers.c.position)
)


def last_containers(connection: Connection, repository: Repository) -> list[DeclaredContainer]:
    """Return the containers that a repository's configuration was last seen with."""
    key = {"organisation": repository.organisation, "repository": repository.name}
    return rows.records_of(DeclaredContainer, connection.execute(_CONTAINERS, key))


def all_containers(connection: Connection) -> dict[str, list[DeclaredContainer]]:
    """Return the containers that repositories were last seen with, by full name."""
    table = tables.containers
    query = select(table).order_by(*table.primary_key)
    answer: dict[str, list[DeclaredContainer]] = {}
    for row in connection.execute(query):
        name = f"{row.organisation}/{row.repository}"
        answer.setdefault(name, []).append(rows.record_of(DeclaredContainer, row))
    return answer


# Policies


class PolicyVersion(Record):
    """A policy as it was after a change; `policy` is None after its deletion."""

    number: int
    id: str
    policy: Policy | None
    changed_by: str | None
    changed_at: datetime


def create_policy(connection: Connection, policy: Policy, person: str, now: datetime) -> Policy:
    """Add a policy to a bucket."""
    key = {"organisation": policy.organisation, "name": policy.bucket}
    rows.require(connection, tables.buckets, Bucket, **key)
    policy = replace(policy, created_by=person, created_at=now, version=1)
    rows.add(connection, tables.policies, policy)
    _remember(connection, policy.id, policy.organisation, policy, person, now)
    return policy


def change_policy(
    connection: Connection, policy: Policy, person: str, now: datetime, *, if_version: int | None
) -> Policy:
    """Replace a policy."""
    version = rows.change(connection, tables.policies, policy, if_version=if_version)
    policy = replace(policy, version=version)
    _remember(connection, policy.id, policy.organisation, policy, person, now)
    return policy


def delete_policy(connection: Connection, policy: Policy, person: str, now: datetime) -> None:
    """Delete a policy; its history stays."""
    rows.remove(connection, tables.policies, id=policy.id)
    _remember(connection, policy.id, policy.organisation, None, person, now)


def policy_history(connection: Connection, *conditions: Any) -> list[PolicyVersion]:
    """Return the changes of policies for which conditions on the history hold, oldest first."""
    table = tables.policy_history
    query = select(table).where(*conditions).order_by(table.c.number)
    return [rows.record_of(PolicyVersion, row) for row in connection.execute(query)]


def deleted_policies(connection: Connection, organisation: str, *, limit: int) -> list[str]:
    """Return the ids of policies that were deleted, the last one first."""
    history, living = tables.policy_history, tables.policies
    query = (
        select(history.c.id)
        .where(
            history.c.organisation == organisation,
            ~exists().where(living.c.id == history.c.id),
        )
        .group_by(history.c.id)
        .order_by(func.max(history.c.number).desc())
        .limit(limit)
    )
    return list(connection.execute(query).scalars())


def _remember(
    connection: Connection,
    policy_id: str,
    organisation: str,
    policy: Policy | None,
    person: str,
    now: datetime,
) -> None:
    values = {
        "id": policy_id,
        "organisation": organisation,
        "policy": None if policy is None else msgspec.to_builtins(policy),
        "changed_by": person,
        "changed_at": now,
    }
    connection.execute(insert(tables.policy_history).values(values))
