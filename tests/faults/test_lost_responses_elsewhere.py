"""The write id recognises our writes on Azure and GCS too, not only on S3."""

from collections.abc import Callable, Iterator
from functools import partial
from urllib.parse import urlsplit

import pytest

from icefloe.effects import run_blocking
from icefloe.errors import OutcomeUnknownError, PreconditionFailedError
from icefloe.records import replace
from icefloe.storage import Backend, Storage
from tests.conformance.storages import azure_storage_at, gcs_storage_at
from tests.faults.conftest import QUICK_RETRIES
from tests.support.proxy import CuttingProxy, LoseRequest, LoseResponse, cutting_proxy

pytestmark = pytest.mark.server


@pytest.fixture(params=["azure", "gcs"])
def both_ways_in(
    request: pytest.FixtureRequest, prefix: str
) -> Iterator[tuple[Backend, Backend, CuttingProxy]]:
    """A backend behind a proxy, one that sees the same objects without it, and the proxy."""
    endpoint = request.getfixturevalue(f"{request.param}_endpoint")
    ways: dict[str, Callable[..., Storage]] = {"azure": azure_storage_at, "gcs": gcs_storage_at}
    open_at = ways[request.param]
    with cutting_proxy(endpoint.url) as proxy:
        behind = replace(endpoint, url=proxy.url + urlsplit(endpoint.url).path)
        backend = open_at(behind, prefix).open(QUICK_RETRIES)
        yield backend, open_at(endpoint, prefix).open(), proxy


def put_as_other(witness: Backend) -> None:
    run_blocking(witness.put("object", b"somebody else's"))


def read(witness: Backend) -> bytes:
    return bytes(run_blocking(witness.get("object")).data)


def test_lost_responses(both_ways_in: tuple[Backend, Backend, CuttingProxy]) -> None:
    backend, witness, proxy = both_ways_in
    proxy.plan(LoseResponse(method="PUT"))
    version = run_blocking(backend.put("object", b"1", if_absent=True))
    assert [exchange.method for exchange in proxy.exchanges] == ["PUT", "HEAD"]
    assert run_blocking(witness.head("object")).info.version == version
    proxy.plan(LoseResponse(method="PUT"))
    version = run_blocking(backend.put("object", b"2", if_version=version))
    assert read(witness) == b"2"
    assert run_blocking(witness.head("object")).info.version == version


def test_lost_requests(both_ways_in: tuple[Backend, Backend, CuttingProxy]) -> None:
    backend, witness, proxy = both_ways_in
    proxy.plan(LoseRequest(method="PUT"))
    version = run_blocking(backend.put("object", b"1", if_absent=True))
    proxy.plan(LoseRequest(method="PUT"))
    run_blocking(backend.put("object", b"2", if_version=version))
    assert read(witness) == b"2"


def test_conflict(both_ways_in: tuple[Backend, Backend, CuttingProxy]) -> None:
    backend, witness, _ = both_ways_in
    version = run_blocking(backend.put("object", b"1", if_absent=True))
    put_as_other(witness)
    with pytest.raises(PreconditionFailedError):
        run_blocking(backend.put("object", b"2", if_absent=True))
    with pytest.raises(PreconditionFailedError):
        run_blocking(backend.put("object", b"2", if_version=version))


def test_overwritten_meanwhile_is_unknown(
    both_ways_in: tuple[Backend, Backend, CuttingProxy],
) -> None:
    backend, witness, proxy = both_ways_in
    proxy.plan(LoseResponse(method="PUT", meanwhile=partial(put_as_other, witness)))
    with pytest.raises(OutcomeUnknownError):
        run_blocking(backend.put("object", b"1", if_absent=True))
    assert read(witness) == b"somebody else's"
