"""Combine the facts of all files into one dataset: the position of each file, and all misfits."""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icefloe.errors import ErrorKind, IcefloeError, InvalidInputError
from icefloe.pipeline.combining.consensus import (
    Families,
    Grid,
    check_grids,
    common_attributes,
    find_families,
)
from icefloe.pipeline.combining.copied import (
    CopyRules,
    as_copied,
    decoding_of,
    existing_copy,
)
from icefloe.pipeline.combining.dimensions import require_dimensions
from icefloe.pipeline.combining.insertions import Insertions
from icefloe.pipeline.combining.placing import PlacedFiles, place_files
from icefloe.pipeline.combining.report import Misfit, Report
from icefloe.pipeline.combining.uneven import (
    Cells,
    OwnChunks,
    as_uneven,
    cells_of_grid,
    fits,
    grid_of,
    join_cuts,
    split_runs,
)
from icefloe.pipeline.files.decoding import (
    DECODED_ATTRIBUTES,
    is_number,
    missing_marker,
    with_missing,
)
from icefloe.pipeline.files.facts import (
    ANY_CHUNK,
    PARENT_UNITS,
    ArraySchema,
    DatasetSchema,
    FileFacts,
    Kind,
    LoadedValues,
    is_named,
)
from icefloe.pipeline.files.options import CombineOptions
from icefloe.pipeline.files.references import References
from icefloe.pipeline.files.times import parse_units
from icefloe.records import Record, field, replace
from icefloe.reports import counted
from icefloe.zarr_store.openings import RECTILINEAR

NATIVE_CHUNK: Final = 8192
"""Steps in a chunk of the small arrays that are written as they are."""


class TargetArray(Record):
    """An array of the dataset."""

    path: str
    metadata: Mapping[str, Any]
    """As in `zarr.json`."""
    growing: tuple[tuple[int, str], ...]
    """Axes along which files are joined, with the names of these dimensions."""
    is_native: bool
    """Whether its values are written as they are, instead of references."""
    families: tuple[int, ...]
    """The files it comes from; coordinates can be in files of several families."""

    @property
    def cells(self) -> tuple[Cells, ...]:
        """Return the chunks along each axis."""
        return cells_of_grid(self.metadata["chunk_grid"])

    @property
    def chunks(self) -> tuple[int, ...]:
        """Return the lengths of chunks; `ANY_CHUNK` where they differ."""
        return tuple(cells.chunk for cells in self.cells)


class PlacedFile(Record, omit_defaults=True):
    """One file that is used, and where it goes."""

    facts: FileFacts
    """Without schema and attributes, which it shares with others."""
    family: int
    starts: Mapping[str, int]
    """By dimension, where it begins in the dataset."""
    is_again: bool = False
    """Whether it exists in another state, which it replaces."""

    def references_in(self, array: TargetArray, references: References) -> References:
        """Cut and move the references of the file to where they belong in an array."""
        whole, cells = self.facts.chunks.get(array.path), array.cells
        if whole is not None and array.growing:
            axis, name = array.growing[0]  # only the first growing axis can be cut
            if (chunk := cells[axis].chunk) != ANY_CHUNK:
                extent = -(-self.facts.lengths[name] // chunk)
                references = references.divided(axis, whole // chunk, extent=extent)
        shift = [0] * len(array.metadata["shape"])
        for axis, name in array.growing:
            shift[axis] = int(cells[axis].of(np.array([self.starts[name]]))[0])
        return references.shifted(tuple(shift))


def array_metadata(
    schema: ArraySchema,
    shape: tuple[int, ...],
    chunks: tuple[int, ...],
    codecs: list[Any],
    attributes: Mapping[str, Any],
) -> dict[str, Any]:
    """Write the `zarr.json` of an array."""
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(shape),
        "data_type": schema.data_type,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(chunks)}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": schema.fill_value,
        "codecs": codecs,
        "attributes": dict(attributes),
        "dimension_names": list(schema.dimensions),
        "storage_transformers": [],
    }


def native_metadata(
    schema: ArraySchema, shape: tuple[int, ...], attributes: Mapping[str, Any]
) -> dict[str, Any]:
    """Write the `zarr.json` of an array whose values are written as they are."""
    is_text = schema.data_type == "string"
    codecs = [
        {"name": "vlen-utf8", "configuration": {}}
        if is_text
        else {"name": "bytes", "configuration": {"endian": "little"}},
        {"name": "zstd", "configuration": {"level": 3, "checksum": False}},
    ]
    chunks = tuple(
        NATIVE_CHUNK if axis == 0 else max(1, length) for axis, length in enumerate(shape)
    )
    return array_metadata(schema, shape, chunks, codecs, attributes)


