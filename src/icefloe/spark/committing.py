"""From compared files to a commit: manifests written by executors, linked by the driver."""

import logging
import time
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from typing import TYPE_CHECKING

from icefloe.api.repository import Repository
from icefloe.api.session import Session
from icefloe.effects import run_blocking
from icefloe.errors import ConflictError, IcefloeError, SessionStateError
from icefloe.format.layout import manifest_key
from icefloe.format.transaction_log import TransactionLog
from icefloe.manifests.external import LinkedRegion
from icefloe.pipeline.checking.opening import require_opening
from icefloe.pipeline.combining.combine import Combined, Existing
from icefloe.pipeline.files.facts import FileFacts
from icefloe.pipeline.files.options import CombineOptions, ParseOptions
from icefloe.pipeline.planning import FEW_REFERENCES
from icefloe.pipeline.provenance.existing import read_existing
from icefloe.pipeline.provenance.records import (
    SourceRecord,
    options_to_json,
    read_record,
    recorded_files,
    write_record,
)
from icefloe.pipeline.writing.metadata import write_metadata, write_native
from icefloe.pipeline.writing.plans import places_table, plan_arrays
from icefloe.records import Record, replace
from icefloe.repo.context import RepoContext
from icefloe.spark.attempts import JOB_METADATA, clear_attempt
from icefloe.spark.watching import Watch
from icefloe.spark.workers import Shipped
from icefloe.spark.write import (
    WritePlan,
    Written,
    gather_regions,
    touched,
    write,
    write_log_elsewhere,
)
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
    message: str | None


class Found(Record):
    """Files that fit together, and fit the existing dataset."""

    facts: Sequence[FileFacts]
    """Of all files that were parsed."""
    combined: Combined
    existing: Existing | None
    record: SourceRecord | None

    @property
    def references(self) -> int:
        """How many chunks the files have that are used."""
        return sum(self.facts[number].references for number in self.combined.files)

    def known(self) -> set[str]:
        """Name the files that are there already."""
        return set() if self.record is None else set(self.record.by_url())

    def kept(self) -> set[str]:
        """Name the arrays that are there, and need no new references if no file adds to them.

        A file that is replaced may be the one that they point to.
        """
        if self.existing is None:
            return set()
        known = self.known()
        if any(self.facts[number].url in known for number in self.combined.files):
            return set()
        return set(self.existing.schema.by_path)

    def on_top(
        self, session: Session, wave: Combined, group: str, options: CombineOptions
    ) -> "Found":
        """Take one wave of the files, on top of what the waves before left."""
        existing = read_existing(session.store, group, options)
        return replace(
            self,
            combined=wave,
            existing=existing,
            record=read_record(session.store, group),
        )


class Committed(Record):
    """What one commit did."""

    snapshot: str
    references: int
    data_bytes: int
    manifests: int
    notes: tuple[str, ...] = ()


