"""Sessions over small and large arrays: the same chunks as in a dictionary, the fewest rewrites.

Rows of the large arrays have 8,192 chunks, so that four of them fill a manifest.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icefloe.config import (
    ChunkManifestsConfig,
    ManifestConfig,
    ManifestRule,
    ManifestSet,
    ManifestSplitCondition,
    ManifestSplitDimCondition,
    ManifestSplittingConfig,
    RepositoryConfig,
)
from icefloe.effects import run_blocking
from icefloe.format.chunk_table import ChunkTable
from icefloe.format.columns import BytesColumn
from icefloe.format.ids import ManifestId
from icefloe.manifests.partition import Blocks, HalvingLayout
from icefloe.repo import lifecycle
from icefloe.transactions import chunks, nodes
from icefloe.transactions.session import SessionState
from tests.support.checking import InvariantChecker
from tests.support.sides import Ours

WIDE = 8192
LARGE = ("/big", "/huge")
SMALL = tuple(f"/c{number}" for number in range(6))

CONFIGS = {
    "nothing": RepositoryConfig(),
    "sets": RepositoryConfig(
        chunk_manifests=ChunkManifestsConfig(
            [
                ManifestSet("few", max_manifest_size=6, cardinality=2, overflow_to="pairs"),
                ManifestSet("pairs", arrays_per_manifest=2, cardinality=None),
            ],
            [
                ManifestRule("few", path="/c[0-3]"),
                ManifestRule("pairs", initialized_chunks=(0, 3)),
            ],
        )
    ),
    "splitting": RepositoryConfig(
        manifest=ManifestConfig(
            splitting=ManifestSplittingConfig.from_dict(
                {
                    ManifestSplitCondition.AnyArray(): {
                        ManifestSplitDimCondition.Axis(0): 3,
                        ManifestSplitDimCondition.Axis(1): 5000,
                    }
                }
            )
        )
    ),
}

ROWS = st.integers(0, 11)
WRITE_ROW = st.tuples(st.just("row"), st.sampled_from(LARGE), ROWS)
ERASE_ROW = st.tuples(st.just("no row"), st.sampled_from(LARGE), ROWS)
WRITE_ONE = st.tuples(st.just("chunk"), st.sampled_from(SMALL), st.integers(0, 3))
ERASE_ONE = st.tuples(st.just("no chunk"), st.sampled_from(SMALL), st.integers(0, 3))
DELETE = st.tuples(st.just("delete"), st.sampled_from((*SMALL, *LARGE)), st.just(0))
GROW = st.tuples(st.just("resize"), st.sampled_from(LARGE), st.integers(0, 12))
COMMITS = st.lists(
    st.lists(
        st.one_of(WRITE_ROW, WRITE_ROW, WRITE_ONE, WRITE_ONE, ERASE_ROW, ERASE_ONE, DELETE, GROW),
        min_size=1,
        max_size=6,
    ),
    min_size=1,
    max_size=4,
)


@dataclass
class Model:
    """What a repository should hold: for each array and chunk, when it was written."""

    arrays: dict[str, dict[tuple[int, ...], int]] = field(default_factory=dict)
    touched: set[str] = field(default_factory=set)


def _row(row: int) -> np.ndarray[Any, Any]:
    columns = np.arange(WIDE, dtype=np.uint32)
    return np.stack([np.full(WIDE, row, np.uint32), columns], axis=1)


def _put_row(session: SessionState, path: str, row: int, mark: int) -> None:
    table = ChunkTable.virtual(
        _row(row),
        BytesColumn.from_strings(["s3://bucket/file"]),
        np.full(WIDE, mark, np.uint64),
        np.full(WIDE, 10, np.uint64),
        targets=np.zeros(WIDE, np.uint32),
    )
    chunks.put_refs(session, nodes.require_array(session, path), table)


def _require(ours: Ours, session: SessionState, path: str, model: Model) -> None:
    if path not in model.arrays:
        ours.array(session, path, *((12, WIDE) if path in LARGE else (4,)))
        model.arrays[path] = {}


def _apply(ours: Ours, session: SessionState, step: tuple[str, str, int], model: Model) -> None:
    what, path, at = step
    if what == "delete":
        if path in model.arrays:
            ours.delete(session, path)
            del model.arrays[path]
            model.touched.add(path)
        return
    _require(ours, session, path, model)
    held = model.arrays[path]
    model.touched.add(path)
    mark = len(model.touched) + sum(map(len, model.arrays.values()))
    array = nodes.require_array(session, path).array
    assert array is not None
    if what == "resize":
        for row in range(at, array.num_chunks[0]):  # as zarr does
            chunks.delete_chunks(session, nodes.require_array(session, path), _row(row))
        ours.array(session, path, at, WIDE)
        model.arrays[path] = {index: value for index, value in held.items() if index[0] < at}
    elif what in ("chunk", "no chunk"):
        if what == "chunk":
            ours.write(session, path, at, value=b"%d" % mark)
            held[(at,)] = mark
        else:
            ours.erase(session, path, at)
            held.pop((at,), None)
    elif at < array.num_chunks[0]:
        if what == "row":
            _put_row(session, path, at, mark)
            held.update(dict.fromkeys(((at, column) for column in range(WIDE)), mark))
        else:
            chunks.delete_chunks(session, nodes.require_array(session, path), _row(at))
            for column in range(WIDE):
                held.pop((at, column), None)


async def _found(session: SessionState, path: str) -> dict[tuple[int, ...], int]:
    found: dict[tuple[int, ...], int] = {}
    node = nodes.require_array(session, path)
    async for table in chunks.chunk_tables(session, node):
        marks = table.offsets.tolist() if path in LARGE else map(int, table.inline.to_list())
        rows = table.targets if path not in LARGE else np.arange(len(table))
        values = list(marks)
        indices = map(tuple, table.coordinates.tolist())
        found |= {index: values[row] for index, row in zip(indices, rows.tolist(), strict=True)}
    return found


def _refs(session: SessionState, path: str) -> dict[ManifestId, tuple[tuple[int, int], ...]]:
    refs = session.tree.manifests(nodes.require_array(session, path))
    return {ref.id: ref.extents for ref in refs}


def _closure(touched: set[str], linked: dict[str, dict[ManifestId, Any]]) -> set[str]:
    """Add the arrays that share a manifest with those touched, and so on."""
    while True:
        manifests = {one for path in touched for one in linked.get(path, ())}
        more = touched | {path for path, refs in linked.items() if manifests & refs.keys()}
        if more == touched:
            return touched
        touched = more


def _boxes(held: dict[tuple[int, ...], int]) -> set[tuple[tuple[int, int], ...]]:
    """Say where the default cuts an array."""
    rows = np.array(sorted(held), np.uint32).reshape(-1, 2)
    none = Blocks(np.empty((0, 2, 2), np.int64), np.empty(0, np.int64))
    parts = [rows[part] for part in HalvingLayout((0, 1)).partition(rows, none).parts]
    return {
        tuple(zip(part.min(axis=0).tolist(), (part.max(axis=0) + 1).tolist(), strict=True))
        for part in parts
    }


@pytest.mark.parametrize("spec_version", [1, 2])
@pytest.mark.parametrize("name", list(CONFIGS))
@settings(max_examples=8)
@given(commits=COMMITS)
def test_any_sessions_read_back(
    spec_version: int, name: str, commits: list[list[tuple[str, str, int]]]
) -> None:
    ours, model, checker = Ours(spec_version), Model(), InvariantChecker()
    ours.context = run_blocking(lifecycle.reopen(ours.context, CONFIGS[name]))
    for steps in commits:
        before = ours.at(ours.tip())
        linked = {path: _refs(before, path) for path in model.arrays}
        model.touched = set()
        session = ours.begin()
        for step in steps:
            _apply(ours, session, step, model)
        ours.commit(session, allow_empty=True)
        run_blocking(checker.check(ours.context.backend))
        after = ours.at(ours.tip())
        for path, held in model.arrays.items():
            assert run_blocking(_found(after, path)) == held
            refs = _refs(after, path)
            if path not in _closure(model.touched, linked) and (name != "sets" or path in LARGE):
                assert refs == linked[path], "nothing happened to it"
            if name == "nothing" and path in LARGE:
                assert len(refs) <= 2 * len(_boxes(held)), "few manifests, however it went"


def _large(ours: Ours, rows: int) -> None:
    session = ours.begin()
    ours.array(session, "/big", 100, WIDE)
    for row in range(rows):
        _put_row(session, "/big", row, row)
    ours.commit(session)


@settings(max_examples=10)
@given(rows=st.integers(1, 14), more=st.sets(st.integers(0, 20), min_size=1, max_size=3))
def test_manifests_are_rewritten_as_predicted(rows: int, more: set[int]) -> None:
    """Writing rows changes the parts that they are in, as if all had been written at once."""
    ours = Ours()
    _large(ours, rows)
    before = _refs(ours.at(ours.tip()), "/big")
    session = ours.begin()
    for row in more:
        _put_row(session, "/big", row, 1000 + row)
    ours.commit(session)
    after = _refs(ours.at(ours.tip()), "/big")
    held: dict[tuple[int, ...], int] = {
        (row, column): 0 for row in more | set(range(rows)) for column in range(WIDE)
    }
    assert set(after.values()) == _boxes(held)
    for manifest, box in before.items():
        stays = box in after.values() and not any(box[0][0] <= row < box[0][1] for row in more)
        assert (after.get(manifest) == box) == stays
