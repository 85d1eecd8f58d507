"""Effective settings: the caller's value, else the stored value, else the default.

The result is complete and frozen, so that the engine never has to ask "or what?".
"""

from dataclasses import fields
from typing import Any, Final, get_type_hints

from icefloe.config.conditions import (
    DEFAULT_PRELOAD_CONDITION,
    ManifestPreloadCondition,
    ManifestSplitCondition,
    ManifestSplitDimCondition,
)
from icefloe.config.containers import VirtualChunkContainer
from icefloe.config.manifest_sets import EffectiveChunkManifests, effective_chunk_manifests
from icefloe.config.manifests import ManifestPreloadConfig, SplitSizes
from icefloe.config.repository import (
    CompressionAlgorithm,
    RepositoryConfig,
    StorageConcurrencySettings,
    StorageRetriesSettings,
    StorageSettings,
    StorageTimeoutSettings,
)
from icefloe.records import Record
from icefloe.values import Settings, once_per_class, overlaid, shared_defaults


class EffectiveRetries(Record):
    """Limits on retries: number of attempts and length of pauses."""

    max_tries: int
    initial_backoff_ms: int
    max_backoff_ms: int


class EffectiveConcurrency(Record):
    """Concurrency of the transfer of a single object."""

    max_concurrent_requests_for_object: int
    ideal_concurrent_request_size: int


class EffectiveTimeouts(Record):
    """Timeouts of requests; None leaves the choice to the client library."""

    connect_timeout_ms: int | None
    read_timeout_ms: int | None
    operation_timeout_ms: int | None
    operation_attempt_timeout_ms: int | None


class EffectiveStorageSettings(Record):
    """Settings for the use of a storage."""

    concurrency: EffectiveConcurrency
    retries: EffectiveRetries
    timeouts: EffectiveTimeouts
    unsafe_use_conditional_create: bool
    unsafe_use_conditional_update: bool
    unsafe_use_metadata: bool
    storage_class: str | None
    metadata_storage_class: str | None
    chunks_storage_class: str | None
    minimum_size_for_multipart_upload: int


class EffectiveCompression(Record):
    """Compression of metadata files."""

    algorithm: CompressionAlgorithm
    level: int


class EffectiveCaching(Record):
    """Sizes of the caches in memory."""

    num_snapshot_nodes: int
    num_chunk_refs: int
    num_transaction_changes: int
    num_bytes_attributes: int
    num_bytes_chunks: int


class EffectivePreload(Record):
    """The selection of manifests to fetch ahead."""

    max_total_refs: int
    preload_if: ManifestPreloadCondition
    max_arrays_to_scan: int


class EffectiveLocationCompression(Record):
    """Compression of the locations of virtual chunks."""

    min_num_chunks: int
    dictionary_max_training_samples: int
    dictionary_max_size_bytes: int
    compression_level: int


type EffectiveSplitSizes = tuple[
    tuple[ManifestSplitCondition, tuple[tuple[ManifestSplitDimCondition, int], ...]], ...
]


class EffectiveManifest(Record):
    """Settings for the layout and the loading of manifests."""

    preload: EffectivePreload
    split_sizes: EffectiveSplitSizes | None
    """None if no rules are set: then manifests are split by default, see `manifests.partition`."""
    virtual_chunk_location_compression: EffectiveLocationCompression
    max_concurrent_manifest_fetches_during_commit: int


class EffectiveConfig(Record):
    """All effective settings of an open repository."""

    inline_chunk_threshold_bytes: int
    get_partial_values_concurrency: int
    max_concurrent_requests: int
    max_concurrent_decodes: int
    num_updates_per_repo_info_file: int
    compression: EffectiveCompression
    caching: EffectiveCaching
    storage: EffectiveStorageSettings
    manifest: EffectiveManifest
    chunk_manifests: EffectiveChunkManifests
    repo_update_retries: EffectiveRetries
    virtual_chunk_containers: tuple[VirtualChunkContainer, ...]
    """Longest prefix first: the order in which they are matched."""


_LEAST_REQUEST_BYTES: Final = 1 << 20
_NO_TIMEOUTS: Final = StorageSettings(timeouts=StorageTimeoutSettings())
_DEFAULT_PRELOAD: Final = ManifestPreloadConfig(preload_if=DEFAULT_PRELOAD_CONDITION)


