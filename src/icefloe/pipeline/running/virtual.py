"""The producer of references: files are parsed, compared and referred to where they are.

    list -> scan -> combine -> check values -> place

Each file is parsed once, by a task. The driver gathers facts of files; references stay on the
disks of workers until their manifests are built, and nobody gathers them.
"""

import json
import pickle
import time
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from itertools import batched
from typing import Any, Final

from icefloe.api.repository import Repository
from icefloe.api.session import Session, state_of
from icefloe.errors import ErrorKind, InvalidInputError, SourceError
from icefloe.format.arrow import pa
from icefloe.format.columns import BytesColumn
from icefloe.pipeline.checking.values import (
    CheckPlan,
    check_file,
    choose_files,
    plan_check,
    require_same_values,
)
from icefloe.pipeline.combining.combine import Combined, Existing, PlacedFile, combine
from icefloe.pipeline.combining.consensus import Grid
from icefloe.pipeline.combining.remedies import misfits_error
from icefloe.pipeline.combining.report import CheckedValues, MisfitsError, Report
from icefloe.pipeline.copying.layouts import REFERENCES_PER_COMMIT
from icefloe.pipeline.copying.origins import SourceReader
from icefloe.pipeline.files.containers import not_covered
from icefloe.pipeline.files.describing import ParsedFile
from icefloe.pipeline.files.facts import (
    FileFacts,
    Kind,
    Problem,
    SourceState,
    binary_column,
    int_column,
    share_equal,
    text_column,
)
from icefloe.pipeline.files.options import CombineOptions, ParseOptions
from icefloe.pipeline.files.parsing import parse_or_report
from icefloe.pipeline.files.references import References
from icefloe.pipeline.files.sources import SourceAccess, Sources, list_states
from icefloe.pipeline.planning import scan_tasks, write_tasks
from icefloe.pipeline.running.engines import SLICE, Rows, WorkerContext
from icefloe.pipeline.running.job import (
    PLACED,
    Committed,
    Job,
    JobReport,
    PlacedRow,
    Wave,
    WritePlan,
    build_manifests,
    placed_batch,
)
from icefloe.pipeline.writing.building import (
    ArrayPlan,
    Check,
    Notes,
    RegionContent,
    box_to_clear,
    check_of,
    cut_by_region,
    cut_into_waves,
    make_room,
    placed_file,
    places_table,
    plan_arrays,
    put_in_place,
    stamp,
    virtual_table,
)
from icefloe.pipeline.writing.dataset import (
    find_existing,
    read_existing,
    read_values_of,
    require_opening,
    write_metadata,
    write_native,
)
from icefloe.pipeline.writing.provenance import (
    OnChanged,
    SortedSources,
    SourceRecord,
    find_missing,
    insertions_of,
    look_at_known,
    options_to_json,
    read_record,
    recorded_files,
    require_no_record,
    sort_sources,
    without_occupied,
    write_record,
)
from icefloe.records import Record, replace
from icefloe.repo.context import RepoContext
from icefloe.reports import counted

SCANNED: Final = "number long, path string, stamp string, payload binary"
CHECKED: Final = "number long, checked binary"

_FILES_AT_ONCE: Final = 64
"""So many files are parsed before their rows leave the worker."""

type Workers = WorkerContext[SourceAccess]


class CombinedFiles(Record):
    """Files that fit together, and fit the existing dataset."""

    facts: Sequence[FileFacts]
    """Of all files that were parsed."""
    combined: Combined
    existing: Existing | None = None
    record: SourceRecord | None = None

    @property
    def references(self) -> int:
        """The number of chunks in the files that are used."""
        return sum(self.facts[number].references for number in self.combined.files)

    def known_urls(self) -> set[str]:
        """Return the URLs of the files that are there already."""
        return set() if self.record is None else set(self.record.by_url())

    def kept_paths(self) -> set[str]:
        """Return the arrays that are there, and need no new references if no file adds to them.

        A file that is replaced may be the one that they point to.
        """
        known = self.known_urls()
        is_again = any(self.facts[number].url in known for number in self.combined.files)
        if self.existing is None or is_again:
            return set()
        return set(self.existing.schema.by_path)

    def grid(self) -> dict[str, str]:
        """Return the digests of the coordinates that all files share, and that are new."""
        kept = self.kept_paths()
        donors = {array.path: self.combined.donor(array) for array in self.combined.arrays}
        return {
            path: self.facts[donor].digests[path]
            for path, donor in donors.items()
            if donor is not None and path not in kept and path in self.facts[donor].digests
        }


