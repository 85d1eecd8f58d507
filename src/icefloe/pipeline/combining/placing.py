"""The positions of files along all dimensions, by coordinate values or by order.

Pure, and on columns. Along one dimension, each file holds a block: a run of coordinate values.
Blocks that are equal share a place (files of other variables, or of other places along other
dimensions); others must lie one behind the other, in the direction that most of them have. They
also go between existing steps, which then move.
"""

import math
from bisect import bisect, bisect_left
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import islice, product
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.pipeline.combining.consensus import Families
from icefloe.pipeline.combining.insertions import Insertions, Ints
from icefloe.pipeline.combining.report import Coverage, Gap, Hole, Misfit
from icefloe.pipeline.files.facts import FileFacts, Kind, LoadedValues, is_named
from icefloe.pipeline.files.options import CombineOptions, GapRule
from icefloe.pipeline.files.times import parse_units, show_moment
from icefloe.records import Record, field, replace

type Values = NDArray[Any]

_GAP_FACTOR: Final = 1.5
_STEP_TOLERANCE: Final = 1e-6
_NO_DIRECTION: Final = 2


class Refusal(Record):
    """Why a block has no place, and the block it contradicts, if there is one."""

    kind: Kind
    message: str
    against: int | None = None


class Placed(Record):
    """The outcome: for each block where it starts, or why it has no position."""

    starts: Ints
    """-1 for blocks without a position."""
    length: int
    axis: Values
    """The comparable value at each position."""
    refusals: dict[int, Refusal] = field(default_factory=dict)
    gaps: tuple[tuple[int, int], ...] = ()
    """Positions behind which steps are missing, and about how many."""
    late: tuple[int, ...] = ()
    """Blocks that went before the end of what was there."""
    inserted: Insertions = Insertions()
    """Steps that come before existing ones, which move."""


def place(
    blocks: Sequence[Values], *, existing: Values | None = None, gaps: GapRule = "close"
) -> Placed:
    """Find the place of each block; the one given first wins where two contradict.

    >>> place([np.array([3, 4]), np.array([1, 2])]).starts
    array([2, 0])
    >>> place([np.array([3, 4])], existing=np.array([1, 8, 9])).inserted.runs
    ((1, 2),)
    """
    refusals: dict[int, Refusal] = {}
    starts = np.full(len(blocks), -1, np.int64)
    there = np.empty(0, blocks[0].dtype if blocks else np.int64) if existing is None else existing
    if len(there) and _direction(there) == _NO_DIRECTION:
        raise InvalidInputError(
            "the existing coordinate is not strictly monotonic along the dimension, so values"
            " cannot tell where files go: name another coordinate (coordinates=...), or add files"
            " in the order given (by='order')",
            ErrorKind.BAD_METADATA,
        )
    usable = [number for number, block in enumerate(blocks) if _check(block, number, refusals)]
    descends = _descends([blocks[number] for number in usable], there)
    usable = [
        number for number in usable if _check_direction(blocks[number], number, descends, refusals)
    ]
    if not usable:
        return Placed(starts, len(there), there, refusals)
    ranks, rank_of_axis = _ranks({number: blocks[number] for number in usable}, there, descends)
    # Blocks of equal values are twins: only the first of them is placed.
    owner: dict[bytes, int] = {}
    twins = {n: owner.setdefault(rank.tobytes(), n) for n, rank in ranks.items()}
    distinct = list(owner.values())
    if gaps == "leave":
        axis, inserted = _place_regularly(blocks, distinct, there, descends, refusals, starts)
    else:
        axis, inserted = _place_among(
            blocks, distinct, ranks, rank_of_axis, there, refusals, starts
        )
    for number, twin in twins.items():
        starts[number] = starts[twin]
        if twin in refusals and number != twin:
            refusals[number] = refusals[twin]
    first, behind = int(inserted.moved(np.zeros(1, np.int64))[0]), len(there) + inserted.steps
    late = tuple(number for number in usable if first <= starts[number] < behind)
    gaps_found = (
        _left_free(axis, starts, blocks, (first, behind)) if gaps == "leave" else find_gaps(axis)
    )
    return Placed(starts, len(axis), axis, refusals, gaps_found, late, inserted)


