"""`icefloe view`: look at a repository in a browser."""

from pathlib import PurePosixPath
from threading import Thread
from typing import Annotated

import typer

from icefloe.cli.common import (
    AnonymousOption,
    AuthorizeAnonymousOption,
    AuthorizeOption,
    RepositoryArgument,
    authorised,
    echo,
    lasting_url,
    open_repository,
)
from icefloe.printable import printable


def view(
    url: RepositoryArgument,
    *,
    port: Annotated[
        int, typer.Option(help="The port to listen on; 0 for any.", min=0, max=65535)
    ] = 0,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")
    ] = True,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL", help="A site, like https://maps.example.org, whose pages may read data."
        ),
    ] = None,
    authorize: AuthorizeOption = None,
    authorize_anonymous: AuthorizeAnonymousOption = None,
    anonymous: AnonymousOption = False,
) -> None:
    """Look at a repository in a browser: its tree, pictures of its data, its history.

    The page is only for this machine, and changes nothing. Stop it with Ctrl-C. The same address
    also serves all versions as Zarr over HTTP.

    Example: icefloe view ./cube
    """
    import webbrowser

    from icefloe.web.origins import parse_origin
    from icefloe.web.server import serve
    from icefloe.web.versions import Viewed

    origins = [parse_origin(origin) for origin in allow_origin or []]
    access = authorised(authorize or [], authorize_anonymous or [])
    repository = open_repository(url, anonymous=anonymous, authorisations=access)
    name = printable(PurePosixPath(url.rstrip("/")).name) or "repository"

    def announce(address: str) -> None:
        echo(f"{url} is shown at {address} until you press Ctrl-C")
        if browser:
            # A browser in the terminal stays there, and waits for the server, which starts later.
            Thread(target=webbrowser.open, args=(address,), daemon=True).start()

    lasting = lasting_url(url, anonymous=anonymous)
    serve(Viewed(repository, name, lasting), announce, port=port, allow_origins=origins)
