"""Large files of ours in the hands of the reference: lookups, limits, shared strings."""

import asyncio
from pathlib import Path
from typing import Any

import icechunk as ic
import numpy as np
import pytest
import zarr
from zarr.storage import MemoryStore

from icefloe.format.chunk_table import ChunkTable, concat_tables
from icefloe.format.columns import BytesColumn
from icefloe.format.ids import ChunkId, id_rows
from icefloe.format.locations import LocationCompression
from tests.interop.observing import read_key
from tests.interop.reference import BUCKET, RAW, Place, array_at
from tests.interop.scratch import Writer

pytestmark = pytest.mark.interop

ROWS = 20_000
LENGTH = 4
UNAUTHORIZED = ("InvalidInputError", "unauthorized-virtual-chunk-container")


def nodes_for(shapes: dict[str, tuple[int, ...]]) -> dict[str, bytes]:
    """Make the metadata of arrays with one element in each chunk."""
    stored: dict[str, Any] = {}
    root = zarr.group(MemoryStore(stored))
    for path, shape in shapes.items():
        root.create_array(path, shape=shape, dtype="i4", chunks=(1,) * len(shape), compressors=None)
    return {
        "/" + key.removesuffix("zarr.json").rstrip("/"): buffer.to_bytes()
        for key, buffer in stored.items()
    }


def grid(*shape: int) -> np.ndarray[Any, np.dtype[np.uint32]]:
    return np.stack(np.unravel_index(np.arange(np.prod(shape)), shape), axis=1).astype(np.uint32)