def _check(block: Values, number: int, refusals: dict[int, Refusal]) -> bool:
    if not len(block):
        refusals[number] = Refusal(Kind.COORDINATE, "it has no steps along the dimension")
    elif block.dtype.kind == "f" and not np.isfinite(block).all():
        refusals[number] = Refusal(Kind.COORDINATE, "its coordinate has missing values")
    return number not in refusals


def _direction(block: Values) -> int:
    """Return 1 or -1 for a run that rises or falls strictly, 0 for a single step, 2 otherwise."""
    if len(block) == 1:
        return 0
    if (block[1:] > block[:-1]).all():
        return 1
    return -1 if (block[1:] < block[:-1]).all() else _NO_DIRECTION


def _descends(blocks: Sequence[Values], there: Values) -> bool:
    if len(there) > 1:
        return bool(there[0] > there[-1])
    directions = [_direction(block) for block in blocks]
    return directions.count(-1) > directions.count(1)


def _check_direction(
    block: Values,
    number: int,
    descends: bool,  # noqa: FBT001 - the direction
    refusals: dict[int, Refusal],
) -> bool:
    direction = _direction(block)
    if direction not in {0, -1 if descends else 1}:
        expected = "falls" if descends else "rises"
        refusals[number] = Refusal(
            Kind.NOT_MONOTONIC,
            f"its coordinate is not strictly monotonic: elsewhere it {expected}",
        )
        return False
    return True


def _ranks(
    blocks: Mapping[int, Values],
    there: Values,
    descends: bool,  # noqa: FBT001 - the direction
) -> tuple[dict[int, Ints], Ints]:
    """Number all values in the order of the axis, so that any type is compared as integers.

    Return the ranks of each block, and those of the existing values.
    """
    # One column: the existing values, then the blocks one after the other. A value's rank is its
    # row among the distinct values; where the axis falls, the largest value comes first.
    flat = np.concatenate([there, *blocks.values()])
    _, inverse = np.unique(flat, return_inverse=True)
    ranks = inverse.astype(np.int64)
    if descends:
        ranks = ranks.max() - ranks
    ends = np.cumsum([len(there), *map(len, blocks.values())])
    existing, *parts = np.split(ranks, ends[:-1])
    return dict(zip(blocks, parts, strict=True)), existing


def _place_among(
    blocks: Sequence[Values],
    distinct: list[int],
    ranks: dict[int, Ints],
    axis_ranks: Ints,
    there: Values,
    refusals: dict[int, Refusal],
    starts: Ints,
) -> tuple[Values, Insertions]:
    """Put blocks before, between and behind the existing steps, or where their steps exist.

    Return the axis, and which steps come before existing ones.
    """
    new: list[int] = []
    present: list[int] = []
    places: dict[int, int] = {}  # by block, how many existing steps lie before it
    for number in distinct:
        rank = ranks[number]
        position, end = np.searchsorted(axis_ranks, [rank[0], rank[-1] + 1]).tolist()
        places[number] = position
        if position == end:
            new.append(number)
        elif np.array_equal(axis_ranks[position:end], rank):
            present.append(number)
        else:
            refusals[number] = Refusal(
                Kind.OVERLAP, "it overlaps existing steps, and has others too: leave it out"
            )
    new = _without_overlaps(new, ranks, refusals)
    positions = np.array([places[number] for number in new], np.int64)
    lengths = np.array([len(blocks[number]) for number in new], np.int64)
    runs: dict[int, int] = {}
    for position, length in zip(positions.tolist(), lengths.tolist(), strict=True):
        if position < len(there):
            runs[position] = runs.get(position, 0) + length
    inserted = Insertions(tuple(runs.items()))
    starts[new] = positions + np.cumsum(lengths) - lengths
    starts[present] = inserted.moved(np.array([places[number] for number in present], np.int64))
    values = np.concatenate([there[:0], *(blocks[number] for number in new)])
    return np.insert(there, np.repeat(positions, lengths), values), inserted