def promoted_runs(
    path: str,
    values: Sequence[Any],
    files: Sequence[FileFacts],
    placed: PlacedFiles,
    options: CombineOptions,
) -> list[tuple[int, NDArray[Any]]]:
    """Repeat the attribute of each file for each of its steps."""
    if len(options.concat) != 1:
        raise InvalidInputError(
            f"the attribute {path!r} differs, and cannot be made an array: files are joined along"
            " several dimensions. Choose another rule, such as attributes='drop'",
            ErrorKind.BAD_METADATA,
        )
    [name] = options.concat
    is_number = all(
        isinstance(value, (int, float)) and not isinstance(value, bool) for value in values
    )
    scalars = [value if is_number else ("" if value is None else str(value)) for value in values]
    column = np.array(scalars)
    return [
        (
            int(placed.starts[name][row]),
            np.repeat(column[row], files[number].lengths[name]),
        )
        for row, number in enumerate(placed.files)
    ]


def promoted_target(
    path: str,
    runs: Sequence[tuple[int, NDArray[Any]]],
    placed: PlacedFiles,
    options: CombineOptions,
) -> TargetArray:
    """Describe the array that an attribute becomes."""
    [name] = options.concat
    kind = runs[0][1].dtype
    data_type = "string" if kind.kind == "U" else kind.name
    schema = ArraySchema(
        path=path,
        data_type=data_type,
        dimensions=(name,),
        shape=(-1,),
        chunks=(1,),
        codecs=(),
        fill_value="" if kind.kind == "U" else 0,
    )
    metadata = native_metadata(schema, (placed.lengths[name],), {})
    return TargetArray(path, metadata, ((0, name),), is_native=True, families=(0,))


class Existing(Record):
    """The present content of the repository that files are appended to."""

    schema: DatasetSchema
    lengths: Mapping[str, int]
    values: Mapping[str, LoadedValues]
    """Of the small arrays along the dimensions that files are joined along."""
    grid: Grid = Grid()
    cuts: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """By array whose chunks have different lengths, where they begin and end."""