class Committer(Record):
    """Writes and commits what was found, once or in several waves."""

    spark: "SparkSession"
    job: str
    target: Target
    options: CombineOptions
    parse: ParseOptions
    reach: Shipped
    watch: Watch
    cores: int
    few_references: int = FEW_REFERENCES

    @property
    def _context(self) -> RepoContext:
        return self.target.repo._context  # noqa: SLF001 - the same package

    def commit(self, session: Session, combined_files: Found, scanned: "DataFrame") -> Committed:
        """Write everything, and make it a version."""
        self._write_small(session, combined_files)
        notes = require_opening(session, self.target.group, combined_files.combined)
        state = session._session  # noqa: SLF001 - the same package
        arrays = plan_arrays(
            state,
            self.target.group,
            combined_files.facts,
            combined_files.combined,
            kept_paths=combined_files.kept(),
        )
        plan = WritePlan(self.job, int(time.time()), tuple(arrays))
        built = write(
            self.spark,
            scanned,
            places_table(combined_files.facts, combined_files.combined, combined_files.known()),
            plan,
            self.reach,
            cores=self.cores,
            references=combined_files.references,
        )
        is_small = combined_files.references <= self.few_references
        with (
            cleaning(self._context, self.job) as outcome,
            persisted(built, is_persistent=not is_small) as persisted_rows,
        ):
            with self.watch.stage("write", f"{combined_files.references} chunks"):
                written = gather_regions(persisted_rows, with_changes=is_small)
            for array in arrays:
                regions = written.regions.get(array.number, [])
                link_manifests(state, array.path, regions)
                outcome.note(regions)
            with self.watch.stage("commit", self.target.branch):
                writer = log_writer(self._context, plan, written, persisted_rows, self.reach)
                with outcome.deciding():
                    snapshot = self._commit(session, len(combined_files.combined.files), writer)
        return Committed(snapshot, written.references, written.data_bytes, outcome.manifests, notes)

    def _write_small(self, session: Session, combined_files: Found) -> None:
        """Write what the driver writes itself: metadata, coordinates and the record."""
        store, group = session.store, self.target.group
        write_metadata(store, group, combined_files.combined, combined_files.existing)
        write_native(store, group, combined_files.combined)
        write_record(
            store,
            group,
            combined_files.record,
            recorded_files(combined_files.facts, combined_files.combined, self.options),
            options_to_json(self.options, self.parse),
        )

    def _commit(self, session: Session, files: int, writer: LogWriter) -> str:
        work = commit(
            session._session,  # noqa: SLF001 - the same package
            self.target.message or f"{files} files by reference",
            metadata={JOB_METADATA: self.job, "icefloe.files": files},
            solver=ConflictDetector(),
            log_writer=writer,
        )
        return str(run_blocking(work))


def log_writer(
    context: RepoContext, plan: WritePlan, written: Written, built: "DataFrame", reach: Shipped
) -> LogWriter:
    """Choose who writes the log: the driver if it has the coordinates of new chunks, or a task."""

    async def write_here(own: TransactionLog) -> None:
        await write_log(context.assets, own, touched(plan, written.changes))

    async def write_there(own: TransactionLog) -> None:
        write_log_elsewhere(built, plan, own, reach)

    return write_there if written.changes is None else write_here


@contextmanager
def cleaning(context: RepoContext, job: str) -> "Iterator[Outcome]":
    """Remove what attempts wrote for nothing when all is over, however it ends."""
    outcome = Outcome()
    try:
        yield outcome
    finally:
        if outcome.is_known:
            _clear(context, job, outcome)


def _clear(context: RepoContext, job: str, outcome: "Outcome") -> None:
    used, successful = outcome.used, outcome.successful
    try:
        clear_attempt(context, job, used=used, successful=successful)
    except IcefloeError as error:  # the job itself ended as it ended
        _log.warning(
            "the notes of job %s are still there: icefloe.spark.discard_attempt removes them"
            " with what they name (%s)",
            job,
            error,
        )


class Outcome:
    """What is known of a commit: as long as it is undecided, nothing may be removed."""

    def __init__(self) -> None:
        self.linked: set[str] = set()
        """Keys of manifests, and of the notes of attempts that are of use."""
        self.is_known = True
        self._is_committed = False
        self._regions = 0
        self.manifests = 0
        """How many will be linked."""

    @property
    def used(self) -> set[str]:
        """The manifests that a version uses."""
        return self.linked if self._is_committed else set()

    @property
    def successful(self) -> int:
        """How many attempts at regions were of use."""
        return self._regions if self._is_committed else 0

    def note(self, regions: Sequence[LinkedRegion]) -> None:
        """Note what a commit will link."""
        self._regions += len(regions)
        for region in regions:
            self.linked |= {manifest_key(part.manifest.id) for part in region.parts}
            self.manifests += len(region.parts)

    def note_copies(self, notes: AbstractSet[str]) -> None:
        """Note attempts at copies that the manifests to be linked refer to, by their notes."""
        self._regions += len(notes)
        self.linked |= notes

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
