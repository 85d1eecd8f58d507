"""A section beside the reference: `python -m bench SECTION [--only name] [--quick]`.

The sections are `engine`, `fairness`, `virtual`, `manifests`, `maintenance` and `pipeline`.

Both sides run in processes of their own, turn and turn about; the best of all rounds counts.
Requests and bytes are counted by a proxy before the object store.
"""

import argparse
import json
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from bench.engine_location import Location
from bench.engine_requests import OPERATIONS, Traffic, counted
from bench.engine_rows import Group, Row
from bench.measure import environment, scratch
from bench.sections import SECTIONS, group_named
from tests.support.proxy import cutting_proxy
from tests.support.servers import S3Endpoint, seaweedfs

REFERENCE, OURS = "icechunk", "icefloe"
REQUESTS = "requests"
type Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Bench:
    """Where and how much to measure."""

    folder: Path
    endpoint: S3Endpoint | None
    size: str
    sides: tuple[str, ...]
    rounds: int | None

    def location(self, group: Group) -> Location:
        name = uuid.uuid4().hex
        if not group.on_s3:
            return Location(str(self.folder / name))
        assert self.endpoint is not None
        return Location.on(self.endpoint, f"bench/{name}")

    def run(self, side: str, task: str, location: Location) -> Figures:
        done = subprocess.run(
            [sys.executable, "-m", "bench.engine_worker", side, task, location.dumps(), self.size],
            capture_output=True,
            text=True,
            check=False,
            env=environment(),
        )
        if done.returncode != 0:
            raise RuntimeError(f"{side} failed in {task}:\n{done.stderr[-1500:]}")
        figures: Figures = json.loads(done.stdout.splitlines()[-1])
        return figures

    def best(self, name: str, progress: Progress) -> tuple[dict[str, Figures], list[str]]:
        """Return the best figures of each side, and what went wrong."""
        group = group_named(name)
        found: dict[str, Figures] = {side: {} for side in self.sides}
        failures: list[str] = []
        for _ in range(self.rounds or group.rounds):
            for side in self.sides:
                if group.ours_only and side != OURS:
                    continue
                try:
                    figures = self.run(side, name, self.location(group))
                except RuntimeError as failure:
                    failures.append(str(failure))
                    continue
                best = found[side]
                for key, value in figures.items():
                    # Of lost commits the worst counts.
                    worst = key in ("lost", "failed")
                    better = max if worst else min
                    best[key] = better(best.get(key, value), value)
            progress.advance(progress.task_ids[0])
        return found, failures


def shown(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    match unit:
        case "bytes":
            return f"{value / 1e6:.2f} MB"
        case "count":
            return f"{value:.0f}"
        case "ratio":
            return f"{value:.2f}"
        case _:
            return f"{value * 1e3:.1f} ms"


def verdict(row: Row, ours: float | None, theirs: float | None) -> str:
    if ours is None:
        return "-"
    if row.at_most is not None:
        colour = "green" if ours <= row.at_most else "red"
        return f"[{colour}]≤ {shown(row.at_most, row.unit)}[/]"
    if theirs is None:
        return "-"
    ratio = ours / max(theirs, 1e-9)
    if row.limit is None:
        return f"{ratio:.2f}x"
    colour = "green" if ratio <= row.limit else "red"
    return f"[{colour}]{ratio:.2f}x[/] (≤ {row.limit:g})"


def add_rows(table: Table, group: Group, figures: dict[str, Figures]) -> None:
    reference, ours = figures.get(REFERENCE, {}), figures.get(OURS, {})
    for row in group.rows:
        mine = ours.get(row.key)
        others = [reference[key] for key in row.theirs or (row.key,) if key in reference]
        theirs = min(others) if others else None
        table.add_row(
            row.text, shown(mine, row.unit), shown(theirs, row.unit), verdict(row, mine, theirs)
        )


def request_table(bench: Bench) -> Table:
    """Count requests and bytes of each operation, for each side."""
    assert bench.endpoint is not None
    found: dict[str, dict[str, Traffic]] = {}
    with cutting_proxy(bench.endpoint.url) as proxy:
        for side in bench.sides:
            prefix = f"bench/{uuid.uuid4().hex}"
            bench.run(side, "prepare-requests", Location.on(bench.endpoint, prefix))
            proxy.plan()
            bench.run(side, "operate-requests", Location.on(bench.endpoint, prefix, proxy.url))
            found[side] = counted(proxy.exchanges)
    table = Table("operation", "requests", "icechunk", "bytes in", "bytes out", "icechunk in / out")
    nothing = dict.fromkeys(OPERATIONS, Traffic())
    ours, theirs = found.get(OURS, nothing), found.get(REFERENCE, nothing)
    for name, text in OPERATIONS.items():
        mine, other = ours[name], theirs[name]
        colour = "green" if mine.requests <= other.requests else "red"
        table.add_row(
            text,
            f"[{colour}]{mine.requests}[/] {_summary(mine)}",
            f"{other.requests} {_summary(other)}",
            f"{mine.bytes_in}",
            f"{mine.bytes_out}",
            f"{other.bytes_in} / {other.bytes_out}",
        )
    table.title = "requests and bytes on S3; ours should never be more"
    return table


def _summary(traffic: Traffic) -> str:
    kinds = dict.fromkeys(traffic.methods)
    return " ".join(f"{traffic.methods.count(kind)} {kind}" for kind in kinds)


@contextmanager
def server(*, is_needed: bool) -> Iterator[S3Endpoint | None]:
    if not is_needed:
        yield None
        return
    with seaweedfs() as endpoint:
        yield endpoint


def main(arguments: Sequence[str], section: str = "engine") -> None:
    groups = SECTIONS[section]
    choices = [*groups, *([REQUESTS] if section == "engine" else [])]
    parser = argparse.ArgumentParser(prog=f"python -m bench {section}", description=__doc__)
    parser.add_argument("--only", action="append", help=", ".join(choices))
    parser.add_argument("--quick", action="store_true", help="little data: to see that it runs")
    parser.add_argument("--rounds", type=int, help="instead of each group's own number")
    parser.add_argument("--side", choices=(OURS, REFERENCE), help="one side alone")
    options = parser.parse_args(arguments)
    wanted = options.only or choices
    names = [name for name in groups if any(part in name for part in wanted)]
    wants_requests = REQUESTS in choices and any(part in REQUESTS for part in wanted)
    needs_server = wants_requests or any(groups[name].on_s3 for name in names)
    sides = (options.side,) if options.side else (OURS, REFERENCE)
    console = Console()
    with scratch() as folder, server(is_needed=needs_server) as endpoint:
        size = "quick" if options.quick else "full"
        bench = Bench(folder, endpoint, size, sides, options.rounds)
        title = f"{section}: the best of all rounds"
        table = Table("work", "ours", "icechunk", "ratio", title=title)
        failures: list[str] = []
        with Progress(console=console, transient=True) as progress:
            rounds = sum(bench.rounds or groups[name].rounds for name in names)
            progress.add_task("measuring", total=rounds)
            for name in names:
                progress.update(progress.task_ids[0], description=name)
                found, problems = bench.best(name, progress)
                failures += problems
                add_rows(table, groups[name], found)
        if names:
            console.print(table)
        if wants_requests:
            console.print(request_table(bench))
        for failure in dict.fromkeys(failures):
            console.print(failure, style="red", markup=False)
    if failures:
        raise SystemExit(1)
