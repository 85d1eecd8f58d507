"""Small chunks kept together: many references, one chunk object, different offsets.

A chunk put in a pack has its id and offset at once, so the session can refer to it before its
bytes are stored. Until then they are read from memory; `flush` stores what is left, and must
have succeeded before the references become visible to anyone else.
"""

from dataclasses import dataclass, field
from threading import Lock
from typing import Final, Protocol

import numpy as np

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.forks import renew_lock_in_children
from icefloe.format.chunk_table import NativeChunk
from icefloe.format.ids import ChunkId
from icefloe.records import Record
from icefloe.storage.port import Buffer

_MEBIBYTE: Final = 2**20
_MOST_SEALED_PACKS: Final = 8
"""Full packs in memory at once; beyond, chunks are stored alone, which slows their writers."""


class PackingOptions(Record):
    """Settings for packing small chunks into shared chunk objects.

    >>> PackingOptions(max_chunk_bytes=64 * 1024)
    PackingOptions(max_chunk_bytes=65536, pack_bytes=16777216)
    """

    max_chunk_bytes: int = _MEBIBYTE
    """Larger chunks get an object of their own."""
    pack_bytes: int = 16 * _MEBIBYTE
    """Size of a shared object, and so of what is held in memory until it is full."""

    def __post_init__(self) -> None:
        if not 0 < self.max_chunk_bytes <= self.pack_bytes:
            raise InvalidInputError(
                f"packing needs 0 < max_chunk_bytes <= pack_bytes, got {self.max_chunk_bytes} "
                f"and {self.pack_bytes}",
                ErrorKind.INVALID_CONFIG,
            )


class ChunkSaver(Protocol):
    """The receiver of packs: `Assets` in a session."""

    async def save_chunk(self, chunk_id: ChunkId, data: Buffer, /) -> None:
        """Store a chunk object whole."""
        ...


@dataclass(slots=True, eq=False)
class _Pack:
    """Room for one chunk object, filled from the start; filled bytes never change again."""

    capacity: int
    id: ChunkId = field(default_factory=ChunkId.random)
    used: int = 0
    room: memoryview = field(init=False)

    def __post_init__(self) -> None:
        # Memory that is reserved but not touched: pages cost nothing until they are filled.
        self.room = memoryview(np.empty(self.capacity, np.uint8))

    def has_room_for(self, size: int) -> bool:
        return self.used + size <= self.capacity

    def append(self, data: memoryview) -> NativeChunk:
        start, self.used = self.used, self.used + len(data)
        self.room[start : self.used] = data
        return NativeChunk(self.id, start, len(data))

    def view(self, start: int, end: int) -> memoryview:
        return self.room[start:end].toreadonly()


class ChunkPacker:
    """Collects small chunks of one session; safe to use from several threads and tasks."""

    def __init__(self, saver: ChunkSaver, options: PackingOptions | None = None) -> None:
        self.options: Final = options or PackingOptions()
        self._saver = saver
        self._lock = Lock()
        renew_lock_in_children(self)
        self._unsaved: dict[ChunkId, _Pack] = {}
        """Every pack whose bytes are not known to be stored, the open one included."""
        self._open: _Pack | None = None
        self._failed: dict[ChunkId, _Pack] = {}

    def accepts(self, size_bytes: int) -> bool:
        """Return whether chunks of this size are packed."""
        return size_bytes <= self.options.max_chunk_bytes

    async def add(self, data: Buffer) -> NativeChunk:
        """Take a copy of a chunk's bytes; stores a pack that became full.

        When storing fails, nothing that was taken before is lost: it stays readable, and the
        next `add` or `flush` tries again.
        """
        view = memoryview(data).cast("B")
        if not self.accepts(len(view)):
            raise InvalidInputError(
                f"a chunk of {len(view)} bytes is too large for a pack: at most "
                f"{self.options.max_chunk_bytes}",
                ErrorKind.LIMIT_EXCEEDED,
            )
        if self._failed:  # take no more, or memory would fill while the storage is away
            with self._lock:
                failed = list(self._failed.values())
            await self._save_all(failed)
        ref, full = self._place(view)
        if ref is None:
            ref = NativeChunk(ChunkId.random(), 0, len(view))
            await self._saver.save_chunk(ref.id, bytes(view))
        elif full is not None:
            await self._save(full)
        return ref

    def pending(self, ref: NativeChunk) -> Buffer | None:
        """Return the bytes of a chunk that are not stored yet; `None` when they are."""
        pack = self._unsaved.get(ref.id)
        return None if pack is None else pack.view(ref.offset, ref.offset + ref.length)

    async def flush(self) -> None:
        """Store all that is still in memory.

        Packs that another thread is storing right now are stored here too: the same bytes
        under the same id, and on return all of them are known to be safe.
        """
        with self._lock:
            self._open = None
            unsaved = list(self._unsaved.values())
        await self._save_all(unsaved)

    def discard(self) -> None:
        """Forget what is not stored: the session dropped all references to it."""
        with self._lock:
            self._open = None
            self._unsaved.clear()
            self._failed.clear()

    def _place(self, view: memoryview) -> tuple[NativeChunk | None, _Pack | None]:
        """Copy bytes into a pack; gives no reference when too many full packs are waiting.

        Also gives the pack that thereby became full, if any: the caller has to store it.
        """
        with self._lock:
            pack, full = self._open, None
            if pack is None or not pack.has_room_for(len(view)):
                if len(self._unsaved) > _MOST_SEALED_PACKS:
                    return None, None
                full, pack = pack, _Pack(self.options.pack_bytes)
                self._open = self._unsaved[pack.id] = pack
            return pack.append(view), full

    async def _save_all(self, packs: list[_Pack]) -> None:
        for pack in packs:
            await self._save(pack)

    async def _save(self, pack: _Pack) -> None:
        try:
            await self._saver.save_chunk(pack.id, pack.view(0, pack.used))
        except BaseException:
            with self._lock:
                if pack.id in self._unsaved:  # else somebody else stored it meanwhile
                    self._failed[pack.id] = pack
            raise
        with self._lock:
            self._unsaved.pop(pack.id, None)
            self._failed.pop(pack.id, None)
