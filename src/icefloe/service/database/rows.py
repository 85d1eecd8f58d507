"""Records as rows: every table of the model is read and written in the same few ways."""

from collections.abc import Mapping
from functools import cache
from typing import Any, Final

import msgspec
from sqlalchemy import (
    Connection,
    CursorResult,
    Label,
    Row,
    Select,
    Table,
    and_,
    bindparam,
    delete,
    insert,
    select,
    update,
)

from icefloe.errors import AlreadyExistsError, ConflictError, ErrorKind, NotFoundError
from icefloe.records import Record, asdict


def row_of(record: Record, table: Table) -> dict[str, Any]:
    """Return the columns of a record; those that the table has no column for are left out."""
    names = {column.name for column in table.columns}
    return {name: value for name, value in asdict(record).items() if name in names}


def labelled(table: Table, kind: type[Record]) -> list[Label[Any]]:
    """Return the columns of a record for a join, under names that begin with the table's.

    `record_of` finds them by the table.
    """
    names = [name for name in kind.__struct_fields__ if name in table.c]
    return [table.c[name].label(f"{table.name}_{name}") for name in names]


def record_of[T: Record](kind: type[T], row: Row[Any], table: Table | None = None) -> T:
    """Make a record of a row that has its fields among its columns; of a table's in a join."""
    prefix = "" if table is None else f"{table.name}_"
    positions = _positions(kind, row._fields, prefix)
    return msgspec.convert({name: row[index] for name, index in positions}, kind, strict=False)


def records_of[T: Record](kind: type[T], result: CursorResult[Any]) -> list[T]:
    """Make a record of each row of a result that has its fields among its columns."""
    positions = _positions(kind, tuple(result.keys()), "")
    return [
        msgspec.convert({name: row[index] for name, index in positions}, kind, strict=False)
        for row in result
    ]


@cache
def _positions(kind: type[Record], columns: tuple[str, ...], prefix: str) -> list[tuple[str, int]]:
    """Return the fields of a record with the positions of their columns, if they have any."""
    positions = {column: index for index, column in enumerate(columns)}
    return [
        (name, positions[prefix + name])
        for name in kind.__struct_fields__
        if prefix + name in positions
    ]


def add(connection: Connection, table: Table, record: Record, **columns: Any) -> None:
    """Insert a record, with further columns; raise `AlreadyExistsError` if its key is taken."""
    values = row_of(record, table) | columns
    key = {column.name: values[column.name] for column in table.primary_key}
    require_absent(connection, table, **key)
    connection.execute(insert(table).values(values))


def require_absent(connection: Connection, table: Table, /, **key: object) -> None:
    """Raise `AlreadyExistsError` if there is a row with these values in some columns."""
    if _row(connection, table, key) is not None:
        shown = "/".join(str(value) for value in key.values())
        problem = f"{shown} exists already: choose another name"
        raise AlreadyExistsError(problem, ErrorKind.ENTRY_ALREADY_EXISTS)


def find[T: Record](
    connection: Connection, table: Table, kind: type[T], /, **key: object
) -> T | None:
    """Return the record with these values in some columns; None if there is none."""
    row = _row(connection, table, key)
    return None if row is None else record_of(kind, row)


def require[T: Record](connection: Connection, table: Table, kind: type[T], /, **key: object) -> T:
    """Return the record with these values in some columns; raise `NotFoundError` without."""
    record = find(connection, table, kind, **key)
    if record is None:
        raise not_found(table, key)
    return record


_NOUNS: Final = {
    "embargoes": "embargo",
    "people": "person",
    "policies": "policy",
    "repositories": "repository",
}
"""What one entry of a table is called, unless the table has the same name with an `s`."""


def not_found(table: Table, key: Mapping[str, object]) -> NotFoundError:
    """Return the error for something that the database does not contain."""
    noun = _NOUNS.get(table.name) or table.name.replace("_", " ").removesuffix("s")
    shown = "/".join(str(value) for value in key.values())
    return NotFoundError(f"there is no {noun} {shown}", ErrorKind.ENTRY_NOT_FOUND)


def find_all[T: Record](
    connection: Connection,
    table: Table,
    kind: type[T],
    *conditions: Any,
    after: tuple[Any, ...] | None = None,
    limit: int | None = None,
) -> list[T]:
    """Return the records for which conditions hold, by key; `after` the key of a last page."""
    query = select(table).where(*conditions).order_by(*table.primary_key)
    if after is not None:
        query = query.where(_after(tuple(table.primary_key), after))
    if limit is not None:
        query = query.limit(limit)
    return records_of(kind, connection.execute(query))


def _after(columns: tuple[Any, ...], values: tuple[Any, ...]) -> Any:
    """Compare a key with several columns, the first of which counts most."""
    first, value = columns[0], values[0]
    if len(columns) == 1:
        return first > value
    return (first > value) | and_(first == value, _after(columns[1:], values[1:]))


def change(
    connection: Connection, table: Table, record: Record, *, if_version: int | None = None
) -> int:
    """Replace a record, and return its new version.

    Raise `NotFoundError` if it does not exist, and `ConflictError` if it has another version
    than the one that was expected.
    """
    version = require_version(connection, table, record, if_version)
    values = row_of(record, table)
    key = {column.name: values.pop(column.name) for column in table.primary_key}
    condition = and_(*(table.c[name] == value for name, value in key.items()))
    connection.execute(update(table).where(condition).values(values | {"version": version + 1}))
    return version + 1


def require_version(
    connection: Connection, table: Table, record: Record, if_version: int | None
) -> int:
    """Lock the row of a record, and return its version.

    Raise `NotFoundError` if it does not exist, and `ConflictError` if it has another version
    than the one that was expected.
    """
    values = row_of(record, table)
    key = {column.name: values[column.name] for column in table.primary_key}
    row = _row(connection, table, key, for_update=True)
    if row is None:
        raise not_found(table, key)
    version = int(row._asdict()["version"])
    if if_version is not None and if_version != version:
        problem = f"somebody changed it first: it has version {version} now; read it again"
        raise ConflictError(message=problem, kind=ErrorKind.ENTRY_CHANGED)
    return version


def remove(connection: Connection, table: Table, /, **key: object) -> None:
    """Delete a row; raise `NotFoundError` if it does not exist."""
    condition = and_(*(table.c[name] == value for name, value in key.items()))
    if not connection.execute(delete(table).where(condition)).rowcount:
        raise not_found(table, key)


def _row(
    connection: Connection, table: Table, key: Mapping[str, object], *, for_update: bool = False
) -> Row[Any] | None:
    query = _by_key(table, tuple(key))
    if for_update:
        query = query.with_for_update()  # which SQLite neither has nor needs
    return connection.execute(query, key).first()


@cache
def _by_key(table: Table, names: tuple[str, ...]) -> Select[Any]:
    """Return the query for a row by some columns: made once, as that takes longer than running."""
    return select(table).where(*(table.c[name] == bindparam(name) for name in names))