class Combined(Record):
    """The combination of files to a dataset."""

    report: Report
    arrays: tuple[TargetArray, ...] = ()
    groups: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Attributes by path of group."""
    files: tuple[int, ...] = ()
    """Numbers of the files that are used, in the order given."""
    families: tuple[int, ...] = ()
    """For each of these, its family."""
    starts: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)
    """By dimension, where each of these begins."""
    lengths: Mapping[str, int] = field(default_factory=dict)
    """By dimension, in the whole dataset."""
    native: Mapping[str, tuple[tuple[int, NDArray[Any]], ...]] = field(default_factory=dict)
    """By path, runs of values and where they begin along the first axis."""
    inserted: Mapping[str, Insertions] = field(default_factory=dict)
    """By dimension, the steps that come before existing ones, which move."""
    cuts: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """By array whose chunks have different lengths, where they begin and end."""
    by_values: bool = True
    """Whether values of coordinates decided where files go."""
    lacking: Mapping[str, frozenset[int]] = field(default_factory=dict)
    """By path, the numbers of the files of its families that do not have the array."""

    def placed_file(self, row: int, facts: Sequence[FileFacts]) -> PlacedFile:
        """Return a file by its row in `files`."""
        slim = replace(facts[self.files[row]], schema=None, attributes={})
        starts = {name: int(column[row]) for name, column in self.starts.items()}
        return PlacedFile(slim, self.families[row], starts)

    def donor(self, array: TargetArray) -> int | None:
        """Name the file that an array comes from; None for one to which all files add."""
        return None if array.growing else self.files[self.rows_of(array)[0]]

    def rows_of(self, array: TargetArray) -> list[int]:
        """Return the rows in `files` of those that add to an array.

        Of files at the same place, along the dimensions that the array has, only the first.
        """
        lacking = self.lacking.get(array.path, frozenset())
        rows = [
            row
            for row, (number, family) in enumerate(zip(self.files, self.families, strict=True))
            if family in array.families and number not in lacking
        ]
        if len(array.growing) == len(self.starts) and len(array.families) == 1:
            return rows
        first: dict[tuple[int, ...], int] = {}
        for row in rows:
            place = tuple(int(self.starts[name][row]) for _, name in array.growing)
            first.setdefault(place, row)
        return list(first.values())

    def givers(self, array: TargetArray) -> frozenset[int] | None:
        """Return the numbers of the files that add to an array; None for all of its family."""
        is_whole = len(array.growing) == len(self.starts) and array.path not in self.lacking
        if is_whole and len(array.families) == 1:
            return None
        return frozenset(self.files[row] for row in self.rows_of(array))


def combine(
    files: Sequence[FileFacts],
    options: CombineOptions,
    existing: Existing | None = None,
    copies: CopyRules | None = None,
) -> Combined:
    """Work out how files make one dataset: of references to them, or of copies of their values.

    With `on_misfit="skip"` the outcome leaves out files that do not fit; otherwise there is an
    outcome only if `report.misfits` is empty.
    """
    require_dimensions(files, options)
    stored = files
    if copies is not None:
        files = as_copied(files, copies, None if existing is None else existing.schema)
        if existing is not None:
            existing = replace(existing, schema=existing_copy(existing.schema, files, copies))
    elif options.rectilinear:
        files = as_uneven(files)
    problems = _problems(files, copies)
    families = find_families(
        files,
        *(() if existing is None else (existing.schema, existing.values.keys())),
        fill_missing=options.fill_missing,
    )
    empty = _without_steps(files, problems)
    gone = {files[number].url for number in empty}
    misfits = [*problems.values(), *(it for it in families.misfits if it.url not in gone)]
    left = [
        number
        for number, family in enumerate(families.of_file)
        if family >= 0 and number not in problems and number not in empty
    ]
    grids = check_grids(files, left, options, Grid() if existing is None else existing.grid)
    misfits += grids.misfits.values()
    left = [number for number in left if number not in grids.misfits]
    while True:
        placed = place_files(files, families, left, options, existing_axes(existing, options))
        refused = dict(placed.misfits)
        left = [number for number in left if number not in refused]
        placed = placed.only(left)
        used = families.only(left)
        cuts: dict[str, NDArray[np.int64]] = {}
        if copies is None:
            cuts, uneven_misfits = _uneven_cuts(stored, files, used, placed, existing, options)
            refused |= uneven_misfits
            refused |= _unaligned(stored, files, used, placed, existing, cuts)
        refused |= _unfillable(files, used, placed, copies, existing)
        misfits += refused.values()
        if not refused or options.on_misfit == "fail":
            break
        left = [number for number in left if number not in refused]
    there = None if existing is None else existing.values.keys() - set(families.paths)
    common = common_attributes([files[number] for number in left], options.attributes, there)
    misfits += common.misfits
    notes = (
        *(f"left out, as it has no steps: {files[number].url}" for number in sorted(empty)),
        *grids.notes,
        *common.notes,
        *_notes_of_moves(placed, existing),
        *_notes_of_chunks(cuts),
        *_notes_of_parsers([files[number] for number in left]),
    )
    report = Report(len(files), len(left), tuple(sorted(set(misfits))), placed.coverage, notes)
    if not left or (misfits and options.on_misfit == "fail"):
        return Combined(report, files=tuple(left))
    try:
        native = _native_values(files, used, placed, existing)
    except IcefloeError as error:
        misfit = Misfit(files[left[0]].url, Kind.UNITS, str(error))
        return Combined(Report(len(files), 0, (*report.misfits, misfit), placed.coverage))
    for path, values in common.promoted.items():
        native[path] = promoted_runs(path, values, files, placed, options)
    arrays = [
        _target(
            stored,
            files,
            used,
            placed,
            path,
            common.attributes.get(path, {}),
            native,
            existing,
            cuts.get(path),
        )
        if copies is None or path in native
        else _copied_target(
            stored, files, used, placed, path, common.attributes.get(path, {}), copies
        )
        for path in used.paths
    ]
    arrays += [promoted_target(path, native[path], placed, options) for path in common.promoted]
    known_paths = {array.path for array in arrays}
    return Combined(
        report=report,
        arrays=tuple(arrays),
        groups={
            path: attributes
            for path, attributes in common.attributes.items()
            if path not in known_paths
        },
        files=tuple(left),
        families=tuple(families.of_file[number] for number in left),
        starts=placed.starts,
        lengths=placed.lengths,
        native={path: tuple(runs) for path, runs in native.items()},
        inserted=placed.inserted,
        cuts={path: tuple(of_array.tolist()) for path, of_array in cuts.items()},
        by_values=options.by == "coordinates",
        lacking=_lacking(files, used, placed),
    )


def _problems(files: Sequence[FileFacts], copies: CopyRules | None) -> dict[int, Misfit]:
    """Find files that could not be parsed, or whose chunks nobody can refer to."""
    problems: dict[int, Misfit] = {}
    for number, file in enumerate(files):
        if file.problem is not None:
            problems[number] = Misfit(file.url, file.problem.kind, file.problem.message)
        elif file.unreferenced and copies is None:
            path, reason = next(iter(file.unreferenced.items()))
            text = f"{path} cannot be referred to: {reason}. Leave it out (drop=...)"
            problems[number] = Misfit(file.url, Kind.UNSUPPORTED, text, path)
    return problems


def _without_steps(files: Sequence[FileFacts], problems: Collection[int]) -> set[int]:
    """Find files that add nothing along a dimension, if others do."""
    lengths = {
        number: file.lengths
        for number, file in enumerate(files)
        if file.schema is not None and number not in problems
    }
    empty = {number for number, of_file in lengths.items() if not all(of_file.values())}
    return empty if len(empty) < len(lengths) else set()


def _holders(
    files: Sequence[FileFacts], families: Families, placed: PlacedFiles, path: str
) -> tuple[tuple[int, ...], ArraySchema, list[int]]:
    """Return the families of an array, its schema, and the numbers of the files that have it."""
    having, schema = families.array(path)
    return (
        having,
        schema,
        [
            number
            for number in placed.files
            if families.of_file[number] in having and _has(files[number], path)
        ],
    )


def _has(file: FileFacts, path: str) -> bool:
    return file.schema is not None and path in file.schema.by_path


def _lacking(
    files: Sequence[FileFacts], families: Families, placed: PlacedFiles
) -> dict[str, frozenset[int]]:
    lacking = {}
    for path in families.paths:
        having, _, holders = _holders(files, families, placed, path)
        of_families = {number for number in placed.files if families.of_file[number] in having}
        if len(holders) < len(of_families):
            lacking[path] = frozenset(of_families.difference(holders))
    return lacking


def _unfillable(
    files: Sequence[FileFacts],
    families: Families,
    placed: PlacedFiles,
    copies: CopyRules | None,
    existing: Existing | None,
) -> dict[int, Misfit]:
    """Find files that lack an array whose values cannot be marked as missing.

    The type of an array that exists already stays.
    """
    misfits: dict[int, Misfit] = {}
    for path, numbers in _lacking(files, families, placed).items():
        _, schema = families.array(path)
        if not _growing(schema, placed):
            continue
        marker = missing_marker(schema.data_type, schema.encoding)
        is_new = existing is None or path not in existing.schema.by_path
        decodes = copies is not None and copies.decode and is_number(schema.data_type)
        if marker is None and decodes and is_new:
            continue
        _, _, holders = _holders(files, families, placed, path)
        is_written = copies is not None or _is_native(files, holders, schema)
        if marker is not None and (is_written or marker == schema.fill_value):
            continue
        text = f"{path} is missing, and nothing marks its values as missing"
        for number in numbers:
            misfit = Misfit(files[number].url, Kind.MISSING_VARIABLE, text, path)
            misfits.setdefault(number, misfit)
    return misfits


def existing_axes(
    existing: Existing | None, options: CombineOptions
) -> Mapping[str, LoadedValues | int]:
    """Return what exists along each dimension: values, or only a length."""
    if existing is None:
        return {}
    axes: dict[str, LoadedValues | int] = {}
    for name in options.concat:
        coordinate = options.coordinates.get(name, name)
        matching = [
            loaded for path, loaded in existing.values.items() if is_named(path, coordinate)
        ]
        has_values = matching and options.by == "coordinates"
        axes[name] = matching[0] if has_values else existing.lengths[name]
    return axes


def _uneven_cuts(
    stored: Sequence[FileFacts],
    files: Sequence[FileFacts],
    families: Families,
    placed: PlacedFiles,
    existing: Existing | None,
    options: CombineOptions,
) -> tuple[dict[str, NDArray[np.int64]], dict[int, Misfit]]:
    """Return where the chunks of arrays begin and end whose lengths differ, and what is unfit."""
    cuts: dict[str, NDArray[np.int64]] = {}
    misfits: dict[int, Misfit] = {}
    there = {} if existing is None else existing.cuts
    for path in families.paths if options.rectilinear else ():
        _, schema, numbers = _holders(files, families, placed, path)
        growing = _growing(schema, placed)
        if not numbers or not growing or _is_native(files, numbers, schema):
            continue
        axis, name = growing[0]
        kinds = {_stored_schema(stored[number], path).chunks[axis] for number in numbers}
        if path not in there and kinds == {ANY_CHUNK}:
            continue  # plain bytes, which can be cut as needed
        before = _existing_cuts(existing, path, axis, name)
        usual = {files[number].chunks[path] for number in numbers}
        if isinstance(before, range):
            usual.add(before.step)
        if path not in there and usual == {1}:
            continue  # chunks of one step fit whatever comes later
        own = {
            number: OwnChunks(
                int(placed.starts[name][placed.row(number)]),
                files[number].lengths[name],
                files[number].chunks[path],
            )
            for number in numbers
        }
        cuts[path] = _joined_cuts(before, list(own.values()), name, files, placed)
        for number, file in own.items():
            if (text := _uneven_misfit(cuts[path], before, file, name)) is not None:
                misfit = Misfit(files[number].url, Kind.UNALIGNED, f"{path}: {text}", path)
                misfits.setdefault(number, misfit)
    for path in there.keys() - cuts.keys():  # to which no file adds
        assert existing is not None, "the array exists"
        dimension = _first_of(existing.schema.by_path[path], placed)
        assert dimension is not None, "cuts are those of a growing dimension"
        cuts[path] = _joined_cuts(there[path], (), dimension, files, placed)
    return cuts, misfits


def _existing_cuts(existing: Existing | None, path: str, axis: int, name: str) -> Sequence[int]:
    """Return where the chunks of an array begin and end that exists; nothing for a new one."""
    if existing is None or path not in existing.schema.by_path:
        return ()
    if path in existing.cuts:
        return existing.cuts[path]
    length, chunk = existing.lengths[name], existing.schema.by_path[path].chunks[axis]
    return range(0, length + chunk, chunk)


def _joined_cuts(
    there: Sequence[int],
    own: Sequence[OwnChunks],
    name: str,
    files: Sequence[FileFacts],
    placed: PlacedFiles,
) -> NDArray[np.int64]:
    starts = placed.starts[name]
    lengths = np.array([files[number].lengths[name] for number in placed.files], np.int64)
    edges = np.concatenate([starts, starts + lengths])
    inserted = placed.inserted.get(name, Insertions())
    return join_cuts(placed.lengths[name], there, inserted, edges, own)


def _uneven_misfit(
    cuts: NDArray[np.int64], before: Sequence[int], file: OwnChunks, name: str
) -> str | None:
    """Return why the chunks of a file cannot be chunks of the array."""
    if file.length % file.chunk:
        last = file.length % file.chunk
        return (
            f"the last of its chunks of {file.chunk} steps along {name!r} has only {last} of them;"
            " it is stored with padding, so no reference can point to a shorter chunk"
        )
    if isinstance(before, range) and before[-1] != before.stop - before.step:
        return (
            f"existing chunks of {before.step} steps along {name!r} do not end where existing steps"
            " do, so chunks of another length cannot follow"
        )
    if not fits(cuts, file):
        return (
            f"its chunks of {file.chunk} steps along {name!r} are not those of other files, or of"
            " the dataset, at the same steps"
        )
    return None


def _unaligned(
    stored: Sequence[FileFacts],
    files: Sequence[FileFacts],
    families: Families,
    placed: PlacedFiles,
    existing: Existing | None,
    cuts: Mapping[str, NDArray[np.int64]],
) -> dict[int, Misfit]:
    """Find files that would not begin and end with a chunk; `cuts` are those of uneven arrays."""
    misfits = {} if existing is None else _immovable(files, placed, existing, cuts)
    for path in families.paths:
        _, schema, numbers = _holders(files, families, placed, path)
        if not numbers or _is_native(files, numbers, schema):
            continue
        growing = _growing(schema, placed)
        for axis, name in growing[1:] if path in cuts else growing:
            chunk = _chunk(stored, files, numbers, schema, axis, placed, existing)
            rows = [placed.row(number) for number in numbers]
            starts = placed.starts[name][rows]
            lengths = np.array([files[number].lengths[name] for number in numbers], np.int64)
            ends = starts + lengths
            is_odd = (lengths % chunk != 0) & (ends != placed.lengths[name])
            if not is_odd.any():
                is_odd = starts % chunk != 0
            for number in np.array(numbers)[is_odd].tolist():
                misfits.setdefault(number, _unaligned_misfit(files[number], path, name, chunk))
            for number in numbers if axis == growing[0][0] else ():
                whole = files[number].chunks.get(path, chunk)
                if whole % chunk:
                    text = f"{path}: {whole} steps along {name!r} cannot be cut into chunks of"
                    misfit = Misfit(files[number].url, Kind.UNALIGNED, f"{text} {chunk}", path)
                    misfits.setdefault(number, misfit)
    return misfits


def _immovable(
    files: Sequence[FileFacts],
    placed: PlacedFiles,
    existing: Existing,
    cuts: Mapping[str, NDArray[np.int64]],
) -> dict[int, Misfit]:
    """Find files before existing steps that would move a part of a chunk, or by a part of one."""
    misfits: dict[int, Misfit] = {}
    for array in existing.schema.arrays:
        if array.path in existing.values:
            continue
        for axis, name in enumerate(array.dimensions):
            inserted, chunk = placed.inserted.get(name, Insertions()), array.chunks[axis]
            if array.path in cuts and name == _first_of(array, placed):
                before = _existing_cuts(existing, array.path, axis, name)
                faults = split_runs(before, inserted, name)
            elif chunk == ANY_CHUNK:
                continue
            else:
                faults = _split_chunks(inserted, name, chunk)
            if not faults:
                continue
            for number, run in zip(
                placed.files, inserted.run_of(placed.starts[name]).tolist(), strict=True
            ):
                if run in faults:
                    room = "" if array.path in cuts else ", or with gaps='leave'"
                    text = (
                        f"{array.path}: {faults[run]}: ingest all files again, as copies of their"
                        f" values{room}"
                    )
                    misfit = Misfit(files[number].url, Kind.UNALIGNED, text, array.path)
                    misfits.setdefault(number, misfit)
    return misfits


def _first_of(array: ArraySchema, placed: PlacedFiles) -> str | None:
    """Name the first dimension of an array that files are joined along."""
    return next((name for name in array.dimensions if name in placed.lengths), None)


def _split_chunks(inserted: Insertions, name: str, chunk: int) -> dict[int, str]:
    """Return why existing chunks cannot move, by the number of the run that is inserted."""
    faults: dict[int, str] = {}
    for run, (position, count) in enumerate(inserted.runs):
        if position % chunk:
            faults[run] = (
                f"it belongs before step {position} along {name!r}, which lies within an existing"
                f" chunk of {chunk} steps"
            )
        elif count % chunk:
            faults[run] = (
                f"the {counted(count, 'step')} along {name!r} before step {position} do not fill"
                f" chunks of {chunk}, so existing chunks cannot move"
            )
    return faults


def _unaligned_misfit(file: FileFacts, path: str, name: str, chunk: int) -> Misfit:
    return Misfit(
        file.url,
        Kind.UNALIGNED,
        f"{path}: {file.lengths[name]} steps along {name!r} do not fill chunks of {chunk},"
        " so what follows would lie across chunks",
        path,
    )


def _chunk(
    stored: Sequence[FileFacts],
    files: Sequence[FileFacts],
    numbers: Sequence[int],
    schema: ArraySchema,
    axis: int,
    placed: PlacedFiles,
    existing: Existing | None,
) -> int:
    """Choose the chunk length along a growing axis."""
    there = None if existing is None else existing.schema.by_path.get(schema.path)
    if there is not None and there.chunks[axis] != ANY_CHUNK:
        return there.chunks[axis]
    own = _stored_schema(stored[numbers[0]], schema.path).chunks[axis]
    if own != ANY_CHUNK:
        return own
    rows = [placed.row(number) for number in numbers]
    wholes = [files[number].chunks[schema.path] for number in numbers]
    name = schema.dimensions[axis]
    return max(1, math.gcd(*wholes, *placed.starts[name][rows].tolist()))


def _growing(schema: ArraySchema, placed: PlacedFiles) -> tuple[tuple[int, str], ...]:
    return tuple(
        (axis, name) for axis, name in enumerate(schema.dimensions) if name in placed.lengths
    )


def _is_native(files: Sequence[FileFacts], numbers: Sequence[int], schema: ArraySchema) -> bool:
    """Return whether all files gave the values of an array, so that no reference is needed."""
    return all(schema.path in files[number].values for number in numbers)


def _notes_of_moves(placed: PlacedFiles, existing: Existing | None) -> list[str]:
    """Return how many existing steps moved along each dimension."""
    assert existing is not None or not placed.inserted, "new steps come before existing ones"
    return [
        f"{counted(inserted.steps, 'step')} along {name!r} came before existing ones:"
        f" {counted(existing.lengths[name] - inserted.runs[0][0], 'step')} moved"
        for name, inserted in placed.inserted.items()
        if existing is not None
    ]


def _notes_of_chunks(cuts: Mapping[str, object]) -> list[str]:
    """Name the setting that other programs need to open arrays."""
    if not cuts:
        return []
    return [
        f"the chunks of {', '.join(sorted(cuts))} have different lengths: Zarr without Icefloe"
        f" opens them after zarr.config.set({{'{RECTILINEAR}': True}})"
    ]


_MOST_NOTES: Final = 20


def _notes_of_parsers(files: Sequence[FileFacts]) -> list[str]:
    """Return what parsers left out, each text once."""
    notes = list(dict.fromkeys(note for file in files for note in file.notes))
    hidden = len(notes) - _MOST_NOTES
    return [*notes[:_MOST_NOTES], *([f"... and {hidden} more notes"] if hidden > 0 else [])]


def _native_values(
    files: Sequence[FileFacts],
    families: Families,
    placed: PlacedFiles,
    existing: Existing | None,
) -> dict[str, list[tuple[int, NDArray[Any]]]]:
    native: dict[str, list[tuple[int, NDArray[Any]]]] = {}
    for path in families.paths:
        _, schema, numbers = _holders(files, families, placed, path)
        if not numbers or not _is_native(files, numbers, schema):
            continue
        [(_, name), *_] = _growing(schema, placed)
        target = _units_of(files, numbers, path, existing)
        runs: dict[int, NDArray[Any]] = {}
        for number in numbers:
            start = int(placed.starts[name][placed.row(number)])
            runs.setdefault(start, _in_units(files[number].values[path], target))
        native[path] = sorted(runs.items(), key=lambda run: run[0])
        if path == placed.coordinates.get(name):
            native[path] += placed.filled(name, target)
    return native


def _units_of(
    files: Sequence[FileFacts], numbers: Sequence[int], path: str, existing: Existing | None
) -> LoadedValues:
    if existing is not None and path in existing.values:
        return existing.values[path]
    return files[numbers[0]].values[path]


def _in_units(loaded: LoadedValues, target: LoadedValues) -> NDArray[Any]:
    """Write times in the units of the target; everything else stays as it is."""
    if (loaded.units, loaded.calendar) == (target.units, target.calendar):
        return loaded.values
    units, target_units = (
        parse_units(values.units, values.calendar) for values in (loaded, target)
    )
    if units is None or target_units is None:
        return loaded.values  # other units are compared as part of the schema
    return target_units.values(units.moments(loaded.values), target.values.dtype)


def _target(
    stored: Sequence[FileFacts],
    files: Sequence[FileFacts],
    families: Families,
    placed: PlacedFiles,
    path: str,
    attributes: Mapping[str, Any],
    native: Mapping[str, list[tuple[int, NDArray[Any]]]],
    existing: Existing | None,
    cuts: NDArray[np.int64] | None,
) -> TargetArray:
    having, schema, numbers = _holders(files, families, placed, path)
    growing = _growing(schema, placed)
    axes = dict(growing)
    shape = _shape(schema, placed)
    all_attributes = _all_attributes(schema, attributes)
    if path in native:
        loaded = _units_of(files, numbers, path, existing)
        if not loaded.inherits:
            all_attributes |= {
                name: setting
                for name, setting in (("units", loaded.units), ("calendar", loaded.calendar))
                if setting is not None
            }
        lacks = len(numbers) < _size_of(families, placed, having)
        original = _stored_schema(stored[numbers[0]], path)
        schema = _fillable(schema, original.fill_value, original.data_type, lacks=lacks)
        return TargetArray(
            path,
            native_metadata(schema, shape, all_attributes),
            growing,
            is_native=True,
            families=having,
        )
    uneven_axis = growing[0][0] if cuts is not None else None
    chunks = tuple(
        ANY_CHUNK
        if axis == uneven_axis
        else _chunk(stored, files, numbers, schema, axis, placed, existing)
        if axis in axes
        else length
        for axis, length in enumerate(schema.chunks)
    )
    metadata = array_metadata(schema, shape, chunks, list(schema.codecs), all_attributes)
    if cuts is not None and uneven_axis is not None:
        metadata["chunk_grid"] = grid_of(shape, chunks, uneven_axis, cuts.tolist())
    return TargetArray(path, metadata, growing, is_native=False, families=having)


def _shape(schema: ArraySchema, placed: PlacedFiles) -> tuple[int, ...]:
    axes = dict(_growing(schema, placed))
    return tuple(
        placed.lengths[axes[axis]] if axis in axes else length
        for axis, length in enumerate(schema.shape)
    )


def _all_attributes(schema: ArraySchema, attributes: Mapping[str, Any]) -> dict[str, Any]:
    encoding = {name: it for name, it in schema.encoding.items() if name != PARENT_UNITS}
    return {**attributes, **encoding}


def _copied_target(
    stored: Sequence[FileFacts],
    files: Sequence[FileFacts],
    families: Families,
    placed: PlacedFiles,
    path: str,
    attributes: Mapping[str, Any],
    rules: CopyRules,
) -> TargetArray:
    """Describe an array whose values are copied; chunks are those that most files have."""
    having, schema, numbers = _holders(files, families, placed, path)
    originals = [_stored_schema(stored[number], path) for number in numbers]
    settings = _all_attributes(schema, attributes)
    is_decoded = any(decoding_of(array, rules) is not None for array in originals)
    if is_decoded:
        settings = {name: it for name, it in settings.items() if name not in DECODED_ATTRIBUTES}
    described = _fillable(
        replace(schema, encoding=settings),
        originals[0].fill_value,
        None if is_decoded else originals[0].data_type,
        lacks=len(numbers) < _size_of(families, placed, having),
    )
    shape = _shape(schema, placed)
    usual = _usual_chunks(stored, numbers, originals)
    chunks = tuple(max(1, min(chunk, length)) for chunk, length in zip(usual, shape, strict=True))
    metadata = array_metadata(
        described, shape, chunks, copied_codecs(described.data_type), settings
    )
    growing = _growing(schema, placed)
    return TargetArray(path, metadata, growing, is_native=False, families=having)


def _size_of(families: Families, placed: PlacedFiles, having: Collection[int]) -> int:
    return sum(families.of_file[number] in having for number in placed.files)


def _fillable(schema: ArraySchema, fill: Any, stored_type: Any, *, lacks: bool) -> ArraySchema:
    """Return a schema with the fill value of a copy.

    It is that of the files if their type stays and none of them lacks the array; else it stands
    for missing values. Numbers that cannot be missing become those that can.
    """
    data_type = schema.data_type
    if lacks or data_type != stored_type:
        fill = missing_marker(data_type, schema.encoding)
    if fill is None and lacks:
        data_type = with_missing(np.dtype(data_type)).name
        fill = missing_marker(data_type, {})
    usual = "" if data_type == "string" else 0
    return replace(schema, data_type=data_type, fill_value=usual if fill is None else fill)


def _stored_schema(file: FileFacts, path: str) -> ArraySchema:
    assert file.schema is not None, "files with problems are not used"
    return file.schema.by_path[path]


def _usual_chunks(
    stored: Sequence[FileFacts], numbers: Sequence[int], originals: Sequence[ArraySchema]
) -> tuple[int, ...]:
    """Return the chunk shape that most files have."""
    found = Counter(
        tuple(
            stored[number].chunks[array.path] if chunk == ANY_CHUNK else chunk
            for chunk in array.chunks
        )
        for number, array in zip(numbers, originals, strict=True)
    )
    return found.most_common(1)[0][0]


def copied_codecs(data_type: Any) -> list[Any]:
    """Return codecs that a description of values needs; nothing is stored with them."""
    if data_type == "string":
        return [{"name": "vlen-utf8", "configuration": {}}]
    return [{"name": "bytes", "configuration": {"endian": "little"}}]
