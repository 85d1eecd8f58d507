"""Which descriptions of stores, taken from a repository, may get credentials."""

from pathlib import Path

import pytest

import icefloe
from icefloe.config import (
    ObjectStoreConfig,
    RepositoryConfig,
    S3Options,
    VirtualChunkContainer,
    azure_store,
    gcs_store,
    http_store,
    local_filesystem_store,
    s3_store,
)
from icefloe.config.containers import stored_container
from icefloe.config.stores import AnyObjectStoreConfig
from icefloe.credentials import (
    AnyCredential,
    Credentials,
    azure_credentials,
    containers_credentials,
    gcs_credentials,
    s3_credentials,
)
from icefloe.effects import run_blocking
from icefloe.errors import ErrorKind, IcefloeError, InvalidInputError
from icefloe.format.chunk_table import VirtualChunk
from icefloe.storage import Storage
from icefloe.virtual_chunks.reader import VirtualReader
from tests.support.http_server import file_server

R2_ACCOUNT = "0123456789abcdef" * 2
SECRETS: dict[str, AnyCredential] = {
    "s3": Credentials.S3(s3_credentials(access_key_id="id", secret_access_key="hush")),
    "gs": Credentials.Gcs(gcs_credentials(bearer_token="hush")),
    "az": Credentials.Azure(azure_credentials(access_key="aHVzaA==")),
}
ANONYMOUS: dict[str, AnyCredential] = {
    "s3": Credentials.S3(s3_credentials(anonymous=True)),
    "gs": Credentials.Gcs(gcs_credentials(anonymous=True)),
    "az": Credentials.Azure(azure_credentials(anonymous=True)),
}


def tigris(endpoint: str | None = None) -> ObjectStoreConfig.Tigris:
    return ObjectStoreConfig.Tigris(S3Options(endpoint_url=endpoint))


def described(
    prefix: str,
    store: AnyObjectStoreConfig,
    credential: AnyCredential,
    *,
    is_trusted: bool = False,
) -> Storage:
    container = stored_container(prefix, store, None, "strict")
    reader = VirtualReader(
        [container], {prefix: credential}, trusted=[container] if is_trusted else []
    )
    place = reader.resolver.locate(f"{prefix}key")
    return reader.storage_of(place, reader.resolver.require_grant(place))


HOSTILE: list[tuple[str, AnyObjectStoreConfig, str]] = [
    ("s3://bucket/", s3_store(endpoint_url="https://evil.example"), "https://evil.example"),
    (
        "s3://bucket/",
        s3_store(endpoint_url="https://evil.example", s3_compatible=True),
        "https://evil.example",
    ),
    (
        "s3://bucket/",
        s3_store(endpoint_url="https://s3.amazonaws.com.evil.example"),
        "https://s3.amazonaws.com.evil.example",
    ),
    (
        "s3://bucket/",
        s3_store(endpoint_url="https://s3.amazonaws.com@evil.example"),
        "https://evil.example",
    ),
    ("s3://bucket/", s3_store(endpoint_url="https://s3.amazonaws.com:444"), ":444"),
    (
        "s3://bucket/",
        s3_store(endpoint_url="https://x.execute-api.us-east-1.amazonaws.com"),
        "execute-api",
    ),
    (
        "s3://bucket/",
        s3_store(endpoint_url="http://s3.amazonaws.com", allow_http=True),
        "http://s3.amazonaws.com",
    ),
    (
        "s3://bucket/",
        s3_store(endpoint_url="https://s3.amazonaws.com", allow_http=True),
        "allow_http",
    ),
    ("s3://bucket/", s3_store(region="x@evil.example/"), "x@evil.example/"),
    ("s3://bucket/", s3_store(region="evil.example"), "evil.example"),
    ("s3://bucket/", tigris("https://evil.example"), "https://evil.example"),
    (
        "s3://bucket/",
        s3_store(endpoint_url="https://evil.r2.cloudflarestorage.com.evil.example"),
        "evil.example",
    ),
    (
        "s3://bucket/",
        s3_store(endpoint_url="https://evil-r2.cloudflarestorage.com"),
        "evil-r2.cloudflarestorage.com",
    ),
    (
        "s3://bucket/",
        s3_store(endpoint_url="https://storage.googleapis.com.evil.example"),
        "evil.example",
    ),
    ("gs://bucket/", gcs_store({"google_base_url": "https://evil.example"}), "google_base_url"),
    ("gs://bucket/", gcs_store({"proxy_url": "https://evil.example"}), "proxy_url"),
    ("gs://bucket/", gcs_store({"allow_http": "true"}), "allow_http"),
    ("az://container/", azure_store(account="evil.example/"), "evil.example/"),
    (
        "az://container/",
        azure_store(account="fine", config={"endpoint": "https://evil"}),
        "endpoint",
    ),
    (
        "az://container/",
        azure_store(account="fine", config={"azure_storage_authority_host": "https://evil"}),
        "authority_host",
    ),
]


