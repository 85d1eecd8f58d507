"""Zarr's state machines on the store of a session, which commits now and then.

The machine of hierarchies compares listings except for the folder `c` of an array, which our store
lists before the first chunk is written, as the reference does. The machine of keys and values draws
keys and values that a hierarchy can have.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

import pytest
import zarr
from hypothesis import assume, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    precondition,
    rule,
    run_state_machine_as_test,
)
from zarr.core.buffer import cpu
from zarr.testing.stateful import ZarrHierarchyStateMachine, ZarrStoreStateMachine

from icefloe.storage import Storage, in_memory_storage, local_filesystem_storage
from icefloe.transactions.packing import PackingOptions
from icefloe.zarr_store.keys import ChunkKey, MetadataKey, metadata_key, parse_key
from tests.conformance.zarr_sessions import (
    GROUP,
    array_document,
    begin,
    commit_and_begin,
    new_repository,
)

# Zarr's machine draws data types of all kinds; what it says of some is not about stores.
pytestmark = pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")

RUNS = settings(max_examples=10, stateful_step_count=30)
PIPELINES = ["BatchedCodecPipeline", "FusedCodecPipeline"]
SIDE = 3

ARRAYS = {"/": 0, "/a": 1, "/a/b": 2, "/c": 1, "/c/c": 2, "/group/x": 1}
"""Arrays that keys may belong to, and their dimensions; some lie below others on purpose."""


@st.composite
def hierarchy_keys(draw: st.DrawFn) -> str:
    """Draw keys of metadata and of chunks."""
    path = draw(st.sampled_from([*ARRAYS, "/group"]))
    if path == "/group" or draw(st.booleans()):
        return metadata_key(path)
    index = draw(st.tuples(*[st.integers(0, SIDE - 1)] * ARRAYS[path]))
    return "/".join([*path.split("/")[1:], "c", *map(str, index)]).lstrip("/")


def path_of(key: str) -> str:
    """Return the path of the node that a key of the model belongs to."""
    parsed = parse_key(key)
    assert isinstance(parsed, MetadataKey | ChunkKey)
    return parsed.path


class KeyMachine(ZarrStoreStateMachine):
    """Keys and values, as long as they belong to a hierarchy."""

    def __init__(self, storage: Storage, spec_version: int, packing: PackingOptions | None) -> None:
        self.context = new_repository(storage, spec_version)
        self.packing = packing
        self.owner = begin(self.context, packing=packing)
        super().__init__(self.owner.store)

    def put(self, key: str, value: bytes) -> None:
        data = cpu.Buffer.from_bytes(value)
        self.store.set(key, data)
        self.model[key] = data

    @rule(key=hierarchy_keys(), data=st.one_of(st.binary(min_size=1), st.just(b"long" * 500)))
    def set(self, key: str, data: bytes) -> None:
        parsed = parse_key(key)
        if isinstance(parsed, ChunkKey):
            document = metadata_key(parsed.path)
            if document not in self.model:
                self.put(document, array_document((SIDE,) * ARRAYS[parsed.path]))
            self.put(key, data)
        elif parsed == MetadataKey("/group"):
            self.put(key, json.dumps(json.loads(GROUP) | {"attributes": data.hex()}).encode())
        else:
            assert isinstance(parsed, MetadataKey)
            shape = (SIDE,) * ARRAYS[parsed.path]
            self.put(key, array_document(shape, value=data.hex()))

    @rule(key=hierarchy_keys(), data=st.data())
    def get_invalid_zarr_keys(self, key: str, data: st.DataObject) -> None:
        assume(key not in self.model)
        assert self.store.get(key, self.prototype) is None

    @rule(key=hierarchy_keys())
    def exists(self, key: str) -> None:
        assert self.store.exists(key) == (key in self.model)

    @precondition(lambda self: len(self.model) > 0)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        """Delete a key; the metadata of a node goes with all that is below it."""
        key = data.draw(st.sampled_from(sorted(self.model)))
        self.store.delete(key)
        gone = {key}
        if isinstance(node := parse_key(key), MetadataKey):
            # Not by how keys begin: `c/c/0` may be of the array `/c`, which is not below `/c/c`.
            below = node.path.rstrip("/") + "/"
            paths = {document: path_of(document) for document in self.model}
            gone = {
                document
                for document, path in paths.items()
                if f"{path.rstrip('/')}/".startswith(below)
            }
        self.model = {each: value for each, value in self.model.items() if each not in gone}

    @rule()
    def commit(self) -> None:
        note("(commit)")
        self.owner = commit_and_begin(self.context, self.owner.state, self.packing)
        self.store.store = self.owner.store


class HierarchyMachine(ZarrHierarchyStateMachine):
    """Groups and arrays through Zarr itself."""

    def __init__(self, storage: Storage, spec_version: int, packing: PackingOptions | None) -> None:
        self.context = new_repository(storage, spec_version)
        self.packing = packing
        self.owner = begin(self.context, packing=packing)
        super().__init__(self.owner.store)

    @precondition(lambda self: bool(self.all_groups))
    @rule(data=st.data())
    def check_list_dir(self, data: st.DataObject) -> None:
        path = self.draw_directory(data)
        note(f"list_dir for {path=!r}")
        expected = set(self._sync_iter(self.model.list_dir(path)))
        listed = sorted(self._sync_iter(self.store.list_dir(path)))
        if path in self.all_arrays:
            expected.add("c")
        assert listed == sorted(expected)

    @rule()
    def commit(self) -> None:
        note("(commit)")
        self.owner = commit_and_begin(self.context, self.owner.state, self.packing)
        self.store = self.owner.store


@contextmanager
def new_storages(kind: str) -> Iterator[Callable[[], Storage]]:
    """Give a function that makes a new storage for each run of a machine."""
    with TemporaryDirectory() as folder:
        numbers = iter(range(1_000_000))

        def make() -> Storage:
            if kind == "memory":
                return in_memory_storage()
            return local_filesystem_storage(str(Path(folder) / str(next(numbers))))

        yield make


def run(machine: Callable[[], RuleBasedStateMachine]) -> None:
    # Its types ask for a class, but any function that makes machines will do.
    run_state_machine_as_test(cast("type[RuleBasedStateMachine]", machine), settings=RUNS)


SETUPS = [
    pytest.param("memory", 2, None, id="memory-spec2"),
    pytest.param("memory", 1, None, id="memory-spec1"),
    pytest.param("local", 2, None, id="local-spec2"),
    pytest.param("memory", 2, PackingOptions(2000, 5000), id="memory-spec2-packing"),
]


@pytest.mark.parametrize(("kind", "spec_version", "packing"), SETUPS)
def test_keys_and_values(kind: str, spec_version: int, packing: PackingOptions | None) -> None:
    with new_storages(kind) as storage_of:
        run(lambda: KeyMachine(storage_of(), spec_version, packing))


@pytest.mark.parametrize("pipeline", PIPELINES)
@pytest.mark.parametrize(("kind", "spec_version", "packing"), SETUPS)
def test_hierarchies(
    kind: str, spec_version: int, packing: PackingOptions | None, pipeline: str
) -> None:
    path = f"zarr.core.codec_pipeline.{pipeline}"
    with zarr.config.set({"codec_pipeline.path": path}), new_storages(kind) as storage_of:
        run(lambda: HierarchyMachine(storage_of(), spec_version, packing))
