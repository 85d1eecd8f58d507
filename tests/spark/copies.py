"""What the tests of copies share."""

from pathlib import Path
from typing import Any

import icechunk
import numpy as np
import zarr
from numpy.testing import assert_array_equal

import icefloe
from icefloe.effects import iterate_blocking
from icefloe.format.ids import texts_of_rows
from icefloe.format.nodes import ArrayNode
from icefloe.transactions.chunks import chunk_tables
from tests.spark.archives import assert_sound


def plain_repository(tmp_path: Path, name: str = "repository") -> icefloe.Repository:
    """Make a repository on disk that refers to nothing outside."""
    return icefloe.Repository.create(icefloe.local_filesystem_storage(str(tmp_path / name)))


def used_chunks(repository: icefloe.Repository) -> set[str]:
    """List the chunk objects that some version uses."""
    used: set[str] = set()
    for version in repository.ancestry(branch="main"):
        state = repository.readonly_session(snapshot_id=version.id)._session
        for node in state.tree.below("/"):
            if isinstance(node, ArrayNode):
                for table in iterate_blocking(chunk_tables(state, node)):
                    assert not len(table.locations), "a reference to another file"
                    used |= set(texts_of_rows(table.chunk_ids))
    return used


def assert_clean(repository: icefloe.Repository) -> None:
    """Check everything that is stored, and that no attempt left anything."""
    assert_sound(repository)
    stored = {key for key, _ in repository.storage.list_objects(prefix="chunks")}
    assert stored == used_chunks(repository)


def group_of(repository: icefloe.Repository, path: str = "") -> zarr.Group:
    """Open what is at the tip of `main`."""
    return zarr.open_group(repository.readonly_session("main").store, path=path, mode="r")


def assert_same_values(copy: zarr.Group, source: zarr.Group) -> None:
    """Compare all arrays of two groups bit by bit, as the real icechunk sees the copy, too."""
    arrays = dict(_arrays(source))
    assert dict(_arrays(copy)).keys() == arrays.keys()
    for path, array in arrays.items():
        found: Any = copy[path]
        assert native_order(found.dtype) == native_order(array.dtype)
        assert_array_equal(bits(found[...]), bits(array[...]), err_msg=path)


def native_order(kind: Any) -> Any:
    """Leave the order of bytes out of a data type: in format 3 it belongs to the codecs."""
    return kind.newbyteorder("=") if kind.kind in "iuf" else kind


def bits(values: Any) -> Any:
    """Tell zeros and NaNs of different kinds from each other."""
    whole = np.ascontiguousarray(values, dtype=native_order(np.asarray(values).dtype))
    return whole.view(f"u{whole.dtype.itemsize}") if whole.dtype.kind == "f" else whole


def _arrays(group: zarr.Group) -> Any:
    for path, node in group.members(max_depth=None):
        if isinstance(node, zarr.Array) and not path.startswith("icefloe/"):
            yield path, node


def seen_by_the_reference(folder: Path, path: str = "") -> zarr.Group:
    """Open a repository with the real icechunk."""
    repository = icechunk.Repository.open(icechunk.local_filesystem_storage(str(folder)))
    return zarr.open_group(repository.readonly_session("main").store, path=path, mode="r")
