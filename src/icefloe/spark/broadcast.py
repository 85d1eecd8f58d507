"""The distribution of settings and secrets to Spark executors.

A context with credentials must not be part of a plan: plans are shown, logged and kept. Nor may
it lie in the files in which Spark brings variables and artifacts to executors, which stay for as
long as a session lives. So it travels in two halves, each of which alone is random noise: one is
part of the function that tasks run, the other a broadcast variable, or with Spark Connect, which
has none, an artifact. Who has both has the credentials: those who can read the memory of the
driver or of a worker, or all of their traffic. For the latter, have Spark encrypt it.

A repository of a service travels without credentials: workers ask the service themselves, with a
token that opens this repository only, and ends with the job. It travels in the same two halves.
"""

import gc
import pickle
import secrets
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import cloudpickle
import numpy as np

from icefloe.catalog.leases import delegating
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.pipeline.running.engines import WorkerContext
from icefloe.repo.context import RepoContext
from icefloe.spark.failures import as_text
from icefloe.storage.specs import MemorySpec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MOST_OPEN: Final = 4
"""So many are kept open in a worker, which outlives the jobs that it works for."""


def on_workers(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return a function of rows for Spark, with more arguments for each call.

    Spark pickles this much only: the function itself is imported where it runs.
    """

    def run(rows: Any) -> Any:
        return _called(function, rows, arguments)

    return run


def _called(function: Callable[..., Any], rows: Any, arguments: tuple[Any, ...]) -> Any:
    with as_text():
        result = function(rows, *arguments)
    return _iterated(result) if isinstance(result, Iterator) else result


def _iterated(batches: Iterator[Any]) -> Iterator[Any]:
    with as_text():
        yield from batches


def is_classic(spark: "SparkSession") -> bool:
    """Return whether a session talks to its own driver, rather than through Spark Connect."""
    return "connect" not in type(spark).__module__


@contextmanager
def broadcast_context[T](
    spark: "SparkSession", context: RepoContext, sources: T
) -> Iterator[WorkerContext[T]]:
    """Make a repository and sources available to tasks for as long as a job runs."""
    if isinstance(context.storage.spec, MemorySpec):
        raise InvalidInputError(
            "a repository in memory cannot be written by Spark's workers, which are other"
            " processes: create it in a directory or an object store",
            ErrorKind.STORAGE_CONFIG,
        )
    with broadcast(spark, (context, sources)) as worker_context:
        yield worker_context


@contextmanager
def broadcast[T](spark: "SparkSession", value: T) -> Iterator[Callable[[], T]]:
    """Make a value with secrets available to tasks for as long as a job runs."""
    pickled = cloudpickle.dumps(value)
    name = f"{spark.sparkContext.appName if is_classic(spark) else 'Spark'} job"[:100]
    with delegating(pickled, name) as tokens:
        whole = pickle.dumps((tokens, pickled))
        noise = secrets.token_bytes(len(whole))
        send = _as_broadcast if is_classic(spark) else _as_artifact
        with send(spark, noise) as fetch:
            yield partial(_joined, _mixed(whole, noise), fetch)


type _Fetch = Callable[[], bytes]

_open: Final[dict[bytes, Any]] = {}


def _joined(half: bytes, fetch: _Fetch) -> Any:
    """Put both halves together, once in each worker."""
    if half not in _open:
        while len(_open) >= _MOST_OPEN:
            del _open[next(iter(_open))]
        # Tokens come first: what is unpickled after them asks a service with them.
        _tokens, pickled = pickle.loads(_mixed(half, fetch()))  # noqa: S301 - of this very job
        _open[half] = pickle.loads(pickled)  # noqa: S301 - the same
        _keep_what_is_imported()
    return _open[half]


def _keep_what_is_imported() -> None:
    """Spare the collector all modules: Spark has it look through everything after each task."""
    gc.collect()
    gc.freeze()


def _mixed(left: bytes, other: bytes) -> bytes:
    return bytes(np.frombuffer(left, np.uint8) ^ np.frombuffer(other, np.uint8))


@contextmanager
def _as_broadcast(spark: "SparkSession", half: bytes) -> Iterator[_Fetch]:
    variable = spark.sparkContext.broadcast(half)

    def fetch() -> bytes:
        return bytes(variable.value)

    try:
        yield fetch
    finally:
        variable.destroy()


@contextmanager
def _as_artifact(spark: "SparkSession", half: bytes) -> Iterator[_Fetch]:
    # Sessions cannot give up an artifact: it stays until they end, and holds nothing by itself.
    name = f"icefloe-{secrets.token_hex(8)}"
    with tempfile.TemporaryDirectory(prefix="icefloe-") as folder:
        path = Path(folder, name)
        path.write_bytes(half)
        spark.addArtifacts(str(path), file=True)
    yield partial(_artifact, name)


def _artifact(name: str) -> bytes:
    from pyspark import SparkFiles

    return Path(SparkFiles.get(name)).read_bytes()
