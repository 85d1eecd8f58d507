"""Merging, containers, and what applies in the end."""

import pytest

from icefloe.config import (
    CachingConfig,
    CompressionConfig,
    ManifestConfig,
    ManifestPreloadConfig,
    ManifestSplitCondition,
    ManifestSplitDimCondition,
    ManifestSplittingConfig,
    ManifestVirtualChunkLocationCompressionConfig,
    ObjectStoreConfig,
    RepositoryConfig,
    RepoUpdateRetryConfig,
    S3Options,
    StorageConcurrencySettings,
    StorageRetriesSettings,
    StorageSettings,
    StorageTimeoutSettings,
    VirtualChunkContainer,
    effective_config,
    effective_storage_settings,
    gcs_store,
    http_store,
    local_filesystem_store,
    s3_store,
)
from icefloe.config.conditions import DEFAULT_PRELOAD_CONDITION
from icefloe.config.stores import AnyObjectStoreConfig
from icefloe.errors import InvalidInputError


def container(prefix: str, name: str | None = None) -> VirtualChunkContainer:
    return VirtualChunkContainer(prefix, s3_store(), name)


def test_merge_goes_field_by_field_and_the_argument_wins() -> None:
    base = RepositoryConfig(
        inline_chunk_threshold_bytes=1,
        compression=CompressionConfig(level=1),
        caching=CachingConfig(num_chunk_refs=1, num_bytes_chunks=1),
        storage=StorageSettings(
            storage_class="a", retries=StorageRetriesSettings(1), timeouts=StorageTimeoutSettings(1)
        ),
    )
    over = RepositoryConfig(
        get_partial_values_concurrency=2,
        caching=CachingConfig(num_chunk_refs=2),
        storage=StorageSettings(
            unsafe_use_metadata=False,
            retries=StorageRetriesSettings(None, 2),
            timeouts=StorageTimeoutSettings(None, 2),
        ),
    )
    assert base.merge(over) == RepositoryConfig(
        inline_chunk_threshold_bytes=1,
        get_partial_values_concurrency=2,
        compression=CompressionConfig(level=1),
        caching=CachingConfig(num_chunk_refs=2, num_bytes_chunks=1),
        storage=StorageSettings(
            storage_class="a",
            unsafe_use_metadata=False,
            retries=StorageRetriesSettings(1, 2),
            timeouts=StorageTimeoutSettings(1, 2),
        ),
    )


def test_merge_replaces_some_parts_whole() -> None:
    dimension = {ManifestSplitDimCondition.Any(): 3}
    base = RepositoryConfig(
        manifest=ManifestConfig(
            preload=ManifestPreloadConfig(max_total_refs=1),
            splitting=ManifestSplittingConfig.from_dict(
                {ManifestSplitCondition.AnyArray(): dimension}
            ),
            virtual_chunk_location_compression=ManifestVirtualChunkLocationCompressionConfig(1),
        )
    )
    base.set_virtual_chunk_container(container("s3://a/"))
    over = RepositoryConfig(
        manifest=ManifestConfig(
            preload=ManifestPreloadConfig(max_arrays_to_scan=2),
            virtual_chunk_location_compression=ManifestVirtualChunkLocationCompressionConfig(
                compression_level=2
            ),
        )
    )
    over.set_virtual_chunk_container(container("s3://b/"))
    result = base.merge(over)
    assert result.manifest == ManifestConfig(
        preload=ManifestPreloadConfig(max_arrays_to_scan=2),
        splitting=base.manifest.splitting if base.manifest else None,
        virtual_chunk_location_compression=ManifestVirtualChunkLocationCompressionConfig(
            1, compression_level=2
        ),
    )
    assert list(result.virtual_chunk_containers or {}) == ["s3://b/"]


def test_merged_configurations_share_nothing() -> None:
    base = RepositoryConfig(storage=StorageSettings(retries=StorageRetriesSettings(1)))
    base.set_virtual_chunk_container(container("s3://a/"))
    result = base.merge(RepositoryConfig())
    assert result == base
    assert result.storage is not None
    assert result.storage.retries is not None
    result.storage.retries.max_tries = 9
    result.clear_virtual_chunk_containers()
    assert base.storage == StorageSettings(retries=StorageRetriesSettings(1))
    assert base.get_virtual_chunk_container("s3://a/") is not None


def test_cleared_containers_win_over_stored_ones() -> None:
    stored, given = RepositoryConfig(), RepositoryConfig()
    stored.set_virtual_chunk_container(container("s3://a/"))
    given.clear_virtual_chunk_containers()
    assert stored.merge(given).virtual_chunk_containers == {}
    assert stored.merge(RepositoryConfig()) == stored


def test_containers_are_unique_by_prefix_and_by_name() -> None:
    config = RepositoryConfig()
    config.set_virtual_chunk_container(container("s3://a/", "n"))
    config.set_virtual_chunk_container(container("s3://b/", "n"))
    config.set_virtual_chunk_container(container("s3://b/", "m"))
    config.set_virtual_chunk_container(container("s3://c/"))
    assert config.virtual_chunk_containers == {
        "s3://b/": container("s3://b/", "m"),
        "s3://c/": container("s3://c/"),
    }
    assert config.get_virtual_chunk_container("s3://b/") == container("s3://b/", "m")
    assert config.get_virtual_chunk_container("m") is None


