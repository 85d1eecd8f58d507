"""References to chunks in foreign files, from what users give to what a session keeps.

References are looked at as a whole: those whose location is refused are returned to the caller, the
others are recorded together, or none of them when there is an error.
"""

import math
from collections.abc import Sequence
from datetime import datetime
from typing import Final

import numpy as np
from numpy.typing import NDArray

from icefloe.config import VirtualChunkSpec
from icefloe.errors import ErrorKind, SessionStateError
from icefloe.format.chunk_table import ChunkKind, ChunkTable, Coordinates, VirtualChunk
from icefloe.format.columns import BytesColumn, Ints
from icefloe.format.nodes import ArrayNode
from icefloe.format.paths import absolute_path
from icefloe.records import Record
from icefloe.transactions.chunks import put_ref, put_refs, require_in_grid
from icefloe.transactions.nodes import require_array
from icefloe.transactions.session import SessionState
from icefloe.zarr_store.keys import ChunkKey, parse_key
from icefloe.zarr_store.virtual_columns import (
    CoordinateColumn,
    NumberColumn,
    TextColumn,
    TimeColumn,
    check_ends,
    check_range,
    coordinates_of,
    counts,
    distinct_texts,
    refused,
    seconds_of,
    times_of,
)

type Checksum = str | int | datetime
"""An etag, or the time of the last modification, as such or in seconds since 1970."""

_LARGEST_INDEX: Final = 2**32 - 1


class GivenRefs(Record):
    """References of one array as somebody gave them: in any order, perhaps several for a chunk."""

    coordinates: Coordinates
    locations: BytesColumn
    """Each distinct one once."""
    targets: Ints
    """Which location each row has."""
    offsets: NDArray[np.uint64]
    lengths: NDArray[np.uint64]
    etags: BytesColumn
    etag_rows: Ints | None
    """Which etag each row has; -1 for none."""
    last_modified: NDArray[np.uint32] | None
    """Seconds since 1970; 0 for none."""


def set_one(
    session: SessionState,
    key: str,
    location: str,
    offset: int,
    length: int,
    *,
    checksum: Checksum | None,
    validate_container: bool,
) -> None:
    """Record the chunk of a key."""
    parsed = parse_key(key)
    if not isinstance(parsed, ChunkKey):
        raise SessionStateError(
            f"{key!r} is not the key of a chunk, and only chunks can be virtual: use set",
            ErrorKind.NOT_ALLOWED,
            key=key,
        )
    node = require_array(session, parsed.path)
    check_range(offset, length)
    etag, seconds = _split(checksum)
    stored = session.context.virtual.recorded_one(location, validate=validate_container)
    ref = VirtualChunk(stored, int(offset), int(length), etag or None, seconds)
    put_ref(session, node, parsed.coordinates, ref)


def set_specs(
    session: SessionState,
    array_path: str,
    specs: Sequence[VirtualChunkSpec],
    *,
    validate_containers: bool,
) -> list[tuple[int, ...]] | None:
    """Record many chunks of an array; of several for one chunk the last counts.

    Those whose location no container covers are not recorded, and returned.
    """
    session.require_writable()
    node = require_array(session, absolute_path(array_path))
    if not specs:
        return None
    dimensions = _dimensions(node)
    for spec in specs:
        if len(spec.index) != dimensions:
            require_in_grid(node, tuple(spec.index))
    coordinates = np.array([spec.index for spec in specs], np.uint32)
    refs = _of_specs(coordinates.reshape(len(specs), dimensions), specs)
    return _as_tuples(_record(session, node, refs, validate=validate_containers))


