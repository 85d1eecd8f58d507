"""Copies on Spark against Zarr in one process, region by region as our plan has them.

Both copy the same array from one repository to another on local disk. Spark's start does not count,
what workers import does.
"""

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import numpy as np
import zarr

import icefloe
from bench.engine_location import Location
from bench.engine_rows import Group, Row, Scale
from bench.pipeline_processes import WORKER, session, watched
from icefloe.pipeline.copying.copies import find_arrays
from icefloe.pipeline.copying.layouts import MEMORY_PER_TASK, LayoutOptions, Limits, plan_regions
from icefloe.pipeline.copying.origins import RepositorySource
from icefloe.spark import rechunk

_STEPS: Final = 1200
_FEW_STEPS: Final = 96
_GRID: Final = (360, 720)
_CHUNKS: Final[dict[str, int]] = {"time": 48, "lat": 90, "lon": 180}
_LEAST_SPEED: Final = 0.6
_LEAST_SCALING: Final = 1.7


def _native(_: ModuleType, location: Location, scale: Scale) -> Mapping[str, float]:
    """Write the source, then measure one core, two cores and Zarr alone, each by itself."""
    folder, steps = Path(location.path).absolute(), scale.of(_STEPS, _FEW_STEPS)
    _write_source(folder, steps)
    seconds = {how: _measured(folder, how) for how in ("zarr", "1", "2")}
    one, two, alone = (seconds[how]["seconds"] for how in ("1", "2", "zarr"))
    total = 4 * steps * _GRID[0] * _GRID[1]
    return {
        "one core": one,
        "two cores": two,
        "zarr": alone,
        "bytes per second": total / one,
        # Limits are upper ones, so ratios are of time.
        "against zarr": one / alone,
        "scaling": two / one,
        "worker rss": seconds["1"][f"{WORKER} rss"],
    }


def _write_source(folder: Path, steps: int) -> None:
    repo = icefloe.Repository.create(icefloe.local_filesystem_storage(str(folder / "source")))
    with repo.transaction("main", message="fields") as store:
        field = zarr.create_array(
            store,
            name="field",
            shape=(steps, *_GRID),
            chunks=(8, *_GRID),
            dtype="f4",
            dimension_names=["time", "lat", "lon"],
        )
        noise = np.random.default_rng(1).normal(size=(8, *_GRID)).astype("f4").round(2)
        for first in range(0, steps, 8):
            field[first : first + 8] = noise + first


def _measured(folder: Path, how: str) -> Mapping[str, float]:
    done = subprocess.run(
        [sys.executable, "-m", "bench.pipeline_native", str(folder), how],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    figures: Mapping[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def measure(folder: Path, how: str) -> Mapping[str, float]:
    """Copy everything, with Zarr alone or on this many cores."""
    source = icefloe.Repository.open(icefloe.local_filesystem_storage(str(folder / "source")))
    storage = icefloe.local_filesystem_storage(str(folder / f"copy-{how}"))
    target = icefloe.Repository.create(storage)
    if how == "zarr":
        began = time.perf_counter()
        _copy_alone(source, target)
        return {"seconds": time.perf_counter() - began}
    with session(int(how)) as spark, watched() as peaks:
        began = time.perf_counter()
        rechunk(spark, target, source, chunks=_CHUNKS)
        seconds = time.perf_counter() - began
    return {"seconds": seconds, **peaks.figures()}


def _copy_alone(source: icefloe.Repository, target: icefloe.Repository) -> None:
    """Copy in one process, the same regions with the same codecs, as any user of Zarr would."""
    layout = LayoutOptions(_CHUNKS)
    [array] = find_arrays(RepositorySource(source.readonly_session("main")), layout).arrays
    plan = plan_regions(array.shape, Limits(MEMORY_PER_TASK, cores=1))
    given: Any = array.source
    with target.transaction("main", message="copied") as store:
        made = zarr.create_array(
            store,
            name="field",
            shape=given.shape,
            chunks=array.layout.chunks,
            dtype=given.dtype,
            dimension_names=["time", "lat", "lon"],
        )
        for number in range(len(plan)):
            box = plan.box(number)
            made[box] = given[box]


_SIZE: Final = f"{4 * _STEPS * _GRID[0] * _GRID[1] / 1e9:.1f} GB"

GROUPS: Final = {
    "native": Group(
        _native,
        (
            Row("one core", f"rechunk {_SIZE} on one core"),
            Row("zarr", "the same regions with Zarr, in one process"),
            Row(
                "against zarr",
                "time on one core to that of Zarr",
                unit="ratio",
                at_most=1 / _LEAST_SPEED,
            ),
            Row("two cores", f"rechunk {_SIZE} on two cores"),
            Row(
                "scaling",
                "time on two cores to that on one",
                unit="ratio",
                at_most=1 / _LEAST_SCALING,
            ),
            Row("worker rss", "peak memory of a worker", unit="bytes"),
        ),
        rounds=2,
        ours_only=True,
    ),
}

if __name__ == "__main__":
    print(json.dumps(measure(Path(sys.argv[1]), sys.argv[2])))
