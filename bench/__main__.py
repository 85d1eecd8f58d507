"""Run the comparisons: `python -m bench [--rounds N] [--rows N] [name ...]`.

Those of the whole engine, of concurrent commits, of virtual chunks, of manifests at scale, of
maintenance and of the pipeline are sections of their own: `python -m bench engine`, `fairness`,
`virtual`, `manifests`, `maintenance` and `pipeline`, see `bench.engine`. So are the figures of the
repository service, `python -m bench service` and `service-following`, of the pages, `web`, of
reading from afar, `distance`, and against other readers of Zarr, `peers`.

Each side runs in processes of its own, turn and turn about; the best of all rounds counts.
"""

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from bench import distance, engine, peers, service, service_following, web
from bench.measure import Sample, in_fresh_process, scratch
from bench.sections import SECTIONS

LAYOUTS = {
    "ten-per-file": ("10", "1", "alike"),
    "distinct-files": ("1", "1", "alike"),
    "three-dimensions": ("10", "3", "alike"),
    "varying-lengths": ("10", "1", "varying"),
}


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a comparison, as ratios to the reference."""

    seconds: float | None = None
    rss: float | None = None
    size: float | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    name: str
    ours: Callable[[Path], Sample]
    theirs: Callable[[Path], Sample] | None
    limits: Limits = Limits()
    max_rss_bytes: int | None = None


def encode_with(rows: int, layout: str) -> Callable[[Path], Sample]:
    def run(_: Path) -> Sample:
        with scratch() as folder:
            task = ("encode", str(rows), *LAYOUTS[layout], str(folder))
            return in_fresh_process("bench.ours", *task)

    return run


def commit_with(rows: int, layout: str) -> Callable[[Path], Sample]:
    """Time the commit alone, but memory from before the references were set."""

    def run(_: Path) -> Sample:
        with scratch() as folder:
            arguments = (str(rows), *LAYOUTS[layout])
            whole = in_fresh_process(
                "bench.reference", "set-and-commit", *arguments, str(folder / "a")
            )
            alone = in_fresh_process("bench.reference", "commit", *arguments, str(folder / "b"))
        return Sample(alone.seconds, whole.rss_growth_bytes, alone.size_bytes)

    return run


def comparisons(rows: int) -> list[Comparison]:
    middle = str(rows * 7 // 9)
    return [
        Comparison(
            "encode ten-per-file",
            encode_with(rows, "ten-per-file"),
            commit_with(rows, "ten-per-file"),
            Limits(0.2, 0.12, 0.5),
        ),
        Comparison(
            "encode distinct-files",
            encode_with(rows, "distinct-files"),
            commit_with(rows, "distinct-files"),
            Limits(0.3, 0.4, 0.5),
        ),
        Comparison(
            "encode three-dimensions",
            encode_with(rows, "three-dimensions"),
            commit_with(rows, "three-dimensions"),
            Limits(0.2, 0.12, 0.5),
        ),
        Comparison(
            "encode varying-lengths",
            encode_with(rows, "varying-lengths"),
            commit_with(rows, "varying-lengths"),
            Limits(0.2, 0.12, 0.5),
        ),
        Comparison(
            "decode reference-written",
            lambda repo: in_fresh_process("bench.ours", "decode", str(largest(repo))),
            lambda repo: in_fresh_process("bench.reference", "locations", str(repo)),
            Limits(seconds=0.7),
        ),
        Comparison(
            "decode our own",
            lambda repo: in_fresh_process("bench.ours", "decode", str(repo / "ours/manifest")),
            lambda repo: in_fresh_process("bench.reference", "locations", str(repo)),
            Limits(seconds=0.4),
        ),
        Comparison(
            "one chunk, cold, reference-written",
            lambda repo: in_fresh_process("bench.ours", "lookup", str(largest(repo)), middle),
            lambda repo: in_fresh_process("bench.reference", "lookup", str(repo), middle),
            Limits(seconds=0.5),
        ),
        Comparison(
            "one chunk, cold, our own",
            lambda repo: in_fresh_process(
                "bench.ours", "lookup", str(repo / "ours/manifest"), middle
            ),
            lambda repo: in_fresh_process("bench.reference", "lookup", str(repo), middle),
            Limits(seconds=0.5),
        ),
        Comparison(
            f"encode {10 * rows} references",
            encode_with(10 * rows, "ten-per-file"),
            None,
            max_rss_bytes=1_500_000_000,
        ),
    ]


def largest(repository: Path) -> Path:
    """Find the manifest with the references of a repository."""
    return max((repository / "manifests").iterdir(), key=lambda path: path.stat().st_size)


def prepare(repository: Path, rows: int) -> None:
    """Write the manifests that both sides read."""
    layout = LAYOUTS["ten-per-file"]
    in_fresh_process("bench.reference", "commit", str(rows), *layout, str(repository))
    (repository / "ours").mkdir()
    in_fresh_process("bench.ours", "encode", str(rows), *layout, str(repository / "ours"))


def verdict(ratio: float, limit: float | None) -> str:
    if limit is None:
        return f"{ratio:.2f}x"
    colour = "green" if ratio <= limit else "red"
    return f"[{colour}]{ratio:.2f}x[/] (≤ {limit:g})"


def row_of(comparison: Comparison, ours: Sample, theirs: Sample | None) -> list[str]:
    memory, limits = f"{ours.rss_growth_bytes / 1e6:.0f} MB", comparison.limits
    if theirs is None:
        within = ours.rss_growth_bytes <= (comparison.max_rss_bytes or 0)
        limit = f"{(comparison.max_rss_bytes or 0) / 1e6:.0f} MB"
        colour = "green" if within else "red"
        return [
            comparison.name,
            f"{ours.seconds * 1e3:.0f} ms",
            "-",
            "-",
            memory,
            f"[{colour}]≤ {limit}[/]",
            "-",
        ]
    has_sizes = ours.size_bytes and limits.size
    return [
        comparison.name,
        f"{ours.seconds * 1e3:.0f} ms",
        f"{theirs.seconds * 1e3:.0f} ms",
        verdict(ours.seconds / theirs.seconds, limits.seconds),
        f"{memory} / {theirs.rss_growth_bytes / 1e6:.0f} MB",
        verdict(ours.rss_growth_bytes / max(theirs.rss_growth_bytes, 1), limits.rss),
        verdict(ours.size_bytes / theirs.size_bytes, limits.size) if has_sizes else "-",
    ]


OTHERS: Final = {
    "service": service.main,
    "service-following": service_following.main,
    "web": web.main,
    "distance": distance.main,
    "peers": peers.main,
}
"""Sections without a peer, by name."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench")
    parser.add_argument("names", nargs="*", help="parts of the names of comparisons to run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=1_000_000)
    options = parser.parse_args()
    chosen = [
        comparison
        for comparison in comparisons(options.rows)
        if not options.names or any(name in comparison.name for name in options.names)
    ]
    console = Console()
    table = Table(
        "comparison",
        "ours",
        "icechunk",
        "time",
        "memory",
        "memory",
        "bytes",
        title=f"{options.rows} references, best of {options.rounds} interleaved rounds",
    )
    with scratch() as folder, Progress(console=console, transient=True) as progress:
        task = progress.add_task("preparing", total=1 + len(chosen) * options.rounds)
        repository = folder / "repository"
        prepare(repository, options.rows)
        progress.advance(task)
        for comparison in chosen:
            progress.update(task, description=comparison.name)
            ours, theirs = list[Sample](), list[Sample]()
            for _ in range(options.rounds):
                ours.append(comparison.ours(repository))
                if comparison.theirs is not None:
                    theirs.append(comparison.theirs(repository))
                progress.advance(task)
            peer = reduce(Sample.best_with, theirs) if theirs else None
            table.add_row(*row_of(comparison, reduce(Sample.best_with, ours), peer))
    console.print(table)


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in SECTIONS:
        engine.main(sys.argv[2:], sys.argv[1])
    elif sys.argv[1:2] and sys.argv[1] in OTHERS:
        OTHERS[sys.argv[1]](sys.argv[2:])
    else:
        main()
