"""A small HTTP client that does not trust the servers it talks to.

It differs from a usual one in what it does not do: no connection to an address that its guard
does not allow, no redirection to another host, no proxy, no cookies, no decompression, no
reading of a body beyond what is asked for, and no waiting beyond a deadline, however the server
spreads its bytes over time. It makes one attempt at everything, except that a connection which
the server had closed while it was idle is replaced.
"""

import http.client
import io
import math
import os
import socket
import ssl
import time
import weakref
from collections.abc import Buffer, Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from threading import Lock
from typing import Final, cast
from urllib.parse import urljoin, urlsplit

from icefloe.errors import ErrorKind, StorageError
from icefloe.forks import renew_lock_in_children
from icefloe.records import Record
from icefloe.storage.addresses import AddressGuard, plain_host
from icefloe.storage.specs import check_web_url

MOST_REDIRECTIONS: Final = 5
REDIRECTIONS: Final = frozenset({301, 302, 303, 307, 308})
_PORTS: Final = {"http": 80, "https": 443}
_MOST_IDLE: Final = 32
_IDLE_SECONDS: Final = 30.0
_BUFFER_BYTES: Final = 1 << 16
_ALLOCATED_AT_ONCE: Final = 1 << 26
"""A server may promise more than it has: room for larger bodies is made as they arrive."""


class Origin(Record):
    """A server, as browsers tell servers apart."""

    scheme: str
    host: str
    port: int

    @classmethod
    def of(cls, url: str) -> "Origin":
        """Find the server of a URL that was checked."""
        parts = urlsplit(url)
        port = parts.port or _PORTS[parts.scheme]
        host = plain_host(parts.hostname or "")
        return cls(parts.scheme, host if host.isascii() else host.encode("idna").decode(), port)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    def leads_to(self, other: "Origin") -> bool:
        """Return whether a redirection may go from here to there: the same, or encrypted now."""
        is_upgrade = (self.scheme, other.scheme) == ("http", "https")
        ports = {(self.port, self.port), (_PORTS["http"], _PORTS["https"])}
        return self == other or (
            is_upgrade and self.host == other.host and (self.port, other.port) in ports
        )


class WebTimeouts(Record):
    """Timeouts of web requests."""

    connect_seconds: float
    stall_seconds: float
    """For the next bytes."""
    whole_seconds: Callable[[int], float]
    """For a whole request, by the number of bytes asked for."""


