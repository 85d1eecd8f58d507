"""Positions of an array's chunks in a file, as columns, and values read through them.

Chunks that a file does not store have no row. Few distinct locations serve many rows (most often
one), so rows hold their number. Data that a parser had to rewrite, as it cannot be referred to,
comes along as bytes.
"""

import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final, Self

import numcodecs
import numpy as np
import zarr
import zstandard
from numpy.typing import NDArray
from zarr.core.buffer import cpu

from icefloe.errors import FormatError
from icefloe.format.columns import BytesColumn, concat_bytes
from icefloe.pipeline.files.facts import canonical_json
from icefloe.pipeline.files.sources import SourceAccess
from icefloe.records import Record, field, replace
from icefloe.storage import Buffer

type Grid = NDArray[np.int64]
"""One row for each chunk, one column for each dimension."""

_HEADER: Final = struct.Struct("<4sHHIII")
_MAGIC: Final = b"icr2"
_QUICK_LEVEL: Final = 1


def _no_rows(dimensions: int = 0) -> Grid:
    return np.empty((0, dimensions), np.int64)


class References(Record, eq=False):
    """References to the chunks of an array, by their place in the grid of chunks."""

    coordinates: Grid
    offsets: NDArray[np.uint64]
    lengths: NDArray[np.uint64]
    locations: tuple[str, ...]
    """Distinct ones."""
    location_rows: NDArray[np.uint32]
    """For each row, the number of its location."""
    inlined_coordinates: Grid = field(default_factory=_no_rows)
    inlined: BytesColumn = field(default_factory=BytesColumn.empty)
    """Chunks that are given as bytes, in the order of their coordinates."""

    @classmethod
    def in_file(cls, url: str, cells: NDArray[Any], offsets: Any, lengths: Any) -> Self:
        """Return references to the chunks of one file."""
        return cls(
            cells.astype(np.int64),
            np.array(offsets, np.uint64),
            np.array(lengths, np.uint64),
            (url,) if len(cells) else (),
            np.zeros(len(cells), np.uint32),
        )

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def dimensions(self) -> int:
        """Count the dimensions of the grid."""
        return int(self.coordinates.shape[1])

    def shifted(self, by: tuple[int, ...]) -> Self:
        """Move everything to another place in the grid."""
        step = np.array(by, np.int64).reshape(1, -1)
        return replace(
            self,
            coordinates=self.coordinates + step,
            inlined_coordinates=self.inlined_coordinates + step
            if len(self.inlined)
            else self.inlined_coordinates,
        )

    def expanded(self) -> Self:
        """Put a new dimension, of one chunk, before all others."""

        def wider(grid: Grid, rows: int) -> Grid:
            return np.concatenate([np.zeros((rows, 1), np.int64), grid], axis=1)

        return replace(
            self,
            coordinates=wider(self.coordinates, len(self)),
            inlined_coordinates=wider(self.inlined_coordinates, len(self.inlined))
            if len(self.inlined)
            else _no_rows(self.dimensions + 1),
        )

    def divided(self, axis: int, parts: int, *, extent: int) -> Self:
        """Cut each chunk into this many equal parts along an axis, whose bytes must be in order.

        Parts from `extent` on, which only pad the last chunk, are left out.
        """
        if parts == 1:
            return self
        part_lengths = self.lengths // np.uint64(parts)
        within = np.tile(np.arange(parts), len(self))
        coordinates = np.repeat(self.coordinates, parts, axis=0)
        coordinates[:, axis] = coordinates[:, axis] * parts + within
        lengths = np.repeat(part_lengths, parts)
        is_inside = coordinates[:, axis] < extent
        return replace(
            self,
            coordinates=coordinates[is_inside],
            offsets=(np.repeat(self.offsets, parts) + lengths * within.astype(np.uint64))[
                is_inside
            ],
            lengths=lengths[is_inside],
            location_rows=np.repeat(self.location_rows, parts)[is_inside],
        )

    def take(self, rows: NDArray[np.intp], inlined_rows: NDArray[np.intp]) -> Self:
        """Pick rows, and only the locations that they use."""
        locations, location_rows = self.locations, self.location_rows[rows]
        if len(locations) > 1:
            used, inverse = np.unique(location_rows, return_inverse=True)
            locations = tuple(locations[number] for number in used.tolist())
            location_rows = inverse.astype(np.uint32)
        return replace(
            self,
            coordinates=self.coordinates[rows],
            offsets=self.offsets[rows],
            lengths=self.lengths[rows],
            locations=locations,
            location_rows=location_rows,
            inlined_coordinates=self.inlined_coordinates[inlined_rows],
            inlined=self.inlined.take(inlined_rows),
        )

    def ends_of(self, location: str) -> int:
        """Return the first byte behind everything referred to in one location."""
        if location not in self.locations or not len(self):
            return 0
        rows = self.location_rows == self.locations.index(location)
        return int((self.offsets[rows] + self.lengths[rows]).max(initial=0))

    def to_bytes(self) -> bytes:
        """Pack the columns for a journey to another process."""
        texts = BytesColumn.from_strings(self.locations)
        columns = b"".join(
            [
                self.coordinates.T.astype("<u4").tobytes(),
                self.offsets.astype("<u8").tobytes(),
                self.lengths.astype("<u8").tobytes(),
                self.location_rows.astype("<u4").tobytes(),
                self.inlined_coordinates.astype("<u4").tobytes(),
                texts.splits.astype("<i8").tobytes(),
                self.inlined.splits.astype("<i8").tobytes(),
                texts.data.tobytes(),
                self.inlined.data.tobytes(),
            ]
        )
        counts = (self.dimensions, 0, len(self), len(self.inlined), len(self.locations))
        packed = zstandard.ZstdCompressor(level=_QUICK_LEVEL).compress(columns)
        return _HEADER.pack(_MAGIC, *counts) + packed

    @classmethod
    def from_bytes(cls, packed: bytes) -> Self:
        """Unpack what `to_bytes` gave."""
        magic, dimensions, _, rows, inlined, locations = _HEADER.unpack_from(packed)
        if magic != _MAGIC:
            raise FormatError(f"packed references begin with {_MAGIC!r}, not {magic!r}")
        columns = zstandard.ZstdDecompressor().decompress(memoryview(packed)[_HEADER.size :])
        position = 0

        def column(kind: str, count: int) -> NDArray[Any]:
            nonlocal position
            values: NDArray[Any] = np.frombuffer(columns, kind, count, position)
            position += values.nbytes
            return values

        coordinates = column("<u4", rows * dimensions).reshape(dimensions, rows).T
        offsets, lengths = column("<u8", rows), column("<u8", rows)
        location_rows = column("<u4", rows)
        inlined_coordinates = column("<u4", inlined * dimensions).reshape(inlined, dimensions)
        text_splits, data_splits = column("<i8", locations + 1), column("<i8", inlined + 1)
        texts = BytesColumn(column("u1", int(text_splits[-1])), text_splits)
        data = BytesColumn(column("u1", int(data_splits[-1])), data_splits)
        return cls(
            coordinates.astype(np.int64, order="C"),
            offsets.astype(np.uint64),
            lengths.astype(np.uint64),
            tuple(texts[row].decode() for row in range(locations)),
            location_rows.astype(np.uint32),
            inlined_coordinates.astype(np.int64),
            data,
        )


