"""The producer of copies: regions of arrays to objects, with chunks, shards and codecs of choice.

A task copies a region: whole target objects, so that no two tasks write the same one, and no more
than fits into its memory. Values never leave the task that read them; what is shuffled is
references to the new objects.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

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
from icefloe.pipeline.copying.transfer import Copied, CopyPlan, copy_regions
from icefloe.pipeline.files.references import References
from icefloe.pipeline.planning import copy_tasks, write_tasks
from icefloe.pipeline.running.engines import NUMBER, WorkerContext
from icefloe.pipeline.running.job import (
    PLACED,
    CopyReport,
    Job,
    PlacedRow,
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
from icefloe.pipeline.writing.provenance import require_no_record
from icefloe.records import Record
from icefloe.repo.context import RepoContext
from icefloe.reports import counted, shown_bytes

_COPY: Final = "icefloe.copy"
_WAVE: Final = "icefloe.wave"
_WAVES: Final = "icefloe.waves"

_COPIES: Final = -1
"""Stands in notes for the region of a manifest."""
_NO_ROWS: Final = np.empty(0, np.int64)

type Workers = WorkerContext[CopySource]


class NativeProducer(Record, kw_only=True):
    """Copies the arrays of a group."""

    source: CopySource
    options: CopyOptions
    from_files: bool = False
    """Whether the source is a dataset of files, which xarray must be able to open."""
    write_record: Callable[[Session], None] | None = None
    """Write which files were copied; nothing does if not given."""

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
                    make_copies(
                        session.store,
                        job.target.group,
                        arrays,
                        options.layout,
                        gets_record=self.write_record is not None,
                    )
                copy_plan = CopyPlan(
                    array_copies(session.store, job.target.group, arrays),
                    plan_slabs(arrays.shapes, arrays.paths, slabs, limits),
                    options.packing,
                    limits.memory_bytes,
                )
                is_last = number + 1 == len(waves)
                if is_last and self.write_record is not None:
                    self.write_record(session)
                # Until the last wave, coordinates may be incomplete.
                stored = arrays.paths if is_last else ()
                wave = plan_copied(
                    job,
                    session,
                    arrays,
                    copy_plan,
                    workers,
                    metadata={_COPY: digest, _WAVE: number + 1, _WAVES: len(waves)},
                    require_openable=partial(
                        require_openable,
                        session,
                        job.target.group,
                        arrays.paths,
                        stored,
                        needs_xarray=self.from_files,
                    ),
                )
                report = report.with_commit(job.commit(session, wave), copy_plan.regions)
        return report

    def _waves_done(
        self, job: Job, session: Session, arrays: GroupToCopy, digest: str, waves: int
    ) -> int:
        """Count the commits of an earlier run that was broken off; refuse to write over others."""
        taken = occupied(session.store, job.target.group, arrays)
        if not taken:
            if self.write_record is not None and not self.options.overwrite:
                require_no_record(session.store, job.target.group)
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


def plan_copied(
    job: Job,
    session: Session,
    arrays: GroupToCopy,
    copy_plan: CopyPlan,
    workers: Workers,
    *,
    metadata: Mapping[str, Any],
    require_openable: Callable[[], tuple[str, ...]],
    finish: Callable[[], None] | None = None,
) -> Wave:
    """Plan a commit of copies, which were made without values in the session."""
    regions = copy_plan.regions
    planned = plan_copies(state_of(session), job.target.group, arrays, regions.slabs)
    plan = WritePlan(job.id, tuple(planned))
    tasks = copy_tasks(len(regions), job.cores, regions.size_bytes)
    copied = job.engine.numbers(len(regions), tasks).map(
        _copy, copy_plan, plan, workers, columns=PLACED
    )
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
        metadata=metadata,
        worker_context=workers,
        require_openable=require_openable,
        finish=finish,
    )


def _copy(
    batches: "Iterator[pa.RecordBatch]", copy_plan: CopyPlan, plan: WritePlan, workers: Workers
) -> "Iterator[pa.RecordBatch]":
    context, source = workers()
    numbers = (number for batch in batches for number in batch.column(NUMBER).to_pylist())
    new_note = partial(note_key, plan.job, _COPIES, _COPIES)
    for copied in copy_regions(copy_plan, numbers, source.array, context, new_note):
        yield placed_batch(list(_placed(copied, plan.arrays[copied.array])))


def _placed(copied: Copied, array: ArrayPlan) -> Iterator[PlacedRow]:
    """Yield the rows of all regions of an array to which something was copied."""
    references = copied.references
    notes = json.dumps([copied.notes, None])
    if len(references) or len(references.inlined):
        for region, part in cut_by_region(array, references):
            yield array.number, region, 0, part.to_bytes(), notes
    nothing = references.take(_NO_ROWS, _NO_ROWS)
    for box in copied.boxes if array.parts.stored else ():
        about = json.dumps([(), box])
        for region, part in cut_by_region(array, nothing, box):
            yield array.number, region, 0, part.to_bytes(), about


async def _assemble(
    _context: RepoContext, _array: ArrayPlan, rows: Sequence[Mapping[str, Any]], _notes: Notes
) -> RegionContent:
    table = native_table([References.from_bytes(row["payload"]) for row in rows])
    notes, boxes = zip(*(json.loads(row["about"]) for row in rows), strict=True)
    return RegionContent(
        table,
        cleared=[tuple(map(tuple, box)) for box in boxes if box is not None],
        copies=frozenset(note for some in notes for note in some),
    )
