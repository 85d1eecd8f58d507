"""Every route with every role: who passes, who is refused, and how a refusal looks.

Requests are the examples of the OpenAPI document, in the world that they describe. So who passes
gets an answer, and not only a complaint about the body.
"""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.routing import APIRoute

from icefloe.catalog.model import Person, Role
from icefloe.service.domain.actions import FOR_EVERYBODY, FOR_OPERATORS, LOWEST_ROLE, RANK, Action
from icefloe.service.http.access import anybody
from icefloe.service.http.app import ROUTERS
from icefloe.service.http.data import zarr_router
from icefloe.service.http.gate import API
from icefloe.service.http.health import metrics_router
from icefloe.service.pages import accounts, administration, listings, repositories, requests
from icefloe.service.settings import RateLimits, Settings
from tests.support.desk import Desk
from tests.support.example_world import ASKS_A_STORE, NOWHERE, fill, path_of, send

PUBLIC = {"/health", "/health/ready", "/device/code", "/device/token"}
ROLES = ("stranger", "operator", "guest", "reader", "writer", "admin")
"""Strangers are in no organisation; a guest is in one that the listing is offered to."""


def routes_of(*routers: Any) -> list[APIRoute]:
    return [route for router in routers for route in router.routes if isinstance(route, APIRoute)]


WITHOUT_PREFIX = routes_of(zarr_router, metrics_router)
ROUTES = [*routes_of(*ROUTERS), *WITHOUT_PREFIX]
ADMIN_PAGES = routes_of(*administration.ROUTERS)
PAGES = [
    *routes_of(accounts.router, listings.router, repositories.router, requests.router),
    *ADMIN_PAGES,
]


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


def full_path(route: APIRoute) -> str:
    return route.path if route in WITHOUT_PREFIX else API + route.path


HEADS = [route for route in ROUTES if method_of(route) == "HEAD"]
GUARDED = [route for route in ROUTES if action_of(route) is not None and route not in HEADS]


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    limits = RateLimits(requests=100_000, refusals=100_000, mints=100_000)
    folder = tmp_path_factory.mktemp("service")
    desk = Desk(Settings(folder=folder, limits=limits, allowed_endpoints=(NOWHERE,)))
    with desk.client:
        for name in ROLES:
            desk.add_person(Person(name, operator=name == "operator"))
        yield desk


def refill(desk: Desk) -> None:
    roles = {role.value: role for role in Role}
    fill(desk, **roles)
    assert desk.ask("zoe", "PUT", "/orgs/zoo/members/guest", {"role": "reader"}).is_success


def ask(desk: Desk, route: APIRoute, role: str | None, org: str = "ocean-lab") -> Any:
    path, method = re.sub(r":\w+\}", "}", full_path(route)), method_of(route)
    site: Any = desk.client.app
    operation = site.openapi()["paths"].get(path, {}).get(method.lower(), {})
    return send(desk, role, method, path_of(path, org=org), operation)


def is_refused(response: Any) -> bool:
    if response.status_code == 404:
        message = response.json()["message"]
        return "or you may not see it" in message or "offers no such listing to you" in message
    return response.status_code in {401, 403}


def is_expected(route: APIRoute, role: str) -> bool:
    """Return whether somebody may use a route, by the table of roles."""
    action = action_of(route)
    assert action is not None
    is_member = role in set(Role)
    if action is Action.SEE_LISTING:
        return is_member or role == "guest"  # to whom it is offered
    if action is Action.ASK_FOR_ACCESS and "{org}" in route.path:
        return is_member  # who sees the repository
    if action in FOR_EVERYBODY or (role == "operator" and action in FOR_OPERATORS):
        return True
    lowest = LOWEST_ROLE.get(action)
    return lowest is not None and is_member and RANK[Role(role)] >= RANK[lowest]


def test_only_these_routes_need_no_login() -> None:
    assert {route.path for route in ROUTES if action_of(route) is None} == PUBLIC


