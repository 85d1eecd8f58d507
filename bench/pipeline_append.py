"""Ten files appended to ten million references: what it costs beyond parsing the ten.

The references there are made up; the files are real, and fit. Before it counts, files are appended
to a small repository, so that everything is imported. Processor time is that of the driver, of
Java and of all workers.
"""

import time
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import h5py
import numpy as np

import icefloe
from bench.engine_location import Location
from bench.engine_rows import Group, Row, Scale
from bench.pipeline_processes import DRIVER, cpu_seconds, session, watched
from bench.synthetic_archive import MadeUp, commit_made_up
from icefloe.pipeline.files.options import ParseOptions
from icefloe.pipeline.files.parsing import parse_file
from icefloe.pipeline.running.job import Target
from icefloe.spark import append

_REFERENCES: Final = 10_000_000
_PER_FILE: Final = 1_000
_NEW: Final = 10
_MOST_SECONDS: Final = 3.0


def _append(_: ModuleType, location: Location, scale: Scale) -> Mapping[str, float]:
    files = scale.of(_REFERENCES, _REFERENCES // 50) // _PER_FILE
    folder = Path(location.path).absolute() / "data"
    with session() as spark:
        small = _repository(spark, location.below("small"), folder, _NEW)
        first = _write(folder / "small", _NEW)
        append(spark, small, first)
        parsing = _parsing_seconds(first)
        large = _repository(spark, location.below("large"), folder, files)
        more = _write(folder / "large", files)
        cpu, began = cpu_seconds(), time.perf_counter()
        with watched() as peaks:
            report = append(spark, large, more)
        seconds, cpu = time.perf_counter() - began, cpu_seconds() - cpu
    assert report.references == _NEW * _PER_FILE, report
    return {
        "seconds": seconds,
        "cpu": cpu - parsing,
        "parsing": parsing,
        "manifests": report.manifests,
        f"{DRIVER} rss": peaks.by_kind[DRIVER],
    }


def _repository(spark: Any, location: Location, folder: Path, files: int) -> icefloe.Repository:
    load = MadeUp(files, _PER_FILE)
    config = icefloe.RepositoryConfig.default()
    there = icefloe.s3_store(region="us-east-1")
    here = icefloe.local_filesystem_store(str(folder))
    config.set_virtual_chunk_container(icefloe.VirtualChunkContainer(load.prefix, there))
    config.set_virtual_chunk_container(icefloe.VirtualChunkContainer(f"{folder.as_uri()}/", here))
    repo: icefloe.Repository = location.create(icefloe, config=config)
    commit_made_up(spark, Target(repo, "main", "", None), load, references_per_commit=10**9)
    return repo


def _write(folder: Path, first: int) -> list[str]:
    """Write files that go on where made-up ones end."""
    folder.mkdir(parents=True)
    width = 1024 * _PER_FILE
    paths = []
    for number in range(first, first + _NEW):
        paths.append(str(folder / f"{number:08d}.nc"))
        with h5py.File(paths[-1], "w") as file:
            time_axis = file.create_dataset(
                "time", data=[float(number)], chunks=(512,), maxshape=(None,)
            )
            time_axis.make_scale("time")
            value = file.create_dataset("value", (1, width), "<f4", chunks=(1, 1024))
            value[...] = np.float32(number)
            value.dims[0].attach_scale(time_axis)
            axis = file.create_dataset("x", (width,), "<f4", chunks=(1024,))
            axis.make_scale("x")
            axis.attrs["_Netcdf4Dimid"] = np.int32(1)
            value.dims[1].attach_scale(axis)
    return paths


def _parsing_seconds(paths: list[str]) -> float:
    began = time.process_time()
    for path in paths:
        parse_file(Path(path).as_uri(), ParseOptions(("time",)))
    return time.process_time() - began


GROUPS: Final = {
    "append-ten": Group(
        _append,
        (
            Row(
                "cpu",
                "append 10 files to 10M references, CPU beyond parsing",
                at_most=_MOST_SECONDS,
            ),
            Row("parsing", "parsing the 10 files, CPU"),
            Row("seconds", "the whole append, wall"),
            Row("manifests", "manifests it wrote", unit="count"),
            Row(f"{DRIVER} rss", "peak memory of the driver", unit="bytes"),
        ),
        rounds=2,
        ours_only=True,
    ),
}
