"""Coverage of a dataset along the dimension of its files: steps present, missing and late.

The coordinate gives the steps their names; the record of sources gives each file its state. The
coverage is drawn as a bar of signs for terminals, and as SVG.
"""

import html
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import partial
from itertools import accumulate, groupby, pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icefloe.api.session import Session
from icefloe.errors import ErrorKind, InvalidInputError, NotFoundError
from icefloe.pipeline.combining.combine import existing_axes
from icefloe.pipeline.combining.placing import find_gaps
from icefloe.pipeline.files.facts import ArraySchema, LoadedValues, is_named
from icefloe.pipeline.files.sources import compile_glob
from icefloe.pipeline.files.times import USUAL_MOMENTS, parse_units, show_moment
from icefloe.pipeline.writing.dataset import read_existing
from icefloe.pipeline.writing.provenance import (
    RecordedFile,
    SourceRecord,
    options_from_json,
    read_record,
    recorded_groups,
)
from icefloe.printable import printable
from icefloe.records import Record
from icefloe.reports import JsonReady, TextPrinter, counted, object_html

_DAY: Final = 86_400_000_000

_MOST_STEPS: Final = 1 << 62
"""Beyond this, sums of positions would overflow; nobody has that many."""


class Axis(Record, eq=False):
    """The steps along one dimension; without values they are known by their numbers."""

    name: str
    length: int
    values: NDArray[Any] | None = None
    """What can be compared: moments in microseconds, or the numbers themselves."""
    calendar: str | None = None
    """Of moments; None for other numbers."""
    is_daily: bool = False
    """Whether all moments are midnights, so that dates are enough to name them."""

    @classmethod
    def of(cls, name: str, there: LoadedValues | int) -> "Axis":
        """Take what a dataset says of a dimension: its coordinate, or only a length.

        >>> days = LoadedValues(np.array([0, 1, 29]), "days since 2015-01-01", "360_day")
        >>> Axis.of("time", days).label(2)
        '2015-01-30'
        """
        if isinstance(there, int):
            return cls(name, min(there, _MOST_STEPS))
        if there.values.ndim != 1 or there.values.dtype.kind not in "iuf":
            return cls(name, len(there.values))
        try:
            units = parse_units(there.units, there.calendar)
            values = there.values if units is None else units.moments(there.values)
        except InvalidInputError:  # what nobody can read has numbers still
            return cls(name, len(there.values))
        if units is None:
            return cls(name, len(values), values)
        is_daily = not (values % _DAY).any()
        return cls(name, len(values), values, units.calendar, is_daily)

    def label(self, step: int) -> str:
        """Name a step: a date, a value, or its number."""
        return str(step) if self.values is None else self._show(self.values[step].item())

    def gaps(self) -> tuple[tuple[int, int], ...]:
        """Find steps behind which others seem to be missing, and about how many."""
        if self.values is None or len(self.values) < 3:
            return ()
        values = self.values.astype(np.float64)
        steps = np.diff(values)
        is_ordered = (steps > 0).all() or (steps < 0).all()
        return find_gaps(self.values) if is_ordered and np.isfinite(values).all() else ()

    def labels_between(self, step: int, missing: int) -> tuple[str, str]:
        """Name the first and the last of the steps that are missing behind one, about."""
        assert self.values is not None  # without values nothing is known to be missing
        before, behind = self.values[step].item(), self.values[step + 1].item()
        width = (behind - before) / (missing + 1)
        first, last = before + width, behind - width
        if self.values.dtype.kind in "iu":
            first, last = round(first), round(last)
        return self._show(first), self._show(last)

    def _show(self, value: float) -> str:
        if self.calendar is None:
            return str(value) if isinstance(value, int) else f"{value:.10g}"
        if int(value) not in USUAL_MOMENTS:
            return str(value)
        text = show_moment(int(value), self.calendar)
        return text.partition(" ")[0] if self.is_daily else text


type Ints = NDArray[np.int64]


