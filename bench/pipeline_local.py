"""An archive of netCDF files to a commit without Spark, against VirtualiZarr with icechunk.

Three files: the whole command counts, from its start to its end, against a process in which
VirtualiZarr does the same once. Thousands of files: the job counts, with the start of its
processes, against VirtualiZarr with a pool that has started.
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
from bench.pipeline_processes import CORES, DRIVER, WORKER, watched
from examples.archives import Archive, write_archive
from icefloe.pipeline import CombineOptions, LocalEngine
from icefloe.pipeline.running.jobs import virtualize

_FEW: Final = 3
_FILES: Final = 3000
_SOME: Final = 60
_COMMAND: Final = "from icefloe.cli.main import app; app()"


def _few(lib: ModuleType, location: Location, scale: Scale) -> Mapping[str, float]:
    """Time a whole process."""
    folder = Path(location.path).absolute()
    archive = write_archive(folder / "data", _FEW)
    if lib is icefloe:
        repo = str(folder / "repository")
        options = ["--repo", repo, "--concat", "time"]
        command = ["-c", _COMMAND, "ingest", "virtual", archive.pattern, *options]
    else:
        command = ["-m", "bench.pipeline_peer", str(folder), str(_FEW), "alone"]
    began = time.perf_counter()
    subprocess.run([sys.executable, *command], check=True, stdout=subprocess.DEVNULL)
    return {"seconds": time.perf_counter() - began}


def _archive(lib: ModuleType, location: Location, scale: Scale) -> Mapping[str, float]:
    """Write the files, then have each side measured in a process of its own."""
    folder, files = Path(location.path).absolute(), scale.of(_FILES, _SOME)
    write_archive(folder / "data", files)
    module = "bench.pipeline_local" if lib is icefloe else "bench.pipeline_peer"
    done = subprocess.run(
        [sys.executable, "-m", module, str(folder), str(files)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    figures: Mapping[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def measure(folder: Path, files: int) -> Mapping[str, float]:
    """Take all files to a commit, in processes of this machine."""
    data = folder / "data"
    config = icefloe.RepositoryConfig.default()
    store = icefloe.local_filesystem_store(str(data))
    config.set_virtual_chunk_container(icefloe.VirtualChunkContainer(f"{data.as_uri()}/", store))
    storage = icefloe.local_filesystem_storage(str(folder / "repository"))
    repo = icefloe.Repository.create(storage, config)
    with LocalEngine(CORES) as engine, watched() as peaks:
        began = time.perf_counter()
        report = virtualize(engine, repo, Archive(data, files).pattern, CombineOptions(("time",)))
        seconds = time.perf_counter() - began
    assert report.scan.used == files, report
    stages = {f"stage {name}": seconds for name, seconds in report.stages.items()}
    return {"seconds": seconds, "per file": seconds / files, **stages, **peaks.figures()}


_TEXT: Final = f"{_FILES} netCDF files to a commit without Spark, {CORES} cores"

GROUPS: Final = {
    "few": Group(
        _few,
        (Row("seconds", f"{_FEW} netCDF files to a commit, start included", limit=1.5),),
    ),
    "local": Group(
        _archive,
        (
            Row("seconds", f"{_TEXT}, against a pool", limit=1.0, theirs=("parallel",)),
            Row("seconds", f"{_TEXT}, against one process"),
            Row(
                f"{DRIVER} rss",
                "peak memory of the driver, against a pool",
                unit="bytes",
                theirs=("parallel rss",),
            ),
            Row(f"{WORKER} rss", "peak memory of a process of the pool", unit="bytes"),
        ),
        rounds=2,
    ),
}

if __name__ == "__main__":
    print(json.dumps(measure(Path(sys.argv[1]), int(sys.argv[2]))))
