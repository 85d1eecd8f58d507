"""Jobs: one server at a time, taken up again, bounded, given back, on both databases."""

import asyncio
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import inspect, update

from icefloe.catalog.model import (
    Bucket,
    Decision,
    Job,
    JobKind,
    JobState,
    Listing,
    Organisation,
    Person,
    Platform,
    Repository,
    Subscription,
    SubscriptionKind,
)
from icefloe.errors import InvalidInputError
from icefloe.service import jobs as running
from icefloe.service.database import accounts, audit, jobs, rows, tables
from icefloe.service.database.engine import Database
from icefloe.service.jobs import JobRunner, add_due_follows
from icefloe.service.progress import Progress
from icefloe.service.runtime import Service
from icefloe.service.settings import Settings

START = datetime(2026, 1, 1, tzinfo=UTC)


class World:
    """A database with an organisation, and services that share it."""

    def __init__(self, folder: Path, url: str, **settings: Any) -> None:
        self.now = START
        self.settings = Settings(folder=folder / "service", database=url, **settings)
        self._services: list[Service] = []
        self.service = self.add_service()
        with self.service.database.writing() as connection:
            accounts.create_person(connection, Person("ada"), START)
            accounts.create_organisation(connection, Organisation("lab"), "ada", START)

    def add_service(self) -> Service:
        self._services.append(Service(self.settings, clock=lambda: self.now))
        return self._services[-1]

    def add_job(self, subject: str, organisation: str = "lab") -> Job:
        identifier = jobs.new_job_id(self.now)
        job = Job(
            identifier,
            organisation,
            JobKind.RELEASE,
            subject,
            created_by="ada",
            created_at=self.now,
        )
        with self.service.database.writing() as connection:
            return jobs.add(connection, job)

    def take(self) -> jobs.Leased | None:
        with self.service.database.writing() as connection:
            return jobs.take(connection, self.now)

    def jobs(self) -> list[Job]:
        with self.service.database.reading() as connection:
            return rows.find_all(connection, tables.jobs, Job)

    def close(self) -> None:
        for service in self._services:
            asyncio.run(service.close())


@pytest.fixture
def world(tmp_path: Path, database_url: str) -> Iterator[World]:
    world = World(tmp_path, database_url, jobs_at_once=3, follow_minutes=10)
    yield world
    world.close()


async def run_until_over(world: World, *runners: JobRunner) -> None:
    """Run jobs until all are over, then stop."""
    tasks = [asyncio.create_task(runner.run()) for runner in runners]
    async with asyncio.timeout(120):
        while not all(job.is_over for job in world.jobs()):  # noqa: ASYNC110 - by other threads
            await asyncio.sleep(0.02)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    await asyncio.gather(*(runner.stop() for runner in runners))


def test_each_job_runs_once_on_one_of_several_servers(world: World) -> None:
    begun: Counter[str] = Counter()
    at_once: Counter[Service] = Counter()
    most: Counter[Service] = Counter()

    async def work(service: Service, job: Job, progress: Progress) -> dict[str, int]:
        begun[job.id] += 1
        at_once[service] += 1
        most[service] = max(most[service], at_once[service])
        progress.expect(1)
        await asyncio.sleep(0.01)
        progress.advance()
        at_once[service] -= 1
        return {"chunks": 7}

    added = [world.add_job(f"lab/{number}") for number in range(20)]
    runners = [
        JobRunner(service, {JobKind.RELEASE: work})
        for service in (world.service, world.add_service(), world.add_service())
    ]
    asyncio.run(run_until_over(world, *runners))
    assert begun == {job.id: 1 for job in added}
    assert max(most.values()) <= 3
    for job in world.jobs():
        assert (job.state, job.report, job.done, job.total) == (JobState.DONE, {"chunks": 7}, 1, 1)
        assert (job.attempts, job.started_at, job.ended_at) == (1, START, START)
    with world.service.database.reading() as connection:
        audit.verify(connection, world.service.keys.audit)
        entries = audit.read(connection)
    told = {e.request_id: e.details for e in entries if e.action == "embargo:release"}
    assert told == {job.id: {"state": "done", "report": {"chunks": 7}} for job in added}


