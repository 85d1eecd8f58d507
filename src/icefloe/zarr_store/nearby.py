"""Read the chunks of a selection that are on this machine.

Zarr's own pipeline requests one chunk after the other, by its key. Here all references are found
in columns, and chunks are decoded straight into the result. Small ones are read on the thread of
the caller: several threads would only wait for each other. Those that are large, as they are stored
or decoded, are read on several threads.
"""

from collections.abc import Sequence
from math import prod
from typing import Final

from zarr.abc.codec import GetResult
from zarr.abc.store import ByteGetter
from zarr.core.array_spec import ArraySpec
from zarr.core.indexing import SelectorTuple

from icefloe.effects import map_concurrently
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format.chunk_table import Coordinates
from icefloe.format.nodes import ArrayNode
from icefloe.transactions.chunks import find_ref, size_of
from icefloe.transactions.selections import (
    ChunkRequest,
    find_refs,
    plan_requests,
    read_request,
)
from icefloe.transactions.session import SessionState
from icefloe.zarr_store.decoding import ChunkDecoder

type ReadItem = tuple[ByteGetter, ArraySpec, SelectorTuple, SelectorTuple, bool]

FEW_CHUNKS: Final = 8
"""Up to this number, references are looked up one by one: columns would take longer."""
SMALL_BYTES: Final = 64 << 10
"""Requests for chunks up to this size are made on the thread of the caller."""


async def read_nearby(
    session: SessionState,
    path: str,
    coordinates: Coordinates,
    batch: Sequence[ReadItem],
    decoder: ChunkDecoder,
    *,
    workers: int,
) -> tuple[GetResult, ...]:
    """Read the chunks of an array into the result of the decoder; raise for a group."""
    results: list[GetResult | None] = [None] * len(batch)

    async def read(request: ChunkRequest) -> None:
        stored = await read_request(session, request)
        for place, data in zip(request.places, stored, strict=True):
            _, spec, chunk_selection, out_selection, _ = batch[place]
            results[place] = decoder.decode(data, spec, chunk_selection, out_selection)

    requests = await _requests(session, path, coordinates)
    is_small = decoded_bytes(batch[0][1]) <= SMALL_BYTES
    is_small = is_small and all(request.size_bytes <= SMALL_BYTES for request in requests)
    await map_concurrently(read, requests, limit=1 if is_small else workers)
    return tuple(
        decoder.fill(item[1], item[3]) if result is None else result
        for item, result in zip(batch, results, strict=True)
    )


def decoded_bytes(spec: ArraySpec) -> int:
    """Return the bytes of the values of a chunk; those without a fixed size are pointers."""
    return prod(spec.shape) * int(getattr(spec.dtype, "item_size", 8))


def find_array(session: SessionState, path: str) -> ArrayNode | None:
    """Return the array at a path, if there is one; raise for a group."""
    node = session.tree.find(path)
    if node is None or isinstance(node, ArrayNode):
        return node
    problem = f"{path} is a group, and only arrays have chunks"
    raise InvalidInputError(problem, ErrorKind.NOT_AN_ARRAY, path=path)


async def _requests(
    session: SessionState, path: str, coordinates: Coordinates
) -> list[ChunkRequest]:
    node = find_array(session, path)
    if node is None:
        return []
    requests = list[ChunkRequest]()
    if len(coordinates) <= FEW_CHUNKS:
        for place, index in enumerate(map(tuple, coordinates.tolist())):
            if (ref := await find_ref(session, node, index)) is not None:
                requests.append(ChunkRequest(ref, [place], [(0, size_of(ref))]))
        return requests
    # A pack that is still in memory has no ranges.
    for found in await find_refs(session, node, coordinates):
        requests += plan_requests(found, joins=session.packer is None)
    return requests