def test_the_head_of_an_answer_is_decided_about_as_the_answer() -> None:
    answers = {(route.path, route.endpoint) for route in GUARDED if method_of(route) == "GET"}
    assert HEADS
    assert {(route.path, route.endpoint) for route in HEADS} <= answers


def test_no_route_of_the_application_is_left_out(desk: Desk) -> None:
    """Fail for a route that is in none of the tests here."""

    site: Any = desk.client.app
    served = set()
    for route in site.routes:
        if hasattr(route, "original_router"):
            prefix = route.include_context.prefix
            included = routes_of(route.original_router)
            assert len(included) == len(route.original_router.routes)
            served |= {f"{method_of(leaf)} {prefix}{leaf.path}" for leaf in included}
        else:
            served.add(route.path)
    tested = {f"{method_of(route)} {full_path(route)}" for route in ROUTES}
    tested |= {label(route) for route in PAGES}
    assert served == tested | {"/static", f"{API}/openapi.json"}


OWN = {
    "/me/tokens/{token}": "a token of Ada",
    "/me/requests/{request}": "a request of Zoe",
    "/orgs/{org}/buckets/{bucket}/resume": "a bucket that is not suspended",
}
"""Routes whose example is not that of all who pass, or not always possible."""


@pytest.mark.parametrize("route", GUARDED, ids=label)
def test_a_route_lets_the_right_roles_pass(desk: Desk, route: APIRoute) -> None:
    refill(desk)
    assert ask(desk, route, None).status_code == 401
    for role in ROLES:
        response = ask(desk, route, role)
        expected = is_expected(route, role)
        # Who may not use it is refused; who may is only refused what the example asks for.
        is_missing = "missing" in response.text and response.status_code == 403
        is_outside = route.path_format.endswith(ASKS_A_STORE)
        if is_outside and expected and is_missing:
            continue
        assert is_refused(response) != expected, (role, response.status_code, response.text)
        if expected and not is_outside and route.path not in OWN:
            assert response.is_success, (role, response.text)
        if response.is_success and method_of(route) != "GET":
            refill(desk)


@pytest.mark.parametrize(
    "route",
    [route for route in GUARDED if "{org}" in route.path],
    ids=label,
)
def test_absent_and_forbidden_look_the_same(desk: Desk, route: APIRoute) -> None:
    refill(desk)
    forbidden, absent = (ask(desk, route, "stranger", org) for org in ("ocean-lab", "no-such"))
    assert forbidden.status_code == absent.status_code
    mine, other = forbidden.json(), absent.json()
    assert mine["code"] == other["code"]
    assert mine["message"] == other["message"].replace("no-such", "ocean-lab")
    assert forbidden.headers.keys() == absent.headers.keys()


# Pages

FOR_ANYBODY = {
    "GET /login": 200,
    "GET /logged-out": 200,
    "GET /login/provider": 422,
    "GET /login/provider/callback": 422,
    "GET /join/{secret}": 404,
}
"""Pages before a login, and what they answer here, where there is no provider and no link."""


def test_every_page_for_members_declares_its_action() -> None:
    assert all(action_of(route) is not None for route in ADMIN_PAGES)


@pytest.mark.parametrize("route", PAGES, ids=label)
def test_a_page_sends_who_is_not_logged_in_to_the_login(desk: Desk, route: APIRoute) -> None:
    path = re.sub(r"\{\w+(:path)?\}", "unknown", route.path)
    desk.client.cookies.clear()
    response = desk.client.request(method_of(route), path, follow_redirects=False)
    if method_of(route) == "POST":
        assert response.status_code == 403  # no form of ours was sent
    elif label(route) in FOR_ANYBODY:
        assert response.status_code == FOR_ANYBODY[label(route)], response.text
    else:
        assert response.status_code == 303
        assert response.headers["location"].startswith("/login")
