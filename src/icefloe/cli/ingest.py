"""`icefloe ingest` and `icefloe append`: archives to repositories."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypedDict

import typer

from icefloe.cli.common import (
    INTERRUPTED,
    Place,
    command_line,
    echo,
    is_quiet,
    open_repository,
    place_of,
    show_json,
    show_table,
)
from icefloe.cli.coverage import PlotOption, checked_plot, show_coverage, write_plot
from icefloe.cli.option_sets import OptionSet
from icefloe.cli.wording import in_shell_words
from icefloe.errors import AccessDeniedError, ErrorKind, InvalidInputError
from icefloe.pipeline.files import FILES_CHECKED
from icefloe.reports import parse_bytes

if TYPE_CHECKING:
    from icefloe.api.repository import Repository
    from icefloe.pipeline.combining.report import Report
    from icefloe.pipeline.files.options import CombineOptions, ParseOptions, ValueCheck
    from icefloe.pipeline.running.progress import OnProgress

_MOST_ROWS = 100
_FIT: Final = "How files fit together"
_TAKEN: Final = "What is taken of files"

SourcesArgument = Annotated[
    list[str],
    typer.Argument(help="Paths or URLs of files, with * ? [..] {a,b} and ** as in a shell."),
]
RepoOption = Annotated[
    str,
    typer.Option(
        "--repo", help="The repository: a path, s3://, gs://, az://…, or org/name of a service."
    ),
]
GroupOption = Annotated[str, typer.Option(help="The group for the dataset. [default: the root]")]
BranchOption = Annotated[str, typer.Option(help="The branch to commit to.")]
MessageOption = Annotated[str | None, typer.Option(help="The message of the commit.")]
MasterOption = Annotated[
    str | None,
    typer.Option(help="A Spark cluster: spark://…, yarn, sc://… [default: this machine]"),
]
EngineOption = Annotated[
    Literal["auto", "local", "spark"],
    typer.Option(
        help="Where the work is done: local is this machine without Java; auto takes Spark for"
        " large archives, and with --master."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the report as JSON.")]
SkipOption = Annotated[
    bool,
    typer.Option(
        "--skip-misfits",
        help="Leave out files that do not fit, instead of failing.",
        rich_help_panel=_FIT,
    ),
]
CheckValuesOption = Annotated[
    str,
    typer.Option(
        "--check-values",
        metavar="N|all|none",
        help="Compare values of N files of each kind with an independent reader of their format "
        "before anything is written; all: every chunk of every file.",
    ),
]
DropOption = Annotated[
    list[str] | None,
    typer.Option(
        help="A variable of the files to leave out; may be repeated.", rich_help_panel=_TAKEN
    ),
]
ConcatOption = Annotated[
    list[str] | None,
    typer.Option(
        help="A dimension that files are joined along; may be repeated.", rich_help_panel=_FIT
    ),
]
CoordinateOption = Annotated[
    list[str] | None,
    typer.Option(
        help="DIM=NAME: the variable that orders files along a dimension.", rich_help_panel=_FIT
    ),
]
InOrderOption = Annotated[
    bool, typer.Option("--in-order", help="Join files in the order given.", rich_help_panel=_FIT)
]
GapsOption = Annotated[
    Literal["close", "leave", "fail"],
    typer.Option(help="The treatment of missing steps.", rich_help_panel=_FIT),
]
AttributesOption = Annotated[
    Literal["drop", "first", "promote", "fail"],
    typer.Option(
        help="The treatment of attributes that differ between files.", rich_help_panel=_FIT
    ),
]
ToleranceOption = Annotated[
    list[str] | None,
    typer.Option(
        help="NAME=NUMBER: how much a coordinate may differ between files; the values of the first"
        " file are taken. May be repeated.",
        rich_help_panel=_FIT,
    ),
]
TakeFirstOption = Annotated[
    list[str] | None,
    typer.Option(
        help="A coordinate whose values are those of the first file, whatever others have; may be"
        " repeated.",
        rich_help_panel=_FIT,
    ),
]
FromNameOption = Annotated[
    str | None,
    typer.Option(
        metavar="PATTERN",
        help="Coordinates in the names of files: '*_%Y%m%d.tif' for time, 'run_{member:d}_*.nc'"
        " for any other.",
        rich_help_panel=_TAKEN,
    ),
]
ConstantOption = Annotated[
    list[str] | None,
    typer.Option(
        help="NAME=VALUE: a coordinate that all files get; may be repeated.", rich_help_panel=_TAKEN
    ),
]
RenameOption = Annotated[
    list[str] | None,
    typer.Option(
        help="OLD=NEW: another name for a variable or a dimension of the files; may be repeated.",
        rich_help_panel=_TAKEN,
    ),
]
VariablesOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME,…",
        help="The only variables of the files to take; their coordinates come along.",
        rich_help_panel=_TAKEN,
    ),
]
SourceGroupOption = Annotated[
    str | None,
    typer.Option(help="The group of the files to take as their root.", rich_help_panel=_TAKEN),
]
OverviewsOption = Annotated[
    bool,
    typer.Option(
        "--overviews",
        help="Keep overviews of TIFF images, as groups overview_1, overview_2, …",
        rich_help_panel=_TAKEN,
    ),
]


FillMissingOption = Annotated[
    bool,
    typer.Option(
        "--fill-missing",
        help="Let variables that some files lack be missing there, as gaps.",
        rich_help_panel=_FIT,
    ),
]

RectilinearOption = Annotated[
    bool,
    typer.Option(
        "--rectilinear",
        help="Let chunks along the joined dimension have another length in each file, such as"
        " months. Zarr opens such arrays only with a setting.",
    ),
]


ContainerOption = Annotated[
    list[str] | None,
    typer.Option(
        help="A folder, as path or URL, whose files the repository may refer to; may be"
        " repeated. A new repository gets the folders of the sources, or those above folders"
        " of years."
    ),
]


class FileOptions(OptionSet, kw_only=True):
    """How files are parsed and put together."""

    concat: ConcatOption = None
    coordinate: CoordinateOption = None
    in_order: InOrderOption = False
    from_name: FromNameOption = None
    constant: ConstantOption = None
    tolerance: ToleranceOption = None
    take_first: TakeFirstOption = None
    gaps: GapsOption = "close"
    attributes: AttributesOption = "drop"
    variables: VariablesOption = None
    drop: DropOption = None
    rename: RenameOption = None
    source_group: SourceGroupOption = None
    overviews: OverviewsOption = False
    fill_missing: FillMissingOption = False
    rectilinear: RectilinearOption = False
    skip_misfits: SkipOption = False
    check_values: CheckValuesOption = str(FILES_CHECKED)

    def combining(self) -> CombineOptions:
        """Return how files are put together."""
        from icefloe.pipeline.files.options import CombineOptions

        tolerance = _pairs(self.tolerance, "--tolerance", "NAME=NUMBER")
        return CombineOptions(
            tuple(self.concat or ()),
            by="order" if self.in_order else "coordinates",
            coordinates=_pairs(self.coordinate, "--coordinate", "DIM=NAME"),
            on_misfit="skip" if self.skip_misfits else "fail",
            attributes=self.attributes,
            gaps=self.gaps,
            check_values=parse_check(self.check_values),
            tolerance={name: _number(text) for name, text in tolerance.items()},
            take_first=tuple(self.take_first or ()),
            fill_missing=self.fill_missing,
            rectilinear=self.rectilinear,
        )

    def parsing(self, *, follow_links: bool = False) -> ParseOptions:
        """Return how files are parsed."""
        from icefloe.pipeline.files.options import ParseOptions

        constants = _pairs(self.constant, "--constant", "NAME=VALUE")
        return ParseOptions(
            tuple(self.concat or ()),
            group=self.source_group,
            drop=tuple(self.drop or ()),
            overviews=self.overviews,
            follow_links=follow_links,
            variables=tuple(
                name for text in self.variables or () for name in text.split(",") if name
            ),
            rename=_pairs(self.rename, "--rename", "OLD=NEW"),
            from_name=self.from_name,
            constants={name: _constant(text) for name, text in constants.items()},
        )


class JobArguments(TypedDict):
    """Arguments of all jobs."""

    group: str
    branch: str
    message: str | None
    engine: Literal["auto", "local", "spark"]
    master: str | None


class JobOptions(OptionSet, kw_only=True):
    """Where a job puts its dataset, and where its work is done."""

    group: GroupOption = ""
    branch: BranchOption = "main"
    message: MessageOption = None
    engine: EngineOption = "auto"
    master: MasterOption = None

    def arguments(self) -> JobArguments:
        """Return the arguments of the job."""
        return {
            "group": self.group,
            "branch": self.branch,
            "message": self.message,
            "engine": self.engine,
            "master": self.master,
        }


def ingest_virtual(
    context: typer.Context,
    sources: SourcesArgument,
    *,
    repo: RepoOption,
    files: FileOptions,
    container: ContainerOption = None,
    job: JobOptions,
    plot: PlotOption = None,
    as_json: JsonOption = False,
) -> None:
    """Combine many files to one dataset, without copying their data, in one commit.

    All files are compared first: if one does not fit, each such file is listed with the reason,
    and nothing is written. Nor is anything if values of a sample of the files are not what another
    reader finds. A repository that does not exist is created.

    Example: icefloe ingest virtual 'era5/*.nc' --repo ./cube --concat time
    """
    from icefloe.jobs import ingest

    checked_plot(plot)
    options, parse = files.combining(), files.parsing()
    if not options.concat:
        raise missing_concat(context, sources, parse)
    with (
        running_job(as_json=as_json) as on_progress,
        referring(repo, sources, container or []) as repository,
    ):
        report = ingest(
            repository, sources, options, parse=parse, on_progress=on_progress, **job.arguments()
        )
    show_referred(report, repository, repo, plot, as_json=as_json)


def append(
    sources: SourcesArgument,
    *,
    repo: RepoOption,
    container: Annotated[
        list[str] | None,
        typer.Option(
            help="Another folder, as path or URL, whose files the repository may refer to from now"
            " on; may be repeated."
        ),
    ] = None,
    changed: Annotated[
        Literal["report", "replace", "fail"],
        typer.Option(help="The treatment of files that changed since they were ingested."),
    ] = "report",
    memory: Annotated[
        str | None,
        typer.Option(
            help="The memory of a task that adds values to a copy: 256M, 2G… [default: as the"
            " first time]"
        ),
    ] = None,
    skip_misfits: SkipOption = False,
    check_values: CheckValuesOption = str(FILES_CHECKED),
    job: JobOptions,
    plot: PlotOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add new files to a dataset that `icefloe ingest` made of files; safe to repeat.

    Files that are there are skipped, and if none is new nothing is committed. Files are put
    together as they were the first time. If their values were copied, those of new files are, too.

    Example: icefloe append 'era5/*.nc' --repo ./cube
    """
    from icefloe.jobs import append as append_files

    checked_plot(plot)
    checks = parse_check(check_values)
    memory_bytes = None if memory is None else parse_memory(memory)
    target = place_of(repo, writes=True)
    repository = _widened(target.open(), repo, container or [], target)
    with running_job(as_json=as_json) as on_progress:
        report = append_files(
            repository,
            sources,
            on_misfit="skip" if skip_misfits else None,
            check_values=checks,
            on_changed=changed,
            memory_per_task=memory_bytes,
            on_progress=on_progress,
            **job.arguments(),
        )
    show_referred(report, repository, repo, plot, as_json=as_json)


