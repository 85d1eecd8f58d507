"""Virtual chunks are read from authorised containers only, and only unchanged."""

import os
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import icefloe
from icefloe.config import (
    RepositoryConfig,
    VirtualChunkContainer,
    azure_store,
    gcs_store,
    http_store,
    local_filesystem_store,
    s3_store,
)
from icefloe.credentials import (
    AnyAzureCredential,
    AnyCredential,
    AnyGcsCredential,
    HttpAccess,
    LocalFileSystemAccess,
    azure_credentials,
    containers_credentials,
    gcs_credentials,
    s3_credentials,
)
from icefloe.effects import run_blocking
from icefloe.errors import ErrorKind, IcefloeError, InvalidInputError, StorageError
from icefloe.format.chunk_table import VirtualChunk
from icefloe.format.columns import BytesColumn
from icefloe.storage import Storage
from icefloe.virtual_chunks.reader import VirtualReader
from icefloe.virtual_chunks.resolve import normalise, normalise_all
from tests.conformance.storages import azure_storage_at, gcs_storage_at, s3_storage_at
from tests.support.gcs_server import GcsEndpoint
from tests.support.http_server import file_server
from tests.support.servers import AzureEndpoint, S3Endpoint

BYTES = bytes(range(100))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    (folder / "deep").mkdir(parents=True)
    (folder / "a.nc").write_bytes(BYTES)
    (folder / "deep" / "odd #1 %20ñ?.nc").write_bytes(BYTES)
    (tmp_path / "data-evil").mkdir()
    (tmp_path / "data-evil" / "secret").write_bytes(BYTES)
    return folder


def local_container(folder: Path, name: str | None = None) -> VirtualChunkContainer:
    return VirtualChunkContainer(f"file://{folder}/", local_filesystem_store(str(folder)), name)


def local_reader(folder: Path) -> VirtualReader:
    container = local_container(folder, "data")
    return VirtualReader([container], {f"file://{folder}": LocalFileSystemAccess})


def read(
    reader: VirtualReader, chunk: VirtualChunk, start: int = 0, stop: int | None = None
) -> bytes:
    return bytes(run_blocking(reader.read(chunk, start, chunk.length if stop is None else stop)))


def failure(reader: VirtualReader, chunk: VirtualChunk) -> IcefloeError:
    with pytest.raises(IcefloeError) as caught:
        read(reader, chunk)
    return caught.value


def test_a_range_of_a_local_file(folder: Path) -> None:
    chunk = VirtualChunk(f"file://{folder}/a.nc", 10, 20)
    assert read(local_reader(folder), chunk) == BYTES[10:30]
    assert read(local_reader(folder), chunk, 5, 8) == BYTES[15:18]
    assert read(local_reader(folder), chunk, 5, 5) == b""


def test_file_names_are_taken_as_they_are(folder: Path) -> None:
    location = f"file://{folder}/deep/odd%20%231%20%2520ñ%3F.nc"
    assert read(local_reader(folder), VirtualChunk(location, 0, 4)) == BYTES[:4]


def test_a_location_below_a_named_container(folder: Path) -> None:
    reader = local_reader(folder)
    assert read(reader, VirtualChunk("vcc://data/a.nc", 0, 4)) == BYTES[:4]
    assert reader.resolver.absolute("vcc://data/a.nc") == f"file://{folder}/a.nc"


@pytest.mark.parametrize(
    ("location", "kind"),
    [
        ("file://{}-evil/secret", ErrorKind.NO_CONTAINER_FOR_VIRTUAL_CHUNK),
        ("file://{}/../data-evil/secret", ErrorKind.NO_CONTAINER_FOR_VIRTUAL_CHUNK),
        ("file://{}/%2e%2e/data-evil/secret", ErrorKind.NO_CONTAINER_FOR_VIRTUAL_CHUNK),
        ("vcc://data/../data-evil/secret", ErrorKind.NO_CONTAINER_FOR_VIRTUAL_CHUNK),
        ("vcc://other/a.nc", ErrorKind.NO_CONTAINER_FOR_VIRTUAL_CHUNK),
        ("vcc://data", ErrorKind.NO_CONTAINER_FOR_VIRTUAL_CHUNK),
        ("file://{}/..%2fdata-evil/secret", ErrorKind.INVALID_VIRTUAL_REF),
        ("file://{}//a.nc", ErrorKind.INVALID_VIRTUAL_REF),
        ("nothing", ErrorKind.INVALID_VIRTUAL_REF),
    ],
)
def test_nothing_outside_of_a_container_is_read(folder: Path, location: str, kind: str) -> None:
    assert failure(local_reader(folder), VirtualChunk(location.format(folder), 0, 4)).kind == kind


