"""References built into manifests apart and linked: the same as by an ordinary commit."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icefloe.config import (
    ManifestConfig,
    ManifestSplitCondition,
    ManifestSplitDimCondition,
    ManifestSplittingConfig,
    RepositoryConfig,
)
from icefloe.effects import run_blocking
from icefloe.format.chunk_table import ChunkTable, Coordinates, concat_tables
from icefloe.format.ids import SnapshotId
from icefloe.repo import lifecycle
from icefloe.testing import invariants
from icefloe.transactions import chunks, nodes
from icefloe.transactions.session import SessionState
from tests.support.built_elsewhere import link, log_writer, virtual_table
from tests.support.checking import check_repository_blocking
from tests.support.sides import Ours

WIDE = 8192
"""Four rows of this many chunks fill a manifest."""

CONFIGS = {
    "nothing": RepositoryConfig(),
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

ROWS = st.sets(st.integers(0, 11), min_size=1, max_size=6)
SPANS = st.sampled_from([(0, WIDE), (0, 4000), (3000, 6000), (8000, WIDE)])
STEPS = st.lists(st.tuples(ROWS, SPANS, ROWS | st.just(set())), min_size=1, max_size=4)


def block(rows: set[int], span: tuple[int, int]) -> Coordinates:
    columns = np.arange(*span, dtype=np.uint32)
    first = np.repeat(np.array(sorted(rows), np.uint32), len(columns))
    return np.stack([first, np.tile(columns, len(rows))], axis=1)


def make(spec_version: int, name: str, shape: tuple[int, ...]) -> Ours:
    ours = Ours(spec_version)
    ours.context = run_blocking(lifecycle.reopen(ours.context, CONFIGS[name]))
    session = ours.begin()
    ours.array(session, "/a", *shape)
    ours.commit(session)
    return ours


async def held(session: SessionState) -> ChunkTable:
    node = nodes.require_array(session, "/a")
    tables = [table async for table in chunks.chunk_tables(session, node)]
    return concat_tables(tables or [ChunkTable.empty(2)])


def logged(ours: Ours, snapshot: SnapshotId) -> list[Any]:
    log = run_blocking(ours.context.assets.load_transaction_log(snapshot))
    return [chunks.tolist() for chunks in log.updated_chunks.values()]


def boxes(session: SessionState) -> list[Any]:
    return [ref.extents for ref in session.tree.manifests(nodes.require_array(session, "/a"))]


@pytest.mark.parametrize("spec_version", [1, 2])
@pytest.mark.parametrize("name", list(CONFIGS))
@settings(max_examples=6)
@given(steps=STEPS, writes_log=st.booleans())
def test_linked_commits_are_like_others(
    spec_version: int,
    name: str,
    steps: list[tuple[set[int], tuple[int, int], set[int]]],
    writes_log: bool,
) -> None:
    linked, plain = (make(spec_version, name, (12, WIDE)) for _ in range(2))
    checker = invariants.InvariantChecker()
    for mark, (rows, span, gone_rows) in enumerate(steps, start=1):
        table, gone = virtual_table(block(rows, span), mark), block(gone_rows - rows, (0, 5000))
        one, other = linked.begin(), plain.begin()
        node = nodes.require_array(other, "/a")
        chunks.put_refs(other, node, table)
        chunks.delete_chunks(other, node, gone)
        plain.commit(other)
        link(one, "/a", table, gone)
        assert run_blocking(held(one)) == run_blocking(held(plain.at(plain.tip())))
        pieces = np.array_split(table.coordinates, 3)
        writer = log_writer(one, "/a", gone, *pieces) if writes_log else None
        linked.commit(one, log_writer=writer)
        run_blocking(checker.check(linked.context.backend))
        after, expected = linked.at(linked.tip()), plain.at(plain.tip())
        assert run_blocking(held(after)) == run_blocking(held(expected))
        if name == "splitting":
            assert boxes(after) == boxes(expected)
        if writes_log:
            assert logged(linked, linked.tip()) == logged(plain, plain.tip())
    check_repository_blocking(linked.context.backend)


@pytest.mark.parametrize("spec_version", [1, 2])
@settings(max_examples=6)
@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4))
def test_appends_are_cut_as_if_all_had_been_written_at_once(
    spec_version: int, lengths: list[int]
) -> None:
    linked, whole = (make(spec_version, "nothing", (0, WIDE)) for _ in range(2))
    start = 0
    for mark, length in enumerate(lengths):
        session = linked.begin()
        linked.array(session, "/a", start + length, WIDE)
        rows = set(range(start, start + length))
        before = boxes(linked.at(linked.tip()))
        link(session, "/a", virtual_table(block(rows, (0, WIDE)), mark))
        linked.commit(session)
        start += length
        after = boxes(linked.at(linked.tip()))
        assert len(set(before) - set(after)) <= 1, "only the last part, which was not full"
    session = whole.begin()
    whole.array(session, "/a", start, WIDE)
    everything = virtual_table(block(set(range(start)), (0, WIDE)))
    chunks.put_refs(session, nodes.require_array(session, "/a"), everything)
    whole.commit(session)
    assert boxes(linked.at(linked.tip())) == boxes(whole.at(whole.tip()))
    check_repository_blocking(linked.context.backend)
