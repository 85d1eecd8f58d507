"""What the reader authorised: entries, parents, parts, credentials that fit."""

import logging
import pickle

import pytest

from icefloe.config import (
    ObjectStoreConfig,
    S3Options,
    VirtualChunkContainer,
    azure_store,
    gcs_store,
    http_store,
    local_filesystem_store,
    s3_store,
)
from icefloe.config.stores import AnyObjectStoreConfig
from icefloe.credentials import (
    AnyCredential,
    AzureCredentials,
    Credentials,
    GcsCredentials,
    HttpAccess,
    LocalFileSystemAccess,
    S3Credentials,
    containers_credentials,
    s3_credentials,
)
from icefloe.errors import ErrorKind, InvalidInputError, StorageError
from icefloe.virtual_chunks.reader import VirtualReader
from tests.support.logged import own_messages

OPEN = Credentials.S3(S3Credentials.Anonymous())
MINE = Credentials.S3(s3_credentials(access_key_id="id", secret_access_key="hush"))

type Entries = dict[str, AnyCredential | None]


def s3(prefix: str, name: str | None = None) -> VirtualChunkContainer:
    return VirtualChunkContainer(prefix, s3_store(), name)


def grant(reader: VirtualReader, location: str) -> tuple[str, AnyCredential] | None:
    place = reader.resolver.locate(location)
    return None if place.grant is None else (place.grant.prefix, place.grant.credential)


def test_a_parent_authorises_what_is_below_it() -> None:
    containers = [s3("s3://b/x/"), s3("s3://b/y/"), s3("s3://other/")]
    reader = VirtualReader(containers, {"s3://b": OPEN})
    assert grant(reader, "s3://b/x/k") == ("s3://b", OPEN)
    assert grant(reader, "s3://b/y/k") == ("s3://b", OPEN)
    assert grant(reader, "s3://other/k") is None
    assert reader.resolver.authorised_prefixes == {"s3://b/x/", "s3://b/y/"}


def test_an_entry_below_a_wide_container_authorises_that_part() -> None:
    reader = VirtualReader([s3("s3://")], {"s3://b/x": OPEN, "s3://b/x/y/": MINE})
    assert grant(reader, "s3://b/x/k") == ("s3://b/x", OPEN)
    assert grant(reader, "s3://b/x/y/k") == ("s3://b/x/y/", MINE)
    assert grant(reader, "s3://b/xx/k") is None
    assert grant(reader, "s3://b/k") is None
    assert grant(reader, "s3://bb/x/k") is None
    assert reader.resolver.authorised_prefixes == {"s3://b/x", "s3://b/x/y/"}


def test_aliases_of_a_scheme_are_authorised_together() -> None:
    google = Credentials.Gcs(GcsCredentials.Anonymous())
    azure = Credentials.Azure(AzureCredentials.Anonymous())
    containers = [
        VirtualChunkContainer("gs://b/", gcs_store()),
        VirtualChunkContainer("abfs://c/", azure_store(account="mine")),
    ]
    reader = VirtualReader(containers, {"gcs://b": google, "az": azure})
    assert grant(reader, "gs://b/k") == ("gcs://b", google)
    assert grant(reader, "abfs://c/k") == ("az", azure)
    assert reader.resolver.authorised_prefixes == {"gs://b/", "abfs://c/"}


def test_between_aliases_the_entry_with_the_scheme_of_the_location_counts() -> None:
    one = Credentials.Gcs(GcsCredentials.Anonymous())
    two = Credentials.Gcs(GcsCredentials.FromEnv())
    container = VirtualChunkContainer("gs", gcs_store())
    for entries in ({"gs://b": one, "gcs://b": two}, {"gcs://b": two, "gs://b": one}):
        reader = VirtualReader([container], dict(entries))
        assert grant(reader, "gs://b/k") == ("gs://b", one)
        assert grant(reader, "gcs://b/k") == ("gcs://b", two)


def test_names_of_containers_and_what_covers_nothing_authorise_nothing() -> None:
    access = containers_credentials(
        {"data": S3Credentials.FromEnv(), "vcc://data/": None, "s3://buck": HttpAccess}
    )
    reader = VirtualReader([s3("s3://bucket/", "data")], access)
    assert reader.resolver.authorised_prefixes == frozenset()
    assert grant(reader, "vcc://data/k") is None
    assert grant(reader, "s3://bucket/k") is None


def test_malformed_entries_are_ignored_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    entries: Entries = {"s3://user:hush@b/": OPEN, "": OPEN, "s3://b/?q": OPEN, "file://": OPEN}
    with caplog.at_level(logging.WARNING):
        reader = VirtualReader([s3("s3://b/")], entries)
    assert reader.resolver.authorised_prefixes == frozenset()
    assert len(own_messages(caplog)) == 4
    assert "hush" not in caplog.text


