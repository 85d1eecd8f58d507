"""Values of small arrays, read through their references."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numcodecs
import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.core.buffer import cpu

from icefloe.effects import run_blocking
from icefloe.pipeline.files.access import SourceAccess
from icefloe.pipeline.files.references import References
from icefloe.pipeline.files.schema import canonical_json
from icefloe.storage import Buffer

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
        chunks = _fetch(access, references.locations[0], ranges)
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
        return b"".join(bytes(piece) for piece in _fetch(access, location, ranges))
    [window] = _fetch(access, location, [(first, last)])
    pieces = (offsets - first)[:, None] + np.arange(length)
    picked: bytes = np.frombuffer(window, np.uint8)[pieces].tobytes()
    return picked


def _fetch(access: SourceAccess, location: str, ranges: Sequence[tuple[int, int]]) -> list[Buffer]:
    source_place = access.place(location)
    return run_blocking(source_place.backend.get_ranges(source_place.key, ranges))


def _through_zarr(
    metadata: Mapping[str, Any], references: References, access: SourceAccess
) -> NDArray[Any]:
    """Let zarr decode, from a store that holds the chunks."""
    separator = metadata["chunk_key_encoding"].get("configuration", {}).get("separator", "/")
    content = {"zarr.json": canonical_json(metadata).encode()}

    def keep(row: NDArray[np.int64], data: Buffer) -> None:
        content[separator.join(["c", *map(str, row.tolist())])] = bytes(data)

    for number, location in enumerate(references.locations):
        rows = np.flatnonzero(references.location_rows == number)
        starts = references.offsets[rows].tolist()
        ends = (references.offsets + references.lengths)[rows].tolist()
        fetched = _fetch(access, location, list(zip(starts, ends, strict=True)))
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
