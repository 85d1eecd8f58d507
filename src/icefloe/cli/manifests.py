"""`icefloe manifests`: show where references are kept, suggest what is better, rewrite."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from icefloe.cli.common import (
    AnonymousOption,
    AsOfOption,
    JsonOption,
    LookAtBranchOption,
    LookAtSnapshotOption,
    LookAtTagOption,
    MaxRowsOption,
    RepositoryArgument,
    echo,
    open_repository,
    present,
    progress_bar,
    read_config,
    show_json,
    show_table,
)
from icefloe.cli.versions import version_options
from icefloe.reports import counted

_Branch = Annotated[str, typer.Option(help="The branch to read.")]


def show(
    url: RepositoryArgument,
    *,
    branch: LookAtBranchOption = None,
    tag: LookAtTagOption = None,
    snapshot: LookAtSnapshotOption = None,
    as_of: AsOfOption = None,
    max_rows: MaxRowsOption = 100,
    as_json: JsonOption = False,
    anonymous: AnonymousOption = False,
) -> None:
    """List the manifests of a version: arrays, references, bytes; the largest first.

    Example: icefloe manifests show ./repo
    """
    from icefloe.maintenance.layout.survey import LAYOUT_HEADINGS

    repository = open_repository(url, anonymous=anonymous)
    version = version_options(repository, branch, tag, snapshot, as_of)
    manifest_layout = sorted(
        repository.manifest_layout(**version),
        key=lambda manifest: (-manifest.size_bytes, manifest.id),
    )
    if as_json:
        show_json(
            [
                {
                    "id": manifest.id,
                    "bytes": manifest.size_bytes,
                    "references": manifest.num_chunk_refs,
                    "arrays": list(manifest.arrays),
                }
                for manifest in manifest_layout
            ]
        )
        return
    show_table(LAYOUT_HEADINGS, [manifest.to_row() for manifest in manifest_layout[:max_rows]])
    refs = sum(manifest.num_chunk_refs for manifest in manifest_layout)
    echo(f"{len(manifest_layout)} in all: {counted(refs, 'reference')}")


def suggest(
    url: RepositoryArgument,
    *,
    branch: _Branch = "main",
    as_json: JsonOption = False,
    anonymous: AnonymousOption = False,
) -> None:
    """Propose a configuration of manifests, from the arrays and how they grew.

    Says what a first read, an append and a commit cost, now and with the proposal, and prints
    the configuration to use it: icefloe manifests rewrite URL --config FILE --save

    Example: icefloe manifests suggest ./repo
    """
    advice = open_repository(url, anonymous=anonymous).suggest_manifests(branch)
    present(advice, as_json=as_json)
    if advice.changes_config and not as_json:
        echo(f"\n{advice.yaml}", nl=False)


def rewrite(
    url: RepositoryArgument,
    *,
    branch: Annotated[str, typer.Option(help="The branch to commit to.")] = "main",
    message: Annotated[
        str, typer.Option("--message", "-m", help="The message of the commit.")
    ] = "rewrite manifests",
    amend: Annotated[bool, typer.Option("--amend", help="Replace the newest commit.")] = False,
    config: Annotated[
        Path | None,
        typer.Option(help="A file in the form of config.yaml: overrides the stored configuration."),
    ] = None,
    save: Annotated[
        bool, typer.Option("--save", help="Store the configuration, for later commits.")
    ] = False,
) -> None:
    """Rewrite all manifests of a branch to the configured layout, in one commit.

    The data stays the same. Prints the id of the new version.

    Example: icefloe manifests rewrite ./repo --branch main
    """
    repository = open_repository(url, None if config is None else read_config(config), writes=True)
    with progress_bar("rewriting manifests") as on_progress:
        new = repository.rewrite_manifests(
            message,
            branch=branch,
            commit_method="amend" if amend else "new_commit",
            on_progress=on_progress,
        )
    if save:
        repository.save_config()
    echo(new)