def set_grid(
    session: SessionState,
    array_path: str,
    grid_shape: Sequence[int],
    locations: TextColumn,
    offsets: NumberColumn,
    lengths: NumberColumn,
    *,
    validate_containers: bool,
    grid_offset: Sequence[int] | None,
    checksum: Checksum | None,
) -> list[tuple[int, ...]] | None:
    """Record a box of chunks, given row by row; an empty location leaves a chunk out."""
    session.require_writable()
    node = require_array(session, absolute_path(array_path))
    _check_grid(grid_shape, grid_offset, len(locations), len(offsets), len(lengths))
    texts, targets = distinct_texts(locations, "locations")
    starts, sizes = (
        counts(offsets, len(targets), "offsets"),
        counts(lengths, len(targets), "lengths"),
    )
    rows = None if (targets >= 0).all() else np.flatnonzero(targets >= 0)
    if rows is not None:
        targets, starts, sizes = targets[rows], starts[rows], sizes[rows]
    coordinates = _box(node, grid_shape, grid_offset, rows)
    etags, etag_rows, modified = _same_for_all(checksum, len(targets))
    refs = GivenRefs(coordinates, texts, targets, starts, sizes, etags, etag_rows, modified)
    return _as_tuples(_record(session, node, refs, validate=validate_containers))


def set_columns(
    session: SessionState,
    array_path: str,
    coordinates: CoordinateColumn,
    locations: TextColumn,
    offsets: NumberColumn | int,
    lengths: NumberColumn | int,
    *,
    etags: TextColumn | None,
    last_modified: TimeColumn | datetime | int | None,
    validate_containers: bool,
) -> Coordinates:
    """Record references given in columns; gives back the coordinates of those refused."""
    session.require_writable()
    node = require_array(session, absolute_path(array_path))
    texts, targets = distinct_texts(locations, "locations")
    if (targets < 0).any():
        row = int((targets < 0).argmax())
        raise refused(f"row {row} has no location: leave out the rows of chunks that do not exist")
    matrix = coordinates_of(coordinates, len(targets), _dimensions(node))
    refs = GivenRefs(
        _checked(node, matrix),
        texts,
        targets,
        counts(offsets, len(targets), "offsets"),
        counts(lengths, len(targets), "lengths"),
        *_etag_columns(etags, len(targets)),
        None if last_modified is None else times_of(last_modified, len(targets)),
    )
    return _record(session, node, refs, validate=validate_containers)


# -- what all forms share ------------------------------------------------------------------


def _record(
    session: SessionState, node: ArrayNode, refs: GivenRefs, *, validate: bool
) -> Coordinates:
    """Record rows whose location a container covers; gives back the coordinates of the rest."""
    check_ends(refs.offsets, refs.lengths)
    virtual = session.context.virtual
    locations, is_refused = virtual.recorded(refs.locations, validate=validate)
    table = ChunkTable(
        refs.coordinates,
        np.full(len(refs.targets), ChunkKind.VIRTUAL, np.uint8),
        refs.offsets,
        refs.lengths,
        refs.targets.astype(np.uint32),
        locations=locations,
        etags=refs.etags,
        etag_rows=None if refs.etag_rows is None else refs.etag_rows.astype(np.int32),
        last_modified=refs.last_modified,
    )
    uncovered = table.coordinates[:0]
    if is_refused is not None and is_refused.any():
        rows = is_refused[table.targets]
        uncovered = table.coordinates[rows]
        table = table.take(~rows).compacted()
    put_refs(session, node, table.sorted(last_wins=True))
    return uncovered


def _of_specs(coordinates: Coordinates, specs: Sequence[VirtualChunkSpec]) -> GivenRefs:
    locations, targets = distinct_texts([spec.location for spec in specs], "locations")
    if (targets < 0).any():
        raise refused("a location is empty: leave out chunks that do not exist")
    etags = [spec.etag_checksum for spec in specs]
    times = [spec.last_updated_at_checksum for spec in specs]
    return GivenRefs(
        coordinates,
        locations,
        targets,
        np.array([spec.offset for spec in specs], np.uint64),
        np.array([spec.length for spec in specs], np.uint64),
        *_etag_columns(None if not any(etags) else etags, len(specs)),
        None if not any(times) else times_of(times, len(specs)),
    )


