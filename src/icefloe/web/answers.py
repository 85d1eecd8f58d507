"""Answers on their way to a browser: compressed, and not sent again if it has them."""

import gzip
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from importlib.resources import files
from mimetypes import guess_type
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from icefloe.records import Record

_SMALLEST: Final = 1024
"""Fewer bytes are not compressed."""
_LEVEL: Final = 6
_BEST_LEVEL: Final = 9


def accepts_gzip(request: Request) -> bool:
    """Return whether a client reads answers that are compressed with gzip."""
    for part in request.headers.get("accept-encoding", "").split(","):
        name, _, weight = part.replace(" ", "").partition(";q=")
        if name.lower() in ("gzip", "*"):
            return weight.strip("0.") != "" or weight == ""
    return False


def has_tag(request: Request, tag: str) -> bool:
    """Return whether a client has the answer with a tag already."""
    tags = request.headers.get("if-none-match", "")
    return tag in [part.strip().removeprefix("W/") for part in tags.split(",")]


def compressed(
    request: Request,
    content: bytes,
    headers: Mapping[str, str],
    *,
    media_type: str,
    status: int = 200,
) -> Response:
    """Return an answer, compressed if the client reads that.

    Never for a page with a secret in it: its length would tell of the secret to a site that chooses
    a part of the page.
    """
    headers = {**headers, "vary": "accept-encoding"}
    if len(content) >= _SMALLEST and accepts_gzip(request):
        content = gzip.compress(content, _LEVEL, mtime=0)
        headers["content-encoding"] = "gzip"
    return Response(content, status, headers, media_type=media_type)


class _StaticFile(Record, eq=False):
    content: bytes
    compressed: bytes
    tag: str
    media_type: str


class StaticFiles:
    """Style sheets and scripts, as an application for a route.

    Browsers keep them, and ask before they use them again. The files are read and compressed once.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        request = Request(scope)
        path = scope["path"].removeprefix(scope.get("root_path", "")).lstrip("/")
        await self._answer(request, _static_files().get(path))(scope, receive, send)

    def _answer(self, request: Request, file: _StaticFile | None) -> Response:
        if request.method not in ("GET", "HEAD"):
            return PlainTextResponse("this file can only be read", 405, {"allow": "GET, HEAD"})
        if file is None:
            return PlainTextResponse("there is no such file", 404)
        is_compressed = accepts_gzip(request)
        headers = {
            "cache-control": "no-cache",
            "etag": f'"{file.tag}-gzip"' if is_compressed else f'"{file.tag}"',
            "vary": "accept-encoding",
            "x-content-type-options": "nosniff",
        }
        if has_tag(request, headers["etag"]):
            return Response(status_code=304, headers=headers)
        if is_compressed:
            headers["content-encoding"] = "gzip"
        content = file.compressed if is_compressed else file.content
        return Response(content, headers=headers, media_type=file.media_type)


@cache
def _static_files() -> dict[str, _StaticFile]:
    """Return the files of our pages by their paths."""
    root = Path(str(files("icefloe.web") / "static"))
    by_name = {}
    for path in root.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            media_type = guess_type(path.name)[0] or "application/octet-stream"
            by_name[path.relative_to(root).as_posix()] = _StaticFile(
                content,
                gzip.compress(content, _BEST_LEVEL, mtime=0),
                sha256(content).hexdigest()[:16],
                media_type,
            )
    return by_name
