"""A session as a Zarr store: read, measure, write and delete the value of a key."""

from collections.abc import Iterable, Sequence
from typing import Any, Literal, Protocol, Self, override

from zarr.abc.store import (
    ByteRequest,
    OffsetByteRequest,
    RangeByteRequest,
    Store,
    SuffixByteRequest,
)
from zarr.core.buffer import Buffer, BufferPrototype, default_buffer_prototype
from zarr.core.sync import SyncMixin

from icefloe.effects import AsyncCloseableIterator, map_concurrently, run_blocking
from icefloe.errors import ErrorKind, InvalidInputError, SessionStateError
from icefloe.format.nodes import ArrayNode
from icefloe.format.paths import absolute_path
from icefloe.printable import escaped_html
from icefloe.storage.port import Buffer as StoredBytes
from icefloe.transactions.chunks import delete_chunk, find_ref, read_chunk, size_of, write_chunk
from icefloe.transactions.nodes import delete_node, put_metadata, require_array
from icefloe.transactions.session import SessionMode, SessionState
from icefloe.virtual_chunks.readahead import Limits, Request, merge_reads
from icefloe.zarr_store import listing
from icefloe.zarr_store.keys import (
    ChunkKey,
    MetadataKey,
    MissingKeyError,
    ReadOnlyStoreError,
    parse_key,
)
from icefloe.zarr_store.listing import ChunkBatch, FlattenedIterator, chunk_batches
from icefloe.zarr_store.virtual_writes import VirtualWrites


async def read_value(
    session: SessionState, key: str, window: slice | None = None
) -> StoredBytes | None:
    """Read the value of a key, or a part of it; `None` when there is none."""
    parsed = parse_key(key)
    if isinstance(parsed, ChunkKey):
        node = session.tree.find(parsed.path)
        if node is None:
            return None
        if not isinstance(node, ArrayNode):
            raise _only_arrays(parsed)
        return await read_chunk(session, node, parsed.coordinates, window)
    if isinstance(parsed, MetadataKey):
        node = session.tree.find(parsed.path)
        if node is None:
            return None
        return node.user_data if window is None else node.user_data[window]
    return None


async def size_of_value(session: SessionState, key: str) -> int | None:
    """Return the number of bytes under a key without reading them; `None` when there are none."""
    match parse_key(key):
        case MetadataKey(path):
            node = session.tree.find(path)
            return None if node is None else len(node.user_data)
        case ChunkKey(path, coordinates):
            node = session.tree.find(path)
            if not isinstance(node, ArrayNode):
                return None
            ref = await find_ref(session, node, coordinates)
            return None if ref is None else size_of(ref)
        case _:
            return None


async def has_value(session: SessionState, key: str) -> bool:
    """Return whether there is something under a key; under one that cannot exist there is not."""
    try:
        return await size_of_value(session, key) is not None
    except InvalidInputError:
        return False


async def write_value(session: SessionState, key: str, data: StoredBytes) -> None:
    """Write metadata or a chunk, replacing what was there."""
    match parse_key(key):
        case ChunkKey(path, coordinates):
            await write_chunk(session, require_array(session, path), coordinates, data)
        case MetadataKey(path):
            put_metadata(session, path, bytes(data))
        case _:
            raise SessionStateError(
                f"{key!r} is a key of Zarr format 2, and a repository holds format 3 only: "
                "create arrays and groups with zarr_format=3",
                ErrorKind.UNIMPLEMENTED,
                key=key,
            )


def delete_value(session: SessionState, key: str) -> None:
    """Delete metadata (with the node and all below it) or a chunk.

    What cannot exist is deleted already, however strange its key.
    """
    session.require_writable()
    try:
        parsed = parse_key(key)
    except InvalidInputError:
        return
    if isinstance(parsed, MetadataKey):
        delete_node(session, parsed.path)
    elif isinstance(parsed, ChunkKey):
        node = session.tree.find(parsed.path)
        if isinstance(node, ArrayNode):
            delete_chunk(session, node, parsed.coordinates)


def _only_arrays(key: ChunkKey) -> InvalidInputError:
    return InvalidInputError(
        f"{key.path} is a group, and only arrays have chunks",
        ErrorKind.NOT_AN_ARRAY,
        path=key.path,
    )


