"""The pages of the service in a real browser, from the login to a map of somebody else's data."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import httpx2 as httpx
import pytest
from playwright.sync_api import Browser, Page, ViewportSize, expect
from starlette.routing import Match

import icefloe
from icefloe.service import login
from icefloe.web.site import Site
from icefloe.web.versions import Viewed
from tests.service.client_world import World
from tests.service.pages_world import browser_of
from tests.support.browser import PASSWORD
from tests.support.chromium import chromium, serious_problems

pytestmark = [pytest.mark.server, pytest.mark.slow]

PAGES = (
    "/repositories",
    "/repositories?search=nothing",
    "/listings",
    "/listings/lab/maps",
    "/requests",
    "/requests/new?repository=lab/closed",
    "/repos/lab/map/",
    "/repos/lab/map/node/t2m",
    "/repos/lab/map/chunk/t2m?by=step&at=0&at=0&at=0",
    "/repos/lab/map/versions",
    "/repos/lab/map/history",
    "/repos/lab/map/commit?version=main",
    "/repos/lab/map/commit/{snapshot}",
    "/repos/lab/map/diff?from={snapshot}&to=main",
    "/repos/lab/map/diff/t2m?from={snapshot}&to=main",
    "/repos/lab/map/coverage",
    "/repos/lab/map/sources",
    "/repos/lab/map/dependencies",
    "/repos/lab/closed/",
    "/account",
    "/device",
    "/password",
    "/nothing/here",
)
PUBLIC_PAGES = ("/login", "/logged-out")
PARTS = ("/fragment/", "/picture/", "/series/", "/difference/", "/api/", "/tiles/", "/plan/")
"""What pages and programs load, which nobody sees on its own."""


@pytest.fixture(scope="module")
def here(pages_service: World) -> World:
    return pages_service


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@contextmanager
def watched(browser: Browser, here: World) -> Iterator[Page]:
    """Open a page that fails for every error of a script and every foreign request."""
    viewport: ViewportSize = {"width": 1100, "height": 900}
    context = browser.new_context(base_url=here.desk.url, viewport=viewport, locale="en-US")
    page = context.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on(
        "console",
        lambda m: problems.append(m.text) if "Content Security Policy" in m.text else None,
    )
    page.on(
        "request",
        lambda r: None if r.url.startswith((here.desk.url, "data:")) else problems.append(r.url),
    )
    page.on("dialog", lambda dialog: problems.append(dialog.message))
    yield page
    context.close()
    assert problems == []


@pytest.fixture
def page(browser: Browser, here: World) -> Iterator[Page]:
    with watched(browser, here) as page:
        yield page


@pytest.fixture
def admin_page(browser: Browser, here: World) -> Iterator[Page]:
    """A second browser, in which the admin of the museum is logged in."""
    with watched(browser, here) as page:
        enter(page, here, "mia")
        yield page


def enter(page: Page, here: World, person: str) -> None:
    """Give a browser the cookie of a session."""
    (cookie,) = browser_of(here, person).cookies.jar
    assert cookie.value is not None
    page.context.add_cookies([{"name": "icefloe", "value": cookie.value, "url": here.desk.url}])


def test_from_the_login_to_a_map_and_from_a_refusal_to_a_grant(
    page: Page, admin_page: Page, here: World
) -> None:
    link = login.create_password_link(here.desk.service, "cid")
    page.goto(link)
    page.get_by_label("New password", exact=True).fill(PASSWORD)
    page.get_by_label("New password again").fill(PASSWORD)
    page.get_by_role("button", name="Continue").click()
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("heading", name="Logged out")).to_be_visible()

    page.goto("/repos/lab/map/node/t2m")  # which leads to the login, and back
    page.get_by_label("Name").fill("cid")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Log in").click()
    expect(page.locator(".picture")).to_have_attribute("data-ready", "true", timeout=60_000)

    page.get_by_role("link", name="Repositories").click()
    page.get_by_label("Search").fill("lab MAP")
    page.get_by_role("button", name="Search").click()
    page.get_by_role("link", name="lab/map").click()
    expect(page.get_by_text("3 virtual")).to_be_visible()
    page.get_by_role("link", name="t2m").click()
    expect(page.locator(".picture")).to_have_attribute("data-ready", "true", timeout=60_000)
    expect(page.locator(".picture .status")).to_contain_text("K")
    page.locator(".canvas canvas").hover(position={"x": 300, "y": 100})
    expect(page.locator(".picture .status")).to_contain_text("at lat")
    page.get_by_role("link", name="History").click()
    expect(page.get_by_text("a map <script>alert(1)</script>")).to_be_visible()

    page.goto("/repos/lab/closed/")
    expect(page.get_by_role("heading", name="lab/closed does not open")).to_be_visible()
    expect(page.get_by_text("admins of museum", exact=True)).to_be_visible()
    page.get_by_role("button", name="Ask their admins").click()
    expect(page.get_by_role("heading", name="You have asked")).to_be_visible()
    page.get_by_role("link", name="Requests").first.click()
    expect(page.get_by_role("cell", name="pending")).to_be_visible()

    grant_on_the_page(admin_page)
    page.reload()
    expect(page.get_by_role("cell", name="pending")).to_have_count(0)
    # There may be older requests of the same person.
    expect(page.get_by_role("cell", name="granted").first).to_be_visible()
    expect(page.get_by_role("cell", name="Enjoy.").first).to_be_visible()
    page.get_by_role("link", name="lab/closed").first.click()
    page.get_by_role("link", name="t2m").click()
    expect(page.locator(".picture")).to_have_attribute("data-ready", "true", timeout=60_000)
    mia = here.client("mia")
    for policy in mia.list_policies("museum"):
        mia.delete_policy("museum", policy.id)


def grant_on_the_page(page: Page) -> None:
    """Grant the only request to the museum, as its admin does."""
    page.goto("/")
    page.get_by_role("link", name="Organisations").click()
    page.get_by_role("link", name="museum").click()
    page.get_by_role("link", name="Access requests").click()
    request = page.get_by_role("row").filter(has_text="lab/closed")
    expect(request).to_have_count(1)
    request.get_by_role("link").click()
    expect(page.get_by_role("heading", name="cid asks for access")).to_be_visible()
    # There may be more of them, of other tests, which only count here.
    opening = re.compile(r"Repositories that open: [1-9]\d*\s+lab/closed\s")
    expect(page.locator("main")).to_contain_text(opening)
    assert serious_problems(page) == []
    page.get_by_label("A word to cid").first.fill("Enjoy.")
    page.get_by_role("button", name="Grant").click()
    expect(page.get_by_role("row", name="State")).to_contain_text("granted by mia")
    assert serious_problems(page) == []


def test_a_program_is_approved(page: Page, here: World) -> None:
    form = {"client_id": "icefloe on <b>laptop</b>", "scope": "read lab/*"}
    codes = httpx.post(f"{here.desk.url}/api/v1/device/code", data=form, trust_env=False).json()
    enter(page, here, "cid")
    page.goto(codes["verification_uri_complete"])
    expect(page.get_by_text("icefloe on <b>laptop</b>")).to_be_visible()
    expect(page.get_by_text(codes["user_code"])).to_be_visible()
    assert serious_problems(page) == []
    page.get_by_role("button", name="Approve").click()
    expect(page.get_by_role("heading", name="Approved")).to_be_visible()
    grant = "urn:ietf:params:oauth:grant-type:device_code"
    answer = httpx.post(
        f"{here.desk.url}/api/v1/device/token",
        data={"grant_type": grant, "device_code": codes["device_code"], "client_id": "x"},
        trust_env=False,
    ).json()
    assert (answer["person"], answer["scope"]) == ("cid", "read lab/*")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_are_accessible_and_fit_on_a_phone(page: Page, here: World, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    page.set_viewport_size({"width": 390, "height": 800})

    def check(path: str) -> None:
        page.goto(path)
        page.wait_for_load_state("networkidle")
        assert serious_problems(page) == [], path
        width = page.evaluate("() => document.documentElement.scrollWidth")
        assert width <= 390, path

    for path in PUBLIC_PAGES:
        check(path)
    enter(page, here, "mia")
    check("/listings/lab/maps")  # with the form, which only admins have
    enter(page, here, "cid")
    snapshot = here.client("cid").get_repo("lab/map").lookup_branch("main")
    for path in PAGES:
        check(path.format(snapshot=snapshot))


def test_no_page_of_a_repository_is_forgotten() -> None:
    repository = icefloe.Repository.create(icefloe.in_memory_storage())
    routes = Site(Viewed(repository, "lab/map", "memory")).routes()
    visited = set()
    for path in PAGES:
        if path.startswith(root := "/repos/lab/map"):
            where = path.removeprefix(root).partition("?")[0]
            scope = {"type": "http", "method": "GET", "path": where}
            visited.add(next(r.path for r in routes if r.matches(scope)[0] is Match.FULL))
    assert visited == {route.path for route in routes if not route.path.startswith(PARTS)}


def test_lists_and_forms_work_without_scripts(browser: Browser, here: World) -> None:
    context = browser.new_context(base_url=here.desk.url, java_script_enabled=False)
    page = context.new_page()
    enter(page, here, "cid")
    page.goto("/repositories")
    page.get_by_label("Search").fill("map")
    page.keyboard.press("Enter")
    page.get_by_role("link", name="lab/map").click()
    expect(page.get_by_role("link", name="t2m")).to_be_visible()
    context.close()
