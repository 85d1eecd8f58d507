"""The files that virtual chunks of a version lie in: their counts, and their present state.

References are counted manifest by manifest, as columns, up to a limit; the counts tell whether
they are complete. Nothing but the repository is contacted, until a reader asks for the state of
some files.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

import numpy as np

from icefloe.effects import iterate_blocking, map_concurrently, run_blocking
from icefloe.errors import IcefloeError, InvalidInputError, ObjectNotFoundError
from icefloe.format.arrow import pc
from icefloe.format.chunk_table import ChunkKind, ChunkTable, VirtualChunk
from icefloe.format.columns import BytesColumn, Ints, mask_of
from icefloe.maintenance.dependencies.summary import VersionQuery, container_numbers
from icefloe.maintenance.verify.objects import Checksum, VirtualNeeds, virtual_needs
from icefloe.records import MutableRecord, Record, field
from icefloe.repo.context import RepoContext
from icefloe.storage.specs import without_secrets
from icefloe.virtual_chunks.grouping import PlaceIndex, absolute_all, by_file, canonical_all
from icefloe.virtual_chunks.reader import VirtualReader, find_change
from icefloe.walk.history import ManifestFact, ReadLimits, read_manifests
from icefloe.walk.links import ManifestPart, manifest_links
from icefloe.web.chunks import KINDS
from icefloe.web.versions import Version

MOST_REFERENCES: Final = 2_000_000
"""How many references a page reads, of a version with more."""
MOST_FILES: Final = 200_000
"""How many files a page counts, of a version with more."""
FILES_OF_A_PAGE: Final = 50
_MOST_BYTES: Final = 256 << 20
"""How many bytes of stored manifests a page reads."""
_MOST_CHECKSUMS: Final = 64
"""How many recorded states of a file are compared with its present one."""
_LIMITS: Final = ReadLimits(manifests=8, compressed_bytes=32 << 20)
_LARGEST_CHUNK_BYTES: Final = 2**40
"""Chunks that claim to be larger count as this, so that no sum overflows."""
_LOOKS_AT_ONCE: Final = 8


class KindCounts(MutableRecord):
    """The chunks of a kind, and their bytes."""

    chunks: int = 0
    size_bytes: int = 0


class SourceFiles(Record, eq=False):
    """The files of the virtual chunks of a version, in columns, in the order of their names."""

    names: BytesColumn
    """Locations without user, query and fragment; equal for all spellings of a file."""
    chunks: Ints
    size_bytes: Ints
    newest: Ints
    """The newest recorded modification, in seconds since 1970; 0 if there is none."""
    containers: Ints
    """The number of the container in the configuration; -1 if none covers the file."""
    kinds: dict[str, KindCounts]
    """Chunks of all kinds, by the name of the kind."""
    counted: int
    """How many references were read."""
    references: int
    """How many references the version has."""

    def __len__(self) -> int:
        return len(self.names)

    @property
    def is_complete(self) -> bool:
        """Whether all references were read."""
        return self.counted >= self.references


class FileRow(Record):
    """A file in a list."""

    name: str
    container: str | None
    chunks: int
    size_bytes: int
    newest: datetime | None


class FilePage(Record):
    """Some files, in the order of their names."""

    rows: tuple[FileRow, ...]
    total: int
    """How many files the search finds."""
    first: int
    """The position of the first row among them, from 1."""
    chunks: int
    size_bytes: int
    next: str | None
    """The name after which the next page begins."""


def count_files(version: Version) -> SourceFiles:
    """Count the virtual chunks of a version by file, up to limits of references and files."""
    tally, parts = _Tally(), _parts(version)
    affordable = _affordable(parts)
    for table in _tables(version, affordable):
        tally.add(table)
        if tally.is_full:
            break
    counted = references = tally.counted
    if tally.is_full or len(affordable) < len(parts):
        manifests = {part.manifest for part in parts}
        # About as many: a manifest may reach beyond the grid of an array.
        references = max(counted + 1, sum(fact.num_chunk_refs for fact in manifests))
    return tally.files(version.state.context, references)


def list_files(
    version: Version, files: SourceFiles, search: str = "", after: str | None = None
) -> FilePage:
    """Return the files that a search finds, at most `FILES_OF_A_PAGE`, behind a name.

    A search that is the beginning of a URL finds what begins with it; other texts are found
    anywhere in a name.
    """
    rows = np.arange(len(files))
    if search:
        match = pc.starts_with if "://" in search else pc.match_substring
        rows = np.flatnonzero(mask_of(match(files.names.to_arrow(), search.encode())))
    start = 0
    if after is not None:
        start = bisect_right(rows, after.encode(), key=lambda row: files.names[int(row)])
    chosen = rows[start : start + FILES_OF_A_PAGE].tolist()
    prefixes = [
        without_secrets(container.url_prefix)
        for container in version.state.context.config.virtual_chunk_containers
    ]
    listed = tuple(
        FileRow(
            files.names[row].decode(),
            prefixes[number] if (number := int(files.containers[row])) >= 0 else None,
            int(files.chunks[row]),
            int(files.size_bytes[row]),
            moment_of(int(files.newest[row])),
        )
        for row in chosen
    )
    is_last = start + len(chosen) >= len(rows)
    return FilePage(
        listed,
        len(rows),
        start + 1,
        int(files.chunks[rows].sum()),
        int(files.size_bytes[rows].sum()),
        None if is_last or not listed else listed[-1].name,
    )


def moment_of(seconds: int) -> datetime | None:
    """Return a recorded time; None for none."""
    return datetime.fromtimestamp(seconds, UTC) if seconds else None


# Counting


class _Tally:
    """Sums over references, by location as it is recorded."""

    def __init__(self) -> None:
        self.counted = 0
        self.is_full = False
        """Whether there are as many files as a page counts."""
        self._locations: Final = PlaceIndex()
        self._kinds: Final = {name: KindCounts() for name in KINDS.values()}
        self._chunks, self._bytes, self._newest = (np.zeros(0, np.int64) for _ in range(3))

    def add(self, table: ChunkTable) -> None:
        """Count the references of a table, or its first ones if it has too many files."""
        end = self._end(table)
        self.counted += end
        lengths = np.minimum(table.lengths[:end], _LARGEST_CHUNK_BYTES).astype(np.int64)
        kinds = table.kinds[:end]
        for kind, name in KINDS.items():
            is_kind = kinds == kind
            self._kinds[name].chunks += int(is_kind.sum())
            self._kinds[name].size_bytes += int(lengths[is_kind].sum())
        rows = np.flatnonzero(kinds == ChunkKind.VIRTUAL)
        if not len(rows):
            return
        used, local = np.unique(table.targets[rows], return_inverse=True)
        numbers = self._locations.numbers(table.locations.take(used))[local]
        missing = len(self._locations) - len(self._chunks)
        zeros = np.zeros(missing, np.int64)
        self._chunks, self._bytes, self._newest = (
            np.append(column, zeros) for column in (self._chunks, self._bytes, self._newest)
        )
        np.add.at(self._chunks, numbers, 1)
        np.add.at(self._bytes, numbers, lengths[rows])
        if table.last_modified is not None:
            np.maximum.at(self._newest, numbers, table.last_modified[rows].astype(np.int64))

    def _end(self, table: ChunkTable) -> int:
        """Return how many rows of a table have no more files than there is room for."""
        rows = np.flatnonzero(table.kinds == ChunkKind.VIRTUAL)
        _, firsts = np.unique(table.targets[rows], return_index=True)
        room = MOST_FILES - len(self._locations)
        if len(firsts) <= room:
            return len(table)
        self.is_full = True
        return int(rows[np.sort(firsts)[room]])

    def files(self, context: RepoContext, references: int) -> SourceFiles:
        """Return the sums by file: several recorded locations may be spellings of one file."""
        recorded = self._locations.column if len(self._locations) else BytesColumn.empty()
        canonical = _canonical(recorded, context.virtual)
        names, file_of = by_file(canonical)
        order = names.sort_order()
        position = np.empty(len(order), np.int64)
        position[order] = np.arange(len(order))
        file_of = position[file_of]
        chunks, size_bytes, newest = (np.zeros(len(names), np.int64) for _ in range(3))
        np.add.at(chunks, file_of, self._chunks)
        np.add.at(size_bytes, file_of, self._bytes)
        np.maximum.at(newest, file_of, self._newest)
        containers = np.full(len(names), -1)
        declared = context.config.virtual_chunk_containers
        containers[file_of] = container_numbers(declared, recorded, canonical)
        return SourceFiles(
            names.take(order),
            chunks,
            size_bytes,
            newest,
            containers,
            self._kinds,
            self.counted,
            references,
        )


def _parts(version: Version) -> list[ManifestPart]:
    """Return the parts of manifests that a version links."""
    context, state = version.state.context, version.state

    async def read() -> list[ManifestPart]:
        query = VersionQuery(snapshot_id=str(state.snapshot_id))
        return (await manifest_links(context, await query.lines(context))).parts

    return run_blocking(read())


def _affordable(parts: Sequence[ManifestPart]) -> list[ManifestPart]:
    """Return the parts whose manifests a page may read; a manifest that is too large is left out.

    The limits count the manifests in their order, each once.
    """
    references = size_bytes = 0
    is_affordable: dict[ManifestFact, bool] = {}
    for part in parts:
        fact = part.manifest
        if fact in is_affordable:
            continue
        fits = (
            references + fact.num_chunk_refs <= MOST_REFERENCES
            and size_bytes + fact.size_bytes <= _MOST_BYTES
        )
        is_affordable[fact] = fits
        if fits:
            references += fact.num_chunk_refs
            size_bytes += fact.size_bytes
    return [part for part in parts if is_affordable[part.manifest]]


def _tables(version: Version, parts: Sequence[ManifestPart]) -> Iterator[ChunkTable]:
    """Yield the references of some parts, a few manifests at a time."""
    by_manifest: dict[ManifestFact, list[ManifestPart]] = {}
    for part in parts:
        by_manifest.setdefault(part.manifest, []).append(part)
    context = version.state.context
    reading = read_manifests(
        context, by_manifest, lambda whole: whole, limits=_LIMITS, uses_cache=True
    )
    for fact, manifest in iterate_blocking(reading):
        for part in by_manifest[fact]:
            table = manifest.table(part.node)
            if part.grid is not None and len(table):
                table = table.within(part.grid)
            if len(table):
                yield table


# Looking at files


class FileState(StrEnum):
    """The state of a file, compared with that in which its chunks were recorded."""

    PRESENT = "present"
    MISSING = "missing"
    CHANGED = "changed"
    SHORT = "too short"
    NOT_ALLOWED = "not allowed"
    UNKNOWN = "unknown"


class LookedAt(Record):
    """The state of a file now, and the reason or a doubt."""

    state: FileState
    note: str = ""


class _Need(MutableRecord):
    """The part and the states of a file that chunks need."""

    location: str
    """As it is recorded."""
    end: int = 0
    checksums: set[Checksum] = field(default_factory=set)


def look_at_files(version: Version, names: Sequence[str]) -> dict[str, LookedAt]:
    """Look at some files, with the authorisations of the reader, and compare their states."""
    reader = version.state.context.virtual
    needs: dict[str, _Need] = {}
    file_names = BytesColumn.from_strings(names)
    for table in _tables(version, _affordable(_parts(version))):
        is_chosen = mask_of(
            pc.is_in(
                _canonical(table.locations, reader).to_arrow(), value_set=file_names.to_arrow()
            )
        )
        rows = np.flatnonzero(table.kinds == ChunkKind.VIRTUAL)
        rows = rows[is_chosen[table.targets[rows]]]
        if len(rows):
            _gather(virtual_needs(table.take(rows)), reader, needs)
    needed = [name for name in names if name in needs]

    async def look() -> list[LookedAt]:
        return await map_concurrently(
            lambda name: _look(reader, needs[name]), needed, limit=_LOOKS_AT_ONCE
        )

    return dict(zip(needed, run_blocking(look()), strict=True))


def _canonical(locations: BytesColumn, reader: VirtualReader) -> BytesColumn:
    """Write recorded locations as the names of files."""
    return canonical_all(absolute_all(locations, reader.resolver.absolute))


def _gather(of_table: VirtualNeeds, reader: VirtualReader, needs: dict[str, _Need]) -> None:
    """Note what some references need of their files."""
    names = _canonical(of_table.locations, reader).to_strings()
    ends = of_table.ends.tolist()
    for name, location, end in zip(names, of_table.locations.to_strings(), ends, strict=True):
        need = needs.setdefault(name, _Need(location))
        need.end = max(need.end, end)
    for row, etag_row, modified in of_table.checksums.tolist():
        checksums = needs[names[row]].checksums
        if len(checksums) < _MOST_CHECKSUMS:
            etag = None if etag_row < 0 else of_table.etags[etag_row].decode()
            checksums.add((etag, modified or None))


async def _look(reader: VirtualReader, need: _Need) -> LookedAt:
    try:
        resolved = reader.resolver.locate(need.location)
        if resolved.grant is None:
            return LookedAt(FileState.NOT_ALLOWED, "you did not authorise its container")
        info = await reader.look(need.location)
    except ObjectNotFoundError:
        return LookedAt(FileState.MISSING, "no such object")
    except InvalidInputError as refusal:
        return LookedAt(FileState.NOT_ALLOWED, refusal.message)
    except IcefloeError as failure:
        is_refused = failure.context.get("status") in (401, 403)
        state = FileState.NOT_ALLOWED if is_refused else FileState.UNKNOWN
        return LookedAt(state, failure.message)
    if need.end > info.size_bytes:
        sizes = f"chunks need {need.end:,} bytes, the file has {info.size_bytes:,}"
        return LookedAt(FileState.SHORT, sizes)
    if resolved.container.on_change == "off":
        return LookedAt(FileState.PRESENT, "changes are not watched in this container")
    if need.checksums <= {(None, None)}:
        return LookedAt(FileState.PRESENT, "no checksum is recorded: changes are not noticed")
    for etag, modified in sorted(need.checksums, key=str):
        change = find_change(VirtualChunk(need.location, 0, 0, etag, modified), info)
        if change is not None:
            note = f"{change.what} recorded {change.recorded}, found {change.found}"
            return LookedAt(FileState.CHANGED, note)
    return LookedAt(FileState.PRESENT)
