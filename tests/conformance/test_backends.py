"""Every backend keeps the promises of the port, against real servers where it needs one."""

from pathlib import Path

import pytest

from icefloe.storage import Storage
from icefloe.storage.port import Backend
from icefloe.testing.storage_suite import ODD_KEYS, StorageConformance
from tests.conformance.storages import azure_storage_at, gcs_storage_at, s3_storage_at
from tests.support.gcs_server import GcsEndpoint
from tests.support.servers import AzureEndpoint, S3Endpoint


class TestMemory(StorageConformance):
    @pytest.fixture
    def backend(self) -> Backend:
        return Storage.new_in_memory().open()


class TestLocal(StorageConformance):
    keeps_attributes = False

    @pytest.fixture
    def backend(self, tmp_path: Path) -> Backend:
        return Storage.new_local_filesystem(str(tmp_path / "not" / "there yet")).open()


class TestDurableLocal(StorageConformance):
    keeps_attributes = False

    @pytest.fixture
    def backend(self, tmp_path: Path) -> Backend:
        return Storage.new_local_filesystem(str(tmp_path), durable=True).open()


@pytest.mark.server
class TestS3(StorageConformance):
    versions_follow_content = True
    odd_keys = tuple(key for key in ODD_KEYS if "\\" not in key)  # SeaweedFS turns \ into /

    @pytest.fixture
    def backend(self, s3_endpoint: S3Endpoint, prefix: str) -> Backend:
        return s3_storage_at(s3_endpoint, prefix).open()


@pytest.mark.server
class TestAzure(StorageConformance):
    @pytest.fixture
    def backend(self, azure_endpoint: AzureEndpoint, prefix: str) -> Backend:
        return azure_storage_at(azure_endpoint, prefix).open()


@pytest.mark.server
class TestGcs(StorageConformance):
    """Against the small server of our own; see its docstring."""

    @pytest.fixture
    def backend(self, gcs_endpoint: GcsEndpoint, prefix: str) -> Backend:
        return gcs_storage_at(gcs_endpoint, prefix).open()
