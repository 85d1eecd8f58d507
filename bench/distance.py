"""Reading from a store that is far away.

    python -m bench distance [--delay MS] [--rounds N] [--row ROW]

SeaweedFS behind a proxy that delays each request. Both sides read the same repository through
xarray, turn and turn about, in processes of their own; the best of all rounds counts. The reference
reads with Zarr's defaults, and with 128 chunks at a time. The second table has the processor time
of the same reads, on which other programs of the machine have less influence.
"""

import argparse
import importlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import h5py
import numpy as np
import obstore
import xarray as xr
import zarr
from obstore.store import S3Store
from rich.console import Console
from rich.table import Table
from zarr.codecs.numcodecs import Shuffle, Zlib

import icefloe
from bench.engine_location import Location
from bench.measure import environment
from tests.support.distance import far_away
from tests.support.servers import seaweedfs

SMALL, LARGE, POINTS, SHOW = "small", "large", "points", "show"
NETCDF, STEPS = "netcdf", "steps"
SHARDS, SHARD_POINTS, SHARD_BOX = "shards", "shard-points", "shard-box"
ROWS: Final = {
    SMALL: "1,500 chunks of 100 KB, zstd, whole array",
    LARGE: "48 chunks of 4 MB, zstd, whole array",
    POINTS: "100 random points of a 3-D array",
    SHOW: "open 30 variables with 6 coordinates, and show them",
    NETCDF: "400 virtual chunks of a netCDF file, zlib and shuffle",
    STEPS: "a loop over 60 steps of the time",
    SHARDS: "64 shards of 16 chunks of 100 KB, zstd, whole array",
    SHARD_POINTS: "100 random points of these shards",
    SHARD_BOX: "4 chunks of each of these shards",
}
GOALS: Final[dict[int, dict[str, tuple[float | None, float | None]]]] = {
    0: {SMALL: (0.7, 0.7), LARGE: (0.7, None)},
    5: {},
    20: {
        SMALL: (0.22, 0.75),
        LARGE: (0.7, None),
        POINTS: (0.3, None),
        SHOW: (0.6, None),
        NETCDF: (0.3, None),
    },
}
"""For a delay and a row: ratios to the reference with its defaults, and with 128 chunks at once."""
SIDES: Final = (("icefloe", 0), ("icechunk", 0), ("icechunk", 128))

type Side = tuple[str, int]
type Figures = dict[str, list[float]]
"""For a row: seconds, and seconds of the processor."""
type Goals = dict[str, tuple[float | None, float | None]]


def main(arguments: list[str]) -> None:
    """Measure, and print the figures with what is asked of them."""
    parser = argparse.ArgumentParser(prog="python -m bench distance")
    parser.add_argument("--delay", type=int, action="append", help="in milliseconds")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--row", choices=ROWS, action="append", help="all rows, if none is given")
    options = parser.parse_args(arguments)
    rows: Sequence[str] = options.row or list(ROWS)
    console = Console()
    with seaweedfs() as endpoint:
        _create(Location.on(endpoint, "distance"), rows)
        for delay in options.delay or sorted(GOALS):
            with far_away(endpoint.url, delay / 1000) as url:
                location = Location.on(endpoint, "distance", url)
                best: dict[Side, Figures] = {side: {} for side in SIDES}
                for _ in range(options.rounds):
                    for side in SIDES:
                        for row, figures in _run(*side, location, rows).items():
                            known = best[side].get(row, figures)
                            best[side][row] = [*map(min, figures, known)]
            console.print(_table(f"{delay} ms for a request", best, 0, GOALS.get(delay, {})))
            console.print(_table(f"{delay} ms, processor time", best, 1, {}))


