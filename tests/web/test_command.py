"""`icefloe view` as people run it: it prints an address, serves pages, and ends by Ctrl-C."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx2 as httpx
import zarr

import icefloe

COMMAND = [sys.executable, "-c", "from icefloe.cli.main import app; app()", "view"]


def test_view_serves_a_repository_until_it_is_stopped(tmp_path: Path) -> None:
    folder = tmp_path / "cube\x1b[31m"
    repository = icefloe.Repository.create(icefloe.local_filesystem_storage(str(folder)))
    with repository.transaction("main", message="data") as store:
        zarr.create_array(store, name="heights", shape=4, dtype="i4")[:] = [1, 2, 3, 4]
    process = subprocess.Popen(
        [*COMMAND, str(folder), "--no-browser", "--allow-origin", "https://Maps.example/"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert "\x1b" not in line
        address = re.search(r"http://127\.0\.0\.1:\d+/", line)
        assert address is not None
        page = httpx.get(address[0], trust_env=False, timeout=60)
        assert "heights" in page.text
        assert "\x1b" not in page.text
        origin = {"origin": "https://maps.example"}
        data = httpx.get(f"{address[0]}api/v1/data/heights", headers=origin, trust_env=False)
        assert data.json()["variables"]["heights"]["values"] == [1, 2, 3, 4]
        assert data.headers["access-control-allow-origin"] == "https://maps.example"
        process.send_signal(signal.SIGINT)
        process.wait(60)
    finally:
        process.kill()
        process.communicate()
