"""Conditions that choose arrays, and dimensions of arrays, in the manifest settings."""

# Aliases inside a class must be `TypeAlias`: a `type` statement makes no callable class.
# ruff: noqa: UP040

from collections.abc import Sequence
from typing import Annotated, Any, Final, TypeAlias

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.values import U32, U64, Check, Variant, value_class, variant_of


def _conditions(kind: type) -> Check:
    def check(value: Any, name: str) -> tuple[Any, ...]:
        if not isinstance(value, Sequence) or not all(
            isinstance(element, kind) for element in value
        ):
            raise InvalidInputError(
                f"{name} must be a list of {kind.__name__}", ErrorKind.INVALID_CONFIG
            )
        return tuple(value)

    return check


class ManifestSplitCondition(Variant):
    """Which arrays a splitting rule is for; `&` and `|` combine conditions.

    >>> ManifestSplitCondition.name_matches("^temp")
    icefloe.config.ManifestSplitCondition.name_matches('^temp')
    """

    __slots__ = ()
    Or: TypeAlias = "SplitOr"
    And: TypeAlias = "SplitAnd"
    PathMatches: TypeAlias = "SplitPathMatches"
    NameMatches: TypeAlias = "SplitNameMatches"
    AnyArray: TypeAlias = "SplitAnyArray"

    def __and__(self, other: object) -> "ManifestSplitCondition":
        if not isinstance(other, ManifestSplitCondition):
            return NotImplemented
        return SplitAnd((self, other))

    def __or__(self, other: object) -> "ManifestSplitCondition":
        if not isinstance(other, ManifestSplitCondition):
            return NotImplemented
        return SplitOr((self, other))

    @staticmethod
    def or_conditions(
        conditions: Sequence["ManifestSplitCondition"],
    ) -> "ManifestSplitCondition":
        """Match where any of the conditions matches."""
        return SplitOr(tuple(conditions))

    @staticmethod
    def and_conditions(
        conditions: Sequence["ManifestSplitCondition"],
    ) -> "ManifestSplitCondition":
        """Match where all of the conditions match."""
        return SplitAnd(tuple(conditions))

    @staticmethod
    def path_matches(regex: str) -> "ManifestSplitCondition":
        """Match arrays whose path contains the pattern."""
        return SplitPathMatches(regex)

    @staticmethod
    def name_matches(regex: str) -> "ManifestSplitCondition":
        """Match arrays whose name contains the pattern."""
        return SplitNameMatches(regex)


type _SplitConditions = tuple[ManifestSplitCondition, ...]


@variant_of(ManifestSplitCondition, "Or")
@value_class
class SplitOr(ManifestSplitCondition):
    """Any of these holds."""

    _made_by = "or_conditions"
    conditions: Annotated[_SplitConditions, _conditions(ManifestSplitCondition)]


@variant_of(ManifestSplitCondition, "And")
@value_class
class SplitAnd(ManifestSplitCondition):
    """All of these hold."""

    _made_by = "and_conditions"
    conditions: Annotated[_SplitConditions, _conditions(ManifestSplitCondition)]


@variant_of(ManifestSplitCondition, "PathMatches")
@value_class
class SplitPathMatches(ManifestSplitCondition):
    """The pattern is found in the path."""

    _made_by = "path_matches"
    regex: str


@variant_of(ManifestSplitCondition, "NameMatches")
@value_class
class SplitNameMatches(ManifestSplitCondition):
    """The pattern is found in the name."""

    _made_by = "name_matches"
    regex: str


@variant_of(ManifestSplitCondition, "AnyArray")
@value_class
class SplitAnyArray(ManifestSplitCondition):
    """Every array."""


class ManifestSplitDimCondition(Variant):
    """Which dimension a split size is for: one of the variants below."""

    __slots__ = ()
    Axis: TypeAlias = "SplitAxis"
    DimensionName: TypeAlias = "SplitDimensionName"
    Any: TypeAlias = "SplitAnyDimension"


@variant_of(ManifestSplitDimCondition, "Axis")
@value_class
class SplitAxis(ManifestSplitDimCondition):
    """The dimension with this number, from 0."""

    axis: U64