def test_one_job_waits_while_another_on_the_same_subject_runs(world: World) -> None:
    first = world.add_job("lab/live")
    assert world.add_job("lab/live").id == first.id
    leased = world.take()
    assert leased is not None
    assert leased.job.id == first.id
    second = world.add_job("lab/live")
    assert second.id != first.id
    assert world.take() is None
    with world.service.database.writing() as connection:
        assert jobs.finish(connection, leased, world.now, {"state": JobState.DONE})
    taken = world.take()
    assert taken is not None
    assert taken.job.id == second.id


def test_a_lease_ends_and_another_server_goes_on(world: World) -> None:
    world.add_job("lab/live")
    lost = world.take()
    assert lost is not None
    world.now += jobs.LEASE / 2
    with world.service.database.writing() as connection:
        assert jobs.keep(connection, lost, world.now, 3, 9)
    world.now += jobs.LEASE / 2
    assert world.take() is None
    assert [(job.done, job.total) for job in world.jobs()] == [(3, 9)]
    world.now += jobs.LEASE / 2
    taken = world.take()
    assert taken is not None
    assert taken.job.attempts == 2
    with world.service.database.writing() as connection:
        assert not jobs.keep(connection, lost, world.now, 4, 9)
        assert not jobs.finish(connection, lost, world.now, {"state": JobState.DONE})
        jobs.give_back(connection, lost, world.now)
        assert jobs.finish(connection, taken, world.now, {"state": JobState.DONE})


def test_a_job_stops_when_another_server_has_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "_KEEP_SECONDS", 0.02)
    attempts: list[int] = []

    async def work(service: Service, job: Job, progress: Progress) -> dict[str, bool]:
        attempts.append(job.attempts)
        if job.attempts > 1:
            return {"quick": True}
        with service.database.writing() as connection:  # as if the lease had been taken
            connection.execute(update(tables.jobs).values(lease="other", leased_until=world.now))
        while True:
            progress.advance()
            await asyncio.sleep(0.02)

    world.add_job("lab/live")
    asyncio.run(run_until_over(world, JobRunner(world.service, {JobKind.RELEASE: work})))
    assert attempts == [1, 2]


def test_a_server_that_stops_gives_its_jobs_back(world: World) -> None:
    async def scenario() -> None:
        begun = asyncio.Event()

        async def endless(service: Service, job: Job, progress: Progress) -> None:
            del service, job
            begun.set()
            while True:
                progress.advance()
                await asyncio.sleep(0.01)

        async def quick(service: Service, job: Job, progress: Progress) -> dict[str, bool]:
            del service, job, progress
            return {"quick": True}

        runner = JobRunner(world.service, {JobKind.RELEASE: endless})
        task = asyncio.create_task(runner.run())
        await begun.wait()
        task.cancel()
        await asyncio.wait([task])
        await runner.stop()
        (job,) = world.jobs()
        assert (job.state, job.attempts) == (JobState.RUNNING, 0)
        # The clock stands still: nobody has to wait for the end of the lease.
        await run_until_over(world, JobRunner(world.service, {JobKind.RELEASE: quick}))
        (job,) = world.jobs()
        assert (job.state, job.attempts) == (JobState.DONE, 1)

    world.add_job("lab/live")
    asyncio.run(scenario())


def test_errors_are_told(world: World) -> None:
    async def work(service: Service, job: Job, progress: Progress) -> None:
        del service, progress
        if job.subject == "lab/known":
            raise InvalidInputError("the bucket is full")
        raise ZeroDivisionError("a secret")

    for subject in ("lab/known", "lab/unknown"):
        world.add_job(subject)
    asyncio.run(run_until_over(world, JobRunner(world.service, {JobKind.RELEASE: work})))
    told = {job.subject: (job.state, job.error) for job in world.jobs()}
    assert told["lab/known"] == (JobState.FAILED, "the bucket is full")
    state, text = told["lab/unknown"]
    assert state is JobState.FAILED
    assert "secret" not in str(text)


