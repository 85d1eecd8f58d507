"""Processes whose clocks are wrong, on real storages: no commit that counts loses chunks.

The clocks are faked by libfaketime, which has to be installed on the machine (`apt-get install
faketime`); without it these tests are skipped, on every machine, as nothing that tests install
brings it along. `test_clocks.py` tests the same with clocks that are handed in.
"""

import asyncio
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import icechunk
import pytest
from zarr.core.buffer import default_buffer_prototype

import icefloe
from icefloe.effects import run_blocking
from icefloe.storage import Storage
from tests.conformance.storages import s3_storage_at
from tests.faults.clock_actor import VALUES
from tests.faults.sessions import BIG, GROUP, array_document, put, seen_in
from tests.support.checking import check_repository_blocking
from tests.support.servers import S3Endpoint

ROOT = Path(__file__).parents[2]
CLOCKS = "spec", "writer", "collector"
pytestmark = pytest.mark.skipif(
    shutil.which("faketime") is None,
    reason="libfaketime is not installed: apt-get install faketime",
)


@contextmanager
def actor(role: str, storage: Storage, off: str) -> Iterator["subprocess.Popen[str]"]:
    """Start a process with a wrong clock; times of files stay what they are."""
    unfaked = {"NO_FAKE_STAT": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    command = ["faketime", "-m", "-f", off, sys.executable, "-m", "tests.faults.clock_actor", role]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, **unfaked, "DONT_FAKE_MONOTONIC": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        tell(process, pickle.dumps(storage).hex())
        yield process


def tell(process: "subprocess.Popen[str]", line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{line}\n")
    process.stdin.flush()


def said(process: "subprocess.Popen[str]") -> list[str]:
    assert process.stdout is not None
    return process.stdout.readline().split()


def created(storage: Storage, spec: int) -> None:
    repo = icefloe.Repository.create(storage, spec_version=spec)
    session = repo.writable_session("main")
    run_blocking(put(session, "zarr.json", GROUP))
    run_blocking(put(session, "a/zarr.json", array_document()))
    session.commit("created")


def race(storage: Storage, writer: str, collector: str) -> bool:
    """Collect garbage while a session is open; return whether the session was committed."""
    before = datetime.now(UTC)
    with actor("write", storage, writer) as writing:
        written, _, moment = said(writing)
        assert written == "written"
        assert abs(datetime.fromisoformat(moment) - before) > timedelta(minutes=8)
        with actor("collect", storage, collector) as collecting:
            assert said(collecting)[:1] == ["collected"]
        assert collecting.returncode == 0
        tell(writing, "commit")
        outcome = said(writing)[0]
    assert writing.returncode == 0
    assert outcome in ("committed", "refused")
    check_repository_blocking(storage.open())
    files = seen_in(storage).files
    for number, value in VALUES.items():
        expected = bytes([value]) * BIG if outcome == "committed" else None
        assert files.get(f"a/c/{number}") == expected
    return outcome == "committed"


def check_by_reference(storage: icechunk.Storage) -> None:
    """The reference reads all that was committed, and can go on from there."""
    repo = icechunk.Repository.open(storage)
    store = repo.readonly_session("main").store
    for number, value in VALUES.items():
        found = asyncio.run(store.get(f"a/c/{number}", default_buffer_prototype()))
        assert found is not None
        assert found.to_bytes() == bytes([value]) * BIG
    assert len(list(repo.ancestry(branch="main"))) == 3


def reference_storage_at(endpoint: S3Endpoint, prefix: str) -> icechunk.Storage:
    return icechunk.s3_storage(
        bucket=endpoint.bucket,
        prefix=prefix,
        endpoint_url=endpoint.url,
        access_key_id=endpoint.access_key_id,
        secret_access_key=endpoint.secret_access_key,
        region="us-east-1",
        allow_http=True,
        force_path_style=True,
    )


@pytest.mark.parametrize(CLOCKS, [(1, "-1h", "+1h"), (2, "-1h", "+1h"), (2, "+1h", "-1h")])
def test_on_local_disk(tmp_path: Path, spec: int, writer: str, collector: str) -> None:
    storage = icefloe.local_filesystem_storage(str(tmp_path))
    created(storage, spec)
    assert race(storage, writer, collector)  # its own clock dates all files, so nothing is lost
    check_by_reference(icechunk.local_filesystem_storage(str(tmp_path)))


@pytest.mark.server
@pytest.mark.parametrize(CLOCKS, [(1, "-10m", "+10m"), (2, "-10m", "+10m"), (2, "+10m", "-10m")])
def test_on_an_object_store(
    s3_endpoint: S3Endpoint, prefix: str, spec: int, writer: str, collector: str
) -> None:
    """S3 refuses requests of clocks that are off by more than a quarter of an hour."""
    storage = s3_storage_at(s3_endpoint, prefix)
    created(storage, spec)
    assert race(storage, writer, collector)
    check_by_reference(reference_storage_at(s3_endpoint, prefix))