@variant_of(ManifestSplitDimCondition, "DimensionName")
@value_class
class SplitDimensionName(ManifestSplitDimCondition):
    """Dimensions with a match of the pattern anywhere in their name."""

    regex: str


@variant_of(ManifestSplitDimCondition, "Any")
@value_class
class SplitAnyDimension(ManifestSplitDimCondition):
    """Every dimension that no earlier rule is for."""


class ManifestPreloadCondition(Variant):
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

    def __and__(self, other: object) -> "ManifestPreloadCondition":
        if not isinstance(other, ManifestPreloadCondition):
            return NotImplemented
        return PreloadAnd((self, other))

    def __or__(self, other: object) -> "ManifestPreloadCondition":
        if not isinstance(other, ManifestPreloadCondition):
            return NotImplemented
        return PreloadOr((self, other))

    @staticmethod
    def or_conditions(
        conditions: Sequence["ManifestPreloadCondition"],
    ) -> "ManifestPreloadCondition":
        """Match where any of the conditions matches."""
        return PreloadOr(tuple(conditions))

    @staticmethod
    def and_conditions(
        conditions: Sequence["ManifestPreloadCondition"],
    ) -> "ManifestPreloadCondition":
        """Match where all of the conditions match."""
        return PreloadAnd(tuple(conditions))

    @staticmethod
    def path_matches(regex: str) -> "ManifestPreloadCondition":
        """Match arrays whose path contains the pattern."""
        return PreloadPathMatches(regex)

    @staticmethod
    def name_matches(regex: str) -> "ManifestPreloadCondition":
        """Match arrays whose name contains the pattern."""
        return PreloadNameMatches(regex)

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
@value_class
class PreloadOr(ManifestPreloadCondition):
    """Any of these holds."""

    _made_by = "or_conditions"
    conditions: Annotated[_PreloadConditions, _conditions(ManifestPreloadCondition)]


@variant_of(ManifestPreloadCondition, "And")
@value_class
class PreloadAnd(ManifestPreloadCondition):
    """All of these hold."""

    _made_by = "and_conditions"
    conditions: Annotated[_PreloadConditions, _conditions(ManifestPreloadCondition)]


@variant_of(ManifestPreloadCondition, "PathMatches")
@value_class
class PreloadPathMatches(ManifestPreloadCondition):
    """The pattern is found in the path."""

    _made_by = "path_matches"
    regex: str


@variant_of(ManifestPreloadCondition, "NameMatches")
@value_class
class PreloadNameMatches(ManifestPreloadCondition):
    """The pattern is found in the name."""

    _made_by = "name_matches"
    regex: str


@variant_of(ManifestPreloadCondition, "NumRefs")
@value_class
class PreloadNumRefs(ManifestPreloadCondition):
    """The manifest has at least `from_refs` and fewer than `to` references."""

    _made_by = "num_refs"
    from_refs: U32 | None
    to: U32 | None


# The drop-in name is a keyword, so it can only be reached with `getattr`.
setattr(PreloadNumRefs, "from", property(lambda condition: condition.from_refs))


@variant_of(ManifestPreloadCondition, "True")
@value_class
class PreloadTrue(ManifestPreloadCondition):
    """Always."""

    _made_by = "true"


@variant_of(ManifestPreloadCondition, "False")
@value_class
class PreloadFalse(ManifestPreloadCondition):
    """Never."""

    _made_by = "false"


_COORDINATE_NAME: Final = (
    r"(?i)^(t|x|y|z|i|j|(valid_|forecast_|reference_)?time\w*|date\w*|step|lat\w*|lon\w*|[xy]c|"
    r"[rn](lat|lon)|nav_(lat|lon)|easting|northing|lev\w*|plev\w*|depth\w*|height\w*|"
    r"alt(itude)?|pressure\w*|isobaric\w*|sigma\w*)$"
)
DEFAULT_PRELOAD_CONDITION: Final = ManifestPreloadCondition.and_conditions(
    [
        ManifestPreloadCondition.name_matches(_COORDINATE_NAME),
        ManifestPreloadCondition.num_refs(None, 1001),
    ]
)
"""Small arrays that look like coordinates: nearly every reader needs them first."""
