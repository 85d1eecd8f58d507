"""The API: who asks, what they may, and how errors look."""

import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from fastapi.routing import APIRoute

from icefloe.catalog.model import (
    Bucket,
    Member,
    Organisation,
    Person,
    Platform,
    Repository,
    Role,
    TokenScope,
)
from icefloe.catalog.tokens import new_token
from icefloe.service.database import accounts, assets, rows, tables
from icefloe.service.http.access import anybody
from icefloe.service.http.app import ROUTERS
from icefloe.service.settings import Settings
from tests.support.desk import START, Desk


@pytest.fixture
def desk(tmp_path: Path, database_url: str) -> Iterator[Desk]:
    desk = Desk(Settings(folder=tmp_path / "service", database=database_url))
    with desk.client:
        desk.add_person(Person("root", operator=True))
        for name in ("ada", "bob", "eve"):
            desk.add_person(Person(name))
        with desk.service.database.writing() as connection:
            accounts.create_organisation(connection, Organisation("lab"), "ada", START)
            accounts.set_member(connection, Member("lab", "bob", Role.READER))
        yield desk


def test_nobody_is_told_to_log_in(desk: Desk) -> None:
    for token in (None, "", "icefloe_wrong", new_token()):
        response = desk.ask(token, "GET", "/me")
        assert response.status_code == 401
        body = response.json()
        assert body["code"] == "not-logged-in"
        assert "Authorization: Bearer icefloe_" in body["message"]
        assert body["request_id"] == response.headers["x-request-id"]


def test_who_am_i(desk: Desk) -> None:
    me = desk.ask("ada", "GET", "/me").json()
    assert (me["person"], me["operator"], me["roles"]) == ("ada", False, {"lab": "admin"})


def test_request_ids_are_kept_if_they_are_plain(desk: Desk) -> None:
    plain = desk.ask("ada", "GET", "/me", headers={"x-request-id": "abc-1"})
    assert plain.headers["x-request-id"] == "abc-1"
    odd = desk.ask("ada", "GET", "/me", headers={"x-request-id": "a b<"})
    assert odd.headers["x-request-id"] not in {"", "a b<"}


def test_every_error_has_one_shape(desk: Desk) -> None:
    answers = [
        desk.ask(None, "GET", "/me"),
        desk.ask("ada", "GET", "/nowhere"),
        desk.ask("ada", "PUT", "/me"),
        desk.ask("ada", "POST", "/orgs", {"name": "Bad Name"}),
        desk.ask("root", "POST", "/orgs", {"name": "Bad Name"}),
        desk.ask("root", "POST", "/orgs", {"name": "good", "colour": "red"}),
        desk.ask("root", "POST", "/orgs", {"name": "lab"}),
        desk.ask("eve", "GET", "/orgs/lab"),
        desk.ask("bob", "PATCH", "/orgs/lab", {"display_name": "x"}),
        desk.ask("ada", "GET", "/orgs/lab/members", limit=0),
        desk.ask("ada", "GET", "/orgs/lab/members", cursor="nonsense"),
    ]
    statuses = [401, 404, 405, 403, 422, 422, 409, 404, 403, 422, 422]
    assert [response.status_code for response in answers] == statuses
    for response in answers:
        body = response.json()
        assert {"code", "message", "request_id", "missing", "details"} == body.keys()
        assert body["message"]


