"""Where blocks of steps go along one dimension: pure, and on columns.

Each file holds a block: a run of coordinate values. Blocks that are equal share a place (files of
other variables, or of other places along other dimensions); others must lie one behind the
other, in the direction that most of them have.
"""

from bisect import bisect
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.pipeline.files.options import GapRule
from icefloe.pipeline.files.schema import Kind
from icefloe.records import Record, field

type Values = NDArray[Any]
type Ints = NDArray[np.int64]

_GAP_FACTOR: Final = 1.5
_STEP_TOLERANCE: Final = 1e-6
_NO_DIRECTION: Final = 2


class Refusal(Record):
    """Why a block has no place, and the block it contradicts, if there is one."""

    kind: Kind
    message: str
    against: int | None = None


class Placed(Record):
    """The outcome: for each block where it starts, or why it has no place."""

    starts: Ints
    """-1 for blocks without a place."""
    length: int
    axis: Values
    """The comparable value at each place."""
    refusals: dict[int, Refusal] = field(default_factory=dict)
    gaps: tuple[tuple[int, int], ...] = ()
    """Positions behind which steps are missing, and about how many."""
    late: tuple[int, ...] = ()
    """Blocks that went before the end of what was there."""


def place(
    blocks: Sequence[Values], *, existing: Values | None = None, gaps: GapRule = "close"
) -> Placed:
    """Find the place of each block; the one given first wins where two contradict.

    >>> place([np.array([3, 4]), np.array([1, 2])]).starts
    array([2, 0])
    """
    refusals: dict[int, Refusal] = {}
    starts = np.full(len(blocks), -1, np.int64)
    there = np.empty(0, blocks[0].dtype if blocks else np.int64) if existing is None else existing
    if len(there) and _direction(there) == _NO_DIRECTION:
        raise InvalidInputError(
            "the existing coordinate is not strictly monotonic along the dimension, so values"
            " cannot"
            " tell where files go: name another coordinate, or add files in the order given",
            ErrorKind.BAD_METADATA,
        )
    usable = [number for number, block in enumerate(blocks) if _check(block, number, refusals)]
    descends = _descends([blocks[number] for number in usable], there)
    usable = [
        number for number in usable if _check_direction(blocks[number], number, descends, refusals)
    ]
    if not usable:
        return Placed(starts, len(there), there, refusals)
    ranks, rank_of_axis = _ranks([blocks[number] for number in usable], there, descends)
    owner: dict[bytes, int] = {}
    twins: dict[int, int] = {}
    for number, rank in zip(usable, ranks, strict=True):
        twins[number] = owner.setdefault(rank.tobytes(), number)
    rank_by_number = dict(zip(usable, ranks, strict=True))
    distinct = list(owner.values())
    if gaps == "leave":
        axis = _place_regularly(blocks, distinct, there, descends, refusals, starts)
    else:
        axis = _place_behind(
            blocks, distinct, rank_by_number, rank_of_axis, there, refusals, starts
        )
    for number, twin in twins.items():
        starts[number] = starts[twin]
        if twin in refusals and number != twin:
            refusals[number] = refusals[twin]
    late = tuple(
        number for number in usable if 0 <= starts[number] < len(there) and existing is not None
    )
    gaps_found = (
        _left_free(axis, starts, blocks, len(there)) if gaps == "leave" else find_gaps(axis)
    )
    return Placed(starts, len(axis), axis, refusals, gaps_found, late)


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
    blocks: Sequence[Values],
    there: Values,
    descends: bool,  # noqa: FBT001 - the direction
) -> tuple[list[Ints], Ints]:
    """Number all values in the order of the axis, so that any type is compared as integers."""
    flat = np.concatenate([there, *blocks])
    _, inverse = np.unique(flat, return_inverse=True)
    ranks = inverse.astype(np.int64)
    if descends:
        ranks = ranks.max() - ranks
    edges = np.cumsum([len(there), *(len(block) for block in blocks)])
    return [
        ranks[start:end] for start, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
    ], ranks[: len(there)]


