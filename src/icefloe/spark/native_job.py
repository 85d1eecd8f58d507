"""One run of a job that copies values into a repository, in one commit or in several."""

import hashlib
import json
import secrets
import time
from collections.abc import Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

from icefloe.api.session import Session
from icefloe.effects import run_blocking
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format.nodes import ArrayNode
from icefloe.format.paths import absolute_path, joined_path
from icefloe.manifests.external import NewReferences
from icefloe.manifests.partition import append_order
from icefloe.pipeline.checking.opening import require_openable
from icefloe.pipeline.combining.combine import TargetArray
from icefloe.pipeline.copying.copies import (
    FoundGroup,
    document_of,
    find_arrays,
    forget_record,
    make_array,
    make_groups,
    occupied,
)
from icefloe.pipeline.copying.layouts import LayoutOptions, Limits, values_bytes
from icefloe.pipeline.copying.origins import CopySource
from icefloe.pipeline.copying.transfer import ArrayCopy, CopyPlan
from icefloe.pipeline.copying.waves import Slab, cut_into_slabs, plan_slabs
from icefloe.pipeline.files.access import SourceAccess
from icefloe.pipeline.planning import FEW_REFERENCES, REFERENCES_PER_COMMIT
from icefloe.pipeline.writing.plans import ArrayPlan
from icefloe.records import Record, replace
from icefloe.spark.attempts import JOB_METADATA
from icefloe.spark.committing import Target, cleaning, log_writer, persisted
from icefloe.spark.native_write import (
    SentSource,
    Stages,
    attempts_may_differ,
    copy,
    gather_copies,
)
from icefloe.spark.report import CopiedWave, CopyReport
from icefloe.spark.session import cores_of
from icefloe.spark.watching import OnProgress, Watch
from icefloe.spark.workers import Shipped, sent, shipped
from icefloe.spark.write import WritePlan
from icefloe.transactions.commit import LogWriter, commit
from icefloe.transactions.conflicts import ConflictDetector
from icefloe.transactions.external_manifests import link_manifests, plan_array
from icefloe.transactions.packing import PackingOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MEMORY_PER_TASK: Final = 256 * 2**20

_COPY: Final = "icefloe.copy"
_WAVE: Final = "icefloe.wave"
_WAVES: Final = "icefloe.waves"
_PACKS_HELD: Final = 2
_FAR_IN_FLIGHT: Final = 8
"""Where requests wait for a network, this many are under way in each task."""


class CopyOptions(Record):
    """How values are copied."""

    layout: LayoutOptions
    memory_per_task: int = MEMORY_PER_TASK
    packing: PackingOptions | None = None
    overwrite: bool = False
    most_references: int = REFERENCES_PER_COMMIT
    few_references: int = FEW_REFERENCES

    def __post_init__(self) -> None:
        if self.memory_per_task < 1:
            raise InvalidInputError(
                f"a task cannot work with {self.memory_per_task} bytes of memory",
                ErrorKind.LIMIT_EXCEEDED,
            )

    @classmethod
    def of(
        cls,
        chunks: Mapping[str, int] | None,
        shards: Mapping[str, int] | None,
        compressors: Any = "auto",
        *,
        packing: PackingOptions | bool = False,
        **others: Any,
    ) -> Self:
        """Take what users give."""
        packs = PackingOptions() if packing is True else packing or None
        layout = LayoutOptions(dict(chunks or {}), dict(shards or {}), compressors)
        return cls(layout, packing=packs, **others)

    def limits(self, cores: int, *, is_near: bool) -> Limits:
        """Return the limits of plans; "near" means that no network is in between."""
        return Limits(
            self.memory_per_task,
            cores,
            in_flight=1 if is_near else _FAR_IN_FLIGHT,
            held_bytes=0 if self.packing is None else _PACKS_HELD * self.packing.pack_bytes,
        )