# Named here because within the class `list` is a method.
type Values = list[Buffer | None]
type Facts = list[tuple[str, str]]
type Parts = list[tuple[int, StoredBytes]]


class StoreOwner(Protocol):
    """The session object that users hold: it makes the store, and is pickled in its place."""

    @property
    def store(self) -> "IcechunkStore":
        """Return a store on this session."""
        ...


class IcechunkStore(VirtualWrites, Store, SyncMixin):
    """The hierarchy that a session sees, as Zarr reads and writes it.

    Metadata is interpreted, so only keys and documents of Zarr format 3 can be set; documents
    come back byte for byte. Chunks are visible to others once the session commits.
    Safe to use from several threads. Sessions make it: `repo.writable_session("main").store`.
    """

    def __init__(
        self, state: SessionState, session: StoreOwner | None = None, *, read_only: bool = False
    ) -> None:
        super().__init__(read_only=read_only)
        self._state = state
        self._owner = session
        self._supports_sync_io = _answers_at_once(state)
        """Zarr asks for it: whether threads that block may be used in place of its loop."""

    # -- what it is ------------------------------------------------------------------------

    @property
    def session(self) -> Any:
        """The session that the store reads and writes through."""
        return self._owner

    @property
    @override
    def read_only(self) -> bool:
        """Whether writes are refused; a session that was committed can only be read."""
        return self._read_only or self._state.mode is SessionMode.readonly

    @override
    def with_read_only(self, read_only: bool = False) -> Self:
        """Return another store on the same session; a read-only session stays read-only."""
        if not read_only:
            self._state.require_writable()
        return type(self)(self._state, self._owner, read_only=read_only)

    @property
    @override
    def supports_writes(self) -> bool:
        """Always: a session may refuse them, see `read_only`."""
        return True

    @property
    @override
    def supports_deletes(self) -> bool:
        """Always."""
        return True

    @property
    @override
    def supports_listing(self) -> bool:
        """Always."""
        return True

    @property
    @override
    def supports_partial_writes(self) -> Literal[False]:
        """Never: chunks are replaced whole."""
        return False

    @property
    @override
    def supports_consolidated_metadata(self) -> bool:
        """Never: a snapshot holds the metadata of all nodes already."""
        return False

    @override
    def __eq__(self, other: object) -> bool:
        """Compare what is seen: the same session, or the same snapshot of the same storage."""
        if not isinstance(other, IcechunkStore):
            return NotImplemented
        mine, theirs = self._state, other._state
        if mine is theirs:
            return True
        return (
            mine.mode is theirs.mode is SessionMode.readonly
            and mine.snapshot_id == theirs.snapshot_id
            and mine.context.storage == theirs.context.storage
        )

    __hash__ = None  # type: ignore[assignment] # what it sees changes

    def __reduce__(self) -> tuple[object, ...]:
        return (_restore, (self._owner, self._read_only))

    def __str__(self) -> str:
        lines = (f"{name}: {value}" for name, value in self._facts())
        return "\n".join(["<icefloe.IcechunkStore>", *lines])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<div><b>{name}:</b> {escaped_html(value)}</div>" for name, value in self._facts()
        )
        return f'<div class="icefloe-value"><div>icefloe.IcechunkStore</div>{rows}</div>'

    def _facts(self) -> Facts:
        state = self._state
        facts = [("read_only", str(self.read_only)), ("snapshot_id", str(state.snapshot_id))]
        return facts if state.branch is None else [*facts, ("branch", state.branch)]

    # -- reading ---------------------------------------------------------------------------

    @override
    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """Read a value, or a part of it; `None` for a missing key."""
        self._is_open = True
        window = None if byte_range is None else _window(byte_range)
        data = await read_value(self._state, key, window)
        return None if data is None else prototype.buffer.from_bytes(data)

    def get_sync(
        self,
        key: str,
        *,
        prototype: BufferPrototype | None = None,
        byte_range: ByteRequest | None = None,
    ) -> Buffer | None:
        """Read as `get` does, on this thread."""
        if prototype is None:
            prototype = default_buffer_prototype()
        return run_blocking(self.get(key, prototype, byte_range))

    @override
    async def get_partial_values(
        self,
        prototype: BufferPrototype,
        key_ranges: Iterable[tuple[str, ByteRequest | None]],
    ) -> Values:
        """Read several values or parts of them at once; results in order."""

        async def one(key_and_range: tuple[str, ByteRequest | None]) -> Buffer | None:
            key, byte_range = key_and_range
            return await self.get(key, prototype, byte_range)

        limit = self._state.context.config.get_partial_values_concurrency
        return await map_concurrently(one, key_ranges, limit=limit)

    @override
    def get_ranges_sync(
        self,
        key: str,
        byte_ranges: Sequence[ByteRequest | None],
        *,
        prototype: BufferPrototype,
        max_gap_bytes: int = 1 << 20,
        max_coalesced_bytes: int = 16 << 20,
    ) -> Sequence[tuple[int, Buffer | None]]:
        """Read parts of a value on this thread: those near each other at once, and all together."""
        limits = Limits(gap_bytes=max_gap_bytes, window_bytes=max_coalesced_bytes)
        parts = run_blocking(self._read_parts(key, byte_ranges, limits))
        if parts is None:
            return super().get_ranges_sync(key, byte_ranges, prototype=prototype)
        return [(row, prototype.buffer.from_bytes(data)) for row, data in parts]

    async def _read_parts(
        self, key: str, byte_ranges: Sequence[ByteRequest | None], limits: Limits
    ) -> Parts | None:
        """Read parts with few requests; `None` if that is not possible."""
        ranges = [(r.start, r.end) for r in byte_ranges if isinstance(r, RangeByteRequest)]
        if len(ranges) < len(byte_ranges) or any(not 0 <= first < last for first, last in ranges):
            return None

        async def read(request: Request) -> Parts | None:
            data = await read_value(self._state, key, slice(request.start, request.stop))
            if data is None:
                return None
            view, start = memoryview(data), request.start
            cuts = ((row, *ranges[row]) for row in request.rows)
            return [(row, view[first - start : last - start]) for row, first, last in cuts]

        limit = self._state.context.config.max_concurrent_requests
        answers = await map_concurrently(read, merge_reads(ranges, limits), limit=limit)
        return [part for parts in answers for part in parts or ()] if all(answers) else None

    @override
    async def exists(self, key: str) -> bool:
        """Return whether a key has a value, without reading it."""
        return await has_value(self._state, key)

    @override
    async def getsize(self, key: str) -> int:
        """Return the size of a value in bytes, without reading it."""
        if (size := await size_of_value(self._state, key)) is None:
            raise MissingKeyError(f"there is nothing under the key {key!r}", key=key)
        return size

    @override
    async def getsize_prefix(self, prefix: str) -> int:
        """Add up the sizes of all values in a directory, without reading them."""
        return await listing.size_below(self._state, prefix)

    # -- writing ---------------------------------------------------------------------------

    @override
    async def set(self, key: str, value: Buffer) -> None:
        """Write metadata or a chunk."""
        self._check_writable()
        if not isinstance(value, Buffer):
            raise TypeError(
                f"IcechunkStore.set(): `value` must be a Buffer instance. "
                f"Got an instance of {type(value)} instead."
            )
        await write_value(self._state, key, value.as_buffer_like())

    def set_sync(self, key: str, value: Buffer) -> None:
        """Write as `set` does, on this thread."""
        run_blocking(self.set(key, value))

    @override
    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        """Write unless there is a value already."""
        self._check_writable()
        if not await self.exists(key):
            await self.set(key, value)

    async def set_partial_values(
        self, key_start_values: Iterable[tuple[str, int, bytes | bytearray | memoryview]]
    ) -> None:
        """Refuse: chunks are replaced whole."""
        raise SessionStateError(
            "a store cannot write a part of a value: write it whole, with set",
            ErrorKind.UNIMPLEMENTED,
        )

    @override
    async def delete(self, key: str) -> None:
        """Delete a value; deleting what does not exist is not an error."""
        self._check_writable()
        delete_value(self._state, key)

    def delete_sync(self, key: str) -> None:
        """Delete as `delete` does, on this thread."""
        self._check_writable()
        delete_value(self._state, key)

    @override
    async def delete_dir(self, prefix: str) -> None:
        """Delete all that is in a directory, with the node there."""
        self._check_writable()
        await listing.delete_below(self._state, prefix)

    @override
    async def clear(self) -> None:
        """Delete the whole hierarchy; the history keeps it."""
        await self.delete_dir("")

    def sync_clear(self) -> None:
        """Clear as `clear` does, on this thread."""
        run_blocking(self.clear())

    @override
    def _check_writable(self) -> None:
        if self._state.mode is SessionMode.readonly:
            raise ReadOnlyStoreError(
                "store was opened in read-only mode and does not support writing: open a "
                "session with repo.writable_session(branch) and use its store"
            )
        if self._read_only:
            raise ReadOnlyStoreError(
                "store was opened in read-only mode and does not support writing: use the store "
                "of the session itself"
            )

    # -- listing ---------------------------------------------------------------------------

    @override
    def list(self) -> AsyncCloseableIterator[str]:
        """Walk all keys."""
        return self.list_prefix("")

    @override
    def list_prefix(self, prefix: str) -> AsyncCloseableIterator[str]:
        """Walk all keys in a directory: those of metadata first, then those of chunks."""
        return FlattenedIterator(listing.keys_below(self._state, prefix))

    @override
    def list_dir(self, prefix: str) -> AsyncCloseableIterator[str]:
        """Walk the names directly in a directory."""
        return FlattenedIterator(listing.names_in(self._state, prefix))

    @override
    async def is_empty(self, prefix: str) -> bool:
        """Return whether a directory holds no key at all."""
        return not await listing.has_keys_below(self._state, prefix)

    def array_chunk_iterator(
        self, array_path: str, batch_size: int = 100_000
    ) -> AsyncCloseableIterator[ChunkBatch]:
        """Walk the chunk references of an array in batches of columns.

        Each batch is a tuple: coordinates (one row per chunk), kinds (the numbers of
        `ChunkType`), locations (the id of a native chunk, empty for an inline one), offsets,
        lengths, and the bytes of inline chunks by row.
        """
        path = absolute_path(array_path)
        return AsyncCloseableIterator(chunk_batches(self._state, path, batch_size))


