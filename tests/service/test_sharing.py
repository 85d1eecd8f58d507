"""Listings, subscriptions and access requests over the API, without any store."""

import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from icefloe.catalog.model import (
    BucketState,
    DeclaredContainer,
    Delegation,
    Person,
    Repository,
)
from icefloe.service import login
from icefloe.service.database import assets, tables
from icefloe.service.requests import MOST_PENDING
from icefloe.service.settings import Settings
from tests.service.sharing_world import TAPES, populate
from tests.support.browser import Browser
from tests.support.desk import START, Desk


@pytest.fixture
def desk(tmp_path: Path, database_url: str) -> Iterator[Desk]:
    settings = Settings(folder=tmp_path / "service", database=database_url, allows_anonymous=False)
    desk = Desk(settings)
    with desk.client:
        populate(desk)
        yield desk


def ask(desk: Desk, person: str, message: str = "please") -> Any:
    return desk.ask(person, "POST", "/repos/lab/sst/requests", {"message": message})


# Access requests


def test_a_request_is_granted_by_the_policy_that_was_shown(desk: Desk) -> None:
    asked = ask(desk, "bob")
    assert asked.status_code == 201, asked.json()
    (request,) = asked.json()["items"]
    assert (request["organisation"], request["container"]) == ("archive", TAPES)
    assert (request["reason"], request["state"]) == ("no_policy", "pending")
    assert ask(desk, "bob", "again").json()["items"] == [request]

    path = f"/orgs/archive/requests/{request['id']}"
    assert desk.ask("bob", "GET", path).status_code == 404
    assert desk.ask("ada", "GET", f"/orgs/lab/requests/{request['id']}").status_code == 404
    listed = desk.ask("eve", "GET", "/orgs/archive/requests", state="pending").json()["items"]
    assert listed == [request]
    proposal = desk.ask("eve", "GET", path).json()
    policy = proposal["policy"]
    assert (policy["bucket"], policy["prefix"], policy["scope"]) == (
        "main",
        "daily/",
        "organisation",
    )
    assert policy["shared_with"] == ["lab"]
    # Bob asked, so the archive knows him, his repository and the lab. Ada is one of its people.
    assert proposal["simulation"]["gains"] == [["bob", "lab/sst"]]
    assert proposal["simulation"]["other_gains"] == [{"organisation": "lab", "people": 1}]
    assert proposal["simulation"]["opens"] == ["lab/sst"]

    narrow = policy | {"shared_with": []}
    useless = desk.ask("eve", "POST", f"{path}/decision", {"grants": True, "policy": narrow})
    assert useless.status_code == 422
    assert "would not let bob read s3://tapes/daily/" in useless.json()["message"]
    assert desk.ask("eve", "GET", "/orgs/archive/policies").json()["items"] == []

    end = (START + timedelta(days=30)).isoformat()
    body = {"grants": True, "policy": policy | {"ends_at": end}, "answer": "welcome"}
    assert desk.ask("ada", "POST", f"{path}/decision", body).status_code == 404
    granted = desk.ask("eve", "POST", f"{path}/decision", body)
    assert granted.status_code == 200, granted.json()
    (made,) = desk.ask("eve", "GET", "/orgs/archive/policies").json()["items"]
    assert granted.json()["granted_by"] == made["id"]
    assert desk.ask("eve", "POST", f"{path}/decision", body).status_code == 412
    (own,) = desk.ask("bob", "GET", "/me/requests").json()["items"]
    assert (own["state"], own["answer"], own["decided_by"]) == ("granted", "welcome", "eve")
    assert ask(desk, "bob").status_code == 422  # nothing is missing now
    desk.now += timedelta(days=31)
    assert ask(desk, "bob").status_code == 201
    actions = [entry[1:] for entry in desk.audited() if entry[0] == "eve" and entry[3]]
    assert ("requests:decide", f"policy {made['id']}", True) in actions
    assert ("requests:decide", f"request {request['id']}", True) in actions


