"""`icefloe plan`: what an ingest will take, before it runs."""

import os
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from icefloe import pipeline  # names load when they are used
from icefloe.cli.common import echo, place_of, show_json, show_table
from icefloe.cli.ingest import (
    BranchOption,
    GroupOption,
    JsonOption,
    RepoOption,
    SourcesArgument,
    parse_memory,
)
from icefloe.cli.native import (
    ChunksOption,
    MemoryOption,
    ShardsOption,
    parse_lengths,
)
from icefloe.cli.wording import in_shell_words

if TYPE_CHECKING:
    from icefloe.pipeline.planning import CopyEstimate, JobPlan


def plan(
    sources: SourcesArgument,
    *,
    repo: RepoOption,
    concat: Annotated[
        list[str] | None,
        typer.Option(
            help="A dimension that files are joined along; may be repeated. Without it, plan"
            " an append to the existing dataset."
        ),
    ] = None,
    native: Annotated[
        bool,
        typer.Option(help="Plan a copy of values: `ingest native`, or without --concat `rechunk`."),
    ] = False,
    chunks: ChunksOption = "",
    shards: ShardsOption = "",
    memory: MemoryOption = "256M",
    cores: Annotated[
        int | None,
        typer.Option(min=1, help="Cores of the cluster. [default: those of this machine]"),
    ] = None,
    group: GroupOption = "",
    branch: BranchOption = "main",
    as_json: JsonOption = False,
) -> None:
    """Estimate time and memory of `icefloe ingest` or `icefloe append`; write nothing.

    Files are listed, and three of them are parsed; the others are taken to be like these. No
    engine is started. The plan is for a copy of the values if these files do not fit by reference,
    but as copies, or with --native, --chunks or --shards.

    Example: icefloe plan 'era5/*.nc' --repo ./cube --concat time --cores 64
    """
    from icefloe.api.repository import Repository
    from icefloe.config import RepositoryConfig
    from icefloe.pipeline.files.options import CombineOptions
    from icefloe.storage import in_memory_storage

    place = place_of(repo)
    if place.exists():
        repository = place.open()
    else:
        repository = Repository.create(in_memory_storage(), RepositoryConfig.default())
    options = CombineOptions(tuple(concat)) if concat else None
    count = cores or os.cpu_count() or 1
    plan_copy = partial(
        pipeline.plan_copy,
        repository,
        sources,
        options,
        cores=count,
        chunks=parse_lengths(chunks, "--chunks"),
        shards=parse_lengths(shards, "--shards"),
        memory_per_task=parse_memory(memory),
    )
    planned: JobPlan | CopyEstimate
    instead: CopyEstimate | None = None
    if native or chunks or shards:
        planned = plan_copy()
        problems = () if planned.scan is None else planned.scan.problems
    else:
        planned = pipeline.plan(
            repository, sources, options, cores=count, group=group, branch=branch
        )
        problems = planned.problems
        copies = (plan_copy(decode=decode) for decode in (False, True) if options and problems)
        fitting = (copy for copy in copies if copy.scan is not None and not copy.scan.problems)
        instead = next(fitting, None)
        planned = instead or planned
    if as_json:
        form = "copy" if isinstance(planned, pipeline.CopyEstimate) else "reference"
        show_json({**planned.to_dict(), "form": form})
        return
    show_table(("what", "how much"), planned.rows())
    for problem in problems:
        echo(in_shell_words(problem))
    if instead is not None:
        echo("so `icefloe ingest` copies the values, and the plan is for that")
