"""Repositories come into being, are opened with few requests, and keep their configuration."""

import asyncio
import pickle
from pathlib import Path

import pytest

import icefloe
from icefloe.config import (
    CachingConfig,
    RepositoryConfig,
    StorageRetriesSettings,
    StorageSettings,
)
from icefloe.effects import run_blocking
from icefloe.errors import (
    ConflictError,
    ErrorKind,
    InvalidInputError,
    RepositoryNotFoundError,
)
from icefloe.format.ids import INITIAL_SNAPSHOT_ID
from icefloe.repo import lifecycle
from icefloe.repo.repo_changes import CreateTag, SetConfig
from icefloe.storage import RequestCounts, S3Options, Storage, local_filesystem_storage
from tests.support.checking import check_repository_blocking

SPECS = pytest.mark.parametrize("spec_version", [1, 2])
SMALL = RepositoryConfig(inline_chunk_threshold_bytes=7)


@pytest.fixture
def storage() -> Storage:
    return Storage.new_in_memory()


@SPECS
class TestCreating:
    def test_makes_an_empty_repository(self, storage: Storage, spec_version: int) -> None:
        context = run_blocking(lifecycle.create(storage, spec_version=spec_version))
        assert context.spec_version == spec_version
        assert run_blocking(context.ledger.branches()) == {"main": INITIAL_SNAPSHOT_ID}
        entry = run_blocking(context.ledger.entry(INITIAL_SNAPSHOT_ID))
        assert entry.message == "Repository initialized"
        assert entry.metadata == {"__icechunk": {"is_root": True}}
        assert entry.parent is None
        check_repository_blocking(storage.open())

    def test_in_a_place_that_is_not_clean(self, storage: Storage, spec_version: int) -> None:
        run_blocking(storage.open().put("somebody/elses", b"x"))
        with pytest.raises(InvalidInputError, match="somebody/elses") as caught:
            run_blocking(lifecycle.create(storage, spec_version=spec_version))
        assert caught.value.kind == ErrorKind.PARENT_DIRECTORY_NOT_CLEAN
        assert len(storage.list_objects()) == 1
        run_blocking(lifecycle.create(storage, spec_version=spec_version, check_clean_root=False))
        assert run_blocking(lifecycle.exists(storage))

    @pytest.mark.parametrize("existing", [1, 2])
    def test_over_another_repository(
        self, storage: Storage, spec_version: int, existing: int
    ) -> None:
        run_blocking(lifecycle.create(storage, spec_version=existing))
        before = storage.list_objects_metadata()
        with pytest.raises(InvalidInputError):
            run_blocking(lifecycle.create(storage, spec_version=spec_version))
        with pytest.raises(ConflictError, match="already") as caught:
            run_blocking(
                lifecycle.create(storage, spec_version=spec_version, check_clean_root=False)
            )
        assert caught.value.kind == (
            ErrorKind.BRANCH_UPDATE_CONFLICT if existing == 1 else ErrorKind.REPO_INFO_UPDATED
        )
        assert storage.list_objects_metadata() == before

    @pytest.mark.parametrize(
        ("config", "is_stored"),
        [(None, False), (RepositoryConfig(), False), (SMALL, True)],
        ids=["none", "default", "other"],
    )
    def test_stores_a_configuration_that_says_something(
        self, storage: Storage, spec_version: int, config: RepositoryConfig | None, is_stored: bool
    ) -> None:
        run_blocking(lifecycle.create(storage, config, spec_version=spec_version))
        stored = run_blocking(lifecycle.fetch_config(storage))
        if not is_stored:
            assert stored is None
            return
        assert stored is not None
        assert stored.inline_chunk_threshold_bytes == 7
        assert stored.get_partial_values_concurrency is None
        assert stored.storage == storage.default_settings()

    def test_works_on_an_event_loop(self, storage: Storage, spec_version: int) -> None:
        async def use() -> object:
            context = await lifecycle.create(storage, spec_version=spec_version)
            await context.ledger.update(CreateTag("t", INITIAL_SNAPSHOT_ID))
            return await (await lifecycle.open_(storage)).ledger.tags()

        assert asyncio.run(use()) == {"t": INITIAL_SNAPSHOT_ID}


