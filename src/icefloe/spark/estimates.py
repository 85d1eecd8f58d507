"""What a job will take, told before it runs; nothing is written, and Spark need not be there."""

from collections import Counter
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

from icefloe.api.repository import Repository
from icefloe.api.session import Session
from icefloe.errors import ErrorKind, InvalidInputError, SourceError
from icefloe.format.transaction_log import log_bytes_of_chunk
from icefloe.manifests.partition import MAX_PART_REFS
from icefloe.pipeline.checking.values import choose_files
from icefloe.pipeline.combining.combine import Combined, Existing, combine, placed_references
from icefloe.pipeline.copying.copies import arrays_in, find_arrays
from icefloe.pipeline.copying.layouts import MEMORY_PER_TASK, REFERENCES_PER_COMMIT, CopyOptions
from icefloe.pipeline.copying.origins import source_alone
from icefloe.pipeline.files.describing import ParsedFile
from icefloe.pipeline.files.facts import FileFacts, SourceState
from icefloe.pipeline.files.options import CombineOptions, ParseOptions
from icefloe.pipeline.files.sources import SourceAccess, Sources, list_states
from icefloe.pipeline.manifests import ArrayPlan, cut_into_waves, plan_arrays
from icefloe.pipeline.metadata import write_metadata
from icefloe.pipeline.planning import (
    CopyEstimate,
    JobPlan,
    Range,
    Sampled,
    WavePlan,
    estimate_copy,
    make_plan,
    sample_files,
    write_tasks,
)
from icefloe.pipeline.provenance import (
    Sorted,
    holds_arrays,
    options_from_json,
    read_existing,
    read_record,
    sort_sources,
)
from icefloe.records import Record, replace
from icefloe.storage import in_memory_storage
from icefloe.transactions.packing import PackingOptions


def plan(
    repo: Repository,
    sources: Sources,
    options: CombineOptions | None = None,
    *,
    cores: int,
    branch: str = "main",
    group: str = "",
    parse: ParseOptions | None = None,
    access: SourceAccess | None = None,
    append: bool = False,
    references_per_commit: int = REFERENCES_PER_COMMIT,
) -> JobPlan:
    """Estimate what `virtualize`, or `append`, would do with the same arguments on `cores` cores.

    Sources are listed, and three of them are parsed, here; all others are taken to be like these.
    Tasks and commits are those that the job will have if so; times and memory are rough.

    >>> import icefloe, xarray
    >>> for day in (1, 2):
    ...     data = xarray.Dataset({"t2m": (("time", "x"), [[280.0 + day]])}, {"time": [day]})
    ...     data.to_netcdf(f"planned-{day}.nc", engine="h5netcdf")
    >>> repository = icefloe.Repository.create(icefloe.in_memory_storage())
    >>> planned = plan(repository, "planned-*.nc", CombineOptions(("time",)), cores=64)
    >>> planned.files, planned.references, len(planned.waves)
    (2, 2, 1)
    """
    session = repo.writable_session(branch)
    record = read_record(session.store, group)
    if options is None:
        if record is None:
            raise InvalidInputError(
                f"the group {group!r} has no record of sources: say along which dimensions files"
                " are to be joined",
                ErrorKind.BAD_METADATA,
            )
        options, recorded = options_from_json(record.options)
        parse, append = parse or recorded, True
    reached = access or SourceAccess()
    files = _Files(sort_sources(record, list_states(sources, reached)), options, parse, reached)
    return files.plan(session, group, cores, references_per_commit, append=append)


def plan_copy(
    repo: Repository,
    sources: Sources,
    options: CombineOptions | None = None,
    *,
    cores: int,
    chunks: Mapping[str, int] | None = None,
    shards: Mapping[str, int] | None = None,
    parse: ParseOptions | None = None,
    access: SourceAccess | None = None,
    memory_per_task: int = MEMORY_PER_TASK,
    packing: PackingOptions | bool = False,
    references_per_commit: int = REFERENCES_PER_COMMIT,
) -> CopyEstimate:
    """Estimate what `ingest` or `rechunk` would do with the same arguments on `cores` cores.

    With options, `sources` are files: they are listed, and three of them are parsed, here; all
    others are taken to be like these. Without, it is one Zarr hierarchy or repository.

    >>> import icefloe, zarr
    >>> array = zarr.open_group("estimated.zarr").create_array(
    ...     "a", shape=(4, 6), chunks=(1, 6), dtype="i4", dimension_names=["t", "x"]
    ... )
    >>> repository = icefloe.Repository.create(icefloe.in_memory_storage())
    >>> planned = plan_copy(repository, "estimated.zarr", cores=64, chunks={"t": 4})
    >>> planned.source_reads, planned.objects
    (4, 1)
    """
    how = CopyOptions.of(chunks, shards, packing=packing, memory_per_task=memory_per_task)
    reached = access or SourceAccess()
    is_near = repo._context.is_near  # noqa: SLF001 - the same package
    if options is None:
        source = source_alone(sources, reached)
        group, scan = find_arrays(source, how.layout), None
        is_near = is_near and source.is_near
    else:
        session = Repository.create(in_memory_storage()).writable_session("main")
        files = _Files(sort_sources(None, list_states(sources, reached)), options, parse, reached)
        scan = files.plan(session, "", cores, REFERENCES_PER_COMMIT, append=False)
        group = arrays_in(session.store, how.layout)
        is_near = is_near and all(url.startswith("file:") for url in scan.sampled)
    limits = how.limits(cores, is_near=is_near)
    return estimate_copy(group, limits, most=references_per_commit, scan=scan)


