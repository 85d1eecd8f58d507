"""What the store of a session does beyond Zarr's own suite."""

import json
import pickle
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import numpy as np
import pytest
import zarr
from zarr.abc.store import (
    OffsetByteRequest,
    RangeByteRequest,
    SuffixByteRequest,
    _store_supports_sync_io,
)
from zarr.core.buffer import cpu, default_buffer_prototype

from icefloe.assets import Assets
from icefloe.config import (
    ObjectStoreConfig,
    RepositoryConfig,
    S3Options,
    VirtualChunkContainer,
    VirtualChunkSpec,
)
from icefloe.effects import run_blocking
from icefloe.errors import (
    AlreadyExistsError,
    ErrorKind,
    IcefloeError,
    InvalidInputError,
    NodeNotFoundError,
    ReadOnlyError,
    SessionStateError,
)
from icefloe.format.chunk_table import ChunkRef, VirtualChunk
from icefloe.records import replace
from icefloe.repo.lifecycle import create
from icefloe.storage import in_memory_storage, s3_storage
from icefloe.testing import FaultyBackend
from icefloe.transactions.chunks import find_ref
from icefloe.transactions.commit import commit
from icefloe.transactions.nodes import require_array
from icefloe.transactions.packing import PackingOptions
from icefloe.transactions.session import SessionMode, SessionState, open_session
from icefloe.virtual_chunks.reader import VirtualReader
from icefloe.zarr_store import IcechunkStore, MissingKeyError, ReadOnlyStoreError

PROTOTYPE = default_buffer_prototype()
GROUP = b'{"zarr_format": 3, "node_type": "group"}'
ARRAY = json.dumps(
    {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [4, 4],
        "data_type": "uint8",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 2]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 0,
        "codecs": [{"name": "bytes"}],
    }
).encode()
LONG = bytes(1000)


def new_session(mode: SessionMode = SessionMode.writable) -> SessionState:
    config = RepositoryConfig()
    config.set_virtual_chunk_container(
        VirtualChunkContainer("s3://known/", ObjectStoreConfig.S3(S3Options()))
    )
    context = run_blocking(create(in_memory_storage(), config))
    tip = run_blocking(context.ledger.branch_tip("main"))
    return run_blocking(open_session(context, tip, mode, branch="main"))


@pytest.fixture
def state() -> SessionState:
    return new_session()


@pytest.fixture
def store(state: SessionState) -> IcechunkStore:
    """A store with a group `g` and an array `g/a` of 2 x 2 chunks."""
    store = IcechunkStore(state)
    for key, value in (("zarr.json", GROUP), ("g/zarr.json", GROUP), ("g/a/zarr.json", ARRAY)):
        put(store, key, value)
    return store


def put(store: IcechunkStore, key: str, value: bytes) -> None:
    store.set_sync(key, cpu.Buffer.from_bytes(value))


def get(store: IcechunkStore, key: str) -> bytes | None:
    found = store.get_sync(key)
    return None if found is None else found.to_bytes()


def ref_of(store: IcechunkStore, *index: int) -> ChunkRef | None:
    state = store._state
    return run_blocking(find_ref(state, require_array(state, "/g/a"), index))


# -- keys that cannot be --------------------------------------------------------------------


def test_documents_come_back_byte_for_byte(store: IcechunkStore) -> None:
    odd = b' {"node_type" :"group",\n\t"zarr_format": 3, "extra": [1e3]} '
    put(store, "odd/zarr.json", odd)
    assert get(store, "odd/zarr.json") == odd


@pytest.mark.parametrize("key", [".zgroup", "g/.zattrs", "g/a/.zarray", ".zmetadata"])
def test_keys_of_zarr_2_are_absent_and_cannot_be_set(store: IcechunkStore, key: str) -> None:
    assert get(store, key) is None
    assert not run_blocking(store.exists(key))
    store.delete_sync(key)
    with pytest.raises(SessionStateError, match="zarr_format=3") as caught:
        put(store, key, b"{}")
    assert caught.value.kind == ErrorKind.UNIMPLEMENTED


