"""Commands about a service: with one that answers hostile texts, and with one that refuses."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from icefloe.catalog.tokens import new_token
from icefloe.cli.main import app
from tests.support.loopback import LoopbackHandler, LoopbackServer, serving
from tests.unit.cli.test_hostile_texts import ALL, HOSTILE, RUN_A_SERVICE, needs_service, raw

NOW = "2026-01-01T00:00:00Z"
ANSWER: dict[str, Any] = {
    "name": "lab",
    "organisation": "lab",
    "person": "ada",
    "role": "reader",
    "roles": {"lab": "admin"},
    "operator": False,
    "display_name": HOSTILE,
    "description": HOSTILE,
    "email": HOSTILE,
    "id": HOSTILE,
    "secret": "icefloe_canary",
    "expires_at": NOW,
    "platform": "s3",
    "bucket": "data",
    "prefix": "",
    "region": HOSTILE,
    "state_reason": HOSTILE,
    "visibility": "everyone",
    "status": "active",
    "full_name": "lab/sst",
    "reason": HOSTILE,
    "checks": [{"name": HOSTILE, "passed": False, "detail": HOSTILE}],
    "changed_by": HOSTILE,
    "changed_at": NOW,
    "policy": None,
    "gains": [["ada", HOSTILE]],
    "losses": [[HOSTILE, "lab/sst"]],
    "opens": [HOSTILE],
    "breaks": [HOSTILE],
    "other_gains": [
        {"organisation": HOSTILE, "people": 3},
        {"organisation": "", "people": 1},
    ],
    "other_breaks": 2,
    "at": NOW,
    "action": HOSTILE,
    "resource": HOSTILE,
    "allowed": True,
    "request_id": HOSTILE,
    "details": {HOSTILE: HOSTILE},
    "number": 7,
    "link": HOSTILE,
    "external_id": HOSTILE,
    "challenge_key": HOSTILE,
    "challenge": HOSTILE,
    "store": {"platform": "s3", "bucket": HOSTILE, "prefix": HOSTILE, "region": HOSTILE},
    "credential": {"kind": "s3", "values": {HOSTILE: HOSTILE}, "expires_at": NOW},
    "is_scoped": False,
    "repository": "lab/sst",
    "container": HOSTILE,
    "message": HOSTILE,
    "code": "access-denied",
    "missing": [
        {
            "container": HOSTILE,
            "reason": HOSTILE,
            "owner": HOSTILE,
            "who": HOSTILE,
            "what_to_do": HOSTILE,
            "url": HOSTILE,
        }
    ],
}
"""All fields of all answers: a record takes those that it has."""


class Anything(LoopbackHandler):
    """Answers every request with everything."""

    server: "AnyService"

    def respond(self) -> None:
        self.read_body()
        self.server.seen.append(f"{self.command} {self.path.partition('?')[0]}")
        state = {"state": "pending" if "requests" in self.path else "unproven"}
        whole = {**ANSWER, **state}
        page = {**whole, "items": [whole], "next": None}
        cut_off = {"bucket": whole, "issued_until": NOW}
        body = json.dumps(cut_off if self.path.endswith("/suspend") else page).encode()
        status = self.server.status
        self.answer(status, b"" if self.command == "DELETE" and status == 200 else body)

    do_PATCH = LoopbackHandler.do_GET  # noqa: N815


class AnyService(LoopbackServer):
    """A service with one answer."""

    def __init__(self, status: int) -> None:
        super().__init__(Anything)
        self.status = status
        self.seen: list[str] = []


@pytest.fixture(params=[200, 403])
def service(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[AnyService]:
    with serving(AnyService(request.param)) as service:
        monkeypatch.setenv("ICEFLOE_SERVICE", service.url)
        monkeypatch.setenv("ICEFLOE_TOKEN", new_token())
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
        monkeypatch.chdir(tmp_path)
        yield service


def settings_file(folder: Path) -> str:
    path = folder / "bucket.json"
    path.write_text(json.dumps({"platform": "s3", "bucket": "data", "secrets": {"k": "canary"}}))
    return str(path)


ARGUMENTS: dict[str, list[str]] = {
    "login": ["SERVICE"],
    "logout": [],
    "whoami": [],
    "org list": [],
    "org show": ["lab"],
    "org create": ["lab", "--display-name", HOSTILE],
    "org rename": ["lab", HOSTILE],
    "org delete": ["lab", "--yes"],
    "member list": ["lab"],
    "member set": ["lab", "ada", "--role", "reader"],
    "member invite": ["lab", "--role", "writer", "--person", "dora"],
    "member remove": ["lab", "ada"],
    "member accounts": ["lab"],
    "member create-account": ["lab", "bot", "--role", "reader"],
    "member disable-account": ["lab", "bot"],
    "bucket list": ["lab"],
    "bucket show": ["lab", "main"],
    "bucket register": ["lab", "main", "FILE"],
    "bucket change": ["lab", "main", "FILE"],
    "bucket probe": ["lab", "main"],
    "bucket prove": ["lab", "main"],
    "bucket suspend": ["lab", "main", "--yes"],
    "bucket resume": ["lab", "main"],
    "bucket credentials": ["lab", "main", "--prefix", "raw/"],
    "bucket delete": ["lab", "main", "--yes"],
    "repo list": [],
    "repo show": ["lab/sst"],
    "repo create": ["lab/sst", "--bucket", "main"],
    "repo import": ["lab/sst", "--bucket", "main", "--prefix", "x"],
    "repo change": ["lab/sst", "--description", HOSTILE],
    "repo delete": ["lab/sst", "--yes"],
    "policy list": ["lab"],
    "policy show": ["lab", "p1"],
    "policy create": ["lab", "--bucket", "main", "--dry-run"],
    "policy change": ["lab", "p1", "--bucket", "main"],
    "policy delete": ["lab", "p1", "--dry-run"],
    "policy history": ["lab", "p1"],
    "policy undo": ["lab", "p1"],
    "token list": [],
    "token create": [HOSTILE],
    "token create-for-job": ["lab/sst", HOSTILE, "--hours", "2"],
    "token revoke": ["abc"],
    "audit list": ["--limit", "1"],
    "audit show": ["7"],
    "audit export": ["OUT"],
    "listing list": [],
    "listing show": ["lab/sst"],
    "listing create": ["lab/sst", "sst"],
    "listing change": ["lab/sst", "--title", HOSTILE],
    "listing delete": ["lab/sst", "--yes"],
    "subscription list": ["lab"],
    "subscription show": ["lab", "s1"],
    "subscription create": ["lab", "zoo/sst", "--yes"],
    "subscription update": ["lab", "s1"],
    "subscription approve": ["lab", "s1"],
    "subscription decline": ["lab", "s1"],
    "subscription end": ["lab", "s1", "--yes"],
    "request ask": ["lab/sst"],
    "request list": ["lab"],
    "request show": ["lab", "r1"],
    "request grant": ["lab", "r1", "--yes"],
    "request decline": ["lab", "r1"],
    "request withdraw": ["r1"],
    "embargo show": ["lab/sst"],
    "embargo set": ["lab/sst", "--days", "30", "--bucket", "main", "--prefix", "x/"],
    "embargo release": ["lab/sst"],
    "embargo delete": ["lab/sst", "--yes"],
    "job list": ["lab"],
    "job show": ["lab", "j1"],
    "job wait": ["lab", "j1"],
}
SHOWN_WHOLE = {"org", "member", "bucket", "policy", "token", "audit", "whoami", "login", "logout"}
"""Families whose records this service can answer with."""


def test_every_command_about_a_service_is_here() -> None:
    names = {
        name
        for name, command in ALL.items()
        if needs_service(name, command) and not name.startswith(RUN_A_SERVICE)
    }
    assert names == ARGUMENTS.keys()


@pytest.mark.parametrize("name", ARGUMENTS)
def test_a_command_asks_the_service_and_prints_no_command_to_the_terminal(
    service: AnyService, tmp_path: Path, name: str
) -> None:
    words = {"SERVICE": service.url, "FILE": settings_file(tmp_path), "OUT": str(tmp_path / "out")}
    arguments = [words.get(argument, argument) for argument in ARGUMENTS[name]]
    for variant in (arguments, [*arguments, "--json"]):
        result = CliRunner().invoke(app, [*name.split(), *variant])
        assert result.exception is None or isinstance(result.exception, SystemExit), (
            result.exception
        )
        assert not raw(result.stdout)
        assert not raw(result.stderr)
        assert "canary" not in result.stdout + result.stderr or name.startswith("token create")
        assert result.exit_code != 2, result.stderr
        if service.status == 403:
            assert result.exit_code == 8, result.stderr
            assert "access-denied" in result.stderr
        elif "--json" in variant and name.split(maxsplit=1)[0] in SHOWN_WHOLE:
            assert result.exit_code in {0, 10}, result.stderr
            assert json.loads(result.stdout)
    assert service.seen


def test_a_name_is_a_repository_of_the_service_unless_there_is_such_a_folder(
    service: AnyService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    CliRunner().invoke(app, ["stats", "lab/sst"])
    CliRunner().invoke(app, ["gc", f"icefloe://{service.url[7:]}/lab/sst", "--older-than", "now"])
    assert service.seen == ["POST /api/v1/repos/lab/sst/open"] * 2
    (tmp_path / "lab" / "sst").mkdir(parents=True)
    missing = CliRunner().invoke(app, ["stats", "lab/sst"])
    assert missing.exit_code == 3
    assert len(service.seen) == 2
    refused = CliRunner().invoke(app, ["stats", f"icefloe://{service.url[7:]}/a/b", "--anonymous"])
    assert refused.exit_code == 2
