"""Virtual chunks are read with few requests, one client, good credentials, and within bounds."""

import asyncio
import logging
import os
import pickle
import signal
import threading
import tracemalloc
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from pathlib import Path

import pytest
import zarr

import icefloe
from icefloe.config import (
    StorageConcurrencySettings,
    StorageRetriesSettings,
    StorageSettings,
    StorageTimeoutSettings,
    VirtualChunkContainer,
    http_store,
    local_filesystem_store,
    s3_store,
)
from icefloe.config.containers import OnChange
from icefloe.config.effective import settings_for_containers
from icefloe.credentials import (
    AnyS3Credential,
    HttpAccess,
    LocalFileSystemAccess,
    S3StaticCredentials,
    containers_credentials,
    s3_credentials,
)
from icefloe.effects import run_blocking
from icefloe.errors import ErrorKind, IcefloeError, InvalidInputError, StorageError
from icefloe.format.chunk_table import VirtualChunk
from icefloe.records import replace
from icefloe.storage import Storage
from icefloe.virtual_chunks.clients import Clients
from icefloe.virtual_chunks.reader import VirtualReader
from tests.conformance.storages import s3_storage_at
from tests.support.http_server import FileServer, file_server
from tests.support.logged import own_messages
from tests.support.proxy import (
    AnswerInstead,
    CutBody,
    CuttingProxy,
    LoseResponse,
    ProxyFault,
    cutting_proxy,
)
from tests.support.servers import S3Endpoint

BYTES = os.urandom(200_000)
SECRET = "do-not-tell-anyone"


@dataclass(frozen=True)
class Bucket:
    """Objects on a server, and how a reader gets at them through a proxy."""

    endpoint: S3Endpoint
    proxy: CuttingProxy
    prefix: str

    @property
    def url(self) -> str:
        return f"s3://{self.endpoint.bucket}/{self.prefix}/"

    @property
    def container(self) -> VirtualChunkContainer:
        store = s3_store(
            region=self.endpoint.region,
            endpoint_url=self.proxy.url,
            allow_http=True,
            force_path_style=True,
            s3_compatible=True,
        )
        return VirtualChunkContainer(self.url, store)

    @property
    def keys(self) -> AnyS3Credential:
        return s3_credentials(
            access_key_id=self.endpoint.access_key_id,
            secret_access_key=self.endpoint.secret_access_key,
        )

    def put(self, data: bytes) -> str:
        version = run_blocking(s3_storage_at(self.endpoint, self.prefix).open().put("a.nc", data))
        assert version.etag is not None
        return version.etag

    def reader(
        self,
        keys: AnyS3Credential | None = None,
        *,
        on_change: OnChange = "strict",
        settings: StorageSettings | None = None,
    ) -> VirtualReader:
        container = replace(self.container, on_change=on_change)
        access = containers_credentials({self.url: keys or self.keys})
        return VirtualReader([container], access, trusted=[container], settings=settings)

    def chunk(self, offset: int, length: int, etag: str | None = None) -> VirtualChunk:
        return VirtualChunk(f"{self.url}a.nc", offset, length, etag=etag)


@pytest.fixture
def bucket(s3_endpoint: S3Endpoint, prefix: str) -> Iterator[Bucket]:
    with cutting_proxy(s3_endpoint.url) as proxy:
        bucket = Bucket(s3_endpoint, proxy, prefix)
        bucket.put(BYTES)
        yield bucket


@pytest.fixture
def web(tmp_path: Path) -> Iterator[tuple[FileServer, VirtualReader]]:
    (tmp_path / "a.nc").write_bytes(BYTES)
    with file_server(tmp_path) as server:
        url = f"{server.url}/"
        container = VirtualChunkContainer(url, http_store())
        yield server, VirtualReader([container], {url: HttpAccess}, trusted=[container])


