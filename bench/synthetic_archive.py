"""Loads without files: made-up references through the same shuffle, manifests and commit.

For measuring, and for tests at sizes for which nobody wants to write files. Each made-up file has
one step of the array `value`, cut into `chunks` chunks.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from icefloe.format.arrow import pa
from icefloe.pipeline.combining.combine import combine
from icefloe.pipeline.files.facts import (
    ANY_LENGTH,
    ArraySchema,
    DatasetSchema,
    FileFacts,
    LoadedValues,
    SourceState,
    binary_column,
    int_column,
    text_column,
)
from icefloe.pipeline.files.options import CombineOptions, ParseOptions
from icefloe.pipeline.files.references import References
from icefloe.pipeline.files.sources import SourceAccess
from icefloe.pipeline.planning import FEW_REFERENCES
from icefloe.pipeline.running.engines import NUMBER
from icefloe.pipeline.running.job import Committed, Job, Target
from icefloe.pipeline.running.progress import OnProgress
from icefloe.pipeline.running.virtual import SCANNED, CombinedFiles, VirtualProducer
from icefloe.pipeline.writing.building import stamp
from icefloe.spark.engine import SparkEngine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TIME: Final = CombineOptions(("time",))
CHUNK_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class MadeUp:
    """How much to make up."""

    files: int
    chunks: int
    prefix: str = "s3://made-up/"

    def state(self, number: int) -> SourceState:
        """Describe a file that does not exist."""
        size = self.chunks * CHUNK_BYTES
        return SourceState(f"{self.prefix}{number:08d}.nc", size, f"etag-{number}", None)

    def facts(self) -> list[FileFacts]:
        """Describe all of them."""
        codecs = ({"name": "bytes", "configuration": {"endian": "little"}},)
        shape, chunks = (ANY_LENGTH, 1024 * self.chunks), (1, 1024)
        value = ArraySchema(
            path="value",
            data_type="float32",
            dimensions=("time", "x"),
            shape=shape,
            chunks=chunks,
            codecs=codecs,
            fill_value=0.0,
        )
        time = ArraySchema(
            path="time",
            data_type="float64",
            dimensions=("time",),
            shape=(ANY_LENGTH,),
            chunks=(512,),
            codecs=codecs,
            fill_value=0.0,
            is_coordinate=True,
        )
        schema = DatasetSchema.of([value, time])
        return [
            FileFacts(
                self.state(number),
                "hdf5",
                schema,
                {"": {}},
                {"time": 1},
                values={"time": LoadedValues(np.array([float(number)]))},
                references=self.chunks,
            )
            for number in range(self.files)
        ]

    def references(self, number: int) -> References:
        """Return the references of one file."""
        columns = np.arange(self.chunks)
        return References(
            np.stack([np.zeros_like(columns), columns], axis=1),
            (columns * CHUNK_BYTES).astype(np.uint64),
            np.full(self.chunks, CHUNK_BYTES, np.uint64),
            (self.state(number).url,),
            np.zeros(self.chunks, np.uint32),
        )


def commit_made_up(
    spark: "SparkSession",
    target: Target,
    load: MadeUp,
    *,
    references_per_commit: int,
    few_references: int = FEW_REFERENCES,
    on_progress: OnProgress | None = None,
) -> tuple[list[Committed], dict[str, float]]:
    """Run everything but the parsing; gives what each commit did, and seconds by stage."""
    engine = SparkEngine(spark)
    job = Job(engine, target, on_progress, few_references=few_references)
    producer = VirtualProducer(
        sources=(),
        options=TIME,
        parse=ParseOptions(("time",)),
        most_references=references_per_commit,
    )
    with job.watch.stage("combine", f"{load.files} files"):
        facts = load.facts()
        combined = combine(facts, TIME)
    rows = engine.numbers(load.files, 4 * job.cores).map(_make, load, columns=SCANNED)
    files = CombinedFiles(facts, combined)
    with (
        engine.share(job.context, SourceAccess()) as workers,
        rows.kept() as scanned,
    ):
        done = list(producer.commits(job, job.session(), files, scanned, workers))
    return done, job.watch.seconds


def _make(batches: "Iterator[pa.RecordBatch]", load: MadeUp) -> "Iterator[pa.RecordBatch]":
    for batch in batches:
        for number in batch.column(NUMBER).to_pylist():
            yield pa.RecordBatch.from_arrays(
                [
                    int_column([number]),
                    text_column(["value"]),
                    text_column([stamp(load.state(number))]),
                    binary_column([load.references(number).to_bytes()]),
                ],
                names=["number", "path", "stamp", "payload"],
            )
