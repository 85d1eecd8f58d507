"""Settings of manifests: how arrays are split over them, which to fetch ahead, how to compress."""

from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any, Final

from icefloe.config.conditions import ManifestPreloadCondition, ManifestSplitCondition
from icefloe.config.conditions import ManifestSplitDimCondition as Dimension
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.values import U16, U32, Settings, integer, setting

type SplitSizes = list[tuple[ManifestSplitCondition, list[tuple[Dimension, int]]]]
"""Rules in order: which arrays, and for which of their dimensions how many chunks a manifest."""

type ManifestSplitValues = dict[Dimension, int]
"""How many chunks of a dimension the references in one manifest span."""
type SplitSizesDict = dict[ManifestSplitCondition, ManifestSplitValues]
"""Splitting rules as `ManifestSplittingConfig.from_dict` takes them."""

UNSPLIT: Final = 2**32 - 1
_chunk_count: Final = integer(1, UNSPLIT)


def _split_sizes(given: Any, place: str) -> SplitSizes:
    """Check splitting rules; the result is made of lists and tuples only."""
    try:
        rules = [(condition, [(dim, size) for dim, size in sizes]) for condition, sizes in given]
    except (TypeError, ValueError):
        raise _unfit_rules(place) from None
    for condition, sizes in rules:
        if not isinstance(condition, ManifestSplitCondition):
            raise _unfit_rules(place)
        for dimension, size in sizes:
            if not isinstance(dimension, Dimension):
                raise _unfit_rules(place)
            _chunk_count(size, f"the size for {dimension!r} in {place}")
    return rules


def _unfit_rules(place: str) -> InvalidInputError:
    return InvalidInputError(
        f"{place} must be a list of (ManifestSplitCondition, [(ManifestSplitDimCondition, "
        "number of chunks), ...]); use ManifestSplittingConfig.from_dict to write it as a dict",
        ErrorKind.INVALID_CONFIG,
    )


@dataclass(slots=True)
class ManifestPreloadConfig(Settings):
    """Which manifests to fetch ahead when a session opens, and how many at most."""

    max_total_refs: U32 | None = setting(10_000)
    preload_if: ManifestPreloadCondition | None = None
    max_arrays_to_scan: U32 | None = setting(50)


@dataclass(slots=True)
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
        """Give the rules as a dictionary; empty if none are set."""
        return {condition: dict(sizes) for condition, sizes in self.split_sizes or []}


def _items(rules: Any) -> Iterable[tuple[ManifestSplitCondition, Mapping[Dimension, int]]]:
    if not isinstance(rules, Mapping) or not all(isinstance(v, Mapping) for v in rules.values()):
        raise InvalidInputError(
            "ManifestSplittingConfig.from_dict takes {condition: {dimension: number of chunks}}",
            ErrorKind.INVALID_CONFIG,
        )
    return rules.items()


@dataclass(slots=True)
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


@dataclass(slots=True)
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
