"""The engine of this machine: no cluster, no Java.

Small jobs run in this process. Others run in a pool of processes, one for each core; rows travel
through files in a temporary folder, which is removed in the end.
"""

import os
import pickle
import secrets
import tempfile
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final, Self

import cloudpickle
import numpy as np

from icefloe.catalog.leases import delegating
from icefloe.format.arrow import pa
from icefloe.pipeline.files.facts import int_column
from icefloe.pipeline.running.engines import (
    NUMBER,
    SLICE,
    Rows,
    Update,
    WorkerContext,
    schema_of,
)
from icefloe.pipeline.running.pool import Pool
from icefloe.pipeline.running.tasks import (
    Batches,
    Divide,
    Grouped,
    Map,
    Matching,
    Piece,
    Return,
    Select,
    Sink,
    Stage,
    Step,
    Store,
    StoredRows,
    Where,
    integers_of,
)
from icefloe.pipeline.running.worker import as_own_error, sharing
from icefloe.repo.context import RepoContext
from icefloe.storage.specs import MemorySpec


def usable_cores() -> int:
    """Return the number of cores that this process may use.

    >>> usable_cores() > 0
    True
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


type _Tasks = Sequence[Sequence[Piece]]
"""The input of each task."""


class LocalRows(Rows):
    """Rows that tasks on this machine will make."""

    def __init__(
        self,
        engine: "LocalEngine",
        inputs: Callable[[], _Tasks],
        steps: tuple[Step, ...] = (),
        columns: str | None = None,
        *,
        is_passing: bool = False,
    ) -> None:
        self._engine, self._inputs, self._steps = engine, inputs, steps
        self._is_passing = is_passing
        """Whether nobody reads the files of the inputs after the tasks."""
        self._columns = columns
        """What rows have if there are none to tell."""

    def map(self, function: Callable[..., Batches], *arguments: Any, columns: str) -> "LocalRows":
        """Call a function in each task."""
        return self._then(Map(function, arguments), columns)

    def grouped(
        self,
        function: "Callable[..., pa.Table]",
        *arguments: Any,
        by: Sequence[str],
        columns: str,
        tasks: int,
        also: "pa.Table | None" = None,
    ) -> "LocalRows":
        """Call a function with all rows that agree in some columns."""
        keys = tuple(by)

        def divided() -> _Tasks:
            engine = self._engine
            sink = Divide(engine.folder, keys, tasks)
            outcomes = self._run(sink)
            if also is not None:
                outcomes.append(sink(iter(also.to_batches())))
            by_part: dict[int, list[Piece]] = {}
            for outcome in outcomes:
                for part, stored in outcome.items():
                    by_part.setdefault(part, []).append(stored)
            return [by_part[part] for part in sorted(by_part)]

        steps = (Grouped(function, arguments, keys),)
        return LocalRows(self._engine, divided, steps, columns, is_passing=True)

    def in_one_task(
        self, function: Callable[..., Batches], *arguments: Any, columns: str
    ) -> "LocalRows":
        """Call a function once, with all rows."""

        def joined() -> _Tasks:
            return [[piece for pieces in self._inputs() for piece in pieces]]

        steps = (*self._steps, Map(function, arguments))
        return LocalRows(self._engine, joined, steps, columns, is_passing=self._is_passing)

    def where(self, column: str, *, is_null: bool) -> "LocalRows":
        """Keep rows with a value in a column, or those without."""
        return self._then(Where(column, is_null), self._columns)

    def matching(self, table: "pa.Table", column: str) -> "LocalRows":
        """Join with a small table."""
        batches = table.combine_chunks().to_batches()
        small = batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)
        return self._then(Matching(small, column), None)

    def select(self, *names: str) -> "LocalRows":
        """Keep some columns."""
        columns = self._columns
        if columns is not None:
            by_name = {column.split()[0]: column for column in columns.split(", ")}
            columns = ", ".join(by_name[name] for name in names)
        return self._then(Select(names), columns)

    def gather(self) -> "pa.Table":
        """Run all tasks, and return their rows."""
        outcomes = self._run(Return())
        batches = [batch for outcome in outcomes for batch in outcome]
        if batches or self._columns is None:
            return pa.Table.from_batches(batches)
        return schema_of(self._columns).empty_table()

    @contextmanager
    def kept(self) -> Iterator["LocalRows"]:
        """Store rows in files when they are made, so that they are not made again."""
        stored: list[Sequence[Piece]] | None = None

        def inputs() -> _Tasks:
            nonlocal stored
            if stored is None:
                outcomes = self._run(Store(self._engine.folder))
                stored = [list(outcome.values()) for outcome in outcomes]
            return stored

        try:
            yield LocalRows(self._engine, inputs, (), self._columns)
        finally:
            _remove(stored or ())

    def _then(self, step: Step, columns: str | None) -> "LocalRows":
        steps = (*self._steps, step)
        return LocalRows(self._engine, self._inputs, steps, columns, is_passing=self._is_passing)

    def _run(self, sink: Sink) -> list[Any]:
        tasks = self._inputs()
        try:
            return self._engine.run(self._steps, sink, tasks)
        finally:
            if self._is_passing:
                _remove(tasks)


def _remove(tasks: _Tasks) -> None:
    """Remove the files with the input of tasks."""
    for piece in (piece for pieces in tasks for piece in pieces):
        if isinstance(piece, StoredRows):
            Path(piece.path).unlink(missing_ok=True)


class LocalEngine:
    """Runs the tasks of jobs on this machine; close it in the end.

    `processes` are as many as this process may use cores. With fewer than two, all tasks run in
    this process, as do those of repositories in memory.

    >>> with LocalEngine(processes=0) as engine:
    ...     engine.numbers(3, tasks=2).gather().to_pydict()
    {'id': [0, 1, 2]}
    """

    def __init__(self, processes: int | None = None) -> None:
        self._processes: Final = usable_cores() if processes is None else processes
        self._pool: Final = Pool(self._processes)
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._shared: dict[str, bytes] = {}
        self._in_memory = 0
        """How many of the repositories that are shared are in the memory of this process."""
        self._update: Update | None = None
        self._done = self._total = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all processes, and remove the temporary folder."""
        self._pool.stop()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    @property
    def cores(self) -> int:
        """Return how many tasks run at once."""
        return max(self._processes, 1)

    @property
    def folder(self) -> str:
        """Return the folder for rows on their way between tasks."""
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="icefloe-")
        return self._folder.name

    def rows_of(self, table: "pa.Table", tasks: int) -> LocalRows:
        """Divide a table over tasks."""
        slices = integers_of(table.column(SLICE).cast(pa.int64()).combine_chunks())
        rows = [np.flatnonzero(slices == task) for task in range(tasks)]
        inputs = [[table.take(int_column(chosen))] for chosen in rows if len(chosen)]
        return LocalRows(self, lambda: inputs)

    def numbers(self, count: int, tasks: int) -> LocalRows:
        """Divide numbers over tasks."""
        parts = np.array_split(np.arange(count), tasks)
        inputs = [[pa.table({NUMBER: int_column(part)})] for part in parts if len(part)]
        return LocalRows(self, lambda: inputs, columns=f"{NUMBER} long")

    @contextmanager
    def share[T](self, context: RepoContext, sources: T) -> Iterator[WorkerContext[T]]:
        """Make a repository and sources available to tasks; processes get them by their pipe."""
        is_in_memory = isinstance(context.storage.spec, MemorySpec)
        with sharing(secrets.token_hex(8), (context, sources)) as shared:
            if is_in_memory or self._processes < 2:
                self._in_memory += is_in_memory
                try:
                    yield shared
                finally:
                    self._in_memory -= is_in_memory
                return
            pickled = cloudpickle.dumps((context, sources))
            with delegating(pickled, "icefloe job") as tokens:
                self._shared[shared.name] = pickle.dumps((tokens, pickled))
                try:
                    yield shared
                finally:
                    del self._shared[shared.name]

    @contextmanager
    def watched(self, job: str, description: str, update: Update | None) -> Iterator[None]:
        """Report the tasks that the body starts."""
        self._update, self._done, self._total = update, 0, 0
        try:
            yield
        finally:
            self._update = None

    def run(self, steps: tuple[Step, ...], sink: Sink, tasks: _Tasks) -> list[Any]:
        """Run tasks; return their results in the order of the tasks.

        If a task fails, or the driver is interrupted, no task runs any more afterwards.
        """
        stage = Stage(steps, sink)
        outcomes: list[Any] = [None] * len(tasks)
        self._total += len(tasks)
        self._tell()
        with closing(self._outcomes(stage, tasks)) as ended:  # at once, if it is interrupted
            for number, outcome in ended:
                outcomes[number] = outcome
                self._done += 1
                self._tell()
        return outcomes

    def _outcomes(self, stage: Stage, tasks: _Tasks) -> Generator[tuple[int, Any]]:
        if self._processes < 2 or self._in_memory or len(tasks) < 2:
            for number, pieces in enumerate(tasks):
                with as_own_error():
                    outcome = stage(pieces)
                yield number, outcome
            return
        pickled = [pickle.dumps(list(pieces)) for pieces in tasks]
        yield from self._pool.run(cloudpickle.dumps(stage), self._shared, pickled)

    def _tell(self) -> None:
        if self._update is not None:
            self._update(self._done, self._total)
