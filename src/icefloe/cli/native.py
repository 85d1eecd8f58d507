"""`icefloe ingest native` and `icefloe rechunk`: copies with chunks of one's choice."""

import re
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from icefloe.cli.common import (
    AuthorizeAnonymousOption,
    AuthorizeOption,
    authorised,
    echo,
    place_of,
    show_json,
)
from icefloe.cli.coverage import show_coverage, write_plot
from icefloe.cli.ingest import (
    FileOptions,
    JobOptions,
    JsonOption,
    RepoOption,
    SourcesArgument,
    for_shell,
    is_plain,
    missing_concat,
    parse_memory,
    running_job,
    show_misfits,
    show_notes,
    show_opening,
)
from icefloe.cli.option_sets import OptionSet
from icefloe.cli.versions import version_options
from icefloe.cli.wording import in_shell_words

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from icefloe.api.repository import Repository
    from icefloe.pipeline.copying.layouts import CopyOptions
    from icefloe.pipeline.coverage import DatasetCoverage
    from icefloe.pipeline.files.options import CombineOptions, ParseOptions

COPIES: Final = "How values are copied"

ChunksOption = Annotated[
    str,
    typer.Option(
        help="DIM=N,…: lengths of chunks, -1 for the whole; others stay as they are.",
        rich_help_panel=COPIES,
    ),
]
ShardsOption = Annotated[
    str,
    typer.Option(
        help="DIM=N,…: lengths of shards, multiples of those of chunks.", rich_help_panel=COPIES
    ),
]
MemoryOption = Annotated[
    str,
    typer.Option(
        help="The memory of a task, without Python itself: 256M, 2G…", rich_help_panel=COPIES
    ),
]
OverwriteOption = Annotated[
    bool, typer.Option("--overwrite", help="Replace arrays that exist.", rich_help_panel=COPIES)
]
DecodeOption = Annotated[
    bool,
    typer.Option(
        "--decode",
        help="Unpack numbers: scaled, shifted, NaN where they are missing. Then files may be packed"
        " differently, and their types may differ.",
        rich_help_panel=COPIES,
    ),
]
FollowLinksOption = Annotated[
    bool,
    typer.Option(
        "--follow-links",
        help="Copy data that HDF5 files keep in other files. Links can name any file of this"
        " machine: only for files that you trust.",
        rich_help_panel=COPIES,
    ),
]
PackOption = Annotated[
    bool,
    typer.Option("--pack", help="Pack small chunks into shared objects.", rich_help_panel=COPIES),
]


CodecOption = Annotated[
    Literal["zstd", "gzip", "blosc", "none"],
    typer.Option(help="The compression of chunks.", rich_help_panel=COPIES),
]
LevelOption = Annotated[
    int | None,
    typer.Option(
        min=0, max=22, help="The compression level. [default: the codec's]", rich_help_panel=COPIES
    ),
]

_LEVELS: Final = {"zstd": 0, "gzip": 5, "blosc": 5}


class LayoutOptions(OptionSet, kw_only=True):
    """How copies are stored and made."""

    chunks: ChunksOption = ""
    shards: ShardsOption = ""
    codec: CodecOption = "zstd"
    level: LevelOption = None
    memory: MemoryOption = "256M"
    pack: PackOption = False
    overwrite: OverwriteOption = False

    def copying(self, *, decode: bool = False) -> "CopyOptions":
        """Return the options of the copies."""
        from icefloe.pipeline.copying.layouts import CopyOptions

        return CopyOptions.of(
            parse_lengths(self.chunks, "--chunks"),
            parse_lengths(self.shards, "--shards"),
            _compressors(self.codec, self.level),
            packing=self.pack,
            overwrite=self.overwrite,
            decode=decode,
            memory_per_task=parse_memory(self.memory),
        )


def ingest_native(
    context: typer.Context,
    sources: SourcesArgument,
    *,
    repo: RepoOption,
    files: FileOptions,
    follow_links: FollowLinksOption = False,
    decode: DecodeOption = False,
    layout: LayoutOptions,
    job: JobOptions,
    as_json: JsonOption = False,
) -> None:
    """Copy the values of many files into one dataset, in one commit.

    Files are compared and put together as by `icefloe ingest virtual`, but the repository does not
    need them afterwards. One Zarr hierarchy is copied as it is, without --concat. A repository
    that does not exist is created.

    Example: icefloe ingest native 'era5/*.nc' --repo ./cube --concat time --chunks time=720,lat=90
    """
    from icefloe.jobs import ingest

    how = layout.copying(decode=decode)
    options, parse = files.combining(), files.parsing(follow_links=follow_links)
    if not options.concat:
        if not is_hierarchy(sources):
            raise missing_concat(context, sources, parse)
        require_plain(options, parse)
    with (
        running_job(as_json=as_json) as on_progress,
        place_of(repo, writes=True).filled() as repository,
    ):
        report = ingest(
            repository,
            sources,
            options if options.concat else None,
            copy=how,
            parse=parse if options.concat else None,
            on_progress=on_progress,
            **job.arguments(),
        )
    show_copied(report, repository, repo, as_json=as_json)


