"""Values that users make, print and compare: settings and credentials.

A value is a dataclass. This module gives it, from its fields alone:

- checks on construction and, for settings, on assignment (from the annotations);
- a `repr` that evaluates back to an equal value, unless it holds a secret;
- a `str` for people, which also shows what applies where nothing was set;
- `_repr_html_` for notebooks.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields
from datetime import datetime
from enum import Enum, IntEnum
from functools import cache
from inspect import Parameter, Signature
from textwrap import indent
from typing import (
    Any,
    ClassVar,
    Final,
    Self,
    cast,
    dataclass_transform,
    get_type_hints,
)

from icefloe.printable import escaped_html, printable
from icefloe.records import Record
from icefloe.values.checks import Check, check_for
from icefloe.values.tree import Stored, StoredForm

MASK: Final = "***"
_HIDDEN_NAMES: Final = (
    r"(?i)auth(?!ors?(?![a-z]))|token|secret|password|key|credential|sas|signature|cookie"
)

_PACKAGES_EXPORTED_AT_THE_TOP: Final = frozenset(
    {
        "",
        "api",
        "maintenance",
        "manifests",
        "repo",
        "transactions",
        "virtual_chunks",
        "walk",
        "zarr_store",
    }
)


def setting(
    effective: object = None, *, replaced_whole: bool = False, stored: Stored | None = None
) -> Any:
    """Declare a field that may stay unset (None).

    `effective` is the value that applies then; a class stands for its own effective values.
    A nested value is merged field by field unless it is `replaced_whole`.
    """
    metadata = {"effective": effective, "replaced_whole": replaced_whole}
    if stored is not None:
        metadata["stored"] = stored
    return field(default=None, metadata=metadata)


def secret(*, shown: int = 0, optional: bool = False) -> Any:
    """Declare a field that is never printed, except for its first `shown` characters."""
    metadata = {"secret": True, "shown": shown}
    return field(default=None, metadata=metadata) if optional else field(metadata=metadata)


def once_per_class[T](function: Callable[[type], T]) -> Callable[[type], T]:
    """Keep what a function finds out about a class; a plain `cache` would hide its signature."""
    return cache(function)


class NamedNumber(IntEnum):
    """Base of numbered alternatives, printed by name."""

    def __repr__(self) -> str:
        return f"{public_name(type(self))}.{self.name}"

    def __str__(self) -> str:
        return f"{type(self).__name__}.{self.name}"


class _ConstructorSignature:
    """The parameters of a value class, for `inspect.signature`."""

    def __get__(self, _value: object, kind: type) -> Signature | None:
        return signature_of(kind) if "__dataclass_fields__" in kind.__dict__ else None


class Value:
    """Base of printable values, frozen and compared by their fields; see `value_class`."""

    __signature__ = _ConstructorSignature()
    _positional: ClassVar[bool] = False
    _made_by: ClassVar[str | None] = None
    """The function of the union that makes this variant, where `repr` should show that."""
    stored_form: ClassVar[StoredForm | None] = None
    """How it is stored, where its fields do not say it."""
    kebab_keys: ClassVar[bool] = False
    """Whether it is stored with keys such as `max-size`, and without those that are not set."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        # A dataclass would write a `repr` that shows secrets, but spares one that it finds.
        if "__repr__" not in cls.__dict__:
            cls.__repr__ = Value.__repr__  # type: ignore[method-assign]

    def __init__(self, *values: object, **named_values: object) -> None:
        try:
            arguments = signature_of(type(self)).bind(*values, **named_values).arguments
        except TypeError as error:
            raise TypeError(f"{public_name(type(self))}: {error}") from None
        for field_ in fields(cast("Any", self)):
            if field_.name in arguments:
                content = arguments[field_.name]
            elif field_.default_factory is not MISSING:
                content = field_.default_factory()
            else:
                content = field_.default
            setattr(self, field_.name, content)
        self.__post_init__()

    def __setattr__(self, name: str, value: object) -> None:
        if name in self.__dict__:
            raise FrozenInstanceError(f"cannot assign to field {name!r}")
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        raise FrozenInstanceError(f"cannot delete field {name!r}")

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and all(
            getattr(self, name) == getattr(other, name) for name in _compared(type(self))
        )

    def __hash__(self) -> int:
        return hash((type(self), *(getattr(self, name) for name in _compared(type(self)))))

    def __post_init__(self) -> None:
        for name, check in checks_of(type(self)).items():
            checked = check(getattr(self, name), f"{public_name(type(self))}.{name}")
            object.__setattr__(self, name, checked)

    def __repr__(self) -> str:
        name = public_name(type(self))
        if self._made_by is not None:
            name = f"{name.rpartition('.')[0]}.{self._made_by}"
        shown = [(field_.name, _source(self, field_)) for field_ in _fields(self)]
        if self._positional:
            return f"{name}({', '.join(source for _, source in shown)})"
        if not shown:
            return f"{name}()"
        lines = indent("".join(f"{key}={source},\n" for key, source in shown), "    ")
        return f"{name}(\n{lines})"

    def __str__(self) -> str:
        return printable("\n".join(_text(self, defaults_of(type(self)))), keep="\n")

    def _repr_html_(self) -> str:
        text = "\n".join(_html(self, defaults_of(type(self))))
        return _HTML_STYLE + printable(text, keep="\n")


