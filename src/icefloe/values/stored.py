"""The stored form of settings, derived from their fields.

A field is stored under its own name, in the order of the fields; a number or an alternative by its
name in snake case. `setting` declares what differs, and a `StoredForm` what fields cannot say.
Anyone who can write to a repository may have written a tree, so reading trusts nothing.
"""

import re
from collections.abc import Mapping
from dataclasses import fields
from types import NoneType
from typing import Any, Final, cast, get_args

from icefloe.errors import InvalidInputError
from icefloe.records import Record
from icefloe.values.model import (
    NamedNumber,
    Settings,
    Value,
    Variant,
    checks_of,
    hints_of,
    once_per_class,
    unchecked,
)
from icefloe.values.tree import Stored, Tagged, Tree, Unquoted, malformed

_WORD_START: Final = r"(?<=[a-z0-9])(?=[A-Z])"


class _Entry(Record):
    """A field as it is stored."""

    name: str
    key: str
    unless: object
    """The value with which the entry is left out; Ellipsis: it is always written."""
    stored: Stored


@once_per_class
def stored_entries(kind: type[Value]) -> tuple[_Entry, ...]:
    """List the stored fields of a class in stored order."""
    entries: dict[str, _Entry] = {}
    for field in fields(cast("Any", kind)):
        stored: Stored | None = field.metadata.get("stored", Stored())
        if stored is not None:
            usual_key = field.name.replace("_", "-") if kind.kebab_keys else field.name
            unless = field.default if stored.only_ours else None if kind.kebab_keys else ...
            entries[field.name] = _Entry(field.name, stored.key or usual_key, unless, stored)
    order = list(entries)
    for name, entry in entries.items():
        if entry.stored.after is not None:
            order.remove(name)
            order.insert(order.index(entry.stored.after) + 1, name)
    return tuple(entries[name] for name in order)


def to_tree(value: Any) -> Tree:
    """Lay out a value for storing."""
    match value:
        case NamedNumber():
            return stored_name(value.name)
        case Variant():
            form, name = value.stored_form, _variant_name(type(value))
            content = form.write(value) if form else to_tree(value[0]) if len(value) else None
            return name if content is None else Tagged(name, content)
        case Value():
            return {
                entry.key: to_tree(content)
                if (form := entry.stored.form) is None
                else form.write(content)
                for entry in stored_entries(type(value))
                if (content := getattr(value, entry.name)) != entry.unless
            }
        case Mapping():
            return {key: to_tree(inner) for key, inner in value.items()}
        case list() | tuple():
            return [to_tree(inner) for inner in value]
    return cast("Tree", value)


def stored_name(name: str) -> str:
    """Write the name of a number or an alternative as it is stored.

    >>> stored_name("LocalFileSystem"), stored_name("S3Compatible")
    ('local_file_system', 's3_compatible')
    """
    return re.sub(_WORD_START, "_", name).lower()


def _variant_name(kind: type[Variant]) -> str:
    return kind.__name__ if kind.is_stored_by_class_name else stored_name(kind.__name__)


@once_per_class
def _variants(union: type[Variant]) -> dict[str, type[Variant]]:
    return {_variant_name(kind): kind for kind in union.__subclasses__()}


