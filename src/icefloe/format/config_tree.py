"""The configuration of a repository as a tree of plain values, laid out as it is stored."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final, cast

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
from icefloe.config.chunk_manifests import KEY as CHUNK_MANIFESTS
from icefloe.config.conditions import PreloadFalse, PreloadTrue
from icefloe.config.manifest import SplitSizes
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.values import NamedNumber, Settings, Variant
from icefloe.values.yaml_tree import Tagged, Tree

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
    return _KEYS.get(kind) or tuple(each.name for each in fields(cast("Any", kind)))


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
            return {key: _tree(each) for key, each in value.items()}
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
            return [_tree(each) for each in conditions]
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
