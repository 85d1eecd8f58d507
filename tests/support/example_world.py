"""The world of the examples in the OpenAPI document, in a service without object stores.

`fill` puts it there, and again after a test changed it. `send` sends requests with the values of
the document.
"""

import re
from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from icefloe.catalog.model import (
    AccessRequest,
    Bucket,
    DeclaredContainer,
    Embargo,
    Job,
    Listing,
    Member,
    Organisation,
    Person,
    Policy,
    Repository,
    Role,
    Subscription,
    Token,
    Visibility,
)
from icefloe.records import replace
from icefloe.service.database import accounts, assets, rows, tables
from icefloe.service.http.examples import PARAMETERS, RECORDS
from tests.support.desk import Desk

NOWHERE = "http://127.0.0.1:1"  # where nothing listens
SECRETS = {"access_key_id": "a", "secret_access_key": "b"}
TABLES = (
    tables.answers,
    tables.jobs,
    tables.access_requests,
    tables.embargoes,
    tables.subscriptions,
    tables.listings,
    tables.policies,
    tables.policy_history,
    tables.containers,
    tables.repositories,
    tables.buckets,
    tables.members,
    tables.organisations,
    tables.retired_names,
)
PEOPLE = ("ada", "bob", "zoe")
ASKS_A_STORE = (
    "/probe",
    "/open",
    "/credentials",
    "/update",
    "/release",
    "/data/{path}",
    "/tiles/{path}/tilejson.json",
    "/{row}.png",
    "/plan/{path}",
    "@{version}/{key}",
)
"""The ends of routes that fail in this world, where no store answers."""


def example[T](kind: type[T]) -> T:
    """Return the example of a record."""
    record: Any = RECORDS[kind.__name__]
    return record  # type: ignore[no-any-return]


def fill(desk: Desk, **roles: Role) -> None:
    """Let there be all that the examples name, whatever was there before.

    `roles` are those of further members of the organisation, by name.
    """
    with desk.service.database.writing() as connection:
        for table in TABLES:
            connection.execute(table.delete())
        _add_people(connection, roles, desk.now)
        _add_buckets(desk, connection)
        _add_shares(connection, desk.now)
    for name in desk.tokens.keys() | set(PEOPLE):
        desk.tokens[name] = desk.add_token(name)


def _add_people(connection: Connection, roles: dict[str, Role], now: datetime) -> None:
    people, tokens, token = tables.people, tables.tokens, example(Token)
    connection.execute(people.delete().where(people.c.organisation.is_not(None)))
    for name in PEOPLE:
        if rows.find(connection, people, Person, name=name) is None:
            accounts.create_person(connection, Person(name), now)
    for organisation, admin in (("ocean-lab", "ada"), ("zoo", "zoe"), ("archive", "zoe")):
        accounts.create_organisation(connection, Organisation(organisation), admin, now)
    accounts.set_member(connection, example(Member))
    for name, role in roles.items():
        accounts.set_member(connection, Member("ocean-lab", name, role))
    accounts.create_person(connection, example(Person), now)
    connection.execute(tokens.delete().where(tokens.c.id == token.id))
    accounts.create_token(connection, token, b"no secret has this digest")


def _add_buckets(desk: Desk, connection: Connection) -> None:
    at_nowhere = replace(
        example(Bucket), endpoint=NOWHERE, sts_endpoint=NOWHERE, allow_http=True, path_style=True
    )
    for bucket in (
        at_nowhere,
        replace(at_nowhere, name="main", bucket="ocean-data"),
        replace(at_nowhere, name="main", organisation="zoo", bucket="zoo-data"),
        replace(at_nowhere, name="main", organisation="archive", bucket="winds"),
    ):
        rows.add(connection, tables.buckets, bucket)
        desk.service.put_bucket_secret(connection, bucket, SECRETS)


def _add_shares(connection: Connection, now: datetime) -> None:
    """Add repositories that refer to data of others, and all by which data is shared."""
    request = example(AccessRequest)
    reef = Repository("zoo", "reef", "main", "reef/", visibility=Visibility.EVERYONE)
    winds = Repository("archive", "winds", "main", "winds/")
    for repository, location in (
        (example(Repository), "s3://winds/hourly/"),
        (reef, request.container),
        (winds, None),
    ):
        assets.create_repository(connection, repository, now)
        if location is not None:
            container = DeclaredContainer(location, location, endpoint=NOWHERE)
            assets.set_containers(connection, repository, "1", [container])
    policy = assets.create_policy(connection, example(Policy), "ada", now)
    assets.change_policy(connection, policy, "ada", now, if_version=None)
    rows.add(connection, tables.listings, example(Listing))
    rows.add(connection, tables.listings, Listing("archive", "winds", "winds", licence="CC0"))
    rows.add(connection, tables.subscriptions, example(Subscription))
    rows.add(connection, tables.embargoes, example(Embargo))
    rows.add(connection, tables.access_requests, request)
    rows.add(connection, tables.jobs, example(Job))


def path_of(template: str, **others: str) -> str:
    """Return the path of a route with the names of the examples, or with other ones."""
    values = {**PARAMETERS, **others}
    return re.sub(r"\{(\w+)\}", lambda match: str(values[match[1]]), template)


def send(desk: Desk, person: str | None, method: str, path: str, operation: Any) -> Any:
    """Send the example of an operation in the document, with the parameters that it needs."""
    headers = {} if person is None else {"authorization": f"Bearer {desk.tokens[person]}"}
    options: dict[str, Any] = {}
    for kind, media in operation.get("requestBody", {}).get("content", {}).items():
        options["json" if kind == "application/json" else "data"] = media["example"]
    query = {
        parameter["name"]: parameter["example"]
        for parameter in operation.get("parameters", ())
        if parameter["in"] == "query" and parameter["required"]
    }
    return desk.client.request(method, path, params=query, headers=headers, **options)
