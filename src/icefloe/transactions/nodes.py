"""Groups and arrays of a session: look up, create, update and delete them, all in memory.

A node is created from its `zarr.json`. The document is kept byte for byte; only a few fields are
interpreted: group or array, shape, chunk grid, names. All else (data type, codecs, attributes,
consolidated metadata) is between Zarr and the user.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from icefloe.errors import AlreadyExistsError, ErrorKind, InvalidInputError, NodeNotFoundError
from icefloe.format.ids import NodeId
from icefloe.format.nodes import ArrayInfo, ArrayNode, Node, node_of
from icefloe.format.paths import check_path
from icefloe.transactions.session import SessionState


def require_node(session: SessionState, path: str) -> Node:
    """Look up a node that must exist."""
    if (node := session.tree.find(path)) is None:
        raise NodeNotFoundError(f"there is no group or array at {path}", path=path)
    return node


def require_array(session: SessionState, path: str) -> ArrayNode:
    """Look up an array that must exist."""
    node = require_node(session, path)
    if not isinstance(node, ArrayNode):
        raise InvalidInputError(
            f"{path} is a group, and only arrays have chunks", ErrorKind.NOT_AN_ARRAY, path=path
        )
    return node


def put_metadata(session: SessionState, path: str, raw: bytes) -> None:
    """Create a node from its `zarr.json`, or update it; the bytes are kept as they are."""
    session.require_writable()
    array = parse_metadata(raw, check_path(path))
    existing = session.tree.find(path)
    if existing is None:
        session.changes.put_node(node_of(NodeId.random(), path, raw, array), is_new=True)
        return
    was_array = isinstance(existing, ArrayNode)
    if was_array is (array is None):
        old, new = ("an array", "a group") if was_array else ("a group", "an array")
        raise AlreadyExistsError(
            f"{path} is {old} and cannot become {new}: delete it first",
            ErrorKind.NODE_ALREADY_EXISTS,
            path=path,
        )
    if existing.user_data != raw:
        session.changes.put_node(node_of(existing.id, path, raw, array), is_new=False)


def delete_node(session: SessionState, path: str) -> None:
    """Delete a node and everything below it; what does not exist is deleted already."""
    session.require_writable()
    for node in list(session.tree.below(path)):
        session.changes.delete_node(node)


# -- zarr.json -------------------------------------------------------------------------------

_ZARR_FORMAT: Final = 3
_LARGEST_LENGTH: Final = 2**64 - 1
_MOST_CHUNKS: Final = 2**32 - 1
_PAIR: Final = 2  # a rectilinear grid may write a run of equal chunks as [size, count]


def parse_metadata(raw: bytes, path: str) -> ArrayInfo | None:
    """Read a `zarr.json`; `None` for a group.

    >>> parse_metadata(b'{"zarr_format": 3, "node_type": "group"}', "/") is None
    True
    """
    document = parse_document(raw, path)
    if document.get("zarr_format") != _ZARR_FORMAT:
        raise _bad(path, 'it must say "zarr_format": 3, the only one a repository holds')
    match document.get("node_type"):
        case "group":
            return None
        case "array":
            return _parse_array(document, path)
        case other:
            raise _bad(path, f'"node_type" must be "group" or "array", not {other!r}')


def parse_document(raw: bytes, path: str) -> dict[str, Any]:
    """Read the JSON object in a `zarr.json`, whatever its fields."""
    try:
        document = json.loads(str(raw, "utf-8"))
    except (ValueError, RecursionError) as error:
        raise _bad(path, f"it is not JSON in UTF-8 ({error})") from error
    if not isinstance(document, dict):
        raise _bad(path, "it is not a JSON object")
    return document


def chunk_grid_name(raw: bytes, path: str) -> object:
    """Return the name of the chunk grid of an array, as its document has it."""
    return _grid(parse_document(raw, path), path)[0]


def _parse_array(document: Mapping[str, Any], path: str) -> ArrayInfo:
    shape = _lengths(document, "shape", path)
    num_chunks = parse_grid(document, shape, path)
    if any(count > _MOST_CHUNKS for count in num_chunks):
        raise InvalidInputError(
            f"the array {path} would have {max(num_chunks)} chunks along one dimension, more "
            f"than the {_MOST_CHUNKS} a repository can number: use larger chunks",
            ErrorKind.INVALID_ARRAY_METADATA,
            path=path,
        )
    return ArrayInfo(shape, num_chunks, _dimension_names(document, path))


def parse_grid(document: Mapping[str, Any], shape: tuple[int, ...], path: str) -> tuple[int, ...]:
    """Return how many chunks an array has along each dimension, by its document."""
    name, configuration = _grid(document, path)
    match name:
        case "regular":
            chunks = _lengths(configuration, "chunk_shape", path)
            counts = tuple(
                -(-length // chunk) if chunk else 0
                for length, chunk in zip(shape, chunks, strict=False)
            )
            dimensions = len(chunks)
        case "rectilinear":
            counts = _rectilinear_counts(configuration, path)
            dimensions = len(counts)
        case _:
            raise _bad(path, f'chunk grid {name!r} is neither "regular" nor "rectilinear"')
    if dimensions != len(shape):
        raise _bad(path, f"its shape has {len(shape)} dimensions and its chunk grid {dimensions}")
    return counts


def _grid(document: Mapping[str, Any], path: str) -> tuple[object, Mapping[str, Any]]:
    match document.get("chunk_grid"):
        case {"name": name, "configuration": dict() as configuration}:
            return name, configuration
    raise _bad(path, '"chunk_grid" must be an object with "name" and "configuration"')


def _rectilinear_counts(configuration: Mapping[str, Any], path: str) -> tuple[int, ...]:
    dimensions = configuration.get("chunk_shapes")
    if not isinstance(dimensions, list):
        raise _bad(path, '"chunk_shapes" must be a list with one list for each dimension')
    return tuple(_count_of_runs(runs, path) for runs in dimensions)


def _count_of_runs(runs: object, path: str) -> int:
    if not isinstance(runs, list):
        raise _bad(path, '"chunk_shapes" must hold lists of sizes and [size, count] pairs')
    count = 0
    for run in runs:
        if _is_length(run):
            count += 1
        elif isinstance(run, list) and len(run) == _PAIR and all(map(_is_length, run)):
            count += run[1]
        else:
            raise _bad(path, f"{run!r} in its chunk grid is no size and no [size, count] pair")
    return count


def _lengths(document: Mapping[str, Any], field: str, path: str) -> tuple[int, ...]:
    lengths = document.get(field)
    if not isinstance(lengths, list) or not all(map(_is_length, lengths)):
        raise _bad(path, f'"{field}" must be a list of whole numbers from 0, got {lengths!r}')
    return tuple(lengths)


def _is_length(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST_LENGTH


def _dimension_names(document: Mapping[str, Any], path: str) -> tuple[str | None, ...] | None:
    names = document.get("dimension_names")
    if names is None:
        return None
    if not _are_names(names):
        raise _bad(path, f'"dimension_names" must be a list of strings and nulls, got {names!r}')
    return tuple(names)


def _are_names(value: object) -> bool:
    return (
        isinstance(value, Sequence)
        and not isinstance(value, str)
        and all(name is None or (isinstance(name, str) and _is_unicode(name)) for name in value)
    )


def _is_unicode(text: str) -> bool:
    """Return whether text can be stored: JSON escapes may smuggle in lone surrogates."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _bad(path: str, problem: str) -> InvalidInputError:
    return InvalidInputError(
        f"the zarr.json of {path} is not valid: {problem}", ErrorKind.BAD_METADATA, path=path
    )
