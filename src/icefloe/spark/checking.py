"""The stage that compares values: the files of a sample, each with an independent reader.

References come from the rows that the scan left on the disks of executors: those that would be
committed. Files are read where tasks run, with the access of the job.
"""

import pickle
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from icefloe.format.arrow import pa
from icefloe.pipeline.checking.values import CheckPlan, FileToCheck, check_file
from icefloe.pipeline.combining.report import CheckedValues
from icefloe.pipeline.files.facts import binary_column, int_column, text_column
from icefloe.pipeline.files.references import References
from icefloe.pipeline.planning import scan_tasks
from icefloe.spark.workers import Shipped

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CHECKED: Final = "number long, checked binary"


def check(
    spark: "SparkSession",
    scanned: "DataFrame",
    files: Mapping[int, FileToCheck],
    plan: CheckPlan,
    reach: Shipped,
    *,
    cores: int,
) -> list[CheckedValues]:
    """Compare values of the chosen files; they are given by number."""
    from pyspark.sql.functions import broadcast

    chosen = spark.createDataFrame(_table(files))
    chosen_numbers = broadcast(chosen.select("number"))
    columns = ["number", "path", "payload"]
    rows = (
        scanned.where("path is not null")
        .join(chosen_numbers, "number", "left_semi")
        .select(*columns)
    )
    checked = (
        rows.unionByName(chosen)
        .repartition(scan_tasks(len(files), cores), "number")
        .groupBy("number")
        .applyInArrow(_checker(plan, reach), CHECKED)
    )
    packed = checked.toArrow().sort_by("number").column("checked").to_pylist()
    return [pickle.loads(pickled) for pickled in packed]  # noqa: S301 - of this very job


def _table(files: Mapping[int, FileToCheck]) -> "pa.Table":
    """Write the files as rows that have no path."""
    return pa.table(
        {
            "number": int_column(list(files)),
            "path": text_column([None] * len(files)),
            "payload": binary_column([pickle.dumps(file) for file in files.values()]),
        }
    )


def _checker(plan: CheckPlan, reach: Shipped) -> Any:
    # What Spark pickles is this much only: the rest is imported where it runs.
    def check_one(table: "pa.Table") -> "pa.Table":
        return _check_one(table, plan, reach)

    return check_one


def _check_one(table: "pa.Table", plan: CheckPlan, reach: Shipped) -> "pa.Table":
    _, access = reach()
    rows = table.to_pylist()
    [packed] = [row["payload"] for row in rows if row["path"] is None]
    file: FileToCheck = pickle.loads(packed)  # noqa: S301 - of this very job
    references = {
        row["path"]: References.from_bytes(row["payload"])
        for row in rows
        if row["path"] is not None
    }
    checked = check_file(file, references, plan, access)
    return pa.table(
        {
            "number": int_column([rows[0]["number"]]),
            "checked": binary_column([pickle.dumps(checked)]),
        }
    )
