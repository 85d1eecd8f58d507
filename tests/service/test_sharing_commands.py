"""The commands for listings, subscriptions, requests and embargoes, against a real service."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import icefloe
from icefloe.catalog.model import Job, JobKind, JobState
from icefloe.cli.main import app
from icefloe.records import replace
from icefloe.service.database import rows, tables
from icefloe.service.settings import Settings
from tests.service.sharing_world import TAPES, populate
from tests.support.served import ServedDesk, served

pytestmark = pytest.mark.server

type Run = Callable[..., Any]


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedDesk]:
    folder = tmp_path_factory.mktemp("commands") / "service"
    with served(Settings(folder=folder, allows_anonymous=False)) as desk:
        populate(desk)
        yield desk


@pytest.fixture
def run(desk: ServedDesk) -> Run:
    """Run a command in somebody's name; return what it prints as JSON."""

    def run(person: str, *arguments: str, fails: int = 0, typed: str | None = None) -> Any:
        environment = {"ICEFLOE_SERVICE": desk.url, "ICEFLOE_TOKEN": desk.tokens[person]}
        command = [*arguments, "--json"] if typed is None else list(arguments)
        result = CliRunner().invoke(app, command, env=environment, input=typed)
        assert result.exit_code == fails, (result.output, result.exception)
        return json.loads(result.stdout) if not fails and typed is None else result.output

    return run


def test_a_listing_is_changed_one_setting_at_a_time(run: Run) -> None:
    made = run("ada", "listing", "create", "lab/waves", "sst", "--title", "Waves")
    changed = run("ada", "listing", "change", "lab/waves", "--needs-approval", "--licence", "CC0")
    assert changed == made | {"needs_approval": True, "licence": "CC0", "version": 2}
    again = run("ada", "listing", "change", "lab/waves", "--no-approval", "--offered-to", "zoo")
    assert again == changed | {"needs_approval": False, "offered_to": ["zoo"], "version": 3}
    run("ada", "listing", "delete", "lab/waves", "--yes")


def test_people_are_invited_and_jobs_get_tokens(run: Run, desk: ServedDesk) -> None:
    made = run("ada", "member", "invite", "lab", "--role", "writer", "--person", "dora")
    assert made["link"].startswith(f"{desk.url}/join/")
    assert "operators have no organisation" in run(
        "ada", "member", "invite", "lab", "--operator", fails=2
    )
    run("ada", "member", "invite", fails=8)  # only operators invite to the service alone
    token = run("ada", "token", "create-for-job", "lab/sst", "means", "--hours", "2")
    assert icefloe.Client(desk.url, token=token["secret"]).show_repo("lab/sst").name == "sst"


def test_listings_and_subscriptions(run: Run, tmp_path: Path) -> None:
    terms = tmp_path / "terms.txt"
    terms.write_text("Cite us.")
    options = ["--licence", "CC-BY-4.0", "--terms", str(terms), "--title", "Sea surface"]
    made = run("ada", "listing", "create", "lab/ocean", "sst", *options, "--needs-approval")
    assert (made["terms"], made["offered_to"]) == ("Cite us.", ["*"])
    listed = run("zoe", "listing", "list", "--search", "SEA")["entries"]
    assert [entry["name"] for entry in listed] == ["ocean"]
    assert run("zoe", "listing", "show", "lab/ocean")["licence"] == "CC-BY-4.0"
    refused = run("zoe", "subscription", "create", "zoo", "lab/ocean", fails=1, typed="n\n")
    assert "Cite us." in refused
    subscription = run("zoe", "subscription", "create", "zoo", "lab/ocean", "--yes")
    identifier = subscription["id"]
    assert subscription["state"] == "pending"
    approved = run("ada", "subscription", "approve", "lab", identifier, "--end", "2099-01-01")
    assert (approved["state"], approved["ends_at"][:4]) == ("granted", "2099")
    (shown,) = run("zoe", "subscription", "list", "zoo", "--state", "granted")["entries"]
    assert shown["terms"] == "CC-BY-4.0\n\nCite us."
    assert run("zoe", "subscription", "update", "zoo")["entries"] == []
    assert run("zoe", "subscription", "show", "zoo", identifier)["id"] == identifier
    assert run("ada", "subscription", "decline", "lab", identifier)["state"] == "declined"
    assert run("zoe", "subscription", "end", "zoo", identifier, "--yes")["state"] == "ended"
    part = ["--node", "/sst", "--range", "time=2026-01-01..", "--range", "lat=-30..30"]
    filtered = run(
        "zoe",
        "subscription",
        "create",
        "zoo",
        "lab/ocean",
        "--yes",
        "--repository",
        "part",
        "--bucket",
        "main",
        *part,
    )
    ranges = {"time": ["2026-01-01", None], "lat": [-30.0, 30.0]}
    assert filtered["filter"] == {"nodes": ["/sst"], "ranges": ranges}
    assert "no range like" in run(
        "zoe", "subscription", "create", "zoo", "lab/ocean", "--yes", "--range", "time", fails=5
    )
    assert run("ada", "listing", "delete", "lab/ocean", "--yes")["done"]
    assert run("zoe", "listing", "list")["entries"] == []


