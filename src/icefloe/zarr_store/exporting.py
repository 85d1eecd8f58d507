"""A version written out as plain Zarr: documents and chunks under the keys that Zarr looks for.

Chunks are copied as they are, wherever they are kept. Documents follow, those further down first
and that of the root last: before it is there, nothing can be opened. A note in the place says what
is being written, so that the same can be finished by doing it again.
"""

import json
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import batched, chain, groupby
from math import prod
from typing import Any, Final

import numpy as np

from icefloe.effects import map_concurrently
from icefloe.errors import ErrorKind, InvalidInputError, ObjectNotFoundError, StorageError
from icefloe.format.chunk_table import ChunkTable
from icefloe.format.nodes import ArrayNode, Node
from icefloe.format.paths import ROOT, absolute_path, prefix_below
from icefloe.maintenance.clone.contents import not_the_same, portions_by_size
from icefloe.pacing import Pace, map_at_pace
from icefloe.records import Record, replace
from icefloe.repo.lifecycle import EXPORT_MARKER, Marker
from icefloe.reports import FactsReport, counted, shown_bytes
from icefloe.storage import Backend, Buffer, Storage
from icefloe.storage.keys import encode_key
from icefloe.storage.specs import AzureSpec, GcsSpec, LocalSpec, MemorySpec, S3Spec
from icefloe.transactions.chunks import chunk_tables, read_ref, require_authorised
from icefloe.transactions.nodes import parse_document, require_node
from icefloe.transactions.selections import ChunkRequest, FoundRefs, plan_requests, read_request
from icefloe.transactions.session import SessionState
from icefloe.values.model import Progress
from icefloe.walk.spill import Keys, KeySet
from icefloe.zarr_store.keys import METADATA, metadata_key

_JSON: Final = "application/json"
_CONSOLIDATED: Final = "consolidated_metadata"
_FEW_CHUNKS: Final = 1024
_ARRAYS_AT_ONCE: Final = 64
"""Up to this many arrays of few chunks are copied together: each would be a wait by itself."""


class ExportRules(Record):
    """The selection of data to write, and the checks of the result."""

    group: str = ROOT
    """The group, or array, that becomes the root."""
    consolidated: bool = False
    """Whether the document of the root repeats all others."""
    deep: bool = False
    """Whether to read everything again in the end."""


class ExportReport(FactsReport, Record):
    """The result of `Repository.export_to_zarr`."""

    snapshot_id: str
    groups: int
    arrays: int
    chunks: int
    chunks_copied: int
    """Those that an earlier run had not copied."""
    bytes_copied: int
    """Of those chunks."""
    chunks_compared: int
    """How many were read again and compared."""

    def _notes(self) -> Iterator[str]:
        there = self.chunks - self.chunks_copied
        held = f"{counted(self.groups, 'group')}, {counted(self.arrays, 'array')}"
        yield f"version {self.snapshot_id}: {held}"
        copied = f"{counted(self.chunks_copied, 'chunk')} copied ({shown_bytes(self.bytes_copied)})"
        yield f"{copied}, {counted(there, 'was', 'were')} there already"
        if self.chunks_compared:
            yield f"{counted(self.chunks_compared, 'chunk')} compared byte by byte: all the same"


async def export(
    session: SessionState, target: Storage, rules: ExportRules, progress: Progress | None = None
) -> ExportReport:
    """Write a version, or a group of it, to an empty place, or where the same was begun."""
    group = absolute_path(rules.group)
    root = require_node(session, group)
    nodes = list(session.tree.below(group))
    names = _Names(group)
    backend = _plain(target, [names.document(node) for node in nodes]).open()
    marker = Marker(
        EXPORT_MARKER,
        {"of": "an export", "snapshot": str(session.snapshot_id), "group": group},
    )
    arrays = [node for node in nodes if isinstance(node, ArrayNode)]
    await require_authorised(session, arrays)
    is_new = await marker.claim(backend)
    with KeySet() as there, KeySet() as expected:
        if not is_new:
            async for batch in backend.list():
                pairs = [(info.key, info.size_bytes) for info in batch]
                there.add(_numbers(pairs))
        is_near = isinstance(target.spec, LocalSpec | MemorySpec)
        run = _Exporting(
            session, backend, names, there, expected, progress, len(arrays), is_near=is_near
        )
        await run.write_chunks(arrays)
        await run.require_all()
        if rules.deep:
            await run.compare_chunks(arrays)
    await _write_documents(backend, names, nodes, root, consolidated=rules.consolidated)
    await marker.remove(backend)
    return ExportReport(
        snapshot_id=str(session.snapshot_id),
        groups=len(nodes) - len(arrays),
        arrays=len(arrays),
        chunks=run.chunks,
        chunks_copied=run.copied,
        bytes_copied=run.size_bytes,
        chunks_compared=run.compared,
    )


