"""Manifest sets and rules as a tree of plain values, with keys as they are written in YAML.

Reading collects what is wrong instead of stopping at it, so that it can be mended in one go.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from icefloe.config.manifest_sets import (
    DEFAULT_SET,
    ManifestRule,
    ManifestSet,
    ManifestSetPreload,
)
from icefloe.errors import InvalidInputError
from icefloe.values.yaml_tree import Tagged, Tree, Unquoted

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
        "sets": [{each.name: _set_tree(each)} for each in sets],
        "rules": [_rule_tree(each) for each in rules],
    }
    if preload is not None:
        tree["preload"] = {
            "max-manifest-size": preload.max_manifest_size,
            "max-manifests": preload.max_manifests,
            "arrays": [{"path": each} for each in preload.arrays],
        }
    return tree


def _set_tree(each: ManifestSet) -> Tree:
    tree = _present(each, ("max-manifest-size", "arrays-per-manifest", "overflow-to"))
    if each.name != DEFAULT_SET:
        tree["cardinality"] = each.cardinality  # here null says something
    return tree


def _rule_tree(rule: ManifestRule) -> Tree:
    tree = _present(rule, _RULE_KEYS)
    return {key: list(value) if isinstance(value, tuple) else value for key, value in tree.items()}


def _present(value: object, keys: Sequence[str]) -> dict[str, Any]:
    given = {key: getattr(value, key.replace("-", "_")) for key in keys}
    return {key: each for key, each in given.items() if each is not None}


@dataclass(slots=True)
class Reading:
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
        for position, each in enumerate(self._items(top.get("sets"), "sets")):
            self._read_set(each, f"sets[{position}]")
        for position, each in enumerate(self._items(top.get("rules"), "rules")):
            self._read_rule(each, f"rules[{position}]")
        if top.get("preload") is not None:
            self._read_preload(top["preload"])

    def _read_set(self, tree: Tree, place: str) -> None:
        if not isinstance(tree, dict) or len(tree) != 1:
            self._wrong(place, "a map of one entry, from the name of the set to its settings", tree)
            return
        ((name, content),) = tree.items()
        entries = self._entries(
            {} if content is None else content, f"{place}.{name}", _SET_KEYS, _OTHER_NAMES
        )
        self.result.sets.append(self._made(ManifestSet, f"{place}.{name}", entries, name=name))

    def _read_rule(self, tree: Tree, place: str) -> None:
        entries = self._entries(tree, place, _RULE_KEYS)
        if "target" not in entries and isinstance(tree, dict):
            self.result.problems.append(f"{place} has no target")
        given = {"target": DEFAULT_SET, **entries}
        self.result.rules.append(self._made(ManifestRule, place, given))

    def _read_preload(self, tree: Tree) -> None:
        entries = dict(self._entries(tree, "preload", _PRELOAD_KEYS))
        paths = []
        for position, each in enumerate(self._items(entries.pop("arrays", None), "preload.arrays")):
            place = f"preload.arrays[{position}]"
            entry = self._entries(each, place, ("path",))
            path = _plain(entry.get("path"), as_text=True)
            if not isinstance(path, str) and isinstance(each, dict):
                self._wrong(f"{place}.path", "text", path)
            paths.append(path if isinstance(path, str) else "")
        entries = {key: each for key, each in entries.items() if each is not None}
        self.result.preload = self._made(ManifestSetPreload, "preload", entries, arrays=paths)

    def _made[T](
        self, kind: Callable[..., T], place: str, entries: Mapping[str, Tree], **others: object
    ) -> T:
        """Make a value; if that fails, find out which of its keys are wrong."""
        given: dict[str, Any] = {
            key.replace("-", "_"): _plain(each, as_text=key in {"path", "target", "overflow-to"})
            for key, each in entries.items()
        }
        try:
            return kind(**given, **others)
        except InvalidInputError:
            pass
        harmless = {**others, **({"target": DEFAULT_SET} if "target" in given else {})}
        for key, value in given.items():
            try:
                kind(**{**harmless, key: value})
                harmless[key] = value
            except InvalidInputError as reason:
                wanted = str(reason).partition(" must ")[2]
                self.result.problems.append(f"{place}.{key.replace('_', '-')} must {wanted}")
                if key in _LIMITS:
                    harmless[key] = 1
        return kind(**harmless)

    def _entries(
        self,
        tree: Tree,
        place: str,
        keys: Sequence[str],
        other_names: Mapping[str, str] | None = None,
    ) -> dict[str, Tree]:
        if not isinstance(tree, dict):
            self._wrong(place, "a map", tree)
            return {}
        entries: dict[str, Tree] = {}
        for given, each in tree.items():
            key = (other_names or {}).get(given, given)
            if key not in keys:
                if not self._allow_unknown:
                    choices = ", ".join(keys)
                    self.result.problems.append(f"{place}.{given} is unknown; there are {choices}")
            elif key in entries:
                self.result.problems.append(f"{place}.{key} is given twice, once as {given}")
            else:
                entries[key] = each
        return entries

    def _items(self, tree: Tree, place: str) -> list[Tree]:
        if tree is None:
            return []
        if not isinstance(tree, list):
            self._wrong(place, "a list", tree)
            return []
        return tree

    def _wrong(self, place: str, wanted: str, tree: Tree) -> None:
        kind = "a tag" if isinstance(tree, Tagged) else type(_plain(tree)).__name__
        given = f"a map of {len(tree)}" if isinstance(tree, dict) else kind
        self.result.problems.append(f"{place} must be {wanted}, got {given}")


def _plain(tree: Tree, *, as_text: bool = False) -> Any:
    """Take numbers for what they are, but for places where only text can be meant."""
    if isinstance(tree, Unquoted):
        return tree.text if as_text else tree.value
    if isinstance(tree, list):
        return [_plain(each) for each in tree]
    return tree
