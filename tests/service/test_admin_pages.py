"""Pages for members and admins: who sees them, and that they do what the API does.

The table of all pages uses the world of the examples in the OpenAPI document.
"""

import csv
import html
import io
import json
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from icefloe.catalog.model import (
    Bucket,
    BucketState,
    DeclaredContainer,
    Listing,
    Person,
    PersonKind,
    Policy,
    Repository,
    Role,
    Visibility,
)
from icefloe.catalog.wire import AuditEntry
from icefloe.records import replace
from icefloe.service import login
from icefloe.service.database import accounts, assets, audit, rows, tables
from icefloe.service.pages import audit as audit_pages
from icefloe.service.settings import RateLimits, Settings
from tests.service.sharing_world import TAPES, populate
from tests.service.test_routes import ADMIN_PAGES, label
from tests.support.browser import Browser, client_of, visitor
from tests.support.desk import Desk
from tests.support.example_world import NOWHERE, SECRETS, fill, path_of

HOSTILE = "<script>alert(1)</script> \u202eevil"
MANY = RateLimits(requests=100_000, refusals=100_000, mints=100_000)


def new_desk(folder: Path) -> Desk:
    return Desk(Settings(folder=folder, limits=MANY, allowed_endpoints=(NOWHERE,)))


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    """The lab of ada and bob, which refers to the archive of eve; and the zoo of zoe."""
    desk = new_desk(tmp_path)
    with desk.client:
        populate(desk)
        yield desk


