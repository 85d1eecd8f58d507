"""Zarr's own tests of stores, on the store of a session.

They take a store for a dictionary of any keys and bytes. A versioned store holds metadata
documents and chunks of arrays only, so tests that use other keys or bytes are given such ones
here: what they check stays the same.
"""

import pickle
from pathlib import Path
from typing import Any, cast

import pytest
from zarr.abc.store import (
    ByteRequest,
    OffsetByteRequest,
    RangeByteRequest,
    SuffixByteRequest,
)
from zarr.core.buffer import Buffer, cpu, default_buffer_prototype
from zarr.core.sync import _collect_aiterator
from zarr.testing.store import StoreTests
from zarr.testing.utils import assert_bytes_equal

from icefloe.effects import run_blocking
from icefloe.errors import ErrorKind, InvalidInputError, ReadOnlyError
from icefloe.storage import Storage, in_memory_storage, local_filesystem_storage
from icefloe.transactions.chunks import read_chunk, write_chunk
from icefloe.transactions.nodes import put_metadata, require_array
from icefloe.transactions.packing import PackingOptions
from icefloe.transactions.session import SessionMode, SessionState
from icefloe.zarr_store import IcechunkStore
from icefloe.zarr_store.keys import ChunkKey, MetadataKey, parse_key
from tests.conformance.zarr_sessions import (
    GROUP,
    array_document,
    begin,
    commit_and_begin,
    new_repository,
)

PROTOTYPE = default_buffer_prototype()
BYTES = b"\x01\x02\x03\x04"
LONG = bytes(range(256)) * 8  # beyond the inline threshold
SIDE = 20


def buffer(data: bytes) -> Buffer:
    return cpu.Buffer.from_bytes(data)


def document_for(key: str) -> Buffer:
    """Give the document that a test may put under a key of metadata."""
    return buffer(array_document((SIDE,)) if "array" in key else GROUP)


