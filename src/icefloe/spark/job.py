"""One job: a producer plans commits, executors build their manifests, the driver commits them.

    producer -> wave: placed references -> manifests -> link -> commit

Nothing is visible before the commit, which is one conditional write. A job whose references are
too many for one transaction log commits in several waves. Tasks note what they are about to write;
the job removes everything that no version uses when it ends, however it ends.
"""

import logging
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from icefloe.api.repository import Repository
from icefloe.api.session import Session
from icefloe.effects import run_blocking
from icefloe.errors import ConflictError, IcefloeError, SessionStateError
from icefloe.format.layout import manifest_key
from icefloe.format.transaction_log import TransactionLog
from icefloe.pipeline.planning import FEW_REFERENCES
from icefloe.records import Record, replace
from icefloe.repo.context import RepoContext
from icefloe.spark.broadcast import WorkerContext
from icefloe.spark.manifest_stage import (
    WritePlan,
    Written,
    changed_chunks,
    gather_regions,
    write_log_in_task,
)
from icefloe.spark.orphans import JOB_METADATA, clear_attempt
from icefloe.spark.progress import OnProgress, Watch
from icefloe.spark.report import AnyReport, Committed
from icefloe.spark.session import cores_of
from icefloe.transactions.commit import LogWriter, commit
from icefloe.transactions.conflicts import ConflictDetector
from icefloe.transactions.external_manifests import link_manifests, write_log

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_log = logging.getLogger(__name__)


class Target(Record):
    """Where a job writes to."""

    repo: Repository
    branch: str
    group: str
    message: str | None = None


class Wave(Record, kw_only=True):
    """One commit, as a producer plans it."""

    stage: str
    what: str
    """How much the stage does, in words."""
    plan: WritePlan
    built: "DataFrame"
    """One row for each region; see `build_manifests`."""
    references: int
    """The largest possible number of new references."""
    message: str
    """Of the commit, unless the caller has one; `{chunks}` stands for the new references."""
    metadata: Mapping[str, Any]
    worker_context: WorkerContext[Any]
    require_openable: Callable[[], tuple[str, ...]]
    """Raise if the linked arrays cannot be opened; return notes for the report."""


class Producer[R: AnyReport](Protocol):
    """Plans what a job writes, one commit after the other."""

    def produce(self, job: "Job") -> R:
        """Plan waves and have the job commit each; return what was done."""
        ...


class Job:
    """Takes what a producer makes to a repository; for one run only."""

    def __init__(
        self,
        spark: "SparkSession",
        target: Target,
        on_progress: OnProgress | None = None,
        *,
        few_references: int = FEW_REFERENCES,
    ) -> None:
        self.spark, self.target = spark, target
        self.context: RepoContext = target.repo._context  # noqa: SLF001 - the same package
        self.cores = cores_of(spark)
        self.id = secrets.token_hex(8)
        self.watch = Watch(spark, f"icefloe-{self.id}", on_progress)
        self._few_references = few_references

    def run[R: AnyReport](self, producer: Producer[R]) -> R:
        """Commit everything that the producer makes."""
        return replace(producer.produce(self), stages=self.watch.seconds)

    def session(self) -> Session:
        """Open a session at the tip of the branch."""
        return self.target.repo.writable_session(self.target.branch)

    def commit(self, session: Session, wave: Wave) -> Committed:
        """Have executors write the manifests of a wave, link these, and make them a version."""
        state = session._session  # noqa: SLF001 - the same package
        is_small = wave.references <= self._few_references
        with (
            _cleaning(self.context, self.id) as outcome,
            persisted(wave.built, is_persistent=not is_small) as built,
        ):
            with self.watch.stage(wave.stage, wave.what):
                written = gather_regions(built, with_changes=is_small)
            outcome.note(written)
            for array in wave.plan.arrays:
                link_manifests(state, array.path, written.regions.get(array.number, []))
            notes = wave.require_openable()
            with self.watch.stage("commit", self.target.branch), outcome.deciding():
                work = commit(
                    state,
                    self.target.message or wave.message.format(chunks=written.references),
                    metadata={JOB_METADATA: self.id, **wave.metadata},
                    solver=ConflictDetector(),
                    log_writer=self._log_writer(wave, written, built),
                )
                snapshot = str(run_blocking(work))
        return Committed(
            snapshot=snapshot,
            references=written.references,
            data_bytes=written.data_bytes,
            manifests=outcome.manifests,
            notes=notes,
        )

    def _log_writer(self, wave: Wave, written: Written, built: "DataFrame") -> LogWriter:
        """Return the writer of the log: the driver if it has all changed coordinates, or a task."""

        async def write(own: TransactionLog) -> None:
            if written.changes is None:
                write_log_in_task(built, wave.plan, own, wave.worker_context)
            else:
                changed = changed_chunks(wave.plan, written.changes)
                await write_log(self.context.assets, own, changed)

        return write


@contextmanager
def _cleaning(context: RepoContext, job: str) -> "Iterator[_Outcome]":
    """Remove what attempts wrote for nothing when all is over, however it ends."""
    outcome = _Outcome()
    try:
        yield outcome
    finally:
        if outcome.is_known:
            try:
                clear_attempt(context, job, used=outcome.used, successful=outcome.successful)
            except IcefloeError as error:  # the job itself ended as it ended
                _log.warning(
                    "the notes of job %s are still there: icefloe.spark.discard_attempt removes"
                    " them with what they name (%s)",
                    job,
                    error,
                )


class _Outcome:
    """What is known of a commit: as long as it is undecided, nothing may be removed."""

    def __init__(self) -> None:
        self.is_known = True
        self.manifests = 0
        """How many manifests the commit links."""
        self._is_committed = False
        self._linked: set[str] = set()
        self._attempts = 0

    @property
    def used(self) -> set[str]:
        """Keys of the manifests that a version uses, and of the notes of copies that it uses."""
        return self._linked if self._is_committed else set()

    @property
    def successful(self) -> int:
        """How many attempts at regions were of use."""
        return self._attempts if self._is_committed else 0

    def note(self, written: Written) -> None:
        """Note what the commit will link, and attempts at copies that it will refer to."""
        regions = [region for linked in written.regions.values() for region in linked]
        parts = [part for region in regions for part in region.parts]
        self.manifests = len(parts)
        self._linked = {manifest_key(part.manifest.id) for part in parts} | written.copies
        self._attempts = len(regions) + len(written.copies)

    @contextmanager
    def deciding(self) -> Iterator[None]:
        """Commit in the body; only conflicts and refusals tell that nothing was committed."""
        self.is_known = False
        try:
            yield
        except (ConflictError, SessionStateError):
            self.is_known = True
            raise
        self.is_known = self._is_committed = True


@contextmanager
def persisted(rows: "DataFrame", *, is_persistent: bool = True) -> "Iterator[DataFrame]":
    """Keep rows on the disks of executors; they are never gathered."""
    if not is_persistent:
        yield rows
        return
    from pyspark import StorageLevel

    persisted_rows = rows.persist(StorageLevel.DISK_ONLY)
    try:
        yield persisted_rows
    finally:
        persisted_rows.unpersist()