class Presence(StrEnum):
    """The state of a step: present, missing or late.

    >>> [presence.value for presence in Presence]
    ['missing', 'partial', 'late', 'present']
    """

    MISSING = "missing"
    PARTIAL = "partial"
    LATE = "late"
    PRESENT = "present"


_BY_CODE: Final = tuple(Presence)


class Span(Record):
    """Slots that follow each other and are alike.

    >>> Span(Presence.PRESENT, "2015-01-01", "2015-01-02", 2, 0).steps
    2
    """

    presence: Presence
    first: str
    last: str
    steps: int
    start: int | None
    """The number of its first step in the dataset; None if no place was left."""


class FamilyCoverage(JsonReady, Record):
    """The files that give the same variables.

    >>> spans = (Span(Presence.PRESENT, "2015-01-01", "2015-01-02", 2, 0),)
    >>> FamilyCoverage(("t2m",), 2, (), spans).steps(Presence.PRESENT)
    2
    """

    variables: tuple[str, ...]
    files: int
    late_files: tuple[str, ...]
    spans: tuple[Span, ...]

    def steps(self, presence: Presence) -> int:
        """Count the steps of which something is known."""
        return sum(span.steps for span in self.spans if span.presence is presence)

    @property
    def all_steps(self) -> int:
        """Count all, those that are missing too."""
        return sum(span.steps for span in self.spans)

    def of(self, presence: Presence) -> list[Span]:
        """Return the spans of one kind."""
        return [span for span in self.spans if span.presence is presence]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values, and the steps of each kind."""
        steps = {presence.value: self.steps(presence) for presence in Presence}
        return {**super().to_dict(), "steps": steps}


class DatasetCoverage(JsonReady, Record):
    """The coverage of a dataset along a dimension.

    >>> DatasetCoverage(
    ...     group="", dimension="time", length=0, first="", last="", families=()
    ... ).is_complete
    True
    """

    group: str
    dimension: str
    length: int
    first: str
    last: str
    families: tuple[FamilyCoverage, ...]

    def __str__(self) -> str:
        return coverage_text(self)

    def _repr_pretty_(self, printer: TextPrinter, _: bool) -> None:  # noqa: FBT001 - of IPython
        printer.text(str(self))

    def _repr_html_(self) -> str:
        return coverage_html([self])

    @property
    def is_complete(self) -> bool:
        """Whether nothing is missing, in whole or in part."""
        lacking = (Presence.MISSING, Presence.PARTIAL)
        return not any(family.steps(presence) for family in self.families for presence in lacking)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values, and whether nothing is missing."""
        return {**super().to_dict(), "is_complete": self.is_complete}


class Coverages(tuple[DatasetCoverage, ...]):
    """The coverage of several datasets; a notebook draws it.

    >>> print(Coverages())
    no dataset of files
    """

    __slots__ = ()

    def __str__(self) -> str:
        return "\n\n".join(map(coverage_text, self)) or "no dataset of files"

    def _repr_pretty_(self, printer: TextPrinter, _: bool) -> None:  # noqa: FBT001 - of IPython
        printer.text(str(self))

    def _repr_html_(self) -> str:
        return coverage_html(self)


def read_coverage(session: Session, group: str | None = None) -> Coverages:
    """Return what the datasets of a version hold, or only that of one group ("" is the root).

    >>> import icefloe, xarray
    >>> from icefloe.pipeline import CombineOptions, container_at, container_prefixes
    >>> for day in (1, 2):
    ...     data = xarray.Dataset({"t2m": (("time", "x"), [[280.0 + day]])}, {"time": [day]})
    ...     data.to_netcdf(f"covered-{day}.nc", engine="h5netcdf")
    >>> config = icefloe.RepositoryConfig.default()
    >>> [prefix] = container_prefixes(["covered-*.nc"])
    >>> config.set_virtual_chunk_container(container_at(prefix))
    >>> storage = icefloe.local_filesystem_storage("covered")
    >>> repository = icefloe.Repository.create(storage, config)
    >>> report = icefloe.ingest(repository, "covered-*.nc", CombineOptions(("time",)))
    >>> [coverage] = read_coverage(repository.readonly_session("main"))
    >>> coverage.dimension, coverage.length, coverage.is_complete
    ('time', 2, True)
    """
    return Coverages(
        coverage_of(dataset_group, read_axis(session, dataset_group, record), record)
        for dataset_group, record in read_records(session, group)
    )


