"""Texts of a megabyte, and texts that look like others, wherever a repository can have one."""

import re
from typing import Any

import httpx2 as httpx
import numpy as np
import pytest
import zarr
from playwright.sync_api import expect
from starlette.testclient import TestClient

import icefloe
from icefloe.web.site import create_site
from icefloe.web.versions import Viewed
from tests.support.chromium import chromium
from tests.web.conftest import served

LONG = "x" * 1_000_000
HOSTILE = '<script>alert(1)</script>\u202eevil" onload="x\n2'
MOST_BYTES = 200_000
"""How long a page may be that has a few of these texts."""
PAGES = (
    "/",
    "/?version=few",
    "/history",
    "/versions",
    "/commit",
    "/coverage",
    "/dependencies",
    "/sources",
    "/diff?from={first}&to=main",
    "/diff/units?from={before}&to=main",
)
OF_AN_ARRAY = (
    "/node/{name}",
    "/chunk/{name}?by=step&at=0&at=0",
    "/fragment/chunks/{name}",
    "/fragment/statistics/{name}",
    "/picture/{name}",
    "/series/{name}?index=1,1&along=1",
    "/picture/{name}?index=9,9,9",
)


@pytest.fixture(scope="module")
def repository() -> icefloe.Repository:
    repository = icefloe.Repository.create(icefloe.in_memory_storage())
    texts: dict[str, dict[str, Any]] = {
        "units": {"attributes": {"units": LONG}},
        "long_name": {"attributes": {"long_name": LONG}},
        "dimensions": {"dimension_names": (LONG, "b")},
        "others": {"dimension_names": (HOSTILE, "\u202e")},
        "attributes": {"attributes": dict.fromkeys(("units", "long_name", "calendar"), HOSTILE)},
        LONG: {},
    }
    with repository.transaction("main", message=LONG, metadata={LONG: LONG}) as store:
        many: dict[str, Any] = {f"key {number}": number for number in range(2_000)}
        attributes = {"readme": LONG, LONG: LONG, **many}
        group = zarr.open_group(store, mode="a", attributes=attributes)
        group.create_group(f"group {LONG}")
        for name, options in texts.items():
            array = group.create_array(name, shape=(4, 5), dtype="f4", **options)
            array[:] = np.arange(20).reshape(4, 5)
        group.create_array("fill", shape=(4,), dtype=str, fill_value=LONG)
    repository.create_tag("few", repository.lookup_branch("main"))
    repository.create_tag(LONG, repository.lookup_branch("main"))
    repository.create_branch(f"branch {LONG}", repository.lookup_branch("main"))
    with repository.transaction("main", message="a change", metadata={"author": LONG}) as store:
        group = zarr.open_group(store, mode="a")
        group["units"].attrs["units"] = f"other {LONG}"
        group[LONG][0] = 7  # type: ignore[index]
    return repository


@pytest.fixture(scope="module")
def client(repository: icefloe.Repository) -> TestClient:
    site = create_site(Viewed(repository, "long", "long"))
    return TestClient(site, base_url="http://localhost")


def check(answer: httpx.Response) -> None:
    assert len(answer.content) < MOST_BYTES
    text = answer.content.decode("utf-8", "replace")
    # A parameter is named as its dimension; nobody sees that.
    assert "\u202e" not in re.sub(r' name="[^"]*"', "", text)
    if answer.headers["content-type"].startswith("text/html"):  # the others are no markup
        assert "<script>alert" not in text


@pytest.mark.parametrize("page", PAGES)
def test_no_page_is_endless(client: TestClient, repository: icefloe.Repository, page: str) -> None:
    first = [commit.id for commit in repository.ancestry(branch="main")][-1]
    answer = client.get(page.format(first=first, before=repository.lookup_tag("few")))
    assert answer.status_code == 200
    check(answer)


@pytest.mark.parametrize("name", ["units", "long_name", "dimensions", "others", "attributes"])
@pytest.mark.parametrize("page", OF_AN_ARRAY)
def test_nothing_about_an_array_is_endless(client: TestClient, page: str, name: str) -> None:
    answer = client.get(page.format(name=name))
    assert answer.status_code == (422 if "9,9,9" in page else 200)
    check(answer)


@pytest.mark.server
@pytest.mark.slow
def test_pages_stay_as_wide_as_the_window(repository: icefloe.Repository) -> None:
    arrays = ("units", "long_name", "dimensions", "others", "attributes")
    paths = [page for page in PAGES if "{" not in page] + [f"/node/{name}" for name in arrays]
    with served(Viewed(repository, "long", "long")) as root, chromium() as browser:
        page = browser.new_page(base_url=root, locale="en-US")
        problems: list[str] = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("dialog", lambda dialog: problems.append(dialog.message))
        for path in paths:
            for width in (1100, 390):
                page.set_viewport_size({"width": width, "height": 800})
                page.goto(path)
                if path.startswith("/node/"):
                    expect(page.locator(".picture")).to_have_attribute("data-ready", "true")
                    page.locator("#chunks").scroll_into_view_if_needed()
                    expect(page.locator("#chunks canvas")).to_be_visible()
                wide = page.evaluate("() => document.documentElement.scrollWidth")
                assert wide <= width, path
                assert "\u202e" not in page.evaluate("() => document.body.innerText")
        assert problems == []


def test_a_text_as_fill_value_is_cut(client: TestClient) -> None:
    check(client.get("/node/fill"))


def test_a_version_whose_name_is_too_long_opens_by_its_commit(
    client: TestClient, repository: icefloe.Repository
) -> None:
    page = client.get("/versions").text
    snapshot = repository.lookup_tag(LONG)
    assert page.count(f'href="/?version={snapshot}"') == 2  # the tag, and a branch
    assert client.get(f"/?version={snapshot}").status_code == 200


def test_a_node_whose_name_is_too_long_has_no_address(client: TestClient) -> None:
    page = client.get("/").text
    assert f'<th scope="row">{LONG[:200]}…' in page
    assert f"group {LONG[:194]}…/" in page
    assert 'href="/node/units"' in page
    assert "and 1,502 more" in page  # attributes
