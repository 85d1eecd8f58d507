"""The external data of a repository: locations of virtual chunks, and the versions that use them.

References are counted manifest by manifest, as columns, and each manifest is read once, however
many versions link it. The counts of a manifest stay in memory only until the last version that
links it.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final, Literal

import numpy as np

from icefloe.config import VirtualChunkContainer
from icefloe.effects import offload
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format.arrow import pa
from icefloe.format.columns import BytesColumn, Ints, concat_bytes, is_ascending, numbers_to_arrow
from icefloe.format.ids import NodeId
from icefloe.format.manifest import Manifest
from icefloe.format.repo_info import MAIN_BRANCH
from icefloe.format.snapshot_table import SnapshotEntry
from icefloe.maintenance.dependencies.places import PlaceSummary, UsedPlaces
from icefloe.records import Record, asdict
from icefloe.repo.context import RepoContext
from icefloe.repo.history import history_lines, resolve
from icefloe.reports import Report, counted, shown_bytes
from icefloe.values.model import Progress
from icefloe.values.urls import parse_prefix
from icefloe.virtual_chunks.grouping import (
    Grouped,
    LocalCounts,
    LocationQuery,
    PartCounts,
    PlaceCounter,
    PlaceGrouping,
    PlaceIndex,
    by_bucket,
    by_file,
    by_folder,
    by_number,
    covering,
    is_below_name,
)
from icefloe.walk.history import ManifestFact, ReadLimits, read_manifests
from icefloe.walk.links import ManifestLinks, ManifestPart, manifest_links

type By = Literal["container", "bucket", "prefix", "file", "array"]
NO_CONTAINER: Final = "(no container)"
"""The place of locations that no configured container covers."""
_SHOWN_ROWS: Final = 30
_SHORT_ID: Final = 8
_LIMITS: Final = ReadLimits(manifests=8, compressed_bytes=32 * 2**20)
_WAITING_BYTES: Final = 64 * 2**20


class VersionQuery(Record):
    """A selection of versions: a single version, its ancestry, or all of every ref."""

    branch: str | None = None
    tag: str | None = None
    snapshot_id: str | None = None
    with_history: bool = False

    async def lines(self, context: RepoContext) -> list[list[SnapshotEntry]]:
        """List them as histories, each newest first."""
        named = (self.branch, self.tag, self.snapshot_id)
        if self.with_history and not any(name is not None for name in named):
            return await history_lines(context.ledger)
        branch = self.branch if any(name is not None for name in named) else MAIN_BRANCH
        snapshot = await resolve(context, branch=branch, tag=self.tag, snapshot_id=self.snapshot_id)
        if self.with_history:
            return await history_lines(context.ledger, snapshot)
        return [[await context.ledger.entry(snapshot)]]


class VirtualDependency(Record):
    """Virtual chunks in one place.

    Chunks, bytes and arrays are those of the newest version that has chunks there.
    """

    place: str
    chunks: int
    bytes: int
    arrays: int
    versions: int
    newest_snapshot: str
    oldest_snapshot: str


class VirtualDependencies(Report, Record, eq=False):
    """Locations of virtual chunks, a row for each location; most bytes first.

    Iterate over it for the rows, or take all as an Arrow table.
    """

    by: By
    places: BytesColumn
    chunk_counts: Ints
    byte_counts: Ints
    array_counts: Ints
    version_counts: Ints
    newest: Ints
    """For each place the newest version with chunks there, as a row of `entries`."""
    oldest: Ints
    entries: Sequence[SnapshotEntry]
    """All versions that were examined, newest first."""

    shown_rows = _SHOWN_ROWS
    has_empty_table = True

    def __len__(self) -> int:
        return len(self.places)

    def __iter__(self) -> Iterator[VirtualDependency]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, row: int) -> VirtualDependency:
        row = range(len(self))[row]
        return VirtualDependency(
            self.places[row].decode(),
            int(self.chunk_counts[row]),
            int(self.byte_counts[row]),
            int(self.array_counts[row]),
            int(self.version_counts[row]),
            str(self.entries[self.newest[row]].id),
            str(self.entries[self.oldest[row]].id),
        )

    @property
    def chunks(self) -> int:
        """The number of chunks in all places."""
        return int(self.chunk_counts.sum())

    @property
    def bytes(self) -> int:
        """The total size of these chunks in bytes."""
        return int(self.byte_counts.sum())

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return the rows as dictionaries, ready for JSON."""
        return [asdict(row) for row in self]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as a dictionary, ready for JSON."""
        sums = {"by": self.by, "chunks": self.chunks, "bytes": self.bytes}
        return {**sums, "rows": self.to_dicts()}

    def to_arrow(self) -> "pa.Table":
        """Return all rows as an Arrow table: no Python object for each, for millions of places."""
        ids = BytesColumn.from_strings([str(entry.id) for entry in self.entries]).to_arrow_strings()
        columns = {
            "place": self.places.to_arrow_strings(),
            "chunks": numbers_to_arrow(self.chunk_counts),
            "bytes": numbers_to_arrow(self.byte_counts),
            "arrays": numbers_to_arrow(self.array_counts),
            "versions": numbers_to_arrow(self.version_counts),
            "newest_snapshot": ids.take(numbers_to_arrow(self.newest)),
            "oldest_snapshot": ids.take(numbers_to_arrow(self.oldest)),
        }
        return pa.Table.from_arrays(list(columns.values()), list(columns))

    @property
    def headings(self) -> tuple[str, ...]:
        """The headings of the columns of `rows`."""
        return (self.by, "chunks", "bytes", "arrays", "versions", "newest", "oldest")

    def _rows(self) -> Iterator[list[object]]:
        for row in self:
            yield [
                row.place,
                row.chunks,
                shown_bytes(row.bytes),
                row.arrays,
                row.versions,
                row.newest_snapshot[:_SHORT_ID],
                row.oldest_snapshot[:_SHORT_ID],
            ]

    def _notes(self) -> Iterator[str]:
        yield self.total()

    def total(self, most: int = _SHOWN_ROWS) -> str:
        """Sum up in a line, with how many rows are left out."""
        text = f"{len(self)} in all: {counted(self.chunks, 'chunk')}, {shown_bytes(self.bytes)}"
        left_out = len(self) - most
        return f"{text} ({left_out} not shown)" if left_out > 0 else text


async def dependencies(
    context: RepoContext,
    by: By,
    *,
    versions: VersionQuery,
    query: LocationQuery | None = None,
    depth: int = 1,
    progress: Progress | None = None,
) -> VirtualDependencies:
    """Sum up where virtual chunks lie.

    Chunks, bytes and arrays of a place are those of the newest version that has chunks there;
    beside them stands how many versions have any, and which is the newest and the oldest.
    """
    grouping = None if by == "array" else _grouping(context, by, depth)
    return await summary(context, by, grouping, versions=versions, query=query, progress=progress)


async def summary(
    context: RepoContext,
    by: By,
    grouping: PlaceGrouping | None,
    *,
    versions: VersionQuery,
    query: LocationQuery | None = None,
    progress: Progress | None = None,
) -> VirtualDependencies:
    """Sum up by any grouping of locations; without one, by array."""
    links = await manifest_links(context, await versions.lines(context))
    counter = PlaceCounter(context.virtual.resolver.absolute, query or LocationQuery(), grouping)
    tally = _Tally(context, links, counter, progress)
    for number in range(len(links.steps)):
        await tally.take(number)
    used = tally.summary.finished()
    places = tally.places.column
    if grouping is None:
        paths = [links.paths[NodeId(raw)][1] for raw in places.to_list()]
        places = BytesColumn.from_strings(paths)
    return _ordered(by, used, places, links.versions)


def _grouping(context: RepoContext, by: By, depth: int) -> PlaceGrouping:
    match by:
        case "file":
            return lambda _, locations: by_file(locations)
        case "bucket":
            return lambda _, locations: by_bucket(locations)
        case "prefix" if depth >= 0:
            return lambda _, locations: by_folder(locations, depth)
        case "prefix":
            raise InvalidInputError(
                f"depth is the number of folders to tell apart, at least 0: got {depth}",
                ErrorKind.INVALID_CONFIG,
            )
        case "container":
            return _by_container(context)
        case _:
            raise InvalidInputError(
                f"by must be 'container', 'bucket', 'prefix', 'file' or 'array', got {by!r}",
                ErrorKind.INVALID_CONFIG,
            )


def container_numbers(
    containers: Sequence[VirtualChunkContainer], recorded: BytesColumn, canonical: BytesColumn
) -> Ints:
    """Number the container of each location; -1 where none covers it.

    What is recorded below the name of a container is in that one, whatever else covers it.
    """
    numbers = covering(canonical, [parse_prefix(declared.url_prefix) for declared in containers])
    for number, container in enumerate(containers):
        if container.name is not None:
            numbers[is_below_name(recorded, container.name)] = number
    return numbers


def _by_container(context: RepoContext) -> PlaceGrouping:
    containers = context.config.virtual_chunk_containers
    labels = BytesColumn.from_strings(
        [*(container.url_prefix for container in containers), NO_CONTAINER]
    )

    def group(recorded: BytesColumn, canonical: BytesColumn) -> Grouped:
        numbers = container_numbers(containers, recorded, canonical)
        return by_number(labels, numbers % len(labels))

    return group


class _Tally:
    """Goes from version to version, and counts the references that are new in each."""

    def __init__(
        self,
        context: RepoContext,
        links: ManifestLinks,
        counter: PlaceCounter,
        progress: Progress | None,
    ) -> None:
        self.summary = PlaceSummary()
        self.places = PlaceIndex()
        self._context = context
        self._links = links
        self._counter = counter
        self._progress = progress
        self._last_uses = links.last_uses()
        self._counts: dict[int, PartCounts] = {}
        """Of the parts that a later step needs, by their numbers."""
        self._waiting: dict[int, LocalCounts] = {}
        """Counts whose places have no numbers yet: many are numbered at once."""
        self._waiting_bytes = 0
        self._done = 0

    async def take(self, number: int) -> None:
        """Take one step."""
        step = self._links.steps[number]
        await self._read([part for part in step.added if part not in self._counts])
        added = [self._counts[part] for part in step.added]
        removed = [self._counts[part] for part in step.removed]
        self.summary.resize(len(self.places))
        if step.begins_line:
            self.summary.begin_line()
        self.summary.take(step.rank, added, removed)
        for part in {*step.added, *step.removed}:
            if self._last_uses[part] == number:
                del self._counts[part]

    async def _read(self, parts: Sequence[int]) -> None:
        """Count the references of some parts, a few manifests at a time."""
        by_manifest: dict[ManifestFact, list[int]] = {}
        for part in parts:
            by_manifest.setdefault(self._links.parts[part].manifest, []).append(part)
        async for fact, file in read_manifests(
            self._context, by_manifest, lambda whole: whole, limits=_LIMITS, uses_cache=True
        ):
            for number in by_manifest[fact]:
                # One after the other: the counter remembers the locations of the last one.
                counts = await offload(partial(self._count, file, self._links.parts[number]))
                self._waiting[number] = counts
                self._waiting_bytes += len(counts.places.data)
                self._done += 1
                if self._progress is not None:
                    self._progress(self._done, len(self._links.parts))
            if self._waiting_bytes > max(_WAITING_BYTES, self.places.size_bytes):
                await offload(self._number_places)
        await offload(self._number_places)

    def _count(self, file: Manifest, part: ManifestPart) -> LocalCounts:
        table = file.table(part.node)
        if part.grid is not None and len(table):
            table = table.within(part.grid)
        return self._counter.count(table, part.node)

    def _number_places(self) -> None:
        waiting = self._waiting
        columns = [counts.places for counts in waiting.values()]
        numbers = self.places.numbers(concat_bytes(columns))
        edges = np.cumsum([len(column) for column in columns])[:-1]
        parts = np.split(numbers, edges) if columns else []
        for (number, counts), places in zip(waiting.items(), parts, strict=True):
            self._counts[number] = PartCounts(counts.node, places, counts.chunks, counts.bytes_)
        self._waiting, self._waiting_bytes = {}, 0


def _ordered(
    by: By, used: UsedPlaces, places: BytesColumn, entries: Sequence[SnapshotEntry]
) -> VirtualDependencies:
    """Put the places with most bytes first; where that is the same, by name."""
    names = places if len(used.places) == len(places) else places.take(used.places)
    by_name = np.arange(len(names)) if names.is_ascending() else names.sort_order()
    order = by_name[np.argsort(-used.bytes_[by_name], kind="stable")]
    return VirtualDependencies(
        by,
        names if is_ascending(order) else names.take(order),
        used.chunks[order],
        used.bytes_[order],
        used.arrays[order],
        used.versions[order],
        used.newest[order],
        used.oldest[order],
        entries,
    )
