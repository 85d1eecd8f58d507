"""Values over HTTP, compared with xarray on the same repository, opened by the real icechunk."""

import csv
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import icechunk
import numpy as np
import pyarrow as pa
import pytest
import xarray
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from starlette.testclient import TestClient

from tests.web.cubes import FORMULA, times_of

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def reference(cubes_folder: Path) -> Any:
    """The store of the reference implementation, which shares no code with the server."""
    repository = icechunk.Repository.open(icechunk.local_filesystem_storage(str(cubes_folder)))
    return repository.readonly_session("main").store


@pytest.fixture(scope="module")
def weather(reference: Any) -> Iterator[xarray.Dataset]:
    with xarray.open_zarr(reference, consolidated=False, chunks=None) as dataset:
        yield dataset


@pytest.fixture(scope="module")
def climate(reference: Any) -> Iterator[xarray.Dataset]:
    with xarray.open_zarr(reference, group="climate", consolidated=False, chunks=None) as dataset:
        yield dataset


type Read = Callable[[TestClient, str, str], tuple[NDArray[Any], dict[str, list[Any]]]]


def read_json(client: TestClient, url: str, name: str) -> tuple[NDArray[Any], dict[str, list[Any]]]:
    document = client.get(url + "&format=json").raise_for_status().json()
    variable = document["variables"][name]
    values = np.array(variable["values"], "f8")
    assert list(values.shape) == variable["shape"]
    assert values.shape == tuple(document["dims"][dim] for dim in variable["dims"])
    coords = document["coords"]
    return values, {dim: coords[dim]["values"] for dim in variable["dims"]}


def read_table(rows: list[dict[str, Any]], name: str) -> tuple[NDArray[Any], dict[str, list[Any]]]:
    coords = {dim: [*dict.fromkeys(row[dim] for row in rows)] for dim in rows[0] if dim != name}
    coords = {dim: values for dim, values in coords.items() if len(values) > 1}
    shape = tuple(len(values) for values in coords.values())
    cells = [row[name] for row in rows]
    values = np.array([np.nan if cell in ("", None) else float(cell) for cell in cells])
    return values.reshape(shape), coords


def read_csv(client: TestClient, url: str, name: str) -> tuple[NDArray[Any], dict[str, list[Any]]]:
    text = client.get(url + "&format=csv").raise_for_status().text
    return read_table(list(csv.DictReader(io.StringIO(text))), name)


def read_arrow(
    client: TestClient, url: str, name: str
) -> tuple[NDArray[Any], dict[str, list[Any]]]:
    content = client.get(url + "&format=arrow").raise_for_status().content
    table = pa.ipc.open_stream(content).read_all()
    return read_table(table.to_pylist(), name)


def read_netcdf(
    client: TestClient, url: str, name: str
) -> tuple[NDArray[Any], dict[str, list[Any]]]:
    content = client.get(url + "&format=netcdf").raise_for_status().content
    with xarray.open_dataset(io.BytesIO(content), engine="scipy") as dataset:
        array = dataset[name].load()
    coords: dict[str, list[Any]] = {}
    for dim in array.dims:
        coord = array[dim].to_numpy()
        coords[str(dim)] = times_of(coord) if coord.dtype.kind in "MO" else coord.tolist()
    return array.to_numpy(), coords


READERS = {"json": read_json, "csv": read_csv, "arrow": read_arrow, "netcdf": read_netcdf}


@pytest.mark.parametrize("form", READERS)
@pytest.mark.parametrize("name", ["t2m", "rain"])
def test_a_cube_has_the_values_of_xarray(
    cubes: TestClient, weather: xarray.Dataset, name: str, form: str
) -> None:
    url = f"/api/v1/data/{name}?time=2024-01-02:2024-01-03T06&lat=10:-30&lon=-20:30&stride.lat=2"
    values, coords = READERS[form](cubes, url, name)
    part = weather[name].sel(
        time=slice("2024-01-02", "2024-01-03T06"), lat=slice(10, -30, 2), lon=slice(-20, 30)
    )
    assert values.shape == part.shape == (6, 5, 7)
    np.testing.assert_array_equal(values.astype("f4"), part.to_numpy().astype("f4"))
    if form != "csv":
        np.testing.assert_array_equal(np.array(coords["lat"], "f4"), part.lat)
    np.testing.assert_array_equal(np.array(coords["lon"], "f8"), part.lon)
    times = [str(time)[:19].replace(" ", "T") for time in coords["time"]]
    assert times == times_of(part.time.to_numpy())


