"""Repositories that no other implementation had a hand in open in the reference."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.storage import MemoryStore

from tests.interop.agreeing import assert_agreement
from tests.interop.observing import contents
from tests.interop.reference import EVERY_JSON_KIND, Place, array_at
from tests.interop.scratch import Writer, tables_of

pytestmark = pytest.mark.interop


def first_version() -> dict[str, Any]:
    stored: dict[str, Any] = {}
    root = zarr.group(MemoryStore(stored), attributes={"title": "ours", "n": [1, None]})
    root.create_array("scalar", shape=(), dtype="f8", chunks=())[...] = 2.5
    root.create_array("empty", shape=(0, 3), dtype="i2", chunks=(1, 2))
    root.create_array("fill", shape=(7,), dtype="i2", chunks=(2,), fill_value=-1)
    line = root.create_array("line", shape=(600,), dtype="u1", chunks=(1,), compressors=None)
    line[:599] = np.arange(599) % 251
    deep = root.create_group("a/b", attributes={"deep": True}).create_array(
        "cube 数", shape=(9, 10, 21), dtype="i4", chunks=(2, 5, 4), dimension_names=("t", None, "x")
    )
    deep[...] = np.arange(9 * 10 * 21).reshape(9, 10, 21)
    return stored


@pytest.mark.parametrize("spec", [1, 2])
def test_a_repository_of_ours_alone_opens_in_the_reference(
    spec: int, tmp_path: Path, virtual_folder: Path
) -> None:
    place = Place(tmp_path / "ours", virtual_folder)
    writer = Writer(place.path, spec)
    stored = first_version()
    first = writer.commit("first", *tables_of(stored, writer), metadata=EVERY_JSON_KIND)
    writer.tag("one", first)
    zarr.open_array(MemoryStore(stored), path="line")[5:8] = 200
    second = writer.commit("second", *tables_of(stored, writer))

    repo = place.open()
    assert int(repo.spec_version) == spec
    history = [(one.id, one.message, one.metadata) for one in repo.ancestry(branch="main")]
    assert history[:2] == [(str(second), "second", {}), (str(first), "first", EVERY_JSON_KIND)]
    assert repo.lookup_tag("one") == str(first)
    theirs = contents(repo.readonly_session("main"))
    assert theirs["keys"] == sorted(stored)
    assert theirs["bytes"] == {key: stored[key].to_bytes() for key in theirs["bytes"]}
    for path, values in theirs["values"].items():
        ours: Any = zarr.open_array(MemoryStore(stored), path=path)[...]
        assert values == ours.tolist()
    assert_agreement(place)

    session = repo.writable_session("main")
    array_at(session, "line")[:2] = 77
    array_at(session, "a/b/cube 数").resize((20, 10, 21))
    del zarr.open_group(session.store)["fill"]
    session.commit("by the reference")
    decoded = assert_agreement(place)
    assert {one.message for one in decoded.snapshots.values()} > {"second", "by the reference"}
