"""Reads through a cache on a disk, from a real object store: requests are counted there."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import xarray as xr
import zarr

import icefloe
from icefloe.effects import run_blocking
from icefloe.errors import ErrorKind, StorageError
from icefloe.storage import Storage
from tests.conformance.storages import s3_storage_at
from tests.support.servers import S3Endpoint

pytestmark = pytest.mark.server

VALUES = np.arange(4_000, dtype="f8").reshape(40, 100)


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[icefloe.DiskCache]:
    with icefloe.cache(tmp_path / "cache") as cache:
        yield cache


def at(endpoint: S3Endpoint, prefix: str) -> Storage:
    return s3_storage_at(endpoint, prefix)


@pytest.mark.parametrize("spec_version", [1, 2])
@pytest.mark.parametrize("packing", [False, True])
def test_the_second_read_requests_the_repo_object_only(
    s3_endpoint: S3Endpoint,
    prefix: str,
    cache: icefloe.DiskCache,
    spec_version: int,
    packing: bool,
) -> None:
    config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0)
    repo = icefloe.Repository.create(
        at(s3_endpoint, prefix), config, spec_version=icefloe.SpecVersion(spec_version)
    )
    session = repo.writable_session("main", packing=packing)
    zarr.create_array(
        session.store, name="a", data=VALUES, chunks=(1, 100), dimension_names=("y", "x")
    )
    session.commit("values")

    def read() -> Storage:
        storage = at(s3_endpoint, prefix)
        opened = icefloe.Repository.open(storage)
        with xr.open_dataset(cast("Any", opened), engine="icefloe") as dataset:
            np.testing.assert_array_equal(dataset.a.values, VALUES)
        store = opened.readonly_session("main").store
        row = zarr.open_array(store, path="a", mode="r")[3]
        np.testing.assert_array_equal(np.asarray(row), VALUES[3])
        return storage

    first = read().request_counts()
    before = cache.statistics
    assert before.stored > 2
    second = read().request_counts()
    after = cache.statistics
    assert after.misses == before.misses
    assert second.get < first.get
    assert second.get_ranges == 0
    # The repo object, for the repository and each session; in spec 1 also files of refs, and
    # snapshots, which expiration replaces.
    assert second.get <= {1: 7, 2: 3}[spec_version]
    assert after.hits - before.hits >= 3


def test_a_copy_of_names_does_not_share_entries(
    s3_endpoint: S3Endpoint, prefix: str, cache: icefloe.DiskCache
) -> None:
    """A hostile repository may use the ids of another one."""
    storages = [at(s3_endpoint, f"{prefix}/{name}") for name in ("a", "b")]
    repo = icefloe.Repository.create(
        storages[0], icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0)
    )
    with repo.transaction("main", message="values") as store:
        zarr.create_array(store, name="a", data=VALUES, chunks=(40, 100), compressors=None)
    backends = [storage.open() for storage in storages]
    for name, _ in storages[0].list_objects():
        data = bytes(run_blocking(backends[0].get(name)).data)
        if name.startswith("chunks/"):
            data = np.zeros_like(VALUES).tobytes()
        run_blocking(backends[1].put(name, data))
    for storage, expected in zip(storages, (VALUES, 0 * VALUES), strict=True):
        session = icefloe.Repository.open(storage).readonly_session("main")
        array = zarr.open_array(session.store, path="a", mode="r")
        np.testing.assert_array_equal(np.asarray(array[:]), expected)


@pytest.mark.parametrize("checksum", ["etag", "time", None])
def test_virtual_chunks_are_kept_by_their_recorded_state(
    s3_endpoint: S3Endpoint,
    prefix: str,
    tmp_path: Path,
    cache: icefloe.DiskCache,
    checksum: str | None,
) -> None:
    archive = at(s3_endpoint, f"{prefix}/archive").open()
    run_blocking(archive.put("file.bin", VALUES.tobytes()))
    info = run_blocking(archive.head("file.bin")).info
    recorded: Any = {"etag": info.version.etag, "time": info.last_modified, None: None}[checksum]
    url = f"s3://{s3_endpoint.bucket}/{prefix}/archive/"
    store = icefloe.s3_store(
        region=s3_endpoint.region,
        endpoint_url=s3_endpoint.url,
        allow_http=True,
        force_path_style=True,
        s3_compatible=True,
    )
    config = icefloe.RepositoryConfig.default()
    config.set_virtual_chunk_container(icefloe.VirtualChunkContainer(url, store))
    keys = icefloe.s3_credentials(
        access_key_id=s3_endpoint.access_key_id, secret_access_key=s3_endpoint.secret_access_key
    )
    storage = icefloe.local_filesystem_storage(str(tmp_path / "repo"))
    repo = icefloe.Repository.create(
        storage, config, authorize_virtual_chunk_access=icefloe.containers_credentials({url: keys})
    )
    session = repo.writable_session("main")
    zarr.create_array(
        session.store, name="a", shape=(40, 100), chunks=(10, 100), dtype="f8", compressors=None
    )
    for row in range(4):
        session.store.set_virtual_ref(
            f"a/c/{row}/0", f"{url}file.bin", offset=row * 8000, length=8000, checksum=recorded
        )
    session.commit("references")

    def read() -> Any:
        opened = icefloe.Repository.open(
            storage,
            config,
            authorize_virtual_chunk_access=icefloe.containers_credentials({url: keys}),
        )
        path_store = opened.readonly_session("main").store
        return np.asarray(zarr.open_array(path_store, path="a", mode="r")[:])

    np.testing.assert_array_equal(read(), VALUES)
    assert cache.statistics.stored == (4 if checksum else 0)
    run_blocking(archive.delete_many(["file.bin"]))
    if checksum:
        np.testing.assert_array_equal(read(), VALUES)
        assert cache.statistics.hits == 4
    else:
        with pytest.raises(StorageError, match="does not exist"):
            read()
    unauthorised = icefloe.Repository.open(storage, config).readonly_session("main").store
    with pytest.raises(icefloe.IcefloeError, match="authorize"):
        zarr.open_array(unauthorised, path="a", mode="r")[:]


def test_bytes_of_a_changed_object_are_never_kept(
    s3_endpoint: S3Endpoint, prefix: str, tmp_path: Path, cache: icefloe.DiskCache
) -> None:
    archive = at(s3_endpoint, f"{prefix}/archive").open()
    run_blocking(archive.put("file.bin", b"other bytes"))
    url = f"s3://{s3_endpoint.bucket}/{prefix}/archive/"
    config = icefloe.RepositoryConfig.default()
    store = icefloe.s3_store(
        region=s3_endpoint.region,
        endpoint_url=s3_endpoint.url,
        allow_http=True,
        force_path_style=True,
        s3_compatible=True,
    )
    config.set_virtual_chunk_container(icefloe.VirtualChunkContainer(url, store))
    keys = icefloe.s3_credentials(
        access_key_id=s3_endpoint.access_key_id, secret_access_key=s3_endpoint.secret_access_key
    )
    repo = icefloe.Repository.create(
        icefloe.local_filesystem_storage(str(tmp_path / "repo")),
        config,
        authorize_virtual_chunk_access=icefloe.containers_credentials({url: keys}),
    )
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="a", shape=5, chunks=5, dtype="u1", compressors=None)
    session.store.set_virtual_ref("a/c/0", f"{url}file.bin", offset=0, length=5, checksum="former")
    with pytest.raises(StorageError) as failure:
        zarr.open_array(session.store, path="a", mode="r")[:]
    assert failure.value.kind == ErrorKind.VIRTUAL_CHUNK_MODIFIED
    assert cache.statistics.stored == 0
