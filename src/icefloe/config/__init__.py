"""Configuration as values: what is set, what applies where nothing is, and how they merge."""

from icefloe.config.attribution import Attribution
from icefloe.config.chunk_manifests import ChunkManifestsConfig
from icefloe.config.conditions import (
    ManifestPreloadCondition,
    ManifestSplitCondition,
    ManifestSplitDimCondition,
)
from icefloe.config.containers import VirtualChunkContainer
from icefloe.config.effective import (
    EffectiveConfig,
    EffectiveStorageSettings,
    effective_config,
    effective_storage_settings,
)
from icefloe.config.feature_flags import FeatureFlag
from icefloe.config.manifest import (
    ManifestConfig,
    ManifestPreloadConfig,
    ManifestSplittingConfig,
    ManifestSplitValues,
    ManifestVirtualChunkLocationCompressionConfig,
    SplitSizesDict,
)
from icefloe.config.manifest_sets import ManifestRule, ManifestSet, ManifestSetPreload
from icefloe.config.repository import (
    CachingConfig,
    CompressionAlgorithm,
    CompressionConfig,
    RepositoryConfig,
    RepoUpdateRetryConfig,
)
from icefloe.config.storage import (
    StorageConcurrencySettings,
    StorageRetriesSettings,
    StorageSettings,
    StorageTimeoutSettings,
)
from icefloe.config.stores import (
    AnyObjectStoreConfig,
    ChecksumAlgorithm,
    ObjectStoreConfig,
    S3Options,
    azure_store,
    gcs_store,
    http_store,
    local_filesystem_store,
    s3_store,
)
from icefloe.config.versions import SpecVersion
from icefloe.config.virtual_chunks import VirtualChunkSpec
from icefloe.logs import initialize_logs, set_logs_filter, shutdown_telemetry

__all__ = [
    "AnyObjectStoreConfig",
    "Attribution",
    "CachingConfig",
    "ChecksumAlgorithm",
    "ChunkManifestsConfig",
    "CompressionAlgorithm",
    "CompressionConfig",
    "EffectiveConfig",
    "EffectiveStorageSettings",
    "FeatureFlag",
    "ManifestConfig",
    "ManifestPreloadCondition",
    "ManifestPreloadConfig",
    "ManifestRule",
    "ManifestSet",
    "ManifestSetPreload",
    "ManifestSplitCondition",
    "ManifestSplitDimCondition",
    "ManifestSplitValues",
    "ManifestSplittingConfig",
    "ManifestVirtualChunkLocationCompressionConfig",
    "ObjectStoreConfig",
    "RepoUpdateRetryConfig",
    "RepositoryConfig",
    "S3Options",
    "SpecVersion",
    "SplitSizesDict",
    "StorageConcurrencySettings",
    "StorageRetriesSettings",
    "StorageSettings",
    "StorageTimeoutSettings",
    "VirtualChunkContainer",
    "VirtualChunkSpec",
    "azure_store",
    "effective_config",
    "effective_storage_settings",
    "gcs_store",
    "http_store",
    "initialize_logs",
    "local_filesystem_store",
    "s3_store",
    "set_logs_filter",
    "shutdown_telemetry",
]
