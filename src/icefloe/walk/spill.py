"""A set of keys and a map from keys to numbers, of any size: on disk beyond a bound of memory."""

import logging
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from icefloe.format.columns import Bools, Bytes, Ints
from icefloe.format.ids import ObjectId

_log = logging.getLogger(__name__)

type Keys = NDArray[np.uint64]
type Values = NDArray[np.uint64]

MAX_BYTES: Final = 256 * 2**20
"""Memory of a set or map: 32 million keys, or 16 million with values."""
_KEY_BYTES: Final = 8
_ROW_BYTES: Final = 16
_SHARDS: Final = 64
_SHARD_SHIFT: Final = np.uint64(64 - 6)

NAME_LETTERS: Final = 20
"""Of the text of an id of twelve bytes."""
_HEAD_LETTERS: Final = 12
_NOT_A_DIGIT: Final = 255
_PAD_BITS: Final = 0b1111
_ID: Final = np.dtype([("head", ">u8"), ("tail", ">u4")])
_STEPS: Final = (
    (np.uint64(0xBF58476D1CE4E5B9), np.uint64(27)),
    (np.uint64(0x94D049BB133111EB), np.uint64(31)),
)


def _canonical_digits() -> NDArray[np.uint8]:
    digits = np.full(256, _NOT_A_DIGIT, np.uint8)
    digits[np.frombuffer(b"0123456789ABCDEFGHJKMNPQRSTVWXYZ", np.uint8)] = np.arange(32)
    return digits


_DIGITS: Final = _canonical_digits()
_HEAD_WEIGHTS: Final = np.uint64(32) ** np.arange(_HEAD_LETTERS - 1, -1, -1, dtype=np.uint64)
_TAIL_WEIGHTS: Final = np.uint64(32) ** np.arange(
    NAME_LETTERS - _HEAD_LETTERS - 1, -1, -1, dtype=np.uint64
)


def keys_of_ids(rows: Bytes) -> Keys:
    """Make a number of each id in the rows of a matrix.

    Two ids have the same number about once in 2**64 pairs. That is why these numbers only ever
    say what is to be kept.
    """
    ids = np.ascontiguousarray(rows).view(_ID).ravel()
    first, last = ids["head"].astype(np.uint64), ids["tail"].astype(np.uint64)
    tail = (first & np.uint64(_PAD_BITS)) << np.uint64(32) | last
    return mixed(first >> np.uint64(4), tail << np.uint64(4))


def heads_of_ids(rows: Bytes) -> NDArray[np.uint64]:
    """See the first eight bytes of each id in the rows of a matrix as a number."""
    heads: NDArray[np.uint64] = np.ascontiguousarray(rows).view(_ID).ravel()["head"]
    return heads


def keys_of_names(names: Sequence[str]) -> tuple[Keys, Bools]:
    """Make the same numbers of ids as they are written in keys; also say which are ids at all.

    >>> name = "000G40R40M30E209185G"
    >>> keys, is_id = keys_of_names([name, name.lower(), "a file of somebody else"])
    >>> is_id.tolist()
    [True, False, False]
    >>> bool(keys[0] == keys_of_ids(np.arange(12, dtype=np.uint8).reshape(1, 12))[0])
    True
    """
    has_length = np.array([len(name) == NAME_LETTERS for name in names], np.bool_)
    if not has_length.all():
        names = [name if len(name) == NAME_LETTERS else "?" * NAME_LETTERS for name in names]
    letters = np.frombuffer("".join(names).encode("ascii", "replace"), np.uint8)
    digits = _DIGITS[letters].reshape(-1, NAME_LETTERS)
    is_id = (digits != _NOT_A_DIGIT).all(axis=1) & (digits[:, -1] & _PAD_BITS == 0)
    wide = digits.astype(np.uint64)
    return mixed(
        wide[:, :_HEAD_LETTERS] @ _HEAD_WEIGHTS, wide[:, _HEAD_LETTERS:] @ _TAIL_WEIGHTS
    ), is_id


def mixed(first: Keys, second: Keys | np.uint64) -> Keys:
    """Mix two numbers into one; similar numbers become very different ones."""
    return _spread(_spread(first) + second)


def _spread(keys: Keys) -> Keys:
    """Make every bit of a number depend on all others; no two numbers become the same."""
    spread = keys ^ (keys >> np.uint64(30))
    for factor, shift in _STEPS:
        spread *= factor
        spread ^= spread >> shift
    return spread


