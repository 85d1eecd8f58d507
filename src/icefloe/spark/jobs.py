"""The jobs of the pipeline in a Spark session, and the names that go with them.

    virtualize, append   references to files, where they are
    ingest, rechunk      copies of values, with chunks, shards and codecs of your choice

They are those of `icefloe.pipeline.running.jobs`, with a Spark session as their first argument.
"""

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Concatenate

from icefloe.pipeline.running import jobs
from icefloe.pipeline.running.engines import Engine
from icefloe.pipeline.running.estimates import plan, plan_copy
from icefloe.pipeline.running.job import CopyReport, JobReport
from icefloe.pipeline.running.orphans import Attempt, discard_attempt, list_attempts
from icefloe.pipeline.running.progress import StageProgress, terminal_progress
from icefloe.spark.engine import SparkEngine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "Attempt",
    "CopyReport",
    "JobReport",
    "StageProgress",
    "append",
    "discard_attempt",
    "ingest",
    "list_attempts",
    "plan",
    "plan_copy",
    "rechunk",
    "terminal_progress",
    "virtualize",
]


def _on_spark[**P, R](
    job: Callable[Concatenate[Engine, P], R],
) -> "Callable[Concatenate[SparkSession, P], R]":
    @wraps(job)
    def run(spark: "SparkSession", /, *arguments: P.args, **named: P.kwargs) -> R:
        return job(SparkEngine(spark), *arguments, **named)

    return run


virtualize = _on_spark(jobs.virtualize)
append = _on_spark(jobs.append)
ingest = _on_spark(jobs.ingest)
rechunk = _on_spark(jobs.rechunk)
