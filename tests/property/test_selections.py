"""The pipeline that sees whole selections gives what Zarr's own pipelines give."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import icechunk
import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.codecs import BloscCodec, BytesCodec, GzipCodec, TransposeCodec, ZstdCodec
from zarr.codecs.numcodecs import Shuffle, Zlib

import icefloe
from icefloe.credentials import LocalFileSystemAccess
from icefloe.errors import InvalidInputError
from icefloe.pacing import Pace, memory_budget
from icefloe.transactions.packing import PackingOptions
from icefloe.transactions.selections import ChunkRequest, read_request
from icefloe.zarr_store import selections

OURS = "icefloe.zarr_store.selections.SelectionPipeline"
THEIRS = "zarr.core.codec_pipeline.BatchedCodecPipeline"
FAR = "s3://far-away/"
ACCESS: Any = {FAR: icefloe.s3_credentials(anonymous=True)}
"""Whoever may read from S3 counts as far away."""


def far_repository(
    files: Path | None = None, *, storage: icefloe.Storage | None = None, inline_bytes: int = 40
) -> icefloe.Repository:
    """Make a repository in memory that counts as far away: its reader may read from S3."""
    config = icefloe.RepositoryConfig.default()
    store = icefloe.s3_store(region="us-east-1")
    config.set_virtual_chunk_container(icefloe.VirtualChunkContainer(FAR, store))
    return _repository(config, dict(ACCESS), files, storage, inline_bytes)


def near_repository(
    files: Path | None = None, *, storage: icefloe.Storage | None = None, inline_bytes: int = 40
) -> icefloe.Repository:
    """Make a repository on this machine, in memory by default."""
    return _repository(icefloe.RepositoryConfig.default(), {}, files, storage, inline_bytes)


def _repository(
    config: icefloe.RepositoryConfig,
    access: dict[str, Any],
    files: Path | None,
    storage: icefloe.Storage | None,
    inline_bytes: int,
) -> icefloe.Repository:
    config.inline_chunk_threshold_bytes = inline_bytes
    if files is not None:
        prefix = f"file://{files}/"
        local = icefloe.local_filesystem_store(str(files))
        config.set_virtual_chunk_container(icefloe.VirtualChunkContainer(prefix, local))
        access[prefix] = LocalFileSystemAccess
    return icefloe.Repository.create(
        storage or icefloe.in_memory_storage(), config, authorize_virtual_chunk_access=access
    )


@st.composite
def layouts(draw: st.DrawFn) -> dict[str, Any]:
    dimensions = draw(st.integers(0, 3))
    shape = draw(st.tuples(*[st.integers(1, 9)] * dimensions))
    chunks = draw(st.tuples(*[st.integers(1, 4)] * dimensions))
    layout: dict[str, Any] = {"shape": shape, "chunks": chunks}
    layout["dtype"] = draw(st.sampled_from(["i2", "f4", ">f8", "bool", "str", "M8[s]"]))
    if layout["dtype"] == "f4":
        layout["fill_value"] = draw(st.sampled_from([0.0, -1.5, float("nan")]))
    compressors: list[Any] = [None, GzipCodec(level=1), Zlib(level=1)]
    compressors += [ZstdCodec(level=1), ZstdCodec(level=1, checksum=True)]
    if layout["dtype"] != "str":
        compressors.append(BloscCodec(cname="lz4", shuffle="noshuffle"))
        size = np.dtype(layout["dtype"]).itemsize
        compressors.append([Shuffle(elementsize=size), Zlib(level=1)])
    layout["compressors"] = draw(st.sampled_from(compressors))
    if layout["dtype"] in {"i2", "f4"}:
        layout["serializer"] = BytesCodec(endian=draw(st.sampled_from(["little", "big"])))
    kind = draw(st.sampled_from(["regular", "transposed", "sharded", "rectilinear"]))
    if kind == "transposed":
        order = draw(st.permutations(range(dimensions)))
        layout["filters"] = [TransposeCodec(order=tuple(order))]
    elif kind == "sharded" and dimensions:
        layout["shards"] = tuple(2 * length for length in chunks)
    elif kind == "rectilinear" and dimensions:
        layout["chunks"] = tuple(draw(edges(length)) for length in shape)
    return layout


def edges(length: int) -> st.SearchStrategy[tuple[int, ...]]:
    """Cut a length into chunks of any lengths."""
    cuts = st.lists(st.integers(1, max(length - 1, 1)), max_size=3, unique=True)
    return cuts.map(
        lambda places: tuple(
            np.diff([0, *sorted(cut for cut in places if cut < length), length]).tolist()
        )
    )


def boxes(shape: tuple[int, ...]) -> st.SearchStrategy[tuple[slice, ...]]:
    def box(length: int) -> st.SearchStrategy[slice]:
        ends = st.tuples(st.integers(0, length), st.integers(0, length))
        return ends.map(lambda pair: slice(min(pair), max(pair)))

    return st.tuples(*(box(length) for length in shape))


def reads(shape: tuple[int, ...]) -> st.SearchStrategy[Callable[[Any], Any]]:
    everything = st.just(lambda array: array[...])
    if not shape:
        return everything
    indices = st.tuples(
        *(st.lists(st.integers(0, length - 1), min_size=1, max_size=5) for length in shape)
    )
    masks = st.lists(st.booleans(), min_size=int(np.prod(shape)), max_size=int(np.prod(shape)))
    points = st.lists(st.tuples(*(st.integers(0, n - 1) for n in shape)), min_size=1, max_size=5)
    steps = st.tuples(boxes(shape), st.tuples(*[st.integers(1, 3)] * len(shape)))
    return st.one_of(
        everything,
        boxes(shape).map(lambda box: lambda array: array[box]),
        steps.map(
            lambda both: (
                lambda array: array[
                    tuple(slice(s.start, s.stop, n) for s, n in zip(*both, strict=True))
                ]
            )
        ),
        st.tuples(*(st.integers(-n, n - 1) for n in shape)).map(lambda i: lambda array: array[i]),
        indices.map(lambda rows: lambda array: array.oindex[rows]),
        masks.map(lambda mask: lambda array: array.vindex[np.reshape(mask, shape)]),
        points.map(lambda rows: lambda array: array.vindex[tuple(np.transpose(rows))]),
        st.tuples(*(st.integers(0, 4) for _ in shape)).map(
            lambda index: lambda array: array.blocks[blocks_within(array, index)]
        ),
        st.tuples(*(st.booleans() for _ in shape)).map(
            lambda whole: (
                lambda array: array.oindex[
                    tuple(
                        slice(None, None, 2) if is_whole else np.arange(length) % 3 == 0
                        for is_whole, length in zip(whole, shape, strict=True)
                    )
                ]
            )
        ),
    )


def blocks_within(array: Any, index: tuple[int, ...]) -> tuple[int, ...]:
    """Return the number of a chunk that exists, for any numbers."""
    grid = array.metadata.chunk_grid
    lengths = getattr(grid, "chunk_shapes", None) or grid.chunk_shape
    counts = [
        -(-side // length) if isinstance(length, int) else len(length)
        for side, length in zip(array.shape, lengths, strict=True)
    ]
    return tuple(number % count for number, count in zip(index, counts, strict=True))


def values_for(data: st.DataObject, shape: tuple[int, ...], dtype: str) -> Any:
    numbers = np.random.default_rng(data.draw(st.integers(0, 9))).integers(0, 3, shape)
    return (
        np.asarray(numbers).astype(str).astype(object)
        if dtype == "str"
        else np.asarray(numbers).astype(dtype)
    )


def opened(store: Any, pipeline: str, **layout: Any) -> Any:
    with zarr.config.set({"codec_pipeline.path": pipeline, "array.rectilinear_chunks": True}):
        if layout:
            return zarr.create_array(store, name="a", **layout)
        return zarr.open_array(store, path="a")


@settings(max_examples=100)
@given(st.data())
def test_reads_and_writes_equal_those_of_zarr(data: st.DataObject) -> None:
    draw = data.draw
    layout = draw(layouts())
    shape, dtype = layout["shape"], layout["dtype"]
    make_repository: Any = draw(st.sampled_from([far_repository, near_repository]))
    repository = make_repository(inline_bytes=draw(st.sampled_from([0, 40])))
    packing: Any = draw(
        st.sampled_from([False, PackingOptions(max_chunk_bytes=200, pack_bytes=500)])
    )
    session = repository.writable_session("main", packing=packing)
    plain = opened(zarr.storage.MemoryStore(), THEIRS, **layout)
    ours = opened(session.store, OURS, **layout)

    def write() -> None:
        box = draw(boxes(shape))
        values = values_for(data, np.shape(plain[box]), dtype)
        if draw(st.integers(0, 2)) == 0:
            values = plain.fill_value  # chunks of nothing else are deleted
        plain[box] = values
        ours[box] = values

    for _ in range(draw(st.integers(0, 3))):
        write()
    if draw(st.booleans()) and session.has_uncommitted_changes:
        session.commit("some values")
        session = repository.writable_session("main", packing=packing)
        ours = opened(session.store, OURS)
        write()
        if draw(st.booleans()):
            plain[...] = ours[...] = plain.fill_value
            write()
    read = draw(reads(shape))
    expected = np.asarray(read(opened(plain.store, THEIRS)))
    for array in (opened(session.store, OURS), opened(session.store, THEIRS)):
        result = np.asarray(read(array))
        np.testing.assert_array_equal(result, expected)
        assert result.dtype == expected.dtype


def chunks_of(array: Any) -> dict[str, Any]:
    """Return the stored chunks of an array in memory, by key."""
    return {key: value for key, value in array.store._store_dict.items() if "a/c" in key}


def stored_in_mixture(
    draw: Any, repository: icefloe.Repository, plain: Any, folder: Path, **layout: Any
) -> icefloe.Session:
    """Store the chunks of an array as virtual, native, packed or inline ones, and leave some out.

    Those that are left out are deleted from the plain array, too. Virtual chunks lie in two files.
    """
    packing: Any = draw(st.sampled_from([False, PackingOptions(200, 500)]))
    session = repository.writable_session("main", packing=packing)
    opened(session.store, OURS, **layout)
    files = [bytearray(b"begin"), bytearray()]
    for key, value in draw(st.permutations(sorted(chunks_of(plain).items()))):
        number = draw(st.integers(0, 3))
        if number == 3:
            del plain.store._store_dict[key]
        elif number == 2:
            zarr.core.sync.sync(session.store.set(key, value))
        else:
            files[number] += bytes(draw(st.sampled_from([0, 7, 200, 20_000])))
            location = f"file://{folder}/{number}.bin"
            stored = value.to_bytes()
            session.store.set_virtual_ref(
                key, location, offset=len(files[number]), length=len(stored)
            )
            files[number] += stored
        if draw(st.integers(0, 9)) == 0 and session.has_uncommitted_changes:
            session.commit("some of them")
            session = repository.writable_session("main", packing=packing)
    for number, content in enumerate(files):
        (folder / f"{number}.bin").write_bytes(content + b"end")
    return session


@settings(max_examples=80)
@given(st.data())
def test_chunks_of_all_kinds_are_read_as_zarr_reads_them(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Virtual, native, packed, inline and missing chunks of one array, in any mixture."""
    draw, folder = data.draw, tmp_path_factory.mktemp("files")
    layout = draw(layouts())
    plain = opened(zarr.storage.MemoryStore(), THEIRS, **layout)
    plain[...] = values_for(data, layout["shape"], layout["dtype"])
    make_repository: Any = draw(st.sampled_from([far_repository, near_repository]))
    repository = make_repository(folder, inline_bytes=draw(st.sampled_from([0, 40])))
    session = stored_in_mixture(draw, repository, plain, folder, **layout)
    array = opened(session.store, OURS)
    for _ in range(3):
        read = draw(reads(layout["shape"]))
        np.testing.assert_array_equal(np.asarray(read(array)), np.asarray(read(plain)))


