"""Conditions that choose arrays, and dimensions of arrays, in the manifest settings."""

# Aliases inside a class must be `TypeAlias`: a `type` statement makes no callable class.
# ruff: noqa: UP040

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final, TypeAlias, cast

from icefloe.values import U32, U64, Variant, list_of, union_of, variant_of
from icefloe.values.stored import TreeReader, kind_of, plain, to_tree
from icefloe.values.tree import StoredForm, Tagged, Tree


class _ArrayCondition[C](Variant):
    """The common base of conditions on arrays; `C` is their union."""

    __slots__ = ()

    def __and__(self, other: object) -> C:
        return self._with(other, self.and_conditions)

    def __or__(self, other: object) -> C:
        return self._with(other, self.or_conditions)

    def _with(self, other: object, combine: Callable[[Sequence[Any]], C]) -> C:
        return combine((self, other)) if isinstance(other, union_of(type(self))) else NotImplemented

    @classmethod
    def or_conditions(cls, conditions: Sequence[C]) -> C:
        """Match where any of the conditions matches."""
        return cls._make("Or", tuple(conditions))

    @classmethod
    def and_conditions(cls, conditions: Sequence[C]) -> C:
        """Match where all of the conditions match."""
        return cls._make("And", tuple(conditions))

    @classmethod
    def path_matches(cls, regex: str) -> C:
        """Match arrays whose path contains the pattern."""
        return cls._make("PathMatches", regex)

    @classmethod
    def name_matches(cls, regex: str) -> C:
        """Match arrays whose name contains the pattern."""
        return cls._make("NameMatches", regex)

    @classmethod
    def _make(cls, name: str, *contents: Any) -> C:
        return cast("C", getattr(cls, name)(*contents))


_COMBINATION: Final = StoredForm(
    lambda condition: [to_tree(inner) for inner in condition.conditions],
    lambda reader, kind, tree, path: kind(
        [reader.variant(union_of(kind), inner, path) for inner in reader.items(tree, path)]
    ),
)
_PATTERN: Final = StoredForm(
    lambda condition: {"regex": condition.regex},
    lambda reader, kind, tree, path: kind(
        reader.text(reader.entries(tree, path).get("regex"), f"{path}.regex")
    ),
)


class ManifestSplitCondition(_ArrayCondition["ManifestSplitCondition"]):
    """A condition that selects arrays for a splitting rule; `&` and `|` combine conditions.

    >>> ManifestSplitCondition.name_matches("^temp")
    icefloe.config.ManifestSplitCondition.name_matches('^temp')
    """

    __slots__ = ()
    Or: TypeAlias = "SplitOr"
    And: TypeAlias = "SplitAnd"
    PathMatches: TypeAlias = "SplitPathMatches"
    NameMatches: TypeAlias = "SplitNameMatches"
    AnyArray: TypeAlias = "SplitAnyArray"


type _SplitConditions = tuple[ManifestSplitCondition, ...]


@variant_of(ManifestSplitCondition, "Or")
class SplitOr(ManifestSplitCondition):
    """Any of these holds."""

    _made_by = "or_conditions"
    stored_form = _COMBINATION
    conditions: Annotated[_SplitConditions, list_of(ManifestSplitCondition)]


@variant_of(ManifestSplitCondition, "And")
class SplitAnd(ManifestSplitCondition):
    """All of these hold."""

    _made_by = "and_conditions"
    stored_form = _COMBINATION
    conditions: Annotated[_SplitConditions, list_of(ManifestSplitCondition)]


@variant_of(ManifestSplitCondition, "PathMatches")
class SplitPathMatches(ManifestSplitCondition):
    """The pattern is found in the path."""

    _made_by = "path_matches"
    stored_form = _PATTERN
    regex: str


@variant_of(ManifestSplitCondition, "NameMatches")
class SplitNameMatches(ManifestSplitCondition):
    """The pattern is found in the name."""

    _made_by = "name_matches"
    stored_form = _PATTERN
    regex: str


@variant_of(ManifestSplitCondition, "AnyArray")
class SplitAnyArray(ManifestSplitCondition):
    """Every array."""


class ManifestSplitDimCondition(Variant):
    """A condition that selects dimensions for a split size: one of the variants below."""

    __slots__ = ()
    is_stored_by_class_name = True
    Axis: TypeAlias = "SplitAxis"
    DimensionName: TypeAlias = "SplitDimensionName"
    Any: TypeAlias = "SplitAnyDimension"


@variant_of(ManifestSplitDimCondition, "Axis")
class SplitAxis(ManifestSplitDimCondition):
    """The dimension with this number, from 0."""

    axis: U64


@variant_of(ManifestSplitDimCondition, "DimensionName")
class SplitDimensionName(ManifestSplitDimCondition):
    """Dimensions with a match of the pattern anywhere in their name."""

    regex: str


@variant_of(ManifestSplitDimCondition, "Any")
class SplitAnyDimension(ManifestSplitDimCondition):
    """Every dimension that no earlier rule is for."""