def concat_references(parts: Sequence[References]) -> References:
    """Put references one after the other; there must be at least one part."""
    counts = [len(part.locations) for part in parts]
    firsts = np.cumsum([0, *counts[:-1]])  # the number that the first location of each part gets
    inlined = [part.inlined_coordinates for part in parts if len(part.inlined)]
    return References(
        np.concatenate([part.coordinates for part in parts]),
        np.concatenate([part.offsets for part in parts]),
        np.concatenate([part.lengths for part in parts]),
        tuple(location for part in parts for location in part.locations),
        np.concatenate(
            [part.location_rows + first for part, first in zip(parts, firsts, strict=True)]
        ).astype(np.uint32),
        np.concatenate(inlined) if inlined else _no_rows(parts[0].dimensions),
        concat_bytes([part.inlined for part in parts]),
    )


_WINDOW_BYTES: Final = 4 << 20
"""Plain chunks that lie within such a span are fetched at once and picked from it."""


def read_values(
    metadata: Mapping[str, Any], references: References, access: SourceAccess
) -> NDArray[Any]:
    """Read a whole array, given its metadata as in `zarr.json`."""
    chain = _plain_chain(metadata)
    if chain is not None and _is_uniform(metadata, references):
        return _gathered(metadata, references, access, chain)
    return _through_zarr(metadata, references, access)


def decode_chunk(
    metadata: Mapping[str, Any], shape: Sequence[int], data: Buffer | None
) -> NDArray[Any]:
    """Decode one chunk as zarr does, with the codecs of an array; None for one that is not stored.

    `shape` is that of the chunk.
    """
    alone = {
        **metadata,
        "shape": list(shape),
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(shape)}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
    }
    content = {"zarr.json": canonical_json(alone).encode()}
    if data is not None:
        content["/".join(["c", *("0" for _ in shape)])] = bytes(data)
    return _open_in_memory(content)


