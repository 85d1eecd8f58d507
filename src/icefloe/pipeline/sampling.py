"""All files of an archive as a few of them are: enough to plan a job, not to run it."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from icefloe.pipeline.files.access import SourceAccess
from icefloe.pipeline.files.describing import ParsedFile
from icefloe.pipeline.files.facts import FileFacts, SourceState
from icefloe.pipeline.files.parsing import parse_or_report
from icefloe.pipeline.options import ParseOptions
from icefloe.pipeline.planning import SampledFile

SAMPLES: Final = 3
"""The first, the last, and some between."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """What a few files of an archive are like."""

    numbers: tuple[int, ...]
    """Of the files that were parsed and can be used, ascending."""
    parsed: tuple[ParsedFile, ...]
    measured: tuple[SampledFile, ...]
    problems: tuple[str, ...]
    """Of files that cannot be used."""

    def assumed(self, states: Sequence[SourceState]) -> list[FileFacts]:
        """Describe all files, each as the one of the sample that is nearest."""
        return [
            replace(self.parsed[self.nearest(number)].facts, state=state)
            for number, state in enumerate(states)
        ]

    def nearest(self, number: int) -> int:
        """Say which one of the sample is nearest to a file."""
        return min(range(len(self.numbers)), key=lambda at: abs(self.numbers[at] - number))


def sample_files(
    states: Sequence[SourceState],
    options: ParseOptions,
    access: SourceAccess,
    *,
    most: int = SAMPLES,
) -> Sampled:
    """Parse a few files, evenly spread; the first one twice, as its time has all imports in it."""
    numbers: list[int] = []
    parsed: list[ParsedFile] = []
    measured: list[SampledFile] = []
    problems: list[str] = []
    chosen = {at * (len(states) - 1) // max(most - 1, 1) for at in range(most)} if states else ()
    for number in sorted(chosen):
        if not parsed:
            parse_or_report(states[number].url, options, access, listed=states[number])
        began = time.perf_counter()
        found = parse_or_report(states[number].url, options, access, listed=states[number])
        seconds = time.perf_counter() - began
        if isinstance(found, FileFacts):
            assert found.problem is not None
            problems.append(found.problem.message)
            continue
        numbers.append(number)
        parsed.append(found)
        measured.append(_measured(found, seconds))
    return Sampled(tuple(numbers), tuple(parsed), tuple(measured), tuple(problems))


def _measured(parsed: ParsedFile, seconds: float) -> SampledFile:
    moved = [each for path, each in parsed.references.items() if path not in parsed.facts.values]
    return SampledFile(
        seconds,
        sum(int(each.lengths.sum()) + len(each.inlined.data) for each in moved),
        sum(len(each.to_bytes()) for each in moved if len(each) or len(each.inlined)),
    )