def test_a_stored_path_does_not_widen_what_was_authorised(folder: Path) -> None:
    hostile = VirtualChunkContainer(f"file://{folder}/deep/", local_filesystem_store("/"))
    reader = VirtualReader([hostile], {hostile.url_prefix: LocalFileSystemAccess})
    error = failure(reader, VirtualChunk(f"file://{folder}/a.nc", 0, 4))
    assert error.kind == ErrorKind.NO_CONTAINER_FOR_VIRTUAL_CHUNK


def test_unlisted_containers_are_not_read_and_the_error_says_what_to_write(folder: Path) -> None:
    reader = VirtualReader([local_container(folder)], {"file:///elsewhere/": LocalFileSystemAccess})
    error = failure(reader, VirtualChunk(f"file://{folder}/a.nc", 0, 4))
    assert isinstance(error, InvalidInputError)
    assert error.kind == ErrorKind.UNAUTHORIZED_VIRTUAL_CHUNK_CONTAINER
    grant = f"{{'file://{folder}/': icefloe.credentials.LocalFileSystemAccess}}"
    assert grant in error.message
    assert reader.resolver.authorised_prefixes == frozenset()


def test_the_longest_prefix_decides(folder: Path) -> None:
    outer, inner = local_container(folder), local_container(folder / "deep")
    reader = VirtualReader([outer, inner], {f"file://{folder}/": LocalFileSystemAccess})
    assert reader.resolver.locate(f"file://{folder}/a.nc").container is outer
    assert reader.resolver.locate(f"file://{folder}/deep/x").container is inner
    assert read(reader, VirtualChunk(f"file://{folder}/a.nc", 0, 4)) == BYTES[:4]


def test_missing_short_and_overlong_objects(folder: Path) -> None:
    reader = local_reader(folder)
    missing = failure(reader, VirtualChunk(f"file://{folder}/none.nc", 0, 4))
    assert isinstance(missing, StorageError)
    assert missing.kind == ErrorKind.VIRTUAL_CHUNK_FETCH
    for offset, length in ((90, 11), (200, 4), (2**64 - 8, 4)):
        short = failure(reader, VirtualChunk(f"file://{folder}/a.nc", offset, length))
        assert short.kind == ErrorKind.INVALID_OBJECT_SIZE


def test_a_file_is_compared_with_the_recorded_time(folder: Path) -> None:
    location, moment = f"file://{folder}/a.nc", datetime(2024, 5, 1, tzinfo=UTC)
    recorded = int(moment.timestamp())
    os.utime(folder / "a.nc", (recorded + 0.9, recorded + 0.9))
    chunk = VirtualChunk(location, 0, 4, last_modified=recorded)
    assert read(local_reader(folder), chunk) == BYTES[:4]
    later = (moment + timedelta(seconds=2)).timestamp()
    os.utime(folder / "a.nc", (later, later))
    error = failure(local_reader(folder), chunk)
    assert error.kind == ErrorKind.VIRTUAL_CHUNK_MODIFIED
    assert "2024-05-01T00:00:00+00:00" in error.message
    assert "2024-05-01T00:00:02" in error.message


def test_a_file_is_compared_with_the_recorded_etag(folder: Path) -> None:
    """Other programs count microseconds in it."""
    status = (folder / "a.nc").stat()
    etag = f"{status.st_ino:x}-{status.st_mtime_ns // 1000:x}-{status.st_size:x}"
    location = f"file://{folder}/a.nc"
    assert read(local_reader(folder), VirtualChunk(location, 0, 4, etag=etag)) == BYTES[:4]
    error = failure(local_reader(folder), VirtualChunk(location, 0, 4, etag="0-0-0"))
    assert error.kind == ErrorKind.VIRTUAL_CHUNK_MODIFIED
    assert "0-0-0" in error.message


def test_a_reader_travels_to_other_processes(folder: Path) -> None:
    reader = pickle.loads(pickle.dumps(local_reader(folder)))
    assert read(reader, VirtualChunk("vcc://data/a.nc", 0, 4)) == BYTES[:4]


# -- recording ---------------------------------------------------------------------------------


def uncovered(reader: VirtualReader, rows: list[str]) -> list[bool]:
    _, is_uncovered = reader.recorded(BytesColumn.from_strings(rows), validate=True)
    assert is_uncovered is not None
    return [bool(flag) for flag in is_uncovered]


def test_locations_no_container_covers_are_found_in_columns(folder: Path) -> None:
    reader = local_reader(folder)
    good = [f"file://{folder}/x{number}.nc" for number in range(50)]
    bad = [f"file://{folder}-evil/x", "models://bucket/key", "vcc://none/x"]
    odd = [f"file://{folder}/with space.nc", "vcc://data/y.nc", f"FILE://{folder}/z.nc"]
    rows = [*good, *bad, *odd, *good]
    expected = [False] * 50 + [True] * 3 + [False] * 53
    assert uncovered(reader, rows) == expected