class CopyJob:
    """Takes the arrays of a group to a repository; for one run only."""

    def __init__(
        self,
        spark: "SparkSession",
        target: Target,
        options: CopyOptions,
        on_progress: OnProgress | None,
    ) -> None:
        self._spark, self._target, self._options = spark, target, options
        self._context = target.repo._context  # noqa: SLF001 - the same package
        self._cores = cores_of(spark)
        self.id = secrets.token_hex(8)
        self.watch = Watch(spark, f"icefloe-{self.id}", on_progress)

    def run(self, source: CopySource, *, from_files: bool = False) -> CopyReport:
        """Do all of it; what comes from files must be a dataset that xarray can open."""
        session = self._target.repo.writable_session(self._target.branch)
        with self.watch.stage("plan", "arrays"):
            arrays = find_arrays(source, self._options.layout)
            shapes = [array.shape for array in arrays.arrays]
            waves = cut_into_slabs([shape.grid for shape in shapes], self._options.most_references)
            digest = _digest(source, arrays, waves, self._options.layout)
            done = self._waves_done(session, arrays, digest, len(waves))
        report = CopyReport(
            self.id,
            self._target.branch,
            self._target.group,
            arrays=len(arrays.arrays),
            values_bytes=sum(values_bytes(array.about) for array in arrays.arrays),
            skipped_commits=done,
        )
        reach = (self._context, SourceAccess())
        with shipped(self._spark, reach) as give, sent(self._spark, source) as give_source:
            is_near = source.is_near and self._context.is_near
            limits = self._options.limits(self._cores, is_near=is_near)
            wave = _Wave(self, arrays, give, give_source, limits, from_files)
            for number, slabs in enumerate(waves or [[]]):
                if number < done:
                    continue
                if number:
                    session = self._target.repo.writable_session(self._target.branch)
                else:
                    self._make(session, arrays)
                marks = {_COPY: digest, _WAVE: number + 1, _WAVES: len(waves)}
                report = report.with_commit(wave.commit(session, slabs, marks))
        return replace(report, stages=self.watch.seconds)

    def _waves_done(self, session: Session, group: FoundGroup, digest: str, waves: int) -> int:
        """Count the commits of an earlier run that was broken off; refuse to write over others."""
        taken = occupied(session.store, self._target.group, group)
        if not taken:
            return 0
        if waves > 1:
            for version in self._target.repo.ancestry(branch=self._target.branch):
                if version.metadata.get(_COPY) == digest:
                    done = version.metadata.get(_WAVE)
                    if isinstance(done, int) and done < waves:
                        return done
                    break
        if not self._options.overwrite:
            raise InvalidInputError(
                f"there is an array or group at /{taken[0]} already: choose another group, or say"
                " that it is to be replaced (overwrite)",
                ErrorKind.NODE_ALREADY_EXISTS,
                path=taken[0],
            )
        return 0

    def _make(self, session: Session, source_group: FoundGroup) -> None:
        """Make groups and arrays in the session; what is in their place makes way."""
        store, group = session.store, self._target.group
        if occupied(store, group, source_group):
            forget_record(store, group)
        make_groups(store, group, source_group)
        for array in source_group.arrays:
            make_array(store, group, array, self._options.layout.compressors)

    # -- what a wave needs -------------------------------------------------------------------

    def parts(self, session: Session, group: FoundGroup, slabs: Sequence[Slab]) -> list[ArrayPlan]:
        """Plan the manifests of all arrays that get objects in a commit."""
        by_array = {slab.array: slab for slab in slabs}
        return [
            self._part(session, number, joined_path(self._target.group, array.about.path), by_array)
            for number, array in enumerate(group.arrays)
        ]

    def _part(self, session: Session, number: int, path: str, slabs: dict[int, Slab]) -> ArrayPlan:
        state = session._session  # noqa: SLF001 - the same package
        node = state.tree.find(absolute_path(path))
        assert isinstance(node, ArrayNode), f"{path} was made before"
        grid = node.array.num_chunks
        names = node.array.dimension_names or (None,) * len(grid)
        new = _new_references(grid, names, slabs.get(number))
        target = TargetArray(path, {}, (), is_native=True, family=0)
        parts = plan_array(state, node.path, new)
        return ArrayPlan(number, node.path, node.id, grid, target, None, parts)

    def copies(self, session: Session, group: FoundGroup) -> tuple[ArrayCopy, ...]:
        """Describe the arrays for workers."""
        return tuple(
            ArrayCopy(
                array.about.path,
                document_of(session.store, joined_path(self._target.group, array.about.path)),
                len(array.about.shape),
            )
            for array in group.arrays
        )

    @property
    def target(self) -> Target:
        """Where it writes to."""
        return self._target

    @property
    def options(self) -> CopyOptions:
        """How it copies."""
        return self._options

    @property
    def spark(self) -> "SparkSession":
        """Where the work is done."""
        return self._spark

    @property
    def cores(self) -> int:
        """How many tasks run at once."""
        return self._cores