def local_reader(folder: Path, on_change: OnChange = "strict") -> VirtualReader:
    store = local_filesystem_store(str(folder))
    container = VirtualChunkContainer(f"file://{folder}/", store, on_change=on_change)
    return VirtualReader([container], {f"file://{folder}/": LocalFileSystemAccess})


def read(reader: VirtualReader, chunk: VirtualChunk) -> bytes:
    return bytes(run_blocking(reader.read(chunk, 0, chunk.length)))


def read_together(reader: VirtualReader, chunks: list[VirtualChunk]) -> list[bytes | BaseException]:
    async def one(chunk: VirtualChunk) -> bytes:
        return bytes(await reader.read(chunk, 0, chunk.length))

    async def main() -> list[bytes | BaseException]:
        return await asyncio.gather(*map(one, chunks), return_exceptions=True)

    return asyncio.run(main())


# -- requests ----------------------------------------------------------------------------------


@pytest.mark.server
def test_tasks_that_read_side_by_side_send_one_request(bucket: Bucket) -> None:
    chunks = [bucket.chunk(at, 1000) for at in range(0, 64_000, 1000)]
    found = read_together(bucket.reader(), chunks)
    assert found == [BYTES[each.offset : each.offset + 1000] for each in chunks]
    assert [each.bytes_in for each in bucket.proxy.exchanges] == [64_000]


def test_a_web_server_is_asked_once_as_well(web: tuple[FileServer, VirtualReader]) -> None:
    server, reader = web
    chunks = [VirtualChunk(f"{server.url}/a.nc", at, 1000) for at in range(0, 64_000, 1000)]
    found = read_together(reader, chunks)
    assert found == [BYTES[each.offset : each.offset + 1000] for each in chunks]
    assert len(server.requests) == 1


@pytest.mark.server
def test_a_bad_reference_breaks_none_of_its_neighbours(bucket: Bucket) -> None:
    good = [bucket.chunk(at, 1000) for at in range(190_000, 200_000, 1000)]
    bad = bucket.chunk(200_000, 1000)
    found = read_together(bucket.reader(), [*good, bad])
    assert found[:-1] == [BYTES[each.offset : each.offset + 1000] for each in good]
    assert isinstance(found[-1], StorageError)
    assert found[-1].kind == ErrorKind.INVALID_OBJECT_SIZE


@pytest.mark.server
def test_a_request_that_fails_for_all_is_made_again_for_each(bucket: Bucket) -> None:
    once = StorageSettings(retries=StorageRetriesSettings(max_tries=1))
    reader = bucket.reader(settings=once)
    bucket.proxy.plan(AnswerInstead(method="GET", status=HTTPStatus.INTERNAL_SERVER_ERROR))
    chunks = [bucket.chunk(at, 1000) for at in (0, 1000, 2000)]
    found = read_together(reader, chunks)
    assert found == [BYTES[each.offset : each.offset + 1000] for each in chunks]
    assert [each.status for each in bucket.proxy.exchanges] == [500, 206, 206, 206]


@pytest.mark.server
@pytest.mark.parametrize(
    "fault",
    [
        CutBody(method="GET", after_bytes=500),
        LoseResponse(method="GET"),
        AnswerInstead(method="GET", status=HTTPStatus.SERVICE_UNAVAILABLE),
    ],
)
def test_what_fails_in_passing_is_tried_again_for_all(bucket: Bucket, fault: ProxyFault) -> None:
    retries = StorageRetriesSettings(max_tries=3, initial_backoff_ms=1, max_backoff_ms=1)
    reader = bucket.reader(settings=StorageSettings(retries=retries))
    bucket.proxy.plan(fault)
    chunks = [bucket.chunk(at, 1000) for at in (0, 1000, 2000)]
    found = read_together(reader, chunks)
    assert found == [BYTES[each.offset : each.offset + 1000] for each in chunks]
    assert len(bucket.proxy.exchanges) == 2


