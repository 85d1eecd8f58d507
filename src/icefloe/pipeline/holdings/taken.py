"""Which places of a dataset are taken, by the record of its sources."""

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from icefloe.pipeline.combining.combine import Combined, Existing, combine
from icefloe.pipeline.combining.schema import Kind
from icefloe.pipeline.files.facts import FileFacts, Problem
from icefloe.pipeline.holdings.records import RecordedFile, SourceRecord
from icefloe.pipeline.options import CombineOptions
from icefloe.pipeline.report import Misfit

type _Box = tuple[tuple[int, int], ...]
"""Start and length along each dimension that files are joined along."""

_PLACE: Final = re.compile(r"(\d{1,18})\+(\d{1,18})", re.ASCII)


def recorded_files(
    facts: Sequence[FileFacts], combined: Combined, options: CombineOptions
) -> list[RecordedFile]:
    """Say what is to be recorded of the files that are used; they come now."""
    now = time.time_ns() // 1000
    return [
        _recorded(facts[number], _box(facts[number], combined, row, options), now)
        for row, number in enumerate(combined.files)
    ]


def _recorded(file: FileFacts, box: _Box, now: int) -> RecordedFile:
    (start, length), *others = box
    further = " ".join(f"{first}+{steps}" for first, steps in others)
    return RecordedFile(file.state, start, length, _variables(file), now, further)


def _box(file: FileFacts, combined: Combined, row: int, options: CombineOptions) -> _Box:
    return tuple((int(combined.starts[name][row]), file.lengths[name]) for name in options.concat)


def _recorded_box(file: RecordedFile) -> _Box:
    """Say where a file lies; along the first dimension only if the record says no more."""
    found = [_PLACE.fullmatch(text) for text in file.further.split()]
    others = [(int(each[1]), int(each[2])) for each in found if each is not None]
    return ((file.start, file.length), *others)


def without_taken_places(
    facts: Sequence[FileFacts],
    combined: Combined,
    options: CombineOptions,
    existing: Existing | None,
    record: SourceRecord | None,
) -> Combined:
    """Refuse files that would take the place of other files that were ingested before.

    A file that changed takes its own place again, and no other: what it had elsewhere would go
    on pointing to the state that is gone.
    """
    if record is None or existing is None or not combined.files:
        return combined
    refused = _refused(facts, combined, options, record)
    if not refused:
        return combined
    if options.on_misfit == "fail":
        found = (*combined.report.misfits, *refused.values())
        return Combined(replace(combined.report, misfits=tuple(sorted(found))))
    left = [
        FileFacts(each.state, problem=Problem(refused[row].kind, refused[row].message))
        if row in refused
        else each
        for row, each in enumerate(facts)
    ]
    return combine(left, options, existing)


def _refused(
    facts: Sequence[FileFacts], combined: Combined, options: CombineOptions, record: SourceRecord
) -> dict[int, Misfit]:
    known = record.by_url()
    boxes = {url: _recorded_box(file) for url, (_, file) in known.items()}
    taken = {
        variables: _Taken(
            {
                each.state.url: boxes[each.state.url]
                for each in record.files
                if each.variables == variables and len(boxes[each.state.url]) == len(options.concat)
            },
            len(options.concat),
        )
        for variables in {each.variables for each in record.files}
    }
    refused: dict[int, Misfit] = {}
    for row, number in enumerate(combined.files):
        file = facts[number]
        box = _box(file, combined, row, options)
        if file.url in known:
            if (moved := _moved(boxes[file.url], box, options)) is not None:
                refused[number] = Misfit(file.url, Kind.COORDINATE, moved)
            continue
        others = taken.get(_variables(file))
        other = None if others is None else others.owner(box)
        if other is not None:
            text = f"{other} was ingested with the same coordinates"
            refused[number] = Misfit(file.url, Kind.DUPLICATE, text)
    return refused


def _moved(before: _Box, now: _Box, options: CombineOptions) -> str | None:
    """Say how a file that changed lies elsewhere than it did, if so."""
    for name, old, new in zip(options.concat, before, now, strict=False):
        if old != new:
            return (
                f"along {name} it had {old[1]} steps from number {old[0]}, and now has {new[1]}"
                f" from {new[0]}: ingest all files anew, into another group"
            )
    return None


class _Taken:
    """Which files take which boxes of steps."""

    def __init__(self, boxes: Mapping[str, _Box], dimensions: int) -> None:
        ordered = sorted(boxes.items(), key=lambda each: each[1])
        self._urls = [url for url, _ in ordered]
        corners = np.array([box for _, box in ordered], np.int64).reshape(-1, dimensions, 2)
        self._starts, self._ends = corners[:, :, 0], corners.sum(axis=2)
        self._longest = int(corners[:, 0, 1].max(initial=0))

    def owner(self, box: _Box) -> str | None:
        """Name a file that takes any of some steps."""
        starts, ends = np.array([(start, start + length) for start, length in box], np.int64).T
        first = self._starts[:, 0]
        low = int(np.searchsorted(first, starts[0] - self._longest, "right"))
        high = int(np.searchsorted(first, ends[0], "left"))
        meets = (self._starts[low:high] < ends) & (self._ends[low:high] > starts)
        found = np.flatnonzero(meets.all(axis=1))
        return self._urls[low + int(found[0])] if len(found) else None


def _variables(facts: FileFacts) -> str:
    return "" if facts.schema is None else " ".join(sorted(facts.schema.variables))
