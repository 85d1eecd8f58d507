"""The addresses of real clouds, answered by servers on this machine.

Clients reach it as their HTTPS proxy. It takes every connection for itself, with a certificate
that only this test run trusts, and hands requests on to the server that stands for their host.
Requests are not changed, so signatures hold, and nothing leaves the machine.
"""

import http.client
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

import pytest

from tests.support.loopback import LoopbackHandler, LoopbackServer, serving

_HOP_BY_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length"})


@dataclass(frozen=True, slots=True)
class Seen:
    """A request, as the server of a cloud would have seen it."""

    method: str
    host: str
    path: str
    authorization: str | None = field(repr=False)

    @property
    def scope(self) -> tuple[str, str]:
        """The key id and the region that an S3 request is signed for."""
        credential = (self.authorization or "").partition("Credential=")[2].partition(",")[0]
        key_id, _, region, *_ = credential.split("/")
        return key_id, region


class Impostor(LoopbackServer):
    """Stands for the hosts below some domains, each with its own server behind it."""

    def __init__(self, upstreams: Mapping[str, str], certificate: Path, key: Path) -> None:
        super().__init__(_Handler)
        self.upstreams = dict(upstreams)
        self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.tls.load_cert_chain(certificate, key)
        self._seen: list[Seen] = []
        self._strangers: list[str] = []
        self._talks: list[ssl.SSLSocket] = []
        self._state = threading.Lock()

    @property
    def seen(self) -> list[Seen]:
        """All requests so far."""
        with self._state:
            return list(self._seen)

    @property
    def strangers(self) -> list[str]:
        """Hosts that were asked for and that it does not stand for."""
        with self._state:
            return list(self._strangers)

    def record(self, seen: Seen) -> None:
        with self._state:
            self._seen.append(seen)

    def talk(self, connection: socket.socket) -> ssl.SSLSocket:
        """Take the place of the host at the other end of a connection."""
        encrypted = self.tls.wrap_socket(connection, server_side=True)
        with self._state:
            self._talks.append(encrypted)
        return encrypted

    def hang_up(self) -> None:
        super().hang_up()
        with self._state:
            talks = list(self._talks)
        for talk in talks:
            with suppress(OSError):
                talk.shutdown(socket.SHUT_RDWR)
            talk.close()

    def upstream_of(self, host: str) -> str | None:
        """Find the server behind a host."""
        for domain, upstream in self.upstreams.items():
            if host == domain or host.endswith(f".{domain}"):
                return urlsplit(upstream).netloc
        with self._state:
            self._strangers.append(host)
        return None


class _Handler(LoopbackHandler):
    host = ""

    def do_CONNECT(self) -> None:  # noqa: N802 - so it has to be called
        """Pretend to be the host that the client wants to talk to."""
        proxy = cast("Impostor", self.server)
        self.host = self.path.partition(":")[0]
        if proxy.upstream_of(self.host) is None:
            self.answer(502)
            self.close_connection = True
            return
        self.send_response_only(200)
        self.end_headers()
        self.wfile.flush()
        self.connection = proxy.talk(self.connection)
        self.rfile = self.connection.makefile("rb")
        self.wfile = self.connection.makefile("wb")
        self.close_connection = False

    def respond(self) -> None:
        proxy = cast("Impostor", self.server)
        body = self.read_body()
        authorization = self.headers.get("Authorization")
        proxy.record(Seen(self.command, self.host, self.path, authorization))
        upstream = proxy.upstream_of(self.host)
        assert upstream is not None
        connection = http.client.HTTPConnection(upstream, timeout=60)
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
            self._relay(connection.getresponse())
        finally:
            connection.close()

    def _relay(self, response: http.client.HTTPResponse) -> None:
        content = response.read()
        self.send_response_only(response.status)
        for name, value in response.getheaders():
            if name.lower() not in _HOP_BY_HOP:
                self.send_header(name, value)
        length = response.getheader("Content-Length") if self.command == "HEAD" else None
        self.send_header("Content-Length", length or str(len(content)))
        self.end_headers()
        self.wfile.write(content)
        self.wfile.flush()


def make_certificate(folder: Path, domains: list[str]) -> tuple[Path, Path]:
    """Make a certificate for hosts below some domains, and its key."""
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    names = ",".join(f"DNS:{name}" for domain in domains for name in (domain, f"*.{domain}"))
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-days", "2", "-subj", "/CN=tests", "-addext", f"subjectAltName={names}"]
    command += ["-addext", "basicConstraints=critical,CA:FALSE"]  # else it may not be a server's
    command += ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    return certificate, key


@contextmanager
def impersonating(upstreams: Mapping[str, str], folder: Path) -> Iterator[Impostor]:
    """Take the place of clouds, by domain, for clients that are made in this block."""
    certificate, key = make_certificate(folder, list(upstreams))
    with (
        serving(Impostor(upstreams, certificate, key)) as server,
        pytest.MonkeyPatch.context() as p,
    ):
        for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
            p.delenv(name, raising=False)
            p.delenv(name.upper(), raising=False)
        p.setenv("HTTPS_PROXY", server.url)
        p.setenv("SSL_CERT_FILE", str(certificate))
        yield server
