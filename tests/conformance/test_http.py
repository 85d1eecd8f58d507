"""Reading a directory on a web server: all that HTTP can do, and a clear refusal of the rest."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from icefloe.config import StorageRetriesSettings, StorageSettings
from icefloe.effects import run_blocking
from icefloe.errors import InvalidInputError, ObjectNotFoundError, ReadOnlyError, StorageError
from icefloe.storage import Backend, Storage, http_storage, local_filesystem_storage
from icefloe.storage.guarded_http import guarded_http_spec
from icefloe.testing.storage_suite import ODD_KEYS, StorageConformance, driven, keys_of
from tests.support.http_server import FileServer, file_server
from tests.support.processes import LOOPBACK

DATA = random.Random(1).randbytes(3_000_000)


class TestHttp:
    drive = StorageConformance.drive

    @pytest.fixture
    def server(self, tmp_path: Path) -> Iterator[FileServer]:
        (tmp_path / "folder").mkdir()
        (tmp_path / "folder" / "object").write_bytes(DATA)
        (tmp_path / "empty").write_bytes(b"")
        with file_server(tmp_path) as server:
            yield server

    @pytest.fixture
    def backend(self, server: FileServer) -> Backend:
        return http_storage(server.url).open()

    @driven
    async def test_get(self, backend: Backend) -> None:
        fetched = await backend.get("folder/object")
        assert bytes(fetched.data) == DATA
        assert fetched.info.size_bytes == len(DATA)
        assert fetched.info.version.etag is not None
        assert bytes((await backend.get("empty")).data) == b""

    @driven
    async def test_head(self, backend: Backend, server: FileServer) -> None:
        looked = await backend.head("folder/object")
        assert bytes(looked.data) == b""
        assert looked.info == (await backend.get("folder/object")).info
        assert server.requests[0] == "HEAD /folder/object"

    @driven
    async def test_ranges(self, backend: Backend, server: FileServer) -> None:
        assert bytes((await backend.get("folder/object", (10, 20))).data) == DATA[10:20]
        asked = [(2_999_990, 3_000_000), (0, 5), (7, 9), (100, 100)]
        found = await backend.get_ranges("folder/object", asked)
        assert [bytes(each) for each in found] == [DATA[start:stop] for start, stop in asked]
        assert all("bytes=" in request for request in server.requests)
        with pytest.raises(InvalidInputError):
            await backend.get("folder/object", (2_999_990, 3_000_001))
        with pytest.raises(InvalidInputError):
            await backend.get_ranges("folder/object", [(0, 1), (5_000_000, 5_000_001)])

    @driven
    async def test_absence(self, backend: Backend) -> None:
        for key in ("absent", "folder", "folder/object/below"):
            with pytest.raises(ObjectNotFoundError):
                await backend.get(key)
            with pytest.raises(ObjectNotFoundError):
                await backend.get_ranges(key, [(0, 1)])
            with pytest.raises(ObjectNotFoundError):
                await backend.head(key)

    @driven
    async def test_writing_is_refused(self, backend: Backend, server: FileServer) -> None:
        with pytest.raises(ReadOnlyError):
            await backend.put("object", b"x")
        with pytest.raises(ReadOnlyError):
            await backend.put("object", b"x", if_absent=True)
        with pytest.raises(ReadOnlyError):
            await backend.copy("folder/object", "copy")
        with pytest.raises(ReadOnlyError):
            await backend.delete_many(["folder/object"])
        assert server.requests == []

    @driven
    async def test_listing_is_refused(self, backend: Backend) -> None:
        """Plain web servers have no listings; an empty answer would be a lie."""
        with pytest.raises(StorageError) as caught:
            await keys_of(backend)
        assert not caught.value.retryable

    def test_odd_keys(self, backend: Backend, server: FileServer) -> None:
        """Files of a local repository, served as they are, are found under their keys."""
        files = local_filesystem_storage(str(server.root)).open()
        for key in ODD_KEYS:
            run_blocking(files.put(key, key.encode()))
        for key in ODD_KEYS:
            assert bytes(run_blocking(backend.get(key)).data).decode() == key

    def test_unreachable_server(self, tmp_path: Path) -> None:
        with file_server(tmp_path) as server:
            url = server.url
        quickly = StorageSettings(retries=StorageRetriesSettings(2, 1, 1))
        backend = http_storage(url).open(quickly)
        with pytest.raises(StorageError) as caught:
            run_blocking(backend.get("object"))
        assert caught.value.retryable


class TestGuardedHttp(TestHttp):
    """The client for servers that are not trusted; it takes keys as they are."""

    @pytest.fixture
    def backend(self, server: FileServer) -> Backend:
        return Storage(guarded_http_spec(server.url, private_hosts=[LOOPBACK])).open()

    def test_odd_keys(self, backend: Backend, server: FileServer) -> None:
        for key in ODD_KEYS:
            file = server.root / key
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(key.encode())
            assert bytes(run_blocking(backend.get(key)).data).decode() == key
