"""A service behind a real socket, for real clients."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from threading import Thread
from typing import Any

import httpx2 as httpx
import uvicorn

import icefloe
from icefloe.catalog.model import Delegation
from icefloe.catalog.wire import CredentialAnswer
from icefloe.records import replace
from icefloe.service.pages.site import create_site
from icefloe.service.runtime import Service
from icefloe.service.settings import Settings
from icefloe.service.vending.grants import Grant, Secret
from icefloe.service.vending.sts import StsVendor
from tests.support.desk import Desk
from tests.support.processes import LOOPBACK

_REQUESTS = "requests.txt"
_BRIEF = "brief"
_PATIENCE_SECONDS = 300.0


class ServedDesk(Desk):
    """A service that listens on a port, with people and the clients that act in their names.

    The service of the desk writes people to the database; another service serves them.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings, datetime.now(UTC))
        self.url = settings.url
        self._log = settings.folder / _REQUESTS
        self._log.touch()
        self._read = 0

    @property
    def requests(self) -> list[tuple[str, str]]:
        """Method and path of all requests since they were last forgotten."""
        lines = self._log.read_text().splitlines()[self._read :]
        return [(method, path) for method, _, path in (line.partition(" ") for line in lines)]

    def forget_requests(self) -> None:
        self._read = len(self._log.read_text().splitlines())

    def client_of(self, person: str) -> icefloe.Client:
        """Make a client that acts in somebody's name."""
        return icefloe.Client(self.url, token=self.tokens[person])

    @property
    def minted(self) -> list[str]:
        """The secrets of all credentials that were ever made."""
        path = _minted_at(self.service.settings.folder)
        return path.read_text().split() if path.exists() else []

    def make_brief(self) -> None:
        """Leave the lifetime of credentials to the store, where they end after six seconds."""
        (self.service.settings.folder / _BRIEF).touch()


@contextmanager
def served(settings: Settings) -> Iterator[ServedDesk]:
    """Serve until the block ends, on a port that the system chooses."""
    with socket.create_server((LOOPBACK, 0)) as listening:
        url = f"http://{LOOPBACK}:{listening.getsockname()[1]}"
        desk = ServedDesk(replace(settings, url=url, folder=settings.folder.absolute()))
        server = _server(desk.service.settings)
        thread = Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        try:
            _wait_until_it_answers(url)
            yield desk
        finally:
            server.should_exit = True
            thread.join()
            desk.service.database.close()


def _wait_until_it_answers(url: str) -> None:
    # The socket is open already: the request waits in its queue until the service takes it.
    httpx.get(f"{url}/api/v1/me", timeout=_PATIENCE_SECONDS)


def _minted_at(folder: Path) -> Path:
    # Beside the service, whose own files are searched for secrets.
    return folder.with_name(f"{folder.name}-minted.txt")


class _Vendor(StsVendor):
    """Names no lifetime when credentials are to be brief, and notes what it makes."""

    def __init__(self, service: Service) -> None:
        super().__init__(service.client)
        self._brief = service.settings.folder / _BRIEF
        self._minted = _minted_at(service.settings.folder)

    async def vend(self, grant: Grant, secret: Secret, external_id: str) -> CredentialAnswer:
        credential = await super().vend(grant, secret, external_id)
        secrets = (credential.values["secret_access_key"], credential.values["session_token"])
        with self._minted.open("a") as file:
            file.write("\n".join([*secrets, ""]))
        return credential

    def form_of(self, grant: Grant, external_id: str) -> dict[str, str]:
        form = super().form_of(grant, external_id)
        if self._brief.exists():
            del form["DurationSeconds"]
        return form


def _server(settings: Settings) -> uvicorn.Server:
    service = Service(settings)
    service.vendors[Delegation.ROLE] = _Vendor(service)
    app = create_site(service)
    path = settings.folder / _REQUESTS

    async def counting(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            with path.open("a") as log:
                log.write(f"{scope['method']} {scope['path']}\n")
        await app(scope, receive, send)

    config = uvicorn.Config(counting, log_level="error", ws="none", timeout_graceful_shutdown=2)
    return uvicorn.Server(config)
