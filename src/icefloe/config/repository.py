"""The configuration of a repository."""

import os
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Annotated, Any

from icefloe.config.chunk_manifests import DEFAULT_CHUNK_MANIFESTS, ChunkManifestsConfig
from icefloe.config.containers import VirtualChunkContainer, added, found
from icefloe.config.manifest import ManifestConfig
from icefloe.config.storage import StorageRetriesSettings, StorageSettings
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.values import U8, U16, U64, NamedNumber, Settings, merged, setting


class CompressionAlgorithm(NamedNumber):
    """How metadata files are compressed."""

    Zstd = 0

    @staticmethod
    def default() -> "CompressionAlgorithm":
        """Give the algorithm that applies unless another is chosen."""
        return CompressionAlgorithm.Zstd


@dataclass(slots=True)
class CompressionConfig(Settings):
    """How metadata files are compressed."""

    algorithm: CompressionAlgorithm | None = setting(CompressionAlgorithm.Zstd)
    level: U8 | None = setting(3)

    @staticmethod
    def default() -> "CompressionConfig":
        """Make one with nothing set."""
        return CompressionConfig()


@dataclass(slots=True)
class CachingConfig(Settings):
    """How much of the metadata and of the chunks is kept in memory; 0 turns a cache off."""

    num_snapshot_nodes: U64 | None = setting(500_000)
    num_chunk_refs: U64 | None = setting(15_000_000)
    num_transaction_changes: U64 | None = setting(0)
    num_bytes_attributes: U64 | None = setting(0)
    num_bytes_chunks: U64 | None = setting(0)

    @staticmethod
    def default() -> "CachingConfig":
        """Make one with nothing set."""
        return CachingConfig()


@dataclass(slots=True)
class RepoUpdateRetryConfig(Settings):
    """How often an update of the repository's root object is tried against other writers."""

    default: StorageRetriesSettings | None = setting(StorageRetriesSettings(100, 50, 30_000))


def _containers(given: Any, place: str) -> dict[str, VirtualChunkContainer]:
    """Check containers, and key them by their url prefix."""
    if not isinstance(given, Mapping) or not all(
        isinstance(each, VirtualChunkContainer) for each in given.values()
    ):
        raise InvalidInputError(
            f"{place} must map url prefixes to VirtualChunkContainer", ErrorKind.INVALID_CONFIG
        )
    containers: dict[str, VirtualChunkContainer] = {}
    for container in given.values():
        containers = added(containers, container)
    return containers


@dataclass(slots=True)
class RepositoryConfig(Settings):
    """What can be configured for a repository; None is "not set", so that settings can be merged.

    >>> config = RepositoryConfig(inline_chunk_threshold_bytes=1024)
    >>> config.merge(RepositoryConfig(max_concurrent_requests=8)).inline_chunk_threshold_bytes
    1024
    """

    inline_chunk_threshold_bytes: U16 | None = setting(512)
    get_partial_values_concurrency: U16 | None = setting(10)
    compression: CompressionConfig | None = setting(CompressionConfig)
    max_concurrent_requests: U16 | None = setting(256)
    caching: CachingConfig | None = setting(CachingConfig)
    storage: StorageSettings | None = None
    virtual_chunk_containers: Annotated[dict[str, VirtualChunkContainer], _containers] | None = None
    manifest: ManifestConfig | None = setting(ManifestConfig)
    repo_update_retries: RepoUpdateRetryConfig | None = setting(RepoUpdateRetryConfig)
    num_updates_per_repo_info_file: U16 | None = setting(100)
    max_concurrent_decodes: U16 | None = setting(min(os.cpu_count() or 1, 2**16 - 1))
    previous_file: str | None = field(default=None, init=False, repr=False)
    disputed_prefixes: tuple[str, ...] = field(default=(), init=False, repr=False, compare=False)
    """Where what was stored contradicts itself about a container: nothing is read from there."""
    _: KW_ONLY
    chunk_manifests: ChunkManifestsConfig | None = setting(DEFAULT_CHUNK_MANIFESTS)

    @staticmethod
    def default() -> "RepositoryConfig":
        """Make one with nothing set."""
        return RepositoryConfig()

    def merge(self, other: "RepositoryConfig") -> "RepositoryConfig":
        """Combine with another configuration, whose values win where it has any."""
        if not isinstance(other, RepositoryConfig):
            raise InvalidInputError(
                f"RepositoryConfig.merge takes a RepositoryConfig, got {type(other).__name__}",
                ErrorKind.INVALID_CONFIG,
            )
        result = merged(self, other)
        result.previous_file = other.previous_file or self.previous_file
        decides = self if other.virtual_chunk_containers is None else other
        result.disputed_prefixes = decides.disputed_prefixes
        return result

    def set_virtual_chunk_container(self, cont: VirtualChunkContainer) -> None:
        """Declare a container; one with the same prefix or name is replaced."""
        if not isinstance(cont, VirtualChunkContainer):
            raise InvalidInputError(
                f"expected a VirtualChunkContainer, got {type(cont).__name__}",
                ErrorKind.INVALID_CONFIG,
            )
        self.virtual_chunk_containers = added(self.virtual_chunk_containers or {}, cont)

    def clear_virtual_chunk_containers(self) -> None:
        """Declare that there are no containers: merged over others, they are dropped."""
        self.virtual_chunk_containers = {}

    def get_virtual_chunk_container(self, name: str) -> VirtualChunkContainer | None:
        """Find a container by its url prefix."""
        return found(self.virtual_chunk_containers or {}, name)
