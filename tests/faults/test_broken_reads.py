"""Reads from S3 that break off or race with a writer: whole objects of one state, or an error."""

import pytest

from icefloe.config import StorageConcurrencySettings, StorageRetriesSettings, StorageSettings
from icefloe.effects import run_blocking
from icefloe.errors import ObjectNotFoundError, StorageError
from icefloe.storage import Backend, Storage
from tests.support.proxy import ActFirst, CutBody, CuttingProxy, LoseRequest

pytestmark = pytest.mark.server

CONTENT = bytes(range(256)) * 1200
PARTS = 8


def methods(proxy: CuttingProxy) -> list[str]:
    return [exchange.method for exchange in proxy.exchanges]


@pytest.fixture
def in_parts(storage: Storage) -> Backend:
    """Reads an object of that size in eight requests."""
    return storage.open(
        StorageSettings(
            concurrency=StorageConcurrencySettings(
                max_concurrent_requests_for_object=2,
                ideal_concurrent_request_size=len(CONTENT) // PARTS,
            ),
            retries=StorageRetriesSettings(max_tries=4, initial_backoff_ms=1, max_backoff_ms=5),
        )
    )


@pytest.mark.parametrize("kept_bytes", [0, 1, 150_000, 299_999])
def test_read_that_breaks_off_is_repeated(
    backend: Backend, witness: Backend, proxy: CuttingProxy, kept_bytes: int
) -> None:
    run_blocking(witness.put("object", CONTENT))
    proxy.plan(CutBody(method="GET", after_bytes=kept_bytes))
    assert bytes(run_blocking(backend.get("object")).data) == CONTENT
    proxy.plan(CutBody(method="GET", after_bytes=kept_bytes))
    (found,) = run_blocking(backend.get_ranges("object", [(1, 300_001)]))
    assert bytes(found) == CONTENT[1:300_001]
    assert methods(proxy) == ["GET", "GET"]


def test_read_that_always_breaks_off_is_an_error(
    backend: Backend, witness: Backend, proxy: CuttingProxy
) -> None:
    """Never short data."""
    run_blocking(witness.put("object", CONTENT))
    proxy.plan(CutBody(method="GET", after_bytes=200_000, times=None))
    with pytest.raises(StorageError) as caught:
        run_blocking(backend.get("object"))
    assert caught.value.retryable
    with pytest.raises(StorageError):
        run_blocking(backend.get_ranges("object", [(0, 250_000)]))
    assert methods(proxy) == ["GET"] * 8


@pytest.mark.parametrize("skip", [0, 1, 5, PARTS])
def test_broken_part_of_a_large_read_is_repeated(
    in_parts: Backend, witness: Backend, proxy: CuttingProxy, skip: int
) -> None:
    run_blocking(witness.put("object", CONTENT))
    proxy.plan(CutBody(method="GET", after_bytes=10, skip=skip))
    assert bytes(run_blocking(in_parts.get("object")).data) == CONTENT
    assert len(methods(proxy)) > PARTS
    proxy.plan(LoseRequest(method="GET", skip=skip))
    assert bytes(run_blocking(in_parts.get("object")).data) == CONTENT


def replace_object(witness: Backend) -> None:
    run_blocking(witness.put("object", b"x" * len(CONTENT)))


def remove_object(witness: Backend) -> None:
    run_blocking(witness.delete_many(["object"]))


@pytest.mark.parametrize("skip", [1, 2, 4, PARTS - 1])
def test_large_read_never_mixes_two_states(
    in_parts: Backend, witness: Backend, proxy: CuttingProxy, skip: int
) -> None:
    """The object is replaced between two of the requests that read it."""
    run_blocking(witness.put("object", CONTENT))
    proxy.plan(ActFirst(method="GET", skip=skip, act=lambda: replace_object(witness)))
    found = bytes(run_blocking(in_parts.get("object")).data)
    assert found == b"x" * len(CONTENT)


@pytest.mark.parametrize(
    "asked", [[(1, 300_001)], [(0, 10), (150_000, 150_010), (300_000, 300_010)]]
)
def test_ranges_never_mix_two_states(
    in_parts: Backend, witness: Backend, proxy: CuttingProxy, asked: list[tuple[int, int]]
) -> None:
    run_blocking(witness.put("object", CONTENT))
    proxy.plan(ActFirst(method="GET", skip=1, act=lambda: replace_object(witness)))
    found = run_blocking(in_parts.get_ranges("object", asked))
    assert [bytes(each) for each in found] == [b"x" * (stop - start) for start, stop in asked]


def test_object_that_vanishes_while_read(
    in_parts: Backend, witness: Backend, proxy: CuttingProxy
) -> None:
    run_blocking(witness.put("object", CONTENT))
    proxy.plan(ActFirst(method="GET", skip=3, act=lambda: remove_object(witness)))
    with pytest.raises(ObjectNotFoundError):
        run_blocking(in_parts.get("object"))


def test_absence_is_not_retried(backend: Backend, storage: Storage, proxy: CuttingProxy) -> None:
    proxy.plan()
    with pytest.raises(ObjectNotFoundError):
        run_blocking(backend.get("absent"))
    assert methods(proxy) == ["GET"]
    assert storage.request_counts().retries == 0
