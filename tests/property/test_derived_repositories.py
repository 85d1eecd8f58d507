"""Updates of a derived repository lead to what is made from scratch, whatever its provider did."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import icechunk
import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

import icefloe
from icefloe.api.session import state_of
from icefloe.catalog.model import Filter
from icefloe.config import (
    ManifestConfig,
    ManifestSplitCondition,
    ManifestSplitDimCondition,
    ManifestSplittingConfig,
    RepositoryConfig,
)
from icefloe.effects import run_blocking
from icefloe.format.chunk_table import ChunkTable, concat_tables
from icefloe.format.nodes import ArrayNode
from icefloe.service.derivation import Plan, Provider, Side, derive
from icefloe.transactions.chunks import chunk_tables

pytestmark = pytest.mark.interop
NAME = "icefloe-provider"
PREFIX = f"vcc://{NAME}/"
WIDTH = 6
ARRAYS = ("heat", "rain", "drops")
FILTERS: tuple[tuple[Filter | None, Filter | None], ...] = (
    (None, None),
    (None, Filter(("/sea/heat", "/sea/time"))),
    (None, Filter(ranges={"time": (4.0, 17.0)})),
    (None, Filter(("/sea",), {"time": (4.0, None)})),
    (Filter(ranges={"time": (None, 9.0)}), None),
    (Filter(("/sea",), {"time": (3.0, 14.0)}), Filter(ranges={"time": (5.0, None)})),
    (None, Filter(ranges={"time": (100.0, None)})),
)
DAYS = st.integers(0, 14)
STEPS = st.one_of(
    st.tuples(st.just("write"), st.sampled_from(ARRAYS), DAYS, DAYS),
    st.tuples(st.just("clear"), st.sampled_from(ARRAYS), DAYS, DAYS),
    st.tuples(st.just("resize"), st.integers(1, 15)),
    st.tuples(st.just("shift"), st.integers(0, 12)),
    st.tuples(st.just("create"), st.sampled_from(ARRAYS), st.sampled_from([2, 3])),
    st.tuples(st.just("delete"), st.sampled_from(ARRAYS)),
    st.tuples(st.just("move"), st.sampled_from(ARRAYS), st.sampled_from(ARRAYS)),
    st.tuples(st.just("describe"), st.sampled_from((*ARRAYS, "time")), st.integers(0, 3)),
    st.tuples(st.just("rewrite")),
    st.tuples(st.just("reset"), st.integers(1, 3)),
    st.tuples(st.just("expire")),
    st.tuples(st.just("choose"), st.sampled_from(FILTERS)),
)
HISTORIES = st.lists(st.lists(STEPS, min_size=1, max_size=4), min_size=1, max_size=4)


def splitting() -> RepositoryConfig:
    """Make manifests of few chunks, and few chunks inline."""
    sizes = {ManifestSplitDimCondition.Axis(0): 2}
    rules = {ManifestSplitCondition.AnyArray(): sizes}
    manifests = ManifestConfig(splitting=ManifestSplittingConfig.from_dict(rules))
    return RepositoryConfig(manifest=manifests, inline_chunk_threshold_bytes=24)


class History:
    """A repository with two arrays along a coordinate, and what may happen to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.storage = icefloe.local_filesystem_storage(str(folder))
        self.repository = icefloe.Repository.create(self.storage, splitting())
        self.origin = Provider("them", self.repository)
        self.rng = np.random.default_rng(1)
        with self.changing() as sea:
            time = sea.create_array(
                "time", shape=(8,), chunks=(3,), dtype="i8", dimension_names=("time",)
            )
            time[:] = np.arange(8)
        for array in ("heat", "rain"):
            self.create(array, 2)
            self.write(array, 0, 8)

    @contextmanager
    def changing(self) -> Iterator[Any]:
        session = self.repository.writable_session("main")
        root = zarr.open_group(session.store)
        yield root.require_group("sea")
        session.commit("a change", allow_empty=True)

    def names(self) -> set[str]:
        group = zarr.open_group(self.repository.readonly_session("main").store, mode="r")
        return set(group["sea"].array_keys())  # type: ignore[union-attr]

    def do(self, step: tuple[Any, ...]) -> None:
        name, *arguments = step
        needs_array = bool(arguments) and isinstance(arguments[0], str) and name != "create"
        if not needs_array or arguments[0] in self.names():
            getattr(self, name)(*arguments)

    def write(self, array: str, first: int, last: int) -> None:
        with self.changing() as sea:
            days = sea[array][first:last].shape
            sea[array][first:last] = self.rng.integers(1, 1000, days)

    def clear(self, array: str, first: int, last: int) -> None:
        with self.changing() as sea:
            sea[array][first:last] = 0

    def resize(self, days: int) -> None:
        with self.changing() as sea:
            start = int(sea["time"][0])
            for _, array in sea.arrays():
                array.resize((days, *array.shape[1:]))
            sea["time"][:] = start + np.arange(days)

    def shift(self, start: int) -> None:
        with self.changing() as sea:
            sea["time"][:] = start + np.arange(sea["time"].shape[0])

    def create(self, array: str, chunk: int) -> None:
        with self.changing() as sea:
            days = sea["time"].shape[0]
            sea.create_array(
                array,
                shape=(days, WIDTH),
                chunks=(chunk, 3),
                dtype="i8",
                dimension_names=("time", "x"),
                compressors=None,
                overwrite=True,
            )[: days // 2] = self.rng.integers(1, 1000)

    def delete(self, array: str) -> None:
        with self.changing() as sea:
            del sea[array]

    def move(self, array: str, other: str) -> None:
        if other in self.names():
            return
        session = self.repository.rearrange_session("main")
        session.move(f"/sea/{array}", f"/sea/{other}")
        session.commit("a move")

    def describe(self, array: str, number: int) -> None:
        with self.changing() as sea:
            sea[array].attrs["number"] = number
            sea.attrs["number"] = number

    def rewrite(self) -> None:
        self.repository.rewrite_manifests("other manifests", branch="main")

    def reset(self, back: int) -> None:
        versions = list(self.repository.ancestry(branch="main"))[:-4]
        if versions:
            self.repository.reset_branch("main", versions[min(back, len(versions) - 1)].id)

    def expire(self) -> None:
        later = datetime.now(UTC) + timedelta(days=1)
        self.repository.expire_snapshots(later)
        self.repository.garbage_collect(later)

    def derived(self, folder: Path) -> Side:
        """Describe a repository that refers to this one."""
        config = splitting()
        place = str(self.folder / "chunks")
        store = icefloe.local_filesystem_store(place)
        config.set_virtual_chunk_container(
            icefloe.VirtualChunkContainer(f"file://{place}/", store, NAME)
        )
        return Side(icefloe.local_filesystem_storage(str(folder)), config, {})


def contents(side: Side) -> dict[str, tuple[bytes, ChunkTable | None]]:
    """Read the metadata and the references of all nodes."""
    state = state_of(icefloe.Repository.open(side.storage).readonly_session("main"))

    async def table(node: ArrayNode) -> ChunkTable:
        tables = [t async for t in chunk_tables(state, node)]
        return concat_tables(tables) if tables else ChunkTable.empty(len(node.array.shape))

    return {
        node.path: (
            node.user_data,
            run_blocking(table(node)) if isinstance(node, ArrayNode) else None,
        )
        for node in state.tree.below("/")
    }


def require_same(side: Side, scratch: Side, plan: Plan) -> None:
    ours, expected = contents(side), contents(scratch)
    assert ours.keys() == expected.keys()
    for path, (metadata, table) in ours.items():
        assert metadata == expected[path][0]
        if path not in plan.copied:  # of which the bytes behind the end may differ
            assert table == expected[path][1], path


def read_with_reference(folder: Path, provider: History) -> dict[str, Any]:
    place = f"file://{provider.folder / 'chunks'}/"
    repository = icechunk.Repository.open(
        icechunk.local_filesystem_storage(str(folder)),
        authorize_virtual_chunk_access={place: icechunk.credentials.LocalFileSystemAccess},
    )
    group = zarr.open_group(repository.readonly_session("main").store, mode="r")
    members = group.members(max_depth=None)
    return {path: member[:] for path, member in members if isinstance(member, zarr.Array)}


@settings(max_examples=25)
@given(HISTORIES, st.sampled_from(FILTERS))
def test_an_update_equals_a_repository_from_scratch(
    history: list[list[tuple[Any, ...]]], filters: tuple[Filter | None, Filter | None]
) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        provider = History(folder / "provider")
        side = provider.derived(folder / "derived")
        for number, steps in enumerate([[], *history]):
            for step in steps:
                if step[0] == "choose":
                    filters = step[1]
                else:
                    provider.do(step)
            arguments = (*filters, PREFIX, "an update")
            derive(provider.origin, side, *arguments)
            scratch = provider.derived(folder / f"scratch-{number}")
            derive(provider.origin, scratch, *arguments)
            plan = Plan.of(provider.repository.readonly_session("main"), *filters)
            require_same(side, scratch, plan)
        ours = read_with_reference(folder / "derived", provider)
        expected = read_with_reference(folder / f"scratch-{len(history)}", provider)
        assert ours.keys() == expected.keys()
        for path, values in ours.items():
            np.testing.assert_array_equal(values, expected[path])


def test_an_update_writes_only_touched_manifests(tmp_path: Path) -> None:
    provider = History(tmp_path / "provider")
    provider.resize(40)
    provider.write("heat", 0, 40)
    side = provider.derived(tmp_path / "derived")
    arguments = (None, Filter(("/sea/heat", "/sea/time")), PREFIX, "an update")
    derive(provider.origin, side, *arguments)
    before = {path.name for path in (tmp_path / "derived/manifests").iterdir()}
    provider.write("heat", 20, 21)
    provider.write("rain", 0, 40)
    followed = derive(provider.origin, side, *arguments)
    assert (followed.written, followed.kept, followed.references) == (1, 1, 2)
    after = {path.name for path in (tmp_path / "derived/manifests").iterdir()}
    assert len(before) > 10
    assert len(after - before) == 1


def test_without_the_followed_version_only_differences_are_written(tmp_path: Path) -> None:
    provider = History(tmp_path / "provider")
    side = provider.derived(tmp_path / "derived")
    arguments = (None, None, PREFIX, "an update")
    derive(provider.origin, side, *arguments)
    provider.write("heat", 2, 4)
    provider.expire()
    followed = derive(provider.origin, side, *arguments)
    assert (followed.written, followed.kept, followed.references) == (1, 2, 2)
