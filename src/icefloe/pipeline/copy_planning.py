"""What a copy will take, before anything runs."""

from math import prod
from typing import Any, Final

from icefloe.api.tables import shown_bytes
from icefloe.pipeline.copying.copies import FoundGroup
from icefloe.pipeline.copying.layouts import Limits, cut_into_slabs, plan_slabs, values_bytes
from icefloe.pipeline.planning import JobPlan, Range, copy_tasks, show_time, write_tasks
from icefloe.records import Record, asdict

_VALUES_PER_SECOND: Final = Range(20e6, 200e6)
"""Bytes of values that one core copies: decompressing and compressing take most of the time."""


class CopyEstimate(Record):
    """What copying arrays will do and take."""

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
            ("values", f"{shown_bytes(self.values_bytes)} in {self.arrays} arrays"),
            ("reads", f"{self.source_reads} chunks, each {again:.1f} times"),
            ("writes", f"at most {self.objects} objects"),
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
    group: FoundGroup, limits: Limits, *, most: int, scan: JobPlan | None = None
) -> CopyEstimate:
    """Plan a copy as the job will, with at most this many objects in a commit."""
    shapes = [array.shape for array in group.arrays]
    paths = [array.about.path for array in group.arrays]
    cores = limits.cores
    waves = [
        plan_slabs(shapes, paths, slabs, limits)
        for slabs in cut_into_slabs([shape.grid for shape in shapes], most)
    ]
    total = sum(values_bytes(array.about) for array in group.arrays)
    rate = _VALUES_PER_SECOND
    return CopyEstimate(
        len(shapes),
        total,
        sum(wave.objects for wave in waves),
        sum(
            prod(-(-length // chunk) for length, chunk in zip(each.shape, each.read, strict=True))
            for each in shapes
        ),
        sum(plan.reads for wave in waves for plan in wave.plans),
        sum(len(wave) for wave in waves),
        sum(copy_tasks(len(wave), cores) for wave in waves),
        sum(write_tasks(wave.objects, cores) for wave in waves),
        max((wave.memory_bytes for wave in waves), default=0),
        max(len(waves), 1),
        cores,
        Range(total / (cores * rate.high), total / (cores * rate.low)),
        scan,
    )