def test_a_request_is_declined_with_a_word_or_withdrawn(desk: Desk) -> None:
    (request,) = ask(desk, "bob").json()["items"]
    path = f"/orgs/archive/requests/{request['id']}"
    declined = desk.ask("eve", "POST", f"{path}/decision", {"grants": False, "answer": "no"})
    assert declined.json()["state"] == "declined"
    assert desk.ask("bob", "GET", "/me/requests").json()["items"][0]["answer"] == "no"
    (second,) = ask(desk, "bob").json()["items"]
    assert second["id"] != request["id"]
    assert desk.ask("ada", "DELETE", f"/me/requests/{second['id']}").status_code == 404
    withdrawn = desk.ask("bob", "DELETE", f"/me/requests/{second['id']}").json()
    assert withdrawn["state"] == "ended"
    assert desk.ask("bob", "DELETE", f"/me/requests/{second['id']}").status_code == 412


def test_who_does_not_know_the_repository_cannot_ask(desk: Desk) -> None:
    forbidden = ask(desk, "zoe")
    absent = desk.ask("zoe", "POST", "/repos/lab/none/requests", {})
    assert (forbidden.status_code, absent.status_code) == (404, 404)
    assert forbidden.json()["message"] == absent.json()["message"].replace("none", "sst")


def test_nobody_floods_admins_with_requests(desk: Desk) -> None:
    urls = [f"s3://tapes/{number}/" for number in range(MOST_PENDING + 1)]
    with desk.service.database.writing() as connection:
        declared = [DeclaredContainer(url, url) for url in urls]
        assets.set_containers(connection, Repository("lab", "sst", "main", ""), "2", declared)
    assert ask(desk, "bob").status_code == 429  # all or none
    assert desk.ask("bob", "GET", "/me/requests").json()["items"] == []
    for url in urls[:-1]:
        body = {"container": url}
        assert desk.ask("bob", "POST", "/repos/lab/sst/requests", body).status_code == 201
    last = desk.ask("bob", "POST", "/repos/lab/sst/requests", {"container": urls[-1]})
    assert (last.status_code, last.json()["code"]) == (429, "too-many-requests")
    assert ask(desk, "ada").status_code == 429


def test_a_bucket_that_is_not_proven_is_an_obstacle(desk: Desk) -> None:
    (request,) = ask(desk, "bob").json()["items"]
    with desk.service.database.writing() as connection:
        connection.execute(tables.buckets.update().values(state=BucketState.REFUSED))
    proposal = desk.ask("eve", "GET", f"/orgs/archive/requests/{request['id']}").json()
    assert proposal["policy"] is None
    assert proposal["obstacle"].startswith("bucket_unknown")


def test_the_page_that_a_refusal_names_sends_the_request(desk: Desk) -> None:
    browser = Browser(TestClient(desk.client.app, follow_redirects=True))
    page = browser.client.get("/requests/new?repository=lab/sst")
    assert page.url.path == "/login"
    link = login.create_first_link(desk.service)
    assert link is not None
    browser.join(link, "root")
    assert browser.client.get("/requests/new?repository=lab/sst").status_code == 404
    desk.ask("ada", "PUT", "/orgs/lab/members/root", {"role": "reader"})
    page = browser.client.get("/requests/new?repository=lab/sst")
    assert TAPES in page.text
    csrf = re.findall(r'name="csrf" value="(\w+)"', page.text)[0]
    form = {"repository": "lab/sst", "message": "<b>please</b>"}
    assert browser.client.post("/requests/new", data=form).status_code == 403
    sent = browser.client.post("/requests/new", data=form | {"csrf": csrf})
    assert "You have asked" in sent.text
    (request,) = desk.ask("eve", "GET", "/orgs/archive/requests").json()["items"]
    assert (request["person"], request["message"]) == ("root", "<b>please</b>")
    assert desk.audited()[-1] == ("root", "requests:create", "lab/sst", True)


