"""Manifests that arrays share, and arrays that are split: the reference reads and extends them."""

import asyncio
import datetime as dt
import shutil
from pathlib import Path
from typing import Any

import icechunk as ic
import numpy as np
import pytest
import zarr

import icefloe
from icefloe.config import (
    ChunkManifestsConfig,
    ManifestRule,
    ManifestSet,
    RepositoryConfig,
)
from icefloe.effects import run_blocking
from icefloe.format.chunk_table import ChunkTable
from icefloe.format.columns import BytesColumn
from icefloe.repo import lifecycle
from icefloe.storage import local_filesystem_storage
from icefloe.transactions import chunks, nodes
from icefloe.transactions.commit import commit
from icefloe.transactions.session import SessionMode, open_session
from icefloe.zarr_store import IcechunkStore
from tests.golden.files import GOLDEN
from tests.support.checking import InvariantChecker

ROWS, WIDE = 5, 8192
"""Four rows fill a manifest."""
CORNERS = np.array([0, 1, WIDE - 1])
"""What is read of a large array; which chunks it has is compared as a whole."""


def values(rows: int = ROWS) -> np.ndarray[Any, Any]:
    return np.arange(rows * WIDE, dtype="u1").reshape(rows, WIDE) + np.uint8(1)


def open_ours(place: Path, config: RepositoryConfig | None = None) -> icefloe.Repository:
    return icefloe.Repository.open(icefloe.local_filesystem_storage(str(place)), config)


def open_theirs(place: Path) -> ic.Repository:
    return ic.Repository.open(ic.local_filesystem_storage(str(place)))


def create_large(group: Any) -> None:
    group.create_array(
        "big",
        shape=(ROWS, WIDE),
        chunks=(1, 1),
        dtype="u1",
        compressors=None,
        dimension_names=("time", "x"),
    )


def create_ours(place: Path, spec: int, config: RepositoryConfig | None = None) -> None:
    storage = local_filesystem_storage(str(place))
    context = run_blocking(lifecycle.create(storage, config, spec_version=spec))
    tip = run_blocking(context.ledger.branch_tip("main"))
    session = run_blocking(open_session(context, tip, SessionMode.writable, branch="main"))
    root = zarr.group(IcechunkStore(session))
    for name, size in {"time": 6, "lat": 3, "lon": 4}.items():
        root.create_array(name, shape=(size,), chunks=(2,), dtype="i4")[:] = np.arange(size)
    root.create_array("scalar", shape=(), dtype="f8")[...] = 2.5
    create_large(root)
    coordinates = np.indices((ROWS, WIDE), np.uint32).reshape(2, -1).T
    data = BytesColumn.from_list([bytes([value]) for value in values().ravel().tolist()])
    table = ChunkTable.inlined(np.ascontiguousarray(coordinates), data)
    chunks.put_refs(session, nodes.require_array(session, "/big"), table)
    run_blocking(commit(session, "small and large arrays"))


def contents(repo: Any) -> dict[str, np.ndarray[Any, Any]]:
    """Read all arrays, and of large ones the corners and the list of chunks."""
    session = repo.readonly_session("main")
    root = zarr.open_group(session.store, mode="r")
    found: dict[str, np.ndarray[Any, Any]] = {}
    for name, array in root.arrays():
        if name == "big":
            found[name] = np.asarray(array.oindex[:, CORNERS])
            found["chunks"] = np.array(asyncio.run(_coordinates(session)))
        else:
            found[name] = np.asarray(array[...])
    return found


async def _coordinates(session: Any) -> list[tuple[int, ...]]:
    return sorted([tuple(index) async for index in session.chunk_coordinates("/big")])


def manifests(place: Path) -> set[str]:
    return {file.name for file in (place / "manifests").iterdir()}


def check(place: Path, checker: InvariantChecker) -> None:
    storage = icefloe.local_filesystem_storage(str(place))
    run_blocking(checker.check(storage.open()))


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for name, array in one.items():
        np.testing.assert_array_equal(array, other[name], err_msg=name)


SETS = RepositoryConfig(
    chunk_manifests=ChunkManifestsConfig(
        [ManifestSet("all", max_manifest_size=10**6)], [ManifestRule("all")]
    )
)


