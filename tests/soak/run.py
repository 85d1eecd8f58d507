"""Start the workers of a soak, kill some of them again and again, and judge the result."""

import multiprocessing
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, Final

from tests.soak.checking import acknowledged, problems, summary
from tests.soak.places import Place
from tests.soak.workers import WRITERS, create, maintain, read, write

PROCESSES: Final = WRITERS + 2
LONGEST_END_SECONDS: Final = 300
"""How long a worker may take to finish its last action; longer is a hang."""

_SPAWN: Final = multiprocessing.get_context("spawn")  # nothing is shared, as on other machines


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a soak at one place."""

    summary: str
    problems: list[str]


def soak(
    place: Place,
    folder: Path,
    *,
    spec_version: int,
    seconds: float = 0,
    actions: int = 0,
    grace_seconds: float = 30,
) -> Outcome:
    """Let workers use a new repository for some time, and until some actions are acknowledged.

    `folder` keeps their journals. `grace_seconds` is the age from which files that nothing
    refers to are collected.
    """
    create(place.calm, spec_version)
    stop = folder / "stop"
    journals = [folder / f"journal-{number}.jsonl" for number in range(PROCESSES)]
    *writing, reading, caring = journals
    start: list[Callable[[], SpawnProcess]] = [
        _starter(write, place.working, journal, stop, writer)
        for writer, journal in enumerate(writing)
    ]
    start.append(_starter(read, place.working, reading, stop))
    start.append(_starter(maintain, place.working, place.calm, caring, stop, grace_seconds))
    workers = [begin() for begin in start]
    end = time.monotonic() + seconds
    kills = at_last_kill = 0
    try:
        while (done := acknowledged(journals)) < actions or time.monotonic() < end:
            time.sleep(random.uniform(0.2, 2))
            if done == at_last_kill:
                continue  # a machine this slow needs time between two kills
            victim = random.randrange(PROCESSES)
            workers[victim].kill()
            workers[victim].join()
            workers[victim] = start[victim]()
            kills += 1
            at_last_kill = done
        stop.touch()
        failures = _ends(workers)
    finally:
        for worker in workers:
            worker.kill()
            worker.join()
    return Outcome(f"{summary(journals)}; {kills} kills", [*failures, *problems(place, journals)])


def _starter(target: Callable[..., None], *arguments: Any) -> Callable[[], SpawnProcess]:
    def begin() -> SpawnProcess:
        process = _SPAWN.Process(target=target, args=arguments, daemon=True)
        process.start()
        return process

    return begin


def _ends(workers: list[SpawnProcess]) -> list[str]:
    """Wait for the workers; return a line for each that hangs or died of an error."""
    limit = time.monotonic() + LONGEST_END_SECONDS
    failures = []
    for number, worker in enumerate(workers):
        worker.join(max(0, limit - time.monotonic()))
        if worker.is_alive():
            failures.append(f"worker {number} hangs")
        elif worker.exitcode:
            failures.append(f"worker {number} ended with {worker.exitcode}")
    return failures
