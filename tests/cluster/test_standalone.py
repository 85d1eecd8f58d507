"""Jobs on a real cluster whose machines, workers, executors and drivers are lost on the way.

Whatever happens, the result is exact, or the repository is as it was and the next try completes.
"""

import os
import signal
from collections import Counter
from concurrent.futures.process import BrokenProcessPool
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

import psutil
import pytest

import icefloe
from examples.archives import Archive, write_archive
from icefloe.spark import discard_attempt, list_attempts
from tests.cluster.drivers import PATIENCE_SECONDS, Driver, driver_on, wait_until_dead
from tests.cluster.gates import Death, Gate, GatedAccess, GatedStorage, TooMuchOnce, wait_until
from tests.cluster.places import (
    Site,
    add,
    assert_not_told,
    contents,
    ingest,
    on_disk,
    on_s3,
    upload,
)
from tests.spark.archives import assert_complete, assert_sound
from tests.support.clusters import SparkCluster
from tests.support.servers import S3Endpoint

pytestmark = pytest.mark.spark

FILES = 12
HELD = "model_000003.nc"
SPECULATIVE = {
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.minTaskRuntime": "50ms",
    "spark.speculation.multiplier": "1.0",
    "spark.speculation.quantile": "0.1",
}


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    return write_archive(tmp_path / "data", FILES, steps=2)


@pytest.fixture
def site(tmp_path: Path, archive: Archive) -> Site:
    """A new repository on disk."""
    made = on_disk(tmp_path)
    made.create()
    return made


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(str(tmp_path))


def assert_exact(site: Site, archive: Archive) -> None:
    repository = site.open()
    assert_complete(repository.readonly_session("main"), archive)
    assert_sound(repository)


def lose_machine_of(cluster: SparkCluster, process: int) -> None:
    """Kill the worker whose executor runs a process, and start another one in its place."""
    above = {each.pid for each in psutil.Process(process).parents()}
    [worker] = [each for each in cluster.workers if each.pid in above]
    machine = psutil.Process(worker.pid)
    executors = machine.children(recursive=True)
    assert executors
    worker.kill()
    wait_until_dead([machine, *executors])
    cluster.add_worker()


def test_on_disk(driver: Driver, site: Site, archive: Archive) -> None:
    driver.run(ingest, site, archive.urls()[:7])
    report = driver.run(add, site)
    assert (report.known, report.scan.used) == (7, 5)
    assert_exact(site, archive)


@pytest.mark.server
def test_in_a_bucket_with_keys_that_expire(
    cluster: SparkCluster,
    driver: Driver,
    archive: Archive,
    s3_endpoint: S3Endpoint,
    prefix: str,
    tmp_path: Path,
) -> None:
    calls = str(tmp_path / "calls")
    keys = (s3_endpoint.access_key_id, s3_endpoint.secret_access_key)

    def renew() -> icefloe.S3StaticCredentials:
        with Path(calls).open("a") as file:
            file.write(f"{os.getpid()}\n")
        soon = datetime.now(UTC) + timedelta(microseconds=1)
        return icefloe.S3StaticCredentials(*keys, None, soon)

    site = on_s3(s3_endpoint, prefix, {"get_credentials": renew})
    upload(site, archive)
    site.create()
    known = [f"{site.prefix}{archive.path(n).relative_to(archive.folder)}" for n in range(7)]
    driver.run(ingest, site, known)
    report = driver.run(add, site)
    assert (report.known, report.scan.used) == (7, 5)
    assert_exact(site, archive)
    by_process = Counter(Path(calls).read_text().split())
    del by_process[str(driver.pid)], by_process[str(os.getpid())]
    assert len(by_process) >= 2  # on both executors
    assert min(by_process.values()) > 1  # renewed there
    kept = contents(*(worker.folder for worker in cluster.workers))
    assert any(path.name == "stderr" for path in kept)
    assert_not_told(keys[1], kept)


def test_a_machine_is_lost_while_files_are_parsed(
    cluster: SparkCluster, driver: Driver, site: Site, archive: Archive, gate: Gate
) -> None:
    job = driver.submit(ingest, site, None, GatedAccess(gate=gate, name=HELD))
    lose_machine_of(cluster, gate.comer())
    gate.open()
    job.result(PATIENCE_SECONDS)
    assert_exact(site, archive)


