"""The application: routes, errors, ids of requests, and the OpenAPI document."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

from fastapi import FastAPI, Request, Response

from icefloe.service.buckets import probe_on_schedule
from icefloe.service.following import follow_on_schedule
from icefloe.service.http import (
    audit,
    buckets,
    device,
    embargoes,
    listings,
    organisations,
    people,
    policies,
    repositories,
    requests,
    subscriptions,
)
from icefloe.service.http.access import new_request_id
from icefloe.service.http.codec import openapi_of
from icefloe.service.http.problems import add_handlers
from icefloe.service.runtime import Service
from icefloe.version import VERSION

API: Final = "/api/v1"
ROUTERS: Final = (
    device.router,
    people.router,
    organisations.router,
    buckets.router,
    policies.router,
    repositories.router,
    listings.router,
    subscriptions.router,
    embargoes.router,
    requests.router,
    audit.router,
)
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_DESCRIPTION: Final = """\
Repositories by name, and short-lived credentials for everything they refer to. Every error has the
shape of `Problem`. Requests carry `Authorization: Bearer icefloe_...`."""


def create_app(service: Service) -> FastAPI:
    """Return the application of a service."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        jobs = []
        if service.settings.probe_hours:
            jobs.append(asyncio.create_task(probe_on_schedule(service)))
        if service.settings.follow_minutes:
            jobs.append(asyncio.create_task(follow_on_schedule(service)))
        yield
        for job in jobs:
            job.cancel()
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
    add_handlers(app)
    for router in ROUTERS:
        app.include_router(router, prefix=API)
    app.openapi = openapi_of(app)  # type: ignore[method-assign]

    @app.middleware("http")
    async def identify(
        request: Request, call_next: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        given = request.headers.get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else new_request_id()
        request.state.request_id = request_id
        response = await call_next(request)
        response.headers["x-request-id"] = request_id
        response.headers["cache-control"] = "no-store"
        response.headers["x-content-type-options"] = "nosniff"
        return response

    return app
