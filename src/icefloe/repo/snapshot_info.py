"""The public description of a snapshot and its files."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import chain, repeat
from typing import TYPE_CHECKING, Annotated, Any, Final, Self

from icefloe.format.metadata import LateMetadata
from icefloe.format.snapshot_table import SnapshotEntry, SnapshotPage
from icefloe.values import U64, Moment, Value
from icefloe.values.times import to_datetime, to_datetimes


def _own_copy(metadata: Mapping[str, Any], name: str) -> dict[str, Any]:
    del name
    return dict(metadata)


class _RowOfColumns:
    """A value whose fields are looked up in columns when they are first asked for.

    Its slots are empty until then, which brings Python to `__getattr__`.
    """

    __slots__ = ("_columns", "_position")
    _columns: "_Columns"
    _position: int

    if not TYPE_CHECKING:  # to a type checker only the fields are there

        def __getattr__(self, name: str) -> Any:
            if name not in _SETTERS:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            if name == "metadata":
                self._columns.fill_metadata(self, self._position)
            else:
                self._columns.fill(name)
            return getattr(self, name)


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
    def of_page(cls, page: Sequence[SnapshotEntry]) -> "Iterator[SnapshotInfo]":
        """Show many entries to users; in a long history they ask for few of the properties."""
        if not isinstance(page, SnapshotPage):
            return map(cls.of, page)
        return chain.from_iterable(_Columns(portion).rows for portion in page.portions())


def _setter_of(slot: str) -> Callable[[object, object], None]:
    """Return what fills a slot, in frozen values too."""
    setter: Callable[[object, object], None] = getattr(SnapshotInfo, slot).__set__
    return setter


_SETTERS: Final = {field.name: _setter_of(field.name) for field in fields(SnapshotInfo)}
_SET_COLUMNS: Final = _setter_of("_columns")
_SET_POSITION: Final = _setter_of("_position")


class _Columns:
    """The properties of many snapshots, each converted for all of them when first asked for."""

    def __init__(self, page: SnapshotPage) -> None:
        self._page = page
        count = len(page)
        self.rows = list(map(object.__new__, repeat(SnapshotInfo, count)))
        _fill(_SET_COLUMNS, self.rows, repeat(self, count))
        _fill(_SET_POSITION, self.rows, range(count))

    def fill(self, name: str) -> None:
        """Set a field of all rows."""
        page = self._page
        values: Sequence[object]
        match name:
            case "id":
                values = page.ids()
            case "parent_id":
                values = page.parents()
            case "written_at":
                values = to_datetimes(page.flushed_at())
            case _:
                values = page.messages()
        _fill(_SETTERS[name], self.rows, values)

    def fill_metadata(self, row: SnapshotInfo, position: int) -> None:
        """Set the metadata of one row, which may be long or damaged, and of all without any."""
        if metadata := self._metadata[position]:
            _SETTERS["metadata"](row, metadata)

    @cached_property
    def _metadata(self) -> LateMetadata:
        metadata = self._page.metadata()
        bare = [self.rows[position] for position in metadata.owners_of_none()]
        _fill(_SETTERS["metadata"], bare, ({} for _ in bare))
        return metadata


def _fill(
    setter: Callable[[object, object], None], rows: Sequence[object], values: Iterable[object]
) -> None:
    deque(map(setter, rows, values), maxlen=0)


@dataclass(frozen=True, slots=True)
class ManifestFileInfo(Value):
    """A manifest that a snapshot uses: its size, and how many chunks it locates.

    >>> ManifestFileInfo("2366RVGR4DYH4HDQG9EG", size_bytes=159, num_chunk_refs=2).num_chunk_refs
    2
    """

    id: str
    size_bytes: U64
    num_chunk_refs: U64