def test_keys_that_could_never_be_read_are_refused_when_recorded(folder: Path) -> None:
    web = VirtualChunkContainer("https://host/x/", http_store())
    s3 = VirtualChunkContainer("s3://bucket/", s3_store())
    reader = VirtualReader([web, s3, local_container(folder)])
    for location in (
        "https://host/x/../y",
        "https://host/x/a//b",
        f"file://{folder}/..%2fx",
        "foo",
    ):
        with pytest.raises(InvalidInputError) as caught:
            uncovered(reader, [location])
        assert caught.value.kind == ErrorKind.INVALID_VIRTUAL_REF
    assert uncovered(reader, ["s3://bucket/a/../b", "s3://bucket//a"]) == [False, False]


def test_columns_are_normalised_like_single_locations() -> None:
    rows = ["s3://b/x", "S3://b/x", "file:///a/../b c", "file:///plain/x.nc", "vcc://n/x"]
    together = normalise_all(BytesColumn.from_strings(rows)).to_strings()
    assert together == [normalise(row) for row in rows]


# -- web servers and S3 ------------------------------------------------------------------------


def test_a_range_from_a_web_server(folder: Path) -> None:
    with file_server(folder.parent) as server:
        prefix = f"{server.url}/data/"
        container = VirtualChunkContainer(prefix, http_store())
        reader = VirtualReader([container], {prefix: HttpAccess})
        assert read(reader, VirtualChunk(f"{prefix}a.nc?x=1", 10, 5)) == BYTES[10:15]
        odd = f"{prefix}deep/odd%20%231%20%2520%C3%B1%3F.nc"
        assert read(reader, VirtualChunk(odd, 0, 4)) == BYTES[:4]
        missing = failure(reader, VirtualChunk(f"{prefix}none.nc", 0, 4))
        assert missing.kind == ErrorKind.VIRTUAL_CHUNK_FETCH
        changed = failure(reader, VirtualChunk(f"{prefix}a.nc", 0, 4, etag='"other"'))
        assert changed.kind == ErrorKind.VIRTUAL_CHUNK_MODIFIED
        short = failure(reader, VirtualChunk(f"{prefix}a.nc", 98, 4))
        assert short.kind == ErrorKind.INVALID_OBJECT_SIZE


def test_many_threads_open_a_container_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Storage] = []
    original = Storage.open

    def counting(storage: Storage, *args: object) -> object:
        opened.append(storage)
        return original(storage)

    monkeypatch.setattr(Storage, "open", counting)
    reader = local_reader(folder)
    gate = threading.Barrier(8)

    def work(_: int) -> bytes:
        gate.wait()
        return read(reader, VirtualChunk("vcc://data/a.nc", 0, 4))

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(work, range(8))) == {BYTES[:4]}
    assert len(opened) == 1


@pytest.mark.server
def test_a_range_of_an_s3_object(s3_endpoint: S3Endpoint, prefix: str) -> None:
    backend = s3_storage_at(s3_endpoint, prefix).open()
    version = run_blocking(backend.put("odd #1 ñ.nc", BYTES))
    container, access = s3_container(s3_endpoint, prefix)
    reader = VirtualReader([container], access, trusted=[container])
    location = f"{container.url_prefix}odd%20%231%20ñ.nc"
    assert version.etag is not None
    chunk = VirtualChunk(location, 10, 20, etag=version.etag.strip('"'))
    assert read(reader, chunk) == BYTES[10:30]
    run_blocking(backend.put("odd #1 ñ.nc", BYTES[::-1]))
    assert failure(reader, chunk).kind == ErrorKind.VIRTUAL_CHUNK_MODIFIED


def s3_container(
    endpoint: S3Endpoint, prefix: str
) -> tuple[VirtualChunkContainer, dict[str, AnyCredential | None]]:
    container = VirtualChunkContainer(
        f"s3://{endpoint.bucket}/{prefix}/",
        s3_store(
            region=endpoint.region,
            endpoint_url=endpoint.url,
            allow_http=True,
            force_path_style=True,
            s3_compatible=True,
        ),
    )
    keys = s3_credentials(
        access_key_id=endpoint.access_key_id, secret_access_key=endpoint.secret_access_key
    )
    return container, containers_credentials({container.url_prefix: keys})


@pytest.mark.server
def test_a_range_of_a_gcs_object(gcs_endpoint: GcsEndpoint, prefix: str) -> None:
    container = VirtualChunkContainer(
        f"gs://{gcs_endpoint.bucket}/{prefix}/", gcs_store({"allow_http": "true"})
    )
    key = gcs_credentials(service_account_key=gcs_endpoint.service_account_key)
    check_cloud_container(gcs_storage_at(gcs_endpoint, prefix), container, key)