def read_records(session: Session, group: str | None) -> list[tuple[str, SourceRecord]]:
    """Read the records of all groups, or of one; it is an error if there is none."""
    store = session.store
    groups = recorded_groups(store)
    wanted_groups = groups if group is None else [group.strip("/")]
    records = [
        (dataset_group, record)
        for dataset_group in wanted_groups
        if (record := read_record(store, dataset_group))
    ]
    if not records:
        where = "" if group is None else f" of the group {group!r}"
        others = f"; of these groups there are: {', '.join(map(repr, groups))}" if groups else ""
        raise NotFoundError(
            f"there is no record of sources{where}{others}. `icefloe ingest` writes one for each"
            " dataset that it makes",
            ErrorKind.NODE_NOT_FOUND,
        )
    return records


def read_axis(session: Session, group: str, record: SourceRecord) -> Axis:
    """Read the coordinate of the first dimension that the files of a dataset join along."""
    options, _ = options_from_json(record.options)
    name = options.concat[0]
    coordinate = options.coordinates.get(name, name)
    is_loaded = partial(_is_coordinate, coordinate) if record.is_copy else None
    existing = read_existing(session.store, group, options, is_loaded)
    return Axis.of(name, existing_axes(existing, options)[name])


def _is_coordinate(name: str, array: ArraySchema) -> bool:
    return is_named(array.path, name) and len(array.shape) == 1


def coverage_of(group: str, axis: Axis, record: SourceRecord) -> DatasetCoverage:
    """Work out what a dataset holds from its axis and the record of its files."""
    families = _files_by_variables(record)
    return DatasetCoverage(
        group=group,
        dimension=axis.name,
        length=axis.length,
        first=axis.label(0) if axis.length else "",
        last=axis.label(axis.length - 1) if axis.length else "",
        families=tuple(_family(axis, name, files) for name, files in sorted(families.items())),
    )


def _files_by_variables(record: SourceRecord) -> dict[str, list[RecordedFile]]:
    families: dict[str, list[RecordedFile]] = {}
    for file in record.files:
        families.setdefault(file.variables, []).append(file)
    return families


def late_rows(files: Sequence[RecordedFile]) -> NDArray[np.bool_]:
    """Return which files came later than a file that lies behind them; unknown times are early."""
    starts = np.array([file.start for file in files], np.int64)
    came = np.array([file.ingested or 0 for file in files], np.int64)
    # For each distinct start when its first file came, and infinity behind the last start.
    positions, position_of = np.unique(starts, return_inverse=True)
    earliest = np.full(len(positions) + 1, np.iinfo(np.int64).max)
    np.minimum.at(earliest, position_of, came)
    # From the end: when the first of all files came that start there or further behind.
    first_behind = np.minimum.accumulate(earliest[::-1])[::-1]
    is_late: NDArray[np.bool_] = came > first_behind[position_of + 1]
    return is_late


def _family(axis: Axis, variables: str, files: Sequence[RecordedFile]) -> FamilyCoverage:
    is_late = late_rows(files)
    urls = [file.state.url for file, late in zip(files, is_late.tolist(), strict=True) if late]
    spans = _spans(axis, files, is_late)
    return FamilyCoverage(tuple(variables.split()), len(files), tuple(sorted(urls)), spans)


