"""A service in this process, with people, and a way to ask it in their names."""

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import zarr
from fastapi.testclient import TestClient
from obstore.store import S3Store
from sqlalchemy import update

import icefloe
from icefloe.catalog.model import BucketState, Organisation, Person, Token, TokenScope
from icefloe.catalog.tokens import new_token, token_id
from icefloe.service.database import accounts, audit, tables
from icefloe.service.pages.site import create_site
from icefloe.service.runtime import Service
from icefloe.service.settings import Settings
from tests.support.servers import VENDOR, S3Endpoint

PATIENCE_SECONDS = 120.0
START = datetime(2026, 1, 1, tzinfo=UTC)


class Desk:
    """A service with people, and a way to ask it in their names."""

    def __init__(self, settings: Settings, now: datetime = START) -> None:
        self.now = now
        self.service = Service(settings, clock=lambda: self.now)
        self.client = TestClient(create_site(self.service), raise_server_exceptions=False)
        self.tokens: dict[str, str] = {}

    def add_person(self, person: Person) -> None:
        with self.service.database.writing() as connection:
            accounts.create_person(connection, person, self.now)
        self.tokens[person.name] = self.add_token(person.name)

    def add_token(self, person: str, scope: TokenScope | None = None, days: int = 300) -> str:
        secret = new_token()
        end = self.now + timedelta(days=days)
        token = Token(token_id(secret), "test", person, scope or TokenScope(), self.now, end)
        with self.service.database.writing() as connection:
            accounts.create_token(connection, token, self.service.digest(secret))
        return secret

    def ask(
        self, person: str | None, method: str, path: str, body: object = None, **options: Any
    ) -> Any:
        headers = options.pop("headers", {})
        if person is not None:
            headers["authorization"] = f"Bearer {self.tokens.get(person, person)}"
        return self.client.request(
            method, f"/api/v1{path}", json=body, headers=headers, params=options
        )

    def ended_job(self, person: str, accepted: Any) -> Any:
        """Wait until a job is over that an answer told of; return it."""
        assert accepted.status_code == 202, accepted.json()
        path = accepted.headers["location"].removeprefix("/api/v1")
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            job = self.ask(person, "GET", path).json()
            if job["state"] in {"done", "failed"}:
                return job
            time.sleep(0.05)
        raise AssertionError(f"not over: {job}")

    def report_of(self, person: str, accepted: Any) -> Any:
        """Wait until a job is done that an answer told of; return its report."""
        job = self.ended_job(person, accepted)
        assert job["state"] == "done", job
        return job["report"]

    def ring(self) -> None:
        """Let the service look for jobs now."""
        assert self.client.portal is not None
        self.client.portal.call(self.service.job_bell.set)

    def audited(self) -> list[tuple[str, str, str, bool]]:
        with self.service.database.reading() as connection:
            audit.verify(connection, self.service.keys.audit)
            entries = audit.read(connection)
        return [(e.person, e.action, e.resource, e.allowed) for e in reversed(entries)]


def root_of(endpoint: S3Endpoint) -> S3Store:
    """Return a store with an owner's own keys."""
    return S3Store(
        endpoint.bucket,
        endpoint=endpoint.url,
        access_key_id=endpoint.access_key_id,
        secret_access_key=endpoint.secret_access_key,
        region=endpoint.region,
        client_options={"allow_http": True},
    )


def bucket_body(name: str, endpoint: S3Endpoint, prefix: str) -> dict[str, Any]:
    """Return a bucket to register that is delegated by the role of a test server."""
    return {
        "name": name,
        "platform": "s3",
        "bucket": endpoint.bucket,
        "prefix": prefix,
        "region": endpoint.region,
        "endpoint": endpoint.url,
        "sts_endpoint": endpoint.url,
        "path_style": True,
        "allow_http": True,
        "role": VENDOR["role"],
        "delegation": "role",
        "secrets": {
            "access_key_id": VENDOR["access_key_id"],
            "secret_access_key": VENDOR["secret_access_key"],
        },
    }


