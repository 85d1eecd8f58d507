"""Merging, containers, and what applies in the end."""

import pickle
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any, cast, get_type_hints

import pytest

import icefloe
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
    azure_store,
    effective,
    effective_config,
    effective_storage_settings,
    gcs_store,
    http_store,
    local_filesystem_store,
    s3_store,
)
from icefloe.config.conditions import DEFAULT_PRELOAD_CONDITION
from icefloe.config.containers import stored_container
from icefloe.config.manifest_sets import EffectiveChunkManifests
from icefloe.config.stores import AnyObjectStoreConfig
from icefloe.errors import InvalidInputError
from icefloe.format.config_file import decode_config_flexbuffer, encode_config_flexbuffer
from icefloe.records import Record
from icefloe.values import Settings


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
    with pytest.warns(UserWarning, match="have the name 'n'") as warned:
        config.set_virtual_chunk_container(container("s3://b/", "n"))
    assert "'s3://a/'" in str(warned[0].message)
    assert "'s3://b/'" in str(warned[0].message)
    assert warned[0].filename == __file__
    config.set_virtual_chunk_container(container("s3://b/", "n"))  # the same place: no warning
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
        ("s3", s3_store()),
        ("s3://", s3_store()),
        ("s3://b/a.nc", s3_store()),
        ("models://", s3_store()),
        ("models://b/", gcs_store()),
        ("my-models+1://b/x", ObjectStoreConfig.Azure()),
        ("https://", http_store()),
    ],
)
def test_sound_containers_are_accepted(prefix: str, store: AnyObjectStoreConfig) -> None:
    config = RepositoryConfig()
    config.set_virtual_chunk_container(VirtualChunkContainer(prefix, store))
    assert list(config.virtual_chunk_containers or {}) == [prefix]


def test_a_whole_bucket_is_written_with_a_slash() -> None:
    config = RepositoryConfig()
    config.set_virtual_chunk_container(container("s3://b"))
    assert config.virtual_chunk_containers == {"s3://b/": container("s3://b/")}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("s3", "S3://"),
        ("s3://b", "s3://b/"),
        ("s3://b/a b", "s3://b/a%20b/"),
        ("https://host/", "https://HOST:443/"),
        ("file:///a/", "file://localhost/b/../a"),
    ],
)
def test_a_prefix_written_otherwise_is_the_same_container(first: str, second: str) -> None:
    store: AnyObjectStoreConfig = s3_store()
    if first.startswith("https"):
        store = http_store()
    elif first.startswith("file"):
        store = local_filesystem_store("/a")
    config = RepositoryConfig()
    config.set_virtual_chunk_container(VirtualChunkContainer(first, store, "first"))
    config.set_virtual_chunk_container(VirtualChunkContainer(second, store, "second"))
    (kept,) = (config.virtual_chunk_containers or {}).values()
    assert kept.name == "second"
    assert config.get_virtual_chunk_container(first) == kept
    assert config.get_virtual_chunk_container(second) == kept
    assert config.get_virtual_chunk_container("no prefix at all") is None


def test_aliases_of_a_scheme_are_containers_of_their_own() -> None:
    config = RepositoryConfig()
    for prefix in ("gs://b/", "gcs://b/"):
        config.set_virtual_chunk_container(VirtualChunkContainer(prefix, gcs_store()))
    assert list(config.virtual_chunk_containers or {}) == ["gs://b/", "gcs://b/"]