class Settings(Value):
    """Base of settings, which are checked at every assignment; see `settings_class`."""

    __hash__ = None  # type: ignore[assignment]  # they change

    def __post_init__(self) -> None:
        """Leave the checks to the assignments that the constructor makes."""

    def __setattr__(self, name: str, value: object) -> None:
        if name not in _field_defaults(type(self)):
            raise AttributeError(f"{public_name(type(self))} has no setting {name!r}")
        check = checks_of(type(self)).get(name)
        if check is not None:
            value = check(value, f"{public_name(type(self))}.{name}")
        object.__setattr__(self, name, value)


class Variant(Value):
    """Base of the alternatives of a union that is written `Union.Alternative(...)`.

    The values of a variant without field names of its own can be had by position too.
    """

    _positional = True
    is_stored_by_class_name: ClassVar[bool] = False
    """Whether `Alternative` is stored under that name, and not as `alternative`."""

    def __new__(cls, *_: object, **__: object) -> Self:
        """Refuse to make the union itself."""
        if "__dataclass_fields__" not in cls.__dict__:
            names = [name for name, kind in vars(cls).items() if isinstance(kind, type)]
            choices = ", ".join(f"{cls.__name__}.{name}" for name in names)
            raise TypeError(f"{cls.__name__} has no values of its own: make one of {choices}")
        return super().__new__(cls)

    def __len__(self) -> int:
        return len(_fields(self))

    def __iter__(self) -> Iterator[Any]:
        return (getattr(self, field_.name) for field_ in _fields(self))

    def __getitem__(self, position: int) -> Any:
        return tuple(self)[position]

    def __bool__(self) -> bool:
        # Without fields the length is 0, which must not read as "absent".
        return True

    @property
    def _0(self) -> Any:
        return self[0]

    @property
    def _1(self) -> Any:
        return self[1]


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def variant_of[V: Variant](union: type, name: str) -> Callable[[type[V]], type[V]]:
    """Make a class a value class, and bind it to the attribute of the union that names it."""

    def bind(variant: type[V]) -> type[V]:
        variant.__name__ = name
        variant.__qualname__ = f"{union.__qualname__}.{name}"
        setattr(union, name, variant)
        return value_class(variant)

    return bind


def union_of(variant: type[Variant]) -> type[Variant]:
    """Return the union that a variant belongs to."""
    return cast("type[Variant]", variant.__bases__[0])


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value_class[V: Value](kind: type[V]) -> type[V]:
    """Make a subclass of `Value` a dataclass.

    Its methods, the constructor included, are written once, in `Value`: `dataclass` would compile
    them for each class, which takes most of the time that their modules need to load.
    """
    return dataclass(init=False, eq=False, repr=False)(kind)


@dataclass_transform(field_specifiers=(field,))
def settings_class[S: Settings](kind: type[S]) -> type[S]:
    """Make a subclass of `Settings` a dataclass, as `value_class` does."""
    return dataclass(init=False, eq=False, repr=False)(kind)


@once_per_class
def signature_of(kind: type) -> Signature:
    """Return the parameters of the constructor of a value class: its fields, in their order."""
    hints = hints_of(kind)
    parameters = [
        Parameter(
            field_.name,
            Parameter.KEYWORD_ONLY if field_.kw_only else Parameter.POSITIONAL_OR_KEYWORD,
            default=Parameter.empty if field_.default is MISSING else field_.default,
            annotation=hints[field_.name],
        )
        for field_ in fields(cast("Any", kind))
        if field_.init
    ]
    # Parameters that are given by name only stand behind the others.
    return Signature(sorted(parameters, key=lambda parameter: parameter.kind))


