"""Progress of Spark's stages while the driver waits for them, and an end to them when it does not.

All that a job starts carries its name: as a job group with a classic session, which is asked for
its tasks now and then; as a tag with Spark Connect, which tells by itself.
"""

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from icefloe.records import Record, replace
from icefloe.spark.broadcast import is_classic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)

_POLL_SECONDS: Final = 0.3


class StageProgress(Record):
    """The progress of a stage of a job.

    >>> def show(progress: StageProgress) -> None:
    ...     print(f"{progress.stage}: {progress.tasks_done} of {progress.tasks} tasks")
    >>> show(StageProgress("scan", "40 files", 3, 8))
    scan: 3 of 8 tasks
    """

    stage: str
    what: str
    """What it works on, in words."""
    tasks_done: int
    tasks: int
    """As far as known: 0 if Spark Connect told nothing of a short stage."""
    is_over: bool = False
    """Whether this is the last word about a stage."""


type OnProgress = Callable[[StageProgress], None]


class Watch:
    """Times the stages of one job, and tells how far they are."""

    def __init__(self, spark: "SparkSession", name: str, on_progress: OnProgress | None) -> None:
        self._spark, self._name, self._on_progress = spark, name, on_progress
        self.seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str, what: str) -> Iterator[None]:
        """Watch what the body does; if it fails or is interrupted, cancel it."""
        begin = time.monotonic()
        named = _in_group if is_classic(self._spark) else _tagged
        try:
            with named(self._spark, self._name, f"{name}: {what}"), self._telling(name, what):
                yield
        except Exception as failed:
            # Spark says that its job was cancelled, and buries who asked for that.
            if (interrupt := _interrupt_behind(failed)) is not None:
                raise interrupt from None
            raise
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - begin

    @contextmanager
    def _telling(self, name: str, what: str) -> Iterator[None]:
        if self._on_progress is None:
            yield
            return
        last = StageProgress(name, what, 0, 0)

        def update(done: int, total: int) -> None:
            nonlocal last
            last = replace(last, tasks_done=done, tasks=total)
            self._tell(last)

        if is_classic(self._spark):
            heard = _polled(self._spark, self._name, update)
        else:
            heard = _told(self._spark, update)
        with heard:
            yield
        # Stages that were skipped count as done, and so does what nobody heard the end of.
        self._tell(replace(last, tasks_done=last.tasks, is_over=True))

    def _tell(self, progress: StageProgress) -> None:
        if self._on_progress is None:
            return
        try:
            self._on_progress(progress)
        except Exception:  # noqa: BLE001 - whatever the caller's code raises
            # A job that may be committed already must not fail because nobody can see it.
            _log.warning("progress cannot be shown", exc_info=True)
            self._on_progress = None


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


@contextmanager
def terminal_progress() -> Iterator[OnProgress | None]:
    """Draw a bar for each stage on standard error; nothing if that is no terminal.

    >>> with terminal_progress() as on_progress:  # for the option on_progress of a job
    ...     print(on_progress is None or callable(on_progress))
    True
    """
    if not sys.stderr.isatty():
        yield None
        return
    columns = (
        TextColumn("{task.description:<8}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total} tasks, {task.fields[what]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        bars: dict[str, Any] = {}

        def show(stage: StageProgress) -> None:
            if stage.stage not in bars:
                bars[stage.stage] = progress.add_task(stage.stage, total=None, what=stage.what)
            total = stage.tasks if stage.tasks or stage.is_over else None
            progress.update(bars[stage.stage], completed=stage.tasks_done, total=total)

        yield show
