"""`icefloe login`, `logout` and `whoami`: who one is for a repository service."""

from typing import Annotated

import typer

from icefloe.cli.common import JsonOption
from icefloe.cli.entries import ServiceOption, client_of, done, show_entry


def login(
    url: Annotated[str, typer.Argument(help="The address, like https://data.example.org.")],
    *,
    scope: Annotated[
        str | None,
        typer.Option(
            help="What the token may be used for: read, write or admin, and perhaps repositories"
            " like lab/*, with spaces between. [default: write]"
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Log in at a repository service, and keep the token for later commands and programs.

    Prints a link and a code. Open the link in any browser, log in there, and approve the code.
    To manage organisations, buckets and policies takes --scope admin.

    Example: icefloe login https://data.example.org
    """
    client = client_of(url).login(scope=scope)
    show_entry(client.whoami(), f"logged in at {client.url}", as_json=as_json)


def logout(*, service: ServiceOption = None, as_json: JsonOption = False) -> None:
    """End the token of the last login, and forget it.

    Example: icefloe logout
    """
    client = client_of(service)
    client.logout()
    done(f"logged out from {client.url}", as_json=as_json)


def whoami(*, service: ServiceOption = None, as_json: JsonOption = False) -> None:
    """Show who the service takes you for, and your roles.

    Example: icefloe whoami --json
    """
    client = client_of(service)
    show_entry(client.whoami(), f"at {client.url}", as_json=as_json)
