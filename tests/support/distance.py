"""A proxy that makes a server look far away: `python -m tests.support.distance HOST PORT MS`.

Bytes of a client wait before they go on, so that each request of a connection takes the delay once.
Answers are not delayed: the time of a request is the delay and what the server takes.
"""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast
from urllib.parse import urlsplit


class _Upstream(asyncio.Protocol):
    """The connection to the server."""

    def __init__(self, client: asyncio.Transport) -> None:
        self._client = client

    def data_received(self, data: bytes) -> None:
        self._client.write(data)

    def connection_lost(self, _error: Exception | None) -> None:
        self._client.close()


class _Downstream(asyncio.Protocol):
    """The connection of a client."""

    def __init__(self, host: str, port: int, delay_seconds: float) -> None:
        self._address = (host, port)
        self._delay_seconds = delay_seconds
        self._server: asyncio.Task[asyncio.Transport] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        client = cast("asyncio.Transport", transport)
        self._server = asyncio.get_running_loop().create_task(self._connect(client))

    async def _connect(self, client: asyncio.Transport) -> asyncio.Transport:
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_connection(lambda: _Upstream(client), *self._address)
        return transport

    def data_received(self, data: bytes) -> None:
        asyncio.get_running_loop().call_later(self._delay_seconds, self._send, data)

    def _send(self, data: bytes) -> None:
        assert self._server is not None
        # A callback of a finished task runs soon, and callbacks run in order.
        self._server.add_done_callback(lambda server: server.result().write(data))

    def connection_lost(self, _error: Exception | None) -> None:
        assert self._server is not None
        self._server.add_done_callback(lambda server: server.result().close())


async def _serve(host: str, port: int, delay_seconds: float) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: _Downstream(host, port, delay_seconds), "127.0.0.1", 0, backlog=1024
    )
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


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
    asyncio.run(_serve(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
