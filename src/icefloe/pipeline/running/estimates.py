"""Estimates of a job before it runs; nothing is written, and Spark is not needed."""

from collections import Counter
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

import zarr

from icefloe.api.repository import Repository
from icefloe.api.session import Session, state_of
from icefloe.errors import ErrorKind, InvalidInputError, SourceError
from icefloe.format.transaction_log import log_bytes_of_chunk
from icefloe.manifests.partition import MAX_PART_REFS
from icefloe.pipeline.checking.values import choose_files
from icefloe.pipeline.combining.combine import Combined, PlacedFile, combine
from icefloe.pipeline.combining.copied import CopyRules
from icefloe.pipeline.copying.copies import arrays_below, find_arrays
from icefloe.pipeline.copying.layouts import MEMORY_PER_TASK, REFERENCES_PER_COMMIT, CopyOptions
from icefloe.pipeline.copying.origins import source_alone
from icefloe.pipeline.files.describing import ParsedFile
from icefloe.pipeline.files.facts import FileFacts
from icefloe.pipeline.files.granted import granted_sources
from icefloe.pipeline.files.options import CombineOptions, ParseOptions
from icefloe.pipeline.files.sources import SourceAccess, Sources, list_states
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
from icefloe.pipeline.writing.building import ArrayPlan, cut_into_waves, plan_arrays
from icefloe.pipeline.writing.dataset import find_existing, write_metadata
from icefloe.pipeline.writing.provenance import (
    SortedSources,
    read_record,
    recorded_options,
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
    reached = access or granted_sources(repo._context)  # noqa: SLF001 - the same package
    if options is None:
        options, recorded = recorded_options(session.store, group)
        if record is not None and record.is_copy:
            raise InvalidInputError(
                "this dataset is a copy of its files: estimate what copying the new files takes"
                " with plan_copy, with the options of the copy",
                ErrorKind.BAD_METADATA,
            )
        parse, append = parse or recorded, True
    return _Estimate(
        session=session,
        group=group,
        listed=sort_sources(record, list_states(sources, reached)),
        options=options,
        parse=parse or ParseOptions(options.concat),
        access=reached,
        cores=cores,
        most_references=references_per_commit,
        append=append,
    ).plan()


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
    decode: bool = False,
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
    reached = access or granted_sources(repo._context)  # noqa: SLF001 - the same package
    is_near = repo._context.is_near  # noqa: SLF001 - the same package
    if options is None:
        source = source_alone(sources, reached)
        group, scan = find_arrays(source, how.layout), None
        is_near = is_near and source.is_near
    else:
        staging = Repository.create(in_memory_storage())
        session = staging.writable_session("main")
        scan = _Estimate(
            session=session,
            listed=sort_sources(None, list_states(sources, reached)),
            options=options,
            parse=parse or ParseOptions(options.concat),
            access=reached,
            cores=cores,
            rules=CopyRules(decode=decode),
        ).plan()
        group = arrays_below(zarr.open_group(session.store, mode="r"), how.layout)
        is_near = is_near and all(url.startswith("file:") for url in scan.sampled)
    limits = how.limits(cores, is_near=is_near)
    return estimate_copy(group, limits, most=references_per_commit, scan=scan)


class _Estimate(Record, kw_only=True):
    """The input of an estimate; the arrays are in the session afterwards."""

    session: Session
    group: str = ""
    listed: SortedSources
    options: CombineOptions
    parse: ParseOptions
    access: SourceAccess
    cores: int
    most_references: int = REFERENCES_PER_COMMIT
    append: bool = False
    rules: CopyRules | None = None
    """Of values that are copied; None if files are referred to."""

    def plan(self) -> JobPlan:
        """Plan all commits."""
        listed = self.listed
        sampled = sample_files(listed.new, self.parse, self.access)
        if listed.new and not sampled.numbers:
            raise SourceError(
                f"none of the files that were tried can be used: {sampled.problems[0]}",
                ErrorKind.SOURCE_DAMAGED,
                url=listed.new[0].url,
            )
        waves, problems, checked = self._waves(sampled) if listed.new else ([], (), 0)
        return make_plan(
            sampled,
            waves,
            files=len(listed.new),
            known=len(listed.known),
            changed=len(listed.changed),
            cores=self.cores,
            problems=problems,
            checked=checked,
        )

    def _waves(self, sampled: Sampled) -> tuple[list[WavePlan], tuple[str, ...], int]:
        """Plan each commit, as if all files were like those of the sample.

        Return also the misfits of the sample, and the number of files whose values are compared.
        """
        store, group = self.session.store, self.group
        options, states = self.options, self.listed.new
        existing = find_existing(store, group, options) if self.append else None
        facts = sampled.assumed(states)
        # Coordinates of files that nobody opened are not known: one behind the other is as good.
        in_order = replace(options, concat=options.concat[:1], by="order", on_misfit="skip")
        combined = combine(facts, in_order, existing, self.rules)
        chosen = {states[number].url for number in sampled.numbers}
        misfits = [misfit for misfit in combined.report.misfits if misfit.url in chosen]
        problems = tuple(f"{misfit.url}: {misfit.message}" for misfit in misfits)
        if not combined.files:
            return [], problems, 0
        write_metadata(store, group, combined, existing)
        kept_paths = set() if existing is None else set(existing.schema.by_path)
        waves = []
        for wave in cut_into_waves(facts, combined, in_order, existing, most=self.most_references):
            waves.append(self._wave(facts, wave, sampled, kept_paths))
            kept_paths = {array.path for array in wave.arrays}
        return waves, problems, len(choose_files(facts, combined, options.check_values))

    def _wave(
        self,
        facts: Sequence[FileFacts],
        wave: Combined,
        sampled: Sampled,
        kept_paths: AbstractSet[str],
    ) -> WavePlan:
        """Plan a commit."""
        state = state_of(self.session)
        arrays = plan_arrays(state, self.group, facts, wave, kept_paths=kept_paths)
        is_copied = self.rules is not None
        counts = {
            array.path: _references(array, wave, sampled, is_copied=is_copied) for array in arrays
        }
        parsed = sum(facts[number].references for number in wave.files)
        regions = sum(array.parts.most_regions for array in arrays)
        log_bytes = [counts[a.path] * log_bytes_of_chunk(len(a.grid)) for a in arrays]
        return WavePlan(
            files=len(wave.files),
            parsed=parsed,
            references=sum(counts.values()),
            tasks=write_tasks(parsed, self.cores),
            manifests=Range(regions, regions),
            largest_manifest=min(max(counts.values(), default=0), MAX_PART_REFS),
            log_bytes=sum(log_bytes),
        )


def _references(array: ArrayPlan, wave: Combined, sampled: Sampled, *, is_copied: bool) -> int:
    """Count what files like those of the sample add to an array."""
    giving = Counter(sampled.nearest(wave.files[row]) for row in wave.rows_of(array.target))
    return sum(
        files * _added(array, wave, sampled.parsed[number], is_copied=is_copied)
        for number, files in giving.items()
    )


def _added(array: ArrayPlan, wave: Combined, parsed: ParsedFile, *, is_copied: bool) -> int:
    references = parsed.references.get(array.target.path)
    if references is None:
        return 0
    if is_copied:  # they stay in the chunks of the files
        return len(references) + len(references.inlined)
    first = PlacedFile(parsed.facts, 0, {name: int(rows[0]) for name, rows in wave.starts.items()})
    placed = first.references_in(array.target, references)
    return len(placed) + len(placed.inlined)