def _without_overlaps(
    numbers: list[int], ranks: dict[int, Ints], refusals: dict[int, Refusal]
) -> list[int]:
    """Return blocks in the order of the axis, without blocks that overlap an earlier one."""
    # If no block begins before the end of an earlier one, there is nothing to compare by pairs.
    order = sorted(numbers, key=lambda number: int(ranks[number][0]))
    firsts = np.array([ranks[number][0] for number in order], np.int64)
    lasts = np.array([ranks[number][-1] for number in order], np.int64)
    if not (np.maximum.accumulate(lasts)[:-1] >= firsts[1:]).any():
        return order
    kept_firsts: list[int] = []  # ascending, each with its block in the other list
    kept_blocks: list[int] = []
    for number in sorted(numbers):  # as they were given: the first one wins
        first, last = int(ranks[number][0]), int(ranks[number][-1])
        position = bisect(kept_firsts, first)
        hit = None
        if position and int(ranks[kept_blocks[position - 1]][-1]) >= first:
            hit = kept_blocks[position - 1]
        elif position < len(kept_blocks) and kept_firsts[position] <= last:
            hit = kept_blocks[position]
        if hit is None:
            kept_firsts.insert(position, first)
            kept_blocks.insert(position, number)
        else:
            refusals[number] = Refusal(Kind.OVERLAP, "it overlaps", hit)
    return kept_blocks


def _place_regularly(
    blocks: Sequence[Values],
    distinct: list[int],
    there: Values,
    descends: bool,  # noqa: FBT001 - the direction
    refusals: dict[int, Refusal],
    starts: Ints,
) -> tuple[Values, Insertions]:
    """Put blocks where they belong on an axis of equal steps, free places between them.

    Return the axis, and which steps come before existing ones.
    """
    flat = np.unique(np.concatenate([there, *(blocks[number] for number in distinct)]))
    step = _smallest_step(there if len(there) > 1 else flat)
    origin = there[0] if len(there) else (flat[-1] if descends else flat[0])
    sign = -1 if descends else 1
    taken: dict[int, int] = {}  # by position from the origin, the block that covers it
    places: dict[int, int] = {}  # by block, its first position
    for number in sorted(distinct):
        # Positions count steps from the origin; on a regular axis they are whole, but for rounding.
        positions = (blocks[number] - origin) * sign / step
        whole = np.rint(positions.astype(np.float64)).astype(np.int64)
        if (
            np.abs(positions - whole).max() > _STEP_TOLERANCE * max(1, len(flat))
            or (np.diff(whole) != 1).any()
        ):
            refusals[number] = Refusal(
                Kind.GAP, f"it does not lie on equal steps of {step}, as gaps='leave' needs"
            )
        elif (hit := next((taken[at] for at in whole.tolist() if at in taken), None)) is not None:
            refusals[number] = Refusal(Kind.OVERLAP, "it overlaps", hit)
        else:
            taken.update(dict.fromkeys(whole.tolist(), number))
            places[number] = int(whole[0])
    ahead = -min(0, min(places.values(), default=0))
    reached = max(len(there), 1 + max(taken, default=-1))
    axis = (origin + sign * step * np.arange(-ahead, reached)).astype(flat.dtype)
    for number, position in places.items():  # as the files have it, to the last bit
        starts[number] = position + ahead
        axis[starts[number] : starts[number] + len(blocks[number])] = blocks[number]
    axis[ahead : ahead + len(there)] = there
    return axis, Insertions(((0, ahead),) if ahead else ())


def _smallest_step(values: Values) -> Any:
    steps = np.abs(np.diff(values))
    return steps.min() if len(steps) else values.dtype.type(1)


def find_gaps(axis: Values) -> tuple[tuple[int, int], ...]:
    """Find where steps are much larger than usual: position, and how many seem to be missing.

    >>> find_gaps(np.array([0, 1, 2, 5, 6]))
    ((2, 2),)
    """
    if len(axis) < 3 or axis.dtype.kind not in "iuf":
        return ()
    steps = np.abs(np.diff(axis.astype(np.float64)))
    usual = float(np.median(steps))
    wide = np.flatnonzero(steps > _GAP_FACTOR * usual)
    return tuple(
        (int(position), round(float(steps[position]) / usual) - 1) for position in wide.tolist()
    )


def _left_free(
    axis: Values, starts: Ints, blocks: Sequence[Values], there: tuple[int, int]
) -> tuple[tuple[int, int], ...]:
    """List runs of places without a block, as the position before each and its length.

    Whether what was there has free places is not known here.
    """
    # One more block begins, or one ends, at each edge; where the sum is 0 there is no block.
    edges = np.zeros(len(axis) + 1, np.int64)
    first, end = there
    edges[first] += 1
    edges[end] -= 1
    for number in np.flatnonzero(starts >= 0).tolist():
        edges[starts[number]] += 1
        edges[starts[number] + len(blocks[number])] -= 1
    free = np.concatenate([[0], (np.cumsum(edges[:-1]) == 0).view(np.int8), [0]])
    begins, ends = np.flatnonzero(np.diff(free) == 1), np.flatnonzero(np.diff(free) == -1)
    return tuple(
        (int(begin) - 1, int(end - begin)) for begin, end in zip(begins, ends, strict=True)
    )