def is_hierarchy(sources: list[str]) -> bool:
    """Return whether sources are one Zarr hierarchy or repository, which is copied as it is."""
    from icefloe.jobs import hierarchy_of
    from icefloe.pipeline.files.sources import SourceAccess

    return hierarchy_of(sources, SourceAccess()) is not None


def require_plain(options: "CombineOptions", parse: "ParseOptions") -> None:
    """Raise if options were given that concern only files that are joined."""
    if not is_plain(options, parse):
        raise typer.BadParameter(
            "variables and coordinates are chosen of files that are joined: give --concat, too"
        )


def rechunk(
    source: Annotated[
        str,
        typer.Argument(help="A repository or a Zarr hierarchy: a path, or s3://, gs://, az://…"),
    ],
    *,
    repo: RepoOption,
    layout: LayoutOptions,
    from_group: Annotated[str, typer.Option(help="The group to copy. [default: the root]")] = "",
    from_branch: Annotated[
        str | None, typer.Option(help="For a repository: this branch. [default: main]")
    ] = None,
    from_tag: Annotated[str | None, typer.Option(help="… or this tag.")] = None,
    from_snapshot: Annotated[
        str | None,
        typer.Option(help="… or this snapshot, by its id or the first characters of it."),
    ] = None,
    from_as_of: Annotated[
        str | None,
        typer.Option(
            help="The version of the branch that was the newest then, such as 2026-01-31."
        ),
    ] = None,
    authorize: AuthorizeOption = None,
    authorize_anonymous: AuthorizeAnonymousOption = None,
    job: JobOptions,
    as_json: JsonOption = False,
) -> None:
    """Copy a dataset of a repository, or a Zarr hierarchy, with other chunks, in one commit.

    Values are copied as they are stored, with attributes and coordinates; virtual chunks become
    native ones. A repository that does not exist is created.

    Example: icefloe rechunk s3://bucket/cube --repo ./series --chunks time=-1,lat=10,lon=10
    """
    from icefloe.jobs import rechunk as copy_group
    from icefloe.jobs import require_readable
    from icefloe.pipeline.copying.origins import source_of
    from icefloe.pipeline.files.sources import SourceAccess

    how = layout.copying()
    place = place_of(source)
    origin: Any = source
    if place.exists():
        access = authorised(authorize or (), authorize_anonymous or ())
        opened = place.open(access=access)
        version = version_options(
            opened, from_branch, from_tag, from_snapshot, from_as_of, dashes="--from-"
        )
        origin = opened.readonly_session(**version)
        require_readable(source_of(origin, from_group, SourceAccess()))
    elif from_branch or from_tag or from_snapshot or from_as_of:
        raise typer.BadParameter(f"{source} is not a repository, and has no versions")
    with (
        running_job(as_json=as_json) as on_progress,
        place_of(repo, writes=True).filled() as repository,
    ):
        report = copy_group(
            repository,
            origin,
            how,
            source_group=from_group,
            on_progress=on_progress,
            **job.arguments(),
        )
    show_copied(report, repository, repo, as_json=as_json)


def parse_lengths(text: str, option: str) -> dict[str, int]:
    """Read lengths by dimension."""
    lengths = {}
    for pair in filter(None, text.split(",")):
        name, sign, value = pair.partition("=")
        if not (name and sign and re.fullmatch(r"-?\d+", value)):
            raise typer.BadParameter(f"{pair!r} is not like DIM=N", param_hint=option)
        lengths[name.strip()] = int(value)
    return lengths


def _compressors(codec: str, level: int | None) -> list[dict[str, Any]] | None:
    if codec == "none":
        return None
    chosen = {"level": _LEVELS[codec] if level is None else level}
    match codec:
        case "zstd":
            configuration: dict[str, Any] = {**chosen, "checksum": False}
        case "gzip":
            configuration = chosen
        case _:
            configuration = {"cname": "zstd", "clevel": chosen["level"], "shuffle": "shuffle"}
    return [{"name": codec, "configuration": configuration}]


def show_copied(
    report: Any,
    repository: "Repository",
    name: str,
    plot: "Path | None" = None,
    *,
    as_json: bool,
) -> None:
    """Report what was done, what the dataset holds, and how it is opened."""
    from icefloe.cli.opening import opening_lines
    from icefloe.pipeline.coverage import read_coverage
    from icefloe.records import replace

    if report.reason is not None:
        reason = replace(report.reason, message=in_shell_words(report.reason.message))
        report = replace(report, reason=reason)
    is_there = report.snapshot is not None
    opening = opening_lines(repository, name, report.group, report.branch) if is_there else ()
    coverage: Sequence[DatasetCoverage] = ()
    if is_there and report.scan is not None:  # a hierarchy that is copied as it is has no record
        coverage = read_coverage(repository.readonly_session(report.branch), report.group)
    write_plot(plot, coverage)
    if as_json:
        scan = None if report.scan is None else for_shell(report.scan).to_dict()
        dataset = coverage[0].to_dict() if coverage else None
        show_json({**report.to_dict(), "scan": scan, "holds": dataset, "open": opening})
        return
    if report.scan is not None:
        if report.scan.misfits:
            show_misfits(report.scan)
        show_notes(report.scan)
    for note in report.notes:
        echo(note)
    if coverage:
        show_coverage(coverage)
    echo(report.summary())
    if is_there:
        show_opening(opening)
