"""Rewriting manifests changes where references are, and nothing else."""

from collections.abc import Sequence
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
from icefloe.format.chunk_table import ChunkTable, concat_tables
from icefloe.format.columns import BytesColumn
from icefloe.format.ids import ManifestId
from icefloe.format.nodes import ArrayNode, ManifestRef, Node
from icefloe.format.snapshot import Snapshot
from icefloe.format.transaction_log import ID_LISTS
from icefloe.maintenance.layout.rewriting import Share, cut, rewrite_manifests
from icefloe.maintenance.layout.survey import Piece
from icefloe.manifests.packer import pack
from icefloe.manifests.partition import Blocks, GridLayout, HalvingLayout, Layout, layout_of
from icefloe.repo import lifecycle
from icefloe.repo.context import RepoContext
from icefloe.storage import Storage
from icefloe.transactions import chunks, nodes
from icefloe.transactions.commit import commit
from icefloe.transactions.manifest_writing import facts_of
from icefloe.transactions.session import SessionMode, SessionState, open_session
from tests.support.checking import check_repository
from tests.support.sides import array_json, group_json

SIZE = 12
INDICES = st.tuples(st.integers(0, SIZE - 1), st.integers(0, SIZE - 1))
SPLITS = st.tuples(st.integers(1, SIZE), st.integers(1, SIZE))


def inline_table(indices: Sequence[tuple[int, ...]], salt: int = 0) -> ChunkTable:
    """Give each chunk content of its own."""
    coordinates = np.array(sorted(indices), np.uint32).reshape(len(indices), 2)
    texts = [b"%d %d %d" % (salt, *one) for one in coordinates.tolist()]
    return ChunkTable.inlined(coordinates, BytesColumn.from_list(texts))


def grid(splits: tuple[int, int]) -> GridLayout:
    return GridLayout(tuple(range(size, SIZE, size) for size in splits))


LAYOUTS = st.one_of(
    SPLITS.map(grid),
    st.builds(HalvingLayout, st.permutations([0, 1]).map(tuple), st.integers(1, 40)),
)


def parts_of(table: ChunkTable, layout: Layout) -> list[ChunkTable]:
    nothing = Blocks(np.empty((0, 2, 2), np.int64), np.empty(0, np.int64))
    return [table.take(rows) for rows in layout.partition(table.coordinates, nothing).parts]


def by_first(tables: list[ChunkTable]) -> list[ChunkTable]:
    return sorted(tables, key=lambda table: table.coordinates[0].tolist())


@settings(max_examples=200)
@given(indices=st.sets(INDICES, min_size=1, max_size=80), before=LAYOUTS, after=LAYOUTS)
def test_cutting_pieces_is_cutting_all(
    indices: set[tuple[int, int]], before: Layout, after: Layout
) -> None:
    table = inline_table(list(indices))
    stored: dict[ManifestId, ChunkTable] = {}
    pieces = []
    for part in parts_of(table, before):
        box = tuple((int(first), int(last)) for first, last in part.extents())
        ref = ManifestRef(ManifestId.random(), box)
        stored[ref.id] = part
        pieces.append(Piece(ref, 1, box, len(part), len(part)))
    opened: list[ManifestId] = []

    async def open_(some: Sequence[Piece]) -> list[ChunkTable]:
        opened.extend(piece.manifest for piece in some)
        return [stored[piece.manifest] for piece in some]

    async def cut_all() -> list[tuple[bool, ChunkTable]]:
        return [
            (share.only_piece is not None, await share.table(open_))
            async for share in cut(Share(tuple(pieces)), after, open_)
        ]

    made = run_blocking(cut_all())
    assert by_first([part for _, part in made]) == by_first(parts_of(table, after))
    assert sorted(opened) == sorted(stored), "each is opened once"
    kept = [part for is_kept, part in made if is_kept]
    same = [part for part in parts_of(table, after) if part in stored.values()]
    assert by_first(kept) == by_first(same), "what is right already stays"


ARRAYS = ("/a", "/b", "/g/c", "/g/d")
CONFIGS = st.builds(
    lambda splits, sets: RepositoryConfig(manifest=splits, chunk_manifests=sets),
    st.none()
    | SPLITS.map(
        lambda splits: ManifestConfig(
            splitting=ManifestSplittingConfig.from_dict(
                {
                    ManifestSplitCondition.name_matches("[ac]"): {
                        ManifestSplitDimCondition.Axis(axis): size
                        for axis, size in enumerate(splits)
                    }
                }
            )
        )
    ),
    st.sampled_from(
        [
            None,
            ChunkManifestsConfig([ManifestSet("default", arrays_per_manifest=1)]),
            ChunkManifestsConfig(
                [ManifestSet("few", max_manifest_size=150, cardinality=1)],
                [ManifestRule("few", initialized_chunks=(0, 30))],
            ),
            ChunkManifestsConfig(
                [ManifestSet("all", max_manifest_size=10**6)], [ManifestRule("all")]
            ),
        ]
    ),
)
STEPS = st.lists(
    st.fixed_dictionaries(
        {
            "config": CONFIGS,
            "writes": st.dictionaries(st.sampled_from(ARRAYS), st.lists(INDICES, max_size=30)),
            "shape": SPLITS,
            "shrunk": st.sampled_from(ARRAYS),
        }
    ),
    min_size=1,
    max_size=3,
)


