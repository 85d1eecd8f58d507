"""Reading and writing chunks, small and large, with and without codecs."""

import asyncio
import importlib
from collections.abc import Mapping
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any, Final

import numpy as np
import zarr
from zarr.codecs import ZstdCodec
from zarr.core.buffer import default_buffer_prototype

from bench.engine_location import BATCHED, FUSED, SELECTIONS, Location, best_of, seconds_of
from bench.engine_rows import Group, Row, Scale
from bench.measure import measured

SMALL_ITEMS: Final = 1024  # of four bytes each
LARGE_ITEMS: Final = 1 << 20
RANDOM_READS: Final = 500
_PIPELINES: Final = {FUSED: "fused", SELECTIONS: "selection"}


def _data(count: int, items: int) -> Any:
    rng = np.random.default_rng(1)
    # Slow waves with noise: neither empty nor incompressible.
    waves = np.sin(np.arange(count * items) / 5000) * 100
    return np.round(waves + rng.normal(size=count * items), 2).astype("f4")


def _write(session: Any, data: Any, items: int, compressors: Any) -> None:
    array = zarr.create_array(
        session.store,
        name="a",
        shape=data.shape,
        chunks=(items,),
        dtype="f4",
        compressors=compressors,
    )
    array[:] = data
    session.commit("write")


def _using(pipeline: str) -> AbstractContextManager[object]:
    if pipeline == SELECTIONS:
        importlib.import_module(pipeline.rpartition(".")[0])  # where it registers itself
    context: AbstractContextManager[object] = zarr.config.set({"codec_pipeline.path": pipeline})
    return context


def _read(lib: ModuleType, location: Location, pipeline: str, data: Any) -> float:
    with _using(pipeline):
        session = location.open(lib).readonly_session("main")
        array = zarr.open_array(session.store, path="a", mode="r")
        found = []
        seconds = seconds_of(lambda: found.append(array[:]))
        assert np.array_equal(found[0], data)
        return seconds


def _write_and_read(
    lib: ModuleType, location: Location, data: Any, items: int, compressors: Any = None
) -> dict[str, float]:
    session = location.create(lib).writable_session("main")
    return {
        "write": seconds_of(lambda: _write(session, data, items, compressors)),
        "read": _read(lib, location, BATCHED, data),
        "read fused": _read(lib, location, FUSED, data),
    }


def small(lib: ModuleType, location: Location, scale: Scale) -> Mapping[str, float]:
    data = _data(scale.of(2000, 200), SMALL_ITEMS)
    figures = _write_and_read(lib, location.below("plain"), data, SMALL_ITEMS)
    if lib.__name__ == "icefloe":
        figures["read selection"] = _read(lib, location.below("plain"), SELECTIONS, data)
        with _using(SELECTIONS):
            session = location.below("selection").create(lib).writable_session("main")
            figures["write selection"] = seconds_of(
                lambda: _write(session, data, SMALL_ITEMS, None)
            )
    # Zarr's threads hand the interpreter to each other at every call to the system.
    with zarr.config.set({"codec_pipeline.max_workers": 1}):
        figures["read one worker"] = _read(lib, location.below("plain"), FUSED, data)
    # The batched pipeline alone takes longer than the packing of chunks may.
    with zarr.config.set({"codec_pipeline.path": FUSED}):
        fused = location.below("fused").create(lib).writable_session("main")
        figures["write fused"] = seconds_of(lambda: _write(fused, data, SMALL_ITEMS, None))
        if lib.__name__ == "icefloe":
            packed = location.below("packed")
            session = packed.create(lib).writable_session("main", packing=lib.PackingOptions())
            figures["write packed"] = seconds_of(lambda: _write(session, data, SMALL_ITEMS, None))
            figures["read packed"] = _read(lib, packed, FUSED, data)
            with zarr.config.set({"codec_pipeline.max_workers": 1}):
                session = (
                    location.below("one")
                    .create(lib)
                    .writable_session("main", packing=lib.PackingOptions())
                )
                figures["write packed one worker"] = seconds_of(
                    lambda: _write(session, data, SMALL_ITEMS, None)
                )
            figures |= _zarr_alone(data)
    return figures


def _zarr_alone(data: Any) -> dict[str, float]:
    """Measure zarr itself with a store that costs nothing: the floor for every small chunk."""
    figures = {}
    for name, pipeline in (("batched", BATCHED), ("fused", FUSED)):
        with zarr.config.set({"codec_pipeline.path": pipeline}):
            array: Any = zarr.create_array(
                zarr.storage.MemoryStore(),
                shape=data.shape,
                chunks=(SMALL_ITEMS,),
                dtype="f4",
                compressors=None,
            )
            figures[f"alone write {name}"] = seconds_of(lambda: array.__setitem__(..., data))  # noqa: B023
            figures[f"alone read {name}"] = seconds_of(lambda: array[:])  # noqa: B023
    return figures


