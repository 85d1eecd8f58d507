"""Manifest sets and the rules that assign arrays to them, as values and as YAML."""

import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, field, fields
from importlib import import_module
from typing import Annotated, Any, Final, Self, cast

from icefloe.errors import ErrorKind, FormatError, InvalidInputError
from icefloe.forks import importing
from icefloe.records import Record
from icefloe.values import U32, NonZeroU64, Value, integer, list_of, public_name, value_class
from icefloe.values.stored import TreeReader, kind_of, to_tree
from icefloe.values.tree import Stored, StoredForm, Tree

_log: Final = logging.getLogger(__name__)

KEY: Final = "chunk-manifests"
"""Under which the configuration is written."""
DEFAULT_SET: Final = "default"
DEFAULT_SET_SIZE: Final = 1_000_000
MAX_SETS: Final = 1000
MAX_RULES: Final = 1000
MAX_PATTERN_LENGTH: Final = 1000
_PLAIN_PATTERN: Final = r"(?a)(?:\.[*+?]?|[\w/ -]|\([\w/ |-]*\))*"
"""Patterns without any surprise: they need no check by Arrow, which is slow to import."""

type ChunkRange = tuple[int | None, int | None]
"""From how many, and fewer than how many; None is no limit."""

_count: Final = integer(0, 2**64 - 1)
_UNSAID: Final = cast("int | None", ...)
"""Cardinality of a set that was made without any: what applies depends on its name."""


def _range(value: Any, name: str) -> ChunkRange:
    if isinstance(value, str) or not isinstance(value, Sequence) or len(value) != 2:
        raise InvalidInputError(
            f"{name} must be two numbers, from and to, of which either may be None",
            ErrorKind.INVALID_CONFIG,
        )
    low, high = (None if bound is None else _count(bound, name) for bound in value)
    if low is not None and high is not None and low >= high:
        raise InvalidInputError(
            f"{name} must be a range of some numbers: there are none from {low} to below {high}",
            ErrorKind.INVALID_CONFIG,
        )
    return low, high


_positive: Final = integer(1, 2**64 - 1)


def _cardinality(value: Any, name: str) -> Any:
    return value if value is _UNSAID else _positive(value, name)


@value_class
class ManifestSet(Value):
    """A group of manifests that are packed alike.

    Either `max_manifest_size` references or `arrays_per_manifest` arrays go into a manifest.
    There are at most `cardinality` manifests: one unless said otherwise, any number if None.
    Arrays without a place go to the set `overflow_to`, or else to the set named "default",
    which is never limited, and holds 1,000,000 references a manifest unless said otherwise.

    >>> ManifestSet("coordinates", max_manifest_size=50_000).cardinality
    1
    """

    kebab_keys = True
    name: str = field(metadata={"stored": None})
    _: KW_ONLY
    max_manifest_size: NonZeroU64 | None = field(
        default=None, metadata={"stored": Stored(instead=1)}
    )
    arrays_per_manifest: NonZeroU64 | None = field(
        default=None,
        metadata={"stored": Stored(other_key="max-arrays-per-manifest", instead=1)},
    )
    overflow_to: str | None = None
    cardinality: Annotated[int, _cardinality] | None = field(
        default=_UNSAID, metadata={"stored": Stored(null_counts=True, instead=1)}
    )

    def __post_init__(self) -> None:
        Value.__post_init__(self)
        if self.cardinality is _UNSAID:
            object.__setattr__(self, "cardinality", _usual_cardinality(self.name))

    def __repr__(self) -> str:
        return _one_line(self, self.name, cardinality=_usual_cardinality(self.name))


def _usual_cardinality(name: str) -> int | None:
    return None if name == DEFAULT_SET else 1


def _one_line(value: "ManifestSet | ManifestRule", first: str, **usual: object) -> str:
    """Write a value as source code, without what is as usual: lists of them are read often."""
    contents = [(field_.name, getattr(value, field_.name)) for field_ in fields(value)[1:]]
    shown = [f"{name}={content!r}" for name, content in contents if content != usual.get(name)]
    return f"{public_name(type(value))}({', '.join([repr(first), *shown])})"


