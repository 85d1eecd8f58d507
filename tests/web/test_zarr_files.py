"""Zarr over HTTP, read by clients that know nothing of Icefloe."""

import httpx2 as httpx
import numpy as np
import pytest
import zarr
from obstore.store import HTTPStore
from starlette.testclient import TestClient
from zarr.storage import ObjectStore

import icefloe
from icefloe.web.site import create_site
from icefloe.web.versions import Viewed
from tests.support.zarr_clients import READERS, check_values
from tests.web.conftest import example_data


def opened(address: str, version: str) -> zarr.Group:
    url = f"{address}/zarr/cube@{version}"
    store = ObjectStore(HTTPStore(url, client_options={"allow_http": True}), read_only=True)
    return zarr.open_group(store, mode="r", use_consolidated=True)


@pytest.mark.parametrize("version", ["main", "v1"])
def test_zarr_reads_a_version(address: str, version: str) -> None:
    group = opened(address, version)
    assert {"t2m", "image", "line", "names", "ocean"} <= set(group.keys())
    values = group["t2m"][:]  # type: ignore[index]
    expected = example_data()["t2m"].to_numpy().copy()
    if version == "main":
        expected[0] = 5
    np.testing.assert_array_equal(values, expected)
    np.testing.assert_array_equal(group["ocean/virtual"][:], [0, 1, 2, 3])  # type: ignore[index]
    assert group["ocean/sparse"][25, 3] == 7  # type: ignore[index]
    assert group["ocean/sparse"][0, 0] == 0  # type: ignore[index]


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("version", ["main", "v1"])
def test_every_client_reads_all_values(
    address: str, repository: icefloe.Repository, reader: str, version: str
) -> None:
    """Compare plain, chunked, sparse and virtual arrays with what they were made of."""
    example = example_data()
    t2m = example["t2m"].to_numpy().copy()
    if version == "main":
        t2m[0] = 5
    sparse = np.zeros((100, 100), "i2")
    sparse[20:30] = 7
    arrays = {
        "t2m": t2m,
        "image": example["image"].to_numpy(),
        "line": example["line"].to_numpy(),
    }
    if reader != "xarray":  # which needs names of dimensions
        arrays |= {"ocean/sparse": sparse, "ocean/virtual": np.arange(4, dtype="i2")}
    for path, expected in arrays.items():
        check_values(reader, f"{address}/zarr/cube@{version}", path, expected)


def test_ranges(client: httpx.Client) -> None:
    path = "/zarr/cube@v1/image/c/0/0"
    whole = client.get(path).content
    for header, expected in {
        "bytes=0-3": whole[:4],
        "bytes=5-": whole[5:],
        "bytes=-7": whole[-7:],
        "bytes=10-99999999": whole[10:],
    }.items():
        response = client.get(path, headers={"range": header})
        assert response.status_code == 206
        assert response.content == expected
        assert response.headers["content-range"].endswith(f"/{len(whole)}")
    behind = client.get(path, headers={"range": f"bytes={len(whole)}-"})
    assert behind.status_code == 416
    document = client.get("/zarr/cube@v1/zarr.json")
    part = client.get("/zarr/cube@v1/zarr.json", headers={"range": "bytes=2-8"})
    assert part.content == document.content[2:9]


def test_head_and_missing_keys(client: httpx.Client) -> None:
    response = client.head("/zarr/cube@main/image/c/0/0")
    assert response.status_code == 200
    assert int(response.headers["content-length"]) > 0
    for key in ("nope/zarr.json", "image/c/99/0", "image/c/x", "..%2f..%2fetc"):
        assert client.get(f"/zarr/cube@main/{key}").status_code == 404
    assert client.get("/zarr/other@main/zarr.json").status_code == 404


def test_heads_ranges_and_consolidated_metadata(
    viewed: Viewed, repository: icefloe.Repository
) -> None:
    client = TestClient(create_site(viewed), base_url="http://localhost")
    snapshot = repository.lookup_tag("v1")
    for version in ("main", "v1", snapshot, "2999-01-01"):
        for key in ("ocean/zarr.json", "t2m/c/0/0/0"):
            url = f"/zarr/cube@{version}/{key}"
            whole = client.get(url)
            head = client.head(url)
            assert head.content == b""
            for name in ("content-length", "content-type", "etag", "accept-ranges"):
                assert head.headers[name] == whole.headers[name]
            size = len(whole.content)
            for header, expected in {
                "bytes=-5": whole.content[-5:],
                f"bytes=-{size + 100}": whole.content,
                f"bytes={size - 1}-{size + 9}": whole.content[-1:],
                "bytes=0-0,2-3": whole.content,  # several ranges may be answered with everything
                "bytes=3-1": whole.content,
                f"bytes={'9' * 5000}-": whole.content,
                "lines=1-2": whole.content,
            }.items():
                part = client.get(url, headers={"range": header})
                assert part.content == expected, (url, header)
            for header in ("bytes=-0", f"bytes={size}-"):
                refused = client.get(url, headers={"range": header})
                assert refused.status_code == 416
                assert refused.headers["content-range"] == f"bytes */{size}"
            other = {"range": "bytes=0-1", "if-range": '"another state"'}
            assert client.get(url, headers=other).content == whole.content
    document = client.get("/zarr/cube@v1/zarr.json").json()
    inner = document["consolidated_metadata"]["metadata"]
    assert {"t2m", "ocean", "ocean/virtual"} <= inner.keys()
    for path in ("t2m", "ocean/virtual"):
        assert inner[path] == client.get(f"/zarr/cube@v1/{path}/zarr.json").json()
    ocean = client.get("/zarr/cube@v1/ocean/zarr.json").json()["consolidated_metadata"]
    assert {*ocean["metadata"]} == {"sparse", "virtual"}


def test_clients_may_keep_what_never_changes(
    client: httpx.Client, repository: icefloe.Repository
) -> None:
    tag = client.get("/zarr/cube@v1/zarr.json")
    assert "immutable" in tag.headers["cache-control"]
    branch = client.get("/zarr/cube@main/zarr.json")
    assert branch.headers["cache-control"] == "no-cache"
    again = client.get(
        "/zarr/cube@main/zarr.json", headers={"if-none-match": branch.headers["etag"]}
    )
    assert again.status_code == 304
