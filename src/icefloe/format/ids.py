"""Object ids: a few random bytes, written as Crockford base32.

The text form is unpadded and upper case, so ids sort as their bytes do and stay
distinct on file systems that ignore case.
"""

import os
import secrets
from collections.abc import Sequence
from itertools import count
from typing import ClassVar, Final, Self

import numpy as np
from numpy.typing import NDArray

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.records import Record

_LETTERS: Final = np.frombuffer(b"0123456789ABCDEFGHJKMNPQRSTVWXYZ", np.uint8)
_NOT_A_DIGIT: Final = 255


def _digit_table() -> NDArray[np.uint8]:
    """Map each byte to its digit; reading is lenient about case and look-alikes."""
    digits = np.full(256, _NOT_A_DIGIT, np.uint8)
    digits[_LETTERS] = np.arange(32)
    digits[np.frombuffer(b"OIL", np.uint8)] = [0, 1, 1]
    upper = np.arange(ord("A"), ord("Z") + 1)
    digits[upper + 32] = digits[upper]
    return digits


_DIGITS: Final = _digit_table()

_SERIES_BYTES: Final = 8
_USUAL_BYTES: Final = 12

_PAIRS: Final = [a + b for a in _LETTERS.tobytes().decode() for b in _LETTERS.tobytes().decode()]
"""Two digits at a time: every chunk that is read has its id written out, one by one."""

_PAIRED_LETTERS: Final = np.frombuffer("".join(_PAIRS).encode(), np.uint16)
"""The same for columns: the two bytes of a pair as one number."""


SHOWN_LENGTH: Final = 20
"""The number of characters of the id of a file."""


