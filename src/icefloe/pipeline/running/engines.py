"""The port below a job: where its tasks run, and how rows travel between them.

Rows are Arrow columns that tasks make. An engine keeps them where they were made, moves those
together that belong together, and hands over to the driver what the driver asks for. A job is
written once for all engines; `LocalEngine` runs it on this machine, `icefloe.spark` on a cluster.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol

from icefloe.format.arrow import pa
from icefloe.pipeline.running.tasks import Batches
from icefloe.repo.context import RepoContext

type WorkerContext[T] = Callable[[], tuple[RepoContext, T]]
"""Returns the repository and the sources of a job in any process; clients open at first use."""
type Update = Callable[[int, int], None]
"""Is called with the number of tasks that are done, and of all tasks."""

SLICE: Final = "slice"
"""The column with the number of the task that gets a row."""
NUMBER: Final = "id"
"""The column of `Engine.numbers`: that of a range of Spark."""


class Rows(Protocol):
    """Rows that tasks will make; no task runs before the rows are gathered.

    `columns` are names and types, such as `"number long, path string, payload binary"`. Functions
    must be importable where tasks run; their arguments travel as pickles, without secrets.
    """

    def map(self, function: Callable[..., Batches], *arguments: Any, columns: str) -> "Rows":
        """Call `function(batches, *arguments)` in each task; it yields new rows."""
        ...

    def grouped(
        self,
        function: "Callable[..., pa.Table]",
        *arguments: Any,
        by: Sequence[str],
        columns: str,
        tasks: int,
        also: "pa.Table | None" = None,
    ) -> "Rows":
        """Call `function(table, *arguments)` with all rows that agree in some integer columns.

        The rows of the table `also` belong to them; it has the same columns.
        """
        ...

    def in_one_task(
        self, function: Callable[..., Batches], *arguments: Any, columns: str
    ) -> "Rows":
        """Call `function(batches, *arguments)` once, in one task, with all rows."""
        ...

    def where(self, column: str, *, is_null: bool) -> "Rows":
        """Keep rows with a value in a column, or those without."""
        ...

    def matching(self, table: "pa.Table", column: str) -> "Rows":
        """Keep rows whose integer is in a small table, and add the other columns of the table.

        No integer is twice in the table.
        """
        ...

    def select(self, *names: str) -> "Rows":
        """Keep some columns."""
        ...

    def gather(self) -> "pa.Table":
        """Run all tasks, and return their rows to the driver."""
        ...

    def kept(self) -> "AbstractContextManager[Rows]":
        """Store the rows on disks where they are made, so that they are not made again."""
        ...


class Engine(Protocol):
    """Runs the tasks of jobs."""

    @property
    def cores(self) -> int:
        """Return how many tasks run at once."""
        ...

    def rows_of(self, table: "pa.Table", tasks: int) -> Rows:
        """Divide a table over tasks by its column `SLICE`."""
        ...

    def numbers(self, count: int, tasks: int) -> Rows:
        """Divide the numbers from 0 to `count` over tasks, as the column `NUMBER`."""
        ...

    def share[T](
        self, context: RepoContext, sources: T
    ) -> AbstractContextManager[WorkerContext[T]]:
        """Make a repository and sources, with their secrets, available to tasks for a while."""
        ...

    def watched(
        self, job: str, description: str, update: Update | None
    ) -> AbstractContextManager[None]:
        """Report the tasks that the body starts; cancel these if it fails or is interrupted."""
        ...


_TYPES: Final = {"long": "int64", "string": "string", "binary": "binary"}


def schema_of(columns: str) -> "pa.Schema":
    """Return the Arrow schema of columns.

    >>> schema_of("number long, path string").names
    ['number', 'path']
    """
    pairs = [column.split() for column in columns.split(", ")]
    return pa.schema([(name, pa.type_for_alias(_TYPES[kind])) for name, kind in pairs])
