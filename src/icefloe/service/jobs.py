"""Jobs of the service: work that takes longer than a request may.

A request leaves a job in the database, and any server takes it up: exactly one at a time, by a
lease that it renews. A job that a server did not end, because it crashed or was stopped, is taken
up again. The work itself can stop at any step and be done again: only commits, which are
conditional, make it visible.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Final

import msgspec
from sqlalchemy import or_, select

from icefloe.catalog.model import Job, JobKind, JobState, Subscription, SubscriptionKind
from icefloe.catalog.wire import AuditEntry
from icefloe.errors import ErrorKind, IcefloeError
from icefloe.service.database import audit, rows, tables
from icefloe.service.database import jobs as leases
from icefloe.service.database.jobs import LEASE, Leased
from icefloe.service.domain.actions import Action
from icefloe.service.domain.decide import is_living
from icefloe.service.following import follow
from icefloe.service.progress import InterruptedJobError, Progress
from icefloe.service.releasing import release
from icefloe.service.runtime import Service

_log: Final = logging.getLogger(__name__)
_PAUSE_SECONDS: Final = 5.0
"""How often a server looks for jobs that another one left."""
_KEEP_SECONDS: Final = LEASE.total_seconds() / 30
"""How often a server renews a lease, and tells the progress."""
_PAUSES_SECONDS: Final = (0.1, 1.0, 10.0)
"""How long a server waits when the database does not take the end of a job."""
_MOST_ATTEMPTS: Final = 5
_STOP_SECONDS: Final = 20.0
"""How long jobs may go on after the server was told to stop."""
_RANDOM: Final = random.SystemRandom()
_ACTIONS: Final = {
    JobKind.FOLLOW: Action.UPDATE_SUBSCRIPTION,
    JobKind.RELEASE: Action.RELEASE_EMBARGO,
}


async def _follow(service: Service, job: Job, progress: Progress) -> Any:
    return await follow(service, job.subject, progress)


async def _release(service: Service, job: Job, progress: Progress) -> Any:
    organisation, _, name = job.subject.partition("/")
    is_resumed = job.attempts > 1
    return await release(service, organisation, name, progress, is_resumed=is_resumed)


type Work = Callable[[Service, Job, Progress], Awaitable[Any]]
WORK: Final[dict[JobKind, Work]] = {JobKind.FOLLOW: _follow, JobKind.RELEASE: _release}


async def _in_thread[T, **P](function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function that uses the database; also wait for its end when cancelled.

    A connection that is in use while the database is closed would stay open.
    """
    call = asyncio.create_task(asyncio.to_thread(function, *args, **kwargs))
    try:
        return await asyncio.shield(call)
    except asyncio.CancelledError:
        await asyncio.wait([call])
        raise


