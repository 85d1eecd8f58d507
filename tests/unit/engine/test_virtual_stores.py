"""Which descriptions of stores, taken from a repository, may get credentials."""

import pytest

from icefloe.config import (
    ObjectStoreConfig,
    S3Options,
    VirtualChunkContainer,
    azure_store,
    gcs_store,
    http_store,
    s3_store,
)
from icefloe.config.stores import AnyObjectStoreConfig
from icefloe.credentials import (
    AnyCredential,
    Credentials,
    HttpAccess,
    LocalFileSystemAccess,
    S3Credentials,
    azure_credentials,
    containers_credentials,
    gcs_credentials,
    s3_credentials,
)
from icefloe.engine.virtual_stores import grants, open_store
from icefloe.errors import ErrorKind, InvalidInputError, StorageError

SECRETS: dict[str, AnyCredential] = {
    "s3": Credentials.S3(s3_credentials(access_key_id="id", secret_access_key="hush")),
    "gs": Credentials.Gcs(gcs_credentials(bearer_token="hush")),
    "az": Credentials.Azure(azure_credentials(access_key="aHVzaA==")),
}


def tigris(endpoint: str | None = None) -> ObjectStoreConfig.Tigris:
    return ObjectStoreConfig.Tigris(S3Options(endpoint_url=endpoint))


@pytest.mark.parametrize(
    ("prefix", "store"),
    [
        ("s3://bucket/", s3_store(endpoint_url="https://evil.example")),
        ("s3://bucket/", s3_store(endpoint_url="https://s3.amazonaws.com.evil.example")),
        ("s3://bucket/", s3_store(endpoint_url="https://s3.amazonaws.com@evil.example")),
        ("s3://bucket/", s3_store(endpoint_url="https://x.execute-api.us-east-1.amazonaws.com")),
        ("s3://bucket/", s3_store(endpoint_url="http://s3.amazonaws.com", allow_http=True)),
        ("s3://bucket/", s3_store(region="x@evil.example/")),
        ("s3://bucket/", tigris("https://evil.example")),
        ("gs://bucket/", gcs_store({"google_base_url": "https://evil.example"})),
        ("gs://bucket/", gcs_store({"proxy_url": "https://evil.example"})),
        ("az://container/", azure_store(account="evil.example/")),
        ("az://container/", azure_store(account="fine", config={"endpoint": "https://evil"})),
    ],
)
def test_credentials_stay_with_the_platform(prefix: str, store: AnyObjectStoreConfig) -> None:
    container = VirtualChunkContainer(prefix, store)
    credential = SECRETS[prefix[:2]]
    with pytest.raises(InvalidInputError) as caught:
        open_store(container, credential, trusted=[])
    assert caught.value.kind == ErrorKind.UNAUTHORIZED_VIRTUAL_CHUNK_CONTAINER
    assert "set_virtual_chunk_container" in caught.value.message
    assert "hush" not in caught.value.message


@pytest.mark.parametrize(
    ("prefix", "store"),
    [
        ("s3://bucket/", s3_store(region="eu-west-1")),
        ("s3://bucket/", s3_store(endpoint_url="https://s3.eu-west-1.amazonaws.com")),
        ("s3://bucket/", tigris()),
        ("gs://bucket/", gcs_store({"timeout": "10s"})),
        ("az://container/", azure_store(account="fine")),
    ],
)
def test_the_platforms_own_servers_are_fine(prefix: str, store: AnyObjectStoreConfig) -> None:
    container = VirtualChunkContainer(prefix, store)
    open_store(container, SECRETS[prefix[:2]], trusted=[]).open()


def test_a_bucket_cannot_smuggle_in_a_host() -> None:
    container = VirtualChunkContainer("s3://evil.example%2F/", s3_store(region="eu-west-1"))
    with pytest.raises(InvalidInputError, match="name of a bucket"):
        open_store(container, SECRETS["s3"], trusted=[])


def test_a_credential_of_another_platform_is_refused_at_once() -> None:
    container = VirtualChunkContainer("s3://bucket/", s3_store())
    with pytest.raises(StorageError) as caught:
        grants([container], {"s3://bucket": LocalFileSystemAccess})
    assert caught.value.kind == ErrorKind.STORAGE_OTHER
    assert "s3_credentials" in caught.value.message


def test_none_stands_for_what_the_store_says() -> None:
    containers = [
        VirtualChunkContainer("s3://open/", s3_store(anonymous=True)),
        VirtualChunkContainer("s3://mine/", s3_store()),
        VirtualChunkContainer("https://host/", http_store()),
    ]
    granted = grants(containers, dict.fromkeys(each.url_prefix for each in containers))
    assert granted["s3://open/"] == Credentials.S3(S3Credentials.Anonymous())
    assert granted["s3://mine/"] == Credentials.S3(S3Credentials.FromEnv())
    assert granted["https://host/"] == HttpAccess
    azure = VirtualChunkContainer("az://container/", azure_store(account="fine"))
    with pytest.raises(StorageError, match="azure_credentials"):
        grants([azure], {"az://container/": None})


def test_entries_for_unknown_prefixes_and_names_are_ignored() -> None:
    container = VirtualChunkContainer("s3://bucket/", s3_store(), name="data")
    access = containers_credentials({"data": S3Credentials.FromEnv(), "s3://buck": HttpAccess})
    assert grants([container], access) == {}
