"""`icefloe embargo`: data that becomes public when it is old enough."""

from typing import Annotated

import typer

from icefloe.cli.common import JsonOption, progress_bar, require_consent
from icefloe.cli.entries import (
    ServiceOption,
    WaitOption,
    YesOption,
    client_of,
    done,
    show_entry,
)
from icefloe.cli.listing import NodeOption

NameArgument = Annotated[str, typer.Argument(help="The private repository, as org/name.")]


def show(
    repository: NameArgument, *, service: ServiceOption = None, as_json: JsonOption = False
) -> None:
    """Show the rolling embargo of a repository.

    Example: icefloe embargo show ocean-lab/live
    """
    show_entry(client_of(service).show_embargo(repository), as_json=as_json)


def set_(
    repository: NameArgument,
    *,
    days: Annotated[float, typer.Option(help="How old data must be to become public.", min=0)],
    bucket: Annotated[str, typer.Option(help="The bucket for public data.")],
    prefix: Annotated[str, typer.Option(help="The folder in it for public data, with a slash.")],
    dimension: Annotated[
        str, typer.Option(help="The coordinate that tells how old data is.")
    ] = "time",
    node: NodeOption = None,
    public_repository: Annotated[
        str | None, typer.Option(help="A repository of manifests for the public data.")
    ] = None,
    service: ServiceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Set a rolling embargo: data of a repository becomes public when it is old enough.

    Example: icefloe embargo set ocean-lab/live --days 5 --bucket open-data --prefix released/
    """
    from icefloe.catalog.wire import EmbargoSettings

    settings = EmbargoSettings(
        days, bucket, prefix, dimension, tuple(node or ()), public_repository
    )
    show_entry(client_of(service).set_embargo(repository, settings), as_json=as_json)


def delete(
    repository: NameArgument,
    *,
    yes: YesOption = False,
    service: ServiceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Release nothing of a repository any more; what is public stays so.

    Example: icefloe embargo delete ocean-lab/live
    """
    require_consent(f"delete the embargo of {repository}?", is_given=yes)
    client_of(service).delete_embargo(repository)
    done(f"{repository} has no rolling embargo any more", as_json=as_json)


def release(
    repository: NameArgument,
    *,
    wait: WaitOption = True,
    service: ServiceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make public what is old enough now; doing it again changes nothing.

    Example: icefloe embargo release ocean-lab/live
    """
    client = client_of(service)
    if not wait:
        show_entry(client.begin_release(repository), as_json=as_json)
        return
    with progress_bar("copying chunks") as progress:
        released = client.release_embargo(repository, progress=progress)
    show_entry(released, as_json=as_json)