class TreeReader:
    """Reads values from a tree; the first problem is a `FormatError`.

    A subclass may collect problems instead: all methods then go on with something harmless.
    """

    def wrong(self, path: str, problem: str) -> None:
        """Report a problem of the tree at a path."""
        raise malformed(f"{f'the key {path}' if path else 'it'} {problem}", key=path)

    def unknown(self, path: str, key: str, keys: tuple[str, ...]) -> None:
        """Pass over a key that no field has: other programs, or later releases, may know it."""

    def value[V: Value](self, kind: type[V], tree: Tree, path: str) -> V:
        """Read settings, or another value with named fields."""
        arguments = self.arguments(kind, tree, path)
        return unchecked(kind, arguments) if issubclass(kind, Settings) else kind(**arguments)

    def arguments(self, kind: type[Value], tree: Tree, path: str) -> dict[str, Any]:
        """Read and check the fields of a value; without those that are not set."""
        entries = stored_entries(kind)
        subtrees = self._subtrees(entries, tree, path)
        hints, checks = hints_of(kind), checks_of(kind)
        arguments: dict[str, Any] = {}
        for entry in entries:
            name, key, stored = entry.name, entry.key, entry.stored
            if key not in subtrees or (subtrees[key] is None and not stored.null_counts):
                continue
            subtree, inner_path = subtrees[key], f"{path}.{key}" if path else key
            if stored.form is None:
                content = self.read(hints[name], subtree, inner_path)
            else:
                content = stored.form.read(self, kind, subtree, inner_path)
            try:
                arguments[name] = checks[name](content, "it") if name in checks else content
            except InvalidInputError as reason:
                self.wrong(inner_path, _expectation(reason))
                if stored.instead is not ...:
                    arguments[name] = stored.instead
        return arguments

    def _subtrees(self, entries: tuple[_Entry, ...], tree: Tree, path: str) -> dict[str, Tree]:
        keys = tuple(entry.key for entry in entries)
        other_keys = {entry.stored.other_key: entry.key for entry in entries}
        subtrees: dict[str, Tree] = {}
        for written_key, subtree in self.entries(tree, path).items():
            key = other_keys.get(written_key, written_key)
            if key not in keys:
                self.unknown(path, written_key, keys)
            elif key in subtrees:
                self.wrong(f"{path}.{key}", f"is given twice, once as {written_key}")
            else:
                subtrees[key] = subtree
        return subtrees

    def read(self, hint: Any, tree: Tree, path: str) -> Any:
        """Read a tree as its type says; plain values are left for the check of the field."""
        kind = _plain_type(hint)
        if not isinstance(kind, type):
            return plain(tree)
        if issubclass(kind, Variant):
            return self.variant(kind, tree, path)
        if issubclass(kind, Value):
            return self.value(kind, tree, path)
        if issubclass(kind, NamedNumber):
            return self.named({stored_name(number.name): number for number in kind}, tree, path)
        return self.text(tree, path) if kind is str else plain(tree)

    def variant(self, union: type[Variant], tree: Tree, path: str) -> Any:
        """Read an alternative: `!name content`, {name: content} or name."""
        name, content = self.alternative(tree) or (self.text(tree, path), None)
        kind = self.named(_variants(union), name, path)
        if kind.stored_form is not None:
            return kind.stored_form.read(self, kind, content, path)
        contents = [
            self.read(hints_of(kind)[field.name], content, path)
            for field in fields(cast("Any", kind))
        ]
        return self.made(kind, path, *contents)

    def made(self, kind: type[Any], path: str, *contents: Any) -> Any:
        """Make a value whose constructor may refuse its contents."""
        try:
            return kind(*contents)
        except InvalidInputError as reason:
            return self.wrong(path, _expectation(reason))

    def alternative(self, tree: Tree) -> tuple[str, Tree] | None:
        """Return the name and the content of an alternative that has a content."""
        match tree:
            case Tagged(name, content):
                return name, content
            case dict() if len(tree) == 1:
                return next(iter(tree.items()))
        return None

    def named[T](self, choices: Mapping[str, T], tree: Tree, path: str) -> T:
        """Read the name of one of some choices."""
        name = self.text(tree, path)
        if name not in choices:
            self.wrong(path, f"must be one of {', '.join(choices)}, got {name!r}")
        return choices[name]

    def entries(self, tree: Tree, path: str) -> dict[str, Tree]:
        """Read a map."""
        if isinstance(tree, dict):
            return tree
        self.wrong(path, f"must be a map, got {kind_of(tree)}")
        return {}

    def items(self, tree: Tree, path: str) -> list[Tree]:
        """Read a list."""
        if isinstance(tree, list):
            return tree
        self.wrong(path, f"must be a list, got {kind_of(tree)}")
        return []

    def text(self, tree: Tree, path: str) -> str:
        """Read a text, which may look like a number."""
        if isinstance(tree, Unquoted):
            return tree.text
        if isinstance(tree, str):
            return tree
        self.wrong(path, f"must be text, got {kind_of(tree)}")
        return ""

    def text_map(self, tree: Tree, path: str) -> dict[str, str]:
        """Read a map from texts to texts."""
        return {
            key: self.text(subtree, f"{path}.{key}")
            for key, subtree in self.entries(tree, path).items()
        }


def _expectation(reason: InvalidInputError) -> str:
    """Return what a check expects, without the name that it has for the value."""
    return f"must {str(reason).partition(' must ')[2]}"


def _plain_type(hint: Any) -> Any:
    """Return the class of a field without None and without its check."""
    if hasattr(hint, "__metadata__"):
        return hint.__origin__
    options = [part for part in get_args(hint) if part is not NoneType]
    return _plain_type(options[0]) if NoneType in get_args(hint) and len(options) == 1 else hint


def plain(tree: Tree) -> Any:
    """Return numbers and truth values as such, also within lists."""
    if isinstance(tree, Unquoted):
        return tree.value
    return [plain(subtree) for subtree in tree] if isinstance(tree, list) else tree


def kind_of(tree: Tree) -> str:
    """Name the kind of a tree, for messages."""
    match tree:
        case Tagged():
            return "a tag"
        case Unquoted(_, value):
            return type(value).__name__
        case dict():
            return f"a map of {len(tree)}"
    return type(tree).__name__
