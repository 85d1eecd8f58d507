"""Lists in pages: a cursor is the key of the last entry, in a form that clients do not read."""

import base64
import binascii
import json
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import Query, Response

from icefloe.catalog.wire import Page
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.records import Record
from icefloe.service.http.codec import answer

Limit = Annotated[int, Query(ge=1, le=1000, description="The most entries to return")]
Cursor = Annotated[str | None, Query(max_length=1000, description="`next` of the page before")]


def key_after(cursor: str | None, length: int) -> tuple[Any, ...] | None:
    """Return the key that a cursor stands for; `length` is the number of its columns."""
    if cursor is None:
        return None
    try:
        key = json.loads(base64.urlsafe_b64decode(cursor))
    except (binascii.Error, ValueError):
        key = None
    if not isinstance(key, list) or len(key) != length or not all(isinstance(k, str) for k in key):
        problem = "the cursor is not one of this list: begin without one"
        raise InvalidInputError(problem, ErrorKind.INVALID_REQUEST)
    return tuple(key)


def page(items: Sequence[Record], limit: int, *key: str) -> Response:
    """Return a page of entries, of which one more than `limit` was looked for.

    `key` names the fields that the entries are in order of.
    """
    shown = tuple(items[:limit])
    last = None
    if len(items) > limit:
        values = [getattr(shown[-1], name) for name in key]
        last = base64.urlsafe_b64encode(json.dumps(values).encode()).decode()
    return answer(Page(shown, last))