@pytest.mark.parametrize(
    ("key", "value", "kind"),
    [
        ("nope", b"x", ErrorKind.INVALID_KEY),
        ("g/a/c/0.0", b"x", ErrorKind.INVALID_KEY),
        ("g/a/c/2/0", b"x", ErrorKind.INVALID_CHUNK_INDEX),
        ("g/a/c/0", b"x", ErrorKind.INVALID_CHUNK_INDEX),
        ("g/a/c/0/0/0", b"x", ErrorKind.INVALID_CHUNK_INDEX),
        ("g/a/c/0/0", b"", ErrorKind.ZERO_LENGTH_CHUNK),
        ("g/c/0", b"x", ErrorKind.NOT_AN_ARRAY),
        ("missing/c/0", b"x", ErrorKind.NODE_NOT_FOUND),
        ("g/a/zarr.json", GROUP, ErrorKind.NODE_ALREADY_EXISTS),
        ("g/zarr.json", ARRAY, ErrorKind.NODE_ALREADY_EXISTS),
        ("g/b/zarr.json", b"{", ErrorKind.BAD_METADATA),
    ],
)
def test_writes_that_are_refused(
    store: IcechunkStore, key: str, value: bytes, kind: ErrorKind
) -> None:
    before = sorted(store.list())
    with pytest.raises(IcefloeError) as caught:
        put(store, key, value)
    assert caught.value.kind == kind
    assert sorted(store.list()) == before


def test_only_buffers_can_be_set(store: IcechunkStore) -> None:
    with pytest.raises(TypeError, match="must be a Buffer"):
        run_blocking(store.set("zarr.json", GROUP))  # type: ignore[arg-type]


@pytest.mark.parametrize("key", ["g/a/c/9/9", "g/a/c/0", "g/a/c", "missing/c/0"])
def test_chunks_outside_of_a_grid_are_absent(store: IcechunkStore, key: str) -> None:
    assert get(store, key) is None
    assert not run_blocking(store.exists(key))


def test_reading_chunks_of_a_group_is_a_mistake(store: IcechunkStore) -> None:
    with pytest.raises(InvalidInputError) as caught:
        get(store, "g/c/0")
    assert caught.value.kind == ErrorKind.NOT_AN_ARRAY


@pytest.mark.parametrize("key", ["nope", "g/a/c/x", "g/a/c/9/9", "g/c/0", "missing/zarr.json"])
def test_deleting_what_cannot_be_changes_nothing(store: IcechunkStore, key: str) -> None:
    before = sorted(store.list())
    store.delete_sync(key)
    assert sorted(store.list()) == before


def test_deleting_metadata_takes_what_is_below(store: IcechunkStore) -> None:
    put(store, "g/a/c/0/0", b"x")
    store.delete_sync("g/zarr.json")
    assert list(store.list()) == ["zarr.json"]


def test_the_size_of_a_missing_key(store: IcechunkStore) -> None:
    for key in ("missing/zarr.json", "g/a/c/0/0"):
        with pytest.raises(FileNotFoundError):
            run_blocking(store.getsize(key))
        with pytest.raises(NodeNotFoundError) as caught:
            run_blocking(store.getsize(key))
        copy = pickle.loads(pickle.dumps(caught.value))
        assert isinstance(copy, MissingKeyError)
        assert str(copy) == str(caught.value)


@pytest.mark.parametrize(
    "byte_range", [RangeByteRequest(-1, 2), OffsetByteRequest(-1), SuffixByteRequest(-1)]
)
def test_negative_byte_ranges_are_refused(
    store: IcechunkStore, byte_range: RangeByteRequest | OffsetByteRequest | SuffixByteRequest
) -> None:
    with pytest.raises(InvalidInputError) as caught:
        store.get_sync("zarr.json", byte_range=byte_range)
    assert caught.value.kind == ErrorKind.INVALID_BYTE_RANGE


def test_parts_of_values_cannot_be_set(store: IcechunkStore) -> None:
    with pytest.raises(SessionStateError) as caught:
        run_blocking(store.set_partial_values([("zarr.json", 0, b"x")]))
    assert caught.value.kind == ErrorKind.UNIMPLEMENTED


# -- sessions -------------------------------------------------------------------------------