@value_class
class ManifestRule(Value):
    """Sends the arrays for which all conditions hold to a manifest set; the first rule counts.

    The pattern `path` must match the whole path. `metadata_chunks` is a range for the number of
    chunks that the shape of an array has room for, `initialized_chunks` one for those that
    exist: from the first number to below the second. Limits of manifests are measured in the
    former, but for arrays sent by a rule with a condition on the latter.

    >>> ManifestRule("coordinates", path=".*/(lat|lon|time)", metadata_chunks=(0, 500)).target
    'coordinates'
    """

    kebab_keys = True
    target: str = field(
        metadata={"stored": Stored(after="initialized_chunks", instead=DEFAULT_SET)}
    )
    _: KW_ONLY
    path: str | None = None
    metadata_chunks: Annotated[ChunkRange, _range] | None = None
    initialized_chunks: Annotated[ChunkRange, _range] | None = None

    def __repr__(self) -> str:
        return _one_line(self, self.target)


def _read_patterns(reader: TreeReader, _: object, tree: Tree, path: str) -> list[str]:
    patterns = []
    for position, content in enumerate(reader.items(tree, path)):
        entry = reader.arguments(_Preloaded, content, f"{path}[{position}]")
        patterns.append(entry.get("path", ""))
    return patterns


@value_class
class _Preloaded(Value):
    """An entry of the list of arrays whose manifests are fetched ahead."""

    path: str


@value_class
class ManifestSetPreload(Value):
    """Whose manifests to fetch ahead when a session opens: of arrays with a matching path.

    At most `max_manifests` are fetched, and none with more than `max_manifest_size` references.

    >>> ManifestSetPreload([".*/time", ".*/latitude"], max_manifests=2).arrays
    ('.*/time', '.*/latitude')
    """

    kebab_keys = True
    arrays: Annotated[Sequence[str], list_of(str)] = field(
        default=(),
        metadata={
            "stored": Stored(
                after="max_manifests",
                form=StoredForm(
                    lambda arrays: [{"path": pattern} for pattern in arrays], _read_patterns
                ),
            )
        },
    )
    _: KW_ONLY
    max_manifest_size: U32 = 50_000
    max_manifests: U32 = 1


def problems_of(
    sets: Sequence[ManifestSet],
    rules: Sequence[ManifestRule],
    preload: ManifestSetPreload | None,
) -> Iterator[str]:
    """Yield the problems of a configuration, one line each."""
    if len(sets) > MAX_SETS:
        yield f"there are {len(sets)} sets, the most is {MAX_SETS}"
        return
    if len(rules) > MAX_RULES:
        yield f"there are {len(rules)} rules, the most is {MAX_RULES}"
        return
    sets_by_name = {manifest_set.name: manifest_set for manifest_set in sets}
    for position, manifest_set in enumerate(sets):
        if not manifest_set.name:
            yield f"sets[{position}] has no name"
        elif sets_by_name[manifest_set.name] is not manifest_set:
            yield f"there is more than one set {manifest_set.name!r}"
        yield from _problems_of_set(manifest_set, sets_by_name)
    for position, rule in enumerate(rules):
        if rule.target not in sets_by_name and rule.target != DEFAULT_SET:
            choices = ", ".join(
                [*sets_by_name, DEFAULT_SET] if DEFAULT_SET not in sets_by_name else sets_by_name
            )
            yield f"rules[{position}] has an unknown target {rule.target!r}; there are {choices}"
    yield from _problems_of_loops(sets_by_name)
    reached = _reached(sets_by_name, rules)
    for name in sets_by_name:
        if name and name != DEFAULT_SET and name not in reached:
            yield f"no array can come to the set {name!r}: no rule nor overflow leads there"
    yield from _problems_of_patterns(rules, preload)