class VirtualProducer(Record, kw_only=True):
    """Makes one dataset of many files, by reference."""

    sources: Sources
    options: CombineOptions
    parse: ParseOptions
    access: SourceAccess = SourceAccess()
    append: bool = False
    on_changed: OnChanged = "report"
    most_references: int = REFERENCES_PER_COMMIT
    """Of one commit."""

    def produce(self, job: Job) -> JobReport:
        """List, parse, compare and commit the files; without `append` the group must be empty."""
        session, group = job.session(), job.target.group
        record = read_record(session.store, group) if self.append else None
        if not self.append:
            require_no_record(session.store, group)
        if record is not None and record.is_copy:
            raise InvalidInputError(
                f"the group {group!r} holds copied values, to which no references can be added: add"
                " copies (icefloe.append does)",
                ErrorKind.BAD_METADATA,
            )
        files, report = files_to_ingest(job, self.sources, record, self.access, self.on_changed)
        if not files:
            return report
        with job.engine.share(job.context, self.access) as workers:
            return self._ingest(job, session, record, files, workers, report)

    def _ingest(
        self,
        job: Job,
        session: Session,
        record: SourceRecord | None,
        files: Sequence[SourceState],
        workers: Workers,
        report: JobReport,
    ) -> JobReport:
        with scan(job, files, self.parse, workers).kept() as scanned:
            facts = gather_facts(job, scanned, files)
            with job.watch.stage("combine", counted(len(facts), "file")):
                combined_files = self._combine(session, job.target.group, record, facts)
            return self.write(job, session, combined_files, scanned, workers, report)

    def write(
        self,
        job: Job,
        session: Session,
        files: CombinedFiles,
        scanned: Rows,
        workers: Workers,
        report: JobReport,
    ) -> JobReport:
        """Check values of files that were combined, and commit all references."""
        report = replace(report, scan=files.combined.report)
        if not files.combined.files:
            return report
        if files.existing is None:
            _require_free(session, job.target.group, files.combined)
        report = replace(report, scan=self._check(job, files, scanned, workers))
        for done in self.commits(job, session, files, scanned, workers):
            report = report.with_commit(done)
        return report

    def _combine(
        self,
        session: Session,
        group: str,
        record: SourceRecord | None,
        facts: Sequence[FileFacts],
    ) -> CombinedFiles:
        existing = find_existing(session.store, group, self.options) if self.append else None
        if existing is not None and record is not None:
            grid = grid_of(session, group, record, facts, self.access)
            existing = replace(existing, grid=grid)
        combined = combine(facts, self.options, existing)
        if combined.report.misfits and self.options.on_misfit == "fail":
            raise misfits_error(combined.report, facts, self.options, existing)
        combined = without_occupied(facts, combined, self.options, existing, record)
        if combined.report.misfits and self.options.on_misfit == "fail":
            raise MisfitsError(combined.report)
        return CombinedFiles(facts, combined, existing, record)

    def _check(self, job: Job, files: CombinedFiles, scanned: Rows, workers: Workers) -> Report:
        """Compare a sample of values with independent readers."""
        wanted, combined = self.options.check_values, files.combined
        if wanted == "none":
            return combined.report
        chosen = choose_files(files.facts, combined, wanted)
        plan = plan_check(combined, wanted, self.parse.group)
        with job.watch.stage("check", f"values of {counted(len(chosen), 'file')}"):
            checks = compare_values(job, scanned, chosen, plan, workers)
        return require_same_values(combined.report, checks, files.facts, self.access)

    def commits(
        self,
        job: Job,
        session: Session,
        files: CombinedFiles,
        scanned: Rows,
        workers: Workers,
    ) -> Iterator[Committed]:
        """Commit all files, wave by wave if they are too many for one commit."""
        waves = cut_into_waves(
            files.facts, files.combined, self.options, files.existing, most=self.most_references
        )
        group = job.target.group
        for number, combined in enumerate(waves):
            wave = replace(files, combined=combined)
            if number:  # on top of what the waves before left
                wave = replace(wave, combined=replace(combined, inserted={}))
                session = job.session()
                existing = read_existing(session.store, group, self.options)
                record = read_record(session.store, group)
                wave = replace(wave, existing=existing, record=record)
            yield job.commit(session, self._plan(job, session, wave, scanned, workers))

    def _plan(
        self,
        job: Job,
        session: Session,
        files: CombinedFiles,
        scanned: Rows,
        workers: Workers,
    ) -> Wave:
        """Write what the driver writes itself, and plan the manifests of all other arrays."""
        group, combined = job.target.group, files.combined
        self._write_small(session, group, files)
        notes = require_opening(session, group, combined)
        return plan_references(job, session, group, files, scanned, workers, notes=notes)

    def _write_small(self, session: Session, group: str, files: CombinedFiles) -> None:
        """Write metadata, coordinates and the record."""
        store, combined = session.store, files.combined
        write_metadata(store, group, combined, files.existing)
        write_native(store, group, combined)
        recorded = recorded_files(files.facts, combined, self.options)
        settings = options_to_json(self.options, self.parse)
        inserted = insertions_of(combined, self.options)
        write_record(store, group, files.record, recorded, settings, files.grid(), inserted)


