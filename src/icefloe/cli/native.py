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
from icefloe.cli.ingest import (
    AttributesOption,
    BranchOption,
    CheckValuesOption,
    ConcatOption,
    ConstantOption,
    CoordinateOption,
    DropOption,
    EngineOption,
    FillMissingOption,
    FromNameOption,
    GapsOption,
    GroupOption,
    InOrderOption,
    JsonOption,
    MasterOption,
    MessageOption,
    OverviewsOption,
    RenameOption,
    RepoOption,
    SkipOption,
    SourceGroupOption,
    SourcesArgument,
    TakeFirstOption,
    ToleranceOption,
    VariablesOption,
    file_options,
    is_plain,
    missing_concat,
    parse_memory,
    running_job,
    show_misfits,
    show_notes,
    show_opening,
)
from icefloe.cli.versions import version_options
from icefloe.errors import InvalidInputError
from icefloe.pipeline.files import FILES_CHECKED

if TYPE_CHECKING:
    from icefloe.api.repository import Repository
    from icefloe.pipeline.copying.layouts import CopyOptions
    from icefloe.pipeline.files.options import CombineOptions, ParseOptions

ChunksOption = Annotated[
    str,
    typer.Option(help="DIM=N,…: lengths of chunks, -1 for the whole; others stay as they are."),
]
ShardsOption = Annotated[
    str, typer.Option(help="DIM=N,…: lengths of shards, multiples of those of chunks.")
]
MemoryOption = Annotated[
    str, typer.Option(help="The memory of a task, without Python itself: 256M, 2G…")
]
OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="Replace arrays that exist.")]
DecodeOption = Annotated[
    bool,
    typer.Option(
        "--decode",
        help="Unpack numbers: scaled, shifted, NaN where they are missing. Then files may be packed"
        " differently, and their types may differ.",
    ),
]
FollowLinksOption = Annotated[
    bool,
    typer.Option(
        "--follow-links",
        help="Copy data that HDF5 files keep in other files. Links can name any file of this"
        " machine: only for files that you trust.",
    ),
]
PackOption = Annotated[bool, typer.Option("--pack", help="Pack small chunks into shared objects.")]


CodecOption = Annotated[
    Literal["zstd", "gzip", "blosc", "none"], typer.Option(help="The compression of chunks.")
]
LevelOption = Annotated[
    int | None, typer.Option(min=0, max=22, help="The compression level. [default: the codec's]")
]

_LEVELS: Final = {"zstd": 0, "gzip": 5, "blosc": 5}


def ingest_native(
    context: typer.Context,
    sources: SourcesArgument,
    *,
    repo: RepoOption,
    concat: ConcatOption = None,
    coordinate: CoordinateOption = None,
    in_order: InOrderOption = False,
    from_name: FromNameOption = None,
    constant: ConstantOption = None,
    tolerance: ToleranceOption = None,
    take_first: TakeFirstOption = None,
    gaps: GapsOption = "close",
    attributes: AttributesOption = "drop",
    variables: VariablesOption = None,
    drop: DropOption = None,
    rename: RenameOption = None,
    source_group: SourceGroupOption = None,
    overviews: OverviewsOption = False,
    fill_missing: FillMissingOption = False,
    follow_links: FollowLinksOption = False,
    decode: DecodeOption = False,
    chunks: ChunksOption = "",
    shards: ShardsOption = "",
    codec: CodecOption = "zstd",
    level: LevelOption = None,
    memory: MemoryOption = "256M",
    pack: PackOption = False,
    overwrite: OverwriteOption = False,
    group: GroupOption = "",
    branch: BranchOption = "main",
    message: MessageOption = None,
    skip_misfits: SkipOption = False,
    check_values: CheckValuesOption = str(FILES_CHECKED),
    engine: EngineOption = "auto",
    master: MasterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy the values of many files into one dataset, in one commit.

    Files are compared and put together as by `icefloe ingest virtual`, but the repository does not
    need them afterwards. One Zarr hierarchy is copied as it is, without --concat. A repository
    that does not exist is created.

    Example: icefloe ingest native 'era5/*.nc' --repo ./cube --concat time --chunks time=720,lat=90
    """
    from icefloe.jobs import ingest

    how = _options(
        chunks, shards, codec, level, memory, packing=pack, overwrite=overwrite, decode=decode
    )
    options, parse = file_options(
        concat or [],
        in_order=in_order,
        coordinate=coordinate,
        from_name=from_name,
        constant=constant,
        tolerance=tolerance,
        take_first=take_first,
        gaps=gaps,
        attributes=attributes,
        variables=variables,
        drop=drop,
        rename=rename,
        source_group=source_group,
        overviews=overviews,
        fill_missing=fill_missing,
        follow_links=follow_links,
        skip_misfits=skip_misfits,
        check_values=check_values,
    )
    if not concat:
        _require_hierarchy(context, sources, options, parse)
    with (
        running_job(as_json=as_json) as on_progress,
        place_of(repo, writes=True).filled() as repository,
    ):
        report = ingest(
            repository,
            sources,
            options if concat else None,
            copy=how,
            group=group,
            branch=branch,
            message=message,
            parse=parse if concat else None,
            on_progress=on_progress,
            engine=engine,
            master=master,
        )
    _show(report, repository, repo, as_json=as_json)


def _require_hierarchy(
    context: typer.Context,
    sources: list[str],
    options: "CombineOptions",
    parse: "ParseOptions",
) -> None:
    """Raise unless the source can be copied as it is, without joining files."""
    from icefloe.pipeline.copying.origins import source_alone
    from icefloe.pipeline.files.sources import SourceAccess

    try:
        source_alone(sources, SourceAccess())
    except InvalidInputError as error:
        raise missing_concat(context, sources, parse) from error
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
    chunks: ChunksOption = "",
    shards: ShardsOption = "",
    codec: CodecOption = "zstd",
    level: LevelOption = None,
    memory: MemoryOption = "256M",
    pack: PackOption = False,
    overwrite: OverwriteOption = False,
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
    group: GroupOption = "",
    branch: BranchOption = "main",
    message: MessageOption = None,
    engine: EngineOption = "auto",
    master: MasterOption = None,
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

    how = _options(chunks, shards, codec, level, memory, packing=pack, overwrite=overwrite)
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
            group=group,
            branch=branch,
            message=message,
            on_progress=on_progress,
            engine=engine,
            master=master,
        )
    _show(report, repository, repo, as_json=as_json)


def _options(
    chunks: str,
    shards: str,
    codec: str,
    level: int | None,
    memory: str,
    *,
    packing: bool,
    overwrite: bool,
    decode: bool = False,
) -> "CopyOptions":
    from icefloe.pipeline.copying.layouts import CopyOptions

    return CopyOptions.of(
        parse_lengths(chunks, "--chunks"),
        parse_lengths(shards, "--shards"),
        _compressors(codec, level),
        packing=packing,
        overwrite=overwrite,
        decode=decode,
        memory_per_task=parse_memory(memory),
    )


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


def _show(report: Any, repository: "Repository", name: str, *, as_json: bool) -> None:
    from icefloe.cli.opening import opening_lines

    is_there = report.snapshot is not None
    opening = opening_lines(repository, name, report.group, report.branch) if is_there else ()
    if as_json:
        show_json({**report.to_dict(), "open": opening})
        return
    if report.scan is not None:
        if report.scan.misfits:
            show_misfits(report.scan)
        show_notes(report.scan)
    for note in report.notes:
        echo(note)
    echo(report.summary())
    if is_there:
        show_opening(opening)
