"""Serving pages of a repository on this machine."""

import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import uvicorn

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.web.origins import parse_origin
from icefloe.web.site import create_site
from icefloe.web.versions import Viewed

_HOST: Final = "127.0.0.1"
_BACKLOG: Final = 2048


def serve(
    viewed: Viewed,
    announce: Callable[[str], None],
    *,
    port: int = 0,
    allow_origins: Sequence[str] = (),
) -> None:
    """Serve pages of a repository until a signal stops the process.

    `announce` is called with the address when it is taken. `allow_origins` are sites whose pages
    may read data.
    """
    with listening_socket(_HOST, port) as listening:
        announce(f"http://{_HOST}:{listening.getsockname()[1]}/")
        server_of(viewed, allow_origins).run(sockets=[listening])


def server_of(viewed: Viewed, allow_origins: Sequence[str] = ()) -> uvicorn.Server:
    """Return the server of the pages of a repository, which is not running yet."""
    app = create_site(viewed, [parse_origin(origin) for origin in allow_origins])
    return uvicorn.Server(uvicorn.Config(app, log_level="warning", server_header=False))


@contextmanager
def listening_socket(host: str, port: int) -> Iterator[socket.socket]:
    """Listen on an address; raise `InvalidInputError` if that is not possible."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        problem = f"cannot listen on {host} port {port}: {error.strerror or error}"
        advice = "choose another --port, or end the program that uses it"
        raise InvalidInputError(f"{problem}; {advice}", ErrorKind.INVALID_CONFIG) from error
    with listening:
        listening.set_inheritable(True)
        # Connections inherit it. Without it, each answer on a kept connection waits 40 ms for an
        # acknowledgement, as asyncio sets it only for sockets that name their protocol.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield listening
