"""Two columns of numbers, keys and values, of any length: on disk beyond a bound."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from icefloe.engine.maintenance.key_set import Keys

type Values = NDArray[np.uint64]

MAX_BYTES: Final = 256 * 2**20
"""What a pair of columns keeps in memory: 16 million rows."""
SHARDS: Final = 64
_SHARD_SHIFT: Final = np.uint64(64 - 6)
_ROW_BYTES: Final = 16


class KeyedColumn:
    """Rows of a key and a value, added in any order, given back by shards of keys.

    >>> with KeyedColumn() as column:
    ...     column.add(np.array([7, 5], np.uint64), np.array([70, 50], np.uint64))
    ...     [(keys.tolist(), values.tolist()) for keys, values in column.shards()]
    [([7, 5], [70, 50])]
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._most = max(max_bytes // _ROW_BYTES, 1)
        self._parts: list[tuple[Keys, Values]] = []
        self._count = 0
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._parts = []
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    @property
    def is_spilled(self) -> bool:
        """Say whether some of it is on disk."""
        return self._folder is not None

    def add(self, keys: Keys, values: Values) -> None:
        """Add rows."""
        if len(keys):
            self._parts.append((keys, values))
            self._count += len(keys)
            if self._count > self._most:
                self.spill()

    def spill(self) -> None:
        """Write what is in memory to disk, a file for each shard."""
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="icefloe-")
        keys, values = self._whole()
        shards = (keys >> _SHARD_SHIFT).astype(np.uint8)
        order = np.argsort(shards, kind="stable")
        edges = np.searchsorted(shards[order], np.arange(SHARDS + 1))
        rows = np.stack([keys[order], values[order]], axis=1)
        for shard in range(SHARDS):
            some = rows[edges[shard] : edges[shard + 1]]
            if len(some):
                with self._file(shard).open("ab") as file:
                    file.write(some.tobytes())
        self._parts, self._count = [], 0

    def shards(self) -> Iterator[tuple[Keys, Values]]:
        """Give all rows, those with the same key together: in one piece unless spilled."""
        if self._folder is None:
            yield self._whole()
            return
        self.spill()
        for shard in range(SHARDS):
            path = self._file(shard)
            raw = path.read_bytes() if path.exists() else b""
            rows = np.frombuffer(raw, np.uint64).reshape(-1, 2)
            yield np.ascontiguousarray(rows[:, 0]), np.ascontiguousarray(rows[:, 1])

    def _whole(self) -> tuple[Keys, Values]:
        none = np.empty(0, np.uint64)
        keys = np.concatenate([none, *(keys for keys, _ in self._parts)])
        values = np.concatenate([none, *(values for _, values in self._parts)])
        self._parts = [(keys, values)]
        return keys, values

    def _file(self, shard: int) -> Path:
        assert self._folder is not None
        return Path(self._folder.name) / f"{shard}.rows"


def largest_of_each(keys: Keys, values: Values) -> tuple[Keys, Values]:
    """Give each key once, in order, with the largest of its values.

    >>> keys, values = np.array([3, 1, 3], np.uint64), np.array([5, 2, 9], np.uint64)
    >>> [column.tolist() for column in largest_of_each(keys, values)]
    [[1, 3], [2, 9]]
    """
    order = np.argsort(keys, kind="stable")
    ranked = keys[order]
    firsts = np.flatnonzero(np.append(True, ranked[1:] != ranked[:-1])) if len(keys) else order
    if len(firsts) == 0:
        return keys[:0], values[:0]
    return ranked[firsts], np.maximum.reduceat(values[order], firsts)