_MOST_HOLES: Final = 1000
"""As many as are listed."""

type Axes = Mapping[str, LoadedValues | int]
"""The existing steps along each dimension: values, or only a length."""


class PlacedFiles(Record):
    """The start of each file along each dimension."""

    files: tuple[int, ...]
    starts: Mapping[str, NDArray[np.int64]]
    lengths: Mapping[str, int]
    misfits: Mapping[int, Misfit]
    coverage: Coverage
    coordinates: Mapping[str, str] = field(default_factory=dict)
    """By dimension, the path of the array that decided."""
    axes: Mapping[str, "_Axis"] = field(default_factory=dict)
    inserted: Mapping[str, Insertions] = field(default_factory=dict)
    """By dimension, the steps that come before existing ones."""

    def row(self, number: int) -> int:
        """Find a file."""
        return bisect_left(self.files, number)

    def only(self, numbers: Sequence[int]) -> "PlacedFiles":
        """Leave out all other files."""
        rows = [self.row(number) for number in numbers]
        starts = {name: column[rows] for name, column in self.starts.items()}
        return replace(self, files=tuple(numbers), starts=starts)

    def filled(self, name: str, target: LoadedValues) -> list[tuple[int, NDArray[Any]]]:
        """Return values of the coordinate for places that no file has, where gaps were left."""
        axis = self.axes.get(name)
        return [] if axis is None else axis.filled(target)


class _Axis(Record):
    placed: Placed
    calendar: str | None
    fills_gaps: bool

    def filled(self, target: LoadedValues) -> list[tuple[int, NDArray[Any]]]:
        if not self.fills_gaps:
            return []
        units = parse_units(target.units, target.calendar) if self.calendar else None
        runs = []
        for position, count in self.placed.gaps:
            start = position + 1
            values = self.placed.axis[start : position + 1 + count]
            if len(values):
                kind = target.values.dtype
                runs.append((start, units.values(values, kind) if units else values.astype(kind)))
        return runs

    def show(self, position: int) -> str:
        value = self.placed.axis[position]
        return show_moment(int(value), self.calendar) if self.calendar else str(value)


def place_files(
    files: Sequence[FileFacts],
    families: Families,
    usable: Sequence[int],
    options: CombineOptions,
    existing: Axes,
) -> PlacedFiles:
    """Find the place of each usable file."""
    if options.by == "order":
        return _place_in_order(files, families, usable, options, existing)
    misfits: dict[int, Misfit] = {}
    placed: dict[str, _Axis] = {}
    coordinates: dict[str, str] = {}
    starts: dict[str, NDArray[np.int64]] = {}
    late: set[int] = set()
    left = list(usable)
    for name in options.concat:
        path = _coordinate_path(files, left, name, options, misfits)
        coordinates[name] = path
        left = [number for number in left if number not in misfits]
        blocks, calendar, there = _comparable(files, left, path, existing.get(name), misfits)
        left = [number for number in left if number not in misfits]
        outcome = place(blocks, existing=there, gaps=options.gaps)
        for position, refusal in outcome.refusals.items():
            number = left[position]
            against = None if refusal.against is None else files[left[refusal.against]].url
            misfits[number] = _misfit(files[number], refusal, name, against)
        placed[name] = _Axis(outcome, calendar, options.gaps == "leave")
        column = np.full(len(files), -1, np.int64)
        column[left] = outcome.starts
        starts[name] = column
        late |= {left[block] for block in outcome.late}
    remaining = [number for number in usable if number not in misfits]
    misfits |= _duplicates(files, families, remaining, starts, options)
    remaining = [number for number in remaining if number not in misfits]
    if options.gaps == "fail":
        misfits |= _gap_misfits(files, remaining, placed, starts)
    coverage = _coverage(files, families, remaining, placed, starts, late)
    return PlacedFiles(
        files=tuple(usable),
        starts={name: column[list(usable)] for name, column in starts.items()},
        lengths={name: axis.placed.length for name, axis in placed.items()},
        misfits=misfits,
        coverage=coverage,
        coordinates=coordinates,
        axes=placed,
        inserted={
            name: axis.placed.inserted for name, axis in placed.items() if axis.placed.inserted.runs
        },
    )


