"""The numbers of pictures, compared with xarray."""

import gzip
import json
from collections.abc import Sequence
from typing import Any

import httpx2 as httpx
import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.typing import NDArray
from starlette.testclient import TestClient

import icefloe
from icefloe.format.nodes import ArrayNode
from icefloe.records import replace
from icefloe.web import packing
from icefloe.web.nodes import ArrayFacts, facts_of, find_node, inner_shape_of
from icefloe.web.packing import pack
from icefloe.web.pictures import (
    MOST_BYTES,
    MOST_CHUNKS,
    NotDrawableError,
    _fit,
    make_plan,
    read_statistics,
)
from icefloe.web.site import create_site
from icefloe.web.versions import Viewed
from tests.web.conftest import example_data


def picture(client: httpx.Client, path: str) -> tuple[dict[str, Any], NDArray[np.float32]]:
    content = client.get(path).raise_for_status().content
    length = int.from_bytes(content[:4], "little")
    header = json.loads(content[4 : 4 + length])
    if "levels" in header:
        return header, unpack(content[4 + length :], header["levels"], header["shape"])
    kind = "<f8" if header.get("wide") else "<f4"
    return header, np.frombuffer(content[4 + length :], kind).reshape(header["shape"])


def unpack(content: bytes, levels: int, shape: Sequence[int]) -> NDArray[np.float32]:
    """Return packed values, as the script of the pages does it."""
    table = np.frombuffer(content, "<f4", levels)
    planes = np.frombuffer(content, np.uint8, offset=table.nbytes).reshape(-1, *shape)
    weights = 256 ** np.arange(len(planes))
    codes = (planes * weights[:, None, None]).sum(axis=0)
    steps = np.where(codes % 2, -(codes + 1) // 2, codes // 2)
    values: NDArray[np.float32] = table[np.cumsum(steps, axis=1) % levels]
    return values


def test_a_map_has_the_values_of_its_step(client: httpx.Client) -> None:
    header, values = picture(client, "/picture/t2m?index=3,0,0")
    expected = example_data()["t2m"].isel(time=3).to_numpy()
    np.testing.assert_array_equal(values, expected)
    assert header["kind"] == "map"
    assert header["index"][0] == {"name": "time", "step": 3, "label": "2024-01-04"}
    assert header["axes"]["rows"]["values"][:2] == [-90.0, -80.0]
    assert header["range"]["missing"] == 1
    assert header["range"]["max"] == np.nanmax(expected)
    assert header["units"] == "K"


def noise(side: int = 512) -> NDArray[np.float32]:
    values = np.random.default_rng(0).normal(size=(side, side)).astype("f4")
    values[7, 8] = np.nan
    values[9] = 1e30  # a marker of missing values that nobody declared
    return values


def test_packed_values_are_few_bytes_and_near() -> None:
    values = noise()
    packed = pack(values)
    assert len(gzip.compress(packed.content, 6)) <= packing.MOST_BYTES
    shown = unpack(packed.content, packed.levels, values.shape)
    np.testing.assert_array_equal(np.isnan(shown), np.isnan(values))
    difference = np.abs(shown.astype("f8") - values)
    assert np.nanmax(difference) == packed.rounding
    usual = np.abs(values) < 2  # the range without outliers is about 4
    assert difference[usual].max() < 4 / 200


@given(
    npst.arrays(
        np.float32,
        npst.array_shapes(min_dims=2, max_dims=2, max_side=90),
        elements=st.floats(-1e6, 1e6, width=32) | st.sampled_from([0.0, np.nan, np.inf, 3e38]),
        fill=st.nothing(),
    )
)
def test_packing_loses_nothing_of_few_values(values: NDArray[np.float32]) -> None:
    packed = pack(values)
    shown = unpack(packed.content, packed.levels, values.shape)
    assert packed.rounding == 0
    np.testing.assert_array_equal(shown, np.where(np.isfinite(values), values, np.nan))


def test_what_did_not_change_is_zero_exactly() -> None:
    values = noise()
    values[:100] = 0
    packed = pack(values)
    assert (unpack(packed.content, packed.levels, values.shape)[:100] == 0).all()


def test_exact_values_of_a_picture() -> None:
    repository = icefloe.Repository.create(icefloe.in_memory_storage())
    with repository.transaction("main", message="data") as store:
        zarr.create_array(store, name="a", data=noise())
    site = create_site(Viewed(repository, "x", "x"))
    with TestClient(site, base_url="http://localhost") as client:
        header, shown = picture(client, "/picture/a")
        assert 0 < np.abs(shown - noise())[:7].max() <= header["rounding"]
        before = repository.storage.request_counts().get_ranges
        _, exact = picture(client, "/picture/a?rows=3,7&columns=0,8,511")
        np.testing.assert_array_equal(exact, noise()[np.ix_([3, 7], [0, 8, 511])])
        assert repository.storage.request_counts().get_ranges == before  # the picture was kept
        for part in ("rows=512&columns=0", "rows=-1&columns=0", "rows=x&columns=0"):
            assert client.get(f"/picture/a?{part}").status_code == 422
        many = ",".join("0" * 65)
        assert client.get(f"/picture/a?rows={many}&columns=0").status_code == 422


def test_versions_have_their_own_values(client: httpx.Client) -> None:
    assert (picture(client, "/picture/t2m?index=0,0,0")[1] == 5).all()
    _, before = picture(client, "/picture/t2m?index=0,0,0&version=v1")
    np.testing.assert_array_equal(before, example_data()["t2m"].isel(time=0))


def test_images_and_lines(client: httpx.Client) -> None:
    header, values = picture(client, "/picture/image")
    assert header["kind"] == "image"
    np.testing.assert_array_equal(values, example_data()["image"].to_numpy())
    header, values = picture(client, "/picture/line")
    assert header["kind"] == "line"
    np.testing.assert_allclose(values[0], np.sin(np.arange(20) / 5), rtol=1e-6)


def test_a_series_at_a_point(client: httpx.Client) -> None:
    header, values = picture(client, "/series/t2m?index=0,4,5&along=0&version=v1")
    np.testing.assert_array_equal(values[0], example_data()["t2m"].isel(lat=4, lon=5))
    assert header["axes"]["columns"]["labels"][0] == [0, "2024-01-01"]


def test_virtual_chunks_are_drawn(client: httpx.Client) -> None:
    _, values = picture(client, "/picture/ocean/virtual")
    assert values.tolist() == [[0, 1, 2, 3]]


def facts(shape: tuple[int, ...], chunks: tuple[int, ...]) -> ArrayFacts:
    grid = tuple(-(-length // chunk) for length, chunk in zip(shape, chunks, strict=True))
    names = tuple("abc"[: len(shape)])
    return ArrayFacts(names, shape, grid, "float32", chunks, "", "", None, ())


def test_a_large_plane_is_shown_in_part() -> None:
    window, in_part, note = _fit(facts((100_000, 100_000), (1000, 1000)), [0, 1], [0, 0])
    assert in_part == (0, 1)
    chunks = 1
    for part in window:
        chunks *= (part.stop - part.start) // 1000
        assert (part.stop - part.start) / part.step <= 512
    assert 4_000_000 * chunks <= MOST_BYTES
    assert note == f"A part of the array: {chunks} of 10,000 chunks."


@pytest.mark.parametrize(
    ("step", "start"),
    [(0, 0), (49_999, 46_000), (50_000, 47_000), (80_500, 77_000), (99_999, 93_000)],
)
def test_a_part_is_around_a_step(step: int, start: int) -> None:
    array = facts((100_000, 1000), (1000, 1000))
    window, in_part, note = _fit(replace(array, data_type="float64"), [0, 1], [step, 0])
    assert (window[0].start, window[0].stop) == (start, start + 7000)
    assert (window[1].start, window[1].stop) == (0, 1000)
    assert in_part == (0,)
    assert note


def test_many_small_chunks_are_shown_in_part() -> None:
    window, _, note = _fit(facts((100_000, 100_000), (10, 10)), [0, 1], [0, 0])
    assert np.prod([(part.stop - part.start) // 10 for part in window]) <= MOST_CHUNKS
    assert note


def test_a_chunk_that_is_too_large_is_not_read() -> None:
    with pytest.raises(NotDrawableError, match="a chunk has 3814 MiB"):
        _fit(facts((100_000, 100_000), (100_000, 10_000)), [0, 1], [0, 0])


def test_a_plan_takes_latitude_and_longitude_for_the_map(viewed: Viewed) -> None:
    version = viewed.version(None)
    node = find_node(version, "/t2m")
    plan = make_plan(version, node)  # type: ignore[arg-type]
    assert (plan.rows, plan.columns) == (1, 2)


@pytest.mark.parametrize("name", ["packed", "marked"])
def test_missing_values_as_xarray_stores_them(client: httpx.Client, name: str) -> None:
    _, values = picture(client, f"/picture/{name}")
    np.testing.assert_allclose(values, [[np.nan, 1.5, 2.0], [2.5, np.nan, 3.0]])


def test_odd_metadata_is_no_failure(viewed: Viewed) -> None:
    version = viewed.version(None)
    node = find_node(version, "/t2m")
    assert isinstance(node, ArrayNode)
    document = json.loads(node.user_data)
    for grid in (None, 5, {}, {"configuration": 3}, {"configuration": {"chunk_shape": [0, 0, 0]}}):
        odd = replace(node, user_data=json.dumps(document | {"chunk_grid": grid}).encode())
        assert facts_of(odd).chunk_shape is None
        assert facts_of(odd).largest_chunk == (5, 10, 18)
    for codecs in (None, "x", [3, None, {"name": 5}]):
        odd = replace(node, user_data=json.dumps(document | {"codecs": codecs}).encode())
        assert isinstance(facts_of(odd).codecs, tuple)


@pytest.mark.parametrize(
    ("shape", "drawn"),
    [((20, 30, 3), "ab"), ((2, 20, 30), "bc"), ((20, 3, 3), "bc"), ((20, 2, 30, 4), "ac")],
)
def test_a_few_bands_are_not_drawn_beside_each_other(shape: tuple[int, ...], drawn: str) -> None:
    repository = icefloe.Repository.create(icefloe.in_memory_storage())
    names = "abcd"[: len(shape)]
    with repository.transaction("main", message="data") as store:
        zarr.create_array(store, name="a", shape=shape, dtype="u1", dimension_names=names)
    with TestClient(create_site(Viewed(repository, "x", "x")), "http://localhost") as client:
        axes = picture(client, "/picture/a")[0]["axes"]
    assert axes["rows"]["name"] + axes["columns"]["name"] == drawn


def test_a_large_shard_is_read_in_parts() -> None:
    repository = icefloe.Repository.create(icefloe.in_memory_storage())
    parts = np.add.outer(np.arange(32), np.arange(32)).astype("f4")
    with repository.transaction("main", message="data") as store:
        array = zarr.create_array(
            store, name="a", shape=(8192, 8192), chunks=(256, 256), shards=(8192, 8192), dtype="f4"
        )
        array[:] = np.kron(parts, np.ones((256, 256), "f4"))
        options: Any = {"chunks": (4, 4), "shards": (8192, 8192), "dtype": "f4"}
        zarr.create_array(store, name="many", shape=(8192, 8192), **options)
    with TestClient(create_site(Viewed(repository, "x", "x")), "http://localhost") as client:
        header, values = picture(client, "/picture/a")
        assert "8192 × 8192, in parts of 256 × 256" in client.get("/node/a").text
        assert header["note"] == "A part of the array: 256 of 1,024 chunks."
        assert values.shape == (512, 512)
        np.testing.assert_array_equal(values[::32, ::32], parts[8:24, 8:24])
        header, values = picture(client, "/series/a?index=300,0&along=1")
        assert header["note"] == "Every 8th step of 8,192."
        np.testing.assert_array_equal(values[0, ::32], parts[1])
        text = client.get("/fragment/statistics/a").text
        assert "<strong>Sampled</strong>: 1,048,576 values from chunks across the array" in text
        assert ">62</td>" in text  # that of the last part
        assert "1,024 of 4,194,304 chunks" in picture(client, "/picture/many")[0]["note"]


def test_a_shard_with_other_codecs_is_read_whole() -> None:
    sharding = {"name": "sharding_indexed", "configuration": {"chunk_shape": [256, 256]}}
    document = {"codecs": [sharding, {"name": "zstd"}]}
    assert inner_shape_of(document, 2) is None
    assert inner_shape_of({"codecs": [sharding]}, 2) == (256, 256)
    assert inner_shape_of({"codecs": [sharding]}, 3) is None


def test_statistics_of_values_with_a_large_mean() -> None:
    repository = icefloe.Repository.create(icefloe.in_memory_storage())
    values = 1e9 + np.arange(1000) % 7
    with repository.transaction("main", message="data") as store:
        zarr.create_array(store, name="a", shape=1000, chunks=100, dtype="f8")[:] = values
    version = Viewed(repository, "x", "x").version(None)
    node = find_node(version, "/a")
    assert isinstance(node, ArrayNode)
    figures = read_statistics(version, node)
    assert figures.is_exact
    assert figures.mean == pytest.approx(values.mean(), rel=1e-12)
    assert figures.deviation == pytest.approx(values.std(), rel=1e-6)


@pytest.mark.parametrize("path", ["/picture/rain", "/picture/t2m"])
def test_labels_of_axes_are_round_numbers(cubes: TestClient, path: str) -> None:
    header, _ = picture(cubes, path)  # its latitudes run downwards
    for axis, expected in (
        (header["axes"]["rows"], ["-60", "-30", "0", "30", "60"]),
        (header["axes"]["columns"], ["-180", "-120", "-60", "0", "60", "120"]),
    ):
        assert [label for _, label in axis["labels"]] == expected
        steps = axis["start"] + axis["stride"] * np.arange(len(axis["values"]))
        for place, label in axis["labels"]:
            assert np.interp(place, steps, axis["values"]) == pytest.approx(float(label))
