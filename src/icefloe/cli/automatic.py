"""`icefloe ingest` without a form: files are referred to, or copied where that cannot be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from icefloe.cli.common import Place, echo, place_of
from icefloe.cli.coverage import PlotOption, checked_plot
from icefloe.cli.ingest import (
    ContainerOption,
    FileOptions,
    JobOptions,
    JsonOption,
    RepoOption,
    SourcesArgument,
    missing_concat,
    prefixes_of,
    referring,
    refused_prefix,
    running_job,
    show_referred,
)
from icefloe.cli.native import (
    COPIES,
    DecodeOption,
    FollowLinksOption,
    LayoutOptions,
    is_hierarchy,
    require_plain,
    show_copied,
)
from icefloe.cli.wording import in_shell_words
from icefloe.reports import parse_bytes

if TYPE_CHECKING:
    from icefloe.api.repository import Repository
    from icefloe.pipeline.copying.if_needed import CopyReason

MostCopiedOption = Annotated[
    str,
    typer.Option(
        metavar="SIZE",
        help="Copy values up to this size, before compression: 500M, 2T…; 0 copies nothing. If"
        " they take more, the command says how much, and writes nothing.",
        rich_help_panel=COPIES,
    ),
]
_OF_COPIES: Final = (*LayoutOptions.__struct_fields__, "decode")


def ingest(
    context: typer.Context,
    sources: SourcesArgument,
    *,
    repo: RepoOption,
    files: FileOptions,
    follow_links: FollowLinksOption = False,
    most_copied: MostCopiedOption = "100G",
    decode: DecodeOption = False,
    layout: LayoutOptions,
    container: ContainerOption = None,
    job: JobOptions,
    plot: PlotOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make one dataset of many files: by reference where possible, as a copy where not.

    All files are compared first. If all fit by reference, their data stays where it is. If they
    fit only as copies, their values are copied, and unpacked only if nothing else helps; a line
    says so before, with the reason. If files fit in no form, each is listed with the reason, and
    nothing is written. A repository that does not exist is created. One file needs no --concat;
    one Zarr hierarchy is copied as it is. Files of the names virtual and native are ./virtual and
    ./native.

    Example: icefloe ingest 'era5/*.nc' --repo ./cube --concat time
    """
    from icefloe.jobs import ingest as ingest_files
    from icefloe.pipeline.copying.if_needed import CopyIfNeeded
    from icefloe.pipeline.running.job import CopyReport

    checked_plot(plot)
    how, most_bytes = layout.copying(decode=decode), _parse_most(most_copied)
    options, parse = files.combining(), files.parsing(follow_links=follow_links)
    is_alone = not options.concat and is_hierarchy(sources)
    if is_alone:
        require_plain(options, parse)
    elif not options.concat and _count(sources) != 1:
        raise missing_concat(context, sources, parse)
    place = place_of(repo, writes=True)
    is_new = not place.exists()
    refused = "" if is_alone else _refusal(sources, container, place)
    opened = place.filled() if is_alone or refused else referring(repo, sources, container or [])
    with running_job(as_json=as_json) as on_progress, opened as target:
        report = ingest_files(
            target,
            sources,
            None if is_alone else options,
            copy=CopyIfNeeded(how=how, most_bytes=most_bytes, on_copy=_announce, refused=refused),
            parse=None if is_alone else parse,
            on_progress=on_progress,
            **job.arguments(),
        )
        is_wide = isinstance(report, CopyReport) and is_new and not container
        repository = _without_containers(target) if is_wide else target
    if isinstance(report, CopyReport):
        show_copied(report, repository, repo, plot, as_json=as_json)
        return
    idle = [f"--{name}" for name in _OF_COPIES if _is_given(context, name)]
    show_referred(report, repository, repo, plot, as_json=as_json, not_needed=idle)


def _parse_most(text: str) -> int:
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--most-copied") from None


def _count(sources: list[str]) -> int:
    """Count the files that are joined."""
    from icefloe.pipeline.files.sources import SourceAccess, has_magic, list_states

    if len(sources) == 1 and not has_magic(sources[0]):
        return 1
    return len(list_states(sources, SourceAccess()))


def _refusal(sources: list[str], container: list[str] | None, target: Place) -> str:
    """Return why a repository cannot refer to the files, if that is known before."""
    if not target.is_of_service:
        return ""
    refused = refused_prefix(prefixes_of(sources, container or []), target)
    return f"a service never lets {refused} be read" if refused else ""


def _announce(reason: CopyReason) -> None:
    echo(in_shell_words(str(reason)), err=True)


def _without_containers(repository: Repository) -> Repository:
    """Undo what a new repository declared for references, of which it has none."""
    config = repository.config
    if not config.virtual_chunk_containers:
        return repository
    config.virtual_chunk_containers = {}
    narrower = repository.reopen(config)
    narrower.save_config()
    return narrower


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"
