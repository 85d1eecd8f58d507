"""The place of a chunk: which file it comes from, and which bytes of it."""

from bisect import bisect_left
from collections.abc import Sequence
from datetime import datetime
from typing import Final

import numpy as np

from icefloe.effects import run_blocking
from icefloe.errors import InvalidInputError
from icefloe.format.chunk_table import ChunkRef, InlineChunk, NativeChunk, VirtualChunk
from icefloe.format.layout import chunk_key
from icefloe.format.nodes import ArrayNode
from icefloe.records import Record
from icefloe.storage.specs import without_secrets
from icefloe.transactions.chunks import find_ref, size_of
from icefloe.virtual_chunks.grouping import canonical
from icefloe.virtual_chunks.reader import VirtualReader
from icefloe.web.nodes import ArrayFacts, facts_of
from icefloe.web.pictures import Dimension, dimensions_of
from icefloe.web.sources import moment_of
from icefloe.web.versions import Version

WAYS: Final = ("step", "coordinate", "chunk")
"""How a chunk is named: by a step of the array, by coordinates, or by its own position."""


class CoveredSteps(Record):
    """The steps of a dimension that a chunk has."""

    dimension: str
    first: int
    last: int
    labels: tuple[str, str] | None
    """The coordinates of both; None if the dimension has none."""


class ChunkPlace(Record):
    """Where a chunk is stored; without anything secret."""

    index: tuple[int, ...]
    steps: tuple[CoveredSteps, ...]
    kind: str
    """`virtual`, `native`, `inline` or `missing`."""
    size_bytes: int = 0
    location: str | None = None
    """The file of a virtual chunk, or the key of a native one within the repository."""
    offset: int = 0
    etag: str | None = None
    modified: datetime | None = None
    container: str | None = None
    is_authorized: bool = True


def find_place(version: Version, node: ArrayNode, way: str, texts: Sequence[str]) -> ChunkPlace:
    """Find a chunk; raise `InvalidInputError` if the texts name none.

    `texts` has a step, a coordinate or the position of the chunk for each dimension.
    """
    facts, dimensions = facts_of(node), dimensions_of(version, node)
    if way not in WAYS:
        raise InvalidInputError(f"a chunk is found by {', '.join(WAYS)}, not by {way!r}")
    if len(texts) != len(dimensions):
        counts = f"{len(dimensions)} dimensions, and {len(texts)} positions are given"
        raise InvalidInputError(f"{node.path} has {counts}")
    named = zip(texts, dimensions, facts.num_chunks, strict=True)
    if way == "chunk":
        index = tuple(
            _number(text, dimension.name, "chunks", count) for text, dimension, count in named
        )
    else:
        steps = tuple(
            _number(text, dimension.name, "steps", dimension.length)
            if way == "step"
            else _step_at(dimension, text)
            for text, dimension, _ in named
        )
        index = _chunk_of(facts, steps)
    ref = run_blocking(find_ref(version.state, node, index))
    covered = _covered(facts, dimensions, index)
    return _place(version.state.context.virtual, index, covered, ref)


def _number(text: str, name: str, what: str, count: int) -> int:
    try:
        number = int(text)
    except ValueError:
        number = -1
    if not 0 <= number < count:
        raise InvalidInputError(f"{name} has the {what} 0 to {count - 1}, not {text!r}")
    return number


def _step_at(dimension: Dimension, text: str) -> int:
    """Return the step with a coordinate: the nearest number, or the last moment not after it."""
    if dimension.values is None:
        return _number(text, dimension.name, "steps", dimension.length)
    if dimension.axis.calendar is not None:
        return _step_of_moment(dimension, text.strip().replace("T", " "))
    try:
        value = float(text)
    except ValueError:
        value = np.nan
    values = dimension.values
    distances = np.nan_to_num(np.abs(values - value), nan=np.inf)
    nearest = int(distances.argmin())
    half = float(np.nan_to_num(np.abs(np.diff(values))).max(initial=0.0)) / 2
    if not distances[nearest] <= half:
        ends = f"{dimension.axis.label(0)} to {dimension.axis.label(dimension.length - 1)}"
        raise InvalidInputError(f"{dimension.name} goes from {ends}, without {text!r}")
    return nearest


def _step_of_moment(dimension: Dimension, text: str) -> int:
    """Return the first step whose date begins with a text, or the last one before it.

    Dates are compared as texts, so that every calendar has its own.
    """
    axis, length = dimension.axis, dimension.length
    if dimension.values is None or (np.diff(dimension.values) <= 0).any():
        raise InvalidInputError(f"{dimension.name} does not ascend: name a step instead")
    if axis.is_daily:
        text = text.partition(" ")[0]
    step = bisect_left(range(length), text, key=axis.label)
    is_inside = text[:1].isdigit() and step < length
    if is_inside and axis.label(step).startswith(text):
        return step
    if not is_inside or step == 0:
        ends = f"{axis.label(0)} to {axis.label(length - 1)}"
        raise InvalidInputError(f"{dimension.name} goes from {ends}, without {text!r}")
    return step - 1


def _chunk_of(facts: ArrayFacts, steps: Sequence[int]) -> tuple[int, ...]:
    if facts.chunk_shape is None:
        raise InvalidInputError("the chunks of this array have different sizes: name a chunk")
    return tuple(step // length for step, length in zip(steps, facts.chunk_shape, strict=True))


def _covered(
    facts: ArrayFacts, dimensions: Sequence[Dimension], index: Sequence[int]
) -> tuple[CoveredSteps, ...]:
    if facts.chunk_shape is None:
        return ()
    covered = []
    for dimension, chunk, length in zip(dimensions, index, facts.chunk_shape, strict=True):
        first, last = chunk * length, min(dimension.length, (chunk + 1) * length) - 1
        label = dimension.axis.label
        labels = None if dimension.values is None else (label(first), label(last))
        covered.append(CoveredSteps(dimension.name, first, last, labels))
    return tuple(covered)


def _place(
    reader: VirtualReader,
    index: tuple[int, ...],
    steps: tuple[CoveredSteps, ...],
    ref: ChunkRef | None,
) -> ChunkPlace:
    match ref:
        case None:
            return ChunkPlace(index, steps, "missing")
        case InlineChunk():
            return ChunkPlace(index, steps, "inline", size_of(ref))
        case NativeChunk():
            key = chunk_key(ref.id)
            return ChunkPlace(index, steps, "native", ref.length, key, ref.offset)
        case VirtualChunk():
            return _virtual_place(reader, index, steps, ref)


def _virtual_place(
    reader: VirtualReader,
    index: tuple[int, ...],
    steps: tuple[CoveredSteps, ...],
    ref: VirtualChunk,
) -> ChunkPlace:
    resolver = reader.resolver
    container, is_authorized, location = None, False, ref.location
    try:
        location = resolver.absolute(ref.location)
        resolved = resolver.locate(ref.location)
        container = without_secrets(resolved.container.url_prefix)
        is_authorized = resolved.grant is not None
    except InvalidInputError:
        pass  # no container covers it, or no file can have such a name
    return ChunkPlace(
        index,
        steps,
        "virtual",
        ref.length,
        canonical(location),
        ref.offset,
        ref.etag,
        moment_of(ref.last_modified or 0),
        container,
        is_authorized,
    )
