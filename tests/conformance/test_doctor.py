"""The doctor finds real storages sound, finds each way to be unsound, and leaves no trace."""

from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import zarr

import icefloe
from icefloe import StorageVerdict, check_storage, check_storage_async
from icefloe.effects import run_blocking
from icefloe.errors import StorageError
from icefloe.maintenance.doctor import SCRATCH
from icefloe.storage import Backend, ObjectInfo, Storage, Version, http_storage
from icefloe.storage.memory import MemoryBackend
from icefloe.storage.port import DeleteReport, Fetched
from icefloe.storage.wrapper import BackendWrapper
from icefloe.testing.schedules import WrappedStorage
from tests.conformance.storages import azure_storage_at, gcs_storage_at, s3_storage_at
from tests.support.gcs_server import GcsEndpoint
from tests.support.http_server import file_server
from tests.support.servers import AzureEndpoint, S3Endpoint


async def states(backend: Backend) -> set[tuple[str, Version]]:
    """Tell all objects and the states they are in."""
    return {(info.key, info.version) async for batch in backend.list() for info in batch}


class DoctorConformance:
    """What holds wherever repositories can live."""

    def test_sound_and_without_a_trace(self, storage: Storage) -> None:
        checkup = check_storage(storage)
        assert checkup.verdict is StorageVerdict.SOUND, checkup
        assert all(one.holds for one in checkup.guarantees)
        assert checkup.has_repository is False
        assert set(checkup.trials.values()) <= {"holds", "lacks"}
        assert storage.list_objects() == []
        icefloe.Repository.create(storage)  # which wants a clean place

    def test_beside_a_repository(self, storage: Storage) -> None:
        repository = icefloe.Repository.create(storage)
        with repository.transaction("main", message="data") as store:
            zarr.create_array(store, name="a", shape=4, dtype="i4")[:] = 7
        before = run_blocking(states(storage.open()))
        checkup = check_storage(storage)
        assert checkup.verdict is StorageVerdict.SOUND, checkup
        assert checkup.has_repository is True
        assert "nothing of it was touched" in repr(checkup)
        assert run_blocking(states(storage.open())) == before
        assert repository.verify(deep=True).is_healthy

    async def test_awaited(self, storage: Storage) -> None:
        assert (await check_storage_async(storage)).verdict is StorageVerdict.SOUND


class TestMemory(DoctorConformance):
    @pytest.fixture
    def storage(self) -> Storage:
        return Storage.new_in_memory()


class TestLocal(DoctorConformance):
    @pytest.fixture
    def storage(self, tmp_path: Path) -> Storage:
        return Storage.new_local_filesystem(str(tmp_path / "repository"))

    def test_no_folders_stay(self, storage: Storage, tmp_path: Path) -> None:
        check_storage(storage)
        assert list(tmp_path.iterdir()) == []
        (tmp_path / "repository").mkdir()
        check_storage(storage)
        assert list(tmp_path.rglob("*")) == [tmp_path / "repository"]


@pytest.mark.server
class TestS3(DoctorConformance):
    @pytest.fixture
    def storage(self, s3_endpoint: S3Endpoint, prefix: str) -> Storage:
        return s3_storage_at(s3_endpoint, prefix)


@pytest.mark.server
class TestAzure(DoctorConformance):
    @pytest.fixture
    def storage(self, azure_endpoint: AzureEndpoint, prefix: str) -> Storage:
        return azure_storage_at(azure_endpoint, prefix)


@pytest.mark.server
class TestGcs(DoctorConformance):
    @pytest.fixture
    def storage(self, gcs_endpoint: GcsEndpoint, prefix: str) -> Storage:
        return gcs_storage_at(gcs_endpoint, prefix)


# -- storages that are not sound -----------------------------------------------------------


class Creating(BackendWrapper):
    """Creates over what is there."""

    async def put(self, key: str, data: Any, *, if_absent: bool = False, **rest: Any) -> Version:
        return await super().put(key, data, **rest)


