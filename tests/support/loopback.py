"""The ground the small HTTP servers of the kit stand on.

They run on threads of the calling process, listen on the loopback interface only, and close all
of their connections when their block ends.
"""

import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.support.processes import LOOPBACK


class LoopbackServer(ThreadingHTTPServer):
    """A threaded HTTP server that can hang up on everybody."""

    request_queue_size = 128

    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__((LOOPBACK, 0), handler)
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        """Where clients find it."""
        return f"http://{LOOPBACK}:{self.server_port}"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Remember the connection, then serve it on a thread."""
        with self._lock:
            self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Forget the connection and close it."""
        with self._lock:
            self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Take no notice of clients that hang up; show everything else."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    def hang_up(self) -> None:
        """End all connections, so that no thread waits for a silent client."""
        with self._lock:
            connections = list(self._open)
        for connection in connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class LoopbackHandler(BaseHTTPRequestHandler):
    """Reads whole requests and writes whole answers, over connections that are kept."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1  # one packet for head and body
    disable_nagle_algorithm = True

    def respond(self) -> None:
        """Answer the request, whatever its method; for a subclass to define."""
        self.answer(HTTPStatus.METHOD_NOT_ALLOWED)

    def do_GET(self) -> None:
        """Answer as `respond` does."""
        self.respond()

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - inherited
        """Say nothing: tests read what a server recorded, not its chatter."""

    def read_body(self) -> bytes:
        """Read the body of the request, however it is framed."""
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            return b"".join(self._read_chunks())
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _read_chunks(self) -> Iterator[bytes]:
        while size := int(self.rfile.readline().split(b";")[0], 16):
            yield self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass  # trailers

    def answer(
        self, status: int, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> None:
        """Write a whole response; a HEAD request gets its head only."""
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@contextmanager
def serving[S: LoopbackServer](server: S) -> Iterator[S]:
    """Serve on a thread until the block ends."""
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
    )
    thread.start()
    try:
        yield server
    finally:
        if not sys.is_finalizing():  # then the serving thread is frozen and never answers
            server.shutdown()
            thread.join()
        server.hang_up()
        server.server_close()


def parse_range(header: str | None, size: int) -> tuple[int, int] | None:
    """Turn a `Range` header into first byte and first byte after, within an object.

    None for no range or one that is not of bytes; an empty pair for one that lies outside.
    """
    if header is None or not header.startswith("bytes=") or "," in header:
        return None
    first, _, last = header.removeprefix("bytes=").partition("-")
    if not first:
        return (max(0, size - int(last)), size) if int(last) and size else (0, 0)
    start = int(first)
    stop = min(size, int(last) + 1) if last else size
    return (start, stop) if start < stop else (0, 0)
