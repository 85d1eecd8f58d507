"""The stage that builds manifests: references shuffled by array and region, on executors.

What comes back for each region is small, but for the coordinates of chunks that changed: the
driver leaves these where they are, until a task writes the transaction log with them.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
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
from icefloe.pipeline.files.references import References
from icefloe.pipeline.planning import write_tasks
from icefloe.pipeline.writing.building import BuiltRegion, Notes, build
from icefloe.pipeline.writing.metadata import Check, check_of
from icefloe.pipeline.writing.plans import (
    ArrayPlan,
    FilePlace,
    box_to_clear,
    cut_by_region,
    put_in_place,
)
from icefloe.records import Record
from icefloe.spark.attempts import note_key
from icefloe.spark.workers import Shipped
from icefloe.transactions.external_manifests import write_log

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PLACED: Final = (
    "array long, region long, number long, etag string, seconds long, payload binary, box string"
)
BUILT: Final = "array long, linked binary, references long, bytes long, changed binary"
_QUICK_LEVEL: Final = 1


class WritePlan(Record):
    """What all tasks of the stage must know."""

    job: str
    moment: int
    """Seconds since 1970: when the job began."""
    arrays: tuple[ArrayPlan, ...]


class Written(Record):
    """What the stage did."""

    regions: dict[int, list[LinkedRegion]]
    """By number of array."""
    references: int
    data_bytes: int
    changes: list[tuple[int, bytes]] | None = None
    """Number of array and packed coordinates of new chunks, if they are few."""


def write(
    spark: "SparkSession",
    scanned: "DataFrame",
    places: "pa.Table",
    plan: WritePlan,
    reach: Shipped,
    *,
    cores: int,
    references: int,
) -> "DataFrame":
    """Plan the building of all manifests; nothing is done before somebody asks for rows."""
    from pyspark.sql.functions import broadcast

    where = spark.createDataFrame(places)
    placed = scanned.join(broadcast(where), "number").mapInArrow(_placer(plan), PLACED)
    return (
        placed.repartition(write_tasks(references, cores), "array", "region")
        .groupBy("array", "region")
        .applyInArrow(_builder(plan, reach), BUILT)
    )


def gather_regions(built: "DataFrame", *, with_changes: bool) -> Written:
    """Fetch what the driver has to know; with the coordinates of new chunks only if asked."""
    names = ["array", "linked", "references", "bytes", *(["changed"] if with_changes else [])]
    rows = built.select(*names).toArrow().to_pylist()
    regions: dict[int, list[LinkedRegion]] = {}
    for row in rows:
        region = LinkedRegion.from_bytes(row["linked"])
        regions.setdefault(row["array"], []).append(region)
    return Written(
        regions,
        sum(row["references"] for row in rows),
        sum(row["bytes"] for row in rows),
        [(row["array"], row["changed"]) for row in rows] if with_changes else None,
    )


def _placer(plan: WritePlan) -> Any:
    def put(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        return _put(batches, plan)

    return put


def _put(batches: "Iterator[pa.RecordBatch]", plan: WritePlan) -> "Iterator[pa.RecordBatch]":
    arrays = {array.target.path: array for array in plan.arrays}
    for batch in batches:
        rows = [row for row in batch.to_pylist() if row["path"] in arrays]
        yield _placed_batch(
            [one for row in rows for one in _placed(row, arrays[row["path"]], plan.moment)]
        )


type _Row = tuple[int, int, int, str | None, int, bytes, str | None]


def _placed(row: dict[str, Any], array: ArrayPlan, moment: int) -> Iterator[_Row]:
    file_place, number = FilePlace.from_json(row["place"]), row["number"]
    pieces = put_in_place(
        array, number, file_place, References.from_bytes(row["payload"]), row["stamp"]
    )
    if pieces is None:
        return
    check = check_of(file_place.facts.state, pieces, moment)
    box = box_to_clear(array, file_place)
    text = None if box is None else json.dumps(box)
    for region, part in cut_by_region(array, pieces, box):
        yield array.number, region, number, check.etag, check.seconds, part.to_bytes(), text


def _placed_batch(rows: Sequence[_Row]) -> "pa.RecordBatch":
    arrays, regions, numbers, etags, seconds, payloads, boxes = (
        zip(*rows, strict=True) if rows else [()] * 7
    )
    return pa.RecordBatch.from_arrays(
        [
            int_column(arrays),
            int_column(regions),
            int_column(numbers),
            text_column(etags),
            int_column(seconds),
            binary_column(payloads),
            text_column(boxes),
        ],
        names=["array", "region", "number", "etag", "seconds", "payload", "box"],
    )


def _builder(plan: WritePlan, reach: Shipped) -> Any:
    def build_one(table: "pa.Table") -> "pa.Table":
        return _build_one(table, plan, reach)

    return build_one


def _build_one(table: "pa.Table", plan: WritePlan, reach: Shipped) -> "pa.Table":
    context, _ = reach()
    rows = sorted(table.to_pylist(), key=itemgetter("number"))
    array, region = plan.arrays[rows[0]["array"]], rows[0]["region"]
    notes = Notes(context.backend, note_key(plan.job, array.number, region))
    parts = [
        (Check(row["etag"], row["seconds"]), References.from_bytes(row["payload"])) for row in rows
    ]
    cleared = [json.loads(row["box"]) for row in rows if row["box"] is not None]
    built = run_blocking(build(context, array, region, parts, notes, cleared))
    return pa.Table.from_batches([_built_batch(array.number, built)])


def _built_batch(array: int, built: BuiltRegion) -> "pa.RecordBatch":
    return pa.RecordBatch.from_arrays(
        [
            int_column([array]),
            binary_column([built.region.to_bytes()]),
            int_column([built.references]),
            int_column([built.data_bytes]),
            binary_column([pack_coordinates(built.changed)]),
        ],
        names=["array", "linked", "references", "bytes", "changed"],
    )


# -- the log ---------------------------------------------------------------------------------


def write_log_elsewhere(
    built: "DataFrame", plan: WritePlan, own: TransactionLog, reach: Shipped
) -> None:
    """Have one task write the transaction log, with all coordinates that executors keep."""

    def write_all(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        return _write_all(batches, plan, own, reach)

    single_partition = built.select("array", "changed").coalesce(1)
    single_partition.mapInArrow(write_all, "done long").toArrow()


def _write_all(
    batches: "Iterator[pa.RecordBatch]", plan: WritePlan, own: TransactionLog, reach: Shipped
) -> "Iterator[pa.RecordBatch]":
    context, _ = reach()
    pieces = ((row["array"], row["changed"]) for batch in batches for row in batch.to_pylist())
    run_blocking(write_log(context.assets, own, touched(plan, pieces)))
    yield pa.RecordBatch.from_arrays([int_column([1])], names=["done"])


def touched(
    plan: WritePlan, pieces: Iterable[tuple[int, bytes]] | None
) -> Iterator[tuple[NodeId, Coordinates]]:
    """Yield the chunks that were set, by array, a piece at a time."""
    for number, packed in pieces or ():
        array = plan.arrays[number]
        yield array.node, unpack_coordinates(packed, len(array.grid))


def pack_coordinates(coordinates: Coordinates) -> bytes:
    """Compress coordinates column by column; those of a full box take hardly any room."""
    columns = np.ascontiguousarray(coordinates.T).astype("<u4")
    head = len(coordinates).to_bytes(8, "little")
    return head + zstandard.ZstdCompressor(level=_QUICK_LEVEL).compress(columns.tobytes())


def unpack_coordinates(packed: bytes, dimensions: int) -> Coordinates:
    """Expand what `pack_coordinates` gave."""
    rows = int.from_bytes(packed[:8], "little")
    flat = np.frombuffer(zstandard.ZstdDecompressor().decompress(packed[8:]), "<u4")
    return np.ascontiguousarray(flat.reshape(dimensions, rows).T).astype(np.uint32)
