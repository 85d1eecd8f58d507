"""Virtual chunks are authorised in each way that published programs write it.

They call `S3Credentials` itself, say `anon` and `from_env`, and pass credentials as they are.
"""

from pathlib import Path

import numpy as np
import pytest

import icefloe as ic
from icefloe import Storage
from tests.conformance.storages import s3_storage_at
from tests.support.servers import S3Endpoint
from tests.virtual.impostor import Impostor
from tests.virtual.sources import (
    array_of,
    commit_virtual,
    config_of,
    file_of,
    numbers,
    on_disk,
    put,
)

pytestmark = pytest.mark.server

VALUES = numbers(3)
REGION = "us-east-1"


@pytest.fixture
def storage(clouds: Impostor, other_s3_endpoint: S3Endpoint, prefix: str) -> Storage:
    """A repository with virtual chunks in a bucket, and a container that says so."""
    assert clouds.upstreams
    endpoint = other_s3_endpoint
    put(s3_storage_at(endpoint, prefix), "data.bin", file_of(VALUES))
    storage = ic.s3_storage(
        bucket=endpoint.bucket,
        prefix=f"{prefix}/repo",
        region=REGION,
        access_key_id=endpoint.access_key_id,
        secret_access_key=endpoint.secret_access_key,
    )
    url = f"s3://{endpoint.bucket}/{prefix}/"
    container = ic.VirtualChunkContainer(url, ic.s3_store(region=REGION))
    repository = ic.Repository.create(storage, config_of(container))
    commit_virtual(repository, {"a": f"{url}data.bin"})
    return storage


def test_keys_given_to_the_class(
    storage: Storage, other_s3_endpoint: S3Endpoint, prefix: str
) -> None:
    virtual_chunk_creds = ic.credentials.S3Credentials(
        access_key_id=other_s3_endpoint.access_key_id,
        secret_access_key=other_s3_endpoint.secret_access_key,
    )
    safe = {f"s3://{other_s3_endpoint.bucket}/{prefix}/": virtual_chunk_creds}
    repository = ic.Repository.open(storage=storage, authorize_virtual_chunk_access=safe)
    assert np.array_equal(array_of(repository), VALUES)


def test_bare_keys(storage: Storage, other_s3_endpoint: S3Endpoint) -> None:
    endpoint = other_s3_endpoint
    keys = ic.S3StaticCredentials(endpoint.access_key_id, endpoint.secret_access_key)
    access = {f"s3://{endpoint.bucket}/": keys}
    repository = ic.Repository.open(storage, authorize_virtual_chunk_access=access)
    assert np.array_equal(array_of(repository), VALUES)


def test_keys_of_the_environment(
    storage: Storage, other_s3_endpoint: S3Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", other_s3_endpoint.access_key_id)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", other_s3_endpoint.secret_access_key)
    repository = ic.Repository.open(
        storage,
        authorize_virtual_chunk_access={
            f"s3://{other_s3_endpoint.bucket}/": ic.S3Credentials(from_env=True)
        },
    )
    assert np.array_equal(array_of(repository), VALUES)


def test_all_containers_of_an_unfamiliar_repository_anonymously(
    storage: Storage, clouds: Impostor
) -> None:
    config = ic.Repository.fetch_config(storage)
    assert config is not None
    containers = config.virtual_chunk_containers
    assert containers
    repository = ic.Repository.open(
        storage,
        authorize_virtual_chunk_access={
            container.url_prefix: ic.S3Credentials(anon=True) for container in containers.values()
        },
    )
    before = len(clouds.seen)
    with pytest.raises(ic.StorageError):  # the bucket is not public
        array_of(repository)
    asked = [seen for seen in clouds.seen[before:] if seen.path.endswith("data.bin")]
    assert asked
    assert {seen.authorization for seen in asked} == {None}


def test_a_folder_with_none(tmp_path: Path) -> None:
    source = on_disk(tmp_path, file_of(VALUES))
    storage = ic.local_filesystem_storage(str(tmp_path / "repo"))
    repository = ic.Repository.create(storage, config_of(source.container))
    commit_virtual(repository, {"a": source.location})
    with pytest.warns(DeprecationWarning, match="LocalFileSystemAccess"):
        repository = ic.Repository.open(
            storage, authorize_virtual_chunk_access={tmp_path.as_uri(): None}
        )
    assert np.array_equal(array_of(repository), VALUES)