def test_a_committed_session_can_only_be_read(store: IcechunkStore, state: SessionState) -> None:
    assert not store.read_only
    run_blocking(commit(state, "done"))
    assert store.read_only
    with pytest.raises(ReadOnlyStoreError) as caught:
        put(store, "g/zarr.json", GROUP)
    assert caught.value.kind == ErrorKind.READ_ONLY_STORE
    assert isinstance(pickle.loads(pickle.dumps(caught.value)), ReadOnlyStoreError)
    with pytest.raises(ReadOnlyError):
        store.with_read_only(read_only=False)
    for write in (store.clear(), store.delete("zarr.json"), store.delete_dir("g")):
        with pytest.raises(ReadOnlyError):
            run_blocking(write)


def test_stores_of_different_sessions_differ(store: IcechunkStore) -> None:
    assert store == IcechunkStore(store._state)
    assert store == store.with_read_only(read_only=True)
    assert store != IcechunkStore(new_session())
    assert store != "store"


def test_consolidated_metadata_is_kept_but_not_made(store: IcechunkStore) -> None:
    assert not store.supports_consolidated_metadata
    inner = {"kind": "inline", "must_understand": False, "metadata": {}}
    document = json.dumps(json.loads(GROUP) | {"consolidated_metadata": inner}).encode()
    put(store, "g/zarr.json", document)
    assert get(store, "g/zarr.json") == document
    with pytest.raises(TypeError, match="consolidated"):
        zarr.consolidate_metadata(store)


def test_many_threads_write_and_read(store: IcechunkStore) -> None:
    shape = json.loads(ARRAY) | {"shape": [80, 80]}
    put(store, "big/zarr.json", json.dumps(shape).encode())
    keys = [f"big/c/{i}/{j}" for i in range(40) for j in range(40)]

    def work(part: int) -> bool:
        own = keys[part::8]
        for key in own:
            put(store, key, key.encode() * 60)
        return all(get(store, key) == key.encode() * 60 for key in own)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))
    assert sorted(store.list_prefix("big/c")) == sorted(keys)


# -- listing --------------------------------------------------------------------------------


def test_listing_nodes_opens_no_manifest(state: SessionState, store: IcechunkStore) -> None:
    put(store, "g/a/c/0/0", LONG)
    run_blocking(commit(state, "done"))
    context = state.context
    watched = FaultyBackend(context.backend)
    assets = Assets(watched, context.config, context.spec_version)
    fresh = replace(context, assets=assets)
    other = IcechunkStore(SessionState(fresh, state.snapshot, SessionMode.readonly))
    assert sorted(other.list_dir("g")) == ["a", "zarr.json"]
    assert sorted(other.list_dir("g/a")) == ["c", "zarr.json"]
    assert not run_blocking(other.is_empty("g/a"))
    keys = other.list_prefix("")
    assert [next(keys) for _ in range(3)] == ["zarr.json", "g/zarr.json", "g/a/zarr.json"]
    assert watched.trace == []
    assert list(keys) == ["g/a/c/0/0"]
    assert [step.key.split("/")[0] for step in watched.trace] == ["manifests"]


def test_arrays_list_their_folder_of_chunks_also_if_it_is_empty(
    store: IcechunkStore, state: SessionState
) -> None:
    assert sorted(store.list_dir("g/a")) == ["c", "zarr.json"]
    assert list(store.list_dir("g/a/c")) == []
    put(store, "g/a/c/0/0", LONG)
    run_blocking(commit(state, "done"))
    tip = state.snapshot_id
    again = run_blocking(open_session(state.context, tip, SessionMode.writable, branch="main"))
    other = IcechunkStore(again)
    assert sorted(other.list_dir("g/a")) == ["c", "zarr.json"]
    other.delete_sync("g/a/c/0/0")
    assert sorted(other.list_dir("g/a")) == ["c", "zarr.json"]
    assert list(other.list_dir("g/a/c")) == []
    assert run_blocking(other.is_empty("g/a/c"))


def test_arrays_named_like_chunks(store: IcechunkStore) -> None:
    for key in ("c/zarr.json", "g/c/zarr.json"):
        put(store, key, GROUP)
    put(store, "g/c/0/zarr.json", ARRAY)
    put(store, "g/c/0/c/1/1", b"x")
    assert get(store, "g/c/0/c/1/1") == b"x"
    assert sorted(store.list_dir("g/c")) == ["0", "zarr.json"]
    assert sorted(store.list_dir("g/c/0")) == ["c", "zarr.json"]
    assert list(store.list_prefix("g/c/0/c")) == ["g/c/0/c/1/1"]


