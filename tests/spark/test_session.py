"""The Java that the setup chose runs a real Spark session."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

pytestmark = pytest.mark.spark


def test_a_session_counts(spark: Any) -> None:
    assert spark.range(1000).count() == 1000


def test_arrow_batches_reach_python_workers_and_come_back(spark: Any) -> None:
    def double(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.record_batch({"id": pa.array([2 * row.as_py() for row in batch["id"]])})

    rows = spark.range(10).mapInArrow(double, "id long").collect()
    assert sorted(row.id for row in rows) == list(range(0, 20, 2))
