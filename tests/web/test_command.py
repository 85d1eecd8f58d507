"""`icefloe view` as people run it: it opens a browser, serves pages, and ends by Ctrl-C."""

import sys
import time
from pathlib import Path

import httpx2 as httpx
import pytest
import zarr

import icefloe
from tests.support.viewing import address_in, viewing

PATIENCE_SECONDS = 120
BROWSER = """
import pathlib, sys, urllib.request
page = urllib.request.urlopen(sys.argv[2]).read().decode()
file = pathlib.Path(sys.argv[1])
file.with_suffix(".new").write_text(sys.argv[2] + page)
file.with_suffix(".new").rename(file)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "cube\x1b[31m"
    repository = icefloe.Repository.create(icefloe.local_filesystem_storage(str(folder)))
    with repository.transaction("main", message="data") as store:
        zarr.create_array(store, name="heights", shape=4, dtype="i4")[:] = [1, 2, 3, 4]
    return folder


def test_view_serves_a_repository_until_it_is_stopped(folder: Path) -> None:
    options = ("--no-browser", "--allow-origin", "https://Maps.example/")
    with viewing(str(folder), *options) as line:
        assert "\x1b" not in line
        address = address_in(line)
        page = httpx.get(address, trust_env=False, timeout=60)
        assert "heights" in page.text
        assert "\x1b" not in page.text
        origin = {"origin": "https://maps.example"}
        data = httpx.get(f"{address}api/v1/data/heights", headers=origin, trust_env=False)
        assert data.json()["variables"]["heights"]["values"] == [1, 2, 3, 4]
        assert data.headers["access-control-allow-origin"] == "https://maps.example"


def test_a_browser_that_stays_in_the_terminal_gets_the_page(folder: Path, tmp_path: Path) -> None:
    script, file = tmp_path / "browser.py", tmp_path / "page"
    script.write_text(BROWSER)
    command = f"'{sys.executable}' '{script}' '{file}' %s"
    with viewing(str(folder), environment={"BROWSER": command, "no_proxy": "*"}) as line:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not file.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        opened = file.read_text()
        assert opened.startswith(address_in(line))
        assert "heights" in opened
