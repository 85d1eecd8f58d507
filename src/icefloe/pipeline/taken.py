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

    A file takes its own place again, when it changed. With several dimensions nothing is refused,
    as the record knows of the first one only.
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
        replace(each, problem=Problem(refused[row].kind, refused[row].message))
        if row in refused
        else each
        for row, each in enumerate(facts)
    ]
    return combine(left, options, existing)


def _refused(
    facts: Sequence[FileFacts], combined: Combined, options: CombineOptions, record: SourceRecord
) -> dict[int, Misfit]:
    [name] = options.concat
    owners: dict[str, list[RecordedFile]] = {}
    for each in record.files:
        owners.setdefault(each.variables, []).append(each)
    refused: dict[int, Misfit] = {}
    for variables, files in owners.items():
        first = np.array([each.start for each in files])
        order = np.argsort(first, kind="stable")
        first = first[order]
        end = first + np.array([files[row].length for row in order.tolist()])
        for row, number in enumerate(combined.files):
            if _variables(facts[number]) != variables:
                continue
            start = int(combined.starts[name][row])
            stop = start + facts[number].lengths[name]
            low, high = np.searchsorted(end, start, "right"), np.searchsorted(first, stop, "left")
            others = [files[at].state.url for at in order[low:high].tolist()]
            other = next((url for url in others if url != facts[number].url), None)
            if other is not None:
                refused[number] = Misfit(
                    facts[number].url,
                    Kind.DUPLICATE,
                    f"{other} was ingested with the same coordinates",
                )
    return refused


def _variables(facts: FileFacts) -> str:
    return "" if facts.schema is None else " ".join(sorted(facts.schema.variables))
