"""How much the chunks of a repository take, each counted once, however many versions share it.

A chunk is a range of bytes, as `ranges` tells them apart.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from icefloe.engine.context import RepoContext
from icefloe.engine.dependencies.summary import NO_CONTAINER, container_numbers
from icefloe.engine.maintenance.key_set import Keys, KeySet, heads_of_ids
from icefloe.engine.maintenance.ranges import Ranges, parts_of, survey_of
from icefloe.engine.maintenance.reachability import ReadLimits
from icefloe.engine.virtual.grouping import absolute_all, canonical_all
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format.chunk_table import ChunkKind
from icefloe.format.ids import NodeId

type UsageBy = Literal["snapshot", "array", "container"]

OWN_CHUNKS: Final = "(in the repository)"
"""The row of chunks that are not in any container."""

_LARGEST_CHUNK_BYTES: Final = 2**40
"""Chunks that claim to be larger count as this: no such chunk exists, and no sum overflows."""
_MOST_WAITING: Final = 4_000_000
"""Native chunks that are brought together before they are counted."""


@dataclass(slots=True)
class Usage:
    """Bytes and numbers of chunks, by how they are kept."""

    native_bytes: int = 0
    virtual_bytes: int = 0
    inlined_bytes: int = 0
    native_chunks: int = 0
    virtual_chunks: int = 0
    inlined_chunks: int = 0

    def add(self, kind: ChunkKind, lengths: NDArray[np.uint64]) -> None:
        """Count some chunks."""
        total = int(np.minimum(lengths, _LARGEST_CHUNK_BYTES).sum(dtype=np.uint64))
        match kind:
            case ChunkKind.NATIVE:
                self.native_bytes += total
                self.native_chunks += len(lengths)
            case ChunkKind.VIRTUAL:
                self.virtual_bytes += total
                self.virtual_chunks += len(lengths)
            case ChunkKind.INLINE:
                self.inlined_bytes += total
                self.inlined_chunks += len(lengths)


@dataclass(slots=True)
class TotalUsage(Usage):
    """The same for a whole repository, with what packing did."""

    packed_objects: int = 0
    """Chunk objects that several chunks share."""
    packed_chunks: int = 0
    packed_bytes: int = 0


async def total_usage(context: RepoContext, limits: ReadLimits) -> TotalUsage:
    """Sum up the chunks of all versions that branches and tags lead to."""
    total = TotalUsage()
    with KeySet(limits.key_bytes) as known:
        native = _NativeTally(total, known)
        async for part in parts_of(context, await survey_of(context, limits), limits):
            for kind, ranges in part.ranges.items():
                if kind is ChunkKind.NATIVE:
                    native.add(ranges)
                else:
                    total.add(kind, ranges.lengths[ranges.new_to(known)])
        native.finish()
    return total


class _NativeTally:
    """Counts native chunks, very many at a time."""

    def __init__(self, total: TotalUsage, known: KeySet) -> None:
        self._total = total
        self._known = known
        self._waiting: list[Ranges] = []
        self._count = 0
        self._objects: list[Keys] = []
        self._lengths: list[NDArray[np.uint64]] = []
        """Of ranges that were counted, each once."""

    def add(self, ranges: Ranges) -> None:
        """Count some, some of which may have been counted before."""
        self._waiting.append(ranges)
        self._count += len(ranges)
        if self._count > _MOST_WAITING:
            self._count_waiting()

    def finish(self) -> None:
        """Count what is left, and see which objects several chunks share."""
        if not self._waiting:
            return
        if not self._objects and _have_own_objects(self._waiting):
            for ranges in self._waiting:
                self._total.add(ChunkKind.NATIVE, ranges.lengths)
            return
        self._count_waiting()
        objects = np.concatenate(self._objects)
        _, numbers, counts = np.unique(objects, return_inverse=True, return_counts=True)
        is_packed = (counts > 1)[numbers]
        self._total.packed_objects = int((counts > 1).sum())
        self._total.packed_chunks = int(is_packed.sum())
        lengths = np.concatenate(self._lengths)[is_packed]
        self._total.packed_bytes = int(lengths.sum(dtype=np.uint64))

    def _count_waiting(self) -> None:
        for ranges in self._waiting:
            objects = ranges.objects()
            new = self._known.add_new(ranges.keys(objects))
            self._total.add(ChunkKind.NATIVE, ranges.lengths[new])
            self._objects.append(objects[new])
            self._lengths.append(ranges.lengths[new])
        self._waiting, self._count = [], 0


def _have_own_objects(parts: Sequence[Ranges]) -> bool:
    """Say whether each range is in another object, so that none is repeated or packed.

    The beginnings of ids tell: there are hardly ever two alike, and if so we only look closer.
    """
    ids = [part.chunk_ids for part in parts if part.chunk_ids is not None]
    heads = np.concatenate([heads_of_ids(each) for each in ids])
    heads.sort()
    return not (heads[1:] == heads[:-1]).any()


async def usage(context: RepoContext, by: UsageBy, limits: ReadLimits) -> dict[str, Usage]:
    """Sum up by version, by array, or by container.

    By version, each chunk counts for the first version that has it: what that version added. By
    array, chunks count once for each array; by container, once. Versions come oldest first,
    the others with most bytes first.
    """
    rows: dict[str, Usage] = {}
    with KeySet(limits.key_bytes) as known:
        match by:
            case "snapshot":
                await _by_snapshot(context, limits, known, rows)
                return rows
            case "array":
                await _by_array(context, limits, known, rows)
            case "container":
                await _by_container(context, limits, known, rows)
            case _:
                raise InvalidInputError(
                    f"by must be 'snapshot', 'array' or 'container', got {by!r}",
                    ErrorKind.INVALID_CONFIG,
                )
    return dict(sorted(rows.items(), key=lambda row: (-_bytes(row[1]), row[0])))


def _bytes(one: Usage) -> int:
    return one.native_bytes + one.virtual_bytes + one.inlined_bytes


async def _by_snapshot(
    context: RepoContext, limits: ReadLimits, known: KeySet, rows: dict[str, Usage]
) -> None:
    survey = await survey_of(context, limits)
    rows |= {version: Usage() for version in survey.versions}
    async for part in parts_of(context, survey, limits):
        for kind, ranges in part.ranges.items():
            rows[part.version].add(kind, ranges.lengths[ranges.new_to(known)])


async def _by_array(
    context: RepoContext, limits: ReadLimits, known: KeySet, rows: dict[str, Usage]
) -> None:
    survey = await survey_of(context, limits)
    of_nodes: dict[NodeId, Usage] = {}
    async for part in parts_of(context, survey, limits):
        salt = np.uint64(int.from_bytes(part.node.raw))
        for kind, ranges in part.ranges.items():
            new = ranges.new_to(known, salt)
            of_nodes.setdefault(part.node, Usage()).add(kind, ranges.lengths[new])
    for node, counted in of_nodes.items():
        path = survey.paths.get(node, f"(deleted) {node}")
        # A path may have had several arrays, one after the other.
        rows[path if path not in rows else f"{path} ({node})"] = counted


async def _by_container(
    context: RepoContext, limits: ReadLimits, known: KeySet, rows: dict[str, Usage]
) -> None:
    containers = context.config.virtual_chunk_containers
    names = [*(each.url_prefix for each in containers), NO_CONTAINER]
    async for part in parts_of(context, await survey_of(context, limits), limits):
        for kind, ranges in part.ranges.items():
            new = ranges.new_to(known)
            if kind is not ChunkKind.VIRTUAL:
                rows.setdefault(OWN_CHUNKS, Usage()).add(kind, ranges.lengths[new])
                continue
            recorded = part.locations
            canonical = canonical_all(absolute_all(recorded, context.virtual.absolute))
            assert ranges.targets is not None
            numbers = container_numbers(containers, recorded, canonical)
            places = numbers[ranges.targets[new]]
            for place in np.unique(places).tolist():
                found = rows.setdefault(names[place], Usage())
                found.add(kind, ranges.lengths[new][places == place])
