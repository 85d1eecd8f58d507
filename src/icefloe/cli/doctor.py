"""`icefloe doctor`: what a storage really does."""

from typing import Annotated, Final

import typer

from icefloe.cli.common import JsonOption, present, progress_bar

VERDICT_CODES: Final = {
    "sound": 0,
    "unsafe": 10,
    "read-only": 11,
    "incomplete": 11,
}
"""What the shell sees; errors have codes of their own."""


def doctor(
    url: Annotated[
        str, typer.Argument(help="The place: a path, or s3://, gs://, az://, https://…")
    ],
    *,
    as_json: JsonOption = False,
    anonymous: Annotated[bool, typer.Option(help="Send no credentials.")] = False,
) -> None:
    """Try out a storage: conditional writes, reads after writes, ranges, listings, deletions.

    Writes under keys of its own and removes them again. A repository in the same place is not
    touched, and may be in use.

    Exit code 0: repositories are safe here. 10: something that they rely on does not hold.
    11: not everything could be tried, for instance because the storage can only be read.

    Example: icefloe doctor s3://bucket/prefix
    """
    from icefloe.maintenance.doctor import check_storage
    from icefloe.storage import storage_from_url

    with progress_bar("trying out") as on_progress:
        report = check_storage(storage_from_url(url, anonymous=anonymous), on_progress=on_progress)
    present(report, as_json=as_json)
    if code := VERDICT_CODES[report.verdict]:
        raise typer.Exit(code)
