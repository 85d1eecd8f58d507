"""Settings of manifests: how arrays are split, what to preload, how to compress locations."""

from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY
from typing import Annotated, Any, Final

from icefloe.config.conditions import ManifestPreloadCondition, ManifestSplitCondition
from icefloe.config.conditions import ManifestSplitDimCondition as Dimension
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.values import U16, U32, Settings, integer, setting, settings_class
from icefloe.values.stored import TreeReader, plain, to_tree
from icefloe.values.tree import Stored, StoredForm, Tree

type SplitSizes = list[tuple[ManifestSplitCondition, list[tuple[Dimension, int]]]]
"""Rules in order: which arrays, and for which of their dimensions how many chunks a manifest."""

type ManifestSplitValues = dict[Dimension, int]
"""How many chunks of a dimension the references in one manifest span."""
type SplitSizesDict = dict[ManifestSplitCondition, ManifestSplitValues]
"""Splitting rules as `ManifestSplittingConfig.from_dict` takes them."""

UNSPLIT: Final = 2**32 - 1
_chunk_count: Final = integer(1, UNSPLIT)


def _split_sizes(value: Any, name: str) -> SplitSizes:
    """Check splitting rules; the result is made of lists and tuples only."""
    try:
        rules = [(condition, [(dim, size) for dim, size in sizes]) for condition, sizes in value]
    except (TypeError, ValueError):
        raise _unfit_rules(name) from None
    for condition, sizes in rules:
        if not isinstance(condition, ManifestSplitCondition):
            raise _unfit_rules(name)
        for dimension, size in sizes:
            if not isinstance(dimension, Dimension):
                raise _unfit_rules(name)
            _chunk_count(size, f"the size for {dimension!r} in {name}")
    return rules


def _unfit_rules(name: str) -> InvalidInputError:
    return InvalidInputError(
        f"{name} must be a list of (ManifestSplitCondition, [(ManifestSplitDimCondition, "
        "number of chunks), ...]); use ManifestSplittingConfig.from_dict to write it as a dict",
        ErrorKind.INVALID_CONFIG,
    )


def _split_sizes_tree(rules: SplitSizes | None) -> Tree:
    if rules is None:
        return None
    return [
        [
            to_tree(condition),
            [{"condition": to_tree(dim), "num_chunks": size} for dim, size in sizes],
        ]
        for condition, sizes in rules
    ]


def _read_split_sizes(reader: TreeReader, _: object, tree: Tree, path: str) -> list[Any]:
    rules = []
    for position, rule in enumerate(reader.items(tree, path)):
        rule_path = f"{path}[{position}]"
        items = reader.items(rule, rule_path)
        if len(items) != 2:
            reader.wrong(rule_path, f"must have two entries, not {len(items)}")
        sizes = [
            _read_dimension(reader, size, f"{rule_path}[{index}]")
            for index, size in enumerate(reader.items(items[1], rule_path))
        ]
        rules.append((reader.variant(ManifestSplitCondition, items[0], rule_path), sizes))
    return rules


def _read_dimension(reader: TreeReader, tree: Tree, path: str) -> tuple[Any, Any]:
    entries = reader.entries(tree, path)
    condition = reader.variant(Dimension, entries.get("condition"), f"{path}.condition")
    return condition, plain(entries.get("num_chunks"))


@settings_class
class ManifestPreloadConfig(Settings):
    """Which manifests a session fetches ahead when it opens, and the limit on their number."""

    max_total_refs: U32 | None = setting(10_000)
    preload_if: ManifestPreloadCondition | None = None
    max_arrays_to_scan: U32 | None = setting(50)


@settings_class
class ManifestSplittingConfig(Settings):
    """Rules that split the references of one array over several manifests.

    >>> config = ManifestSplittingConfig.from_dict(
    ...     {ManifestSplitCondition.AnyArray(): {Dimension.DimensionName("time"): 365}}
    ... )
    >>> config.split_sizes[0][1]
    [(icefloe.config.ManifestSplitDimCondition.DimensionName('time'), 365)]
    """

    split_sizes: Annotated[SplitSizes, _split_sizes] | None = setting(
        [(ManifestSplitCondition.path_matches(".*"), [(Dimension.Any(), UNSPLIT)])],
        stored=Stored(form=StoredForm(_split_sizes_tree, _read_split_sizes)),
    )

    @staticmethod
    def from_dict(
        split_sizes: Mapping[Any, Mapping[Any, int]],
    ) -> "ManifestSplittingConfig":
        """Write the rules as a dictionary; its order is their order."""
        return ManifestSplittingConfig(
            [(condition, list(sizes.items())) for condition, sizes in _items(split_sizes)]
        )

    def to_dict(self) -> SplitSizesDict:
        """Return the rules as a dictionary; empty if none are set."""
        return {condition: dict(sizes) for condition, sizes in self.split_sizes or []}


def _items(rules: Any) -> Iterable[tuple[ManifestSplitCondition, Mapping[Dimension, int]]]:
    if not isinstance(rules, Mapping) or not all(isinstance(v, Mapping) for v in rules.values()):
        raise InvalidInputError(
            "ManifestSplittingConfig.from_dict takes {condition: {dimension: number of chunks}}",
            ErrorKind.INVALID_CONFIG,
        )
    return rules.items()


@settings_class
class ManifestVirtualChunkLocationCompressionConfig(Settings):
    """Compression of the locations of virtual chunks with a shared dictionary.

    With the defaults they are not: manifests are smaller, and quicker to write and to read, when
    each distinct location is kept once and the file is compressed as a whole. Another value of
    any setting asks for the dictionary, which makes manifests take less memory when opened.
    """

    min_num_chunks: U32 | None = setting(1000)
    _: KW_ONLY
    dictionary_max_training_samples: U32 | None = setting(100)
    dictionary_max_size_bytes: U32 | None = setting(2048)
    compression_level: Annotated[int, integer(-(2**31), 2**31 - 1)] | None = setting(3)


@settings_class
class ManifestConfig(Settings):
    """All settings of manifests."""

    preload: ManifestPreloadConfig | None = setting(ManifestPreloadConfig, replaced_whole=True)
    splitting: ManifestSplittingConfig | None = setting(
        ManifestSplittingConfig, replaced_whole=True
    )
    virtual_chunk_location_compression: ManifestVirtualChunkLocationCompressionConfig | None = (
        setting(ManifestVirtualChunkLocationCompressionConfig)
    )
    max_concurrent_manifest_fetches_during_commit: U16 | None = setting(1)
