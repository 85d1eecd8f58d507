"""Zarr over HTTP: the keys of a version as files, for every client of Zarr.

Clients cannot list files over HTTP, so that the document of a group repeats those of all nodes
below it (consolidated metadata), unless there are too many.
"""

import json
import re
from typing import Any, Final

from zarr.abc.store import OffsetByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.core.buffer import default_buffer_prototype

from icefloe.effects import run_blocking
from icefloe.errors import ErrorKind, InvalidInputError, NotFoundError
from icefloe.format.nodes import GroupNode
from icefloe.records import Record
from icefloe.web.nodes import document_of
from icefloe.web.versions import Version
from icefloe.zarr_store.keys import METADATA, MetadataKey, parse_key
from icefloe.zarr_store.store import size_of_value

_MOST_NODES: Final = 10_000
_RANGE: Final = r"bytes=(?:([0-9]{1,18})-([0-9]{0,18})|-([0-9]{1,18}))"


class ZarrFile(Record):
    """The bytes of a key, or a range of them."""

    data: bytes
    first: int
    size_bytes: int
    """The size of the whole value."""

    @property
    def is_part(self) -> bool:
        """Whether there is more than these bytes."""
        return len(self.data) != self.size_bytes


class NoSuchKeyError(NotFoundError):
    """A version has no such key, which says of a chunk that nobody wrote it."""

    default_kind = ErrorKind.KEY_NOT_FOUND


class RangeError(InvalidInputError):
    """A file has no byte of a range; the size of the file is in the context."""

    default_kind = ErrorKind.INVALID_REQUEST

    @property
    def headers(self) -> dict[str, str]:
        """The headers of an answer with this error."""
        return {"accept-ranges": "bytes", "content-range": f"bytes */{self.context['size']}"}


def read_file(version: Version, key: str, byte_range: str | None = None) -> ZarrFile | None:
    """Return the value of a key, or the part that a `Range` header names; None if there is none."""
    try:
        parsed = parse_key(key)
    except InvalidInputError:
        return None
    if isinstance(parsed, MetadataKey):
        return _cut(_document(version, parsed.path), byte_range)
    store = version.session.store
    prototype = default_buffer_prototype()
    match = _parse(byte_range)
    if match is None:
        value = store.get_sync(key, prototype=prototype)
        return None if value is None else ZarrFile(value.to_bytes(), 0, len(value))
    size = run_blocking(size_of_value(version.state, key))
    if size is None:
        return None
    request, first = _request(match, size)
    value = store.get_sync(key, prototype=prototype, byte_range=request)
    return None if value is None else ZarrFile(value.to_bytes(), first, size)


def size_of_file(version: Version, key: str) -> int | None:
    """Return the size of the value of a key without reading a chunk; None if there is none."""
    try:
        parsed = parse_key(key)
    except InvalidInputError:
        return None
    if isinstance(parsed, MetadataKey):
        document = _document(version, parsed.path)
        return None if document is None else len(document)
    return run_blocking(size_of_value(version.state, key))


def _parse(byte_range: str | None) -> re.Match[str] | None:
    """Return the bounds of a range; None for everything that HTTP tells servers to ignore.

    >>> [_parse(text) is None for text in ("bytes=0-5", "bytes=-5", "bytes=5-0", "bytes=0-1,3-4")]
    [False, False, True, True]
    """
    match = re.fullmatch(_RANGE, byte_range or "")
    if match is not None and match[2] and int(match[2]) < int(match[1]):
        return None
    return match


def _request(
    match: re.Match[str], size: int
) -> tuple[RangeByteRequest | OffsetByteRequest | SuffixByteRequest, int]:
    start, stop, suffix = match.groups()
    if suffix is not None:
        length = min(int(suffix), size)
        if length == 0:
            raise RangeError(f"the file has {size} bytes, none of them in the range", size=size)
        return SuffixByteRequest(length), size - length
    if int(start) >= size:
        raise RangeError(f"the file has {size} bytes", size=size)
    if not stop:
        return OffsetByteRequest(int(start)), int(start)
    return RangeByteRequest(int(start), min(int(stop) + 1, size)), int(start)


def _cut(document: bytes | None, byte_range: str | None) -> ZarrFile | None:
    match = _parse(byte_range)
    if document is None or match is None:
        return None if document is None else ZarrFile(document, 0, len(document))
    _, first = _request(match, len(document))
    stop = len(document) if match[3] is not None or not match[2] else int(match[2]) + 1
    return ZarrFile(document[first:stop], first, len(document))


def _document(version: Version, path: str) -> bytes | None:
    """Return the metadata of a node, and for a group that of all nodes below it."""
    node = version.state.tree.find(path)
    if node is None:
        return None
    if not isinstance(node, GroupNode):
        return node.user_data
    below = [p for p in version.state.tree.paths_below(path) if p != path]
    if len(below) > _MOST_NODES:
        return node.user_data
    prefix = path.rstrip("/") + "/"
    documents: dict[str, Any] = {}
    for node_path in below:
        inner = version.state.tree.find(node_path)
        if inner is not None:
            documents[node_path.removeprefix(prefix)] = _without_inner(document_of(inner))
    document = document_of(node)
    document["consolidated_metadata"] = {
        "kind": "inline",
        "must_understand": False,
        "metadata": documents,
    }
    return json.dumps(document).encode()


def _without_inner(document: dict[str, Any]) -> dict[str, Any]:
    document.pop("consolidated_metadata", None)
    return document


def is_metadata(key: str) -> bool:
    """Return whether a key names a document, not a chunk."""
    return key == METADATA or key.endswith(f"/{METADATA}")
