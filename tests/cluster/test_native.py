"""Copies on a real cluster, from a bucket into a bucket, exact whatever is lost on the way."""

import os
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from numpy.testing import assert_array_equal
from numpy.typing import NDArray

import icefloe
from tests.cluster.drivers import PATIENCE_SECONDS, Driver, wait_until_dead
from tests.cluster.gates import Gate, GatedStorage, wait_until
from tests.cluster.places import Site, assert_not_told, contents, copy_site, on_s3, write_noise
from tests.spark.copies import assert_clean, group_of
from tests.support.clusters import SparkCluster
from tests.support.servers import S3Endpoint

pytestmark = [pytest.mark.spark, pytest.mark.server]

OBJECTS = 4 * 2


def gate_in(folder: Path, name: str) -> Gate:
    (folder / name).mkdir()
    return Gate(str(folder / name))


def with_gate_behind_chunks(site: Site, gate: Gate) -> Site:
    """Hold the first task that wrote an object, so that another executor has to do the rest."""
    return site.through(GatedStorage(site.storage, gate, "chunks/", "after"))


def chunks_of(site: Site) -> set[str]:
    return {key for key, _ in site.storage.list_objects(prefix="chunks")}


def assert_exact(site: Site, values: NDArray[np.int32]) -> None:
    repository = site.open()
    copy: Any = group_of(repository)["a"]
    assert copy.chunks == (24, 5, 5)
    assert_array_equal(copy[...], values)
    assert len(chunks_of(site)) == OBJECTS
    assert_clean(repository)


def test_between_repositories_with_keys_that_expire(
    cluster: SparkCluster, driver: Driver, s3_endpoint: S3Endpoint, prefix: str, tmp_path: Path
) -> None:
    calls = str(tmp_path / "calls")
    keys = (s3_endpoint.access_key_id, s3_endpoint.secret_access_key)

    def renewing(name: str) -> Callable[[], icefloe.S3StaticCredentials]:
        def renew() -> icefloe.S3StaticCredentials:
            with Path(calls).open("a") as file:
                file.write(f"{name}-{os.getpid()}\n")
            soon = datetime.now(UTC) + timedelta(microseconds=1)
            return icefloe.S3StaticCredentials(*keys, None, soon)

        return renew

    source, target = (
        on_s3(s3_endpoint, f"{prefix}/{name}", {"get_credentials": renewing(name)})
        for name in ("source", "target")
    )
    values = write_noise(source)
    target.create()
    gate = gate_in(tmp_path, "copied")
    job = driver.submit(copy_site, source, with_gate_behind_chunks(target, gate))
    wait_until(lambda: len(chunks_of(target)) == OBJECTS, "work on both executors")
    gate.open()
    report = job.result(PATIENCE_SECONDS)
    assert (report.written, report.objects) == (OBJECTS, OBJECTS)
    assert_exact(target, values)
    by_process = Counter(Path(calls).read_text().split())
    for name in ("source", "target"):
        del by_process[f"{name}-{driver.pid}"], by_process[f"{name}-{os.getpid()}"]
        on_executors = [n for process, n in by_process.items() if process.startswith(name)]
        assert len(on_executors) >= 2
        assert min(on_executors) > 1  # renewed there
    kept = contents(*(worker.folder for worker in cluster.workers))
    assert any(path.name == "stderr" for path in kept)
    assert_not_told(keys[1], kept)


def test_a_python_worker_is_killed_when_it_has_written_an_object(
    driver: Driver, s3_endpoint: S3Endpoint, prefix: str, tmp_path: Path
) -> None:
    source, target = (on_s3(s3_endpoint, f"{prefix}/{name}") for name in ("source", "target"))
    values = write_noise(source)
    target.create()
    gate = gate_in(tmp_path, "copied")
    job = driver.submit(copy_site, source, with_gate_behind_chunks(target, gate))
    worker = psutil.Process(gate.comer())
    wait_until(lambda: len(chunks_of(target)) == OBJECTS, "all objects")
    before = chunks_of(target)
    worker.kill()
    gate.open()
    report = job.result(PATIENCE_SECONDS)
    assert (report.written, report.objects) == (OBJECTS, OBJECTS)
    assert_exact(target, values)
    assert len(before - chunks_of(target)) == OBJECTS // 2  # written again, and removed


def test_an_executor_is_killed_and_takes_along_which_objects_it_wrote(
    driver: Driver, s3_endpoint: S3Endpoint, prefix: str, tmp_path: Path
) -> None:
    source, target = (on_s3(s3_endpoint, f"{prefix}/{name}") for name in ("source", "target"))
    values = write_noise(source)
    target.create()
    copied, built = gate_in(tmp_path, "copied"), gate_in(tmp_path, "built")
    gated = with_gate_behind_chunks(target, copied)
    gated = gated.through(GatedStorage(gated.storage, built, "manifests/"))
    job = driver.submit(copy_site, source, gated)
    wait_until(lambda: len(chunks_of(target)) == OBJECTS, "work on both executors")
    before = chunks_of(target)
    copied.open()
    worker = psutil.Process(built.comer())
    executor = next(each for each in worker.parents() if each.name() == "java")
    assert executor.pid not in {each.pid for each in psutil.Process(driver.pid).children()}
    executor.kill()
    wait_until_dead([executor, worker])  # which would go on writing for a moment
    built.open()
    report = job.result(PATIENCE_SECONDS)
    assert (report.written, report.objects) == (OBJECTS, OBJECTS)
    assert_exact(target, values)
    assert len(before - chunks_of(target)) == OBJECTS // 2  # written again, and removed