class _Wave(Record):
    """Copies and commits some slabs."""

    job: CopyJob
    found: FoundGroup
    reach: Shipped
    source: SentSource
    limits: Limits
    from_files: bool

    def commit(self, session: Session, slabs: Sequence[Slab], marks: dict[str, Any]) -> CopiedWave:
        job, context = self.job, self.job.target.repo._context  # noqa: SLF001 - the same package
        shapes = [array.shape for array in self.found.arrays]
        paths = [array.about.path for array in self.found.arrays]
        regions = plan_slabs(shapes, paths, slabs, self.limits)
        arrays = job.parts(session, self.found, slabs)
        copies = job.copies(session, self.found)
        packing = job.options.packing
        stages = Stages(
            CopyPlan(copies, regions, self.limits.in_flight, packing),
            WritePlan(job.id, int(time.time()), tuple(arrays)),
            self.reach,
            self.source,
        )
        built = copy(job.spark, stages, cores=job.cores)
        is_small = regions.objects <= job.options.few_references
        with (
            attempts_may_differ(job.spark),
            cleaning(context, job.id) as outcome,
            persisted(built, is_persistent=not is_small) as persisted_rows,
        ):
            with job.watch.stage("copy", _what(self.found, slabs, regions.objects)):
                done = gather_copies(persisted_rows, with_changes=is_small)
            written = done.written
            outcome.note_copies(done.notes)
            for array in arrays:
                linked = written.regions.get(array.number, [])
                link_manifests(session._session, array.path, linked)  # noqa: SLF001
                outcome.note(linked)
            # Until the last wave, coordinates may be incomplete.
            is_last = marks[_WAVE] >= marks[_WAVES]
            notes = require_openable(
                session,
                job.target.group,
                paths,
                paths if is_last else (),
                needs_xarray=self.from_files,
            )
            with job.watch.stage("commit", job.target.branch):
                writer = log_writer(context, stages.write, written, persisted_rows, self.reach)
                with outcome.deciding():
                    snapshot = self._commit(session, written.references, marks, writer)
        return CopiedWave(
            snapshot,
            objects=regions.objects,
            written=written.references,
            stored_bytes=written.data_bytes,
            regions=len(regions),
            memory_bytes=regions.memory_bytes,
            source_reads=sum(plan.reads for plan in regions.plans),
            manifests=outcome.manifests,
            notes=notes,
        )

    def _commit(
        self, session: Session, chunks: int, marks: dict[str, Any], writer: LogWriter
    ) -> str:
        work = commit(
            session._session,  # noqa: SLF001 - the same package
            self.job.target.message or f"{chunks} chunks copied",
            metadata={JOB_METADATA: self.job.id, **marks},
            solver=ConflictDetector(),
            log_writer=writer,
        )
        return str(run_blocking(work))


def _what(group: FoundGroup, slabs: Sequence[Slab], objects: int) -> str:
    """Describe how much a stage copies."""
    shapes = [array.shape for array in group.arrays]
    total = sum(
        values_bytes(group.arrays[slab.array].about)
        * slab.objects
        // max(prod(shapes[slab.array].grid), 1)
        for slab in slabs
    )
    return f"{objects} objects, {total / 1e6:.0f} MB of values"


def _new_references(
    grid: Sequence[int], names: Sequence[str | None], slab: Slab | None
) -> NewReferences:
    """Return the boxes of new references: everywhere in a slab."""
    if slab is None:
        return NewReferences(np.empty(0, np.int64), np.empty(0, np.int64))
    if not grid:
        return NewReferences(np.zeros(1, np.int64), np.ones(1, np.int64))
    extents = ((slab.first, slab.end), *((0, count) for count in grid[1:]))
    first, end = extents[append_order(names)[0]]
    per_step = prod(high - low for low, high in extents) // (end - first)
    positions = np.arange(first, end, dtype=np.int64)
    return NewReferences(positions, np.full(len(positions), per_step, np.int64), extents)


def _digest(
    source: CopySource,
    group: FoundGroup,
    waves: Sequence[Sequence[Slab]],
    layout: LayoutOptions,
) -> str:
    """Sum up what is copied and how, to recognise a job that was broken off."""
    arrays = [
        [array.about.path, array.about.shape, array.layout.chunks, array.layout.shards]
        for array in group.arrays
    ]
    ends = [[[slab.array, slab.first, slab.end] for slab in wave] for wave in waves]
    text = json.dumps([source.identity, arrays, ends, repr(layout.compressors)])
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
