"""One job: a producer plans commits, tasks build their manifests, the driver commits them.

    producer -> wave: placed references -> manifests -> link -> commit

Nothing is visible before the commit, which is one conditional write. A job whose references are
too many for one transaction log commits in several waves. Tasks note what they are about to write;
the job removes everything that no version uses when it ends, however it ends.
"""

import logging
import secrets
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from operator import itemgetter
from typing import Any, Final, Literal, Protocol, Self, override

import numpy as np
import zstandard

from icefloe.api.repository import Repository
from icefloe.api.session import Session, state_of
from icefloe.effects import run_blocking
from icefloe.errors import ConflictError, IcefloeError, SessionStateError
from icefloe.format.arrow import pa
from icefloe.format.chunk_table import Coordinates
from icefloe.format.ids import ManifestId, NodeId
from icefloe.format.layout import manifest_key
from icefloe.format.transaction_log import TransactionLog
from icefloe.manifests.regions import LinkedRegion
from icefloe.pipeline.combining.report import Report
from icefloe.pipeline.copying.if_needed import CopyReason
from icefloe.pipeline.copying.layouts import Regions
from icefloe.pipeline.files.facts import binary_column, int_column, text_column
from icefloe.pipeline.planning import FEW_REFERENCES
from icefloe.pipeline.running.engines import Engine, Rows, WorkerContext
from icefloe.pipeline.running.orphans import (
    JOB_METADATA,
    clear_attempt,
    note_key,
    remove_replaced,
)
from icefloe.pipeline.running.progress import OnProgress, Watch
from icefloe.pipeline.writing.building import ArrayPlan, Notes, RegionContent, build
from icefloe.records import Record, field, replace
from icefloe.repo.context import RepoContext
from icefloe.reports import JsonReady, TextPrinter, counted, object_html, shown_bytes
from icefloe.transactions.commit import LogWriter, commit
from icefloe.transactions.conflicts import ConflictDetector
from icefloe.transactions.external_manifests import link_manifests, write_log


class Committed(Record, kw_only=True):
    """The result of a commit."""

    snapshot: str
    references: int
    data_bytes: int
    manifests: int
    notes: tuple[str, ...] = ()


