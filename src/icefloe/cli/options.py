"""Arguments and options that several commands have."""

from typing import Annotated

import typer

RepositoryArgument = Annotated[
    str, typer.Argument(help="The repository: a path, or s3://, gs://, az://, https://…")
]
AnonymousOption = Annotated[
    bool, typer.Option(help="Send no credentials to the repository's own storage.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
AllRowsJsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, with all rows.")]
MaxRowsOption = Annotated[int, typer.Option(help="Show at most so many rows.", min=0)]
DeepOption = Annotated[
    bool,
    typer.Option("--deep", help="Also read all chunks, and look at the files of virtual chunks."),
]
AuthorizeOption = Annotated[
    list[str] | None,
    typer.Option(
        help="Read virtual chunks below this URL, with the credentials of the environment."
        " Can be repeated."
    ),
]
AuthorizeAnonymousOption = Annotated[
    list[str] | None, typer.Option(help="… or without credentials. Can be repeated.")
]
