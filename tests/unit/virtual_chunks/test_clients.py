"""Which storage serves a place of virtual chunks."""

import pytest

from icefloe.config import (
    ChecksumAlgorithm,
    ObjectStoreConfig,
    S3Options,
    VirtualChunkContainer,
    azure_store,
    gcs_store,
    http_store,
    local_filesystem_store,
    s3_store,
)
from icefloe.credentials import (
    AnyCredential,
    Credentials,
    LocalFileSystemAccess,
    S3Credentials,
    azure_credentials,
    gcs_credentials,
    s3_credentials,
)
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.records import replace
from icefloe.storage.specs import AzureSpec, GcsSpec, GuardedHttpSpec, LocalSpec, S3Spec, Spec
from icefloe.virtual_chunks.reader import VirtualReader

S3: AnyCredential = Credentials.S3(s3_credentials(access_key_id="id", secret_access_key="hush"))
GCS: AnyCredential = Credentials.Gcs(gcs_credentials(bearer_token="hush"))
AZURE: AnyCredential = Credentials.Azure(azure_credentials(access_key="aHVzaA=="))
WEB = Credentials.HttpAccess()


def spec_of(
    location: str,
    container: VirtualChunkContainer | None,
    access: dict[str, AnyCredential | None],
    *,
    home_region: str | None = None,
) -> Spec:
    containers = [] if container is None else [container]
    reader = VirtualReader(containers, access, home_region=home_region)
    place = reader.resolver.locate(location)
    return reader.storage_of(place, reader.resolver.require_grant(place)).spec


def s3_region(container: VirtualChunkContainer, home_region: str | None) -> str | None:
    spec = spec_of("s3://b/x", container, {"s3": S3}, home_region=home_region)
    assert isinstance(spec, S3Spec)
    return spec.options.region


def test_a_wide_container_serves_many_buckets() -> None:
    container = VirtualChunkContainer("s3", s3_store(region="eu-west-1", requester_pays=True))
    for bucket in ("one", "two"):
        spec = spec_of(f"s3://{bucket}/x", container, {"s3://": S3})
        assert isinstance(spec, S3Spec)
        assert (spec.bucket, spec.prefix) == (bucket, "")
        assert spec.options.requester_pays


def test_a_scheme_of_ones_own_is_served_by_its_store() -> None:
    for store, credential in (
        (s3_store(region="eu-west-1"), S3),
        (s3_store(region="eu-west-1", s3_compatible=True), S3),
        (ObjectStoreConfig.Tigris(S3Options()), S3),
        (gcs_store(), GCS),
    ):
        container = VirtualChunkContainer("models://", store)
        spec = spec_of("models://bucket/x", container, {"models": credential})
        assert isinstance(spec, S3Spec | GcsSpec)
        assert spec.bucket == "bucket"
    azure = VirtualChunkContainer("models://", azure_store(account="fine"))
    spec = spec_of("models://bucket/x", azure, {"models": AZURE})
    assert isinstance(spec, AzureSpec)
    assert (spec.account, spec.container) == ("fine", "bucket")


def test_the_region_of_the_repository_stands_in_for_none() -> None:
    plain = VirtualChunkContainer("s3://b/", s3_store())
    elsewhere = VirtualChunkContainer("s3://b/", s3_store(region="us-west-2"))
    asked = "https://s3.us-east-1.amazonaws.com"
    at_endpoint = VirtualChunkContainer("s3://b/", s3_store(endpoint_url=asked))
    assert s3_region(plain, "eu-west-1") == "eu-west-1"
    assert s3_region(plain, None) is None
    assert s3_region(elsewhere, "eu-west-1") == "us-west-2"
    assert s3_region(at_endpoint, "eu-west-1") is None


