"""The common schema and the common attributes of files.

Files of different variables may be merged: those whose sets of variables have nothing in common
are different *families*. Within a family the schema that most files have is the expected one, so
that the odd ones are reported, whichever comes first.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, Self

from icefloe.pipeline.combining.report import Misfit
from icefloe.pipeline.files.facts import (
    ANY_CHUNK,
    PARENT_UNITS,
    ArraySchema,
    DatasetSchema,
    Difference,
    FileFacts,
    Kind,
    array_misfits,
    canonical_json,
    misfits,
)
from icefloe.pipeline.files.options import AttributeRule
from icefloe.pipeline.files.times import parse_units
from icefloe.records import Record, field, replace

_TIME: Final = frozenset({"units", "calendar"})


class Families(Record):
    """The expected schema of each family of files, and to which one each file belongs."""

    schemas: tuple[DatasetSchema, ...]
    of_file: tuple[int, ...]
    """-1 for files that cannot be used."""
    misfits: tuple[Misfit, ...]

    def array(self, path: str) -> tuple[int, ArraySchema]:
        """Find the first family with an array."""
        for number, schema in enumerate(self.schemas):
            if path in schema.by_path:
                return number, schema.by_path[path]
        raise KeyError(path)

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
) -> Families:
    """Sort files into families; report those that differ from what most of theirs have.

    `existing` is what is in the repository already; it decides instead of the majority. Of its
    arrays those that are `native` were not stored as files have them.
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
            differences[digest] = misfits(expected[family], schema)
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
            return f"{difference.path} is missing"
        case Kind.EXTRA_VARIABLE:
            return f"{difference.path} is in no other file"
        case _:
            return f"{difference.path}: {difference.found} instead of {difference.expected}"


def digest_misfits(files: Sequence[FileFacts], usable: Sequence[int]) -> dict[int, Misfit]:
    """Find files whose coordinates, of dimensions that all share, are not those of most."""
    misfits: dict[int, Misfit] = {}
    for path in sorted({path for number in usable for path in files[number].digests}):
        having = [number for number in usable if path in files[number].digests]
        counts = Counter(files[number].digests[path] for number in having)
        if len(counts) < 2:
            continue
        usual = counts.most_common(1)[0][0]
        for number in having:
            if files[number].digests[path] != usual:
                misfits.setdefault(
                    number,
                    Misfit(
                        files[number].url,
                        Kind.OTHER_COORDINATE,
                        f"the values of {path} are not those of other files: is it another grid?"
                        " If they may differ, leave it out (drop=...)",
                        path,
                    ),
                )
    return misfits


class CommonAttributes(Record):
    """Attributes to write, and those that differ."""

    attributes: dict[str, dict[str, Any]]
    promoted: dict[str, list[Any]] = field(default_factory=dict)
    """By path of the array to make, the value of each file."""
    notes: tuple[str, ...] = ()
    misfits: tuple[Misfit, ...] = ()


def common_attributes(files: Sequence[FileFacts], rule: AttributeRule) -> CommonAttributes:
    """Find out which attributes all files share, and settle the others by the rule."""
    merged, differing = _merged(files)
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
    shown = ", ".join(sorted(f"{path}:{name}" if path else name for path, name in differing))
    done = {"drop": "left out", "first": "taken from the first file", "promote": "made arrays"}
    notes = (
        (f"attributes that differ were {done[rule]}: {shown}",) if shown and rule in done else ()
    )
    return CommonAttributes(merged, promoted, notes, tuple(misfits))


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
        Misfit(file.url, Kind.ATTRIBUTES, f"{where}: {text} instead of {usual}", path)
        for file, text in zip(files, texts, strict=True)
        if text != usual
    ]