def _etag_columns(etags: TextColumn | None, rows: int) -> tuple[BytesColumn, Ints | None]:
    if etags is None or isinstance(etags, str):
        single = BytesColumn.from_strings([etags] if etags else [])
        return single, np.zeros(rows, np.int64) if etags else None
    texts, numbers = distinct_texts(etags, "etags")
    if len(numbers) != rows:
        raise refused(f"there are {len(numbers)} etags and {rows} locations: give one for each")
    return texts, numbers


def _same_for_all(
    checksum: Checksum | None, rows: int
) -> tuple[BytesColumn, Ints | None, NDArray[np.uint32] | None]:
    etag, seconds = _split(checksum)
    etags, etag_rows = _etag_columns(etag, rows)
    return etags, etag_rows, None if seconds is None else times_of(seconds, rows)


def _split(checksum: Checksum | None) -> tuple[str | None, int | None]:
    """Separate an etag from the time of a modification, in seconds since 1970."""
    match checksum:
        case None:
            return None, None
        case str():
            return checksum, None
        case datetime() | int():
            return None, seconds_of(checksum)
        case _:
            raise refused(
                "a checksum is the etag of the object as text, or the time of its last"
                f" modification: {checksum!r} is neither"
            )


def _dimensions(node: ArrayNode) -> int:
    return len(node.array.num_chunks)


def _checked(node: ArrayNode, matrix: NDArray[np.integer]) -> Coordinates:
    """Make coordinates small numbers, refusing those that are too large or negative for it."""
    if matrix.dtype == np.uint32:
        return matrix.view(np.uint32)
    beyond = ((matrix < 0) | (matrix > _LARGEST_INDEX)).any(axis=1)
    if beyond.any():
        require_in_grid(node, tuple(matrix[int(beyond.argmax())].tolist()))
    return matrix.astype(np.uint32)


def _box(
    node: ArrayNode, shape: Sequence[int], origin: Sequence[int] | None, rows: Ints | None
) -> Coordinates:
    """List the coordinates of a box row by row, or of some of its rows."""
    first = [0] * len(shape) if origin is None else [int(number) for number in origin]
    if any(low < 0 or low + size > _LARGEST_INDEX for low, size in zip(first, shape, strict=True)):
        chosen = np.arange(math.prod(shape)) if rows is None else rows
        matrix = np.stack(np.unravel_index(chosen, tuple(shape)), axis=1) + np.array(first)
        return _checked(node, matrix)
    box = np.empty((*shape, len(shape)), np.uint32)
    for dimension, (low, size) in enumerate(zip(first, shape, strict=True)):
        along = np.arange(low, low + size, dtype=np.uint32)
        box[..., dimension] = along.reshape(-1, *[1] * (len(shape) - dimension - 1))
    coordinates = box.reshape(math.prod(shape), len(shape))
    return coordinates if rows is None else coordinates[rows]


def _check_grid(
    grid_shape: Sequence[int], grid_offset: Sequence[int] | None, *numbers: int
) -> None:
    if len(set(numbers)) > 1:
        raise _mismatch(
            f"there are {numbers[0]} locations, {numbers[1]} offsets and {numbers[2]} lengths"
        )
    cells = math.prod(grid_shape)
    if cells != numbers[0]:
        raise _mismatch(
            f"a grid of {tuple(grid_shape)} has {cells} chunks, and {numbers[0]} are given"
        )
    if any(not isinstance(step, int | np.integer) for step in grid_offset or ()):
        raise _mismatch("arr_offset must be whole numbers")
    if grid_offset is not None and len(grid_offset) != len(grid_shape):
        raise _mismatch(
            f"arr_offset has {len(grid_offset)} dimensions and chunk_grid_shape {len(grid_shape)}"
        )


def _mismatch(problem: str) -> Exception:
    return refused(f"virtual references do not fit together: {problem}")


def _as_tuples(coordinates: Coordinates) -> list[tuple[int, ...]] | None:
    return [tuple(row) for row in coordinates.tolist()] or None