def lengths(rows: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    return np.full(rows, LENGTH, np.uint64)


def offsets(rows: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    return (np.arange(rows) * 7 % (len(RAW) - LENGTH)).astype(np.uint64)


async def read(session: ic.Session, keys: list[str]) -> list[bytes | tuple[str, str] | None]:
    return [await read_key(session, key) for key in keys]


async def coordinates_of(session: ic.Session, path: str) -> list[tuple[int, ...]]:
    return [tuple(c) async for c in session.chunk_coordinates(path)]


def virtual_table(place: Place, coordinates: np.ndarray[Any, Any]) -> ChunkTable:
    """Use a few locations in turn, so that far blocks share them, with all kinds of checks."""
    rows = len(coordinates)
    locations = [f"{BUCKET}{number:05d}.nc" for number in range(50)]
    locations += [place.container + "raw.bin", "vcc://data/raw.bin"]
    return ChunkTable.virtual(
        coordinates,
        BytesColumn.from_strings(locations),
        offsets(rows),
        lengths(rows),
        targets=(np.arange(rows) % len(locations)).astype(np.uint32),
        etags=BytesColumn.from_strings(['"a"', '"b"']),
        etag_rows=np.where(np.arange(rows) % 52 < 50, np.arange(rows) % 3 - 1, -1).astype(np.int32),
        last_modified=np.where(np.arange(rows) % 52 == 51, 4_000_000_000, 0).astype(np.uint32),
    )


def expected_of_virtual(rows: np.ndarray[Any, Any]) -> list[bytes | tuple[str, str]]:
    places = offsets(ROWS)
    return [
        UNAUTHORIZED if row % 52 < 50 else RAW[int(places[row]) :][:LENGTH] for row in rows.tolist()
    ]


@pytest.mark.parametrize(
    "compression", [None, LocationCompression()], ids=["plain", "compressed locations"]
)
def test_random_lookups_in_a_large_manifest_of_several_arrays(
    compression: LocationCompression | None, tmp_path: Path, virtual_folder: Path
) -> None:
    place = Place(tmp_path / "ours", virtual_folder)
    writer = Writer(place.path, compression=compression)
    pack = RAW + b"second half" + RAW
    packs = id_rows(ChunkId, [writer.put_chunk(pack), writer.put_chunk(RAW)])
    shape = (40, 25, 20)
    mixed, third = grid(*shape), np.arange(ROWS) % 3
    held = BytesColumn.from_list([row.to_bytes(LENGTH, "little") for row in range(ROWS)])
    virtual = virtual_table(place, mixed)
    native = ChunkTable.native(
        mixed, packs, lengths(ROWS), offsets(ROWS), (np.arange(ROWS) % 2).astype(np.uint32)
    )
    inline = ChunkTable.inlined(mixed, held)
    tables = {
        "/virtual": virtual_table(place, grid(ROWS)),
        "/native": ChunkTable.native(
            grid(ROWS), packs[:1], lengths(ROWS), offsets(ROWS) + 65547, np.zeros(ROWS, np.uint32)
        ),
        "/mixed": concat_tables(
            [virtual.take(third == 0), native.take(third == 1), inline.take(third == 2)]
        ),
    }
    nodes = nodes_for({"virtual": (ROWS,), "native": (ROWS,), "mixed": shape})
    writer.commit("large", nodes, tables)

    repo = place.open()
    session = repo.readonly_session("main")
    [file] = repo.list_manifest_files(session.snapshot_id)
    about = repo.inspect_manifest(file.id)
    assert (about["num_arrays"], about["total_chunk_refs"]) == (3, 3 * ROWS)
    assert about["compression"]["uses_location_compression"] == (compression is not None)
    for path, table in tables.items():
        theirs = asyncio.run(coordinates_of(session, path))
        assert theirs == [tuple(c) for c in table.coordinates.tolist()]

    rows = np.random.default_rng(0).permutation(ROWS)[:300]
    by_virtual = expected_of_virtual(rows)
    assert asyncio.run(read(session, [f"virtual/c/{row}" for row in rows])) == by_virtual
    by_native = [RAW[int(at) :][:LENGTH] for at in offsets(ROWS)[rows]]
    assert asyncio.run(read(session, [f"native/c/{row}" for row in rows])) == by_native
    keys = ["mixed/c/" + "/".join(map(str, mixed[row])) for row in rows]
    by_inline = [held[row] for row in rows]
    choices = zip(rows % 3, by_virtual, by_native, by_inline, strict=True)
    assert asyncio.run(read(session, keys)) == [three[which] for which, *three in choices]
    locations = session.all_virtual_chunk_locations()
    assert len(locations) == ROWS + (third == 0).sum()
    assert len(set(locations)) == 51  # two of ours lead to one file


def test_the_reference_commits_on_a_large_manifest(tmp_path: Path, virtual_folder: Path) -> None:
    place = Place(tmp_path / "ours", virtual_folder)
    writer = Writer(place.path)
    nodes = nodes_for({"virtual": (ROWS,), "other": (ROWS,)})
    table = virtual_table(place, grid(ROWS))
    writer.commit("large", nodes, {"/virtual": table, "/other": table})
    session = place.open().writable_session("main")
    array_at(session, "virtual")[4321] = int.from_bytes(b"news", "little")
    session.commit("one chunk")
    session = place.open().readonly_session("main")
    keys = ["virtual/c/4321", "virtual/c/4315", "other/c/4315"]
    assert asyncio.run(read(session, keys))[0] == b"news"
    before, after = asyncio.run(read(session, keys))[1:]
    assert before == after == expected_of_virtual(np.array([4315]))[0]


def test_a_transaction_log_of_100_000_chunks(tmp_path: Path, virtual_folder: Path) -> None:
    place = Place(tmp_path / "ours", virtual_folder)
    writer = Writer(place.path)
    shape = (100, 50, 20)
    nodes = nodes_for({"cube": shape})
    rows = int(np.prod(shape))
    places = np.arange(rows).astype(np.uint64) % 1000
    locations = BytesColumn.from_strings([f"{BUCKET}one.nc"])
    table = ChunkTable.virtual(
        grid(*shape), locations, places, lengths(rows), targets=np.zeros(rows, np.uint32)
    )
    first = writer.commit("all chunks", nodes, {"/cube": table})
    repo = place.open()
    [updated] = repo.inspect_transaction_log(str(first))["updated_chunks"]
    assert updated["chunks"] == table.coordinates.tolist()
    diff = repo.diff(from_snapshot_id="1CECHNKREP0F1RSTCMT0", to_branch="main")
    assert len(diff.updated_chunks["/cube"]) == rows


@pytest.mark.parametrize("spec", [1, 2])
def test_a_snapshot_of_5_000_nodes(spec: int, tmp_path: Path, virtual_folder: Path) -> None:
    place = Place(tmp_path / "ours", virtual_folder)
    writer = Writer(place.path, spec)
    base = nodes_for({"array": (5, 6)})
    nodes = {"/": base["/"]}
    for number in range(500):
        nodes[f"/g{number}"] = base["/"]
        nodes |= {f"/g{number}/a{i}": base["/array"] for i in range(9)}
    table = ChunkTable.inlined(
        np.array([[0, 0], [4, 5]], np.uint32), BytesColumn.from_list([b"abcd", b"wxyz"])
    )
    tables = {path: table for path in nodes if path.endswith("/a3")}
    snapshot = writer.commit("many nodes", nodes, tables)
    repo = place.open()
    about = repo.inspect_snapshot(str(snapshot))
    assert [node["path"] for node in about["nodes"]] == sorted(nodes)
    session = repo.readonly_session("main")
    for path in ("/", "/g0", "/g99/a8", "/g499/a0", "/g250/a4"):
        assert session.get_node_id(path) == str(writer.nodes[path])
    keys = [f"g{number}/a{which}/c/4/5" for number in range(0, 500, 7) for which in (3, 4)]
    assert asyncio.run(read(session, keys)) == [b"wxyz", None] * (len(keys) // 2)
    session = repo.writable_session("main")
    del zarr.open_group(session.store)["g77"]
    session.commit("delete a group")
    assert len(repo.inspect_snapshot(repo.lookup_branch("main"))["nodes"]) == len(nodes) - 10
