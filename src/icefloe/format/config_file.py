"""The stored configuration: `config.yaml` in spec 1, FlexBuffers in the repo object of spec 2.

Writing goes from the configuration to a tree of plain values to bytes. Reading goes the other way
and trusts nothing: anyone who can write to the repository may have written the file.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from functools import cache
from types import NoneType
from typing import Any, Final, cast, get_args, get_type_hints

from icefloe.config import (
    ChecksumAlgorithm,
    CompressionAlgorithm,
    ManifestPreloadCondition,
    ManifestSplitCondition,
    ManifestSplitDimCondition,
    ManifestSplittingConfig,
    ObjectStoreConfig,
    RepositoryConfig,
    S3Options,
    StorageSettings,
    VirtualChunkContainer,
)
from icefloe.config.conditions import PreloadFalse, PreloadTrue
from icefloe.config.containers import POLICIES, added, stored_container
from icefloe.config.manifests import KEY as CHUNK_MANIFESTS
from icefloe.config.manifests import ChunkManifestsConfig, SplitSizes
from icefloe.errors import ErrorKind, FormatError, InvalidInputError
from icefloe.format.flexbuffers import decode_flexbuffer, encode_flexbuffer
from icefloe.format.json_value import JsonValue
from icefloe.values import NamedNumber, Settings, Variant
from icefloe.values.tree import Tagged, Tree, Unquoted
from icefloe.values.urls import parse_prefix, without_user

_KEYS: Final[dict[type, tuple[str, ...]]] = {
    RepositoryConfig: (
        "inline_chunk_threshold_bytes",
        "get_partial_values_concurrency",
        "compression",
        "max_concurrent_requests",
        "max_concurrent_decodes",
        "caching",
        "storage",
        "virtual_chunk_containers",
        "manifest",
        "previous_file",
        "repo_update_retries",
        "num_updates_per_repo_info_file",
    ),
    StorageSettings: (
        "concurrency",
        "retries",
        "timeouts",
        "unsafe_use_conditional_update",
        "unsafe_use_conditional_create",
        "unsafe_use_metadata",
        "storage_class",
        "metadata_storage_class",
        "chunks_storage_class",
        "minimum_size_for_multipart_upload",
    ),
    S3Options: (
        "region",
        "endpoint_url",
        "anonymous",
        "allow_http",
        "force_path_style",
        "network_stream_timeout_seconds",
        "requester_pays",
        "checksum_algorithm",
    ),
}
"""Keys in stored order, where that is not the order of the fields."""

NUMBER_NAMES: Final[dict[type[NamedNumber], dict[str, NamedNumber]]] = {
    CompressionAlgorithm: {"zstd": CompressionAlgorithm.Zstd},
    ChecksumAlgorithm: {
        "crc32": ChecksumAlgorithm.Crc32,
        "crc32c": ChecksumAlgorithm.Crc32c,
        "crc64_nvme": ChecksumAlgorithm.Crc64Nvme,
        "sha1": ChecksumAlgorithm.Sha1,
        "sha256": ChecksumAlgorithm.Sha256,
    },
}
STORES: Final[dict[str, type[Variant]]] = {
    "in_memory": ObjectStoreConfig.InMemory,
    "local_file_system": ObjectStoreConfig.LocalFileSystem,
    "s3": ObjectStoreConfig.S3,
    "s3_compatible": ObjectStoreConfig.S3Compatible,
    "tigris": ObjectStoreConfig.Tigris,
    "gcs": ObjectStoreConfig.Gcs,
    "azure": ObjectStoreConfig.Azure,
    "http": ObjectStoreConfig.Http,
}
SPLIT_CONDITIONS: Final[dict[str, type[Variant]]] = {
    "or": ManifestSplitCondition.Or,
    "and": ManifestSplitCondition.And,
    "path_matches": ManifestSplitCondition.PathMatches,
    "name_matches": ManifestSplitCondition.NameMatches,
    "any_array": ManifestSplitCondition.AnyArray,
}
PRELOAD_CONDITIONS: Final[dict[str, type[Variant]]] = {
    "or": ManifestPreloadCondition.Or,
    "and": ManifestPreloadCondition.And,
    "path_matches": ManifestPreloadCondition.PathMatches,
    "name_matches": ManifestPreloadCondition.NameMatches,
    "num_refs": ManifestPreloadCondition.NumRefs,
    "true": PreloadTrue,
    "false": PreloadFalse,
}
DIMENSIONS: Final[dict[str, type[Variant]]] = {
    "Axis": ManifestSplitDimCondition.Axis,
    "DimensionName": ManifestSplitDimCondition.DimensionName,
    "Any": ManifestSplitDimCondition.Any,
}
_VARIANT_NAMES: Final[dict[type[Variant], str]] = {
    kind: name
    for kinds in (STORES, SPLIT_CONDITIONS, PRELOAD_CONDITIONS, DIMENSIONS)
    for name, kind in kinds.items()
}


def keys_of(kind: type[Settings]) -> tuple[str, ...]:
    """List the keys of settings in stored order."""
    return _KEYS.get(kind) or tuple(field.name for field in fields(cast("Any", kind)))


def config_to_tree(config: RepositoryConfig) -> Tree:
    """Lay out a configuration for storing: every key, null where nothing is set.

    Keys that only we know are left out then: the reference ignores them, but does not keep them.
    """
    tree = cast("dict[str, Tree]", _tree(config))
    if config.chunk_manifests is not None:
        tree[CHUNK_MANIFESTS] = config.chunk_manifests.to_tree()
    return tree


def _tree(value: Any) -> Tree:
    match value:
        case NamedNumber():
            names = NUMBER_NAMES[type(value)]
            return next(name for name, number in names.items() if number is value)
        case ManifestSplittingConfig():
            return {"split_sizes": _split_sizes(value.split_sizes)}
        case Settings():
            return {key: _tree(getattr(value, key)) for key in keys_of(type(value))}
        case VirtualChunkContainer():
            store = _tree(value.store)
            entries = {"name": value.name, "url_prefix": value.url_prefix, "store": store}
            # Other programs know no such key, but pass over it.
            changes = {} if value.on_change == "strict" else {"on_change": value.on_change}
            return {**entries, **changes}
        case Variant():
            content = _content(value)
            name = _VARIANT_NAMES[type(value)]
            return name if content is None else Tagged(name, content)
        case Mapping():
            return {key: _tree(inner) for key, inner in value.items()}
    return cast("Tree", value)


def _content(variant: Variant) -> Tree:
    """Lay out what a variant carries; None if it carries nothing."""
    match variant:
        case ObjectStoreConfig.Http(opts, headers):
            flat: dict[str, Tree] = dict(opts or {})
            if "headers" in flat:
                raise InvalidInputError(
                    "an HTTP store cannot have an option named 'headers': use its headers",
                    ErrorKind.INVALID_CONFIG,
                )
            return {**flat, "headers": dict(headers)} if headers else flat
        case ObjectStoreConfig.Gcs(opts) | ObjectStoreConfig.Azure(opts):
            return dict(opts or {})
        case ManifestPreloadCondition.NumRefs(from_refs, to):
            return {"from": _bound("Included", from_refs), "to": _bound("Excluded", to)}
        case (
            ManifestSplitCondition.PathMatches(regex)
            | ManifestSplitCondition.NameMatches(regex)
            | ManifestPreloadCondition.PathMatches(regex)
            | ManifestPreloadCondition.NameMatches(regex)
        ):
            return {"regex": regex}
        case (
            ManifestSplitCondition.Or(conditions)
            | ManifestSplitCondition.And(conditions)
            | ManifestPreloadCondition.Or(conditions)
            | ManifestPreloadCondition.And(conditions)
        ):
            return [_tree(condition) for condition in conditions]
    return _tree(variant[0]) if len(variant) else None


def _bound(kind: str, limit: int | None) -> Tree:
    return "Unbounded" if limit is None else Tagged(kind, limit)


def _split_sizes(rules: SplitSizes | None) -> Tree:
    if rules is None:
        return None
    return [
        [
            _tree(condition),
            [{"condition": _tree(dimension), "num_chunks": size} for dimension, size in sizes],
        ]
        for condition, sizes in rules
    ]


_log: Final = logging.getLogger(__name__)


def config_from_tree(tree: Tree) -> RepositoryConfig:
    """Read a configuration; containers that break the rules are left out with a warning.

    So are manifest sets and rules: data can be read and written without.
    """
    config = _settings(RepositoryConfig, tree, "")
    if (containers := _entries(tree, "").get("virtual_chunk_containers")) is not None:
        config.disputed_prefixes = tuple(_disputed_prefixes(containers))
    if (sets := _entries(tree, "").get(CHUNK_MANIFESTS)) is not None:
        try:
            config.chunk_manifests = ChunkManifestsConfig.from_tree(sets)
        except InvalidInputError as reason:
            _log.warning("ignored the manifest sets of the repository: %s", reason)
    return config


def _settings[S: Settings](kind: type[S], tree: Tree, path: str) -> S:
    entries = _entries(tree, path)
    settings = kind()
    for key in keys_of(kind):
        if (subtree := entries.get(key)) is None:
            continue
        inner_path = f"{path}.{key}" if path else key
        value = _reader(kind, key)(subtree, inner_path)
        try:
            setattr(settings, key, value)
        except InvalidInputError as reason:
            raise _wrong(inner_path, str(reason).partition(" must ")[2] or str(reason)) from None
    return settings


def _reader(kind: type[Settings], key: str) -> Callable[[Tree, str], Any]:
    """Choose how to read a key by the type of its field."""
    special: dict[str, Callable[[Tree, str], Any]] = {
        "virtual_chunk_containers": _containers,
        "split_sizes": _read_split_sizes,
        "preload_if": _preload_condition,
    }
    if key in special:
        return special[key]
    hint = _hints(kind)[key]
    (plain, *_) = [part for part in get_args(hint) or (hint,) if part is not NoneType]
    if issubclass(plain, Settings):
        return lambda tree, path: _settings(plain, tree, path)
    if issubclass(plain, NamedNumber):
        return lambda tree, path: _named(NUMBER_NAMES[plain], tree, path)
    return _text if plain is str else _plain


def _hints(kind: type) -> dict[str, Any]:
    return _hints_once(kind)


_hints_once: Final = cache(get_type_hints)


def _entries(tree: Tree, path: str) -> dict[str, Tree]:
    if not isinstance(tree, dict):
        raise _wrong(path, f"be a map, not {_kind(tree)}")
    return tree


def _items(tree: Tree, path: str) -> list[Tree]:
    if not isinstance(tree, list):
        raise _wrong(path, f"be a list, not {_kind(tree)}")
    return tree


def _plain(tree: Tree, path: str) -> Any:
    return tree.value if isinstance(tree, Unquoted) else tree


def _text(tree: Tree, path: str) -> str:
    if isinstance(tree, Unquoted):
        return tree.text
    if not isinstance(tree, str):
        raise _wrong(path, f"be text, not {_kind(tree)}")
    return tree


def _text_map(tree: Tree, path: str) -> dict[str, str]:
    return {key: _text(subtree, f"{path}.{key}") for key, subtree in _entries(tree, path).items()}


def _named[T](names: dict[str, T], tree: Tree, path: str) -> T:
    name = _text(tree, path)
    if name not in names:
        raise _wrong(path, f"be one of {', '.join(names)}, not {name!r}")
    return names[name]


def _variant(kinds: dict[str, type[Variant]], tree: Tree, path: str) -> tuple[type[Any], Tree]:
    """Return the alternative and its value: `!name x`, {name: x} or name."""
    match tree:
        case Tagged(name, content):
            pass
        case dict() if len(tree) == 1:
            ((name, content),) = tree.items()
        case _:
            name, content = _text(tree, path), None
    return _named(kinds, name, path), content


def _containers(tree: Tree, path: str) -> dict[str, VirtualChunkContainer]:
    containers: dict[str, VirtualChunkContainer] = {}
    for key, subtree in _entries(tree, path).items():
        container = _container(key, subtree, f"{path}.{key}")
        if _contradicts(key, container.url_prefix):
            _log.warning(
                "ignored a virtual chunk container of the repository: it is listed under %r, but"
                " its url_prefix is %r",
                without_user(key),
                without_user(container.url_prefix),
            )
            continue
        try:
            containers = added(containers, container)
        except InvalidInputError as reason:
            _log.warning("ignored a virtual chunk container of the repository: %s", reason)
    return containers


def _container(key: str, tree: Tree, path: str) -> VirtualChunkContainer:
    entries = _entries(tree, path)
    # The key may be an old name, so the prefix inside counts.
    prefix = _text(entries.get("url_prefix", key), f"{path}.url_prefix")
    name = entries.get("name")
    store = _store(entries.get("store"), f"{path}.store")
    policy = _plain(entries.get("on_change"), path)
    return stored_container(
        prefix,
        store,
        None if name is None else _text(name, f"{path}.name"),
        next((known_policy for known_policy in POLICIES if known_policy == policy), "strict"),
    )


def _contradicts(key: str, prefix: str) -> bool:
    """Return whether a container is listed under another url prefix than its own.

    A key that is no url may be an old name.
    """
    if "://" not in key or key == prefix:
        return False
    try:
        return not parse_prefix(key).is_same(parse_prefix(prefix))
    except InvalidInputError:
        return True


def _disputed_prefixes(tree: Tree) -> Iterator[str]:
    """List both prefixes of each container that is listed under another one than its own."""
    for key, subtree in _entries(tree, "virtual_chunk_containers").items():
        prefix = _text(_entries(subtree, key).get("url_prefix", key), key)
        if _contradicts(key, prefix):
            yield from (text for text in (key, prefix) if _is_prefix(text))


def _is_prefix(text: str) -> bool:
    try:
        parse_prefix(text)
    except InvalidInputError:
        return False
    return True


def _store(tree: Tree, path: str) -> Any:
    kind, content = _variant(STORES, tree, path)
    if kind is ObjectStoreConfig.InMemory:
        return kind()
    if kind is ObjectStoreConfig.LocalFileSystem:
        return kind(_text(content, path))
    if kind is ObjectStoreConfig.Http:
        options = dict(_entries(content, path))
        headers = options.pop("headers", None)
        return kind(
            _text_map(options, path),
            None if headers is None else _text_map(headers, f"{path}.headers"),
        )
    if kind in {ObjectStoreConfig.Gcs, ObjectStoreConfig.Azure}:
        return kind(_text_map(content, path))
    return kind(_settings(S3Options, content, path))


def _read_split_sizes(tree: Tree, path: str) -> list[tuple[Any, list[tuple[Any, Any]]]]:
    rules = []
    for position, rule in enumerate(_items(tree, path)):
        rule_path = f"{path}[{position}]"
        condition, sizes = _pair(rule, rule_path)
        rules.append(
            (
                _condition(SPLIT_CONDITIONS, condition, rule_path),
                [
                    _dimension_size(size, f"{rule_path}[{index}]")
                    for index, size in enumerate(_items(sizes, rule_path))
                ],
            )
        )
    return rules


def _pair(tree: Tree, path: str) -> tuple[Tree, Tree]:
    items = _items(tree, path)
    if len(items) != 2:
        raise _wrong(path, f"have two entries, not {len(items)}")
    return items[0], items[1]


def _dimension_size(tree: Tree, path: str) -> tuple[Any, Any]:
    entries = _entries(tree, path)
    kind, content = _variant(DIMENSIONS, entries.get("condition"), f"{path}.condition")
    size = _plain(entries.get("num_chunks"), path)
    if kind is ManifestSplitDimCondition.Any:
        return kind(), size
    if kind is ManifestSplitDimCondition.DimensionName:
        return kind(_text(content, f"{path}.condition")), size
    return _checked(kind, f"{path}.condition", _plain(content, path)), size


def _preload_condition(tree: Tree, path: str) -> ManifestPreloadCondition:
    return cast("ManifestPreloadCondition", _condition(PRELOAD_CONDITIONS, tree, path))


def _condition(kinds: dict[str, type[Variant]], tree: Tree, path: str) -> Any:
    kind, content = _variant(kinds, tree, path)
    if kind in {
        ManifestSplitCondition.Or,
        ManifestSplitCondition.And,
        ManifestPreloadCondition.Or,
        ManifestPreloadCondition.And,
    }:
        return kind([_condition(kinds, inner, path) for inner in _items(content, path)])
    if kind is ManifestPreloadCondition.NumRefs:
        bounds = _entries(content, path)
        least = _read_bound(bounds.get("from"), {"Included": 0, "Excluded": 1}, f"{path}.from")
        limit = _read_bound(bounds.get("to"), {"Included": 1, "Excluded": 0}, f"{path}.to")
        return _checked(kind, path, least, limit)
    if "regex" in kind.__match_args__:
        return kind(_text(_entries(content, path).get("regex"), f"{path}.regex"))
    return kind()


def _read_bound(tree: Tree, shifts: dict[str, int], path: str) -> Any:
    """Read a bound as the first number within, or the first number after."""
    if tree is None or tree == "Unbounded":
        return None
    match tree:
        case Tagged(name, content):
            pass
        case dict() if len(tree) == 1:
            ((name, content),) = tree.items()
        case _:
            raise _wrong(path, f"be a bound, not {_kind(tree)}")
    limit = _plain(content, path)
    if not isinstance(limit, int):
        raise _wrong(path, f"be a bound by a number, not by {_kind(content)}")
    return limit + _named(shifts, name, path)


def _checked(kind: type[Any], path: str, *content: Any) -> Any:
    try:
        return kind(*content)
    except InvalidInputError as reason:
        raise _wrong(path, str(reason).partition(" must ")[2]) from None


def _kind(tree: Tree) -> str:
    if isinstance(tree, Unquoted):
        return _kind(tree.value)
    return "a tag" if isinstance(tree, Tagged) else f"a value of type {type(tree).__name__}"


def _wrong(path: str, expected: str) -> FormatError:
    name = f"the key {path}" if path else "it"
    return FormatError(
        f"the stored configuration is damaged: {name} must {expected}",
        ErrorKind.CONFIG_DESERIALIZATION,
        key=path,
    )


def encode_config_yaml(config: RepositoryConfig) -> bytes:
    """Write a configuration as `config.yaml`.

    >>> encode_config_yaml(RepositoryConfig(inline_chunk_threshold_bytes=7)).splitlines()[0]
    b'inline_chunk_threshold_bytes: 7'
    """
    from icefloe.values.yaml_tree import encode_yaml

    return encode_yaml(config_to_tree(config))


def encode_partial_config_yaml(config: RepositoryConfig) -> bytes:
    """Write only what is set, for people to read and to merge into their configuration.

    >>> encode_partial_config_yaml(RepositoryConfig(inline_chunk_threshold_bytes=7)).split()
    [b'inline_chunk_threshold_bytes:', b'7']
    """
    from icefloe.values.yaml_tree import encode_yaml

    return encode_yaml(_without_unset(config_to_tree(config)))


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
            return {key: _json(subtree) for key, subtree in tree.items()}
        case list():
            return [_json(subtree) for subtree in tree]
    return tree