def _spans(
    axis: Axis, files: Sequence[RecordedFile], is_late: NDArray[np.bool_]
) -> tuple[Span, ...]:
    """Cut the axis where anything begins or ends; the work grows with files, not with steps."""
    if not axis.length:
        return ()
    starts = np.clip(np.array([file.start for file in files], np.int64), 0, axis.length)
    lengths = np.clip(np.array([file.length for file in files], np.int64), 0, axis.length)
    ends = np.minimum(starts + lengths, axis.length)
    # Pieces between edges are alike all over: how many files cover each, and how many late ones.
    edges = np.unique(np.concatenate([[0, axis.length], starts, ends]))
    depth = _covering(edges, starts, ends)
    late = _covering(edges, starts[is_late], ends[is_late])
    # Later rules overrule earlier ones: what is missing cannot be partial, nor late.
    codes = np.full(len(depth), _code(Presence.PRESENT))
    codes[late > 0] = _code(Presence.LATE)
    codes[depth < depth.max()] = _code(Presence.PARTIAL)
    codes[depth == 0] = _code(Presence.MISSING)
    begins = np.flatnonzero(np.diff(codes, prepend=-1))  # neighbours of one kind are one span
    codes_by_start = dict(zip(edges[begins].tolist(), codes[begins].tolist(), strict=True))
    return tuple(_with_gaps(axis, codes_by_start))


def _covering(edges: Ints, starts: Ints, ends: Ints) -> Ints:
    """Count the intervals that cover each piece between edges."""
    change = np.zeros(len(edges), np.int64)  # one more at each start, one less at each end
    np.add.at(change, np.searchsorted(edges, starts), 1)
    np.add.at(change, np.searchsorted(edges, ends), -1)
    return np.cumsum(change)[:-1]


def _with_gaps(axis: Axis, codes: Mapping[int, int]) -> list[Span]:
    """Make spans of runs, given by their first steps, and put gaps between the steps."""
    gaps = {position + 1: count for position, count in axis.gaps()}
    cuts = sorted({*codes, *gaps, axis.length})
    spans: list[Span] = []
    code = _code(Presence.MISSING)
    for begin, end in pairwise(cuts):
        code = codes.get(begin, code)
        if (missing := gaps.get(begin)) is not None:
            first, last = axis.labels_between(begin - 1, missing)
            spans.append(Span(Presence.MISSING, first, last, missing, None))
        labels = axis.label(begin), axis.label(end - 1)
        spans.append(Span(_BY_CODE[code], *labels, end - begin, begin))
    return spans


def _code(presence: Presence) -> int:
    return _BY_CODE.index(presence)


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class HeldFile(JsonReady, Record, kw_only=True):
    """One file of a dataset; see `read_sources`.

    >>> HeldFile(
    ...     url="file:///data/a.nc",
    ...     group="",
    ...     start=0,
    ...     length=2,
    ...     first="2015-01-01",
    ...     last="2015-01-02",
    ...     size=4096,
    ...     etag=None,
    ...     modified=None,
    ...     ingested=None,
    ...     is_late=False,
    ...     variables=("t2m",),
    ... ).to_dict()["variables"]
    ['t2m']
    """

    url: str
    group: str
    start: int
    """Its first step along the first dimension that files join along."""
    length: int
    first: str
    """The coordinate there."""
    last: str
    size: int | None
    etag: str | None
    modified: datetime | None
    """With etag and size, the state that was ingested."""
    ingested: datetime | None
    """When it first came."""
    is_late: bool
    """Whether it came in a later commit than something behind it."""
    variables: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        moments = {"modified": self.modified, "ingested": self.ingested}
        texts = {name: moment and moment.isoformat() for name, moment in moments.items()}
        return {**super().to_dict(), **texts}