class Careless(BackendWrapper):
    """Replaces whatever is there."""

    async def put(
        self, key: str, data: Any, *, if_version: Version | None = None, **rest: Any
    ) -> Version:
        return await super().put(key, data, **rest)


class Racy(BackendWrapper):
    """Compares and then writes: who comes at the same time as others is not noticed."""

    async def put(
        self, key: str, data: Any, *, if_version: Version | None = None, **rest: Any
    ) -> Version:
        is_race = key.endswith("/swap")
        return await super().put(key, data, if_version=None if is_race else if_version, **rest)


class Stale(BackendWrapper):
    """Reads show what was written the time before."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self.before: dict[str, Fetched] = {}

    async def put(self, key: str, data: Any, **rest: Any) -> Version:
        try:
            self.before[key] = await self.inner.get(key)
        except StorageError:
            self.before.pop(key, None)
        return await super().put(key, data, **rest)

    async def get(self, key: str, byte_range: tuple[int, int] | None = None) -> Fetched:
        if byte_range is None and key in self.before:
            return self.before[key]
        return await super().get(key, byte_range)


class Versionless(BackendWrapper):
    """Says of every state of an object that it is the same."""

    async def get(self, key: str, byte_range: tuple[int, int] | None = None) -> Fetched:
        return self._bare(await super().get(key, byte_range))

    async def head(self, key: str) -> Fetched:
        return self._bare(await super().head(key))

    def _bare(self, found: Fetched) -> Fetched:
        info = found.info
        same = ObjectInfo(info.key, info.size_bytes, info.last_modified, Version(etag="same"))
        return Fetched(found.data, same, found.attributes)

    async def put(self, key: str, data: Any, **rest: Any) -> Version:
        rest.pop("if_version", None)
        await super().put(key, data, **rest)
        return Version(etag="same")


class Rangeless(BackendWrapper):
    """Sends whole objects, whatever was asked for."""

    async def get(self, key: str, byte_range: tuple[int, int] | None = None) -> Fetched:
        return await super().get(key)


class Copyless(BackendWrapper):
    """Copies whatever is there."""

    async def copy(self, source: str, target: str, *, if_version: Version | None = None) -> None:
        await super().copy(source, target)


class Forgetful(BackendWrapper):
    """Lists what was there when it was asked for the first time."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self.lists: dict[str, list[list[ObjectInfo]]] = {}

    async def list(self, prefix: str = "") -> AsyncIterator[list[ObjectInfo]]:
        if prefix not in self.lists:
            self.lists[prefix] = [batch async for batch in self.inner.list(prefix)]
        for batch in self.lists[prefix]:
            yield batch


class Segmented(BackendWrapper):
    """Takes prefixes for folders."""

    async def list(self, prefix: str = "") -> AsyncIterator[list[ObjectInfo]]:
        folder = prefix if prefix.endswith("/") else f"{prefix}/"
        async for batch in self.inner.list(folder):
            yield batch


class Undying(BackendWrapper):
    """Says that it deleted, and did not."""

    async def delete_many(self, keys: Sequence[str]) -> DeleteReport:
        kept = [key for key in keys if "deleted" not in key]
        await super().delete_many(kept)
        return DeleteReport(len(keys))


class Stingy(BackendWrapper):
    """Deletes the first of a batch only."""

    async def delete_many(self, keys: Sequence[str]) -> DeleteReport:
        if len({key for key in keys if "batch" in key}) > 1:
            return await super().delete_many(keys[:1])
        return await super().delete_many(keys)


class Early(BackendWrapper):
    """Has a clock that is an hour behind."""

    async def head(self, key: str) -> Fetched:
        found = await super().head(key)
        moment = datetime.now(UTC) - timedelta(hours=1)
        info = ObjectInfo(key, found.info.size_bytes, moment, found.info.version)
        return Fetched(b"", info, found.attributes)