@pytest.mark.parametrize("spec", [1, 2])
@pytest.mark.parametrize("config", [None, SETS], ids=["nothing", "sets"])
def test_each_goes_on_where_the_other_stopped(
    tmp_path: Path, spec: int, config: RepositoryConfig | None
) -> None:
    place, checker = tmp_path / "repository", InvariantChecker()
    create_ours(place, spec, config)
    assert len(manifests(place)) == 3, "small arrays share one, the large array has two"
    check(place, checker)
    expected = contents(open_ours(place))
    assert_same(contents(open_theirs(place)), expected)

    session = open_theirs(place).writable_session("main")
    zarr.open_array(session.store, path="lat")[1] = 77
    zarr.open_array(session.store, path="big")[4, :5] = 9
    session.commit("the reference changes an array of each kind")
    expected["lat"][1] = 77
    expected["big"][4, :2] = 9
    assert_same(contents(open_ours(place)), expected)

    ours = open_ours(place).writable_session("main")
    zarr.open_array(ours.store, path="time")[5] = 55
    big = zarr.open_array(ours.store, path="big")
    big.resize((ROWS + 1, WIDE))
    big[ROWS, :2] = 3
    ours.commit("so do we, and append")
    expected["time"][5] = 55
    expected["big"] = np.concatenate([expected["big"], np.array([[3, 3, 0]], "u1")])
    expected["chunks"] = np.concatenate([expected["chunks"], [[ROWS, 0], [ROWS, 1]]])
    check(place, checker)
    assert_same(contents(open_theirs(place)), expected)
    assert_same(contents(open_ours(place)), expected)


@pytest.mark.parametrize("spec", [1, 2])
def test_the_reference_collects_no_garbage_that_is_in_use(tmp_path: Path, spec: int) -> None:
    place = tmp_path / "repository"
    create_ours(place, spec)
    session = open_ours(place).writable_session("main")
    zarr.open_array(session.store, path="lat")[0] = 5
    session.commit("the shared manifest again")
    expected = contents(open_ours(place))
    theirs = open_theirs(place)
    later = dt.datetime.now(dt.UTC) + dt.timedelta(days=1)
    theirs.expire_snapshots(later)
    theirs.garbage_collect(later)
    assert_same(contents(open_ours(place)), expected)
    assert_same(contents(open_theirs(place)), expected)


@pytest.mark.parametrize("name", ["v1-split", "v2-split"])
def test_the_rules_of_the_reference_are_kept_to(tmp_path: Path, name: str) -> None:
    place, checker = tmp_path / name, InvariantChecker()
    shutil.copytree(GOLDEN / name, place)
    before = manifests(place)
    expected = contents(open_theirs(place))
    assert_same(contents(open_ours(place)), expected)

    session = open_ours(place).writable_session("main")
    zarr.open_array(session.store, path="grid")[0, 0] = 99
    zarr.open_array(session.store, path="line")[9] = 7
    session.commit("two cells of the grids that the reference laid down")
    expected["grid"][0, 0] = 99
    expected["line"][9] = 7
    made = manifests(place) - before
    assert len(made) == 2, "the cell of each array, and nothing else"
    check(place, checker)
    assert_same(contents(open_theirs(place)), expected)

    twin = tmp_path / "twin"
    shutil.copytree(GOLDEN / name, twin)
    theirs = open_theirs(twin).writable_session("main")
    zarr.open_array(theirs.store, path="grid")[0, 0] = 99
    zarr.open_array(theirs.store, path="line")[9] = 7
    theirs.commit("the same")
    assert len(manifests(twin) - before) == len(made)


@pytest.mark.parametrize("spec", [1, 2])
def test_large_arrays_of_the_reference_are_split_when_touched(tmp_path: Path, spec: int) -> None:
    place, checker = tmp_path / "repository", InvariantChecker()
    session = ic.Repository.create(
        ic.local_filesystem_storage(str(place)), spec_version=spec
    ).writable_session("main")
    create_large(zarr.group(session.store))
    session.store.set_virtual_refs_arr(
        "/big",
        (ROWS, WIDE),
        ["s3://somewhere/file"] * (ROWS * WIDE),
        np.arange(ROWS * WIDE, dtype="u8"),
        np.full(ROWS * WIDE, 10, "u8"),
        validate_containers=False,
    )
    session.commit("one manifest")
    assert len(manifests(place)) == 1
    ours = open_ours(place).writable_session("main")
    zarr.open_array(ours.store, path="big")[0, 0] = 7
    ours.commit("two")
    assert len(manifests(place)) == 3
    check(place, checker)
    session = open_theirs(place).readonly_session("main")
    assert zarr.open_array(session.store, path="big", mode="r")[0, 0] == 7
    assert len(asyncio.run(_coordinates(session))) == ROWS * WIDE
    assert len(session.all_virtual_chunk_locations()) == ROWS * WIDE - 1