def _place_behind(
    blocks: Sequence[Values],
    distinct: list[int],
    ranks: dict[int, Ints],
    axis_ranks: Ints,
    there: Values,
    refusals: dict[int, Refusal],
    starts: Ints,
) -> Values:
    """Put blocks one behind the other; those that lie within the existing steps fall into place."""
    behind: list[int] = []
    last = axis_ranks[-1] if len(axis_ranks) else -1
    for number in distinct:
        rank = ranks[number]
        if rank[0] > last:
            behind.append(number)
        elif (position := _position(axis_ranks, rank)) is not None:
            starts[number] = position
        else:
            refusals[number] = Refusal(
                Kind.LATE,
                "it lies before the end of the existing steps, where no room was left for it",
            )
    remaining = _without_overlaps(behind, ranks, refusals)
    lengths = np.array([len(blocks[number]) for number in remaining], np.int64)
    starts[remaining] = len(there) + np.cumsum(lengths) - lengths
    return np.concatenate([there, *(blocks[number] for number in remaining)])


def _position(axis: Ints, values: Ints) -> int | None:
    position = int(np.searchsorted(axis, values[0]))
    return position if np.array_equal(axis[position : position + len(values)], values) else None


def _without_overlaps(
    numbers: list[int], ranks: dict[int, Ints], refusals: dict[int, Refusal]
) -> list[int]:
    """Return blocks in the order of the axis, without blocks that overlap an earlier one."""
    order = sorted(numbers, key=lambda number: int(ranks[number][0]))
    firsts = np.array([ranks[number][0] for number in order], np.int64)
    lasts = np.array([ranks[number][-1] for number in order], np.int64)
    if not (np.maximum.accumulate(lasts)[:-1] >= firsts[1:]).any():
        return order
    kept_firsts: list[int] = []
    kept_blocks: list[int] = []
    for number in sorted(numbers):
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
) -> Values:
    """Put blocks where they belong on an axis of equal steps, free places between them."""
    flat = np.unique(np.concatenate([there, *(blocks[number] for number in distinct)]))
    step = _smallest_step(there if len(there) > 1 else flat)
    origin = there[0] if len(there) else (flat[-1] if descends else flat[0])
    sign = -1 if descends else 1
    reached = len(there)
    taken: dict[int, int] = {}
    for number in sorted(distinct):
        positions = (blocks[number] - origin) * sign / step
        whole = np.rint(positions.astype(np.float64)).astype(np.int64)
        if (
            np.abs(positions - whole).max() > _STEP_TOLERANCE * max(1, len(flat))
            or (np.diff(whole) != 1).any()
        ):
            refusals[number] = Refusal(
                Kind.GAP, f"it does not lie on equal steps of {step}, as leaving gaps needs"
            )
        elif whole[0] < 0:
            refusals[number] = Refusal(Kind.LATE, "it lies before the first existing step")
        elif (
            hit := next(
                (taken[positions] for positions in whole.tolist() if positions in taken), None
            )
        ) is not None:
            refusals[number] = Refusal(Kind.OVERLAP, "it overlaps", hit)
        else:
            taken.update(dict.fromkeys(whole.tolist(), number))
            starts[number] = whole[0]
            reached = max(reached, int(whole[-1]) + 1)
    steps = np.arange(len(there), reached)
    more = (origin + sign * step * steps).astype(flat.dtype)
    axis = np.concatenate([there, more])
    for number in distinct:  # as the files have it, to the last bit
        if (positions := int(starts[number])) >= len(there):
            axis[positions : positions + len(blocks[number])] = blocks[number]
    return axis


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
    axis: Values, starts: Ints, blocks: Sequence[Values], there: int
) -> tuple[tuple[int, int], ...]:
    """List runs of places without a block, as the position before each and its length.

    Whether what was there has free places is not known here.
    """
    edges = np.zeros(len(axis) + 1, np.int64)
    edges[0] += 1
    edges[there] -= 1
    for number in np.flatnonzero(starts >= 0).tolist():
        edges[starts[number]] += 1
        edges[starts[number] + len(blocks[number])] -= 1
    free = np.concatenate([[0], (np.cumsum(edges[:-1]) == 0).view(np.int8), [0]])
    begins, ends = np.flatnonzero(np.diff(free) == 1), np.flatnonzero(np.diff(free) == -1)
    return tuple(
        (int(begin) - 1, int(end - begin)) for begin, end in zip(begins, ends, strict=True)
    )
