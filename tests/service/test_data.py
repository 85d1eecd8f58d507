"""Data below the API of a service: for programs with a token, and for pages of named sites."""

import io
from typing import Any

import httpx2 as httpx
import numpy as np
import pyarrow as pa
import pytest
import xarray as xr
from playwright.sync_api import Page

import icefloe
from icefloe.catalog.model import TokenScope
from icefloe.service.http.examples import DATA
from tests.service.client_world import World
from tests.service.pages_world import browser_of, map_values
from tests.support.chromium import chromium
from tests.support.zarr_clients import READERS, check_values

pytestmark = pytest.mark.server

ROOT = "/api/v1/repos/lab/map"
DATA_PATHS = (
    f"{ROOT}/data/t2m?i.time=1",
    f"{ROOT}/tiles/t2m/tilejson.json",
    f"{ROOT}/tiles/t2m/0/0/0.png?range=0,1",
    f"{ROOT}/plan/t2m?i.time=1",
    "/zarr/lab/map@main/zarr.json",
    "/zarr/lab/map@main/t2m/c/0/0/0",
)


@pytest.fixture(scope="module")
def here(pages_service: World) -> World:
    return pages_service


def get(here: World, path: str, person: str | None = "cid", **headers: str) -> httpx.Response:
    """Ask as a program does, with the token of somebody."""
    if person is not None:
        headers["authorization"] = f"Bearer {here.desk.tokens.get(person, person)}"
    address = path if path.startswith("http") else f"{here.desk.url}{path}"
    return httpx.get(address, headers=headers, trust_env=False, timeout=60)


# For programs


def test_values_in_each_form_are_those_of_the_array(here: World) -> None:
    path, expected = f"{ROOT}/data/t2m?i.time=1:3", map_values()[1:3]
    answer = get(here, path).json()
    assert answer.keys() == DATA["json"].keys()
    np.testing.assert_array_equal(answer["variables"]["t2m"]["values"], expected)
    table = pa.ipc.open_stream(get(here, f"{path}&format=arrow").content).read_all()
    np.testing.assert_array_equal(table["t2m"].to_numpy().reshape(expected.shape), expected)
    text = get(here, path, accept="text/csv").text
    assert [float(line.rpartition(",")[2]) for line in text.splitlines()[1:]] == [*expected.ravel()]
    content = io.BytesIO(get(here, f"{path}&format=netcdf").content)
    with xr.open_dataset(content, engine="scipy") as dataset:
        np.testing.assert_array_equal(dataset["t2m"], expected)


def test_the_client_reads_a_table(here: World) -> None:
    client = here.client("cid")
    table = client.read_data("lab/map", "t2m", {"lat": 40.2, "lon": "90:110", "i.time": 2})
    assert table.column_names == ["time", "lat", "lon", "t2m"]
    np.testing.assert_array_equal(table["t2m"].to_numpy(), map_values()[2, 13, 9:12])
    pair = client.read_data("lab/map", variables=["lat"], version="main", decode=False)
    np.testing.assert_array_equal(pair["lat"].to_numpy(), np.linspace(-90, 90, 19))
    with pytest.raises(icefloe.InvalidInputError, match="outside of the data"):
        client.read_data("lab/map", "t2m", {"lat": 1000})
    with pytest.raises(icefloe.NotFoundError):
        client.read_data("lab/map", "no such/ärray")
    with pytest.raises(icefloe.AccessDeniedError) as caught:
        client.read_data("lab/closed", "t2m")
    assert [grant.owner for grant in caught.value.missing] == ["museum"]


def test_pages_and_the_api_answer_the_same(here: World) -> None:
    browser = browser_of(here, "cid")
    for path, page in (
        ("data/t2m?i.time=1", "api/v1/data/t2m?i.time=1"),
        ("tiles/t2m/0/0/0.png?range=0,9", "tiles/t2m/0/0/0.png?range=0,9"),
    ):
        assert get(here, f"{ROOT}/{path}").content == browser.get(f"/repos/lab/map/{page}").content


def test_addresses_in_answers_are_those_of_the_api(here: World) -> None:
    document = get(here, f"{ROOT}/tiles/t2m/tilejson.json?i.time=1").json()
    (template,) = document["tiles"]
    assert template.startswith(f"{here.desk.url}{ROOT}/tiles/t2m/")
    tile = get(here, template.format(z=0, x=0, y=0))
    assert tile.headers["content-type"] == "image/png"
    plan = get(here, f"{ROOT}/plan/t2m?i.time=1").json()
    assert plan.keys() == DATA["plan"].keys()
    assert plan["zarr"].startswith(f"{here.desk.url}/zarr/lab/map@")
    assert get(here, f"{plan['zarr']}/t2m/c/1/0/0").content == map_values()[1].tobytes()
    (chunk,) = plan["chunks"]
    assert chunk.keys() == DATA["plan"]["chunks"][0].keys()
    signed = httpx.get(chunk["url"], headers=chunk["headers"], trust_env=False)
    assert signed.content == map_values()[1].tobytes()


