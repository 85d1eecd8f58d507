"""The public description of a snapshot and its files."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Final, Self

from icefloe.format.metadata import LateMetadata
from icefloe.format.snapshot_table import SnapshotEntry, SnapshotPage
from icefloe.values import U64, Moment, Value
from icefloe.values.times import to_datetime


def _own_copy(metadata: Mapping[str, Any], name: str) -> dict[str, Any]:
    del name
    return dict(metadata)


class _Columns:
    """The properties of many snapshots, each converted for all of them when first asked for."""

    def __init__(self, page: SnapshotPage) -> None:
        self._page = page

    @cached_property
    def id(self) -> list[str]:
        return self._page.ids()

    @cached_property
    def parent_id(self) -> list[str | None]:
        return self._page.parents()

    @cached_property
    def written_at(self) -> list[datetime]:
        return [to_datetime(moment) for moment in self._page.flushed_at()]

    @cached_property
    def message(self) -> list[str]:
        return self._page.messages()

    @cached_property
    def metadata(self) -> LateMetadata:
        return self._page.metadata()


class _RowOfColumns:
    """A value whose fields are looked up in columns when they are first asked for.

    Its slots are empty until then, which brings Python to `__getattr__`.
    """

    __slots__ = ("_columns", "_place")
    _columns: _Columns
    _place: int

    if not TYPE_CHECKING:  # to a type checker only the fields are there

        def __getattr__(self, name: str) -> Any:
            if name not in _FIELDS:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            value = getattr(self._columns, name)[self._place]
            object.__setattr__(self, name, value)
            return value


@dataclass(frozen=True, slots=True)
class SnapshotInfo(Value, _RowOfColumns):
    """One version of the data: when it was written, by which commit, after which.

    `parent_id` is None for the first snapshot of a repository; the time is in UTC.

    >>> import icefloe
    >>> repository = icefloe.Repository.create(icefloe.in_memory_storage())
    >>> first = repository.lookup_snapshot(repository.lookup_branch("main"))
    >>> first.message, first.parent_id
    ('Repository initialized', None)
    """

    id: str
    parent_id: str | None
    written_at: Moment
    message: str
    metadata: Annotated[dict[str, Any], _own_copy]

    @classmethod
    def of(cls, entry: SnapshotEntry) -> Self:
        """Show an entry of the history to users."""
        return cls(
            str(entry.id),
            None if entry.parent is None else str(entry.parent),
            to_datetime(entry.flushed_at),
            entry.message,
            dict(entry.metadata),
        )

    @classmethod
    def of_page(cls, page: Sequence[SnapshotEntry]) -> list[Self]:
        """Show many entries to users; in a long history they ask for few of the properties."""
        if not isinstance(page, SnapshotPage):
            return [cls.of(entry) for entry in page]
        columns, new, put = _Columns(page), object.__new__, object.__setattr__
        infos = [new(cls) for _ in range(len(page))]
        for position, info in enumerate(infos):
            put(info, "_columns", columns)
            put(info, "_place", position)
        return infos


_FIELDS: Final = frozenset(field.name for field in fields(SnapshotInfo))


@dataclass(frozen=True, slots=True)
class ManifestFileInfo(Value):
    """A manifest that a snapshot uses: its size, and how many chunks it locates.

    >>> ManifestFileInfo("2366RVGR4DYH4HDQG9EG", size_bytes=159, num_chunk_refs=2).num_chunk_refs
    2
    """

    id: str
    size_bytes: U64
    num_chunk_refs: U64
