"""Which places of a dataset are taken, by the record of its sources."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from icefloe.pipeline.combine import Combined, Existing, combine
from icefloe.pipeline.facts import FileFacts, Problem
from icefloe.pipeline.options import CombineOptions
from icefloe.pipeline.records import RecordedFile, SourceRecord
from icefloe.pipeline.report import Misfit
from icefloe.pipeline.schema import Kind


def recorded_files(
    facts: Sequence[FileFacts], combined: Combined, options: CombineOptions
) -> list[RecordedFile]:
    """Say what is to be recorded of the files that are used."""
    name = options.concat[0]
    return [
        RecordedFile(
            facts[number].state,
            int(combined.starts[name][row]),
            facts[number].lengths[name],
            _variables(facts[number]),
        )
        for row, number in enumerate(combined.files)
    ]


def without_taken_places(
    facts: Sequence[FileFacts],
    combined: Combined,
    options: CombineOptions,
    existing: Existing | None,
    record: SourceRecord | None,
) -> Combined:
    """Refuse files that would take the place of other files that were ingested before.

    A file that changed takes its own place again, and no other: what it had elsewhere would go
    on pointing to the state that is gone. With several dimensions nothing is refused, as the
    record knows of the first one only.
    """
    if record is None or existing is None or len(options.concat) != 1 or not combined.files:
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
    [name] = options.concat
    known = record.by_url()
    taken = {
        variables: _Intervals([each for each in record.files if each.variables == variables])
        for variables in {each.variables for each in record.files}
    }
    refused: dict[int, Misfit] = {}
    for row, number in enumerate(combined.files):
        file, start = facts[number], int(combined.starts[name][row])
        length = file.lengths[name]
        if file.url in known:
            _, before = known[file.url]
            if (before.start, before.length) != (start, length):
                text = (
                    f"it had {before.length} steps from number {before.start}, and now has {length}"
                    f" from {start}: ingest all files anew, into another group"
                )
                refused[number] = Misfit(file.url, Kind.COORDINATE, text)
            continue
        intervals = taken.get(_variables(file))
        other = None if intervals is None else intervals.owner(start, start + length)
        if other is not None:
            text = f"{other} was ingested with the same coordinates"
            refused[number] = Misfit(file.url, Kind.DUPLICATE, text)
    return refused


class _Intervals:
    """Which files take which steps; they do not overlap."""

    def __init__(self, files: Sequence[RecordedFile]) -> None:
        self._files = sorted(files, key=lambda each: each.start)
        self._starts = np.array([each.start for each in self._files], np.int64)
        self._ends = self._starts + np.array([each.length for each in self._files], np.int64)

    def owner(self, start: int, end: int) -> str | None:
        """Name a file that takes any of some steps."""
        low = int(np.searchsorted(self._ends, start, "right"))
        high = int(np.searchsorted(self._starts, end, "left"))
        return self._files[low].state.url if low < high else None


def _variables(facts: FileFacts) -> str:
    return "" if facts.schema is None else " ".join(sorted(facts.schema.variables))
