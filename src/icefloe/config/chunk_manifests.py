"""How arrays are gathered in manifests: manifest sets and the rules that fill them."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Final, Self

from icefloe.config.manifest_sets import (
    ManifestRule,
    ManifestSet,
    ManifestSetPreload,
    in_order,
    problems_of,
    some_rules,
    some_sets,
)
from icefloe.config.manifest_sets_tree import read_tree, to_tree
from icefloe.errors import ErrorKind, FormatError, InvalidInputError
from icefloe.values import Value
from icefloe.values.yaml_tree import Tree, decode_yaml, encode_yaml

KEY: Final = "chunk-manifests"
"""Under which the configuration is written."""


@dataclass(frozen=True, slots=True)
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
    lines = "".join(f"\n- {each}" for each in problems)
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


@dataclass(frozen=True, slots=True)
class EffectiveChunkManifests:
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
