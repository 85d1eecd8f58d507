"""A copy of a repository's manifest sets, where other libraries leave it alone.

Manifest sets are stored in the configuration, under a key that only this library knows. Another
library that saves the configuration writes the keys that it knows, and so drops them. What it
keeps is the metadata of the repository, which is in the same object: a copy there costs no
request, tells that something was dropped, and what.
"""

import json
import warnings
from collections.abc import Mapping
from typing import Final, cast

from icefloe.config import ChunkManifestsConfig, RepositoryConfig
from icefloe.config.chunk_manifests import KEY as CONFIG_KEY
from icefloe.errors import InvalidInputError
from icefloe.format.config_file import decode_config_flexbuffer
from icefloe.format.json_value import JsonValue
from icefloe.format.repo_info import RepoInfo
from icefloe.values.yaml_tree import Tree

KEY: Final = f"icefloe.{CONFIG_KEY}"


def shown_metadata(metadata: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Give the metadata of a repository as users set it, without the copy."""
    return {name: value for name, value in metadata.items() if name != KEY}


def replaced_metadata(
    before: Mapping[str, JsonValue], metadata: Mapping[str, JsonValue]
) -> dict[str, JsonValue]:
    """Replace what users set, and keep the copy."""
    return {**shown_metadata(metadata), **({KEY: before[KEY]} if KEY in before else {})}


def metadata_with_copy(
    metadata: Mapping[str, JsonValue], stored: bytes | None, config: RepositoryConfig
) -> dict[str, JsonValue]:
    """Give the metadata that goes with a configuration which replaces the stored one.

    The copy of sets that somebody else dropped stays; of sets that are taken out on purpose it
    goes with them.
    """
    if config.chunk_manifests is not None:
        copy = cast("JsonValue", config.chunk_manifests.to_tree())
        return {**shown_metadata(metadata), KEY: copy}
    had_sets = stored is not None and decode_config_flexbuffer(stored).chunk_manifests is not None
    return shown_metadata(metadata) if had_sets else dict(metadata)


def warn_of_dropped_sets(repo: RepoInfo, config: RepositoryConfig) -> None:
    """Warn if the manifest sets of a repository were dropped, and `config` has none instead."""
    if KEY not in repo.metadata or config.chunk_manifests is not None:
        return
    try:
        kept = ChunkManifestsConfig.from_tree(cast("Tree", repo.metadata[KEY]))
    except InvalidInputError:
        return
    text = json.dumps(kept.to_tree())  # which escapes what a terminal could take for a command
    warnings.warn(
        "another library saved the configuration of this repository and dropped its manifest sets"
        f" ({CONFIG_KEY}): new manifests are laid out by the default rules. To restore them, open"
        " the repository with config=icefloe.RepositoryConfig(chunk_manifests="
        f"icefloe.ChunkManifestsConfig.from_yaml({text!r})) and call save_config()",
        stacklevel=2,
    )
