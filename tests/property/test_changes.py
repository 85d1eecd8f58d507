"""Chunk changes against a dictionary, however they arrive."""

import pickle

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from icefloe.format.chunk_table import ChunkRef, ChunkTable, InlineChunk, NativeChunk, VirtualChunk
from icefloe.format.ids import ChunkId, NodeId
from icefloe.transactions.array_changes import MISSING, ArrayChanges, Index
from icefloe.transactions.changes import ChangeSet

INDICES = st.tuples(st.integers(0, 3), st.integers(0, 3))
REFS: st.SearchStrategy[ChunkRef] = st.one_of(
    st.builds(InlineChunk, st.binary(min_size=1, max_size=4)),
    st.builds(NativeChunk, st.binary(min_size=12, max_size=12).map(ChunkId),
              st.integers(0, 9), st.integers(1, 9)),
    st.builds(VirtualChunk, st.sampled_from(["s3://a/x", "s3://b/y"]), st.integers(0, 9),
              st.integers(1, 9), st.none() | st.just('"etag"'), st.none() | st.integers(1, 9)),
)  # fmt: skip
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), INDICES, REFS),
        st.tuples(st.just("delete"), INDICES),
        st.tuples(st.just("put_table"), st.dictionaries(INDICES, REFS, max_size=6)),
        st.tuples(st.just("delete_many"), st.lists(INDICES, unique=True, max_size=4)),
        st.tuples(st.just("drop"), st.lists(INDICES, unique=True, max_size=4)),
        st.tuples(st.just("look"), INDICES),
        st.tuples(st.just("settle")),
    ),
    max_size=12,
)


def _matrix(indices: list[Index]) -> np.ndarray:
    return np.array(indices, np.uint32).reshape(-1, 2)


def _apply(changes: ArrayChanges, model: dict[Index, ChunkRef | None], step: tuple) -> None:  # type: ignore[type-arg]
    match step:
        case ("set", index, ref):
            changes.set(index, ref)
            model[index] = ref
        case ("delete", index):
            changes.delete(index)
            model[index] = None
        case ("put_table", refs):
            changes.put_table(ChunkTable.from_refs(refs, 2))
            model.update(refs)
        case ("delete_many", indices):
            changes.delete_many(_matrix(indices))
            model.update(dict.fromkeys(indices))
        case ("drop", indices):
            changes.drop(_matrix(indices))
            for index in indices:
                model.pop(index, None)
        case ("look", index):
            assert changes.get(index) == model.get(index, MISSING)
        case _:
            changes.settled()


def _agrees(changes: ArrayChanges, model: dict[Index, ChunkRef | None]) -> None:
    for index in np.ndindex(4, 4):
        assert changes.get(index) == model.get(index, MISSING)
    settled = changes.settled()
    kept = {index: ref for index, ref in model.items() if ref is not None}
    assert settled.table == ChunkTable.from_refs(kept, 2)
    assert [tuple(row) for row in settled.deleted.tolist()] == sorted(model.keys() - kept.keys())
    assert [tuple(row) for row in changes.settled().touched().tolist()] == sorted(model)
    assert changes.is_empty() == (not model)


@given(STEPS)
def test_the_newest_change_of_a_chunk_wins(steps: list) -> None:  # type: ignore[type-arg]
    changes, model = ArrayChanges(2), dict[Index, ChunkRef | None]()
    for step in steps:
        _apply(changes, model, step)
    copied = changes.copy()
    _agrees(copied, model)
    _agrees(changes, model)


@given(STEPS)
def test_changes_survive_pickling(steps: list) -> None:  # type: ignore[type-arg]
    node, model = NodeId.random(), dict[Index, ChunkRef | None]()
    every = ChangeSet()
    for step in steps:
        _apply(every.array(node, 2), model, step)
    arrived = pickle.loads(pickle.dumps(every))
    _agrees(arrived.array(node, 2), model)
    assert arrived.is_empty() == every.is_empty() == (not model)


def test_a_copy_goes_its_own_way() -> None:
    changes = ArrayChanges(1)
    changes.set((0,), InlineChunk(b"a"))
    copied = changes.copy()
    copied.delete((0,))
    changes.set((1,), InlineChunk(b"b"))
    assert changes.get((0,)) == InlineChunk(b"a")
    assert copied.get((0,)) is None
    assert copied.get((1,)) is MISSING


def test_scalar_arrays_have_one_chunk() -> None:
    changes = ArrayChanges(0)
    changes.set((), InlineChunk(b"a"))
    assert len(changes.settled().table) == 1
    changes.delete(())
    settled = changes.settled()
    assert len(settled.table) == 0
    assert len(settled.deleted) == 1
    assert changes.get(()) is None
