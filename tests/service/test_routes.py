"""Every route with every role: who passes, who is refused, and how a refusal looks."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.routing import APIRoute

from icefloe.catalog.model import (
    Bucket,
    BucketState,
    Member,
    Organisation,
    Person,
    Platform,
    Repository,
    Role,
)
from icefloe.service.database import accounts, assets, rows, tables
from icefloe.service.domain.actions import FOR_EVERYBODY, FOR_OPERATORS, LOWEST_ROLE, RANK, Action
from icefloe.service.http.access import anybody
from icefloe.service.http.app import ROUTERS
from icefloe.service.http.health import metrics_router
from icefloe.service.settings import RateLimits, Settings
from tests.support.desk import START, Desk

ROUTES: list[APIRoute] = [
    route
    for router in (*ROUTERS, metrics_router)
    for route in router.routes
    if isinstance(route, APIRoute)
]
PUBLIC = {"/health", "/health/ready", "/device/code", "/device/token"}
ROLES = ("stranger", "operator", "reader", "writer", "admin")


def action_of(route: APIRoute) -> Action | None:
    calls = [dependency.call for dependency in route.dependant.dependencies]
    actions = [call.action for call in calls if call is not None and hasattr(call, "action")]
    assert len(actions) == (anybody not in calls), route.path
    return actions[0] if actions else None


def method_of(route: APIRoute) -> str:
    assert route.methods is not None
    (method,) = route.methods
    return method


def label(route: APIRoute) -> str:
    return f"{method_of(route)} {route.path}"


GUARDED = [route for route in ROUTES if action_of(route) is not None]
BY_ROLE = [route for route in GUARDED if action_of(route) is not Action.SEE_LISTING]
"""A listing is seen by those to whom it is offered, whatever their role is."""


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    limits = RateLimits(requests=100_000, refusals=100_000)
    desk = Desk(Settings(folder=tmp_path_factory.mktemp("service"), limits=limits))
    with desk.client:
        for name in ROLES:
            desk.add_person(Person(name, operator=name == "operator"))
        fill(desk)
        yield desk


def fill(desk: Desk) -> None:
    """Put an organisation with its members, a bucket and a repository into a service."""
    bucket = Bucket("lab", "main", Platform.S3, "lab-data", state=BucketState.PROVEN)
    repository = Repository("lab", "sst", "main", "sst/", created_at=START, created_by="admin")
    with desk.service.database.writing() as connection:
        for table in (tables.repositories, tables.buckets, tables.organisations):
            connection.execute(table.delete())
        accounts.create_organisation(connection, Organisation("lab"), "admin", START)
        for name in ("reader", "writer"):
            accounts.set_member(connection, Member("lab", name, Role(name)))
        rows.add(connection, tables.buckets, bucket)
        assets.create_repository(connection, repository, START)
    for name in ROLES:
        desk.tokens[name] = desk.add_token(name)


def ask(desk: Desk, route: APIRoute, role: str | None, org: str = "lab") -> Any:
    values = {"org": org, "name": "sst", "bucket": "main", "person": "nobody-here"}
    path = re.sub(r"\{(\w+)\}", lambda match: values.get(match[1], "unknown"), route.path)
    method = method_of(route)
    prefix = "" if path == "/metrics" else "/api/v1"
    headers = {} if role is None else {"authorization": f"Bearer {desk.tokens[role]}"}
    # No route gets as far as to change something without a body.
    return desk.client.request(method, prefix + path, headers=headers)


def is_refused(response: Any) -> bool:
    if response.status_code == 404:
        return "or you may not see it" in response.json()["message"]
    return response.status_code in {401, 403}


def is_expected(action: Action, role: str) -> bool:
    """Return whether the table of roles allows an action in the organisation."""
    if action in FOR_EVERYBODY or (role == "operator" and action in FOR_OPERATORS):
        return True
    lowest = LOWEST_ROLE.get(action)
    return lowest is not None and role in set(Role) and RANK[Role(role)] >= RANK[lowest]


def test_only_these_routes_need_no_login() -> None:
    assert {route.path for route in ROUTES if action_of(route) is None} == PUBLIC


@pytest.mark.parametrize("route", BY_ROLE, ids=label)
def test_a_route_lets_the_right_roles_pass(desk: Desk, route: APIRoute) -> None:
    action = action_of(route)
    assert action is not None
    fill(desk)
    assert ask(desk, route, None).status_code == 401
    for role in ROLES:
        if method_of(route) == "DELETE":
            fill(desk)
        response = ask(desk, route, role)
        assert response.status_code < 500 or route.path.endswith(
            ("/open", "/credentials", "/probe")
        )
        assert is_refused(response) != is_expected(action, role), (role, response.text)


@pytest.mark.parametrize(
    "route",
    [route for route in GUARDED if "{org}" in route.path],
    ids=label,
)
def test_absent_and_forbidden_look_the_same(desk: Desk, route: APIRoute) -> None:
    forbidden, absent = (ask(desk, route, "stranger", org) for org in ("lab", "zoo"))
    assert forbidden.status_code == absent.status_code
    mine, other = forbidden.json(), absent.json()
    assert mine["code"] == other["code"]
    assert mine["message"] == other["message"].replace("zoo", "lab")
    assert forbidden.headers.keys() == absent.headers.keys()