class JobRunner:
    """Runs jobs in the background of a server, a few at a time."""

    def __init__(self, service: Service, work: dict[JobKind, Work] = WORK) -> None:
        self._service: Final = service
        self._work: Final = work
        self._running: Final[dict[asyncio.Task[None], Progress]] = {}

    async def run(self) -> None:
        """Take jobs and run them, until cancelled."""
        bell = self._service.job_bell
        while True:
            bell.clear()
            try:
                while len(self._running) < self._service.settings.jobs_at_once:
                    leased = await _in_thread(self._take)
                    if leased is None:
                        break
                    self._start(leased)
            except IcefloeError as error:
                _log.warning("no job could be taken", exc_info=error)
            # Servers that started together do not ask together.
            pause = _PAUSE_SECONDS * _RANDOM.uniform(0.5, 1.0)
            try:
                async with asyncio.timeout(pause):
                    await bell.wait()
            except TimeoutError:
                continue

    async def stop(self) -> None:
        """Stop running jobs at their next step, and give them back for others."""
        for progress in self._running.values():
            progress.stop()
        if self._running:
            await asyncio.wait(self._running, timeout=_STOP_SECONDS)
        for task in self._running:
            task.cancel()  # another server takes the job when the lease is over
        if self._running:
            await asyncio.wait(self._running)

    def _take(self) -> Leased | None:
        now = self._service.clock()
        with self._service.database.reading() as connection:
            waits = tables.jobs.c.state.in_([JobState.WAITING, JobState.RUNNING])
            if connection.execute(select(tables.jobs.c.id).where(waits).limit(1)).first() is None:
                return None
        with self._service.database.writing() as connection:
            return leases.take(connection, now)

    def _start(self, leased: Leased) -> None:
        progress = Progress()
        task = asyncio.create_task(self._run(leased, progress))
        self._running[task] = progress

        def forget(ended: asyncio.Task[None]) -> None:
            del self._running[ended]
            self._service.job_bell.set()
            if not ended.cancelled() and (error := ended.exception()) is not None:
                _log.error("the end of %s was not written", leased.job.id, exc_info=error)

        task.add_done_callback(forget)

    async def _run(self, leased: Leased, progress: Progress) -> None:
        job = leased.job
        keeping = asyncio.create_task(self._keep(leased, progress))
        values: dict[str, Any]
        try:
            if job.attempts > _MOST_ATTEMPTS:
                text = f"the job was begun {_MOST_ATTEMPTS} times, and the server stopped each time"
                values = {"error_code": ErrorKind.UNKNOWN, "error": text}
            else:
                report = await self._work[job.kind](self._service, job, progress)
                values = {"report": msgspec.to_builtins(report)}
        except InterruptedJobError:
            await _in_thread(self._give_back, leased)
            return
        except IcefloeError as error:
            _log.warning("%s failed", job.id, exc_info=error)
            values = {"error_code": error.kind, "error": str(error)}
        except Exception as error:  # noqa: BLE001 - those who wait for the job have to know
            _log.error("%s failed in an unforeseen way", job.id, exc_info=error)
            text = "the service failed; its operators find the reason in the log"
            values = {"error_code": ErrorKind.UNKNOWN, "error": text}
        finally:
            keeping.cancel()
            await asyncio.wait([keeping])
        state = JobState.FAILED if "error" in values else JobState.DONE
        values |= {"state": state, "done": progress.done, "total": progress.total}
        for pause in _PAUSES_SECONDS:
            try:
                await _in_thread(self._finish, leased, values)
            except IcefloeError as error:
                _log.warning("the end of %s was not written yet", job.id, exc_info=error)
                await asyncio.sleep(pause)
            else:
                return
        await _in_thread(self._finish, leased, values)

    async def _keep(self, leased: Leased, progress: Progress) -> None:
        """Renew the lease while the job runs; stop the job if another server has it."""

        def keep() -> bool:
            now = self._service.clock()
            with self._service.database.writing() as connection:
                return leases.keep(connection, leased, now, progress.done, progress.total)

        while True:
            await asyncio.sleep(_KEEP_SECONDS)
            try:
                if not await _in_thread(keep):
                    progress.stop()
                    return
            except IcefloeError as error:
                _log.warning("the lease of %s was not renewed", leased.job.id, exc_info=error)

    def _give_back(self, leased: Leased) -> None:
        with self._service.database.writing() as connection:
            leases.give_back(connection, leased, self._service.clock())

    def _finish(self, leased: Leased, values: dict[str, Any]) -> None:
        job, now = leased.job, self._service.clock()
        with self._service.database.writing() as connection:
            if not leases.finish(connection, leased, now, values):
                return  # another server has the job, and tells its end
            entry = AuditEntry(
                at=now,
                person=job.created_by or "icefloe",
                action=_ACTIONS[job.kind],
                resource=f"{job.kind} {job.subject}",
                allowed=True,
                request_id=job.id,
                organisation=job.organisation,
                details={
                    name: values[name] for name in ("state", "report", "error") if name in values
                },
            )
            audit.append(connection, self._service.keys.audit, [entry])


# The schedule


def add_due_follows(service: Service) -> int:
    """Add jobs for subscriptions that have not followed for a while; return their number.

    Of several servers, the first one adds a job, and none does while one waits or runs.
    """
    now = service.clock()
    oldest = now - timedelta(minutes=service.settings.follow_minutes)
    table, jobs = tables.subscriptions, tables.jobs
    is_recent = or_(
        jobs.c.created_at > oldest, jobs.c.state.in_([JobState.WAITING, JobState.RUNNING])
    )
    recent = select(jobs.c.subject).where(jobs.c.kind == JobKind.FOLLOW, is_recent)
    is_due = (
        table.c.kind == SubscriptionKind.FILTERED,
        or_(table.c.followed_at.is_(None), table.c.followed_at <= oldest),
        table.c.id.not_in(recent),
    )
    with service.database.reading() as connection:
        due = rows.find_all(connection, table, Subscription, *is_due)
    living = [subscription for subscription in due if is_living(subscription, now)]
    for subscription in living:
        job = Job(
            leases.new_job_id(now),
            subscription.subscriber,
            JobKind.FOLLOW,
            subscription.id,
            created_at=now,
        )
        with service.database.writing() as connection:
            leases.add(connection, job)
    return len(living)


async def follow_on_schedule(service: Service) -> None:
    """Add jobs for subscriptions that have not followed for a while, until cancelled."""
    while True:
        # Servers that started together do not ask together.
        await asyncio.sleep(60 * _RANDOM.uniform(0.5, 1.0))
        try:
            if await _in_thread(add_due_follows, service):
                service.job_bell.set()
        except IcefloeError as error:
            _log.warning("the scheduled updates of subscriptions failed", exc_info=error)