# Listings


def listing(**changes: Any) -> dict[str, Any]:
    body = {"name": "ocean", "repository": "sst", "title": "Sea Surface", "licence": "CC-BY-4.0"}
    return body | {"terms": "Cite us."} | changes


def test_a_listing_is_seen_by_whom_it_is_offered_to(desk: Desk) -> None:
    assert desk.ask("bob", "POST", "/orgs/lab/listings", listing()).status_code == 403
    body = listing(offered_to=["zoo"])
    created = desk.ask("ada", "POST", "/orgs/lab/listings", body)
    assert created.status_code == 201, created.json()
    assert desk.ask("ada", "POST", "/orgs/lab/listings", body).status_code == 409
    unknown = listing(name="other", repository="none")
    assert desk.ask("ada", "POST", "/orgs/lab/listings", unknown).status_code == 404

    def names(person: str, **options: str) -> list[str]:
        page = desk.ask(person, "GET", "/listings", **options).json()
        return [entry["name"] for entry in page["items"]]

    assert names("bob") == names("zoe") == ["ocean"]
    assert names("eve") == []
    assert names("zoe", search="surface SEA") == ["ocean"]
    assert names("zoe", search="land") == names("zoe", search="%") == []
    shown = desk.ask("zoe", "GET", "/listings/lab/ocean")
    assert shown.json()["terms"] == "Cite us."
    assert desk.ask("eve", "GET", "/listings/lab/ocean").status_code == 404
    hidden = desk.ask("eve", "GET", "/listings/lab/ocean").json()["message"]
    assert hidden == desk.ask("eve", "GET", "/listings/lab/none").json()["message"]

    wider = listing(offered_to=["*"])
    del wider["name"]
    path = "/listings/lab/ocean"
    assert desk.ask("zoe", "PUT", path, wider).status_code == 404
    stale = desk.ask("ada", "PUT", path, wider, headers={"if-match": '"9"'})
    assert stale.status_code == 412
    changed = desk.ask("ada", "PUT", path, wider, headers={"if-match": '"1"'})
    assert changed.json()["version"] == 2
    assert names("eve") == ["ocean"]
    other = wider | {"repository": "none"}
    assert desk.ask("ada", "PUT", path, other).status_code == 404
    assert desk.ask("ada", "DELETE", path).status_code == 204
    assert desk.ask("ada", "GET", path).status_code == 404


@pytest.mark.parametrize(
    "changes",
    [
        {"offered_to": ["Zoo"]},
        {"offered_to": ['zoo", "*']},
        {"filter": {"nodes": ["sea"]}},
        {"filter": {"nodes": ["/sea/../land"]}},
        {"filter": {"ranges": {"time": ["yesterday", None]}}},
        {"filter": {"ranges": {"time": ["2026-01-01", 3.0]}}},
    ],
)
def test_an_odd_listing_is_refused(desk: Desk, changes: dict[str, Any]) -> None:
    response = desk.ask("ada", "POST", "/orgs/lab/listings", listing(**changes))
    assert response.status_code == 422, response.json()


def test_a_bucket_with_static_keys_is_not_listed(desk: Desk) -> None:
    with desk.service.database.writing() as connection:
        connection.execute(tables.buckets.update().values(delegation=Delegation.STATIC))
    response = desk.ask("ada", "POST", "/orgs/lab/listings", listing())
    assert "static keys" in response.json()["message"]


# Subscriptions


def subscribe(desk: Desk, person: str, organisation: str, **changes: Any) -> Any:
    body = {"provider": "lab", "listing": "ocean", "accepts_version": 1} | changes
    return desk.ask(person, "POST", f"/orgs/{organisation}/subscriptions", body)


def sees(desk: Desk, person: str) -> bool:
    return bool(desk.ask(person, "GET", "/repos/lab/sst").status_code == 200)


