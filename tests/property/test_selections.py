"""The pipeline that sees whole selections gives what Zarr's own pipelines give."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.codecs import BloscCodec, BytesCodec, GzipCodec, TransposeCodec, ZstdCodec

import icefloe
from icefloe.credentials import LocalFileSystemAccess
from icefloe.effects import let_others_join
from icefloe.errors import InvalidInputError
from icefloe.transactions.packing import PackingOptions
from icefloe.transactions.selections import group_refs, read_group
from icefloe.zarr_store import selections

OURS = "icefloe.zarr_store.selections.SelectionPipeline"
THEIRS = "zarr.core.codec_pipeline.BatchedCodecPipeline"
FAR = "s3://far-away/"


def far_repository(
    files: Path | None = None, *, storage: icefloe.Storage | None = None, inline_bytes: int = 40
) -> icefloe.Repository:
    """Make a repository in memory that counts as far away: its reader may read from S3."""
    config = icefloe.RepositoryConfig.default()
    config.inline_chunk_threshold_bytes = inline_bytes
    store = icefloe.s3_store(region="us-east-1")
    config.set_virtual_chunk_container(icefloe.VirtualChunkContainer(FAR, store))
    access: dict[str, Any] = {FAR: icefloe.s3_credentials(anonymous=True)}
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
    dimensions = draw(st.integers(1, 3))
    shape = draw(st.tuples(*[st.integers(1, 9)] * dimensions))
    chunks = draw(st.tuples(*[st.integers(1, 4)] * dimensions))
    layout: dict[str, Any] = {"shape": shape, "chunks": chunks}
    layout["dtype"] = draw(st.sampled_from(["i2", "f4", "bool", "str"]))
    if layout["dtype"] == "f4":
        layout["fill_value"] = draw(st.sampled_from([0.0, -1.5, float("nan")]))
    compressors: list[Any] = [None, ZstdCodec(level=1), GzipCodec(level=1)]
    if layout["dtype"] != "str":
        compressors.append(BloscCodec(cname="lz4", shuffle="noshuffle"))
    layout["compressors"] = draw(st.sampled_from(compressors))
    if draw(st.booleans()):
        order = draw(st.permutations(range(dimensions)))
        layout["filters"] = [TransposeCodec(order=tuple(order))]
    elif draw(st.booleans()):
        layout["shards"] = tuple(2 * length for length in chunks)
    return layout


def boxes(shape: tuple[int, ...]) -> st.SearchStrategy[tuple[slice, ...]]:
    def box(length: int) -> st.SearchStrategy[slice]:
        ends = st.tuples(st.integers(0, length), st.integers(0, length))
        return ends.map(lambda pair: slice(min(pair), max(pair)))

    return st.tuples(*(box(length) for length in shape))


def reads(shape: tuple[int, ...]) -> st.SearchStrategy[Callable[[Any], Any]]:
    indices = st.tuples(
        *(st.lists(st.integers(0, length - 1), min_size=1, max_size=5) for length in shape)
    )
    masks = st.lists(st.booleans(), min_size=int(np.prod(shape)), max_size=int(np.prod(shape)))
    points = st.lists(st.tuples(*(st.integers(0, n - 1) for n in shape)), min_size=1, max_size=5)
    return st.one_of(
        boxes(shape).map(lambda box: lambda array: array[box]),
        st.tuples(*(st.integers(-n, n - 1) for n in shape)).map(lambda i: lambda array: array[i]),
        indices.map(lambda rows: lambda array: array.oindex[rows]),
        masks.map(lambda mask: lambda array: array.vindex[np.reshape(mask, shape)]),
        points.map(lambda rows: lambda array: array.vindex[tuple(np.transpose(rows))]),
    )


def values_for(data: st.DataObject, shape: tuple[int, ...], dtype: str) -> Any:
    numbers = np.random.default_rng(data.draw(st.integers(0, 9))).integers(0, 3, shape)
    return numbers.astype(str).astype(object) if dtype == "str" else numbers.astype(dtype)


def opened(store: Any, pipeline: str, **layout: Any) -> Any:
    with zarr.config.set({"codec_pipeline.path": pipeline}):
        if layout:
            return zarr.create_array(store, name="a", **layout)
        return zarr.open_array(store, path="a")


@settings(max_examples=60)
@given(st.data())
def test_reads_and_writes_equal_those_of_zarr(data: st.DataObject) -> None:
    draw = data.draw
    layout = draw(layouts())
    shape, dtype = layout["shape"], layout["dtype"]
    repository = far_repository()
    packing: Any = draw(
        st.sampled_from([False, PackingOptions(max_chunk_bytes=200, pack_bytes=500)])
    )
    session = repository.writable_session("main", packing=packing)
    plain = opened(zarr.storage.MemoryStore(), THEIRS, **layout)
    ours = opened(session.store, OURS, **layout)
    for _ in range(draw(st.integers(0, 3))):
        box = draw(boxes(shape))
        values = values_for(data, plain[box].shape, dtype)
        plain[box] = values
        ours[box] = values
    if draw(st.booleans()) and session.has_uncommitted_changes:
        session.commit("some values")
        session = repository.writable_session("main", packing=packing)
        ours = opened(session.store, OURS)
        box = draw(boxes(shape))
        values = values_for(data, plain[box].shape, dtype)
        plain[box] = values
        ours[box] = values
    read = draw(reads(shape))
    for array in (ours, opened(session.store, THEIRS)):
        np.testing.assert_array_equal(np.asarray(read(array)), np.asarray(read(plain)))


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
    session.commit("four kinds")
    reader = repository.readonly_session("main")
    np.testing.assert_array_equal(opened(reader.store, OURS)[:], expected)
    np.testing.assert_array_equal(opened(reader.store, OURS)[3:70:3], expected[3:70:3])


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


def test_memory_is_bounded_by_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    session = far_repository().writable_session("main")
    array = opened(session.store, OURS, shape=(64, 100), chunks=(1, 100), dtype="f8")
    array[:] = np.random.default_rng(0).random((64, 100))
    under_way = most = 0

    async def counted(*arguments: Any) -> Any:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await let_others_join()
        under_way -= 1
        return await read_group(*arguments)

    monkeypatch.setattr(selections, "read_group", counted)
    with zarr.config.set({selections.MOST_REQUESTS: 7}):
        array[:]
    assert most == 7
    most = 0
    with zarr.config.set({selections.MOST_BYTES: 5_000}):  # 800 bytes decoded, as many stored
        array[:]
    assert most == 3


@pytest.mark.parametrize("value", [0, -1, "many"])
def test_settings_are_checked(value: object) -> None:
    session = far_repository().writable_session("main")
    array = opened(session.store, OURS, shape=(4,), chunks=(2,), dtype="i4")
    with (
        zarr.config.set({selections.MOST_BYTES: value}),
        pytest.raises(InvalidInputError, match="most_bytes must be a positive number"),
    ):
        array[:] = 1


def test_groups_hold_each_reference_once() -> None:
    assert group_refs([None, None]) == []