@once_per_class
def public_name(kind: type) -> str:
    """Name a class as users import it: `icefloe.config.CachingConfig`, `icefloe.SnapshotInfo`."""
    package, _, below = kind.__module__.partition(".")
    inner = below.partition(".")[0]
    modules = [package] if inner in _PACKAGES_EXPORTED_AT_THE_TOP else [package, inner]
    return ".".join([*modules, kind.__qualname__])


def defaults_of[V: Value](kind: type[V]) -> V | None:
    """Make the value that applies where nothing is set; None if some fields are mandatory."""
    if not issubclass(kind, Settings):
        return None
    return cast("V", _copied(_defaults_once(kind)))


def shared_defaults[S: Settings](kind: type[S]) -> S:
    """Return the defaults of settings as an object that everybody shares: for reading only."""
    return cast("S", _defaults_once(kind))


@once_per_class
def _compared(kind: type) -> tuple[str, ...]:
    return tuple(field_.name for field_ in fields(cast("Any", kind)) if field_.compare)


@once_per_class
def _defaults_once(kind: type) -> Any:
    effective = {
        field_.name: field_.metadata["effective"]
        for field_ in fields(cast("Any", kind))
        if "effective" in field_.metadata
    }
    return kind(
        **{
            name: _defaults_once(value) if isinstance(value, type) else value
            for name, value in effective.items()
        }
    )


def merged[S: Settings](base: S, over: S) -> S:
    """Combine two settings: where `over` has a value it wins; the result shares no part."""
    return cast("S", _copied(overlaid(base, over)))


def overlaid[S: Settings](base: S, over: S) -> S:
    """Combine two settings as `merged` does; the result shares parts of both: for reading only.

    Both were checked when they were made, so the result needs no checking.
    """
    chosen: dict[str, Any] = {}
    for field_ in _fields(base):
        above = getattr(over, field_.name)
        if above is None:
            continue
        below = getattr(base, field_.name)
        if (
            isinstance(below, Settings)
            and isinstance(above, Settings)
            and not field_.metadata.get("replaced_whole")
        ):
            above = overlaid(below, above)
        if above is not below:
            chosen[field_.name] = above
    return unchecked(type(base), vars(base) | chosen) if chosen else base


def unchecked[V: Value](kind: type[V], contents: Mapping[str, Any]) -> V:
    """Make a value of contents that are not checked again; other fields have their defaults."""
    value = object.__new__(kind)
    vars(value).update(_field_defaults(kind))
    vars(value).update(contents)
    return value


def _copied(value: Any) -> Any:
    if isinstance(value, Settings):
        contents = {name: _copied(content) for name, content in vars(value).items()}
        return unchecked(type(value), contents)
    if isinstance(value, dict):
        return {key: _copied(inner) for key, inner in value.items()}
    return value


@once_per_class
def _field_defaults(kind: type) -> dict[str, Any]:
    return {field_.name: field_.default for field_ in fields(cast("Any", kind))}


def _fields(value: Value) -> tuple[Field[Any], ...]:
    return _fields_once(type(value))


@once_per_class
def _fields_once(kind: type) -> tuple[Field[Any], ...]:
    return tuple(field_ for field_ in fields(cast("Any", kind)) if field_.init and field_.repr)


@once_per_class
def hints_of(kind: type) -> dict[str, Any]:
    """Return the annotations of a class, with the checks in them."""
    return get_type_hints(kind, include_extras=True)


@once_per_class
def checks_of(kind: type) -> dict[str, Check]:
    """Return the checks of the fields that the constructor takes."""
    hints = hints_of(kind)
    return {
        field_.name: check_for(hints[field_.name])
        for field_ in fields(cast("Any", kind))
        if field_.init
    }


def _source(value: Value, field_: Field[Any]) -> str:
    """Write a field as source code."""
    content = getattr(value, field_.name)
    if field_.metadata.get("secret") and content is not None:
        return repr(_masked(content, field_))
    return source_of(content)