def test_a_job_that_always_ends_its_server_is_given_up(world: World) -> None:
    world.add_job("lab/live")
    for _ in range(5):
        assert world.take() is not None
        world.now += 2 * jobs.LEASE

    async def work(*_arguments: Any) -> None:
        raise AssertionError("begun again")

    asyncio.run(run_until_over(world, JobRunner(world.service, {JobKind.RELEASE: work})))
    (job,) = world.jobs()
    assert job.state is JobState.FAILED
    assert "5 times" in (job.error or "")


def test_the_schedule_adds_a_job_once(world: World) -> None:
    with world.service.database.writing() as connection:
        accounts.create_person(connection, Person("zoe"), START)
        accounts.create_organisation(connection, Organisation("zoo"), "zoe", START)
        rows.add(connection, tables.buckets, Bucket("lab", "main", Platform.S3, "lab-data"))
        repository = Repository("lab", "sst", "main", "sst/", created_at=START, created_by="ada")
        rows.add(connection, tables.repositories, repository)
        rows.add(connection, tables.listings, Listing("lab", "ocean", "sst"))
        for name, state in (("living", Decision.GRANTED), ("ended", Decision.ENDED)):
            subscription = Subscription(
                name,
                "zoo",
                "lab",
                "ocean",
                SubscriptionKind.FILTERED,
                state,
                name,
                created_at=START,
                accepted_by="zoe",
            )
            rows.add(connection, tables.subscriptions, subscription)
    other = world.add_service()
    assert [add_due_follows(world.service), add_due_follows(other)] == [1, 0]
    world.now += timedelta(minutes=11)
    assert add_due_follows(other) == 0  # the first job still waits
    leased = world.take()
    assert leased is not None
    assert add_due_follows(other) == 0
    with world.service.database.writing() as connection:
        jobs.finish(connection, leased, world.now, {"state": JobState.FAILED})
    assert [add_due_follows(other), add_due_follows(world.service)] == [1, 0]
    job = leased.job
    assert (job.organisation, job.kind, job.subject) == ("zoo", JobKind.FOLLOW, "living")


def test_old_jobs_are_forgotten(world: World) -> None:
    world.add_job("lab/live")
    leased = world.take()
    assert leased is not None
    with world.service.database.writing() as connection:
        jobs.finish(connection, leased, world.now, {"state": JobState.DONE})
    world.now += timedelta(days=31)
    new = world.add_job("lab/live")
    assert [job.id for job in world.jobs()] == [new.id]


def test_the_migration_goes_up_and_down(database_url: str) -> None:
    database = Database(database_url)
    database.migrate("0001")
    assert not inspect(database.engine).has_table("jobs")
    database.migrate()
    assert inspect(database.engine).has_table("jobs")
    database.migrate("0001")
    assert not inspect(database.engine).has_table("jobs")
    database.migrate()
    assert database.is_current()
    database.close()


SERVER = """
import asyncio, sys
from datetime import UTC, datetime
from pathlib import Path

from icefloe.catalog.model import JobKind
from icefloe.service.jobs import JobRunner
from icefloe.service.runtime import Service
from icefloe.service.settings import Settings


async def work(service, job, progress):
    print("begun", flush=True)
    await asyncio.sleep(3600)


async def main():
    settings = Settings(folder=Path(sys.argv[1]), database=sys.argv[2])
    service = Service(settings, clock=lambda: datetime(2026, 1, 1, tzinfo=UTC))
    await JobRunner(service, {JobKind.RELEASE: work}).run()


asyncio.run(main())
"""


def test_the_job_of_a_killed_process_is_taken_up(world: World) -> None:
    async def work(service: Service, job: Job, progress: Progress) -> dict[str, bool]:
        del service, job, progress
        return {"quick": True}

    world.add_job("lab/live")
    command = [
        sys.executable,
        "-c",
        SERVER,
        str(world.settings.folder),
        world.settings.database_url,
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        assert world.take() is None
        process.kill()
    world.now += 2 * jobs.LEASE
    asyncio.run(run_until_over(world, JobRunner(world.service, {JobKind.RELEASE: work})))
    (job,) = world.jobs()
    assert (job.state, job.attempts, job.report) == (JobState.DONE, 2, {"quick": True})
