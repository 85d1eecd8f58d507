"""Jobs in the database: who may run them, and until when.

A job waits until a server takes a lease on it, which the server renews while it works. A lease
that is over can be taken by another server. The keys in two unique columns make sure that at most
one job of a kind and subject runs, on any number of servers.
"""

import secrets as random
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import Connection, and_, delete, insert, or_, select, update
from sqlalchemy.exc import IntegrityError

from icefloe.catalog.model import Job, JobKind, JobState
from icefloe.records import Record
from icefloe.service.database import rows
from icefloe.service.database.tables import jobs as table

LEASE: Final = timedelta(minutes=1)
_KEPT: Final = timedelta(days=30)
"""How long jobs are shown after their end."""


class Leased(Record):
    """A job that this server may run, and the proof of that."""

    job: Job
    lease: str


def new_job_id(now: datetime) -> str:
    """Return an id that sorts by time."""
    return f"job-{now:%Y%m%dT%H%M%S}-{random.token_hex(4)}"


def add(connection: Connection, job: Job) -> Job:
    """Add a job that waits; return the one that waits for the same already, if there is one."""
    assert job.created_at is not None
    is_old = and_(
        table.c.organisation == job.organisation, table.c.ended_at < job.created_at - _KEPT
    )
    connection.execute(delete(table).where(is_old))
    key = f"{job.organisation}/{job.kind}/{job.subject}"
    while True:
        waiting = rows.find(connection, table, Job, waiting_key=key)
        if waiting is not None:
            return waiting
        try:
            with connection.begin_nested():
                values = rows.row_of(job, table) | {"waiting_key": key}
                connection.execute(insert(table).values(values))
        except IntegrityError:
            continue  # somebody else was quicker
        return job


def newest(
    connection: Connection, organisation: str, kind: JobKind, subject: str, limit: int
) -> list[Job]:
    """Return the newest jobs of a kind for a subject, the newest first."""
    ours = and_(
        table.c.organisation == organisation, table.c.kind == kind, table.c.subject == subject
    )
    query = select(table).where(ours).order_by(table.c.id.desc()).limit(limit)
    return rows.records_of(Job, connection.execute(query))


def take(connection: Connection, now: datetime) -> Leased | None:
    """Take the lease of the oldest job that can run now; None if there is none."""
    running = table.alias("running")
    is_blocked = (
        select(running.c.id)
        .where(
            running.c.state == JobState.RUNNING,
            running.c.kind == table.c.kind,
            running.c.subject == table.c.subject,
        )
        .exists()
    )
    is_ready = or_(
        and_(table.c.state == JobState.WAITING, ~is_blocked),
        and_(table.c.state == JobState.RUNNING, table.c.leased_until <= now),
    )
    query = select(table).where(is_ready).order_by(table.c.created_at, table.c.id).limit(1)
    row = connection.execute(query).first()
    if row is None:
        return None
    job, lease = rows.record_of(Job, row), random.token_hex(16)
    values = {
        "state": JobState.RUNNING,
        "waiting_key": None,
        "running_key": f"{job.kind}/{job.subject}",
        "lease": lease,
        "leased_until": now + LEASE,
        "attempts": job.attempts + 1,
        "started_at": now,
    }
    try:
        with connection.begin_nested():
            is_same = and_(table.c.id == job.id, table.c.attempts == job.attempts, is_ready)
            if not connection.execute(update(table).where(is_same).values(values)).rowcount:
                return None
    except IntegrityError:
        return None  # somebody else began a job on the same subject
    return Leased(rows.require(connection, table, Job, id=job.id), lease)


def keep(
    connection: Connection, leased: Leased, now: datetime, done: int, total: int | None
) -> bool:
    """Renew a lease, and tell how far the job is; return False if somebody else has it now."""
    values = {"leased_until": now + LEASE, "done": done, "total": total}
    return _change(connection, leased, values)


def give_back(connection: Connection, leased: Leased, now: datetime) -> None:
    """End a lease before its time, so that another server goes on with the job at once."""
    _change(connection, leased, {"leased_until": now, "attempts": leased.job.attempts - 1})


def finish(
    connection: Connection, leased: Leased, now: datetime, values: Mapping[str, Any]
) -> bool:
    """End a job with its result; return False if somebody else has it now."""
    ended = {"ended_at": now, "running_key": None, "lease": None, "leased_until": None}
    return _change(connection, leased, {**ended, **values})


def _change(connection: Connection, leased: Leased, values: Mapping[str, Any]) -> bool:
    is_ours = and_(table.c.id == leased.job.id, table.c.lease == leased.lease)
    return connection.execute(update(table).where(is_ours).values(dict(values))).rowcount == 1