def _table(title: str, best: dict[Side, Figures], column: int, all_goals: Goals) -> Table:
    table = Table("work", "ours", "icechunk", "ratio", "with 128", "ratio", title=title)
    ours, *others = (
        {row: figures[column] for row, figures in best[side].items()} for side in SIDES
    )
    for row in ours:
        cells = [ROWS[row], f"{ours[row] * 1e3:.0f} ms"]
        for other, goal in zip(others, all_goals.get(row, (None, None)), strict=True):
            ratio = ours[row] / other[row]
            shown = f"{ratio:.2f}x"
            if goal is not None:
                shown = f"[{'green' if ratio <= goal else 'red'}]{shown}[/] (≤ {goal:g})"
            cells += [f"{other[row] * 1e3:.0f} ms", shown]
        table.add_row(*cells)
    return table


def _create(location: Location, rows: Sequence[str]) -> None:
    repository = location.create(icefloe)
    random = np.random.default_rng(0)
    with repository.transaction("main", message="arrays of all kinds") as store:
        root = zarr.create_group(store)
        for name, count, side in ((SMALL, 1_500, 160), (LARGE, 48, 1_024)):
            if {SMALL: {SMALL, POINTS, STEPS}, LARGE: {LARGE}}[name].isdisjoint(rows):
                continue
            values = random.integers(0, 2_000, (count, side, side)).astype("f4")
            root.create_group(name).create_array(
                "values",
                shape=values.shape,
                chunks=(1, side, side),
                dtype="f4",
                dimension_names=("time", "y", "x"),
            )[:] = values
        if not {SHARDS, SHARD_POINTS, SHARD_BOX}.isdisjoint(rows):
            values = random.integers(0, 2_000, (1_024, 160, 160)).astype("f4")
            root.create_group(SHARDS).create_array(
                "values",
                shape=values.shape,
                chunks=(1, 160, 160),
                shards=(16, 160, 160),
                dtype="f4",
                dimension_names=("time", "y", "x"),
            )[:] = values
        variables = root.create_group(SHOW)
        for number in range(6):
            data = np.arange(500.0)
            name = f"c{number}"
            variables.create_array(name, data=data, chunks=(250,), dimension_names=(name,))
        for number in range(30):
            names = (f"c{number % 6}", f"c{(number + 1) % 6}")
            variables.create_array(
                f"v{number}", shape=(500, 500), chunks=(500, 500), dtype="f4", dimension_names=names
            )[:] = number
    virtual = location.below(NETCDF).create(icefloe, config=_config(icefloe, location))
    with virtual.transaction("main", message="a netCDF file") as store:
        _virtualise(location, store)


def _virtualise(location: Location, store: Any) -> None:
    """Upload a netCDF file, and refer to its chunks."""
    values = np.random.default_rng(2).integers(0, 2_000, (400, 160, 160)).astype("f4")
    encoding = {"zlib": True, "shuffle": True, "complevel": 1, "chunksizes": (1, 160, 160)}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "values.nc"
        dataset = xr.Dataset({"values": (("time", "y", "x"), values)})
        dataset.to_netcdf(path, engine="h5netcdf", encoding={"values": encoding})
        with h5py.File(path) as file:
            stored = file["values"].id
            infos = [stored.get_chunk_info(number) for number in range(stored.get_num_chunks())]
        obstore.put(_bucket(location), f"{location.path}/files/values.nc", path)
    zarr.create_array(
        store,
        name=f"{NETCDF}/values",
        shape=values.shape,
        chunks=(1, 160, 160),
        dtype="f4",
        compressors=[Shuffle(elementsize=4), Zlib(level=1)],
        dimension_names=("time", "y", "x"),
    )
    infos.sort(key=lambda info: info.chunk_offset)
    store.set_virtual_refs_arr(
        f"{NETCDF}/values",
        (len(infos), 1, 1),
        [f"{_prefix(location)}values.nc"] * len(infos),
        np.array([info.byte_offset for info in infos], np.uint64),
        np.array([info.size for info in infos], np.uint64),
    )


def _bucket(location: Location) -> S3Store:
    return S3Store(
        location.bucket,
        endpoint=location.url,
        region="us-east-1",
        access_key_id=location.access_key_id,
        secret_access_key=location.secret_access_key,
        client_options={"allow_http": True},
    )


