"""Estimate a job before it runs: tasks, shuffle, memory, commits and time.

Pure. The numbers of tasks, references and manifests follow from the same rules as those of the job
itself; time and memory follow from the rates stated here. A few sampled files stand for all files
of the archive.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any, Final

from icefloe.errors import ErrorKind, SourceError
from icefloe.pipeline.combining.dimensions import Dimension, find_dimensions
from icefloe.pipeline.copying.copies import GroupToCopy
from icefloe.pipeline.copying.layouts import Limits, cut_into_slabs, plan_slabs, values_bytes
from icefloe.pipeline.files.describing import ParsedFile
from icefloe.pipeline.files.facts import FileFacts, SourceState
from icefloe.pipeline.files.options import ParseOptions
from icefloe.pipeline.files.parsing import parse_or_report
from icefloe.pipeline.files.references import References
from icefloe.pipeline.files.sources import SourceAccess
from icefloe.records import Record, asdict, replace
from icefloe.reports import counted, shown_bytes

TASKS_PER_CORE: Final = 4
"""Work is divided over this many tasks for each core, as some take longer than others."""
REFERENCES_PER_TASK: Final = 100_000
"""So many references at most are built into manifests by one task, on average."""
_BYTES_PER_COPY: Final = 32 << 20
"""Smaller regions share a task of about this size."""
FEW_REFERENCES: Final = 1_000_000
"""The driver writes the log of this many itself: compressed, they take a few megabytes."""

_MEBIBYTE: Final = 1 << 20


def scan_tasks(files: int, cores: int) -> int:
    """Return the number of tasks that parse files.

    >>> scan_tasks(3000, 2), scan_tasks(5, 2)
    (8, 5)
    """
    return max(1, min(files, TASKS_PER_CORE * cores))


def write_tasks(references: int, cores: int) -> int:
    """Return the number of tasks that build manifests.

    >>> write_tasks(10_000_000, 2)
    100
    """
    return max(2 * cores, -(-references // REFERENCES_PER_TASK))


def copy_tasks(regions: int, cores: int, size_bytes: int) -> int:
    """Return the number of tasks that copy regions of this size.

    A task copies small regions together, so they share one.

    >>> copy_tasks(1000, 2, 2**40), copy_tasks(3, 2, 2**30), copy_tasks(1000, 2, 2**20)
    (125, 3, 2)
    """
    few = TASKS_PER_CORE * cores
    most = max(cores, -(-size_bytes // _BYTES_PER_COPY))
    return max(1, min(regions, max(few, regions // few), most))


class Range(Record):
    """Something that is known roughly."""

    low: float
    high: float


class Rates(Record):
    """The speed of a core and the memory of processes, as measured on present machines."""

    parsing: Range = Range(1.0, 2.5)
    """Seconds for a file, as multiples of what the sample took on this machine."""
    references: Range = Range(100_000, 600_000)
    """References a second, through shuffle and manifests."""
    starting: Range = Range(1, 8)
    """Seconds until workers have loaded everything, and for the stages themselves."""
    driver_bytes: int = 320 * _MEBIBYTE
    driver_bytes_per_file: int = 12 * 1024
    worker_bytes: int = 280 * _MEBIBYTE
    bytes_per_reference: int = 700
    """In a task that builds a manifest."""
    bytes_per_logged_chunk: int = 6
    """In the task that writes the log."""


class WavePlan(Record, kw_only=True):
    """One commit."""

    files: int
    parsed: int
    """References that the files have, with those of arrays that all of them repeat."""
    references: int
    """That are written."""
    tasks: int
    """In which manifests are built."""
    manifests: Range
    largest_manifest: int
    """References in it."""
    log_bytes: int
    """Of the transaction log, before compression; at most 2 GiB."""

    @property
    def is_logged_by_task(self) -> bool:
        """Return whether a task writes the log, instead of the driver."""
        return self.parsed > FEW_REFERENCES


class JobPlan(Record, kw_only=True):
    """The work and the needs of a job; see `icefloe.pipeline.plan`.

    >>> plan = make_plan(Sampled(), (), files=0, known=7, changed=0, cores=2)
    >>> plan.known, plan.tasks
    (7, 0)
    """

    files: int
    """To be parsed."""
    known: int
    """Files that are there already, and are skipped."""
    changed: int
    """Files that are there in another state."""
    cores: int
    references: int
    data_bytes: int
    """What the chunks take where they are."""
    scan_tasks: int
    waves: tuple[WavePlan, ...]
    shuffle_bytes: int
    """At most; they are compressed."""
    driver_bytes: int
    task_bytes: int
    """Of the largest task."""
    seconds: Range
    sampled: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    """What is wrong with files of the sample."""
    checked: int = 0
    """Files whose values are compared with an independent reader."""

    @property
    def tasks(self) -> int:
        """Count the tasks of all stages, but for those that only hand on a few rows."""
        logs = sum(wave.is_logged_by_task for wave in self.waves)
        writing = sum(wave.tasks for wave in self.waves)
        return self.scan_tasks + self.check_tasks + self.placing_tasks + writing + logs

    @property
    def check_tasks(self) -> int:
        """Count the tasks that pick the references of some files, and compare their values."""
        return self.scan_tasks + scan_tasks(self.checked, self.cores) if self.checked else 0

    @property
    def placing_tasks(self) -> int:
        """Count the tasks that send references to where their manifests are built."""
        return self.scan_tasks * len(self.waves)

    @property
    def manifests(self) -> Range:
        """Count the manifests of all commits."""
        return Range(
            sum(wave.manifests.low for wave in self.waves),
            sum(wave.manifests.high for wave in self.waves),
        )

    def rows(self) -> list[tuple[str, str]]:
        """Return the rows of a table to show."""
        writing = sum(wave.tasks for wave in self.waves)
        task, low, high = shown_bytes(self.task_bytes), self.manifests.low, self.manifests.high
        return [
            ("files", f"{self.files} to parse, {self.known} known, {self.changed} changed"),
            ("references", f"{self.references} to {shown_bytes(self.data_bytes)}"),
            (
                "tasks",
                f"{self.tasks}: {self.scan_tasks} parse, {self.check_tasks} compare values,"
                f" {self.placing_tasks} sort references, {writing} write manifests",
            ),
            ("shuffle", f"at most {shown_bytes(self.shuffle_bytes)}, on the executors' disks"),
            ("memory", f"driver {shown_bytes(self.driver_bytes)}, task up to {task}"),
            ("commits", str(len(self.waves))),
            ("manifests", f"{low:.0f}" if low == high else f"{low:.0f} to {high:.0f}"),
            ("time", f"{show_time(self.seconds)} on {self.cores} cores"),
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {**asdict(self), "tasks": self.tasks, "manifests": asdict(self.manifests)}


def make_plan(
    sample: "Sampled",
    waves: Sequence[WavePlan],
    *,
    files: int,
    known: int,
    changed: int,
    cores: int,
    problems: tuple[str, ...] = (),
    checked: int = 0,
) -> JobPlan:
    """Work out what a job takes, from a sample of its files and the commits it will make."""
    rates = Rates()
    references = sum(wave.references for wave in waves)
    logged = max((wave.references for wave in waves if wave.is_logged_by_task), default=0)
    largest = max((wave.largest_manifest for wave in waves), default=0)
    task_bytes = [
        rates.bytes_per_reference * largest,
        rates.bytes_per_logged_chunk * logged,
        64 * sample.payload_bytes,
    ]
    parsing = files * sample.seconds / min(cores, scan_tasks(files, cores))
    return JobPlan(
        files=files,
        known=known,
        changed=changed,
        cores=cores,
        references=references,
        data_bytes=round(files * sample.data_bytes),
        scan_tasks=scan_tasks(files, cores) if files else 0,
        waves=tuple(waves),
        shuffle_bytes=round(files * sample.payload_bytes) + _ROW_BYTES * files,
        driver_bytes=rates.driver_bytes + rates.driver_bytes_per_file * (files + known),
        task_bytes=rates.worker_bytes + round(max(task_bytes)),
        seconds=Range(
            rates.starting.low
            + parsing * rates.parsing.low
            + references / (cores * rates.references.high),
            rates.starting.high * (1 + len(waves)) / 2
            + parsing * rates.parsing.high
            + references / (cores * rates.references.low),
        ),
        sampled=tuple(file.facts.url for file in sample.parsed),
        problems=(*sample.problems, *problems),
        checked=checked,
    )


_ROW_BYTES: Final = 256
"""Of a row that is shuffled, besides its references."""


def show_time(range_: Range) -> str:
    """Write a time that is known roughly.

    >>> show_time(Range(30, 600))
    '30 s to 10 min'
    """
    return f"{_show_seconds(range_.low)} to {_show_seconds(range_.high)}"


def _show_seconds(seconds: float) -> str:
    """Write a time with a unit.

    >>> _show_seconds(90), _show_seconds(7300)
    ('90 s', '2.0 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


SAMPLES: Final = 3
"""The first, the last, and some between."""


class Sampled(Record):
    """The properties of a few sample files of an archive."""

    numbers: tuple[int, ...] = ()
    """Of the files that were parsed and can be used, ascending."""
    parsed: tuple[ParsedFile, ...] = ()
    seconds: float = 0.0
    """That parsing one of them took on average."""
    problems: tuple[str, ...] = ()
    """Of files that cannot be used."""

    @property
    def data_bytes(self) -> float:
        """Return how many bytes the references of a file lead to, on average."""
        return self._mean(lambda part: int(part.lengths.sum()) + len(part.inlined.data))

    @property
    def payload_bytes(self) -> float:
        """Return how many bytes the references of a file take on their way, on average."""
        return self._mean(
            lambda part: len(part.to_bytes()) if len(part) or len(part.inlined) else 0
        )

    def _mean(self, measure: Callable[[References], int]) -> float:
        sizes = (
            measure(references)
            for file in self.parsed
            for path, references in file.references.items()
            if path not in file.facts.values  # those values are written as they are
        )
        return sum(sizes) / max(len(self.parsed), 1)

    def assumed(self, states: Sequence[SourceState]) -> list[FileFacts]:
        """Describe all files, each as the one of the sample that is nearest."""
        return [
            replace(self.parsed[self.nearest(number)].facts, state=state)
            for number, state in enumerate(states)
        ]

    def nearest(self, number: int) -> int:
        """Return the sampled file that is nearest to a file."""
        rows = range(len(self.numbers))
        return min(rows, key=lambda row: abs(self.numbers[row] - number))


def sample_files(
    states: Sequence[SourceState], options: ParseOptions, access: SourceAccess
) -> Sampled:
    """Parse a few files, evenly spread; the first one twice, as its time has all imports in it."""
    parsed: dict[int, ParsedFile] = {}
    problems: list[str] = []
    seconds = 0.0
    chosen = {row * (len(states) - 1) // (SAMPLES - 1) for row in range(SAMPLES)} if states else ()
    for number in sorted(chosen):
        parse = partial(parse_or_report, states[number].url, options, access, listed=states[number])
        if not parsed:
            parse()
        began = time.perf_counter()
        outcome = parse()
        if isinstance(outcome, ParsedFile):
            seconds += time.perf_counter() - began
            parsed[number] = outcome
        else:
            assert outcome.problem is not None
            problems.append(outcome.problem.message)
    mean = seconds / max(len(parsed), 1)
    return Sampled(tuple(parsed), tuple(parsed.values()), mean, tuple(problems))


def sample_dimensions(
    states: Sequence[SourceState], options: ParseOptions, access: SourceAccess
) -> list[Dimension]:
    """Find the dimensions of a few files, for which nobody knows how they are joined.

    Raise the problem of the files if none can be parsed.
    """
    sampled = sample_files(states, replace(options, concat=()), access)
    if sampled.problems and not sampled.parsed:
        raise SourceError(sampled.problems[0], ErrorKind.SOURCE_DAMAGED, url=states[0].url)
    return find_dimensions([file.facts for file in sampled.parsed])


_VALUES_PER_SECOND: Final = Range(20e6, 200e6)
"""Bytes of values that one core copies: decompressing and compressing take most of the time."""


class CopyEstimate(Record, kw_only=True):
    """The work and the needs of copying arrays; see `icefloe.pipeline.plan_copy`.

    >>> from icefloe.pipeline.copying.copies import GroupToCopy
    >>> estimate = estimate_copy(GroupToCopy({}, ()), Limits(2**20, cores=2), most=100)
    >>> estimate.objects, estimate.commits
    (0, 1)
    """

    arrays: int
    values_bytes: int
    objects: int
    """To be written at most: those that hold nothing but the fill value are left out."""
    source_chunks: int
    source_reads: int
    """How many chunks are read, each as often as it is."""
    regions: int
    """Each is copied as a whole, by one task."""
    copy_tasks: int
    write_tasks: int
    """In which manifests are built."""
    memory_bytes: int
    """What a task takes at most, besides Python itself and what it has loaded."""
    commits: int
    cores: int
    seconds: Range
    scan: JobPlan | None = None
    """What comes before it, if files are copied: they are scanned and put together."""

    @property
    def tasks(self) -> int:
        """Count the tasks of all stages, but for those that only hand on a few rows."""
        return self.copy_tasks + self.write_tasks + (self.scan.tasks if self.scan else 0)

    def rows(self) -> list[tuple[str, str]]:
        """Return the rows of a table to show."""
        again = self.source_reads / max(self.source_chunks, 1)
        scan = [] if self.scan is None else [(f"scan: {a}", b) for a, b in self.scan.rows()]
        return [
            *scan,
            ("values", f"{shown_bytes(self.values_bytes)} in {counted(self.arrays, 'array')}"),
            ("reads", f"{counted(self.source_reads, 'chunk')}, each {again:.1f} times"),
            ("writes", f"at most {counted(self.objects, 'object')}"),
            (
                "tasks",
                f"{self.copy_tasks + self.write_tasks}: {self.copy_tasks} copy {self.regions}"
                f" regions, {self.write_tasks} write manifests",
            ),
            ("memory", f"task up to {shown_bytes(self.memory_bytes)}, besides Python itself"),
            ("commits", str(self.commits)),
            ("time", f"{show_time(self.seconds)} on {self.cores} cores"),
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        scan = None if self.scan is None else self.scan.to_dict()
        return {**asdict(self), "tasks": self.tasks, "scan": scan}


def estimate_copy(
    group: GroupToCopy, limits: Limits, *, most: int, scan: JobPlan | None = None
) -> CopyEstimate:
    """Plan a copy as the job will, with at most this many objects in a commit."""
    shapes, cores = group.shapes, limits.cores
    waves = [
        plan_slabs(shapes, group.paths, slabs, limits)
        for slabs in cut_into_slabs([shape.grid for shape in shapes], most)
    ]
    total = sum(values_bytes(array.about) for array in group.arrays)
    rate = _VALUES_PER_SECOND
    return CopyEstimate(
        arrays=len(shapes),
        values_bytes=total,
        objects=sum(wave.objects for wave in waves),
        source_chunks=sum(
            prod(-(-length // chunk) for length, chunk in zip(shape.shape, shape.read, strict=True))
            for shape in shapes
        ),
        source_reads=sum(plan.reads for wave in waves for plan in wave.plans),
        regions=sum(len(wave) for wave in waves),
        copy_tasks=sum(copy_tasks(len(wave), cores, wave.size_bytes) for wave in waves),
        write_tasks=sum(write_tasks(wave.objects, cores) for wave in waves),
        memory_bytes=max((wave.memory_bytes for wave in waves), default=0),
        commits=max(len(waves), 1),
        cores=cores,
        seconds=Range(total / (cores * rate.high), total / (cores * rate.low)),
        scan=scan,
    )
