"""Tables of references and nodes behave as dictionaries do."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icefloe.errors import InvalidInputError
from icefloe.format.chunk_table import (
    ChunkRef,
    ChunkTable,
    InlineChunk,
    NativeChunk,
    VirtualChunk,
    concat_tables,
)
from icefloe.format.columns import BytesColumn, concat_bytes
from icefloe.format.ids import ChunkId, NodeId
from icefloe.format.nodes import ArrayInfo, ManifestRef, Node, NodeTable, node_of
from tests.unit.format.oracle import node_list, references
from tests.unit.format.samples import manifest_id, node_id

type Model = dict[tuple[int, ...], ChunkRef]

fast = settings(max_examples=60)

text = st.text(st.characters(codec="utf-8"), max_size=20)
indices = st.integers(0, 4) | st.integers(0, 2**32 - 1)
natives = st.builds(
    NativeChunk,
    st.binary(min_size=12, max_size=12).map(ChunkId),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**64 - 1),
)
virtuals = st.builds(
    VirtualChunk,
    st.sampled_from(["s3://b/a", "s3://b/é", "x" * 50]) | text,
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**64 - 1),
    st.none() | text,
    st.none() | st.integers(1, 2**32 - 1),
)
inlines = st.builds(InlineChunk, st.binary(max_size=30))


def models(dimensions: int, max_size: int = 25) -> st.SearchStrategy[Model]:
    keys = st.tuples(*[indices] * dimensions)
    return st.dictionaries(keys, natives | virtuals | inlines, max_size=max_size)


def coordinates(keys: list[tuple[int, ...]], dimensions: int) -> Any:
    return np.array(keys, np.uint32).reshape(len(keys), dimensions)


def table_of(model: Model, dimensions: int) -> ChunkTable:
    """Make a table from tables of each kind."""
    by_kind: dict[type, list[tuple[tuple[int, ...], Any]]] = {}
    for index, ref in model.items():
        by_kind.setdefault(type(ref), []).append((index, ref))
    makers: dict[type, Callable[[Any, list[Any]], ChunkTable]] = {
        NativeChunk: _natives,
        VirtualChunk: _virtuals,
        InlineChunk: lambda where, refs: ChunkTable.inlined(
            where, BytesColumn.from_list([ref.data for ref in refs])
        ),
    }
    tables = [
        makers[kind](coordinates([i for i, _ in pairs], dimensions), [r for _, r in pairs])
        for kind, pairs in by_kind.items()
    ]
    return concat_tables([ChunkTable.empty(dimensions), *tables])


def _natives(where: Any, refs: list[NativeChunk]) -> ChunkTable:
    ids = np.frombuffer(b"".join(ref.id.raw for ref in refs), np.uint8).reshape(-1, 12)
    return ChunkTable.native(
        where,
        ids,
        np.array([ref.length for ref in refs], np.uint64),
        offsets=np.array([ref.offset for ref in refs], np.uint64),
    )


def _virtuals(where: Any, refs: list[VirtualChunk]) -> ChunkTable:
    etags = BytesColumn.from_strings([ref.etag or "" for ref in refs])
    has_etag = np.array([ref.etag is not None for ref in refs])
    return ChunkTable.virtual(
        where,
        BytesColumn.from_strings([ref.location for ref in refs]),
        np.array([ref.offset for ref in refs], np.uint64),
        np.array([ref.length for ref in refs], np.uint64),
        etags=etags,
        etag_rows=np.where(has_etag, np.arange(len(refs)), -1).astype(np.int32),
        last_modified=np.array([ref.last_modified or 0 for ref in refs], np.uint32),
    )


def as_model(table: ChunkTable) -> Model:
    rows = references(table)
    assert [index for index, _ in rows] == sorted(index for index, _ in rows)
    assert len(dict(rows)) == len(rows)
    return dict(rows)


dimensions = pytest.mark.parametrize("dimensions", [0, 1, 2, 3])


@dimensions
@given(st.data())
@fast
def test_tables_hold_what_they_are_given(dimensions: int, data: st.DataObject) -> None:
    model = data.draw(models(dimensions))
    table = table_of(model, dimensions)
    assert as_model(table) == model
    assert as_model(table.compacted()) == model
    assert table.compacted() == table
    for index in [*model, tuple([1] * dimensions)]:
        assert table.find(index) == model.get(index)


@dimensions
@given(st.data())
@fast
def test_overlay_is_an_update(dimensions: int, data: st.DataObject) -> None:
    older, newer = data.draw(models(dimensions)), data.draw(models(dimensions))
    known = [*older, *newer]
    more = st.tuples(*[indices] * dimensions)
    deleted = data.draw(st.lists(st.sampled_from(known) | more if known else more, max_size=8))
    table = table_of(older, dimensions).overlay(
        table_of(newer, dimensions), deleted=coordinates(deleted, dimensions)
    )
    expected = {index: ref for index, ref in older.items() if index not in deleted} | newer
    assert as_model(table) == expected


@dimensions
@given(st.data())
@fast
def test_without_is_a_deletion(dimensions: int, data: st.DataObject) -> None:
    model = data.draw(models(dimensions))
    gone = data.draw(st.lists(st.sampled_from([*model]), max_size=9)) if model else []
    left = table_of(model, dimensions).without(coordinates(gone, dimensions))
    assert as_model(left) == {index: ref for index, ref in model.items() if index not in gone}


@dimensions
@given(st.data())
@fast
def test_parts_of_a_table_unite(dimensions: int, data: st.DataObject) -> None:
    model = data.draw(models(dimensions))
    table = table_of(model, dimensions)
    part_of_row = np.array([data.draw(st.integers(0, 3)) for _ in range(len(table))], np.int64)
    parts = [table.take(part_of_row == part).compacted() for part in range(4)]
    assert sum(map(len, parts)) == len(table)
    order = data.draw(st.permutations(parts))
    assert as_model(concat_tables([ChunkTable.empty(dimensions), *order])) == model


@dimensions
@given(st.data())
@fast
def test_within_is_a_box(dimensions: int, data: st.DataObject) -> None:
    model = data.draw(models(dimensions))
    bound = st.integers(0, 6) | st.integers(0, 2**32 - 1)
    box = [sorted(data.draw(st.tuples(bound, bound))) for _ in range(dimensions)]
    table = table_of(model, dimensions)
    found = as_model(table.within(np.array(box, np.uint32).reshape(dimensions, 2)))
    assert found == {
        index: ref
        for index, ref in model.items()
        if all(a <= i < b for i, (a, b) in zip(index, box, strict=True))
    }


@given(st.data())
@fast
def test_a_coordinate_twice_is_always_refused(data: st.DataObject) -> None:
    model = data.draw(models(2, max_size=12).filter(bool))
    table = table_of(model, 2)
    again = table.take(np.array([data.draw(st.integers(0, len(table) - 1))]))
    with pytest.raises(InvalidInputError):
        concat_tables([table, again])


# -- columns -------------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=20), max_size=30), st.data())
@fast
def test_columns_behave_as_lists(rows: list[bytes], data: st.DataObject) -> None:
    column = BytesColumn.from_list(rows)
    picks = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=20)) if rows else []
    assert column.take(np.array(picks, np.int64)).to_list() == [rows[p] for p in picks]
    start = data.draw(st.integers(0, len(rows)))
    stop = data.draw(st.integers(start, len(rows)))
    part = column.slice(start, stop)
    assert part.to_list() == rows[start:stop]
    assert concat_bytes([part, column]).to_list() == rows[start:stop] + rows
    distinct, numbers = column.distinct()
    assert distinct.to_list() == list(dict.fromkeys(rows))
    assert distinct.take(numbers).to_list() == rows


@given(st.binary(min_size=1, max_size=300), st.data())
@fast
def test_gather_copies_slices(source: bytes, data: st.DataObject) -> None:
    starts = data.draw(st.lists(st.integers(0, len(source)), max_size=20))
    lengths = [data.draw(st.integers(0, len(source) - start)) for start in starts]
    column = BytesColumn.gather(
        np.frombuffer(source, np.uint8), np.array(starts, np.int64), np.array(lengths, np.int64)
    )
    assert column.to_list() == [source[a : a + n] for a, n in zip(starts, lengths, strict=True)]


# -- nodes ---------------------------------------------------------------------------------

names = st.none() | text.filter(bool)
extents = st.lists(st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1)), max_size=3)
manifest_refs = st.builds(ManifestRef, st.integers(0, 2**95).map(manifest_id), extents.map(tuple))


@st.composite
def arrays(draw: st.DrawFn) -> ArrayInfo:
    shape = draw(
        st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1)), max_size=4)
    )
    has_names = draw(st.booleans())
    return ArrayInfo(
        tuple(length for length, _ in shape),
        tuple(count for _, count in shape),
        tuple(draw(names) for _ in shape) if has_names else None,
        tuple(draw(st.lists(manifest_refs, max_size=3))),
    )


def node_models(max_size: int = 12) -> st.SearchStrategy[dict[str, Node]]:
    contents = st.tuples(st.integers(0, 2**63), st.binary(max_size=30), st.none() | arrays())
    paths = st.lists(st.sampled_from(["a", "b", "a-b", "é", "ab"]), max_size=3).map(
        lambda parts: "/" + "/".join(parts)
    )
    return st.dictionaries(paths, contents, max_size=max_size).map(
        lambda rows: {
            path: node_of(node_id(number), path, user_data, array)
            for path, (number, user_data, array) in rows.items()
        }
    )


def in_order(model: dict[str, Node]) -> list[Node]:
    return [model[path] for path in sorted(model, key=str.encode)]


@given(node_models(), node_models(), st.data())
@fast
def test_node_tables_behave_as_dictionaries(
    older: dict[str, Node], newer: dict[str, Node], data: st.DataObject
) -> None:
    table = NodeTable.from_nodes(list(older.values()))
    assert node_list(table) == in_order(older)
    deleted = data.draw(st.lists(st.sampled_from([*older, *newer, "/x"]), max_size=5))
    united = table.overlay(NodeTable.from_nodes(list(newer.values())), deleted)
    model = {path: node for path, node in older.items() if path not in deleted} | newer
    assert node_list(united) == in_order(model)
    for path in [*model, "/x", ""]:
        assert united.find(path) == model.get(path)


def test_ids_of_nodes_are_eight_bytes() -> None:
    assert len(node_id(2**63).raw) == NodeId.WIDTH
