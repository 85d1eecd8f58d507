"""Jobs: many files, one commit.

    list -> scan -> combine -> check values -> write -> link and commit

Files are parsed and manifests are written on executors; the driver sees facts of files and
summaries of manifests. Nothing is written before all files were compared, and nothing is visible
before the commit, which is one conditional write.
"""

from typing import TYPE_CHECKING, Literal

from icefloe.api.repository import Repository
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.pipeline.files.access import SourceAccess
from icefloe.pipeline.files.options import CombineOptions, ParseOptions, ValueCheck
from icefloe.pipeline.planning import REFERENCES_PER_COMMIT
from icefloe.pipeline.provenance.records import OnChanged, options_from_json, read_record
from icefloe.records import replace
from icefloe.spark.committing import Target
from icefloe.spark.listing import Sources
from icefloe.spark.report import JobReport
from icefloe.spark.running import Job
from icefloe.spark.watching import OnProgress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def virtualize(
    spark: "SparkSession",
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

    Every file is parsed once, on an executor, and compared with all others. If any does not fit,
    `MisfitsError` names each with its reasons, and nothing is written; with `on_misfit="skip"`
    they are left out. Then values of a sample of the files are compared with an independent reader
    of their format; if one differs, `ValuesMismatchError` names it, and nothing is written. The
    repository must have virtual chunk containers that cover the files.

    Args:
        spark: where the work is done: `local_session()`, or a session of your cluster.
        repo: where the dataset goes; not one in memory, as workers are other processes.
        sources: globs, URLs, or a table (of Arrow or Spark) with the column `url`.
        options: along which dimensions files are joined, and how.
        branch: to commit to. Commits of others that touch other things are no obstacle.
        group: to put the dataset into; the root if not given.
        message: of the commit.
        parse: how files are parsed.
        access: storages of the files, where their URL alone does not tell.
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
    """
    chosen = options if on_misfit is None else replace(options, on_misfit=on_misfit)
    chosen = chosen if check_values is None else replace(chosen, check_values=check_values)
    how = parse or ParseOptions(chosen.concat)
    if how.concat != chosen.concat:
        raise InvalidInputError(
            "files must be parsed for the same dimensions that they are joined along",
            ErrorKind.BAD_METADATA,
        )
    target = Target(repo, branch, group.strip("/"), message)
    job = Job(
        spark,
        target,
        chosen,
        how,
        access or SourceAccess(),
        on_progress,
        most_references=references_per_commit,
    )
    return job.run(sources, append=append, on_changed=on_changed)


def append(
    spark: "SparkSession",
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
    on_progress: OnProgress | None = None,
    references_per_commit: int = REFERENCES_PER_COMMIT,
) -> JobReport:
    """Add files to a dataset that `virtualize` made; see there.

    Without options, files are put together as they were the first time. May be called again and
    again with the same sources: ingested files are skipped, and without anything new nothing is
    committed.
    """
    if options is None:
        record = read_record(repo.readonly_session(branch).store, group)
        if record is None:
            raise InvalidInputError(
                f"the group {group!r} has no record of sources: give options, or make it with"
                " virtualize",
                ErrorKind.BAD_METADATA,
            )
        options, recorded = options_from_json(record.options)
        parse = parse or recorded
    return virtualize(
        spark,
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
