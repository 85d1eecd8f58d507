"""Functions of tasks for tests of engines; few imports, as every process needs them."""

import os
import pickle
import signal
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from icefloe.errors import StorageError
from icefloe.format.arrow import pa
from icefloe.pipeline.files.facts import binary_column, int_column, text_column
from icefloe.pipeline.files.sources import SourceAccess, SourceObject
from icefloe.pipeline.running.tasks import ATTEMPTS, Batches


def squares(batches: Batches, plus: int) -> Batches:
    for batch in batches:
        numbers = np.array(batch.column("number").to_pylist(), np.int64)
        texts: list[str | None] = [None if n % 5 == 0 else f"{n**2 + plus}" for n in numbers]
        columns = [int_column(numbers), int_column(numbers % 3), text_column(texts)]
        yield pa.RecordBatch.from_arrays(columns, names=["number", "kind", "text"])


def total(table: "pa.Table", times: int) -> "pa.Table":
    [kind] = set(table.column("kind").to_pylist())
    texts = sorted(filter(None, table.column("text").to_pylist()))
    packed = [pickle.dumps((times * sum(table.column("number").to_pylist()), texts))]
    return pa.table({"kind": int_column([kind]), "sum": binary_column(packed)})


def count(batches: Batches) -> Batches:
    numbers = [batch.num_rows for batch in batches]
    yield pa.RecordBatch.from_arrays([int_column([sum(numbers)])], names=["rows"])


def die(batches: Batches) -> Batches:
    for batch in batches:
        if batch.column("id").to_pylist()[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        yield batch


def fail(batches: Batches, error: Exception) -> Batches:
    for _ in batches:
        raise error
    yield from ()


def fail_thrice(batches: Batches, marker: str) -> Batches:
    for batch in batches:
        tries = len(list(Path(marker).parent.glob("try-*")))
        if batch.column("id").to_pylist()[0] == 0 and tries < ATTEMPTS - 1:
            Path(f"{marker}-{tries}").touch()
            raise StorageError("try later", retryable=True)
        yield batch


@dataclass(frozen=True, slots=True)
class Deadly(SourceAccess):
    """Kills the first process that looks for a file."""

    marker: str = ""

    def place(self, url: str) -> SourceObject:
        try:
            os.close(os.open(self.marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return SourceAccess.place(self, url)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("nobody survives this")