def read_sources(
    session: Session, group: str | None = None, *, like: str | None = None
) -> list[HeldFile]:
    """List the files that the datasets of a version hold, or only that of one group.

    They come in the order of their places. `like` is a glob over whole URLs: `*` stays within a
    segment, `**` does not; without any slash it is compared with the last segment alone.

    >>> import icefloe, xarray
    >>> from icefloe.pipeline import CombineOptions, container_at, container_prefixes
    >>> for day in (1, 2):
    ...     data = xarray.Dataset({"t2m": (("time", "x"), [[280.0 + day]])}, {"time": [day]})
    ...     data.to_netcdf(f"listed-{day}.nc", engine="h5netcdf")
    >>> config = icefloe.RepositoryConfig.default()
    >>> [prefix] = container_prefixes(["listed-*.nc"])
    >>> config.set_virtual_chunk_container(container_at(prefix))
    >>> storage = icefloe.local_filesystem_storage("listed")
    >>> repository = icefloe.Repository.create(storage, config)
    >>> report = icefloe.ingest(repository, "listed-*.nc", CombineOptions(("time",)))
    >>> for file in read_sources(repository.readonly_session("main"), like="*-2.nc"):
    ...     print(file.start, file.length, file.variables)
    1 1 ('t2m',)
    """
    matcher = None if like is None else _matcher(like)
    return [
        file
        for dataset_group, record in read_records(session, group)
        for file in _held(dataset_group, record, read_axis(session, dataset_group, record), matcher)
    ]


def _matcher(like: str) -> re.Pattern[str]:
    try:
        return compile_glob(like if "/" in like else f"**/{like}")
    except re.error as error:
        raise InvalidInputError(
            f"{like!r} is not a glob that can be understood: {error}", ErrorKind.BAD_PREFIX
        ) from None


def _held(
    group: str, record: SourceRecord, axis: Axis, matcher: re.Pattern[str] | None
) -> Iterator[HeldFile]:
    rows = [
        (file, late)
        for files in _files_by_variables(record).values()
        for file, late in zip(files, late_rows(files).tolist(), strict=True)
        if matcher is None or matcher.fullmatch(file.state.url)
    ]
    for file, late in sorted(rows, key=lambda row: (row[0].start, row[0].state.url)):
        yield _file_row(group, axis, file, is_late=late)


def _file_row(group: str, axis: Axis, file: RecordedFile, *, is_late: bool) -> HeldFile:
    is_inside = 0 <= file.start < file.start + file.length <= axis.length
    return HeldFile(
        url=file.state.url,
        group=group,
        start=file.start,
        length=file.length,
        first=axis.label(file.start) if is_inside else "",
        last=axis.label(file.start + file.length - 1) if is_inside else "",
        size=file.state.size,
        etag=file.state.etag,
        modified=_moment(file.state.modified),
        ingested=_moment(file.ingested),
        is_late=is_late,
        variables=tuple(file.variables.split()),
    )


def _moment(microseconds: int | None) -> datetime | None:
    if microseconds is None:
        return None
    try:
        return _EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:  # nothing that a clock has shown
        return None


SIGNS: Final[dict[Presence, str]] = {
    Presence.PRESENT: "█",
    Presence.LATE: "▓",
    Presence.PARTIAL: "▄",
    Presence.MISSING: "·",
}
WORDS: Final[dict[Presence, str]] = {
    Presence.PRESENT: "present",
    Presence.LATE: "came late",
    Presence.PARTIAL: "in part",
    Presence.MISSING: "missing",
}
_USUAL_COLUMNS: Final = 72
_MOST_SPANS: Final = 10
"""So many missing spans are listed in words."""

_WIDTH, _MARGIN, _BAR_HEIGHT = 760, 14, 22
_LINE: Final = 20
_STYLE: Final = (
    "<style>.coverage text { fill: #24292f } .coverage .present { fill: #2f8f5b }"
    " .coverage .late { fill: #d9a514 } .coverage .partial { fill: #8fbf9f }"
    " .coverage .missing { fill: #d65f5f } .coverage .paper { fill: #fbfcfd }"
    " @media (prefers-color-scheme: dark) { .coverage text { fill: #e6edf3 }"
    " .coverage .present { fill: #3fb172 } .coverage .partial { fill: #2c6b48 }"
    " .coverage .paper { fill: #0d1117 } }</style>"
)


