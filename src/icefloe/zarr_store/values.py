"""What is under one key: read, measure, write and delete it."""

from icefloe.engine.chunks import delete_chunk, find_ref, read_chunk, size_of, write_chunk
from icefloe.engine.nodes import delete_node, find_node, put_metadata, require_array
from icefloe.engine.session import SessionState
from icefloe.errors import ErrorKind, InvalidInputError, SessionStateError
from icefloe.storage.port import Buffer as StoredBytes
from icefloe.zarr_store.keys import ChunkKey, MetadataKey, parse_key


async def read_value(session: SessionState, key: str, window: slice | None = None) -> StoredBytes | None:
    """Read the value of a key, or a part of it; `None` when there is none."""
    parsed = parse_key(key)
    if isinstance(parsed, ChunkKey):
        node = find_node(session, parsed.path)
        if node is None:
            return None
        if node.array is None:
            raise _only_arrays(parsed)
        return await read_chunk(session, node, parsed.coordinates, window)
    if isinstance(parsed, MetadataKey):
        node = find_node(session, parsed.path)
        if node is None:
            return None
        return node.user_data if window is None else node.user_data[window]
    return None


async def size_of_value(session: SessionState, key: str) -> int | None:
    """Give the number of bytes under a key without reading them; `None` when there are none."""
    match parse_key(key):
        case MetadataKey(path):
            node = find_node(session, path)
            return None if node is None else len(node.user_data)
        case ChunkKey(path, coordinates):
            node = find_node(session, path)
            if node is None or node.array is None:
                return None
            ref = await find_ref(session, node, coordinates)
            return None if ref is None else size_of(ref)
        case _:
            return None


async def has_value(session: SessionState, key: str) -> bool:
    """Say whether there is something under a key; under one that cannot exist there is not."""
    try:
        return await size_of_value(session, key) is not None
    except InvalidInputError:
        return False


async def write_value(session: SessionState, key: str, data: StoredBytes) -> None:
    """Write metadata or a chunk, replacing what was there."""
    match parse_key(key):
        case ChunkKey(path, coordinates):
            await write_chunk(session, require_array(session, path), coordinates, data)
        case MetadataKey(path):
            put_metadata(session, path, bytes(data))
        case _:
            raise SessionStateError(
                f"{key!r} is a key of Zarr format 2, and a repository holds format 3 only: "
                "create arrays and groups with zarr_format=3",
                ErrorKind.UNIMPLEMENTED,
                key=key,
            )


def delete_value(session: SessionState, key: str) -> None:
    """Delete metadata (with the node and all below it) or a chunk.

    What cannot exist is deleted already, however strange its key.
    """
    session.require_writable()
    try:
        parsed = parse_key(key)
    except InvalidInputError:
        return
    if isinstance(parsed, MetadataKey):
        delete_node(session, parsed.path)
    elif isinstance(parsed, ChunkKey):
        node = find_node(session, parsed.path)
        if node is not None and node.array is not None:
            delete_chunk(session, node, parsed.coordinates)


def _only_arrays(key: ChunkKey) -> InvalidInputError:
    return InvalidInputError(
        f"{key.path} is a group, and only arrays have chunks",
        ErrorKind.NOT_AN_ARRAY,
        path=key.path,
    )