def _plain_chain(metadata: Mapping[str, Any]) -> list[Any] | None:
    """Return the compressors of chunks that are plain numbers otherwise; None for other chunks."""
    first, *rest = metadata["codecs"]
    is_simple = isinstance(metadata["data_type"], str) and metadata["data_type"] in _NUMBERS
    if first["name"] != "bytes" or not is_simple:
        return None
    if not all(codec["name"].startswith("numcodecs.") for codec in rest):
        return None
    return [
        numcodecs.get_codec(
            {"id": codec["name"].removeprefix("numcodecs."), **codec.get("configuration", {})}
        )
        for codec in rest
    ]


_NUMBERS: Final = frozenset(
    {
        *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
        "float32",
        "float64",
    }
)


def _is_uniform(metadata: Mapping[str, Any], references: References) -> bool:
    """Return whether all chunks exist as references, and are cut along the first axis only."""
    shape, chunks = metadata["shape"], metadata["chunk_grid"]["configuration"]["chunk_shape"]
    count = -(-shape[0] // chunks[0]) if shape else 1
    return (
        len(references) == count > 0
        and not len(references.inlined)
        and len(references.locations) == 1
        and tuple(shape[1:]) == tuple(chunks[1:])
    )


def _gathered(
    metadata: Mapping[str, Any], references: References, access: SourceAccess, chain: list[Any]
) -> NDArray[Any]:
    endian = metadata["codecs"][0].get("configuration", {}).get("endian", "little")
    kind = np.dtype(metadata["data_type"]).newbyteorder("<" if endian == "little" else ">")
    shape = tuple(metadata["shape"])
    order = (
        np.argsort(references.coordinates[:, 0])
        if references.dimensions
        else np.arange(len(references))
    )
    offsets = references.offsets[order].astype(np.int64)
    lengths = references.lengths[order].astype(np.int64)
    if not chain and len(set(lengths.tolist())) == 1:
        data = _picked(access, references.locations[0], offsets, int(lengths[0]))
    else:
        ranges = list(zip(offsets.tolist(), (offsets + lengths).tolist(), strict=True))
        chunks = access.place(references.locations[0]).read(ranges)
        data = b"".join(_decoded(chunk, chain) for chunk in chunks)
    values = np.frombuffer(data, kind).reshape(-1, *shape[1:])
    native = values[: shape[0]] if shape else values[0]
    return np.asarray(native, kind.newbyteorder("=")).reshape(shape)


def _decoded(chunk: Buffer, chain: list[Any]) -> bytes:
    data: Any = chunk
    for codec in reversed(chain):
        data = codec.decode(data)
    return bytes(data)


def _picked(access: SourceAccess, location: str, offsets: NDArray[np.int64], length: int) -> bytes:
    """Fetch pieces of equal length; near ones as one window."""
    first, last = int(offsets.min()), int(offsets.max()) + length
    if last - first > max(_WINDOW_BYTES, 2 * length * len(offsets)):
        ranges = [(start, start + length) for start in offsets.tolist()]
        return b"".join(bytes(piece) for piece in access.place(location).read(ranges))
    [window] = access.place(location).read([(first, last)])
    pieces = (offsets - first)[:, None] + np.arange(length)
    picked: bytes = np.frombuffer(window, np.uint8)[pieces].tobytes()
    return picked


def _through_zarr(
    metadata: Mapping[str, Any], references: References, access: SourceAccess
) -> NDArray[Any]:
    """Decode with zarr, from a store that contains the chunks."""
    separator = metadata["chunk_key_encoding"].get("configuration", {}).get("separator", "/")
    content = {"zarr.json": canonical_json(metadata).encode()}

    def keep(row: NDArray[np.int64], data: Buffer) -> None:
        content[separator.join(["c", *map(str, row.tolist())])] = bytes(data)

    for number, location in enumerate(references.locations):
        rows = np.flatnonzero(references.location_rows == number)
        starts = references.offsets[rows].tolist()
        ends = (references.offsets + references.lengths)[rows].tolist()
        fetched = access.place(location).read(list(zip(starts, ends, strict=True)))
        for row, data in zip(references.coordinates[rows], fetched, strict=True):
            keep(row, data)
    for row, data in zip(references.inlined_coordinates, references.inlined.to_list(), strict=True):
        keep(row, data)
    return _open_in_memory(content)


def _open_in_memory(content: Mapping[str, bytes]) -> NDArray[Any]:
    store = zarr.storage.MemoryStore(
        {key: cpu.Buffer.from_bytes(data) for key, data in content.items()}
    )
    return np.asarray(zarr.open_array(store, mode="r")[...])
