"""Sharded arrays are read as one plan, and give what Zarr's own pipelines give."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.abc.codec import ArrayBytesCodecPartialDecodeMixin, ArrayBytesCodecPartialEncodeMixin
from zarr.codecs import (
    BloscCodec,
    BytesCodec,
    Crc32cCodec,
    GzipCodec,
    ShardingCodec,
    TransposeCodec,
    VLenUTF8Codec,
    ZstdCodec,
)
from zarr.codecs import numcodecs as numcodecs_of_zarr
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync
from zarr.registry import register_codec

import icefloe
from icefloe.config import effective_storage_settings
from icefloe.errors import FormatError, StorageError
from icefloe.pacing import memory_budget
from icefloe.storage.metering import Meter
from icefloe.storage.retrying import RetryingBackend
from icefloe.storage.wrapper import BackendWrapper
from icefloe.testing.faulty import Fail, FaultyBackend, ShortRead
from icefloe.testing.schedules import WrappedStorage
from icefloe.transactions.packing import PackingOptions
from icefloe.zarr_store import selections, shards
from tests.property.test_selections import (
    ACCESS,
    OURS,
    THEIRS,
    boxes,
    chunks_of,
    far_repository,
    near_repository,
    opened,
    reads,
    stored_in_mixture,
    values_for,
)

REPOSITORIES: dict[str, Any] = {"far": far_repository, "near": near_repository}
PLAIN_INDEX = (BytesCodec(endian="little"),)
INDICES = [
    (*PLAIN_INDEX, Crc32cCodec()),
    PLAIN_INDEX,
    (BytesCodec(endian="big"), Crc32cCodec(), Crc32cCodec()),
]


counts_of_shards = st.lists(st.integers(1, 3), min_size=1, max_size=3)


@st.composite
def sharded_layouts(draw: st.DrawFn) -> dict[str, Any]:
    """Arrays of shards that may go beyond the end of the array, with any index."""
    dimensions = draw(st.integers(0, 3))
    shape = draw(st.tuples(*[st.integers(1, 9)] * dimensions))
    inner = draw(st.tuples(*[st.integers(1, 3)] * dimensions))
    counts = draw(st.tuples(*[st.integers(1, 3)] * dimensions))
    dtype = draw(st.sampled_from(["i2", "f4", ">f8", "bool", "str", "M8[s]"]))
    layout: dict[str, Any] = {"shape": shape, "dtype": dtype, "compressors": None}
    layout["chunks"] = tuple(a * b for a, b in zip(inner, counts, strict=True))
    if dimensions and draw(st.integers(0, 4)) == 0:
        edges = [[side * n for n in draw(counts_of_shards)] for side in inner]
        layout["chunks"] = tuple(map(tuple, edges))
        layout["shape"] = tuple(map(sum, edges))
    if dtype == "f4":
        layout["fill_value"] = draw(st.sampled_from([0.0, -1.5, float("nan")]))
    codecs: list[Any] = [VLenUTF8Codec() if dtype == "str" else BytesCodec()]
    if draw(st.booleans()):
        codecs.insert(0, TransposeCodec(order=tuple(draw(st.permutations(range(dimensions))))))
    compressors: list[Any] = [None, ZstdCodec(level=1), GzipCodec(level=1), Crc32cCodec()]
    if dtype != "str":
        compressors.append(BloscCodec(cname="lz4", shuffle="noshuffle"))
    codecs += [codec for codec in [draw(st.sampled_from(compressors))] if codec is not None]
    is_nested = draw(st.integers(0, 4)) == 0
    if is_nested:
        codecs = [ShardingCodec(chunk_shape=(1,) * dimensions, codecs=codecs)]
    layout["serializer"] = ShardingCodec(
        chunk_shape=inner,
        codecs=codecs,
        index_codecs=draw(st.sampled_from(INDICES)),
        index_location=draw(st.sampled_from(["start", "end"])),
    )
    return layout


@settings(max_examples=120)
@given(st.data())
def test_shards_are_read_as_zarr_reads_them(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Virtual, native, packed, inline and missing shards of one array, in any mixture."""
    draw, folder = data.draw, tmp_path_factory.mktemp("files")
    layout = draw(sharded_layouts())
    shape, dtype = layout["shape"], layout["dtype"]
    plain = opened(zarr.storage.MemoryStore(), THEIRS, **layout)
    for _ in range(draw(st.integers(1, 3))):
        box = draw(boxes(shape))
        plain[box] = values_for(data, np.shape(plain[box]), dtype)
    make_repository = draw(st.sampled_from(list(REPOSITORIES.values())))
    repository = make_repository(folder, inline_bytes=draw(st.sampled_from([0, 40, 200])))
    session = stored_in_mixture(draw, repository, plain, folder, **layout)
    array, expected_array = opened(session.store, OURS), opened(plain.store, THEIRS)
    with pytest.MonkeyPatch.context() as patch:
        # Shards of this size would all be read whole.
        patch.setattr(shards, "_GAP_BYTES", draw(st.sampled_from([-1, 0, 10, 64 << 10])))
        patch.setattr(shards, "_MOST_PARTS", draw(st.sampled_from([1, 5, 1000])))
        for _ in range(4):
            read = draw(reads(shape))
            expected, result = np.asarray(read(expected_array)), np.asarray(read(array))
            np.testing.assert_array_equal(result, expected)
            assert result.dtype == expected.dtype


