"""Tiny commits on growing histories, alone and many at once."""

import importlib
import multiprocessing
import statistics
import time
from collections.abc import Mapping
from multiprocessing.synchronize import Barrier
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import zarr

from bench.engine_location import Location, best_of
from bench.engine_rows import Group, Row, Scale

_SAMPLE: Final = 20
"""Commits at the end of a stretch that are timed."""
PROCESSES, COMMITS_EACH = 8, 10


def _start(lib: ModuleType, location: Location) -> Any:
    repo = location.create(lib)
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="a", shape=(2000,), chunks=(1,), dtype="i4")
    session.commit("create")
    return repo


def _tiny_commit(repo: Any, number: int) -> float:
    session = repo.writable_session("main")
    array: Any = zarr.open_array(session.store, path="a")
    started = time.perf_counter()
    array[number % 2000] = number + 1
    session.commit(f"tiny commit {number}")
    return time.perf_counter() - started


def history(lib: ModuleType, location: Location, scale: Scale) -> Mapping[str, float]:
    repo = _start(lib, location)
    short, long = scale.of(200, 40), scale.of(1000, 100)
    seconds = [_tiny_commit(repo, number) for number in range(long)]
    fresh = location.open(lib)

    def ancestry() -> None:
        assert len(list(fresh.ancestry(branch="main"))) == long + 2

    figures = {
        "short": statistics.median(seconds[short - _SAMPLE : short]),
        "long": statistics.median(seconds[-_SAMPLE:]),
        "ancestry": best_of(3, ancestry),
    }
    if location.is_local:
        backups = (Path(location.path) / "overwritten").iterdir()
        figures["left behind"] = sum(path.stat().st_size for path in backups)
    return figures


def _commit_often(name: str, location: Location, worker: int, start: Barrier) -> None:
    lib = importlib.import_module(name)
    if hasattr(lib, "set_logs_filter"):
        lib.set_logs_filter("error")
    repo = location.open(lib)
    start.wait()
    for turn in range(COMMITS_EACH):
        session = repo.writable_session("main")
        array: Any = zarr.open_array(session.store, path="a")
        number = worker * COMMITS_EACH + turn
        array[number] = number + 1
        session.commit(f"commit {number}", rebase_with=lib.ConflictDetector())


def concurrent(lib: ModuleType, location: Location, _: Scale) -> Mapping[str, float]:
    repo = _start(lib, location)
    spawn = multiprocessing.get_context("spawn")
    start = spawn.Barrier(PROCESSES + 1)
    workers = [
        spawn.Process(target=_commit_often, args=(lib.__name__, location, worker, start))
        for worker in range(PROCESSES)
    ]
    for worker in workers:
        worker.start()
    start.wait()
    begun = time.perf_counter()
    for worker in workers:
        worker.join()
    seconds = time.perf_counter() - begun
    failed = sum(worker.exitcode != 0 for worker in workers)
    made = len(list(repo.ancestry(branch="main"))) - 2
    return {"seconds": seconds, "lost": PROCESSES * COMMITS_EACH - made, "failed": failed}


_CONCURRENT: Final = (
    Row("lost", "8 x 10 commits, lost", unit="count", at_most=0),
    Row("failed", "8 x 10 commits, processes that failed", unit="count", at_most=0),
)

GROUPS: Final = {
    "commits": Group(
        history,
        (
            Row("short", "tiny commit after 200", 1.0),
            Row("long", "tiny commit after 1,000", 1.0),
            Row("ancestry", "ancestry of 1,000", 1.0),
            Row("left behind", "backups of 1,000 commits", 0.5, "bytes"),
        ),
        rounds=2,
    ),
    "commits-s3": Group(
        history,
        (
            Row("short", "S3, tiny commit after 200", 1.0),
            Row("long", "S3, tiny commit after 1,000", 1.0),
            Row("ancestry", "S3, ancestry of 1,000"),
        ),
        on_s3=True,
        rounds=2,
    ),
    "concurrent": Group(
        concurrent, (Row("seconds", "8 x 10 concurrent commits"), *_CONCURRENT), rounds=2
    ),
    "concurrent-s3": Group(
        concurrent,
        (Row("seconds", "S3, 8 x 10 concurrent commits", 0.7), *_CONCURRENT),
        on_s3=True,
        rounds=2,
    ),
}