@pytest.mark.server
def test_reading_on_in_threads_is_read_ahead(bucket: Bucket) -> None:
    reader = bucket.reader()
    for at in range(0, 200_000, 1000):
        assert read(reader, bucket.chunk(at, 1000)) == BYTES[at : at + 1000]
    assert len(bucket.proxy.exchanges) <= 9
    assert sum(each.bytes_in for each in bucket.proxy.exchanges) == len(BYTES)
    assert reader.held_bytes == 0


def test_local_files_are_read_as_they_are_asked_for(tmp_path: Path) -> None:
    (tmp_path / "a.nc").write_bytes(BYTES)
    reader = local_reader(tmp_path)
    for at in range(0, 10_000, 1000):
        assert read(reader, VirtualChunk(f"file://{tmp_path}/a.nc", at, 1000))
    assert reader.held_bytes == 0


# -- clients and credentials -------------------------------------------------------------------


def counting_keys(endpoint: S3Endpoint, log: Path, life: timedelta) -> AnyS3Credential:
    """Give credentials from a function, whose calls a file counts across pickling."""
    names = (endpoint.access_key_id, endpoint.secret_access_key)

    def fetch() -> S3StaticCredentials:
        with log.open("a") as calls:
            calls.write("x")
        return S3StaticCredentials(*names, expires_after=datetime.now(UTC) + life)

    return s3_credentials(get_credentials=fetch)


@pytest.mark.server
@pytest.mark.parametrize("life", [timedelta(hours=1), timedelta(seconds=90)])
def test_a_herd_makes_one_client_and_asks_for_credentials_once(
    bucket: Bucket, tmp_path: Path, life: timedelta
) -> None:
    reader = bucket.reader(counting_keys(bucket.endpoint, tmp_path / "log", life))
    chunks = [bucket.chunk(at, 100) for at in range(0, 64 * 3000, 3000)]
    expected = [BYTES[each.offset : each.offset + 100] for each in chunks]
    assert read_together(reader, chunks) == expected
    assert reader.clients_opened == 1
    assert (tmp_path / "log").read_text() == "x"


@pytest.mark.server
def test_a_herd_of_threads_makes_one_client_and_asks_for_credentials_once(
    bucket: Bucket, tmp_path: Path
) -> None:
    keys = counting_keys(bucket.endpoint, tmp_path / "log", timedelta(hours=1))
    reader, gate = bucket.reader(keys), threading.Barrier(64)

    def work(at: int) -> bytes:
        gate.wait()
        return read(reader, bucket.chunk(at, 100))

    starts = range(0, 64 * 3000, 3000)
    with ThreadPoolExecutor(64) as pool:
        assert list(pool.map(work, starts)) == [BYTES[at : at + 100] for at in starts]
    assert reader.clients_opened == 1
    assert (tmp_path / "log").read_text() == "x"


@pytest.mark.server
def test_credentials_that_end_are_renewed_by_the_same_client(
    bucket: Bucket, tmp_path: Path
) -> None:
    reader = bucket.reader(counting_keys(bucket.endpoint, tmp_path / "log", timedelta(0)))
    for at in (0, 50_000, 100_000):
        assert read(reader, bucket.chunk(at, 100)) == BYTES[at : at + 100]
    assert reader.clients_opened == 1
    assert len((tmp_path / "log").read_text()) >= 3


@pytest.mark.server
def test_pickles_hold_no_secrets_but_those_that_were_to_travel(
    bucket: Bucket, tmp_path: Path
) -> None:
    secret = bucket.endpoint.secret_access_key
    secret_file = tmp_path / "keys"
    secret_file.write_text(f"{bucket.endpoint.access_key_id} {secret}")

    def fetch() -> S3StaticCredentials:
        name, key = secret_file.read_text().split()
        return S3StaticCredentials(name, key)

    fetched = bucket.reader(s3_credentials(get_credentials=fetch))
    scattered = s3_credentials(get_credentials=fetch, scatter_initial_credentials=True)
    for reader, travels in ((fetched, False), (bucket.reader(scattered), True)):
        assert read(reader, bucket.chunk(0, 10)) == BYTES[:10]
        pickled = pickle.dumps(reader)
        assert (secret.encode() in pickled) is travels
        assert read(pickle.loads(pickled), bucket.chunk(10, 10)) == BYTES[10:20]


