"""References to chunks in foreign files, from what users give to columns."""

import math
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icefloe.config import VirtualChunkSpec
from icefloe.engine.chunks import put_refs, require_in_grid
from icefloe.engine.nodes import require_array
from icefloe.engine.paths import absolute_path
from icefloe.engine.session import SessionState
from icefloe.errors import ErrorKind, InvalidInputError, SessionStateError
from icefloe.format.chunk_table import ChunkTable, Coordinates
from icefloe.format.columns import BytesColumn
from icefloe.format.node_table import Node
from icefloe.zarr_store.keys import ChunkKey, parse_key

type Checksum = str | datetime
"""An etag, or the time of the last modification."""


def set_one(
    session: SessionState, key: str, spec: VirtualChunkSpec, *, validate_container: bool
) -> None:
    """Record the chunk of a key; the coordinates in `spec` are ignored."""
    session.require_writable()
    parsed = parse_key(key)
    if not isinstance(parsed, ChunkKey):
        raise SessionStateError(
            f"{key!r} is not the key of a chunk, and only chunks can be virtual: use set",
            ErrorKind.NOT_ALLOWED,
            key=key,
        )
    node = require_array(session, parsed.path)
    require_in_grid(node, parsed.coordinates)
    coordinates = np.array([parsed.coordinates], np.uint32).reshape(1, -1)
    refused = _put(session, node, coordinates, [spec], validate=validate_container)
    if refused:
        session.context.virtual.locate(spec.location)  # says which container is missing


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
    last = {tuple(spec.index): spec for spec in specs}
    if not last:
        return None
    dimensions = len(node.array.num_chunks) if node.array is not None else 0
    for index in last:
        if len(index) != dimensions:
            require_in_grid(node, index)
    coordinates = np.array(list(last), np.uint32).reshape(len(last), dimensions)
    return _put(session, node, coordinates, list(last.values()), validate=validate_containers)


def set_grid(
    session: SessionState,
    array_path: str,
    grid_shape: Sequence[int],
    locations: Sequence[str],
    offsets: NDArray[np.uint64],
    lengths: NDArray[np.uint64],
    *,
    validate_containers: bool,
    grid_offset: Sequence[int] | None,
    checksum: Checksum | None,
) -> list[tuple[int, ...]] | None:
    """Record a box of chunks, given row by row; an empty location leaves a chunk out."""
    session.require_writable()
    node = require_array(session, absolute_path(array_path))
    _check_grid(grid_shape, grid_offset, len(locations), len(offsets), len(lengths))
    column = BytesColumn.from_strings(locations)
    rows = np.flatnonzero(column.lengths())
    origin = np.zeros(len(grid_shape), np.int64) if grid_offset is None else grid_offset
    coordinates = np.stack(np.unravel_index(rows, tuple(grid_shape)), axis=1) + np.asarray(origin)
    if len(rows) and (coordinates.min() < 0 or coordinates.max() > np.iinfo(np.uint32).max):
        require_in_grid(node, tuple(coordinates.max(axis=0).tolist()))
    etag = checksum if isinstance(checksum, str) else None
    modified = _seconds(checksum) if isinstance(checksum, datetime) else None
    table = ChunkTable.virtual(
        coordinates.astype(np.uint32),
        session.context.virtual.normalise_all(column.take(rows)),
        _counts(offsets, "offsets")[rows],
        _counts(lengths, "lengths")[rows],
        etags=None if etag is None else BytesColumn.from_strings([etag]),
        etag_rows=None if etag is None else np.zeros(len(rows), np.int32),
        last_modified=None if modified is None else np.full(len(rows), modified, np.uint32),
    )
    return _put_covered(session, node, table, validate=validate_containers)


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
    if grid_offset is not None and len(grid_offset) != len(grid_shape):
        raise _mismatch(
            f"arr_offset has {len(grid_offset)} dimensions and chunk_grid_shape {len(grid_shape)}"
        )


def _mismatch(problem: str) -> InvalidInputError:
    return InvalidInputError(
        f"virtual references do not fit together: {problem}", ErrorKind.INVALID_VIRTUAL_REF
    )


def _counts(given: NDArray[Any], name: str) -> NDArray[np.uint64]:
    column = np.asarray(given)
    if column.dtype.kind not in "ui" or (column.dtype.kind == "i" and (column < 0).any()):
        raise InvalidInputError(
            f"{name} must be whole numbers from 0, as an array of uint64",
            ErrorKind.INVALID_VIRTUAL_REF,
        )
    return column.astype(np.uint64, copy=False)


def _put(
    session: SessionState,
    node: Node,
    coordinates: Coordinates,
    specs: list[VirtualChunkSpec],
    *,
    validate: bool,
) -> list[tuple[int, ...]] | None:
    etags = [spec.etag_checksum for spec in specs]
    has_etag = np.array([etag is not None for etag in etags], np.bool_)
    times = [spec.last_updated_at_checksum for spec in specs]
    modified = np.array([0 if time is None else _seconds(time) for time in times], np.uint32)
    table = ChunkTable.virtual(
        coordinates,
        session.context.virtual.normalise_all(
            BytesColumn.from_strings([spec.location for spec in specs])
        ),
        np.array([spec.offset for spec in specs], np.uint64),
        np.array([spec.length for spec in specs], np.uint64),
        etags=BytesColumn.from_strings([etag for etag in etags if etag is not None]),
        etag_rows=np.where(has_etag, np.cumsum(has_etag) - 1, -1).astype(np.int32),
        last_modified=modified,
    )
    return _put_covered(session, node, table, validate=validate)


def _put_covered(
    session: SessionState, node: Node, table: ChunkTable, *, validate: bool
) -> list[tuple[int, ...]] | None:
    """Record rows whose location a container covers; gives back the coordinates of the rest."""
    if not validate or len(table) == 0:
        put_refs(session, node, table)
        return None
    uncovered = session.context.virtual.check_locations(table.locations)[table.targets]
    if not uncovered.any():
        put_refs(session, node, table)
        return None
    put_refs(session, node, table.take(~uncovered))
    return [tuple(row) for row in table.coordinates[uncovered].tolist()]


def _seconds(moment: datetime) -> int:
    if moment.tzinfo is None:
        raise InvalidInputError(
            f"the time {moment.isoformat()} has no time zone: give it as UTC",
            ErrorKind.INVALID_VIRTUAL_REF,
        )
    seconds = int(moment.timestamp())
    if not 0 < seconds <= np.iinfo(np.uint32).max:
        raise InvalidInputError(
            f"the time {moment.isoformat()} is not between 1970 and 2106",
            ErrorKind.INVALID_VIRTUAL_REF,
        )
    return seconds
