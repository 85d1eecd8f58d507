"""Routes for those who watch the service: is it alive, is it ready, what does it count."""

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from icefloe.catalog.wire import Health
from icefloe.errors import ServiceError
from icefloe.service.domain.actions import Action
from icefloe.service.http.access import Permit, anybody, may, service_of
from icefloe.service.http.codec import PUBLIC, Codec, answer
from icefloe.service.http.problems import PROBLEMS
from icefloe.version import VERSION

router = APIRouter(
    tags=["health", PUBLIC],
    dependencies=[Depends(anybody)],
    responses={status: PROBLEMS[status] for status in (500, 503)},
)
metrics_router = APIRouter(include_in_schema=False)


@router.get("/health", response_model=Annotated[Health, Codec()])
def is_alive() -> Response:
    """Return that the process answers. It is to be started again if it does not."""
    return answer(Health("alive", VERSION))


@router.get("/health/ready", response_model=Annotated[Health, Codec()])
def is_ready(request: Request) -> Response:
    """Return that requests can be handled: the database answers, with the right schema."""
    if not service_of(request).database.is_current():
        problem = "the schema of the database is that of another version of the service"
        raise ServiceError(f"{problem}: run `icefloe service migrate`")
    return answer(Health("ready", VERSION))


@metrics_router.get("/metrics")
def show_metrics(permit: Annotated[Permit, Depends(may(Action.RUN_SERVICE))]) -> Response:
    """Return what the service counts, for Prometheus with the token of an operator."""
    return Response(permit.service.metrics.text(), media_type="text/plain; version=0.0.4")