def grid_of(
    session: Session,
    group: str,
    record: SourceRecord,
    facts: Sequence[FileFacts],
    access: SourceAccess,
) -> Grid:
    """Return the coordinates that new files must share; values only if one of them differs."""
    if {file.state.url for file in record.files} <= {fact.url for fact in facts}:
        return Grid()  # all files are ingested again
    differing = {
        path
        for path, digest in record.grid.items()
        if any(fact.digests.get(path, digest) != digest for fact in facts)
    }
    context = session._session.context  # noqa: SLF001 - the same package
    reading = Repository(replace(context, virtual_reader=SourceReader(access)))
    store = reading.readonly_session(snapshot_id=session.snapshot_id).store
    return Grid(record.grid, dict(read_values_of(store, group, differing)))


def plan_references(
    job: Job,
    session: Session,
    group: str,
    files: CombinedFiles,
    scanned: Rows,
    workers: Workers,
    *,
    notes: tuple[str, ...] = (),
    kept_paths: AbstractSet[str] | None = None,
) -> Wave:
    """Plan the manifests of the arrays of a group, which must exist in the session.

    `kept_paths` are those of arrays that stay as they are unless files add to them.
    """
    combined, references = files.combined, files.references
    kept = files.kept_paths() if kept_paths is None else kept_paths
    state = state_of(session)
    arrays = plan_arrays(state, group, files.facts, combined, kept_paths=kept)
    plan = WritePlan(job.id, tuple(arrays))
    # Chunks that move have to leave the places of all files.
    known = {file.url for file in files.facts} if combined.inserted else files.known_urls()
    places = places_table(files.facts, combined, known)
    placed = scanned.matching(places, "number").map(_place, plan, int(time.time()), columns=PLACED)
    tasks = write_tasks(references, job.cores)
    return Wave(
        stage="write",
        what=counted(references, "chunk"),
        items=references,
        noun="chunk",
        plan=plan,
        built=build_manifests(placed, plan, _assemble, workers, tasks=tasks),
        references=references,
        message=f"{counted(len(combined.files), 'file')} by reference",
        metadata={"icefloe.files": len(combined.files)},
        worker_context=workers,
        finish=partial(_make_room, session, group, files) if combined.inserted else None,
        require_openable=lambda: notes,
    )


def _make_room(session: Session, group: str, files: CombinedFiles) -> None:
    assert files.existing is not None, "new steps come before existing ones"
    state = state_of(session)
    before = Repository(state.context).readonly_session(snapshot_id=session.snapshot_id)
    stored = state_of(before)
    make_room(state, stored, group, files.facts, files.combined, files.existing)


def files_to_ingest(
    job: Job,
    sources: Sources,
    record: SourceRecord | None,
    access: SourceAccess,
    on_changed: OnChanged,
) -> tuple[tuple[SourceState, ...], JobReport]:
    """List files; return those to ingest, and a report on those that the record has."""
    with job.watch.stage("list", "sources"):
        states = look_at_known(list_states(sources, access), record, access)
        missing = find_missing(record, states, access)
        gone = set(missing)
        listed = sort_sources(record, [state for state in states if state.url not in gone])
    files = _new_files(listed, on_changed)
    changed_urls = {state.url for state in listed.changed}
    return files, JobReport(
        job=job.id,
        branch=job.target.branch,
        group=job.target.group,
        scan=Report(0, 0),
        known=len(listed.known),
        changed=tuple(sorted(changed_urls)),
        replaced=tuple(state.url for state in files if state.url in changed_urls),
        missing=missing,
    )


