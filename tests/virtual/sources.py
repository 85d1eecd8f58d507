"""Objects on servers of all kinds, and arrays whose chunks lie in them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

import icefloe
from icefloe import Repository, Session, Storage
from icefloe.config import (
    ObjectStoreConfig,
    RepositoryConfig,
    VirtualChunkContainer,
    azure_store,
    gcs_store,
    http_store,
    local_filesystem_store,
    s3_store,
)
from icefloe.credentials import (
    AnyCredential,
    azure_credentials,
    containers_credentials,
    gcs_credentials,
    s3_credentials,
)
from icefloe.effects import run_blocking
from tests.conformance.storages import azure_storage_at, gcs_storage_at, s3_storage_at
from tests.support.gcs_server import GcsEndpoint
from tests.support.servers import AzureEndpoint, S3Endpoint

HEADER = b"a header of some format, in front of the numbers"
"""What the file begins with, so that offsets matter."""
SHAPE = (6, 40)


def numbers(seed: int) -> NDArray[np.float64]:
    """Make up values that no other seed has."""
    return np.random.default_rng(seed).normal(280, 10, SHAPE)


def file_of(values: NDArray[np.float64]) -> bytes:
    """Write values as a program that knows nothing of Zarr would."""
    return HEADER + values.astype("<f8").tobytes()


@dataclass(frozen=True, slots=True)
class Source:
    """A file somewhere, and what it takes to read it."""

    location: str
    container: VirtualChunkContainer
    access: Mapping[str, AnyCredential | None]


def config_of(*containers: VirtualChunkContainer) -> RepositoryConfig:
    config = RepositoryConfig()
    for container in containers:
        config.set_virtual_chunk_container(container)
    return config


def access_of(*sources: Source) -> dict[str, AnyCredential | None]:
    return {prefix: credential for each in sources for prefix, credential in each.access.items()}


def put(storage: Storage, name: str, content: bytes) -> None:
    run_blocking(storage.open().put(name, content))


def keys_of(endpoint: S3Endpoint) -> Any:
    return s3_credentials(
        access_key_id=endpoint.access_key_id, secret_access_key=endpoint.secret_access_key
    )


def store_at(endpoint: S3Endpoint, url: str | None = None) -> ObjectStoreConfig.S3Compatible:
    store = s3_store(
        region=endpoint.region,
        endpoint_url=url or endpoint.url,
        allow_http=True,
        force_path_style=True,
        s3_compatible=True,
    )
    assert isinstance(store, ObjectStoreConfig.S3Compatible)
    return store


def on_s3(
    endpoint: S3Endpoint, prefix: str, content: bytes, *, scheme: str = "s3", url: str | None = None
) -> Source:
    """Put a file into a bucket of an S3 server, perhaps one that is reached through a proxy."""
    put(s3_storage_at(endpoint, prefix), "data.bin", content)
    url_prefix = f"{scheme}://{endpoint.bucket}/{prefix}/"
    container = VirtualChunkContainer(url_prefix, store_at(endpoint, url))
    access = containers_credentials({url_prefix: keys_of(endpoint)})
    return Source(f"{url_prefix}data.bin", container, access)


def on_azure(endpoint: AzureEndpoint, prefix: str, content: bytes) -> Source:
    put(azure_storage_at(endpoint, prefix), "data.bin", content)
    url_prefix = f"az://{endpoint.container}/{prefix}/"
    options = {"azure_storage_endpoint": endpoint.url, "allow_http": "true"}
    container = VirtualChunkContainer(
        url_prefix, azure_store(account=endpoint.account, config=options)
    )
    key = azure_credentials(access_key=endpoint.account_key)
    return Source(f"{url_prefix}data.bin", container, containers_credentials({url_prefix: key}))


def on_gcs(endpoint: GcsEndpoint, prefix: str, content: bytes, *, url: str | None = None) -> Source:
    put(gcs_storage_at(endpoint, prefix), "data.bin", content)
    url_prefix = f"gs://{endpoint.bucket}/{prefix}/"
    options = {"google_base_url": url or endpoint.url, "allow_http": "true"}
    container = VirtualChunkContainer(url_prefix, gcs_store(options))
    token = gcs_credentials(bearer_token="token-of-google")
    return Source(f"{url_prefix}data.bin", container, containers_credentials({url_prefix: token}))


def on_web(url: str, root: Path, content: bytes) -> Source:
    """Put a file where a web server finds it."""
    (root / "data.bin").write_bytes(content)
    container = VirtualChunkContainer(f"{url}/", http_store())
    access = containers_credentials({f"{url}/": icefloe.credentials.HttpAccess})
    return Source(f"{url}/data.bin", container, access)


def on_disk(folder: Path, content: bytes) -> Source:
    (folder / "data.bin").write_bytes(content)
    url_prefix = f"{folder.as_uri()}/"
    container = VirtualChunkContainer(url_prefix, local_filesystem_store(str(folder)))
    access = containers_credentials({url_prefix: icefloe.credentials.LocalFileSystemAccess})
    return Source(f"{url_prefix}data.bin", container, access)


def record(session: Session, name: str, location: str) -> None:
    """Make an array whose chunks are the rows of a file, and name what is missing for that."""
    zarr.create_array(
        session.store,
        name=name,
        shape=SHAPE,
        chunks=(1, SHAPE[1]),
        dtype="<f8",
        compressors=None,
        dimension_names=("time", "x"),
    )
    row = SHAPE[1] * 8
    for number in range(SHAPE[0]):
        session.store.set_virtual_ref(
            f"{name}/c/{number}/0", location, offset=len(HEADER) + number * row, length=row
        )


def commit_virtual(repository: Repository, arrays: Mapping[str, str]) -> str:
    """Commit an array for each location, by name."""
    session = repository.writable_session("main")
    for name, location in arrays.items():
        record(session, name, location)
    return session.commit("virtual chunks")


def array_of(repository: Repository, name: str = "a") -> NDArray[np.float64]:
    """Read a whole array through zarr."""
    store = repository.readonly_session("main").store
    return np.asarray(zarr.open_array(store, path=name, mode="r")[:])


def first_row(repository: Repository, name: str = "a") -> NDArray[np.float64]:
    store = repository.readonly_session("main").store
    return np.asarray(zarr.open_array(store, path=name, mode="r")[0])


def containers_stored(storage: Storage) -> list[VirtualChunkContainer]:
    return list((Repository.open(storage).config.virtual_chunk_containers or {}).values())


def locations(names: Iterable[str], source: Source) -> dict[str, str]:
    return dict.fromkeys(names, source.location)
