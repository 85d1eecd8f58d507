"""Reading a stored configuration, which anybody may have written.

Missing keys are not set, unknown ones are ignored, wrong ones are a `FormatError` that names
the key.
"""

import logging
from collections.abc import Callable, Iterator
from functools import cache
from types import NoneType
from typing import Any, Final, cast, get_args, get_type_hints

from icefloe.config import (
    ManifestPreloadCondition,
    ManifestSplitCondition,
    ManifestSplitDimCondition,
    ObjectStoreConfig,
    RepositoryConfig,
    S3Options,
    VirtualChunkContainer,
)
from icefloe.config.chunk_manifests import KEY as CHUNK_MANIFESTS
from icefloe.config.chunk_manifests import ChunkManifestsConfig
from icefloe.config.containers import POLICIES, added, stored_container
from icefloe.config.urls import parse_prefix, without_user
from icefloe.errors import ErrorKind, FormatError, InvalidInputError
from icefloe.format.config_tree import (
    DIMENSIONS,
    NUMBER_NAMES,
    PRELOAD_CONDITIONS,
    SPLIT_CONDITIONS,
    STORES,
    keys_of,
)
from icefloe.values import NamedNumber, Settings, Variant
from icefloe.values.yaml_tree import Tagged, Tree, Unquoted

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
        if (given := entries.get(key)) is None:
            continue
        place = f"{path}.{key}" if path else key
        value = _reader(kind, key)(given, place)
        try:
            setattr(settings, key, value)
        except InvalidInputError as reason:
            raise _wrong(place, str(reason).partition(" must ")[2] or str(reason)) from None
    return settings


def _reader(kind: type[Settings], key: str) -> Callable[[Tree, str], Any]:
    """Choose how to read a key by the type of its field."""
    special: dict[str, Callable[[Tree, str], Any]] = {
        "virtual_chunk_containers": _containers,
        "split_sizes": _split_sizes,
        "preload_if": _preload_condition,
    }
    if key in special:
        return special[key]
    hint = _hints(kind)[key]
    (plain, *_) = [each for each in get_args(hint) or (hint,) if each is not NoneType]
    if issubclass(plain, Settings):
        return lambda tree, place: _settings(plain, tree, place)
    if issubclass(plain, NamedNumber):
        return lambda tree, place: _named(NUMBER_NAMES[plain], tree, place)
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
    return {key: _text(each, f"{path}.{key}") for key, each in _entries(tree, path).items()}


def _named[T](names: dict[str, T], tree: Tree, path: str) -> T:
    name = _text(tree, path)
    if name not in names:
        raise _wrong(path, f"be one of {', '.join(names)}, not {name!r}")
    return names[name]


def _variant(kinds: dict[str, type[Variant]], tree: Tree, path: str) -> tuple[type[Any], Tree]:
    """Tell which alternative stands there, and what it carries: `!name x`, {name: x} or name."""
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
    for key, each in _entries(tree, path).items():
        container = _container(key, each, f"{path}.{key}")
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
        next((known for known in POLICIES if known == policy), "strict"),
    )


def _contradicts(key: str, prefix: str) -> bool:
    """Tell whether a container is listed under another url prefix than its own.

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
    for key, each in _entries(tree, "virtual_chunk_containers").items():
        prefix = _text(_entries(each, key).get("url_prefix", key), key)
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


def _split_sizes(tree: Tree, path: str) -> list[tuple[Any, list[tuple[Any, Any]]]]:
    rules = []
    for position, rule in enumerate(_items(tree, path)):
        place = f"{path}[{position}]"
        condition, sizes = _pair(rule, place)
        rules.append(
            (
                _condition(SPLIT_CONDITIONS, condition, place),
                [
                    _dimension_size(each, f"{place}[{index}]")
                    for index, each in enumerate(_items(sizes, place))
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
        return kind([_condition(kinds, each, path) for each in _items(content, path)])
    if kind is ManifestPreloadCondition.NumRefs:
        bounds = _entries(content, path)
        least = _bound(bounds.get("from"), {"Included": 0, "Excluded": 1}, f"{path}.from")
        limit = _bound(bounds.get("to"), {"Included": 1, "Excluded": 0}, f"{path}.to")
        return _checked(kind, path, least, limit)
    if "regex" in kind.__match_args__:
        return kind(_text(_entries(content, path).get("regex"), f"{path}.regex"))
    return kind()


def _bound(tree: Tree, shifts: dict[str, int], path: str) -> Any:
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


def _wrong(path: str, wanted: str) -> FormatError:
    place = f"the key {path}" if path else "it"
    return FormatError(
        f"the stored configuration is damaged: {place} must {wanted}",
        ErrorKind.CONFIG_DESERIALIZATION,
        key=path,
    )
