"""The tasks of the local engine: steps that rows go through, and the place where they end.

Rows travel through files in Arrow's own format. A task reads and writes them a batch at a time, and
holds the rows of one group at most. Few imports: every process of a pool begins with these.
"""

import logging
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icefloe.errors import StorageError
from icefloe.format.arrow import pa
from icefloe.format.columns import numbers_of
from icefloe.pipeline.files.facts import int_column
from icefloe.records import Record

type Batches = "Iterator[pa.RecordBatch]"

ATTEMPTS: Final = 4
"""How often a task is tried before the job fails."""
_SPREAD: Final = 1_000_003
"""A prime, so that consecutive regions of many arrays are spread evenly over tasks."""

_log: Final = logging.getLogger(__name__)


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


# -- steps and sinks -------------------------------------------------------------------------


class Map(Record):
    """Calls a function with all rows of a task."""

    function: Callable[..., Batches]
    arguments: tuple[Any, ...]

    def __call__(self, batches: Batches) -> Batches:
        """Yield the rows that come of the rows of a task."""
        return self.function(batches, *self.arguments)


class Where(Record):
    """Keeps rows with a value in a column, or those without."""

    column: str
    is_null: bool

    def __call__(self, batches: Batches) -> Batches:
        """Yield the rows that come of the rows of a task."""
        for batch in batches:
            column = batch.column(self.column)
            kept = batch.filter(column.is_null() if self.is_null else column.is_valid())
            if kept.num_rows:
                yield kept


class Select(Record):
    """Keeps some columns."""

    names: tuple[str, ...]

    def __call__(self, batches: Batches) -> Batches:
        """Yield the rows that come of the rows of a task."""
        for batch in batches:
            yield batch.select(list(self.names))


class Matching(Record, eq=False):
    """Adds the columns of a small table, where an integer is the same."""

    table: "pa.RecordBatch"
    column: str

    def __call__(self, batches: Batches) -> Batches:
        """Yield the rows that come of the rows of a task."""
        keys = integers_of(self.table.column(self.column))
        order = np.argsort(keys)
        ordered = keys[order]
        added = [name for name in self.table.schema.names if name != self.column]
        for batch in Where(self.column, is_null=False)(batches):
            wanted = integers_of(batch.column(self.column))
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


class Grouped(Record):
    """Calls a function with all rows of a group, one group after the other."""

    function: "Callable[..., pa.Table]"
    arguments: tuple[Any, ...]
    by: tuple[str, ...]

    def __call__(self, batches: Batches) -> Batches:
        """Yield the rows that come of the rows of a task."""
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


def integers_of(column: "pa.Array") -> NDArray[np.int64]:
    """Take integers from Arrow, none of them missing."""
    return numbers_of(column).astype(np.int64, copy=False)


def _keys(batch: "pa.RecordBatch", by: Sequence[str]) -> NDArray[np.int64]:
    return np.stack([integers_of(batch.column(name)) for name in by], axis=1)


class Return:
    """Hands rows to the driver."""

    def __call__(self, batches: Batches) -> "list[pa.RecordBatch]":
        """Return the rows of a task."""
        return list(batches)


class Store(Record):
    """Writes rows to a file."""

    folder: str

    def __call__(self, batches: Batches) -> dict[int, StoredRows]:
        """Write the rows of a task; return where they are, by part."""
        writer = _Writer(self.folder)
        numbers = [writer.write(batch) for batch in batches]
        writer.close()
        return {0: writer.stored(numbers)} if numbers else {}


class Divide(Record):
    """Writes rows to a file so that those of a group end up in the same part."""

    folder: str
    by: tuple[str, ...]
    parts: int

    def __call__(self, batches: Batches) -> dict[int, StoredRows]:
        """Write the rows of a task; return where they are, by part."""
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


type Step = Map | Where | Select | Matching | Grouped
type Sink = Return | Store | Divide


class Stage(Record):
    """The function of a task: some steps, and a place for the rows."""

    steps: tuple[Step, ...]
    sink: Sink

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