def test_a_subscription_entitles_while_it_lives(desk: Desk) -> None:
    body = listing(needs_approval=True, offered_to=["zoo"])
    desk.ask("ada", "POST", "/orgs/lab/listings", body)
    assert subscribe(desk, "eve", "archive").status_code == 404
    assert subscribe(desk, "eve", "zoo").status_code == 404
    assert subscribe(desk, "ada", "lab").status_code == 404
    unread = subscribe(desk, "zoe", "zoo", accepts_version=None)
    assert "accept them" in unread.json()["message"]
    pending = subscribe(desk, "zoe", "zoo")
    assert pending.status_code == 201, pending.json()
    assert pending.json()["state"] == "pending"
    assert pending.json()["terms"] == "CC-BY-4.0\n\nCite us."
    assert subscribe(desk, "zoe", "zoo").status_code == 409
    assert not sees(desk, "zoe")

    path = f"subscriptions/{pending.json()['id']}"
    assert desk.ask("zoe", "POST", f"/orgs/zoo/{path}/decision", {"grants": True}).is_error
    assert desk.ask("eve", "GET", f"/orgs/archive/{path}").status_code == 404
    end = (START + timedelta(days=10)).isoformat()
    decision = {"grants": True, "ends_at": end, "answer": "enjoy"}
    granted = desk.ask("ada", "POST", f"/orgs/lab/{path}/decision", decision)
    assert granted.json()["state"] == "granted"
    assert sees(desk, "zoe")
    assert not sees(desk, "eve")
    assert [r["name"] for r in desk.ask("zoe", "GET", "/repos", org="lab").json()["items"]] == [
        "sst"
    ]
    desk.now += timedelta(days=10)
    assert not sees(desk, "zoe")
    assert desk.ask("zoe", "GET", "/repos", org="lab").json()["items"] == []
    desk.ask("ada", "POST", f"/orgs/lab/{path}/decision", {"grants": True})
    assert sees(desk, "zoe")
    ended = desk.ask("zoe", "DELETE", f"/orgs/zoo/{path}")
    assert ended.json()["state"] == "ended"
    assert not sees(desk, "zoe")
    (shown,) = desk.ask("zoe", "GET", "/orgs/zoo/subscriptions", state="ended").json()["items"]
    assert shown["id"] == pending.json()["id"]


def test_a_subscription_ends_with_its_listing_and_with_membership(desk: Desk) -> None:
    desk.ask("ada", "POST", "/orgs/lab/listings", listing())
    assert subscribe(desk, "zoe", "zoo").json()["state"] == "granted"
    desk.add_person(Person("max"))
    desk.ask("zoe", "PUT", "/orgs/zoo/members/max", {"role": "reader"})
    assert sees(desk, "max")
    desk.ask("zoe", "DELETE", "/orgs/zoo/members/max")
    assert not sees(desk, "max")
    assert sees(desk, "zoe")
    desk.ask("ada", "DELETE", "/listings/lab/ocean")
    assert not sees(desk, "zoe")
    assert desk.ask("zoe", "GET", "/orgs/zoo/subscriptions").json()["items"] == []


def test_a_part_is_not_read_directly(desk: Desk) -> None:
    desk.ask("ada", "POST", "/orgs/lab/listings", listing(filter={"nodes": ["/sst"]}))
    assert "filtered subscription" in subscribe(desk, "zoe", "zoo").json()["message"]
    body = {"kind": "filtered", "repository": "part"}
    assert subscribe(desk, "zoe", "zoo", **body).status_code == 422
    made = subscribe(desk, "zoe", "zoo", **body, bucket="main")
    assert made.status_code == 201, made.json()
    assert not sees(desk, "zoe")
    repository = desk.ask("zoe", "GET", "/repos/zoo/part").json()
    assert repository["description"] == "Follows lab/ocean"