def cells(family: FamilyCoverage, columns: int) -> list[Presence]:
    """Return what to show in each column of equal width; missing steps are never hidden.

    >>> there, gap = Span(Presence.PRESENT, "0", "8", 9, 0), Span(Presence.MISSING, "9", "9", 1, 9)
    >>> [cell.value for cell in cells(FamilyCoverage(("t",), 9, (), (there, gap)), 4)]
    ['present', 'present', 'present', 'partial']
    """
    if not family.all_steps or columns < 1:
        return []
    # A step counts as `columns` units, so that the edges of columns and of spans are whole numbers.
    ends = list(accumulate(span.steps * columns for span in family.spans))
    edges = range(0, ends[-1] + 1, family.all_steps)
    return [
        _summed_presence(
            {
                span.presence
                for span in family.spans[bisect_right(ends, low) : bisect_left(ends, high) + 1]
            }
        )
        for low, high in pairwise(edges)
    ]


def _summed_presence(presences: set[Presence]) -> Presence:
    if presences == {Presence.MISSING}:
        return Presence.MISSING
    if Presence.MISSING in presences or Presence.PARTIAL in presences:
        return Presence.PARTIAL
    return Presence.LATE if Presence.LATE in presences else Presence.PRESENT


# -- text ------------------------------------------------------------------------------------


def coverage_text(coverage: DatasetCoverage, columns: int = _USUAL_COLUMNS) -> str:
    """Draw what a dataset holds, a bar for each family, and name what is missing.

    >>> family = FamilyCoverage(
    ...     variables=("t2m",),
    ...     files=3,
    ...     late_files=(),
    ...     spans=(
    ...         Span(Presence.PRESENT, "2015-01-01", "2015-01-02", 2, 0),
    ...         Span(Presence.MISSING, "2015-01-03", "2015-01-03", 1, None),
    ...         Span(Presence.PRESENT, "2015-01-04", "2015-01-04", 1, 2),
    ...     ),
    ... )
    >>> coverage = DatasetCoverage(
    ...     group="",
    ...     dimension="time",
    ...     length=3,
    ...     first="2015-01-01",
    ...     last="2015-01-04",
    ...     families=(family,),
    ... )
    >>> print(coverage_text(coverage, columns=4))
    root group, 3 steps along time: 2015-01-01 … 2015-01-04
      t2m: 3 of 4 steps, 3 files
      ██·█
      missing: time 2015-01-03
      █ present  · missing
    """
    lines = [_headline(coverage)]
    for family in coverage.families:
        lines += _family_lines(coverage, family, columns)
    shown = {cell for family in coverage.families for cell in cells(family, columns)}
    legend = [f"{sign} {WORDS[presence]}" for presence, sign in SIGNS.items() if presence in shown]
    lines.append("  " + "  ".join(legend))
    return "\n".join(lines)


def _headline(coverage: DatasetCoverage) -> str:
    where = f"group {printable(coverage.group)}" if coverage.group else "root group"
    range_ = f": {coverage.first} … {coverage.last}" if coverage.length else ""
    return (
        f"{where}, {counted(coverage.length, 'step')} along {printable(coverage.dimension)}{range_}"
    )


def _family_lines(coverage: DatasetCoverage, family: FamilyCoverage, columns: int) -> Iterator[str]:
    yield f"  {_family_name(family)}: {_counts(family)}"
    yield "  " + "".join(SIGNS[cell] for cell in cells(family, columns))
    missing = family.of(Presence.MISSING)
    for span in missing[:_MOST_SPANS]:
        yield f"  missing: {_span_text(coverage, span)}"
    if len(missing) > _MOST_SPANS:
        yield f"  … and {len(missing) - _MOST_SPANS} more spans are missing"


def _family_name(family: FamilyCoverage, most: int = 4) -> str:
    names = [printable(name) for name in family.variables]
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more or "no variables"


def _counts(family: FamilyCoverage) -> str:
    there = family.all_steps - family.steps(Presence.MISSING)
    parts = [f"{there} of {counted(family.all_steps, 'step')}", counted(family.files, "file")]
    if partial := family.steps(Presence.PARTIAL):
        parts.append(f"{counted(partial, 'step')} in part")
    if family.late_files:
        parts.append(f"{len(family.late_files)} came late")
    return ", ".join(parts)