@pytest.mark.interop
@settings(max_examples=40)
@given(st.data())
def test_what_it_writes_is_what_the_reference_reads(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    draw, folder = data.draw, str(tmp_path_factory.mktemp("repository"))
    layout = draw(layouts())
    storage = icefloe.local_filesystem_storage(folder)
    repository = far_repository(storage=storage, inline_bytes=draw(st.sampled_from([0, 40])))
    plain = opened(zarr.storage.MemoryStore(), THEIRS, **layout)
    packing: Any = draw(st.sampled_from([False, PackingOptions(200, 500)]))
    for number in range(draw(st.integers(1, 3))):
        session = repository.writable_session("main", packing=packing)
        ours = opened(session.store, OURS, **({} if number else layout))
        box = draw(boxes(layout["shape"]))
        values = values_for(data, np.shape(plain[box]), layout["dtype"])
        plain[box] = values
        ours[box] = values
        session.commit("values", allow_empty=True)
    theirs = icechunk.Repository.open(icechunk.local_filesystem_storage(folder))
    array = opened(theirs.readonly_session("main").store, THEIRS)
    np.testing.assert_array_equal(np.asarray(array[...]), np.asarray(plain[...]))
    assert array.metadata.to_dict() == plain.metadata.to_dict()


def test_virtual_native_inline_and_missing_chunks_are_read_together(tmp_path: Path) -> None:
    stored = np.arange(40, dtype="<i4")
    (tmp_path / "values.bin").write_bytes(stored.tobytes())
    repository = far_repository(tmp_path)
    session = repository.writable_session("main")
    layout = {"shape": (80,), "chunks": (10,), "dtype": "<i4", "compressors": None}
    array = opened(session.store, OURS, **layout, serializer=BytesCodec(), fill_value=-7)
    session.store.set_virtual_refs_columns(
        "a",
        coordinates=np.arange(4, dtype=np.uint32).reshape(-1, 1),
        locations=[f"file://{tmp_path}/values.bin"] * 4,
        offsets=np.arange(4) * 40,
        lengths=40,
    )
    array[40:50] = np.arange(1000, 1010)  # inline, at the threshold
    wide = opened(session.store, OURS)
    wide[50:55] = 5
    expected = np.full(80, -7, "<i4")
    expected[:40], expected[40:50], expected[50:55] = stored, np.arange(1000, 1010), 5
    np.testing.assert_array_equal(opened(session.store, OURS)[:], expected)
    session.commit("four kinds")
    reader = repository.readonly_session("main")
    np.testing.assert_array_equal(opened(reader.store, OURS)[:], expected)
    np.testing.assert_array_equal(opened(reader.store, OURS)[3:70:3], expected[3:70:3])


def test_chunks_deleted_in_a_session_are_missing_at_once() -> None:
    repository = far_repository(inline_bytes=0)
    with repository.transaction("main", message="40 chunks") as store:
        opened(store, OURS, shape=(40,), chunks=(1,), dtype="i4")[:] = np.arange(1, 41)
    session = repository.writable_session("main")
    array = opened(session.store, OURS)
    array[5:30] = 0  # the fill value
    array[10] = 7
    expected = np.arange(1, 41)
    expected[5:30], expected[10] = 0, 7
    assert array.nchunks_initialized == 16
    np.testing.assert_array_equal(array[:], expected)
    np.testing.assert_array_equal(array[3:9], expected[3:9])


def test_chunks_of_a_pack_share_requests() -> None:
    storage = icefloe.in_memory_storage()
    repository = far_repository(storage=storage, inline_bytes=0)
    session = repository.writable_session("main", packing=PackingOptions())
    array = opened(session.store, OURS, shape=(64,), chunks=(1,), dtype="f8", compressors=None)
    array[:] = np.arange(64)
    session.commit("64 chunks in a pack")
    reader = opened(repository.readonly_session("main").store, OURS)
    reader[0]
    storage.reset_request_counts()
    assert reader[:].tolist() == list(range(64))
    assert storage.request_counts().requests == 1


@pytest.mark.parametrize("chunk_bytes", [8 * 100, 8 * 20_000])
@pytest.mark.parametrize("compressors", [None, ZstdCodec()])
def test_chunks_on_this_machine_are_read_as_by_zarr(
    tmp_path: Path, chunk_bytes: int, compressors: Any
) -> None:
    storage = icefloe.local_filesystem_storage(str(tmp_path))
    repository = near_repository(storage=storage, inline_bytes=0)
    session = repository.writable_session("main")
    items = chunk_bytes // 8
    layout = {"shape": (12 * items,), "chunks": (items,), "dtype": "f8", "fill_value": -1.0}
    values = np.random.default_rng(1).normal(size=11 * items)
    opened(session.store, OURS, **layout, compressors=compressors)[: 11 * items] = values
    session.commit("eleven chunks of twelve")
    store = repository.readonly_session("main").store
    expected = np.concatenate([values, np.full(items, -1.0)])
    readers = opened(store, OURS), opened(store, THEIRS)
    assert readers[0][0] == expected[0]  # the manifest is in memory from here on
    for window in (slice(None), slice(3, 2 * items), slice(-items - 1, None), slice(5, None, 7)):
        requests = []
        for reader in readers:
            storage.reset_request_counts()
            np.testing.assert_array_equal(reader[window], expected[window])
            requests.append(storage.request_counts().requests)
        assert requests[0] == requests[1]


def test_a_group_has_no_chunks_to_read() -> None:
    session = near_repository().writable_session("main")
    array = opened(session.store, OURS, shape=(4,), chunks=(1,), dtype="i4")
    zarr.create_group(session.store, path="a", overwrite=True)
    with pytest.raises(InvalidInputError, match="/a is a group"):
        array[:]


def test_memory_and_requests_are_bounded_by_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    session = far_repository().writable_session("main")
    array = opened(
        session.store, OURS, shape=(64, 100), chunks=(1, 100), dtype="f8", compressors=None
    )
    values = np.random.default_rng(0).random((64, 100))
    array[:] = values
    gathering = threading.Condition()
    under_way = most = most_bytes = expected = 0

    async def counted(state: Any, request: ChunkRequest) -> Any:
        nonlocal under_way, most, most_bytes
        with gathering:
            under_way += 1
            most, most_bytes = max(most, under_way), max(most_bytes, memory_budget().held_bytes)
            gathering.notify_all()
            # All that may be under way are, before the first request goes on.
            assert gathering.wait_for(lambda: most >= expected, timeout=60)
        data = await read_request(state, request)
        with gathering:
            under_way -= 1
        return data

    monkeypatch.setattr(selections, "read_request", counted)
    expected = 7
    with zarr.config.set({selections.MOST_REQUESTS: 7}):
        np.testing.assert_array_equal(array[:], values)
    assert most == 7
    most, expected = 0, 6
    with zarr.config.set({selections.MOST_BYTES: 5_000}):  # 800 bytes stored, none beside them
        np.testing.assert_array_equal(array[:], values)
    assert most == 6
    assert most_bytes <= 7 * 800
    assert memory_budget().held_bytes == 0


@pytest.mark.parametrize("value", [0, -1, "many"])
def test_settings_are_checked(value: object) -> None:
    session = far_repository().writable_session("main")
    array = opened(session.store, OURS, shape=(4,), chunks=(2,), dtype="i4")
    with (
        zarr.config.set({selections.MOST_BYTES: value}),
        pytest.raises(InvalidInputError, match="most_bytes must be a positive number"),
    ):
        array[:] = 1


@pytest.mark.parametrize("compressor", [None, ZstdCodec(), BloscCodec(), Zlib()])
def test_a_chunk_of_another_size_is_refused(compressor: Any) -> None:
    """A chunk that decodes to fewer bytes must not leave a part of the result as it was."""
    repository = far_repository(inline_bytes=0)
    session = repository.writable_session("main")
    layout = {"shape": (30,), "chunks": (10,), "dtype": "f8", "compressors": compressor}
    opened(session.store, OURS, **layout)[:] = 1
    other = opened(zarr.storage.MemoryStore(), THEIRS, **{**layout, "shape": (5,), "chunks": (5,)})
    other[:] = 2
    short = zarr.core.sync.sync(
        other.store.get("a/c/0", zarr.core.buffer.default_buffer_prototype())
    )
    zarr.core.sync.sync(session.store.set("a/c/1", short))
    for pipeline in (OURS, THEIRS):
        with pytest.raises(ValueError, match="reshape"):
            opened(session.store, pipeline)[:]


@pytest.mark.parametrize("make_repository", [far_repository, near_repository])
@pytest.mark.parametrize("items", [100, 20_000])
@pytest.mark.parametrize("damage", ["a wrong checksum", "bytes that follow", "a lost end"])
def test_a_damaged_frame_is_an_error(make_repository: Any, items: int, damage: str) -> None:
    session = make_repository(inline_bytes=0).writable_session("main")
    layout = {"shape": (3 * items,), "chunks": (items,), "dtype": "i4"}
    compressor = ZstdCodec(level=1, checksum=True)
    array = opened(session.store, OURS, **layout, compressors=compressor)
    array[:] = np.arange(3 * items)
    prototype = zarr.core.buffer.default_buffer_prototype()
    stored = bytearray(zarr.core.sync.sync(session.store.get("a/c/1", prototype)).to_bytes())
    match damage:
        case "a wrong checksum":
            stored[-1] ^= 1
        case "bytes that follow":
            stored += b"more"
        case _:
            del stored[-5:]
    value = prototype.buffer.from_bytes(bytes(stored))
    zarr.core.sync.sync(session.store.set("a/c/1", value))
    for pipeline in (OURS, THEIRS):
        with pytest.raises(RuntimeError):
            opened(session.store, pipeline)[:]
    np.testing.assert_array_equal(array[:items], np.arange(items))


def test_pace_follows_the_distance() -> None:
    """More threads over a distance, fewer where the server is busy with few."""

    def settle(rate_of: Callable[[int], float]) -> int:
        now = 0.0
        pace = Pace(lambda: now)
        for _ in range(20_000):
            threads = pace.threads(128)
            now += 1 / rate_of(threads)
            pace.finished(100_000, 0.02, is_busy=True, most=128)
        return pace.threads(128)

    assert settle(lambda threads: 50 * threads) == 128
    assert settle(lambda threads: 3_000 / threads) == 16
    assert settle(lambda threads: 50 * min(threads, 64)) >= 64