UNSOUND: dict[Callable[[Backend], Backend], tuple[str, str]] = {
    Creating: ("conditional-create", "a place becomes one repository only"),
    Careless: ("conditional-update", "commits of many writers are safe"),
    Racy: ("update-race", "commits of many writers are safe"),
    Stale: ("read-after-write", "commits of many writers are safe"),
    Versionless: ("versions", "commits of many writers are safe"),
    Rangeless: ("ranges", "data can be read, also in parts"),
    Copyless: ("copy", "each state of the repository is backed up"),
    Forgetful: ("list-after-write", "maintenance sees everything"),
    Segmented: ("list-prefix", "maintenance sees everything"),
    Undying: ("delete", "garbage collection makes room"),
    Stingy: ("batch-delete", "garbage collection makes room"),
    Early: ("clock", "maintenance sees everything"),
}


@pytest.mark.parametrize("kind", UNSOUND)
def test_each_way_to_be_unsound_is_found(kind: Callable[[Backend], Backend]) -> None:
    trial, guarantee = UNSOUND[kind]
    checkup = check_storage(WrappedStorage(Storage.new_in_memory(), kind))
    assert checkup.trials[trial] == "fails", checkup
    assert checkup.verdict is StorageVerdict.UNSAFE
    [broken] = [one for one in checkup.guarantees if one.name == guarantee]
    assert broken.holds is False
    assert f"NO: {guarantee} - {broken.without}" in repr(checkup)


def test_a_storage_that_can_only_be_read(tmp_path: Path) -> None:
    icefloe.Repository.create(icefloe.local_filesystem_storage(str(tmp_path)))
    with file_server(tmp_path) as server:
        checkup = check_storage(http_storage(server.url))
    assert checkup.verdict is StorageVerdict.READ_ONLY
    assert checkup.has_repository is True
    assert checkup.left_behind == ()
    assert checkup.trials["conditional-update"] == "unknown"
    assert "nothing could be written" in repr(checkup)
    assert all(request.split()[0] in ("GET", "HEAD") for request in server.requests)


def test_a_storage_that_fails_on_the_way_is_not_called_sound() -> None:
    class Failing(BackendWrapper):
        async def copy(self, source: str, target: str, **_: Any) -> None:
            raise StorageError("not today", retryable=True)

    storage = WrappedStorage(Storage.new_in_memory(), Failing)
    checkup = check_storage(storage)
    assert checkup.verdict is StorageVerdict.INCOMPLETE
    assert checkup.trials["copy"] == "unknown"
    assert storage.list_objects() == []


def test_a_storage_out_of_reach_is_an_error() -> None:
    class Gone(MemoryBackend):
        async def head(self, key: str) -> Fetched:
            raise StorageError("no usable answer", retryable=True)

    with pytest.raises(StorageError, match="no usable answer"):
        check_storage(WrappedStorage(Storage.new_in_memory(), lambda _: Gone()))


def test_what_cannot_be_removed_is_named() -> None:
    class Keeping(BackendWrapper):
        async def delete_many(self, keys: Sequence[str]) -> DeleteReport:
            return DeleteReport(0, dict.fromkeys(keys, "not allowed"))

    storage = WrappedStorage(Storage.new_in_memory(), Keeping)
    checkup = check_storage(storage)
    stored = {key for key, _ in run_blocking(states(storage.open()))}
    assert {*checkup.left_behind} >= stored
    assert stored
    assert all(key.startswith(SCRATCH) for key in stored)
    assert "could not be removed" in repr(checkup)


def test_progress_is_told_to_the_end() -> None:
    steps: list[tuple[int, int]] = []
    check_storage(Storage.new_in_memory(), on_progress=lambda *step: steps.append(step))
    assert steps[-1][0] == steps[-1][1] == len(steps) > 10


def test_interrupted_trials_leave_nothing() -> None:
    storage = Storage.new_in_memory()

    def stop(done: int, _: int) -> None:
        if done == 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check_storage(storage, on_progress=stop)
    assert storage.list_objects() == []
