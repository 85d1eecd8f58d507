"""The stages that copy: regions to objects, and references to these to manifests, on executors.

Values never leave the task that read them. What is shuffled is references, packed as columns; what
the driver gathers is summaries of manifests, and which attempts they refer to.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from icefloe.effects import run_blocking
from icefloe.format.arrow import pa
from icefloe.manifests.external import LinkedRegion
from icefloe.pipeline.copying.copies import build_native
from icefloe.pipeline.copying.origins import CopySource
from icefloe.pipeline.copying.transfer import Copied, CopyPlan, copy_regions
from icefloe.pipeline.files.facts import binary_column, int_column, text_column
from icefloe.pipeline.files.references import References
from icefloe.pipeline.planning import copy_tasks, write_tasks
from icefloe.pipeline.writing.building import Notes
from icefloe.pipeline.writing.plans import ArrayPlan, cut_by_region
from icefloe.records import MutableRecord, Record
from icefloe.spark.attempts import note_key
from icefloe.spark.workers import Shipped
from icefloe.spark.write import BUILT, WritePlan, Written, pack_coordinates

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COPIED: Final = "array long, region long, notes string, payload binary"
BUILT_OF_COPIES: Final = f"{BUILT}, notes string"

_COPIES: Final = -1
"""Stands in notes for the region of a manifest."""

_ROLLS_BACK: Final = "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch"
"""Whether Spark takes back all that followed from a task which, run again, gives something else."""

type SentSource = Callable[[], CopySource]


class Stages(Record):
    """All that tasks must know; secrets are behind `reach` and `source`."""

    copy: CopyPlan
    write: WritePlan
    """Of its arrays, those that get objects, by number."""
    reach: Shipped
    source: SentSource

    def array(self, number: int) -> ArrayPlan:
        """Return the plan of an array's manifests."""
        return self.write.arrays[number]


def copy(spark: "SparkSession", stages: Stages, *, cores: int) -> "DataFrame":
    """Plan the copying of all regions; nothing is done before somebody asks for rows."""
    regions = stages.copy.regions
    tasks = copy_tasks(len(regions), cores)
    references = write_tasks(regions.objects, cores)
    return (
        spark.range(0, len(regions), 1, tasks)
        .mapInArrow(_copier(stages), COPIED)
        .repartition(references, "array", "region")
        .groupBy("array", "region")
        .applyInArrow(_builder(stages), BUILT_OF_COPIES)
    )


class _Changed(MutableRecord):
    """What a setting was before, and how many copies need it to be otherwise."""

    before: str | None
    users: int = 0


_changed: Final[dict[int, _Changed]] = {}
"""By session; copies may run beside each other in one."""
_changing: Final = Lock()


@contextmanager
def attempts_may_differ(spark: "SparkSession") -> Iterator[None]:
    """Have Spark go on when a task that is run again, as an executor was lost, names new objects.

    Since 4.2 it would fail the job if some manifests are written already. But these are as good as
    the others: what an attempt wrote stays for as long as any manifest refers to it.
    """
    with _changing:
        if id(spark) not in _changed:
            before = spark.conf.get(_ROLLS_BACK, None)
            spark.conf.set(_ROLLS_BACK, "false")
            _changed[id(spark)] = _Changed(before)
        _changed[id(spark)].users += 1
    try:
        yield
    finally:
        with _changing:
            _changed[id(spark)].users -= 1
            if _changed[id(spark)].users == 0:
                _restore(spark, _changed.pop(id(spark)).before)


def _restore(spark: "SparkSession", before: str | None) -> None:
    if before is None:
        spark.conf.unset(_ROLLS_BACK)
    else:
        spark.conf.set(_ROLLS_BACK, before)


class WrittenCopies(Record):
    """What the stages did."""

    written: Written
    notes: frozenset[str]
    """The attempts at copies that the manifests refer to."""


def gather_copies(built: "DataFrame", *, with_changes: bool) -> WrittenCopies:
    """Fetch what the driver has to know; with the coordinates of new chunks only if asked."""
    names = ["array", "linked", "references", "bytes", "notes"]
    rows = built.select(*names, *(["changed"] if with_changes else [])).toArrow().to_pylist()
    regions: dict[int, list[LinkedRegion]] = {}
    for row in rows:
        regions.setdefault(row["array"], []).append(LinkedRegion.from_bytes(row["linked"]))
    written = Written(
        regions,
        sum(row["references"] for row in rows),
        sum(row["bytes"] for row in rows),
        [(row["array"], row["changed"]) for row in rows] if with_changes else None,
    )
    return WrittenCopies(written, frozenset(key for row in rows for key in row["notes"].split()))


def _copier(stages: Stages) -> Any:
    def copy_some(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        return _copy_some(batches, stages)

    return copy_some


def _copy_some(batches: "Iterator[pa.RecordBatch]", stages: Stages) -> "Iterator[pa.RecordBatch]":
    context, _ = stages.reach()
    numbers = (number for batch in batches for number in batch.column("id").to_pylist())
    source = stages.source()
    new_note = partial(note_key, stages.write.job, _COPIES, _COPIES)
    for copied in copy_regions(stages.copy, numbers, source.array, context, new_note):
        yield _copied_batch(stages.array(copied.array), copied)


def _copied_batch(array: ArrayPlan, copied: Copied) -> "pa.RecordBatch":
    references = copied.references
    is_empty = not len(references) and not len(references.inlined)
    rows = [] if is_empty else list(cut_by_region(array, references))
    return pa.RecordBatch.from_arrays(
        [
            int_column([array.number] * len(rows)),
            int_column([region for region, _ in rows]),
            text_column([" ".join(copied.notes)] * len(rows)),
            binary_column([part.to_bytes() for _, part in rows]),
        ],
        names=["array", "region", "notes", "payload"],
    )


def _builder(stages: Stages) -> Any:
    def build_one(table: "pa.Table") -> "pa.Table":
        return _build_one(table.to_pylist(), stages)

    return build_one


def _build_one(rows: Sequence[dict[str, Any]], stages: Stages) -> "pa.Table":
    context, _ = stages.reach()
    array, region = stages.array(rows[0]["array"]), rows[0]["region"]
    notes = Notes(context.backend, note_key(stages.write.job, array.number, region))
    parts = [References.from_bytes(row["payload"]) for row in rows]
    built = run_blocking(build_native(context, array, region, parts, notes))
    copied = sorted({key for row in rows for key in row["notes"].split()})
    return pa.table(
        {
            "array": int_column([array.number]),
            "linked": binary_column([built.region.to_bytes()]),
            "references": int_column([built.references]),
            "bytes": int_column([built.data_bytes]),
            "changed": binary_column([pack_coordinates(built.changed)]),
            "notes": text_column([" ".join(copied)]),
        }
    )