def test_what_to_do_about_changed_objects_is_one_of_three() -> None:
    store = s3_store()
    assert VirtualChunkContainer("s3://b/", store).on_change == "strict"
    relaxed = VirtualChunkContainer("s3://b/", store, on_change="warn")
    assert relaxed != VirtualChunkContainer("s3://b/", store)
    assert eval(repr(relaxed), {"icefloe": icefloe}) == relaxed
    with pytest.raises(InvalidInputError, match="'strict', 'warn', 'off', got 'lax'"):
        VirtualChunkContainer("s3://b/", store, on_change="lax")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("prefix", "store", "name", "message"),
    [
        ("s3:///", s3_store(), None, "bucket or host"),
        ("b/", s3_store(), None, "not a url, nor a scheme"),
        ("", s3_store(), None, "not a url, nor a scheme"),
        ("s3:b", s3_store(), None, "not a url, nor a scheme"),
        ("s3://b/?q/", s3_store(), None, "no query"),
        ("s3://b/#f/", s3_store(), None, "no query and no fragment"),
        ("s3://b/%ff/", s3_store(), None, "not UTF-8"),
        ("s3://bé/", s3_store(), None, "ASCII"),
        ("s3://b:80/", s3_store(), None, "ASCII"),
        ("https://user:hush@h/", http_store(), None, "credentials have no place.*'https://h/'"),
        ("vcc://b/", s3_store(), None, "for names"),
        ("models://b/", http_store(), None, "one of the schemes"),
        ("models://b/", local_filesystem_store("/b"), None, "one of the schemes"),
        ("file", local_filesystem_store("/"), None, "name a directory"),
        ("file://", local_filesystem_store("/"), None, "name a directory"),
        ("memory://b/", ObjectStoreConfig.InMemory(), None, "one of the schemes"),
        ("gs://b/", s3_store(), None, r"ObjectStoreConfig\.Gcs, got ObjectStoreConfig\.S3"),
        ("tigris://b/", s3_store(), None, r"ObjectStoreConfig\.Tigris"),
        ("file:///", local_filesystem_store("/"), None, "name a directory"),
        ("http://[/", http_store(), None, "ASCII"),
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


STORES_OF_ENDPOINTS: dict[str, Callable[..., AnyObjectStoreConfig]] = {
    "S3": lambda endpoint, **options: ObjectStoreConfig.S3(
        S3Options(endpoint_url=endpoint, **options)
    ),
    "S3Compatible": lambda endpoint, **options: ObjectStoreConfig.S3Compatible(
        S3Options(endpoint_url=endpoint, **options)
    ),
    "Tigris": lambda endpoint, **options: ObjectStoreConfig.Tigris(
        S3Options(endpoint_url=endpoint, **options)
    ),
}
EVERY_KIND = pytest.mark.parametrize("kind", STORES_OF_ENDPOINTS)


@EVERY_KIND
@pytest.mark.parametrize(
    ("given", "allow_http", "completed"),
    [
        ("localhost:9000", False, ("http://localhost:9000", True)),
        ("LocalHost", False, ("http://LocalHost", True)),
        ("127.0.0.1:9000", False, ("http://127.0.0.1:9000", True)),
        ("[::1]:9000", False, ("http://[::1]:9000", True)),
        ("minio.example:9000", False, ("https://minio.example:9000", False)),
        ("minio.example:9000", True, ("http://minio.example:9000", True)),
        ("localhost.example", False, ("https://localhost.example", False)),
        ("https://minio.example", False, ("https://minio.example", False)),
        ("http://minio.example", False, ("http://minio.example", False)),
    ],
)
def test_endpoints_without_a_scheme_are_completed(
    given: str, allow_http: bool, completed: tuple[str, bool], kind: str
) -> None:
    store = STORES_OF_ENDPOINTS[kind](given, allow_http=allow_http, region="here")
    made = VirtualChunkContainer("s3://b/", store, "mine", on_change="warn")
    (options,) = made.store
    assert (options.endpoint_url, options.allow_http, options.region) == (*completed, "here")
    assert type(made.store) is type(store)
    (own,) = store
    assert own.endpoint_url == given  # the caller's description stays as it is
    config = RepositoryConfig()
    config.set_virtual_chunk_container(made)
    assert config.virtual_chunk_containers == {"s3://b/": made}
    assert decode_config_flexbuffer(encode_config_flexbuffer(config)) == config


@EVERY_KIND
@pytest.mark.parametrize("given", ["ftp://host", "https://", "a b", "/path", "host:port", ""])
def test_endpoints_that_are_no_addresses_are_refused(given: str, kind: str) -> None:
    store = STORES_OF_ENDPOINTS[kind](given)
    with pytest.raises(InvalidInputError, match="write it like"):
        VirtualChunkContainer("s3://b/", store)


@pytest.mark.parametrize(
    ("prefix", "store"),
    [
        ("s3://b/", s3_store(endpoint_url="http://user:hush@host")),
        ("s3://b/", s3_store(endpoint_url="user:hush@localhost:9000")),
        ("s3://b/", s3_store(endpoint_url="https://hush@host", s3_compatible=True)),
        ("s3://b/", ObjectStoreConfig.Tigris(S3Options(endpoint_url="https://u:hush@host"))),
        ("gs://b/", gcs_store({"google_base_url": "http://user:hush@host"})),
        ("az://b/", azure_store(account="a", config={"endpoint": "http://user:hush@host"})),
    ],
)
def test_users_and_passwords_in_endpoints_are_refused(
    prefix: str, store: AnyObjectStoreConfig
) -> None:
    with pytest.raises(InvalidInputError, match="user or a password") as caught:
        VirtualChunkContainer(prefix, store)
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize("opts", [{"region": "africa-south1"}, {"region": "x", "timeout": "9s"}])
def test_a_region_of_google_is_left_out(opts: dict[str, str]) -> None:
    """Its clients have no such option: reading would fail."""
    made = VirtualChunkContainer("gcs", gcs_store(opts), "gcs")
    kept = {name: value for name, value in opts.items() if name != "region"}
    assert made.store == gcs_store(kept)
    assert gcs_store(opts).opts == opts


def test_stored_stores_can_be_opened_whatever_they_say() -> None:
    """Another library may have stored them: only reading from them is refused."""
    store = ObjectStoreConfig.S3(S3Options(endpoint_url="http://user:hush@host"))
    config = RepositoryConfig()
    config.set_virtual_chunk_container(stored_container("s3://b/", store, None, "strict"))
    stored = decode_config_flexbuffer(encode_config_flexbuffer(config))
    assert stored.virtual_chunk_containers == config.virtual_chunk_containers
    assert pickle.loads(pickle.dumps(stored)) == stored
    assert stored.merge(RepositoryConfig()).virtual_chunk_containers is not None


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
    assert config.manifest.split_sizes is None
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


def test_not_to_split_is_not_the_same_as_to_say_nothing() -> None:
    anything, largest = ManifestSplitCondition.AnyArray(), 4_294_967_295
    rules = {anything: {ManifestSplitDimCondition.Any(): largest}}
    unsplit = ManifestConfig(splitting=ManifestSplittingConfig.from_dict(rules))
    sizes = effective_config(RepositoryConfig(manifest=unsplit), RepositoryConfig())
    expected = ((anything, ((ManifestSplitDimCondition.Any(), largest),)),)
    assert sizes.manifest.split_sizes == expected
    silent = RepositoryConfig(manifest=ManifestConfig(splitting=ManifestSplittingConfig()))
    assert effective_config(silent).manifest.split_sizes is None


def frozen_forms(kind: type[Record]) -> Iterator[type[Record]]:
    yield kind
    for hint in get_type_hints(kind).values():
        if isinstance(hint, type) and issubclass(hint, Record):
            yield from frozen_forms(hint)


SETTINGS_OF_FORMS: dict[type[Record], type[Settings]] = {
    effective.EffectiveConfig: RepositoryConfig,
    effective.EffectiveStorageSettings: StorageSettings,
    effective.EffectiveConcurrency: StorageConcurrencySettings,
    effective.EffectiveRetries: StorageRetriesSettings,
    effective.EffectiveTimeouts: StorageTimeoutSettings,
    effective.EffectiveCompression: CompressionConfig,
    effective.EffectiveCaching: CachingConfig,
    effective.EffectiveManifest: ManifestConfig,
    effective.EffectivePreload: ManifestPreloadConfig,
    effective.EffectiveLocationCompression: ManifestVirtualChunkLocationCompressionConfig,
}


@pytest.mark.parametrize(("form", "kind"), SETTINGS_OF_FORMS.items())
def test_every_setting_is_in_the_frozen_copy(form: type[Record], kind: type[Settings]) -> None:
    names = {field.name for field in fields(cast("Any", kind)) if field.init}
    renamed = {"splitting": "split_sizes"}
    assert {renamed.get(name, name) for name in names} == {*form.__struct_fields__}


def test_every_frozen_form_is_compared_with_its_settings() -> None:
    forms = {*frozen_forms(effective.EffectiveConfig)}
    assert forms == {*SETTINGS_OF_FORMS} | {EffectiveChunkManifests}