class _Files(Record):
    """What is to be planned, and how to get at it."""

    listed: Sorted
    options: CombineOptions
    parse: ParseOptions | None
    access: SourceAccess

    def plan(self, session: Session, group: str, cores: int, most: int, *, append: bool) -> JobPlan:
        """Plan all commits; the arrays are in the session afterwards."""
        listed, options = self.listed, self.options
        sampled = sample_files(listed.new, self.parse or ParseOptions(options.concat), self.access)
        if listed.new and not sampled.numbers:
            raise SourceError(
                f"none of the files that were tried can be used: {sampled.problems[0]}",
                ErrorKind.SOURCE_DAMAGED,
                url=listed.new[0].url,
            )
        existing = None
        if append and holds_arrays(session.store, group):
            existing = read_existing(session.store, group, options)
        planned = _waves(session, group, listed.new, sampled, options, existing, cores, most)
        return make_plan(
            sampled.measured,
            planned.waves,
            files=len(listed.new),
            known=len(listed.known),
            changed=len(listed.changed),
            cores=cores,
            largest_region=planned.largest,
            sampled=tuple(listed.new[number].url for number in sampled.numbers),
            problems=(*sampled.problems, *planned.problems),
            checked=planned.checked,
        )


class _Waves(Record):
    """All commits of a job."""

    waves: Sequence[WavePlan] = ()
    largest: int = 0
    """References of the largest manifest."""
    problems: Sequence[str] = ()
    """Misfits of the sample."""
    checked: int = 0
    """Files whose values are compared."""


def _waves(
    session: Session,
    group: str,
    states: Sequence[SourceState],
    sampled: Sampled,
    options: CombineOptions,
    existing: Existing | None,
    cores: int,
    most: int,
) -> _Waves:
    """Plan each commit."""
    if not states:
        return _Waves()
    facts = sampled.assumed(states)
    # Coordinates of files that nobody opened are not known: one behind the other is as good.
    in_order = replace(options, concat=options.concat[:1], by="order", on_misfit="skip")
    combined = combine(facts, in_order, existing)
    chosen = {states[number].url for number in sampled.numbers}
    problems = [
        f"{misfit.url}: {misfit.message}"
        for misfit in combined.report.misfits
        if misfit.url in chosen
    ]
    if not combined.files:
        return _Waves(problems=problems)
    write_metadata(session.store, group, combined, existing)
    existing_paths = set() if existing is None else set(existing.schema.by_path)
    waves, largest = [], 0
    for wave in cut_into_waves(facts, combined, in_order, existing, most=most):
        planned, region = _wave(session, group, facts, wave, sampled, existing_paths, cores)
        existing_paths = {array.path for array in wave.arrays}
        waves.append(planned)
        largest = max(largest, region)
    checked = len(choose_files(facts, combined, options.check_values))
    return _Waves(waves, largest, problems, checked)


def _wave(
    session: Session,
    group: str,
    facts: Sequence[FileFacts],
    wave: Combined,
    sampled: Sampled,
    existing_paths: AbstractSet[str],
    cores: int,
) -> tuple[WavePlan, int]:
    state = session._session  # noqa: SLF001 - the same package
    arrays = plan_arrays(state, group, facts, wave, kept_paths=existing_paths)
    counts = {array.path: _references(array, wave, sampled) for array in arrays}
    parsed, references = (
        sum(facts[number].references for number in wave.files),
        sum(counts.values()),
    )
    regions = sum(array.parts.most_regions for array in arrays)
    planned = WavePlan(
        files=len(wave.files),
        parsed=parsed,
        references=references,
        tasks=write_tasks(parsed, cores),
        manifests=Range(regions, regions),
        log_bytes=sum(counts[array.path] * log_bytes_of_chunk(len(array.grid)) for array in arrays),
    )
    return planned, min(max(counts.values(), default=0), MAX_PART_REFS)


def _references(array: ArrayPlan, wave: Combined, sampled: Sampled) -> int:
    """Count what files like those of the sample add to an array."""
    giving = Counter(
        sampled.nearest(number)
        for number, family in zip(wave.files, wave.families, strict=True)
        if family == array.target.family and array.donor in {None, number}
    )
    return sum(
        files * _added(array, wave, sampled.parsed[number]) for number, files in giving.items()
    )


def _added(array: ArrayPlan, wave: Combined, parsed: ParsedFile) -> int:
    references = parsed.references.get(array.target.path)
    if references is None:
        return 0
    placed = placed_references(wave, array.target, 0, references, parsed.facts)
    return len(placed) + len(placed.inlined)
