"""Requests that are made from the OpenAPI document: no failure, no answer that it does not name."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from schemathesis.core.failures import FailureGroup

from icefloe.catalog.model import Person, Role
from icefloe.service.http.app import create_app
from icefloe.service.http.codec import KINDS
from icefloe.service.http.examples import PARAMETERS, PROBLEMS, RECORDS, example_of
from icefloe.service.runtime import Service
from icefloe.service.settings import RateLimits, Settings
from tests.support.desk import Desk
from tests.support.example_world import ASKS_A_STORE, NOWHERE, fill, path_of, send

CASES = 4
"""How many requests are made of an operation."""
CHECKS = [
    response_schema_conformance,
    response_headers_conformance,
    content_type_conformance,
    status_code_conformance,
]


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    many = 1_000_000
    limits = RateLimits(requests=many, refusals=many, device_codes=many, mints=many)
    folder = tmp_path_factory.mktemp("service")
    desk = Desk(Settings(folder=folder, limits=limits, allowed_endpoints=(NOWHERE,)))
    with desk.client:
        desk.add_person(Person("root", operator=True))
        fill(desk, root=Role.ADMIN)
        yield desk


def load_schema(folder: Any) -> Any:
    service = Service(Settings(folder=folder))
    document = create_app(service).openapi()
    service.database.close()
    return schemathesis.openapi.from_dict(document)


@pytest.fixture(scope="module")
def schema(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return load_schema(tmp_path_factory.mktemp("schema"))


def send_case(desk: Desk, case: Any) -> Any:
    """Send a request; half of the names in its path are those of real things."""
    given_names = case.path_parameters or {}
    is_real = len(str(given_names)) % 2 == 0
    values = {k: PARAMETERS.get(k, v) if is_real else v for k, v in given_names.items()}
    path = case.path
    for name, value in values.items():
        plain = "".join(c for c in str(value) if c.isascii() and (c.isalnum() or c == "-")) or "x"
        path = path.replace(f"{{{name}}}", plain)
    headers = {"authorization": f"Bearer {desk.tokens['root']}"}
    options: dict[str, Any] = {}
    if case.media_type == "application/json":
        options["json"] = case.body
    elif case.media_type:
        options["data"] = case.body
    query = {k: v for k, v in (case.query or {}).items() if not isinstance(v, (dict, list))}
    return desk.client.request(case.method, path, params=query, headers=headers, **options)


def ask_some(desk: Desk, operation: Any) -> set[int]:
    """Send some requests of an operation, and return the statuses of the answers."""
    statuses: set[int] = set()

    @seed(1)
    @settings(
        max_examples=CASES,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy())
    def ask(case: Any) -> None:
        response = send_case(desk, case)
        statuses.add(response.status_code)
        label = f"{case.method} {case.path}: {response.status_code} {response.text[:300]}"
        assert response.status_code != 500, label
        case.validate_response(response, checks=CHECKS)
        if response.is_error:
            assert {"code", "message", "request_id"} <= response.json().keys(), label

    ask()
    return statuses


def test_no_answer_is_a_surprise(desk: Desk, schema: Any) -> None:
    operations = [result.ok() for result in schema.get_all_operations()]
    assert len(operations) > 40
    statuses: set[int] = set()
    problems = []
    for operation in operations:
        try:
            statuses |= ask_some(desk, operation)
        except (AssertionError, FailureGroup) as error:
            problems.append(f"{operation.label}: {error!r:.1000}")
        if operation.method.upper() in {"DELETE", "POST"}:
            fill(desk, root=Role.ADMIN)
    assert problems == []
    assert {200, 201, 204, 404, 422} <= statuses


def test_the_document_says_how_to_log_in(schema: Any) -> None:
    document = schema.raw_schema
    assert document["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
    assert document["paths"]["/api/v1/health"]["get"]["security"] == []
    assert document["paths"]["/api/v1/me"]["get"]["security"] == [{"token": []}, {"session": []}]
    for path in document["paths"].values():
        for operation in path.values():
            assert operation["summary"]
            assert operation["description"]


# Examples


def operations_of(document: Any) -> Iterator[tuple[str, str, Any]]:
    """Iterate over method, path and description of all operations."""
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            yield method.upper(), path, operation


def bodies_of(operation: Any) -> Iterator[Any]:
    """Iterate over the bodies of the request and of all answers."""
    yield from operation.get("requestBody", {}).get("content", {}).values()
    for answer in operation["responses"].values():
        yield from answer.get("content", {}).values()


def test_every_body_and_parameter_has_an_example_that_is_valid(schema: Any) -> None:
    document = schema.raw_schema
    for method, path, operation in operations_of(document):
        assert {status for status in operation["responses"] if status < "300"}, path
        for parameter in operation.get("parameters", ()):
            assert parameter["example"] is not None, (method, path, parameter)
        for body in bodies_of(operation):
            label = (method, path, body)
            assert body["example"], label
            reference = body["schema"].get("$ref")
            if body["schema"].get("type") == "string":  # a text, or bytes
                assert isinstance(body["example"], str), label
                continue
            if reference is None:  # a form, or values that no record describes
                assert set(body["schema"]["required"]) <= body["example"].keys(), label
                continue
            kind = KINDS[reference.rpartition("/")[2]]
            record = msgspec.convert(body["example"], kind)
            assert msgspec.json.decode(msgspec.json.encode(record)) == body["example"], label


def test_no_example_is_left_over(schema: Any) -> None:
    used = {name.removeprefix("Page_").removesuffix("_") for name in KINDS}
    assert used == {*RECORDS, "Problem"}
    statuses = {int(s) for *_, o in operations_of(schema.raw_schema) for s in o["responses"]}
    assert {status for status in statuses if status >= 400} == PROBLEMS.keys()


def test_the_errors_of_the_examples_are_true(desk: Desk) -> None:
    fill(desk)
    org, policy = "/orgs/ocean-lab", PARAMETERS["policy"]
    settings = example_of("PolicySettings")
    version = {"if-match": '"1"'}
    desk.ask("root", "POST", "/orgs", {"name": "reef-lab"})
    headers = {
        "authorization": f"Bearer {desk.tokens['root']}",
        "content-type": "application/json",
    }
    answers = {
        400: desk.client.post("/api/v1/orgs", content=b"[" * 100_000, headers=headers),
        401: desk.ask(None, "GET", org),
        403: desk.ask("bob", "PATCH", org, example_of("OrganisationChange")),
        404: desk.ask("root", "GET", org),
        409: desk.ask("root", "POST", "/orgs", {"name": "reef-lab"}),
        412: desk.ask("ada", "PUT", f"{org}/policies/{policy}", settings, headers=version),
        413: desk.ask("root", "POST", "/orgs", {"name": "x" * 2_000_000}),
        422: desk.ask("root", "POST", "/orgs", {}),
        502: desk.ask("ada", "POST", f"{org}/buckets/tapes/credentials", {}),
    }
    for status, response in answers.items():
        problem = response.json()
        shown = (response.status_code, problem["code"], problem["message"])
        assert shown == (status, PROBLEMS[status].code, PROBLEMS[status].message)


SENT_BY = {
    "/me/requests/{request}": "zoe",
    "/orgs": "root",
    "/invitations": "root",
    "/audit": "root",
    "/audit/verify": "root",
}
"""Who sends an example, where that is not Ada."""


def test_every_example_is_true(desk: Desk, schema: Any) -> None:
    """Send the examples of all operations; the service accepts them, and answers alike."""
    for method, path, operation in operations_of(schema.raw_schema):
        fill(desk)
        short = path.removeprefix("/api/v1")
        person = SENT_BY.get(short, "ada") if method != "GET" or "audit" in short else "ada"
        label = f"{method} {path}"
        where = path_of(path)
        if short.endswith("/resume"):
            desk.ask("ada", "POST", where.removeprefix("/api/v1").replace("resume", "suspend"))
        response = send(desk, person, method, where, operation)
        if short.endswith(ASKS_A_STORE) or short == "/device/token":
            assert response.status_code in {200, 400, 403, 404, 422, 502, 503}, (
                label,
                response.text,
            )
            continue
        assert response.is_success, (label, response.text)
        content = operation["responses"][str(response.status_code)].get("content")
        if content is None:
            assert response.content == b"", label
            continue
        (media,) = content.values()
        assert response.json().keys() == media["example"].keys(), label