def parse_memory(text: str) -> int:
    """Read the memory of a task, perhaps with a unit."""
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--memory") from None


def parse_check(text: str) -> ValueCheck:
    """Read how many files have values compared."""
    match text:
        case "all" | "none":
            return text
        case _ if text.isdecimal() and int(text) > 0:
            return int(text)
    raise typer.BadParameter(
        f"{text!r} is neither a number of files above 0, nor all, nor none",
        param_hint="--check-values",
    )


def missing_concat(
    context: typer.Context, sources: list[str], parse: ParseOptions
) -> InvalidInputError:
    """Return an error with the dimensions of the files; print a command that works."""
    from icefloe.jobs import without_dimensions
    from icefloe.pipeline.files.sources import SourceAccess

    error = without_dimensions(sources, parse, SourceAccess())
    name = error.context.get("dimension")
    if name is not None:
        echo(f"Try: {command_line(context, f'--concat={name}')}", err=True)
    return error


def is_plain(options: CombineOptions, parse: ParseOptions) -> bool:
    """Return whether nothing was chosen that concerns variables and coordinates of files."""
    from icefloe.pipeline.files.options import CombineOptions, ParseOptions

    rule, checks = options.on_misfit, options.check_values
    default = CombineOptions(options.concat, on_misfit=rule, check_values=checks)
    return options == default and parse == ParseOptions(parse.concat)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no number", param_hint="--tolerance") from None


