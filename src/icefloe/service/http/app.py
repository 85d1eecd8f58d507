"""The application: routes, errors, ids of requests, and the OpenAPI document."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from fastapi import FastAPI, Request

from icefloe.service.buckets import probe_on_schedule
from icefloe.service.http import (
    audit,
    buckets,
    data,
    device,
    embargoes,
    health,
    jobs,
    listings,
    organisations,
    people,
    policies,
    repositories,
    requests,
    subscriptions,
)
from icefloe.service.http.document import openapi_of
from icefloe.service.http.gate import API, Gate, Once
from icefloe.service.http.opened import ZARR, OpenedRepositories
from icefloe.service.http.problems import add_handlers
from icefloe.service.jobs import JobRunner, follow_on_schedule
from icefloe.service.runtime import Service
from icefloe.version import VERSION
from icefloe.web.origins import DataForOrigins, parse_origin

ROUTERS: Final = (
    repositories.router,  # asked most, and routes are tried in this order
    data.router,
    health.router,
    device.router,
    people.router,
    organisations.router,
    buckets.router,
    policies.router,
    listings.router,
    subscriptions.router,
    embargoes.router,
    jobs.router,
    requests.router,
    audit.router,
)
_DESCRIPTION: Final = """\
Repositories by name, and short-lived credentials for everything they refer to. Every error has the
shape of `Problem`. Requests carry `Authorization: Bearer icefloe_...`."""


_DATA_PATHS: Final = re.compile(rf"{ZARR}/|{API}/repos/[^/]+/[^/]+/(?:data|tiles|plan)/")
"""The paths that pages of other sites may read, if the operators named the site."""


def create_app(service: Service, navigation: Callable[[Request], str] = lambda _: "") -> FastAPI:
    """Return the application of a service.

    `navigation` returns the HTML above each page of a repository.
    """

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        runner = JobRunner(service)
        tasks = [asyncio.create_task(runner.run())]
        if service.settings.probe_hours:
            tasks.append(asyncio.create_task(probe_on_schedule(service)))
        if service.settings.follow_minutes:
            tasks.append(asyncio.create_task(follow_on_schedule(service)))
        yield
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await runner.stop()
        await service.close()

    app = FastAPI(
        title="Icefloe",
        version=VERSION,
        description=_DESCRIPTION,
        openapi_url=f"{API}/openapi.json",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        redirect_slashes=False,
    )
    app.state.service = service
    app.state.opened = OpenedRepositories(service, navigation)
    add_handlers(app)
    for router in ROUTERS:
        app.include_router(router, prefix=API)
    app.include_router(data.zarr_router)
    app.include_router(health.metrics_router)
    app.openapi = openapi_of(app)  # type: ignore[method-assign]

    app.add_middleware(Once)
    origins = [parse_origin(origin) for origin in service.settings.allowed_origins]
    if origins:
        headers = ("authorization",)
        app.add_middleware(DataForOrigins, origins=origins, is_data=_DATA_PATHS, headers=headers)
    app.add_middleware(Gate)
    return app