def _coordinate_path(
    files: Sequence[FileFacts],
    numbers: Sequence[int],
    name: str,
    options: CombineOptions,
    misfits: dict[int, Misfit],
) -> str:
    """Find the array whose values decide along a dimension."""
    coordinate = options.coordinates.get(name, name)
    paths: dict[str, int] = {}
    for number in numbers:
        matching = [path for path in files[number].values if is_named(path, coordinate)]
        if not matching:
            others = sorted(files[number].values)
            misfits[number] = Misfit(
                files[number].url,
                Kind.COORDINATE,
                f"it has no values of {coordinate!r} to tell where it goes along {name!r}"
                + (f" (of others it has {', '.join(others)})" if others else "")
                + f": name another one (coordinates={{{name!r}: 'NAME'}}), or join files in the"
                " order given (by='order')",
            )
        else:
            shallowest = min(matching, key=lambda path: (path.count("/"), path))
            paths[shallowest] = paths.get(shallowest, 0) + 1
    return max(paths, key=lambda path: paths[path]) if paths else coordinate


def _comparable(
    files: Sequence[FileFacts],
    numbers: Sequence[int],
    path: str,
    there: LoadedValues | int | None,
    misfits: dict[int, Misfit],
) -> tuple[list[NDArray[Any]], str | None, NDArray[Any] | None]:
    """Return values that can be compared across files: moments where they are times."""
    loaded = [files[number].values.get(path) for number in numbers]
    first = there if isinstance(there, LoadedValues) else next(iter(filter(None, loaded)), None)
    units = None if first is None else parse_units(first.units, first.calendar)
    blocks: list[NDArray[Any]] = []
    for number, values in zip(numbers, loaded, strict=True):
        problem = _unlike(values, path, first, units is not None)
        if problem is not None or values is None:
            kind, message = problem or (Kind.COORDINATE, f"it has no values of {path}")
            misfits[number] = Misfit(files[number].url, kind, message, path)
            continue
        try:
            own = parse_units(values.units, values.calendar) if units else None
            blocks.append(own.moments(values.values) if own else values.values)
        except InvalidInputError as error:
            misfits[number] = Misfit(files[number].url, Kind.COORDINATE, str(error), path)
    there_values = None
    if isinstance(there, LoadedValues):
        there_values = units.moments(there.values) if units else there.values
    return blocks, None if units is None else units.calendar, there_values


def _unlike(
    values: LoadedValues | None,
    path: str,
    first: LoadedValues | None,
    is_time: bool,  # noqa: FBT001 - of the first
) -> tuple[Kind, str] | None:
    """Return why values cannot be compared with those of the first file."""
    if values is None or first is None:
        return Kind.COORDINATE, f"it has no values of {path}"
    try:
        units = parse_units(values.units, values.calendar)
    except InvalidInputError as error:
        return Kind.UNITS, str(error)
    if (units is not None) != is_time:
        return Kind.UNITS, f"{path} has the units {values.units!r} instead of {first.units!r}"
    first_units = parse_units(first.units, first.calendar)
    if units is not None and first_units is not None and units.calendar != first_units.calendar:
        text = f"{path} counts in the calendar {units.calendar} instead of {first_units.calendar}"
        return Kind.CALENDAR, text
    return None


def _misfit(file: FileFacts, refusal: Refusal, name: str, against: str | None) -> Misfit:
    text = f"along {name!r} {refusal.message}"
    if against is not None:
        text += f" {against}: leave one of them out, or join files in the order given (by='order')"
    return Misfit(file.url, refusal.kind, text)


def _duplicates(
    files: Sequence[FileFacts],
    families: Families,
    numbers: Sequence[int],
    starts: Mapping[str, NDArray[np.int64]],
    options: CombineOptions,
) -> dict[int, Misfit]:
    """Find files at the place of another one of the same variables; the first one stays."""
    owner: dict[tuple[int, ...], int] = {}
    misfits: dict[int, Misfit] = {}
    for number in numbers:
        position = (int(starts[name][number]) for name in options.concat)
        first = owner.setdefault((families.of_file[number], *position), number)
        if first != number:
            misfits[number] = Misfit(
                files[number].url,
                Kind.DUPLICATE,
                f"it has the same coordinates as {files[first].url}",
            )
    return misfits


