"""The stored configuration: `config.yaml` in spec 1, FlexBuffers in the repo object of spec 2.

The fields of the configuration say how they are stored, as a tree of plain values. This module
turns such trees into bytes and back.
"""

from typing import cast

from icefloe.config import RepositoryConfig
from icefloe.config.containers import disputed_prefixes
from icefloe.config.manifest_sets import KEY as CHUNK_MANIFESTS
from icefloe.errors import FormatError
from icefloe.format.flexbuffers import decode_flexbuffer, encode_flexbuffer
from icefloe.format.json_value import JsonValue
from icefloe.values.stored import TreeReader, to_tree
from icefloe.values.tree import Tagged, Tree, Unquoted, malformed


def config_from_tree(tree: Tree) -> RepositoryConfig:
    """Read a configuration; containers that break the rules are left out with a warning.

    So are manifest sets and rules: data can be read and written without.
    """
    reader = TreeReader()
    config = reader.value(RepositoryConfig, tree, "")
    containers = reader.entries(tree, "").get("virtual_chunk_containers")
    if containers is not None:
        config.disputed_prefixes = tuple(disputed_prefixes(reader, containers))
    return config


def encode_config_yaml(config: RepositoryConfig) -> bytes:
    """Write a configuration as `config.yaml`.

    >>> encode_config_yaml(RepositoryConfig(inline_chunk_threshold_bytes=7)).splitlines()[0]
    b'inline_chunk_threshold_bytes: 7'
    """
    from icefloe.values.yaml_tree import encode_yaml

    return encode_yaml(to_tree(config))


def encode_partial_config_yaml(config: RepositoryConfig) -> bytes:
    """Write only what is set, for people to read and to merge into their configuration.

    >>> encode_partial_config_yaml(RepositoryConfig(inline_chunk_threshold_bytes=7)).split()
    [b'inline_chunk_threshold_bytes:', b'7']
    """
    from icefloe.values.yaml_tree import encode_yaml

    return encode_yaml(_without_unset(to_tree(config)))


def _without_unset(tree: Tree) -> Tree:
    if not isinstance(tree, dict):
        return tree
    return {
        key: subtree if key == CHUNK_MANIFESTS else _without_unset(subtree)
        for key, subtree in tree.items()
        if subtree is not None
    }


def decode_config_yaml(data: bytes | memoryview) -> RepositoryConfig:
    """Read a configuration from `config.yaml`.

    >>> decode_config_yaml(b"compression: {level: 9}").compression.level
    9
    """
    from icefloe.values.yaml_tree import decode_yaml

    return config_from_tree(decode_yaml(data))


def encode_config_flexbuffer(config: RepositoryConfig) -> bytes:
    """Write a configuration as the root object of spec 2 holds it."""
    return encode_flexbuffer(_json(to_tree(config)))


def decode_config_flexbuffer(data: bytes | memoryview) -> RepositoryConfig:
    """Read a configuration from the root object of spec 2."""
    try:
        value = decode_flexbuffer(data)
    except FormatError as reason:
        raise malformed(str(reason)) from None
    return config_from_tree(cast("Tree", value))


def manifest_layout_json(config: RepositoryConfig) -> dict[str, JsonValue]:
    """Write what a configuration says of the layout of manifests, for a note in a commit.

    >>> manifest_layout_json(RepositoryConfig())
    {}
    """
    tree = cast("dict[str, JsonValue]", _json(to_tree(config)))
    manifest = tree["manifest"]
    splitting = manifest.get("splitting") if isinstance(manifest, dict) else None
    notes = {"splitting_config": splitting, "chunk_manifests": tree.get(CHUNK_MANIFESTS)}
    return {key: note for key, note in notes.items() if note is not None}


def _json(tree: Tree) -> JsonValue:
    """Write alternatives that carry data as maps of one entry."""
    match tree:
        case Tagged(name, content):
            return {name: _json(content)}
        case Unquoted(_, value):
            return value
        case dict():
            return {key: _json(subtree) for key, subtree in tree.items()}
        case list():
            return [_json(subtree) for subtree in tree]
    return tree