class _Spilling:
    """A context whose files are in a temporary folder, which is made when it is needed."""

    _folder: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Delete the files."""
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _file(self, name: str) -> Path:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="icefloe-")
        return Path(self._folder.name) / name


class KeySet(_Spilling):
    """Numbers of ids, added in any order, and looked up by many at once.

    >>> with KeySet() as known:
    ...     known.add(np.array([5, 3, 5], np.uint64))
    ...     known.contains(np.array([3, 4], np.uint64)).tolist()
    [True, False]
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        # Sorting needs a second copy of the keys.
        self._most = max(max_bytes // _KEY_BYTES // 4, 1)
        self._new: list[Keys] = []
        self._new_count = 0
        self._sorted: list[Keys] = []
        """In memory, each sorted, and at least twice as long as the next one."""
        self._runs: list[Keys] = []
        """On disk, each sorted."""
        self._can_spill = True

    def close(self) -> None:
        """Delete the files."""
        self._runs = []  # before their files: they map those
        super().close()

    @property
    def spilled_bytes(self) -> int:
        """The size of the files."""
        return sum(run.nbytes for run in self._runs)

    def add(self, keys: Keys) -> None:
        """Add numbers."""
        if len(keys):
            self._new.append(keys)
            self._new_count += len(keys)
            if self._new_count > self._most:
                self._settle()

    def add_new(self, keys: Keys) -> Ints:
        """Add numbers; return the rows of those that are new, each number once."""
        order = np.argsort(keys)
        ranked = keys[order]
        # In order, lookups read memory from front to back.
        is_new = ~self.contains(ranked)
        is_new[1:] &= ranked[1:] != ranked[:-1]
        self.add(ranked[is_new])
        return order[is_new]

    def contains(self, keys: Keys) -> Bools:
        """Return for each number whether it was added."""
        self._settle()
        is_member = np.zeros(len(keys), np.bool_)
        for run in (*self._sorted, *self._runs):
            places = np.searchsorted(run, keys)
            is_member |= run[np.minimum(places, len(run) - 1)] == keys
        return is_member

    def _settle(self) -> None:
        if not self._new:
            return
        run = _distinct(_taken(self._new))
        self._new_count = 0
        while self._sorted and len(self._sorted[-1]) < 2 * len(run):
            run = _distinct(_taken([self._sorted.pop(), run]))
        self._sorted.append(run)
        if self._can_spill and sum(map(len, self._sorted)) > self._most:
            self._spill()

    def _spill(self) -> None:
        run = _distinct(_taken(self._sorted))
        path: Path | None = None
        try:
            path = self._file(f"{len(self._runs)}.keys")
            run.tofile(path)
            self._runs.append(np.memmap(path, np.uint64, "r"))
        except OSError as error:
            _log.warning(
                "ids of chunks stay in memory, as no temporary file can be written: %s; TMPDIR"
                " names another directory",
                error,
            )
            if path is not None:
                path.unlink(missing_ok=True)
            self._sorted = [run]
            self._can_spill = False


def _taken(pieces: list[Keys]) -> Keys:
    """Join pieces, and free each as soon as it is copied: they may fill most of the memory."""
    whole = np.empty(sum(map(len, pieces)), np.uint64)
    end = len(whole)
    while pieces:
        piece = pieces.pop()
        whole[end - len(piece) : end] = piece
        end -= len(piece)
    return whole


def _distinct(keys: Keys) -> Keys:
    """Sort numbers and drop repeated ones; `np.unique` hashes them first, which takes longer."""
    keys.sort()
    is_first = np.ones(len(keys), np.bool_)
    np.not_equal(keys[1:], keys[:-1], out=is_first[1:])
    return keys if is_first.all() else keys[is_first]


assert ObjectId.WIDTH == 12


class KeyedColumn(_Spilling):
    """Rows of a key and a value, added in any order, returned by shards of keys.

    >>> with KeyedColumn() as column:
    ...     column.add(np.array([7, 5], np.uint64), np.array([70, 50], np.uint64))
    ...     [(keys.tolist(), values.tolist()) for keys, values in column.shards()]
    [([7, 5], [70, 50])]
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._most = max(max_bytes // _ROW_BYTES, 1)
        self._parts: list[tuple[Keys, Values]] = []
        self._count = 0

    @property
    def is_spilled(self) -> bool:
        """Return whether some of it is on disk."""
        return self._folder is not None

    def add(self, keys: Keys, values: Values) -> None:
        """Add rows."""
        if len(keys):
            self._parts.append((keys, values))
            self._count += len(keys)
            if self._count > self._most:
                self.spill()

    def spill(self) -> None:
        """Write the rows that are in memory to disk, a file for each shard."""
        keys, values = self._whole()
        shards = (keys >> _SHARD_SHIFT).astype(np.uint8)
        order = np.argsort(shards, kind="stable")
        edges = np.searchsorted(shards[order], np.arange(_SHARDS + 1))
        rows = np.stack([keys[order], values[order]], axis=1)
        for shard in range(_SHARDS):
            with self._file(f"{shard}.rows").open("ab") as file:
                file.write(rows[edges[shard] : edges[shard + 1]].tobytes())
        self._parts, self._count = [], 0

    def shards(self) -> Iterator[tuple[Keys, Values]]:
        """Yield all rows, those with the same key together: in one piece unless spilled."""
        if not self.is_spilled:
            yield self._whole()
            return
        self.spill()
        for shard in range(_SHARDS):
            raw = self._file(f"{shard}.rows").read_bytes()
            rows = np.frombuffer(raw, np.uint64).reshape(-1, 2)
            yield np.ascontiguousarray(rows[:, 0]), np.ascontiguousarray(rows[:, 1])

    def _whole(self) -> tuple[Keys, Values]:
        none = np.empty(0, np.uint64)
        keys = np.concatenate([none, *(keys for keys, _ in self._parts)])
        values = np.concatenate([none, *(values for _, values in self._parts)])
        self._parts = [(keys, values)]
        return keys, values


def largest_of_each(keys: Keys, values: Values) -> tuple[Keys, Values]:
    """Return each key once, in order, with the largest of its values.

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
