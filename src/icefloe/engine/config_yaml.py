"""The configuration that a repository of spec 1 stores, in a file of its own."""

from collections.abc import Callable
from typing import Final

from icefloe.config import RepositoryConfig
from icefloe.engine.settling import put_settled
from icefloe.errors import (
    ConflictError,
    ErrorKind,
    ObjectNotFoundError,
    PreconditionFailedError,
)
from icefloe.format.config_file import decode_config_yaml, encode_config_yaml
from icefloe.format.ids import ObjectId
from icefloe.format.layout import CONFIG_KEY, backup_key, backup_name
from icefloe.storage import Backend, Version

_YAML: Final = "application/yaml"


async def load_config_file(
    backend: Backend,
) -> tuple[RepositoryConfig | None, Version | None]:
    """Read config.yaml, and which state of it that was; None and None if there is no such file."""
    try:
        found = await backend.get(CONFIG_KEY)
    except ObjectNotFoundError:
        return None, None
    return decode_config_yaml(bytes(found.data)), found.info.version


async def create_config_file(backend: Backend, config: RepositoryConfig) -> Version:
    """Write the config.yaml of a new repository; there must be none yet."""
    try:
        return await _put(backend, config, None)
    except PreconditionFailedError:
        raise ConflictError(
            message=f"there is a {CONFIG_KEY} already, without a repository: remove it first",
            kind=ErrorKind.CONFIG_UPDATED,
        ) from None


async def replace_config_file(
    backend: Backend, config: RepositoryConfig, known: Version | None, clock: Callable[[], int]
) -> Version:
    """Replace the state of config.yaml that is known, keeping a copy of it."""
    try:
        if known is not None:
            name = backup_name(CONFIG_KEY, clock() // 1000, ObjectId.random())
            await backend.copy(CONFIG_KEY, backup_key(name), if_version=known)
        return await _put(backend, config, known)
    except (PreconditionFailedError, ObjectNotFoundError):
        raise ConflictError(
            message="somebody changed the stored configuration since this repository was"
            " opened: open it again and repeat the change",
            kind=ErrorKind.CONFIG_UPDATED,
        ) from None


async def _put(backend: Backend, config: RepositoryConfig, known: Version | None) -> Version:
    data = encode_config_yaml(config)
    return await put_settled(backend, CONFIG_KEY, data, replacing=known, content_type=_YAML)
