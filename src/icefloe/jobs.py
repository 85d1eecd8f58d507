"""Ingest, append and rechunk where it suits the archive: on this machine, or on Spark.

The jobs are those of `icefloe.pipeline`. Without a choice, small archives are done by this process
or by a few more of this machine, which needs no Java; large ones, and all with a master, by Spark.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, Literal, overload

from icefloe.api.repository import Repository
from icefloe.api.session import state_of
from icefloe.effects import run_blocking
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format.nodes import ArrayNode
from icefloe.format.paths import absolute_path
from icefloe.pipeline.combining.dimensions import advise, suggest_dimension
from icefloe.pipeline.copying.copies import find_arrays
from icefloe.pipeline.copying.if_needed import CopyIfNeeded, CopyReason
from icefloe.pipeline.copying.layouts import REFERENCES_PER_COMMIT, CopyOptions, values_bytes
from icefloe.pipeline.copying.origins import (
    Copyable,
    CopySource,
    RepositorySource,
    source_alone,
    source_of,
)
from icefloe.pipeline.files.facts import SourceState
from icefloe.pipeline.files.granted import granted_sources
from icefloe.pipeline.files.options import CombineOptions, ParseOptions, Preprocess, ValueCheck
from icefloe.pipeline.files.sources import SourceAccess, Sources, list_states
from icefloe.pipeline.planning import sample_dimensions
from icefloe.pipeline.running import jobs
from icefloe.pipeline.running.engines import Engine
from icefloe.pipeline.running.job import CopyReport, JobReport
from icefloe.pipeline.running.local import LocalEngine, usable_cores
from icefloe.pipeline.running.progress import OnProgress
from icefloe.pipeline.writing.provenance import (
    OnChanged,
    read_record,
    recorded_options,
    sort_sources,
)
from icefloe.records import Record, replace
from icefloe.transactions.chunks import require_authorised

type EngineName = Literal["auto", "local", "spark"]
"""Where the tasks of a job run."""

MOST_FILES: Final = 10_000
"""Archives with more files are done by Spark."""
MOST_REFERRED_BYTES: Final = 10 << 40
MOST_COPIED_BYTES: Final = 100 << 30
"""So are larger ones."""
_FEW_NEAR: Final = 32
_FEW_FAR: Final = 8
"""So many files are done before another process has started: on this machine, or elsewhere."""
_FEW_BYTES: Final = 64 << 20


class Work(Record):
    """The size of a job, as far as it is known before it runs.

    >>> Work(files=3).suits_this_process, Work(files=3000).suits_this_process
    (True, False)
    >>> Work(files=3000).suits_this_machine, Work(files=300_000).suits_this_machine
    (True, False)
    """

    files: int = 0
    size_bytes: int = 0
    is_copied: bool = False
    """Whether values are read and written, rather than referred to."""
    is_near: bool = True
    """Whether all files are on this machine."""

    @classmethod
    def of_files(cls, states: Sequence[SourceState], *, is_copied: bool = False) -> "Work":
        """Measure files that were listed."""
        return cls(
            len(states),
            sum(state.size or 0 for state in states),
            is_copied,
            all(state.url.startswith("file:") for state in states),
        )

    @property
    def suits_this_process(self) -> bool:
        """Whether it is over before other processes have started."""
        few = _FEW_NEAR if self.is_near else _FEW_FAR
        return self.files <= few and not (self.is_copied and self.size_bytes > _FEW_BYTES)

    @property
    def suits_this_machine(self) -> bool:
        """Whether one machine does it in reasonable time."""
        most = MOST_COPIED_BYTES if self.is_copied else MOST_REFERRED_BYTES
        return self.files <= MOST_FILES and self.size_bytes <= most


@contextmanager
def engine_for(
    work: Work, engine: EngineName = "auto", master: str | None = None
) -> Iterator[Engine]:
    """Open the engine for a job, and close it in the end.

    >>> with engine_for(Work(files=3)) as engine:
    ...     engine.cores
    1
    """
    if master is not None and engine == "local":
        raise InvalidInputError(
            f"{master!r} is a master of Spark, and the engine `local` does without: leave one out",
            ErrorKind.INVALID_CONFIG,
        )
    if (
        engine == "spark"
        or master is not None
        or not (engine == "local" or work.suits_this_machine)
    ):
        from icefloe.spark.engine import SparkEngine
        from icefloe.spark.session import session_while

        with session_while(master) as spark:
            yield SparkEngine(spark)
        return
    with LocalEngine(0 if work.suits_this_process else usable_cores()) as local:
        yield local


@contextmanager
def engine_for_copies(
    scanning: Engine,
    work: Work,
    size_bytes: int,
    *,
    engine: EngineName = "auto",
    master: str | None = None,
) -> Iterator[Engine]:
    """Open the engine that copies values of this size; another one has parsed the files.

    >>> with LocalEngine(processes=0) as scanning:
    ...     for size_bytes in (1 << 20, 1 << 30):
    ...         with engine_for_copies(scanning, Work(files=3), size_bytes) as copying:
    ...             print(copying is scanning)
    True
    False
    """
    copies = replace(work, size_bytes=size_bytes, is_copied=True)
    is_enough = copies.suits_this_machine if scanning.cores > 1 else copies.suits_this_process
    if is_enough or not isinstance(scanning, LocalEngine):
        yield scanning
        return
    with engine_for(copies, engine, master) as copying:
        yield copying


@overload
def ingest(
    repo: Repository,
    sources: Sources,
    options: CombineOptions,
    *,
    copy: None = None,
    branch: str = ...,
    group: str = ...,
    message: str | None = ...,
    parse: ParseOptions | None = ...,
    preprocess: Preprocess | None = ...,
    access: SourceAccess | None = ...,
    on_progress: OnProgress | None = ...,
    references_per_commit: int = ...,
    engine: EngineName = ...,
    master: str | None = ...,
) -> JobReport: ...


@overload
def ingest(
    repo: Repository,
    sources: Sources,
    options: CombineOptions | None = None,
    *,
    copy: CopyOptions,
    branch: str = ...,
    group: str = ...,
    message: str | None = ...,
    parse: ParseOptions | None = ...,
    preprocess: Preprocess | None = ...,
    access: SourceAccess | None = ...,
    on_progress: OnProgress | None = ...,
    references_per_commit: int = ...,
    engine: EngineName = ...,
    master: str | None = ...,
) -> CopyReport: ...


@overload
def ingest(
    repo: Repository,
    sources: Sources,
    options: CombineOptions | None = None,
    *,
    copy: Literal["auto"] | CopyIfNeeded,
    branch: str = ...,
    group: str = ...,
    message: str | None = ...,
    parse: ParseOptions | None = ...,
    preprocess: Preprocess | None = ...,
    access: SourceAccess | None = ...,
    on_progress: OnProgress | None = ...,
    references_per_commit: int = ...,
    engine: EngineName = ...,
    master: str | None = ...,
) -> JobReport | CopyReport: ...


def ingest(
    repo: Repository,
    sources: Sources,
    options: CombineOptions | None = None,
    *,
    copy: CopyOptions | CopyIfNeeded | Literal["auto"] | None = None,
    branch: str = "main",
    group: str = "",
    message: str | None = None,
    parse: ParseOptions | None = None,
    preprocess: Preprocess | None = None,
    access: SourceAccess | None = None,
    on_progress: OnProgress | None = None,
    references_per_commit: int = REFERENCES_PER_COMMIT,
    engine: EngineName = "auto",
    master: str | None = None,
) -> JobReport | CopyReport:
    """Make one dataset of many files, in one commit: by reference, or as a copy of their values.

    All files are compared first. If one does not fit, `MisfitsError` names each such file with its
    reasons, and nothing is written. Nor is anything if values of a sample of the files differ from
    those of an independent reader of their format, which raises `ValuesMismatchError`. References
    need virtual chunk containers that cover the files; copies do not depend on the files.

    With `copy="auto"` files are referred to if all fit so; if they fit only as copies, their values
    are copied, and unpacked only if nothing else helps. Then the report has the `reason`.

    Args:
        repo: where the dataset goes; on Spark not one in memory.
        sources: globs, URLs, or a table (of Arrow or Spark) with the column `url`.
        options: along which dimensions files are joined, and how. Without, a copy is made of one
            Zarr hierarchy or repository. With `copy="auto"` a single file needs no dimension.
        copy: chunks, shards and codecs of copies. Without, nothing is copied. `"auto"` copies up to
            100 GiB of values where references cannot hold them; `CopyIfNeeded` has other limits,
            and the chunks of such copies.
        branch: to commit to. Commits of others that touch other things are no obstacle.
        group: to put the dataset into; the root if not given.
        message: of the commit.
        parse: how files are parsed, and what is taken of them under which names.
        preprocess: called with an `EditableFile` for each file, where it is parsed; it may rename
            and drop variables, change attributes and set coordinates.
        access: storages of the files, where neither their URL nor the containers that the
            repository was opened with tell.
        on_progress: told how far each stage is.
        references_per_commit: jobs with more references run in waves with a commit each. Options
            for copies have their own.
        engine: `"local"` for this machine, without Java; `"spark"`; or by the number and size of
            the files.
        master: a Spark cluster: `spark://…`, `yarn`, `sc://…`.

    Returns:
        What was done. Without a `snapshot` if there was nothing to do.

    Example:
        >>> import icefloe, xarray
        >>> from icefloe.pipeline import CombineOptions, container_at, container_prefixes
        >>> for day in (1, 2):
        ...     data = xarray.Dataset({"t2m": (("time", "x"), [[280.0 + day]])}, {"time": [day]})
        ...     data.to_netcdf(f"ingested-{day}.nc", engine="h5netcdf")
        >>> config = icefloe.RepositoryConfig.default()
        >>> [prefix] = container_prefixes(["ingested-*.nc"])
        >>> config.set_virtual_chunk_container(container_at(prefix))
        >>> storage = icefloe.local_filesystem_storage("ingested")
        >>> repository = icefloe.Repository.create(storage, config)
        >>> report = icefloe.ingest(repository, "ingested-*.nc", CombineOptions(("time",)))
        >>> report.scan.used, report.references, report.commits
        (2, 2, 1)
    """
    reached = access or granted_sources(repo._context)  # noqa: SLF001 - the same package
    needed = CopyIfNeeded() if copy == "auto" else copy if isinstance(copy, CopyIfNeeded) else None
    how = copy if isinstance(copy, CopyOptions) else None if needed is None else needed.how
    common: dict[str, Any] = {
        "branch": branch,
        "group": group,
        "message": message,
        "access": access,
        "on_progress": on_progress,
    }
    if options is None and how is not None:
        source = hierarchy_of(sources, reached)
        if source is not None:
            work = _work_of_group(require_readable(source), how)
            reason = None
            if needed is not None:
                reason = CopyReason("", _ALONE, 0, 0, work.size_bytes)
                needed.allow(reason)
            with engine_for(work, engine, master) as runner:
                copied = jobs.copy_sources(runner, repo, sources, None, how, **common)
            return replace(copied, reason=reason)
    if options is None and needed is None:
        raise without_dimensions(sources, parse, reached)
    files = list_states(sources, reached)
    others: tuple[CombineOptions, ...] = ()
    if options is None or (needed is not None and not options.concat):
        options, parse = _of_single_file(files, options, parse, reached)
        others = (replace(options, by="order"),)
    if preprocess is not None:
        parse = replace(options.parse_options(parse), preprocess=preprocess)
    work = Work.of_files(files, is_copied=isinstance(copy, CopyOptions))
    with engine_for(work, engine, master) as runner:
        if needed is not None:
            return jobs.ingest_automatically(
                runner,
                repo,
                files,
                options,
                needed,
                parse=parse,
                references_per_commit=references_per_commit,
                other_options=others,
                engine_for_copies=partial(
                    engine_for_copies, runner, work, engine=engine, master=master
                ),
                **common,
            )
        if how is not None:
            return jobs.copy_sources(runner, repo, files, options, how, parse=parse, **common)
        return jobs.virtualize(
            runner,
            repo,
            files,
            options,
            parse=parse,
            references_per_commit=references_per_commit,
            **common,
        )


_ALONE: Final = "the source is a Zarr hierarchy or a repository, and no dimension was named"


def _of_single_file(
    files: Sequence[SourceState],
    options: CombineOptions | None,
    parse: ParseOptions | None,
    access: SourceAccess,
) -> tuple[CombineOptions, ParseOptions]:
    """Choose the dimension along which other files can follow a single one; its time, if clear."""
    if len(files) != 1:
        raise without_dimensions(files, parse, access)
    sampled = sample_dimensions(files, parse or ParseOptions(()), access)
    dimensions = [dimension for dimension in sampled if not dimension.varies]
    name = suggest_dimension(dimensions) or (dimensions[0].name if dimensions else None)
    if name is None:
        raise without_dimensions(files, parse, access)
    concat = (name,)
    combining = options or CombineOptions(concat)
    return replace(combining, concat=concat), replace(parse or ParseOptions(()), concat=concat)


def append(
    repo: Repository,
    sources: Sources,
    options: CombineOptions | None = None,
    *,
    branch: str = "main",
    group: str = "",
    message: str | None = None,
    parse: ParseOptions | None = None,
    preprocess: Preprocess | None = None,
    access: SourceAccess | None = None,
    on_misfit: Literal["fail", "skip"] | None = None,
    check_values: ValueCheck | None = None,
    on_changed: OnChanged = "report",
    memory_per_task: int | None = None,
    on_progress: OnProgress | None = None,
    references_per_commit: int = REFERENCES_PER_COMMIT,
    engine: EngineName = "auto",
    master: str | None = None,
) -> JobReport:
    """Add files to a dataset that `ingest` made, by reference or as a copy; see there.

    Without options, files are put together, and copied, as they were the first time. May be called
    again and again with the same sources: ingested files are skipped, and without anything new
    nothing is committed.

    Args:
        repo: where the dataset is.
        sources: as in `ingest`.
        options: along which dimensions files are joined, and how, if not as the first time.
        branch: to commit to.
        group: the group of the dataset; the root if not given.
        message: of the commit.
        parse: how files are parsed, if not as the first time.
        preprocess: the function that `ingest` got. Functions are not remembered.
        access: storages of the files.
        on_misfit: what to do with files that do not fit, if `options` should not say so.
        check_values: how many files of each schema and parser have values compared, "all" or
            "none", if `options` should not say so.
        on_changed: what to do with files that are there in another state.
        memory_per_task: bytes that a task may take to add values to a copy, if not as the first
            time.
        on_progress: told how far each stage is.
        references_per_commit: jobs with more references run in waves with a commit each. Copies
            do as their options say.
        engine: as in `ingest`; only files that are new or changed count.
        master: a Spark cluster.

    Returns:
        What was done. Without a `snapshot` if there was nothing to do.

    Example:
        >>> import icefloe, xarray
        >>> from icefloe.pipeline import CombineOptions, container_at, container_prefixes
        >>> for day in (1, 2):
        ...     data = xarray.Dataset({"t2m": (("time", "x"), [[280.0 + day]])}, {"time": [day]})
        ...     data.to_netcdf(f"day-{day}.nc", engine="h5netcdf")
        >>> config = icefloe.RepositoryConfig.default()
        >>> [prefix] = container_prefixes(["day-*.nc"])
        >>> config.set_virtual_chunk_container(container_at(prefix))
        >>> repository = icefloe.Repository.create(icefloe.in_memory_storage(), config)
        >>> report = icefloe.ingest(repository, "day-1.nc", CombineOptions(("time",)))
        >>> report = icefloe.append(repository, "day-*.nc")
        >>> report.known, report.scan.used, report.references
        (1, 1, 1)
    """
    reached = access or granted_sources(repo._context)  # noqa: SLF001 - the same package
    store = repo.readonly_session(branch).store
    if options is None:
        function = preprocess if parse is None else parse.preprocess or preprocess
        options, recorded = recorded_options(store, group, function)
        parse = parse or recorded
    if preprocess is not None:
        parse = replace(options.parse_options(parse), preprocess=preprocess)
    files = list_states(sources, reached)
    record = read_record(store, group)
    sorted_files = sort_sources(record, files)
    is_copied = record is not None and record.is_copy
    work = Work.of_files((*sorted_files.new, *sorted_files.changed), is_copied=is_copied)
    with engine_for(work, engine, master) as runner:
        return jobs.append(
            runner,
            repo,
            files,
            options,
            branch=branch,
            group=group,
            message=message,
            parse=parse,
            access=access,
            on_misfit=on_misfit,
            check_values=check_values,
            on_changed=on_changed,
            memory_per_task=memory_per_task,
            on_progress=on_progress,
            references_per_commit=references_per_commit,
        )


def rechunk(
    repo: Repository,
    source: Copyable,
    copy: CopyOptions,
    *,
    source_group: str = "",
    branch: str = "main",
    group: str = "",
    message: str | None = None,
    access: SourceAccess | None = None,
    on_progress: OnProgress | None = None,
    engine: EngineName = "auto",
    master: str | None = None,
) -> CopyReport:
    """Copy a dataset of a repository, or any Zarr hierarchy, with other chunks, in one commit.

    Values are copied as they are stored: nothing is scaled, masked or decoded. Attributes, fill
    values and names of dimensions come along, and so do coordinates, which keep large chunks.
    Virtual chunks become native ones.

    Args:
        repo: where the copy goes; on Spark not one in memory.
        source: a session (`other.readonly_session(tag="v1")`), a repository (the tip of its
            `main`), or the path or URL of a repository or a Zarr hierarchy of format 2 or 3.
        copy: chunks, shards and codecs.
        source_group: what to copy; the root if not given.
        branch: to commit to.
        group: to put the copy into; the root if not given.
        message: of the commit.
        access: the storage of a Zarr hierarchy, where its URL alone does not tell.
        on_progress: told how far each stage is.
        engine: as in `ingest`.
        master: a Spark cluster.

    Returns:
        What was done.

    Example:
        >>> import icefloe, zarr
        >>> from icefloe.pipeline import CopyOptions
        >>> root = zarr.open_group("hierarchy.zarr")
        >>> array = root.create_array(
        ...     "a", shape=(4, 6), chunks=(1, 6), dtype="i4", dimension_names=["t", "x"]
        ... )
        >>> array[...] = 7
        >>> repository = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> report = icefloe.rechunk(repository, "hierarchy.zarr", CopyOptions.of({"t": 4}))
        >>> report.source_reads, report.written
        (4, 1)
    """
    reached = access or granted_sources(repo._context)  # noqa: SLF001 - the same package
    origin = require_readable(source_of(source, source_group, reached))
    work = _work_of_group(origin, copy)
    with engine_for(work, engine, master) as runner:
        return jobs.copy_group(
            runner,
            repo,
            source,
            copy,
            source_group=source_group,
            branch=branch,
            group=group,
            message=message,
            access=access,
            on_progress=on_progress,
        )


def without_dimensions(
    sources: Sources, parse: ParseOptions | None, access: SourceAccess
) -> InvalidInputError:
    """Return an error that lists the dimensions along which files could be joined.

    >>> import xarray
    >>> from icefloe.pipeline import SourceAccess
    >>> for day in (1, 2):
    ...     data = xarray.Dataset({"t2m": (("time", "x"), [[280.0 + day]])}, {"time": [day]})
    ...     data.to_netcdf(f"unclear-{day}.nc", engine="h5netcdf")
    >>> without_dimensions("unclear-*.nc", None, SourceAccess()).context
    {'dimension': 'time'}
    """
    states = list_states(sources, access)
    dimensions = sample_dimensions(states, parse or ParseOptions(()), access)
    name, advice = suggest_dimension(dimensions), advise(dimensions, states[0].url)
    about = {} if name is None else {"dimension": name}
    text = f"along which dimension are files joined? {advice[0].upper()}{advice[1:]}"
    return InvalidInputError(text, ErrorKind.BAD_METADATA, **about)


def hierarchy_of(sources: Sources, access: SourceAccess) -> CopySource | None:
    """Return the Zarr hierarchy or repository that sources are, if they are one.

    >>> hierarchy_of(["no-such.zarr"], SourceAccess()) is None
    True
    """
    try:
        return source_alone(sources, access)
    except InvalidInputError:
        return None


def require_readable(source: CopySource) -> CopySource:
    """Return what is to be copied; raise if the reader did not authorise its virtual chunks.

    Nothing has to be created, and no engine started, to find that out.
    """
    if isinstance(source, RepositorySource):
        state = state_of(source.session)
        nodes = state.tree.below(absolute_path(source.path))
        arrays = [node for node in nodes if isinstance(node, ArrayNode)]
        run_blocking(require_authorised(state, arrays))
    return source


def _work_of_group(source: CopySource, copy: CopyOptions) -> Work:
    arrays = find_arrays(source, copy.layout).arrays
    size_bytes = sum(values_bytes(array.about) for array in arrays)
    return Work(size_bytes=size_bytes, is_copied=True, is_near=source.is_near)