def test_default_containers_need_no_configuration() -> None:
    spec = spec_of("s3://b/x", None, {"s3://b": S3}, home_region="eu-west-1")
    assert isinstance(spec, S3Spec)
    assert (spec.bucket, spec.options.region) == ("b", "eu-west-1")
    google = spec_of("gcs://b/x", None, {"gs://": GCS})
    assert isinstance(google, GcsSpec)
    assert google.bucket == "b"
    tigris = spec_of("tigris://b/x", None, {"tigris": S3})
    assert isinstance(tigris, S3Spec)
    assert tigris.options.endpoint_url == "https://t3.storage.dev"
    web = spec_of("https://Host:443/x", None, {"https://host": WEB})
    assert isinstance(web, GuardedHttpSpec)
    assert web.url == "https://host"
    with pytest.raises(InvalidInputError, match="azure_store"):
        spec_of("az://b/x", None, {"az://b": AZURE})


def test_only_a_host_authorised_by_its_address_may_be_private() -> None:
    container = VirtualChunkContainer("http://", http_store())
    for prefix, hosts in (
        ("http://127.0.0.1:8000/data", {"127.0.0.1"}),
        ("http://localhost", {"localhost"}),
        ("http://[::1]:80/", {"::1"}),
        ("http://example.org", set()),
    ):
        bare = prefix.removesuffix("/").removesuffix("/data")
        spec = spec_of(f"{bare}/data/x", container, {prefix: WEB})
        assert isinstance(spec, GuardedHttpSpec)
        assert spec.private_hosts == hosts
        assert not spec.allow_private
    wide = spec_of("http://127.0.0.1/x", container, {"http": WEB})
    assert isinstance(wide, GuardedHttpSpec)
    assert wide.private_hosts == set()
    allowed = spec_of(
        "http://10.0.0.1/x", container, {"http": Credentials.HttpAccess(allow_private=True)}
    )
    assert isinstance(allowed, GuardedHttpSpec)
    assert allowed.allow_private


def test_local_files_are_confined_to_what_was_authorised() -> None:
    container = VirtualChunkContainer("file:///data/", local_filesystem_store("/"))
    access: dict[str, AnyCredential | None] = {
        "file:///data/a%20b/": LocalFileSystemAccess,
        "file:///data/x/../one.nc": LocalFileSystemAccess,
        "s3://b": S3,
    }
    spec = spec_of("file:///data/a%20b/c.nc", container, access)
    assert spec == LocalSpec("/", encodes_keys=False, confined_to=("/data/a b", "/data/one.nc"))


def test_a_checksum_for_writing_does_not_disturb_reading() -> None:
    options = S3Options(region="eu-west-1", checksum_algorithm=ChecksumAlgorithm.Crc32)
    container = VirtualChunkContainer("s3://b/", ObjectStoreConfig.S3(options))
    plain = spec_of("s3://b/x", container, {"s3": S3})
    assert isinstance(plain, S3Spec)
    assert plain.options.checksum_algorithm is None


def test_a_bucket_cannot_be_a_host() -> None:
    container = VirtualChunkContainer("s3://", s3_store(region="eu-west-1"))
    for bucket in (".", "..", "-x", "_x"):
        with pytest.raises(InvalidInputError, match="name of a bucket") as caught:
            spec_of(f"s3://{bucket}/x", container, {"s3": S3})
        assert caught.value.kind == ErrorKind.INVALID_CONFIG


def test_the_credential_is_that_of_the_longest_entry() -> None:
    container = VirtualChunkContainer("s3://", s3_store())
    anonymous = Credentials.S3(S3Credentials.Anonymous())
    access: dict[str, AnyCredential | None] = {"s3": S3, "s3://open/data": anonymous}
    mine = spec_of("s3://open/other", container, access)
    shared = spec_of("s3://open/data/x", container, access)
    assert isinstance(mine, S3Spec)
    assert isinstance(shared, S3Spec)
    assert mine.credentials != shared.credentials == S3Credentials.Anonymous()
    assert replace(mine, credentials=shared.credentials) == shared
