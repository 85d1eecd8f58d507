"""How a storage is used: how many requests at once, how often again, how long to wait."""

from dataclasses import dataclass

from icefloe.values import U32, U64, NonZeroU16, NonZeroU64, Settings, setting


@dataclass(slots=True)
class StorageConcurrencySettings(Settings):
    """How the transfer of one large object is cut into concurrent requests."""

    max_concurrent_requests_for_object: NonZeroU16 | None = setting(18)
    ideal_concurrent_request_size: NonZeroU64 | None = setting(12 * 2**20)


@dataclass(slots=True)
class StorageRetriesSettings(Settings):
    """How often a request is tried, and how long the pauses grow."""

    max_tries: NonZeroU16 | None = setting(10)
    initial_backoff_ms: U32 | None = setting(100)
    max_backoff_ms: U32 | None = setting(180_000)


@dataclass(slots=True)
class StorageTimeoutSettings(Settings):
    """How long to wait; unset means as long as the client library does.

    On a local folder, `operation_timeout_ms` limits the wait for its lock; unset means a minute.
    """

    connect_timeout_ms: U32 | None = None
    read_timeout_ms: U32 | None = None
    operation_timeout_ms: U32 | None = None
    operation_attempt_timeout_ms: U32 | None = None


@dataclass(slots=True)
class StorageSettings(Settings):
    """How a repository uses its storage.

    The `unsafe_*` switches turn protections off, for storages that lack conditional writes or
    user metadata: with them off, concurrent writers can lose each other's commits.

    >>> StorageSettings(storage_class="STANDARD_IA").unsafe_use_conditional_create is None
    True
    """

    concurrency: StorageConcurrencySettings | None = setting(StorageConcurrencySettings)
    retries: StorageRetriesSettings | None = setting(StorageRetriesSettings)
    unsafe_use_conditional_create: bool | None = setting(effective=True)
    unsafe_use_conditional_update: bool | None = setting(effective=True)
    unsafe_use_metadata: bool | None = setting(effective=True)
    storage_class: str | None = None
    metadata_storage_class: str | None = None
    chunks_storage_class: str | None = None
    minimum_size_for_multipart_upload: U64 | None = setting(100 * 2**20)
    timeouts: StorageTimeoutSettings | None = None
