"""Pages for admins in a real browser: a policy is tried and saved, and everybody can use them."""

import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import uvicorn
from playwright.sync_api import Page, expect

from icefloe.catalog.model import DeclaredContainer, Repository
from icefloe.service import login
from icefloe.service.database import assets
from icefloe.service.pages.site import create_site
from icefloe.service.runtime import Service
from icefloe.service.settings import Settings
from icefloe.web.server import listening_socket
from tests.support.chromium import chromium, serious_problems
from tests.support.desk import Desk, add_bucket, add_organisation, root_of
from tests.support.servers import S3Endpoint

pytestmark = [pytest.mark.server, pytest.mark.slow]


@pytest.fixture
def address(tmp_path: Path, archive_store: S3Endpoint, prefix: str) -> Iterator[str]:
    """A service on this machine, with a lab that refers to the archive of eve."""
    settings = Settings(folder=tmp_path, allowed_endpoints=(archive_store.url,))
    desk = Desk(settings, datetime.now(UTC))
    root_of(archive_store).put(f"{prefix}/daily/first.bin", b"12345")
    with desk.client:
        for organisation, admin in (("lab", "ada"), ("archive", "eve")):
            add_organisation(desk, organisation, admin)
            add_bucket(desk, admin, organisation, archive_store, f"{prefix}/", "tapes")
        url = f"s3://{archive_store.bucket}/{prefix}/daily/"
        with desk.service.database.writing() as connection:
            repository = Repository("lab", "sst", "tapes", "sst/")
            assets.create_repository(connection, repository, desk.now)
            container = DeclaredContainer(url, url, endpoint=archive_store.url)
            assets.set_containers(connection, repository, "1", [container])
    service = Service(settings)
    config = uvicorn.Config(create_site(service), log_level="error", ws="none")
    server = uvicorn.Server(config)
    with listening_socket("127.0.0.1", 0) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        server.should_exit = True
        thread.join()


@pytest.fixture
def page(address: str, tmp_path: Path) -> Iterator[Page]:
    """A page in which eve is logged in, and that fails the test for every message."""
    service = Service(Settings(folder=tmp_path))
    secret = login.start_session(service, "eve", "test", "test")
    service.database.close()
    problems: list[str] = []
    with chromium() as browser:
        context = browser.new_context(base_url=address, locale="en-US")
        context.add_cookies([{"name": "icefloe", "value": secret, "url": address}])
        page = context.new_page()
        page.on(
            "console",
            lambda m: problems.append(m.text) if m.type in ("error", "warning") else None,
        )
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on(
            "request",
            lambda r: None if r.url.startswith(address) else problems.append(r.url),
        )
        yield page
        context.close()
    assert problems == []


def check_accessible(page: Page) -> None:
    """Check a page in light and dark, and that it fits on a phone."""
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        assert serious_problems(page) == [], page.url
    page.set_viewport_size({"width": 390, "height": 800})
    width = page.evaluate("() => document.documentElement.scrollWidth")
    assert width <= 390, page.url
    page.set_viewport_size({"width": 1100, "height": 900})


def test_a_policy_is_tried_before_it_is_saved(
    page: Page, archive_store: S3Endpoint, prefix: str
) -> None:
    page.goto("/organisations/archive")
    check_accessible(page)
    page.get_by_role("link", name="Create a policy").click()
    page.get_by_label("Who may read").select_option("anyone")
    page.get_by_role("button", name="Show what it would do").click()
    # By the keyboard: into the folder, which keeps what was chosen before.
    page.get_by_role("button", name="daily/").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_label("Prefix below")).to_have_value("daily/")
    expect(page.locator("#contents")).to_contain_text(f"{prefix}/daily/first.bin")
    dry_run = page.locator("#dry-run")
    expect(dry_run).to_contain_text("People who gain access: 1")
    expect(dry_run).to_contain_text("1 person of organisations that you have nothing to do with")
    expect(dry_run).to_contain_text("Repositories that open: 1")
    check_accessible(page)
    page.get_by_label("Type this prefix again").fill(f"s3://{archive_store.bucket}/{prefix}/daily/")
    page.get_by_role("button", name="Save").click()
    expect(page.locator("h1")).to_contain_text("policy-")
    expect(page.locator("main")).to_contain_text("everybody on this service")
    check_accessible(page)
    policy = page.url
    for path in (
        "/organisations",
        "/tokens",
        "/organisations/archive/buckets/tapes",
        "/organisations/archive/buckets/tapes/needs",
        "/organisations/archive/new-bucket?delegation=sas",
        "/organisations/archive/requests",
        "/organisations/archive/audit",
        f"{policy}/edit",
        f"{policy}/delete",
    ):
        page.goto(path)
        expect(page.locator("h1")).to_be_visible()
        check_accessible(page)