@pytest.mark.parametrize("entry", ["file", "file://", "s3", "https", "data://"])
def test_files_are_authorised_by_entries_for_files_only(entry: str) -> None:
    container = VirtualChunkContainer("file:///data/", local_filesystem_store("/data"))
    reader = VirtualReader([container], {entry: LocalFileSystemAccess})
    assert grant(reader, "file:///data/k") is None
    explicit = VirtualReader([container], {"file:///": LocalFileSystemAccess})
    assert grant(explicit, "file:///data/k") == ("file:///", LocalFileSystemAccess)


def test_local_files_have_no_default_container() -> None:
    reader = VirtualReader([], {"file:///data/": LocalFileSystemAccess})
    with pytest.raises(InvalidInputError) as caught:
        reader.resolver.locate("file:///data/k")
    assert caught.value.kind == ErrorKind.NO_CONTAINER_FOR_VIRTUAL_CHUNK


@pytest.mark.parametrize(
    ("prefix", "store", "expected"),
    [
        ("s3://b/", s3_store(), "{'s3://b/': icefloe.s3_credentials(...)}"),
        ("models://", s3_store(), "{'models://': icefloe.s3_credentials(...)}"),
        ("gs://b/", gcs_store(), "{'gs://b/': icefloe.gcs_credentials(...)}"),
        ("az://b/", azure_store(account="a"), "{'az://b/': icefloe.azure_credentials(...)}"),
        ("https://b/", http_store(), "{'https://b/': icefloe.credentials.HttpAccess}"),
        (
            "tigris://b/",
            ObjectStoreConfig.Tigris(S3Options()),
            "{'tigris://b/': icefloe.s3_credentials(...)}",
        ),
    ],
)
def test_the_error_says_what_to_write(
    prefix: str, store: AnyObjectStoreConfig, expected: str
) -> None:
    reader = VirtualReader([VirtualChunkContainer(prefix, store)])
    location = prefix + ("b/k" if prefix.endswith("://") else "k")
    with pytest.raises(InvalidInputError) as caught:
        reader.resolver.require_grant(reader.resolver.locate(location))
    assert caught.value.kind == ErrorKind.UNAUTHORIZED_VIRTUAL_CHUNK_CONTAINER
    assert caught.value.message.endswith(
        f"authorize_virtual_chunk_access=icefloe.containers_credentials({expected}),"
        f" or in xarray with authorize=[{prefix!r}]"
    )
    assert repr(location) in caught.value.message


@pytest.mark.parametrize("entry", ["s3://bucket", "s3", "s3://bucket/part"])
def test_a_credential_of_another_platform_is_refused_at_once(entry: str) -> None:
    with pytest.raises(StorageError) as caught:
        VirtualReader([s3("s3://bucket/")], {entry: LocalFileSystemAccess})
    assert caught.value.kind == ErrorKind.STORAGE_OTHER
    assert "s3_credentials" in caught.value.message
    assert repr(entry) in caught.value.message


def test_a_credential_that_does_not_fit_a_default_container_is_refused_when_used() -> None:
    reader = VirtualReader([], {"s3://b": HttpAccess})
    with pytest.raises(StorageError, match="s3_credentials"):
        reader.resolver.locate("s3://b/k")


def test_none_stands_for_what_the_store_says() -> None:
    containers = [
        VirtualChunkContainer("s3://open/", s3_store(anonymous=True)),
        VirtualChunkContainer("s3://mine/", s3_store()),
        VirtualChunkContainer("https://host/", http_store()),
        VirtualChunkContainer("gs://b/", gcs_store()),
    ]
    reader = VirtualReader(containers, {"s3": None, "https://host": None, "gs://b": None})
    assert grant(reader, "s3://open/k") == ("s3", OPEN)
    assert grant(reader, "s3://mine/k") == ("s3", Credentials.S3(S3Credentials.FromEnv()))
    assert grant(reader, "https://host/k") == ("https://host", HttpAccess)
    google = Credentials.Gcs(GcsCredentials.Anonymous())
    assert grant(reader, "gs://b/k") == ("gs://b", google)
    azure = VirtualChunkContainer("az://container/", azure_store(account="fine"))
    with pytest.raises(StorageError, match="azure_credentials"):
        VirtualReader([azure], {"az://container/": None})


def test_a_copy_in_another_process_is_authorised_alike() -> None:
    reader = VirtualReader(
        [s3("s3://")], {"s3://b/x": MINE}, disputed=["s3://b/x/y/"], home_region="eu-west-1"
    )
    copy = pickle.loads(pickle.dumps(reader))
    assert grant(copy, "s3://b/x/k") == ("s3://b/x", MINE)
    assert grant(copy, "s3://b/k") is None
    with pytest.raises(InvalidInputError, match="contradicts"):
        copy.resolver.locate("s3://b/x/y/k")
    place = copy.resolver.locate("s3://b/x/k")
    assert copy.storage_of(place, place.grant).spec.options.region == "eu-west-1"


def test_secrets_are_not_shown() -> None:
    reader = VirtualReader([s3("s3://b/")], {"s3://b": MINE})
    place = reader.resolver.locate("s3://b/k")
    shown = repr(reader) + repr(place) + repr(place.grant)
    assert place.grant is not None
    shown += repr(reader.storage_of(place, place.grant))
    assert "hush" not in shown
