"""The configuration of an open repository, worked out once for all who open it as it is."""

import pickle
from dataclasses import dataclass
from functools import lru_cache

from icefloe.config import (
    EffectiveConfig,
    RepositoryConfig,
    StorageSettings,
    effective_config,
)
from icefloe.engine.virtual.clients import settings_for_containers
from icefloe.format.config_file import decode_config_flexbuffer
from icefloe.storage import Storage
from icefloe.storage.handle import usual_settings


@dataclass(frozen=True, slots=True)
class SettledConfig:
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
    storage: Storage, stored: bytes | None, given: RepositoryConfig | None
) -> SettledConfig:
    """Put a configuration, if there is any, above the one in a repo object."""
    # A copy that nobody can change, and a key: equal ones of the caller's need not be the same.
    kind: type = type(storage.spec)
    return _settled_once(kind, stored, None if given is None else pickle.dumps(given))


@lru_cache(maxsize=16)
def _settled_once(kind: type, stored: bytes | None, given: bytes | None) -> SettledConfig:
    return _settled(
        usual_settings(kind),
        None if stored is None else decode_config_flexbuffer(stored),
        None if given is None else pickle.loads(given),  # noqa: S301 - pickled above
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
