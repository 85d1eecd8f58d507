"""Objects on any storage as file objects of Python: only the ranges that are read are fetched."""

import io
import os
import tempfile
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final, override

import numpy as np

from icefloe.effects import run_blocking
from icefloe.pipeline.files.access import Place

_BLOCK_BYTES: Final = 256 * 1024
_MOST_BLOCKS: Final = 64
"""So many blocks stay in memory; longer reads are not kept."""

_COPIED_BYTES: Final = 16 * 1024
"""The smallest part of a file that a sparse copy fetches."""


class RangeFile(io.RawIOBase):
    """A file that is read block by block; recent blocks stay in memory.

    `failures` gets the reasons of failed reads, which libraries may hide.
    """

    def __init__(self, place: Place, size: int, failures: list[Exception]) -> None:
        super().__init__()
        self._place, self._size, self._failures = place, size, failures
        self._position = 0
        self._blocks: OrderedDict[int, bytes] = OrderedDict()

    @override
    def readable(self) -> bool:
        """Return True."""
        return True

    @override
    def seekable(self) -> bool:
        """Return True."""
        return True

    @override
    def tell(self) -> int:
        """Return the position."""
        return self._position

    @override
    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Move the position."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        self._position = max(0, base + offset)
        return self._position

    @override
    def readinto(self, buffer: Any, /) -> int:
        """Read as many bytes as the buffer takes, or as the file has."""
        target = memoryview(buffer).cast("B")
        start = self._position
        end = min(start + len(target), self._size)
        if end <= start:
            return 0
        first, last = start // _BLOCK_BYTES, (end - 1) // _BLOCK_BYTES
        if last - first >= _MOST_BLOCKS // 2:
            target[: end - start] = self._fetch([(start, end)])[0]
        else:
            blocks = self._read_blocks(range(first, last + 1))
            skipped = start - first * _BLOCK_BYTES
            target[: end - start] = b"".join(blocks)[skipped : skipped + end - start]
        self._position = end
        return end - start

    def _read_blocks(self, numbers: Sequence[int]) -> list[bytes]:
        missing = [number for number in numbers if number not in self._blocks]
        edges = [(number * _BLOCK_BYTES, (number + 1) * _BLOCK_BYTES) for number in missing]
        fetched = self._fetch([(low, min(high, self._size)) for low, high in edges])
        self._blocks.update(zip(missing, map(bytes, fetched), strict=True))
        for number in numbers:
            self._blocks.move_to_end(number)
        blocks = [self._blocks[number] for number in numbers]
        while len(self._blocks) > _MOST_BLOCKS:
            self._blocks.popitem(last=False)
        return blocks

    def _fetch(self, ranges: Sequence[tuple[int, int]]) -> list[Any]:
        try:
            return fetch(self._place, ranges)
        except Exception as error:
            self._failures.append(error)
            raise


class SparseCopy(io.FileIO):
    """A local file as long as a remote one, which holds only the parts that were asked for.

    It is for libraries that map files into memory. It has no name, and vanishes when it is closed.
    """

    def __init__(self, place: Place, size: int) -> None:
        descriptor, name = tempfile.mkstemp(prefix="icefloe-")
        os.unlink(name)  # noqa: PTH108 - the file lives as long as it is open
        super().__init__(descriptor, "r+")
        os.ftruncate(descriptor, size)
        self._place, self._size = place, size
        self._is_present = np.zeros(-(-size // _COPIED_BYTES), np.bool_)

    @override
    def read(self, size: int | None = -1, /) -> bytes:
        """Read bytes, which are fetched first."""
        wanted = self._size if size is None or size < 0 else size
        self.fill([(self.tell(), self.tell() + wanted)])
        return super().read(wanted)

    def fill(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Fetch what is missing of some ranges of bytes."""
        wanted = np.zeros_like(self._is_present)
        for start, end in ranges:
            wanted[start // _COPIED_BYTES : -(-end // _COPIED_BYTES)] = True
        missing = np.flatnonzero(wanted & ~self._is_present)
        if not len(missing):
            return
        runs = np.split(missing, np.flatnonzero(np.diff(missing) > 1) + 1)
        edges = [
            (int(run[0]) * _COPIED_BYTES, min((int(run[-1]) + 1) * _COPIED_BYTES, self._size))
            for run in runs
        ]
        for (start, _), data in zip(edges, fetch(self._place, edges), strict=True):
            os.pwrite(self.fileno(), data, start)
        self._is_present[missing] = True


def fetch(place: Place, ranges: Sequence[tuple[int, int]]) -> list[Any]:
    """Read ranges of bytes of an object."""
    return list(run_blocking(place.backend.get_ranges(place.key, ranges))) if ranges else []