def test_a_whole_bucket_is_no_place_for_a_repository() -> None:
    storage = Storage.new_s3(S3Options(region="nowhere"), "bucket", None)
    with pytest.raises(InvalidInputError) as caught:
        run_blocking(lifecycle.create(storage))
    assert caught.value.kind == ErrorKind.EMPTY_PREFIX_CREATION
    assert storage.request_counts().list == 0


def test_unknown_spec_versions_are_refused(storage: Storage) -> None:
    with pytest.raises(InvalidInputError) as caught:
        run_blocking(lifecycle.create(storage, spec_version=3))
    assert caught.value.kind == ErrorKind.UNSUPPORTED_SPEC_VERSION


class TestOpening:
    def test_spec_2_takes_one_request(self, storage: Storage) -> None:
        run_blocking(lifecycle.create(storage, SMALL))
        storage.reset_request_counts()
        run_blocking(lifecycle.open_(storage))
        counts = storage.request_counts()
        assert counts == RequestCounts(get=1, bytes_in=counts.bytes_in)

    def test_spec_1_is_looked_for_when_there_is_no_repo_object(self, storage: Storage) -> None:
        run_blocking(lifecycle.create(storage, spec_version=1))
        storage.reset_request_counts()
        run_blocking(lifecycle.open_(storage))
        counts = storage.request_counts()
        assert counts == RequestCounts(get=2, head=1, bytes_in=counts.bytes_in)

    def test_nothing_there(self, storage: Storage) -> None:
        with pytest.raises(RepositoryNotFoundError):
            run_blocking(lifecycle.open_(storage))
        with pytest.raises(RepositoryNotFoundError):
            run_blocking(lifecycle.fetch_config(storage))
        assert run_blocking(lifecycle.fetch_spec_version(storage)) is None
        assert not run_blocking(lifecycle.exists(storage))

    @SPECS
    def test_says_what_is_there(self, storage: Storage, spec_version: int) -> None:
        run_blocking(lifecycle.create(storage, spec_version=spec_version))
        assert run_blocking(lifecycle.fetch_spec_version(storage)) == spec_version
        assert run_blocking(lifecycle.exists(storage))

    @SPECS
    def test_or_creating(self, storage: Storage, spec_version: int) -> None:
        first = run_blocking(lifecycle.open_or_create(storage, spec_version=spec_version))
        run_blocking(first.ledger.update(CreateTag("t", INITIAL_SNAPSHOT_ID)))
        again = run_blocking(lifecycle.open_or_create(storage, spec_version=3 - spec_version))
        assert again.spec_version == spec_version
        assert run_blocking(again.ledger.tags()) == {"t": INITIAL_SNAPSHOT_ID}

    def test_or_creating_where_something_else_is(self, storage: Storage) -> None:
        run_blocking(storage.open().put("somebody/elses", b"x"))
        with pytest.raises(InvalidInputError) as caught:
            run_blocking(lifecycle.open_or_create(storage))
        assert caught.value.kind == ErrorKind.PARENT_DIRECTORY_NOT_CLEAN