def test_a_machine_is_lost_while_manifests_are_written(
    cluster: SparkCluster, driver: Driver, site: Site, archive: Archive, gate: Gate
) -> None:
    gated = site.through(GatedStorage(site.storage, gate, "manifests/"))
    job = driver.submit(ingest, gated)
    lose_machine_of(cluster, gate.comer())
    gate.open()
    job.result(PATIENCE_SECONDS)
    assert_exact(site, archive)


@pytest.mark.parametrize("stage", ["scan", "write"])
def test_a_python_worker_is_killed(
    stage: str, driver: Driver, site: Site, archive: Archive, gate: Gate
) -> None:
    if stage == "scan":
        job = driver.submit(ingest, site, None, GatedAccess(gate=gate, name=HELD))
    else:
        gated = site.through(GatedStorage(site.storage, gate, "manifests/"))
        job = driver.submit(ingest, gated)
    os.kill(gate.comer(), signal.SIGKILL)
    gate.open()
    job.result(PATIENCE_SECONDS)
    assert_exact(site, archive)


def test_an_executor_runs_out_of_memory(
    cluster: SparkCluster, driver: Driver, site: Site, archive: Archive, tmp_path: Path
) -> None:
    marker = tmp_path / "too-much"

    def ends() -> int:
        return sum(worker.log.count("exitStatus 52") for worker in cluster.workers)

    before = ends()
    driver.run(ingest, site, None, TooMuchOnce(marker=str(marker), size=250_000_000))
    assert marker.exists()
    assert_exact(site, archive)
    wait_until(lambda: ends() > before, "the end of an executor")  # the job goes on without it
    assert ends() == before + 1
    assert "OutOfMemoryError" in "".join(worker.executor_logs() for worker in cluster.workers)


def test_tasks_run_twice_at_the_same_time(
    cluster: SparkCluster, site: Site, archive: Archive, tmp_path: Path
) -> None:
    gates = [Gate(str(tmp_path / name), opens_for_second=True) for name in ("scan", "write")]
    for each in gates:
        Path(each.folder).mkdir()
    scan, write = gates
    gated = site.through(GatedStorage(site.storage, write, r"icefloe/jobs/\w+/0-0-"))
    with driver_on(cluster.url, SPECULATIVE) as eager:
        eager.run(ingest, gated, None, GatedAccess(gate=scan, name=HELD))
        pids = {write.comer("first"), write.comer("second")}
        twins = [each for each in psutil.process_iter() if each.pid in pids]
    for each in gates:
        assert each.comer("first") != each.comer("second")
    wait_until_dead(twins)
    repository = site.open()
    for attempt in list_attempts(repository):  # the slower twin may have gone on for a moment
        discard_attempt(repository, attempt.job)
    assert_exact(site, archive)


@pytest.mark.parametrize(
    ("moment", "pattern", "is_committed"),
    [("before", "snapshots/", False), ("before", "repo$", False), ("after", "repo$", True)],
)
def test_a_driver_is_killed(
    moment: Literal["before", "after"],
    pattern: str,
    *,
    is_committed: bool,
    cluster: SparkCluster,
    driver: Driver,
    site: Site,
    archive: Archive,
) -> None:
    repository = site.open()
    empty = repository.lookup_branch("main")
    deadly = site.through(GatedStorage(site.storage, Death(), pattern, moment))
    frugal = {"spark.cores.max": "1"}  # one executor will do
    with driver_on(cluster.url, frugal) as doomed, pytest.raises(BrokenProcessPool):
        doomed.run(ingest, deadly)
    repository = site.open()
    assert (repository.lookup_branch("main") != empty) is is_committed
    if is_committed:
        assert_complete(repository.readonly_session("main"), archive)
    [left] = list_attempts(repository)
    discarded = discard_attempt(repository, left.job)
    assert (discarded == 0) is is_committed
    again = driver.run(add, site)
    assert (again.snapshot is None) is is_committed
    repository.garbage_collect(datetime.now(UTC))  # what the driver itself had written
    assert_exact(site, archive)
