"""Chunk objects of one repository as virtual chunks of another, by columns."""

import numpy as np

from icefloe.format.chunk_table import (
    ChunkRef,
    ChunkTable,
    InlineChunk,
    NativeChunk,
    VirtualChunk,
    concat_tables,
)
from icefloe.format.columns import BytesColumn
from icefloe.format.ids import ChunkId
from icefloe.maintenance.derived import as_virtual, changes_between
from icefloe.records import replace


def mixed_table() -> ChunkTable:
    """Make one reference of each kind, and a second one into the same chunk object."""
    rng = np.random.default_rng(1)
    ids = rng.integers(0, 256, (1, 12), np.uint8)
    native = ChunkTable.native(
        np.array([[0], [3]], np.uint32),
        ids,
        np.array([8, 9], np.uint64),
        np.array([0, 8], np.uint64),
        np.zeros(2, np.uint32),
    )
    virtual = ChunkTable.virtual(
        np.array([[1]], np.uint32),
        BytesColumn.from_strings(["s3://tapes/a"]),
        np.array([5], np.uint64),
        np.array([6], np.uint64),
        etags=BytesColumn.from_strings(["tag"]),
        etag_rows=np.zeros(1, np.int32),
    )
    inline = ChunkTable.inlined(np.array([[2]], np.uint32), BytesColumn.from_list([b"abc"]))
    return concat_tables([native, virtual, inline])


def test_chunk_objects_become_virtual_and_others_stay() -> None:
    table = mixed_table()
    moved = as_virtual(table, "vcc://provider/")
    for index in range(4):
        before, after = table.find([index]), moved.find([index])
        if isinstance(before, NativeChunk):
            location = f"vcc://provider/{before.id}"
            assert after == VirtualChunk(location, before.offset, before.length)
        else:
            assert after == before
    assert isinstance(moved.find([2]), InlineChunk)
    assert len(moved.chunk_ids) == 0


def test_only_chosen_rows_become_virtual() -> None:
    table = mixed_table()
    moved = as_virtual(table, "s3://public/", table.coordinates[:, 0] < 2)
    assert isinstance(moved.find([0]), VirtualChunk)
    assert [moved.find([index]) for index in (1, 2, 3)] == [
        table.find([index]) for index in (1, 2, 3)
    ]
    nothing = as_virtual(table, "s3://public/", np.zeros(4, np.bool_))
    assert nothing is table


def test_changes_between_tables_of_all_kinds() -> None:
    before = mixed_table()
    changed, gone = changes_between(before, mixed_table())
    assert (len(changed), len(gone)) == (0, 0)
    refs: dict[tuple[int, ...], ChunkRef] = {
        (index,): ref for index in range(4) if (ref := before.find([index])) is not None
    }
    native, virtual = refs[0,], refs[1,]
    assert isinstance(native, NativeChunk)
    assert isinstance(virtual, VirtualChunk)
    for index, ref in (
        (0, replace(native, offset=1)),
        (0, replace(native, length=7)),
        (0, replace(native, id=ChunkId(bytes(12)))),
        (0, InlineChunk(b"12345678")),
        (1, replace(virtual, etag=None)),
        (1, replace(virtual, etag="other")),
        (1, replace(virtual, last_modified=5)),
        (1, replace(virtual, location="s3://tapes/b")),
        (2, InlineChunk(b"abc2")),
        (4, InlineChunk(b"new")),
    ):
        after = ChunkTable.from_refs({**refs, (index,): ref}, 1)
        changed, gone = changes_between(before, after)
        assert [changed.coordinates.tolist(), len(gone)] == [[[index]], 0]
        assert changed.find([index]) == ref
    changed, gone = changes_between(before, before.take(before.coordinates[:, 0] != 1))
    assert (len(changed), gone.tolist()) == (0, [[1]])


def test_changes_between_tables_of_a_scalar() -> None:
    tables = [ChunkTable.from_refs({(): InlineChunk(data)}, 0) for data in (b"a", b"b")]
    changed, gone = changes_between(*tables)
    assert (changed.find([]), len(gone)) == (InlineChunk(b"b"), 0)
    changed, gone = changes_between(tables[0], ChunkTable.empty(0))
    assert (len(changed), len(gone)) == (0, 1)
