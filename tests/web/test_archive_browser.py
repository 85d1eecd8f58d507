"""Pages about archives in a real browser: a click finds a file, and all can use the pages."""

import threading
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from icefloe.web.server import listening_socket, server_of
from icefloe.web.versions import Viewed
from tests.support.chromium import chromium, serious_problems
from tests.support.ingested import DayArchive, day_archive

pytestmark = [pytest.mark.server, pytest.mark.slow]

PAGES = [
    "/coverage",
    "/sources?check=1",
    "/dependencies",
    "/chunk/temperature?by=chunk&at=3&at=0&at=0",
    "/node/temperature",
]


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> DayArchive:
    made = day_archive(tmp_path_factory.mktemp("archive"))
    made.damage()
    return made


@pytest.fixture(scope="module")
def address(archive: DayArchive) -> Iterator[str]:
    """The pages, served on this machine."""
    server = server_of(Viewed(archive.repository, "cube", archive.url))
    with listening_socket("127.0.0.1", 0) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    context = browser.new_context(
        base_url=address, viewport={"width": 1100, "height": 900}, locale="en-US"
    )
    page = context.new_page()
    problems: list[str] = []
    page.on(
        "console",
        lambda m: problems.append(m.text) if m.type in ("error", "warning") else None,
    )
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("dialog", lambda dialog: problems.append(dialog.message))
    yield page
    context.close()
    assert problems == []


def test_a_click_on_the_grid_and_the_form_find_the_file(page: Page, archive: DayArchive) -> None:
    page.goto("/node/temperature")
    page.locator("#chunks").scroll_into_view_if_needed()
    canvas = page.locator("canvas[data-grid]")
    expect(canvas).to_be_visible()
    box = canvas.bounding_box()
    assert box is not None
    width, height = box["width"], box["height"]
    # Time is drawn to the right or downwards, whichever the grid chose: click on its 8th step.
    share = 7.5 / archive.days
    along = {"x": share * width, "y": height / 2}
    if width < height:
        along = {"x": width / 2, "y": share * height}
    canvas.click(position=along)  # type: ignore[arg-type]
    reference = page.locator("#reference")
    expect(reference).to_contain_text("7, 0, 0")
    expect(reference).to_contain_text(archive.paths[7].as_uri())
    form = page.locator("form.lookup")
    form.get_by_label("Find by").select_option("coordinate")
    form.get_by_label("time").fill("2024-01-02")
    form.get_by_label("time").press("Enter")
    expect(reference).to_contain_text(archive.paths[1].as_uri())
    form.get_by_label("time").fill("1900")
    form.get_by_role("button").click()
    expect(reference).to_contain_text("goes from 2024-01-01 to 2024-01-20")
    assert page.url.endswith("/node/temperature")


def test_pages_are_accessible_in_light_and_dark_and_on_a_phone(page: Page) -> None:
    for path in PAGES:
        page.set_viewport_size({"width": 1100, "height": 900})
        page.emulate_media(color_scheme="light")
        page.goto(path)
        page.wait_for_load_state("networkidle")
        for details in page.locator("details summary:visible").all():
            details.click()
        assert serious_problems(page) == [], path
        page.emulate_media(color_scheme="dark")
        assert serious_problems(page) == [], path
        page.set_viewport_size({"width": 390, "height": 800})
        assert page.evaluate("() => document.documentElement.scrollWidth") <= 390, path


def test_a_check_of_files_needs_no_script(browser: Browser, address: str) -> None:
    context = browser.new_context(base_url=address, java_script_enabled=False)
    page = context.new_page()
    page.goto("/sources")
    page.get_by_role("link", name="Check these 18 files now").click()
    for state in ("missing", "changed", "too short"):
        expect(page.locator(".state.bad", has_text=state)).to_have_count(1)
    expect(page.locator(".state.good")).to_have_count(15)
    page.goto("/node/temperature")
    page.locator("form.lookup").get_by_role("button").click()
    expect(page.get_by_text("day_00.nc")).to_be_visible()
    page.goto("/coverage")
    expect(page.locator("svg.coverage rect.late")).to_have_count(1)
    context.close()
