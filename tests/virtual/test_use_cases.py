"""What virtual chunks are for: each case of the design, on real servers, with real values."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import icefloe
from icefloe import Repository, Storage
from icefloe.config import VirtualChunkContainer, gcs_store, s3_store
from icefloe.credentials import (
    containers_credentials,
    gcs_credentials,
)
from icefloe.errors import ErrorKind, InvalidInputError, StorageError
from tests.conformance.storages import gcs_storage_at, s3_storage_at
from tests.support.gcs_server import GcsEndpoint
from tests.support.http_server import file_server
from tests.support.proxy import cutting_proxy
from tests.support.servers import AzureEndpoint, S3Endpoint
from tests.virtual.impostor import Impostor, Seen
from tests.virtual.sources import (
    access_of,
    array_of,
    commit_virtual,
    config_of,
    containers_stored,
    file_of,
    keys_of,
    numbers,
    on_azure,
    on_disk,
    on_gcs,
    on_s3,
    on_web,
    put,
    store_at,
)

pytestmark = pytest.mark.server

SPECS = pytest.mark.parametrize("spec_version", [1, 2])
VALUES = numbers(1)


def on_amazon(endpoint: S3Endpoint, prefix: str, region: str) -> Storage:
    """A repository on Amazon S3, by what its users write; see `clouds`."""
    return icefloe.s3_storage(
        bucket=endpoint.bucket,
        prefix=f"{prefix}/repo",
        region=region,
        access_key_id=endpoint.access_key_id,
        secret_access_key=endpoint.secret_access_key,
    )


def requests_for_data(clouds: Impostor) -> list[Seen]:
    return [each for each in clouds.seen if each.path.endswith(("data.bin", "data%2Ebin"))]


# -- 1. all in one region, one set of credentials ------------------------------------------------


@SPECS
def test_same_region_takes_no_configuration(
    clouds: Impostor, other_s3_endpoint: S3Endpoint, prefix: str, spec_version: int
) -> None:
    endpoint = other_s3_endpoint
    put(s3_storage_at(endpoint, prefix), "data.bin", file_of(VALUES))
    storage = on_amazon(endpoint, prefix, "eu-central-1")
    access = containers_credentials({"s3": keys_of(endpoint)})
    repository = Repository.create(
        storage, authorize_virtual_chunk_access=access, spec_version=spec_version
    )
    commit_virtual(repository, {"a": f"s3://{endpoint.bucket}/{prefix}/data.bin"})

    reader = Repository.open(storage, authorize_virtual_chunk_access=access)
    assert np.array_equal(array_of(reader), VALUES)
    assert containers_stored(storage) == []
    asked = requests_for_data(clouds)
    assert {each.host for each in asked} == {f"{endpoint.bucket}.s3.eu-central-1.amazonaws.com"}
    assert {each.scope for each in asked} == {(endpoint.access_key_id, "eu-central-1")}


def test_credentials_of_the_repository_are_not_taken_for_its_chunks(
    clouds: Impostor, other_s3_endpoint: S3Endpoint, prefix: str
) -> None:
    """Even in the same bucket: nothing is authorised tacitly."""
    endpoint = other_s3_endpoint
    put(s3_storage_at(endpoint, prefix), "data.bin", file_of(VALUES))
    storage = on_amazon(endpoint, prefix, "eu-central-1")
    keys = containers_credentials({f"s3://{endpoint.bucket}": keys_of(endpoint)})
    writer = Repository.create(storage, authorize_virtual_chunk_access=keys)
    commit_virtual(writer, {"a": f"s3://{endpoint.bucket}/{prefix}/data.bin"})
    before = len(requests_for_data(clouds))
    with pytest.raises(InvalidInputError) as caught:
        array_of(Repository.open(storage))
    assert caught.value.kind == ErrorKind.NO_CONTAINER_FOR_VIRTUAL_CHUNK
    assert "authorize_virtual_chunk_access" in caught.value.message
    assert len(requests_for_data(clouds)) == before


# -- 2. chunks in another region -----------------------------------------------------------------


@SPECS
@pytest.mark.parametrize("is_stored", [True, False])
def test_another_region_is_told_by_a_container(
    clouds: Impostor,
    other_s3_endpoint: S3Endpoint,
    prefix: str,
    spec_version: int,
    is_stored: bool,
) -> None:
    endpoint = other_s3_endpoint
    put(s3_storage_at(endpoint, prefix), "data.bin", file_of(VALUES))
    storage = on_amazon(endpoint, prefix, "us-east-1")
    elsewhere = config_of(VirtualChunkContainer("s3://", s3_store(region="sa-east-1"), "s3"))
    access = containers_credentials({"s3://": keys_of(endpoint)})
    repository = Repository.create(
        storage,
        elsewhere if is_stored else None,
        authorize_virtual_chunk_access=access,
        spec_version=spec_version,
    )
    commit_virtual(repository, {"a": f"s3://{endpoint.bucket}/{prefix}/data.bin"})

    reader = Repository.open(
        storage, None if is_stored else elsewhere, authorize_virtual_chunk_access=access
    )
    assert np.array_equal(array_of(reader), VALUES)
    assert len(containers_stored(storage)) == is_stored
    assert {each.scope[1] for each in requests_for_data(clouds)} == {"sa-east-1"}
    of_repository = [each for each in clouds.seen if "/repo/" in each.path]
    assert {each.scope[1] for each in of_repository} == {"us-east-1"}


# -- 3. the repository on S3, its chunks on Google Cloud -----------------------------------------


@SPECS
def test_repository_on_s3_with_chunks_on_gcs(
    clouds: Impostor,
    other_s3_endpoint: S3Endpoint,
    gcs_endpoint: GcsEndpoint,
    prefix: str,
    spec_version: int,
) -> None:
    put(gcs_storage_at(gcs_endpoint, prefix), "data.bin", file_of(VALUES))
    storage = on_amazon(other_s3_endpoint, prefix, "us-east-1")
    config = config_of(VirtualChunkContainer("gcs", gcs_store(), "gcs"))
    repository = Repository.create(storage, config, spec_version=spec_version)
    commit_virtual(repository, {"a": f"gcs://{gcs_endpoint.bucket}/{prefix}/data.bin"})

    token = gcs_credentials(bearer_token="token-of-the-reader")
    for written in ("gcs", "gs://", f"gcs://{gcs_endpoint.bucket}/{prefix}"):
        access = containers_credentials({written: token})
        reader = Repository.open(storage, authorize_virtual_chunk_access=access)
        assert np.array_equal(array_of(reader), VALUES)
    asked = requests_for_data(clouds)
    assert {each.host for each in asked} == {"storage.googleapis.com"}
    assert {each.authorization for each in asked} == {"Bearer token-of-the-reader"}
    of_repository = {each.host for each in clouds.seen} - {"storage.googleapis.com"}
    assert of_repository == {f"{other_s3_endpoint.bucket}.s3.us-east-1.amazonaws.com"}


# -- 4. a local server for tests -----------------------------------------------------------------


@SPECS
def test_local_server_takes_the_place_of_a_part_of_a_bucket(
    clouds: Impostor,
    s3_endpoint: S3Endpoint,
    other_s3_endpoint: S3Endpoint,
    prefix: str,
    spec_version: int,
) -> None:
    """The copy on the test server has other values, so it is seen which one was read."""
    copy = numbers(2)
    bucket = other_s3_endpoint.bucket
    assert bucket == s3_endpoint.bucket
    for part in ("array", "another"):
        put(s3_storage_at(other_s3_endpoint, f"{prefix}/{part}"), "data.bin", file_of(VALUES))
    put(s3_storage_at(s3_endpoint, f"{prefix}/array"), "data.bin", file_of(copy))
    storage = icefloe.in_memory_storage()
    amazon = VirtualChunkContainer("s3://", s3_store(region="us-east-1"))
    Repository.create(storage, config_of(amazon), spec_version=spec_version)
    commit_virtual(
        Repository.open(storage),
        {
            "a": f"s3://{bucket}/{prefix}/array/data.bin",
            "b": f"s3://{bucket}/{prefix}/another/data.bin",
        },
    )

    override = VirtualChunkContainer(
        f"s3://{bucket}/{prefix}/array", store_at(s3_endpoint), "minio-override"
    )
    access = containers_credentials(
        {
            "s3": keys_of(other_s3_endpoint),
            f"s3://{bucket}/{prefix}/array": keys_of(s3_endpoint),
        }
    )
    in_tests = Repository.open(
        storage, config_of(amazon, override), authorize_virtual_chunk_access=access
    )
    assert np.array_equal(array_of(in_tests, "a"), copy)
    assert np.array_equal(array_of(in_tests, "b"), VALUES)
    assert containers_stored(storage) == [amazon]

    access = containers_credentials({"s3": keys_of(other_s3_endpoint)})
    outside = Repository.open(storage, authorize_virtual_chunk_access=access)
    assert np.array_equal(array_of(outside, "a"), VALUES)


# -- 5. several clouds and sets of credentials ---------------------------------------------------


@SPECS
def test_several_clouds_and_credentials_in_one_repository(
    s3_endpoint: S3Endpoint,
    other_s3_endpoint: S3Endpoint,
    azure_endpoint: AzureEndpoint,
    gcs_endpoint: GcsEndpoint,
    tmp_path: Path,
    prefix: str,
    spec_version: int,
) -> None:
    names = ("here", "there", "azure", "google", "web", "disk")
    values = {name: numbers(seed) for seed, name in enumerate(names)}
    files = {name: file_of(each) for name, each in values.items()}
    for folder in ("web", "disk"):
        (tmp_path / folder).mkdir()
    with (
        file_server(tmp_path / "web") as web,
        cutting_proxy(s3_endpoint.url) as here,
        cutting_proxy(other_s3_endpoint.url) as there,
    ):
        sources = {
            "here": on_s3(s3_endpoint, prefix, files["here"], scheme="modela", url=here.url),
            "there": on_s3(
                other_s3_endpoint, prefix, files["there"], scheme="modelb", url=there.url
            ),
            "azure": on_azure(azure_endpoint, prefix, files["azure"]),
            "google": on_gcs(gcs_endpoint, prefix, files["google"]),
            "web": on_web(web.url, tmp_path / "web", files["web"]),
            "disk": on_disk(tmp_path / "disk", files["disk"]),
        }
        config = config_of(*(each.container for each in sources.values()))
        storage = s3_storage_at(s3_endpoint, f"{prefix}/repo")
        Repository.create(storage, config, spec_version=spec_version)
        commit_virtual(
            Repository.open(storage), {name: each.location for name, each in sources.items()}
        )

        access = access_of(*sources.values())
        reader = Repository.open(storage, config, authorize_virtual_chunk_access=access)
        source: Any = reader  # our engine opens more than xarray's types say
        found = xr.open_dataset(source, engine="icefloe").load()
        expected = xr.Dataset({name: (("time", "x"), each) for name, each in values.items()})
        xr.testing.assert_equal(found, expected)
        assert len(here.exchanges) >= 1
        assert len(there.exchanges) >= 1
        assert any("data.bin" in each for each in web.requests)

        # Each set of keys is for its own server: the other way round nobody lets them in.
        swapped = dict(access)
        first, second = (next(iter(sources[name].access)) for name in ("here", "there"))
        swapped[first], swapped[second] = access[second], access[first]
        stranger = Repository.open(storage, config, authorize_virtual_chunk_access=swapped)
        for name in ("here", "there"):
            with pytest.raises(StorageError):
                array_of(stranger, name)
        for name in ("azure", "google", "web", "disk"):
            assert np.array_equal(array_of(stranger, name), values[name])


@SPECS
def test_without_consent_only_what_needs_none_is_read(
    s3_endpoint: S3Endpoint,
    azure_endpoint: AzureEndpoint,
    gcs_endpoint: GcsEndpoint,
    public_loopback: None,
    tmp_path: Path,
    prefix: str,
    spec_version: int,
) -> None:
    """Servers on this machine are nobody's cloud: the reader has to name them, too."""
    with cutting_proxy(s3_endpoint.url) as s3, cutting_proxy(gcs_endpoint.url) as gcs:
        sources = {
            "s3": on_s3(s3_endpoint, prefix, file_of(VALUES), url=s3.url),
            "azure": on_azure(azure_endpoint, prefix, file_of(VALUES)),
            "google": on_gcs(gcs_endpoint, prefix, file_of(VALUES), url=gcs.url),
            "disk": on_disk(tmp_path, file_of(VALUES)),
        }
        storage = icefloe.in_memory_storage()
        config = config_of(*(each.container for each in sources.values()))
        repository = Repository.create(storage, config, spec_version=spec_version)
        commit_virtual(repository, {name: each.location for name, each in sources.items()})
        s3.plan()
        gcs.plan()

        access = access_of(*sources.values())
        reader = Repository.open(storage, authorize_virtual_chunk_access=access)
        for name in ("s3", "azure", "google"):
            with pytest.raises(InvalidInputError) as caught:
                array_of(reader, name)
            assert caught.value.kind == ErrorKind.UNAUTHORIZED_VIRTUAL_CHUNK_CONTAINER
            assert "set_virtual_chunk_container" in caught.value.message
        assert np.array_equal(array_of(reader, "disk"), VALUES)
        assert s3.exchanges == gcs.exchanges == []

        report = {each.url_prefix: each for each in reader.describe_access().containers}
        assert {
            name: report[each.container.url_prefix].needs_consent is not None
            for name, each in sources.items()
        } == {
            "s3": True,
            "azure": True,
            "google": True,
            "disk": False,
        }
        # Anonymous access sends no secret, so it needs no consent.
        google = {sources["google"].container.url_prefix: gcs_credentials(anonymous=True)}
        anonymous = Repository.open(
            storage, authorize_virtual_chunk_access=containers_credentials(google)
        )
        assert np.array_equal(array_of(anonymous, "google"), VALUES)
        assert len(gcs.exchanges) >= 1