@pytest.mark.server
def test_credentials_of_the_environment_do_not_travel(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = bucket.endpoint.secret_access_key
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", bucket.endpoint.access_key_id)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    monkeypatch.delenv("AWS_SESSION_TOKEN", raising=False)
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    reader = bucket.reader(s3_credentials(from_env=True))
    assert read(reader, bucket.chunk(0, 10)) == BYTES[:10]
    assert secret.encode() not in pickle.dumps(reader)


@pytest.mark.server
def test_a_refused_read_tells_no_secret(bucket: Bucket, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    keys = s3_credentials(access_key_id=bucket.endpoint.access_key_id, secret_access_key=SECRET)
    reader = bucket.reader(keys)
    found = read_together(reader, [bucket.chunk(at, 100) for at in range(0, 1000, 100)])
    assert len(bucket.proxy.exchanges) == 1  # refused once is refused for all
    for error in found:
        assert isinstance(error, StorageError)
        assert error.kind == ErrorKind.VIRTUAL_CHUNK_FETCH
        assert f"{bucket.url}a.nc" in str(error)
        assert SECRET not in f"{error} {error!r} {error.__cause__!r}"
    assert SECRET not in caplog.text + repr(reader)


def test_only_so_many_clients_are_kept(tmp_path: Path) -> None:
    clients, made = Clients(most=2), []

    def describe(name: str) -> Callable[[], Storage]:
        def make() -> Storage:
            made.append(name)
            return Storage.new_local_filesystem(str(tmp_path / name))

        return make

    kept = clients.get("a", describe("a"))
    clients.get("b", describe("b"))
    assert clients.get("a", describe("a")) is kept
    clients.get("c", describe("c"))
    assert clients.get("a", describe("a")) is kept
    clients.get("b", describe("b"))
    assert made == ["a", "b", "c", "b"]
    assert clients.opened == 4


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_starts_anew(web: tuple[FileServer, VirtualReader]) -> None:
    server, reader = web
    location = f"{server.url}/a.nc"
    for at in (0, 1000):
        read(reader, VirtualChunk(location, at, 1000))
    assert (reader.held_bytes, reader.clients_opened) == (2000, 1)
    if (child := os.fork()) == 0:
        signal.alarm(60)  # a child that waits for ever is killed, and so noticed
        is_new = (reader.held_bytes, reader.clients_opened) == (0, 0)
        is_right = read(reader, VirtualChunk(location, 2000, 1000)) == BYTES[2000:3000]
        os._exit(0 if is_new and is_right and reader.clients_opened == 1 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert read(reader, VirtualChunk(location, 2000, 1000)) == BYTES[2000:3000]


# -- settings ----------------------------------------------------------------------------------


@pytest.mark.server
def test_settings_of_the_repository_go_for_containers(bucket: Bucket, tmp_path: Path) -> None:
    retries = StorageRetriesSettings(max_tries=3, initial_backoff_ms=1, max_backoff_ms=1)
    config = icefloe.RepositoryConfig(storage=StorageSettings(retries=retries))
    config.set_virtual_chunk_container(bucket.container)
    repo = icefloe.Repository.create(
        icefloe.local_filesystem_storage(str(tmp_path)),
        config=config,
        authorize_virtual_chunk_access=containers_credentials({bucket.url: bucket.keys}),
    )
    store = repo.writable_session("main").store
    zarr.create_array(store, shape=(10,), chunks=(10,), dtype="u1", compressors=None)
    store.set_virtual_ref("c/0", f"{bucket.url}a.nc", offset=5, length=10)
    bucket.proxy.plan(
        AnswerInstead(method="GET", status=HTTPStatus.INTERNAL_SERVER_ERROR, times=None)
    )
    with pytest.raises(StorageError):
        store.get_sync("c/0")
    assert len(bucket.proxy.exchanges) == 3
    bucket.proxy.plan()
    found = store.get_sync("c/0")
    assert found is not None
    assert found.to_bytes() == BYTES[5:15]


def test_what_suits_the_storage_of_a_repository_does_not_go_for_containers() -> None:
    usual = Storage.new_local_filesystem("/data").default_settings()
    assert settings_for_containers(usual, usual) == StorageSettings(
        concurrency=StorageConcurrencySettings(), retries=StorageRetriesSettings()
    )
    chosen = StorageSettings(
        concurrency=StorageConcurrencySettings(7, 4096),
        retries=StorageRetriesSettings(max_tries=4),
        timeouts=StorageTimeoutSettings(read_timeout_ms=5),
        storage_class="GLACIER",
    )
    found = settings_for_containers(chosen, usual)
    assert found.concurrency == StorageConcurrencySettings(7)
    assert found.retries == StorageRetriesSettings(max_tries=4)
    assert found.timeouts == StorageTimeoutSettings(read_timeout_ms=5)
    assert found.storage_class is None


def test_a_repository_cannot_have_objects_read_in_crumbs() -> None:
    hostile = StorageSettings(concurrency=StorageConcurrencySettings(1, 1))
    found = settings_for_containers(hostile, StorageSettings())
    assert found.concurrency == StorageConcurrencySettings(1, 1 << 20)


# -- changed objects ---------------------------------------------------------------------------


@pytest.mark.server
def test_a_changed_object_is_refused_by_name(bucket: Bucket) -> None:
    etag = bucket.put(BYTES)
    reader = bucket.reader()
    chunks = [bucket.chunk(at, 100, etag) for at in (0, 100)]
    other = bucket.chunk(200, 100)
    assert read(reader, chunks[0]) == BYTES[:100]
    new = bucket.put(BYTES[::-1])
    found = read_together(reader, [*chunks, other])
    for error in found[:2]:
        assert isinstance(error, StorageError)
        assert error.kind == ErrorKind.VIRTUAL_CHUNK_MODIFIED
        for part in (f"{bucket.url}a.nc", etag, new):
            assert part in str(error)
    assert found[2] == BYTES[::-1][200:300]  # nothing was recorded for this one


@pytest.mark.server
def test_what_was_read_ahead_counts_as_what_it_was(bucket: Bucket) -> None:
    etag = bucket.put(BYTES)
    reader = bucket.reader()
    for at in (0, 1000):
        read(reader, bucket.chunk(at, 1000, etag))
    bucket.put(BYTES[::-1])
    assert read(reader, bucket.chunk(2000, 1000, etag)) == BYTES[2000:3000]
    with pytest.raises(StorageError, match="changed"):
        read(reader, bucket.chunk(3000, 1000, etag))


@pytest.mark.server
@pytest.mark.parametrize("on_change", ["strict", "off"])
def test_where_changes_do_not_matter_the_length_still_does(
    bucket: Bucket, on_change: OnChange
) -> None:
    reader = bucket.reader(on_change=on_change)
    recorded = "old" if on_change == "off" else None
    assert read(reader, bucket.chunk(0, 10, recorded)) == BYTES[:10]
    bucket.put(BYTES[50_000:150_000])
    assert read(reader, bucket.chunk(20_000, 10, recorded)) == BYTES[70_000:70_010]
    for offset in (99_999, 150_000):
        with pytest.raises(StorageError) as caught:
            read(reader, bucket.chunk(offset, 10, recorded))
        assert caught.value.kind == ErrorKind.INVALID_OBJECT_SIZE
    bucket.put(BYTES * 2)
    assert read(reader, bucket.chunk(300_000, 10, recorded)) == BYTES[100_000:100_010]


@pytest.mark.server
def test_a_container_may_only_warn_of_changes(
    bucket: Bucket, caplog: pytest.LogCaptureFixture
) -> None:
    reader = bucket.reader(on_change="warn")
    with pytest.warns(UserWarning, match="changed since .*recorded old, found"):
        assert read(reader, bucket.chunk(0, 10, "old")) == BYTES[:10]
    assert read(reader, bucket.chunk(10, 10, "old")) == BYTES[10:20]  # or it would fail here
    assert sum("changed since" in each.message for each in caplog.records) == 1


@pytest.mark.server
def test_a_container_may_ignore_changes(bucket: Bucket, caplog: pytest.LogCaptureFixture) -> None:
    reader = bucket.reader(on_change="off")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read(reader, bucket.chunk(0, 10, "old")) == BYTES[:10]
    assert not own_messages(caplog)


@pytest.mark.parametrize("on_change", ["strict", "warn", "off"])
def test_the_policy_goes_for_times_as_well(tmp_path: Path, on_change: OnChange) -> None:
    (tmp_path / "a.nc").write_bytes(BYTES)
    reader = local_reader(tmp_path, on_change)
    chunk = VirtualChunk(f"file://{tmp_path}/a.nc", 0, 10, last_modified=1000)
    match on_change:
        case "strict":
            with pytest.raises(StorageError, match="1970-01-01T00:16:40"):
                read(reader, chunk)
        case "warn":
            with pytest.warns(UserWarning, match="1970-01-01T00:16:40"):
                assert read(reader, chunk) == BYTES[:10]
        case "off":
            assert read(reader, chunk) == BYTES[:10]


# -- bounds ------------------------------------------------------------------------------------

ABSURD = [
    (0, 2**40),
    (0, 2**63),
    (0, 2**64 - 1),
    (199_999, 2),
    (200_000, 1),
    (2**40, 10),
    (2**62, 2**62),
    (2**63 - 1, 1),
    (2**64 - 1, 2**64 - 1),
]


def check_refused(reader: VirtualReader, location: str) -> None:
    """Nothing is read, and next to no memory is taken."""
    read(reader, VirtualChunk(location, 0, 1))  # opens the client
    for offset, length in ABSURD:
        tracemalloc.start()
        try:
            with pytest.raises(IcefloeError) as caught:
                read(reader, VirtualChunk(location, offset, length))
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert caught.value.kind == ErrorKind.INVALID_OBJECT_SIZE, (offset, length)
        assert peak < 4 << 20, (offset, length)
    chunks = [VirtualChunk(location, offset, length) for offset, length in ABSURD]
    found = read_together(reader, [*chunks, VirtualChunk(location, 0, 10)])
    assert all(isinstance(each, StorageError) for each in found[:-1])
    assert found[-1] == BYTES[:10]


@pytest.mark.server
def test_absurd_ranges_of_a_bucket_cost_nothing(bucket: Bucket) -> None:
    check_refused(bucket.reader(), f"{bucket.url}a.nc")


def test_absurd_ranges_of_a_web_server_cost_nothing(
    web: tuple[FileServer, VirtualReader],
) -> None:
    server, reader = web
    check_refused(reader, f"{server.url}/a.nc")


def test_absurd_ranges_of_a_file_cost_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.nc").write_bytes(BYTES)
    check_refused(local_reader(tmp_path), f"file://{tmp_path}/a.nc")


def test_an_empty_part_needs_authorisation_but_no_request(
    web: tuple[FileServer, VirtualReader],
) -> None:
    server, reader = web
    chunk = VirtualChunk(f"{server.url}/a.nc", 0, 10)
    assert run_blocking(reader.read(chunk, 4, 4)) == b""
    assert not server.requests
    stranger = VirtualReader([VirtualChunkContainer(f"{server.url}/", http_store())])
    with pytest.raises(InvalidInputError):
        run_blocking(stranger.read(chunk, 4, 4))
