"""How executors get what they need to read and write storages.

A context with credentials must not be part of a plan: plans are shown, logged and kept. With a
classic session it travels as a broadcast variable, of which plans and event logs hold the number
only, and which is destroyed when the job ends. Spark Connect has no such variables: there it is
part of the pickled function.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from icefloe.engine.context import RepoContext
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.pipeline.access import SourceAccess
from icefloe.storage.specs import MemorySpec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

type Reach = tuple[RepoContext, SourceAccess]
"""The repository, and the storages of the sources."""


class Shipped(Protocol):
    """Something that is there wherever a task runs."""

    def __call__(self) -> Reach:
        """Give it, in the process that asks: clients open there, when they are first used."""
        ...


def is_classic(spark: "SparkSession") -> bool:
    """Tell a session that talks to its own driver from one of Spark Connect."""
    return "connect" not in type(spark).__module__


@contextmanager
def shipped(spark: "SparkSession", reach: Reach) -> Iterator[Shipped]:
    """Make a repository and sources available to tasks for as long as a job runs."""
    context, _ = reach
    if isinstance(context.storage.spec, MemorySpec):
        raise InvalidInputError(
            "a repository in memory cannot be written by Spark's workers, which are other"
            " processes: create it in a directory or an object store",
            ErrorKind.STORAGE_CONFIG,
        )
    if not is_classic(spark):
        yield _in_closure(reach)
        return
    variable = spark.sparkContext.broadcast(reach)

    def give() -> Reach:
        return variable.value

    try:
        yield give
    finally:
        variable.destroy()


def _in_closure(reach: Reach) -> Callable[[], Reach]:
    def give() -> Reach:
        return reach

    return give