class AnyReport(JsonReady, Record, kw_only=True):
    """The common base of reports of jobs."""

    job: str
    branch: str
    group: str
    snapshot: str | None = None
    """The new version; None if there was nothing to commit."""
    commits: int = 0
    """More than one for a job in waves."""
    manifests: int = 0
    scan: Report | None = None
    """What was found in the files, if the sources are files."""
    stages: Mapping[str, float] = field(default_factory=dict)
    """Seconds by name of stage."""

    @property
    def form(self) -> Literal["reference", "copy"]:
        """Return whether the dataset refers to files, or has copies of values."""
        return "copy"

    def _added(self, done: Committed, **counts: int) -> Self:
        """Add what one more commit did."""
        return replace(
            self,
            snapshot=done.snapshot,
            commits=self.commits + 1,
            manifests=self.manifests + done.manifests,
            **{name: getattr(self, name) + count for name, count in counts.items()},
        )

    def summary(self) -> str:
        """Return a summary in one line."""
        return self._ending()

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values, and whether values were copied."""
        return {**super().to_dict(), "form": self.form}

    def _repr_pretty_(self, printer: TextPrinter, _: bool) -> None:  # noqa: FBT001 - of IPython
        printer.text(self.summary())

    def _repr_html_(self) -> str:
        facts = {
            "summary": self.summary(),
            "branch": self.branch,
            "group": self.group or "the root",
            "version": self.snapshot or "none: there was nothing to commit",
            "commits": self.commits,
            "seconds": ", ".join(f"{name} {spent:.1f}" for name, spent in self.stages.items()),
        }
        if not self.stages:
            del facts["seconds"]
        tables = {} if self.scan is None else self.scan.tables()
        return object_html(f"pipeline.{type(self).__name__}", facts, tables=tables)

    def _ending(self) -> str:
        if self.snapshot is None:
            return "nothing to commit"
        return f"committed {self.snapshot} to {self.branch!r}"


class JobReport(AnyReport, kw_only=True):
    """The result of a job that stored references to files, or added files to a copy.

    >>> from icefloe.pipeline import Report
    >>> report = JobReport(
    ...     job="0a", branch="main", group="", scan=Report(3, 2), snapshot="VY76", references=120
    ... )
    >>> print(report.summary())
    2 of 3 files fit; 120 chunks (0 B) in 0 manifests; committed VY76 to 'main'
    """

    scan: Report
    """What was found in the files that were parsed."""
    references: int = 0
    """Chunks that were recorded."""
    data_bytes: int = 0
    """What these chunks take where they are."""
    known: int = 0
    """Files that were ingested before, in the same state."""
    changed: tuple[str, ...] = ()
    """Files that were ingested before, and have changed since; see `on_changed`."""
    replaced: tuple[str, ...] = ()
    """Those of them that were ingested again."""
    missing: tuple[str, ...] = ()
    """Files that were ingested before, and are not there any more. Nobody can read their chunks,
    unless these were copied."""
    copied: "CopyReport | None" = None
    """How values were copied, if the files were added to a copy."""

    @property
    @override
    def form(self) -> Literal["reference", "copy"]:
        """Return whether the dataset refers to files, or has copies of values."""
        return "reference" if self.copied is None else "copy"

    def with_commit(self, done: Committed) -> Self:
        """Add what one more commit did."""
        notes = tuple(dict.fromkeys((*self.scan.notes, *done.notes)))
        added = self._added(done, references=done.references, data_bytes=done.data_bytes)
        return replace(added, scan=replace(self.scan, notes=notes))

    def summary(self) -> str:
        """Return a summary in one line."""
        parts = [self.scan.summary()]
        if self.known:
            parts.append(f"{counted(self.known, 'was', 'were')} there already")
        if left := len(self.changed) - len(self.replaced):
            parts.append(f"{counted(left, 'file')} changed since and stayed as ingested")
        if self.replaced:
            parts.append(f"{counted(len(self.replaced), 'was', 'were')} replaced")
        if self.missing:
            lost = counted(len(self.missing), "ingested file has", "ingested files have")
            needed = "" if self.copied is None else ", which the copy does not need"
            parts.append(f"{lost} disappeared{needed}")
        if self.snapshot is not None:
            parts.append(
                f"{counted(self.references, 'chunk')} ({shown_bytes(self.data_bytes)}) in"
                f" {counted(self.manifests, 'manifest')}"
            )
        return "; ".join([*parts, self._ending()])


class CopyReport(AnyReport, kw_only=True):
    """The result of a job that copied values.

    >>> report = CopyReport(
    ...     job="0a", branch="main", group="", arrays=2, objects=9, written=8, stored_bytes=4096
    ... )
    >>> print(report.summary())
    2 arrays; 8 of 9 objects hold data (4.0 KiB); nothing to commit
    """

    arrays: int = 0
    values_bytes: int = 0
    """What the values take when they are not compressed."""
    objects: int = 0
    """Chunks or shards that the arrays have."""
    written: int = 0
    """Those of them that were stored; the others hold nothing but the fill value."""
    stored_bytes: int = 0
    """What was stored."""
    regions: int = 0
    """In how many pieces the work was done."""
    memory_per_task: int = 0
    """What a task needed at most by plan, in bytes, besides Python itself."""
    source_reads: int = 0
    """How many chunks of the source were read, by plan; some more than once."""
    skipped_commits: int = 0
    """Of an earlier run that was broken off: these were not repeated."""
    reason: CopyReason | None = None
    """Why values were copied, if nobody asked for that."""
    notes: tuple[str, ...] = ()
    """What could not be done before the commit, such as opening it with a library."""

    def with_commit(self, done: Committed, regions: Regions) -> Self:
        """Add what one more commit did, which copied these regions."""
        added = self._added(
            done,
            objects=regions.objects,
            written=done.references,
            stored_bytes=done.data_bytes,
            regions=len(regions),
            source_reads=sum(plan.reads for plan in regions.plans),
        )
        return replace(
            added,
            memory_per_task=max(self.memory_per_task, regions.memory_bytes),
            notes=tuple(dict.fromkeys((*self.notes, *done.notes))),
        )

    def summary(self) -> str:
        """Return a summary in one line."""
        parts = [] if self.scan is None else [self.scan.summary()]
        if self.reason is not None:
            parts.append(self.reason.in_short)
        parts.append(counted(self.arrays, "array"))
        hold = "holds" if self.objects == 1 else "hold"
        parts.append(
            f"{self.written} of {counted(self.objects, 'object')} {hold} data"
            f" ({shown_bytes(self.stored_bytes)})"
        )
        if self.skipped_commits:
            parts.append(
                f"{counted(self.skipped_commits, 'commit was', 'commits were')} there already"
            )
        return "; ".join([*parts, self._ending()])


PLACED: Final = "array long, region long, number long, payload binary, about string"
"""The rows that producers place: references of an array in a region, and what else is known.

