"""Progress of the stages of a job, and its display on a terminal."""

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from icefloe.pipeline.running.engines import Engine
from icefloe.records import Record, replace
from icefloe.reports import counted, shown_bytes

_log: Final = logging.getLogger(__name__)


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
    """As far as known: 0 without tasks, and if Spark Connect told nothing of a short stage."""
    is_over: bool = False
    """Whether this is the last word about a stage."""
    items: int = 0
    """How many files or objects the stage works on; 0 if it is not known."""
    noun: str = "file"
    """What is counted in `items`."""
    size_bytes: int = 0
    """What these take; 0 if it is not known."""

    @property
    def items_done(self) -> int:
        """Return how many files or objects are done, as the tasks that are over tell."""
        return self._share(self.items)

    @property
    def bytes_done(self) -> int:
        """Return how many bytes are done, as the tasks that are over tell."""
        return self._share(self.size_bytes)

    def _share(self, whole: int) -> int:
        if self.is_over:
            return whole
        return whole * self.tasks_done // self.tasks if self.tasks else 0

    def shown(self) -> str:
        """Write how much is done, in words.

        >>> StageProgress("scan", "", 3, 8, items=40, size_bytes=2**30).shown()
        '15 of 40 files, 384.0 MiB of 1.0 GiB'
        """
        parts = []
        if self.items:
            parts.append(f"{self.items_done} of {counted(self.items, self.noun)}")
        if self.size_bytes:
            parts.append(f"{shown_bytes(self.bytes_done)} of {shown_bytes(self.size_bytes)}")
        return ", ".join(parts) or self.what


type OnProgress = Callable[[StageProgress], None]


class Watch:
    """Times the stages of one job, and tells how far they are."""

    def __init__(self, engine: Engine, name: str, on_progress: OnProgress | None) -> None:
        self._engine, self._name, self._on_progress = engine, name, on_progress
        self.seconds: dict[str, float] = {}

    def add(self, other: "Watch") -> None:
        """Add the time that the stages of another job took, which was a part of this one."""
        for name, seconds in other.seconds.items():
            self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    @contextmanager
    def stage(
        self, name: str, what: str, *, items: int = 0, noun: str = "file", size_bytes: int = 0
    ) -> Iterator[None]:
        """Watch what the body does; if it fails or is interrupted, cancel it."""
        begin = time.monotonic()
        last = StageProgress(name, what, 0, 0, items=items, noun=noun, size_bytes=size_bytes)

        def update(done: int, total: int) -> None:
            nonlocal last
            last = replace(last, tasks_done=done, tasks=total)
            self._tell(last)

        told = None if self._on_progress is None else update
        try:
            with self._engine.watched(self._name, f"{name}: {what}", told):
                yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - begin
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


@contextmanager
def terminal_progress() -> Iterator[OnProgress | None]:
    """Draw a bar for each stage on standard error; nothing if that is no terminal.

    It has files and bytes, and the time that is left or, in the end, that it took.

    >>> with terminal_progress() as on_progress:  # for the option on_progress of a job
    ...     print(on_progress is None or callable(on_progress))
    True
    """
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description:<8}"),
        BarColumn(),
        TextColumn("{task.fields[shown]}"),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        bars: dict[str, Any] = {}

        def show(stage: StageProgress) -> None:
            if stage.stage not in bars:
                bars[stage.stage] = progress.add_task(stage.stage, total=None, shown="")
            total = stage.tasks if stage.tasks or stage.is_over else None
            progress.update(
                bars[stage.stage], completed=stage.tasks_done, total=total, shown=stage.shown()
            )

        yield show
