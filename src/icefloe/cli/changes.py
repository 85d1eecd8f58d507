"""The changes between two versions: nodes, and regions of arrays in index and coordinates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from icefloe.format.nodes import ArrayNode
from icefloe.pipeline.files import is_record
from icefloe.records import Record
from icefloe.reports import JsonReady, Report, plain
from icefloe.transactions.diffs import Diff
from icefloe.walk.regions import ChunkRuns, chunk_runs, elements_of, regions
from icefloe.web.nodes import document_of
from icefloe.web.pictures import Dimension, dimensions_of
from icefloe.web.versions import Version

if TYPE_CHECKING:
    from icefloe.api.repository import Repository
    from icefloe.format.chunk_table import Coordinates
    from icefloe.repo.snapshot_info import SnapshotInfo

_KINDS: Final = (
    ("new_groups", "group created"),
    ("new_arrays", "array created"),
    ("updated_groups", "group changed"),
    ("updated_arrays", "array changed"),
    ("deleted_groups", "group deleted"),
    ("deleted_arrays", "array deleted"),
)


class ChangedRegion(Record, JsonReady):
    """A box of chunks that were written or deleted."""

    chunks: tuple[tuple[int, int], ...]
    """The first chunk and the end along each dimension."""
    index: tuple[tuple[int, int], ...] | None
    """The same in elements; None if the grid of the array is of no known kind."""
    coordinates: dict[str, tuple[str, str]]
    """The coordinates of the first and of the last element, for dimensions that have some."""


class ChangedArray(Record, JsonReady):
    """An array of which chunks were written or deleted."""

    path: str
    num_chunks: int
    regions: tuple[ChangedRegion, ...] | None
    """None if only the number of chunks was counted."""
    is_exact: bool
    """Whether the regions hold nothing but these chunks; otherwise one lies around them."""


class Changes(Report):
    """The changes from a version to a later one."""

    __slots__ = ("_arrays", "_diff", "_from", "_most", "_to")

    def __init__(
        self,
        earlier: SnapshotInfo,
        later: SnapshotInfo,
        diff: Diff,
        arrays: Sequence[ChangedArray],
        most: int,
    ) -> None:
        self._from, self._to = earlier, later
        self._diff, self._arrays, self._most = diff, arrays, most

    @property
    def headings(self) -> Sequence[str]:
        """The headings of the table."""
        return ("change", "path", "index", "coordinates", "chunks")

    def rows(self, most: int | None = None) -> list[list[object]]:
        """Return the first rows of the table."""
        return super().rows(self._most if most is None else most)

    def _rows(self) -> Iterable[Iterable[object]]:
        """Yield all changes but those of the records of ingested files."""
        return (row for row in self._all_rows() if not is_record(str(row[1]).lstrip("/")))

    def _all_rows(self) -> Iterator[tuple[object, ...]]:
        for name, title in _KINDS:
            for path in sorted(getattr(self._diff, name)):
                yield title, path, "", "", ""
        for source, target in self._diff.moved_nodes:
            yield "moved", f"{source} -> {target}", "", "", ""
        for array in self._arrays:
            if array.regions is None:
                yield "chunks changed", array.path, "", "", array.num_chunks
                continue
            for number, region in enumerate(array.regions):
                count = "" if number else array.num_chunks
                around = "" if array.is_exact else "within "
                index = f"{around}{_index_text(region)}"
                yield "chunks changed", array.path, index, _labels_text(region), count

    def _notes(self) -> Iterable[str]:
        if self._diff.is_empty():
            yield "nothing changed"
        elif any(is_record(str(row[1]).lstrip("/")) for row in self._all_rows()):
            yield "the record of ingested files changed; `icefloe sources` lists them"
        hidden = sum(1 for _ in self._rows()) - self._most
        if hidden > 0:
            yield f"... and {hidden} more; --max-rows shows more"

    def to_dict(self) -> dict[str, Any]:
        """Return all changes, ready for JSON."""
        return {
            "from": self._from.id,
            "to": self._to.id,
            **{name: sorted(getattr(self._diff, name)) for name, _ in _KINDS},
            "moved_nodes": plain(self._diff.moved_nodes),
            "updated_chunks": [array.to_dict() for array in self._arrays],
        }


def read_changes(
    repository: Repository,
    earlier: SnapshotInfo,
    later: SnapshotInfo,
    most_rows: int,
    most_regions: int,
) -> Changes:
    """Compare two versions; regions are worked out for the first `most_rows` arrays."""
    if earlier.id == later.id:
        diff = Diff()
    else:
        diff = repository.diff(from_snapshot_id=earlier.id, to_snapshot_id=later.id)
    versions = [
        Version(info.id, "snapshot", repository.readonly_session(snapshot_id=info.id), {})
        for info in (later, earlier)
    ]
    arrays = [
        _changed(versions, path, coordinates, most_regions)
        if number < most_rows
        else ChangedArray(path, len(coordinates), None, is_exact=False)
        for number, (path, coordinates) in enumerate(diff.chunk_coordinates.items())
    ]
    return Changes(earlier, later, diff, arrays, most_rows)


def _changed(
    versions: Sequence[Version], path: str, coordinates: Coordinates, most: int
) -> ChangedArray:
    found = regions(coordinates, most)
    version, node = _holder(versions, path, coordinates)
    chunks: Sequence[ChunkRuns] | None = None
    dimensions: tuple[Dimension, ...] = ()
    if version is not None and node is not None:
        array = node.array
        chunks = chunk_runs(document_of(node), array.shape, array.num_chunks)
        dimensions = dimensions_of(version, node)
    shown = tuple(_region(box, chunks, dimensions) for box in found.pairs())
    return ChangedArray(path, len(coordinates), shown, found.is_exact)


def _holder(
    versions: Sequence[Version], path: str, coordinates: Coordinates
) -> tuple[Version | None, ArrayNode | None]:
    """Return the first version whose array has room for all chunks.

    That is the later one, unless the array was deleted or became smaller.
    """
    for version in versions:
        node = version.state.tree.find(path)
        if (
            isinstance(node, ArrayNode)
            and len(node.array.num_chunks) == coordinates.shape[1]
            and (coordinates < node.array.num_chunks).all()
        ):
            return version, node
    return None, None


def _region(
    box: Sequence[tuple[int, int]],
    chunks: Sequence[ChunkRuns] | None,
    dimensions: Sequence[Dimension],
) -> ChangedRegion:
    if chunks is None:
        return ChangedRegion(tuple(box), None, {})
    index = elements_of(box, chunks)
    labels = {
        dimension.name: (dimension.axis.label(first), dimension.axis.label(end - 1))
        for dimension, (first, end) in zip(dimensions, index, strict=True)
        if dimension.axis.values is not None and first < end
    }
    return ChangedRegion(tuple(box), tuple((first, end) for first, end in index), labels)


def _index_text(region: ChangedRegion) -> str:
    """Write a region as an index of numpy.

    >>> _index_text(ChangedRegion(((0, 1),), ((0, 24),), {}))
    '[0:24]'
    """
    if region.index is None:
        return "chunks " + ", ".join(f"{first}:{end}" for first, end in region.chunks)
    return "[" + ", ".join(f"{first}:{end}" for first, end in region.index) + "]"


def _labels_text(region: ChangedRegion) -> str:
    return ", ".join(
        f"{name} {first}" if first == last else f"{name} {first} … {last}"
        for name, (first, last) in region.coordinates.items()
    )