def effective_storage_settings(*layers: StorageSettings | None) -> EffectiveStorageSettings:
    """Resolve storage settings; later layers win over earlier ones, all over the defaults.

    >>> effective_storage_settings(StorageSettings(storage_class="STANDARD")).retries.max_tries
    10
    """
    return _frozen(EffectiveStorageSettings, _resolved(StorageSettings, _NO_TIMEOUTS, *layers))


def effective_config(
    *layers: RepositoryConfig | None, storage_defaults: StorageSettings | None = None
) -> EffectiveConfig:
    """Resolve a configuration: defaults < each layer in turn (stored, then given by the caller).

    `storage_defaults` are those of the backend in use, below every layer.

    >>> effective_config(RepositoryConfig(inline_chunk_threshold_bytes=7)).compression.level
    3
    """
    config = _resolved(RepositoryConfig, *layers)
    manifest, retries, sets = config.manifest, config.repo_update_retries, config.chunk_manifests
    assert manifest is not None
    assert retries is not None
    assert sets is not None
    preload = _resolved(ManifestPreloadConfig, _DEFAULT_PRELOAD, manifest.preload)
    containers = (config.virtual_chunk_containers or {}).values()
    return _frozen(
        EffectiveConfig,
        config,
        storage=effective_storage_settings(storage_defaults, config.storage),
        manifest=_frozen(
            EffectiveManifest,
            manifest,
            preload=_frozen(EffectivePreload, preload),
            split_sizes=_split_sizes(layers),
        ),
        chunk_manifests=effective_chunk_manifests(sets),
        repo_update_retries=_frozen(EffectiveRetries, retries.default),
        virtual_chunk_containers=tuple(
            sorted(
                containers, key=lambda container: (-len(container.url_prefix), container.url_prefix)
            )
        ),
    )


def _split_sizes(layers: tuple[RepositoryConfig | None, ...]) -> EffectiveSplitSizes | None:
    """Take the splitting rules of the last layer that has any, which are replaced as a whole."""
    chosen: SplitSizes | None = None
    for layer in layers:
        splitting = layer.manifest.splitting if layer is not None and layer.manifest else None
        if splitting is not None:
            chosen = splitting.split_sizes
    return None if chosen is None else tuple((rule, tuple(sizes)) for rule, sizes in chosen)


def _resolved[S: Settings](kind: type[S], *layers: S | None) -> S:
    result = shared_defaults(kind)
    for layer in layers:
        if layer is not None:
            result = overlaid(result, layer)
    return result


def _frozen[T: Record](kind: type[T], settings: object, **others: object) -> T:
    """Copy resolved settings, and those nested in them, into their frozen form.

    `others` are the fields that differ from the setting of the same name.
    """
    contents = dict(others)
    for name, nested in _plan(kind).items():
        if name not in others:
            value = getattr(settings, name)
            is_nested = nested is not None and isinstance(value, Settings)
            contents[name] = _frozen(nested, value) if is_nested else value
    return kind(**contents)


@once_per_class
def _plan(kind: type[Record]) -> dict[str, Any]:
    """Name the fields of a frozen form, with the frozen forms of those that are nested."""
    hints = get_type_hints(kind)
    return {
        name: hints[name]
        if isinstance(hints[name], type) and issubclass(hints[name], Record)
        else None
        for name in kind.__struct_fields__
    }


def settings_for_containers(settings: StorageSettings, usual: StorageSettings) -> StorageSettings:
    """Return the storage settings that also apply to containers: those that were chosen.

    `usual` is what suits the storage of the repository, and is stored with it; containers may
    be of another kind. The author of a repository cannot have objects read in crumbs, each
    of which the reader pays for.
    """
    concurrency = _chosen(settings.concurrency, usual.concurrency or StorageConcurrencySettings())
    if concurrency is not None and (size := concurrency.ideal_concurrent_request_size) is not None:
        concurrency.ideal_concurrent_request_size = max(size, _LEAST_REQUEST_BYTES)
    return StorageSettings(
        concurrency=concurrency,
        retries=_chosen(settings.retries, usual.retries or StorageRetriesSettings()),
        timeouts=_chosen(settings.timeouts, usual.timeouts or StorageTimeoutSettings()),
    )


def _chosen[S: StorageConcurrencySettings | StorageRetriesSettings | StorageTimeoutSettings](
    settings: S | None, usual: S
) -> S | None:
    if settings is None:
        return None
    values = {field.name: getattr(settings, field.name) for field in fields(settings)}
    return type(settings)(
        **{name: value for name, value in values.items() if value != getattr(usual, name)}
    )