def source_of(content: object) -> str:
    """Write a value as source code that evaluates back to it; secret options are masked."""
    if isinstance(content, Enum):
        return f"{public_name(type(content))}.{content.name}"
    if isinstance(content, Mapping):
        if not content:
            return "{}"
        entries = (
            f"{key!r}: {source_of(value)},\n" for key, value in _without_secrets(content).items()
        )
        return "{\n" + indent("".join(entries), "    ") + "}"
    if isinstance(content, list):
        return f"[{', '.join(source_of(element) for element in content)}]"
    if isinstance(content, tuple):
        inner = ", ".join(source_of(element) for element in content)
        return f"({inner},)" if len(content) == 1 else f"({inner})"
    if isinstance(content, datetime):
        return f"datetime.datetime.fromisoformat({content.isoformat()!r})"
    return repr(content)


def _masked(content: object, field_: Field[Any]) -> str:
    shown = field_.metadata["shown"]
    # A short value would be shown whole.
    return (
        f"{content[:shown]}{MASK}"
        if isinstance(content, str) and len(content) > 2 * shown
        else MASK
    )


def _without_secrets(options: Mapping[Any, Any]) -> dict[Any, Any]:
    return {
        key: MASK if isinstance(value, str) and re.search(_HIDDEN_NAMES, str(key)) else value
        for key, value in options.items()
    }


class _Nested(Record):
    """A value within another: its key in a mapping, and the defaults that apply in it."""

    key: str
    value: Value
    defaults: Value | None
    is_default: bool


def _rows(
    value: Value, defaults: Value | None, *, is_default: bool
) -> Iterator[tuple[str, str, list[_Nested]]]:
    """Yield the name of each field with its text, or with the values that are nested in it."""
    if isinstance(value, Variant) and len(value) == 1 and isinstance(value[0], Settings):
        value = value[0]
    for field_ in _fields(value):
        content, default = getattr(value, field_.name), getattr(defaults, field_.name, None)
        if field_.metadata.get("secret") and content is not None:
            yield field_.name, _masked(content, field_), []
            continue
        is_unset = content is None
        content = default if is_unset else content
        row_is_default = content is not None and (is_unset or is_default)
        nested = []
        if isinstance(content, Value) and not _is_short(content):
            below = default if isinstance(default, Value) else defaults_of(type(content))
            nested = [_Nested("", content, below, row_is_default)]
        elif isinstance(content, Mapping):
            nested = [
                _Nested(key, inner, defaults_of(type(inner)), row_is_default)
                for key, inner in content.items()
                if isinstance(inner, Value)
            ]
        text = "" if nested else _short(content) + (" (default)" if row_is_default else "")
        yield field_.name, text, nested


def _text(value: Value, defaults: Value | None, *, is_default: bool = False) -> Iterator[str]:
    yield f"<{public_name(type(value))}>"
    for name, text, nested in _rows(value, defaults, is_default=is_default):
        yield f"{name}: {text}" if not nested else f"{name}:"
        for inner in nested:
            lines = _text(inner.value, inner.defaults, is_default=inner.is_default)
            if inner.key:
                yield f"    {inner.key}:"
            yield from (f"{'        ' if inner.key else '    '}{line}" for line in lines)


def _is_short(value: Value) -> bool:
    return isinstance(value, Variant) and not any(
        isinstance(element, Settings) for element in value
    )


def _short(value: object) -> str:
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        return repr(_without_secrets(value))
    return source_of(value)


def _html(value: Value, defaults: Value | None, *, is_default: bool = False) -> Iterator[str]:
    yield '<div class="icefloe-value">'
    yield f'<div class="icefloe-name">{escaped_html(public_name(type(value)))}</div>'
    for name, text, nested in _rows(value, defaults, is_default=is_default):
        if not nested:
            yield f"<div><span>{escaped_html(name)}:</span> {escaped_html(text)}</div>"
            continue
        yield f"<details><summary>{escaped_html(name)}</summary>"
        for inner in nested:
            yield from _html(inner.value, inner.defaults, is_default=inner.is_default)
        yield "</details>"
    yield "</div>"


_HTML_STYLE: Final = """<style>
.icefloe-value { line-height: 1.6; max-width: 700px; }
.icefloe-value .icefloe-name { font-weight: 600; border-bottom: 1px solid #8884; }
.icefloe-value span, .icefloe-value summary { opacity: 0.7; }
.icefloe-value .icefloe-value { margin-left: 12px; padding: 4px 10px; background: #8881; }
</style>
"""


type Progress = Callable[[int, int], None]
"""Hears how many steps of how many are done; more may turn up on the way."""
