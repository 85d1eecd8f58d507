"""Manifest sets and the rules that assign arrays to them, as values and as YAML."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, fields
from importlib import import_module
from typing import Annotated, Any, Final, cast

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.forks import importing
from icefloe.records import MutableRecord, field
from icefloe.values import U32, NonZeroU64, Value, integer, value_class
from icefloe.values.model import public_name
from icefloe.values.tree import Tagged, Tree, Unquoted

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

    name: str
    _: KW_ONLY
    max_manifest_size: NonZeroU64 | None = None
    arrays_per_manifest: NonZeroU64 | None = None
    overflow_to: str | None = None
    cardinality: Annotated[int, _cardinality] | None = _UNSAID

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

    target: str
    _: KW_ONLY
    path: str | None = None
    metadata_chunks: Annotated[ChunkRange, _range] | None = None
    initialized_chunks: Annotated[ChunkRange, _range] | None = None

    def __repr__(self) -> str:
        return _one_line(self, self.target)


def _patterns(value: Any, name: str) -> tuple[str, ...]:
    return _tuple_of(str, value, name)


@value_class
class ManifestSetPreload(Value):
    """Whose manifests to fetch ahead when a session opens: of arrays with a matching path.

    At most `max_manifests` are fetched, and none with more than `max_manifest_size` references.

    >>> ManifestSetPreload([".*/time", ".*/latitude"], max_manifests=2).arrays
    ('.*/time', '.*/latitude')
    """

    arrays: Annotated[Sequence[str], _patterns] = ()
    _: KW_ONLY
    max_manifest_size: U32 = 50_000
    max_manifests: U32 = 1


def _tuple_of(kind: type[Any], value: Any, name: str) -> tuple[Any, ...]:
    if (
        isinstance(value, str)
        or not isinstance(value, Sequence)
        or not all(isinstance(element, kind) for element in value)
    ):
        raise InvalidInputError(
            f"{name} must be a list of {kind.__name__}", ErrorKind.INVALID_CONFIG
        )
    return tuple(value)


def some_sets(value: Any, name: str) -> tuple[ManifestSet, ...]:
    """Check a list of sets."""
    return _tuple_of(ManifestSet, value, name)


def some_rules(value: Any, name: str) -> tuple[ManifestRule, ...]:
    """Check a list of rules."""
    return _tuple_of(ManifestRule, value, name)


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


_SET_KEYS: Final = ("max-manifest-size", "arrays-per-manifest", "overflow-to", "cardinality")
_OTHER_NAMES: Final = {"max-arrays-per-manifest": "arrays-per-manifest"}
_RULE_KEYS: Final = ("path", "metadata-chunks", "initialized-chunks", "target")
_PRELOAD_KEYS: Final = ("max-manifest-size", "max-manifests", "arrays")
_LIMITS: Final = {"max_manifest_size", "arrays_per_manifest", "cardinality"}
_TOP_KEYS: Final = ("sets", "rules", "preload")


def to_tree(
    sets: Sequence[ManifestSet], rules: Sequence[ManifestRule], preload: ManifestSetPreload | None
) -> Tree:
    """Lay out a configuration; what is not set is left out."""
    tree: dict[str, Tree] = {
        "sets": [{manifest_set.name: _set_tree(manifest_set)} for manifest_set in sets],
        "rules": [_rule_tree(rule) for rule in rules],
    }
    if preload is not None:
        tree["preload"] = {
            "max-manifest-size": preload.max_manifest_size,
            "max-manifests": preload.max_manifests,
            "arrays": [{"path": array} for array in preload.arrays],
        }
    return tree


def _set_tree(manifest_set: ManifestSet) -> Tree:
    tree = _present(manifest_set, ("max-manifest-size", "arrays-per-manifest", "overflow-to"))
    if manifest_set.name != DEFAULT_SET:
        tree["cardinality"] = manifest_set.cardinality  # here null says something
    return tree


def _rule_tree(rule: ManifestRule) -> Tree:
    tree = _present(rule, _RULE_KEYS)
    return {key: list(value) if isinstance(value, tuple) else value for key, value in tree.items()}


def _present(value: object, keys: Sequence[str]) -> dict[str, Any]:
    contents = {key: getattr(value, key.replace("-", "_")) for key in keys}
    return {key: content for key, content in contents.items() if content is not None}


class Reading(MutableRecord):
    """What was read, and what was wrong with it.

    What was wrong is replaced by something harmless, so that the rest can be looked at too.
    """

    sets: list[ManifestSet] = field(default_factory=list)
    rules: list[ManifestRule] = field(default_factory=list)
    preload: ManifestSetPreload | None = None
    problems: list[str] = field(default_factory=list)


def read_tree(tree: Tree, *, allow_unknown: bool) -> Reading:
    """Read a configuration; keys that nobody knows are ignored, or a problem."""
    reader = _Reader(allow_unknown=allow_unknown)
    reader.read(tree)
    return reader.result


class _Reader:
    def __init__(self, *, allow_unknown: bool) -> None:
        self._allow_unknown = allow_unknown
        self.result = Reading()

    def read(self, tree: Tree) -> None:
        top = self._entries(tree, "chunk-manifests", _TOP_KEYS)
        for position, subtree in enumerate(self._items(top.get("sets"), "sets")):
            self._read_set(subtree, f"sets[{position}]")
        for position, subtree in enumerate(self._items(top.get("rules"), "rules")):
            self._read_rule(subtree, f"rules[{position}]")
        if top.get("preload") is not None:
            self._read_preload(top["preload"])

    def _read_set(self, tree: Tree, path: str) -> None:
        if not isinstance(tree, dict) or len(tree) != 1:
            self._wrong(path, "a map of one entry, from the name of the set to its settings", tree)
            return
        ((name, content),) = tree.items()
        entries = self._entries(
            {} if content is None else content, f"{path}.{name}", _SET_KEYS, _OTHER_NAMES
        )
        self.result.sets.append(self._made(ManifestSet, f"{path}.{name}", entries, name=name))

    def _read_rule(self, tree: Tree, path: str) -> None:
        entries = self._entries(tree, path, _RULE_KEYS)
        if "target" not in entries and isinstance(tree, dict):
            self.result.problems.append(f"{path} has no target")
        with_defaults = {"target": DEFAULT_SET, **entries}
        self.result.rules.append(self._made(ManifestRule, path, with_defaults))

    def _read_preload(self, tree: Tree) -> None:
        entries = dict(self._entries(tree, "preload", _PRELOAD_KEYS))
        paths = []
        for position, content in enumerate(
            self._items(entries.pop("arrays", None), "preload.arrays")
        ):
            where = f"preload.arrays[{position}]"
            entry = self._entries(content, where, ("path",))
            path = _plain(entry.get("path"), as_text=True)
            if not isinstance(path, str) and isinstance(content, dict):
                self._wrong(f"{where}.path", "text", path)
            paths.append(path if isinstance(path, str) else "")
        entries = {key: content for key, content in entries.items() if content is not None}
        self.result.preload = self._made(ManifestSetPreload, "preload", entries, arrays=paths)

    def _made[T](
        self, kind: Callable[..., T], path: str, entries: Mapping[str, Tree], **others: object
    ) -> T:
        """Make a value; if that fails, find out which of its keys are wrong."""
        arguments: dict[str, Any] = {
            key.replace("-", "_"): _plain(subtree, as_text=key in {"path", "target", "overflow-to"})
            for key, subtree in entries.items()
        }
        try:
            return kind(**arguments, **others)
        except InvalidInputError:
            pass
        harmless = {**others, **({"target": DEFAULT_SET} if "target" in arguments else {})}
        for key, value in arguments.items():
            try:
                kind(**{**harmless, key: value})
                harmless[key] = value
            except InvalidInputError as reason:
                expected = str(reason).partition(" must ")[2]
                self.result.problems.append(f"{path}.{key.replace('_', '-')} must {expected}")
                if key in _LIMITS:
                    harmless[key] = 1
        return kind(**harmless)

    def _entries(
        self,
        tree: Tree,
        path: str,
        keys: Sequence[str],
        other_names: Mapping[str, str] | None = None,
    ) -> dict[str, Tree]:
        if not isinstance(tree, dict):
            self._wrong(path, "a map", tree)
            return {}
        entries: dict[str, Tree] = {}
        for written_key, subtree in tree.items():
            key = (other_names or {}).get(written_key, written_key)
            if key not in keys:
                if not self._allow_unknown:
                    choices = ", ".join(keys)
                    self.result.problems.append(
                        f"{path}.{written_key} is unknown; there are {choices}"
                    )
            elif key in entries:
                self.result.problems.append(f"{path}.{key} is given twice, once as {written_key}")
            else:
                entries[key] = subtree
        return entries

    def _items(self, tree: Tree, path: str) -> list[Tree]:
        if tree is None:
            return []
        if not isinstance(tree, list):
            self._wrong(path, "a list", tree)
            return []
        return tree

    def _wrong(self, path: str, expected: str, tree: Tree) -> None:
        kind = "a tag" if isinstance(tree, Tagged) else type(_plain(tree)).__name__
        actual = f"a map of {len(tree)}" if isinstance(tree, dict) else kind
        self.result.problems.append(f"{path} must be {expected}, got {actual}")


def _plain(tree: Tree, *, as_text: bool = False) -> Any:
    """Take numbers for what they are, but for places where only text can be meant."""
    if isinstance(tree, Unquoted):
        return tree.text if as_text else tree.value
    if isinstance(tree, list):
        return [_plain(subtree) for subtree in tree]
    return tree