class ManifestPreloadCondition(_ArrayCondition["ManifestPreloadCondition"]):
    """Whose manifests to fetch ahead when a session opens; `&` and `|` combine conditions.

    >>> ManifestPreloadCondition.num_refs(None, 1000)
    icefloe.config.ManifestPreloadCondition.num_refs(None, 1000)
    """

    __slots__ = ()
    Or: TypeAlias = "PreloadOr"
    And: TypeAlias = "PreloadAnd"
    PathMatches: TypeAlias = "PreloadPathMatches"
    NameMatches: TypeAlias = "PreloadNameMatches"
    NumRefs: TypeAlias = "PreloadNumRefs"

    @staticmethod
    def num_refs(from_refs: int | None, to_refs: int | None) -> "ManifestPreloadCondition":
        """Match manifests of at least `from_refs` and fewer than `to_refs` references."""
        return PreloadNumRefs(from_refs, to_refs)

    @staticmethod
    def true() -> "ManifestPreloadCondition":
        """Match everything."""
        return PreloadTrue()

    @staticmethod
    def false() -> "ManifestPreloadCondition":
        """Match nothing."""
        return PreloadFalse()


type _PreloadConditions = tuple[ManifestPreloadCondition, ...]


@variant_of(ManifestPreloadCondition, "Or")
class PreloadOr(ManifestPreloadCondition):
    """Any of these holds."""

    _made_by = "or_conditions"
    stored_form = _COMBINATION
    conditions: Annotated[_PreloadConditions, list_of(ManifestPreloadCondition)]


@variant_of(ManifestPreloadCondition, "And")
class PreloadAnd(ManifestPreloadCondition):
    """All of these hold."""

    _made_by = "and_conditions"
    stored_form = _COMBINATION
    conditions: Annotated[_PreloadConditions, list_of(ManifestPreloadCondition)]


@variant_of(ManifestPreloadCondition, "PathMatches")
class PreloadPathMatches(ManifestPreloadCondition):
    """The pattern is found in the path."""

    _made_by = "path_matches"
    stored_form = _PATTERN
    regex: str


@variant_of(ManifestPreloadCondition, "NameMatches")
class PreloadNameMatches(ManifestPreloadCondition):
    """The pattern is found in the name."""

    _made_by = "name_matches"
    stored_form = _PATTERN
    regex: str


def _bounds_tree(condition: "PreloadNumRefs") -> Tree:
    limits = (("from", "Included", condition.from_refs), ("to", "Excluded", condition.to))
    return {
        key: "Unbounded" if limit is None else Tagged(kind, limit) for key, kind, limit in limits
    }


def _read_bounds(reader: TreeReader, kind: type[Any], tree: Tree, path: str) -> Any:
    bounds = reader.entries(tree, path)
    least = _read_bound(reader, bounds.get("from"), {"Included": 0, "Excluded": 1}, f"{path}.from")
    limit = _read_bound(reader, bounds.get("to"), {"Included": 1, "Excluded": 0}, f"{path}.to")
    return reader.made(kind, path, least, limit)


def _read_bound(reader: TreeReader, tree: Tree, shifts: dict[str, int], path: str) -> int | None:
    """Read a bound as the first number within, or the first number after."""
    if tree is None or tree == "Unbounded":
        return None
    name, content = reader.alternative(tree) or ("", None)
    limit = plain(content)
    if not isinstance(limit, int):
        reader.wrong(path, f"must be a bound by a number, got {kind_of(content or tree)}")
    return int(limit) + reader.named(shifts, name, path)


@variant_of(ManifestPreloadCondition, "NumRefs")
class PreloadNumRefs(ManifestPreloadCondition):
    """The manifest has at least `from_refs` and fewer than `to` references."""

    _made_by = "num_refs"
    stored_form = StoredForm(_bounds_tree, _read_bounds)
    from_refs: U32 | None
    to: U32 | None


# The drop-in name is a keyword, so it can only be reached with `getattr`.
setattr(PreloadNumRefs, "from", property(lambda condition: condition.from_refs))


@variant_of(ManifestPreloadCondition, "True")
class PreloadTrue(ManifestPreloadCondition):
    """Always."""

    _made_by = "true"


@variant_of(ManifestPreloadCondition, "False")
class PreloadFalse(ManifestPreloadCondition):
    """Never."""

    _made_by = "false"


COORDINATE_NAME: Final = (
    r"(?i)^(t|x|y|z|i|j|(valid_|forecast_|reference_)?time\w*|date\w*|step|lat\w*|lon\w*|[xy]c|"
    r"[rn](lat|lon)|nav_(lat|lon)|easting|northing|lev\w*|plev\w*|depth\w*|height\w*|"
    r"alt(itude)?|pressure\w*|isobaric\w*|sigma\w*)$"
)
DEFAULT_PRELOAD_CONDITION: Final = ManifestPreloadCondition.and_conditions(
    [
        ManifestPreloadCondition.name_matches(COORDINATE_NAME),
        ManifestPreloadCondition.num_refs(None, 1001),
    ]
)
"""Small arrays that look like coordinates: nearly every reader needs them first."""
