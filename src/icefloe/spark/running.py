"""One run of a job, from sources to a commit, or to several."""

import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING

from icefloe.api.session import Session
from icefloe.errors import ErrorKind, InvalidInputError, SourceError
from icefloe.pipeline.checking.values import choose_files, plan_check, require_same_values
from icefloe.pipeline.combining.combine import Combined, combine
from icefloe.pipeline.combining.report import MisfitsError, Report
from icefloe.pipeline.files.access import SourceAccess
from icefloe.pipeline.files.facts import FileFacts, SourceState
from icefloe.pipeline.files.options import CombineOptions, ParseOptions
from icefloe.pipeline.provenance.existing import holds_arrays, read_existing
from icefloe.pipeline.provenance.records import (
    OnChanged,
    Sorted,
    SourceRecord,
    read_record,
    sort_sources,
    without_taken_places,
)
from icefloe.pipeline.writing.plans import cut_into_waves
from icefloe.records import asdict, replace
from icefloe.spark.checking import check
from icefloe.spark.committing import Committer, Found, Target, persisted
from icefloe.spark.listing import Sources, list_states, look_at_known
from icefloe.spark.report import JobReport
from icefloe.spark.scan import gather_facts, scan
from icefloe.spark.session import cores_of
from icefloe.spark.watching import OnProgress, Watch
from icefloe.spark.workers import Shipped, shipped

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Job:
    """Takes files to a repository; for one run only."""

    def __init__(
        self,
        spark: "SparkSession",
        target: Target,
        options: CombineOptions,
        parse: ParseOptions,
        access: SourceAccess,
        on_progress: OnProgress | None,
        *,
        most_references: int,
    ) -> None:
        self._spark, self._target, self._options = spark, target, options
        self._parse, self._access, self._most_references = parse, access, most_references
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
            states = look_at_known(list_states(sources, self._access), record, self._access)
            listed = sort_sources(record, states)
        files_to_ingest = _wanted(listed, on_changed)
        report = self._empty_report(listed, files_to_ingest)
        if files_to_ingest:
            with shipped(self._spark, (self._context, self._access)) as reach:
                report = self._ingest(
                    session, record, files_to_ingest, reach, report, append=append
                )
        return replace(report, stages=self._watch.seconds)

    def _empty_report(self, listed: Sorted, files: Sequence[SourceState]) -> JobReport:
        again = {state.url for state in listed.changed}
        return JobReport(
            self.id,
            self._target.branch,
            self._target.group,
            Report(0, 0),
            known=len(listed.known),
            changed=tuple(sorted(again)),
            replaced=tuple(state.url for state in files if state.url in again),
        )

    def _ingest(
        self,
        session: Session,
        record: SourceRecord | None,
        files: Sequence[SourceState],
        reach: Shipped,
        report: JobReport,
        *,
        append: bool,
    ) -> JobReport:
        scanned = scan(self._spark, files, self._parse, reach, cores=self._cores)
        with persisted(scanned) as persisted_rows:
            with self._watch.stage("scan", f"{len(files)} files"):
                facts = gather_facts(persisted_rows, files)
            with self._watch.stage("combine", f"{len(facts)} files"):
                combined_files = self._combine(session, record, facts, append=append)
            report = replace(report, scan=combined_files.combined.report)
            if not combined_files.combined.files:
                return report
            report = replace(report, scan=self._check(combined_files, persisted_rows, reach))
            return self._commit(session, combined_files, persisted_rows, reach, report)

    def _check(self, combined_files: Found, scanned: "DataFrame", reach: Shipped) -> Report:
        """Compare a sample of values with independent readers."""
        wanted = self._options.check_values
        if wanted == "none":
            return combined_files.combined.report
        files = choose_files(combined_files.facts, combined_files.combined, wanted)
        plan = plan_check(combined_files.combined, wanted, self._parse.group)
        with self._watch.stage("check", f"values of {len(files)} files"):
            checks = check(self._spark, scanned, files, plan, reach, cores=self._cores)
        return require_same_values(
            combined_files.combined.report, checks, combined_files.facts, self._access
        )

    def _combine(
        self,
        session: Session,
        record: SourceRecord | None,
        facts: Sequence[FileFacts],
        *,
        append: bool,
    ) -> Found:
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
        return Found(facts, combined, existing, record)

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

    def _commit(
        self,
        session: Session,
        combined_files: Found,
        scanned: "DataFrame",
        reach: Shipped,
        report: JobReport,
    ) -> JobReport:
        """Commit all files, wave by wave if they are too many for one commit."""
        committer = Committer(
            self._spark,
            self.id,
            self._target,
            self._options,
            self._parse,
            reach,
            self._watch,
            self._cores,
        )
        waves = cut_into_waves(
            combined_files.facts,
            combined_files.combined,
            self._options,
            combined_files.existing,
            most=self._most_references,
        )
        for number, combined in enumerate(waves):
            wave = replace(combined_files, combined=combined)
            if number:
                session = self._target.repo.writable_session(self._target.branch)
                wave = combined_files.on_top(session, combined, self._target.group, self._options)
            done = committer.commit(session, wave, scanned)
            report = report.with_commit(**asdict(done))
        return report


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
