"""References of files that do not exist: shuffle, manifests and commit at 1, 10 and 50 million.

Each size runs in a process and on a Spark session of its own, after a load of a million that makes
workers import what they need, and Java compile it. Each made-up file has 5,000 references.
"""

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Final

import icefloe
from bench.engine_location import Location
from bench.engine_rows import Group, Row, Scale
from bench.pipeline_processes import CORES, DRIVER, JAVA, WORKER, cpu_seconds, session, watched
from bench.synthetic_archive import MadeUp, commit_made_up
from icefloe.pipeline.copying.layouts import REFERENCES_PER_COMMIT
from icefloe.pipeline.running.job import Target

PER_FILE: Final = 5_000
_MILLION: Final = 1_000_000
_SIZES: Final = (_MILLION, 10 * _MILLION, 50 * _MILLION)
_WORKER_BYTES: Final = 600_000_000
"""The bound that executors' Python workers are held to."""


def made_up_repository(location: Location, prefix: str = MadeUp(0, 0).prefix) -> icefloe.Repository:
    """Create a repository that may refer to files that do not exist."""
    config = icefloe.RepositoryConfig.default()
    container = icefloe.VirtualChunkContainer(prefix, icefloe.s3_store(region="us-east-1"))
    config.set_virtual_chunk_container(container)
    repo: icefloe.Repository = location.create(icefloe, config=config)
    return repo


def measure(location: Location, references: int) -> Mapping[str, float]:
    """Commit this many references, and say what it took."""
    load = MadeUp(references // PER_FILE, PER_FILE)
    with session() as spark:
        warm = Target(made_up_repository(location.below("warm")), "main", "", None)
        first = MadeUp(min(references, _MILLION) // PER_FILE, PER_FILE)
        commit_made_up(spark, warm, first, references_per_commit=REFERENCES_PER_COMMIT)
        target = Target(made_up_repository(location.below("cold")), "main", "", None)
        cpu, began = cpu_seconds(), time.perf_counter()
        with watched() as peaks:
            done, _ = commit_made_up(
                spark, target, load, references_per_commit=REFERENCES_PER_COMMIT
            )
        seconds, cpu = time.perf_counter() - began, cpu_seconds() - cpu
    assert sum(each.references for each in done) == references
    return {
        "seconds": seconds,
        "cpu": cpu,
        "rate": references / seconds / CORES,
        "commits": len(done),
        **peaks.figures(),
    }


def _synthetic(_: ModuleType, location: Location, scale: Scale) -> Mapping[str, float]:
    figures: dict[str, float] = {}
    found = []
    for references in _SIZES:
        name = f"{references // _MILLION}M"
        some = scale.of(references, references // 50)
        one = _in_process(location.below(name), some)
        found.append(one)
        figures |= {f"{name} {key}": value for key, value in one.items()}
    for key in ("rate", f"{DRIVER} rss"):
        values = [each[key] for each in found]
        figures[f"{key} spread"] = max(values) / min(values)
    return figures


def _in_process(location: Location, references: int) -> Mapping[str, float]:
    """Measure in a process of its own: memory that was given back counts otherwise."""
    Path(location.path).mkdir(parents=True)
    done = subprocess.run(
        [sys.executable, "-m", "bench.pipeline_synthetic", location.dumps(), str(references)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    figures: Mapping[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def _rows() -> tuple[Row, ...]:
    rows = []
    for references in _SIZES:
        name = f"{references // _MILLION}M"
        rows += [
            Row(f"{name} seconds", f"{name} made-up references to commits, {CORES} cores"),
            Row(f"{name} rate", f"{name}: references a second and core", unit="count"),
            Row(f"{name} {DRIVER} rss", f"{name}: peak memory of the driver", unit="bytes"),
            Row(
                f"{name} {WORKER} rss",
                f"{name}: peak memory of a worker",
                unit="bytes",
                at_most=_WORKER_BYTES,
            ),
            Row(f"{name} {JAVA} rss", f"{name}: peak memory of Java", unit="bytes"),
        ]
    return (
        *rows,
        Row("rate spread", "highest to lowest rate", unit="ratio", at_most=1.3),
        Row(f"{DRIVER} rss spread", "largest to smallest driver", unit="ratio", at_most=1.15),
    )


GROUPS: Final = {"synthetic": Group(_synthetic, _rows(), rounds=1, ours_only=True)}

if __name__ == "__main__":
    print(json.dumps(measure(Location.loads(sys.argv[1]), int(sys.argv[2]))))