@pytest.fixture(params=["memory", "local"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "memory":
        return in_memory_storage()
    return local_filesystem_storage(str(tmp_path / "repository"))


@pytest.fixture(params=[1, 2], ids=["spec1", "spec2"])
def spec_version(request: pytest.FixtureRequest) -> int:
    return cast("int", request.param)


class TestIcechunkStore(StoreTests[IcechunkStore, cpu.Buffer]):
    store_cls = IcechunkStore
    buffer_cls = cpu.Buffer

    # -- around the store ------------------------------------------------------------------

    def state(self, store: IcechunkStore) -> SessionState:
        return store._state

    def ensure_array(self, state: SessionState, path: str, dimensions: int) -> None:
        if state.tree.find(path) is None:
            put_metadata(state, path, array_document((SIDE,) * dimensions))

    async def set(self, store: IcechunkStore, key: str, value: Buffer) -> None:
        """Write beside the store; an array that a chunk needs is made first."""
        state, parsed = self.state(store), parse_key(key)
        if isinstance(parsed, ChunkKey):
            self.ensure_array(state, parsed.path, len(parsed.coordinates))
            node = require_array(state, parsed.path)
            await write_chunk(state, node, parsed.coordinates, value.to_bytes())
        elif isinstance(parsed, MetadataKey) and state.tree.find(parsed.path) is None:
            put_metadata(state, parsed.path, document_for(key).to_bytes())

    async def get(self, store: IcechunkStore, key: str) -> Buffer:
        state, parsed = self.state(store), parse_key(key)
        assert isinstance(parsed, ChunkKey | MetadataKey)
        node = state.tree.find(parsed.path)
        assert node is not None
        if isinstance(parsed, MetadataKey):
            return buffer(node.user_data)
        data = await read_chunk(state, node, parsed.coordinates)
        assert data is not None
        return buffer(bytes(data))

    @pytest.fixture
    def store_kwargs(self, storage: Storage, spec_version: int) -> dict[str, Any]:
        owner = begin(new_repository(storage, spec_version))
        return {"state": owner.state, "session": owner}

    @pytest.fixture
    def store(self, open_kwargs: dict[str, Any]) -> IcechunkStore:
        return run_blocking(IcechunkStore.open(**open_kwargs))

    @pytest.fixture
    def store_not_open(self, store_kwargs: dict[str, Any]) -> IcechunkStore:
        return IcechunkStore(**store_kwargs)

    # -- what the suite leaves to us -------------------------------------------------------

    def test_store_repr(self, store: IcechunkStore) -> None:
        assert repr(store).startswith("<icefloe.IcechunkStore>")
        assert "branch: main" in repr(store)
        assert "main" in store._repr_html_()

    def test_store_supports_writes(self, store: IcechunkStore) -> None:
        assert store.supports_writes

    def test_store_supports_listing(self, store: IcechunkStore) -> None:
        assert store.supports_listing

    # -- the same with keys and values of a hierarchy --------------------------------------

    async def test_serializable_store(self, store: IcechunkStore) -> None:
        """Read-only sessions can be pickled; those in memory within their process."""
        state = self.state(store)
        await store.set("zarr.json", buffer(GROUP))
        commit_and_begin(state.context, state)
        reader = begin(state.context, SessionMode.readonly).store
        copy = pickle.loads(pickle.dumps(reader))
        assert copy == reader
        assert copy.read_only
        assert copy != begin(state.context).store
        found = await copy.get("zarr.json", PROTOTYPE)
        assert found.to_bytes() == GROUP

    async def test_with_read_only_store(self, open_kwargs: dict[str, Any]) -> None:
        store = await IcechunkStore.open(**open_kwargs, read_only=True)
        writer = store.with_read_only(read_only=False)
        assert not writer._is_open
        assert not writer.read_only
        await writer.set("foo/zarr.json", buffer(GROUP))
        await writer.delete("foo/zarr.json")
        for reader in (store, store.with_read_only(read_only=True)):
            assert reader.read_only
            with pytest.raises(ValueError, match="store was opened in read-only mode"):
                await reader.set("foo/zarr.json", buffer(GROUP))
            with pytest.raises(ReadOnlyError):
                await reader.delete("foo/zarr.json")

    @pytest.mark.parametrize("key", ["c/0", "c", "foo/c/0/0"])
    @pytest.mark.parametrize(
        ("data", "byte_range"),
        [
            (data, byte_range)
            for data in (BYTES, LONG)
            for byte_range in (
                None,
                RangeByteRequest(1, 4),
                RangeByteRequest(2, 10_000),
                RangeByteRequest(10_000, 10_001),
                OffsetByteRequest(1),
                OffsetByteRequest(10_000),
                SuffixByteRequest(1),
                SuffixByteRequest(0),
                SuffixByteRequest(10_000),
            )
        ],
    )
    async def test_get(
        self, store: IcechunkStore, key: str, data: bytes, byte_range: ByteRequest
    ) -> None:
        await super().test_get(store, key, data, byte_range)

    async def test_get_many(self, store: IcechunkStore) -> None:
        keys = [f"foo/c/{index}" for index in range(10)]
        for key in keys:
            await self.set(store, key, buffer(key.encode()))
        found = await _collect_aiterator(store._get_many((key, PROTOTYPE, None) for key in keys))
        assert {key: value.to_bytes() for key, value in found if value is not None} == {
            key: key.encode() for key in keys
        }

    @pytest.mark.parametrize("key", ["c/0", "c", "foo/c/0/0"])
    @pytest.mark.parametrize("data", [BYTES, LONG])
    async def test_getsize(self, store: IcechunkStore, key: str, data: bytes) -> None:
        await super().test_getsize(store, key, data)

    async def test_getsize_prefix(self, store: IcechunkStore) -> None:
        for key in ("c/0/0", "c/0/1", "c/1/0", "c/1/1", "cc/c/0"):
            await self.set(store, key, buffer(BYTES))
        assert await store.getsize_prefix("c") == 4 * len(BYTES)
        assert await store.getsize_prefix("c/1/") == 2 * len(BYTES)
        document = array_document((SIDE,))
        assert await store.getsize_prefix("cc") == len(document) + len(BYTES)

    @pytest.mark.parametrize("key", ["c/0", "foo/c/0/0", "foo/zarr.json"])
    @pytest.mark.parametrize("data", [BYTES, LONG])
    async def test_set(self, store: IcechunkStore, key: str, data: bytes) -> None:
        parsed = parse_key(key)
        if isinstance(parsed, ChunkKey):
            self.ensure_array(self.state(store), parsed.path, len(parsed.coordinates))
        else:
            data = array_document((SIDE,), long=data.hex())
        await store.set(key, buffer(data))
        assert_bytes_equal(await self.get(store, key), buffer(data))

    async def test_set_not_open(self, store_not_open: IcechunkStore) -> None:
        self.ensure_array(self.state(store_not_open), "/", 1)
        await super().test_set_not_open(store_not_open)

    async def test_set_many(self, store: IcechunkStore) -> None:
        values = {
            "zarr.json": GROUP,
            "foo/zarr.json": array_document((SIDE,)),
            "foo/c/0": BYTES,
            "foo/c/1": LONG,
        }
        await store._set_many((key, buffer(value)) for key, value in values.items())
        for key, value in values.items():
            assert (await self.get(store, key)).to_bytes() == value

    async def test_exists(self, store: IcechunkStore) -> None:
        assert not await store.exists("foo")
        assert not await store.exists("foo/.zgroup")
        assert not await store.exists("foo/c/0")
        await store.set("foo/zarr.json", buffer(GROUP))
        assert await store.exists("foo/zarr.json")
        assert not await store.exists("foo/c/0")

    async def test_delete(self, store: IcechunkStore) -> None:
        await store.set("foo/zarr.json", buffer(array_document((SIDE,))))
        await store.set("foo/c/0", buffer(BYTES))
        await store.delete("foo/c/0")
        assert not await store.exists("foo/c/0")
        assert await store.exists("foo/zarr.json")
        await store.delete("foo/zarr.json")
        assert not await store.exists("foo/zarr.json")

    async def test_delete_dir(self, store: IcechunkStore) -> None:
        await store.set("zarr.json", buffer(GROUP))
        await store.set("foo-bar/zarr.json", buffer(GROUP))
        await store.set("foo/zarr.json", buffer(array_document((SIDE, SIDE))))
        for key in ("foo/c/0/0", "foo/c/1/0", "foo/c/1/1"):
            await store.set(key, buffer(BYTES))
        await store.delete_dir("foo/c/1")
        assert await store.exists("foo/c/0/0")
        assert not await store.exists("foo/c/1/0")
        await store.delete_dir("foo")
        assert sorted(store.list()) == ["foo-bar/zarr.json", "zarr.json"]

    async def test_is_empty(self, store: IcechunkStore) -> None:
        assert await store.is_empty("")
        await self.set(store, "foo/bar/zarr.json", buffer(GROUP))
        assert not await store.is_empty("")
        assert await store.is_empty("f")
        assert not await store.is_empty("foo/")
        assert not await store.is_empty("foo")
        assert await store.is_empty("spam/")

    async def test_clear(self, store: IcechunkStore) -> None:
        await self.set(store, "foo/bar/c/0", buffer(BYTES))
        await store.clear()
        assert await store.is_empty("")

    async def test_list(self, store: IcechunkStore) -> None:
        assert await _collect_aiterator(store.list()) == ()
        keys = ["foo/zarr.json", *(f"foo/c/{index}" for index in range(10))]
        for key in keys[1:]:
            await self.set(store, key, buffer(BYTES))
        assert sorted(await _collect_aiterator(store.list())) == sorted(keys)
        assert next(iter(store.list())) == "foo/zarr.json"

    async def test_list_prefix(self, store: IcechunkStore) -> None:
        prefixes = ("", "a/", "a/b/", "a/b/c/")
        keys = [f"{prefix}zarr.json" for prefix in prefixes]
        await store._set_many((key, buffer(GROUP)) for key in keys)
        for prefix in prefixes:
            found = await _collect_aiterator(store.list_prefix(prefix))
            assert sorted(found) == sorted(key for key in keys if key.startswith(prefix))

    async def test_list_empty_path(self, store: IcechunkStore) -> None:
        keys = ["foo/bar/zarr.json", "foo/bar/c/1", "foo/baz/zarr.json", "foo/baz/c/0"]
        for key in ("foo/bar/c/1", "foo/baz/c/0"):
            await self.set(store, key, buffer(BYTES))
        assert sorted(store.list()) == sorted(keys)
        assert sorted(store.list_prefix("")) == sorted(keys)
        assert sorted(store.list_prefix("foo/bar/")) == ["foo/bar/c/1", "foo/bar/zarr.json"]
        assert sorted(store.list_prefix("foo/bar/c/")) == ["foo/bar/c/1"]

    async def test_list_dir(self, store: IcechunkStore) -> None:
        assert list(store.list_dir("")) == []
        await self.set(store, "foo/zarr.json", buffer(GROUP))
        assert list(store.list_dir("foo")) == ["zarr.json"]
        await self.set(store, "foo/array/zarr.json", buffer(b""))
        assert sorted(store.list_dir("foo/array")) == ["c", "zarr.json"]
        assert list(store.list_dir("foo/array/c")) == []
        await self.set(store, "foo/array/c/3", buffer(BYTES))
        await self.set(store, "foo/array/c/7", buffer(BYTES))
        for root in ("foo/array", "foo/array/", "/foo/array"):
            assert sorted(store.list_dir(root)) == ["c", "zarr.json"]
        assert sorted(store.list_dir("foo")) == ["array", "zarr.json"]
        assert sorted(store.list_dir("foo/array/c")) == ["3", "7"]
        assert list(store.list_dir("foo/array/c/3")) == []
        assert list(store.list_dir("nothing")) == []

    async def test_set_if_not_exists(self, store: IcechunkStore) -> None:
        await self.set(store, "c/0", buffer(b"0000"))
        await store.set_if_not_exists("c/0", buffer(b"1111"))
        assert (await self.get(store, "c/0")).to_bytes() == b"0000"
        await store.set_if_not_exists("c/1", buffer(b"1111"))
        assert (await self.get(store, "c/1")).to_bytes() == b"1111"
        await store.set_if_not_exists("zarr.json", buffer(array_document((SIDE,), new=True)))
        assert b"new" not in (await self.get(store, "zarr.json")).to_bytes()

    def test_get_sync(self, store: IcechunkStore) -> None:
        run_blocking(self.set(store, "c/0", buffer(BYTES)))
        found = store.get_sync("c/0")
        assert found is not None
        assert found.to_bytes() == BYTES

    def test_get_sync_missing(self, store: IcechunkStore) -> None:
        assert store.get_sync("zarr.json") is None
        assert store.get_sync("foo/c/0") is None
        assert store.get_sync("foo/.zarray") is None
        with pytest.raises(InvalidInputError) as caught:
            store.get_sync("nonexistent")
        assert caught.value.kind == ErrorKind.INVALID_KEY

    def test_set_sync(self, store: IcechunkStore) -> None:
        self.ensure_array(self.state(store), "/", 1)
        store.set_sync("c/0", buffer(BYTES))
        assert run_blocking(self.get(store, "c/0")).to_bytes() == BYTES

    def test_delete_sync(self, store: IcechunkStore) -> None:
        run_blocking(self.set(store, "c/0", buffer(BYTES)))
        store.delete_sync("c/0")
        assert store.get_sync("c/0") is None

    @pytest.mark.parametrize("direction", ["set_async_get_sync", "set_sync_get_async"])
    async def test_sync_async_set_get_parity(self, store: IcechunkStore, direction: str) -> None:
        self.ensure_array(self.state(store), "/", 1)
        if direction == "set_async_get_sync":
            await store.set("c/0", buffer(LONG))
            found = store.get_sync("c/0")
        else:
            store.set_sync("c/0", buffer(LONG))
            found = await store.get("c/0", PROTOTYPE)
        assert found is not None
        assert found.to_bytes() == LONG

    async def test_delete_sync_visible_to_async_get(self, store: IcechunkStore) -> None:
        await self.set(store, "c/0", buffer(BYTES))
        store.delete_sync("c/0")
        assert await store.get("c/0", PROTOTYPE) is None

    @pytest.mark.parametrize(
        "byte_range",
        [
            None,
            RangeByteRequest(1, 4),
            OffsetByteRequest(1),
            SuffixByteRequest(1),
            RangeByteRequest(10, 20),
        ],
    )
    async def test_get_sync_byte_range_parity(
        self, store: IcechunkStore, byte_range: ByteRequest | None
    ) -> None:
        await self.set(store, "c/0", buffer(BYTES))
        blocking = store.get_sync("c/0", byte_range=byte_range)
        awaited = await store.get("c/0", PROTOTYPE, byte_range)
        assert blocking is not None
        assert awaited is not None
        assert blocking.to_bytes() == awaited.to_bytes()


class TestPackingStore(TestIcechunkStore):
    """All the same when chunks share objects."""

    @pytest.fixture
    def store_kwargs(self, storage: Storage, spec_version: int) -> dict[str, Any]:
        options = PackingOptions(max_chunk_bytes=3000, pack_bytes=5000)
        owner = begin(new_repository(storage, spec_version), packing=options)
        return {"state": owner.state, "session": owner}
