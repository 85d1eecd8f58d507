"""Arrays of times as dates, compared with xarray and cftime."""

import re
from collections.abc import Iterator

import cftime
import numpy as np
import pytest
import xarray
import zarr
from playwright.sync_api import Browser, expect
from starlette.testclient import TestClient

import icefloe
from icefloe.web.site import create_site
from icefloe.web.versions import Viewed
from icefloe.xarray import to_icechunk
from tests.support.chromium import chromium
from tests.web.conftest import served
from tests.web.test_pictures import picture

CALENDARS = ("standard", "proleptic_gregorian", "noleap", "all_leap", "360_day", "julian")
MISSING = (3, 4)


def times() -> xarray.Dataset:
    """Return times with a missing one, of many calendars, and other values over time."""
    hours = np.datetime64("2021-05-01", "ns") + np.arange(300) * np.timedelta64(7, "h")
    field = hours.reshape(15, 20).copy()
    field[MISSING] = np.datetime64("NaT", "ns")
    steps = np.datetime64("2020-02-27", "ns") + np.arange(12) * np.timedelta64(6, "h")
    return xarray.Dataset(
        {
            "field": (("y", "x"), field),
            "large": (("u", "v"), np.resize(hours, (80, 80))),
            "values": (("time",), np.arange(12.0)),
            "plane": (("time", "x"), np.arange(240.0).reshape(12, 20)),
            "names": (("n",), np.array(["a", "b"])),
        },
        {"time": ("time", steps)},
    )


def repository_of_times() -> icefloe.Repository:
    repository = icefloe.Repository.create(icefloe.in_memory_storage())
    session = repository.writable_session("main")
    units = {"dtype": "int64", "units": "nanoseconds since 1970-01-01"}
    to_icechunk(times(), session, encoding={"field": units, "large": units})
    group = zarr.open_group(session.store, mode="a")
    for calendar in CALENDARS:
        counts = np.arange(-700, 420_000, 9973) / 2
        array = group.create_array(calendar, data=counts, dimension_names=("n",))
        array.attrs.update(units="days since 1500-02-01", calendar=calendar)
    days = np.array(["2024-01-01", "NaT", "2024-03-01"], "datetime64[s]")
    group.create_array("own", data=days, dimension_names=("d",))
    group.create_array("d", data=np.array([1, 2, 4], "datetime64[D]"), dimension_names=("d",))
    group.create_array("over", data=np.arange(3.0), dimension_names=("d",))
    session.commit("times")
    with repository.transaction("main", message="one hour later") as store:
        array = zarr.open_array(store, path="field", mode="r+")
        array[0, 0] = int(array[0, 0]) + 3600 * 10**9  # type: ignore[arg-type]
    return repository


@pytest.fixture(scope="module")
def viewed() -> Viewed:
    return Viewed(repository_of_times(), "times", "times")


@pytest.fixture(scope="module")
def pages(viewed: Viewed) -> Iterator[TestClient]:
    with TestClient(create_site(viewed), base_url="http://localhost") as client:
        yield client


def dates(pages: TestClient, path: str) -> list[str | None]:
    """Return the dates of a picture by its header, with an independent library."""
    header, values = picture(pages, path)
    scale = header["times"]
    texts: list[str | None] = []
    for value in values.ravel().tolist():
        seconds = scale["origin"] + value * scale["seconds"]
        date = (
            cftime.num2date(round(seconds), "seconds since 1970-01-01", scale["calendar"])
            if (np.isfinite(value))
            else None
        )
        texts.append(None if date is None else date.isoformat())
    return texts


def test_times_are_exact_and_missing_ones_are_missing(pages: TestClient) -> None:
    expected = times()["field"].to_numpy().astype("datetime64[s]")
    expected[0, 0] += np.timedelta64(1, "h")
    shown = np.array(dates(pages, "/picture/field")).reshape(15, 20)
    assert shown[MISSING] is None
    is_known = ~np.isnat(expected)
    assert (shown[is_known] == np.datetime_as_string(expected[is_known])).all()
    header, _ = picture(pages, "/picture/field")
    assert header["range"]["missing"] == 1
    assert header["units"] == ""
    part = dates(pages, "/picture/own")
    assert part == ["2024-01-01T00:00:00", None, "2024-03-01T00:00:00"]