async def session_on(context: RepoContext) -> SessionState:
    tip = await context.ledger.branch_tip("main")
    return await open_session(context, tip, SessionMode.writable, branch="main")


async def furnish(context: RepoContext, steps: list[dict[str, Any]]) -> RepoContext:
    """Commit some changes, each under a configuration of its own."""
    for number, step in enumerate(steps):
        context = await lifecycle.reopen(context, step["config"])
        session = await session_on(context)
        if number == 0:
            nodes.put_metadata(session, "/g", group_json())
            for path in ARRAYS:
                nodes.put_metadata(session, path, array_json([SIZE, SIZE]))
        for path, indices in step["writes"].items():
            node = nodes.require_array(session, path)
            assert isinstance(node, ArrayNode)
            inside = [
                one
                for one in set(indices)
                if all(at < count for at, count in zip(one, node.array.num_chunks, strict=True))
            ]
            if inside:
                chunks.put_refs(session, node, inline_table(inside, number))
        nodes.put_metadata(session, step["shrunk"], array_json(list(step["shape"])))
        await commit(session, f"commit {number}", allow_empty=True)
    return context


type Stored = dict[str, dict[ManifestId, ChunkTable]]
"""The references of each array, by the manifest that they are in."""


async def stored_in(context: RepoContext) -> Stored:
    """Read all references from the files."""
    session = await session_on(context)
    found: Stored = {}
    for path in ARRAYS:
        node = nodes.require_array(session, path)
        assert isinstance(node, ArrayNode)
        extents = np.array([(0, count) for count in node.array.num_chunks], np.uint32)
        found[path] = {}
        for ref in node.array.manifests:
            table = (await context.assets.load_manifest(ref.id)).table(node.id)
            if len(table) and len(inside := table.within(extents)):
                found[path][ref.id] = inside
    return found


def united(stored: Stored) -> dict[str, ChunkTable]:
    return {path: concat_tables(list(parts.values())) for path, parts in stored.items() if parts}


async def wanted_layout(context: RepoContext) -> set[frozenset[tuple[str, int]]]:
    """Say which references belong into one manifest: paths, each with its number of a part."""
    session = await session_on(context)
    tables = united(await stored_in(context))
    wholes, manifests = {}, set[frozenset[tuple[str, int]]]()
    for path, table in tables.items():
        node = nodes.require_array(session, path)
        parts = parts_of(table, layout_of(node, context.config.manifest.split_sizes))
        if len(parts) == 1:
            wholes[node.id] = (path, facts_of(node, len(table)))
        else:
            manifests |= {frozenset({(path, number)}) for number in range(len(parts))}
    plans = pack([facts for _, facts in wholes.values()], context.config.chunk_manifests)
    return manifests | {frozenset((wholes[one][0], 0) for one in plan.arrays) for plan in plans}


async def actual_layout(context: RepoContext) -> set[frozenset[tuple[str, int]]]:
    session = await session_on(context)
    contents: dict[ManifestId, set[tuple[str, int]]] = {}
    for path, stored in (await stored_in(context)).items():
        if not stored:
            continue
        node = nodes.require_array(session, path)
        table = concat_tables(list(stored.values()))
        parts = parts_of(table, layout_of(node, context.config.manifest.split_sizes))
        for manifest, part in stored.items():
            contents.setdefault(manifest, set()).add((path, parts.index(part)))
    return {frozenset(some) for some in contents.values()}


@pytest.mark.parametrize("spec_version", [1, 2])
@settings(max_examples=40)
@given(steps=STEPS, config=CONFIGS)
def test_the_same_references_as_the_configuration_wants_them(
    spec_version: int, steps: list[dict[str, Any]], config: RepositoryConfig
) -> None:
    async def play() -> None:
        storage = Storage.new_in_memory()
        context = await lifecycle.create(storage, spec_version=spec_version)
        context = await furnish(context, steps)
        before = await stored_in(context)
        tip = await context.assets.load_snapshot(await context.ledger.branch_tip("main"))

        context = await lifecycle.reopen(context, config)
        seen: list[tuple[int, int]] = []
        new = await rewrite_manifests(
            context, "rewrite", branch="main", on_progress=lambda *done: seen.append(done)
        )
        await check_repository(context.backend)
        after = await stored_in(context)
        assert united(after) == united(before)
        assert await actual_layout(context) == await wanted_layout(context)
        total = sum(len(table) for table in united(before).values())
        assert all(seen == (total, total) for seen in seen[-1:])
        assert [done for done, _ in seen] == sorted(done for done, _ in seen)

        log = await context.assets.load_transaction_log(new)
        assert len(log.updated_chunks) == 0
        assert all(len(getattr(log, name)) == 0 for name in ID_LISTS)
        snapshot = await context.assets.load_snapshot(new)
        assert snapshot.nodes.paths.to_list() == tip.nodes.paths.to_list()
        assert [n.user_data for n in _nodes(snapshot)] == [n.user_data for n in _nodes(tip)]

        again = await rewrite_manifests(context, "again", branch="main")
        files = (await context.assets.load_snapshot(again)).manifests
        assert files.ids.tolist() == snapshot.manifests.ids.tolist(), "nothing is left to do"

    run_blocking(play())


def _nodes(snapshot: Snapshot) -> list[Node]:
    return [snapshot.nodes.node(row) for row in range(len(snapshot.nodes))]