def _constant(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _pairs(texts: Sequence[str] | None, option: str, form: str) -> dict[str, str]:
    pairs = {}
    for pair in texts or ():
        name, sign, value = pair.partition("=")
        if not (name and sign and value):
            raise typer.BadParameter(f"{pair!r} is not like {form}", param_hint=option)
        pairs[name] = value
    return pairs


@contextmanager
def referring(name: str, sources: Sequence[str], containers: Sequence[str]) -> Iterator[Repository]:
    """Open a repository, or create it, so that it may refer to some folders.

    A service reads the new configuration, and vends credentials for the folders, too.
    """
    from icefloe.api.repository import Repository
    from icefloe.config import RepositoryConfig
    from icefloe.pipeline.files.containers import container_at

    target = place_of(name, writes=True)

    def create() -> Repository:
        prefixes = prefixes_of(sources, containers)
        _require_allowed(prefixes, target)
        config = RepositoryConfig.default()
        for prefix in prefixes:
            config.set_virtual_chunk_container(container_at(prefix))
        created = Repository.create(target.storage, config)
        return open_repository(name, writes=True) if target.is_of_service else created

    is_new = not target.exists()
    with target.filled(create) as repository:
        yield repository if is_new else _widened(repository, name, containers, target)


def prefixes_of(sources: Sequence[str], containers: Sequence[str]) -> list[str]:
    """Return the folders that a new repository may refer to."""
    from icefloe.pipeline.files.containers import as_prefix, wide_prefixes

    return [*map(as_prefix, containers)] if containers else wide_prefixes(sources)


def _widened(
    repository: Repository, name: str, containers: Sequence[str], target: Place
) -> Repository:
    """Have a repository refer to more folders."""
    if not containers:
        return repository
    from icefloe.pipeline.files.containers import add_containers, as_prefix

    prefixes = [*map(as_prefix, containers)]
    _require_allowed(prefixes, target)
    wider = add_containers(repository, prefixes)
    if not target.is_of_service:
        return wider
    try:
        return open_repository(name, writes=True)
    except AccessDeniedError:  # nobody could open it now
        wider.reopen(repository.config).save_config()
        raise


def _require_allowed(prefixes: Iterable[str], target: Place) -> None:
    if refused := refused_prefix(prefixes, target):
        raise InvalidInputError(
            f"a service never lets {refused} be read, which only this machine may reach: copy the"
            " values with `icefloe ingest native`, or upload the files",
            ErrorKind.INVALID_VIRTUAL_REF,
        )


def refused_prefix(prefixes: Iterable[str], target: Place) -> str | None:
    """Return the first folder that the repository of a service cannot refer to."""
    from icefloe.pipeline.files.granted import OBJECT_STORE_SCHEMES

    refused = (prefix for prefix in prefixes if not prefix.startswith(OBJECT_STORE_SCHEMES))
    return next(refused, None) if target.is_of_service else None


@contextmanager
def running_job(*, as_json: bool) -> Iterator[OnProgress | None]:
    """Show a progress bar; report misfits and interruptions."""
    from icefloe.pipeline.combining.report import MisfitsError, ValuesMismatchError
    from icefloe.pipeline.running.progress import terminal_progress

    try:
        with terminal_progress() as on_progress:
            yield None if is_quiet.get() else on_progress
    except KeyboardInterrupt:
        echo("interrupted: nothing was committed", err=True)
        raise typer.Exit(INTERRUPTED) from None
    except MisfitsError as error:
        if as_json:
            show_json(for_shell(error.report).to_dict())
        else:
            show_misfits(error.report)
            error.message = error.in_short
        raise
    except ValuesMismatchError as error:
        if as_json:
            from icefloe.records import asdict

            show_json(asdict(error.checked))
        else:
            for mismatch in error.checked.mismatches[:_MOST_ROWS]:
                echo(str(mismatch))
        raise


def show_opening(lines: Sequence[str]) -> None:
    """Print the lines of Python that open a dataset."""
    echo("open it in Python:")
    for line in lines:
        echo(f"  {line}")


def for_shell(report: Report) -> Report:
    """Return a report whose advice names options of commands."""
    from icefloe.records import replace

    misfits = (replace(m, message=in_shell_words(m.message)) for m in report.misfits)
    notes = map(in_shell_words, report.notes)
    remedy = in_shell_words(report.remedy)
    return replace(report, misfits=tuple(misfits), notes=tuple(notes), remedy=remedy)


def show_misfits(report: Report) -> None:
    """List files that do not fit, with the reasons."""
    report = for_shell(report)
    rows = [(misfit.url, misfit.kind.value, misfit.message) for misfit in report.misfits]
    show_table(("file", "kind", "what"), rows[:_MOST_ROWS])
    if len(rows) > _MOST_ROWS:
        echo(f"... and {len(rows) - _MOST_ROWS} more")


def show_notes(report: Report) -> None:
    """Print what was settled without asking, and which values could not be compared."""
    for note in for_shell(report).notes:
        echo(note)
    for unchecked in () if report.checked is None else report.checked.unchecked[:_MOST_ROWS]:
        echo(str(unchecked))


def show_referred(
    report: Any,
    repository: Repository,
    name: str,
    plot: Path | None,
    *,
    as_json: bool,
    not_needed: Sequence[str] = (),
) -> None:
    """Report what was done, what the dataset holds afterwards, and how it is opened.

    `not_needed` are options for copies that were given, where nothing was copied.
    """
    from icefloe.cli.opening import opening_lines
    from icefloe.pipeline.coverage import read_coverage

    session = repository.readonly_session(report.branch)
    is_there = report.snapshot is not None or report.known
    coverage = read_coverage(session, report.group) if is_there else ()
    opening = opening_lines(repository, name, report.group, report.branch) if is_there else ()
    containers = [*(repository.config.virtual_chunk_containers or {})]
    if as_json:
        dataset = coverage[0].to_dict() if coverage else None
        shown = {**report.to_dict(), "scan": for_shell(report.scan).to_dict()}
        shown |= {"holds": dataset, "containers": containers, "open": opening}
        show_json({**shown, "not_needed": not_needed})
    else:
        if report.scan.misfits:
            show_misfits(report.scan)
        show_notes(report.scan)
        for url in report.changed:
            echo(f"changed since it was ingested: {url}")
        for url in report.missing[:_MOST_ROWS]:
            lost = "nobody can read its chunks; put the file back, or ingest the data from where it"
            about = f"{lost} is now" if report.copied is None else "its values were copied"
            echo(f"disappeared since it was ingested: {url}: {about}")
        if coverage:
            show_coverage(coverage)
        echo(report.summary())
        if not_needed:
            echo(f"nothing was copied, so these options were not needed: {', '.join(not_needed)}")
        if report.snapshot is not None:
            for prefix in containers if report.copied is None else ():
                echo(f"the repository may refer to files below {prefix}")
            show_opening(opening)
    write_plot(plot, coverage)