@pytest.mark.parametrize(("prefix", "store", "named"), HOSTILE)
def test_credentials_stay_with_the_platform(
    prefix: str, store: AnyObjectStoreConfig, named: str
) -> None:
    with pytest.raises(InvalidInputError) as caught:
        described(prefix, store, SECRETS[prefix[:2]])
    assert caught.value.kind == ErrorKind.UNAUTHORIZED_VIRTUAL_CHUNK_CONTAINER
    assert named in caught.value.message
    assert "set_virtual_chunk_container" in caught.value.message
    assert "hush" not in caught.value.message


@pytest.mark.parametrize(
    ("prefix", "store"),
    [
        ("s3://bucket/", s3_store(endpoint_url="https://minio.example")),
        ("s3://bucket/", s3_store(endpoint_url="http://localhost:9000", allow_http=True)),
        ("gs://bucket/", gcs_store({"google_base_url": "https://gcs.example"})),
        ("az://container/", azure_store(account="fine", config={"endpoint": "https://a.example"})),
    ],
)
def test_what_the_reader_gave_and_what_takes_no_secret_is_followed(
    prefix: str, store: AnyObjectStoreConfig
) -> None:
    described(prefix, store, SECRETS[prefix[:2]], is_trusted=True)
    described(prefix, store, ANONYMOUS[prefix[:2]])


def test_a_container_that_differs_from_what_the_reader_gave_is_not_trusted() -> None:
    stored = VirtualChunkContainer("s3://b/", s3_store(endpoint_url="https://evil.example"))
    given = VirtualChunkContainer("s3://b/", s3_store(endpoint_url="https://minio.example"))
    reader = VirtualReader([stored], {"s3://b": SECRETS["s3"]}, trusted=[given])
    place = reader.resolver.locate("s3://b/x")
    with pytest.raises(InvalidInputError, match=r"evil\.example"):
        reader.storage_of(place, reader.resolver.require_grant(place))


@pytest.mark.parametrize(
    ("prefix", "store"),
    [
        ("s3://bucket/", s3_store(region="eu-west-1")),
        ("s3://bucket/", s3_store(region="eu-west-1", allow_http=True)),
        ("s3://bucket/", s3_store(endpoint_url="https://s3.amazonaws.com")),
        ("s3://bucket/", s3_store(endpoint_url="https://s3.eu-west-1.amazonaws.com")),
        ("s3://bucket/", s3_store(endpoint_url="https://s3.dualstack.eu-west-1.amazonaws.com")),
        ("s3://bucket/", s3_store(endpoint_url="https://s3.cn-north-1.amazonaws.com.cn")),
        ("s3://bucket/", s3_store(endpoint_url="https://storage.googleapis.com")),
        (
            "s3://bucket/",
            s3_store(endpoint_url=f"https://{R2_ACCOUNT}.r2.cloudflarestorage.com"),
        ),
        (
            "s3://bucket/",
            s3_store(endpoint_url=f"https://{R2_ACCOUNT}.eu.r2.cloudflarestorage.com"),
        ),
        ("s3://bucket/", tigris()),
        ("s3://bucket/", tigris("https://fly.storage.tigris.dev")),
        ("gs://bucket/", gcs_store({"timeout": "10s"})),
        ("az://container/", azure_store(account="fine")),
    ],
)
def test_the_platforms_own_servers_are_fine(prefix: str, store: AnyObjectStoreConfig) -> None:
    described(prefix, store, SECRETS[prefix[:2]]).open()


