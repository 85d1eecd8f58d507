"""What a forked child may do with the storages of its parent."""

import os
import signal
import uuid

import pytest

from icefloe.effects import run_blocking
from icefloe.errors import StorageError
from icefloe.testing.servers import S3Endpoint
from tests.conformance.storages import s3_storage_at

pytestmark = pytest.mark.server


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_of_a_process_that_made_requests_is_told_not_left_waiting(
    s3_endpoint: S3Endpoint,
) -> None:
    storage = s3_storage_at(s3_endpoint, f"forks/{uuid.uuid4().hex}")
    run_blocking(storage.open().put("object", b"x"))
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:  # pragma: no cover - another process
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # not what the test run does at a timeout
        signal.alarm(240)  # ends a child that waits forever
        try:
            run_blocking(storage.open().get("object"))
        except StorageError as error:
            os.write(writer, str(error).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as answers:
        answer = answers.read().decode()
    os.waitpid(child, 0)
    assert "forkserver" in answer
    assert bytes(run_blocking(storage.open().get("object")).data) == b"x"
