"""Copies of values, with the chunks, shards and codecs of your choice: one job, one commit.

    plan -> copy (regions to objects, references to manifests) -> link and commit

A task copies a region: whole target objects, so that no two tasks write the same one, and no more
than fits into its memory. Objects that hold nothing but the fill value are not stored. Files are
scanned, compared and put together as `virtualize` does, in a repository that lives as long as the
job, and copied from there.
"""

import hashlib
from collections import Counter
from collections.abc import Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal

from icefloe.api.repository import Repository
from icefloe.errors import ErrorKind, InvalidInputError, NotFoundError
from icefloe.pipeline.copying.origins import Copyable, CopySource, RepositorySource, source_of
from icefloe.pipeline.copying.staging import staged, staging_repository
from icefloe.pipeline.files.access import SourceAccess
from icefloe.pipeline.files.options import CombineOptions, ParseOptions, ValueCheck
from icefloe.pipeline.planning import REFERENCES_PER_COMMIT
from icefloe.pipeline.provenance.records import read_record
from icefloe.records import replace
from icefloe.spark.attempts import clear_staging
from icefloe.spark.committing import Target
from icefloe.spark.jobs import virtualize
from icefloe.spark.listing import Sources
from icefloe.spark.native_job import MEMORY_PER_TASK, CopyJob, CopyOptions
from icefloe.spark.report import CopyReport
from icefloe.spark.watching import OnProgress
from icefloe.transactions.packing import PackingOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def ingest(
    spark: "SparkSession",
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
    on_progress: OnProgress | None = None,
    references_per_commit: int = REFERENCES_PER_COMMIT,
) -> CopyReport:
    """Copy the values of many files into one dataset, in one commit.

    Files are scanned and compared as `virtualize` does: if any does not fit, `MisfitsError` names
    each with its reasons; if values differ from those of an independent reader,
    `ValuesMismatchError` names the first. Then nothing is written. The repository does not depend
    on the files afterwards, and needs no virtual chunk containers. Without options, `sources` is
    one Zarr hierarchy or repository, copied as `rechunk` does.

    Args:
        spark: where the work is done: `local_session()`, or a session of your cluster.
        repo: where the dataset goes; not one in memory, as workers are other processes.
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
        access: storages of the files, where their URL alone does not tell.
        on_misfit: what to do with files that do not fit, if `options` should not say so.
        check_values: how many files of each schema and parser have values compared with an
            independent reader before they are copied, "all" or "none", if `options` should not
            say so. A Zarr hierarchy without options is read with zarr: nothing is compared.
        overwrite: replace arrays that are there already.
        memory_per_task: bytes that a task may take, besides Python itself and what it has loaded.
            Larger regions read fewer chunks twice.
        packing: put small chunks together into shared objects.
        on_progress: told how far each stage is.
        references_per_commit: jobs with more objects run in waves with a commit each. After a
            crash, the same call goes on from the last one.

    Returns:
        What was done.
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
    target = Target(repo, branch, group.strip("/"), message)
    job = CopyJob(spark, target, copying, on_progress)
    if options is None:
        return job.run(source_alone(sources, access or SourceAccess()))
    context = repo._context  # noqa: SLF001 - the same package
    try:
        staging = staging_repository(context.storage, job.id, access or SourceAccess())
        virtual = virtualize(
            spark,
            staging,
            sources,
            options,
            parse=parse,
            access=access,
            on_misfit=on_misfit,
            check_values=check_values,
            on_progress=on_progress,
        )
        if virtual.snapshot is None:
            return CopyReport(job.id, branch, target.group, scan=virtual.scan)
        report = job.run(_staged_source(staging), from_files=True)
    finally:
        clear_staging(context, job.id)
    stages = Counter(virtual.stages) + Counter(report.stages)
    return replace(report, scan=virtual.scan, stages=dict(stages))


def rechunk(
    spark: "SparkSession",
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
        spark: where the work is done: `local_session()`, or a session of your cluster.
        repo: where the copy goes; not one in memory, as workers are other processes.
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
    target = Target(repo, branch, group.strip("/"), message)
    copy_source = source_of(source, source_group, access or SourceAccess())
    return CopyJob(spark, target, copying, on_progress).run(copy_source)


def source_alone(sources: Sources, access: SourceAccess) -> CopySource:
    """Take sources that are not joined: there can be only one."""
    source_list: Any = [sources] if isinstance(sources, (str, PathLike)) else sources
    if not isinstance(source_list, list | tuple) or len(source_list) != 1:
        raise InvalidInputError(
            "several files need options: along which dimensions are they joined?",
            ErrorKind.BAD_METADATA,
        )
    source = source_of(source_list[0], "", access)
    try:
        source.group()
    except NotFoundError as error:
        raise InvalidInputError(
            f"{source_list[0]} is neither a Zarr hierarchy nor a repository: for files, pass"
            " options"
            " with the dimensions along which they are joined",
            ErrorKind.BAD_METADATA,
        ) from error
    return source


def _staged_source(staging: Repository) -> RepositorySource:
    """Take what was virtualised; it is known by its files, as a later run makes it again."""
    record = read_record(staging.readonly_session("main").store, "")
    states = [] if record is None else sorted(repr(file.state) for file in record.files)
    name = hashlib.blake2b("\n".join(states).encode(), digest_size=16).hexdigest()
    is_near = record is not None and all(f.state.url.startswith("file:") for f in record.files)
    return RepositorySource(staged(staging, is_near=is_near), name=name)
