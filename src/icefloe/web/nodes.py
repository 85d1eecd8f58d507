"""Groups and arrays as people want to see them: dimensions, type, chunks, units, size."""

import json
from collections.abc import Mapping, Sequence
from math import ceil, prod
from typing import Any, Final

from icefloe.errors import NodeNotFoundError
from icefloe.format.nodes import ArrayNode, Node
from icefloe.records import Record
from icefloe.web.texts import shown_name
from icefloe.web.versions import Version

MOST_CHILDREN: Final = 500
"""How many nodes of a group a page shows."""


class ArrayFacts(Record):
    """The facts in the metadata of an array."""

    dimensions: tuple[str, ...]
    shape: tuple[int, ...]
    num_chunks: tuple[int, ...]
    data_type: str
    chunk_shape: tuple[int, ...] | None
    """None for a grid whose chunks have different sizes."""
    units: str
    long_name: str
    fill_value: Any
    codecs: tuple[str, ...]
    inner_shape: tuple[int, ...] | None = None
    """The shape of the chunks within a shard; None if the chunks are no shards."""

    @property
    def num_values(self) -> int:
        """The number of values."""
        return prod(self.shape)

    @property
    def size_bytes(self) -> int | None:
        """The size of all values in memory; None for values of different sizes."""
        width = item_bytes(self.data_type)
        return None if width is None else width * self.num_values

    @property
    def largest_chunk(self) -> tuple[int, ...]:
        """The shape of a chunk; in a grid with chunks of different sizes, about that of one."""
        if self.chunk_shape is not None:
            return self.chunk_shape
        lengths = zip(self.shape, self.num_chunks, strict=True)
        return tuple(ceil(length / max(count, 1)) for length, count in lengths)

    @property
    def chunk_bytes(self) -> int:
        """The size of the values of a chunk in memory."""
        return (item_bytes(self.data_type) or 1) * prod(self.largest_chunk)

    @property
    def grid_chunks(self) -> int:
        """The number of chunks that the grid has room for."""
        return prod(self.num_chunks)

    @property
    def part_shape(self) -> tuple[int, ...]:
        """The shape of what is decoded at once: a chunk, or one within a shard."""
        return self.largest_chunk if self.inner_shape is None else self.inner_shape

    @property
    def part_bytes(self) -> int:
        """The size of the values that are decoded at once, in memory."""
        return (item_bytes(self.data_type) or 1) * prod(self.part_shape)

    @property
    def num_parts(self) -> tuple[int, ...]:
        """How many of these parts are along each dimension."""
        if self.inner_shape is None:
            return self.num_chunks
        lengths = zip(self.shape, self.inner_shape, strict=True)
        return tuple(ceil(length / part) for length, part in lengths)


class NodeRow(Record):
    """A node in the list of its group."""

    path: str
    name: str
    facts: ArrayFacts | None
    """None for a group."""
    below: int | None = None
    """The number of nodes below a group; None if nobody counted."""


class NodePage(Record):
    """Some of the nodes of a group, in the order of their names."""

    rows: tuple[NodeRow, ...]
    total: int
    next: str | None = None
    """The name after which the next page begins."""


def find_node(version: Version, path: str) -> Node:
    """Return a node; raise `NodeNotFoundError` if the version has none at the path."""
    node = version.state.tree.find(path)
    if node is None:
        raise NodeNotFoundError(f"there is no node {path} in {version.name}", path=path)
    return node


def document_of(node: Node) -> dict[str, Any]:
    """Return the metadata of a node."""
    document = json.loads(node.user_data)
    return document if isinstance(document, dict) else {}


def attributes_of(node: Node) -> dict[str, Any]:
    """Return the attributes of a node."""
    attributes = document_of(node).get("attributes")
    return attributes if isinstance(attributes, dict) else {}


def facts_of(node: ArrayNode) -> ArrayFacts:
    """Read what the metadata of an array says; what is missing or odd is left out."""
    document, array = document_of(node), node.array
    attributes = document.get("attributes")
    if not isinstance(attributes, dict):
        attributes = {}
    codecs = document.get("codecs")
    names = array.dimension_names or (None,) * len(array.shape)
    grid = document.get("chunk_grid")
    configuration = grid.get("configuration") if isinstance(grid, dict) else None
    return ArrayFacts(
        tuple(name or f"dim_{number}" for number, name in enumerate(names)),
        array.shape,
        array.num_chunks,
        _type_name(document.get("data_type")),
        lengths_in(configuration, len(array.shape)),
        shown_name(_text(attributes.get("units"))),
        shown_name(_text(attributes.get("long_name") or attributes.get("standard_name"))),
        document.get("fill_value"),
        tuple(_codec_name(codec) for codec in codecs if codec) if isinstance(codecs, list) else (),
        inner_shape_of(document, len(array.shape)),
    )