def _span_text(coverage: DatasetCoverage, span: Span) -> str:
    name = printable(coverage.dimension)
    if span.steps == 1:
        return f"{name} {span.first}"
    about = "about " if span.start is None else ""
    return f"{name} {span.first} … {span.last} ({about}{counted(span.steps, 'step')})"


def coverage_html(datasets: Sequence[DatasetCoverage]) -> str:
    """Draw what datasets hold for a notebook, and name what is missing in words."""
    missing = [
        [_headline(coverage), _family_name(family), _span_text(coverage, span)]
        for coverage in datasets
        for family in coverage.families
        for span in family.of(Presence.MISSING)[:_MOST_SPANS]
    ]
    facts = {"datasets": "no dataset of files"} if not datasets else {}
    tables = {"missing": (("dataset", "variables", "steps"), missing)}
    drawn = coverage_svg(datasets) if datasets else ""
    return drawn + (
        object_html("pipeline.Coverage", facts, tables=tables) if missing or facts else ""
    )


# -- SVG -------------------------------------------------------------------------------------


def coverage_svg(datasets: Sequence[DatasetCoverage]) -> str:
    """Draw what datasets hold as an SVG document.

    >>> coverage = DatasetCoverage(
    ...     group="", dimension="time", length=0, first="", last="", families=()
    ... )
    >>> coverage_svg([coverage]).startswith("<svg")
    True
    """
    parts: list[str] = []
    y = _MARGIN
    for coverage in datasets:
        y += _LINE
        parts.append(_svg_text(_MARGIN, y, _headline(coverage), weight="bold"))
        for family in coverage.families:
            y += _LINE + 2
            parts.append(_svg_text(_MARGIN, y, f"{_family_name(family)}: {_counts(family)}"))
            y += 8
            parts += _svg_bar(coverage, family, y)
            y += _BAR_HEIGHT + _LINE - 4
            parts.append(_svg_text(_MARGIN, y, coverage.first))
            parts.append(_svg_text(_WIDTH - _MARGIN, y, coverage.last, anchor="end"))
        y += _LINE // 2
    parts += _svg_legend(y + _LINE)
    height = y + 2 * _LINE
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="coverage" width="{_WIDTH}"'
            f' height="{height}" viewBox="0 0 {_WIDTH} {height}" role="img"'
            ' aria-label="coverage" font-family="sans-serif" font-size="13">',
            _STYLE,
            f'<rect width="{_WIDTH}" height="{height}" rx="6" class="paper"/>',
            *parts,
            "</svg>",
        ]
    )


def _svg_bar(coverage: DatasetCoverage, family: FamilyCoverage, y: int) -> Iterator[str]:
    """Draw one row, a pixel for each column, so that its size does not grow with the dataset."""
    x = _MARGIN
    for presence, run in groupby(cells(family, _WIDTH - 2 * _MARGIN)):
        width = len(list(run))
        yield (
            f'<rect x="{x}" y="{y}" width="{width}" height="{_BAR_HEIGHT}"'
            f' class="{presence.value}"><title>{WORDS[presence]}</title></rect>'
        )
        x += width
    missing = family.of(Presence.MISSING)
    if missing:
        told = "\n".join(_span_text(coverage, span) for span in missing[:_MOST_SPANS])
        yield f"<desc>missing: {html.escape(told)}</desc>"


def _svg_legend(y: int) -> Iterator[str]:
    x = _MARGIN
    for presence, word in WORDS.items():
        yield f'<rect x="{x}" y="{y - 11}" width="12" height="12" class="{presence.value}"/>'
        yield _svg_text(x + 18, y, word)
        x += 34 + 8 * len(word)


def _svg_text(x: int, y: int, text: str, *, anchor: str = "start", weight: str = "normal") -> str:
    return (
        f'<text x="{x}" y="{y}" text-anchor="{anchor}" font-weight="{weight}">'
        f"{html.escape(text)}</text>"
    )
