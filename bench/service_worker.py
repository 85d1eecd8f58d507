"""The service that `bench.service` asks: prints its address, then serves until it is ended."""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI

import icefloe
from bench.service import CONTAINERS, NEW_REPOSITORIES, PEOPLE
from icefloe.catalog.model import (
    Bucket,
    BucketState,
    Delegation,
    Member,
    Organisation,
    Person,
    Platform,
    Policy,
    PolicyScope,
    Repository,
    Role,
    Token,
    TokenScope,
)
from icefloe.catalog.tokens import new_token, token_id
from icefloe.service import opening
from icefloe.service.buckets import probe_bucket
from icefloe.service.configuration import read_configuration
from icefloe.service.database import accounts, assets, rows, tables
from icefloe.service.http import access
from icefloe.service.http.app import create_app
from icefloe.service.runtime import Service
from icefloe.service.settings import RateLimits, Settings
from icefloe.service.vending.sts import StsVendor
from tests.support.processes import LOOPBACK, free_ports
from tests.support.servers import VENDOR

STEPS: dict[str, float] = {}


def timed[**P, T](name: str, step: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
    """Note how long the slowest run of a step takes."""

    async def run(*arguments: P.args, **options: P.kwargs) -> T:
        begun = time.perf_counter()
        try:
            return await step(*arguments, **options)
        finally:
            STEPS[name] = max(STEPS.get(name, 0.0), time.perf_counter() - begun)

    return run


def build(folder: Path, store: dict[str, str]) -> tuple[Service, list[str]]:
    """Make a service with repositories of ten containers, and people who may open them."""
    settings = Settings(
        folder=folder,
        allowed_endpoints=(store["url"],),
        allows_anonymous=False,
        probe_hours=0,
        limits=RateLimits(requests=100_000),  # one person asks for everybody
    )
    service, now = Service(settings), datetime.now(UTC)
    tokens, root = [], f"{folder.name}/"
    names = ["sst", *(f"new-{number}" for number in range(NEW_REPOSITORIES))]
    bucket = Bucket(
        "lab",
        "main",
        Platform.S3,
        store["bucket"],
        root,
        region=store["region"],
        endpoint=store["url"],
        sts_endpoint=store["url"],
        path_style=True,
        allow_http=True,
        role=VENDOR["role"],
        delegation=Delegation.ROLE,
        state=BucketState.PROVEN,
    )
    secrets = {key: VENDOR[key] for key in ("access_key_id", "secret_access_key")}
    with service.database.writing() as connection:
        accounts.create_person(connection, Person("admin"), now)
        accounts.create_organisation(connection, Organisation("lab"), "admin", now)
        rows.add(connection, tables.buckets, bucket)
        service.put_bucket_secret(connection, bucket, secrets)
        for name in names:
            repository = Repository("lab", name, "main", f"{name}/")
            assets.create_repository(connection, repository, now)
        for number in range(CONTAINERS):
            policy = Policy(f"p{number}", "lab", "main", f"c{number}/", PolicyScope.ORGANISATION)
            assets.create_policy(connection, policy, "admin", now)
        for number in range(PEOPLE):
            name, secret = f"p{number}", new_token()
            accounts.create_person(connection, Person(name), now)
            accounts.set_member(connection, Member("lab", name, Role.READER))
            end = now + timedelta(days=1)
            token = Token(token_id(secret), "bench", name, TokenScope(), now, end)
            accounts.create_token(connection, token, service.digest(secret))
            tokens.append(secret)
    config = icefloe.RepositoryConfig.default()
    for number in range(CONTAINERS):
        url = f"s3://{store['bucket']}/{root}c{number}/"
        options = icefloe.s3_store(
            endpoint_url=store["url"], s3_compatible=True, allow_http=True, force_path_style=True
        )
        config.set_virtual_chunk_container(icefloe.VirtualChunkContainer(url, options))
    for name in names:
        storage = icefloe.s3_storage(
            bucket=store["bucket"],
            prefix=f"{root}{name}",
            endpoint_url=store["url"],
            access_key_id=store["access_key_id"],
            secret_access_key=store["secret_access_key"],
            region=store["region"],
            allow_http=True,
            force_path_style=True,
        )
        icefloe.Repository.create(storage, config)
    return service, tokens


def watch(service: Service) -> FastAPI:
    """Return the application, which also tells how long its steps take."""
    opening.read_configuration = timed("read", read_configuration)  # type: ignore[attr-defined, assignment]
    StsVendor.vend = timed("vend", StsVendor.vend)  # type: ignore[assignment, method-assign]
    access.Permit.record_later = timed("audit", access.Permit.record_later)  # type: ignore[assignment, method-assign]
    app = create_app(service)

    @app.get("/bench/steps")
    def steps() -> dict[str, float]:
        told = dict(STEPS)
        STEPS.clear()
        return told

    @app.get("/bench/mints")
    def mints() -> int:
        return service.broker.mints

    @app.get("/bench/cpu")
    def cpu() -> float:
        return time.process_time()

    return app


async def serve(settings: dict[str, Any]) -> None:
    service, tokens = build(Path(settings["folder"]), settings["store"])
    begun = time.perf_counter()
    report = await probe_bucket(service, "lab", "main")
    probe_seconds = time.perf_counter() - begun
    assert report.state is BucketState.PROVEN, report
    (port,) = free_ports(1)
    config = uvicorn.Config(watch(service), LOOPBACK, port, log_level="warning", access_log=False)
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110 - uvicorn has no event for this
        await asyncio.sleep(0.01)
    url = f"http://{LOOPBACK}:{port}"
    print(json.dumps({"url": url, "tokens": tokens, "probe_seconds": probe_seconds}), flush=True)
    await task


if __name__ == "__main__":
    asyncio.run(serve(json.loads(sys.argv[1])))
