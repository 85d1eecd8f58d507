"""Many nodes: listing, creating, committing, and opening them with xarray."""

import asyncio
from collections.abc import Mapping
from types import ModuleType
from typing import Any, Final

import numpy as np
import xarray as xr
import zarr

from bench.engine_location import Location, best_of, seconds_of
from bench.engine_rows import Group, Row, Scale


def many_arrays(lib: ModuleType, location: Location, scale: Scale) -> Mapping[str, float]:
    count = scale.of(2000, 200)
    repo = location.create(lib)
    session = repo.writable_session("main")
    root = zarr.group(session.store)

    def create() -> None:
        for number in range(count):
            root.create_array(f"a{number:05d}", shape=(100,), chunks=(10,), dtype="f4")

    figures = {"create": seconds_of(create)}
    figures["commit"] = seconds_of(lambda: session.commit("create"))
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a00001")[:] = 1
    figures["touch"] = seconds_of(lambda: session.commit("touch one"))

    async def collect(names: Any) -> int:
        return len([name async for name in names])

    def listed(method: str) -> float:
        store = location.open(lib).readonly_session("main").store

        def work() -> None:
            assert asyncio.run(collect(getattr(store, method)(""))) > count

        return best_of(3, work)

    def members() -> None:
        store = location.open(lib).readonly_session("main").store
        assert len(list(zarr.open_group(store, mode="r").members())) == count

    figures["list_prefix"] = listed("list_prefix")
    figures["list_dir"] = listed("list_dir")
    figures["members"] = seconds_of(members)
    return figures


def xarray(lib: ModuleType, location: Location, scale: Scale) -> Mapping[str, float]:
    count = scale.of(100, 20)
    values = np.random.default_rng(1).normal(size=(20, 50)).astype("f4")
    dataset = xr.Dataset(
        {f"v{number}": (("x", "y"), values) for number in range(count)},
        coords={"x": np.arange(20), "y": np.arange(50)},
    )
    session = location.create(lib).writable_session("main")
    dataset.to_zarr(session.store, mode="w", consolidated=False)
    session.commit("write")

    def opened() -> Any:
        store = location.open(lib).readonly_session("main").store
        return xr.open_zarr(store, consolidated=False, chunks=None)

    def load() -> None:
        assert opened().load().identical(dataset)

    return {"open": best_of(3, opened), "load": best_of(2, load)}


GROUPS: Final = {
    "nodes": Group(
        many_arrays,
        (
            Row("list_prefix", "2,000 arrays, list_prefix", 0.1),
            Row("list_dir", "2,000 arrays, list_dir", 0.1),
            Row("members", "2,000 arrays, members", 0.8),
            Row("create", "2,000 arrays, create", 1.0),
            Row("commit", "2,000 arrays, commit", 1.0),
            Row("touch", "2,000 arrays, touch one + commit"),
        ),
    ),
    "xarray": Group(
        xarray,
        (
            Row("open", "xarray, 100 variables, open", 0.7),
            Row("load", "xarray, 100 variables, open + load"),
        ),
    ),
}
