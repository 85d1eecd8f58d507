"""Loads without files: made-up references through the same shuffle, manifests and commit.

For measuring, and for tests at sizes for which nobody wants to write files. Each made-up file has
one step of the array `value`, cut into `chunks` chunks.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from icefloe.format.arrow import pa
from icefloe.pipeline.combining.combine import combine
from icefloe.pipeline.files.access import SourceAccess
from icefloe.pipeline.files.facts import (
    FileFacts,
    LoadedValues,
    SourceState,
    binary_column,
    int_column,
    text_column,
)
from icefloe.pipeline.files.options import CombineOptions, ParseOptions
from icefloe.pipeline.files.references import References
from icefloe.pipeline.files.schema import ANY_LENGTH, ArraySchema, DatasetSchema
from icefloe.pipeline.planning import FEW_REFERENCES
from icefloe.pipeline.writing.plans import cut_into_waves, stamp
from icefloe.records import replace
from icefloe.spark.committing import Committed, Committer, Found, Target, persisted
from icefloe.spark.scan import SCANNED
from icefloe.spark.session import cores_of
from icefloe.spark.watching import OnProgress, Watch
from icefloe.spark.workers import shipped

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
        value = ArraySchema("value", "float32", ("time", "x"), shape, chunks, codecs, 0.0)
        time = ArraySchema(
            "time", "float64", ("time",), (ANY_LENGTH,), (512,), codecs, 0.0, is_coordinate=True
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
    context = target.repo._context  # noqa: SLF001 - the same package
    watch = Watch(spark, "icefloe-made-up", on_progress)
    with watch.stage("combine", f"{load.files} files"):
        facts = load.facts()
        combined = combine(facts, TIME)
    found = Found(facts, combined, None, None)
    rows = spark.range(0, load.files, 1, 4 * cores_of(spark)).mapInArrow(_maker(load), SCANNED)
    done = []
    with shipped(spark, (context, SourceAccess())) as reach, persisted(rows) as kept:
        committer = Committer(
            spark,
            "made-up",
            target,
            TIME,
            ParseOptions(("time",)),
            reach,
            watch,
            cores_of(spark),
            few_references,
        )
        waves = cut_into_waves(facts, combined, TIME, None, most=references_per_commit)
        for number, each in enumerate(waves):
            session = target.repo.writable_session(target.branch)
            wave = replace(found, combined=each)
            if number:
                wave = found.on_top(session, each, target.group, TIME)
            done.append(committer.commit(session, wave, kept))
    return done, watch.seconds


def _maker(load: MadeUp) -> Any:
    def make(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        return _make(batches, load)

    return make


def _make(batches: "Iterator[pa.RecordBatch]", load: MadeUp) -> "Iterator[pa.RecordBatch]":
    for batch in batches:
        for number in batch.column("id").to_pylist():
            yield pa.RecordBatch.from_arrays(
                [
                    int_column([number]),
                    text_column(["value"]),
                    text_column([stamp(load.state(number))]),
                    binary_column([load.references(number).to_bytes()]),
                ],
                names=["number", "path", "stamp", "payload"],
            )
