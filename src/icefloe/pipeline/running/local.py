"""The engine of this machine: no cluster, no Java.

Small jobs run in this process. Others run in a pool of processes, one for each core; rows travel
through files in a temporary folder, which is removed in the end. A task reads and writes them a
batch at a time, and holds the rows of one group at most.
"""

import logging
import os
import pickle
import secrets
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final, Self

import cloudpickle
import numpy as np
from numpy.typing import NDArray

from icefloe.catalog.leases import delegating
from icefloe.errors import StorageError
from icefloe.format.arrow import pa
from icefloe.format.columns import numbers_of
from icefloe.pipeline.files.facts import int_column
from icefloe.pipeline.running.engines import (
    NUMBER,
    SLICE,
    Batches,
    Rows,
    Update,
    WorkerContext,
    schema_of,
)
from icefloe.pipeline.running.pool import ATTEMPTS, Pool
from icefloe.pipeline.running.worker import as_own_error, sharing
from icefloe.records import Record
from icefloe.repo.context import RepoContext
from icefloe.storage.specs import MemorySpec

_log: Final = logging.getLogger(__name__)

_SPREAD: Final = 1_000_003
"""A prime, so that consecutive regions of many arrays are spread evenly over tasks."""


def usable_cores() -> int:
    """Return the number of cores that this process may use.

    >>> usable_cores() > 0
    True
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


# -- rows in files ---------------------------------------------------------------------------


class StoredRows(Record):
    """Some of the batches in a file of Arrow's format."""

    path: str
    batches: tuple[int, ...]

    def read(self) -> Batches:
        """Read a batch after the other; pages of the file are mapped, not copied."""
        with pa.memory_map(self.path) as mapped, pa.ipc.open_file(mapped) as reader:
            for number in self.batches:
                yield reader.get_batch(number)


type Piece = "StoredRows | pa.Table"


def read_pieces(pieces: Sequence[Piece]) -> Batches:
    """Read the rows of a task."""
    for piece in pieces:
        yield from piece.read() if isinstance(piece, StoredRows) else piece.to_batches()


class _Writer:
    """Writes batches into a new file, which is opened for the first of them."""

    def __init__(self, folder: str) -> None:
        self._path = Path(folder, secrets.token_hex(8))
        self._writer: Any = None
        self._written = 0

    def write(self, batch: "pa.RecordBatch") -> int:
        """Write a batch; return its number."""
        if self._writer is None:
            self._writer = pa.ipc.new_file(str(self._path), batch.schema)
        self._writer.write_batch(batch)
        self._written += 1
        return self._written - 1

    def close(self) -> None:
        """Finish the file."""
        if self._writer is not None:
            self._writer.close()

    def stored(self, batches: Iterable[int]) -> StoredRows:
        """Describe some of the batches."""
        return StoredRows(str(self._path), tuple(batches))


# -- what tasks do ---------------------------------------------------------------------------


class _Map(Record):
    """Calls a function with all rows of a task."""

    function: Callable[..., Batches]
    arguments: tuple[Any, ...]

    def __call__(self, batches: Batches) -> Batches:
        return self.function(batches, *self.arguments)


class _Where(Record):
    """Keeps rows with a value in a column, or those without."""

    column: str
    is_null: bool

    def __call__(self, batches: Batches) -> Batches:
        for batch in batches:
            column = batch.column(self.column)
            kept = batch.filter(column.is_null() if self.is_null else column.is_valid())
            if kept.num_rows:
                yield kept


class _Select(Record):
    """Keeps some columns."""

    names: tuple[str, ...]

    def __call__(self, batches: Batches) -> Batches:
        for batch in batches:
            yield batch.select(list(self.names))


