"""`icefloe stats`: what takes room in a repository."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Final, Literal

import typer

from icefloe.cli.common import (
    AllRowsJsonOption,
    AnonymousOption,
    MaxRowsOption,
    RepositoryArgument,
    echo,
    interruptible,
    progress_bar,
    show_json,
    show_table,
)


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
    from icefloe.api.maintenance import STATS_HEADINGS
    from icefloe.api.repository import Repository
    from icefloe.storage import storage_from_url

    repository = Repository.open(storage_from_url(url, anonymous=anonymous))
    with progress_bar("reading manifests") as bar, interruptible("nothing was changed"):
        if by is By.kind:
            total = repository.chunk_storage_stats(on_progress=bar)
            rows, document = total.rows(), total.to_dict()
            headings: tuple[str, ...] = STATS_HEADINGS
        else:
            storage_use = repository.storage_use(_USES[by], on_progress=bar)
            rows, headings = storage_use.rows(), storage_use.headings
            document = {"by": storage_use.by, "rows": storage_use.to_dicts()}
    if as_json:
        show_json(document)
        return
    show_table(headings, rows[:max_rows])
    if len(rows) > max_rows:
        echo(f"... and {len(rows) - max_rows} more")
