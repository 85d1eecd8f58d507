"""`icefloe plan`: what an ingest will take, before it runs."""

import os
from typing import Annotated

import typer

import icefloe.spark as jobs  # names load when they are used
from icefloe.api.repository import Repository
from icefloe.cli.ingest import BranchOption, GroupOption, JsonOption, RepoOption, SourcesArgument
from icefloe.cli.output import show_json, show_table
from icefloe.config import RepositoryConfig
from icefloe.pipeline.options import CombineOptions
from icefloe.storage import in_memory_storage, storage_from_url


def plan(
    sources: SourcesArgument,
    *,
    repo: RepoOption,
    concat: Annotated[
        list[str] | None,
        typer.Option(
            help="A dimension that files are joined along; may be repeated. Without it, as an"
            " append to what is there."
        ),
    ] = None,
    cores: Annotated[
        int | None, typer.Option(min=1, help="Cores of the cluster. [default: of this machine]")
    ] = None,
    group: GroupOption = "",
    branch: BranchOption = "main",
    as_json: JsonOption = False,
) -> None:
    """Say what `icefloe ingest virtual` or `icefloe append` will take; nothing is written.

    Files are listed, and three of them are parsed; the others are taken to be like these. Spark
    is not started.

    Example: icefloe plan 'era5/*.nc' --repo ./cube --concat time --cores 64
    """
    storage = storage_from_url(repo)
    if Repository.exists(storage):
        repository = Repository.open(storage)
    else:
        repository = Repository.create(in_memory_storage(), RepositoryConfig.default())
    planned = jobs.plan(
        repository,
        sources,
        CombineOptions(tuple(concat)) if concat else None,
        cores=cores or os.cpu_count() or 1,
        group=group,
        branch=branch,
    )
    if as_json:
        show_json(planned.to_dict())
        return
    show_table(("what", "how much"), planned.rows())
    for problem in planned.problems:
        typer.echo(problem)
