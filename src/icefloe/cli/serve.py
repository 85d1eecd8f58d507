"""`icefloe serve`: run the repository service."""

from pathlib import Path
from typing import Annotated

import typer

from icefloe.cli.common import echo

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        help="The TOML file with the settings. Variables like ICEFLOE_SERVICE_DATABASE go first.",
        envvar="ICEFLOE_SERVICE_CONFIG",
    ),
]


def serve(
    *,
    config: ConfigOption = None,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(help="The port to listen on; 0 for any.", min=0, max=65535)
    ] = 8321,
    workers: Annotated[
        int, typer.Option(help="How many processes serve; several need PostgreSQL.", min=1, max=64)
    ] = 1,
    log_format: Annotated[str, typer.Option(help="text or json.")] = "text",
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Listen to other machines without https.")
    ] = False,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL",
            help="A site, like https://maps.example.org, whose pages may read data with a token.",
        ),
    ] = None,
    demo: Annotated[
        bool,
        typer.Option(
            "--demo",
            help="Serve examples on this machine until you stop: organisations, people, an object"
            " store with data, and a list of commands to try.",
        ),
    ] = False,
) -> None:
    """Run the repository service: names instead of places, credentials that end soon.

    Without settings, everything is in the folder `icefloe-service`: a SQLite database and the
    master key. The first start prints a link that works once, for the first operator.

    Example: icefloe serve --config /etc/icefloe.toml --log-format json
    """
    from icefloe.errors import ErrorKind, InvalidInputError
    from icefloe.records import replace
    from icefloe.service.logs import LogFormat
    from icefloe.service.operation.server import Announcement
    from icefloe.service.operation.server import serve as run
    from icefloe.service.settings import load_settings

    if log_format not in set(LogFormat):
        problem = f"--log-format is text or json, not {log_format!r}"
        raise InvalidInputError(problem, ErrorKind.INVALID_CONFIG)

    if demo:
        from icefloe.service.operation.demo import run_demo

        if config is not None or workers > 1 or insecure or allow_origin:
            others = "--config, --workers, --insecure and --allow-origin"
            problem = f"--demo has settings of its own: leave out {others}"
            raise InvalidInputError(problem, ErrorKind.INVALID_CONFIG)
        run_demo(echo, port=port, log_format=LogFormat(log_format))
        return

    def announce(announcement: Announcement) -> None:
        echo(f"Icefloe serves {announcement.url}")
        if announcement.first_link is not None:
            echo("Create the first operator's account with this link. It works once, for 3 days:")
            echo(f"  {announcement.first_link}")

    settings = load_settings(config)
    origins = (*settings.allowed_origins, *(allow_origin or ()))
    run(
        replace(settings, allowed_origins=origins),
        announce,
        host=host,
        port=port,
        workers=workers,
        log_format=LogFormat(log_format),
        is_insecure_allowed=insecure,
    )
