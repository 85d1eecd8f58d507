"""The common schema and the common attributes of files.

Files of different variables may be merged: those whose sets of variables have nothing in common
are different *families*. Within a family the schema that most files have is the expected one, so
that the odd ones are reported, whichever comes first.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, Self

import numpy as np

from icefloe.format.paths import node_name
from icefloe.pipeline.combining.report import Misfit
from icefloe.pipeline.files.facts import (
    ANY_CHUNK,
    PARENT_UNITS,
    ArraySchema,
    DatasetSchema,
    Difference,
    FileFacts,
    Kind,
    LoadedValues,
    array_misfits,
    canonical_json,
    is_named,
    misfits,
)
from icefloe.pipeline.files.options import AttributeRule, CombineOptions
from icefloe.pipeline.files.times import parse_units
from icefloe.records import Record, field, replace

_TIME: Final = frozenset({"units", "calendar"})


class Families(Record):
    """The expected schema of each family of files, and to which one each file belongs."""

    schemas: tuple[DatasetSchema, ...]
    of_file: tuple[int, ...]
    """-1 for files that cannot be used."""
    misfits: tuple[Misfit, ...]

    def array(self, path: str) -> tuple[tuple[int, ...], ArraySchema]:
        """Find the families with an array, and its schema in the first of them."""
        having = tuple(n for n, schema in enumerate(self.schemas) if path in schema.by_path)
        return having, self.schemas[having[0]].by_path[path]

    def only(self, files: Collection[int]) -> Self:
        """Forget the arrays of families of which no file is used; families keep their numbers."""
        used = {self.of_file[number] for number in files}
        schemas = (
            schema if number in used else DatasetSchema(())
            for number, schema in enumerate(self.schemas)
        )
        return replace(self, schemas=tuple(schemas))

    @property
    def paths(self) -> list[str]:
        """Name all arrays of all families."""
        return sorted({path for schema in self.schemas for path in schema.by_path})


def find_families(
    files: Sequence[FileFacts],
    existing: DatasetSchema | None = None,
    native: Collection[str] = (),
    *,
    fill_missing: bool = False,
) -> Families:
    """Sort files into families; report those that differ from what most of theirs have.

    `existing` is what is in the repository already; it decides instead of the majority. Of its
    arrays those that are `native` were not stored as files have them. With `fill_missing` files
    of a family may lack arrays.
    """
    counts = Counter(file.schema.digest for file in files if file.schema is not None)
    schemas = {file.schema.digest: file.schema for file in files if file.schema is not None}
    expected: list[DatasetSchema] = []
    family_of: dict[str, int] = {}
    differences: dict[str, list[Difference]] = {}
    for digest, _ in counts.most_common():  # equal counts stay in the order of files
        schema = schemas[digest]
        sharing = [len(schema.variables & other.variables) for other in expected]
        if not any(sharing):
            family_of[digest] = len(expected)
            expected_schema = schema if existing is None else _as_existing(existing, schema, native)
            expected.append(expected_schema)
            others = _shared_misfits(expected[:-1], expected_schema)
            differences[digest] = others + misfits(expected_schema, schema)
        else:
            family = sharing.index(max(sharing))
            family_of[digest] = family
            if fill_missing:
                expected[family] = _with_arrays_of(expected[family], schema, existing, native)
            differences[digest] = [
                difference
                for difference in misfits(expected[family], schema)
                if not (fill_missing and difference.kind is Kind.MISSING_VARIABLE)
            ]
    reported = [
        Misfit(file.url, difference.kind, _message(difference), difference.path)
        for file in files
        if file.schema is not None
        for difference in differences[file.schema.digest]
    ]
    numbers = tuple(
        -1
        if file.schema is None or differences[file.schema.digest]
        else family_of[file.schema.digest]
        for file in files
    )
    return Families(tuple(expected), numbers, tuple(reported))


def _with_arrays_of(
    expected: DatasetSchema,
    schema: DatasetSchema,
    existing: DatasetSchema | None,
    native: Collection[str],
) -> DatasetSchema:
    """Add the arrays that only this schema has."""
    found = schema if existing is None else _as_existing(existing, schema, native)
    more = [array for array in found.arrays if array.path not in expected.by_path]
    return DatasetSchema.of([*expected.arrays, *more])


def _as_existing(
    existing: DatasetSchema, schema: DatasetSchema, native: Collection[str]
) -> DatasetSchema:
    """Return the schema that files need to be appended to the existing dataset."""
    return DatasetSchema.of(
        [
            _array_as_existing(existing.by_path[array.path], array, is_native=array.path in native)
            if array.path in existing.by_path
            else array
            for array in schema.arrays
        ]
    )


def _array_as_existing(there: ArraySchema, array: ArraySchema, *, is_native: bool) -> ArraySchema:
    encoding = {**there.encoding}
    if PARENT_UNITS in array.encoding:
        encoding[PARENT_UNITS] = array.encoding[PARENT_UNITS]
    if is_native:
        if parse_units(encoding.get("units"), encoding.get("calendar")) is not None:
            encoding = {name: setting for name, setting in encoding.items() if name not in _TIME}
        return replace(
            array,
            data_type=there.data_type,
            dimensions=there.dimensions,
            shape=there.shape,
            fill_value=there.fill_value,
            encoding=encoding,
        )
    chunks = tuple(
        ANY_CHUNK if mine == ANY_CHUNK else theirs
        for mine, theirs in zip(array.chunks, there.chunks, strict=False)
    )
    return replace(there, chunks=chunks, encoding=encoding, is_coordinate=array.is_coordinate)


def _shared_misfits(families: Sequence[DatasetSchema], schema: DatasetSchema) -> list[Difference]:
    """Compare arrays that other families have too, such as coordinates."""
    return [
        difference
        for other in families
        for path in sorted(other.by_path.keys() & schema.by_path.keys())
        for difference in array_misfits(other.by_path[path], schema.by_path[path])
    ]


def _message(difference: Difference) -> str:
    match difference.kind:
        case Kind.MISSING_VARIABLE:
            name = node_name(difference.path)
            return f"{difference.path} is missing; leave it out of all files with drop=({name!r},)"
        case Kind.EXTRA_VARIABLE:
            name = node_name(difference.path)
            return f"{difference.path} is not in most files; leave it out with drop=({name!r},)"
        case _:
            return f"{difference.path}: {difference.found} instead of {difference.expected}"


class GridCheck(Record):
    """How coordinates that all files should share differ between files."""

    misfits: Mapping[int, Misfit]
    notes: tuple[str, ...]
    """Which differences were allowed."""


class Grid(Record):
    """The coordinates of an existing dataset that files must share."""

    digests: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, LoadedValues] = field(default_factory=dict)
    """As far as they are known."""


def check_grids(
    files: Sequence[FileFacts], usable: Sequence[int], options: CombineOptions, there: Grid
) -> GridCheck:
    """Find files whose coordinates, of dimensions that all share, are not those of most.

    An existing dataset decides instead of the majority; so does the first file where options
    allow a difference.
    """
    misfits: dict[int, Misfit] = {}
    notes: list[str] = []
    for path in sorted({path for number in usable for path in files[number].digests}):
        having = [number for number in usable if path in files[number].digests]
        rule = _GridRule.of(path, options)
        digest, values = _expected_grid(files, having, path, there, rule)
        accepted: dict[int, float | None] = {}
        for number in having:
            if files[number].digests[path] == digest:
                continue
            difference = largest_difference(files[number].shared_values.get(path), values)
            if rule.allows(difference):
                accepted[number] = difference
            else:
                text = _other_grid(path, files[number], difference)
                misfit = Misfit(files[number].url, Kind.OTHER_COORDINATE, text, path)
                misfits.setdefault(number, misfit)
        if accepted:
            notes.append(_accepted(path, list(accepted.values()), is_there=path in there.digests))
    return GridCheck(misfits, tuple(notes))


class _GridRule(Record):
    """The differences that options allow for a coordinate."""

    takes_first: bool
    tolerance: float | None

    @classmethod
    def of(cls, path: str, options: CombineOptions) -> Self:
        given = [most for name, most in options.tolerance.items() if is_named(path, name)]
        first = any(is_named(path, name) for name in options.take_first)
        return cls(first, given[0] if given else None)

    def allows(self, difference: float | None) -> bool:
        if self.takes_first:
            return True
        if difference is None or self.tolerance is None:
            return False
        return difference <= self.tolerance


def _expected_grid(
    files: Sequence[FileFacts], having: Sequence[int], path: str, there: Grid, rule: _GridRule
) -> tuple[str, LoadedValues | None]:
    if path in there.digests:
        return there.digests[path], there.values.get(path)
    digests = [files[number].digests[path] for number in having]
    chosen = digests[0]
    if not rule.takes_first and rule.tolerance is None:
        chosen = Counter(digests).most_common(1)[0][0]
    return chosen, files[having[digests.index(chosen)]].shared_values.get(path)


def largest_difference(values: LoadedValues | None, expected: LoadedValues | None) -> float | None:
    """Return by how much values differ at most; None if nobody can say.

    >>> largest_difference(LoadedValues(np.array([1.0, 2.5])), LoadedValues(np.array([1.0, 2.0])))
    0.5
    """
    if values is None or expected is None or values.values.shape != expected.values.shape:
        return None
    if {values.values.dtype.kind, expected.values.dtype.kind} - set("iuf"):
        return None
    mine, theirs = values.values.astype(np.float64), expected.values.astype(np.float64)
    is_same = (mine == theirs) | (np.isnan(mine) & np.isnan(theirs))
    apart = np.abs(np.where(is_same, 0.0, mine - theirs))
    return float(np.nan_to_num(apart, nan=np.inf).max(initial=0.0))


def _other_grid(path: str, file: FileFacts, difference: float | None) -> str:
    name = node_name(path)
    text = f"the values of {path} are not those of other files"
    ways = []
    if difference is not None and np.isfinite(difference):
        text += f": they differ by up to {difference:.3g}"
        ways.append(f"allow that (tolerance={{{name!r}: {_rounded_up(difference):g}}})")
    ways.append(f"take those of the first file (take_first=({name!r},))")
    ways.append(f"leave it out (drop=({name!r},))")
    if path in file.shared_values and file.shared_values[path].values.size == 1:
        ways.append(f"join files along it (concat=({name!r},))")
    return f"{text}. Is it another grid? If not, {', '.join(ways[:-1])}, or {ways[-1]}"


def _rounded_up(difference: float) -> float:
    """Return a number with one digit that is not smaller.

    >>> _rounded_up(0.00123), _rounded_up(2.0)
    (0.002, 2.0)
    """
    if not difference:
        return 0.0
    digit = 10.0 ** math.floor(math.log10(difference))
    return float(f"{math.ceil(difference / digit * (1 - 1e-12)) * digit:.1g}")


def _accepted(path: str, differences: Sequence[float | None], *, is_there: bool) -> str:
    known = [difference for difference in differences if difference is not None]
    size = f", by up to {max(known):.3g}" if len(known) == len(differences) else ""
    whose = "the dataset" if is_there else "the first file"
    count = len(differences)
    have = "1 file has" if count == 1 else f"{count} files have"
    return f"{path}: {have} other values{size}; those of {whose} were taken"


class CommonAttributes(Record):
    """Attributes to write, and those that differ."""

    attributes: dict[str, dict[str, Any]]
    promoted: dict[str, list[Any]] = field(default_factory=dict)
    """By path of the array to make, the value of each file."""
    notes: tuple[str, ...] = ()
    misfits: tuple[Misfit, ...] = ()


def common_attributes(
    files: Sequence[FileFacts], rule: AttributeRule, there: Collection[str] | None = None
) -> CommonAttributes:
    """Find out which attributes all files share, and settle the others by the rule.

    If files are appended, `there` are the arrays that attributes of earlier files became. No
    others can: nobody knows their values for the steps that exist.
    """
    merged, differing = _merged(files)
    late = set[tuple[str, str]]()
    if rule == "promote" and there is not None:
        late = {pair for pair in differing if _promoted_path(*pair, merged) not in there}
        differing = [pair for pair in differing if pair not in late]
        differing += [
            (path, name)
            for path, attributes in merged.items()
            for name in attributes
            if (path, name) not in differing and _promoted_path(path, name, merged) in there
        ]
    promoted: dict[str, list[Any]] = {}
    misfits: list[Misfit] = []
    for path, name in differing:
        if rule == "fail":
            misfits.extend(_attribute_misfits(files, path, name))
        elif rule == "promote":
            promoted[_promoted_path(path, name, merged)] = [
                file.attributes.get(path, {}).get(name) for file in files
            ]
        if rule != "first":
            merged[path].pop(name, None)
    for path, name in late:
        merged[path].pop(name, None)
    shown = _listed(differing)
    done = {"drop": "left out", "first": "taken from the first file", "promote": "made arrays"}
    notes = [f"attributes that differ were {done[rule]}: {shown}"] if shown and rule in done else []
    if late:
        notes.append(
            f"attributes that differ were left out, as earlier files had none: {_listed(late)}"
        )
    return CommonAttributes(merged, promoted, tuple(notes), tuple(misfits))


def _listed(attributes: Iterable[tuple[str, str]]) -> str:
    return ", ".join(sorted(f"{path}:{name}" if path else name for path, name in attributes))


def _merged(
    files: Sequence[FileFacts],
) -> tuple[dict[str, dict[str, Any]], list[tuple[str, str]]]:
    """Return the attributes of the first file with each node, and which ones differ elsewhere."""
    merged: dict[str, dict[str, Any]] = {}
    differing: dict[tuple[str, str], None] = {}
    distinct = {id(file.attributes): file.attributes for file in files}  # rows share equal ones
    for attributes in distinct.values():
        for path, of_path in attributes.items():
            mine = merged.setdefault(path, dict(of_path))
            for name in sorted(mine.keys() | of_path.keys()):
                if (path, name) not in differing and _differs(mine, of_path, name):
                    differing[path, name] = None
    return merged, list(differing)


def _differs(mine: Mapping[str, Any], theirs: Mapping[str, Any], name: str) -> bool:
    if name not in mine or name not in theirs:
        return True
    return mine[name] != theirs[name] and canonical_json(mine[name]) != canonical_json(theirs[name])


def _promoted_path(path: str, name: str, nodes: Mapping[str, Any]) -> str:
    if path == "":
        return name
    group, _, array = path.rpartition("/")
    is_group = any(node.startswith(f"{path}/") for node in nodes)
    base = f"{path}/{name}" if is_group else f"{array}_{name}"
    return base if is_group or not group else f"{group}/{base}"


def _attribute_misfits(files: Sequence[FileFacts], path: str, name: str) -> list[Misfit]:
    texts = [canonical_json(file.attributes.get(path, {}).get(name)) for file in files]
    usual = Counter(texts).most_common(1)[0][0]
    where = f"{path}:{name}" if path else name
    return [
        Misfit(
            file.url,
            Kind.ATTRIBUTES,
            f"{where}: {text} instead of {usual}; attributes='first' takes that of the first file",
            path,
        )
        for file, text in zip(files, texts, strict=True)
        if text != usual
    ]
