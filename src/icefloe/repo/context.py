"""The context of an open repository: storage, files, ledger, configuration, access.

The configuration is resolved once for all who open the repository with the same settings.
"""

import pickle
import time
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Self

from icefloe.assets import Assets
from icefloe.config import (
    Attribution,
    EffectiveConfig,
    RepositoryConfig,
    StorageSettings,
    VirtualChunkContainer,
    effective_config,
)
from icefloe.config.effective import settings_for_containers
from icefloe.errors import ErrorKind, FormatError
from icefloe.format.config_file import decode_config_flexbuffer
from icefloe.records import Record
from icefloe.repo.ledger import Ledger
from icefloe.repo.repo_ledger import RepoObjectLedger, StoredRepo
from icefloe.storage import Backend, Storage, Version
from icefloe.storage.specs import LocalSpec, MemorySpec, S3Spec
from icefloe.storage.storage import usual_settings

if TYPE_CHECKING:
    from icefloe.credentials import AnyCredential
    from icefloe.storage.disk_cache import PlaceCache
    from icefloe.virtual_chunks.reader import VirtualReader


class SettledConfig(Record):
    """A configuration and what follows from it; shared, so nobody may change any of it."""

    user: RepositoryConfig
    """What is stored, with what the opener gave on top; unset where defaults apply."""
    effective: EffectiveConfig
    for_containers: StorageSettings
    """What of the settings for the storage goes for containers of virtual chunks."""


def settled(storage: Storage, *layers: RepositoryConfig | None) -> SettledConfig:
    """Put configurations above each other, all above the settings that suit the storage."""
    return _settled(storage.default_settings(), *layers)


def settled_over(
    storage: Storage, stored: bytes | None, user_config: RepositoryConfig | None
) -> SettledConfig:
    """Put a configuration, if there is any, above the one in a repo object."""
    # A copy that nobody can change, and a key: equal ones of the caller's need not be the same.
    kind: type = type(storage.spec)
    return _settled_once(kind, stored, None if user_config is None else pickle.dumps(user_config))


@lru_cache(maxsize=16)
def _settled_once(kind: type, stored: bytes | None, user_config: bytes | None) -> SettledConfig:
    return _settled(
        usual_settings(kind),
        None if stored is None else decode_config_flexbuffer(stored),
        None if user_config is None else pickle.loads(user_config),  # noqa: S301 - pickled above
    )


def _settled(usual: StorageSettings, *layers: RepositoryConfig | None) -> SettledConfig:
    user = RepositoryConfig(storage=usual)
    for layer in layers:
        user = user if layer is None else user.merge(layer)
    return SettledConfig(
        user,
        effective_config(user, storage_defaults=usual),
        settings_for_containers(user.storage or usual, usual),
    )


type Access = Mapping[str, AnyCredential | None]
type Clock = Callable[[], int]


def now_microseconds() -> int:
    """Return the time of this machine's clock, in microseconds since 1970, UTC."""
    return time.time_ns() // 1000


