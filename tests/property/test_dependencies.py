"""Dependencies of random repositories agree with looking at every chunk of every version."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import unquote

import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.core.buffer import default_buffer_prototype

import icefloe
from icefloe.effects import run_blocking
from icefloe.format.chunk_table import VirtualChunk
from icefloe.format.nodes import ArrayNode
from icefloe.transactions.chunks import find_ref
from tests.support.checking import check_repository_blocking

CONTAINERS = {
    "s3://bucket/": ("wide", icefloe.s3_store(region="us-east-1")),
    "s3://bucket/deep/": ("narrow", icefloe.s3_store(region="us-east-1")),
    "gs://google/": (None, icefloe.gcs_store()),
}
LOCATIONS = [
    "s3://bucket/a.nc",
    "s3://bucket/deep/a.nc",
    "s3://bucket/deep/er/b.nc",
    "s3://bucket/deep/er/b%2Enc",
    "s3://bucket-evil/a.nc",
    "vcc://wide/deep/c.nc",
    "vcc://narrow/er/b.nc",
    "vcc://nobody/d.nc",
    "gs://google/x/y/z.nc",
    "gcs://google/x/y/z.nc",
    "https://Example.org:443/data.nc?token=secret",
    "file:///data/ä b.nc",
]
LARGEST_GRID = 6
PROTOTYPE = default_buffer_prototype()
ARRAYS = ("a", "b/c")

locations = st.sampled_from(range(len(LOCATIONS)))
arrays = st.sampled_from(ARRAYS)
indices = st.integers(0, LARGEST_GRID - 1)
operations = st.one_of(
    st.tuples(st.just("set"), arrays, indices, locations, st.integers(1, 10**6)),
    st.tuples(st.just("fill"), arrays, locations),
    st.tuples(st.just("native"), arrays, indices),
    st.tuples(st.just("delete"), arrays, indices),
    st.tuples(st.just("drop"), arrays),
    st.tuples(st.just("resize"), arrays, st.integers(1, LARGEST_GRID)),
    st.tuples(st.just("commit")),
    st.tuples(st.just("branch_off")),
    st.tuples(st.just("switch"), st.integers(0, 3)),
    st.tuples(st.just("tag")),
)


@dataclass
class Random:
    """A repository to which random things are done."""

    spec_version: int
    split: int
    branches: list[str] = field(default_factory=lambda: ["main"])
    branch: str = "main"
    tags: int = 0

    def __post_init__(self) -> None:
        config = icefloe.RepositoryConfig.default()
        for prefix, (name, store) in CONTAINERS.items():
            config.set_virtual_chunk_container(icefloe.VirtualChunkContainer(prefix, store, name))
        size = {icefloe.ManifestSplitDimCondition.Any(): self.split}
        config.manifest = icefloe.ManifestConfig(
            splitting=icefloe.ManifestSplittingConfig.from_dict(
                {icefloe.ManifestSplitCondition.AnyArray(): size}
            )
        )
        config.inline_chunk_threshold_bytes = 0
        storage = icefloe.in_memory_storage()
        self.repository = icefloe.Repository.create(storage, config, spec_version=self.spec_version)
        self.session = self.repository.writable_session("main")

    def do(self, operation: tuple[Any, ...]) -> None:
        name, *arguments = operation
        getattr(self, name)(*arguments)

    def set(self, array: str, index: int, location: int, length: int) -> None:
        self.create(array)
        self.put(array, index, location, length)

    def fill(self, array: str, location: int) -> None:
        self.create(array)
        for index in range(LARGEST_GRID):
            self.put(array, index, (location + index // 2) % len(LOCATIONS), 10)

    def native(self, array: str, index: int) -> None:
        self.create(array)
        zarr.open_array(self.session.store, path=array)[index : index + 1] = 1

    def delete(self, array: str, index: int) -> None:
        self.session.store.delete_sync(f"{array}/c/{index}")

    def drop(self, array: str) -> None:
        self.session.store.delete_sync(f"{array}/zarr.json")

    def resize(self, array: str, size: int) -> None:
        """Change the shape and leave the chunks that are outside of it where they are."""
        self.create(array)
        found = self.session.store.get_sync(f"{array}/zarr.json", prototype=PROTOTYPE)
        assert found is not None
        metadata = json.loads(found.to_bytes()) | {"shape": [size]}
        buffer = PROTOTYPE.buffer.from_bytes(json.dumps(metadata).encode())
        self.session.store.set_sync(f"{array}/zarr.json", buffer)

    def tag(self) -> None:
        self.tags += 1
        tip = self.repository.lookup_branch(self.branch)
        self.repository.create_tag(f"tag{self.tags}", tip)

    def branch_off(self) -> None:
        self.commit()
        name = f"branch{len(self.branches)}"
        self.repository.create_branch(name, self.repository.lookup_branch(self.branch))
        self.branches.append(name)
        self.go_to(name)

    def switch(self, number: int) -> None:
        self.commit()
        self.go_to(self.branches[number % len(self.branches)])

    def create(self, array: str) -> None:
        if self.shape(array) is None:
            zarr.create_array(
                self.session.store, name=array, shape=LARGEST_GRID, chunks=1, dtype="i4"
            )

    def shape(self, array: str) -> int | None:
        found = self.session.store.get_sync(f"{array}/zarr.json", prototype=PROTOTYPE)
        return None if found is None else int(json.loads(found.to_bytes())["shape"][0])

    def put(self, array: str, index: int, location: int, length: int) -> None:
        size = self.shape(array)
        assert size is not None
        if index < size:
            self.session.store.set_virtual_ref(
                f"{array}/c/{index}",
                LOCATIONS[location],
                offset=0,
                length=length,
                validate_container=False,
            )

    def commit(self) -> None:
        if self.session.has_uncommitted_changes:
            self.session.commit("some changes")
        self.session = self.repository.writable_session(self.branch)

    def go_to(self, branch: str) -> None:
        self.branch = branch
        self.session = self.repository.writable_session(branch)


type Chunk = tuple[str, str, int]
"""Array, location and length."""
type Row = tuple[int, int, int, int, str, str]


def chunks_of(repository: icefloe.Repository, snapshot: str) -> list[Chunk]:
    """Look up every chunk of a version by itself."""
    session = repository.readonly_session(snapshot_id=snapshot)._session
    found = []
    for node in session.tree.below("/"):
        if isinstance(node, ArrayNode):
            for index in range(node.array.num_chunks[0]):
                ref = run_blocking(find_ref(session, node, (index,)))
                if isinstance(ref, VirtualChunk):
                    found.append((node.path, ref.location, ref.length))
    return found


def history(repository: icefloe.Repository, **version: str) -> list[str]:
    return [each.id for each in repository.ancestry(**version)]


def every_version(repository: icefloe.Repository) -> list[str]:
    """List all versions, newest first."""
    known = {
        each.id: each.written_at
        for tip in (
            *({"branch": name} for name in repository.list_branches()),
            *({"tag": name} for name in repository.list_tags()),
        )
        for each in repository.ancestry(**tip)
    }
    return sorted(known, key=lambda one: known[one], reverse=True)


def absolute(location: str) -> str:
    names = {name: prefix for prefix, (name, _) in CONTAINERS.items() if name}
    scheme, _, rest = location.partition("://")
    name, _, path = rest.partition("/")
    return names[name] + path if scheme == "vcc" and name in names else location


def canonical(location: str) -> str:
    text = unquote(absolute(location).partition("?")[0])
    return text.replace("https://Example.org:443", "https://example.org")


def container_of(location: str) -> str:
    """Find the container by plain comparison of text: all prefixes here end in a slash."""
    named = {f"vcc://{name}/": prefix for prefix, (name, _) in CONTAINERS.items() if name}
    for head, prefix in named.items():
        if location.startswith(head):
            return prefix
    text = canonical(location).replace("gcs://", "gs://")
    fitting = [prefix for prefix in CONTAINERS if text.startswith(prefix)]
    return max(fitting, key=len, default="(no container)")


def folder_of(location: str, depth: int) -> str:
    scheme, _, rest = canonical(location).partition("://")
    host, *segments = rest.split("/")
    return "/".join([f"{scheme}://{host}", *segments[:-1][:depth], ""])


PLACES: dict[str, Callable[[str, str], str]] = {
    "file": lambda array, location: canonical(location),
    "bucket": lambda array, location: folder_of(location, 0)[:-1],
    "prefix": lambda array, location: folder_of(location, 2),
    "container": lambda array, location: container_of(location),
    "array": lambda array, location: array,
}


def expected(
    versions: Iterable[tuple[str, list[Chunk]]], by: str, keep: Any = lambda location: True
) -> dict[str, Row]:
    """Sum up chunk by chunk; versions come newest first."""
    rows: dict[str, Row] = {}
    for snapshot, chunks in versions:
        places: dict[str, list[Chunk]] = {}
        for chunk in chunks:
            if keep(canonical(chunk[1])):
                places.setdefault(PLACES[by](chunk[0], chunk[1]), []).append(chunk)
        for place, found in places.items():
            if place in rows:
                count, size, owners, seen, newest, _ = rows[place]
                rows[place] = (count, size, owners, seen + 1, newest, snapshot)
            else:
                size = sum(length for _, _, length in found)
                owners = len({array for array, _, _ in found})
                rows[place] = (len(found), size, owners, 1, snapshot, snapshot)
    return rows


def found(repository: icefloe.Repository, by: Any, **options: Any) -> dict[str, Row]:
    rows = list(repository.virtual_dependencies(by, depth=2, **options))
    assert [row.bytes for row in rows] == sorted((row.bytes for row in rows), reverse=True)
    given = {
        row.place: (
            row.chunks,
            row.bytes,
            row.arrays,
            row.versions,
            row.newest_snapshot,
            row.oldest_snapshot,
        )
        for row in rows
    }
    assert len(given) == len(rows)
    return given


@given(
    spec_version=st.sampled_from([1, 2]),
    split=st.integers(1, 4),
    todo=st.lists(operations, min_size=1, max_size=25),
)
def test_summaries_agree_with_looking_at_every_chunk(
    spec_version: int, split: int, todo: list[tuple[Any, ...]]
) -> None:
    made = Random(spec_version, split)
    for operation in todo:
        made.do(operation)
    made.commit()
    check_repository_blocking(made.repository.storage.open())
    repository = made.repository.reopen()  # with nothing in its caches
    versions = every_version(repository)
    chunks = {snapshot: chunks_of(repository, snapshot) for snapshot in versions}

    everything = [(snapshot, chunks[snapshot]) for snapshot in versions]
    tip = repository.lookup_branch(made.branch)
    line = [(snapshot, chunks[snapshot]) for snapshot in history(repository, branch=made.branch)]
    for by in ("file", "bucket", "prefix", "container"):
        assert found(repository, by, all_versions=True) == expected(everything, by)
        assert found(repository, by, snapshot_id=tip) == expected(line[:1], by)
        assert found(repository, by, branch=made.branch, all_versions=True) == expected(line, by)
    assert found(repository, "array", snapshot_id=tip) == expected(line[:1], "array")
    some = expected(everything, "file", lambda text: text.startswith("s3://bucket/"))
    assert found(repository, "file", all_versions=True, prefix="s3://bucket") == some
    some = expected(everything, "bucket", lambda text: fnmatchcase(text, "*/[ab].nc"))
    assert found(repository, "bucket", all_versions=True, glob="**/[ab].nc") == some


@settings(max_examples=30)
@given(todo=st.lists(operations, min_size=1, max_size=25))
def test_locations_of_a_session_are_those_of_its_chunks(todo: list[tuple[Any, ...]]) -> None:
    made = Random(2, 2)
    for operation in todo:
        made.do(operation)
    for session in (made.session, made.repository.readonly_session("main")):
        state = session._session
        one_by_one = [
            ref.location
            for node in state.tree.below("/")
            if isinstance(node, ArrayNode)
            for index in range(node.array.num_chunks[0])
            if isinstance(ref := run_blocking(find_ref(state, node, (index,))), VirtualChunk)
        ]
        every = [*map(absolute, one_by_one)]
        assert sorted(session.all_virtual_chunk_locations()) == sorted(every)
        batches = list(session.virtual_chunk_locations(distinct=False, batch_size=3))
        assert all(0 < len(batch) <= 3 for batch in batches)
        assert [one for batch in batches for one in batch] == session.all_virtual_chunk_locations()
        distinct = [one for batch in session.virtual_chunk_locations() for one in batch]
        assert sorted(distinct) == sorted(set(every))
        chosen = [
            one
            for batch in session.virtual_chunk_locations(prefix="s3://bucket/deep", arrow=True)
            for one in batch.to_pylist()
        ]
        assert sorted(chosen) == sorted(
            {one for one in every if canonical(one).startswith("s3://bucket/deep/")}
        )


def test_the_operations_make_what_matters() -> None:
    """Guard against a generator that never makes several versions with shared manifests."""
    made = Random(2, 2)
    for operation in (
        ("fill", "a", 0),
        ("commit",),
        ("set", "b/c", 1, 2, 5),
        ("branch_off",),
        ("set", "a", 0, 3, 7),
        ("switch", 0),
        ("resize", "a", 2),
        ("commit",),
    ):
        made.do(operation)
    manifests = [
        {one.id for one in made.repository.list_manifest_files(snapshot)}
        for snapshot in every_version(made.repository)
    ]
    assert len(manifests) == 5
    assert manifests[0] & manifests[1]
    assert len(chunks_of(made.repository, made.repository.lookup_branch("main"))) == 3


@pytest.mark.parametrize("by", ["container", "file", "array"])
def test_a_repository_without_virtual_chunks_needs_nothing(by: Any) -> None:
    made = Random(2, 2)
    made.do(("native", "a", 0))
    made.commit()
    assert len(made.repository.virtual_dependencies(by, all_versions=True)) == 0
