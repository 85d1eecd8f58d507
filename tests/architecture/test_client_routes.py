"""Every route of the API has a method of the client, or a reason to have none."""

import inspect
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import icefloe
from icefloe.catalog import wire
from icefloe.catalog.model import Job, JobKind, Platform
from icefloe.catalog.tokens import new_token
from icefloe.records import Record
from icefloe.service.http.app import create_app
from icefloe.service.runtime import Service
from icefloe.service.settings import Settings
from tests.support.loopback import LoopbackHandler, LoopbackServer, serving

WITHOUT_METHOD = {
    "GET /health": "for load balancers",
    "GET /health/ready": "for load balancers",
    "POST /device/code": "a step of login, without a token",
    "POST /device/token": "a step of login, without a token",
    "POST /repos/{org}/{name}/credentials": "open repositories renew their credentials by it",
    "GET /repos/{org}/{name}/tiles/{path}/tilejson.json": "for programs that show maps",
    "GET /repos/{org}/{name}/tiles/{path}/{zoom}/{column}/{row}.png": "for programs that show maps",
    "GET /repos/{org}/{name}/plan/{path}": "an open repository reads from the bucket by itself",
    "GET /zarr/{org}/{name}@{version}/{key}": "for other clients of Zarr",
}
"""Routes that no method of the client begins with."""

TEXTS = {
    "role": "reader",
    "access": "read",
    "visibility": "everyone",
    "status": "active",
    "scope": "organisation",
    "state": "pending",
}
"""Texts for parameters that take one of a few words."""
VALUES: dict[str, Any] = {
    "BucketSettings": wire.BucketSettings(Platform.S3, "data"),
    "PolicySettings": wire.PolicySettings("main"),
    "ListingSettings": wire.ListingSettings("sst"),
    "NewSubscription": wire.NewSubscription("lab", "sst"),
    "SubscriptionDecision": wire.SubscriptionDecision(grants=True),
    "EmbargoSettings": wire.EmbargoSettings(1, "main", "x/"),
    "RequestDecision": wire.RequestDecision(grants=True),
    "Job": Job("job-1", "lab", JobKind.FOLLOW, "subscription-1"),
}


class Refusal(LoopbackHandler):
    """Notes each request, and refuses it."""

    server: "Refusing"

    def respond(self) -> None:
        self.read_body()
        self.server.seen.add(f"{self.command} {self.path.partition('?')[0]}")
        problem = {"code": "entry-not-found", "message": "nothing", "request_id": ""}
        self.answer(404, json.dumps(problem).encode())

    do_PATCH = LoopbackHandler.do_GET  # noqa: N815


class Refusing(LoopbackServer):
    """A service that refuses everything, and what it was asked."""

    def __init__(self) -> None:
        super().__init__(Refusal)
        self.seen: set[str] = set()


def routes(folder: Path) -> list[str]:
    """Return method and path of all operations in the OpenAPI document."""
    service = Service(Settings(folder=folder))
    paths = create_app(service).openapi()["paths"]
    service.database.close()
    return [
        f"{method.upper()} {path.removeprefix('/api/v1')}"
        for path, operations in paths.items()
        for method in operations
    ]


def methods() -> Iterator[tuple[str, Any]]:
    """Iterate over the public methods of a client that block, and those that iterate."""
    for name, method in inspect.getmembers(icefloe.Client, callable):
        if not name.startswith("_") and not name.endswith("_async"):
            yield name, method


def calls_of(method: Any) -> Iterator[dict[str, Any]]:
    """Iterate over arguments of a method: those that it needs, and all that it takes."""
    parameters = list(inspect.signature(inspect.unwrap(method)).parameters.values())[1:]
    yield {p.name: value_of(p) for p in parameters if p.default is p.empty}
    yield {p.name: value_of(p) for p in parameters}


def value_of(parameter: inspect.Parameter) -> Any:
    """Return a value for a parameter, by its name and its annotation."""
    annotation = parameter.annotation
    kinds = [annotation, *getattr(annotation, "__args__", ())]
    for kind in kinds:
        if inspect.isclass(kind) and issubclass(kind, Record):
            return VALUES[kind.__name__]
    if str in kinds:
        return TEXTS.get(parameter.name, "lab/sst")
    if int in kinds:
        return 1
    if parameter.name == "service_account":
        return ("lab", "bot")
    return parameter.default if parameter.default is not parameter.empty else None


@pytest.fixture(scope="module")
def requests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, set[str]]]:
    """The requests that each method sends."""
    sent: dict[str, set[str]] = {}
    patch = pytest.MonkeyPatch()
    patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
    with serving(Refusing()) as server:
        for name, method in methods():
            server.seen = set()
            for arguments in calls_of(method):
                client = icefloe.Client(server.url, token=new_token())
                with suppress(icefloe.IcefloeError):
                    result = getattr(client, name)(**arguments)
                    if name == "audit":
                        list(result)
            sent[name] = server.seen
    yield sent
    patch.undo()


def template_of(route: str) -> re.Pattern[str]:
    method, _, path = route.partition(" ")
    pattern = re.escape(path).replace(r"\{path\}", ".*")
    pattern = re.sub(r"\\\{\w+\\\}", "[^/]+", pattern)
    return re.compile(f"{method} /api/v1{pattern}")


def test_every_route_has_a_method(requests: dict[str, set[str]], tmp_path: Path) -> None:
    everything = set.union(*requests.values())
    without = {
        route
        for route in routes(tmp_path)
        if not any(map(template_of(route).fullmatch, everything))
    }
    assert without == WITHOUT_METHOD.keys()


def test_every_method_asks_a_route(requests: dict[str, set[str]], tmp_path: Path) -> None:
    templates = [template_of(route) for route in routes(tmp_path)]
    for name, sent in requests.items():
        assert sent, name
        for request in sent:
            assert any(template.fullmatch(request) for template in templates), (name, request)