class RepoContext(Record, eq=False, dict=True):
    """An open repository.

    Pickled with its settings and credentials, without what it has cached; the copy asks the
    storage again. Equal descriptions that arrive in one process share one copy, with its clients
    and caches.
    """

    storage: Storage
    backend: Backend
    assets: Assets
    ledger: Ledger
    spec_version: int
    config: EffectiveConfig
    user_config: RepositoryConfig
    """What is stored, with what the opener gave on top; unset where defaults apply."""
    access: Access
    """Credentials for containers of virtual chunks, by url prefix: others may not be read."""
    virtual_reader: "VirtualReader | None"
    """None if no container and no authorised prefix is known: then there is nothing to read."""
    attribution: Attribution | None = None
    clock: Clock = now_microseconds

    @classmethod
    def of(
        cls,
        storage: Storage,
        settings: SettledConfig,
        *,
        spec_version: int,
        access: Access,
        virtual_reader: "VirtualReader | None" = None,
        trusted: Iterable[VirtualChunkContainer] = (),
        attribution: Attribution | None = None,
        clock: Clock = now_microseconds,
        repo: StoredRepo | None = None,
        config_version: Version | None = None,
    ) -> Self:
        """Put together what belongs to a repository, without a request.

        `trusted` are containers that the opener gave, rather than the repository. `repo` is the
        repo object of spec 2 as far as it is known, `config_version` the state of config.yaml of
        spec 1 that the configuration was made from.
        """
        config = settings.effective
        backend = storage.open(config.storage, attribution)
        cache: PlaceCache | None = None
        if not isinstance(storage.spec, LocalSpec | MemorySpec):
            from icefloe.storage.disk_cache import cache_of

            cache = cache_of(storage.spec)
        assets = Assets(backend, config, spec_version, cache)
        ledger: Ledger
        if spec_version == 1:
            from icefloe.repo.ref_ledger import RefFilesLedger

            ledger = RefFilesLedger(backend, config, assets, clock, config_version)
        else:
            ledger = RepoObjectLedger(
                backend,
                config,
                clock,
                repo,
                # Files are always compared before they are replaced, whatever the settings say.
                always_conditional=isinstance(storage.spec, LocalSpec),
            )
        disputed = settings.user.disputed_prefixes
        if virtual_reader is None and (config.virtual_chunk_containers or access or disputed):
            from icefloe.virtual_chunks.reader import VirtualReader

            virtual_reader = VirtualReader(
                config.virtual_chunk_containers,
                access,
                trusted=trusted,
                disputed=disputed,
                home_region=_home_region(storage),
                settings=settings.for_containers,
                attribution=attribution,
            )
        return cls(
            storage,
            backend,
            assets,
            ledger,
            spec_version,
            config,
            settings.user,
            dict(access),
            virtual_reader,
            attribution,
            clock,
        )

    @cached_property
    def write_concurrency(self) -> int:
        """The number of files to write at once; on one machine, sequential writes are quicker."""
        return 1 if self.is_near else self.config.max_concurrent_requests

    @cached_property
    def is_near(self) -> bool:
        """Whether the repository is on this machine, so that requests wait for no network."""
        return isinstance(self.storage.spec, LocalSpec | MemorySpec)

    @property
    def reads_nearby(self) -> bool:
        """Whether all virtual chunks that may be read are on this machine, too."""
        return self.virtual_reader is None or self.virtual_reader.is_near

    @cached_property
    def virtual(self) -> "VirtualReader":
        """Reads virtual chunks."""
        from icefloe.virtual_chunks.reader import VirtualReader

        return self.virtual_reader or VirtualReader()

    def require_spec(self, least: int, what: str) -> None:
        """Refuse what the spec version of the repository does not have."""
        if self.spec_version < least:
            raise FormatError(
                f"{what} needs a repository of spec version {least}, this one is of"
                f" {int(self.spec_version)}: migrate it first",
                ErrorKind.UNSUPPORTED_SPEC_VERSION,
            )

    def __reduce__(self) -> tuple[Any, ...]:
        settings = {
            "spec_version": self.spec_version,
            "access": self.access,
            "virtual_reader": self.virtual_reader,
            "attribution": self.attribution,
            "clock": self.clock,
            "config_version": self.ledger.config_version,
        }
        return (_restore, (pickle.dumps((self.storage, self.user_config, settings)),))


def _home_region(storage: Storage) -> str | None:
    """Return the region of Amazon S3 that the repository itself is in, if it is and says so."""
    match storage.spec:
        case S3Spec(options=options) if options.endpoint_url is None:
            return options.region
    return None


@lru_cache(maxsize=16)
def _restore(described: bytes) -> RepoContext:
    """Open what was described; a process to which many sessions travel opens it once."""
    storage, user_config, settings = pickle.loads(described)  # noqa: S301 - part of a pickle
    return RepoContext.of(storage, settled(storage, user_config), **settings)