# -- references -----------------------------------------------------------------------------


def test_batches_of_references(store: IcechunkStore) -> None:
    put(store, "g/a/c/0/0", b"small")
    put(store, "g/a/c/0/1", LONG)
    store.set_virtual_ref("g/a/c/1/1", "s3://known/x", offset=8, length=4)
    [batch] = store.array_chunk_iterator("g/a")
    coordinates, kinds, locations, offsets, lengths, inline = batch
    assert coordinates.tolist() == [[0, 0], [0, 1], [1, 1]]
    assert coordinates.dtype == np.uint32
    assert kinds.tolist() == [3, 1, 2]
    assert locations[0] == ""
    assert len(locations[1]) == 20
    assert locations[2] == "s3://known/x"
    assert offsets.tolist() == [0, 0, 8]
    assert lengths.tolist() == [5, 1000, 4]
    assert inline == {0: b"small"}
    assert [len(one[1]) for one in store.array_chunk_iterator("/g/a/", batch_size=2)] == [2, 1]


def test_batches_need_an_array(store: IcechunkStore) -> None:
    with pytest.raises(NodeNotFoundError):
        list(store.array_chunk_iterator("missing"))
    with pytest.raises(InvalidInputError, match="batch_size"):
        list(store.array_chunk_iterator("g/a", batch_size=0))


def test_one_virtual_reference(store: IcechunkStore) -> None:
    when = datetime(2024, 1, 1, tzinfo=UTC)
    store.set_virtual_ref("g/a/c/0/0", "s3://known/x", offset=1, length=2, checksum="tag")
    store.set_virtual_ref("g/a/c/0/1", "s3://known/x", offset=3, length=4, checksum=when)
    run_blocking(store.set_virtual_ref_async("g/a/c/1/1", "s3://known/y", offset=0, length=1))
    assert ref_of(store, 0, 0) == VirtualChunk("s3://known/x", 1, 2, "tag")
    assert ref_of(store, 0, 1) == VirtualChunk("s3://known/x", 3, 4, None, int(when.timestamp()))
    assert ref_of(store, 1, 1) == VirtualChunk("s3://known/y", 0, 1)


@pytest.mark.parametrize(
    ("key", "location", "length", "kind"),
    [
        ("g/a/c/0/0", "s3://other/x", 1, ErrorKind.NO_CONTAINER_FOR_VIRTUAL_CHUNK),
        ("g/a/c/0/0", "not a url", 1, ErrorKind.INVALID_VIRTUAL_REF),
        ("g/a/c/0/0", "s3://known/x", 0, ErrorKind.ZERO_LENGTH_CHUNK),
        ("g/a/c/9/9", "s3://known/x", 1, ErrorKind.INVALID_CHUNK_INDEX),
        ("g/a/c/0", "s3://known/x", 1, ErrorKind.INVALID_CHUNK_INDEX),
        ("g/a/zarr.json", "s3://known/x", 1, ErrorKind.NOT_ALLOWED),
        ("missing/c/0", "s3://known/x", 1, ErrorKind.NODE_NOT_FOUND),
    ],
)
def test_virtual_references_that_are_refused(
    store: IcechunkStore, key: str, location: str, length: int, kind: ErrorKind
) -> None:
    with pytest.raises(IcefloeError) as caught:
        store.set_virtual_ref(key, location, offset=0, length=length)
    assert caught.value.kind == kind
    assert ref_of(store, 0, 0) is None


def test_uncovered_references_are_left_out_and_named(store: IcechunkStore) -> None:
    specs = [
        VirtualChunkSpec([0, 0], "s3://known/x", 0, 1),
        VirtualChunkSpec([0, 1], "s3://other/x", 0, 1),
    ]
    assert store.set_virtual_refs("g/a", specs) == [(0, 1)]
    assert ref_of(store, 0, 0) == VirtualChunk("s3://known/x", 0, 1)
    assert ref_of(store, 0, 1) is None
    assert store.set_virtual_refs("g/a", specs, validate_containers=False) is None
    assert ref_of(store, 0, 1) == VirtualChunk("s3://other/x", 0, 1)