def inner_shape_of(document: Mapping[str, Any], dimensions: int) -> tuple[int, ...] | None:
    """Return the shape of the chunks within a shard; None if they are not decoded alone.

    A shard with other codecs before or after it is decoded whole.

    >>> sharding = {"name": "sharding_indexed", "configuration": {"chunk_shape": [2, 3]}}
    >>> inner_shape_of({"codecs": [sharding]}, 2)
    (2, 3)
    >>> inner_shape_of({"codecs": [{"name": "transpose"}, sharding]}, 2)
    """
    codecs = document.get("codecs")
    only = codecs[0] if isinstance(codecs, list) and len(codecs) == 1 else None
    if not isinstance(only, dict) or only.get("name") != "sharding_indexed":
        return None
    return lengths_in(only.get("configuration"), dimensions)


def lengths_in(configuration: object, dimensions: int) -> tuple[int, ...] | None:
    """Return the shape of chunks that a configuration has; None if there is no good one."""
    lengths = configuration.get("chunk_shape") if isinstance(configuration, dict) else None
    if not isinstance(lengths, list) or len(lengths) != dimensions:
        return None
    if not all(isinstance(length, int) and length > 0 for length in lengths):
        return None
    return tuple(lengths)


def children(version: Version, path: str, after: str | None = None) -> NodePage:
    """Return the nodes directly below a group, at most `MOST_CHILDREN` of them."""
    prefix = path.rstrip("/") + "/"
    counts: dict[str, int] = {}
    for node_path in version.state.tree.paths_below(path):
        name = node_path[len(prefix) :].partition("/")[0]
        if name:
            counts[name] = counts.get(name, -1) + 1
    names = sorted(counts)
    chosen = [name for name in names if after is None or name > after][:MOST_CHILDREN]
    rows = []
    for name in chosen:
        node = find_node(version, prefix + name)
        facts = facts_of(node) if isinstance(node, ArrayNode) else None
        rows.append(NodeRow(node.path, name, facts, counts[name]))
    last = chosen[-1] if chosen and chosen[-1] != names[-1] else None
    return NodePage(tuple(rows), len(names), last)


def search(version: Version, path: str, text: str) -> NodePage:
    """Return the nodes below a group whose paths from there contain a text in any case.

    A page has at most `MOST_CHILDREN` of them, and there is no next page.
    """
    prefix, folded = path.rstrip("/") + "/", text.casefold()
    paths = sorted(
        node_path
        for node_path in version.state.tree.paths_below(path)
        if folded in node_path[len(prefix) :].casefold() and len(node_path) > len(prefix)
    )
    rows = []
    for node_path in paths[:MOST_CHILDREN]:
        node = find_node(version, node_path)
        facts = facts_of(node) if isinstance(node, ArrayNode) else None
        rows.append(NodeRow(node_path, node_path[len(prefix) :], facts))
    return NodePage(tuple(rows), len(paths))


def largest_array(version: Version, page: NodePage) -> ArrayNode | None:
    """Return the array with most values on a page of nodes; None if there is none with any."""
    sizes = {row.path: row.facts.num_values for row in page.rows if row.facts is not None}
    largest = max(sizes, key=lambda path: sizes[path], default=None)
    if largest is None or not sizes[largest]:
        return None
    node = find_node(version, largest)
    return node if isinstance(node, ArrayNode) else None


def ancestors(path: str) -> list[tuple[str, str]]:
    """Return name and path of the groups that lead to a node, and of the node itself.

    >>> ancestors("/ocean/sst")
    [('ocean', '/ocean'), ('sst', '/ocean/sst')]
    """
    names = [name for name in path.split("/") if name]
    return [(name, "/" + "/".join(names[: number + 1])) for number, name in enumerate(names)]


_ITEM_BYTES: Final = {"bool": 1, "complex64": 8, "complex128": 16}


def item_bytes(data_type: str) -> int | None:
    """Return the size of a value in bytes; None if values have different sizes.

    >>> item_bytes("float32"), item_bytes("numpy.datetime64"), item_bytes("string")
    (4, 8, None)
    """
    if data_type in _ITEM_BYTES:
        return _ITEM_BYTES[data_type]
    if data_type in ("numpy.datetime64", "numpy.timedelta64"):
        return 8
    for kind in ("uint", "int", "float", "bfloat", "r"):
        bits = data_type.removeprefix(kind)
        if bits != data_type and bits.isdigit():
            return int(bits) // 8
    return None


def _type_name(data_type: Any) -> str:
    if isinstance(data_type, Mapping):
        data_type = data_type.get("name")
    return _text(data_type) or "unknown"


def _codec_name(codec: Any) -> str:
    if not isinstance(codec, Mapping):
        return _text(codec)
    name, configuration = _text(codec.get("name")), codec.get("configuration")
    if not isinstance(configuration, Mapping):
        return name
    inner = configuration.get("codecs")
    if isinstance(inner, Sequence) and not isinstance(inner, str):
        return f"{name} of {', '.join(_codec_name(part) for part in inner)}"
    level = configuration.get("level", configuration.get("clevel"))
    return name if level is None else f"{name} (level {level})"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