Rows of a region are sorted by `number` before they are assembled.
"""
BUILT: Final = (
    "array long, linked binary, references long, bytes long, copies string, changed binary"
)
_QUICK_LEVEL: Final = 1

type PlacedRow = tuple[int, int, int, bytes, str | None]
"""The columns of `PLACED`."""
type Assemble = Callable[
    [RepoContext, ArrayPlan, Sequence[Mapping[str, Any]], Notes], Coroutine[Any, Any, RegionContent]
]
"""Makes one table of all rows of a region."""


class WritePlan(Record):
    """The parameters of all tasks of the stage, without secrets."""

    job: str
    arrays: tuple[ArrayPlan, ...]


class Written(Record, kw_only=True):
    """The result of the stage."""

    regions: dict[int, list[LinkedRegion]]
    """By number of array."""
    references: int
    data_bytes: int
    copies: frozenset[str]
    """Keys of the notes of all copied objects that the manifests refer to."""
    changes: list[tuple[int, bytes]] | None = None
    """Number of array and packed coordinates of new chunks, if they are few."""


def placed_batch(rows: Sequence[PlacedRow]) -> "pa.RecordBatch":
    """Return placed references as columns."""
    arrays, regions, numbers, payloads, abouts = zip(*rows, strict=True) if rows else [()] * 5
    return pa.RecordBatch.from_arrays(
        [
            int_column(arrays),
            int_column(regions),
            int_column(numbers),
            binary_column(payloads),
            text_column(abouts),
        ],
        names=["array", "region", "number", "payload", "about"],
    )


def build_manifests(
    placed: Rows,
    plan: WritePlan,
    assemble: Assemble,
    worker_context: WorkerContext[Any],
    *,
    tasks: int,
) -> Rows:
    """Plan the building of all manifests; nothing is done before somebody asks for rows."""
    return placed.grouped(
        _build_region,
        plan,
        assemble,
        worker_context,
        by=("array", "region"),
        columns=BUILT,
        tasks=tasks,
    )


def _build_region(
    table: "pa.Table", plan: WritePlan, assemble: Assemble, worker_context: WorkerContext[Any]
) -> "pa.Table":
    context, _ = worker_context()
    rows = sorted(table.to_pylist(), key=itemgetter("number"))
    array, region = plan.arrays[rows[0]["array"]], rows[0]["region"]
    notes = Notes(context.backend, note_key(plan.job, array.number, region))
    content = run_blocking(assemble(context, array, rows, notes))
    built = run_blocking(build(context, array, region, content, notes))
    return pa.table(
        {
            "array": int_column([array.number]),
            "linked": binary_column([built.region.to_bytes()]),
            "references": int_column([built.references]),
            "bytes": int_column([built.data_bytes]),
            "copies": text_column([" ".join(sorted(content.copies))]),
            "changed": binary_column([pack_coordinates(built.changed)]),
        }
    )


def gather_regions(built: Rows, *, with_changes: bool) -> Written:
    """Fetch what the driver has to know; with the coordinates of new chunks only if asked."""
    names = ["array", "linked", "references", "bytes", "copies"]
    rows = built.select(*names, *(["changed"] if with_changes else [])).gather().to_pylist()
    regions: dict[int, list[LinkedRegion]] = {}
    for row in rows:
        regions.setdefault(row["array"], []).append(LinkedRegion.from_bytes(row["linked"]))
    return Written(
        regions=regions,
        references=sum(row["references"] for row in rows),
        data_bytes=sum(row["bytes"] for row in rows),
        copies=frozenset(key for row in rows for key in row["copies"].split()),
        changes=[(row["array"], row["changed"]) for row in rows] if with_changes else None,
    )


# -- the log ---------------------------------------------------------------------------------


def write_log_in_task(
    built: Rows, plan: WritePlan, own: TransactionLog, worker_context: WorkerContext[Any]
) -> None:
    """Have one task write the transaction log, with all coordinates that workers keep."""
    changed = built.select("array", "changed")
    changed.in_one_task(_write_all, plan, own, worker_context, columns="done long").gather()


def _write_all(
    batches: "Iterator[pa.RecordBatch]",
    plan: WritePlan,
    own: TransactionLog,
    worker_context: WorkerContext[Any],
) -> "Iterator[pa.RecordBatch]":
    context, _ = worker_context()
    pieces = ((row["array"], row["changed"]) for batch in batches for row in batch.to_pylist())
    run_blocking(write_log(context.assets, own, changed_chunks(plan, pieces)))
    yield pa.RecordBatch.from_arrays([int_column([1])], names=["done"])


def changed_chunks(
    plan: WritePlan, pieces: Iterable[tuple[int, bytes]]
) -> Iterator[tuple[NodeId, Coordinates]]:
    """Yield the chunks that were set, by array, a piece at a time."""
    for number, packed in pieces:
        array = plan.arrays[number]
        yield array.node, unpack_coordinates(packed, len(array.grid))


def pack_coordinates(coordinates: Coordinates) -> bytes:
    """Compress coordinates column by column; those of a full box take hardly any room."""
    columns = np.ascontiguousarray(coordinates.T).astype("<u4")
    head = len(coordinates).to_bytes(8, "little")
    return head + zstandard.ZstdCompressor(level=_QUICK_LEVEL).compress(columns.tobytes())


def unpack_coordinates(packed: bytes, dimensions: int) -> Coordinates:
    """Return the coordinates that `pack_coordinates` packed."""
    rows = int.from_bytes(packed[:8], "little")
    flat = np.frombuffer(zstandard.ZstdDecompressor().decompress(packed[8:]), "<u4")
    return np.ascontiguousarray(flat.reshape(dimensions, rows).T).astype(np.uint32)


_log = logging.getLogger(__name__)


class Target(Record):
    """The destination of a job."""

    repo: Repository
    branch: str
    group: str
    message: str | None = None


class Wave(Record, kw_only=True):
    """One commit, as a producer plans it."""

    stage: str
    what: str
    """How much the stage does, in words."""
    items: int = 0
    """The same as a number of files, or of what `noun` says."""
    noun: str = "file"
    size_bytes: int = 0
    """What is read in it."""
    plan: WritePlan
    built: Rows
    """One row for each region; see `build_manifests`."""
    references: int
    """The largest possible number of new references."""
    message: str
    """Of the commit, unless the caller has one; `{chunks}` stands for the number of new chunks."""
    metadata: Mapping[str, Any]
    worker_context: WorkerContext[Any]
    finish: Callable[[], None] | None = None
    """Change what is linked, in the session."""
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
        engine: Engine,
        target: Target,
        on_progress: OnProgress | None = None,
        *,
        few_references: int = FEW_REFERENCES,
    ) -> None:
        self.engine, self.target = engine, target
        self.context: RepoContext = target.repo._context  # noqa: SLF001 - the same package
        self.cores = engine.cores
        self.id = secrets.token_hex(8)
        self.watch = Watch(engine, f"icefloe-{self.id}", on_progress)
        self._few_references = few_references

    def run[R: AnyReport](self, producer: Producer[R]) -> R:
        """Commit everything that the producer makes."""
        return replace(producer.produce(self), stages=self.watch.seconds)

    def session(self) -> Session:
        """Open a session at the tip of the branch."""
        return self.target.repo.writable_session(self.target.branch)

    def commit(self, session: Session, wave: Wave) -> Committed:
        """Have tasks write the manifests of a wave, link these, and make them a version."""
        state = state_of(session)
        is_small = wave.references <= self._few_references
        with (
            _cleaning(self.context, self.id) as outcome,
            nullcontext(wave.built) if is_small else wave.built.kept() as built,
        ):
            with self.watch.stage(
                wave.stage,
                wave.what,
                items=wave.items,
                noun=wave.noun,
                size_bytes=wave.size_bytes,
            ):
                written = gather_regions(built, with_changes=is_small)
            outcome.note(written)
            for array in wave.plan.arrays:
                link_manifests(state, array.path, written.regions.get(array.number, []))
            if wave.finish is not None:
                wave.finish()
            notes = wave.require_openable()
            with self.watch.stage("commit", self.target.branch), outcome.deciding():
                work = commit(
                    state,
                    self.target.message
                    or wave.message.format(chunks=counted(written.references, "chunk")),
                    metadata={JOB_METADATA: self.id, **wave.metadata},
                    solver=ConflictDetector(),
                    log_writer=self._log_writer(wave, written, built),
                )
                snapshot = str(run_blocking(work))
            if wave.finish is not None:
                files = self.target.repo.list_manifest_files(snapshot)
                linked = {manifest_key(ManifestId.parse(file.id)) for file in files}
                remove_replaced(
                    self.context, self.id, sorted(outcome.used - linked - written.copies)
                )
        return Committed(
            snapshot=snapshot,
            references=written.references,
            data_bytes=written.data_bytes,
            manifests=outcome.manifests,
            notes=notes,
        )

    def _log_writer(self, wave: Wave, written: Written, built: Rows) -> LogWriter:
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
                    "the notes of job %s are still there: icefloe.pipeline.discard_attempt removes"
                    " them with what they name (%s)",
                    job,
                    error,
                )


class _Outcome:
    """The state of a commit: while it is undecided, nothing may be deleted."""

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
        """The number of attempts at regions whose result was used."""
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