@pytest.mark.parametrize(
    ("lat", "lon", "time"),
    [(52.1, 4.9, "2024-01-03T07:10"), (-79, 179, "2023-12-31T22:00"), (0, -180, "2024-01-05")],
)
def test_the_nearest_position(
    cubes: TestClient, weather: xarray.Dataset, lat: float, lon: float, time: str
) -> None:
    values, _ = read_json(cubes, f"/api/v1/data/t2m?lat={lat}&lon={lon}&time={time}", "t2m")
    # 179 degrees are nearer to -180 than to 172.5, which xarray does not know.
    here = -180.0 if lon == 179 else lon
    expected = weather.t2m.sel(lat=lat, lon=here, time=time, method="nearest")
    np.testing.assert_array_equal(values, expected.to_numpy())


def test_positions_by_number_and_exactly(cubes: TestClient, weather: xarray.Dataset) -> None:
    values, coords = read_json(cubes, "/api/v1/data/t2m?i.time=3&i.lat=-1&i.lon=5:8", "t2m")
    np.testing.assert_array_equal(values, weather.t2m[3, -1, 5:8])
    assert coords["lon"] == weather.lon[5:8].to_numpy().tolist()
    exact = "/api/v1/data/t2m?method=exact&i.lon=0&time=2024-01-01T06:00:00Z"
    values, _ = read_json(cubes, f"{exact}&lat=75", "t2m")
    np.testing.assert_array_equal(values, weather.t2m.sel(lat=75, time="2024-01-01T06")[0])
    refused = cubes.get(f"{exact}&lat=74")
    assert refused.status_code == 400
    assert "the nearest one is 75" in refused.json()["message"]
    zone = cubes.get("/api/v1/data/seen?method=exact&time=2024-01-01T07:00:00%2B01:00").json()
    assert zone["variables"]["seen"]["values"] == "2024-01-01T06:01:30"


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        ("climate/tas", "-45:45", [315.0, 337.5, 0.0, 22.5, 45.0]),
        ("climate/tas", "350:10", [0.0]),
        ("climate/tas", "340:350", None),
        ("climate/tas", "0:360", [*np.arange(0, 360, 22.5)]),
        ("climate/tas", "-180:180", [*np.arange(180, 360, 22.5), *np.arange(0, 180, 22.5)]),
        ("flags", "172:190", [172.5, -180.0, -172.5]),
        ("flags", "172.5:-172.5", [172.5, -180.0, -172.5]),
        ("flags", "350:360", [-7.5, 0.0]),
    ],
)
def test_longitudes_are_understood_both_ways(
    cubes: TestClient, path: str, text: str, expected: list[float] | None
) -> None:
    answer = cubes.get(f"/api/v1/data/{path}?lon={text}&i.lat=1" + "&i.time=0" * ("tas" in path))
    if expected is None:
        assert answer.status_code == 400
        assert "no lon is in" in answer.json()["message"]
    else:
        assert answer.json()["coords"]["lon"]["values"] == expected


@pytest.mark.parametrize(
    ("text", "bounds"),
    [
        ("2024-02:2024-03", ("2024-02", "2024-03")),
        ("2024-02-28/2024-03-01", ("2024-02-28", "2024-03-01")),
        ("2024-12-29T12:00:2024-12-31T12:00", ("2024-12-30", "2024-12-31")),
        (":2024-01-02", ("2024-01-01", "2024-01-02")),
    ],
)
def test_dates_of_other_calendars(
    cubes: TestClient, climate: xarray.Dataset, text: str, bounds: tuple[str, str]
) -> None:
    url = f"/api/v1/data/climate/tas?time={text}&i.lat=0&lon=-22.5"
    part = climate.tas.sel(time=slice(*bounds), lon=337.5)[:, 0]
    for form in ("json", "csv", "arrow", "netcdf"):
        values, coords = READERS[form](cubes, url, "tas")
        np.testing.assert_array_equal(values, part)
        assert coords["time"] == times_of(part.time.to_numpy())
    leap = cubes.get("/api/v1/data/climate/tas?time=2024-02-29")
    assert leap.status_code == 400  # the calendar has no such day


