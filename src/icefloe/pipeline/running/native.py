"""The producer of copies: regions of arrays to objects, with chunks, shards and codecs of choice.

A task copies a region: whole target objects, so that no two tasks write the same one, and no more
than fits into its memory. Values never leave the task that read them; what is shuffled is
references to the new objects.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from icefloe.api.session import Session, state_of
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format.arrow import pa
from icefloe.pipeline.copying.copies import (
    GroupToCopy,
    array_copies,
    digest_of,
    find_arrays,
    make_copies,
    occupied,
    plan_copies,
)
from icefloe.pipeline.copying.layouts import (
    CopyOptions,
    cut_into_slabs,
    plan_slabs,
    values_bytes,
)
from icefloe.pipeline.copying.origins import CopySource
from icefloe.pipeline.copying.transfer import CopyPlan, copy_regions
from icefloe.pipeline.files.references import References
from icefloe.pipeline.planning import copy_tasks, write_tasks
from icefloe.pipeline.running.engines import NUMBER, WorkerContext
from icefloe.pipeline.running.job import (
    PLACED,
    CopyReport,
    Job,
    Wave,
    WritePlan,
    build_manifests,
    placed_batch,
)
from icefloe.pipeline.running.orphans import note_key
from icefloe.pipeline.writing.building import (
    ArrayPlan,
    Notes,
    RegionContent,
    cut_by_region,
    native_table,
)
from icefloe.pipeline.writing.dataset import require_openable
from icefloe.records import Record
from icefloe.repo.context import RepoContext
from icefloe.reports import counted, shown_bytes

_COPY: Final = "icefloe.copy"
_WAVE: Final = "icefloe.wave"
_WAVES: Final = "icefloe.waves"

_COPIES: Final = -1
"""Stands in notes for the region of a manifest."""

type Workers = WorkerContext[CopySource]


class NativeProducer(Record, kw_only=True):
    """Copies the arrays of a group."""

    source: CopySource
    options: CopyOptions
    from_files: bool = False
    """Whether the source is a dataset of files, which xarray must be able to open."""

    def produce(self, job: Job) -> CopyReport:
        """Copy everything; go on where an earlier run was broken off."""
        session, options, source = job.session(), self.options, self.source
        with job.watch.stage("plan", "arrays"):
            arrays = find_arrays(source, options.layout)
            grids = [shape.grid for shape in arrays.shapes]
            waves = cut_into_slabs(grids, options.most_references) or [[]]
            digest = digest_of(source, arrays, waves, options.layout)
            done = self._waves_done(job, session, arrays, digest, len(waves))
        report = CopyReport(
            job=job.id,
            branch=job.target.branch,
            group=job.target.group,
            arrays=len(arrays.arrays),
            values_bytes=sum(values_bytes(array.about) for array in arrays.arrays),
            skipped_commits=done,
        )
        is_near = source.is_near and job.context.is_near
        limits = options.limits(job.cores, is_near=is_near)
        with job.engine.share(job.context, source) as workers:
            for number, slabs in enumerate(waves[done:], start=done):
                if number:
                    session = job.session()
                else:
                    make_copies(session.store, job.target.group, arrays, options.layout)
                copy_plan = CopyPlan(
                    array_copies(session.store, job.target.group, arrays),
                    plan_slabs(arrays.shapes, arrays.paths, slabs, limits),
                    options.packing,
                    limits.memory_bytes,
                )
                marks = {_COPY: digest, _WAVE: number + 1, _WAVES: len(waves)}
                wave = self._plan(job, session, arrays, copy_plan, marks, workers)
                report = report.with_commit(job.commit(session, wave), copy_plan.regions)
        return report

    def _waves_done(
        self, job: Job, session: Session, arrays: GroupToCopy, digest: str, waves: int
    ) -> int:
        """Count the commits of an earlier run that was broken off; refuse to write over others."""
        taken = occupied(session.store, job.target.group, arrays)
        if not taken:
            return 0
        if waves > 1:
            for version in job.target.repo.ancestry(branch=job.target.branch):
                if version.metadata.get(_COPY) == digest:
                    done = version.metadata.get(_WAVE)
                    if isinstance(done, int) and done < waves:
                        return done
                    break
        if not self.options.overwrite:
            raise InvalidInputError(
                f"there is an array or group at /{taken[0]} already: choose another group, or say"
                " that it is to be replaced (overwrite=True)",
                ErrorKind.NODE_ALREADY_EXISTS,
                path=taken[0],
            )
        return 0

    def _plan(
        self,
        job: Job,
        session: Session,
        arrays: GroupToCopy,
        copy_plan: CopyPlan,
        marks: Mapping[str, Any],
        workers: Workers,
    ) -> Wave:
        group, regions = job.target.group, copy_plan.regions
        state = state_of(session)
        plan = WritePlan(job.id, tuple(plan_copies(state, group, arrays, regions.slabs)))
        tasks = copy_tasks(len(regions), job.cores, regions.size_bytes)
        copied = job.engine.numbers(len(regions), tasks).map(
            _copy, copy_plan, plan, workers, columns=PLACED
        )
        # Until the last wave, coordinates may be incomplete.
        stored = arrays.paths if marks[_WAVE] == marks[_WAVES] else ()
        copied_bytes = arrays.bytes_of(regions.slabs)
        return Wave(
            stage="copy",
            what=f"{counted(regions.objects, 'object')}, {shown_bytes(copied_bytes)} of values",
            items=regions.objects,
            noun="object",
            size_bytes=copied_bytes,
            plan=plan,
            built=build_manifests(
                copied, plan, _assemble, workers, tasks=write_tasks(regions.objects, job.cores)
            ),
            references=regions.objects,
            message="{chunks} copied",
            metadata=marks,
            worker_context=workers,
            require_openable=lambda: require_openable(
                session, group, arrays.paths, stored, needs_xarray=self.from_files
            ),
        )


def _copy(
    batches: "Iterator[pa.RecordBatch]", copy_plan: CopyPlan, plan: WritePlan, workers: Workers
) -> "Iterator[pa.RecordBatch]":
    context, source = workers()
    numbers = (number for batch in batches for number in batch.column(NUMBER).to_pylist())
    new_note = partial(note_key, plan.job, _COPIES, _COPIES)
    for copied in copy_regions(copy_plan, numbers, source.array, context, new_note):
        array, references = plan.arrays[copied.array], copied.references
        is_empty = not len(references) and not len(references.inlined)
        about = " ".join(copied.notes)
        yield placed_batch(
            []
            if is_empty
            else [
                (array.number, region, 0, part.to_bytes(), about)
                for region, part in cut_by_region(array, references)
            ]
        )


async def _assemble(
    _context: RepoContext, _array: ArrayPlan, rows: Sequence[Mapping[str, Any]], _notes: Notes
) -> RegionContent:
    table = native_table([References.from_bytes(row["payload"]) for row in rows])
    return RegionContent(table, copies=frozenset(" ".join(row["about"] for row in rows).split()))
