"""An HTTP proxy that breaks things on request, between a client and a real server.

    with cutting_proxy(server_url) as proxy:
        proxy.plan(LoseResponse(method="PUT", path="/repo"))

Requests pass unchanged, `Host` included, so a signature that a client made for the proxy's
address stays valid at a server that takes any host name. Each plan strikes the requests that it
matches a given number of times, after letting some pass; plans are tried in their order.
"""

import http.client
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import cast
from urllib.parse import urlsplit

from tests.support.loopback import LoopbackHandler, LoopbackServer, serving

_HOP_BY_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length"})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Match:
    """Which requests to strike."""

    method: str | None = None
    """None matches every method."""
    path: str = ""
    """A part of the request's path and query."""
    skip: int = 0
    """How many matching requests to let pass first."""
    times: int | None = 1
    """How many to strike then; None for all."""

    def matches(self, method: str, path: str) -> bool:
        """Tell whether a request is meant."""
        return self.method in (None, method) and self.path in path


@dataclass(frozen=True, slots=True, kw_only=True)
class LoseRequest(_Match):
    """Hang up without forwarding: the server never sees the request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoseResponse(_Match):
    """Forward, let the server do its work, then hang up instead of answering."""

    meanwhile: Callable[[], None] | None = None
    """Called between the server's work and the hanging up: what others do in that moment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CutBody(_Match):
    """Forward, then break off the answer after some bytes of its body."""

    after_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerInstead(_Match):
    """Answer with an error status."""

    status: HTTPStatus
    after_forwarding: bool = False
    """Whether the server does the work first, and the client is told that it failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delay(_Match):
    """Wait before forwarding."""

    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ActFirst(_Match):
    """Let something else happen before forwarding: a race that always ends the same way."""

    act: Callable[[], None]


type ProxyFault = LoseRequest | LoseResponse | CutBody | AnswerInstead | Delay | ActFirst


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request that came to the proxy and what became of it."""

    method: str
    path: str
    forwarded: bool
    status: int | None
    """What the client was told; None if it was told nothing."""
    bytes_out: int = 0
    """Size of the body that the client sent."""
    bytes_in: int = 0
    """Size of the body that it was to get."""
    agent: str = ""
    """What the client calls itself."""


@dataclass(slots=True)
class _Plan:
    fault: ProxyFault
    seen: int = 0

    def strikes(self, method: str, path: str) -> bool:
        if not self.fault.matches(method, path):
            return False
        self.seen += 1
        turn = self.seen - self.fault.skip
        return turn >= 1 and (self.fault.times is None or turn <= self.fault.times)


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    body: bytes
    headers: list[tuple[str, str]] = field(default_factory=list)
    length: str | None = None
    """As the server stated it, which for HEAD is not the length of the body."""


class CuttingProxy(LoopbackServer):
    """Forwards to one server, and strikes as planned."""

    def __init__(self, upstream: str) -> None:
        super().__init__(_ProxyHandler)
        self.upstream = urlsplit(upstream).netloc
        self._plans: list[_Plan] = []
        self._exchanges: list[Exchange] = []
        self._state = threading.Lock()

    @property
    def exchanges(self) -> list[Exchange]:
        """All requests so far, in the order in which they ended."""
        with self._state:
            return list(self._exchanges)

    def plan(self, *faults: ProxyFault) -> None:
        """Plan faults, in place of all earlier plans, and forget the exchanges so far."""
        with self._state:
            self._plans = [_Plan(fault) for fault in faults]
            self._exchanges = []

    def fault_for(self, method: str, path: str) -> ProxyFault | None:
        """Take the fault that strikes a request, if any."""
        with self._state:
            return next((plan.fault for plan in self._plans if plan.strikes(method, path)), None)

    def record(self, exchange: Exchange) -> None:
        """Note what became of a request."""
        with self._state:
            self._exchanges.append(exchange)


@contextmanager
def cutting_proxy(upstream: str) -> Iterator[CuttingProxy]:
    """Run a proxy before the server at a URL, which has no path."""
    with serving(CuttingProxy(upstream)) as proxy:
        yield proxy


class _ProxyHandler(LoopbackHandler):
    @property
    def proxy(self) -> CuttingProxy:
        return cast("CuttingProxy", self.server)

    def respond(self) -> None:
        body = self.read_body()
        match self.proxy.fault_for(self.command, self.path):
            case None:
                self._relay(self._forward(body))
            case LoseRequest():
                self._hang_up(forwarded=False)
            case LoseResponse(meanwhile=meanwhile):
                self._forward(body)
                if meanwhile is not None:
                    meanwhile()
                self._hang_up(forwarded=True)
            case CutBody(after_bytes=kept):
                self._relay(self._forward(body), kept)
            case AnswerInstead(status=status, after_forwarding=after):
                if after:
                    self._forward(body)
                self._record(forwarded=after, status=status)
                self.answer(status)
            case Delay(seconds=seconds):
                time.sleep(seconds)
                self._relay(self._forward(body))
            case ActFirst(act=act):
                act()
                self._relay(self._forward(body))

    def _forward(self, body: bytes) -> _Answer:
        connection = http.client.HTTPConnection(self.proxy.upstream, timeout=60)
        try:
            connection.putrequest(
                self.command, self.path, skip_host=True, skip_accept_encoding=True
            )
            for name, value in self.headers.items():
                if name.lower() not in _HOP_BY_HOP:
                    connection.putheader(name, value)
            if body or "Content-Length" in self.headers:
                connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body or None)
            response = connection.getresponse()
            content = response.read()
            return _Answer(
                response.status,
                content,
                response.getheaders(),
                response.getheader("Content-Length"),
            )
        finally:
            connection.close()

    def _relay(self, answer: _Answer, kept_bytes: int | None = None) -> None:
        self.send_response_only(answer.status)
        for name, value in answer.headers:
            if name.lower() not in _HOP_BY_HOP:
                self.send_header(name, value)
        length = answer.length if self.command == "HEAD" else None
        self.send_header("Content-Length", length or str(len(answer.body)))
        self.end_headers()
        size = 0 if self.command == "HEAD" else len(answer.body)
        self._record(forwarded=True, status=answer.status, bytes_in=size)
        if self.command != "HEAD":
            self.wfile.write(answer.body[:kept_bytes])
        if kept_bytes is not None:
            self.close_connection = True

    def _hang_up(self, *, forwarded: bool) -> None:
        self._record(forwarded=forwarded, status=None)
        self.close_connection = True

    def _record(self, *, forwarded: bool, status: int | None, bytes_in: int = 0) -> None:
        bytes_out = int(self.headers.get("Content-Length") or 0)
        agent = self.headers.get("User-Agent") or ""
        self.proxy.record(
            Exchange(self.command, self.path, forwarded, status, bytes_out, bytes_in, agent)
        )
