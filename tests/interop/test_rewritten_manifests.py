"""Rewritten manifests: the reference reads ours, we rewrite its repositories, both agree."""

import asyncio
import shutil
from pathlib import Path
from typing import Any

import icechunk as ic
import numpy as np
import pytest
import zarr

import icefloe
from tests.golden.files import GOLDEN
from tests.support.checking import check_repository_blocking

GOLDEN_NAMES = ["v1-split", "v2-split", "v1-basic", "v2-compressed-locations", "v2-migrated"]


def splitting(lib: Any, size: int) -> Any:
    rules = {lib.ManifestSplitCondition.AnyArray(): {lib.ManifestSplitDimCondition.Any(): size}}
    manifest = lib.ManifestConfig(splitting=lib.ManifestSplittingConfig.from_dict(rules))
    return lib.RepositoryConfig(manifest=manifest)


def open_ours(place: Path, config: Any = None) -> icefloe.Repository:
    return icefloe.Repository.open(icefloe.local_filesystem_storage(str(place)), config)


def open_theirs(place: Path, config: Any = None) -> ic.Repository:
    return ic.Repository.open(ic.local_filesystem_storage(str(place)), config)


def chunk_lists(repo: Any) -> dict[str, list[tuple[int, ...]]]:
    """List the chunks of all arrays."""
    session = repo.readonly_session("main")

    async def coordinates(path: str) -> list[tuple[int, ...]]:
        return sorted([tuple(index) async for index in session.chunk_coordinates(path)])

    root = zarr.open_group(session.store, mode="r")
    arrays = [f"/{name}" for name, one in root.members(max_depth=None) if _is_array(one)]
    return {path: asyncio.run(coordinates(path)) for path in arrays}


def _is_array(one: Any) -> bool:
    return isinstance(one, zarr.Array)


def native_values(repo: Any) -> dict[str, Any]:
    """Read the arrays that need nothing from outside."""
    root = zarr.open_group(repo.readonly_session("main").store, mode="r")
    found: dict[str, Any] = {}
    members: list[tuple[str, Any]] = list(root.members(max_depth=None))
    for name, one in members:
        if _is_array(one) and "virtual" not in name:
            try:
                found[name] = np.asarray(one[...])
            except Exception as refused:  # noqa: BLE001 - virtual chunks that nobody authorised
                found[name] = type(refused).__name__
    return found


def locations(repo: Any) -> list[str]:
    return sorted(repo.readonly_session("main").all_virtual_chunk_locations())


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        np.testing.assert_array_equal(value, other[name], err_msg=name)


def copied(name: str, place: Path) -> Path:
    shutil.copytree(GOLDEN / name, place / name)
    return place / name


@pytest.mark.parametrize("name", GOLDEN_NAMES)
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_our_rewrite_of_its_repositories(tmp_path: Path, name: str, size: int) -> None:
    place = copied(name, tmp_path)
    theirs = open_theirs(place)
    if theirs.spec_version > 1:
        theirs.set_status(ic.RepoStatus(ic.RepoAvailability.online))
    before = (native_values(theirs), chunk_lists(theirs), locations(theirs))
    ours = open_ours(place, splitting(icefloe, size))
    new = ours.rewrite_manifests("rewritten by us", branch="main", metadata={"by": "us"})
    check_repository_blocking(icefloe.local_filesystem_storage(str(place)).open())

    theirs = open_theirs(place)
    assert_same(native_values(theirs), before[0])
    assert (chunk_lists(theirs), locations(theirs)) == before[1:]
    latest = next(iter(theirs.ancestry(branch="main")))
    assert (latest.id, latest.message, latest.metadata["by"]) == (new, "rewritten by us", "us")
    twin = copied(name, tmp_path / "twin")
    other = open_theirs(twin)
    if other.spec_version > 1:
        other.set_status(ic.RepoStatus(ic.RepoAvailability.online))
    open_theirs(twin, splitting(ic, size)).rewrite_manifests("rewritten by it", branch="main")
    theirs_made = next(iter(open_theirs(twin).ancestry(branch="main")))
    assert latest.metadata["__icechunk"] == theirs_made.metadata["__icechunk"]


@pytest.mark.parametrize("spec", [1, 2])
def test_same_parts_and_same_records(tmp_path: Path, spec: int) -> None:
    """With the same rules, both cut the same parts, and leave the same traces."""
    traces = {}
    for lib in (ic, icefloe):
        place = tmp_path / lib.__name__
        storage = lib.local_filesystem_storage(str(place))
        repo = lib.Repository.create(storage, spec_version=spec)
        session = repo.writable_session("main")
        root = zarr.group(session.store)
        root.create_array("a", shape=(20, 7), chunks=(1, 1), dtype="i4")[:] = 1
        session.commit("fill")
        repo = lib.Repository.open(lib.local_filesystem_storage(str(place)), splitting(lib, 4))
        repo.rewrite_manifests("fours", branch="main")
        if spec > 1:
            repo.rewrite_manifests("amended", branch="main", commit_method="amend")
        reader = open_ours(place)
        parent, tip = [one.id for one in list(reader.ancestry(branch="main"))[1::-1]]
        traces[lib.__name__] = {
            "parts": sorted(one.num_chunk_refs for one in reader.manifest_layout()),
            "history": [(one.message, one.metadata) for one in reader.ancestry(branch="main")],
            "log": reader.diff(from_snapshot_id=parent, to_snapshot_id=tip).is_empty(),
            "operations": [type(one.kind).__name__ for one in reader.ops_log()] if spec > 1 else [],
        }
    assert traces["icefloe"] == traces["icechunk"]


@pytest.mark.parametrize("spec", [1, 2])
def test_it_rebases_and_continues_on_ours(tmp_path: Path, spec: int) -> None:
    place = tmp_path / "repository"
    repo = icefloe.Repository.create(
        icefloe.local_filesystem_storage(str(place)), spec_version=spec
    )
    with repo.transaction("main", message="fill") as store:
        zarr.create_array(store, name="a", shape=(9,), chunks=(1,), dtype="i4")[:] = 5
    session = open_theirs(place).writable_session("main")
    zarr.open_array(session.store, path="a")[0] = 1
    open_ours(place, splitting(icefloe, 2)).rewrite_manifests("twos", branch="main")
    session.commit("rebased over it", rebase_with=ic.ConflictDetector())
    session = open_theirs(place).writable_session("main")
    zarr.open_array(session.store, path="a")[8] = 2
    session.commit("and one more")
    array: Any = zarr.open_array(
        open_ours(place).readonly_session("main").store, path="a", mode="r"
    )
    assert array[...].tolist() == [1, *[5] * 7, 2]
    check_repository_blocking(icefloe.local_filesystem_storage(str(place)).open())