def _problems_of_set(
    manifest_set: ManifestSet, sets_by_name: dict[str, ManifestSet]
) -> Iterator[str]:
    modes = (manifest_set.max_manifest_size, manifest_set.arrays_per_manifest)
    if None not in modes:
        yield (
            f"the set {manifest_set.name!r} has both max-manifest-size and arrays-per-manifest: "
            "choose one of them"
        )
    if manifest_set.name == DEFAULT_SET:
        if manifest_set.cardinality is not None:
            yield "the default set cannot have a cardinality: whatever fits nowhere else goes there"
        if manifest_set.overflow_to is not None:
            yield "the default set cannot have an overflow-to: it takes everything"
        return
    if modes == (None, None):
        yield f"the set {manifest_set.name!r} needs either max-manifest-size or arrays-per-manifest"
    if manifest_set.overflow_to is not None and manifest_set.overflow_to not in {
        *sets_by_name,
        DEFAULT_SET,
    }:
        target = manifest_set.overflow_to
        yield f"the set {manifest_set.name!r} overflows to an unknown set {target!r}"


def _problems_of_loops(sets_by_name: dict[str, ManifestSet]) -> Iterator[str]:
    done: set[str] = set()
    for start in sets_by_name:
        way: list[str] = []
        name: str | None = start
        while name in sets_by_name and name not in done and name not in way:
            way.append(name)
            name = sets_by_name[name].overflow_to
        if name in way:
            loop = [*way[way.index(name) :], name]
            yield f"overflow-to leads in a circle: {' -> '.join(loop)}"
        done.update(way)


def _reached(sets_by_name: dict[str, ManifestSet], rules: Sequence[ManifestRule]) -> set[str]:
    reached: set[str] = set()
    for rule in rules:
        name: str | None = rule.target
        while name in sets_by_name and name not in reached:
            reached.add(name)
            name = sets_by_name[name].overflow_to
    return reached


def _problems_of_patterns(
    rules: Sequence[ManifestRule], preload: ManifestSetPreload | None
) -> Iterator[str]:
    patterns = {f"rules[{n}].path": rule.path for n, rule in enumerate(rules)}
    preloaded = () if preload is None else preload.arrays
    patterns |= {
        f"preload.arrays[{n}].path": preloaded_pattern
        for n, preloaded_pattern in enumerate(preloaded)
    }
    for path, pattern in patterns.items():
        if pattern is not None and (problem := _problem_of_pattern(pattern)):
            yield f"{path} is no regular expression that can be used: {problem}"


def _problem_of_pattern(pattern: str) -> str | None:
    """Return why a pattern cannot be used, or None if it can.

    Patterns are matched by Arrow, in time linear in the text whatever they are.
    """
    if len(pattern) > MAX_PATTERN_LENGTH:
        return f"it has {len(pattern)} characters, the most is {MAX_PATTERN_LENGTH}"
    if re.fullmatch(_PLAIN_PATTERN, pattern):
        return None
    with importing():
        pa, pc = import_module("pyarrow"), import_module("pyarrow.compute")
    try:
        pc.match_substring_regex(pa.nulls(1, pa.string()), pattern)
    except (pa.ArrowInvalid, UnicodeEncodeError) as reason:
        return f"{pattern!r}: {reason}"
    return None


def in_order(sets: Sequence[ManifestSet]) -> tuple[ManifestSet, ...]:
    """Complete sets with the default, and sort them so that all overflow goes to later ones.

    Of those that could come next, the first as configured does.
    """
    by_name = {manifest_set.name: manifest_set for manifest_set in sets}
    default = by_name.pop(DEFAULT_SET, ManifestSet(DEFAULT_SET))
    if default.max_manifest_size is None and default.arrays_per_manifest is None:
        default = ManifestSet(DEFAULT_SET, max_manifest_size=DEFAULT_SET_SIZE)
    ordered: list[ManifestSet] = []
    while by_name:
        targets = {manifest_set.overflow_to for manifest_set in by_name.values()}
        free = next(
            manifest_set for manifest_set in by_name.values() if manifest_set.name not in targets
        )
        ordered.append(_overflowing(by_name.pop(free.name)))
    return (*ordered, default)