def test_nobody_keeps_what_a_person_may_not_read_any_more(here: World) -> None:
    values = get(here, f"{ROOT}/data/t2m?i.time=1")
    assert values.headers["cache-control"] == "private, no-cache"
    tag = values.headers["etag"]
    known = get(here, f"{ROOT}/data/t2m?i.time=1", **{"if-none-match": tag})
    assert (known.status_code, known.content) == (304, b"")
    for path in (f"{ROOT}/plan/t2m?i.time=1", "/repos/lab/map/plan/t2m?i.time=1"):
        assert get(here, path).headers["cache-control"] == "no-store"  # as it has signed addresses


@pytest.mark.parametrize("reader", READERS)
def test_every_client_of_zarr_reads_with_a_token(here: World, reader: str) -> None:
    token = here.desk.add_token("cid", TokenScope(("read",), ("lab/map",)))
    address = f"{here.desk.url}/zarr/lab/map@main"
    check_values(reader, address, "t2m", map_values(), token)
    check_values(reader, address, "lon", np.arange(0.0, 360, 10), token)


PROBLEMS = {
    f"{ROOT}/data/t2m?lat=1000": (422, "invalid-request"),
    f"{ROOT}/data/t2m?format=xml": (422, "invalid-request"),
    f"{ROOT}/data/t2m?version=none": (422, "invalid-request"),
    f"{ROOT}/data/none": (404, "node-not-found"),
    f"{ROOT}/tiles/lat/tilejson.json": (422, "invalid-request"),
    f"{ROOT}/tiles/t2m/99/0/0.png": (422, "invalid-request"),
    f"{ROOT}/tiles/t2m/x/0/0.png": (404, "entry-not-found"),
    f"{ROOT}/plan/": (404, "node-not-found"),
    "/api/v1/repos/lab/closed/data/t2m": (403, "virtual-access-required"),
    "/api/v1/repos/lab/none/data/t2m": (404, "entry-not-found"),
    "/zarr/lab/map@main/none/zarr.json": (404, "key-not-found"),
    "/zarr/lab/closed@main/zarr.json": (403, "virtual-access-required"),
}


@pytest.mark.parametrize("path", PROBLEMS)
def test_problems_have_the_shape_of_the_api(here: World, path: str) -> None:
    for accept in ("*/*", "text/html"):
        answer = get(here, path, accept=accept)
        problem = answer.json()
        assert (answer.status_code, problem["code"]) == PROBLEMS[path], problem
        assert problem["request_id"] == answer.headers["x-request-id"]
        assert answer.headers["cache-control"] == "no-store"


def test_a_range_that_is_nowhere(here: World) -> None:
    answer = get(here, "/zarr/lab/map@main/t2m/c/0/0/0", range="bytes=99999-")
    assert (answer.status_code, answer.headers["content-range"]) == (416, f"bytes */{19 * 36 * 4}")
    assert answer.json()["code"] == "invalid-request"


def test_data_is_for_the_scope_of_a_token_and_ends_with_it(here: World) -> None:
    reading = here.desk.add_token("cid", TokenScope(("read",), ("lab/map",)))
    other = here.desk.add_token("cid", TokenScope(("read",), ("lab/open",)))
    for path in DATA_PATHS:
        assert get(here, path, reading).status_code == 200
        assert get(here, path, other).status_code == 403
        assert get(here, path, "sam").status_code == 404
        assert get(here, path, None).status_code == 401
    here.client("ada").remove_member("lab", "cid")
    try:
        assert {get(here, path, reading).status_code for path in DATA_PATHS} == {404}
    finally:
        here.client("ada").set_member("lab", "cid", role="reader")


def test_the_document_describes_the_routes(here: World) -> None:
    paths = get(here, "/api/v1/openapi.json").json()["paths"]
    values = paths["/api/v1/repos/{org}/{name}/data/{path}"]["get"]
    assert {*values["responses"]["200"]["content"]} == {
        "application/json",
        "text/csv",
        "application/vnd.apache.arrow.stream",
        "application/x-netcdf",
    }
    names = [parameter["name"] for parameter in values["parameters"]]
    assert names[:3] == ["org", "name", "path"]
    assert {"version", "selection", "format", "decode"} <= {*names}
    assert "get" in paths["/zarr/{org}/{name}@{version}/{key}"]


# For pages of other sites


def preflight(here: World, path: str, origin: str, method: str = "GET") -> httpx.Response:
    headers = {
        "origin": origin,
        "access-control-request-method": method,
        "access-control-request-headers": "authorization, range",
    }
    return httpx.options(f"{here.desk.url}{path}", headers=headers, trust_env=False)