def test_values_are_decoded_as_xarray_does(cubes: TestClient, weather: xarray.Dataset) -> None:
    document = cubes.get("/api/v1/data/?variables=t2m,flags,seen&i.time=0:3").json()
    assert {*document["coords"]} == {"time", "lat", "lon"}
    for name, variable in document["variables"].items():
        expected = weather[name]
        if "time" in expected.dims:
            expected = expected[:3]
        if name == "seen":
            assert variable["values"] == times_of(expected.to_numpy())
            continue
        assert variable["dtype"] == expected.dtype.name
        np.testing.assert_array_equal(np.array(variable["values"], expected.dtype), expected)


def test_raw_values(cubes: TestClient, reference: Any) -> None:
    stored = zarr.open_group(reference, mode="r")
    for name in ("t2m", "flags", "time"):
        url = f"/api/v1/data/{name}?decode=false" + "&i.time=0:2" * (name != "flags")
        variable = cubes.get(url).json()["variables"][name]
        expected = stored[name][:2] if name != "flags" else stored[name][:]  # type: ignore[index]
        assert variable["dtype"] == expected.dtype.name  # type: ignore[union-attr]
        np.testing.assert_array_equal(variable["values"], expected)


def test_netcdf_keeps_positions_and_attributes(cubes: TestClient, weather: xarray.Dataset) -> None:
    url = "/api/v1/data/t2m?lat=52.1&time=2024-01-03&lon=-20:30&format=netcdf"
    with xarray.open_dataset(io.BytesIO(cubes.get(url).content), engine="scipy") as part:
        assert {*part.coords} == {"time", "lat", "lon"}
        assert part.t2m.lat == 50
        assert part.t2m.time == weather.time[8]
        assert part.t2m.attrs["units"] == "K"
        assert part.t2m.encoding["dtype"] == np.int16
        expected = weather.t2m.sel(lat=50, time="2024-01-03T00", lon=slice(-20, 30))
        np.testing.assert_array_equal(part.t2m, expected)


def test_texts_are_no_formulas(cubes: TestClient) -> None:
    rows = list(csv.reader(io.StringIO(cubes.get("/api/v1/data/names?format=csv").text)))
    assert rows[0] == ["n", "names"]
    assert [row[1] for row in rows[1:]] == [f"'{FORMULA}", "'+2", 'a "quoted", text', "", "ü"]
    plain = cubes.get("/api/v1/data/names").json()["variables"]["names"]["values"]
    assert plain == [FORMULA, "+2", 'a "quoted", text', "", "ü"]
    content = cubes.get("/api/v1/data/names?format=netcdf").content
    with xarray.open_dataset(io.BytesIO(content), engine="scipy") as dataset:
        assert [name.decode() for name in dataset.names.to_numpy()] == plain


def test_odd_arrays(cubes: TestClient) -> None:
    assert cubes.get("/api/v1/data/odd/scalar").json()["variables"]["scalar"]["values"] == 42
    assert cubes.get("/api/v1/data/odd/scalar?format=csv").text == "scalar\r\n42\r\n"
    assert cubes.get("/api/v1/data/odd/nothing").json()["variables"]["nothing"]["values"] == []
    assert cubes.get("/api/v1/data/odd/nothing?format=arrow").status_code == 200
    odd = cubes.get("/api/v1/data/odd/a%20name?sel.format=2:3&format=csv")
    assert odd.text == "format,a name\r\n2,1\r\n3,1\r\n"
    assert 'filename="odd-a_name.csv"' in odd.headers["content-disposition"]
    curved = cubes.get("/api/v1/data/odd/y?format=csv").text.splitlines()
    assert curved[:2] == ["x,y", "0,5"]
    assert len(curved) == 1 + 2 * 3
    content = cubes.get("/api/v1/data/odd/y?format=netcdf").content
    with xarray.open_dataset(io.BytesIO(content), engine="scipy", decode_cf=False) as dataset:
        assert dataset.y.shape == (2, 3)
    large = cubes.get("/api/v1/data/odd/large?format=netcdf")
    assert large.status_code == 400
    assert "use format=arrow" in large.json()["message"]
    missing = cubes.get("/api/v1/data/ocean/nope")
    assert missing.status_code == 404


