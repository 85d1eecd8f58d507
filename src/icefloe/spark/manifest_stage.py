"""The stage that builds manifests on executors: references shuffled by array and region.

Producers place references, and assemble those of one region; everything else is alike for all
jobs. The driver gathers a small summary of each region. The coordinates of changed chunks stay on
the executors if there are many, until a task writes the transaction log with them.
"""

from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import zstandard

from icefloe.effects import run_blocking
from icefloe.format.arrow import pa
from icefloe.format.chunk_table import Coordinates
from icefloe.format.ids import NodeId
from icefloe.format.transaction_log import TransactionLog
from icefloe.manifests.external import LinkedRegion
from icefloe.pipeline.files.facts import binary_column, int_column, text_column
from icefloe.pipeline.writing.building import ArrayPlan, Notes, RegionContent, build
from icefloe.records import Record
from icefloe.repo.context import RepoContext
from icefloe.spark.broadcast import WorkerContext, on_workers
from icefloe.spark.orphans import note_key
from icefloe.transactions.external_manifests import write_log

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


PLACED: Final = "array long, region long, number long, payload binary, about string"
"""The rows that producers place: references of an array in a region, and what else is known.

Rows of a region are sorted by `number` before they are assembled.
"""
BUILT: Final = (
    "array long, linked binary, references long, bytes long, copies string, changed binary"
)
_QUICK_LEVEL: Final = 1

type PlacedRow = tuple[int, int, int, bytes, str | None]
"""The columns of `PLACED`."""
type Assemble = Callable[
    [RepoContext, ArrayPlan, Sequence[Mapping[str, Any]], Notes], Coroutine[Any, Any, RegionContent]
]
"""Makes one table of all rows of a region."""


class WritePlan(Record):
    """What all tasks of the stage must know. Nothing in it is secret."""

    job: str
    arrays: tuple[ArrayPlan, ...]


class Written(Record, kw_only=True):
    """What the stage did."""

    regions: dict[int, list[LinkedRegion]]
    """By number of array."""
    references: int
    data_bytes: int
    copies: frozenset[str]
    """Keys of the notes of all copied objects that the manifests refer to."""
    changes: list[tuple[int, bytes]] | None = None
    """Number of array and packed coordinates of new chunks, if they are few."""


def placed_batch(rows: Sequence[PlacedRow]) -> "pa.RecordBatch":
    """Return placed references as columns."""
    arrays, regions, numbers, payloads, abouts = zip(*rows, strict=True) if rows else [()] * 5
    return pa.RecordBatch.from_arrays(
        [
            int_column(arrays),
            int_column(regions),
            int_column(numbers),
            binary_column(payloads),
            text_column(abouts),
        ],
        names=["array", "region", "number", "payload", "about"],
    )


def build_manifests(
    placed: "DataFrame",
    plan: WritePlan,
    assemble: Assemble,
    worker_context: WorkerContext[Any],
    *,
    tasks: int,
) -> "DataFrame":
    """Plan the building of all manifests; nothing is done before somebody asks for rows."""
    return (
        placed.repartition(tasks, "array", "region")
        .groupBy("array", "region")
        .applyInArrow(on_workers(_build_region, plan, assemble, worker_context), BUILT)
    )


def _build_region(
    table: "pa.Table", plan: WritePlan, assemble: Assemble, worker_context: WorkerContext[Any]
) -> "pa.Table":
    context, _ = worker_context()
    rows = sorted(table.to_pylist(), key=itemgetter("number"))
    array, region = plan.arrays[rows[0]["array"]], rows[0]["region"]
    notes = Notes(context.backend, note_key(plan.job, array.number, region))
    content = run_blocking(assemble(context, array, rows, notes))
    built = run_blocking(build(context, array, region, content, notes))
    return pa.table(
        {
            "array": int_column([array.number]),
            "linked": binary_column([built.region.to_bytes()]),
            "references": int_column([built.references]),
            "bytes": int_column([built.data_bytes]),
            "copies": text_column([" ".join(sorted(content.copies))]),
            "changed": binary_column([pack_coordinates(built.changed)]),
        }
    )


def gather_regions(built: "DataFrame", *, with_changes: bool) -> Written:
    """Fetch what the driver has to know; with the coordinates of new chunks only if asked."""
    names = ["array", "linked", "references", "bytes", "copies"]
    rows = built.select(*names, *(["changed"] if with_changes else [])).toArrow().to_pylist()
    regions: dict[int, list[LinkedRegion]] = {}
    for row in rows:
        regions.setdefault(row["array"], []).append(LinkedRegion.from_bytes(row["linked"]))
    return Written(
        regions=regions,
        references=sum(row["references"] for row in rows),
        data_bytes=sum(row["bytes"] for row in rows),
        copies=frozenset(key for row in rows for key in row["copies"].split()),
        changes=[(row["array"], row["changed"]) for row in rows] if with_changes else None,
    )


# -- the log ---------------------------------------------------------------------------------


def write_log_in_task(
    built: "DataFrame", plan: WritePlan, own: TransactionLog, worker_context: WorkerContext[Any]
) -> None:
    """Have one task write the transaction log, with all coordinates that executors keep."""
    single_partition = built.select("array", "changed").coalesce(1)
    write_all = on_workers(_write_all, plan, own, worker_context)
    single_partition.mapInArrow(write_all, "done long").toArrow()


def _write_all(
    batches: "Iterator[pa.RecordBatch]",
    plan: WritePlan,
    own: TransactionLog,
    worker_context: WorkerContext[Any],
) -> "Iterator[pa.RecordBatch]":
    context, _ = worker_context()
    pieces = ((row["array"], row["changed"]) for batch in batches for row in batch.to_pylist())
    run_blocking(write_log(context.assets, own, changed_chunks(plan, pieces)))
    yield pa.RecordBatch.from_arrays([int_column([1])], names=["done"])


def changed_chunks(
    plan: WritePlan, pieces: Iterable[tuple[int, bytes]]
) -> Iterator[tuple[NodeId, Coordinates]]:
    """Yield the chunks that were set, by array, a piece at a time."""
    for number, packed in pieces:
        array = plan.arrays[number]
        yield array.node, unpack_coordinates(packed, len(array.grid))


def pack_coordinates(coordinates: Coordinates) -> bytes:
    """Compress coordinates column by column; those of a full box take hardly any room."""
    columns = np.ascontiguousarray(coordinates.T).astype("<u4")
    head = len(coordinates).to_bytes(8, "little")
    return head + zstandard.ZstdCompressor(level=_QUICK_LEVEL).compress(columns.tobytes())


def unpack_coordinates(packed: bytes, dimensions: int) -> Coordinates:
    """Return the coordinates that `pack_coordinates` packed."""
    rows = int.from_bytes(packed[:8], "little")
    flat = np.frombuffer(zstandard.ZstdDecompressor().decompress(packed[8:]), "<u4")
    return np.ascontiguousarray(flat.reshape(dimensions, rows).T).astype(np.uint32)
