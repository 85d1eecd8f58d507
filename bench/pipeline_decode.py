"""A packed archive, unpacked into a repository, against zarr in one process for each core.

Files are packed differently, as a climate data store gives them. The peer knows everything before:
which regions there are, how each file is packed. It reads with h5py, unpacks with NumPy, and writes
plain Zarr. We find that out, compare values with another reader, and commit. Both start their
processes.
"""

import json
import multiprocessing
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import h5py
import numpy as np
import zarr

import icefloe
from bench.engine_location import Location
from bench.engine_rows import Group, Row, Scale
from bench.pipeline_processes import CORES, cpu_seconds
from icefloe.pipeline import CombineOptions, CopyOptions, LocalEngine
from icefloe.pipeline.running.jobs import copy_sources

_FILES: Final = 12
_FEW_FILES: Final = 3
_STEPS: Final = 48
_GRID: Final = (360, 720)
_CHUNKS: Final[dict[str, int]] = {"time": 48, "lat": 90, "lon": 180}
_MISSING: Final = -32767
_LEAST_SPEED: Final = 0.6


def _decode(_: ModuleType, location: Location, scale: Scale) -> Mapping[str, float]:
    """Write the files, then measure both sides, each in a process of its own."""
    folder, files = Path(location.path).absolute(), scale.of(_FILES, _FEW_FILES)
    _write_files(folder / "data", files)
    figures = {how: _measured(folder, how) for how in ("zarr", "ours")}
    ours, alone = figures["ours"], figures["zarr"]
    return {
        "seconds": ours["seconds"],
        "zarr": alone["seconds"],
        "against zarr": ours["seconds"] / alone["seconds"],
        "cpu against zarr": ours["cpu"] / alone["cpu"],
    }


def _write_files(folder: Path, files: int) -> None:
    folder.mkdir(parents=True)
    rng = np.random.default_rng(1)
    noise = rng.normal(size=(8, *_GRID)).cumsum(axis=2).astype("f4")
    for number in range(files):
        values = np.rint(noise * (40 + number)).clip(-32000, 32000).astype("i2")
        values[:, ::50] = _MISSING
        with h5py.File(folder / f"{number:03}.nc", "w") as file:
            steps = np.arange(number * _STEPS, (number + 1) * _STEPS)
            for name, along in (
                ("time", steps),
                ("lat", np.linspace(-90, 90, _GRID[0])),
                ("lon", np.linspace(0, 360, _GRID[1], endpoint=False)),
            ):
                file.create_dataset(name, data=along).make_scale(name)
            file["time"].attrs["units"] = "hours since 2000-01-01"
            field = file.create_dataset(
                "field",
                (_STEPS, *_GRID),
                "i2",
                chunks=(8, *_GRID),
                compression=1,
                shuffle=True,
                fillvalue=_MISSING,
            )
            field.attrs["scale_factor"] = np.float32(1 / (40 + number))
            field.attrs["add_offset"] = np.float32(270 + number)
            field.attrs["_FillValue"] = np.int16(_MISSING)
            for first in range(0, _STEPS, 8):
                field[first : first + 8] = values
            for axis, name in enumerate(_CHUNKS):
                field.dims[axis].attach_scale(file[name])


def _measured(folder: Path, how: str) -> Mapping[str, float]:
    done = subprocess.run(
        [sys.executable, "-m", "bench.pipeline_decode", str(folder), how],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    figures: Mapping[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def measure(folder: Path, how: str) -> Mapping[str, float]:
    """Copy everything, with Zarr or with us."""
    cpu, began = cpu_seconds(), time.perf_counter()
    if how == "zarr":
        _copy_with_zarr(folder)
    else:
        _copy_with_us(folder)
    seconds, cpu = time.perf_counter() - began, cpu_seconds() - cpu
    return {"seconds": seconds, "cpu": cpu}


def _copy_with_us(folder: Path) -> None:
    storage = icefloe.local_filesystem_storage(str(folder / "ours"))
    repository = icefloe.Repository.create(storage)
    with LocalEngine(CORES) as engine:
        report = copy_sources(
            engine,
            repository,
            f"{folder}/data/*.nc",
            CombineOptions(("time",)),
            CopyOptions.of(_CHUNKS, decode=True),
        )
    assert report.snapshot is not None


def _copy_with_zarr(folder: Path) -> None:
    files = sorted((folder / "data").glob("*.nc"))
    made = zarr.create_array(
        str(folder / "plain"),
        shape=(len(files) * _STEPS, *_GRID),
        chunks=tuple(_CHUNKS.values()),
        dtype="f4",
        dimension_names=list(_CHUNKS),
    )
    assert made.ndim == len(_CHUNKS)
    with multiprocessing.get_context("spawn").Pool(CORES) as pool:
        pool.starmap(_copy_file, [(str(folder), number) for number in range(len(files))])


def _copy_file(folder: str, number: int) -> None:
    target: Any = zarr.open_array(f"{folder}/plain", mode="r+")
    with h5py.File(f"{folder}/data/{number:03}.nc") as file:
        stored = file["field"][...]
        attributes = file["field"].attrs
        values = stored.astype("f4")
        values[stored == attributes["_FillValue"]] = np.nan
        values *= attributes["scale_factor"]
        values += attributes["add_offset"]
    target[number * _STEPS : (number + 1) * _STEPS] = values


_SIZE: Final = f"{2 * _FILES * _STEPS * _GRID[0] * _GRID[1] / 1e6:.0f} MB of packed numbers"

GROUPS: Final = {
    "decode": Group(
        _decode,
        (
            Row("seconds", f"{_SIZE} unpacked into a repository, {CORES} cores"),
            Row("zarr", "the same with Zarr, in a process for each core"),
            Row(
                "against zarr",
                "time to that of Zarr",
                unit="ratio",
                at_most=1 / _LEAST_SPEED,
            ),
            Row("cpu against zarr", "processor time to that of Zarr", unit="ratio"),
        ),
        rounds=3,
        ours_only=True,
    ),
}

if __name__ == "__main__":
    print(json.dumps(measure(Path(sys.argv[1]), sys.argv[2])))