def huge(lib: ModuleType, location: Location, scale: Scale) -> Mapping[str, float]:
    """Measure the memory that one chunk takes beside the values in the hands of the user.

    A read makes these values, a write is given them; they cannot be compressed.
    """
    size = scale.of(1 << 30, 1 << 24)
    data = np.random.default_rng(1).integers(0, 256, size, dtype=np.uint8)
    figures = {}
    for name, codec in (("plain", None), ("zstd", ZstdCodec())):
        place = location.below(name)
        session = place.create(lib).writable_session("main")
        array: Any = zarr.create_array(
            session.store, name="a", shape=(size,), chunks=(size,), dtype="u1", compressors=codec
        )

        def write(array: Any = array, session: Any = session) -> int:
            array[:] = data
            session.commit("write")
            return size

        figures[f"{name} write"] = measured(write).rss_growth_bytes
        for pipeline in (FUSED, SELECTIONS) if lib.__name__ == "icefloe" else (FUSED,):
            with _using(pipeline):
                store = place.open(lib).readonly_session("main").store
                reader: Any = zarr.open_array(store, path="a", mode="r")
                arrays: list[Any] = []

                def read(reader: Any = reader, arrays: list[Any] = arrays) -> int:
                    arrays.append(reader[:])
                    return size

                peak = measured(read).rss_growth_bytes
                assert np.array_equal(arrays[0], data)
            figures[f"{name} read {_PIPELINES[pipeline]}"] = peak - size
    return figures


def large(lib: ModuleType, location: Location, scale: Scale) -> Mapping[str, float]:
    data = _data(scale.of(48, 6), LARGE_ITEMS)
    plain = _write_and_read(lib, location.below("plain"), data, LARGE_ITEMS)
    if not location.is_local:
        return plain
    zstd = _write_and_read(lib, location.below("zstd"), data, LARGE_ITEMS, ZstdCodec())
    return plain | {f"zstd {name}": value for name, value in zstd.items()}


def lookups(lib: ModuleType, location: Location, scale: Scale) -> Mapping[str, float]:
    """Single chunks at random, through zarr and straight from the store."""
    count = scale.of(2000, 200)
    data = _data(count, SMALL_ITEMS)
    _write(location.create(lib).writable_session("main"), data, SMALL_ITEMS, None)
    wanted = np.random.default_rng(7).integers(count, size=RANDOM_READS).tolist()
    prototype = default_buffer_prototype()

    def through_zarr(pipeline: str) -> float:
        with zarr.config.set({"codec_pipeline.path": pipeline}):
            session = location.open(lib).readonly_session("main")
            array: Any = zarr.open_array(session.store, path="a", mode="r")

            def work() -> None:
                for number in wanted:
                    assert array[number * SMALL_ITEMS] == data[number * SMALL_ITEMS]

            return seconds_of(work)

    async def from_store() -> None:
        store = location.open(lib).readonly_session("main").store
        for number in wanted:
            assert await store.get(f"a/c/{number}", prototype) is not None

    return {
        "zarr": through_zarr(BATCHED),
        "zarr fused": through_zarr(FUSED),
        "store.get": seconds_of(lambda: asyncio.run(from_store())),
    }


def first_chunk(lib: ModuleType, location: Location, _: Scale) -> Mapping[str, float]:
    """Open a repository and read the first chunk of a coordinate."""
    session = location.create(lib).writable_session("main")
    root = zarr.group(session.store)
    for name in ("time", "lat", "lon"):
        root.create_array(name, shape=(1000,), chunks=(1000,), dtype="f8")[:] = np.arange(1000)
    field = root.create_array("field", shape=(100, 100), chunks=(10, 10), dtype="f4")
    field[:] = np.random.default_rng(1).normal(size=(100, 100))
    session.commit("write")

    def work() -> None:
        store = location.open(lib).readonly_session("main").store
        array: Any = zarr.open_array(store, path="time", mode="r")
        assert array[:][1] == 1

    return {"open": best_of(5, work)}


def _huge_rows(where: str) -> tuple[Row, ...]:
    rows = [
        Row(f"{codec} {work}", f"{where}one chunk of 1 GiB, {codec}, {text}: memory", unit="bytes")
        for codec in ("plain", "zstd")
        for work, text in (("write", "write"), ("read fused", "read, fused"))
    ]
    return (
        *rows,
        *(
            Row(
                f"{codec} read selection",
                f"{where}one chunk of 1 GiB, {codec}, read, our pipeline: memory",
                1.0,
                unit="bytes",
                theirs=(f"{codec} read fused",),
            )
            for codec in ("plain", "zstd")
        ),
    )


