"""Reading by pages of other sites: only where the user asked for it, and only data."""

import re
from collections.abc import Iterable
from typing import Final

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from icefloe.errors import ErrorKind, InvalidInputError

_ORIGIN: Final = re.compile(r"https?://(?:[a-z0-9.-]+|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?")
_DATA: Final = re.compile("/(?:zarr|api|tiles|plan)/")


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
    """Middleware with which pages of some sites can read data, and nothing else.

    `is_data` matches the paths of data, and `headers` are names that requests may have beside those
    of ranges and versions. Cookies that come along are not read: a page of another site acts for
    nobody who is logged in here.
    """

    def __init__(
        self,
        app: ASGIApp,
        origins: Iterable[str],
        is_data: re.Pattern[str] = _DATA,
        headers: Iterable[str] = (),
    ) -> None:
        self._app = app
        self._is_data = is_data
        self._shared = CORSMiddleware(
            app,
            allow_origins=[*origins],
            allow_methods=("GET", "HEAD"),
            allow_headers=("range", "if-match", "if-none-match", *headers),
            expose_headers=(
                *("accept-ranges", "content-length", "content-range", "etag"),
                *("retry-after", "x-request-id"),
            ),
            allow_private_network=True,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, with the headers for other sites if it is for data."""
        if scope["type"] != "http" or not self._is_data.match(scope["path"]):
            await self._app(scope, receive, send)
            return
        if any(name == b"origin" for name, _ in scope["headers"]):
            headers = [(name, value) for name, value in scope["headers"] if name != b"cookie"]
            scope = {**scope, "headers": headers}
        await self._shared(scope, receive, send)