@pytest.mark.parametrize("path", DATA_PATHS)
def test_a_named_site_may_read_data_with_a_token(here: World, maps_site: str, path: str) -> None:
    before = preflight(here, path, maps_site)
    assert before.status_code == 200
    allowed = before.headers["access-control-allow-headers"].lower()
    assert {"authorization", "range", "if-match"} <= {*allowed.split(", ")}
    assert before.headers["access-control-allow-methods"] == "GET, HEAD"
    for person, status in (("cid", 200), ("sam", 404), (None, 401), ("icefloe_nonsense", 401)):
        answer = get(here, path, person, origin=maps_site)
        assert answer.status_code == status
        assert answer.headers["access-control-allow-origin"] == maps_site
        assert "access-control-allow-credentials" not in answer.headers
        assert "origin" in answer.headers["vary"].lower()


def test_a_cookie_is_nobody_to_a_page_of_another_site(here: World, maps_site: str) -> None:
    browser = browser_of(here, "cid")
    for path in DATA_PATHS:
        assert browser.get(path).status_code == 200
        for origin in (maps_site, "https://evil.example", "null"):
            assert browser.get(path, headers={"origin": origin}).status_code == 401


OTHER_PATHS = (
    "/",
    "/repos/lab/map/",
    "/repos/lab/map/node/t2m",
    "/repos/lab/map/api/v1/data/t2m?i.time=1",
    "/repos/lab/map/plan/t2m?i.time=1",
    "/tokens",
    "/login",
    "/metrics",
    "/static/style.css",
    "/api/v1/me",
    "/api/v1/repos",
    "/api/v1/repos/lab/map",
    "/api/v1/repos/lab/map/open",
    "/api/v1/repos/lab/map/data",
    "/api/v1/repos/lab/map/tokens",
    "/api/v1/repos/data/plan/open",
    "/api/v1/orgs/lab",
    "/api/v1/openapi.json",
)


def test_nothing_else_is_for_other_sites(here: World, maps_site: str) -> None:
    for path in OTHER_PATHS:
        for method in ("GET", "POST"):
            assert preflight(here, path, maps_site, method).status_code in (404, 405), path
        answer = get(here, path, origin=maps_site)
        assert not [name for name in answer.headers if name.startswith("access-control")], path
    for path in DATA_PATHS:
        for method in ("POST", "PUT", "PATCH", "DELETE"):
            assert preflight(here, path, maps_site, method).status_code == 400
        for origin in (
            "https://evil.example",
            f"{maps_site}.evil.example",
            maps_site.replace("http:", "https:"),
            "null",
        ):
            assert preflight(here, path, origin).status_code == 400
            assert "access-control-allow-origin" not in get(here, path, origin=origin).headers


READ_FROM_A_PAGE = """async ([service, token]) => {
    const headers = { authorization: `Bearer ${token}` };
    const root = `${service}/api/v1/repos/lab/map`;
    const plan = await (await fetch(`${root}/plan/t2m?i.time=1`, { headers })).json();
    const [chunk] = plan.chunks;
    const direct = await fetch(chunk.url, { headers: chunk.headers });
    const key = await fetch(`${service}/zarr/lab/map@main/t2m/c/1/0/0`, { headers });
    const values = await (await fetch(`${root}/data/t2m?i.time=1`, { headers })).json();
    const refused = async (path, options) => {
        try {
            return (await fetch(service + path, options)).status;
        } catch {
            return "refused";
        }
    };
    return {
        direct: [...new Float32Array(await direct.arrayBuffer())],
        key: [...new Float32Array(await key.arrayBuffer())],
        values: values.variables.t2m.values.flat(),
        refused: [
            await refused("/zarr/lab/map@main/zarr.json", { credentials: "include" }),
            await refused("/repos/lab/map/", { headers }),
            await refused("/api/v1/me", { headers }),
            await refused("/api/v1/repos/lab/map/open", { method: "POST", headers }),
        ],
    };
}"""


@pytest.mark.slow
def test_a_page_of_a_named_site_reads_data_and_nothing_else(here: World, maps_site: str) -> None:
    with chromium() as browser:
        context = browser.new_context()
        (cookie,) = browser_of(here, "cid").cookies.jar
        assert cookie.value is not None
        context.add_cookies([{"name": "icefloe", "value": cookie.value, "url": here.desk.url}])
        page: Page = context.new_page()
        page.goto(maps_site)
        token = here.desk.add_token("cid", TokenScope(("read",), ("lab/map",)))
        read: dict[str, Any] = page.evaluate(READ_FROM_A_PAGE, [here.desk.url, token])
        expected = [*map_values()[1].ravel()]
        assert read["direct"] == read["key"] == read["values"] == expected
        assert read["refused"] == ["refused"] * 4
        context.close()
