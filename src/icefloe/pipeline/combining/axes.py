"""Where files go along all dimensions, from the values of their coordinates or by their order."""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import islice, product
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.pipeline.combining.consensus import Families
from icefloe.pipeline.combining.placing import Placed, Refusal, place
from icefloe.pipeline.combining.report import Coverage, Gap, Hole, Misfit
from icefloe.pipeline.files.facts import FileFacts, LoadedValues
from icefloe.pipeline.files.options import CombineOptions
from icefloe.pipeline.files.schema import Kind
from icefloe.pipeline.files.times import parse_units, show_moment
from icefloe.records import Record, field, replace

_MOST_HOLES: Final = 1000
"""As many as are listed."""

type Axes = Mapping[str, LoadedValues | int]
"""The existing steps along each dimension: values, or only a length."""


class PlacedFiles(Record):
    """Where each file begins along each dimension."""

    files: tuple[int, ...]
    starts: Mapping[str, NDArray[np.int64]]
    lengths: Mapping[str, int]
    misfits: Mapping[int, Misfit]
    coverage: Coverage
    coordinates: Mapping[str, str] = field(default_factory=dict)
    """By dimension, the path of the array that decided."""
    axes: Mapping[str, "_Axis"] = field(default_factory=dict)

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
    existing: int

    def filled(self, target: LoadedValues) -> list[tuple[int, NDArray[Any]]]:
        if not self.fills_gaps:
            return []
        units = parse_units(target.units, target.calendar) if self.calendar else None
        runs = []
        for position, count in self.placed.gaps:
            start = max(position + 1, self.existing)
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
        is_filling = options.gaps == "leave"
        placed[name] = _Axis(outcome, calendar, is_filling, 0 if there is None else len(there))
        column = np.full(len(files), -1, np.int64)
        column[left] = outcome.starts
        starts[name] = column
    remaining = [number for number in usable if number not in misfits]
    misfits |= _duplicates(files, families, remaining, starts, options)
    remaining = [number for number in remaining if number not in misfits]
    if options.gaps == "fail":
        misfits |= _gap_misfits(files, remaining, placed, starts)
    coverage = _coverage(files, families, remaining, placed, starts)
    return PlacedFiles(
        tuple(usable),
        {name: column[list(usable)] for name, column in starts.items()},
        {name: axis.placed.length for name, axis in placed.items()},
        misfits,
        coverage,
        coordinates,
        placed,
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
        matching = [
            path
            for path in files[number].values
            if path == coordinate or path.rpartition("/")[2] == coordinate
        ]
        if not matching:
            others = sorted(files[number].values)
            misfits[number] = Misfit(
                files[number].url,
                Kind.COORDINATE,
                f"it has no values of {coordinate!r} to tell where it goes along {name!r}"
                + (f" (of others it has {', '.join(others)})" if others else "")
                + ": name another coordinate, or join files in the order given",
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
    return Misfit(file.url, refusal.kind, text if against is None else f"{text} {against}")


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
        place_of = (
            families.of_file[number],
            *(int(starts[name][number]) for name in options.concat),
        )
        first = owner.setdefault(place_of, number)
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
                text = f"before it, about {count} steps along {name!r} are missing"
                misfits[number] = Misfit(files[number].url, Kind.GAP, text)
    return misfits


def _coverage(
    files: Sequence[FileFacts],
    families: Families,
    numbers: Sequence[int],
    placed: Mapping[str, _Axis],
    starts: Mapping[str, NDArray[np.int64]],
) -> Coverage:
    gaps = []
    for name, axis in placed.items():
        for position, count in axis.placed.gaps:
            end = position + 1 + (count if axis.fills_gaps else 0)
            if position >= 0 and end < axis.placed.length:
                gaps.append(Gap(name, axis.show(position), axis.show(end), count))
    late = sorted(
        {
            files[number].url
            for name, axis in placed.items()
            for number in numbers
            if 0 <= starts[name][number] < axis.existing
        }
    )
    filled = {name: axis for name, axis in placed.items() if axis.placed.length}
    return Coverage(
        {name: axis.placed.length for name, axis in placed.items()},
        {name: axis.show(0) for name, axis in filled.items()},
        {name: axis.show(axis.placed.length - 1) for name, axis in filled.items()},
        tuple(gaps),
        *_holes(files, families, numbers, starts),
        tuple(late),
    )


def _holes(
    files: Sequence[FileFacts],
    families: Families,
    numbers: Sequence[int],
    starts: Mapping[str, NDArray[np.int64]],
) -> tuple[tuple[Hole, ...], int]:
    """Find combinations of places for which a family has no file: the first ones, and how many."""
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
            lengths = tuple(each[index] for each, index in zip(places, cell, strict=True))
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