def text_of(page: str) -> str:
    """Return what a page shows, in one line."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", page)).split())


def rows_after(page: str, title: str) -> list[list[str]]:
    """Return the rows of the first table after a title."""
    _, _, rest = page.partition(f"{title}")
    body = rest.partition("<tbody>")[2].partition("</tbody>")[0]
    found = re.findall(r"<tr>(.*?)</tr>", body, re.DOTALL)
    return [
        [text_of(cell) for cell in re.findall(r"<t[hd].*?</t[hd]>", r, re.DOTALL)] for r in found
    ]


# Every page with every role

ROLES = ("stranger", "other-admin", "reader", "writer", "admin")
EVERYBODY = dict.fromkeys(ROLES, True)
MEMBERS: dict[str, Any] = EVERYBODY | {"stranger": 404, "other-admin": 404}
ADMINS: dict[str, Any] = MEMBERS | {"reader": 403, "writer": 403}
OPERATORS = dict.fromkeys(ROLES, 403)
ORG = "/organisations/{org}"
PLAN = {"bucket": "tapes", "prefix": "daily/"}
TABLE: dict[str, tuple[dict[str, Any], int, dict[str, str]]] = {
    "GET /organisations": (EVERYBODY, 200, {}),
    "POST /organisations": (OPERATORS, 0, {"name": "new-lab"}),
    "GET /tokens": (EVERYBODY, 200, {}),
    "POST /tokens": (
        EVERYBODY,
        200,
        {"name": "t", "actions": "read", "repositories": "*/*", "days": "3"},
    ),
    # The token of the example is Ada's: nobody else has it.
    "POST /tokens/{token}/revoke": (EVERYBODY, 404, {}),
    f"GET {ORG}": (MEMBERS, 200, {}),
    f"POST {ORG}/members": (ADMINS, 303, {"person": "bob", "role": "reader"}),
    f"POST {ORG}/members/{{person}}/remove": (ADMINS, 200, {}),
    f"POST {ORG}/invitations": (ADMINS, 200, {"role": "reader"}),
    f"POST {ORG}/service-accounts": (ADMINS, 303, {"name": "another-robot", "role": "reader"}),
    f"POST {ORG}/service-accounts/{{account}}/tokens": (
        ADMINS,
        200,
        {"name": "t", "actions": "read", "repositories": "ocean-lab/*", "days": "3"},
    ),
    f"POST {ORG}/service-accounts/{{account}}/disable": (ADMINS, 200, {}),
    f"GET {ORG}/listings/new": (ADMINS, 200, {}),
    f"POST {ORG}/listings/new": (
        ADMINS,
        303,
        {"name": "offer", "repository": "sea-surface", "offered_to": "zoo"},
    ),
    f"GET {ORG}/listings/{{listing}}/edit": (ADMINS, 200, {}),
    f"POST {ORG}/listings/{{listing}}/edit": (ADMINS, 303, {"offered_to": "zoo"}),
    f"POST {ORG}/listings/{{listing}}/delete": (ADMINS, 200, {}),
    f"GET {ORG}/embargoes/{{name}}": (MEMBERS, 200, {}),
    f"POST {ORG}/embargoes/{{name}}": (
        ADMINS,
        303,
        {"days": "3", "bucket": "main", "prefix": "released/", "dimension": "time"},
    ),
    # No policy makes the place public where the example releases data.
    f"POST {ORG}/embargoes/{{name}}/release": (ADMINS | {"writer": 422}, 422, {}),
    f"POST {ORG}/embargoes/{{name}}/delete": (ADMINS, 303, {}),
    f"POST {ORG}/subscriptions/{{subscription}}": (ADMINS, 303, {"decision": "grant"}),
    f"GET {ORG}/new-bucket": (ADMINS, 200, {}),
    f"POST {ORG}/new-bucket": (
        ADMINS,
        303,
        {
            "name": "new",
            "platform": "s3",
            "bucket": "new-bucket",
            "delegation": "role",
            "role": "arn:aws:iam::1:role/x",
            **SECRETS,
        },
    ),
    f"GET {ORG}/buckets/{{bucket}}": (MEMBERS, 200, {}),
    f"GET {ORG}/buckets/{{bucket}}/edit": (ADMINS, 200, {}),
    f"POST {ORG}/buckets/{{bucket}}/edit": (
        ADMINS,
        303,
        {
            "platform": "s3",
            "bucket": "ocean-tapes",
            "delegation": "role",
            "role": "arn:aws:iam::1:role/x",
        },
    ),
    f"POST {ORG}/buckets/{{bucket}}/forget": (ADMINS, 303, {"confirm_name": "tapes"}),
    f"POST {ORG}/buckets/{{bucket}}/probe": (ADMINS, 303, {}),
    f"POST {ORG}/buckets/{{bucket}}/suspend": (ADMINS, 200, {}),
    f"POST {ORG}/buckets/{{bucket}}/resume": (ADMINS, 422, {}),  # it is not suspended
    f"GET {ORG}/buckets/{{bucket}}/needs": (ADMINS, 200, {}),
    f"GET {ORG}/policies/new": (ADMINS, 200, PLAN),
    f"POST {ORG}/policies/new": (ADMINS, 303, PLAN),
    f"GET {ORG}/policies/{{policy}}": (MEMBERS, 200, {}),
    f"GET {ORG}/policies/{{policy}}/edit": (ADMINS, 200, PLAN),
    f"POST {ORG}/policies/{{policy}}/edit": (ADMINS, 303, PLAN),
    f"GET {ORG}/policies/{{policy}}/delete": (ADMINS, 200, {}),
    f"POST {ORG}/policies/{{policy}}/delete": (ADMINS, 200, {}),
    f"GET {ORG}/policies/{{policy}}/undo": (ADMINS, 200, {}),
    f"POST {ORG}/policies/{{policy}}/undo": (ADMINS, 303, {}),
    f"GET {ORG}/requests": (ADMINS, 200, {}),
    f"GET {ORG}/requests/{{request}}": (ADMINS, 200, {}),
    f"POST {ORG}/requests/{{request}}": (ADMINS, 303, {"decision": "decline", "answer": "no"}),
    f"GET {ORG}/audit": (ADMINS, 200, {}),
    f"GET {ORG}/audit.csv": (ADMINS, 200, {}),
    f"GET {ORG}/audit.jsonl": (ADMINS, 200, {}),
}
"""For each page: who passes (or with which status others are refused), what an admin gets, and
the fields of a form or a query."""


def test_the_table_has_every_page() -> None:
    assert set(TABLE) == {label(route) for route in ADMIN_PAGES}


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    desk = new_desk(tmp_path_factory.mktemp("service"))
    with desk.client:
        for name in ROLES:
            desk.add_person(Person(name))
        yield desk


def refill(desk: Desk) -> None:
    fill(desk, **{role.value: role for role in Role})
    body = {"role": "admin"}
    assert desk.ask("zoe", "PUT", "/orgs/zoo/members/other-admin", body).is_success


def ask(desk: Desk, person: str | None, page: str, **change: Any) -> Any:
    """Send what the table has for a page, with the token of its form unless told otherwise."""
    method, _, template = page.partition(" ")
    fields, path = dict(TABLE[page][2]), path_of(template, org=change.pop("org", "ocean-lab"))
    secret = "a cookie of nobody"
    if person is not None:
        secret = login.start_session(desk.service, person, "test", "test")
    client = client_of(desk, secret)
    if method == "GET":
        return client.get(path, params=fields, follow_redirects=False)
    form = {"csrf": login.csrf_token(desk.service, secret)} | fields | change
    return client.post(path, data=form, follow_redirects=False)


@pytest.mark.parametrize("page", TABLE)
def test_a_page_answers_each_role_as_the_table_says(examples: Desk, page: str) -> None:
    refill(examples)
    passing, success, _ = TABLE[page]
    stranger = ask(examples, None, page)
    assert stranger.status_code == 303
    assert stranger.headers["location"].startswith("/login?next=")
    for role in ROLES:
        answer = ask(examples, role, page)
        expected = success if passing[role] is True else passing[role]
        assert answer.status_code == expected, (role, text_of(answer.text))
        if passing[role] == 404:
            assert "or you may not see it" in answer.text


@pytest.mark.parametrize("page", [page for page in TABLE if page.startswith("POST")])
def test_a_form_of_another_site_changes_nothing(examples: Desk, page: str) -> None:
    refill(examples)
    before = examples.audited()
    for token in ("", "0" * 64, login.csrf_token(examples.service, "another cookie")):
        answer = ask(examples, "admin", page, csrf=token)
        assert answer.status_code == 403
        assert "came from another site" in answer.text
    done = [entry for entry in examples.audited()[len(before) :] if entry[1] != "login"]
    assert done == []


@pytest.mark.parametrize("page", [page for page in TABLE if "{org}" in page])
def test_absent_and_forbidden_look_the_same(examples: Desk, page: str) -> None:
    forbidden = ask(examples, "stranger", page)
    absent = ask(examples, "stranger", page, org="no-such")
    assert forbidden.status_code == absent.status_code == 404
    assert text_of(forbidden.text) == text_of(absent.text).replace("no-such", "ocean-lab")
    assert len(forbidden.text) == len(absent.text.replace("no-such", "ocean-lab"))


def test_the_refusal_of_a_page_is_in_the_audit(examples: Desk) -> None:
    refill(examples)
    ask(examples, "reader", f"POST {ORG}/members")
    assert examples.audited()[-1] == ("reader", "members:change", "ocean-lab", False)


def test_pages_count_for_the_limit_of_requests(tmp_path: Path) -> None:
    desk = Desk(Settings(folder=tmp_path, limits=RateLimits(requests=3)))
    with desk.client:
        desk.add_person(Person("ada"))
        ada = visitor(desk, "ada")
        assert [ada.open("/tokens").status_code for _ in range(4)] == [200, 200, 200, 429]


# Policies


def changed(page: str, title: str) -> tuple[int, str]:
    """Return how many people a dry run counts under a title, and its text."""
    text = text_of(page).partition(f"{title}: ")[2].partition("Repositories that")[0]
    return int(text.partition(" ")[0]), text


def openers(desk: Desk) -> set[tuple[str, str]]:
    """Return who can open what, by a decision for each person and repository."""
    from icefloe.service.database.facts import load_world
    from icefloe.service.domain.actions import Action

    with desk.service.database.reading() as connection:
        world = load_world(connection, desk.now)
    return {
        (person, name)
        for person in world.people
        for name in world.repositories
        if world.decide(person, Action.OPEN_REPOSITORY, name).allowed
    }


def create_policy(eve: Browser, **fields: str) -> str:
    """Create a policy after a look at what it would do; return its path."""
    plan = {"bucket": "main", "prefix": "daily/", "shared_with": "lab"} | fields
    path = "/organisations/archive/policies/new"
    confirmation = plan.pop("confirm_prefix", "")
    assert eve.client.get(path, params=plan).status_code == 200
    eve.text = eve.client.get(path, params=plan).text
    created = eve.send(path, confirm_prefix=confirmation)
    assert created.status_code == 200, text_of(created.text)
    return str(created.url.path)


def test_a_dry_run_equals_what_then_happens(desk: Desk) -> None:
    eve, before = visitor(desk, "eve"), openers(desk)
    query = "bucket=main&prefix=daily/&shared_with=lab"
    eve.open(f"/organisations/archive/policies/new?{query}")
    assert changed(eve.text, "People who gain access")[0] == 2
    assert "Repositories that open: 1 1 that you may not see" in text_of(eve.text)
    assert openers(desk) == before  # nothing was changed

    path = create_policy(eve)
    assert openers(desk) - before == {("ada", "lab/sst"), ("bob", "lab/sst")}
    eve.open(f"{path}/delete")
    assert changed(eve.text, "People who lose access")[0] == 2
    assert "Repositories that break: 1" in text_of(eve.text)
    eve.send(f"{path}/delete")
    assert "Credentials that exist end by 2026-01-01" in text_of(eve.text)
    assert openers(desk) == before
    actions = [entry for entry in desk.audited() if entry[1] == "policies:change"]
    assert [(person, allowed) for person, _, _, allowed in actions] == [("eve", True)] * 2


def test_a_dry_run_names_own_people_and_counts_others(desk: Desk) -> None:
    """Admins learn nothing of others but numbers, and names of organisations that they know."""
    eve, query = visitor(desk, "eve"), "bucket=main&prefix=daily/&shared_with=lab"
    path = f"/organisations/archive/policies/new?{query}"
    eve.open(path)
    _, text = changed(eve.text, "People who gain access")
    assert "2 people of organisations that you have nothing to do with" in text
    for name in ("ada", "bob", "lab/sst"):
        assert name not in eve.text
    # Whoever asks tells who they are, and for which repository.
    assert desk.ask("bob", "POST", "/repos/lab/sst/requests", {}).is_success
    eve.open(path)
    _, text = changed(eve.text, "People who gain access")
    assert rows_after(eve.text, "People who gain access") == [["bob", "lab/sst"]]
    assert "1 person of lab" in text
    assert "ada" not in text
    # Members of the own organisation have names, as far as their repositories may be seen.
    assert desk.ask("eve", "PUT", "/orgs/archive/members/bob", {"role": "reader"}).is_success
    assert desk.ask("ada", "PUT", "/orgs/lab/members/eve", {"role": "reader"}).is_success
    eve.open(path)
    names = {row[0] for row in rows_after(eve.text, "People who gain access")}
    assert names == {"bob", "eve"}
    assert changed(eve.text, "People who gain access")[0] == 3
    api = desk.ask(
        "eve",
        "POST",
        "/orgs/archive/policy-simulations",
        {"settings": {"bucket": "main", "prefix": "daily/", "shared_with": ["lab"]}},
    ).json()
    assert {person for person, _ in api["gains"]} == names
    assert api["other_gains"] == [{"organisation": "lab", "people": 1}]


def test_a_change_can_be_undone_and_a_deleted_policy_comes_back(desk: Desk) -> None:
    eve = visitor(desk, "eve")
    path = create_policy(eve)
    first = openers(desk)
    eve.open(f"{path}/edit?prefix=other/&ends_at=2027-01-01T00:00&shared_with=zoo")
    assert eve.send(f"{path}/edit").status_code == 200
    assert openers(desk) != first
    assert [row[2] for row in rows_after(eve.text, "History")] == ["main: other/", "main: daily/"]

    eve.open(f"{path}/undo")
    assert changed(eve.text, "People who gain access")[0] == 2
    eve.send(f"{path}/undo")
    assert openers(desk) == first
    eve.open(f"{path}/delete")
    eve.send(f"{path}/delete")
    assert "This policy is deleted" in eve.text
    eve.open("/organisations/archive")
    assert f'<a href="{path}">' in eve.text.partition("Deleted lately")[2]
    eve.open(f"{path}/undo")
    eve.send(f"{path}/undo")
    assert openers(desk) == first
    assert len(rows_after(eve.text, "History")) == 5


def test_a_change_of_somebody_else_is_a_conflict(desk: Desk) -> None:
    eve, other = visitor(desk, "eve"), visitor(desk, "eve")
    path = create_policy(eve)
    for browser in (eve, other):
        browser.open(f"{path}/edit?ends_at=2027-01-01T00:00")
    form = other.text
    assert eve.send(f"{path}/edit").status_code == 200
    refused = other.send(f"{path}/edit")
    assert refused.status_code == 412
    assert "somebody changed it first: it has version 2 now" in text_of(refused.text)
    # Neither does sending the form of the refusal again, nor another dry run, get around it.
    assert other.send(f"{path}/edit").status_code == 412
    other.open(f"{path}/edit?prefix=other/&version=1")
    assert "the policy has version 2 now" in text_of(other.text)
    assert other.send(f"{path}/edit").status_code == 412
    for step in ("delete", "undo"):
        other.text = form
        assert other.send(f"{path}/{step}").status_code == 412, step
    eve.open(path)
    assert len(rows_after(eve.text, "History")) == 2


def test_anyone_needs_the_prefix_again_and_a_proven_bucket(desk: Desk) -> None:
    eve, path = visitor(desk, "eve"), "/organisations/archive/policies/new"
    plan = f"{path}?bucket=main&prefix=daily/&scope=anyone"
    eve.open(plan)
    for confirmation in ("", "daily/", "s3://tapes/"):
        eve.open(plan)
        refused = eve.send(path, confirm_prefix=confirmation)
        assert refused.status_code == 422
        assert f"read all objects below {TAPES}" in text_of(refused.text)
    eve.open(plan)
    assert eve.send(path, confirm_prefix=TAPES).status_code == 200
    assert "everybody on this service" in eve.text

    with desk.service.database.writing() as connection:
        table = tables.buckets
        change = update(table).where(table.c.organisation == "archive")
        connection.execute(change.values(state=BucketState.UNPROVEN))
    eve.open(plan)
    assert "It cannot be saved: the bucket main is unproven" in text_of(eve.text)
    assert ">Save</button>" not in eve.text
    refused = eve.send(path, scope="anyone", bucket="main", prefix="daily/", confirm_prefix=TAPES)
    assert refused.status_code == 422


@pytest.mark.parametrize(
    ("query", "status", "problem"),
    [
        ("bucket=main&prefix=daily", 422, "each with a slash at its end"),
        ("bucket=main&prefix=../", 422, "each with a slash at its end"),
        ("bucket=main&prefix=a*/", 422, "each with a slash at its end"),
        ("bucket=none&prefix=", 404, "there is no bucket archive/none"),
        ("bucket=main&scope=world", 422, "scope"),
        ("bucket=main&ends_at=tomorrow", 422, "End: write a moment like"),
        ("bucket=main&shared_with=Not-A-Name", 422, "shared_with"),
    ],
)
def test_a_wrong_plan_says_what_is_wrong(desk: Desk, query: str, status: int, problem: str) -> None:
    answer = visitor(desk, "eve").open(f"/organisations/archive/policies/new?{query}")
    assert answer.status_code == status
    assert problem in text_of(answer.text)
    assert ">Save</button>" not in answer.text


# Access requests


def test_from_a_refusal_to_a_grant_by_pages(desk: Desk) -> None:
    bob, eve = visitor(desk, "bob"), visitor(desk, "eve")
    bob.open("/requests/new?repository=lab/sst")
    bob.send("/requests/new", repository="lab/sst", message=f"please {HOSTILE}")
    assert ("bob", "lab/sst") not in openers(desk)
    eve.open("/organisations/archive/requests")
    ((request, person, repository, container, *_),) = rows_after(eve.text, "Access requests")
    assert (person, repository, container) == ("bob", "lab/sst", TAPES)
    assert "<script>" not in eve.text
    assert "\u202e" not in eve.text
    path = f"/organisations/archive/requests/{request}"
    eve.open(path)
    assert rows_after(eve.text, "People who gain access") == [["bob", "lab/sst"]]
    assert "1 person of lab" in text_of(eve.text)
    eve.send(path, decision="grant", answer="welcome", shared_with="lab", ends_at="")
    assert "granted by eve" in text_of(eve.text)
    assert ("bob", "lab/sst") in openers(desk)
    assert visitor(desk, "eve").send(path).status_code == 403  # without a form


def test_a_request_is_declined_with_a_word(desk: Desk) -> None:
    bob, eve = visitor(desk, "bob"), visitor(desk, "eve")
    bob.open("/requests/new?repository=lab/sst")
    bob.send("/requests/new", repository="lab/sst", message="")
    eve.open("/organisations/archive/requests")
    ((request, *_),) = rows_after(eve.text, "Access requests")
    path = f"/organisations/archive/requests/{request}"
    eve.send(path, decision="decline", answer="not before May")
    assert "declined by eve" in text_of(eve.text)
    again = eve.client.get("/organisations/archive/requests", params={"state": "declined"})
    assert "not before May" in again.text
    eve.open("/tokens")
    refused = eve.send(path, decision="decline")
    assert refused.status_code == 412
    assert "declined already by eve" in text_of(refused.text)
    assert ("bob", "lab/sst") not in openers(desk)


# Members, tokens, buckets


def test_members_come_by_a_link_and_go(desk: Desk) -> None:
    ada = visitor(desk, "ada")
    ada.open("/organisations/lab")
    ada.send("/organisations/lab/invitations", person="dan", role="writer")
    (link,) = re.findall(r"http://[^<\s]*/join/[\w-]+", ada.text)
    newcomer = Browser(client_of(desk))
    assert newcomer.join(link, "dan").status_code == 200
    ada.open("/organisations/lab")
    assert link not in ada.text
    assert ["dan", "writer"] in [row[:2] for row in rows_after(ada.text, "Members")]
    ada.send("/organisations/lab/members", person="dan", role="reader")
    assert ["dan", "reader"] in [row[:2] for row in rows_after(ada.text, "Members")]
    ada.send("/organisations/lab/members/dan/remove")
    assert "dan is no member any more. Credentials that exist end by 2026" in text_of(ada.text)
    assert newcomer.open("/organisations/lab").status_code == 404
    last = ada.send("/organisations/lab/members/ada/remove")
    assert last.status_code == 409
    assert "ada is the last admin of lab" in text_of(last.text)


def test_a_token_is_shown_once_works_and_ends(desk: Desk) -> None:
    ada = visitor(desk, "ada")
    ada.open("/tokens")
    fields = {"name": HOSTILE, "actions": "read", "repositories": "lab/*", "days": "3"}
    ada.send("/tokens", **fields)
    (secret,) = re.findall(r"icefloe_\w+", ada.text)
    assert "<script>" not in ada.text
    assert "\u202e" not in ada.text
    assert desk.ask(secret, "GET", "/me").json()["person"] == "ada"
    assert desk.ask(secret, "GET", "/orgs/lab/audit").status_code == 403
    ada.open("/tokens")
    assert secret not in ada.text
    row = next(row for row in rows_after(ada.text, "Tokens") if "alert(1)" in row[0])
    assert row[2:4] == ["read", "lab/*"]
    assert row[5] == "2026-01-01 00:00 UTC"  # its last use
    ada.send(f"/tokens/{row[1]}/revoke")
    assert desk.ask(secret, "GET", "/me").status_code == 401
    assert "revoked 2026-01-01" in text_of(ada.text)
    for wrong in ({"days": "0"}, {"days": "x"}, {"repositories": " "}, {"actions": "fly"}):
        assert ada.send("/tokens", **(fields | wrong)).status_code == 422, wrong


def test_a_service_account_gets_a_token_and_ends(desk: Desk) -> None:
    ada, path = visitor(desk, "ada"), "/organisations/lab/service-accounts"
    ada.open("/organisations/lab")
    ada.send(path, name="robot", role="reader", display_name=HOSTILE)
    ada.send(f"{path}/robot/tokens", name="n", actions="read", repositories="lab/*", days="3")
    (secret,) = re.findall(r"icefloe_\w+", ada.text)
    assert desk.ask(secret, "GET", "/me").json()["person"] == "robot"
    ada.send(f"{path}/robot/disable")
    assert "robot is disabled" in ada.text
    assert desk.ask(secret, "GET", "/me").status_code == 401


def test_a_repository_is_offered_subscribed_to_and_withdrawn(desk: Desk) -> None:
    eve, zoe = visitor(desk, "eve"), visitor(desk, "zoe")
    eve.open("/organisations/archive")
    fields = {"name": "tapes", "repository": "sst", "title": HOSTILE, "needs_approval": "yes"}
    unknown = fields | {"repository": "none"}
    assert eve.send("/organisations/archive/listings/new", **unknown).status_code == 404
    eve.send("/organisations/archive/listings/new", offered_to="zoo", terms="cite us", **fields)
    ((name, title, *_),) = rows_after(eve.text, '<section id="listings">')
    assert name == "tapes"
    assert title == "<script>alert(1)</script> \\u202eevil"
    body = {"provider": "archive", "listing": "tapes", "accepts_version": 1}
    made = desk.ask("zoe", "POST", "/orgs/zoo/subscriptions", body).json()
    assert ("zoe", "archive/sst") not in openers(desk)

    path = f"/organisations/archive/subscriptions/{made['id']}"
    eve.open("/organisations/archive")
    eve.send(path, decision="grant", ends_at="2027-01-01T00:00", answer="welcome", version="1")
    assert ("zoe", "archive/sst") in openers(desk)
    zoe.open("/organisations/zoo")
    (row,) = rows_after(zoe.text, '<section id="subscriptions">')
    assert row[4:6] == ["granted welcome", "2027-01-01 00:00 UTC"]
    stale = eve.send(path, decision="end", version="1")
    assert stale.status_code == 412
    zoe.send(f"/organisations/zoo/subscriptions/{made['id']}", decision="end", version="2")
    assert ("zoe", "archive/sst") not in openers(desk)
    eve.send("/organisations/archive/listings/tapes/delete")
    assert "tapes and its subscriptions are deleted" in text_of(eve.text)
    assert "Nothing is offered to others" in eve.text


def test_a_bucket_is_registered_with_secrets_that_no_page_shows(desk: Desk) -> None:
    ada, path = visitor(desk, "ada"), "/organisations/lab/new-bucket"
    secrets = {"access_key_id": "AKIA-first-canary", "secret_access_key": "second-canary"}
    fields = {
        "name": "extra",
        "platform": "s3",
        "bucket": "extra-bucket",
        "endpoint": NOWHERE,
        "sts_endpoint": NOWHERE,
        "allow_http": "yes",
        "path_style": "yes",
        "role": "arn:aws:iam::1:role/x",
        "delegation": "role",
        **secrets,
    }
    ada.open(path)
    wrong = ada.send(path, **(fields | {"role": "none"}))
    assert wrong.status_code == 422
    assert 'value="extra-bucket"' in wrong.text  # what was typed stays
    assert "canary" not in wrong.text
    registered = ada.send(path, **fields)
    assert registered.url.path == "/organisations/lab/buckets/extra"
    settings = dict(row[:2] for row in rows_after(ada.text, "<h2>Settings"))
    assert settings["endpoint"] == NOWHERE
    assert settings["path style"] == "yes"
    probed = ada.send("/organisations/lab/buckets/extra/probe")
    assert "1 of 1 did not end as they should" in text_of(probed.text)
    (attempt,) = rows_after(probed.text, "Attempts of the last probe")
    assert attempt[:2] == ["write", "not as it should be"]
    for page in ("", "/buckets/extra", "/audit", "/audit.csv", "/policies/new?bucket=extra"):
        assert "canary" not in ada.open(f"/organisations/lab{page}").text, page
    with desk.service.database.reading() as connection:
        key = {"organisation": "lab", "name": "extra"}
        stored = rows.require(connection, tables.buckets, Bucket, **key)
    assert desk.service.bucket_secret(stored).values == secrets


def test_a_bucket_is_changed_and_its_secrets_stay(desk: Desk) -> None:
    ada, path = visitor(desk, "ada"), "/organisations/lab/buckets/extra"
    secrets = {"access_key_id": "AKIA-first-canary", "secret_access_key": "second-canary"}
    fields = {
        "name": "extra",
        "platform": "s3",
        "bucket": "extra-bucket",
        "endpoint": NOWHERE,
        "allow_http": "yes",
        "role": "arn:aws:iam::1:role/x",
        "delegation": "role",
    }
    ada.open("/organisations/lab/new-bucket")
    ada.send("/organisations/lab/new-bucket", **fields, **secrets)
    ada.send(f"{path}/probe")
    assert rows_after(ada.text, "Attempts of the last probe")
    form = ada.open(f"{path}/edit").text
    assert 'value="extra-bucket"' in form
    assert "canary" not in form
    wrong = ada.send(f"{path}/edit", **(fields | {"role": "none", "bucket": "typed-bucket"}))
    assert wrong.status_code == 422
    assert 'value="typed-bucket"' in wrong.text
    ada.open(f"{path}/edit")
    stale = ada.text
    changed = ada.send(f"{path}/edit", **(fields | {"bucket": "other-bucket"}))
    assert changed.url.path == path, text_of(changed.text)
    assert dict(row[:2] for row in rows_after(ada.text, "<h2>Settings"))["bucket"] == "other-bucket"
    assert "unproven" in text_of(ada.text)
    # What was tried with other settings says nothing about these.
    assert "Attempts of the last probe" not in ada.text
    with desk.service.database.reading() as connection:
        key = {"organisation": "lab", "name": "extra"}
        stored = rows.require(connection, tables.buckets, Bucket, **key)
    assert desk.service.bucket_secret(stored).values == secrets
    ada.text = stale
    assert ada.send(f"{path}/edit", **fields).status_code == 412
    ada.open(f"{path}/edit?delegation=static")
    static = {
        "platform": "s3",
        "bucket": "fixed",
        "shares_static_keys": "yes",
        "delegation": "static",
    }
    kept = ada.send(f"{path}/edit", **static, **secrets)
    assert kept.url.path == path, text_of(kept.text)

    ada.open(f"{path}/edit")
    assert ada.send(f"{path}/forget", confirm_name="other").status_code == 422
    assert "type the name extra" in text_of(ada.text)
    gone = ada.send(f"{path}/forget", confirm_name="extra")
    assert gone.url.path == "/organisations/lab"
    assert [row[0] for row in rows_after(ada.text, '<section id="buckets">')] == ["main"]
    ada.open("/organisations/lab/buckets/main/edit")
    used = ada.send("/organisations/lab/buckets/main/forget", confirm_name="main")
    assert used.status_code == 409


def test_a_listing_of_a_part_is_made_and_changed(desk: Desk) -> None:
    eve, path = visitor(desk, "eve"), "/organisations/archive/listings"
    terms = "Cite us.\r\n" + "word " * 1000
    fields = {"name": "part", "repository": "sst", "title": "A part", "offered_to": "zoo, lab"}
    part = {"nodes": "/sst\r\n/lat\r\n", "ranges": "time=2026-01-01..\r\nlat=-30..30"}
    eve.open(f"{path}/new")
    wrong = eve.send(f"{path}/new", **fields, nodes="/sst", ranges="time")
    assert wrong.status_code == 422
    assert "is no range like" in text_of(wrong.text)
    assert ">/sst</textarea>" in wrong.text  # what was typed stays
    eve.send(f"{path}/new", **fields, **part, terms=terms, shared="main/daily/")

    def stored() -> Listing:
        with desk.service.database.reading() as connection:
            key = {"organisation": "archive", "name": "part"}
            return rows.require(connection, tables.listings, Listing, **key)

    made = stored()
    assert made.filter is not None
    assert made.filter.nodes == ("/sst", "/lat")
    assert dict(made.filter.ranges) == {"time": ("2026-01-01", None), "lat": (-30, 30)}
    assert made.offered_to == ("zoo", "lab")
    assert [(shared.bucket, shared.prefix) for shared in made.virtual_chunks] == [
        ("main", "daily/")
    ]
    # A form that is sent as it was shown changes nothing.
    form = eve.open(f"{path}/part/edit").text
    again = {
        name: html.unescape(text)
        for name, text in re.findall(r'<textarea id="(\w+)"[^>]*>(.*?)</textarea>', form, re.DOTALL)
    } | {
        name: html.unescape(text)
        for name, text in re.findall(r'<input id="(\w+)" name="\w+" value="([^"]*)"', form)
    }
    assert again["ranges"] == "time=2026-01-01..\nlat=-30..30"
    eve.send(f"{path}/part/edit", **again)
    assert replace(stored(), version=1, terms="") == replace(made, terms="")
    assert stored().terms.split() == terms.split()
    assert eve.open("/listings/archive/part").text.count("word") == 1000  # terms are shown whole
    stale = eve.send(f"{path}/part/edit", **again, version="1")
    assert stale.status_code == 412
    eve.open(f"{path}/part/edit")
    eve.send(f"{path}/part/edit", offered_to="*", title="All")
    assert (stored().filter, stored().title) == (None, "All")


def test_an_embargo_is_set_changed_and_ended(desk: Desk) -> None:
    ada, bob = visitor(desk, "ada"), visitor(desk, "bob")
    path = "/organisations/lab/embargoes/sst"
    assert "This repository has none" in ada.open(path).text
    fields = {"days": "5", "bucket": "main", "prefix": "released/", "dimension": "time"}
    wrong = ada.send(path, **(fields | {"prefix": "sst/"}))
    assert wrong.status_code == 409
    assert 'value="sst/"' in wrong.text
    assert ada.send(path, **(fields | {"days": "many"})).status_code == 422
    ada.send(path, **fields, nodes="/sst\r\n/lat")
    settings = dict(row[:2] for row in rows_after(ada.text, "<h2>Settings"))
    assert settings["Held back for"] == "5 days, by the coordinate time"
    assert settings["What becomes public"] == "/sst /lat"
    assert settings["Public place"] == "s3://disks/released/"
    assert settings["Public now"] == "nothing yet"
    assert "5 days" in ada.open("/organisations/lab").text
    ada.open(path)
    ada.send(path, **(fields | {"days": "7.5"}))
    assert "7.5 days" in text_of(ada.text)
    seen = bob.open(path).text
    assert "7.5 days" in text_of(seen)
    assert "<form method" not in seen.partition("<main")[2]
    refused = ada.send(f"{path}/release")
    assert refused.status_code == 422
    assert "no policy lets everybody read" in text_of(refused.text)
    ada.send(f"{path}/delete")
    assert "This repository has none" in ada.open(path).text


def test_a_bucket_is_suspended_and_resumed(desk: Desk) -> None:
    ada, path = visitor(desk, "ada"), "/organisations/lab/buckets/main"
    ada.open(path)
    ada.send(f"{path}/suspend")
    assert "Those that exist end by 2026-01-01 01:00 UTC" in text_of(ada.text)
    refused = ada.send(f"{path}/probe")
    assert refused.status_code == 422
    assert "resume it before a probe" in text_of(refused.text)
    ada.send(f"{path}/resume")
    assert "unproven" in text_of(ada.text)


def test_everybody_creates_organisations_where_the_settings_say_so(tmp_path: Path) -> None:
    desk = Desk(Settings(folder=tmp_path, allows_organisations=True))
    with desk.client:
        desk.add_person(Person("ada"))
        ada = visitor(desk, "ada")
        ada.open("/organisations")
        assert "Create an organisation" in ada.text
        assert ada.send("/organisations", name="new-lab").url.path == "/organisations/new-lab"


def test_an_operator_creates_an_organisation(desk: Desk) -> None:
    desk.add_person(Person("root", operator=True))
    root = visitor(desk, "root")
    root.open("/organisations")
    assert root.send("/organisations", name="New Lab").status_code == 422
    assert root.send("/organisations", name="new-lab").url.path == "/organisations/new-lab"


# Who needs a prefix?


def test_needs_name_only_repositories_that_the_admin_may_see(desk: Desk) -> None:
    with desk.service.database.writing() as connection:
        for name, location, visibility in (
            ("reef", "s3://tapes/daily/reef/", Visibility.EVERYONE),
            ("far", "s3://tapes/hourly/", Visibility.EVERYONE),
            ("false", "s3://tapes-evil/daily/", Visibility.EVERYONE),
        ):
            repository = Repository("zoo", name, "main", f"{name}/", visibility=visibility)
            assets.create_repository(connection, repository, desk.now)
            container = DeclaredContainer(location, location)
            assets.set_containers(connection, repository, "1", [container])
        policy = Policy("policy-1", "archive", "main", "daily/", shared_with=("zoo",))
        assets.create_policy(connection, policy, "eve", desk.now)
    eve, path = visitor(desk, "eve"), "/organisations/archive/buckets/main/needs"
    eve.open(f"{path}?prefix=daily/")
    shown = rows_after(eve.text, "Repositories that refer to")
    # Of the readers of zoo/reef, members of the zoo and of the archive may read the tapes.
    assert shown == [["zoo/reef", "s3://tapes/daily/reef/", "policy-1", "2"]]
    assert "refer to it, too: 1" in text_of(eve.text)
    assert "lab" not in text_of(eve.text)
    eve.open(path)
    assert [row[0] for row in rows_after(eve.text, "Repositories that refer to")] == [
        "zoo/far",
        "zoo/reef",
    ]
    assert eve.open(f"{path}?prefix=%2A/").status_code == 422


# The audit


def write_entries(desk: Desk, number: int, **change: Any) -> None:
    values: dict[str, Any] = {"person": "bob", "action": "test", "resource": "thing", **change}
    entries = [
        AuditEntry(
            at=desk.now + timedelta(minutes=index),
            allowed=index % 2 == 0,
            request_id="r",
            organisation="lab",
            details={"index": index},
            **values,
        )
        for index in range(number)
    ]
    with desk.service.database.writing() as connection:
        audit.append(connection, desk.service.keys.audit, entries)


def numbers(text: str) -> list[int]:
    return [int(row[0]) for row in rows_after(text, "Entries, the newest first")]


def test_the_audit_is_searched_in_pages(desk: Desk) -> None:
    write_entries(desk, 250)
    ada = visitor(desk, "ada")
    seen, path = [], "/organisations/lab/audit?person=bob"
    while path:
        ada.open(path)
        seen += numbers(ada.text)
        older = re.search(r'href="([^"]*)">Older', ada.text)
        path = html.unescape(older[1]) if older else ""
    assert seen == list(range(250, 0, -1))
    for query, expected in (
        ("allowed=no&since=2026-01-01T04:00", [250, 248, 246, 244, 242]),
        ("until=2026-01-01T00:02", [2, 1]),
        ("resource=HIN&until=2026-01-01T00:01", [1]),
        ("action=test&person=ada", []),
        ("resource=%25", []),
    ):
        ada.open(f"/organisations/lab/audit?{query}")
        assert numbers(ada.text) == expected, query
    for wrong in ("since=now", "allowed=perhaps", "before=x", f"person={'x' * 201}"):
        assert ada.open(f"/organisations/lab/audit?{wrong}").status_code == 422, wrong


def test_the_api_searches_in_the_same_way(desk: Desk) -> None:
    write_entries(desk, 6)
    query = {"action": "test", "allowed": "false", "since": "2026-01-01T00:02:00Z"}
    found = desk.ask("ada", "GET", "/orgs/lab/audit", **query).json()["items"]
    assert [entry["number"] for entry in found] == [6, 4]
    naive = desk.ask("ada", "GET", "/orgs/lab/audit", since="2026-01-01T00:00:00")
    assert naive.status_code == 422


def test_an_export_has_all_entries_and_no_formula(desk: Desk) -> None:
    write_entries(desk, 3, resource='=HYPERLINK("http://evil")', person="+bob")
    ada = visitor(desk, "ada")
    table = ada.open("/organisations/lab/audit.csv?action=test")
    assert table.headers["content-type"] == "text/csv; charset=utf-8"
    assert 'filename="audit.csv"' in table.headers["content-disposition"]
    header, *lines = csv.reader(io.StringIO(table.text))
    assert [line[0] for line in lines] == ["3", "2", "1"]
    assert {line[header.index("resource")] for line in lines} == {'\'=HYPERLINK("http://evil")'}
    assert {line[header.index("person")] for line in lines} == {"'+bob"}
    documents = ada.open("/organisations/lab/audit.jsonl?action=test").text.splitlines()
    assert [json.loads(line)["details"]["index"] for line in documents] == [2, 1, 0]


def test_an_export_is_limited_and_says_so(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_pages, "MOST_EXPORTED", 4)
    monkeypatch.setattr(audit_pages, "_IN_A_STEP", 3)
    write_entries(desk, 5)
    ada = visitor(desk, "ada")
    lines = [
        json.loads(line)
        for line in ada.open("/organisations/lab/audit.jsonl?action=test").text.splitlines()
    ]
    assert [line["number"] for line in lines] == [5, 4, 3, 2, 0]
    assert "older entries are left out" in lines[-1]["resource"]
    lines = ada.open("/organisations/lab/audit.jsonl?until=2026-01-01T00:04&action=test")
    assert len(lines.text.splitlines()) == 4


# Texts of others stay texts


def test_hostile_texts_do_nothing(desk: Desk) -> None:
    with desk.service.database.writing() as connection:
        table = tables.organisations
        connection.execute(update(table).where(table.c.name == "lab").values(display_name=HOSTILE))
        accounts.create_person(
            connection,
            Person("mallory", display_name=HOSTILE, organisation="lab", kind=PersonKind.SERVICE),
            desk.now,
        )
        rows.add(connection, tables.listings, Listing("lab", "offer", "sst", HOSTILE, HOSTILE))
        table = tables.repositories
        connection.execute(update(table).values(description=HOSTILE))
        table = tables.buckets
        connection.execute(update(table).values(state_reason=HOSTILE))
    write_entries(desk, 1, resource=HOSTILE, person=HOSTILE, action=HOSTILE)
    ada = visitor(desk, "ada")
    for page in (
        "/organisations",
        "/organisations/lab",
        "/organisations/lab/buckets/main",
        "/organisations/lab/buckets/main/edit",
        "/organisations/lab/listings/new",
        "/organisations/lab/listings/offer/edit",
        "/organisations/lab/embargoes/sst",
        "/organisations/lab/embargoes/" + HOSTILE.replace("/", "%2F"),
        "/organisations/lab/audit",
        "/organisations/lab/audit?person=" + HOSTILE,
        "/organisations/lab/policies/new?bucket=main&prefix=" + HOSTILE,
        "/organisations/lab/policies/new?bucket=" + HOSTILE,
        "/organisations/lab/buckets/main/needs?prefix=" + HOSTILE,
        "/organisations/lab/requests?state=" + HOSTILE,
        "/organisations/" + HOSTILE.replace("/", "%2F"),
    ):
        text = ada.open(page).text
        assert "<script>" not in text, page
        assert "\u202e" not in text, page


def test_huge_texts_are_refused_and_not_repeated(desk: Desk) -> None:
    ada = visitor(desk, "ada")
    ada.open("/tokens")
    huge, long = "x" * 1_000_000, "x" * 60_000  # clients send no longer addresses
    answers = [
        ada.open(f"/organisations/lab/policies/new?bucket=main&prefix={long}/"),
        ada.open(f"/organisations/lab/buckets/main/needs?prefix={long}/"),
        ada.open(f"/organisations/lab/audit?resource={long}"),
        ada.send("/tokens", name=huge, actions="read", repositories="*/*", days="3"),
        ada.send("/organisations/lab/members", person=huge, role="reader"),
        ada.send("/organisations/lab/policies/new", bucket="main", prefix=f"{huge}/"),
    ]
    for answer in answers:
        assert answer.status_code in {404, 413, 422}, answer.text[:500]
        assert len(answer.text) < 50_000
