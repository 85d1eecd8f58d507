"""Arrays whose metadata or bytes are wrong get an answer, whatever is asked of them."""

import json
from typing import Any

import numpy as np
import pytest
import zarr
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient
from zarr.core.buffer import default_buffer_prototype

import icefloe
from icefloe.web.site import create_site
from icefloe.web.versions import Viewed

BYTES: dict[str, Any] = {"name": "bytes", "configuration": {"endian": "little"}}
ZSTD: dict[str, Any] = {"name": "zstd", "configuration": {"level": 0, "checksum": False}}
INNER: dict[str, Any] = {"name": "sharding_indexed", "configuration": {"chunk_shape": [0]}}
HOSTILE_NAME = "\u202e<b>\n"


def document(**changes: Any) -> dict[str, Any]:
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [4],
        "data_type": "float32",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 0,
        "codecs": [BYTES],
        "attributes": {},
        **changes,
    }


def square(*names: str) -> dict[str, Any]:
    grid = {"name": "regular", "configuration": {"chunk_shape": [4, 4]}}
    return document(shape=[4, 4], chunk_grid=grid, dimension_names=names)


def times(units: Any, calendar: Any = None, data_type: str = "int64") -> dict[str, Any]:
    return document(data_type=data_type, attributes={"units": units, "calendar": calendar})


def of_type(name: str, fill_value: Any, **configuration: Any) -> dict[str, Any]:
    data_type = {"name": name, "configuration": configuration}
    return document(data_type=data_type, fill_value=fill_value)


DOCUMENTS = {
    "codec": document(codecs=[BYTES, {"name": "evil"}]),
    "type": document(data_type="float77"),
    "fill": document(fill_value={"a": 1}),
    "attributes": document(
        attributes={"units": ["K"], "scale_factor": "x", "_FillValue": {}, "add_offset": [1, 2]}
    ),
    "far": times("days since 99999999-01-01", "mars"),
    "calendar": times("days since 2000-01-01", "mars"),
    "numbers": times("days since 2000-01-01", 7, "float64"),
    "fine": times("nanoseconds since 0001-01-01"),
    "shard": document(codecs=[INNER]),
    "twice": square("x", "x"),
    "named": square("lat", HOSTILE_NAME),
    "garbage": document(codecs=[BYTES, ZSTD]),
    "short": document(),
    "texts": document(data_type="string", fill_value="", codecs=[{"name": "vlen-utf8"}]),
    "moments": of_type("numpy.datetime64", -(2**63), unit="ns", scale_factor=1),
    "years": of_type("numpy.timedelta64", 5, unit="Y", scale_factor=3),
    "generic": of_type("numpy.datetime64", 5, unit="generic", scale_factor=1),
    "wide": of_type("fixed_length_utf32", "=a", length_bytes=8),
    "narrow": of_type("null_terminated_bytes", "PWE=", length_bytes=8),
}
CHUNKS = {
    "garbage/c/0": b"garbage!" * 100,
    "short/c/0": b"abc",
    "texts/c/0": b"\xff\xff\xff\xffabc",
}


@pytest.fixture(scope="module")
def repository() -> icefloe.Repository:
    repository = icefloe.Repository.create(icefloe.in_memory_storage())
    buffer = default_buffer_prototype().buffer
    with repository.transaction("main", message="odd") as store:
        zarr.create_group(store)
        for name, contents in DOCUMENTS.items():
            key = f"{name}/zarr.json"
            store.set_sync(key, buffer.from_bytes(json.dumps(contents).encode()))
        for key, data in CHUNKS.items():
            store.set_sync(key, buffer.from_bytes(data))
    return repository


@pytest.mark.filterwarnings("ignore:The data type")
@pytest.mark.filterwarnings("ignore:The 'generic' unit")
@pytest.mark.parametrize("name", DOCUMENTS)
def test_all_arrays_get_an_answer(repository: icefloe.Repository, name: str) -> None:
    site = create_site(Viewed(repository, "odd", "odd"))
    client = TestClient(site, base_url="http://localhost")
    for form in ("json", "csv", "arrow", "netcdf"):
        answer = client.get(f"/api/v1/data/{name}?format={form}")
        assert answer.status_code in (200, 400, 502)
        if answer.status_code != 200:
            assert answer.json()["message"]
        elif form == "csv":
            assert all(not cell.startswith("=") for cell in answer.text.replace(",", "\n").split())
    assert client.get(f"/plan/{name}").status_code in (200, 400)
    assert client.get(f"/tiles/{name}/tilejson.json").status_code == 400


def test_addresses_below_a_larger_site(repository: icefloe.Repository) -> None:
    app = Starlette(routes=[Mount("/repos/org/odd", create_site(Viewed(repository, "odd", "odd")))])
    client = TestClient(app, base_url="http://localhost")
    plan = client.get("/repos/org/odd/plan/short").json()
    assert plan["zarr"].startswith("http://localhost/repos/org/odd/zarr/odd@")
    page = client.get("/repos/org/odd/node/short").text
    assert 'action="/repos/org/odd/api/v1/data/short"' in page
    raw = client.get(f"{plan['zarr'].removeprefix('http://localhost')}/short/c/0")
    assert raw.content == b"abc"


def test_chunks_of_different_sizes() -> None:
    repository = icefloe.Repository.create(icefloe.in_memory_storage())
    values = np.arange(12, dtype="i4").reshape(6, 2)
    with (
        repository.transaction("main", message="grid") as store,
        zarr.config.set({"array.rectilinear_chunks": True}),
    ):
        array = zarr.create_array(
            store, name="a", shape=(6, 2), chunks=[[1, 3, 2], [2]], dtype="i4"
        )
        array[:] = values
        client = TestClient(create_site(Viewed(repository, "g", "g")), base_url="http://localhost")
    with zarr.config.set({"array.rectilinear_chunks": True}):
        answer = client.get("/api/v1/data/a?i.dim_0=2:6").json()
        np.testing.assert_array_equal(answer["variables"]["a"]["values"], values[2:6])
        plan = client.get("/plan/a?i.dim_0=3:6").json()
    assert [chunk["index"] for chunk in plan["chunks"]] == [[1, 0], [2, 0]]