@pytest.mark.server
def test_a_range_of_an_azure_blob(azure_endpoint: AzureEndpoint, prefix: str) -> None:
    config = {"azure_storage_endpoint": azure_endpoint.url, "allow_http": "true"}
    container = VirtualChunkContainer(
        f"az://{azure_endpoint.container}/{prefix}/",
        azure_store(account=azure_endpoint.account, config=config),
    )
    key = azure_credentials(access_key=azure_endpoint.account_key)
    check_cloud_container(azure_storage_at(azure_endpoint, prefix), container, key)


def check_cloud_container(
    storage: Storage,
    container: VirtualChunkContainer,
    credential: AnyGcsCredential | AnyAzureCredential,
) -> None:
    """Write an object as a repository would, and read it as a virtual chunk."""
    backend = storage.open()
    run_blocking(backend.put("plain.nc", BYTES))
    run_blocking(backend.put("ñ.nc", BYTES))  # which repositories write percent-encoded
    access = containers_credentials({container.url_prefix: credential})
    reader = VirtualReader([container], access, trusted=[container])
    plain, odd = (f"{container.url_prefix}{name}" for name in ("plain.nc", "%25C3%25B1.nc"))
    assert read(reader, VirtualChunk(plain, 10, 20)) == BYTES[10:30]
    assert read(reader, VirtualChunk(odd, 10, 20)) == BYTES[10:30]
    missing = failure(reader, VirtualChunk(f"{container.url_prefix}none", 0, 4))
    assert missing.kind == ErrorKind.VIRTUAL_CHUNK_FETCH


# -- hostile configurations --------------------------------------------------------------------


def test_a_stored_endpoint_gets_no_credentials(tmp_path: Path) -> None:
    with file_server(tmp_path) as server:
        hostile = VirtualChunkContainer(
            "s3://bucket/",
            s3_store(endpoint_url=server.url, allow_http=True, region="us-east-1"),
        )
        keys = s3_credentials(access_key_id="id", secret_access_key="the-secret")
        access = containers_credentials({"s3://bucket/": keys})
        chunk = VirtualChunk("s3://bucket/key", 0, 4)

        refused = failure(VirtualReader([hostile], access), chunk)
        assert refused.kind == ErrorKind.UNAUTHORIZED_VIRTUAL_CHUNK_CONTAINER
        assert server.url in refused.message
        assert "the-secret" not in refused.message
        assert server.requests == []

        trusting = VirtualReader([hostile], access, trusted=[hostile])
        assert failure(trusting, chunk).kind == ErrorKind.VIRTUAL_CHUNK_FETCH
        assert len(server.requests) == 1

        # What anybody may have, it is asked for.
        anonymous = containers_credentials({"s3://bucket/": s3_credentials(anonymous=True)})
        assert failure(VirtualReader([hostile], anonymous), chunk).kind == (
            ErrorKind.VIRTUAL_CHUNK_FETCH
        )
        assert len(server.requests) == 2


def test_neither_opening_again_nor_pickling_makes_a_stored_endpoint_trusted(
    tmp_path: Path,
) -> None:
    with file_server(tmp_path) as server:
        hostile = VirtualChunkContainer(
            "s3://bucket/", s3_store(endpoint_url=server.url, allow_http=True)
        )
        config = RepositoryConfig()
        config.set_virtual_chunk_container(hostile)
        storage = icefloe.local_filesystem_storage(str(tmp_path / "repo"))
        icefloe.Repository.create(storage, config)
        keys = s3_credentials(access_key_id="id", secret_access_key="the-secret")
        access = containers_credentials({"s3://bucket/": keys})
        opened = icefloe.Repository.open(storage, authorize_virtual_chunk_access=access)
        for repository in (
            opened,
            opened.reopen(),
            opened.reopen(RepositoryConfig(inline_chunk_threshold_bytes=1)),
            opened.reopen(authorize_virtual_chunk_access=access),
            pickle.loads(pickle.dumps(opened)),
        ):
            reader = repository._context.virtual
            assert reader.resolver.authorised_prefixes == {"s3://bucket/"}
            refused = failure(reader, VirtualChunk("s3://bucket/key", 0, 4))
            assert refused.kind == ErrorKind.UNAUTHORIZED_VIRTUAL_CHUNK_CONTAINER
        assert server.requests == []
        trusting = opened.reopen(config)._context.virtual
        fetched = failure(trusting, VirtualChunk("s3://bucket/key", 0, 4))
        assert fetched.kind == ErrorKind.VIRTUAL_CHUNK_FETCH
        assert len(server.requests) == 1