def _new_files(listed: SortedSources, on_changed: OnChanged) -> tuple[SourceState, ...]:
    """Return new files, and with `replace` those that changed."""
    if listed.changed and on_changed == "fail":
        first = listed.changed[0].url
        raise SourceError(
            f"{counted(len(listed.changed), 'file has', 'files have')} changed since the ingest,"
            f" {first} among them: replace them with on_changed='replace', or leave them as"
            " they are",
            ErrorKind.SOURCE_CHANGED,
            url=first,
        )
    return (*listed.new, *(listed.changed if on_changed == "replace" else ()))


def _require_free(session: Session, group: str, combined: Combined) -> None:
    for array in combined.arrays:
        path = f"/{group}/{array.path}" if group else f"/{array.path}"
        if session._session.tree.find(path) is not None:  # noqa: SLF001 - the same package
            raise InvalidInputError(
                f"there is an array or group at {path} already: append to it, or choose"
                " another group",
                ErrorKind.NODE_ALREADY_EXISTS,
            )


# -- parse -----------------------------------------------------------------------------------


def scan(job: Job, sources: Sequence[SourceState], options: ParseOptions, workers: Workers) -> Rows:
    """Plan the parsing of files; nothing is done before somebody asks for rows.

    Rows without a path have the facts of many files. The others have the references of one array
    of one file.
    """
    tasks = scan_tasks(len(sources), job.cores)
    rows = job.engine.rows_of(_source_table(sources, tasks), tasks)
    return rows.map(_scan_files, options, workers, columns=SCANNED)


def gather_facts(job: Job, scanned: Rows, sources: Sequence[SourceState]) -> list[FileFacts]:
    """Parse all files, and fetch their facts, in the order of the sources."""
    files, sizes = counted(len(sources), "file"), sum(source.size or 0 for source in sources)
    with job.watch.stage("scan", files, items=len(sources), size_bytes=sizes):
        packed = scanned.where("path", is_null=True).select("payload").gather()
    rows = packed.column("payload").to_pylist()
    facts = [fact for row in rows for fact in pickle.loads(row)]  # noqa: S301 - of this very job
    by_url = {fact.url: fact for fact in share_equal(facts)}
    return [by_url[source.url] for source in sources]


def _source_table(sources: Sequence[SourceState], slices: int) -> "pa.Table":
    numbers = list(range(len(sources)))
    return pa.table(
        {
            "number": int_column(numbers),
            SLICE: int_column([number % slices for number in numbers]).cast(pa.int32()),
            "url": text_column([source.url for source in sources]),
            "size": int_column([source.size for source in sources]),
            "etag": text_column([source.etag for source in sources]),
            "modified": int_column([source.modified for source in sources]),
        }
    )


def _scan_files(
    batches: "Iterator[pa.RecordBatch]", options: ParseOptions, workers: Workers
) -> "Iterator[pa.RecordBatch]":
    context, access = workers()
    rows = (row for batch in batches for row in batch.to_pylist())
    for some in batched(rows, _FILES_AT_ONCE):
        yield _scan_some(some, options, context, access)


def _scan_some(
    rows: Sequence[dict[str, Any]],
    options: ParseOptions,
    context: RepoContext,
    access: SourceAccess,
) -> "pa.RecordBatch":
    numbers: list[int | None] = [None]
    paths: list[str | None] = [None]
    stamps: list[str | None] = [None]
    payloads: list[bytes] = [b""]
    facts = []
    for row in rows:
        listed = SourceState(row["url"], row["size"], row["etag"], row["modified"])
        parsed = parse_or_report(listed.url, options, access, listed=listed)
        if isinstance(parsed, ParsedFile):
            parsed = _uncovered(parsed, context) or parsed
        if isinstance(parsed, FileFacts):
            facts.append(parsed)
            continue
        facts.append(parsed.facts)
        for path, references in parsed.references.items():
            if path not in parsed.facts.values:  # also if it is empty: it may not have been
                numbers.append(row["number"])
                paths.append(path)
                stamps.append(stamp(parsed.facts.state))
                payloads.append(references.to_bytes())
    payloads[0] = pickle.dumps(share_equal(facts))
    return pa.RecordBatch.from_arrays(
        [int_column(numbers), text_column(paths), text_column(stamps), binary_column(payloads)],
        names=["number", "path", "stamp", "payload"],
    )


