"""The producer that adds files to a copy: new values behind, before and between what it has.

    list -> scan -> combine with the copy -> check values -> copy the objects that files meet

Each commit is complete: values, coordinates and the record of its files.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import zarr

from icefloe.api.session import Session, state_of
from icefloe.effects import run_blocking
from icefloe.format.paths import absolute_path, joined_path
from icefloe.pipeline.combining.combine import Existing, combine
from icefloe.pipeline.combining.copied import CopyRules
from icefloe.pipeline.combining.insertions import Insertions
from icefloe.pipeline.combining.remedies import misfits_error
from icefloe.pipeline.combining.report import MisfitsError
from icefloe.pipeline.copying.copies import (
    ArrayToCopy,
    GroupToCopy,
    array_copies,
    described_array,
    make_array,
)
from icefloe.pipeline.copying.growth import (
    GrownArray,
    is_loaded_of,
    native_runs,
    objects_of_files,
    with_lacking,
)
from icefloe.pipeline.copying.joined import DATASET, JoinedArray, JoinedFiles
from icefloe.pipeline.copying.layouts import CopyOptions, choose_layout, plan_slabs
from icefloe.pipeline.copying.origins import RepositorySource
from icefloe.pipeline.copying.pieces import Pieces
from icefloe.pipeline.copying.recorded import copying_to_json
from icefloe.pipeline.copying.transfer import CopyPlan
from icefloe.pipeline.files.facts import FileFacts, Kind, Problem
from icefloe.pipeline.files.options import CombineOptions, ParseOptions
from icefloe.pipeline.files.sources import SourceAccess, Sources
from icefloe.pipeline.running.job import Committed, CopyReport, Job, JobReport
from icefloe.pipeline.running.native import NativeProducer, plan_copied
from icefloe.pipeline.running.progress import OnProgress
from icefloe.pipeline.running.staging import FilesToStage, StagedFiles, staging_job
from icefloe.pipeline.running.virtual import (
    CombinedFiles,
    files_to_ingest,
    grid_of,
)
from icefloe.pipeline.writing.building import cells_of, cut_into_waves
from icefloe.pipeline.writing.dataset import (
    IsLoaded,
    read_existing,
    require_openable,
    write_metadata,
)
from icefloe.pipeline.writing.provenance import (
    COPY,
    OnChanged,
    SourceRecord,
    insertions_of,
    options_to_json,
    read_record,
    recorded_files,
    without_occupied,
    write_record,
)
from icefloe.records import Record, replace
from icefloe.reports import counted
from icefloe.transactions.rearrange import move_stored

_OF_COPY: Final = frozenset({Kind.DTYPE, Kind.SCALE_OFFSET, Kind.FILL_VALUE, Kind.UNITS})
_COPY_AGAIN: Final = (
    "The types and the packing of a copy stay as they are: copy all files again to change them"
    " (overwrite=True)"
)


def copying_producer(staged: StagedFiles, copying: CopyOptions, group: str) -> NativeProducer:
    """Return the producer of a copy of joined files, which records them in a group."""
    return NativeProducer(
        source=staged.joined(),
        options=copying,
        from_files=True,
        write_record=partial(_write_record, staged=staged, copying=copying, group=group),
    )


def _write_record(session: Session, staged: StagedFiles, copying: CopyOptions, group: str) -> None:
    """Write which files were copied, and how, so that more can be added."""
    files, options = staged.files, staged.options
    how = copying_to_json(replace(copying, decode=staged.rules.decode))
    settings = {**options_to_json(options, staged.parse), COPY: how}
    recorded = recorded_files(files.facts, files.combined, options)
    inserted = insertions_of(files.combined, options)
    write_record(session.store, group, files.record, recorded, settings, files.grid(), inserted)


class AppendingProducer(Record, kw_only=True):
    """Adds files to a copy that has a record of its files."""

    sources: Sources
    options: CombineOptions
    parse: ParseOptions
    copying: CopyOptions
    access: SourceAccess
    on_changed: OnChanged = "report"
    on_progress: OnProgress | None = None

    def produce(self, job: Job) -> JobReport:
        """List, parse, compare and copy the files that are new."""
        session, group = job.session(), job.target.group
        record = read_record(session.store, group)
        assert record is not None, "the caller read the options there"
        states, report = files_to_ingest(job, self.sources, record, self.access, self.on_changed)
        copied = CopyReport(job=job.id, branch=job.target.branch, group=group)
        report = replace(report, copied=copied)
        if not states:
            return report
        files = FilesToStage(
            sources=states,
            options=self.options,
            parse=self.parse,
            access=self.access,
            rules=CopyRules(decode=self.copying.decode),
        )
        with staging_job(job, self.access, self.on_progress) as staging:
            staged = files.stage(staging, partial(self._combined, session, group, record))
            report = replace(report, scan=staged.report)
            if staged.staging is not None:
                report = self._with_commits(job, session, staged, report)
        return report

    def _combined(
        self, session: Session, group: str, record: SourceRecord, facts: Sequence[FileFacts]
    ) -> CombinedFiles:
        options, rules = self.options, CopyRules(decode=self.copying.decode)
        existing = read_existing(session.store, group, options, is_loaded_of(facts))
        existing = replace(existing, grid=grid_of(session, group, record, facts, self.access))
        combined = combine(facts, options, existing, rules)
        report = combined.report
        if report.misfits and options.on_misfit == "fail":
            error = misfits_error(report, facts, options, existing, rules)
            is_of_copy = not _OF_COPY.isdisjoint(misfit.kind for misfit in report.misfits)
            if is_of_copy and not error.report.remedy:
                raise MisfitsError(replace(report, remedy=_COPY_AGAIN))
            raise error
        combined = without_occupied(facts, combined, options, existing, record, rules)
        if options.fill_missing and combined.arrays:
            whole, refused = with_lacking(facts, combined, existing, record)
            if refused and options.on_misfit == "skip":
                left = [
                    FileFacts(fact.state, problem=Problem(refused[n].kind, refused[n].message))
                    if n in refused
                    else fact
                    for n, fact in enumerate(facts)
                ]
                return self._combined(session, group, record, left)
            misfits = (*combined.report.misfits, *refused.values())
            combined = replace(whole, report=replace(whole.report, misfits=misfits))
        if combined.report.misfits and options.on_misfit == "fail":
            raise MisfitsError(combined.report)
        return CombinedFiles(facts, combined, existing, record)

    def _with_commits(
        self, job: Job, session: Session, staged: StagedFiles, report: JobReport
    ) -> JobReport:
        """Commit all files, wave by wave if they are too many for one commit."""
        group, files = job.target.group, staged.files
        assert files.existing is not None, "files are added to something"
        layouts = dict(_layouts(session, group, files.existing))
        weighed = objects_of_files(files.facts, files.combined, layouts)
        waves = cut_into_waves(
            weighed,
            files.combined,
            self.options,
            files.existing,
            most=self.copying.most_references,
        )
        is_loaded: IsLoaded = is_loaded_of(files.facts)
        for number, combined in enumerate(waves):
            wave = replace(files, combined=combined)
            if number:  # on top of what the waves before left
                session = job.session()
                wave = CombinedFiles(
                    files.facts,
                    replace(combined, inserted={}),
                    read_existing(session.store, group, self.options, is_loaded),
                    read_record(session.store, group),
                )
            part = replace(staged, files=wave)
            copy = _GrowingCopy(job, session, part, self.copying)
            _write_record(session, part, self.copying, group)
            report = copy.committed(report)
        return report


def _layouts(
    session: Session, group: str, existing: Existing
) -> "Iterator[tuple[str, tuple[int, ...]]]":
    for path in existing.schema.by_path:
        array = zarr.open_array(session.store, path=joined_path(group, path), mode="r")
        yield path, array.shards or array.chunks


class _GrowingCopy:
    """One commit: the copy gets its new shape, and the values of some files."""

    def __init__(
        self, job: Job, session: Session, staged: StagedFiles, copying: CopyOptions
    ) -> None:
        self._job, self._session, self._copying = job, session, copying
        self._group, self._files = job.target.group, staged.files
        assert staged.files.existing is not None, "files are added to something"
        self._existing = staged.files.existing
        self._combined = staged.files.combined
        before = job.target.repo.readonly_session(snapshot_id=session.snapshot_id)
        self._earlier = RepositorySource(before, self._group)
        joined = staged.joined(self._combined, self._earlier)
        self._make_room(joined)
        self._grown = self._grown_arrays(joined)
        arrays = {grown.array.about.path: grown.joined for grown in self._grown}
        self._source = replace(joined, arrays=arrays)

    def committed(self, report: JobReport) -> JobReport:
        """Copy the values and commit."""
        job, session = self._job, self._session
        copied = [grown for grown in self._grown if grown.boxes]
        arrays = GroupToCopy({}, tuple(grown.array for grown in copied))
        is_near = self._source.is_near and job.context.is_near
        limits = self._copying.limits(job.cores, is_near=is_near)
        slabs = [slab for number, grown in enumerate(copied) for slab in grown.slabs(number)]
        copy_plan = CopyPlan(
            array_copies(session.store, self._group, arrays),
            plan_slabs(arrays.shapes, arrays.paths, slabs, limits),
            self._copying.packing,
            limits.memory_bytes,
            over_others=True,
        )
        paths = {*self._existing.schema.by_path, *(array.path for array in self._combined.arrays)}
        with job.engine.share(job.context, self._source) as workers:
            wave = plan_copied(
                job,
                session,
                arrays,
                copy_plan,
                workers,
                metadata={"icefloe.files": len(self._combined.files)},
                require_openable=partial(
                    require_openable, session, self._group, paths, paths, needs_xarray=True
                ),
                finish=self._move_chunks if any(grown.inserted for grown in self._grown) else None,
            )
            wave = replace(wave, message=self._message)
            done: Committed = job.commit(session, wave)
        assert report.copied is not None, "values are copied"
        copied_report = replace(
            report.copied.with_commit(done, copy_plan.regions),
            arrays=max(report.copied.arrays, len(self._combined.arrays)),
            values_bytes=report.copied.values_bytes + arrays.bytes_of(slabs),
        )
        return replace(report.with_commit(done), copied=copied_report)

    @property
    def _message(self) -> str:
        return f"{counted(len(self._combined.files), 'file')} copied"

    def _make_room(self, joined: JoinedFiles) -> None:
        """Set new shapes, make new arrays, and write the values of small ones."""
        store, group, combined = self._session.store, self._group, self._combined
        known = self._existing.schema.by_path.keys()
        old = tuple(array for array in combined.arrays if array.path in known)
        # Values of all others are copied, and their chunks move.
        small = self._existing.values.keys() - joined.arrays.keys()
        values = {path: self._existing.values[path] for path in small}
        self._existing = replace(self._existing, values=values)
        write_metadata(store, group, replace(combined, arrays=old), self._existing)
        layout = self._copying.layout
        for array in combined.arrays:
            if array.path not in known:
                described = RepositorySource(joined.staging, DATASET).array(array.path)
                about = described_array(array.path, described)
                new = ArrayToCopy(described, about, choose_layout(about, layout))
                make_array(store, group, new, layout.compressors)
            if array.is_native:
                self._write_values(array.path)

    def _write_values(self, path: str) -> None:
        """Write the runs of a small array; what lies before and behind them is not touched."""
        target = zarr.open_array(
            self._session.store, path=joined_path(self._group, path), mode="r+"
        )
        runs = native_runs(self._combined, self._files.facts, self._existing, path)
        first = min(start for start, _ in runs)
        end = max(start + len(run) for start, run in runs)
        values = np.array(target[first:end])
        for start, run in runs:
            values[start - first : start - first + len(run)] = run
        target[first:end] = values

    def _grown_arrays(self, joined: JoinedFiles) -> list[GrownArray]:
        """Find out what is to be copied into all arrays whose values are not written here."""
        there, kept = self._existing, self._files.kept_paths()
        is_kept = {array.path for array in self._combined.arrays if not array.growing} & kept
        arrays = {path: array for path, array in joined.arrays.items() if path not in is_kept}
        for path in there.schema.by_path.keys() - joined.arrays.keys() - there.values.keys():
            dimensions = there.schema.by_path[path].dimensions
            inserted = tuple(self._combined.inserted.get(name, Insertions()) for name in dimensions)
            if any(of_axis.runs for of_axis in inserted):
                nothing = np.zeros((0, len(inserted)), np.int64)
                no_pieces = Pieces(nothing, nothing, nothing, nothing[:, 0])
                arrays[path] = JoinedArray(no_pieces, (), inserted=inserted)
        return [
            GrownArray.of(self._target(path), path, array) for path, array in sorted(arrays.items())
        ]

    def _target(self, path: str) -> "zarr.Array[Any]":
        return zarr.open_array(self._session.store, path=joined_path(self._group, path), mode="r")

    def _move_chunks(self) -> None:
        """Move the chunks that stay behind the steps that come before them."""
        state, stored = state_of(self._session), state_of(self._earlier.session)
        for grown in self._grown:
            if not grown.inserted:
                continue
            path = absolute_path(joined_path(self._group, grown.array.about.path))
            taken = [cells_of(box) for box in grown.boxes]
            copied = np.concatenate(taken).astype(np.uint32) if taken else None
            run_blocking(move_stored(state, stored, path, grown.moved, copied))
