"""The OpenAPI document: what FastAPI knows of routes, with schemas, headers and examples."""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Final

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from icefloe.service.http.codec import KINDS, PUBLIC, REFERENCE
from icefloe.service.http.examples import PARAMETERS, PROBLEMS, example_of, plain

_TEMPLATE: Final = "#/components/schemas/{name}"
_SECURITY: Final = {
    "token": {"type": "http", "scheme": "bearer", "bearerFormat": "icefloe_..."},
    "session": {
        "type": "apiKey",
        "in": "cookie",
        "name": "__Host-icefloe",
        "description": "The session of a browser; changes also need the header X-CSRF-Token.",
    },
}
_IDEMPOTENCY_KEY: Final = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "A text of your choice. The same request with the same key gets the same"
    " answer within a day, and creates nothing again.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 200, "pattern": "^[!-~]+$"},
}


def _header(description: str, pattern: str) -> dict[str, Any]:
    schema = {"type": "string", "pattern": pattern}
    return {"description": description, "required": True, "schema": schema}


_REQUEST_ID: Final = _header("The id of the request, as in the log", "^[A-Za-z0-9._-]{1,64}$")
_ETAG: Final = _header("The version, for `If-Match` of a change", '^"[0-9]+"$')
_LOG_IN: Final = _header("How to log in", "^Bearer$")
_RETRY_AFTER: Final = {
    "description": "How many seconds to wait",
    "schema": {"type": "string", "pattern": "^[0-9]+$"},
}
_VERSIONED: Final = frozenset(
    {"Bucket", "Embargo", "Listing", "Policy", "Repository", "Subscription", "Suspension"}
)
"""Records whose version is in the header of the answer."""


def openapi_of(app: FastAPI) -> Callable[[], dict[str, Any]]:
    """Return a function that makes the OpenAPI document of an app, once."""

    @cache
    def document() -> dict[str, Any]:
        document = get_openapi(
            title=app.title,
            version=app.version,
            description=app.description,
            routes=app.routes,
            tags=app.openapi_tags,
        )
        _, schemas = msgspec.json.schema_components(KINDS.values(), ref_template=_TEMPLATE)
        components = document.setdefault("components", {}).setdefault("schemas", {})
        components.update(schemas)
        for name in ("HTTPValidationError", "ValidationError"):
            components.pop(name, None)
        document["components"]["securitySchemes"] = _SECURITY
        resolved: dict[str, Any] = _resolve(document)
        for operation in (o for path in resolved["paths"].values() for o in path.values()):
            _complete(operation)
        return resolved

    return document


def _resolve(value: Any) -> Any:
    """Put references to records where FastAPI wrote their names.

    A tuple of equal kinds becomes an array, which all generators of clients understand.
    """
    if isinstance(value, dict):
        if REFERENCE in value:
            return {"$ref": _TEMPLATE.format(name=value[REFERENCE])}
        if "prefixItems" in value:
            first, *others = value["prefixItems"]
            if all(other == first for other in others):
                value = {k: v for k, v in value.items() if k != "prefixItems"} | {"items": first}
        return {key: _resolve(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_resolve(inner) for inner in value]
    return value


def _complete(operation: dict[str, Any]) -> None:
    """Add to an operation how to log in, its headers, and an example of everything."""
    is_public = PUBLIC in operation["tags"]
    operation["security"] = [] if is_public else [{name: []} for name in _SECURITY]
    if "201" in operation["responses"]:
        operation.setdefault("parameters", []).append(dict(_IDEMPOTENCY_KEY))
    for parameter in operation.get("parameters", ()):
        name = parameter["name"].lower()
        of_tag = f"{operation['tags'][0]}/{name}"
        parameter["example"] = PARAMETERS.get(of_tag, PARAMETERS[name])
    for name, media in _records(operation.get("requestBody", {})):
        media["example"] = example_of(name)
    for status, answer in operation["responses"].items():
        headers = answer.setdefault("headers", {})
        headers["X-Request-Id"] = _REQUEST_ID
        if status == "401":
            headers["WWW-Authenticate"] = _LOG_IN
        if status in {"409", "429"}:
            headers["Retry-After"] = _RETRY_AFTER
        for name, media in _records(answer):
            if name in _VERSIONED:
                headers["ETag"] = _ETAG
            if "example" not in media:
                is_problem = name == "Problem"
                media["example"] = plain(PROBLEMS[int(status)]) if is_problem else example_of(name)


def _records(body: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Iterate over the names of records in a body, and their descriptions."""
    for media in body.get("content", {}).values():
        if (reference := media["schema"].get("$ref")) is not None:
            yield reference.rpartition("/")[2], media
