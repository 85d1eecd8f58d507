"""How files are damaged: outside, as any transport could, and inside, as an attacker would."""

import random
import struct
from collections.abc import Callable

import zstandard

from icefloe.format.envelope import HEADER_BYTES, MAGIC
from tests.fuzz.corpus import Seed, by_type, corpus

type Mutation = Callable[[random.Random, bytearray], None]

_WORDS = (0, 1, 2, 3, 4, 5, 8, 0x7F, 0xFF, 0xFFFF, 0x10000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
_SHORTS = (0, 1, 2, 3, 4, 6, 8, 0x10, 0x7FFF, 0x8000, 0xFFFE, 0xFFFF)
_SHARES = (3, 4, 3, 3, 1)
"""How many mutants are snapshots, manifests, logs, repo objects, configurations."""
_ENVELOPE_SHARE = 0.15
"""How many mutants are damaged outside only; most of these never reach a decoder."""


def mutant(seed: int, number: int) -> tuple[Seed, bytes]:
    """Make one mutant, the same one for the same numbers, and say which file it comes from."""
    rng = random.Random(f"{seed}/{number}")
    origin = rng.choice(rng.choices(by_type(), _SHARES)[0])
    if not origin.buffer or rng.random() < _ENVELOPE_SHARE:
        return origin, _outside(rng, origin)
    return origin, _inside(rng, origin)


# -- outside -------------------------------------------------------------------------------


def _outside(rng: random.Random, origin: Seed) -> bytes:
    data = bytearray(origin.data)
    for _ in range(rng.choice((1, 1, 2, 5))):
        match rng.randrange(6):
            case 0:
                del data[rng.randrange(len(data) + 1) :]
            case 1:
                _flip_bit(rng, data)
            case 2:
                _random_bytes(rng, data)
            case 3 if len(data) >= HEADER_BYTES:
                data[rng.randrange(HEADER_BYTES)] = rng.randrange(256)
            case 4:
                data += rng.randbytes(rng.randrange(1, 20))
            case _:
                other = rng.choice(corpus()).data
                data[rng.randrange(len(data) + 1) :] = other[rng.randrange(len(other)) :]
    return bytes(data)


# -- inside --------------------------------------------------------------------------------


def _inside(rng: random.Random, origin: Seed) -> bytes:
    buffer = bytearray(origin.buffer)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        rng.choice(_INSIDE)(rng, buffer)
    spec = rng.choice((1, 2)) if rng.random() < 0.05 else origin.spec_version
    return enclose(bytes(buffer), origin, spec)


def enclose(buffer: bytes, origin: Seed, spec_version: int | None = None) -> bytes:
    """Compress a buffer and put it behind the header of the file it came from."""
    assert origin.file_type is not None
    spec = origin.spec_version if spec_version is None else spec_version
    header = MAGIC + b"fuzz".ljust(24) + bytes([spec, origin.file_type, 1])
    return header + zstandard.ZstdCompressor(level=1).compress(buffer)


def _flip_bit(rng: random.Random, data: bytearray) -> None:
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _random_bytes(rng: random.Random, data: bytearray) -> None:
    for _ in range(rng.randrange(1, 9)):
        if data:
            data[rng.randrange(len(data))] = rng.choice((0, 0xFF, rng.randrange(256)))


def _word_at(data: bytearray, at: int) -> int:
    return int(struct.unpack_from("<I", data, at)[0])


def _some_word(rng: random.Random, data: bytearray) -> int:
    return 4 * rng.randrange(len(data) // 4)


def _some_offset(rng: random.Random, data: bytearray) -> int:
    """Find a word that could be an offset: what it adds to its place is in the buffer."""
    at = 0
    for _ in range(50):
        at = _some_word(rng, data)
        if 0 < _word_at(data, at) < len(data) - at - 4:
            break
    return at


def _interesting_word(rng: random.Random, data: bytearray) -> None:
    if len(data) < 4:
        return
    size = len(data)
    at = _some_word(rng, data)
    value = rng.choice((*_WORDS, size - 1, size, size + 1, size - at, size - at - 4, at, size // 4))
    struct.pack_into("<I", data, at, value & 0xFFFFFFFF)


def _interesting_short(rng: random.Random, data: bytearray) -> None:
    if len(data) >= 2:
        at = 2 * rng.randrange(len(data) // 2)
        struct.pack_into("<H", data, at, rng.choice((*_SHORTS, rng.randrange(64))))


def _swap_shorts(rng: random.Random, data: bytearray) -> None:
    """Exchange neighbours, which in a vtable are two fields."""
    if len(data) >= 18:
        at = 2 * rng.randrange(len(data) // 2 - 8)
        other = at + 2 * rng.randrange(1, 8)
        data[at : at + 2], data[other : other + 2] = data[other : other + 2], data[at : at + 2]


def _share_target(rng: random.Random, data: bytearray) -> None:
    """Let an offset point at what another one points at."""
    if len(data) < 8:
        return
    at, other = _some_offset(rng, data), _some_offset(rng, data)
    target = other + _word_at(data, other)
    struct.pack_into("<I", data, at, (target - at) & 0xFFFFFFFF)


def _inflate_vector(rng: random.Random, data: bytearray) -> None:
    """Make what an offset points at claim another length."""
    if len(data) < 8:
        return
    at = _some_offset(rng, data)
    target = at + _word_at(data, at)
    if target + 4 <= len(data):
        length = _word_at(data, target)
        room = (len(data) - target - 4) // rng.choice((1, 2, 4, 8, 12, 16, 32))
        changed = rng.choice((0, length + 1, length * 2, room, room + 1, *_WORDS))
        struct.pack_into("<I", data, target, changed & 0xFFFFFFFF)


def _shift_offset(rng: random.Random, data: bytearray) -> None:
    if len(data) >= 8:
        at = _some_offset(rng, data)
        moved = _word_at(data, at) + rng.choice((-8, -4, -2, -1, 1, 2, 4, 8, 64))
        struct.pack_into("<I", data, at, moved & 0xFFFFFFFF)


def _move_slice(rng: random.Random, data: bytearray) -> None:
    size = min(rng.choice((4, 8, 12, 16, 64)), len(data))
    source, target = rng.randrange(len(data) - size + 1), rng.randrange(len(data) - size + 1)
    data[target : target + size] = data[source : source + size]


def _resize(rng: random.Random, data: bytearray) -> None:
    if rng.random() < 0.5:
        del data[rng.randrange(len(data) + 1) :]
    else:
        data += bytes(rng.randrange(1, 40))


_INSIDE: tuple[Mutation, ...] = (
    _flip_bit,
    _random_bytes,
    _interesting_word,
    _interesting_word,
    _interesting_short,
    _swap_shorts,
    _share_target,
    _share_target,
    _inflate_vector,
    _inflate_vector,
    _shift_offset,
    _move_slice,
    _resize,
)
