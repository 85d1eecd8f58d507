"""The running server: uvicorn with one or several worker processes."""

import asyncio
import ipaddress
import os
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Final

import uvicorn
from uvicorn.supervisors import Multiprocess

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.records import Record, replace
from icefloe.service.login import create_first_link
from icefloe.service.logs import LogFormat, set_up_logs
from icefloe.service.metrics import FOLDER_VARIABLE
from icefloe.service.pages.site import create_site
from icefloe.service.runtime import Service
from icefloe.service.settings import DEFAULT_URL, Settings
from icefloe.web.origins import parse_origin
from icefloe.web.server import listening_socket

if TYPE_CHECKING:
    from fastapi import FastAPI

_STOP_SECONDS: Final = 30
"""How long requests may go on after the server was told to stop."""
_START_SECONDS: Final = 60
"""How long a worker may not answer, while it imports, before another takes its place."""


class Announcement(Record):
    """The message of a starting server to its operator."""

    url: str
    first_link: str | None
    """Where the first operator sets a password; None if there is an operator."""


def serve(
    settings: Settings,
    announce: Callable[[Announcement], None],
    *,
    host: str,
    port: int,
    workers: int = 1,
    log_format: LogFormat = LogFormat.TEXT,
    is_insecure_allowed: bool = False,
) -> None:
    """Serve until a signal stops the process; requests that are running end first.

    `announce` is called when the address is taken, before the first request is answered.
    """
    origins = tuple(map(parse_origin, settings.allowed_origins))
    settings = replace(settings, allowed_origins=origins)
    is_public = not _is_loopback(host)
    if is_public and not settings.is_https and not is_insecure_allowed:
        problem = f"{host} can be reached from outside, and {settings.url} is not https"
        advice = "set `url` to the https address of a proxy before it, or pass --insecure"
        raise InvalidInputError(f"{problem}: {advice}", ErrorKind.INVALID_CONFIG)
    if workers > 1 and settings.is_sqlite:
        problem = "several workers need PostgreSQL, as only one process at a time writes to SQLite"
        advice = "set `database` to a URL like postgresql://user@host/name"
        raise InvalidInputError(f"{problem}: {advice}", ErrorKind.INVALID_CONFIG)
    with ExitStack() as stack:
        listening = stack.enter_context(listening_socket(host, port))
        if settings.url == DEFAULT_URL:
            settings = replace(settings, url=_url_of(host, listening.getsockname()[1]))
        set_up_logs(log_format)
        if workers > 1:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="icefloe-metrics-"))
            os.environ[FOLDER_VARIABLE] = folder
        service = Service(settings)
        announce(Announcement(settings.url, create_first_link(service)))
        if workers == 1:
            config = _config(settings, lambda: create_site(service))
            uvicorn.Server(config).run(sockets=[listening])
            return
        asyncio.run(service.close())
        # Each worker is a new process that makes a service of its own.
        config = _config(settings, partial(_create_worker, settings, log_format), workers)
        Multiprocess(config, sockets=[listening]).run()


def _create_worker(settings: Settings, log_format: LogFormat) -> "FastAPI":
    set_up_logs(log_format)
    return create_site(Service(settings))


def _config(
    settings: Settings, create: "Callable[[], FastAPI]", workers: int = 1
) -> uvicorn.Config:
    return uvicorn.Config(
        create,
        factory=True,
        workers=workers,
        log_config=None,
        access_log=False,  # which would write paths, and these may contain one-time links
        server_header=False,
        proxy_headers=bool(settings.trusted_proxies),
        forwarded_allow_ips=list(settings.trusted_proxies),
        timeout_graceful_shutdown=_STOP_SECONDS,
        timeout_worker_healthcheck=_START_SECONDS,
        lifespan="on",
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _url_of(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
