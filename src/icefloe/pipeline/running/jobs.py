"""Jobs: many files or arrays, one commit.

    virtualize, append   references to files, where they are
    ingest, rechunk      copies of values, with chunks, shards and codecs of your choice
    ingest_automatically references if all files fit by reference, otherwise copies

Each is one `Job` with a producer, on an engine. Nothing is written before all files were compared,
and nothing is visible before the commit, which is one conditional write.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal

from icefloe.api.repository import Repository
from icefloe.api.session import Session, state_of
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.pipeline.combining.copied import CopyRules
from icefloe.pipeline.copying.if_needed import CopyIfNeeded
from icefloe.pipeline.copying.layouts import MEMORY_PER_TASK, REFERENCES_PER_COMMIT, CopyOptions
from icefloe.pipeline.copying.origins import (
    Copyable,
    CopySource,
    RepositorySource,
    source_alone,
    source_of,
)
from icefloe.pipeline.copying.recorded import copying_to_json, recorded_copying
from icefloe.pipeline.files.granted import granted_sources
from icefloe.pipeline.files.options import CombineOptions, ParseOptions, ValueCheck
from icefloe.pipeline.files.sources import SourceAccess, Sources
from icefloe.pipeline.running.appending import AppendingProducer, copying_producer
from icefloe.pipeline.running.automatic import AutomaticProducer, EngineForCopies
from icefloe.pipeline.running.engines import Engine
from icefloe.pipeline.running.job import CopyReport, Job, JobReport, Target
from icefloe.pipeline.running.native import NativeProducer
from icefloe.pipeline.running.progress import OnProgress
from icefloe.pipeline.running.staging import FilesToStage, staging_job
from icefloe.pipeline.running.virtual import VirtualProducer
from icefloe.pipeline.writing.provenance import (
    COPY,
    OnChanged,
    read_record,
    recorded_options,
    write_record,
)
from icefloe.records import replace
from icefloe.transactions.packing import PackingOptions


def virtualize(
    engine: Engine,
    repo: Repository,
    sources: Sources,
    options: CombineOptions,
    *,
    branch: str = "main",
    group: str = "",
    message: str | None = None,
    parse: ParseOptions | None = None,
    access: SourceAccess | None = None,
    append: bool = False,
    on_misfit: Literal["fail", "skip"] | None = None,
    check_values: ValueCheck | None = None,
    on_changed: OnChanged = "report",
    on_progress: OnProgress | None = None,
    references_per_commit: int = REFERENCES_PER_COMMIT,
) -> JobReport:
    """Make one dataset of many files, by reference, in one commit.

    Every file is parsed once, by a task, and compared with all others. If any does not fit,
    `MisfitsError` names each with its reasons, and nothing is written; with `on_misfit="skip"`
    they are left out. Then values of a sample of the files are compared with an independent reader
    of their format; if one differs, `ValuesMismatchError` names it, and nothing is written. The
    repository must have virtual chunk containers that cover the files.

    Args:
        engine: where the work is done: a `LocalEngine`. The function of the same name in
            `icefloe.spark` takes a Spark session: `local_session()`, or one of your cluster.
        repo: where the dataset goes; on Spark not one in memory, as workers are other processes.
        sources: globs, URLs, or a table (of Arrow or Spark) with the column `url`.
        options: along which dimensions files are joined, and how.
        branch: to commit to. Commits of others that touch other things are no obstacle.
        group: to put the dataset into; the root if not given.
        message: of the commit.
        parse: how files are parsed.
        access: storages of the files, where neither their URL nor the containers that the
            repository was opened with tell.
        append: add to what is in the group. Files that are there already are skipped.
        on_misfit: what to do with files that do not fit, if `options` should not say so.
        check_values: how many files of each schema and parser have values compared, "all" or
            "none", if `options` should not say so.
        on_changed: what to do with files that are there in another state.
        on_progress: told how far each stage is.
        references_per_commit: jobs with more references run in waves with a commit each, as a
            transaction log has a largest size. After a crash, `append` goes on from the last one.

    Returns:
        What was done. Without a `snapshot` if there was nothing to do.

    Example:
        >>> import icefloe, xarray
        >>> from icefloe.pipeline import CombineOptions, LocalEngine
        >>> from icefloe.pipeline import container_at, container_prefixes
        >>> for day in (1, 2):
        ...     data = xarray.Dataset({"t2m": (("time", "x"), [[280.0 + day]])}, {"time": [day]})
        ...     data.to_netcdf(f"virtual-{day}.nc", engine="h5netcdf")
        >>> config = icefloe.RepositoryConfig.default()
        >>> [prefix] = container_prefixes(["virtual-*.nc"])
        >>> config.set_virtual_chunk_container(container_at(prefix))
        >>> storage = icefloe.local_filesystem_storage("virtual")
        >>> repository = icefloe.Repository.create(storage, config)
        >>> with LocalEngine(processes=0) as engine:
        ...     report = virtualize(engine, repository, "virtual-*.nc", CombineOptions(("time",)))
        >>> report.scan.used, report.references, report.commits
        (2, 2, 1)
    """
    chosen = _chosen(options, on_misfit, check_values)
    job = Job(engine, Target(repo, branch, group.strip("/"), message), on_progress)
    producer = VirtualProducer(
        sources=sources,
        options=chosen,
        parse=chosen.parse_options(parse),
        access=access or granted_sources(job.context),
        append=append,
        on_changed=on_changed,
        most_references=references_per_commit,
    )
    return job.run(producer)


def append(
    engine: Engine,
    repo: Repository,
    sources: Sources,
    options: CombineOptions | None = None,
    *,
    branch: str = "main",
    group: str = "",
    message: str | None = None,
    parse: ParseOptions | None = None,
    access: SourceAccess | None = None,
    on_misfit: Literal["fail", "skip"] | None = None,
    check_values: ValueCheck | None = None,
    on_changed: OnChanged = "report",
    memory_per_task: int | None = None,
    on_progress: OnProgress | None = None,
    references_per_commit: int = REFERENCES_PER_COMMIT,
) -> JobReport:
    """Add files to a dataset that `virtualize` made, or to the copy that `ingest` made of files.

    Without options, files are put together, and copied, as they were the first time. May be called
    again and again with the same sources: ingested files are skipped, and without anything new
    nothing is committed.

    >>> import icefloe, xarray
    >>> from icefloe.pipeline import CombineOptions, LocalEngine
    >>> from icefloe.pipeline import container_at, container_prefixes
    >>> for day in (1, 2):
    ...     data = xarray.Dataset({"t2m": (("time", "x"), [[280.0 + day]])}, {"time": [day]})
    ...     data.to_netcdf(f"appended-{day}.nc", engine="h5netcdf")
    >>> config = icefloe.RepositoryConfig.default()
    >>> [prefix] = container_prefixes(["appended-*.nc"])
    >>> config.set_virtual_chunk_container(container_at(prefix))
    >>> storage = icefloe.local_filesystem_storage("appended")
    >>> repository = icefloe.Repository.create(storage, config)
    >>> with LocalEngine(processes=0) as engine:
    ...     report = virtualize(engine, repository, "appended-*.nc", CombineOptions(("time",)))
    ...     more = xarray.Dataset({"t2m": (("time", "x"), [[283.0]])}, {"time": [3]})
    ...     more.to_netcdf("appended-3.nc", engine="h5netcdf")
    ...     report = append(engine, repository, "appended-*.nc")
    >>> report.known, report.scan.used, report.references
    (2, 1, 1)
    """
    store = repo.readonly_session(branch).store
    if options is None:
        function = None if parse is None else parse.preprocess
        options, recorded = recorded_options(store, group, function)
        parse = parse or recorded
    copying = recorded_copying(read_record(store, group))
    if copying is not None:
        if memory_per_task is not None:
            copying = replace(copying, memory_per_task=memory_per_task)
        chosen = _chosen(options, on_misfit, check_values)
        job = Job(engine, Target(repo, branch, group.strip("/"), message), on_progress)
        producer = AppendingProducer(
            sources=sources,
            options=chosen,
            parse=chosen.parse_options(parse),
            copying=copying,
            access=access or granted_sources(job.context),
            on_changed=on_changed,
            on_progress=on_progress,
        )
        return job.run(producer)
    return virtualize(
        engine,
        repo,
        sources,
        options,
        branch=branch,
        group=group,
        message=message,
        parse=parse,
        access=access,
        append=True,
        on_misfit=on_misfit,
        check_values=check_values,
        on_changed=on_changed,
        on_progress=on_progress,
        references_per_commit=references_per_commit,
    )


def ingest(
    engine: Engine,
    repo: Repository,
    sources: Sources,
    options: CombineOptions | None = None,
    *,
    chunks: Mapping[str, int] | None = None,
    shards: Mapping[str, int] | None = None,
    compressors: Any = "auto",
    branch: str = "main",
    group: str = "",
    message: str | None = None,
    parse: ParseOptions | None = None,
    access: SourceAccess | None = None,
    on_misfit: Literal["fail", "skip"] | None = None,
    check_values: ValueCheck | None = None,
    overwrite: bool = False,
    memory_per_task: int = MEMORY_PER_TASK,
    packing: PackingOptions | bool = False,
    decode: bool = False,
    on_progress: OnProgress | None = None,
    references_per_commit: int = REFERENCES_PER_COMMIT,
) -> CopyReport:
    """Copy the values of many files into one dataset, in one commit.

    Files are scanned and compared as `virtualize` does, but may differ in chunks, compression and
    order of bytes. If any does not fit, `MisfitsError` names each with its reasons; if values
    differ from those of an independent reader, `ValuesMismatchError` names the first. Then nothing
    is written. The repository does not depend
    on the files afterwards, and needs no virtual chunk containers. Without options, `sources` is
    one Zarr hierarchy or repository, copied as `rechunk` does.

    Args:
        engine: where the work is done: a `LocalEngine`. The function of the same name in
            `icefloe.spark` takes a Spark session: `local_session()`, or one of your cluster.
        repo: where the dataset goes; on Spark not one in memory, as workers are other processes.
        sources: globs, URLs, or a table (of Arrow or Spark) with the column `url`.
        options: along which dimensions files are joined, and how.
        chunks: lengths by dimension, -1 for the whole dimension; others stay as in the files.
        shards: lengths by dimension, multiples of those of chunks. Without, each chunk is an
            object of its own.
        compressors: as in `zarr.create_array`.
        branch: to commit to. Commits of others that touch other things are no obstacle.
        group: to put the dataset into; the root if not given.
        message: of the commit.
        parse: how files are parsed.
        access: storages of the files, where neither their URL nor the containers that the
            repository was opened with tell.
        on_misfit: what to do with files that do not fit, if `options` should not say so.
        check_values: how many files of each schema and parser have values compared with an
            independent reader before they are copied, "all" or "none", if `options` should not
            say so. A Zarr hierarchy without options is read with zarr: nothing is compared.
        overwrite: replace arrays that are there already.
        memory_per_task: bytes that a task may take, besides Python itself and what it has loaded.
            Larger regions read fewer chunks twice.
        packing: put small chunks together into shared objects.
        decode: unpack numbers to what they mean: scaled, shifted, NaN where they are missing.
            Files may then be packed differently, and their types may differ.
        on_progress: told how far each stage is.
        references_per_commit: jobs with more objects run in waves with a commit each. After a
            crash, the same call goes on from the last one.

    Returns:
        What was done.

    Example:
        >>> import icefloe, xarray
        >>> from icefloe.pipeline import CombineOptions, LocalEngine
        >>> for day in (1, 2):
        ...     data = xarray.Dataset({"t2m": (("time", "x"), [[280.0 + day]])}, {"time": [day]})
        ...     data.to_netcdf(f"copied-{day}.nc", engine="h5netcdf")
        >>> storage = icefloe.local_filesystem_storage("copied")
        >>> repository = icefloe.Repository.create(storage)
        >>> options, chunks = CombineOptions(("time",)), {"time": 2}
        >>> with LocalEngine(processes=0) as engine:
        ...     report = ingest(engine, repository, "copied-*.nc", options, chunks=chunks)
        >>> report.arrays, report.written
        (2, 2)
    """
    copying = CopyOptions.of(
        chunks,
        shards,
        compressors,
        packing=packing,
        decode=decode,
        overwrite=overwrite,
        memory_per_task=memory_per_task,
        most_references=references_per_commit,
    )
    return copy_sources(
        engine,
        repo,
        sources,
        options,
        copying,
        branch=branch,
        group=group,
        message=message,
        parse=parse,
        access=access,
        on_misfit=on_misfit,
        check_values=check_values,
        on_progress=on_progress,
    )


def copy_sources(
    engine: Engine,
    repo: Repository,
    sources: Sources,
    options: CombineOptions | None,
    copying: CopyOptions,
    *,
    branch: str = "main",
    group: str = "",
    message: str | None = None,
    parse: ParseOptions | None = None,
    access: SourceAccess | None = None,
    on_misfit: Literal["fail", "skip"] | None = None,
    check_values: ValueCheck | None = None,
    on_progress: OnProgress | None = None,
) -> CopyReport:
    """Copy values as `ingest` does, with all options for the copies in one argument."""
    target = Target(repo, branch, group.strip("/"), message)
    job = Job(engine, target, on_progress)
    reached = access or granted_sources(job.context)
    if options is None:
        _require_as_stored(copying)
        source: CopySource = source_alone(sources, reached)
        return job.run(NativeProducer(source=source, options=copying))
    files = FilesToStage(
        sources=sources,
        options=_chosen(options, on_misfit, check_values),
        parse=options.parse_options(parse),
        access=reached,
        rules=CopyRules(decode=copying.decode),
    )
    with staging_job(job, reached, on_progress) as staging:
        staged = files.stage(staging)
        if staged.staging is None:
            return CopyReport(job=job.id, branch=branch, group=target.group, scan=staged.report)
        report = job.run(copying_producer(staged, copying, target.group))
    return replace(report, scan=staged.report, stages=job.watch.seconds)


def ingest_automatically(
    engine: Engine,
    repo: Repository,
    sources: Sources,
    options: CombineOptions,
    copying: CopyIfNeeded,
    *,
    branch: str = "main",
    group: str = "",
    message: str | None = None,
    parse: ParseOptions | None = None,
    access: SourceAccess | None = None,
    on_progress: OnProgress | None = None,
    references_per_commit: int = REFERENCES_PER_COMMIT,
    other_options: tuple[CombineOptions, ...] = (),
    engine_for_copies: EngineForCopies | None = None,
) -> JobReport | CopyReport:
    """Make one dataset of many files: as `virtualize` if all fit so, otherwise as `ingest`.

    Values are copied as they are stored if that is enough, and decoded only if nothing else is.
    `other_options` are tried where files do not fit by the first ones, and `engine_for_copies`
    opens the engine that copies values, if it is not that of the scan.

    >>> import icefloe, xarray
    >>> from icefloe.pipeline import CombineOptions, CopyIfNeeded, LocalEngine
    >>> for day in (1, 2):
    ...     data = xarray.Dataset({"t2m": (("time", "x"), [[280.0 + day]])}, {"time": [day]})
    ...     kind = {"t2m": {"dtype": f"f{4 * day}"}}
    ...     data.to_netcdf(f"either-{day}.nc", engine="h5netcdf", encoding=kind)
    >>> repository = icefloe.Repository.create(icefloe.local_filesystem_storage("either"))
    >>> repository = icefloe.pipeline.add_containers(repository, ["."])
    >>> with LocalEngine(processes=0) as engine:
    ...     report = ingest_automatically(
    ...         engine, repository, "either-*.nc", CombineOptions(("time",)), CopyIfNeeded()
    ...     )
    >>> report.reason.decode, report.reason.misfits
    (True, 1)
    """
    job = Job(engine, Target(repo, branch, group.strip("/"), message), on_progress)
    referring = VirtualProducer(
        sources=sources,
        options=options,
        parse=options.parse_options(parse),
        access=access or granted_sources(job.context),
        most_references=references_per_commit,
    )
    producer = AutomaticProducer(
        referring=referring,
        copying=copying,
        other_options=other_options,
        engine_for_copies=engine_for_copies,
        on_progress=on_progress,
    )
    return job.run(producer)


def _chosen(
    options: CombineOptions,
    on_misfit: Literal["fail", "skip"] | None,
    check_values: ValueCheck | None,
) -> CombineOptions:
    """Return options with what a job was told apart from them."""
    chosen = options if on_misfit is None else replace(options, on_misfit=on_misfit)
    return chosen if check_values is None else replace(chosen, check_values=check_values)


def rechunk(
    engine: Engine,
    repo: Repository,
    source: Copyable,
    *,
    chunks: Mapping[str, int] | None = None,
    shards: Mapping[str, int] | None = None,
    compressors: Any = "auto",
    source_group: str = "",
    branch: str = "main",
    group: str = "",
    message: str | None = None,
    access: SourceAccess | None = None,
    overwrite: bool = False,
    memory_per_task: int = MEMORY_PER_TASK,
    packing: PackingOptions | bool = False,
    on_progress: OnProgress | None = None,
    references_per_commit: int = REFERENCES_PER_COMMIT,
) -> CopyReport:
    """Copy a dataset of a repository, or any Zarr hierarchy, with other chunks, in one commit.

    Values are copied as they are stored: nothing is scaled, masked or decoded. Attributes, fill
    values and names of dimensions come along, and so do coordinates, which keep large chunks.
    Virtual chunks become native ones.

    Args:
        engine: where the work is done: a `LocalEngine`. The function of the same name in
            `icefloe.spark` takes a Spark session: `local_session()`, or one of your cluster.
        repo: where the copy goes; on Spark not one in memory, as workers are other processes.
        source: a session (`other.readonly_session(tag="v1")`), a repository (the tip of its
            `main`), or the path or URL of a repository or a Zarr hierarchy of format 2 or 3.
            May be the repository itself; with `overwrite`, even the group itself.
        chunks: lengths by dimension, -1 for the whole dimension; others stay as they are.
        shards: lengths by dimension, multiples of those of chunks. Without, each chunk is an
            object of its own.
        compressors: as in `zarr.create_array`.
        source_group: what to copy; the root if not given.
        branch: to commit to. Commits of others that touch other things are no obstacle.
        group: to put the copy into; the root if not given.
        message: of the commit.
        access: the storage of a Zarr hierarchy, where its URL alone does not tell.
        overwrite: replace arrays that are there already.
        memory_per_task: bytes that a task may take, besides Python itself and what it has loaded.
            Larger regions read fewer chunks twice.
        packing: put small chunks together into shared objects.
        on_progress: told how far each stage is.
        references_per_commit: jobs with more objects run in waves with a commit each. After a
            crash, the same call goes on from the last one.

    Returns:
        What was done.

    Example:
        >>> import icefloe, zarr
        >>> from icefloe.pipeline import LocalEngine
        >>> root = zarr.open_group("source.zarr")
        >>> array = root.create_array(
        ...     "a", shape=(4, 6), chunks=(1, 6), dtype="i4", dimension_names=["t", "x"]
        ... )
        >>> array[...] = 7
        >>> storage = icefloe.local_filesystem_storage("rechunked")
        >>> repository = icefloe.Repository.create(storage)
        >>> with LocalEngine(processes=0) as engine:
        ...     report = rechunk(engine, repository, "source.zarr", chunks={"t": 4})
        >>> report.source_reads, report.written
        (4, 1)
    """
    copying = CopyOptions.of(
        chunks,
        shards,
        compressors,
        packing=packing,
        overwrite=overwrite,
        memory_per_task=memory_per_task,
        most_references=references_per_commit,
    )
    return copy_group(
        engine,
        repo,
        source,
        copying,
        source_group=source_group,
        branch=branch,
        group=group,
        message=message,
        access=access,
        on_progress=on_progress,
    )


def copy_group(
    engine: Engine,
    repo: Repository,
    source: Copyable,
    copying: CopyOptions,
    *,
    source_group: str = "",
    branch: str = "main",
    group: str = "",
    message: str | None = None,
    access: SourceAccess | None = None,
    on_progress: OnProgress | None = None,
) -> CopyReport:
    """Copy a group as `rechunk` does, with all options for the copies in one argument."""
    _require_as_stored(copying)
    target = Target(repo, branch, group.strip("/"), message)
    job = Job(engine, target, on_progress)
    copy_source = source_of(source, source_group, access or granted_sources(job.context))
    producer = NativeProducer(
        source=copy_source, options=copying, write_record=_kept_record(job, copy_source, copying)
    )
    return job.run(producer)


def _kept_record(
    job: Job, source: CopySource, copying: CopyOptions
) -> Callable[[Session], None] | None:
    """Return what writes the record of a dataset again that is rechunked in its own place."""
    group = job.target.group
    if not isinstance(source, RepositorySource) or source.path != group:
        return None
    if state_of(source.session).context.storage != job.context.storage:
        return None
    record = read_record(source.session.store, group)
    if record is None:
        return None
    before = recorded_copying(record) or copying
    settings = copying_to_json(replace(copying, decode=before.decode))
    options = {**record.options, COPY: settings}
    return lambda session: write_record(
        session.store, group, None, record.files, options, record.grid
    )


def _require_as_stored(copying: CopyOptions) -> None:
    if copying.decode:
        raise InvalidInputError(
            "a hierarchy or a version is copied as it is stored: only files that are joined are"
            " decoded, for which options say along which dimensions",
            ErrorKind.BAD_METADATA,
        )
