"""The stored configuration: `config.yaml` in spec 1, a FlexBuffers map in the root of spec 2."""

from typing import cast

from icefloe.config import RepositoryConfig
from icefloe.config.chunk_manifests import KEY as CHUNK_MANIFESTS
from icefloe.errors import ErrorKind, FormatError
from icefloe.format.config_reading import config_from_tree
from icefloe.format.config_tree import config_to_tree
from icefloe.format.flexbuffers import decode_flexbuffer, encode_flexbuffer
from icefloe.format.json_value import JsonValue
from icefloe.values.yaml_tree import Tagged, Tree, Unquoted, decode_yaml, encode_yaml


def encode_config_yaml(config: RepositoryConfig) -> bytes:
    """Write a configuration as `config.yaml`.

    >>> encode_config_yaml(RepositoryConfig(inline_chunk_threshold_bytes=7)).splitlines()[0]
    b'inline_chunk_threshold_bytes: 7'
    """
    return encode_yaml(config_to_tree(config))


def encode_partial_config_yaml(config: RepositoryConfig) -> bytes:
    """Write only what is set, for people to read and to merge into their configuration.

    >>> encode_partial_config_yaml(RepositoryConfig(inline_chunk_threshold_bytes=7)).split()
    [b'inline_chunk_threshold_bytes:', b'7']
    """
    return encode_yaml(_without_unset(config_to_tree(config)))


def _without_unset(tree: Tree) -> Tree:
    if not isinstance(tree, dict):
        return tree
    return {
        key: each if key == CHUNK_MANIFESTS else _without_unset(each)
        for key, each in tree.items()
        if each is not None
    }


def decode_config_yaml(data: bytes | memoryview) -> RepositoryConfig:
    """Read a configuration from `config.yaml`.

    >>> decode_config_yaml(b"compression: {level: 9}").compression.level
    9
    """
    return config_from_tree(decode_yaml(data))


def encode_config_flexbuffer(config: RepositoryConfig) -> bytes:
    """Write a configuration as the root object of spec 2 holds it."""
    return encode_flexbuffer(_json(config_to_tree(config)))


def decode_config_flexbuffer(data: bytes | memoryview) -> RepositoryConfig:
    """Read a configuration from the root object of spec 2."""
    try:
        value = decode_flexbuffer(data)
    except FormatError as reason:
        raise FormatError(
            f"the stored configuration is damaged: {reason}", ErrorKind.CONFIG_DESERIALIZATION
        ) from None
    return config_from_tree(cast("Tree", value))


def manifest_layout_json(config: RepositoryConfig) -> dict[str, JsonValue]:
    """Write what a configuration says of the layout of manifests, for a note in a commit.

    >>> manifest_layout_json(RepositoryConfig())
    {}
    """
    tree = cast("dict[str, JsonValue]", _json(config_to_tree(config)))
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
            return {key: _json(each) for key, each in tree.items()}
        case list():
            return [_json(each) for each in tree]
    return tree