@pytest.mark.parametrize(
    ("url", "limit"),
    [
        ("/api/v1/data/odd/many", "5,000 chunks, and one request reads 1,024"),
        ("/api/v1/data/odd/lumps?i.dim_0=0", "128 MiB, and one request reads 64 MiB"),
        ("/api/v1/data/odd/endless", "steps of dim_0, and a request has 8,388,608"),
        ("/api/v1/data/odd/endless?i.dim_0=0:1000000", "MiB"),
        ("/api/v1/data/odd/bytes?i.dim_0=0:8000000", "as json the answer would have about"),
        (
            "/api/v1/data/odd/bytes?i.dim_0=0:8000000&format=arrow",
            "as arrow the answer would have",
        ),
        ("/plan/odd/many", "5,000 chunks, and a plan has 1,024"),
        ("/plan/odd/endless", "steps of dim_0"),
    ],
)
def test_limits_hold_and_say_how_to_ask_for_less(cubes: TestClient, url: str, limit: str) -> None:
    answer = cubes.get(url)
    assert answer.status_code == 400
    problem = answer.json()
    assert problem["code"] == "limit-exceeded"
    assert limit in problem["message"]
    assert "choose a range" in problem["message"]


def test_a_part_of_too_much_can_be_read(cubes: TestClient) -> None:
    for url in (
        "/api/v1/data/odd/many?i.step=0:1000",
        "/api/v1/data/odd/many?stride.step=5",
        "/api/v1/data/odd/endless?i.dim_0=1125899906842623",
        "/api/v1/data/odd/bytes?i.dim_0=0:1000000",
    ):
        assert cubes.get(url).status_code == 200, url


def test_formats_by_header(cubes: TestClient) -> None:
    for accept, media_type in {
        "text/csv": "text/csv; charset=utf-8",
        "application/json;q=0.5, application/vnd.apache.arrow.stream": (
            "application/vnd.apache.arrow.stream"
        ),
        "application/netcdf": "application/x-netcdf",
        "text/html,*/*": "application/json",
    }.items():
        answer = cubes.get("/api/v1/data/flags", headers={"accept": accept})
        assert answer.headers["content-type"] == media_type
        assert answer.headers["vary"] == "accept"


def test_versions_may_be_kept(cubes: TestClient) -> None:
    for path in (
        "/api/v1/data/flags",
        "/tiles/flags/0/0/0.png?range=0,4",
    ):
        joint = "&" if "?" in path else "?"
        tag = cubes.get(f"{path}{joint}version=v1")
        assert "immutable" in tag.headers["cache-control"]
        branch = cubes.get(path)
        assert branch.headers["cache-control"] == "no-cache"
        known = {"if-none-match": f'"other", {branch.headers["etag"]}'}
        again = cubes.get(path, headers=known)
        assert (again.status_code, again.content) == (304, b"")
    assert cubes.get("/plan/flags?version=v1").headers["cache-control"] == "no-store"


def test_a_browser_gets_a_page_and_a_form(cubes: TestClient) -> None:
    page = cubes.get("/node/t2m?version=v1").text
    assert 'action="/api/v1/data/t2m?version=v1"' in page
    assert '<input type="hidden" name="version" value="v1">' in page
    assert 'name="time" placeholder="2024-01-01 00:00:00 / 2024-01-05 18:00:00"' in page
    sent = cubes.get(
        "/api/v1/data/t2m?version=v1&time=2024-01-01 00:00:00 / 2024-01-01 06:00:00"
        "&lat=&lon=0&format=csv"
    )
    assert len(sent.text.splitlines()) == 1 + 2 * 33
    problem = cubes.get("/api/v1/data/t2m?lat=1000", headers={"accept": "text/html"})
    assert problem.status_code == 400
    assert "lat 1000 is outside of the data: it has 80 to -80" in problem.text


