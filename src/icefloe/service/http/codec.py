"""Records as bodies of requests and answers, and in the OpenAPI document.

`msgspec` reads and writes them. FastAPI only learns their names: their schemas are put into the
document in the end.
"""

from collections.abc import Callable, Mapping
from functools import cache
from types import NoneType, UnionType
from typing import Any, Final, get_args
from urllib.parse import parse_qsl

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.openapi.utils import get_openapi

FORM: Final = "application/x-www-form-urlencoded"
PUBLIC: Final = "public"
"""The tag of routes that need no login."""
_SECURITY: Final = {
    "token": {"type": "http", "scheme": "bearer", "bearerFormat": "icefloe_..."},
    "session": {
        "type": "apiKey",
        "in": "cookie",
        "name": "__Host-icefloe",
        "description": "The session of a browser; changes also need the header X-CSRF-Token.",
    },
}
_REFERENCE: Final = "x-record"
_TEMPLATE: Final = "#/components/schemas/{name}"


class Codec:
    """Makes a record usable where FastAPI expects a model: `Annotated[Bucket, Codec(), Body()]`."""

    def __get_pydantic_core_schema__(self, kind: Any, handler: Any) -> Any:
        """Return a validator that makes the record of plain JSON values."""
        from pydantic_core import core_schema

        def convert(value: Any) -> Any:
            try:
                return msgspec.convert(value, kind)
            except msgspec.ValidationError as error:
                raise ValueError(str(error)) from None

        del handler
        # A body that may be missing has the same schema as one that may not.
        records = [part for part in get_args(kind) if part is not NoneType]
        record = records[0] if isinstance(kind, UnionType) else kind
        _KINDS[_name(record)] = record
        metadata = {"pydantic_js_functions": [lambda *_: {_REFERENCE: _name(record)}]}
        return core_schema.no_info_plain_validator_function(convert, metadata=metadata)


_KINDS: Final[dict[str, Any]] = {}


@cache
def _name(kind: Any) -> str:
    ((reference,), _) = msgspec.json.schema_components([kind], ref_template="{name}")
    return str(reference["$ref"])


def answer(record: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a record, or records, as the body of an answer."""
    body = msgspec.json.encode(record)
    return Response(body, status, headers, media_type="application/json")


async def form_fields(request: Request) -> dict[str, str]:
    """Return the fields of a form; none if the body is no form."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != FORM:
        return {}
    try:
        pairs = parse_qsl((await request.body()).decode(), max_num_fields=20)
    except ValueError:
        return {}
    return dict(pairs)


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
        _, schemas = msgspec.json.schema_components(_KINDS.values(), ref_template=_TEMPLATE)
        components = document.setdefault("components", {}).setdefault("schemas", {})
        components.update(schemas)
        for name in ("HTTPValidationError", "ValidationError"):
            components.pop(name, None)
        document["components"]["securitySchemes"] = _SECURITY
        for operation in (o for path in document["paths"].values() for o in path.values()):
            is_public = PUBLIC in operation["tags"]
            operation["security"] = [] if is_public else [{name: []} for name in _SECURITY]
        resolved: dict[str, Any] = _resolve(document)
        return resolved

    return document


def _resolve(value: Any) -> Any:
    """Put references to records where FastAPI wrote their names."""
    if isinstance(value, dict):
        if _REFERENCE in value:
            return {"$ref": _TEMPLATE.format(name=value[_REFERENCE])}
        return {key: _resolve(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_resolve(inner) for inner in value]
    return value
