"""Requests that are made from the OpenAPI document: no failure, no answer that it does not name."""

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings

from icefloe.catalog.model import Bucket, Organisation, Person, Platform, Repository
from icefloe.service.database import accounts, assets, rows, tables
from icefloe.service.http.app import create_app
from icefloe.service.runtime import Service
from icefloe.service.settings import RateLimits, Settings
from tests.support.desk import START, Desk

EXAMPLES = 4
NOWHERE = "http://127.0.0.1:1"  # where nothing listens
SECRETS = {"access_key_id": "a", "secret_access_key": "b"}
BUCKET = Bucket(
    "lab",
    "main",
    Platform.S3,
    "lab-data",
    region="us-east-1",
    endpoint=NOWHERE,
    sts_endpoint=NOWHERE,
    path_style=True,
    allow_http=True,
    role="arn:aws:iam::000000000000:role/Vend",
)


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    many = 1_000_000
    limits = RateLimits(requests=many, refusals=many, device_codes=many, mints=many)
    folder = tmp_path_factory.mktemp("service")
    desk = Desk(Settings(folder=folder, limits=limits, allowed_endpoints=(NOWHERE,)))
    with desk.client:
        desk.add_person(Person("root", operator=True))
        fill(desk)
        yield desk


def fill(desk: Desk) -> None:
    """Let there be an organisation with a bucket and a repository, whatever was deleted."""
    with desk.service.database.writing() as connection:
        for table in (tables.repositories, tables.buckets, tables.organisations):
            connection.execute(table.delete())
        accounts.create_organisation(connection, Organisation("lab"), "root", START)
        rows.add(connection, tables.buckets, BUCKET)
        desk.service.put_bucket_secret(connection, BUCKET, SECRETS)
        repository = Repository("lab", "sst", "main", "sst/", created_at=START, created_by="root")
        assets.create_repository(connection, repository, START)
    desk.tokens["root"] = desk.add_token("root")


def load_schema(folder: Any) -> Any:
    service = Service(Settings(folder=folder))
    document = create_app(service).openapi()
    service.database.close()
    return schemathesis.openapi.from_dict(document)


@pytest.fixture(scope="module")
def schema(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return load_schema(tmp_path_factory.mktemp("schema"))


def send(desk: Desk, case: Any) -> Any:
    """Send a request; half of the names in its path are those of real things."""
    known = {"org": "lab", "name": "sst", "bucket": "main", "person": "root"}
    given_names = case.path_parameters or {}
    is_real = len(str(given_names)) % 2 == 0
    values = {k: known.get(k, v) if is_real else v for k, v in given_names.items()}
    path = case.path
    for name, value in values.items():
        plain = "".join(c for c in str(value) if c.isascii() and c.isalnum()) or "x"
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
    documented = {str(status) for status in operation.definition.raw["responses"]}
    statuses: set[int] = set()

    @seed(1)
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy())
    def ask(case: Any) -> None:
        response = send(desk, case)
        statuses.add(response.status_code)
        label = f"{case.method} {case.path}: {response.status_code} {response.text[:300]}"
        assert response.status_code != 500, label
        assert str(response.status_code) in documented, label
        if response.content:
            assert response.headers["content-type"] == "application/json", label
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
        except AssertionError as error:
            problems.append(str(error).partition("\n")[0])
        if operation.method.upper() in {"DELETE", "POST"}:
            fill(desk)
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
