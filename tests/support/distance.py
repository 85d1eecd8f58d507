"""A proxy that makes a server look far away: `python -m tests.support.distance HOST PORT SECONDS`.

A request waits before it goes on, once for all of its bytes. Answers are not delayed: the time of a
request is the delay and what the server takes. The kernel moves the bytes of answers, by `splice`
of Linux, so that the proxy takes little of the processor from those who are measured.
"""

import fcntl
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from urllib.parse import urlsplit

_PIECE_BYTES: Final = 1 << 20


class _Connection:
    """A connection of a client, and the one to the server; clients wait for each answer."""

    def __init__(
        self, client: socket.socket, address: tuple[str, int], delay_seconds: float
    ) -> None:
        self._client, self._address = client, address
        self._delay_seconds = delay_seconds

    def run(self) -> None:
        """Forward both directions until one side hangs up."""
        with self._client, socket.create_connection(self._address) as server:
            for end in (self._client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            reading, writing = os.pipe()
            try:
                fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, _PIECE_BYTES)
                self._forward(server, reading, writing)
            except OSError:  # who hangs up early
                return
            finally:
                os.close(reading)
                os.close(writing)

    def _forward(self, server: socket.socket, reading: int, writing: int) -> None:
        client = self._client
        ends = select.poll()
        ends.register(client, select.POLLIN)
        ends.register(server, select.POLLIN)
        is_new_request = True
        while True:
            for ready, _ in ends.poll():
                if ready == client.fileno():
                    if not (data := client.recv(_PIECE_BYTES)):
                        return
                    if is_new_request:
                        time.sleep(self._delay_seconds)
                        is_new_request = False
                    server.sendall(data)
                    continue
                if not (size_bytes := os.splice(ready, writing, _PIECE_BYTES)):
                    return
                is_new_request = True
                while size_bytes:
                    size_bytes -= os.splice(reading, client.fileno(), size_bytes)


def _serve(host: str, port: int, delay_seconds: float) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        sys.stdout.write(f"{listener.getsockname()[1]}\n")
        sys.stdout.flush()
        while True:
            client, _ = listener.accept()
            connection = _Connection(client, (host, port), delay_seconds)
            threading.Thread(target=connection.run, daemon=True).start()


@contextmanager
def far_away(url: str, delay_seconds: float) -> Iterator[str]:
    """Yield a URL on which each request to a server takes this much longer."""
    parts = urlsplit(url)
    command = [sys.executable, "-m", __name__, str(parts.hostname), str(parts.port)]
    process = subprocess.Popen(
        [*command, str(delay_seconds)], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


if __name__ == "__main__":
    _serve(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