def _prefix(location: Location) -> str:
    return f"s3://{location.bucket}/{location.path}/files/"


def _config(lib: ModuleType, location: Location) -> Any:
    config = lib.RepositoryConfig.default()
    store = lib.s3_store(
        region="us-east-1",
        endpoint_url=location.url,
        allow_http=True,
        s3_compatible=True,
        force_path_style=True,
    )
    config.set_virtual_chunk_container(lib.VirtualChunkContainer(_prefix(location), store))
    return config


def _run(side: str, concurrency: int, location: Location, rows: Sequence[str]) -> Figures:
    done = subprocess.run(
        [sys.executable, "-m", __name__, side, str(concurrency), location.dumps(), *rows],
        capture_output=True,
        text=True,
        check=False,
        env=environment(),
    )
    if done.returncode != 0:
        raise RuntimeError(f"{side} failed:\n{done.stderr[-1500:]}")
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    return figures


def _timed(work: Callable[[], object]) -> list[float]:
    started, processor = time.perf_counter(), time.process_time()
    work()
    return [time.perf_counter() - started, time.process_time() - processor]


def _work(side: str, concurrency: int, location: Location, rows: Sequence[str]) -> Figures:
    lib = importlib.import_module(side)
    if concurrency:
        zarr.config.set({"async.concurrency": concurrency})
    keys = lib.s3_static_credentials(
        access_key_id=location.access_key_id, secret_access_key=location.secret_access_key
    )
    access = lib.containers_credentials({_prefix(location): keys})

    def opened(group: str) -> xr.Dataset:
        if group == NETCDF:
            repository = lib.Repository.open(
                location.below(NETCDF).storage(lib),
                config=_config(lib, location),
                authorize_virtual_chunk_access=access,
            )
        else:
            repository = location.open(lib)
        session: Any = repository.readonly_session("main")
        if side == "icefloe":
            return xr.open_dataset(session.store, engine="icefloe", group=group)
        dataset: xr.Dataset = xr.open_zarr(
            session.store, group=group, consolidated=False, chunks=None
        )
        return dataset

    # What is imported once in a process does not count: the readers of all formats, and parts of
    # ours that are imported when they are first used.
    xr.backends.list_engines()
    if side == "icefloe":
        importlib.import_module("icefloe.storage.object_store")
        importlib.import_module("icefloe.storage.clients")

    def points(group: str, count: int) -> Callable[[], object]:
        values = opened(group)["values"]
        places = np.random.default_rng(1).integers(0, [count, 160, 160], (100, 3)).T
        indices = {
            name: xr.DataArray(numbers, dims="point")
            for name, numbers in zip(values.dims, places, strict=True)
        }
        return lambda: values.isel(indices).load()

    def steps() -> Callable[[], object]:
        values = opened(SMALL)["values"]
        return lambda: [values[step].load() for step in range(60)]

    def box() -> Callable[[], object]:
        values = opened(SHARDS)["values"]
        return values[::4].load

    prepared: dict[str, Callable[[], Callable[[], object]]] = {
        SHOW: lambda: lambda: str(opened(SHOW)),
        POINTS: lambda: points(SMALL, 1_500),
        SMALL: lambda: opened(SMALL)["values"].load,
        LARGE: lambda: opened(LARGE)["values"].load,
        NETCDF: lambda: opened(NETCDF)["values"].load,
        STEPS: steps,
        SHARDS: lambda: opened(SHARDS)["values"].load,
        SHARD_POINTS: lambda: points(SHARDS, 1_024),
        SHARD_BOX: box,
    }
    return {row: _timed(work()) for row, work in prepared.items() if row in rows}


if __name__ == "__main__":
    print(
        json.dumps(_work(sys.argv[1], int(sys.argv[2]), Location.loads(sys.argv[3]), sys.argv[4:]))
    )
