"""Manifests stay right, tight and apart through any history of writes, deletes and resizes."""

import json
from itertools import combinations
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
from icefloe.format.nodes import ArrayNode
from icefloe.repo import lifecycle
from icefloe.repo.context import RepoContext
from icefloe.storage import Storage
from icefloe.transactions.array_changes import Index
from icefloe.transactions.chunks import delete_chunk, read_chunk, write_chunk
from icefloe.transactions.commit import commit
from icefloe.transactions.nodes import put_metadata, require_array
from icefloe.transactions.session import SessionMode, SessionState, open_session
from tests.support.checking import check_repository

INDICES = st.tuples(st.integers(0, 5), st.integers(0, 5))
COMMITS = st.lists(
    st.fixed_dictionaries(
        {
            "splits": st.tuples(st.integers(1, 7), st.integers(1, 7)),
            "shape": st.tuples(st.integers(0, 6), st.integers(0, 6)),
            "writes": st.lists(INDICES, max_size=12),
            "deletes": st.lists(INDICES, max_size=4),
        }
    ),
    min_size=1,
    max_size=5,
)


def _metadata(shape: Index) -> bytes:
    return json.dumps(
        {
            "zarr_format": 3,
            "node_type": "array",
            "shape": shape,
            "data_type": "uint8",
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1] * len(shape)}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": 0,
            "codecs": [{"name": "bytes"}],
        }
    ).encode()


def _splitting(splits: Index) -> RepositoryConfig:
    sizes = {ManifestSplitDimCondition.Axis(axis): size for axis, size in enumerate(splits)}
    rules = {ManifestSplitCondition.AnyArray(): sizes}
    return RepositoryConfig(
        manifest=ManifestConfig(splitting=ManifestSplittingConfig.from_dict(rules))
    )


def _session(context: RepoContext) -> SessionState:
    tip = run_blocking(context.ledger.branch_tip("main"))
    return run_blocking(open_session(context, tip, SessionMode.writable, branch="main"))


def _check(context: RepoContext, model: dict[Index, bytes]) -> None:
    run_blocking(check_repository(context.backend))
    session = _session(context)
    node = require_array(session, "/x")
    assert isinstance(node, ArrayNode)
    for index in np.ndindex(7, 7):
        assert run_blocking(read_chunk(session, node, index)) == model.get(index)
    boxes = [ref.extents for ref in session.tree.manifests(node)]
    for box in boxes:
        held = [i for i in model if all(a <= at < b for at, (a, b) in zip(i, box, strict=True))]
        tight = tuple((min(at), max(at) + 1) for at in zip(*held, strict=True))
        assert tight == box
    for one, other in combinations(boxes, 2):
        meets = all(a < d and c < b for (a, b), (c, d) in zip(one, other, strict=True))
        assert not meets


@pytest.mark.parametrize("spec_version", [1, 2])
@settings(max_examples=40)
@given(commits=COMMITS)
def test_any_history_reads_back(spec_version: int, commits: list[dict[str, Any]]) -> None:
    storage = Storage.new_in_memory()
    context = run_blocking(lifecycle.create(storage, spec_version=spec_version))
    model: dict[Index, bytes] = {}
    for number, step in enumerate(commits):
        splits, shape = step["splits"], step["shape"]
        context = run_blocking(lifecycle.reopen(context, _splitting(splits)))
        session = _session(context)
        put_metadata(session, "/x", _metadata(shape))
        node = require_array(session, "/x")
        model = {i: v for i, v in model.items() if i[0] < shape[0] and i[1] < shape[1]}
        for index in step["writes"]:
            if index[0] < shape[0] and index[1] < shape[1]:
                model[index] = b"%d %d %d" % (number, *index)
                run_blocking(write_chunk(session, node, index, model[index]))
        for index in step["deletes"]:
            model.pop(index, None)
            delete_chunk(session, node, index)
        run_blocking(commit(session, f"commit {number}", allow_empty=True))
        _check(context, model)


def test_only_touched_manifests_are_rewritten() -> None:
    storage = Storage.new_in_memory()
    context = run_blocking(lifecycle.create(storage, _splitting((2, 6))))
    session = _session(context)
    put_metadata(session, "/x", _metadata((6, 6)))
    node = require_array(session, "/x")
    for index in np.ndindex(6, 6):
        run_blocking(write_chunk(session, node, index, b"old"))
    run_blocking(commit(session, "all"))
    before = session.tree.manifests(require_array(session, "/x"))
    assert [ref.extents for ref in before] == [
        ((0, 2), (0, 6)),
        ((2, 4), (0, 6)),
        ((4, 6), (0, 6)),
    ]
    session = _session(context)
    run_blocking(write_chunk(session, node, (3, 3), b"new"))
    run_blocking(commit(session, "one"))
    after = session.tree.manifests(require_array(session, "/x"))
    assert set(before) & set(after) == {before[0], before[2]}
    assert len(after) == 3