_SMALL_READ: Final = ("read", "read fused", "read one worker")
_SMALL_WRITE: Final = ("write", "write fused")
_LARGE_READ: Final = ("read", "read fused")
_ZARR: Final = ("zarr", "zarr fused")

GROUPS: Final = {
    "small": Group(
        small,
        (
            Row("read fused", "4 KB chunks, read, fused", 0.35, theirs=_SMALL_READ),
            Row("read one worker", "  with one worker of zarr's", 0.35, theirs=_SMALL_READ),
            Row("read selection", "4 KB chunks, read, our pipeline", 0.35, theirs=_SMALL_READ),
            Row("read", "4 KB chunks, read, batched", 0.5, theirs=_SMALL_READ),
            Row("write", "4 KB chunks, write, batched", 1.0, theirs=_SMALL_WRITE),
            Row("write fused", "4 KB chunks, write, fused", 1.0, theirs=_SMALL_WRITE),
            Row("write packed", "4 KB chunks, write, packed, fused", 0.2, theirs=_SMALL_WRITE),
            Row("write packed one worker", "  with one worker", 0.2, theirs=_SMALL_WRITE),
            Row("read packed", "4 KB chunks, read of packs, fused", None, theirs=_SMALL_READ),
            Row("alone read fused", "  zarr alone (memory), read, fused", None, theirs=_SMALL_READ),
            Row("alone read batched", "  zarr alone, read, batched", None, theirs=_SMALL_READ),
            Row("alone write fused", "  zarr alone, write, fused", None, theirs=_SMALL_WRITE),
        ),
    ),
    "small-s3": Group(
        small,
        (
            Row("read fused", "S3, 4 KB chunks, read, fused", 0.95, theirs=_SMALL_READ),
            Row("read selection", "S3, 4 KB chunks, read, our pipeline", None, theirs=_SMALL_READ),
            Row("read", "S3, 4 KB chunks, read, batched", 0.95, theirs=_SMALL_READ),
            Row(
                "write selection", "S3, 4 KB chunks, write, our pipeline", 0.85, theirs=_SMALL_WRITE
            ),
            Row("write", "S3, 4 KB chunks, write, batched", 0.85, theirs=_SMALL_WRITE),
            Row("write fused", "S3, 4 KB chunks, write, fused", None, theirs=_SMALL_WRITE),
            Row("write packed", "S3, 4 KB chunks, write, packed", 0.15, theirs=_SMALL_WRITE),
            Row("read packed", "S3, 4 KB chunks, read of packs", None, theirs=_SMALL_READ),
        ),
        on_s3=True,
    ),
    "large": Group(
        large,
        (
            Row("read fused", "4 MB chunks, read, fused", 0.12, theirs=_LARGE_READ),
            Row("read", "4 MB chunks, read, batched", 0.12, theirs=_LARGE_READ),
            Row("write", "4 MB chunks, write", 1.0),
            Row(
                "zstd read fused",
                "4 MB chunks, zstd, read, fused",
                0.7,
                theirs=("zstd read", "zstd read fused"),
            ),
            Row(
                "zstd read",
                "4 MB chunks, zstd, read, batched",
                0.7,
                theirs=("zstd read", "zstd read fused"),
            ),
            Row("zstd write", "4 MB chunks, zstd, write", 1.0),
        ),
    ),
    "huge": Group(huge, _huge_rows(""), rounds=1),
    "huge-s3": Group(huge, _huge_rows("S3, "), on_s3=True, rounds=1),
    "large-s3": Group(
        large,
        (
            Row("read fused", "S3, 4 MB chunks, read, fused", 1.05, theirs=_LARGE_READ),
            Row("read", "S3, 4 MB chunks, read, batched", 1.05, theirs=_LARGE_READ),
            Row("write", "S3, 4 MB chunks, write", 1.05),
        ),
        on_s3=True,
    ),
    "lookups": Group(
        lookups,
        (
            Row("zarr", "500 random chunks, zarr, batched", 0.55, theirs=("zarr", "zarr fused")),
            Row(
                "zarr fused", "500 random chunks, zarr, fused", 0.55, theirs=("zarr", "zarr fused")
            ),
            Row("store.get", "500 random chunks, store.get", 0.2),
        ),
    ),
    "first-chunk": Group(first_chunk, (Row("open", "open + first coordinate chunk", 0.8),)),
    "first-chunk-s3": Group(
        first_chunk, (Row("open", "S3, open + first coordinate chunk", 0.8),), on_s3=True
    ),
}
