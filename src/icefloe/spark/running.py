"""One run of a job, from sources to a commit."""

import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from icefloe.api.repository import Repository
from icefloe.api.session import Session
from icefloe.effects import run_blocking
from icefloe.engine.commit import commit
from icefloe.engine.conflicts import ConflictDetector
from icefloe.engine.linked import LinkedRegion
from icefloe.engine.linking import link_manifests, write_log
from icefloe.errors import (
    ConflictError,
    ErrorKind,
    IcefloeError,
    InvalidInputError,
    SourceError,
)
from icefloe.format.layout import manifest_key
from icefloe.format.transaction_log import TransactionLog
from icefloe.pipeline.access import SourceAccess
from icefloe.pipeline.combine import Combined, Existing, combine
from icefloe.pipeline.existing import holds_arrays, read_existing
from icefloe.pipeline.facts import FileFacts, SourceState
from icefloe.pipeline.local import write_metadata, write_native
from icefloe.pipeline.options import CombineOptions, ParseOptions
from icefloe.pipeline.plans import places_table, plan_arrays
from icefloe.pipeline.records import (
    OnChanged,
    Sorted,
    SourceRecord,
    options_to_json,
    read_record,
    sort_sources,
    write_record,
)
from icefloe.pipeline.report import MisfitsError, Report
from icefloe.pipeline.taken import recorded_files, without_taken_places
from icefloe.spark.attempts import JOB_METADATA, clear_attempt
from icefloe.spark.listing import Sources, list_states
from icefloe.spark.report import JobReport
from icefloe.spark.scan import gather_facts, scan
from icefloe.spark.session import cores_of
from icefloe.spark.watching import OnProgress, Watch
from icefloe.spark.workers import Shipped, shipped
from icefloe.spark.write import (
    WritePlan,
    Written,
    gather_regions,
    touched,
    write,
    write_log_elsewhere,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_log = logging.getLogger(__name__)

_FEW_REFERENCES: Final = 1_000_000
"""The driver writes the log of so many itself: compressed, they take a few megabytes."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where a job writes to."""

    repo: Repository
    branch: str
    group: str
    message: str | None


@dataclass(frozen=True, slots=True)
class _Found:
    """What the scan found, and how it fits with what is there."""

    facts: Sequence[FileFacts]
    combined: Combined
    existing: Existing | None
    record: SourceRecord | None

    def kept(self) -> set[str]:
        """Name the arrays that are there, and need no new references if no file adds to them.

        A file that is replaced may be the one that they point to.
        """
        if self.existing is None:
            return set()
        known = {} if self.record is None else self.record.by_url()
        if any(self.facts[number].url in known for number in self.combined.files):
            return set()
        return set(self.existing.schema.by_path)


class Job:
    """Takes files to a commit; for one run only."""

    def __init__(
        self,
        spark: "SparkSession",
        target: Target,
        options: CombineOptions,
        parse: ParseOptions,
        access: SourceAccess,
        on_progress: OnProgress | None,
    ) -> None:
        self._spark, self._target, self._options = spark, target, options
        self._parse, self._access = parse, access
        self._context = target.repo._context  # noqa: SLF001 - the same package
        self._cores = cores_of(spark)
        self.id = secrets.token_hex(8)
        self._watch = Watch(spark, f"icefloe-{self.id}", on_progress)

    def run(self, sources: "Sources", *, append: bool, on_changed: OnChanged) -> JobReport:
        """Do all of it; without `append` the group must not hold a dataset."""
        session = self._target.repo.writable_session(self._target.branch)
        record = read_record(session.store, self._target.group)
        if record is not None and not append:
            raise InvalidInputError(
                f"the group {self._target.group!r} holds a dataset of {len(record.files)} files"
                " already: append to it, or choose another group",
                ErrorKind.NODE_ALREADY_EXISTS,
            )
        with self._watch.stage("list", "sources"):
            listed = sort_sources(record, list_states(sources, self._access))
        wanted = _wanted(listed, on_changed)
        report = self._empty_report(listed, wanted)
        if not wanted:
            return replace(report, stages=self._watch.seconds)
        with shipped(self._spark, (self._context, self._access)) as reach:
            scanned = scan(self._spark, wanted, self._parse, reach, cores=self._cores)
            with _persisted(scanned) as kept:
                with self._watch.stage("scan", f"{len(wanted)} files"):
                    facts = gather_facts(kept, wanted)
                with self._watch.stage("combine", f"{len(facts)} files"):
                    found = self._combine(session, record, facts, append=append)
                report = replace(report, scan=found.combined.report)
                if found.combined.files:
                    report = self._write(session, found, kept, reach, report)
        return replace(report, stages=self._watch.seconds)

    def _empty_report(self, listed: Sorted, wanted: Sequence[SourceState]) -> JobReport:
        again = {state.url for state in listed.changed}
        return JobReport(
            self.id,
            self._target.branch,
            self._target.group,
            Report(0, 0),
            known=len(listed.known),
            changed=tuple(sorted(again)),
            replaced=tuple(state.url for state in wanted if state.url in again),
        )

    def _combine(
        self,
        session: Session,
        record: SourceRecord | None,
        facts: Sequence[FileFacts],
        *,
        append: bool,
    ) -> _Found:
        store, group = session.store, self._target.group
        existing = None
        if append and holds_arrays(store, group):
            existing = read_existing(store, group, self._options)
        combined = combine(facts, self._options, existing)
        combined = without_taken_places(facts, combined, self._options, existing, record)
        if combined.report.misfits and self._options.on_misfit == "fail":
            raise MisfitsError(combined.report)
        if existing is None:
            self._require_free(session, combined)
        return _Found(facts, combined, existing, record)

    def _require_free(self, session: Session, combined: Combined) -> None:
        group = self._target.group
        for array in combined.arrays:
            path = f"/{group}/{array.path}" if group else f"/{array.path}"
            if session._session.tree.find(path) is not None:  # noqa: SLF001 - the same package
                raise InvalidInputError(
                    f"there is an array or group at {path} already: append to it, or choose"
                    " another group",
                    ErrorKind.NODE_ALREADY_EXISTS,
                )

    def _write(
        self,
        session: Session,
        found: _Found,
        scanned: "DataFrame",
        reach: Shipped,
        report: JobReport,
    ) -> JobReport:
        self._write_small(session, found)
        state = session._session  # noqa: SLF001 - the same package
        arrays = plan_arrays(
            state, self._target.group, found.facts, found.combined, kept=found.kept()
        )
        plan = WritePlan(self.id, int(time.time()), tuple(arrays))
        expected = sum(found.facts[number].references for number in found.combined.files)
        built = write(
            self._spark,
            scanned,
            places_table(found.facts, found.combined),
            plan,
            reach,
            cores=self._cores,
            references=expected,
        )
        is_small = expected <= _FEW_REFERENCES
        with self._cleaning() as outcome, _persisted(built, wanted=not is_small) as kept:
            with self._watch.stage("write", f"{expected} chunks"):
                written = gather_regions(kept, with_changes=is_small)
            for array in arrays:
                regions = written.regions.get(array.number, [])
                link_manifests(state, array.path, regions)
                outcome.note(regions)
            with self._watch.stage("commit", self._target.branch):
                log_writer = self._log_writer(plan, written, kept, reach)
                with outcome.deciding():
                    snapshot = self._commit(session, len(found.combined.files), log_writer)
        return replace(
            report,
            snapshot=snapshot,
            references=written.references,
            data_bytes=written.data_bytes,
            manifests=len(outcome.linked),
        )

    def _write_small(self, session: Session, found: _Found) -> None:
        """Write what the driver writes itself: metadata, coordinates and the record."""
        store, group = session.store, self._target.group
        write_metadata(store, group, found.combined, found.existing)
        write_native(store, group, found.combined)
        write_record(
            store,
            group,
            found.record,
            recorded_files(found.facts, found.combined, self._options),
            options_to_json(self._options, self._parse),
        )

    def _log_writer(
        self, plan: WritePlan, written: Written, built: "DataFrame", reach: Shipped
    ) -> Callable[[TransactionLog], Awaitable[None]]:
        async def write_here(own: TransactionLog) -> None:
            await write_log(self._context.assets, own, touched(plan, written.changes))

        async def write_there(own: TransactionLog) -> None:
            write_log_elsewhere(built, plan, own, reach)

        return write_there if written.changes is None else write_here

    def _commit(
        self, session: Session, files: int, log_writer: Callable[[TransactionLog], Awaitable[None]]
    ) -> str:
        metadata = {JOB_METADATA: self.id, "icefloe.files": files}
        work = commit(
            session._session,  # noqa: SLF001 - the same package
            self._target.message or f"{files} files by reference",
            metadata=metadata,
            solver=ConflictDetector(),
            log_writer=log_writer,
        )
        return str(run_blocking(work))

    @contextmanager
    def _cleaning(self) -> "Iterator[_Outcome]":
        """Remove what attempts wrote for nothing when all is over, however it ends."""
        outcome = _Outcome()
        try:
            yield outcome
        finally:
            if outcome.is_known:
                self._clear(outcome)

    def _clear(self, outcome: "_Outcome") -> None:
        used, successful = outcome.used, outcome.successful
        try:
            clear_attempt(self._context, self.id, used=used, successful=successful)
        except IcefloeError as error:  # the job itself ended as it ended
            _log.warning(
                "the notes of job %s are still there: icefloe.spark.discard_attempt removes them"
                " with what they name (%s)",
                self.id,
                error,
            )


class _Outcome:
    """What is known of a commit: as long as it is undecided, nothing may be removed."""

    def __init__(self) -> None:
        self.linked: set[str] = set()
        """Keys of manifests."""
        self.is_known = True
        self._is_committed = False
        self._regions = 0

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

    @contextmanager
    def deciding(self) -> Iterator[None]:
        """Commit in the body. Only a conflict tells for certain that nothing was committed."""
        self.is_known = False
        try:
            yield
        except ConflictError:
            self.is_known = True
            raise
        self.is_known = self._is_committed = True


def _wanted(listed: Sorted, on_changed: OnChanged) -> tuple[SourceState, ...]:
    if listed.changed and on_changed == "fail":
        first = listed.changed[0].url
        raise SourceError(
            f"{len(listed.changed)} files have changed since they were ingested, {first} among"
            " them: replace them with on_changed='replace', or leave them as they are",
            ErrorKind.SOURCE_CHANGED,
            url=first,
        )
    return (*listed.new, *(listed.changed if on_changed == "replace" else ()))


@contextmanager
def _persisted(rows: "DataFrame", *, wanted: bool = True) -> "Iterator[DataFrame]":
    """Keep rows on the disks of executors; they are never gathered."""
    if not wanted:
        yield rows
        return
    from pyspark import StorageLevel  # noqa: PLC0415 - only where there is a session

    kept = rows.persist(StorageLevel.DISK_ONLY)
    try:
        yield kept
    finally:
        kept.unpersist()
