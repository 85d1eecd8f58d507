"""Every page that people open, for every role, in a real browser: usable by all, and harmless."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, Page
from sqlalchemy import update
from starlette.routing import Match

from icefloe.catalog.model import Person, Role
from icefloe.service import login
from icefloe.service.database import tables
from icefloe.service.settings import Settings
from tests.service.test_admin_pages import HOSTILE, MANY, TABLE
from tests.service.test_routes import PAGES, label
from tests.support.chromium import chromium, serious_problems
from tests.support.example_world import NOWHERE, fill, path_of
from tests.support.served import ServedDesk, served

pytestmark = [pytest.mark.server, pytest.mark.slow]

ROLES = ("stranger", *(role.value for role in Role))
OTHERS = (
    "/",
    "/repositories?search=nothing",
    "/listings",
    "/listings/ocean-lab/daily-sst",
    "/requests",
    "/requests/new?repository=ocean-lab/sea-surface",
    "/account",
    "/device",
    "/password",
    "/no/such/page",
)
PATHS = [*OTHERS, *(path_of(page.removeprefix("GET ")) for page in TABLE if page.startswith("GET"))]
PATHS = [path for path in PATHS if not path.endswith((".csv", ".jsonl"))]
BEFORE_A_LOGIN = ("/login", "/logged-out", "/join/{secret}", "/join/no-such-link", "/no/such/page")
WITHOUT_VISIT = {
    "GET /login/provider": "sends the browser to the provider",
    "GET /login/provider/callback": "sends the browser on",
    "GET /repos/{org}/{name}": "sends the browser to the root of the repository",
    "GET /repos/{org}/{name}/{rest:path}": "`test_pages_browser` visits them, with data",
    "GET /organisations/{org}/audit.csv": "a file",
    "GET /organisations/{org}/audit.jsonl": "a file",
}
"""Pages that this test does not visit, and why."""


def route_of(path: str) -> str | None:
    """Return the page that answers a path; None if none does."""
    scope = {"type": "http", "method": "GET", "path": path.partition("?")[0]}
    return next((label(r) for r in PAGES if r.matches(scope)[0] is Match.FULL), None)


def test_no_page_is_forgotten() -> None:
    visited = {route_of(path) for path in (*PATHS, *BEFORE_A_LOGIN)}
    pages = {label(route) for route in PAGES if "GET" in (route.methods or ())}
    assert visited - {None} == pages - WITHOUT_VISIT.keys()
    assert WITHOUT_VISIT.keys() <= pages


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedDesk]:
    """A service with an entry of each kind, whose texts would like to run."""
    folder = tmp_path_factory.mktemp("service")
    with served(Settings(folder=folder, limits=MANY, allowed_endpoints=(NOWHERE,))) as desk:
        for name in ROLES:
            desk.add_person(Person(name))
        fill(desk, **{role.value: role for role in Role})
        with desk.service.database.writing() as connection:
            for table, column in (
                (tables.organisations, "display_name"),
                (tables.repositories, "description"),
                (tables.buckets, "state_reason"),
                (tables.listings, "title"),
                (tables.listings, "licence"),
                (tables.listings, "terms"),
                (tables.access_requests, "message"),
                (tables.subscriptions, "answer"),
            ):
                connection.execute(update(table).values({column: HOSTILE}))
            checks = [{"name": HOSTILE, "passed": False, "detail": HOSTILE}]
            values = {"probe_checks": checks, "probed_at": desk.now}
            connection.execute(update(tables.buckets).values(values))
        yield desk


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def checked() -> set[str]:
    """The structures of the pages that were checked already: those of two roles are often equal."""
    return set()


STRUCTURE = """() => [...document.querySelectorAll("*")]
    .map((element) => `${element.tagName}.${element.className}`).join()"""


@contextmanager
def watched(browser: Browser, desk: ServedDesk) -> Iterator[Page]:
    """Open a page that fails for each error of a script and each foreign request."""
    context = browser.new_context(base_url=desk.url, locale="en-US")
    page = context.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("dialog", lambda dialog: problems.append(dialog.message))
    page.on(
        "console",
        lambda m: problems.append(m.text) if "Content Security Policy" in m.text else None,
    )
    page.on(
        "request",
        lambda r: None if r.url.startswith((desk.url, "data:")) else problems.append(r.url),
    )
    yield page
    context.close()
    assert problems == []


def visit(page: Page, path: str, checked: set[str]) -> None:
    page.goto(path)
    assert page.title().strip(), path
    assert "\u202e" not in page.evaluate("() => document.body.innerText"), path
    structure = page.evaluate(STRUCTURE)
    if structure not in checked:
        check_page(page, path)
        checked.add(structure)


@pytest.mark.parametrize("role", ROLES)
def test_every_page_is_usable_and_harmless(
    browser: Browser, desk: ServedDesk, checked: set[str], role: str
) -> None:
    secret = login.start_session(desk.service, role, "test", "test")
    with watched(browser, desk) as page:
        page.context.add_cookies([{"name": "icefloe", "value": secret, "url": desk.url}])
        for path in PATHS:
            visit(page, path, checked)


def test_pages_before_a_login_are_usable_and_harmless(
    browser: Browser, desk: ServedDesk, checked: set[str]
) -> None:
    secret = login.create_password_link(desk.service, "reader").rpartition("/")[2]
    with watched(browser, desk) as page:
        for path in BEFORE_A_LOGIN:
            visit(page, path.format(secret=secret), checked)


def check_page(page: Page, path: str) -> None:
    """Check a page in light and, narrow as on a phone, in dark; also what is folded up."""
    page.evaluate("() => document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    page.emulate_media(color_scheme="light")
    page.set_viewport_size({"width": 1100, "height": 900})
    assert serious_problems(page) == [], path
    page.emulate_media(color_scheme="dark")
    page.set_viewport_size({"width": 390, "height": 800})
    assert serious_problems(page) == [], path
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 390, path
