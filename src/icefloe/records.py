"""Records: classes of named fields that are quick to make, both the class and its objects.

A module with dataclasses spends most of its import time on them: `dataclass` compiles source code
for each class. These bases are `msgspec` structs, which Zarr loads in any case. Settings that
users see are dataclasses all the same.
"""

import dataclasses
from functools import cache
from typing import Any, cast, dataclass_transform

from msgspec import Struct, field, structs
from msgspec.structs import force_setattr

__all__ = ["MutableRecord", "Record", "asdict", "field", "field_names", "force_setattr", "replace"]


class _Comparable:
    """Defines `!=` as the opposite of `==` for classes that define `==`."""

    __slots__ = ()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "__eq__" in cls.__dict__:
            cls.__ne__ = object.__ne__  # type: ignore[method-assign]


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Record(Struct, _Comparable, frozen=True):
    """Base of frozen records, which are equal if their fields are.

    >>> class Box(Record):
    ...     first: int
    ...     last: int = 9
    >>> replace(Box(3), last=5)
    Box(first=3, last=5)
    """


@dataclass_transform(field_specifiers=(field,))
class MutableRecord(Struct, _Comparable):
    """Base of records whose fields may be set.

    >>> class Tally(MutableRecord):
    ...     rows: int = 0
    >>> tally = Tally()
    >>> tally.rows += 2
    >>> tally
    Tally(rows=2)
    """


def replace[T](record: T, /, **changes: Any) -> T:
    """Return a copy of a record, or of a dataclass, in which some fields have other values.

    Fields with a leading underscore are caches of what the others say: a copy begins without.
    """
    if isinstance(record, Record):
        changes = _caches(type(record)) | changes
    if isinstance(record, Struct):
        return cast("T", structs.replace(record, **changes))
    return cast("T", dataclasses.replace(cast("Any", record), **changes))


@cache
def _caches(kind: type[Record]) -> dict[str, None]:
    return dict.fromkeys(name for name in kind.__struct_fields__ if name.startswith("_"))


def asdict(record: object) -> dict[str, Any]:
    """Return the fields of a record, or of a dataclass, and of those within, as dictionaries."""
    return {name: _plain(getattr(record, name)) for name in field_names(record)}


def field_names(record: object) -> tuple[str, ...]:
    """Return the names of the fields of a record, or of a dataclass."""
    if isinstance(record, Struct):
        return record.__struct_fields__
    return tuple(field.name for field in dataclasses.fields(cast("Any", record)))


def _plain(value: Any) -> Any:
    if isinstance(value, Struct) or dataclasses.is_dataclass(value):
        return asdict(value)
    if isinstance(value, list | tuple):
        return type(value)(map(_plain, value))
    if isinstance(value, dict):
        return {key: _plain(content) for key, content in value.items()}
    return value
