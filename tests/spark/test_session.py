"""The Java that the setup chose runs a real Spark session."""

import gc
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from icefloe.spark.broadcast import broadcast

pytestmark = pytest.mark.spark


def test_a_session_counts(spark: Any) -> None:
    assert spark.range(1000).count() == 1000


def test_arrow_batches_reach_python_workers_and_come_back(spark: Any) -> None:
    def double(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.record_batch({"id": pa.array([2 * row.as_py() for row in batch["id"]])})

    rows = spark.range(10).mapInArrow(double, "id long").collect()
    assert sorted(row.id for row in rows) == list(range(0, 20, 2))


def test_modules_are_not_looked_through_after_each_task(spark: Any) -> None:
    with broadcast(spark, "a word") as give:

        def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            assert give() == "a word"
            looked_through, frozen = len(gc.get_objects()), gc.get_freeze_count()
            for batch in batches:
                counts = {"looked_through": looked_through, "frozen": frozen}
                yield pa.record_batch({k: pa.array([n] * len(batch)) for k, n in counts.items()})

        rows = spark.range(4).mapInArrow(look, "looked_through long, frozen long").collect()
    for row in rows:
        assert row.frozen > 10 * row.looked_through
