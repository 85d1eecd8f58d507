"""Repositories on every kind of storage: created, opened, and changed by several at once."""

from pathlib import Path

import pytest

from icefloe.config import RepositoryConfig
from icefloe.effects import map_concurrently, run_blocking
from icefloe.errors import ConflictError
from icefloe.format.ids import INITIAL_SNAPSHOT_ID
from icefloe.repo import lifecycle
from icefloe.repo.repo_changes import CreateBranch, CreateTag, DeleteBranch, DeleteTag
from icefloe.storage import Storage
from tests.conformance.storages import azure_storage_at, gcs_storage_at, s3_storage_at
from tests.support.checking import check_repository_blocking
from tests.support.gcs_server import GcsEndpoint
from tests.support.servers import AzureEndpoint, S3Endpoint

WRITERS = 4
TAGS_EACH = 5


class LedgerConformance:
    """What holds for a repository wherever it is."""

    @pytest.mark.parametrize("spec_version", [1, 2])
    def test_life(self, storage: Storage, spec_version: int) -> None:
        config = RepositoryConfig(inline_chunk_threshold_bytes=7)
        run_blocking(lifecycle.create(storage, config, spec_version=spec_version))
        with pytest.raises(ConflictError):
            run_blocking(lifecycle.create(storage, check_clean_root=False))
        context = run_blocking(lifecycle.open_(storage))
        assert context.config.inline_chunk_threshold_bytes == 7
        ledger = context.ledger
        run_blocking(ledger.update(CreateBranch("a b%", INITIAL_SNAPSHOT_ID)))
        run_blocking(ledger.update(CreateTag("t", INITIAL_SNAPSHOT_ID)))
        run_blocking(ledger.update(CreateTag("gone", INITIAL_SNAPSHOT_ID)))
        run_blocking(ledger.update(DeleteTag("gone")))
        run_blocking(lifecycle.save_config(context))
        other = run_blocking(lifecycle.open_(storage)).ledger
        assert run_blocking(other.branches()).keys() == {"main", "a b%"}
        assert run_blocking(other.tags()).keys() == {"t"}
        run_blocking(other.update(DeleteBranch("a b%")))
        assert run_blocking(ledger.branch_names()) == {"main"}
        check_repository_blocking(storage.open())

    @pytest.mark.parametrize("spec_version", [1, 2])
    def test_no_update_is_lost_between_writers(self, storage: Storage, spec_version: int) -> None:
        run_blocking(lifecycle.create(storage, spec_version=spec_version))

        async def write(writer: int) -> None:
            context = await lifecycle.open_(storage)
            for number in range(TAGS_EACH):
                await context.ledger.update(CreateTag(f"{writer}.{number}", INITIAL_SNAPSHOT_ID))

        run_blocking(map_concurrently(write, range(WRITERS), limit=WRITERS))
        ledger = run_blocking(lifecycle.open_(storage)).ledger
        names = {f"{w}.{n}" for w in range(WRITERS) for n in range(TAGS_EACH)}
        assert run_blocking(ledger.tag_names()) == names
        check_repository_blocking(storage.open())


class TestMemory(LedgerConformance):
    @pytest.fixture
    def storage(self) -> Storage:
        return Storage.new_in_memory()


class TestLocal(LedgerConformance):
    @pytest.fixture
    def storage(self, tmp_path: Path) -> Storage:
        return Storage.new_local_filesystem(str(tmp_path / "repository"))


@pytest.mark.server
class TestS3(LedgerConformance):
    @pytest.fixture
    def storage(self, s3_endpoint: S3Endpoint, prefix: str) -> Storage:
        return s3_storage_at(s3_endpoint, prefix)


@pytest.mark.server
class TestAzure(LedgerConformance):
    @pytest.fixture
    def storage(self, azure_endpoint: AzureEndpoint, prefix: str) -> Storage:
        return azure_storage_at(azure_endpoint, prefix)


@pytest.mark.server
class TestGcs(LedgerConformance):
    @pytest.fixture
    def storage(self, gcs_endpoint: GcsEndpoint, prefix: str) -> Storage:
        return gcs_storage_at(gcs_endpoint, prefix)
