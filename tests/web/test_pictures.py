"""The numbers of pictures, compared with xarray."""

import json
from typing import Any

import httpx2 as httpx
import numpy as np
import pytest
import zarr
from numpy.typing import NDArray

import icefloe
from icefloe.format.nodes import ArrayNode
from icefloe.records import replace
from icefloe.web.nodes import ArrayFacts, facts_of, find_node
from icefloe.web.pictures import (
    MOST_BYTES,
    MOST_CHUNKS,
    NotDrawableError,
    _fit,
    make_plan,
    read_statistics,
)
from icefloe.web.versions import Viewed
from tests.web.conftest import example_data


def picture(client: httpx.Client, path: str) -> tuple[dict[str, Any], NDArray[np.float32]]:
    content = client.get(path).raise_for_status().content
    length = int.from_bytes(content[:4], "little")
    header = json.loads(content[4 : 4 + length])
    values = np.frombuffer(content[4 + length :], "<f4").reshape(header["shape"])
    return header, values


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
    header, values = picture(client, "/series/t2m?index=0,4,5&along=time&version=v1")
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
    window, note = _fit(facts((100_000, 100_000), (1000, 1000)), [0, 1])
    chunks = 1
    for part in window:
        chunks *= (part.stop - part.start) // 1000
        assert (part.stop - part.start) / part.step <= 512
    assert 4_000_000 * chunks <= MOST_BYTES
    assert note == f"The middle of the array: {chunks} of 10,000 chunks."


def test_many_small_chunks_are_shown_in_part() -> None:
    window, note = _fit(facts((100_000, 100_000), (10, 10)), [0, 1])
    assert np.prod([(part.stop - part.start) // 10 for part in window]) <= MOST_CHUNKS
    assert note


def test_a_chunk_that_is_too_large_is_not_read() -> None:
    with pytest.raises(NotDrawableError, match="a chunk has 3814 MiB"):
        _fit(facts((100_000, 100_000), (100_000, 10_000)), [0, 1])


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