class Answer:
    """The head of a response, and as much of its body as is asked for."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self._response = response
        self.status = response.status

    def header(self, name: str) -> str | None:
        """Return the value of a header; None if there is none, or several that differ."""
        values = set(self._response.headers.get_all(name, ()))
        return values.pop().strip() if len(values) == 1 else None

    def read(self, length: int) -> memoryview:
        """Read this many bytes of the body."""
        data = bytearray(min(length, _ALLOCATED_AT_ONCE))
        have = 0
        while have < length:
            if have == len(data):
                data.extend(bytes(min(have, length - have)))
            with memoryview(data) as view:
                have += self._read_into(view[have:])
        return memoryview(data).toreadonly()

    def skip(self, length: int) -> None:
        """Read bytes of the body and forget them."""
        scratch = memoryview(bytearray(min(length, _BUFFER_BYTES)))
        while length > 0:
            length -= self._read_into(scratch[:length])

    def _read_into(self, view: memoryview) -> int:
        if count := self._response.readinto(view):
            return count
        raise http.client.IncompleteRead(b"")

    def finish(self) -> bool:
        """Return whether the connection can be used again, as nothing more follows on it."""
        response = self._response
        if response.will_close or not (response.isclosed() or response.length == 0):
            return False
        response.close()
        return True


class WebClient:
    """Sends requests to one server; for many threads at once."""

    def __init__(
        self, origin: Origin, guard: AddressGuard, timeouts: WebTimeouts, headers: Mapping[str, str]
    ) -> None:
        self._origin = origin
        self._guard = guard
        self._timeouts = timeouts
        self._headers = {**headers, "Accept-Encoding": "identity"}
        self._idle = _IdleConnections()

    @contextmanager
    def ask(
        self, method: str, target: str, headers: Mapping[str, str], length: int
    ) -> Iterator[Answer]:
        """Send a request and allow reading at most `length` bytes of the body.

        Raises `StorageError` for redirections that are not followed. What else fails, here or
        while the answer is read, is an `OSError` or `http.client.HTTPException`.
        """
        deadline = time.monotonic() + self._timeouts.whole_seconds(length)
        origin = self._origin
        for _ in range(MOST_REDIRECTIONS + 1):
            with self._answer(origin, method, target, headers, deadline) as answer:
                if answer.status not in REDIRECTIONS:
                    yield answer
                    return
                origin, target = _follow(origin, target, answer.header("Location"))
        raise _bad_redirect(origin, f"sends on and on, more than {MOST_REDIRECTIONS} times")

    def ask_for_location(self, target: str) -> tuple[int, str | None]:
        """Return the status of an answer and where it redirects to, which is not followed."""
        deadline = time.monotonic() + self._timeouts.whole_seconds(0)
        with self._answer(self._origin, "GET", target, {}, deadline) as answer:
            return answer.status, answer.header("Location")

    @contextmanager
    def _answer(
        self, origin: Origin, method: str, target: str, headers: Mapping[str, str], deadline: float
    ) -> Iterator[Answer]:
        connection, answer = self._exchange(origin, method, target, headers, deadline)
        is_kept = False
        try:
            yield answer
            is_kept = answer.finish() and self._idle.put(origin, connection)
        finally:
            if not is_kept:
                connection.close()

    def _exchange(
        self, origin: Origin, method: str, target: str, headers: Mapping[str, str], deadline: float
    ) -> "tuple[_Connection, Answer]":
        sent = {"Host": str(origin), **self._headers, **headers}
        while (connection := self._idle.take(origin)) is not None:
            try:
                return connection, connection.exchange(method, target, sent, deadline)
            except (ConnectionError, http.client.BadStatusLine):
                connection.close()  # it was closed while it was idle, as servers may do
            except BaseException:
                connection.close()
                raise
        connection = self._connect(origin, deadline)
        try:
            return connection, connection.exchange(method, target, sent, deadline)
        except BaseException:
            connection.close()
            raise

    def _connect(self, origin: Origin, deadline: float) -> "_Connection":
        seconds = min(self._timeouts.connect_seconds, deadline - time.monotonic())
        opened = self._guard.connect(origin.host, origin.port, max(seconds, 0.001))
        try:
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if origin.scheme == "https":
                opened = _tls().wrap_socket(opened, server_hostname=origin.host)
        except BaseException:
            opened.close()
            raise
        return _Connection(opened, self._timeouts.stall_seconds)


def _follow(origin: Origin, target: str, location: str | None) -> tuple[Origin, str]:
    """Find out where a redirection leads; to another server is nowhere."""
    base = f"{origin.scheme}://{origin}{target}"
    try:
        url = urljoin(base, location or "")
        check_web_url(url, allow_http=True)
        parts = urlsplit(url)
        destination = Origin.of(url)
    except (ValueError, StorageError):
        raise _bad_redirect(origin, "sends to a malformed address") from None
    path = f"{parts.path or '/'}{'?' if parts.query else ''}{parts.query}"
    if (
        not location
        or "@" in parts.netloc
        or not all("!" <= character <= "~" for character in path)
    ):
        raise _bad_redirect(origin, "sends to a malformed address")
    if not origin.leads_to(destination):
        raise _bad_redirect(
            origin,
            f"sends to {destination.scheme}://{destination}, another server than the one that you"
            " authorised;"
            " record the chunks at that address and authorise it instead",
        )
    return destination, path


def _bad_redirect(origin: Origin, reason: str) -> StorageError:
    return StorageError(
        f"a redirection is not followed: {origin.scheme}://{origin} {reason}",
        ErrorKind.BAD_REDIRECT,
    )


@cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()


class _TimedSocket:
    """The part of a socket that `http.client` needs, with a deadline and a longest stall."""

    def __init__(self, opened: socket.socket, stall_seconds: float) -> None:
        self._opened = opened
        self._stall_seconds = stall_seconds
        self.deadline = math.inf

    def sendall(self, data: Buffer) -> None:
        self._limit()
        self._opened.sendall(data)

    def makefile(self, _mode: str) -> io.BufferedReader:
        # One per response: what it read ahead of a response's end is dropped with it.
        return io.BufferedReader(_Incoming(self), _BUFFER_BYTES)

    def receive(self, view: Buffer) -> int:
        self._limit()
        return self._opened.recv_into(view)

    def close(self) -> None:
        """Leave that to the owner of the connection: a response may still be read."""

    def _limit(self) -> None:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the server takes too long")
        self._opened.settimeout(min(left, self._stall_seconds))


class _Incoming(io.RawIOBase):
    def __init__(self, source: _TimedSocket) -> None:
        super().__init__()
        self._source = source

    def readable(self) -> bool:
        return True

    def readinto(self, view: Buffer) -> int:
        return self._source.receive(view)


class _Connection:
    """An open connection, used for one request at a time."""

    def __init__(self, opened: socket.socket, stall_seconds: float) -> None:
        self._opened = opened
        self._timed = _TimedSocket(opened, stall_seconds)
        self._protocol = http.client.HTTPConnection("-")
        self._protocol.auto_open = 0  # only the guard opens connections
        self._protocol.sock = cast("socket.socket", self._timed)
        self.idle_since = 0.0

    def exchange(
        self, method: str, target: str, headers: Mapping[str, str], deadline: float
    ) -> Answer:
        """Send a request and read the head of its response."""
        self._timed.deadline = deadline
        protocol = self._protocol
        protocol.putrequest(method, target, skip_host=True, skip_accept_encoding=True)
        for name, value in headers.items():
            protocol.putheader(name, value)
        protocol.endheaders()
        return Answer(protocol.getresponse())

    def close(self) -> None:
        self._opened.close()


class _IdleConnections:
    """Connections that wait for the next request; those of a parent process are not used."""

    def __init__(self) -> None:
        self._lock = Lock()
        renew_lock_in_children(self)
        self._process = os.getpid()
        self._waiting: list[tuple[Origin, _Connection]] = []
        weakref.finalize(self, _close_all, self._waiting)

    def take(self, origin: Origin) -> _Connection | None:
        """Return the one that waited least; close those that waited too long."""
        connection = None
        with self._lock:
            oldest = time.monotonic() - _IDLE_SECONDS
            if self._process != os.getpid():
                self._process, oldest = os.getpid(), math.inf
            stale = [pair for pair in self._waiting if pair[1].idle_since < oldest]
            fresh = [pair for pair in self._waiting if pair[1].idle_since >= oldest]
            for position in reversed(range(len(fresh))):
                if fresh[position][0] == origin:
                    connection = fresh.pop(position)[1]
                    break
            self._waiting[:] = fresh
        _close_all(stale)
        return connection

    def put(self, origin: Origin, connection: _Connection) -> bool:
        """Keep one for later, unless there are enough; tell whether it was kept."""
        with self._lock:
            has_room = len(self._waiting) < _MOST_IDLE and self._process == os.getpid()
            if has_room:
                connection.idle_since = time.monotonic()
                self._waiting.append((origin, connection))
            return has_room


def _close_all(connections: list[tuple[Origin, _Connection]]) -> None:
    for _, connection in connections:
        connection.close()
