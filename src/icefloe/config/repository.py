"""The configuration of a repository and of its storage, and the feature flags."""

import os
import re
from collections.abc import Mapping
from dataclasses import KW_ONLY, field
from typing import Annotated, Any, Final

from icefloe.config.containers import VirtualChunkContainer, added, found, read_containers
from icefloe.config.manifest_sets import (
    DEFAULT_CHUNK_MANIFESTS,
    KEY,
    ChunkManifestsConfig,
    read_manifest_sets,
)
from icefloe.config.manifests import ManifestConfig
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.values import (
    U8,
    U16,
    U32,
    U64,
    NamedNumber,
    NonZeroU16,
    NonZeroU64,
    Settings,
    Value,
    merged,
    setting,
    settings_class,
    value_class,
)
from icefloe.values.stored import to_tree
from icefloe.values.tree import Stored, StoredForm


class SpecVersion(NamedNumber):
    """A version of the on-disk format; compares with plain integers.

    >>> SpecVersion.current() == 2
    True
    """

    v1 = 1
    v2 = 2

    @staticmethod
    def current() -> "SpecVersion":
        """Return the version of new repositories."""
        return SpecVersion.v2


_LONGEST: Final = 128
_PRODUCT: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+(/[!#$%&'*+.^_`|~0-9A-Za-z-]+)?"
_COMMENT: Final = r"[^\x00-\x1f\x7f-\U0010ffff\"();=\\]*"


@value_class
class Attribution(Value):
    """Labels added to the user agent of every request.

    `client` is a program, `name` or `name/version`; the others are free text of ASCII without
    control characters and any of `"();=\\`.

    >>> Attribution(client="nightly-ingest/2", workload="era5").client
    'nightly-ingest/2'
    """

    _: KW_ONLY
    client: str | None = None
    workload: str | None = None
    principal: str | None = None

    def __post_init__(self) -> None:
        Value.__post_init__(self)
        _check("client", self.client, _PRODUCT, "be 'name' or 'name/version' in token characters")
        for name in ("workload", "principal"):
            expected = 'be ASCII without control characters and without any of "();=\\'
            _check(name, getattr(self, name), _COMMENT, expected)

    def label(self, agent: str) -> str:
        """Add the labels to a user agent.

        >>> Attribution(client="ingest/2", workload="era5", principal="ada").label("icefloe/1.0")
        'ingest/2 icefloe/1.0 (workload=era5; principal=ada)'
        """
        named = (("workload", self.workload), ("principal", self.principal))
        comment = "; ".join(f"{name}={text}" for name, text in named if text is not None)
        parts = (self.client, agent, f"({comment})" if comment else None)
        return " ".join(part for part in parts if part is not None)


def _check(name: str, label: str | None, pattern: str, expected: str) -> None:
    if label is None:
        return
    if not re.fullmatch(pattern, label):
        raise InvalidInputError(
            f"Attribution.{name} must {expected}, got {label!r}", ErrorKind.INVALID_CONFIG
        )
    if len(label) > _LONGEST:
        raise InvalidInputError(
            f"Attribution.{name} must not be longer than {_LONGEST} bytes, got {len(label)}",
            ErrorKind.INVALID_CONFIG,
        )


@value_class
class FeatureFlag(Value):
    """A part of the behaviour, and whether a repository allows it.

    `setting` is the explicit choice, or None where the default applies.

    >>> FeatureFlag(4, "create_tag", default_enabled=True, setting=False).enabled
    False
    """

    id: U16
    name: str
    default_enabled: bool
    setting: bool | None = None

    @property
    def enabled(self) -> bool:
        """Return whether the repository allows it."""
        return self.default_enabled if self.setting is None else self.setting


@settings_class
class StorageConcurrencySettings(Settings):
    """Concurrent requests in the transfer of a large object."""

    max_concurrent_requests_for_object: NonZeroU16 | None = setting(18)
    ideal_concurrent_request_size: NonZeroU64 | None = setting(12 * 2**20)


@settings_class
class StorageRetriesSettings(Settings):
    """Number of attempts at a request, and the growth of the pauses between them."""

    max_tries: NonZeroU16 | None = setting(10)
    initial_backoff_ms: U32 | None = setting(100)
    max_backoff_ms: U32 | None = setting(180_000)


@settings_class
class StorageTimeoutSettings(Settings):
    """Timeouts of requests; an unset timeout leaves the choice to the client library.

    On a local folder, `operation_timeout_ms` limits the wait for its lock; unset means a minute.
    """

    connect_timeout_ms: U32 | None = None
    read_timeout_ms: U32 | None = None
    operation_timeout_ms: U32 | None = None
    operation_attempt_timeout_ms: U32 | None = None


@settings_class
class StorageSettings(Settings):
    """Settings for the use of a storage.

    The `unsafe_*` switches turn protections off, for storages that lack conditional writes or
    user metadata: with them off, concurrent writers can lose each other's commits.

    >>> StorageSettings(storage_class="STANDARD_IA").unsafe_use_conditional_create is None
    True
    """

    concurrency: StorageConcurrencySettings | None = setting(StorageConcurrencySettings)
    retries: StorageRetriesSettings | None = setting(StorageRetriesSettings)
    unsafe_use_conditional_create: bool | None = setting(
        effective=True, stored=Stored(after="unsafe_use_conditional_update")
    )
    unsafe_use_conditional_update: bool | None = setting(effective=True)
    unsafe_use_metadata: bool | None = setting(effective=True)
    storage_class: str | None = None
    metadata_storage_class: str | None = None
    chunks_storage_class: str | None = None
    minimum_size_for_multipart_upload: U64 | None = setting(100 * 2**20)
    timeouts: StorageTimeoutSettings | None = setting(stored=Stored(after="retries"))


class CompressionAlgorithm(NamedNumber):
    """The algorithm that compresses metadata files."""

    Zstd = 0

    @staticmethod
    def default() -> "CompressionAlgorithm":
        """Return the algorithm that applies unless another is chosen."""
        return CompressionAlgorithm.Zstd


@settings_class
class CompressionConfig(Settings):
    """Compression of metadata files."""

    algorithm: CompressionAlgorithm | None = setting(CompressionAlgorithm.Zstd)
    level: U8 | None = setting(3)

    @staticmethod
    def default() -> "CompressionConfig":
        """Make one with nothing set."""
        return CompressionConfig()


@settings_class
class CachingConfig(Settings):
    """Sizes of the caches for metadata and chunks; 0 turns a cache off."""

    num_snapshot_nodes: U64 | None = setting(500_000)
    num_chunk_refs: U64 | None = setting(15_000_000)
    num_transaction_changes: U64 | None = setting(0)
    num_bytes_attributes: U64 | None = setting(0)
    num_bytes_chunks: U64 | None = setting(0)

    @staticmethod
    def default() -> "CachingConfig":
        """Make one with nothing set."""
        return CachingConfig()


@settings_class
class RepoUpdateRetryConfig(Settings):
    """Retries of an update of the repository's root object while others write."""

    default: StorageRetriesSettings | None = setting(StorageRetriesSettings(100, 50, 30_000))


def _containers(value: Any, name: str) -> dict[str, VirtualChunkContainer]:
    """Check containers, and key them by their url prefix."""
    if not isinstance(value, Mapping) or not all(
        isinstance(element, VirtualChunkContainer) for element in value.values()
    ):
        raise InvalidInputError(
            f"{name} must map url prefixes to VirtualChunkContainer", ErrorKind.INVALID_CONFIG
        )
    containers: dict[str, VirtualChunkContainer] = {}
    for container in value.values():
        containers = added(containers, container)
    return containers


@settings_class
class RepositoryConfig(Settings):
    """All settings of a repository; None is "not set", so that settings can be merged.

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
    virtual_chunk_containers: Annotated[dict[str, VirtualChunkContainer], _containers] | None = (
        setting(stored=Stored(form=StoredForm(to_tree, read_containers)))
    )
    manifest: ManifestConfig | None = setting(ManifestConfig)
    repo_update_retries: RepoUpdateRetryConfig | None = setting(RepoUpdateRetryConfig)
    num_updates_per_repo_info_file: U16 | None = setting(100)
    max_concurrent_decodes: U16 | None = setting(
        min(os.cpu_count() or 1, 2**16 - 1), stored=Stored(after="max_concurrent_requests")
    )
    previous_file: str | None = field(
        default=None, init=False, repr=False, metadata={"stored": Stored(after="manifest")}
    )
    disputed_prefixes: tuple[str, ...] = field(
        default=(), init=False, repr=False, compare=False, metadata={"stored": None}
    )
    """Where what was stored contradicts itself about a container: nothing is read from there."""
    _: KW_ONLY
    chunk_manifests: ChunkManifestsConfig | None = setting(
        DEFAULT_CHUNK_MANIFESTS,
        stored=Stored(key=KEY, only_ours=True, form=StoredForm(to_tree, read_manifest_sets)),
    )

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
