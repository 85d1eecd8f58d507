"""The `icefloe` command and how it reports errors."""

from collections.abc import Callable
from functools import wraps
from typing import Annotated

import typer

from icefloe.cli.access import access
from icefloe.cli.clone import clone
from icefloe.cli.common import echo
from icefloe.cli.coverage import coverage
from icefloe.cli.dependencies import dependencies
from icefloe.cli.doctor import doctor
from icefloe.cli.expire import expire
from icefloe.cli.export import export
from icefloe.cli.gc import gc
from icefloe.cli.ingest import append, ingest, ingest_virtual
from icefloe.cli.inspect import inspect
from icefloe.cli.manifests import rewrite, show, suggest
from icefloe.cli.migrate import migrate
from icefloe.cli.native import ingest_native, rechunk
from icefloe.cli.plan import plan
from icefloe.cli.repair import repair
from icefloe.cli.sources import sources
from icefloe.cli.stats import stats
from icefloe.cli.verify import verify
from icefloe.errors import (
    ConflictError,
    FormatError,
    IcefloeError,
    InvalidInputError,
    NotFoundError,
    StorageError,
)
from icefloe.printable import printable
from icefloe.version import VERSION

EXIT_CODES: dict[type[IcefloeError], int] = {
    NotFoundError: 3,
    FormatError: 4,
    InvalidInputError: 5,
    ConflictError: 6,
    StorageError: 7,
    IcefloeError: 1,
}
"""What the shell sees for each group of errors; the first that fits counts."""

app = typer.Typer(
    name="icefloe",
    help="Transactional, versioned storage for Zarr arrays.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def reporting[**P](command: Callable[P, None]) -> Callable[P, None]:
    """Turn our errors into a message on standard error and an exit code."""
    from rich.console import Console

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except IcefloeError as error:
            console = Console(stderr=True, highlight=False)
            console.print(f"[bold red]error[/] ({error.kind}): ", end="")
            console.print(printable(error.message, keep="\n"), markup=False)
            for note in getattr(error, "__notes__", ()):
                console.print(f"  {printable(note, keep='\n')}", markup=False)
            raise typer.Exit(exit_code(error)) from error

    return run


def exit_code(error: IcefloeError) -> int:
    """Return the exit code of an error."""
    return next(code for kind, code in EXIT_CODES.items() if isinstance(error, kind))


def _show_version(is_asked: bool) -> None:  # noqa: FBT001 - called by typer
    if is_asked:
        echo(f"icefloe {VERSION}")
        raise typer.Exit


@app.callback()
def _main(
    *,
    _version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    pass


app.command()(reporting(inspect))
app.command()(reporting(access))
app.command()(reporting(dependencies))
app.command()(reporting(verify))
app.command()(reporting(doctor))
app.command()(reporting(repair))
app.command()(reporting(stats))
app.command()(reporting(expire))
app.command()(reporting(gc))
app.command()(reporting(migrate))
app.command()(reporting(clone))
app.command()(reporting(export))
ingest.command("virtual")(reporting(ingest_virtual))
ingest.command("native")(reporting(ingest_native))
app.add_typer(ingest)
app.command()(reporting(append))
app.command()(reporting(rechunk))
app.command()(reporting(plan))
app.command()(reporting(coverage))
app.command()(reporting(sources))

manifests = typer.Typer(
    name="manifests",
    help="Where references are kept, and what would be better.",
    no_args_is_help=True,
)
app.add_typer(manifests)
manifests.command()(reporting(show))
manifests.command()(reporting(suggest))
manifests.command()(reporting(rewrite))
