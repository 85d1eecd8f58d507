"""Reading by pages of other sites: only where the user asked for it, and only data."""

import re
from collections.abc import Iterable
from typing import Final

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from icefloe.errors import ErrorKind, InvalidInputError

_ORIGIN: Final = re.compile(r"https?://(?:[a-z0-9.-]+|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?")
_DATA: Final = ("/zarr/", "/api/", "/tiles/", "/plan/")


def parse_origin(text: str) -> str:
    """Return the origin of a site as browsers write it; raise an error for anything else.

    >>> parse_origin("https://Maps.example.org/")
    'https://maps.example.org'
    """
    origin = text.lower().removesuffix("/")
    if not _ORIGIN.fullmatch(origin):
        raise InvalidInputError(
            f"{text!r} is not the origin of a site: write it like https://maps.example.org or"
            " http://localhost:5173, without a path and without *",
            ErrorKind.INVALID_CONFIG,
        )
    usual_port = ":443" if origin.startswith("https:") else ":80"
    return origin.removesuffix(usual_port)


class DataForOrigins:
    """Middleware with which pages of some sites can read data, and nothing else."""

    def __init__(self, app: ASGIApp, origins: Iterable[str]) -> None:
        self._app = app
        self._shared = CORSMiddleware(
            app,
            allow_origins=[*origins],
            allow_methods=("GET", "HEAD"),
            allow_headers=("range", "if-match", "if-none-match"),
            expose_headers=("accept-ranges", "content-length", "content-range", "etag"),
            allow_private_network=True,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, with the headers for other sites if it is for data."""
        is_data = scope["type"] == "http" and scope["path"].startswith(_DATA)
        await (self._shared if is_data else self._app)(scope, receive, send)