BAD = [
    "/api/v1/data/t2m?depth=3",
    "/api/v1/data/t2m?lat=x",
    "/api/v1/data/t2m?lat=nan",
    "/api/v1/data/t2m?lat=1e999",
    "/api/v1/data/t2m?time=5",
    "/api/v1/data/t2m?time=2024-13-01",
    "/api/v1/data/t2m?time=2024-01-01T00:2024:2024",
    "/api/v1/data/t2m?time=0000-01-01",
    "/api/v1/data/t2m?time=1/2/3",
    "/api/v1/data/t2m?lat=10&i.lat=3",
    "/api/v1/data/t2m?lat=10&lat=20",
    "/api/v1/data/t2m?i.lat=99",
    "/api/v1/data/t2m?i.lat=5:5",
    "/api/v1/data/t2m?i.lat=" + "9" * 400,
    "/api/v1/data/t2m?i.lat=²",
    "/api/v1/data/t2m?stride.lat=0",
    "/api/v1/data/t2m?stride.lat=-1",
    "/api/v1/data/t2m?stride.lat=2&lat=10",
    "/api/v1/data/t2m?method=cubic",
    "/api/v1/data/t2m?format=exe",
    "/api/v1/data/t2m?decode=maybe",
    "/api/v1/data/t2m?decode=true&format=netcdf",
    "/api/v1/data/t2m?variables=t2m",
    "/api/v1/data/t2m?version=nope",
    "/api/v1/data/",
    "/api/v1/data/?variables=nope",
    "/api/v1/data/?variables=climate",
    "/api/v1/data/?variables=climate/tas",
    "/api/v1/data/odd?variables=short,many",
    "/api/v1/data/odd/complex",
    "/tiles/names/0/0/0.png",
    "/tiles/t2m/0/0/0.png",
    "/tiles/t2m/0/0/0.png?range=1",
    "/tiles/t2m/0/0/0.png?range=5,5",
    "/tiles/t2m/0/0/0.png?range=nan,5",
    "/tiles/t2m/0/0/0.png?range=0,5&colours=pink",
    "/tiles/t2m/0/0/0.png?range=0,5&lat=3",
    "/tiles/t2m/0/0/0.png?range=0,5&stride.time=3",
    "/tiles/t2m/0/0/0.png?range=0,5&i.time=0:3",
    "/tiles/t2m/0/1/0.png?range=0,5",
    "/tiles/t2m/99/0/0.png?range=0,5",
    "/tiles/seen/tilejson.json",
    "/plan/t2m?lat=x",
]


@pytest.mark.parametrize("url", BAD)
def test_bad_requests_are_answered_with_a_sentence(cubes: TestClient, url: str) -> None:
    answer = cubes.get(url)
    assert answer.status_code == 400
    problem = answer.json()
    assert problem["code"]
    assert len(problem["message"]) > 10


_NAMES = st.sampled_from(
    ["lat", "lon", "time", "i.lat", "i.time", "stride.lat", "stride.time", "sel.lon", "method",
     "format", "decode", "variables", "version", "range", "colours", "i.", "", "x"]
)  # fmt: skip
_VALUES = st.one_of(
    st.text(max_size=12),
    st.from_regex(r"[-0-9:.eT/]{0,20}", fullmatch=True),
    st.sampled_from(["nearest", "exact", "json", "csv", "arrow", "netcdf", "false", "t2m,rain"]),
    st.floats().map(str),
    st.integers().map(str),
    st.datetimes().map(str),
)
_PATHS = st.sampled_from(
    ["/api/v1/data/t2m", "/api/v1/data/climate/tas", "/api/v1/data/", "/api/v1/data/names",
     "/plan/rain", "/tiles/t2m/1/0/0.png", "/tiles/climate/tas/tilejson.json"]
)  # fmt: skip


@settings(max_examples=150)
@given(path=_PATHS, query=st.lists(st.tuples(_NAMES, _VALUES), max_size=4))
def test_no_query_breaks_the_server(
    cubes: TestClient, path: str, query: list[tuple[str, str]]
) -> None:
    try:
        answer = cubes.get(path, params=[*query])
    except UnicodeEncodeError:
        return  # no client can send it
    versions = [value for name, value in query if name == "version"]
    assert answer.status_code in (200, 400, 404 if versions else 400), answer.text
    if answer.status_code != 200:
        assert answer.json()["message"]
