"""`icefloe verify`: whether all versions of a repository are whole."""

from typing import Final

import typer

from icefloe.cli.common import (
    AnonymousOption,
    AuthorizeAnonymousOption,
    AuthorizeOption,
    DeepOption,
    JsonOption,
    MaxRowsOption,
    RepositoryArgument,
    authorised,
    present,
    progress_bar,
)

VERDICT_CODES: Final = {"healthy": 0, "damaged": 10, "incomplete": 11}
"""What the shell sees; errors have codes of their own."""


def verify(
    url: RepositoryArgument,
    *,
    deep: DeepOption = False,
    authorize: AuthorizeOption = None,
    authorize_anonymous: AuthorizeAnonymousOption = None,
    max_rows: MaxRowsOption = 50,
    as_json: JsonOption = False,
    anonymous: AnonymousOption = False,
) -> None:
    """Check that every file that some version needs exists, can be read, and fits to the others.

    Changes nothing, and others may go on writing. For each damage: which array, which chunks,
    which versions, and what can be done.

    Exit code 0: healthy. 10: damaged. 11: no damage found, but not everything could be checked.

    Example: icefloe verify s3://bucket/repository --json
    """
    from icefloe.api.repository import Repository
    from icefloe.storage import storage_from_url

    with progress_bar("verifying") as on_progress:
        report = Repository.verify_storage(
            storage_from_url(url, anonymous=anonymous),
            deep=deep,
            authorize_virtual_chunk_access=authorised(authorize or (), authorize_anonymous or ()),
            on_progress=on_progress,
        )
    present(report, as_json=as_json, max_rows=max_rows)
    if code := VERDICT_CODES[report.verdict]:
        raise typer.Exit(code)
