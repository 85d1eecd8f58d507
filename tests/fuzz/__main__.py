"""Decode many mutants of stored files, and report what should not have happened."""

import random
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from queue import SimpleQueue
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from icefloe.format.envelope import FileType
from tests.fuzz.campaign import (
    MEMORY_CAP_BYTES,
    SLOWEST_SECONDS,
    Report,
    bombs_in_process,
    mutants_in_process,
)
from tests.fuzz.corpus import corpus
from tests.fuzz.exercise import is_refused
from tests.fuzz.mutations import mutant

_PART = 20_000
_console = Console()


def main(
    mutants: Annotated[int, typer.Argument(help="How many mutants to decode.", min=1)] = 1_000_000,
    seed: Annotated[int | None, typer.Option(help="Repeat a run; random by default.")] = None,
    workers: Annotated[int, typer.Option(help="Processes at the same time.", min=1)] = 2,
    only: Annotated[int | None, typer.Option(help="Decode this mutant alone, here.")] = None,
) -> None:
    """Mutate stored files and decode each of them completely."""
    chosen = random.randrange(2**32) if seed is None else seed
    if only is not None:
        origin, data = mutant(chosen, only)
        verdict = "refused" if is_refused(origin.file_type, data) else "decoded"
        _console.print(f"mutant {only} of {origin.name} ({len(data)} bytes): {verdict}")
        return
    _console.print(
        f"{mutants:,} mutants of {len(corpus())} files, seed {chosen}; each process may take "
        f"{MEMORY_CAP_BYTES / 2**30:.1f} GiB beyond its start"
    )
    total = Report()
    for file_type in FileType:
        total.add(bombs_in_process(file_type))
    _console.print(_summary("bombs", total))
    mutated = _run(mutants, chosen, workers)
    total.add(mutated)
    for failure in total.failures:
        _console.print(failure, style="red", markup=False)
    _console.print(_summary("mutants", mutated))
    sys.exit(1 if total.failures else 0)


def _summary(what: str, report: Report) -> str:
    memory = f", peak memory {report.peak_bytes / 2**20:.0f} MiB beyond the start"
    return (
        f"{report.mutants:,} {what}, {report.refused:,} of them refused, "
        f"{len(report.failures)} failures; slowest {report.slowest_seconds:.2f} s "
        f"(number {report.slowest}, limit {SLOWEST_SECONDS} s){memory if report.peak_bytes else ''}"
    )


def _run(mutants: int, seed: int, workers: int) -> Report:
    """Share the mutants out to processes, and add up their reports."""
    reports: SimpleQueue[Report | None] = SimpleQueue()

    def part(first: int) -> None:
        for report in mutants_in_process(seed, first, min(first + _PART, mutants)):
            reports.put(report)
        reports.put(None)

    total = Report()
    starts = range(0, mutants, _PART)
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=_console,
    )
    with bar, ThreadPoolExecutor(workers) as pool:
        task = bar.add_task("mutants", total=mutants)
        for start in starts:
            pool.submit(part, start)
        for finished in count():
            if finished == len(starts):
                break
            while (report := reports.get()) is not None:
                total.add(report)
                found = f", [red]{len(total.failures)} failures" if total.failures else ""
                bar.update(task, advance=report.mutants, description=f"mutants{found}")
    return total


typer.run(main)