@SPECS
class TestConfiguration:
    def test_given_goes_over_stored_goes_over_default(
        self, storage: Storage, spec_version: int
    ) -> None:
        stored = RepositoryConfig(
            inline_chunk_threshold_bytes=7, caching=CachingConfig(num_chunk_refs=5)
        )
        run_blocking(lifecycle.create(storage, stored, spec_version=spec_version))
        given = RepositoryConfig(
            max_concurrent_requests=9, caching=CachingConfig(num_bytes_chunks=3)
        )
        context = run_blocking(lifecycle.open_(storage, given))
        config = context.config
        assert (config.inline_chunk_threshold_bytes, config.max_concurrent_requests) == (7, 9)
        assert (config.caching.num_chunk_refs, config.caching.num_bytes_chunks) == (5, 3)
        assert config.compression.level == 3
        assert context.user_config.compression is None or (
            context.user_config.compression.level is None
        )
        assert run_blocking(lifecycle.fetch_config(storage)) != context.user_config

    def test_that_a_caller_changes_later_stays_as_it_was(
        self, storage: Storage, spec_version: int
    ) -> None:
        run_blocking(lifecycle.create(storage, SMALL, spec_version=spec_version))
        for given in (None, RepositoryConfig(max_concurrent_requests=9)):
            opened = icefloe.Repository.open(storage, given)
            for mine in (given, opened.config, icefloe.Repository.fetch_config(storage)):
                if mine is not None:
                    mine.inline_chunk_threshold_bytes = 8
                    mine.caching = CachingConfig(num_chunk_refs=5)
            again = icefloe.Repository.open(storage)
            for repository in (opened, again):
                assert repository.config.inline_chunk_threshold_bytes == 7
                assert repository.config.caching != CachingConfig(num_chunk_refs=5)

    def test_is_saved_and_saved_again(self, storage: Storage, spec_version: int) -> None:
        run_blocking(lifecycle.create(storage, spec_version=spec_version))
        context = run_blocking(lifecycle.open_(storage, SMALL))
        run_blocking(lifecycle.save_config(context))
        run_blocking(lifecycle.save_config(context))
        stored = run_blocking(lifecycle.fetch_config(storage))
        assert stored == context.user_config
        copies = [key for key, _ in storage.list_objects() if key.startswith("overwritten/")]
        assert len(copies) == (1 if spec_version == 1 else 2)

    def test_reopening_keeps_what_was_given(self, storage: Storage, spec_version: int) -> None:
        run_blocking(lifecycle.create(storage, spec_version=spec_version))
        context = run_blocking(lifecycle.open_(storage, SMALL, access={"file:///x/": None}))
        other = run_blocking(lifecycle.reopen(context, RepositoryConfig(max_concurrent_requests=9)))
        assert other.config.inline_chunk_threshold_bytes == 7
        assert other.config.max_concurrent_requests == 9
        assert other.access == context.access
        assert run_blocking(lifecycle.reopen(context, access={})).access == {}

    def test_of_the_storage_applies_to_its_requests(
        self, tmp_path: Path, spec_version: int
    ) -> None:
        storage = local_filesystem_storage(str(tmp_path / "r"))
        settings = StorageSettings(retries=StorageRetriesSettings(max_tries=3))
        config = RepositoryConfig(storage=settings)
        run_blocking(lifecycle.create(storage, config, spec_version=spec_version))
        context = run_blocking(lifecycle.open_(storage))
        assert context.config.storage.retries.max_tries == 3
        assert context.config.storage.concurrency.ideal_concurrent_request_size == 4096
        assert context.backend is storage.open(context.user_config.storage)
        assert context.backend is not storage.open()


def test_a_configuration_that_somebody_else_changed_is_not_overwritten(storage: Storage) -> None:
    run_blocking(lifecycle.create(storage, spec_version=1))
    one = run_blocking(lifecycle.open_(storage, SMALL))
    other = run_blocking(lifecycle.open_(storage, RepositoryConfig(max_concurrent_requests=9)))
    run_blocking(lifecycle.save_config(one))
    with pytest.raises(ConflictError) as caught:
        run_blocking(lifecycle.save_config(other))
    assert caught.value.kind == ErrorKind.CONFIG_UPDATED
    assert run_blocking(lifecycle.fetch_config(storage)) == one.user_config


@SPECS
def test_contexts_travel_to_other_processes(tmp_path: Path, spec_version: int) -> None:
    storage = local_filesystem_storage(str(tmp_path / "r"))
    context = run_blocking(lifecycle.create(storage, SMALL, spec_version=spec_version))
    copy = pickle.loads(pickle.dumps(context))
    assert copy.config == context.config
    assert copy.spec_version == spec_version
    run_blocking(copy.ledger.update(CreateTag("t", INITIAL_SNAPSHOT_ID)))
    run_blocking(copy.ledger.update(SetConfig(copy.user_config)))
    assert run_blocking(context.ledger.tags()) == {"t": INITIAL_SNAPSHOT_ID}