class _Matching(Record, eq=False):
    """Adds the columns of a small table, where an integer is the same."""

    table: "pa.RecordBatch"
    column: str

    def __call__(self, batches: Batches) -> Batches:
        keys = _integers(self.table.column(self.column))
        order = np.argsort(keys)
        ordered = keys[order]
        added = [name for name in self.table.schema.names if name != self.column]
        for batch in _Where(self.column, is_null=False)(batches):
            wanted = _integers(batch.column(self.column))
            places = np.searchsorted(ordered, wanted)
            found = places < len(ordered)
            found[found] = ordered[places[found]] == wanted[found]
            if not found.any():
                continue
            left = batch.take(int_column(np.flatnonzero(found)))
            right = self.table.take(int_column(order[places[found]]))
            for name in added:
                left = left.append_column(name, right.column(name))
            yield left


class _Grouped(Record):
    """Calls a function with all rows of a group, one group after the other."""

    function: "Callable[..., pa.Table]"
    arguments: tuple[Any, ...]
    by: tuple[str, ...]

    def __call__(self, batches: Batches) -> Batches:
        whole = list(batches)
        if not whole:
            return
        keys = np.concatenate([_keys(batch, self.by) for batch in whole])
        groups, numbers = np.unique(keys, axis=0, return_inverse=True)
        ends = np.cumsum([batch.num_rows for batch in whole])
        parts = np.split(numbers.reshape(-1), ends[:-1])
        rows: list[list[tuple[int, NDArray[np.int64]]]] = [[] for _ in groups]
        for number, part in enumerate(parts):
            for group, chosen in _rows_by_value(part):
                rows[group].append((number, chosen))
        for of_group in rows:
            taken = [whole[number].take(int_column(chosen)) for number, chosen in of_group]
            table = pa.Table.from_batches(taken)
            yield from self.function(table, *self.arguments).to_batches()