@settings(max_examples=60)
@given(st.data())
def test_shards_are_written_as_zarr_writes_them(data: st.DataObject) -> None:
    draw = data.draw
    layout = draw(sharded_layouts())
    shape, dtype = layout["shape"], layout["dtype"]
    repository = draw(st.sampled_from(list(REPOSITORIES.values())))(
        inline_bytes=draw(st.sampled_from([0, 40]))
    )
    session = repository.writable_session("main")
    plain = opened(zarr.storage.MemoryStore(), THEIRS, **layout)
    ours = opened(session.store, OURS, **layout)
    for _ in range(draw(st.integers(1, 4))):
        box = draw(boxes(shape))
        values = values_for(data, np.shape(plain[box]), dtype)
        if draw(st.integers(0, 2)) == 0:
            values = plain.fill_value
        plain[box] = ours[box] = values
        np.testing.assert_array_equal(np.asarray(ours[...]), np.asarray(plain[...]))
    prototype = default_buffer_prototype()
    for key, value in chunks_of(plain).items():
        stored = sync(session.store.get(key, prototype))
        assert stored is not None
        if dtype != "str":
            assert stored.to_bytes() == value.to_bytes()


@settings(max_examples=150)
@given(st.data())
def test_a_hostile_index_is_refused_or_read_as_zarr_reads_it(data: st.DataObject) -> None:
    draw = data.draw
    location: Any = draw(st.sampled_from(["start", "end"]))
    compressors: list[list[Any]] = [[], [ZstdCodec()], [Crc32cCodec()]]
    codecs = [BytesCodec(), *draw(st.sampled_from(compressors))]
    serializer = ShardingCodec(
        chunk_shape=(4,), codecs=codecs, index_codecs=PLAIN_INDEX, index_location=location
    )
    layout = {"shape": (16,), "chunks": (16,), "dtype": "i4", "compressors": None}
    plain = opened(zarr.storage.MemoryStore(), THEIRS, **layout, serializer=serializer)
    plain[:] = np.arange(16)
    [(key, value)] = chunks_of(plain).items()
    stored = bytearray(value.to_bytes())
    first = 0 if location == "start" else len(stored) - 64
    numbers = st.integers(0, 200) | st.integers(0, 2**64 - 1) | st.just(2**64 - 1)
    for _ in range(draw(st.integers(1, 3))):
        place = first + 8 * draw(st.integers(0, 7))
        stored[place : place + 8] = draw(numbers).to_bytes(8, "little")
    cut = draw(st.sampled_from([len(stored), len(stored), 63, 10]))
    content = plain.store._store_dict[key] = type(value).from_bytes(bytes(stored[:cut]))
    make_repository = draw(st.sampled_from(list(REPOSITORIES.values())))
    session = make_repository(inline_bytes=0).writable_session("main")
    array = opened(session.store, OURS, **layout, serializer=serializer)
    sync(session.store.set(key, content))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards, "_GAP_BYTES", draw(st.sampled_from([-1, 64 << 10])))
        for window in (slice(0, 4), slice(2, 11), slice(None)):
            try:
                result = array[window]
            except (FormatError, ValueError, RuntimeError):
                continue
            np.testing.assert_array_equal(result, plain[window])
    assert memory_budget().held_bytes == 0


def with_shard_changed(change: Any, **layout: Any) -> Any:
    """Return an array of which one stored shard was changed."""
    session = far_repository(inline_bytes=0).writable_session("main")
    array = opened(session.store, OURS, shape=(16,), dtype="i4", compressors=None, **layout)
    array[:] = np.arange(16)
    prototype = default_buffer_prototype()
    value = sync(session.store.get("a/c/0", prototype))
    assert value is not None
    changed = change(bytearray(value.to_bytes()))
    sync(session.store.set("a/c/0", prototype.buffer.from_bytes(bytes(changed))))
    return array


