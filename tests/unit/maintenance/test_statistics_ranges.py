"""Many native chunks in many versions: repeated ones count once, wherever they are repeated."""

from collections import Counter
from typing import Any

import numpy as np
import pytest

import icefloe
from icefloe.effects import run_blocking
from icefloe.format.chunk_table import ChunkKind, ChunkTable
from icefloe.format.layout import MANIFESTS_PREFIX
from icefloe.format.manifest import ManifestFile
from icefloe.storage import Storage
from tests.faults.sessions import GROUP, array_document, put
from tests.property.reachable import needed_by_refs, stored

CHUNKS = 50_000
"""More than are compared at once."""
type Rows = np.ndarray[Any, np.dtype[Any]]


class Growing:
    """A repository with two arrays, whose chunks are told about without being written."""

    def __init__(self, *, is_split: bool, seed: int) -> None:
        self.storage: Storage = icefloe.in_memory_storage()
        self.random = np.random.default_rng(seed)
        config = icefloe.RepositoryConfig.default()
        rule = {icefloe.ManifestSplitDimCondition.Any(): 20_000 if is_split else 2**32 - 1}
        config.manifest = icefloe.ManifestConfig(
            splitting=icefloe.ManifestSplittingConfig.from_dict(
                {icefloe.ManifestSplitCondition.AnyArray(): rule}
            )
        )
        self.repo = icefloe.Repository.create(self.storage, config)
        session = self.repo.writable_session("main")
        run_blocking(put(session, "zarr.json", GROUP))
        for name in "ab":
            run_blocking(put(session, f"{name}/zarr.json", array_document(CHUNKS)))
        session.commit("arrays")

    def ids(self, count: int) -> Rows:
        return self.random.integers(0, 256, (count, 12), dtype=np.uint8)

    def refer(self, name: str, coordinates: Rows, ids: Rows, offset: int = 0) -> None:
        """Let chunks be ranges of objects, and commit."""
        session: Any = self.repo.writable_session("main")
        state = session._session
        lengths = self.random.integers(1, 9, len(ids)).astype(np.uint64)
        offsets = np.full(len(ids), offset, np.uint64)
        table = ChunkTable.native(
            coordinates.astype(np.uint32).reshape(-1, 1), ids, lengths, offsets
        )
        state.changes.put_table(state.tree.find(f"/{name}").id, table)
        session.commit(f"{len(ids)} more")

    def expected(self) -> set[tuple[bytes, int, int]]:
        """List all ranges that all versions refer to."""
        files = stored(self.storage.open())
        found: set[tuple[bytes, int, int]] = set()
        for key in needed_by_manifests(files):
            for table in ManifestFile(files[key]).tables().values():
                assert (table.kinds == ChunkKind.NATIVE).all()
                raw = table.chunk_ids[table.targets].tobytes()
                names = [raw[at : at + 12] for at in range(0, len(raw), 12)]
                found |= set(
                    zip(names, table.offsets.tolist(), table.lengths.tolist(), strict=True)
                )
        return found


def needed_by_manifests(files: dict[str, bytes]) -> list[str]:
    return [key for key in files if key.startswith(MANIFESTS_PREFIX)]


@pytest.mark.parametrize("is_split", [False, True])
@pytest.mark.parametrize("seed", [1, 2])
def test_against_sets(seed: int, is_split: bool) -> None:
    growing = Growing(is_split=is_split, seed=seed)
    rows, draw = np.arange(CHUNKS), growing.random.integers
    first = growing.ids(30_000)
    growing.refer("a", rows[:30_000], first)
    growing.refer("a", rows[30_000:45_000], growing.ids(15_000))
    one = int(draw(0, 40_000))
    growing.refer("a", rows[one : one + 1], growing.ids(1))
    growing.refer("a", rows[::9], growing.ids(len(rows[::9])))
    growing.refer("b", rows[5_000:25_000], first[:20_000], offset=100)  # the same objects
    growing.refer("a", rows[:1_000], first[:1_000])  # as it was, at another length
    growing.refer("b", rows[5_000:25_000], growing.ids(20_000))
    expected = growing.expected()
    repo = icefloe.Repository.open(growing.storage)
    stats = repo.chunk_storage_stats()
    assert stats.native_chunks == len(expected)
    assert stats.native_bytes == sum(length for _, _, length in expected)
    objects = [name for name, _, _ in expected]
    packed = {name for name, count in Counter(objects).items() if count > 1}
    assert stats.packed_objects == len(packed)
    assert stats.packed_chunks == sum(name in packed for name in objects)
    assert sum(row.native_bytes for row in repo.storage_use()) == stats.native_bytes
    in_arrays = repo.storage_use("array")
    assert sum(row.native_bytes for row in in_arrays) == stats.native_bytes  # none in both


@pytest.mark.parametrize("count", [100, 70_000])
def test_ranges_are_those_of_the_whole_table(count: int) -> None:
    growing = Growing(is_split=False, seed=3)
    growing.refer("a", np.arange(count), growing.ids(count), offset=7)
    files = stored(growing.storage.open())
    [key] = [key for key in needed_by_refs(files) if key.startswith(MANIFESTS_PREFIX)]
    file = ManifestFile(files[key])
    [node] = file.nodes
    table, ranges = file.table(node), file.native_ranges(node)
    assert ranges is not None
    assert ranges.first == (0,)
    assert np.array_equal(ranges.chunk_ids, table.chunk_ids[table.targets])
    assert np.array_equal(ranges.chunk_ids, file.chunk_ids())
    assert np.array_equal(ranges.offsets, table.offsets)
    assert np.array_equal(ranges.lengths, table.lengths)


def test_few_chunks_and_other_kinds_are_left_to_the_table() -> None:
    growing = Growing(is_split=False, seed=4)
    growing.refer("a", np.arange(3), growing.ids(3))
    files = stored(growing.storage.open())
    [key] = needed_by_manifests(files)
    file = ManifestFile(files[key])
    assert [file.native_ranges(node) for node in file.nodes] == [None]