def _uncovered(parsed: ParsedFile, context: RepoContext) -> FileFacts | None:
    """Refuse a file with data where nobody may read it."""
    texts = sorted(
        {text for reference in parsed.references.values() for text in reference.locations}
    )
    _, is_refused = context.virtual.recorded(BytesColumn.from_strings(texts), validate=True)
    if is_refused is None or not is_refused.any():
        return None
    refused = texts[int(is_refused.argmax())]
    return FileFacts(parsed.facts.state, problem=Problem(Kind.UNCOVERED, not_covered(refused)))


# -- compare values --------------------------------------------------------------------------


def compare_values(
    job: Job,
    scanned: Rows,
    files: Mapping[int, PlacedFile],
    plan: CheckPlan,
    workers: Workers,
) -> list[CheckedValues]:
    """Compare values of the chosen files, given by number, each with an independent reader.

    References come from the scanned rows: those that would be committed.
    """
    chosen = pa.table(
        {
            "number": int_column(list(files)),
            "path": text_column([None] * len(files)),
            "payload": binary_column([pickle.dumps(file) for file in files.values()]),
        }
    )
    rows = scanned.where("path", is_null=False).matching(chosen.select(["number"]), "number")
    checked = rows.select("number", "path", "payload").grouped(
        _check_file,
        plan,
        workers,
        by=("number",),
        columns=CHECKED,
        tasks=scan_tasks(len(files), job.cores),
        also=chosen,
    )
    packed = checked.gather().sort_by("number").column("checked").to_pylist()
    return [pickle.loads(pickled) for pickled in packed]  # noqa: S301 - of this very job


def _check_file(table: "pa.Table", plan: CheckPlan, workers: Workers) -> "pa.Table":
    _, access = workers()
    payloads = {row["path"]: row["payload"] for row in table.to_pylist()}
    file: PlacedFile = pickle.loads(payloads.pop(None))  # noqa: S301 - of this very job
    references = {path: References.from_bytes(payload) for path, payload in payloads.items()}
    checked = check_file(file, references, plan, access)
    return pa.table(
        {
            "number": table.column("number").slice(0, 1),
            "checked": binary_column([pickle.dumps(checked)]),
        }
    )


# -- place -----------------------------------------------------------------------------------


def _place(
    batches: "Iterator[pa.RecordBatch]", plan: WritePlan, moment: int
) -> "Iterator[pa.RecordBatch]":
    """Move references to their place; `moment` is when the job began, in seconds since 1970."""
    arrays = {array.target.path: array for array in plan.arrays}
    for batch in batches:
        rows = [row for row in batch.to_pylist() if row["path"] in arrays]
        yield placed_batch(
            [placed for row in rows for placed in _placed(row, arrays[row["path"]], moment)]
        )


def _placed(row: Mapping[str, Any], array: ArrayPlan, moment: int) -> Iterator[PlacedRow]:
    file, number = placed_file(row["place"]), row["number"]
    pieces = put_in_place(array, number, file, References.from_bytes(row["payload"]), row["stamp"])
    if pieces is None:
        return
    check = check_of(file.facts.state, pieces, moment)
    box = box_to_clear(array, file)
    about = json.dumps([check.etag, check.seconds, box])
    for region, part in cut_by_region(array, pieces, box):
        yield array.number, region, number, part.to_bytes(), about


async def _assemble(
    context: RepoContext, _array: ArrayPlan, rows: Sequence[Mapping[str, Any]], notes: Notes
) -> RegionContent:
    parts, cleared = [], []
    for row in rows:
        etag, seconds, box = json.loads(row["about"])
        parts.append((Check(etag, seconds), References.from_bytes(row["payload"])))
        if box is not None:
            cleared.append(box)
    return RegionContent(await virtual_table(context, parts, notes), cleared)
