"""How many requests virtual chunks take, counted at the server, beside the reference."""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import icechunk as ic
import numpy as np
import pytest
import zarr

import icefloe
from icefloe.effects import run_blocking
from tests.conformance.storages import s3_storage_at
from tests.support.proxy import CuttingProxy, cutting_proxy
from tests.support.servers import S3Endpoint

pytestmark = [pytest.mark.interop, pytest.mark.server]

CHUNK = 100_000
COUNT = 2000


@dataclass(frozen=True)
class Place:
    """A repository on this machine, whose chunks are all in one file on a server."""

    folder: Path
    prefix: str
    endpoint: S3Endpoint
    proxy: CuttingProxy

    def array(self, library: Any) -> Any:
        """Open the array with one of the libraries, which see each other's API."""
        store = library.s3_store(
            region=self.endpoint.region,
            endpoint_url=self.proxy.url,
            allow_http=True,
            force_path_style=True,
            s3_compatible=True,
        )
        config = library.RepositoryConfig.default()
        # Or the reference would cut each chunk into parts, as suits the folder of the repository.
        whole = library.StorageConcurrencySettings(1, 12 << 20)
        config.storage = library.StorageSettings(concurrency=whole)
        config.set_virtual_chunk_container(library.VirtualChunkContainer(self.prefix, store))
        keys = library.s3_credentials(
            access_key_id=self.endpoint.access_key_id,
            secret_access_key=self.endpoint.secret_access_key,
        )
        storage = library.local_filesystem_storage(str(self.folder))
        is_new = not library.Repository.exists(storage)
        repo = library.Repository.open_or_create(
            storage,
            config=config,
            authorize_virtual_chunk_access=library.containers_credentials({self.prefix: keys}),
        )
        if is_new:
            self._record(repo, library)
        return zarr.open_array(repo.readonly_session("main").store, path="numbers", mode="r")

    def _record(self, repo: Any, library: Any) -> None:
        session = repo.writable_session("main")
        group = zarr.create_group(session.store)
        group.create_array(
            "numbers", shape=(COUNT * CHUNK,), chunks=(CHUNK,), dtype="u1", compressors=None
        )
        specs = [
            library.VirtualChunkSpec([row], f"{self.prefix}big.nc", row * CHUNK, CHUNK)
            for row in range(COUNT)
        ]
        assert session.store.set_virtual_refs("numbers", specs) is None
        session.commit("record")

    def counted(self) -> tuple[int, int]:
        """Give the requests for the file since this was last asked, and the bytes they got."""
        found = [each for each in self.proxy.exchanges if "big.nc" in each.path]
        self.proxy.plan()
        return len(found), sum(each.bytes_in for each in found)


@pytest.fixture(scope="module")
def content() -> bytes:
    return np.random.default_rng(7).integers(0, 256, COUNT * CHUNK, np.uint8).tobytes()


@pytest.fixture(scope="module")
def place(
    s3_endpoint: S3Endpoint, tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("requests")
    prefix = f"requests-{uuid.uuid4().hex}"  # other workers of the test run use the bucket too
    run_blocking(s3_storage_at(s3_endpoint, prefix).open().put("big.nc", content))
    with cutting_proxy(s3_endpoint.url) as proxy:
        yield Place(folder, f"s3://{s3_endpoint.bucket}/{prefix}/", s3_endpoint, proxy)


def test_chunks_in_order_take_a_tenth_of_the_requests(place: Place, content: bytes) -> None:
    requests = {}
    for library in (icefloe, ic):
        array = place.array(library)
        place.counted()
        assert array[:].tobytes() == content
        requests[library], fetched = place.counted()
        assert fetched <= 1.01 * len(content)
    assert requests[ic] >= COUNT  # more if one had to be repeated
    assert requests[icefloe] <= COUNT // 10


def test_chunks_one_by_one_in_order_are_read_ahead(place: Place, content: bytes) -> None:
    array = place.array(icefloe)
    place.counted()
    for row in range(200):
        at = row * CHUNK
        assert array[at : at + CHUNK].tobytes() == content[at : at + CHUNK]
    requests, fetched = place.counted()
    assert requests <= 20
    assert fetched <= 2 * 200 * CHUNK  # one window may be ahead


def test_chunks_in_random_order_take_no_more_than_the_reference(
    place: Place, content: bytes
) -> None:
    order = np.random.default_rng(3).permutation(COUNT)[:200].tolist()
    requests, fetched = {}, {}
    for library in (icefloe, ic):
        array = place.array(library)
        place.counted()
        for row in order:
            at = row * CHUNK
            assert array[at : at + CHUNK].tobytes() == content[at : at + CHUNK]
        requests[library], fetched[library] = place.counted()
    assert requests[icefloe] <= len(order) <= requests[ic]
    assert fetched[icefloe] <= 1.02 * fetched[ic]
