"""Whether the chunk objects that versions need are there and long enough: one listing for all."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, Self

import numpy as np

from icefloe.effects import map_concurrently
from icefloe.engine.maintenance.key_set import Keys, KeySet, keys_of_ids, keys_of_names
from icefloe.engine.verification.keyed import MAX_BYTES, KeyedColumn, Values, largest_of_each
from icefloe.errors import IcefloeError, InvalidInputError, ObjectNotFoundError
from icefloe.format.chunk_table import ChunkKind, ChunkTable
from icefloe.format.columns import Bytes, Ints
from icefloe.format.ids import ChunkId
from icefloe.format.layout import CHUNKS_PREFIX
from icefloe.storage import Backend, ObjectInfo

_MISSING: Final = np.uint64(2**64 - 1)
_PIECE_BYTES: Final = 16 * 2**20
"""Larger objects are read in pieces."""


class Fault(IntEnum):
    """What is wrong with a chunk object."""

    MISSING = 1
    SHORT = 2
    UNREADABLE = 3


def ends_of(table: ChunkTable) -> Values:
    """Say how far into its object each reference reaches; sums that overflow reach beyond all."""
    ends = table.offsets + table.lengths
    overflows = ends < table.lengths
    return np.where(overflows, _MISSING, ends) if overflows.any() else ends


def native_needs(table: ChunkTable) -> tuple[Keys, Values]:
    """Give the keys of the chunk objects of an array, and how far into them it reaches."""
    native = table.kinds == ChunkKind.NATIVE
    if not native.any():
        return np.empty(0, np.uint64), np.empty(0, np.uint64)
    keys, ends, targets = keys_of_ids(table.chunk_ids), ends_of(table), table.targets
    if native.all():
        return keys[targets], ends
    return keys[targets[native]], ends[native]


def objects_of(table: ChunkTable) -> Bytes:
    """List the chunk objects of native references, each once, in order."""
    rows = np.ascontiguousarray(table.chunk_ids[table.targets])
    names = np.unique(rows.view(f"S{ChunkId.WIDTH}").ravel())
    return names.view(np.uint8).reshape(-1, ChunkId.WIDTH)


@dataclass(slots=True)
class Faults:
    """Chunk objects with something wrong, by key, in order."""

    keys: Keys = field(default_factory=lambda: np.empty(0, np.uint64))
    kinds: Bytes = field(default_factory=lambda: np.empty(0, np.uint8))
    sizes: Values = field(default_factory=lambda: np.empty(0, np.uint64))
    """How long they are; references beyond that are lost."""

    def __len__(self) -> int:
        return len(self.keys)

    def extended(self, keys: Keys, kind: Fault, sizes: Values) -> Self:
        """Add some."""
        keys = np.concatenate([self.keys, keys])
        kinds = np.concatenate([self.kinds, np.full(len(sizes), kind, np.uint8)])
        order = np.argsort(keys, kind="stable")
        return type(self)(keys[order], kinds[order], np.concatenate([self.sizes, sizes])[order])

    def lost_rows(self, table: ChunkTable) -> Iterator[tuple[Fault, Ints]]:
        """Find the references of an array that lead to these objects, by what is wrong there."""
        native = np.flatnonzero(table.kinds == ChunkKind.NATIVE)
        if len(native) == 0 or len(self.keys) == 0:
            return
        wanted = keys_of_ids(table.chunk_ids)[table.targets[native]]
        places = np.minimum(np.searchsorted(self.keys, wanted), len(self.keys) - 1)
        is_known = self.keys[places] == wanted
        kinds, sizes, ends = self.kinds[places], self.sizes[places], ends_of(table)[native]
        for fault in Fault:
            rows = is_known & (kinds == fault)
            if fault is Fault.SHORT:
                rows &= ends > sizes
            if rows.any():
                yield fault, native[rows]

    def first_size(self, lost: ChunkTable) -> tuple[int, int]:
        """Say how long the first object of some references is, and how long it should be."""
        keys = keys_of_ids(lost.chunk_ids)[lost.targets]
        first = keys_of_ids(objects_of(lost)[:1])[0]
        size = self.sizes[np.searchsorted(self.keys, first)]
        return int(size), int(ends_of(lost)[keys == first].max())


class ChunkObjects:
    """Collects what versions need of chunk objects, and compares it with what is there."""

    def __init__(self, backend: Backend, *, max_bytes: int = MAX_BYTES) -> None:
        self._backend = backend
        self._max_bytes = max_bytes
        self._needed = KeyedColumn(max_bytes)
        self.objects = 0
        """How many chunk objects are needed, once they have been compared."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._needed.__exit__()

    def add(self, keys: Keys, ends: Values) -> None:
        """Note what an array needs."""
        self._needed.add(keys, ends)

    async def compare(self) -> Faults:
        """List all chunk objects once, and find those that are missing or too short."""
        with KeyedColumn(self._max_bytes) as present:
            async for batch in self._backend.list(CHUNKS_PREFIX):
                skip = len(CHUNKS_PREFIX)
                keys, is_id = keys_of_names([info.key[skip:] for info in batch])
                sizes = np.array([info.size_bytes for info in batch], np.uint64)
                present.add(keys[is_id], sizes[is_id])
            if self._needed.is_spilled != present.is_spilled:
                self._needed.spill()
                present.spill()
            faults = Faults()
            for needed, found in zip(self._needed.shards(), present.shards(), strict=True):
                faults = self._compare(needed, found, faults)
        return faults

    def _compare(
        self, needed: tuple[Keys, Values], found: tuple[Keys, Values], faults: Faults
    ) -> Faults:
        keys, ends = largest_of_each(*needed)
        self.objects += len(keys)
        there, sizes = largest_of_each(*found)
        if len(keys) == 0:
            return faults
        if len(there) == 0:
            return faults.extended(keys, Fault.MISSING, np.zeros(len(keys), np.uint64))
        places = np.minimum(np.searchsorted(there, keys), len(there) - 1)
        is_there = there[places] == keys
        size = sizes[places]
        is_short = is_there & (size < ends)
        lost = keys[~is_there]
        faults = faults.extended(lost, Fault.MISSING, np.zeros(len(lost), np.uint64))
        return faults.extended(keys[is_short], Fault.SHORT, size[is_short])

    async def read_all(self, faults: Faults, *, concurrency: int) -> tuple[Faults, list[str]]:
        """Read every chunk object that is needed, to its end; give also what could not be read.

        Nothing tells what the bytes should be, so that all there is to see is whether the storage
        still has as many of them as it says.
        """
        unchecked: list[str] = []
        skip = len(CHUNKS_PREFIX)
        with KeySet(self._max_bytes) as wanted:
            for needed, _ in self._needed.shards():
                wanted.add(needed)
            async for batch in self._backend.list(CHUNKS_PREFIX):
                keys, is_id = keys_of_names([info.key[skip:] for info in batch])
                rows = np.flatnonzero(is_id & wanted.contains(keys))
                some = [batch[row] for row in rows.tolist()]
                outcomes = await map_concurrently(self._read, some, limit=concurrency)
                bad = rows[[outcome is False for outcome in outcomes]]
                faults = faults.extended(keys[bad], Fault.UNREADABLE, np.zeros(len(bad), np.uint64))
                unchecked += [
                    info.key for info, sound in zip(some, outcomes, strict=True) if sound is None
                ]
        return faults, unchecked

    async def _read(self, info: ObjectInfo) -> bool | None:
        """Read an object whole; None if the storage did not answer."""
        try:
            for first in range(0, info.size_bytes, _PIECE_BYTES):
                last = min(first + _PIECE_BYTES, info.size_bytes)
                if len((await self._backend.get(info.key, (first, last))).data) != last - first:
                    return False
        except (ObjectNotFoundError, InvalidInputError):
            return False
        except IcefloeError:
            return None
        return True
