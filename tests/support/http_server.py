"""Plain web servers for tests of read-only storage: files, redirections, and bad behaviour."""

import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import format_datetime
from http import HTTPStatus
from pathlib import Path
from typing import cast
from urllib.parse import unquote, urlsplit

from tests.support.loopback import LoopbackHandler, LoopbackServer, parse_range, serving


class FileServer(LoopbackServer):
    """Serves the files below a folder: GET and HEAD, with ranges, ETag and Last-Modified."""

    def __init__(self, root: Path) -> None:
        super().__init__(_FileHandler)
        self.root = root.resolve()
        self._requests: list[str] = []
        self._requests_lock = threading.Lock()

    @property
    def requests(self) -> list[str]:
        """What was asked for so far: method, path and range if any."""
        with self._requests_lock:
            return list(self._requests)

    def record(self, request: str) -> None:
        """Note a request."""
        with self._requests_lock:
            self._requests.append(request)

    def find(self, path: str) -> Path | None:
        """Find the file at a URL's path; never one outside the folder."""
        found = (self.root / unquote(path).lstrip("/")).resolve()
        return found if found.is_relative_to(self.root) and found.is_file() else None


class ScriptedServer(LoopbackServer):
    """Answers each request as a function says: for answers that no decent server gives."""

    def __init__(self, script: Callable[["ScriptedHandler"], None]) -> None:
        super().__init__(ScriptedHandler)
        self.script = script
        self._requests: list[str] = []
        self._requests_lock = threading.Lock()

    @property
    def requests(self) -> list[str]:
        """What was asked for so far: method, path and range if any."""
        with self._requests_lock:
            return list(self._requests)

    def record(self, request: str) -> None:
        """Note a request."""
        with self._requests_lock:
            self._requests.append(request)


class RedirectServer(LoopbackServer):
    """Answers every request with a redirection, as a service that knows where things are."""

    def __init__(self, location: str, status: HTTPStatus) -> None:
        super().__init__(_RedirectHandler)
        self.location = location
        self.status = status


@contextmanager
def file_server(root: Path) -> Iterator[FileServer]:
    """Serve a folder over HTTP."""
    with serving(FileServer(root)) as server:
        yield server


@contextmanager
def scripted_server(script: Callable[["ScriptedHandler"], None]) -> Iterator[ScriptedServer]:
    """Answer requests with a function, which may write whatever it likes."""
    with serving(ScriptedServer(script)) as server:
        yield server


@contextmanager
def redirect_server(
    location: str, *, status: HTTPStatus = HTTPStatus.FOUND
) -> Iterator[RedirectServer]:
    """Redirect all requests to one location, which need not be a web address."""
    with serving(RedirectServer(location, status)) as server:
        yield server


class _FileHandler(LoopbackHandler):
    def respond(self) -> None:
        server = cast("FileServer", self.server)
        asked_range = self.headers.get("Range")
        server.record(" ".join(filter(None, (self.command, self.path, asked_range))))
        file = server.find(urlsplit(self.path).path)
        if file is None:
            self.answer(HTTPStatus.NOT_FOUND)
            return
        content, status = file.read_bytes(), file.stat()
        modified = datetime.fromtimestamp(int(status.st_mtime), UTC)
        headers = {
            "ETag": f'"{hashlib.sha256(content).hexdigest()[:32]}"',
            "Last-Modified": format_datetime(modified, usegmt=True),
            "Accept-Ranges": "bytes",
            "Content-Type": "application/octet-stream",
        }
        match parse_range(asked_range, len(content)):
            case None:
                self.answer(HTTPStatus.OK, content, headers)
            case (0, 0):
                headers["Content-Range"] = f"bytes */{len(content)}"
                self.answer(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, b"", headers)
            case (start, stop):
                headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(content)}"
                self.answer(HTTPStatus.PARTIAL_CONTENT, content[start:stop], headers)


class ScriptedHandler(LoopbackHandler):
    """One connection to a `ScriptedServer`; what a script is given."""

    def respond(self) -> None:
        """Answer as the script does."""
        server = cast("ScriptedServer", self.server)
        asked_range = self.headers.get("Range")
        server.record(" ".join(filter(None, (self.command, self.path, asked_range))))
        server.script(self)

    def begin(self, status: int, headers: Mapping[str, str] | None = None) -> None:
        """Write the head of a response, with these headers and no others; the body is up to you."""
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()


class _RedirectHandler(LoopbackHandler):
    def respond(self) -> None:
        self.read_body()
        server = cast("RedirectServer", self.server)
        self.answer(server.status, headers={"Location": server.location})