class _Exporting:
    def __init__(
        self,
        session: SessionState,
        target: Backend,
        names: "_Names",
        there: KeySet,
        expected: KeySet,
        progress: Progress | None,
        arrays: int,
        *,
        is_near: bool,
    ) -> None:
        self._session = session
        self._target = target
        context = session.context
        self._is_near = is_near and context.is_near and context.reads_nearby
        self._names = names
        self._there = there
        self._expected = expected
        self._progress = progress
        self._steps, self._total = 0, arrays
        self._pace = Pace()
        self.chunks = self.copied = self.size_bytes = self.compared = 0

    async def write_chunks(self, nodes: Sequence[ArrayNode]) -> None:
        """Write the chunks of arrays that are not there yet."""
        async for rows in self._rows(nodes):
            numbers = _numbers([(row.key, row.size_bytes) for row in rows])
            self._expected.add(numbers)
            is_there = self._there.contains(numbers).tolist()
            new = [row for row, is_written in zip(rows, is_there, strict=True) if not is_written]
            await self._copy(new)
            self.chunks += len(rows)
            self.copied += len(new)
            self.size_bytes += sum(row.size_bytes for row in new)
            self._advance(len(rows))
        self._advance(len(nodes))

    async def compare_chunks(self, nodes: Sequence[ArrayNode]) -> None:
        """Read the chunks of arrays on both sides, and require that they are the same."""
        async for rows in self._rows(nodes):
            answers = await self._for_each(self._is_same, rows, lambda row: row.size_bytes)
            for row, is_same in zip(rows, answers, strict=True):
                if not is_same:
                    raise not_the_same(row.key)
            self.compared += len(rows)
            self._advance(len(rows))

    async def require_all(self) -> None:
        """Look whether all chunks are there, by one listing."""
        count = 0
        async for batch in self._target.list():
            pairs = [(info.key, info.size_bytes) for info in batch]
            count += int(self._expected.contains(_numbers(pairs)).sum())
        if count < self.chunks:
            raise StorageError(
                f"{self.chunks - count} chunks were written, but are not listed afterwards:"
                " see whether somebody else writes to that place, and run this again"
            )

    @property
    def _at_once(self) -> int:
        return 4 if self._is_near else self._session.context.config.max_concurrent_requests

    async def _rows(self, nodes: Sequence[ArrayNode]) -> AsyncIterator[list["_Row"]]:
        """Yield the chunks of arrays in portions; those of small arrays share them."""
        small = [node for node in nodes if prod(node.array.num_chunks) <= _FEW_CHUNKS]
        for batch in batched(small, _ARRAYS_AT_ONCE):
            tables = await map_concurrently(self._tables, batch, limit=self._at_once)
            for some in self._portions(zip(batch, tables, strict=True)):
                yield some
        for node in nodes:
            if prod(node.array.num_chunks) > _FEW_CHUNKS:
                async for table in chunk_tables(self._session, node):
                    for some in self._portions([(node, [table])]):
                        yield some

    async def _tables(self, node: ArrayNode) -> list[ChunkTable]:
        return [table async for table in chunk_tables(self._session, node)]

    def _portions(
        self, tables_by_node: Iterable[tuple[ArrayNode, list[ChunkTable]]]
    ) -> Iterator[list["_Row"]]:
        rows: list[Iterator[_Row]] = []
        for node, tables in tables_by_node:
            key_of = self._names.chunks(node)
            rows += [_rows_of(table, key_of) for table in tables]
            self._total += sum(map(len, tables))
        return portions_by_size(chain.from_iterable(rows), lambda row: row.size_bytes)

    async def _copy(self, rows: Sequence["_Row"]) -> None:
        """Copy chunks; those that lie side by side in an object are read together."""
        parts: list[tuple[_Row, Buffer]] = []

        async def copy(request: ChunkRequest) -> None:
            data = await read_request(self._session, request)
            those = [rows[place] for place in request.places]
            if len(those) == 1:
                await self._target.put(those[0].key, data[0])
            else:
                parts.extend(zip(those, data, strict=True))

        async def put(part: tuple[_Row, Buffer]) -> None:
            await self._target.put(part[0].key, part[1])

        await self._for_each(copy, list(self._requests(rows)), lambda request: request.size_bytes)
        await self._for_each(put, parts, lambda part: len(part[1]))

    async def _for_each[A, T](
        self,
        function: Callable[[A], Coroutine[Any, Any, T]],
        items: Sequence[A],
        size_of: Callable[[A], int],
    ) -> list[T]:
        """Call a function for all items, over a network as many at a time as the storage bears."""
        if self._is_near:
            return await map_concurrently(function, items, limit=self._at_once)
        return await map_at_pace(
            function, items, pace=self._pace, most=self._at_once, size_of=size_of
        )

    def _requests(self, rows: Sequence["_Row"]) -> Iterator[ChunkRequest]:
        for _, members in groupby(range(len(rows)), key=lambda place: id(rows[place].table)):
            places = np.array([*members], np.int64)
            numbers = np.array([rows[place].number for place in places], np.int64)
            found = FoundRefs(rows[places[0]].table, numbers, places)
            # A pack that is still in memory has no ranges.
            yield from plan_requests(found, joins=self._session.packer is None)

    async def _read(self, row: "_Row") -> Buffer:
        return await read_ref(self._session, row.table.ref(row.number))

    async def _is_same(self, row: "_Row") -> bool:
        try:
            written = (await self._target.get(row.key)).data
        except ObjectNotFoundError:
            return False
        return memoryview(written) == memoryview(await self._read(row))

    def _advance(self, steps: int) -> None:
        self._steps += steps
        if self._progress is not None:
            self._progress(self._steps, max(self._total, self._steps))


