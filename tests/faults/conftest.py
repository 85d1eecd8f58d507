"""S3 behind a proxy that breaks connections."""

from collections.abc import Iterator

import pytest

from icefloe.config import StorageRetriesSettings, StorageSettings
from icefloe.storage import Backend, Storage
from tests.conformance.storages import s3_storage_at
from tests.support.proxy import CuttingProxy, cutting_proxy
from tests.support.servers import S3Endpoint

QUICK_RETRIES = StorageSettings(
    retries=StorageRetriesSettings(max_tries=4, initial_backoff_ms=1, max_backoff_ms=5)
)


@pytest.fixture
def proxy(s3_endpoint: S3Endpoint) -> Iterator[CuttingProxy]:
    with cutting_proxy(s3_endpoint.url) as proxy:
        yield proxy


@pytest.fixture
def storage(s3_endpoint: S3Endpoint, prefix: str, proxy: CuttingProxy) -> Storage:
    """The storage under test: all of its requests go through the proxy."""
    return s3_storage_at(s3_endpoint, prefix, url=proxy.url)


@pytest.fixture
def backend(storage: Storage) -> Backend:
    return storage.open(QUICK_RETRIES)


@pytest.fixture
def witness(s3_endpoint: S3Endpoint, prefix: str) -> Backend:
    """The same objects without the proxy: what others see and do."""
    return s3_storage_at(s3_endpoint, prefix).open()
