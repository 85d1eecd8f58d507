"""Records as bodies of requests and answers.

`msgspec` reads and writes them. FastAPI only learns their names: `document` puts their schemas into
the OpenAPI document in the end.
"""

from collections.abc import Mapping
from functools import cache
from types import NoneType, UnionType
from typing import Any, Final, get_args
from urllib.parse import parse_qsl

import msgspec
from fastapi import Request, Response

FORM: Final = "application/x-www-form-urlencoded"
PUBLIC: Final = "public"
"""The tag of routes that need no login."""
REFERENCE: Final = "x-record"
"""Where FastAPI writes the name of a record."""
KINDS: Final[dict[str, Any]] = {}
"""All records that are bodies, by the name of their schema."""


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
        KINDS[_name(record)] = record
        metadata = {"pydantic_js_functions": [lambda *_: {REFERENCE: _name(record)}]}
        return core_schema.no_info_plain_validator_function(convert, metadata=metadata)


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
