"""Both implementations list the same locations of virtual chunks."""

from pathlib import Path
from typing import Any

import icechunk as ic
import pytest
import zarr

import icefloe

CONTAINER = "s3://interop-bucket/data/"
LOCATIONS = [f"{CONTAINER}{index // 3}.nc" for index in range(12)]


def write(side: Any, place: str, spec_version: int, locations: list[str]) -> None:
    config = side.RepositoryConfig.default()
    store = side.s3_store(region="us-east-1")
    config.set_virtual_chunk_container(side.VirtualChunkContainer(CONTAINER, store, "data"))
    repository = side.Repository.create(
        side.local_filesystem_storage(place), config, spec_version=spec_version
    )
    session = repository.writable_session("main")
    for name in ("b", "a"):
        array = zarr.create_array(session.store, name=name, shape=14, chunks=1, dtype="i4")
        chunks = [
            side.VirtualChunkSpec([index], location, 10 * index, 10)
            for index, location in enumerate(locations)
        ]
        session.store.set_virtual_refs(name, chunks, validate_containers=True)
        array[12:13] = 1
    session.commit("virtual and native chunks")
    session = repository.writable_session("main")
    session.store.set_virtual_refs(
        "a", [side.VirtualChunkSpec([0], f"{CONTAINER}other.nc", 0, 10)], validate_containers=True
    )
    session.commit("one elsewhere")


@pytest.mark.parametrize("spec_version", [1, 2])
@pytest.mark.parametrize("writer", [ic, icefloe], ids=["theirs", "ours"])
@pytest.mark.parametrize("is_relative", [False, True])
def test_all_locations(tmp_path: Path, writer: Any, spec_version: int, is_relative: bool) -> None:
    place = str(tmp_path / "repository")
    recorded = [one.replace(CONTAINER, "vcc://data/") if is_relative else one for one in LOCATIONS]
    write(writer, place, spec_version, recorded)
    ours = icefloe.Repository.open(icefloe.local_filesystem_storage(place))
    theirs = ic.Repository.open(ic.local_filesystem_storage(place))
    for version in ours.ancestry(branch="main"):
        mine = ours.readonly_session(snapshot_id=version.id)
        other = theirs.readonly_session(snapshot_id=version.id)
        assert sorted(mine.all_virtual_chunk_locations()) == sorted(
            other.all_virtual_chunk_locations()
        )
    found = ours.virtual_dependencies("file")
    listed = theirs.readonly_session("main").all_virtual_chunk_locations()
    assert {row.place: row.chunks for row in found} == {
        place: listed.count(place) for place in set(listed)
    }
