"""A storage without room: collecting garbage makes some, before it has to write anything."""

import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NoReturn, Unpack

import numpy as np
import pytest

import icefloe
from icefloe.effects import run_blocking
from icefloe.errors import ErrorKind, StorageError
from icefloe.storage import Storage
from icefloe.storage.port import Backend, Buffer, DeleteReport, PutOptions, Version
from icefloe.storage.wrapper import BackendWrapper
from icefloe.testing.schedules import WrappedStorage
from icefloe.walk.spill import KeySet
from tests.faults.pasts import versions, with_a_past
from tests.faults.sessions import BIG, GROUP, array_document, put, put_chunk
from tests.property.reachable import listing
from tests.support.checking import check_repository_blocking

SPECS = pytest.mark.parametrize("spec", [1, 2])


class Full(BackendWrapper):
    """Has no room until enough objects were deleted; maybe not even for an empty one."""

    def __init__(self, inner: Backend, *, takes_empty: bool, needs: int) -> None:
        super().__init__(inner)
        self._takes_empty = takes_empty
        self._needs = needs
        self.trace: list[str] = []
        """What was written or deleted, in that order."""

    async def put(self, key: str, data: Buffer, **options: Unpack[PutOptions]) -> Version:
        if self._needs > 0 and (len(data) or not self._takes_empty):
            raise StorageError(f"cannot write {key!r}: no room", ErrorKind.STORAGE_FULL, key=key)
        self.trace.append(f"put {key}")
        return await super().put(key, data, **options)

    async def delete_many(self, keys: Sequence[str]) -> DeleteReport:
        self.trace += [f"delete {key}" for key in keys]
        report = await super().delete_many(keys)
        self._needs -= sum("clock" not in key for key in keys)
        return report


def full(storage: Storage, *, takes_empty: bool, needs: int = 1) -> WrappedStorage:
    return WrappedStorage(
        storage, lambda backend: Full(backend, takes_empty=takes_empty, needs=needs)
    )


def with_orphans(spec: int) -> Storage:
    """Make a repository that also has files of every kind which no version ever listed."""
    storage = with_a_past(spec)
    session = icefloe.Repository.open(storage).writable_session("main")
    run_blocking(put_chunk(session, 6, 16, BIG))
    session.fork()
    return storage


def garbage_of(storage: Storage) -> set[str]:
    """Find what a collection deletes when there is room."""
    before = listing(storage.open()).keys()
    icefloe.Repository.open(storage).garbage_collect(datetime.now(UTC))
    return before - listing(storage.open()).keys()


@SPECS
@pytest.mark.parametrize("takes_empty", [False, True], ids=["not a file", "empty files only"])
@pytest.mark.parametrize(
    ("make", "needs"), [(with_a_past, 1), (with_orphans, 1), (with_orphans, 4)]
)
def test_files_go_before_anything_is_written(
    spec: int, takes_empty: bool, make: Callable[[int], Storage], needs: int
) -> None:
    inner = make(spec)
    expected = len(garbage_of(make(spec)))
    needed = versions(inner)
    storage = full(inner, takes_empty=takes_empty, needs=needs)
    repo = icefloe.Repository.open(storage)
    summary = repo.garbage_collect(datetime.now(UTC) + timedelta(days=1))
    assert summary.is_complete
    # Without a probe, the newest object of all stands for it, and stays.
    assert expected - (not takes_empty) <= summary.objects_deleted <= expected
    assert versions(inner) == needed
    check_repository_blocking(inner.open())


def test_listed_versions_keep_their_files_until_they_are_dropped() -> None:
    """At every moment, all that the repo object lists can be read."""
    inner = with_a_past(2)
    table = icefloe.Repository.open(inner).inspect_repo_info()["snapshots"]
    listed = {f"snapshots/{one['id']}" for one in table}
    storage = full(inner, takes_empty=True)
    icefloe.Repository.open(storage).garbage_collect(datetime.now(UTC))
    assert isinstance(storage.backend, Full)
    trace = storage.backend.trace
    early = trace[: trace.index("put repo")]
    assert any(step.startswith("delete chunks/") for step in early)
    assert not {f"delete {key}" for key in listed} & set(early)


def test_chunks_go_last() -> None:
    """A session would miss other files as soon as it reads them."""
    storage = full(with_orphans(2), takes_empty=True)
    icefloe.Repository.open(storage).garbage_collect(datetime.now(UTC))
    assert isinstance(storage.backend, Full)
    trace = storage.backend.trace
    early = trace[: trace.index("put repo")]
    assert {step.split("/")[0] for step in early if "clock" not in step} == {
        "delete manifests",
        "delete snapshots",
        "delete transactions",
    }


def test_without_any_garbage_the_failure_is_told() -> None:
    inner = with_a_past(2)
    garbage_of(inner)
    storage = full(inner, takes_empty=True)
    with pytest.raises(StorageError, match="no room") as failure:
        icefloe.Repository.open(storage).garbage_collect(datetime.now(UTC))
    assert failure.value.kind == ErrorKind.STORAGE_FULL


def test_an_incremental_collection_says_what_helps() -> None:
    storage = full(with_a_past(2), takes_empty=True)
    with pytest.raises(StorageError, match="not incremental"):
        icefloe.Repository.open(storage).garbage_collect(datetime.now(UTC), incremental=True)


def test_ids_stay_in_memory_if_no_temporary_file_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    with KeySet(max_bytes=64) as known:
        for first in range(0, 100, 10):
            known.add(np.arange(first, first + 10, dtype=np.uint64))
        assert known.contains(np.arange(120, dtype=np.uint64)).sum() == 100
        assert known.spilled_bytes == 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    options = "size=1m,nr_inodes=4096"
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    if subprocess.run(command, check=False, capture_output=True).returncode != 0:
        pytest.skip("a small file system can only be mounted by root")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def write_forever(session: icefloe.Session) -> NoReturn:
    while True:
        run_blocking(put(session, "a/c/1", b"x" * 50_000))


def fill_up(path: Path) -> None:
    with suppress(OSError), path.open("wb", buffering=0) as rest:
        while True:
            rest.write(b"x" * 512)


@SPECS
def test_on_a_disk_that_is_really_full(small_disk: Path, spec: int) -> None:
    storage = icefloe.local_filesystem_storage(str(small_disk / "repo"))
    repo = icefloe.Repository.create(storage, spec_version=spec)
    session = repo.writable_session("main")
    run_blocking(put(session, "zarr.json", GROUP))
    run_blocking(put(session, "a/zarr.json", array_document()))
    run_blocking(put(session, "a/c/0", b"k" * BIG))
    session.commit("kept")
    lost = repo.writable_session("main")
    with pytest.raises(StorageError) as failure:
        write_forever(lost)
    assert failure.value.kind == ErrorKind.STORAGE_FULL
    fill_up(small_disk / "rest")
    if spec == 2:
        with pytest.raises(StorageError):
            repo.create_tag("no room for it", repo.lookup_branch("main"))
    summary = repo.garbage_collect(datetime.now(UTC) + timedelta(days=1))
    assert summary.is_complete
    assert summary.chunks_deleted > 0
    session = repo.writable_session("main")
    run_blocking(put(session, "a/c/2", b"y" * BIG))
    session.commit("there is room again")
    check_repository_blocking(storage.open())
