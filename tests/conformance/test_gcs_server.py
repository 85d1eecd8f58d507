"""Our small GCS keeps what its docstring says, seen through a foreign client."""

from collections.abc import Iterator

import pytest
from obstore.exceptions import AlreadyExistsError, GenericError, PreconditionError
from obstore.store import GCSStore

from tests.support.gcs_server import gcs_server

pytestmark = pytest.mark.server


@pytest.fixture
def store() -> Iterator[GCSStore]:
    with gcs_server() as endpoint:
        yield GCSStore(
            endpoint.bucket,
            service_account_key=endpoint.service_account_key,
            client_options={"allow_http": True},
            retry_config={"max_retries": 0},
        )


def test_generations_are_compared(store: GCSStore) -> None:
    first = store.put("object", b"same", mode="create")
    assert first["version"] is not None
    with pytest.raises(AlreadyExistsError):
        store.put("object", b"other", mode="create")
    second = store.put("object", b"same", mode={"version": first["version"]})
    assert second["e_tag"] == first["e_tag"]
    assert second["version"] != first["version"]
    with pytest.raises(PreconditionError):
        store.put("object", b"other", mode={"version": first["version"]})
    with pytest.raises(PreconditionError):
        store.put("absent", b"other", mode={"version": first["version"]})
    assert store.head("object")["version"] == second["version"]


def test_uploads_in_parts(store: GCSStore) -> None:
    content = bytes(range(256)) * 50_000
    attributes = {"Content-Type": "text/plain", "colour": "blue"}
    store.put("object", content, use_multipart=True, chunk_size=5 << 20, attributes=attributes)
    found = store.get("object")
    assert bytes(found.bytes()) == content
    assert dict(found.attributes) == attributes


def test_pages_and_delimiters(store: GCSStore) -> None:
    keys = [f"folder/{number % 3}/{number:04}" for number in range(2100)]
    for key in keys:
        store.put(key, b"")
    assert sorted(meta["path"] for batch in store.list() for meta in batch) == sorted(keys)
    folded = store.list_with_delimiter("folder")
    assert list(folded["common_prefixes"]) == ["folder/0", "folder/1", "folder/2"]
    assert len(store.list_with_delimiter("folder/1")["objects"]) == 700


def test_conditional_and_ranged_reads(store: GCSStore) -> None:
    store.put("object", b"0123456789")
    etag = store.head("object")["e_tag"]
    assert etag is not None
    assert bytes(store.get("object", options={"if_match": etag}).bytes()) == b"0123456789"
    with pytest.raises(PreconditionError):
        store.get("object", options={"if_match": '"other"'})
    assert bytes(store.get_range("object", start=8, end=99)) == b"89"
    assert bytes(store.get("object", options={"range": {"suffix": 3}}).bytes()) == b"789"
    assert bytes(store.get("object", options={"range": {"offset": 7}}).bytes()) == b"789"
    with pytest.raises(GenericError, match="416"):
        store.get_range("object", start=10, end=11)


def test_copies_and_deletions(store: GCSStore) -> None:
    store.put("ñ source%", b"1", attributes={"colour": "blue"})
    store.copy("ñ source%", "target +")
    assert dict(store.get("target +").attributes)["colour"] == "blue"
    with pytest.raises(AlreadyExistsError):
        store.copy("ñ source%", "target +", overwrite=False)
    store.delete("target +")
    with pytest.raises(FileNotFoundError):
        store.delete("target +")
