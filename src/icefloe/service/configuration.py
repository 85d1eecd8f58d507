"""The configuration of a repository as the service reads it: under limits, and only if it changed.

A repository may be anybody's. Its configuration is read with a credential for this repository
alone, its size is known before a byte is read, and what it says is a claim, not a fact.
"""

from typing import Final

from icefloe.catalog.model import DeclaredContainer
from icefloe.config import ObjectStoreConfig, RepositoryConfig, VirtualChunkContainer
from icefloe.errors import ObjectNotFoundError, RepositoryNotFoundError
from icefloe.format.config_file import decode_config_yaml
from icefloe.format.layout import CONFIG_KEY, REPO_KEY, branch_key
from icefloe.format.repo_info import open_repo_info
from icefloe.records import Record
from icefloe.repo.repo_changes import stored_config
from icefloe.service.vending.objects import StoreClient

LARGEST_FILE: Final = 64 * 2**20
"""The most bytes of a file that has the configuration; a larger one is refused unread."""


class SeenConfiguration(Record):
    """The containers of a repository, and the version of the file that says so."""

    version: str | None
    """None if there is no repository yet."""
    containers: tuple[DeclaredContainer, ...] | None
    """None if the version is the one that is known already."""


async def read_configuration(reader: StoreClient, known_version: str | None) -> SeenConfiguration:
    """Read the containers that a repository declares, unless the known version is still there."""
    try:
        stored = await reader.read(REPO_KEY, known_version=known_version, most_bytes=LARGEST_FILE)
    except ObjectNotFoundError:
        return await _read_first_spec(reader, known_version)
    if stored.data is None:
        return SeenConfiguration(stored.version, None)
    config = stored_config(open_repo_info(stored.data))
    return SeenConfiguration(stored.version, declared_containers(config))


async def _read_first_spec(reader: StoreClient, known_version: str | None) -> SeenConfiguration:
    """Read the configuration of a repository of spec 1, which may have none."""
    try:
        stored = await reader.read(CONFIG_KEY, known_version=known_version, most_bytes=LARGEST_FILE)
    except ObjectNotFoundError:
        try:
            await reader.read(branch_key("main"), most_bytes=LARGEST_FILE)
        except ObjectNotFoundError:
            problem = "there is no repository in the place that the service knows"
            raise RepositoryNotFoundError(problem) from None
        return SeenConfiguration("none", ())
    if stored.data is None:
        return SeenConfiguration(stored.version, None)
    config = decode_config_yaml(stored.data)
    return SeenConfiguration(stored.version, declared_containers(config))


def declared_containers(config: RepositoryConfig | None) -> tuple[DeclaredContainer, ...]:
    """Return the containers that a configuration declares, as claims."""
    containers = {} if config is None else config.virtual_chunk_containers or {}
    return tuple(_declared(key, container) for key, container in containers.items())


def _declared(key: str, container: VirtualChunkContainer) -> DeclaredContainer:
    endpoint = account = None
    match container.store:
        case ObjectStoreConfig.S3(options) | ObjectStoreConfig.S3Compatible(options):
            platform, endpoint = "s3", options.endpoint_url
        case ObjectStoreConfig.Tigris(options):
            platform, endpoint = "s3", options.endpoint_url or "https://t3.storage.dev"
        case ObjectStoreConfig.Gcs(opts):
            platform, endpoint = "gcs", (opts or {}).get("google_base_url")
        case ObjectStoreConfig.Azure(opts):
            values = opts or {}
            platform, account = "azure", values.get("account")
            endpoint = values.get("endpoint") or values.get("azure_storage_endpoint")
        case ObjectStoreConfig.LocalFileSystem():
            platform = "file"
        case ObjectStoreConfig.Http():
            platform = "http"
        case _:
            platform = "memory"
    return DeclaredContainer(key, container.url_prefix, container.name, platform, endpoint, account)