def _gap_misfits(
    files: Sequence[FileFacts],
    numbers: Sequence[int],
    placed: Mapping[str, _Axis],
    starts: Mapping[str, NDArray[np.int64]],
) -> dict[int, Misfit]:
    misfits: dict[int, Misfit] = {}
    for name, axis in placed.items():
        missing = {position + 1: count for position, count in axis.placed.gaps}
        for number in numbers:
            count = missing.get(int(starts[name][number]))
            if count is not None:
                text = (
                    f"before it, about {count} steps along {name!r} are missing: add the files that"
                    " have them, or join files without them (gaps='close')"
                )
                misfits[number] = Misfit(files[number].url, Kind.GAP, text)
    return misfits


def _coverage(
    files: Sequence[FileFacts],
    families: Families,
    numbers: Sequence[int],
    placed: Mapping[str, _Axis],
    starts: Mapping[str, NDArray[np.int64]],
    late: AbstractSet[int],
) -> Coverage:
    gaps = []
    for name, axis in placed.items():
        for position, count in axis.placed.gaps:
            end = position + 1 + (count if axis.fills_gaps else 0)
            if position >= 0 and end < axis.placed.length:
                gaps.append(Gap(name, axis.show(position), axis.show(end), count))
    filled = {name: axis for name, axis in placed.items() if axis.placed.length}
    return Coverage(
        {name: axis.placed.length for name, axis in placed.items()},
        {name: axis.show(0) for name, axis in filled.items()},
        {name: axis.show(axis.placed.length - 1) for name, axis in filled.items()},
        tuple(gaps),
        *_holes(files, families, numbers, starts),
        tuple(sorted({files[number].url for number in numbers if number in late})),
    )


def _holes(
    files: Sequence[FileFacts],
    families: Families,
    numbers: Sequence[int],
    starts: Mapping[str, NDArray[np.int64]],
) -> tuple[tuple[Hole, ...], int]:
    """Find combinations of places for which a family has no file: the first ones, and how many."""
    # Along each dimension, the starts that any file has, with the length of the file there.
    places = [
        {int(column[number]): files[number].lengths[name] for number in numbers}
        for name, column in starts.items()
    ]
    if not numbers or (len(places) == 1 and len(families.schemas) == 1):
        return (), 0
    holes: list[Hole] = []
    missing = 0
    for family, schema in enumerate(families.schemas):
        taken = {
            tuple(int(column[number]) for column in starts.values())
            for number in numbers
            if families.of_file[number] == family
        }
        missing += math.prod(map(len, places)) - len(taken)
        free = (cell for cell in product(*map(sorted, places)) if cell not in taken)
        for cell in islice(free, max(0, min(missing, _MOST_HOLES) - len(holes))):
            lengths = tuple(
                length_by_start[start] for length_by_start, start in zip(places, cell, strict=True)
            )
            holes.append(Hole(tuple(sorted(schema.variables)), cell, lengths))
    return tuple(holes), missing


def _place_in_order(
    files: Sequence[FileFacts],
    families: Families,
    usable: Sequence[int],
    options: CombineOptions,
    existing: Axes,
) -> PlacedFiles:
    """Put files one behind the other, those of each family for itself."""
    if len(options.concat) != 1:
        raise InvalidInputError(
            "files can be joined in the order given along one dimension only; along several,"
            " their coordinates must tell where they go",
            ErrorKind.BAD_METADATA,
        )
    [name] = options.concat
    there = existing.get(name, 0)
    reached = dict.fromkeys(
        families.of_file, there if isinstance(there, int) else len(there.values)
    )
    starts = []
    for number in usable:
        family = families.of_file[number]
        starts.append(reached[family])
        reached[family] += files[number].lengths[name]
    length = max(reached.values(), default=0)
    column = np.array(starts, np.int64)
    whole = np.full(len(files), -1, np.int64)
    whole[list(usable)] = column
    holes, missing = _holes(files, families, usable, {name: whole})
    coverage = Coverage({name: length}, holes=holes, missing_places=missing)
    return PlacedFiles(tuple(usable), {name: column}, {name: length}, {}, coverage)
