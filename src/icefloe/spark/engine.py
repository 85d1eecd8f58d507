"""Spark as the engine of jobs: tasks run on its executors, and rows stay on their disks.

All that a job starts carries its name: as a job group with a classic session, which is asked for
its tasks now and then; as a tag with Spark Connect, which tells by itself.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from icefloe.format.arrow import pa
from icefloe.pipeline.running.engines import SLICE, Rows, Update, WorkerContext
from icefloe.pipeline.running.tasks import Batches
from icefloe.records import MutableRecord
from icefloe.repo.context import RepoContext
from icefloe.spark.broadcast import broadcast_context, is_classic, on_workers
from icefloe.spark.failures import error_in
from icefloe.spark.session import cores_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_POLL_SECONDS: Final = 0.3
_ROLLS_BACK: Final = "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch"
"""Whether Spark takes back all that followed from a task which, run again, gives something else."""


class SparkRows(Rows):
    """Rows of a Spark session."""

    def __init__(self, spark: "SparkSession", frame: "DataFrame") -> None:
        self._spark, self.frame = spark, frame

    def map(self, function: Callable[..., Batches], *arguments: Any, columns: str) -> "SparkRows":
        """Call a function in each task."""
        return self._with(self.frame.mapInArrow(on_workers(function, *arguments), columns))

    def grouped(
        self,
        function: "Callable[..., pa.Table]",
        *arguments: Any,
        by: Sequence[str],
        columns: str,
        tasks: int,
        also: "pa.Table | None" = None,
    ) -> "SparkRows":
        """Call a function with all rows that agree in some columns."""
        frame = self.frame
        if also is not None:
            frame = frame.unionByName(self._spark.createDataFrame(also))
        grouped = frame.repartition(tasks, *by).groupBy(*by)
        return self._with(grouped.applyInArrow(on_workers(function, *arguments), columns))

    def in_one_task(
        self, function: Callable[..., Batches], *arguments: Any, columns: str
    ) -> "SparkRows":
        """Call a function once, with all rows."""
        single_partition = self.frame.coalesce(1)
        return self._with(single_partition.mapInArrow(on_workers(function, *arguments), columns))

    def where(self, column: str, *, is_null: bool) -> "SparkRows":
        """Keep rows with a value in a column, or those without."""
        return self._with(self.frame.where(f"{column} is {'' if is_null else 'not '}null"))

    def matching(self, table: "pa.Table", column: str) -> "SparkRows":
        """Join with a small table."""
        from pyspark.sql.functions import broadcast

        small = broadcast(self._spark.createDataFrame(table))
        return self._with(self.frame.join(small, column))

    def select(self, *names: str) -> "SparkRows":
        """Keep some columns."""
        return self._with(self.frame.select(*names))

    def gather(self) -> "pa.Table":
        """Fetch all rows."""
        return self.frame.toArrow()

    @contextmanager
    def kept(self) -> Iterator["SparkRows"]:
        """Keep rows on the disks of executors; they are never gathered."""
        from pyspark import StorageLevel

        frame = self.frame.persist(StorageLevel.DISK_ONLY)
        try:
            yield self._with(frame)
        finally:
            frame.unpersist()

    def _with(self, frame: "DataFrame") -> "SparkRows":
        return SparkRows(self._spark, frame)


class SparkEngine:
    """Runs the tasks of jobs in a Spark session."""

    def __init__(self, spark: "SparkSession") -> None:
        self._spark: Final = spark
        self._cores: Final = cores_of(spark)

    @property
    def cores(self) -> int:
        """Return how many tasks run at once, if it is known."""
        return self._cores

    def rows_of(self, table: "pa.Table", tasks: int) -> SparkRows:
        """Divide a table over tasks."""
        frame = self._spark.createDataFrame(table)
        return SparkRows(self._spark, frame.repartitionById(tasks, SLICE))

    def numbers(self, count: int, tasks: int) -> SparkRows:
        """Divide numbers over tasks."""
        return SparkRows(self._spark, self._spark.range(0, count, 1, tasks))

    @contextmanager
    def share[T](self, context: RepoContext, sources: T) -> Iterator[WorkerContext[T]]:
        """Make a repository and sources available to tasks, secrets apart from plans."""
        with (
            broadcast_context(self._spark, context, sources) as workers,
            attempts_may_differ(self._spark),
        ):
            yield workers

    @contextmanager
    def watched(self, job: str, description: str, update: Update | None) -> Iterator[None]:
        """Report the tasks that the body starts; cancel these if it fails or is interrupted."""
        spark = self._spark
        named = _in_group if is_classic(spark) else _tagged
        if update is None:
            heard: AbstractContextManager[None] = nullcontext()
        else:
            heard = _polled(spark, job, update) if is_classic(spark) else _told(spark, update)
        try:
            with named(spark, job, description), heard:
                yield
        except Exception as failed:
            # Spark says that its job was cancelled, and buries who asked for that.
            if (interrupt := _interrupt_behind(failed)) is not None:
                raise interrupt from None
            if (error := error_in(str(failed))) is not None:
                raise error from None
            raise


def _interrupt_behind(failed: BaseException) -> KeyboardInterrupt | None:
    """Find a key press that an error was raised on top of."""
    error: BaseException | None = failed
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error


@contextmanager
def _in_group(spark: "SparkSession", name: str, description: str) -> Iterator[None]:
    context = spark.sparkContext
    properties = ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel")
    before = {
        property_name: context.getLocalProperty(property_name) for property_name in properties
    }
    context.setJobGroup(name, description, interruptOnCancel=True)
    try:
        yield
    except BaseException:
        context.cancelJobGroup(name)
        raise
    finally:
        for property_name, value in before.items():
            context.setLocalProperty(property_name, value)  # type: ignore[arg-type] # None removes it


@contextmanager
def _tagged(spark: "SparkSession", name: str, _: str) -> Iterator[None]:
    spark.addTag(name)
    try:
        yield
    except BaseException:
        spark.interruptTag(name)
        raise
    finally:
        spark.removeTag(name)


@contextmanager
def _polled(
    spark: "SparkSession", group: str, update: Callable[[int, int], None]
) -> Iterator[None]:
    """Ask in the background."""
    tracker = spark.sparkContext.statusTracker()
    before = set(tracker.getJobIdsForGroup(group))
    ended = threading.Event()

    def ask() -> None:
        done = total = 0
        for job in set(tracker.getJobIdsForGroup(group)) - before:
            stages = tracker.getJobInfo(job)
            for stage in () if stages is None else stages.stageIds:
                info = tracker.getStageInfo(stage)
                if info is not None:
                    done += info.numCompletedTasks
                    total += info.numTasks
        update(done, total)

    def keep_asking() -> None:
        while not ended.wait(_POLL_SECONDS):
            ask()

    asking = threading.Thread(target=keep_asking, name="icefloe-progress", daemon=True)
    asking.start()
    try:
        yield
    finally:
        ended.set()
        asking.join()
    ask()


@contextmanager
def _told(spark: Any, update: Callable[[int, int], None]) -> Iterator[None]:
    """Listen to what the server says: something every two seconds, seldom the end."""
    tasks: dict[str | None, tuple[int, int]] = {}

    def listen(stages: Any, operation_id: str | None = None, **_: Any) -> None:
        done = sum(stage.num_completed_tasks for stage in stages or ())
        tasks[operation_id] = (done, sum(stage.num_tasks for stage in stages or ()))
        update(sum(count for count, _ in tasks.values()), sum(count for _, count in tasks.values()))

    spark.registerProgressHandler(listen)
    try:
        yield
    finally:
        spark.removeProgressHandler(listen)


class _Changed(MutableRecord):
    """The former value of a setting, and the number of copies that need another value."""

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