@pytest.mark.parametrize(
    "host",
    [
        "169.254.169.254",
        "2852039166",
        "0xa9fea9fe",
        "169.254.43518",
        "[::ffff:169.254.169.254]",
        "[fe80::1]",
        "[fd00:ec2::254]",
        "[fd00:ec2::23]",
        "[64:ff9b::a9fe:aa17]",
        "[2002:a9fe:aa02::]",
        "192.0.0.192",
        "Metadata.google.internal.",
    ],
)
def test_even_without_credentials_the_machines_own_network_is_not_asked(host: str) -> None:
    """There clouds tell machines their credentials, without asking for any."""
    store = s3_store(endpoint_url=f"http://{host}", allow_http=True)
    with pytest.raises(InvalidInputError, match="own network"):
        described("s3://latest/", store, ANONYMOUS["s3"])
    described("s3://latest/", store, ANONYMOUS["s3"], is_trusted=True)


@pytest.mark.parametrize(
    ("opts", "headers"),
    [
        ({"proxy_url": "http://169.254.169.254"}, None),
        ({"allow_invalid_certificates": "true"}, None),
        (None, {"Host": "internal.example"}),
    ],
)
def test_stored_options_of_web_servers_cannot_lead_elsewhere(
    opts: dict[str, str] | None, headers: dict[str, str] | None
) -> None:
    with pytest.raises(InvalidInputError):
        described("https://host/", http_store(opts, headers), Credentials.HttpAccess())


# -- end to end --------------------------------------------------------------------------------


def refusal(repository: icefloe.Repository, location: str) -> IcefloeError:
    reader = repository._context.virtual
    with pytest.raises(IcefloeError) as caught:
        run_blocking(reader.read(VirtualChunk(location, 0, 4), 0, 4))
    return caught.value


@pytest.mark.parametrize("spec_version", [1, 2])
def test_a_stored_endpoint_sees_no_request_until_the_reader_agrees(
    tmp_path: Path, spec_version: int
) -> None:
    with file_server(tmp_path) as server:
        stored = VirtualChunkContainer(
            "s3://bucket/", s3_store(endpoint_url=server.url, allow_http=True, region="us-east-1")
        )
        config = RepositoryConfig()
        config.set_virtual_chunk_container(stored)
        storage = icefloe.local_filesystem_storage(str(tmp_path / "repo"))
        icefloe.Repository.create(storage, config, spec_version=spec_version)
        keys = s3_credentials(access_key_id="id", secret_access_key="the-secret")
        for prefix in ("s3://bucket", "s3://", "s3", "s3://bucket/key"):
            access = containers_credentials({prefix: keys})
            opened = icefloe.Repository.open(storage, authorize_virtual_chunk_access=access)
            error = refusal(opened, "s3://bucket/key")
            assert error.kind == ErrorKind.UNAUTHORIZED_VIRTUAL_CHUNK_CONTAINER
            assert server.url in error.message
            assert "the-secret" not in error.message + repr(opened)
        assert server.requests == []
        agreed = icefloe.Repository.open(
            storage, config, authorize_virtual_chunk_access=containers_credentials({"s3": keys})
        )
        assert refusal(agreed, "s3://bucket/key").kind == ErrorKind.VIRTUAL_CHUNK_FETCH
        assert len(server.requests) == 1


def test_the_path_of_a_local_store_does_not_matter(tmp_path: Path) -> None:
    (tmp_path / "shown").mkdir()
    (tmp_path / "hidden").write_bytes(b"secret")
    container = VirtualChunkContainer(f"file://{tmp_path}/shown/", local_filesystem_store("/"))
    access: dict[str, AnyCredential | None] = {
        container.url_prefix: Credentials.LocalFileSystemAccess()
    }
    reader = VirtualReader([container], access)
    with pytest.raises(InvalidInputError) as caught:
        reader.resolver.locate(f"file://{tmp_path}/hidden")
    assert caught.value.kind == ErrorKind.NO_CONTAINER_FOR_VIRTUAL_CHUNK