def test_an_index_with_another_checksum_is_refused() -> None:
    def change(stored: bytearray) -> bytearray:
        stored[-10] ^= 1
        return stored

    array = with_shard_changed(change, chunks=(4,), shards=(16,))
    for _ in range(2):  # it is not remembered either
        with pytest.raises(ValueError, match="checksum"):
            array[1:3]


def test_a_shard_without_room_for_its_index_is_refused() -> None:
    array = with_shard_changed(lambda stored: stored[:20], chunks=(4,), shards=(16,))
    with pytest.raises(ValueError, match="too short to hold its index"):
        array[1:3]


def test_an_index_that_names_bytes_beyond_its_shard_is_refused() -> None:
    serializer = ShardingCodec(chunk_shape=(4,), index_codecs=PLAIN_INDEX)

    def change(stored: bytearray) -> bytearray:
        stored[-64:-56] = (1 << 40).to_bytes(8, "little")
        return stored

    array = with_shard_changed(change, chunks=(16,), serializer=serializer)
    with pytest.raises(FormatError, match=r"a shard of /a names bytes beyond"):
        array[1:3]
    assert array[4:].tolist() == list(range(4, 16))


LARGE: dict[str, Any] = {
    "shape": (60_000,),
    "chunks": (1_000,),
    "shards": (20_000,),
    "dtype": "f8",
    "compressors": None,
}
VALUES = np.random.default_rng(3).random(60_000)


def three_shards(storage: icefloe.Storage, **options: Any) -> icefloe.Repository:
    """Write three shards of 160 KB."""
    repository = far_repository(storage=storage, inline_bytes=0)
    session = repository.writable_session("main", **options)
    opened(session.store, OURS, **LARGE)[:] = VALUES
    session.commit("three shards")
    return repository


@pytest.mark.parametrize("packing", [False, PackingOptions(max_chunk_bytes=1 << 20)])
def test_requests_of_a_far_read(packing: Any) -> None:
    storage = icefloe.in_memory_storage()
    repository = three_shards(storage, packing=packing)
    reader = opened(repository.readonly_session("main").store, OURS)
    reader[59_999]  # the manifest comes with the first read
    storage.reset_request_counts()
    window = slice(3_000, 37_000, 2_500)
    np.testing.assert_array_equal(reader[window], VALUES[window])
    first = storage.request_counts().requests
    storage.reset_request_counts()
    np.testing.assert_array_equal(reader[window], VALUES[window])
    second = storage.request_counts().requests
    assert first - second == 2  # two indices, which are remembered
    assert second <= 2  # the inner chunks of each shard share a request
    storage.reset_request_counts()
    np.testing.assert_array_equal(reader[:], VALUES)
    assert storage.request_counts().requests <= 3