def _rows_by_value(values: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Yield each value with the rows that have it, ascending."""
    order = np.argsort(values, kind="stable")
    distinct, starts = np.unique(values[order], return_index=True)
    yield from zip(distinct.tolist(), np.split(order, starts[1:]), strict=True)


def _integers(column: "pa.Array") -> NDArray[np.int64]:
    return numbers_of(column).astype(np.int64, copy=False)


def _keys(batch: "pa.RecordBatch", by: Sequence[str]) -> NDArray[np.int64]:
    return np.stack([_integers(batch.column(name)) for name in by], axis=1)


class _Return:
    """Hands rows to the driver."""

    def __call__(self, batches: Batches) -> "list[pa.RecordBatch]":
        return list(batches)


class _Store(Record):
    """Writes rows to a file."""

    folder: str

    def __call__(self, batches: Batches) -> dict[int, StoredRows]:
        writer = _Writer(self.folder)
        numbers = [writer.write(batch) for batch in batches]
        writer.close()
        return {0: writer.stored(numbers)} if numbers else {}


class _Divide(Record):
    """Writes rows to a file so that those of a group end up in the same part."""

    folder: str
    by: tuple[str, ...]
    parts: int

    def __call__(self, batches: Batches) -> dict[int, StoredRows]:
        writer = _Writer(self.folder)
        numbers: dict[int, list[int]] = {}
        for batch in batches:
            keys = _keys(batch, self.by)
            part = np.zeros(len(keys), np.int64)
            for column in keys.T:
                part = (part * _SPREAD + column) % self.parts
            for chosen, rows in _rows_by_value(part) if len(part) else ():
                taken = batch.take(int_column(rows))
                numbers.setdefault(chosen, []).append(writer.write(taken))
        writer.close()
        return {chosen: writer.stored(written) for chosen, written in numbers.items()}


type _Step = _Map | _Where | _Select | _Matching | _Grouped
type _Sink = _Return | _Store | _Divide


class Stage(Record):
    """The function of a task: some steps, and a place for the rows."""

    steps: tuple[_Step, ...]
    sink: _Sink

    def __call__(self, pieces: Sequence[Piece]) -> Any:
        """Run a task on its rows, again if a storage fails that may work later."""
        for _ in range(ATTEMPTS - 1):
            try:
                return self._run(pieces)
            except StorageError as error:
                if not error.retryable:
                    raise
                _log.warning("a task is tried again: %s", error)
        return self._run(pieces)

    def _run(self, pieces: Sequence[Piece]) -> Any:
        batches = read_pieces(pieces)
        for step in self.steps:
            batches = step(batches)
        return self.sink(batches)


# -- the engine ------------------------------------------------------------------------------


type _Tasks = Sequence[Sequence[Piece]]
"""The input of each task."""


class LocalRows(Rows):
    """Rows that tasks on this machine will make."""

    def __init__(
        self,
        engine: "LocalEngine",
        inputs: Callable[[], _Tasks],
        steps: tuple[_Step, ...] = (),
        columns: str | None = None,
        *,
        is_passing: bool = False,
    ) -> None:
        self._engine, self._inputs, self._steps = engine, inputs, steps
        self._is_passing = is_passing
        """Whether the files of the inputs are of no use after the tasks."""
        self._columns = columns
        """What rows have if there are none to tell."""

    def map(self, function: Callable[..., Batches], *arguments: Any, columns: str) -> "LocalRows":
        """Call a function in each task."""
        return self._then(_Map(function, arguments), columns)

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
            sink = _Divide(engine.folder, keys, tasks)
            outcomes = self._run(sink)
            if also is not None:
                outcomes.append(sink(iter(also.to_batches())))
            by_part: dict[int, list[Piece]] = {}
            for outcome in outcomes:
                for part, stored in outcome.items():
                    by_part.setdefault(part, []).append(stored)
            return [by_part[part] for part in sorted(by_part)]

        steps = (_Grouped(function, arguments, keys),)
        return LocalRows(self._engine, divided, steps, columns, is_passing=True)

    def in_one_task(
        self, function: Callable[..., Batches], *arguments: Any, columns: str
    ) -> "LocalRows":
        """Call a function once, with all rows."""

        def joined() -> _Tasks:
            return [[piece for pieces in self._inputs() for piece in pieces]]

        steps = (*self._steps, _Map(function, arguments))
        return LocalRows(self._engine, joined, steps, columns, is_passing=self._is_passing)

    def where(self, column: str, *, is_null: bool) -> "LocalRows":
        """Keep rows with a value in a column, or those without."""
        return self._then(_Where(column, is_null), self._columns)

    def matching(self, table: "pa.Table", column: str) -> "LocalRows":
        """Join with a small table."""
        batches = table.combine_chunks().to_batches()
        small = batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)
        return self._then(_Matching(small, column), None)

    def select(self, *names: str) -> "LocalRows":
        """Keep some columns."""
        columns = self._columns
        if columns is not None:
            by_name = {column.split()[0]: column for column in columns.split(", ")}
            columns = ", ".join(by_name[name] for name in names)
        return self._then(_Select(names), columns)

    def gather(self) -> "pa.Table":
        """Run all tasks, and return their rows."""
        outcomes = self._run(_Return())
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
                outcomes = self._run(_Store(self._engine.folder))
                stored = [list(outcome.values()) for outcome in outcomes]
            return stored

        try:
            yield LocalRows(self._engine, inputs, (), self._columns)
        finally:
            _remove(stored or ())

    def _then(self, step: _Step, columns: str | None) -> "LocalRows":
        steps = (*self._steps, step)
        return LocalRows(self._engine, self._inputs, steps, columns, is_passing=self._is_passing)

    def _run(self, sink: _Sink) -> list[Any]:
        tasks = self._inputs()
        outcomes = self._engine.run(self._steps, sink, tasks)
        if self._is_passing:
            _remove(tasks)
        return outcomes


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
        slices = _integers(table.column(SLICE).cast(pa.int64()).combine_chunks())
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

    def run(self, steps: tuple[_Step, ...], sink: _Sink, tasks: _Tasks) -> list[Any]:
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
