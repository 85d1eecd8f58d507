"""`icefloe stats`: what takes room in a repository."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from icefloe.cli.common import (
    AllRowsJsonOption,
    AnonymousOption,
    MaxRowsOption,
    RepositoryArgument,
    echo,
    interruptible,
    present,
    progress_bar,
)

if TYPE_CHECKING:
    from icefloe.reports import Report


class By(StrEnum):
    """What a row stands for."""

    kind = "kind"
    snapshot = "snapshot"
    array = "array"
    container = "container"


_USES: Final[Mapping[By, Literal["snapshot", "array", "container"]]] = {
    By.snapshot: "snapshot",
    By.array: "array",
    By.container: "container",
}


def stats(
    url: RepositoryArgument,
    *,
    by: Annotated[
        By,
        typer.Option(
            help="What to sum up by: how chunks are kept, the version that added them, the array,"
            " or the container of virtual chunks."
        ),
    ] = By.kind,
    max_rows: MaxRowsOption = 100,
    as_json: AllRowsJsonOption = False,
    anonymous: AnonymousOption = False,
) -> None:
    """Sum up what chunks take, in all versions that branches and tags lead to.

    Each chunk counts once, however many versions share it.

    Example: icefloe stats ./repo --by array
    """
    from icefloe.api.repository import Repository
    from icefloe.storage import storage_from_url

    repository = Repository.open(storage_from_url(url, anonymous=anonymous))
    report: Report
    with progress_bar("reading manifests") as bar, interruptible("nothing was changed"):
        if by is By.kind:
            report = repository.chunk_storage_stats(on_progress=bar)
        else:
            report = repository.storage_use(_USES[by], on_progress=bar)
    present(report, as_json=as_json, max_rows=max_rows)
    if not as_json and (hidden := len(report.rows()) - max_rows) > 0:
        echo(f"... and {hidden} more")