MALFORMED: dict[str, tuple[str, str, dict[str, Any], int]] = {
    "no such path": ("GET", "/api/v1/nowhere", {}, 404),
    "a double slash": ("GET", "/api/v1//me", {}, 404),
    "the root of the API": ("GET", "/api/v1/", {}, 404),
    "a slash too many": ("GET", "/api/v1/me/", {}, 404),
    "wrong method": ("DELETE", "/api/v1/orgs", {}, 405),
    "unknown method": ("BREW", "/api/v1/orgs", {}, 405),
    "no body": ("POST", "/api/v1/orgs", {}, 422),
    "no JSON": ("POST", "/api/v1/orgs", {"content": b"{name"}, 422),
    "no text": ("POST", "/api/v1/orgs", {"content": b"\xff\xfe{}"}, 422),
    "too deep": ("POST", "/api/v1/orgs", {"content": b"[" * 100_000}, 400),
    "another kind": ("POST", "/api/v1/orgs", {"json": ["name"]}, 422),
    "a field too many": ("POST", "/api/v1/orgs", {"json": {"name": "x1", "x": 1}}, 422),
    "a form": ("POST", "/api/v1/orgs", {"data": {"name": "x1"}}, 422),
    "plain text": (
        "POST",
        "/api/v1/orgs",
        {"content": b'{"name": "x1"}', "headers": {"content-type": "text/plain"}},
        422,
    ),
    "no content type": ("POST", "/api/v1/orgs", {"content": b'{"name": "x1"}'}, 422),
    "too large": ("POST", "/api/v1/orgs", {"content": b" " * 2_000_000}, 413),
    "wrong query": ("GET", "/api/v1/orgs", {"params": {"limit": "many"}}, 422),
    "wrong version": (
        "PATCH",
        "/api/v1/repos/lab/sst",
        {"json": {"description": "x"}, "headers": {"if-match": "3"}},
        422,
    ),
    "wrong key": (
        "POST",
        "/api/v1/orgs",
        {"json": {"name": "x1"}, "headers": {"idempotency-key": "a b"}},
        422,
    ),
    "no form": ("POST", "/api/v1/device/code", {"json": {}}, 400),
    "a large form": ("POST", "/api/v1/device/code", {"data": {"client_id": "x" * 2_000_000}}, 413),
    "metrics": ("POST", "/metrics", {}, 405),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_request_gets_an_error_of_the_one_shape(desk: Desk, name: str) -> None:
    method, path, options, status = MALFORMED[name]
    add_repository(desk, "sst")
    token = desk.tokens["ada" if "/repos/" in path else "root"]
    headers = {"authorization": f"Bearer {token}", **options.get("headers", {})}
    if "content" in options:
        headers.setdefault("content-type", "application/json")
    if name == "no content type":
        del headers["content-type"]
    response = desk.client.request(method, path, **(options | {"headers": headers}))
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    problem = response.json()
    shape = {"code", "message", "request_id", "missing", "details"}
    extra = {"error", "error_description"} if "device" in path and status == 400 else set()
    assert problem.keys() == shape | extra
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", problem["code"])
    assert problem["message"]
    assert problem["request_id"] == response.headers["x-request-id"]


def test_absent_and_forbidden_look_the_same(desk: Desk) -> None:
    absent = desk.ask("eve", "GET", "/orgs/zoo").json()
    forbidden = desk.ask("eve", "GET", "/orgs/lab").json()
    assert absent["code"] == forbidden["code"]
    assert absent["message"].replace("zoo", "lab") == forbidden["message"]


# Organisations


def test_an_organisation_from_its_beginning_to_its_end(desk: Desk) -> None:
    assert desk.ask("ada", "POST", "/orgs", {"name": "zoo"}).status_code == 403
    created = desk.ask("root", "POST", "/orgs", {"name": "zoo", "display_name": "Zoo"})
    assert created.status_code == 201
    assert desk.ask("root", "GET", "/me").json()["roles"] == {"zoo": "admin"}
    assert desk.ask("root", "PUT", "/orgs/zoo/members/eve", {"role": "writer"}).status_code == 200
    members = desk.ask("eve", "GET", "/orgs/zoo/members").json()["items"]
    assert {(m["person"], m["role"]) for m in members} == {("root", "admin"), ("eve", "writer")}
    renamed = desk.ask("root", "PATCH", "/orgs/zoo", {"display_name": "The zoo"}).json()
    assert renamed["display_name"] == "The zoo"
    assert [o["name"] for o in desk.ask("eve", "GET", "/orgs").json()["items"]] == ["zoo"]
    assert desk.ask("root", "DELETE", "/orgs/zoo", confirm="lab").status_code == 422
    assert desk.ask("root", "DELETE", "/orgs/zoo", confirm="zoo").status_code == 204
    assert desk.ask("eve", "GET", "/orgs/zoo").status_code == 404
    again = desk.ask("root", "POST", "/orgs", {"name": "zoo"})
    assert (again.status_code, again.json()["code"]) == (409, "entry-already-exists")
    assert desk.audited() == [
        ("ada", "organisation:create", "", False),
        ("root", "organisation:create", "organisation zoo", True),
        ("root", "members:change", "member eve", True),
        ("root", "organisation:change", "organisation zoo", True),
        ("root", "organisation:change", "organisation zoo", True),
        ("eve", "organisation:see", "zoo", False),
    ]


def test_a_member_who_is_removed_is_out_at_once(desk: Desk) -> None:
    assert desk.ask("bob", "GET", "/orgs/lab").status_code == 200
    assert desk.ask("bob", "DELETE", "/orgs/lab/members/ada").status_code == 403
    assert desk.ask("ada", "DELETE", "/orgs/lab/members/ada").status_code == 409
    assert desk.ask("ada", "DELETE", "/orgs/lab/members/bob").status_code == 204
    assert desk.ask("bob", "GET", "/orgs/lab").status_code == 404
    assert desk.ask("ada", "DELETE", "/orgs/lab/members/bob").status_code == 404
    assert desk.ask("ada", "PUT", "/orgs/lab/members/nobody", {"role": "reader"}).status_code == 404


def test_pages_of_members(desk: Desk) -> None:
    for number in range(5):
        desk.add_person(Person(f"p{number}"))
        desk.ask("ada", "PUT", f"/orgs/lab/members/p{number}", {"role": "reader"})
    people: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        page = desk.ask("ada", "GET", "/orgs/lab/members", limit=3, **cursor).json()
        people.extend(member["person"] for member in page["items"])
        if page["next"] is None:
            break
        cursor = {"cursor": page["next"]}
    assert people == ["ada", "bob", "p0", "p1", "p2", "p3", "p4"]


# Tokens


def test_a_token_is_shown_once_and_works_until_it_is_revoked(desk: Desk) -> None:
    body = {"name": "laptop", "scope": {"actions": ["admin"]}, "days": 10}
    created = desk.ask("ada", "POST", "/me/tokens", body).json()
    assert desk.ask(created["secret"], "GET", "/me").json()["person"] == "ada"
    (listed,) = [
        token
        for token in desk.ask("ada", "GET", "/me/tokens").json()["items"]
        if token["name"] == "laptop"
    ]
    assert created["secret"] not in str(listed)
    desk.now += timedelta(days=10)
    assert desk.ask(created["secret"], "GET", "/me").status_code == 401
    desk.now = START
    assert desk.ask("eve", "DELETE", f"/me/tokens/{created['id']}").status_code == 404
    assert desk.ask("ada", "DELETE", f"/me/tokens/{created['id']}").status_code == 204
    assert desk.ask(created["secret"], "GET", "/me").status_code == 401


def test_a_narrow_token_makes_no_wider_one(desk: Desk) -> None:
    scope = TokenScope(("read", "self:change"), ("lab/*",))
    narrow = desk.add_token("ada", scope, days=10)

    def status(actions: list[str], repositories: list[str], days: int) -> int:
        body = {
            "name": "more",
            "scope": {"actions": actions, "repositories": repositories},
            "days": days,
        }
        return int(desk.ask(narrow, "POST", "/me/tokens", body).status_code)

    assert status(["admin"], ["lab/*"], 10) == 403
    assert status(["read"], ["*/*"], 10) == 403
    assert status(["read"], ["lab/*"], 11) == 403
    assert status(["read"], ["lab/sst"], 10) == 201
    assert desk.ask(narrow, "PATCH", "/orgs/lab", {"display_name": "x"}).status_code == 403


def test_a_token_can_be_given_up_whatever_its_scope_is(desk: Desk) -> None:
    narrow = desk.add_token("ada", TokenScope(("self:see",), ("lab/sst",)))
    assert desk.ask(narrow, "DELETE", "/me/token").status_code == 204
    assert desk.ask(narrow, "GET", "/me").status_code == 401


def test_a_delegated_token_opens_one_repository_for_hours(desk: Desk) -> None:
    add_repository(desk, "sst")
    add_repository(desk, "wind")
    own = desk.add_token("bob", TokenScope(("read",), ("lab/*",)), days=1)
    body = {"access": "read", "name": "job", "hours": 2}
    made = desk.ask(own, "POST", "/repos/lab/sst/tokens", body).json()
    assert made["expires_at"] == (desk.now + timedelta(hours=2)).isoformat().replace("+00:00", "Z")
    secret = made["secret"]
    assert desk.ask(secret, "GET", "/repos/lab/sst").status_code == 200
    assert desk.ask(secret, "GET", "/repos/lab/wind").status_code == 403
    assert desk.ask(secret, "GET", "/orgs/lab/members").status_code == 403
    assert desk.ask(secret, "POST", "/me/tokens", {"name": "more"}).status_code == 403
    # Neither more rights nor a longer life than the token that asked.
    wider = desk.ask(own, "POST", "/repos/lab/sst/tokens", body | {"access": "write"})
    assert wider.status_code == 403
    longest = desk.ask(own, "POST", "/repos/lab/sst/tokens", body | {"hours": 168}).json()
    assert longest["expires_at"] == (desk.now + timedelta(days=1)).isoformat().replace(
        "+00:00", "Z"
    )
    desk.now += timedelta(hours=2)
    assert desk.ask(secret, "GET", "/me").status_code == 401


def add_repository(desk: Desk, name: str) -> None:
    with desk.service.database.writing() as connection:
        bucket = Bucket("lab", "main", Platform.S3, "lab-data")
        if rows.find(connection, tables.buckets, Bucket, organisation="lab", name="main") is None:
            rows.add(connection, tables.buckets, bucket)
        assets.create_repository(connection, Repository("lab", name, "main", f"{name}/"), START)


@pytest.mark.parametrize(
    "scope",
    [
        {"actions": ["everything"]},
        {"repositories": ["lab"]},
        {"repositories": ["*/sst"]},
        {"repositories": ["a/b/c"]},
    ],
)
def test_an_odd_scope_is_refused(desk: Desk, scope: dict[str, list[str]]) -> None:
    response = desk.ask("ada", "POST", "/me/tokens", {"name": "x", "scope": scope})
    assert response.status_code == 422


def test_service_accounts(desk: Desk) -> None:
    body = {"name": "lab-bot", "role": "writer"}
    assert desk.ask("bob", "POST", "/orgs/lab/service-accounts", body).status_code == 403
    assert desk.ask("ada", "POST", "/orgs/lab/service-accounts", body).status_code == 201
    path = "/orgs/lab/service-accounts/lab-bot"
    token = desk.ask("ada", "POST", f"{path}/tokens", {"name": "nightly"}).json()
    me = desk.ask(token["secret"], "GET", "/me").json()
    assert (me["person"], me["roles"]) == ("lab-bot", {"lab": "writer"})
    desk.ask("root", "POST", "/orgs", {"name": "zoo"})
    stolen = desk.ask("root", "PUT", "/orgs/zoo/members/lab-bot", {"role": "admin"})
    assert stolen.status_code == 404
    assert desk.ask("ada", "POST", "/orgs/lab/service-accounts/bob/tokens", {"name": "x"}).is_error
    listed = desk.ask("bob", "GET", "/orgs/lab/service-accounts").json()["items"]
    assert [account["name"] for account in listed] == ["lab-bot"]
    assert desk.ask("ada", "DELETE", path).status_code == 204
    assert desk.ask(token["secret"], "GET", "/me").status_code == 401
    assert desk.ask("ada", "DELETE", path).status_code == 404


# The document


def test_the_openapi_document_names_every_record(desk: Desk) -> None:
    document = desk.client.get("/api/v1/openapi.json").json()
    schemas = document["components"]["schemas"]
    assert {"Problem", "Me", "NewToken", "Page_Member_"} <= schemas.keys()
    text = str(document)
    assert "x-record" not in text
    for part in text.split("'$ref': '#/components/schemas/")[1:]:
        assert part.split("'")[0] in schemas


@pytest.mark.parametrize(
    "route", [route for router in ROUTERS for route in router.routes], ids=lambda route: route.name
)
def test_every_route_declares_its_action(route: APIRoute) -> None:
    calls = [dependency.call for dependency in route.dependant.dependencies]
    assert anybody in calls or any(hasattr(call, "action") for call in calls), route.path