class _Row(Record):
    """A chunk, where it is, and where it goes."""

    table: ChunkTable
    number: int
    key: str
    size_bytes: int


def _rows_of(table: ChunkTable, key_of: Callable[[Sequence[int]], str]) -> Iterator[_Row]:
    columns = zip(table.coordinates.tolist(), table.lengths.tolist(), strict=True)
    for number, (coordinates, size_bytes) in enumerate(columns):
        yield _Row(table, number, key_of(coordinates), size_bytes)


def _numbers(pairs: Sequence[tuple[str, int]]) -> Keys:
    """Make a number of each key and size; two have the same about once in 2**64 pairs."""
    raw = b"".join(blake2b(f"{size}/{key}".encode(), digest_size=8).digest() for key, size in pairs)
    return np.frombuffer(raw, np.uint64)


# -- documents -----------------------------------------------------------------------------


async def _write_documents(
    target: Backend, names: "_Names", nodes: Sequence[Node], root: Node, *, consolidated: bool
) -> None:
    async def write(node: Node) -> None:
        await target.put(names.document(node), node.user_data, content_type=_JSON)

    below = [node for node in nodes if node.path != root.path]
    await map_concurrently(write, below, limit=16)
    data = root.user_data
    if consolidated and not isinstance(root, ArrayNode):
        data = _with_all(root, below, names)
    await target.put(METADATA, data, content_type=_JSON)


def _with_all(root: Node, below: Sequence[Node], names: "_Names") -> bytes:
    """Repeat all documents in that of the root."""
    own = parse_document(root.user_data, root.path)
    others: dict[str, Any] = {}
    for node in below:
        document = parse_document(node.user_data, node.path)
        if not isinstance(node, ArrayNode):
            document[_CONSOLIDATED] = _inline({})
        others[names.relative(node)] = document
    own[_CONSOLIDATED] = _inline(others)
    return json.dumps(own, indent=2).encode()


def _inline(documents: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "inline", "must_understand": False, "metadata": documents}


# -- keys ----------------------------------------------------------------------------------


class _Names(Record):
    """The names of nodes and chunks below the group that becomes the root."""

    group: str

    def relative(self, node: Node) -> str:
        return "" if node.path == self.group else node.path[len(prefix_below(self.group)) :]

    def document(self, node: Node) -> str:
        return metadata_key(f"/{self.relative(node)}")

    def chunks(self, node: Node) -> Callable[[Sequence[int]], str]:
        """Return the chunk key encoding that the metadata of an array names."""
        start = f"{self.relative(node)}/" if self.relative(node) else ""
        document = parse_document(node.user_data, node.path)
        separator: str | None = None
        match document.get("chunk_key_encoding"):
            case {"name": "default" | "v2" as name, "configuration": {"separator": str(given)}}:
                separator = given
            case {"name": "default" | "v2" as name} | ("default" | "v2" as name):
                pass
            case other:
                raise InvalidInputError(
                    f"the chunks of {node.path} have keys of a kind that is not known: {other!r}",
                    ErrorKind.BAD_METADATA,
                    path=node.path,
                )
        if name == "default":
            between = "/" if separator is None else separator
            return lambda index: start + between.join(["c", *map(str, index)])
        dot = "." if separator is None else separator
        return lambda index: start + (dot.join(map(str, index)) or "0")


def _plain(target: Storage, keys: Sequence[str]) -> Storage:
    """Return a storage that keeps keys as they are: plain Zarr does not look for encoded ones."""
    if all(encode_key(key) == key for key in keys):
        return target
    match target.spec:
        case (LocalSpec() | S3Spec() | GcsSpec() | AzureSpec()) as spec if spec.encodes_keys:
            return Storage(replace(spec, encodes_keys=False))
    return target