def test_of_two_references_for_one_chunk_the_last_counts(store: IcechunkStore) -> None:
    specs = [VirtualChunkSpec([0, 0], f"s3://known/{name}", 0, 1) for name in "ab"]
    assert run_blocking(store.set_virtual_refs_async("/g/a", specs)) is None
    assert ref_of(store, 0, 0) == VirtualChunk("s3://known/b", 0, 1)
    assert store.set_virtual_refs("g/a", []) is None


def test_a_box_of_references(store: IcechunkStore) -> None:
    numbers = np.array([10, 20], np.uint64)
    locations = ["s3://known/1", ""]
    refused = store.set_virtual_refs_arr(
        "g/a", (2, 1), locations, numbers, numbers, arr_offset=(0, 1), checksum="tag"
    )
    assert refused is None
    assert ref_of(store, 0, 1) == VirtualChunk("s3://known/1", 10, 10, "tag")
    assert ref_of(store, 1, 1) is None
    when = datetime(2024, 1, 1, tzinfo=UTC)
    refused = run_blocking(
        store.set_virtual_refs_arr_async(
            "g/a", (1, 2), ["s3://known/1", "s3://no/2"], numbers, numbers, checksum=when
        )
    )
    assert refused == [(0, 1)]
    assert ref_of(store, 0, 0) == VirtualChunk("s3://known/1", 10, 10, None, int(when.timestamp()))


@pytest.mark.parametrize(
    ("shape", "count", "offset", "problem"),
    [
        ((2, 2), 2, None, "2 are given"),
        ((2, 1), 2, (0,), "arr_offset"),
        ((2, 1), 2, (1, 1), "no chunk"),
        ((2,), 2, None, "no chunk"),
        ((2, 1), 2, (-1, 0), "no chunk"),
    ],
)
def test_boxes_that_do_not_fit(
    store: IcechunkStore,
    shape: tuple[int, ...],
    count: int,
    offset: tuple[int, ...] | None,
    problem: str,
) -> None:
    numbers = np.ones(count, np.uint64)
    locations = ["s3://known/x"] * count
    with pytest.raises(InvalidInputError, match=problem):
        store.set_virtual_refs_arr("g/a", shape, locations, numbers, numbers, arr_offset=offset)


def test_a_kind_of_node_stays(store: IcechunkStore) -> None:
    with pytest.raises(AlreadyExistsError, match="delete it first"):
        put(store, "g/zarr.json", ARRAY)
    store.delete_sync("g/zarr.json")
    put(store, "g/zarr.json", ARRAY)
    assert get(store, "g/zarr.json") == ARRAY


# -- who waits for a network ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "is_packing", "answers_at_once"),
    [
        (None, False, True),
        ("file:///data/", False, True),
        ("s3://known/", False, False),
        ("s3://known/", True, False),
    ],
)
def test_threads_are_not_kept_waiting_for_foreign_files(
    state: SessionState, url: str | None, *, is_packing: bool, answers_at_once: bool
) -> None:
    containers, access = [], {}
    if url is not None:
        local, remote = (
            ObjectStoreConfig.LocalFileSystem("/data"),
            ObjectStoreConfig.S3(S3Options()),
        )
        store = local if url.startswith("file") else remote
        containers, access = [VirtualChunkContainer(url, store)], {url: None}
    context = replace(state.context, virtual_reader=VirtualReader(containers, access))
    packing = PackingOptions() if is_packing else None
    session = SessionState(context, state.snapshot, SessionMode.writable, packing=packing)
    assert _store_supports_sync_io(IcechunkStore(session)) is answers_at_once


@pytest.mark.parametrize("is_packing", [False, True])
def test_threads_are_not_kept_waiting_for_a_repository_elsewhere(
    state: SessionState, *, is_packing: bool
) -> None:
    """Unless it packs: then writing is a matter of memory."""
    storage = s3_storage(bucket="elsewhere", prefix="", region="us-east-1", anonymous=True)
    context = replace(state.context, storage=storage)
    packing = PackingOptions() if is_packing else None
    session = SessionState(context, state.snapshot, SessionMode.writable, packing=packing)
    assert _store_supports_sync_io(IcechunkStore(session)) is is_packing
