"""Lists in pages: a cursor is the key of the last entry, in a form that clients do not read."""

import base64
import binascii
import json
from enum import StrEnum
from typing import Annotated, Any

from fastapi import Query, Response
from sqlalchemy import Table

from icefloe.catalog.wire import Page
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.records import Record
from icefloe.service.database import rows
from icefloe.service.database.engine import Database
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


def page_of[T: Record](
    database: Database,
    table: Table,
    kind: type[T],
    *conditions: Any,
    state: StrEnum | None = None,
    limit: int,
    cursor: str | None,
) -> Response:
    """Return a page of entries as an answer: see `find_page`."""
    rows = find_page(database, table, kind, *conditions, state=state, limit=limit, cursor=cursor)
    return answer(rows)


def find_page[T: Record](
    database: Database,
    table: Table,
    kind: type[T],
    *conditions: Any,
    state: StrEnum | None = None,
    limit: int,
    cursor: str | None,
) -> Page[T]:
    """Return a page of the entries of a table for which conditions hold, in order of their keys.

    With `state`, the page has entries in this state only.
    """
    if state is not None:
        conditions = (*conditions, table.c.state == state)
    key = [column.name for column in table.primary_key]
    after = key_after(cursor, len(key))
    with database.reading() as connection:
        # One more than asked for shows whether there is another page.
        items = rows.find_all(connection, table, kind, *conditions, after=after, limit=limit + 1)
    shown = tuple(items[:limit])
    last = None
    if len(items) > limit:
        values = [getattr(shown[-1], name) for name in key]
        last = base64.urlsafe_b64encode(json.dumps(values).encode()).decode()
    return Page(shown, last)
