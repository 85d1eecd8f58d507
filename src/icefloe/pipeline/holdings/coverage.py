"""What a dataset holds, lacks and got late, along the dimension that its files were joined along.

All of it is known from the record of sources and the coordinate: no file is opened. A dataset has
a row for each *family*, the files that give the same variables. A row is made of spans of *slots*:
the steps of the dataset, and between them as many as seem to be missing where no place was left.

    present   some file gives it, or with several dimensions as many files as elsewhere
    partial   fewer files than elsewhere
    late      it came in a later commit than something behind it
    missing   no file gives it
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icefloe.api.session import Session
from icefloe.errors import ErrorKind, NotFoundError
from icefloe.pipeline.combining.combine import existing_axes
from icefloe.pipeline.combining.existing import read_existing
from icefloe.pipeline.holdings.axis import Axis
from icefloe.pipeline.holdings.records import (
    RecordedFile,
    SourceRecord,
    options_from_json,
    read_record,
    recorded_groups,
)

type Ints = NDArray[np.int64]


class Presence(StrEnum):
    """What is known of a step."""

    MISSING = "missing"
    PARTIAL = "partial"
    LATE = "late"
    PRESENT = "present"


_BY_CODE: Final = tuple(Presence)


@dataclass(frozen=True, slots=True)
class Span:
    """Slots that follow each other and are alike."""

    presence: Presence
    first: str
    last: str
    steps: int
    start: int | None
    """The number of its first step in the dataset; None if no place was left."""


@dataclass(frozen=True, slots=True)
class FamilyCoverage:
    """The files that give the same variables."""

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
        """Give the spans of one kind."""
        return [span for span in self.spans if span.presence is presence]

    def to_dict(self) -> dict[str, Any]:
        """Give everything as plain values."""
        return {
            "variables": list(self.variables),
            "files": self.files,
            "steps": {each.value: self.steps(each) for each in Presence},
            "late_files": list(self.late_files),
            "spans": [
                {
                    "presence": span.presence.value,
                    "first": span.first,
                    "last": span.last,
                    "steps": span.steps,
                    "start": span.start,
                }
                for span in self.spans
            ],
        }


@dataclass(frozen=True, slots=True)
class DatasetCoverage:
    """What a dataset holds along one dimension."""

    group: str
    dimension: str
    length: int
    first: str
    last: str
    families: tuple[FamilyCoverage, ...]

    @property
    def is_complete(self) -> bool:
        """Whether nothing is missing, in whole or in part."""
        lacking = (Presence.MISSING, Presence.PARTIAL)
        return not any(family.steps(each) for family in self.families for each in lacking)

    def to_dict(self) -> dict[str, Any]:
        """Give everything as plain values."""
        return {
            "group": self.group,
            "dimension": self.dimension,
            "length": self.length,
            "first": self.first,
            "last": self.last,
            "is_complete": self.is_complete,
            "families": [family.to_dict() for family in self.families],
        }


def read_coverage(session: Session, group: str | None = None) -> tuple[DatasetCoverage, ...]:
    """Say what the datasets of a version hold, or only that of one group ("" is the root)."""
    return tuple(
        coverage_of(each, read_axis(session, each, record), record)
        for each, record in read_records(session, group)
    )


def read_records(session: Session, group: str | None) -> list[tuple[str, SourceRecord]]:
    """Read the records of all groups, or of one; it is an error if there is none."""
    store = session.store
    groups = recorded_groups(store)
    wanted = groups if group is None else [group.strip("/")]
    found = [(each, record) for each in wanted if (record := read_record(store, each))]
    if not found:
        where = "" if group is None else f" of the group {group!r}"
        others = f"; of these groups there are: {', '.join(map(repr, groups))}" if groups else ""
        raise NotFoundError(
            f"there is no record of sources{where}{others}. `icefloe ingest` writes one for each"
            " dataset that it makes",
            ErrorKind.NODE_NOT_FOUND,
        )
    return found


def read_axis(session: Session, group: str, record: SourceRecord) -> Axis:
    """Read the coordinate of the first dimension that the files of a dataset join along."""
    options, _ = options_from_json(record.options)
    existing = read_existing(session.store, group, options)
    name = options.concat[0]
    return Axis.of(name, existing_axes(existing, options)[name])


def coverage_of(group: str, axis: Axis, record: SourceRecord) -> DatasetCoverage:
    """Work out what a dataset holds from its axis and the record of its files."""
    families: dict[str, list[RecordedFile]] = {}
    for each in record.files:
        families.setdefault(each.variables, []).append(each)
    return DatasetCoverage(
        group,
        axis.name,
        axis.length,
        axis.label(0) if axis.length else "",
        axis.label(axis.length - 1) if axis.length else "",
        tuple(_family(axis, name, files) for name, files in sorted(families.items())),
    )


def late_rows(files: Sequence[RecordedFile]) -> NDArray[np.bool_]:
    """Tell which files came later than one that lies behind them; unknown times are early."""
    starts = np.array([each.start for each in files], np.int64)
    came = np.array([each.ingested or 0 for each in files], np.int64)
    places, place_of = np.unique(starts, return_inverse=True)
    earliest = np.full(len(places) + 1, np.iinfo(np.int64).max)
    np.minimum.at(earliest, place_of, came)
    behind = np.minimum.accumulate(earliest[::-1])[::-1]
    is_late: NDArray[np.bool_] = came > behind[place_of + 1]
    return is_late


def _family(axis: Axis, variables: str, files: Sequence[RecordedFile]) -> FamilyCoverage:
    is_late = late_rows(files)
    urls = [each.state.url for each, late in zip(files, is_late.tolist(), strict=True) if late]
    spans = _spans(axis, files, is_late)
    return FamilyCoverage(tuple(variables.split()), len(files), tuple(sorted(urls)), spans)


def _spans(
    axis: Axis, files: Sequence[RecordedFile], is_late: NDArray[np.bool_]
) -> tuple[Span, ...]:
    """Cut the axis where anything begins or ends; the work grows with files, not with steps."""
    if not axis.length:
        return ()
    starts = np.clip(np.array([each.start for each in files], np.int64), 0, axis.length)
    lengths = np.clip(np.array([each.length for each in files], np.int64), 0, axis.length)
    ends = np.minimum(starts + lengths, axis.length)
    edges = np.unique(np.concatenate([[0, axis.length], starts, ends]))
    depth = _covering(edges, starts, ends)
    late = _covering(edges, starts[is_late], ends[is_late])
    codes = np.full(len(depth), _code(Presence.PRESENT))
    codes[late > 0] = _code(Presence.LATE)
    codes[depth < depth.max()] = _code(Presence.PARTIAL)
    codes[depth == 0] = _code(Presence.MISSING)
    begins = np.flatnonzero(np.diff(codes, prepend=-1))
    found = [
        (int(edges[at]), int(code)) for at, code in zip(begins, codes[begins].tolist(), strict=True)
    ]
    return tuple(_with_gaps(axis, found))


def _covering(edges: Ints, starts: Ints, ends: Ints) -> Ints:
    """Count the intervals that cover each piece between edges."""
    change = np.zeros(len(edges), np.int64)
    np.add.at(change, np.searchsorted(edges, starts), 1)
    np.add.at(change, np.searchsorted(edges, ends), -1)
    return np.cumsum(change)[:-1]


def _with_gaps(axis: Axis, runs: Sequence[tuple[int, int]]) -> list[Span]:
    """Make spans of runs, each known by its first step, and put gaps between the steps."""
    gaps = {at + 1: count for at, count in axis.gaps()}
    codes = dict(runs)
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
