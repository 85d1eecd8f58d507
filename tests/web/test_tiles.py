"""Map tiles, compared pixel by pixel with xarray, and decoded by another library for PNG."""

import json
import math
import re
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import imagecodecs
import numpy as np
import pytest
import xarray
import zarr
from starlette.testclient import TestClient

import icefloe
from icefloe.web import tiles
from icefloe.web.site import create_site
from icefloe.web.versions import Viewed
from tests.web.cubes import climate, weather


def places(zoom: int, column: int, row: int) -> tuple[list[float], list[float]]:
    """Return latitude and longitude of the middles of pixels, as the definition of XYZ has it."""
    lats, lons = [], []
    for pixel in range(256):
        x = (column * 256 + pixel + 0.5) / (256 * 2**zoom)
        y = (row * 256 + pixel + 0.5) / (256 * 2**zoom)
        lons.append(x * 360 - 180)
        lats.append(math.degrees(2 * math.atan(math.exp(math.pi * (1 - 2 * y))) - math.pi / 2))
    return lats, lons


def expected_picture(
    field: xarray.DataArray, tile: tuple[int, int, int], limits: tuple[float, float]
) -> Any:
    """Compute a tile in another way: nearest points by xarray, grey by arithmetic."""
    lats, lons = places(*tile)
    step = abs(float(field.lat[1] - field.lat[0]))
    first = float(field.lon[0])
    width = float(field.lon[1] - field.lon[0])
    around = [(lon - first + width / 2) % 360 + first - width / 2 for lon in lons]
    values = field.sel(lat=lats, lon=around, method="nearest").to_numpy().astype("f8")
    south, north = float(field.lat.min()) - step / 2, float(field.lat.max()) + step / 2
    outside = [not south <= lat <= north for lat in lats]
    values[outside] = np.nan
    least, greatest = limits
    share = np.round(254 * np.clip((values - least) / (greatest - least), 0, 1)) / 254
    grey = np.round(16 + share * (245 - 16))
    rgba = np.repeat(np.where(np.isnan(grey), 0, grey)[:, :, None], 4, axis=2)
    rgba[..., 3] = np.where(np.isnan(grey), 0, 255)
    return rgba.astype("u1")


@pytest.mark.parametrize("tile", [(0, 0, 0), (1, 1, 0), (3, 4, 6), (6, 0, 30)])
@pytest.mark.parametrize("path", ["t2m", "climate/tas", "climate/turned"])
def test_a_tile_has_the_nearest_values(
    cubes: TestClient, path: str, tile: tuple[int, int, int]
) -> None:
    zoom, column, row = tile
    limits = {"t2m": (240, 310), "climate/tas": (0, 17519), "climate/turned": (0, 47)}[path]
    step = "" if path == "climate/turned" else "&i.time=3"
    query = f"range={limits[0]},{limits[1]}&colours=grey{step}"
    answer = cubes.get(f"/tiles/{path}/{zoom}/{column}/{row}.png?{query}")
    assert answer.headers["content-type"] == "image/png"
    picture = imagecodecs.png_decode(answer.raise_for_status().content)
    dataset = weather() if path == "t2m" else climate()
    field = dataset[path.rpartition("/")[2]]
    field = field[3] if step else field.transpose("lat", "lon")
    np.testing.assert_array_equal(picture, expected_picture(field, tile, limits))


def test_a_tile_document_leads_to_tiles(cubes: TestClient) -> None:
    document = cubes.get("/tiles/t2m/tilejson.json?time=2024-01-02&version=v1").json()
    assert document["tilejson"] == "3.0.0"
    assert document["bounds"] == [-180, -82.5, 180, 82.5]
    assert (document["minzoom"], document["maxzoom"]) == (0, 0)
    address = urlsplit(document["tiles"][0].format(z=0, x=0, y=0))
    tile = cubes.get(f"{address.path}?{address.query}")
    assert "immutable" in tile.headers["cache-control"]
    assert len(np.unique(imagecodecs.png_decode(tile.content).reshape(-1, 4), axis=0)) > 100


def test_colours_are_those_of_the_pages() -> None:
    script = (files("icefloe.web") / "static" / "icefloe.js").read_text()
    found = re.findall(r'^    (\w+): "([0-9a-f ]+)",$', script, re.MULTILINE)
    assert dict(found) == tiles.COLOURS


@pytest.fixture
def globe(tmp_path: Path) -> tuple[icefloe.Storage, TestClient]:
    """A fine grid of the world in 16,200 small chunks, only some of which were written."""
    storage = icefloe.local_filesystem_storage(str(tmp_path))
    repository = icefloe.Repository.create(storage)
    with repository.transaction("main", message="grid") as store:
        group = zarr.open_group(store, mode="a")
        fine = group.create_array(
            "fine", shape=(1800, 3600), chunks=(20, 20), dtype="f4",
            dimension_names=("lat", "lon"), attributes={"valid_min": 0, "valid_max": 10},
        )  # fmt: skip
        fine[880:920, 1780:1820] = 5
        for name, values in {
            "lat": np.linspace(89.95, -89.95, 1800),
            "lon": np.linspace(-179.95, 179.95, 3600),
        }.items():
            array = group.create_array(
                name, shape=values.shape, dtype="f8", dimension_names=(name,)
            )
            array[:] = values
        group.create_array(
            "coarse", shape=(1800, 3600), chunks=(1800, 3600), dtype="f8",
            dimension_names=("lat", "lon"),
        )  # fmt: skip
        group.create_array(
            "heavy", shape=(1800, 3600, 2), chunks=(1800, 3600, 2), dtype="f8",
            dimension_names=("lat", "lon", "n"),
        )  # fmt: skip
    return storage, TestClient(
        create_site(Viewed(repository, "grid", "grid")), base_url="http://localhost"
    )


def test_low_zooms_read_little(globe: tuple[icefloe.Storage, TestClient]) -> None:
    storage, client = globe
    client.get("/tiles/fine/tilejson.json").raise_for_status()  # reads the coordinates
    before = storage.request_counts()
    answer = client.get("/tiles/fine/0/0/0.png").raise_for_status()
    requests = (storage.request_counts() - before).requests
    assert requests < 32
    picture = imagecodecs.png_decode(answer.content)
    # In blocks of 8 pixels, because the chunks of all pixels would be too many.
    blocks = picture.reshape(32, 8, 32, 8, 4).transpose(0, 2, 1, 3, 4).reshape(32, 32, 64, 4)
    assert (blocks == blocks[:, :, :1]).all()
    near = imagecodecs.png_decode(client.get("/tiles/fine/9/256/256.png").content)
    assert (near == near[0, 0]).all()
    assert near[0, 0].tolist() == [*tiles.palette("viridis")[1 + round(254 * 0.5)].tolist(), 255]


def test_tiles_that_need_too_much_are_refused(
    globe: tuple[icefloe.Storage, TestClient],
) -> None:
    _, client = globe
    refused = client.get("/tiles/heavy/0/0/0.png?range=0,1")
    assert refused.status_code == 400
    assert json.loads(refused.content)["code"] == "limit-exceeded"
    assert "64 MiB at most" in refused.json()["message"]
    assert client.get("/tiles/coarse/0/0/0.png?range=0,1").status_code == 200