def encode_ids(raw: NDArray[np.uint8]) -> NDArray[np.bytes_]:
    """Turn an (n, width) byte matrix into n base32 strings."""
    count, width = raw.shape
    fives, length = -(-width // 5), -(-width * 8 // 5)
    padded = np.zeros((count, 5 * fives), np.uint16)
    padded[:, :width] = raw
    a, b, c, d, e = (padded[:, place::5] for place in range(5))
    pairs = np.empty((count, fives, 4), np.uint16)
    pairs[..., 0] = _PAIRED_LETTERS[a << 2 | b >> 6]
    pairs[..., 1] = _PAIRED_LETTERS[(b & 0x3F) << 4 | c >> 4]
    pairs[..., 2] = _PAIRED_LETTERS[(c & 0x0F) << 6 | d >> 2]
    pairs[..., 3] = _PAIRED_LETTERS[(d & 0x03) << 8 | e]
    letters = pairs.view(np.uint8).reshape(count, 8 * fives)[:, :length]
    text: NDArray[np.bytes_] = np.ascontiguousarray(letters).view(f"S{length}").ravel()
    return text


def decode_ids(text: NDArray[np.bytes_], width: int) -> NDArray[np.uint8]:
    """Turn n base32 strings back into an (n, width) byte matrix."""
    digits = _DIGITS[np.ascontiguousarray(text).view(np.uint8).reshape(len(text), -1)]
    if digits.shape[1] != -(-width * 8 // 5) or (digits == _NOT_A_DIGIT).any():
        raise InvalidInputError(
            f"not an id: expected {-(-width * 8 // 5)} base32 characters "
            f"({width} bytes), got {text[:1].tolist()}",
            ErrorKind.INVALID_SNAPSHOT_ID,
        )
    bits = np.unpackbits(digits[..., None], axis=2)[..., 3:].reshape(len(text), -1)
    return np.packbits(bits[:, : width * 8], axis=1)


class ObjectId(Record, order=True):
    """Names one immutable file; a subclass per kind keeps the kinds apart.

    >>> str(SnapshotId(bytes(range(12))))
    '000G40R40M30E209185G'
    >>> SnapshotId.parse("000g40r40m30e209185g").raw.hex()
    '000102030405060708090a0b'
    """

    raw: bytes
    WIDTH: ClassVar[int] = 12

    def __post_init__(self) -> None:
        if len(self.raw) != self.WIDTH:
            raise InvalidInputError(
                f"{type(self).__name__} takes {self.WIDTH} bytes, got {len(self.raw)}",
                ErrorKind.INVALID_SNAPSHOT_ID,
            )

    @classmethod
    def random(cls) -> Self:
        """Make a new id; 12 random bytes never meet in practice."""
        return cls(secrets.token_bytes(cls.WIDTH))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the text form, whatever its case."""
        return cls(decode_ids(np.array([text.encode()]), cls.WIDTH).tobytes())

    def __repr__(self) -> str:
        return f"{type(self).__name__}.parse({str(self)!r})"

    def __str__(self) -> str:
        if len(self.raw) != _USUAL_BYTES:
            [text] = texts_of_rows(np.frombuffer(self.raw, np.uint8).reshape(1, -1))
            return text
        number = int.from_bytes(self.raw) << 4
        a, b, pairs = number >> 50, number & (1 << 50) - 1, _PAIRS
        return (
            f"{pairs[a >> 40]}{pairs[a >> 30 & 1023]}{pairs[a >> 20 & 1023]}{pairs[a >> 10 & 1023]}"
            f"{pairs[a & 1023]}{pairs[b >> 40]}{pairs[b >> 30 & 1023]}{pairs[b >> 20 & 1023]}"
            f"{pairs[b >> 10 & 1023]}{pairs[b & 1023]}"
        )


class SnapshotId(ObjectId):
    """Names a snapshot and its transaction log."""


class IdPrefix(Record):
    """The first characters of ids, as tables print them."""

    raw: bytes
    """The bits of the characters; all others are 0."""
    mask: bytes

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Read the first characters of an id, whatever their case; None if they are none.

        >>> IdPrefix.parse("1cech") == IdPrefix.parse("1CECH"), IdPrefix.parse("u")
        (True, None)
        """
        width = SnapshotId.WIDTH
        letters = np.frombuffer(text.encode(errors="replace"), np.uint8)
        if len(letters) > -(-width * 8 // 5) or (_DIGITS[letters] == _NOT_A_DIGIT).any():
            return None
        full = np.zeros(width * 8 + 5, np.uint8)
        bits = np.unpackbits(_DIGITS[letters][:, None], axis=1)[:, 3:].ravel()
        full[: len(bits)] = bits
        mask = np.zeros(len(full), np.uint8)
        mask[: len(bits)] = 1
        cut = width * 8
        return cls(np.packbits(full[:cut]).tobytes(), np.packbits(mask[:cut]).tobytes())

    def rows(self, ids: NDArray[np.uint8]) -> "list[SnapshotId]":
        """Return the ids of a byte matrix that begin so, in its order."""
        raw, mask = (np.frombuffer(part, np.uint8) for part in (self.raw, self.mask))
        bytes_used = int(np.count_nonzero(mask))
        is_fit = ((ids[:, :bytes_used] & mask[:bytes_used]) == raw[:bytes_used]).all(axis=1)
        return [SnapshotId(row.tobytes()) for row in ids[is_fit]]

    def fits(self, snapshot_id: SnapshotId) -> bool:
        """Return whether an id begins so."""
        pairs = zip(snapshot_id.raw, self.mask, self.raw, strict=True)
        return all(byte & mask == raw for byte, mask, raw in pairs)


class ManifestId(ObjectId):
    """Names a manifest."""


class ChunkId(ObjectId):
    """Names a chunk object."""


class NodeId(ObjectId):
    """Names a group or array for its whole life, through renames."""

    WIDTH = 8


class SeriesOfIds:
    """Ids that nobody else makes, most of whose bytes are the same, which compresses well.

    Eight random bytes and a number: good for any number of threads, and after a fork.

    >>> series = SeriesOfIds()
    >>> first, second = series.next(), series.next()
    >>> first.raw[:8] == second.raw[:8], first == second
    (True, False)
    """

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> tuple[int, bytes, "count[int]"]:
        # One assignment, so that no thread sees half of it.
        self._state = os.getpid(), secrets.token_bytes(_SERIES_BYTES), count()
        return self._state

    def next(self) -> ObjectId:
        """Make the next one."""
        process, prefix, numbers = self._state
        if process != os.getpid():  # the parent of this process goes on with the same series
            process, prefix, numbers = self._begin()
        number = next(numbers)
        return ObjectId(prefix + number.to_bytes(ObjectId.WIDTH - _SERIES_BYTES))


def id_rows[I: ObjectId](kind: type[I], ids: Sequence[I]) -> NDArray[np.uint8]:
    """Lay out ids of one kind as the rows of a matrix."""
    return np.frombuffer(b"".join(object_id.raw for object_id in ids), np.uint8).reshape(
        -1, kind.WIDTH
    )


def ids_of_rows[I: ObjectId](kind: type[I], rows: NDArray[np.uint8]) -> list[I]:
    """Turn the rows of a matrix into ids: for short columns."""
    return list(map(kind, raw_rows(rows)))


def raw_rows(rows: NDArray[np.uint8]) -> list[bytes]:
    """Return the bytes of each id in the rows of a matrix."""
    raw, width = rows.tobytes(), rows.shape[1]
    return [raw[start : start + width] for start in range(0, len(raw), width)]


def texts_of_rows(rows: NDArray[np.uint8]) -> list[str]:
    """Write out the ids in the rows of a matrix."""
    texts = encode_ids(rows)
    lines = np.full((len(texts), texts.itemsize + 1), ord("\n"), np.uint8)
    lines[:, :-1] = texts.view(np.uint8).reshape(len(texts), texts.itemsize)
    return lines.tobytes().decode().splitlines()


def has_repeated_node(rows: NDArray[np.uint8]) -> bool:
    """Return whether a node id occurs twice in a column."""
    return len(np.unique(np.ascontiguousarray(rows).view(np.uint64))) < len(rows)


INITIAL_SNAPSHOT_ID: Final = SnapshotId(bytes.fromhex("0b1cc8d6787580f0e33a6534"))
"""The first snapshot of every repository, `1CECHNKREP0F1RSTCMT0`."""
