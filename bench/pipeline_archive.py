"""An archive of netCDF files to a commit: our job on Spark against VirtualiZarr with icechunk.

VirtualiZarr opens all files in one process, or in a pool with as many processes as we have cores;
in both it joins them, writes references with `to_icechunk`, and commits. Neither Spark's start nor
that of the pool counts; what workers import does.
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
from bench.pipeline_processes import CORES, DRIVER, JAVA, WORKER, session, watched
from examples.archives import Archive, write_archive
from icefloe.pipeline.files.options import CombineOptions
from icefloe.spark import virtualize

_FILES: Final = 3000
_SOME: Final = 60
_PER_FILE: Final = 2
"""Chunks of each file that grow with time."""


def _archive(lib: ModuleType, location: Location, scale: Scale) -> Mapping[str, float]:
    """Write the files, then have each side measured in a process of its own."""
    folder, files = Path(location.path).absolute(), scale.of(_FILES, _SOME)
    write_archive(folder / "data", files)
    module = "bench.pipeline_archive" if lib is icefloe else "bench.pipeline_peer"
    done = subprocess.run(
        [sys.executable, "-m", module, str(folder), str(files)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    figures: Mapping[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def measure(folder: Path, files: int) -> Mapping[str, float]:
    """Take all files to a commit, on Spark."""
    data = folder / "data"
    config = icefloe.RepositoryConfig.default()
    store = icefloe.local_filesystem_store(str(data))
    config.set_virtual_chunk_container(icefloe.VirtualChunkContainer(f"{data.as_uri()}/", store))
    storage = icefloe.local_filesystem_storage(str(folder / "repository"))
    repo = icefloe.Repository.create(storage, config)
    with session() as spark, watched() as peaks:
        began = time.perf_counter()
        report = virtualize(spark, repo, Archive(data, files).pattern, CombineOptions(("time",)))
        seconds = time.perf_counter() - began
    assert report.scan.used == files, report
    assert report.references >= _PER_FILE * files, report
    stages = {f"stage {name}": seconds for name, seconds in report.stages.items()}
    return {"seconds": seconds, "per file": seconds / files, **stages, **peaks.figures()}


_TEXT: Final = f"{_FILES} netCDF files to a commit, {CORES} cores"

GROUPS: Final = {
    "archive": Group(
        _archive,
        (
            Row("seconds", f"{_TEXT}, against one process", limit=1 / 1.7),
            Row("seconds", f"{_TEXT}, against a pool", limit=1.0, theirs=("parallel",)),
            Row("per file", "the same for each file, against one process"),
            Row(f"{DRIVER} rss", "peak memory of the driver", limit=0.5, unit="bytes"),
            Row(
                f"{DRIVER} rss",
                "peak memory of the driver, against a pool",
                unit="bytes",
                theirs=("parallel rss",),
            ),
            Row(f"{WORKER} rss", "peak memory of a worker", unit="bytes"),
            Row(f"{JAVA} rss", "peak memory of Java", unit="bytes"),
        ),
        rounds=2,
    ),
}

if __name__ == "__main__":
    print(json.dumps(measure(Path(sys.argv[1]), int(sys.argv[2]))))