@pytest.mark.parametrize(
    ("prefix", "store"),
    [
        ("s3://b/", s3_store()),
        ("S3://b/", s3_store()),
        ("s3://b/a/../c/", s3_store(s3_compatible=True)),
        ("s3://b/", ObjectStoreConfig.Tigris(S3Options())),
        ("tigris://b/", ObjectStoreConfig.Tigris(S3Options())),
        ("gs://b/", gcs_store()),
        ("gcs://b/", gcs_store()),
        ("az://b/", ObjectStoreConfig.Azure()),
        ("abfs://b/", ObjectStoreConfig.Azure()),
        ("http://h/", http_store()),
        ("https://h:80/a/", http_store()),
        ("file:///a/", local_filesystem_store("/a")),
        ("file://a/", local_filesystem_store("/a")),
    ],
)
def test_sound_containers_are_accepted(prefix: str, store: AnyObjectStoreConfig) -> None:
    config = RepositoryConfig()
    config.set_virtual_chunk_container(VirtualChunkContainer(prefix, store))
    assert list(config.virtual_chunk_containers or {}) == [prefix]


@pytest.mark.parametrize(
    ("prefix", "store", "name", "message"),
    [
        ("s3://b", s3_store(), None, "must end in '/'"),
        ("s3:///", s3_store(), None, "bucket or host"),
        ("b/", s3_store(), None, "one of the schemes"),
        ("memory://b/", ObjectStoreConfig.InMemory(), None, "one of the schemes"),
        ("gs://b/", s3_store(), None, r"ObjectStoreConfig\.Gcs, got ObjectStoreConfig\.S3"),
        ("tigris://b/", s3_store(), None, r"ObjectStoreConfig\.Tigris"),
        ("file:///", local_filesystem_store("/"), None, "name a directory"),
        ("http://[/", http_store(), None, "not a url"),
        ("s3://b/", s3_store(), "", "must not be empty"),
        ("s3://b/", s3_store(), "a/b", "must not be empty nor contain"),
    ],
)
def test_unsound_containers_are_refused(
    prefix: str, store: AnyObjectStoreConfig, name: str | None, message: str
) -> None:
    unsound = VirtualChunkContainer(prefix, store, name)
    config = RepositoryConfig()
    with pytest.raises(InvalidInputError, match=message):
        config.set_virtual_chunk_container(unsound)
    with pytest.raises(ValueError, match=message):
        RepositoryConfig(virtual_chunk_containers={prefix: unsound})
    assert config.virtual_chunk_containers is None


def test_effective_values_of_nothing_are_the_defaults() -> None:
    config = effective_config()
    assert config.inline_chunk_threshold_bytes == 512
    assert config.get_partial_values_concurrency == 10
    assert config.max_concurrent_requests == 256
    assert config.max_concurrent_decodes >= 1
    assert config.num_updates_per_repo_info_file == 100
    assert config.compression.level == 3
    assert config.caching.num_snapshot_nodes == 500_000
    assert config.caching.num_chunk_refs == 15_000_000
    assert config.repo_update_retries.max_tries == 100
    assert config.repo_update_retries.max_backoff_ms == 30_000
    assert config.manifest.preload.preload_if == DEFAULT_PRELOAD_CONDITION
    assert config.manifest.preload.max_arrays_to_scan == 50
    assert config.manifest.split_sizes == (
        (
            ManifestSplitCondition.path_matches(".*"),
            ((ManifestSplitDimCondition.Any(), 4_294_967_295),),
        ),
    )
    assert config.manifest.virtual_chunk_location_compression.dictionary_max_size_bytes == 2048
    assert config.storage.retries.max_tries == 10
    assert config.storage.timeouts.connect_timeout_ms is None
    assert config.virtual_chunk_containers == ()


def test_effective_values_are_layered() -> None:
    stored = RepositoryConfig(
        inline_chunk_threshold_bytes=1,
        max_concurrent_requests=1,
        storage=StorageSettings(storage_class="stored", retries=StorageRetriesSettings(2)),
        repo_update_retries=RepoUpdateRetryConfig(StorageRetriesSettings(5)),
    )
    stored.set_virtual_chunk_container(container("s3://a/"))
    stored.set_virtual_chunk_container(container("s3://a/b/"))
    given = RepositoryConfig(
        max_concurrent_requests=2, storage=StorageSettings(storage_class="given")
    )
    backend = StorageSettings(
        unsafe_use_metadata=False,
        concurrency=StorageConcurrencySettings(5, 1),
        retries=StorageRetriesSettings(1, 0, 0),
    )
    config = effective_config(stored, given, storage_defaults=backend)
    assert config.inline_chunk_threshold_bytes == 1
    assert config.max_concurrent_requests == 2
    assert config.storage.storage_class == "given"
    assert config.storage.unsafe_use_metadata is False
    assert config.storage.unsafe_use_conditional_create is True
    assert config.storage.concurrency.ideal_concurrent_request_size == 1
    assert (config.storage.retries.max_tries, config.storage.retries.initial_backoff_ms) == (2, 0)
    assert config.repo_update_retries.max_tries == 5
    assert config.repo_update_retries.initial_backoff_ms == 50
    assert [each.url_prefix for each in config.virtual_chunk_containers] == ["s3://a/b/", "s3://a/"]


def test_effective_values_cannot_change() -> None:
    settings = effective_storage_settings(None, StorageSettings(storage_class="x"))
    with pytest.raises(AttributeError):
        settings.storage_class = "y"  # type: ignore[misc]
