"""`icefloe serve` as people run it: a process on a socket."""

import json
import re
import signal
import socket
from pathlib import Path
from urllib.parse import urlsplit

import httpx2 as httpx
import pytest

from icefloe.service.operation.upkeep import verify_audit
from icefloe.service.settings import Settings
from icefloe.version import VERSION
from tests.support.browser import PASSWORD, Browser
from tests.support.service_process import Served, served

pytestmark = pytest.mark.server

FORM = "application/x-www-form-urlencoded"


def log_in_program(served: Served, browser: Browser, scope: str = "admin") -> str:
    """Return a token that the person in a browser approved."""
    url = f"{served.url}/api/v1/device"
    codes = httpx.post(f"{url}/code", data={"client_id": "test", "scope": scope}).json()
    browser.open(f"/device?user_code={codes['user_code']}")
    browser.send("/device", decision="approve")
    grant_type = "urn:ietf:params:oauth:grant-type:device_code"
    data = {"grant_type": grant_type, "device_code": codes["device_code"]}
    return str(httpx.post(f"{url}/token", data=data).json()["access_token"])


def open_client(served: Served) -> httpx.Client:
    return httpx.Client(base_url=served.url, follow_redirects=True, timeout=60)


def join_first(served: Served, client: httpx.Client) -> Browser:
    browser = Browser(client)
    assert browser.join(served.first_link, "root").status_code == 200
    assert "an operator of this service" in browser.open("/account").text
    return browser


def test_the_first_start(tmp_path: Path) -> None:
    with served(tmp_path, "--log-format", "json") as running, open_client(running) as client:
        health = httpx.get(f"{running.url}/api/v1/health").json()
        assert health == {"status": "alive", "version": VERSION}
        assert httpx.get(f"{running.url}/api/v1/health/ready").json()["status"] == "ready"
        browser = join_first(running, client)
        token = log_in_program(running, browser)
        headers = {"authorization": f"Bearer {token}"}
        assert httpx.get(f"{running.url}/api/v1/me", headers=headers).json()["person"] == "root"
        httpx.get(f"{running.url}/api/v1/me", headers={"authorization": "Bearer x" + token})
        metrics = httpx.get(f"{running.url}/metrics", headers=headers).text
        assert re.search(
            r'icefloe_requests_total\{.*route="/api/v1/me",status="200"\} 1.0', metrics
        )
        assert httpx.get(f"{running.url}/metrics").status_code == 401
        secrets = [token, PASSWORD, running.first_link, browser.client.cookies["icefloe"]]
    lines = [json.loads(line) for line in running.log.read_text().splitlines()]
    requests = [line for line in lines if line["logger"] == "icefloe.service.requests"]
    assert {"request_id", "method", "route", "status", "milliseconds", "person"} <= requests[
        0
    ].keys()
    assert "/join/{secret}" in {line["route"] for line in requests}
    assert "root" in {line["person"] for line in requests}
    stored = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(path.name == "service.db" for path in stored)
    for path in stored:
        content = path.read_bytes()
        for secret in secrets:
            assert secret.rpartition("/")[2].encode() not in content, path


def test_a_request_that_runs_ends_before_the_server_does(tmp_path: Path) -> None:
    body = b"client_id=slow"
    with served(tmp_path) as running:
        assert httpx.get(f"{running.url}/api/v1/health").status_code == 200
        address = urlsplit(running.url)
        assert address.hostname
        with socket.create_connection((address.hostname, address.port or 0)) as connection:
            head = f"POST /api/v1/device/code HTTP/1.1\r\nHost: x\r\nContent-Type: {FORM}\r\n"
            head += f"Expect: 100-continue\r\nContent-Length: {len(body)}\r\n\r\n"
            connection.sendall(head.encode())
            reader = connection.makefile("rb")
            assert b"100" in reader.readline()  # the application waits for the body now
            running.process.send_signal(signal.SIGTERM)
            connection.sendall(body)
            answer = reader.read()
        assert b"HTTP/1.1 200" in answer
        assert b"user_code" in answer
        running.process.wait(60)
    assert verify_audit(Settings(folder=tmp_path / "icefloe-service")).number == 0


def test_origins_of_the_settings_and_of_the_command_may_read_data(tmp_path: Path) -> None:
    environment = {"ICEFLOE_SERVICE_ALLOWED_ORIGINS": '["https://Maps.example.org/"]'}
    options = ("--allow-origin", "http://localhost:5173")
    with served(tmp_path, *options, environment=environment) as running:
        for origin, allowed in (
            ("https://maps.example.org", True),
            ("http://localhost:5173", True),
            ("https://evil.example", False),
        ):
            for path, is_data in (("/api/v1/repos/lab/sst/data/t2m", True), ("/api/v1/me", False)):
                answer = httpx.get(f"{running.url}{path}", headers={"origin": origin})
                assert answer.status_code == 401
                is_shared = answer.headers.get("access-control-allow-origin") == origin
                assert is_shared == (allowed and is_data)


def test_two_workers_share_everything(tmp_path: Path, postgresql_database: str) -> None:
    environment = {"ICEFLOE_SERVICE_DATABASE": postgresql_database}
    environment["TMPDIR"] = str(tmp_path)
    with (
        served(tmp_path, "--workers", "2", environment=environment) as running,
        open_client(running) as client,
    ):
        token = log_in_program(running, join_first(running, client))
        headers = {"authorization": f"Bearer {token}"}
        for _ in range(20):  # each with a connection of its own, which either worker takes
            assert httpx.get(f"{running.url}/api/v1/me", headers=headers).status_code == 200
        metrics = httpx.get(f"{running.url}/metrics", headers=headers).text
        pattern = r'icefloe_requests_total\{.*route="/api/v1/me",status="200"\} (\d+)'
        (count,) = re.findall(pattern, metrics)
        assert int(count) == 20
    assert not list(tmp_path.glob("icefloe-metrics-*"))
