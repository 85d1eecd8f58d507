"""Processes that commit without a pause, all at once: how evenly, how often, how long they wait.

On `branches` every writer has a branch of its own, so that no commit conflicts and only the
object that lists all branches is fought over. On `rebase` they share a branch and an array.
"""

import importlib
import multiprocessing
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Barrier
from types import ModuleType
from typing import Any, Final

import zarr

from bench.engine_location import Location
from bench.engine_rows import Group, Row, Run, Scale

WRITERS: Final = 6
_CHUNKS: Final = 100_000
"""Of the array that all write to; every writer has a part of its own."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The commits of a writer."""

    seconds: tuple[float, ...]
    """Of every commit that began in time, the last of which may have ended late."""
    in_time: int
    failed: int


def _branch(worker: int, *, shared: bool) -> str:
    return "main" if shared else f"b{worker}"


def _commit_until(
    name: str,
    location: Location,
    worker: int,
    shared: bool,  # noqa: FBT001 - an argument of a process
    duration: float,
    start: Barrier,
    outcomes: "SimpleQueue[Outcome]",
) -> None:
    lib = importlib.import_module(name)
    if hasattr(lib, "set_logs_filter"):
        lib.set_logs_filter("error")
    repo = location.open(lib)
    branch = _branch(worker, shared=shared)
    options = {"rebase_with": lib.ConflictDetector(), "rebase_tries": 10_000} if shared else {}
    seconds: list[float] = []
    in_time = failed = 0
    start.wait()
    deadline = time.perf_counter() + duration
    while time.perf_counter() < deadline:
        session = repo.writable_session(branch)
        array: Any = zarr.open_array(session.store, path="a")
        number = worker * (_CHUNKS // WRITERS) + len(seconds) % (_CHUNKS // WRITERS)
        array[number] = len(seconds) + 1
        begun = time.perf_counter()
        try:
            session.commit(f"worker {worker}, commit {len(seconds)}", **options)
        except Exception:  # noqa: BLE001 - either side's, of whichever kind
            failed += 1
            continue
        ended = time.perf_counter()
        seconds.append(ended - begun)
        in_time += ended < deadline
    outcomes.put(Outcome(tuple(seconds), in_time, failed))


def fight(
    lib: ModuleType, location: Location, scale: Scale, *, shared: bool
) -> Mapping[str, float]:
    """Run all writers for a while."""
    duration = scale.of(10, 2)
    repo = location.create(lib)
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="a", shape=(_CHUNKS,), chunks=(1,), dtype="i4")
    tip = session.commit("create")
    for worker in range(WRITERS):
        if not shared:
            repo.create_branch(_branch(worker, shared=False), tip)
    spawn = multiprocessing.get_context("spawn")
    start = spawn.Barrier(WRITERS)
    outcomes: SimpleQueue[Outcome] = spawn.SimpleQueue()
    writers = [
        spawn.Process(
            target=_commit_until,
            args=(lib.__name__, location, worker, shared, float(duration), start, outcomes),
        )
        for worker in range(WRITERS)
    ]
    for writer in writers:
        writer.start()
    results = [outcomes.get() for _ in writers]
    for writer in writers:
        writer.join()
    return _figures(location.open(lib), results, duration, shared=shared)


def _figures(
    repo: Any, results: list[Outcome], duration: float, *, shared: bool
) -> Mapping[str, float]:
    counts = sorted(result.in_time for result in results)
    seconds = sorted(one for result in results for one in result.seconds)
    branches = {_branch(worker, shared=shared) for worker in range(WRITERS)}
    stored = sum(len(list(repo.ancestry(branch=branch))) - 2 for branch in branches)
    return {
        "each": duration / max(sum(counts), 1),
        "spread": counts[-1] / max(counts[0], 1),
        "fastest": counts[-1],
        "slowest": counts[0],
        "tail": seconds[int(len(seconds) * 0.99)] / statistics.median(seconds),
        "longest": seconds[-1],
        "lost": len(seconds) - stored,
        "failed": sum(result.failed for result in results),
    }


def _rows(where: str) -> tuple[Row, ...]:
    return (
        Row("each", f"{where}: time per commit, of all writers"),
        Row("fastest", f"{where}: commits of the fastest writer", unit="count"),
        Row("slowest", f"{where}: commits of the slowest writer", unit="count"),
        Row("spread", f"{where}: fastest / slowest", unit="ratio", at_most=2),
        Row("tail", f"{where}: 99th percentile of a commit / median", unit="ratio", at_most=10),
        Row("longest", f"{where}: longest commit"),
        Row("lost", f"{where}: commits lost", unit="count", at_most=0),
        Row("failed", f"{where}: commits that failed", unit="count", at_most=0),
    )


_branches: Final[Run] = partial(fight, shared=False)
_rebase: Final[Run] = partial(fight, shared=True)

GROUPS: Final = {
    "fair-branches": Group(_branches, _rows("6 branches"), rounds=2),
    "fair-rebase": Group(_rebase, _rows("1 branch, rebase"), rounds=2),
    "fair-branches-s3": Group(_branches, _rows("S3, 6 branches"), on_s3=True, rounds=2),
    "fair-rebase-s3": Group(_rebase, _rows("S3, 1 branch, rebase"), on_s3=True, rounds=2),
}