def read_with_reference(answer: dict[str, Any], array: str) -> Any:
    """Read an array with the reference implementation and the vended credentials."""
    return zarr.open_array(store_with_reference(answer), path=array, mode="r")[:]


def store_with_reference(answer: dict[str, Any]) -> Any:
    """Open a repository with the reference implementation and the vended credentials."""
    import icechunk

    store, credential = answer["store"], answer["credential"]["values"]
    storage = icechunk.s3_storage(
        bucket=store["bucket"],
        prefix=store["prefix"].rstrip("/"),
        endpoint_url=store["endpoint"],
        region=store["region"],
        allow_http=store["allow_http"],
        force_path_style=store["path_style"],
        **credential,
    )
    config = icechunk.RepositoryConfig.default()
    credentials = {}
    for container in answer["containers"]:
        own = container["store"]
        options = icechunk.s3_store(
            region=own["region"],
            endpoint_url=own["endpoint"],
            s3_compatible=True,
            allow_http=own["allow_http"],
            force_path_style=own["path_style"],
        )
        config.set_virtual_chunk_container(
            icechunk.VirtualChunkContainer(container["prefix"], options, name=container["name"])
        )
        keys = icechunk.s3_credentials(**container["credential"]["values"])
        credentials[container["prefix"]] = keys
    repository = icechunk.Repository.open(
        storage,
        config,
        authorize_virtual_chunk_access=icechunk.containers_credentials(credentials),
    )
    return repository.readonly_session("main").store


def storage_at(endpoint: S3Endpoint, prefix: str) -> icefloe.Storage:
    """Return the place of a repository, with an owner's own keys."""
    return icefloe.s3_storage(
        bucket=endpoint.bucket,
        prefix=prefix,
        endpoint_url=endpoint.url,
        access_key_id=endpoint.access_key_id,
        secret_access_key=endpoint.secret_access_key,
        region=endpoint.region,
        allow_http=True,
        force_path_style=True,
    )


def container_at(endpoint: S3Endpoint, url: str) -> icefloe.VirtualChunkContainer:
    """Return a container of virtual chunks on a test server."""
    store = icefloe.s3_store(
        endpoint_url=endpoint.url, s3_compatible=True, allow_http=True, force_path_style=True
    )
    return icefloe.VirtualChunkContainer(url, store)


def add_organisation(desk: Desk, organisation: str, admin: str) -> None:
    """Add an organisation with its admin."""
    desk.add_person(Person(admin))
    with desk.service.database.writing() as connection:
        accounts.create_organisation(connection, Organisation(organisation), admin, desk.now)


def add_bucket(
    desk: Desk,
    admin: str,
    organisation: str,
    endpoint: S3Endpoint,
    prefix: str,
    name: str = "main",
) -> None:
    """Register a bucket of an organisation that counts as proven."""
    body = bucket_body(name, endpoint, prefix)
    created = desk.ask(admin, "POST", f"/orgs/{organisation}/buckets", body)
    assert created.status_code == 201, created.json()
    prove(desk, organisation, name)


def prove(desk: Desk, organisation: str, name: str = "main") -> None:
    """Let a bucket of a test server count as proven: tests of the probe itself have shown it."""
    table = tables.buckets
    values = {"state": BucketState.PROVEN, "probed_at": desk.now}
    query = update(table).where(table.c.organisation == organisation, table.c.name == name)
    with desk.service.database.writing() as connection:
        assert connection.execute(query.values(values)).rowcount == 1


def add_repository(desk: Desk, admin: str, organisation: str, name: str) -> None:
    """Import the repository in the folder of its name."""
    body = {"name": name, "bucket": "main", "prefix": f"{name}/", "imports": True}
    created = desk.ask(admin, "POST", f"/orgs/{organisation}/repos", body)
    assert created.status_code == 201, created.json()