def far_session(store: Store) -> SessionState | None:
    """Return the session of a store of ours whose chunks are read over a network."""
    if not isinstance(store, IcechunkStore) or store._supports_sync_io:  # noqa: SLF001 - our class
        return None
    store._is_open = True  # noqa: SLF001 - as `get` does
    return store._state  # noqa: SLF001


def near_session(store: Store) -> SessionState | None:
    """Return the session of a store of ours whose chunks are read without a network."""
    if not isinstance(store, IcechunkStore) or not store._supports_sync_io:  # noqa: SLF001
        return None
    store._is_open = True  # noqa: SLF001 - as `get` does
    return store._state  # noqa: SLF001


def blocking_view(store: IcechunkStore) -> IcechunkStore:
    """Return another store on the same session, for threads that may wait for a network."""
    view = type(store)(store._state, store._owner, read_only=store._read_only)  # noqa: SLF001
    view._supports_sync_io = view._is_open = True  # noqa: SLF001
    return view


def _restore(owner: StoreOwner, read_only: bool) -> IcechunkStore:  # noqa: FBT001 - for pickle
    store = owner.store
    return store.with_read_only(read_only=True) if read_only else store


def _answers_at_once(state: SessionState) -> bool:
    """Return whether chunks are read and written without waiting for a network.

    Where they are not, Zarr's loop keeps more requests under way than its few threads can.
    A session that packs its chunks writes most of them to memory.
    """
    context = state.context
    if not context.reads_nearby:
        return False
    return context.is_near or state.packer is not None


def _window(byte_range: ByteRequest) -> slice:
    """Turn what Zarr asks for into a slice; ends beyond the value are cut off by slicing."""
    match byte_range:
        case RangeByteRequest(start, end) if start >= 0 and end >= 0:
            return slice(start, end)
        case OffsetByteRequest(offset) if offset >= 0:
            return slice(offset, None)
        case SuffixByteRequest(suffix) if suffix >= 0:
            return slice(-suffix, None) if suffix else slice(0, 0)
        case RangeByteRequest() | OffsetByteRequest() | SuffixByteRequest():
            raise InvalidInputError(
                f"a byte range has no negative numbers, got {byte_range}",
                ErrorKind.INVALID_BYTE_RANGE,
            )
    raise TypeError(f"Unexpected byte_range, got {byte_range!r}.")