def test_requests(run: Run) -> None:
    (asked,) = run("bob", "request", "ask", "lab/sst", "-m", "please")["entries"]
    assert asked["container"] == TAPES
    (listed,) = run("eve", "request", "list", "archive", "--state", "pending")["entries"]
    identifier = listed["id"]
    assert run("bob", "request", "list")["entries"][0]["id"] == identifier
    shown = run("eve", "request", "show", "archive", identifier)
    assert shown["policy"]["shared_with"] == ["lab"]
    unconfirmed = ["request", "grant", "archive", identifier, "--scope", "anyone", "--yes"]
    assert "confirm_prefix" in run("eve", *unconfirmed, fails=5)
    asked_for_consent = run("eve", "request", "grant", "archive", identifier, typed="y\n")
    assert "let bob in by this?" in asked_for_consent
    (granted,) = run("bob", "request", "list")["entries"]
    assert granted["state"] == "granted"
    run("eve", "request", "decline", "archive", identifier, fails=6)
    run("bob", "request", "ask", "lab/sst", fails=5)
    run("bob", "request", "withdraw", identifier, fails=6)


def test_embargoes(run: Run) -> None:
    options = ["--days", "5", "--bucket", "main", "--prefix", "released/", "--node", "/heat"]
    made = run("ada", "embargo", "set", "lab/sst", *options)
    assert (made["days"], made["nodes"], made["dimension"]) == (5.0, ["/heat"], "time")
    assert run("bob", "embargo", "show", "lab/sst")["prefix"] == "released/"
    overlap = [*options[:-4], "--prefix", "sst/chunks/"]
    assert "overlaps" in run("ada", "embargo", "set", "lab/sst", *overlap, fails=6)
    assert "scope 'anyone'" in run("ada", "embargo", "release", "lab/sst", fails=5)
    assert run("ada", "embargo", "delete", "lab/sst", "--yes")["done"]
    run("ada", "embargo", "show", "lab/sst", fails=3)


def test_jobs(run: Run, desk: ServedDesk) -> None:
    ended = Job("job-1", "lab", JobKind.RELEASE, "lab/sst", JobState.DONE, "ada", desk.now)
    ended = replace(ended, done=3, total=3, report={"chunks": 3})
    failed = replace(
        ended, id="job-2", state=JobState.FAILED, report=None, error="it is full", error_code="x"
    )
    with desk.service.database.writing() as connection:
        for job in (ended, failed):
            rows.add(connection, tables.jobs, job)
    listed = run("bob", "job", "list", "lab")["entries"]
    assert [(job["id"], job["state"]) for job in listed] == [("job-1", "done"), ("job-2", "failed")]
    assert len(run("bob", "job", "list", "lab", "--state", "failed")["entries"]) == 1
    assert run("bob", "job", "show", "lab", "job-2")["error"] == "it is full"
    assert run("bob", "job", "wait", "lab", "job-1")["report"] == {"chunks": 3}
    assert "it is full" in run("bob", "job", "wait", "lab", "job-2", fails=9)
    run("bob", "job", "show", "lab", "job-3", fails=3)
    run("zoe", "job", "show", "lab", "job-1", fails=3)
