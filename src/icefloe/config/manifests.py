"""Settings of manifests: how arrays are split and shared, what to preload, how to compress."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY
from typing import Annotated, Any, Final, Self

from icefloe.config.conditions import ManifestPreloadCondition, ManifestSplitCondition
from icefloe.config.conditions import ManifestSplitDimCondition as Dimension
from icefloe.config.manifest_sets import (
    ManifestRule,
    ManifestSet,
    ManifestSetPreload,
    in_order,
    problems_of,
    read_tree,
    some_rules,
    some_sets,
    to_tree,
)
from icefloe.errors import ErrorKind, FormatError, InvalidInputError
from icefloe.records import Record
from icefloe.values import U16, U32, Settings, Value, integer, setting, settings_class, value_class
from icefloe.values.tree import Tree

KEY: Final = "chunk-manifests"
"""Under which the configuration is written."""


@value_class
class ChunkManifestsConfig(Value):
    """Manifest sets, the rules that send arrays to them, and which manifests to fetch ahead.

    All that is wrong is said at once, a line for each problem.

    >>> config = ChunkManifestsConfig(
    ...     [ManifestSet("coordinates", max_manifest_size=10_000)],
    ...     [ManifestRule("coordinates", metadata_chunks=(0, 500))],
    ... )
    >>> ChunkManifestsConfig.from_yaml(config.to_yaml()) == config
    True
    """

    sets: Annotated[Sequence[ManifestSet], some_sets] = ()
    rules: Annotated[Sequence[ManifestRule], some_rules] = ()
    _: KW_ONLY
    preload: ManifestSetPreload | None = None

    def __post_init__(self) -> None:
        Value.__post_init__(self)
        if problems := list(problems_of(self.sets, self.rules, self.preload)):
            raise _refusal(problems)

    @classmethod
    def from_yaml(cls, text: str | bytes) -> Self:
        """Read a configuration, below the key `chunk-manifests` or without it.

        >>> ChunkManifestsConfig.from_yaml("rules: [{target: coords}]")
        Traceback (most recent call last):
        ...
        icefloe.errors.InvalidInputError: the chunk-manifests configuration has a problem:
        - rules[0] has an unknown target 'coords'; there are default
        kind: invalid-config
        """
        from icefloe.values.yaml_tree import decode_yaml

        try:
            tree = decode_yaml(text.encode() if isinstance(text, str) else text)
        except FormatError as reason:
            raise _refusal([str(reason).partition(": ")[2]]) from None
        if isinstance(tree, dict) and set(tree) == {KEY}:
            tree = tree[KEY]
        return cls._from_tree(tree, allow_unknown=False)

    def to_yaml(self) -> str:
        """Write the configuration as it is stored, below the key `chunk-manifests`.

        >>> print(ChunkManifestsConfig([ManifestSet("default", arrays_per_manifest=1)]).to_yaml())
        chunk-manifests:
          sets:
          - default:
              arrays-per-manifest: 1
          rules: []
        <BLANKLINE>
        """
        from icefloe.values.yaml_tree import encode_yaml

        return encode_yaml({KEY: self.to_tree()}).decode()

    @classmethod
    def from_tree(cls, tree: Tree) -> Self:
        """Read what a repository stores: keys unknown here may be known to others."""
        return cls._from_tree(tree, allow_unknown=True)

    def to_tree(self) -> Tree:
        """Lay out the configuration for storing."""
        return to_tree(self.sets, self.rules, self.preload)

    @classmethod
    def _from_tree(cls, tree: Tree, *, allow_unknown: bool) -> Self:
        read = read_tree(tree, allow_unknown=allow_unknown)
        if read.problems:
            more = problems_of(read.sets, read.rules, read.preload)
            raise _refusal([*read.problems, *more])
        return cls(read.sets, read.rules, preload=read.preload)


def _refusal(problems: list[str]) -> InvalidInputError:
    number = "a problem" if len(problems) == 1 else f"{len(problems)} problems"
    lines = "".join(f"\n- {problem}" for problem in problems)
    return InvalidInputError(
        f"the {KEY} configuration has {number}:{lines}", ErrorKind.INVALID_CONFIG
    )


DEFAULT_CHUNK_MANIFESTS: Final = ChunkManifestsConfig(
    [
        ManifestSet("coordinates", max_manifest_size=100, cardinality=None),
        ManifestSet("default", arrays_per_manifest=1),
    ],
    [ManifestRule("coordinates", metadata_chunks=(0, 101))],
    preload=ManifestSetPreload([".*/time", ".*/latitude", ".*/longitude"]),
)
"""What applies where nothing is configured: small arrays share a manifest that is read quickly."""


class EffectiveChunkManifests(Record):
    """Sets and rules that apply, complete."""

    sets: tuple[ManifestSet, ...]
    """In the order in which they are filled: overflow goes to a later one, at last to `default`."""
    rules: tuple[ManifestRule, ...]
    preload: ManifestSetPreload | None

    @property
    def counts_initialized_chunks(self) -> bool:
        """Whether some rule asks how many chunks of an array exist."""
        return any(rule.initialized_chunks is not None for rule in self.rules)


def effective_chunk_manifests(config: ChunkManifestsConfig) -> EffectiveChunkManifests:
    """Complete a configuration.

    >>> [each.name for each in effective_chunk_manifests(DEFAULT_CHUNK_MANIFESTS).sets]
    ['coordinates', 'default']
    """
    return EffectiveChunkManifests(in_order(config.sets), tuple(config.rules), config.preload)


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


@settings_class
class ManifestPreloadConfig(Settings):
    """Which manifests to fetch ahead when a session opens, and how many at most."""

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
        [(ManifestSplitCondition.path_matches(".*"), [(Dimension.Any(), UNSPLIT)])]
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
    """When and how the locations of virtual chunks are compressed with a shared dictionary.

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
