"""Errors as answers: one shape, and a status for each kind of error."""

import logging
from collections.abc import Mapping
from typing import Annotated, Any, Final

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from icefloe.catalog.wire import MissingGrant, Problem
from icefloe.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    ConflictError,
    ErrorKind,
    FormatError,
    IcefloeError,
    InvalidInputError,
    NotFoundError,
    NotLoggedInError,
    ServiceError,
    StorageError,
)
from icefloe.service.http import examples
from icefloe.service.http.codec import Codec, answer
from icefloe.service.http.examples import plain

_log: Final = logging.getLogger(__name__)

STATUS_OF: Final[tuple[tuple[type[IcefloeError], int], ...]] = (
    (NotLoggedInError, 401),
    (AccessDeniedError, 403),
    (StorageError, 502),  # before NotFoundError: an object that is missing is no missing entry
    (FormatError, 502),
    (NotFoundError, 404),
    (AlreadyExistsError, 409),
    (ConflictError, 409),
    (InvalidInputError, 422),
    (ServiceError, 503),
    (IcefloeError, 500),
)
"""The status of an answer, by class; the first class that fits counts."""

_STATUS_OF_KIND: Final = {
    ErrorKind.ENTRY_CHANGED: 412,
    ErrorKind.TOO_MANY_REQUESTS: 429,
}
_CODE_OF_STATUS: Final = {
    400: ErrorKind.INVALID_REQUEST,
    404: ErrorKind.ENTRY_NOT_FOUND,
    405: "method-not-allowed",
    413: "request-too-large",
}


def problem_of(text: str) -> dict[str, Any]:
    """Return the description of an error in the OpenAPI document."""
    return {"model": Annotated[Problem, Codec()], "description": text}


PROBLEMS: Final[dict[int | str, dict[str, Any]]] = {
    status: problem_of(text)
    for status, text in {
        400: "Not understood",
        401: "Not logged in",
        403: "Not allowed",
        404: "Not there, or not to be seen",
        409: "In conflict with another entry",
        412: "Changed by somebody else",
        413: "The body is too large",
        422: "Not understood",
        429: "Too many requests",
        500: "The service failed",
        502: "The object store failed",
        503: "Not available at present",
    }.items()
}
"""The errors that any route may answer with."""

REFUSED_OPENING: Final[dict[int | str, dict[str, Any]]] = {
    403: PROBLEMS[403]
    | {"content": {"application/json": {"example": plain(examples.REFUSED_OPENING)}}}
}
"""The error of a repository that does not open whole: it names what is missing."""


def status_of(error: IcefloeError) -> int:
    """Return the status of the answer for an error."""
    if error.kind in _STATUS_OF_KIND:
        return _STATUS_OF_KIND[ErrorKind(error.kind)]
    return next(status for kind, status in STATUS_OF if isinstance(error, kind))


def add_handlers(app: FastAPI) -> None:
    """Answer every error of an app in the one shape."""

    @app.exception_handler(IcefloeError)
    def ours(request: Request, error: Exception) -> Response:
        assert isinstance(error, IcefloeError)
        status = status_of(error)
        if status >= 500:
            _log.warning("a request failed", exc_info=error)
        missing = error.missing if isinstance(error, AccessDeniedError) else ()
        seconds = error.context.get("retry_after")
        headers = {"retry-after": str(seconds)} if seconds else {}
        if status == 401:
            headers["www-authenticate"] = "Bearer"
        return problem(request, status, error.kind, str(error), headers, tuple(missing))

    @app.exception_handler(RequestValidationError)
    def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        faults = [
            f"{'.'.join(str(part) for part in fault['loc'])}: {fault['msg']}"
            for fault in error.errors()
        ]
        return problem(request, 422, ErrorKind.INVALID_REQUEST, "; ".join(faults))

    @app.exception_handler(HTTPException)
    def plain(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        code = _CODE_OF_STATUS.get(error.status_code, ErrorKind.INVALID_REQUEST)
        return problem(request, error.status_code, code, str(error.detail), error.headers)

    @app.exception_handler(Exception)
    def unforeseen(request: Request, error: Exception) -> Response:
        _log.error("a request failed in an unforeseen way", exc_info=error)
        text = "the service failed; its operators find the reason in the log"
        return problem(request, 500, ErrorKind.UNKNOWN, text)


def problem(
    request: Request,
    status: int,
    code: str,
    message: str,
    headers: Mapping[str, str] | None = None,
    missing: tuple[MissingGrant, ...] = (),
) -> Response:
    """Return the answer for an error."""
    request_id = getattr(request.state, "request_id", "")
    return answer(Problem(str(code), message, request_id, missing), status, headers)