def test_a_point_of_a_packed_picture_is_exact(pages: TestClient) -> None:
    header, _ = picture(pages, "/picture/large")
    assert "levels" in header
    assert "wide" not in header
    _, values = picture(pages, "/picture/large?rows=7&columns=9")
    seconds = header["times"]["origin"] + values.item() * header["times"]["seconds"]
    assert seconds == times()["large"].to_numpy()[7, 9].astype("datetime64[s]").astype(int)


def test_statistics_are_dates(pages: TestClient) -> None:
    text = pages.get("/fragment/statistics/field").text
    known = times()["field"].to_numpy()
    last = np.datetime_as_string(np.nanmax(known), "s").replace("T", " ")
    assert "1 of them missing" in text
    assert f">{last}</td>" in text
    assert ">2021-05-01 01:00:00</td>" in text
    assert re.search(r">\d+\.\d+ days</td>", text)


def test_text_has_no_statistics(pages: TestClient) -> None:
    text = pages.get("/fragment/statistics/names").text
    assert "no numbers to compute with" in text
    assert "draw" not in text


def test_every_step_of_an_axis_of_times_has_its_date(pages: TestClient) -> None:
    header, _ = picture(pages, "/picture/plane")
    expected = [text.replace("T", " ") for text in np.datetime_as_string(times()["time"], "s")]
    assert header["axes"]["rows"]["dates"] == expected
    assert header["axes"]["columns"]["dates"] is None
    header, _ = picture(pages, "/picture/over")
    assert header["axes"]["columns"]["dates"] == ["1970-01-02", "1970-01-03", "1970-01-05"]


def test_steps_without_coordinates_have_round_labels(pages: TestClient) -> None:
    header, _ = picture(pages, "/picture/large")
    assert [label for _, label in header["axes"]["rows"]["labels"]] == ["0", "20", "40", "60"]
    header, _ = picture(pages, "/picture/own")
    assert header["axes"]["columns"]["labels"][0][1] == "1970-01-02"


def test_a_difference_of_times_is_a_length(pages: TestClient, viewed: Viewed) -> None:
    first = viewed.repository.lookup_snapshot(viewed.repository.lookup_branch("main")).parent_id
    header, values = picture(pages, f"/difference/field?from={first}&to=main")
    assert header["units"] == "nanoseconds"
    assert "times" not in header
    assert values[0, 0] == 3600e9


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.mark.server
@pytest.mark.slow
def test_the_browser_shows_the_dates_of_every_calendar(browser: Browser, viewed: Viewed) -> None:
    with served(viewed) as address:
        page = browser.new_page(base_url=address)
        for calendar in CALENDARS:
            page.goto(f"/node/{calendar}")
            page.locator("details.values summary").click()
            cells = page.locator("details.values tbody td")
            counts = np.arange(-700, 420_000, 9973) / 2
            expect(cells).to_have_count(len(counts))
            expected = [
                str(cftime.num2date(count, "days since 1500-02-01", calendar)) for count in counts
            ]
            assert cells.all_inner_texts() == expected, calendar
        page.goto("/node/field")
        expect(page.locator(".picture .status")).to_contain_text(
            "2021-05-01 01:00:00 to 2021-07-27 05:00:00, 1 missing."
        )
        page.locator("details.values summary").click()
        expect(page.locator("details.values tbody tr").nth(3)).to_contain_text("missing")
        page.goto("/node/plane")
        page.locator(".picture[data-ready]").wait_for()
        page.locator(".canvas").focus()
        page.keyboard.press("ArrowDown")
        expect(page.locator(".picture .status")).to_contain_text("at time 2020-02-28")
        page.locator("details.values summary").click()
        expect(page.locator("details.values tbody th").nth(1)).to_have_text("2020-02-27 06:00:00")
        page.close()
