"""The chunks and shards of copied arrays, the region that one task copies, and commits. Pure.

A region is a box of whole objects that fits into the memory of a task. A transaction log has a
largest size, so copies of very many objects are cut into slabs of whole rows of objects along the
first dimension; each commit takes some of them.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from math import gcd, lcm, prod
from typing import Any, Final, Self

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.records import Record, field
from icefloe.transactions.packing import PackingOptions

REFERENCES_PER_COMMIT: Final = 25_000_000
"""Jobs with more references commit in waves, as a transaction log has a largest size."""
MEMORY_PER_TASK: Final = 256 * 2**20
WHOLE: Final = -1
"""Stands for the length of a dimension."""

_COORDINATE_BYTES: Final = 2**20
"""Coordinates are not cut into smaller chunks than this: they are read whole."""
_PACKS_HELD: Final = 2
_FAR_IN_FLIGHT: Final = 8
"""Where requests wait for a network, at least this many are under way in each task."""
_MOST_IN_FLIGHT: Final = 64
_SHARE_IN_FLIGHT: Final = 8
"""More of them if all together take at most this part (1 of 8) of the memory of a task."""


class LayoutOptions(Record):
    """Settings for the storage of copies."""

    chunks: Mapping[str, int] = field(default_factory=dict)
    """By dimension, the length of chunks; `-1` for one chunk. Others stay as they are."""
    shards: Mapping[str, int] = field(default_factory=dict)
    """By dimension, the length of shards, each of several chunks; `-1` for one shard."""
    compressors: Any = "auto"
    """As in `zarr.create_array`."""

    def __post_init__(self) -> None:
        for what, lengths in (("chunks", self.chunks), ("shards", self.shards)):
            for name, length in lengths.items():
                if length < 1 and length != WHOLE:
                    raise InvalidInputError(
                        f"{what} of length {length} along {name!r}: give a positive number, or -1"
                        " for the whole dimension",
                        ErrorKind.BAD_METADATA,
                    )


class CopyOptions(Record):
    """Settings for the copying of values; make them with `of`.

    >>> options = CopyOptions.of(chunks={"time": 24}, overwrite=True)
    >>> options.layout.chunks, options.overwrite
    ({'time': 24}, True)
    """

    layout: LayoutOptions
    memory_per_task: int = MEMORY_PER_TASK
    packing: PackingOptions | None = None
    overwrite: bool = False
    most_references: int = REFERENCES_PER_COMMIT
    decode: bool = False
    """Whether numbers of files are unpacked to what they mean, by the conventions of CF: scaled,
    shifted, NaN where they are missing. Then files may be packed differently, and their types may
    differ."""

    def __post_init__(self) -> None:
        if self.memory_per_task < 1:
            raise InvalidInputError(
                f"a task cannot work with {self.memory_per_task} bytes of memory",
                ErrorKind.LIMIT_EXCEEDED,
            )

    @classmethod
    def of(
        cls,
        chunks: Mapping[str, int] | None = None,
        shards: Mapping[str, int] | None = None,
        compressors: Any = "auto",
        *,
        packing: PackingOptions | bool = False,
        decode: bool = False,
        **others: Any,
    ) -> Self:
        """Return the options that users gave."""
        packs = PackingOptions() if packing is True else packing or None
        layout = LayoutOptions(dict(chunks or {}), dict(shards or {}), compressors)
        return cls(layout, packing=packs, decode=decode, **others)

    def limits(self, cores: int, *, is_near: bool) -> "Limits":
        """Return the limits of plans; "near" means that no network is in between."""
        return Limits(
            self.memory_per_task,
            cores,
            in_flight=1 if is_near else _FAR_IN_FLIGHT,
            held_bytes=0 if self.packing is None else _PACKS_HELD * self.packing.pack_bytes,
        )


class SourceArray(Record):
    """The facts about a source array that determine the layout of its copy."""

    path: str
    shape: tuple[int, ...]
    dimensions: tuple[str | None, ...]
    chunks: tuple[int, ...]
    shards: tuple[int, ...] | None
    item_bytes: int

    @property
    def is_coordinate(self) -> bool:
        """Return whether it gives the values along the dimension of its name."""
        return self.dimensions == (self.path.rpartition("/")[2],)


class ArrayLayout(Record):
    """Chunks and shards of a copy."""

    chunks: tuple[int, ...]
    shards: tuple[int, ...] | None = None

    @property
    def objects(self) -> tuple[int, ...]:
        """Return the lengths of what is stored as one object."""
        return self.shards or self.chunks


def choose_layout(array: SourceArray, options: LayoutOptions) -> ArrayLayout:
    """Choose the chunks and shards of one array.

    >>> cube = SourceArray("t2m", (365, 180), ("time", "lat"), (1, 180), None, 4)
    >>> choose_layout(cube, LayoutOptions({"time": 30, "lat": 60}, {"time": 90}))
    ArrayLayout(chunks=(30, 60), shards=(90, 60))
    """
    names = set(array.dimensions)
    if not names & (options.chunks.keys() | options.shards.keys()):
        return ArrayLayout(array.chunks, array.shards)
    chunks = tuple(
        _length(options.chunks.get(name or ""), whole, usual)
        for name, whole, usual in zip(array.dimensions, array.shape, array.chunks, strict=True)
    )
    if array.is_coordinate:
        least = min(array.shape[0], _COORDINATE_BYTES // array.item_bytes)
        return ArrayLayout((max(chunks[0], least, 1),))
    if not names & options.shards.keys():
        return ArrayLayout(chunks)
    return ArrayLayout(chunks, _shards(array, chunks, options))


def _length(length: int | None, whole: int, usual: int) -> int:
    if length is None:
        return usual
    return max(whole, 1) if length == WHOLE else length


def _shards(array: SourceArray, chunks: tuple[int, ...], options: LayoutOptions) -> tuple[int, ...]:
    shards = []
    for name, whole, chunk in zip(array.dimensions, array.shape, chunks, strict=True):
        shard_length = options.shards.get(name or "")
        length = _length(shard_length, whole, chunk)
        if shard_length == WHOLE:
            length = -(-length // chunk) * chunk
        if length % chunk:
            raise InvalidInputError(
                f"shards of {length} along {name!r} cannot hold chunks of {chunk} of the array"
                f" {array.path!r}: give a multiple of {chunk}",
                ErrorKind.BAD_METADATA,
                path=array.path,
            )
        shards.append(length)
    return tuple(shards)


def check_dimensions(arrays: Iterable[SourceArray], options: LayoutOptions) -> None:
    """Refuse dimensions that no array has: most likely a slip of the pen."""
    names = sorted({name for array in arrays for name in array.dimensions if name})
    for name in (*options.chunks, *options.shards):
        if name not in names:
            raise InvalidInputError(
                f"no array has the dimension {name!r}: there are {', '.join(names) or 'none'}",
                ErrorKind.BAD_METADATA,
            )


def values_bytes(array: SourceArray) -> int:
    """Return the bytes of all values of an array."""
    return array.item_bytes * prod(array.shape)


_READ_COPIES: Final = 2
"""Of a source object under way: its bytes, and its values."""
_WRITE_COPIES: Final = 3
"""Of a target object under way: its values in order, its compressed parts, these joined."""
_COMFORTABLE_BYTES: Final = 32 * 2**20
"""Regions are made so large if that costs nothing: many requests are under way at once."""
_REGIONS_PER_CORE: Final = 4
_MOST_SPLITS: Final = 16


class CopyShape(Record):
    """An array that is to be copied, in what counts for memory and for reading twice."""

    shape: tuple[int, ...]
    item_bytes: int
    read: tuple[int, ...]
    """Lengths of the chunks of the source: what is decoded as a whole."""
    write: tuple[int, ...]
    """Lengths of the objects of the target: shards, or chunks."""
    source_object_bytes: int = 0
    """What is fetched as a whole, where that is more than a chunk."""

    @property
    def grid(self) -> tuple[int, ...]:
        """Count target objects along each dimension."""
        return tuple(
            -(-length // unit) for length, unit in zip(self.shape, self.write, strict=True)
        )

    def bytes_of(self, lengths: Sequence[int]) -> int:
        """Return the bytes of the values in a box, cut off where the array ends."""
        inside = (min(length, whole) for length, whole in zip(lengths, self.shape, strict=True))
        return self.item_bytes * prod(inside)


class Limits(Record):
    """The limits of a plan."""

    memory_bytes: int
    """For one task; Python itself, and what it has loaded, come on top."""
    cores: int = 1
    in_flight: int = 1
    """How many objects a task reads or writes at a time: more of small ones, if more than 1."""
    held_bytes: int = 0
    """What a task holds besides, such as packs of small chunks."""


class RegionPlan(Record):
    """A part of an array, divided into boxes of whole target objects, all alike but the last.

    >>> plan = RegionPlan((0, 0), (5, 7), (2, 7), (2, 3), 80, 12)
    >>> len(plan), plan.box(2), plan.objects(2)
    (3, (slice(4, 5, None), slice(0, 7, None)), 3)
    """

    first: tuple[int, ...]
    """Where the part begins."""
    end: tuple[int, ...]
    lengths: tuple[int, ...]
    """Of a region."""
    write: tuple[int, ...]
    """Of a target object."""
    memory_bytes: int
    """What copying a region takes at most."""
    reads: int
    """How many source chunks are read, each as often as it is."""
    in_flight: int = 1
    """How many objects are read or written at a time."""
    in_flight_bytes: int = 0
    """The memory for those objects."""

    @property
    def counts(self) -> tuple[int, ...]:
        """Count regions along each dimension."""
        return tuple(
            -(-(end - first) // length)
            for first, end, length in zip(self.first, self.end, self.lengths, strict=True)
        )

    def __len__(self) -> int:
        return prod(self.counts)

    def box(self, number: int) -> tuple[slice, ...]:
        """Return the place of a region in the array."""
        slices: list[slice] = []
        for count, first, end, length in reversed(
            list(zip(self.counts, self.first, self.end, self.lengths, strict=True))
        ):
            number, position = divmod(number, count)
            start = first + position * length
            slices.append(slice(start, min(start + length, end)))
        return tuple(reversed(slices))

    def cells(self, number: int) -> tuple[tuple[int, int], ...]:
        """Return the first target object of a region, and the one after its last, by dimension."""
        return tuple(
            (span.start // unit, -(-span.stop // unit))
            for span, unit in zip(self.box(number), self.write, strict=True)
        )

    def objects(self, number: int) -> int:
        """Count the target objects of a region."""
        return prod(end - first for first, end in self.cells(number))


def plan_regions(
    array: CopyShape, limits: Limits, box: Sequence[tuple[int, int]] = (), *, path: str = ""
) -> RegionPlan:
    """Divide an array into regions that fit into the memory of a task.

    `box` are the target objects to copy, along the first dimensions; all along the others. Raises
    `InvalidInputError` for an array of which not even one object fits; `path` names it then.
    """
    first, end = _part(array, box)
    if not prod(array.shape):
        return RegionPlan(first, end, array.write, array.write, memory_bytes=0, reads=0)
    in_flight, in_flight_bytes = _under_way(array, limits)
    fixed = in_flight_bytes + limits.held_bytes
    room = limits.memory_bytes - fixed
    least = array.bytes_of(array.write)
    if room < least:
        raise InvalidInputError(
            f"to copy the array {path!r} a task needs {fixed + least} bytes of memory, and may"
            f" take {limits.memory_bytes}: give it more (memory_per_task), or choose smaller"
            " chunks or shards",
            ErrorKind.LIMIT_EXCEEDED,
            path=path,
        )
    spans = [end_at - begin for begin, end_at in zip(first, end, strict=True)]
    boxes = _fitting(array, first, spans, room)
    total = array.item_bytes * prod(spans)
    comfort = min(_COMFORTABLE_BYTES, total // (_REGIONS_PER_CORE * limits.cores))

    def cost(box: "_Box") -> tuple[float, int]:
        regions = prod(-(-span // length) for span, length in zip(spans, box.lengths, strict=True))
        rounds = -(-regions // limits.cores)
        work = box.reads * array.bytes_of(array.read) + total
        return (work * rounds / regions, box.bytes)

    best = _grown(array, first, spans, min(boxes, key=cost), min(room, comfort))
    return RegionPlan(
        first,
        end,
        best.lengths,
        array.write,
        fixed + best.bytes,
        best.reads,
        in_flight,
        in_flight_bytes,
    )


def _part(
    array: CopyShape, box: Sequence[tuple[int, int]]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    first, end = [0] * len(array.shape), list(array.shape)
    for axis, (low, high) in enumerate(box[: len(array.shape)]):
        first[axis] = low * array.write[axis]
        end[axis] = min(high * array.write[axis], array.shape[axis])
    return tuple(first), tuple(end)


def _under_way(array: CopyShape, limits: Limits) -> tuple[int, int]:
    """Return how many objects are read or written at a time, and the memory that they take."""
    source = max(array.bytes_of(array.read), array.source_object_bytes)
    each = max(_READ_COPIES * source, _WRITE_COPIES * array.bytes_of(array.write), 1)
    count = limits.in_flight
    most = (limits.memory_bytes - limits.held_bytes) // _SHARE_IN_FLIGHT // each
    while count > 1 and 2 * count <= min(most, _MOST_IN_FLIGHT):
        count *= 2
    return count, count * each


class _Box(Record):
    """A possible shape of regions, as far as it was chosen."""

    bytes: int
    reads: int
    lengths: tuple[int, ...]


def _fitting(array: CopyShape, first: Sequence[int], spans: Sequence[int], room: int) -> list[_Box]:
    """List the shapes that fit, but for those that others beat in size and in reads."""
    boxes = [_Box(array.item_bytes, 1, ())]
    for axis, span in enumerate(spans):
        unit, chunk = array.write[axis], array.read[axis]
        options = [
            (min(length, span), reads_along(first[axis], span, length, chunk), length)
            for length in _candidates(span, unit, chunk)
        ]
        wider = [
            _Box(box.bytes * taken, box.reads * reads, (*box.lengths, length))
            for box in boxes
            for taken, reads, length in options
        ]
        # What is left needs at least one object: what is too large now stays so.
        rest = prod(
            min(array.write[dimension], spans[dimension])
            for dimension in range(axis + 1, len(spans))
        )
        boxes = _unbeaten(box for box in wider if box.bytes * rest <= room)
    return boxes


def _candidates(span: int, unit: int, chunk: int) -> list[int]:
    """Return candidate lengths: multiples of an object, the whole, and common ends of chunks."""
    whole = -(-span // unit)
    even = lcm(unit, chunk) // unit
    lengths = {whole, 1}
    lengths |= {-(-whole // parts) for parts in range(1, _MOST_SPLITS + 1)}
    step = 1
    while step < whole:
        lengths |= {step, step * even}
        step *= 2
    return sorted(count * unit for count in lengths if count <= whole)


def _unbeaten(boxes: Iterator[_Box]) -> list[_Box]:
    best: list[_Box] = []
    for box in sorted(boxes, key=lambda candidate: (candidate.bytes, candidate.reads)):
        if not best or box.reads < best[-1].reads:
            best.append(box)
    return best


def _grown(
    array: CopyShape, first: Sequence[int], spans: Sequence[int], box: _Box, comfort: int
) -> _Box:
    """Make regions larger, the last dimension first, as long as no chunk is read more often."""
    for axis in reversed(range(len(spans))):
        whole = -(-spans[axis] // array.write[axis]) * array.write[axis]
        while box.lengths[axis] < whole:
            longer = min(2 * box.lengths[axis], whole)
            lengths = (*box.lengths[:axis], longer, *box.lengths[axis + 1 :])
            wider = _Box(
                array.item_bytes * prod(map(min, lengths, spans)),
                prod(
                    reads_along(
                        first[dimension],
                        spans[dimension],
                        lengths[dimension],
                        array.read[dimension],
                    )
                    for dimension in range(len(spans))
                ),
                lengths,
            )
            if wider.bytes > comfort or wider.reads > box.reads:
                break
            box = wider
    return box


def reads_along(first: int, span: int, length: int, chunk: int) -> int:
    """Count the chunks that the regions of one dimension meet, each as often as it is met.

    Regions of a `length` lie one after the other, from `first` on, over `span` items.

    >>> reads_along(0, 10, 4, 5)  # [0, 4) meets one chunk, [4, 8) two, [8, 10) one
    4
    """
    if span == 0:
        return 0
    chunks = -(-(first + span) // chunk) - first // chunk
    inner_edges = -(-span // length) - 1
    return chunks + inner_edges - _shared_edges(first, length, chunk, inner_edges)


def _shared_edges(first: int, length: int, chunk: int, edges: int) -> int:
    """Count edges between regions at which a chunk ends, too."""
    common = gcd(length, chunk)
    if first % common or not edges:
        return 0
    period = chunk // common
    first_edge = (-first // common) * pow(length // common, -1, period) % period or period
    return 0 if first_edge > edges else (edges - first_edge) // period + 1


# -- commits ---------------------------------------------------------------------------------


class Slab(Record):
    """Some rows of target objects of an array, along its first dimension."""

    array: int
    first: int
    end: int
    objects: int
    across: tuple[tuple[int, int], ...] = ()
    """The objects of these rows along the other dimensions; all if not given."""

    @property
    def box(self) -> tuple[tuple[int, int], ...]:
        """Return its first object and the one after its last, along the dimensions it limits."""
        return ((self.first, self.end), *self.across)


def cut_into_slabs(grids: Sequence[Sequence[int]], most: int) -> list[list[Slab]]:
    """Divide arrays into groups of slabs with at most this many objects each, one for each commit.

    Rows are never cut: a group of one row may have more.

    >>> [[(slab.array, slab.first, slab.end) for slab in wave] for wave in
    ...  cut_into_slabs([(4, 10), (3,)], 25)]
    [[(0, 0, 2)], [(0, 2, 4), (1, 0, 3)]]
    """
    waves: list[list[Slab]] = [[]]
    objects = 0
    for array, grid in enumerate(grids):
        rows, row_objects = (grid[0], prod(grid[1:])) if grid else (1, 1)
        first = 0 if row_objects else rows
        while first < rows:
            free = (most - objects) // row_objects
            if free < 1 and objects:
                waves.append([])
                objects = 0
                continue
            end = min(rows, first + max(free, 1))
            slab = Slab(array, first, end, (end - first) * row_objects)
            waves[-1].append(slab)
            objects += slab.objects
            first = end
    return [wave for wave in waves if wave]


class Regions(Record):
    """The regions of several slabs, numbered one after the other."""

    slabs: tuple[Slab, ...]
    plans: tuple[RegionPlan, ...]
    ends: tuple[int, ...]
    """For each slab, the number behind its last region."""

    def __len__(self) -> int:
        return self.ends[-1] if self.ends else 0

    @property
    def memory_bytes(self) -> int:
        """The largest memory need of a task."""
        return max((plan.memory_bytes for plan in self.plans), default=0)

    @property
    def size_bytes(self) -> int:
        """The memory of all regions, one after the other, without that of objects in flight."""
        return sum(len(plan) * (plan.memory_bytes - plan.in_flight_bytes) for plan in self.plans)

    @property
    def objects(self) -> int:
        """Count the objects that there are at most: those that hold nothing are left out."""
        return sum(slab.objects for slab in self.slabs)

    def find(self, number: int) -> tuple[int, int]:
        """Return the slab of a region, and its number there."""
        slab = bisect_right(self.ends, number)
        return slab, number - (self.ends[slab - 1] if slab else 0)


def plan_slabs(
    arrays: Sequence[CopyShape], paths: Sequence[str], slabs: Sequence[Slab], limits: Limits
) -> Regions:
    """Plan the regions of one commit."""
    plans = [
        plan_regions(arrays[slab.array], limits, slab.box, path=paths[slab.array]) for slab in slabs
    ]
    return Regions(tuple(slabs), tuple(plans), tuple(accumulate(len(plan) for plan in plans)))
