"""The producer that chooses the form: references where all files fit, otherwise copies.

Files are listed and parsed once; both forms are combined from the same facts.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

from icefloe.pipeline.combining.combine import combine
from icefloe.pipeline.combining.copied import CopyRules
from icefloe.pipeline.combining.remedies import (
    Remedy,
    Way,
    copy_rules,
    find_remedy,
    misfits_error,
)
from icefloe.pipeline.combining.report import Report
from icefloe.pipeline.copying.if_needed import CopyIfNeeded, CopyReason, copied_bytes
from icefloe.pipeline.copying.origins import SourceReader
from icefloe.pipeline.files.facts import FileFacts
from icefloe.pipeline.files.options import CombineOptions
from icefloe.pipeline.files.sources import list_states
from icefloe.pipeline.running.appending import copying_producer
from icefloe.pipeline.running.engines import Engine, Rows
from icefloe.pipeline.running.job import CopyReport, Job, JobReport
from icefloe.pipeline.running.progress import OnProgress
from icefloe.pipeline.running.staging import FilesToStage, staging_job
from icefloe.pipeline.running.virtual import (
    CombinedFiles,
    VirtualProducer,
    gather_facts,
    scan,
)
from icefloe.pipeline.writing.provenance import require_no_record
from icefloe.records import Record, replace
from icefloe.reports import counted

type EngineForCopies = Callable[[int], AbstractContextManager[Engine]]
"""Opens an engine for copies, by the size of the values."""


class AutomaticProducer(Record, kw_only=True):
    """Makes one dataset of many files: by reference if all fit, otherwise by copying values."""

    referring: VirtualProducer
    copying: CopyIfNeeded
    other_options: tuple[CombineOptions, ...] = ()
    """Tried if files do not fit by the first ones; parsers do the same for all of them."""
    engine_for_copies: EngineForCopies | None = None
    """Without, values are copied on the engine of the job."""
    on_progress: OnProgress | None = None

    def produce(self, job: Job) -> JobReport | CopyReport:
        """List, parse and combine the files; refer to them, or copy their values."""
        session, group, access = job.session(), job.target.group, self.referring.access
        if not self.copying.how.overwrite:
            require_no_record(session.store, group)
        context = job.context
        if self.copying.refused:  # then no container has to cover them
            context = replace(context, virtual_reader=SourceReader(access))
        with job.watch.stage("list", "sources"):
            states = list_states(self.referring.sources, access)
        with (
            job.engine.share(context, access) as workers,
            scan(job, states, self.referring.parse, workers).kept() as scanned,
        ):
            facts = gather_facts(job, scanned, states)
            with job.watch.stage("combine", counted(len(facts), "file")):
                chosen, first_report = self._choose(facts)
            if chosen.way.copies is not None:
                reason = self._reason(chosen, chosen.way.copies, first_report)
                self.copying.allow(reason)
                return self._copy(job, facts, chosen, chosen.way.copies, scanned, reason)
            require_no_record(session.store, group)
            return replace(self.referring, options=chosen.way.options).write(
                job,
                session,
                CombinedFiles(facts, chosen.combined),
                scanned,
                workers,
                JobReport(job=job.id, branch=job.target.branch, group=group, scan=first_report),
            )

    def _choose(self, facts: Sequence[FileFacts]) -> tuple[Remedy, Report]:
        """Return the way in which most files fit, and the report on the one that changes least."""
        least = CopyRules(decode=True) if self.copying.how.decode else None
        forms = (*(() if self.copying.refused else (None,)), *copy_rules(least))
        all_options = (self.referring.options, *self.other_options)
        first, *others = [Way(options, rules) for rules in forms for options in all_options]
        combined = combine(facts, first.options, None, first.copies)
        report = combined.report
        chosen = find_remedy(others, facts, None, report) or Remedy(first, combined)
        if chosen.misfits and first.options.on_misfit == "fail":
            raise misfits_error(report, facts, first.options, None, first.copies, may_copy=True)
        return chosen, report

    def _reason(self, chosen: Remedy, rules: CopyRules, first_report: Report) -> CopyReason:
        size_bytes, refused = copied_bytes(chosen.combined), self.copying.refused
        if not refused:
            return CopyReason.of(first_report, size_bytes, decode=rules.decode)
        files = first_report.files
        return CopyReason("", refused, files, files, size_bytes, rules.decode)

    def _copy(
        self,
        job: Job,
        facts: Sequence[FileFacts],
        chosen: Remedy,
        rules: CopyRules,
        scanned: Rows,
        reason: CopyReason,
    ) -> CopyReport:
        access = self.referring.access
        files = FilesToStage(
            sources=self.referring.sources,
            options=chosen.way.options,
            parse=self.referring.parse,
            access=access,
            rules=rules,
        )
        new_engine = self.engine_for_copies
        with staging_job(job, access, self.on_progress) as staging:
            with job.engine.share(staging.context, access) as workers:
                staged = files.stage_combined(staging, facts, chosen.combined, scanned, workers)
            target = job.target
            if staged.staging is None:
                return CopyReport(
                    job=job.id, branch=target.branch, group=target.group, scan=staged.report
                )
            producer = copying_producer(staged, self.copying.how, target.group)
            with (
                nullcontext(job.engine)
                if new_engine is None
                else new_engine(reason.values_bytes) as engine
            ):
                copying = Job(engine, job.target, self.on_progress)
                report = copying.run(producer)
        job.watch.add(copying.watch)
        return replace(report, scan=staged.report, reason=reason)