def _overflowing(manifest_set: ManifestSet) -> ManifestSet:
    if manifest_set.overflow_to is not None:
        return manifest_set
    return ManifestSet(
        manifest_set.name,
        max_manifest_size=manifest_set.max_manifest_size,
        arrays_per_manifest=manifest_set.arrays_per_manifest,
        overflow_to=DEFAULT_SET,
        cardinality=manifest_set.cardinality,
    )


class _ProblemReader(TreeReader):
    """Reads a configuration to its end, and notes all problems."""

    def __init__(self, *, allow_unknown: bool) -> None:
        self.problems: list[str] = []
        self._allow_unknown = allow_unknown

    def wrong(self, path: str, problem: str) -> None:
        self.problems.append(f"{path or KEY} {problem}")

    def unknown(self, path: str, key: str, keys: tuple[str, ...]) -> None:
        if not self._allow_unknown:
            self.wrong(f"{path or KEY}.{key}", f"is unknown; there are {', '.join(keys)}")


def _sets_tree(sets: Sequence[ManifestSet]) -> Tree:
    # A cardinality of null says something, but for the default set, which has none.
    return [
        {
            manifest_set.name: cast("dict[str, Tree]", to_tree(manifest_set))
            | (
                {}
                if manifest_set.name == DEFAULT_SET
                else {"cardinality": manifest_set.cardinality}
            )
        }
        for manifest_set in sets
    ]


def _read_sets(reader: TreeReader, _: object, tree: Tree, path: str) -> list[ManifestSet]:
    sets = []
    for position, subtree in enumerate(reader.items(tree, path)):
        if not isinstance(subtree, dict) or len(subtree) != 1:
            reader.wrong(
                f"{path}[{position}]",
                "must be a map of one entry, from the name of the set to its settings, got "
                + kind_of(subtree),
            )
            continue
        ((name, content),) = subtree.items()
        where = f"{path}[{position}].{name}"
        settings = reader.arguments(ManifestSet, {} if content is None else content, where)
        sets.append(ManifestSet(name, **settings))
    return sets


def _read_rules(reader: TreeReader, _: object, tree: Tree, path: str) -> list[ManifestRule]:
    rules = []
    for position, subtree in enumerate(reader.items(tree, path)):
        where = f"{path}[{position}]"
        contents = reader.arguments(ManifestRule, subtree, where)
        if "target" not in contents and isinstance(subtree, dict):
            reader.wrong(where, "has no target")
        rules.append(ManifestRule(**{"target": DEFAULT_SET} | contents))
    return rules


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

    kebab_keys = True
    sets: Annotated[Sequence[ManifestSet], list_of(ManifestSet)] = field(
        default=(), metadata={"stored": Stored(form=StoredForm(_sets_tree, _read_sets))}
    )
    rules: Annotated[Sequence[ManifestRule], list_of(ManifestRule)] = field(
        default=(), metadata={"stored": Stored(form=StoredForm(to_tree, _read_rules))}
    )
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
        return to_tree(self)

    @classmethod
    def _from_tree(cls, tree: Tree, *, allow_unknown: bool) -> Self:
        reader = _ProblemReader(allow_unknown=allow_unknown)
        contents = reader.arguments(cls, tree, "")
        if not reader.problems:
            return cls(**contents)
        complete = {"sets": (), "rules": (), "preload": None} | contents
        raise _refusal([*reader.problems, *problems_of(**complete)])


def read_manifest_sets(
    _reader: TreeReader, _: object, tree: Tree, _path: str
) -> ChunkManifestsConfig | None:
    """Read stored sets; those that break the rules are left out with a warning.

    Data can be read and written without them.
    """
    try:
        return ChunkManifestsConfig.from_tree(tree)
    except InvalidInputError as reason:
        _log.warning("ignored the manifest sets of the repository: %s", reason)
        return None


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
