"""From files to a source of copies: they are parsed, compared, and referred to in a staging area.

list -> scan -> combine -> check values -> references of each kind of files
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from icefloe.api.session import Session
from icefloe.pipeline.checking.values import choose_files, plan_check, require_same_values
from icefloe.pipeline.combining.combine import Combined, PlacedFile, combine
from icefloe.pipeline.combining.copied import CopyRules
from icefloe.pipeline.combining.remedies import misfits_error
from icefloe.pipeline.combining.report import Report
from icefloe.pipeline.copying.joined import (
    DATASET,
    JoinedFiles,
    find_kinds,
    joined_arrays,
    kind_group,
)
from icefloe.pipeline.copying.layouts import REFERENCES_PER_COMMIT
from icefloe.pipeline.copying.origins import RepositorySource, staged, staging_repository
from icefloe.pipeline.files.facts import FileFacts
from icefloe.pipeline.files.options import CombineOptions, ParseOptions
from icefloe.pipeline.files.sources import SourceAccess, Sources, list_states
from icefloe.pipeline.running.engines import Rows, WorkerContext
from icefloe.pipeline.running.job import Job, Target
from icefloe.pipeline.running.orphans import clear_staging
from icefloe.pipeline.running.progress import OnProgress
from icefloe.pipeline.running.virtual import (
    CombinedFiles,
    compare_values,
    gather_facts,
    plan_references,
    scan,
)
from icefloe.pipeline.writing.building import cut_into_waves
from icefloe.pipeline.writing.dataset import write_metadata, write_native
from icefloe.records import Record, replace
from icefloe.reports import counted

type Workers = WorkerContext[SourceAccess]


@contextmanager
def staging_job(job: Job, access: SourceAccess, on_progress: OnProgress | None) -> Iterator[Job]:
    """Open a job whose target is the staging repository of another one, for a while."""
    try:
        repository = staging_repository(job.context.storage, job.id, access)
        staging = Job(job.engine, Target(repository, "main", ""), on_progress)
        yield staging
        job.watch.add(staging.watch)
    finally:
        clear_staging(job.context, job.id)


type Combine = Callable[[Sequence[FileFacts]], CombinedFiles]
"""Compares files, and raises an error for those that must not be left out."""


class StagedFiles(Record, kw_only=True):
    """Files that were parsed, compared and referred to."""

    report: Report
    files: CombinedFiles
    kinds: Sequence[Combined] = ()
    name: str = ""
    staging: Session | None = None
    """None if no file fits."""
    options: CombineOptions
    parse: ParseOptions
    access: SourceAccess
    rules: CopyRules

    def joined(
        self, combined: Combined | None = None, earlier: RepositorySource | None = None
    ) -> JoinedFiles:
        """Return the dataset as a source of copies: of all files, or of those that add to a copy.

        `earlier` is that copy, as it was before.
        """
        assert self.staging is not None, "some files fit"
        facts, existing = self.files.facts, None if earlier is None else self.files.existing
        chosen = combined or self.files.combined
        return JoinedFiles(
            staging=self.staging,
            access=self.access,
            arrays=joined_arrays(
                facts, chosen, self.kinds, self.rules, self.parse.group or "", existing
            ),
            name=self.name,
            is_near=all(facts[number].url.startswith("file:") for number in chosen.files),
            earlier=earlier,
        )


class FilesToStage(Record, kw_only=True):
    """Files that make one dataset of copied values."""

    sources: Sources
    options: CombineOptions
    parse: ParseOptions
    access: SourceAccess
    rules: CopyRules

    def stage(self, job: Job, combine_files: Combine | None = None) -> StagedFiles:
        """Return what was found, and how files are joined.

        The target of the job is the staging repository.
        """
        with job.watch.stage("list", "sources"):
            states = list_states(self.sources, self.access)
        with (
            job.engine.share(job.context, self.access) as workers,
            scan(job, states, self.parse, workers).kept() as scanned,
        ):
            facts = gather_facts(job, scanned, states)
            with job.watch.stage("combine", counted(len(facts), "file")):
                files = (combine_files or self._combined)(facts)
            combined = files.combined
            staged_files = self.stage_combined(job, files.facts, combined, scanned, workers)
        return replace(staged_files, files=files)

    def _combined(self, facts: Sequence[FileFacts]) -> CombinedFiles:
        """Compare files whose values are copied to where there is nothing."""
        combined = combine(facts, self.options, None, self.rules)
        if combined.report.misfits and self.options.on_misfit == "fail":
            raise misfits_error(combined.report, facts, self.options, None, self.rules)
        return CombinedFiles(facts, combined)

    def stage_combined(
        self,
        job: Job,
        facts: Sequence[FileFacts],
        combined: Combined,
        scanned: Rows,
        workers: Workers,
    ) -> StagedFiles:
        """Do the same with files that were combined."""
        staged_files = StagedFiles(
            report=combined.report,
            files=CombinedFiles(facts, combined),
            options=self.options,
            parse=self.parse,
            access=self.access,
            rules=self.rules,
        )
        if not combined.files:
            return staged_files
        kinds = find_kinds(facts, combined)
        report = self._checked(job, facts, combined, kinds, scanned, workers)
        _describe(job, combined)
        for number, kind in enumerate(kinds):
            _refer(job, kind_group(number), facts, kind, self.options, scanned, workers)
        is_near = all(facts[number].url.startswith("file:") for number in combined.files)
        return replace(
            staged_files,
            report=report,
            kinds=kinds,
            name=self._name(facts, combined),
            staging=staged(job.target.repo, is_near=is_near),
        )

    def _checked(
        self,
        job: Job,
        facts: Sequence[FileFacts],
        combined: Combined,
        kinds: Sequence[Combined],
        scanned: Rows,
        workers: Workers,
    ) -> Report:
        """Compare a sample of the values of each kind with independent readers."""
        wanted = self.options.check_values
        if wanted == "none":
            return combined.report
        chosen: list[Mapping[int, PlacedFile]] = [
            choose_files(facts, kind, wanted) for kind in kinds
        ]
        checks = []
        files = counted(sum(map(len, chosen)), "file")
        with job.watch.stage("check", f"values of {files}"):
            for kind, of_kind in zip(kinds, chosen, strict=True):
                plan = plan_check(kind, wanted, self.parse.group)
                checks += compare_values(job, scanned, of_kind, plan, workers)
        return require_same_values(combined.report, checks, facts, self.access)

    def _name(self, facts: Sequence[FileFacts], combined: Combined) -> str:
        states = sorted(repr(facts[number].state) for number in combined.files)
        text = "\n".join([*states, repr(self.rules), repr(self.options), repr(self.parse)])
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _describe(job: Job, combined: Combined) -> None:
    """Write the metadata of the dataset, and the values of its small arrays."""
    session = job.session()
    write_metadata(session.store, DATASET, combined, None)
    write_native(session.store, DATASET, combined)
    session.commit("description")


def _refer(
    job: Job,
    group: str,
    facts: Sequence[FileFacts],
    kind: Combined,
    options: CombineOptions,
    scanned: Rows,
    workers: Workers,
) -> None:
    """Commit the references of a kind of files."""
    arrays = tuple(array for array in kind.arrays if not array.is_native)
    if not arrays:
        return
    whole = replace(kind, arrays=arrays, native={})
    kept: set[str] = set()
    for part in cut_into_waves(facts, whole, options, None, most=REFERENCES_PER_COMMIT):
        session = job.session()
        if not kept:
            write_metadata(session.store, group, whole, None)
        files = CombinedFiles(facts, replace(part, arrays=arrays))
        wave = plan_references(job, session, group, files, scanned, workers, kept_paths=kept)
        job.commit(session, wave)
        kept = {array.path for array in arrays}