class Rounds(BackendWrapper):
    """Counts how many requests are made after the answer to another one."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.ranges: list[tuple[int, int]] = []
        self.most_held = 0

    async def around(self, verb: Any, *arguments: Any, **options: Any) -> Any:
        if verb == "get_ranges":
            self.ranges += arguments[1]
            self.most_held = max(self.most_held, memory_budget().held_bytes)
        return await super().around(verb, *arguments, **options)


def test_all_indices_are_read_before_the_chunks_and_small_shards_whole() -> None:
    memory = icefloe.in_memory_storage()
    three_shards(memory)
    storage = WrappedStorage(memory, Rounds)
    repository = icefloe.Repository.open(storage, authorize_virtual_chunk_access=ACCESS)
    reader = opened(repository.readonly_session("main").store, OURS)
    backend: Any = storage.backend
    np.testing.assert_array_equal(reader[19_500:40_500], VALUES[19_500:40_500])
    lengths = [last - first for first, last in backend.ranges]
    # The second shard is selected whole, and needs no request for its index.
    assert sorted(lengths) == sorted([324, 324, 160_324, 8_000, 8_000])
    assert lengths[-2:] == [8_000, 8_000]


def test_memory_is_bounded_by_a_setting() -> None:
    memory = icefloe.in_memory_storage()
    three_shards(memory)
    storage = WrappedStorage(memory, Rounds)
    repository = icefloe.Repository.open(storage, authorize_virtual_chunk_access=ACCESS)
    store = repository.readonly_session("main").store
    reader = opened(store, OURS)
    backend: Any = storage.backend
    for most_bytes in (100_000, 400_000):
        backend.most_held = 0
        with zarr.config.set({selections.MOST_BYTES: most_bytes}):
            np.testing.assert_array_equal(reader[::700], VALUES[::700])
            np.testing.assert_array_equal(reader[:], VALUES)
        assert 0 < backend.most_held <= max(most_bytes, 180_000)
    assert memory_budget().held_bytes == 0


def test_a_session_remembers_few_indices() -> None:
    storage = icefloe.in_memory_storage()
    session = three_shards(storage).readonly_session("main")
    reader = opened(session.store, OURS)
    reader[::7_000]
    indices = session.store._state.shard_indices
    assert (len(indices), indices.size_bytes) == (3, 3 * 20 * 16)
    assert indices._max_bytes <= 64 << 20


def test_virtual_shards_whose_file_may_change_are_not_remembered(tmp_path: Path) -> None:
    plain = opened(zarr.storage.MemoryStore(), THEIRS, **LARGE)
    plain[:] = VALUES
    repository = far_repository(tmp_path)
    session = repository.writable_session("main")
    array = opened(session.store, OURS, **LARGE)
    for number, (key, value) in enumerate(sorted(chunks_of(plain).items())):
        path = tmp_path / f"{number}.bin"
        path.write_bytes(value.to_bytes())
        session.store.set_virtual_ref(key, f"file://{path}", offset=0, length=len(value))
    np.testing.assert_array_equal(array[::7_000], VALUES[::7_000])
    assert len(session.store._state.shard_indices) == 0
    # Another order of inner chunks, and so another index.
    serializer = ShardingCodec(
        chunk_shape=(1_000,), codecs=[BytesCodec()], subchunk_write_order="colexicographic"
    )
    other = opened(
        zarr.storage.MemoryStore(),
        THEIRS,
        **{**LARGE, "chunks": (20_000,), "shards": None},
        serializer=serializer,
    )
    other[:] = VALUES[::-1]
    for number, (_, value) in enumerate(sorted(chunks_of(other).items())):
        (tmp_path / f"{number}.bin").write_bytes(value.to_bytes())
    np.testing.assert_array_equal(array[::7_000], VALUES[::-1][::7_000])


def test_shards_that_are_replaced_whole_are_not_read() -> None:
    storage = icefloe.in_memory_storage()
    session = far_repository(storage=storage, inline_bytes=0).writable_session("main")
    layout = {"shape": (30, 7), "chunks": (2, 3), "shards": (4, 6), "dtype": "i4"}
    array = opened(session.store, OURS, **layout)
    values = np.arange(210).reshape(30, 7)
    array[:] = values
    for box in ((slice(None),), (slice(4, 12),), (slice(28, 30), slice(6, 7))):
        storage.reset_request_counts()
        array[box] = values[box] + 1
        counts = storage.request_counts()
        assert counts.get + counts.get_ranges == 0
        assert counts.put > 0
    np.testing.assert_array_equal(array[20:], values[20:] + 1)


def test_writes_of_shards_stay_within_the_memory() -> None:
    memory = icefloe.in_memory_storage()
    held = list[int]()

    class Puts(BackendWrapper):
        async def around(self, verb: Any, *arguments: Any, **options: Any) -> Any:
            if verb == "put":
                held.append(memory_budget().held_bytes)
            return await super().around(verb, *arguments, **options)

    storage = WrappedStorage(memory, Puts)
    session = far_repository(storage=storage, inline_bytes=0).writable_session("main")
    array = opened(session.store, OURS, **LARGE)
    held.clear()
    with zarr.config.set({selections.MOST_BYTES: 700_000}):
        array[:] = VALUES
        array[5:-5] = 1.0
    assert len(held) == 6
    assert 0 < max(held) <= 700_000
    assert memory_budget().held_bytes == 0


class PartialBytes(
    BytesCodec, ArrayBytesCodecPartialDecodeMixin, ArrayBytesCodecPartialEncodeMixin
):
    """A codec of somebody else that decodes parts of chunks, and only on an event loop."""

    async def _decode_partial_single(self, byte_getter: Any, selection: Any, spec: Any) -> Any:
        data = await byte_getter.get(prototype=spec.prototype)
        return None if data is None else self._decode_sync(data, spec)[selection]

    async def _encode_partial_single(
        self, byte_setter: Any, values: Any, selection: Any, spec: Any
    ) -> None:
        data = await byte_setter.get(prototype=spec.prototype)
        chunk = spec.prototype.nd_buffer.create(
            shape=spec.shape, dtype=spec.dtype.to_native_dtype(), fill_value=spec.fill_value
        )
        if data is not None:
            chunk[...] = self._decode_sync(data, spec)
        chunk[selection] = values
        await byte_setter.set(self._encode_sync(chunk, spec))

    @classmethod
    def from_dict(cls, data: Any) -> "PartialBytes":
        return cls()

    def to_dict(self) -> Any:
        return {"name": "icefloe.tests.partial_bytes"}


register_codec("icefloe.tests.partial_bytes", PartialBytes)


@pytest.mark.parametrize("distance", ["far", "near"])
def test_other_codecs_that_decode_parts_take_the_way_of_zarr(distance: str) -> None:
    session = REPOSITORIES[distance](inline_bytes=0).writable_session("main")
    layout = {"shape": (8,), "chunks": (4,), "dtype": "i4", "compressors": None}
    array = opened(session.store, OURS, **layout, serializer=PartialBytes())
    array[:] = np.arange(8)
    array[3:5] = 7
    assert opened(session.store, OURS)[1:].tolist() == [1, 2, 7, 7, 5, 6, 7]


def test_codecs_of_an_index_may_have_settings_in_a_dict() -> None:
    session = far_repository(inline_bytes=0).writable_session("main")
    index_codecs = (BytesCodec(), numcodecs_of_zarr.CRC32C())
    serializer = ShardingCodec(chunk_shape=(2,), index_codecs=index_codecs)
    layout = {"shape": (8,), "chunks": (8,), "dtype": "i4", "compressors": None}
    array = opened(session.store, OURS, **layout, serializer=serializer)
    array[:] = np.arange(8)
    assert [array[3:5].tolist() for _ in range(2)] == [[3, 4], [3, 4]]


def reader_with(memory: icefloe.Storage, *faults: Any) -> tuple[Any, FaultyBackend]:
    faulty = FaultyBackend(memory.open(), *faults)
    settings_ = effective_storage_settings(None)
    wrapped = WrappedStorage(memory, lambda _: RetryingBackend(faulty, settings_, Meter()))
    repository = icefloe.Repository.open(wrapped, authorize_virtual_chunk_access=ACCESS)
    return opened(repository.readonly_session("main").store, OURS), faulty


@pytest.mark.parametrize("kind", ["fails", "is short"])
def test_a_request_for_an_index_or_for_chunks_that_fails_is_an_error(kind: str) -> None:
    memory = icefloe.in_memory_storage()
    three_shards(memory)
    array, backend = reader_with(memory)
    before = len(backend.trace)
    np.testing.assert_array_equal(array[::7_000], VALUES[::7_000])
    after = len(backend.trace)
    assert after - before >= 1 + 3 + 3  # a manifest, indices, chunks
    for step in range(before + 1, after):
        fault = Fail(step, "before") if kind == "fails" else ShortRead(step, kept_bytes=3)
        array, backend = reader_with(memory, fault)
        with pytest.raises(StorageError):
            array[::7_000]
        assert memory_budget().held_bytes == 0
        np.testing.assert_array_equal(array[::7_000], VALUES[::7_000])


@pytest.mark.parametrize("distance", ["far", "near"])
def test_missing_shards_are_reported_to_zarr_and_missing_chunks_in_shards_are_not(
    distance: str,
) -> None:
    session = REPOSITORIES[distance]().writable_session("main")
    layout = {"shape": (12,), "chunks": (2,), "shards": (4,), "dtype": "i4", "fill_value": 3}
    array = opened(session.store, OURS, **layout, config={"read_missing_chunks": False})
    array[:2] = 1
    assert array[:4].tolist() == [1, 1, 3, 3]
    with pytest.raises(zarr.errors.ChunkNotFoundError):
        array[:5]


@pytest.mark.parametrize("shards_of", [None, (8,)])
def test_garbage_in_place_of_a_chunk_is_the_error_of_its_codec(shards_of: Any) -> None:
    codec = ZstdCodec()
    session = far_repository(inline_bytes=0).writable_session("main")
    layout = {"shape": (8,), "chunks": (4,), "shards": shards_of, "dtype": "i4"}
    array = opened(session.store, OURS, **layout, compressors=codec)
    array[:] = np.arange(8)
    prototype = default_buffer_prototype()
    stored = sync(session.store.get("a/c/0", prototype))
    assert stored is not None
    garbage = prototype.buffer.from_bytes(b"garb" + stored.to_bytes()[4:])
    sync(session.store.set("a/c/0", garbage))
    for pipeline in (OURS, THEIRS):
        with pytest.raises(RuntimeError, match=r"(?i)zstd"):
            opened(session.store, pipeline)[:4]
