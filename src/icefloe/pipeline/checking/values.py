"""Compare a sample of values: read through our references, and by an independent reader.

The sample has some chunks of each array, and some parts of chunks that are large.
"""

import math
import random
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icefloe.effects import run_blocking
from icefloe.errors import (
    ErrorKind,
    FormatError,
    IcefloeError,
    InvalidInputError,
    ObjectNotFoundError,
    SourceError,
)
from icefloe.format.paths import joined_path
from icefloe.pipeline.checking.readers import (
    Axis,
    ChunkPlace,
    Expected,
    NotComparableError,
    OtherChunkError,
    Reader,
    Region,
    Source,
    open_reader,
)
from icefloe.pipeline.combining.combine import Combined, PlacedFile, TargetArray
from icefloe.pipeline.combining.report import (
    CheckedValues,
    Mismatch,
    Report,
    Unchecked,
    ValuesMismatchError,
    sum_checks,
)
from icefloe.pipeline.files.editing import NOT_IN_FILE
from icefloe.pipeline.files.facts import FileFacts, SourceState
from icefloe.pipeline.files.options import HEAD_BYTES, Format, ValueCheck, detect_format
from icefloe.pipeline.files.parsing import is_unchanged
from icefloe.pipeline.files.references import References, decode_chunk, read_values
from icefloe.pipeline.files.sources import SourceAccess, look_at
from icefloe.records import MutableRecord, Record, field, replace

_PART_BYTES: Final = 1 << 20
"""Chunks of plain bytes that are larger are compared in such parts."""
_LARGEST_BYTES: Final = 256 << 20
"""Compressed chunks that are larger when they are decoded are not compared."""
_UNKNOWN_BYTES: Final = 64
_POINTWISE: Final = frozenset({"numcodecs.fixedscaleoffset"})
"""Codecs that treat each value by itself."""


class Part(Record):
    """A chunk, or a part of one."""

    cell: tuple[int, ...]
    """Of the grid of the dataset."""
    region: Region
    """In the file, with the axes that the dataset has."""
    shape: tuple[int, ...]
    """To be decoded; larger than the region at the edges of an array."""
    location: str | None = None
    start: int = 0
    end: int = 0
    data: bytes | None = None
    """Of a chunk that is given as bytes."""


def whole_chunk(
    placed: References,
    row: int | None,
    cell: tuple[int, ...],
    chunks: tuple[int, ...],
    origin: Sequence[int],
    extents: Sequence[int],
) -> Part:
    """Describe a chunk by its row; None for one that is not stored."""
    region = tuple(
        slice(begin, begin + extent) for begin, extent in zip(origin, extents, strict=True)
    )
    if row is None:
        return Part(cell, region, chunks)
    if row >= len(placed):
        return Part(cell, region, chunks, data=bytes(placed.inlined[row - len(placed)]))
    start = int(placed.offsets[row])
    location = placed.locations[int(placed.location_rows[row])]
    return Part(cell, region, chunks, location, start, start + int(placed.lengths[row]))


def sampled_cells(
    placed: References,
    low: Sequence[int],
    grid: tuple[int, ...],
    count: int | None,
    chance: random.Random,
) -> Iterator[tuple[tuple[int, ...], int | None]]:
    """Choose chunks, each with its row; those given as bytes follow all others.

    Of a sample the first, the last, some between, and one that is not stored if there is any.
    """
    inlined = placed.inlined_coordinates.reshape(len(placed.inlined), len(low))
    stored = np.concatenate([placed.coordinates, inlined])
    cells = stored - np.array(low, np.int64)
    is_inside = ((cells >= 0) & (cells < np.array(grid, np.int64))).all(axis=1)
    numbers = _chosen(len(stored), count, chance)
    for row in [*np.flatnonzero(~is_inside)[:1].tolist(), *numbers]:
        yield tuple(stored[row].tolist()), row
    total = math.prod(grid)
    if total <= int(is_inside.sum()):
        return
    flat = np.zeros(0, np.int64)
    if grid:
        flat = np.unique(np.ravel_multi_index(tuple(cells[is_inside].T), grid))
    gaps = np.flatnonzero(flat != np.arange(len(flat)))
    absent = [int(gaps[0]) if len(gaps) else len(flat)]
    if count is None:
        absent = np.setdiff1d(np.arange(total), flat).tolist()
    for number in absent:
        cell = np.unravel_index(number, grid) if grid else ()
        yield tuple(int(a) + b for a, b in zip(cell, low, strict=True)), None


def _chosen(total: int, count: int | None, chance: random.Random) -> list[int]:
    """Choose numbers below `total`: the first, the last, and some between.

    >>> _chosen(100, 3, random.Random(0))
    [0, 50, 99]
    >>> _chosen(2, 3, random.Random(0)), _chosen(4, None, random.Random(0))
    ([0, 1], [0, 1, 2, 3])
    """
    if count is None or total <= count:
        return list(range(total))
    between = chance.sample(range(1, total - 1), count - 2) if count > 2 else []
    return [0, *sorted(between), total - 1][:count]


def cut(
    array: TargetArray, whole: Part, count: int | None, chance: random.Random
) -> Iterator[Part]:
    """Yield a chunk, or parts of one whose bytes are plain and many."""
    chunks, size = whole.shape, whole.end - whole.start
    decoded = math.prod(chunks) * (_itemsize(array.metadata["data_type"]) or _UNKNOWN_BYTES)
    is_plain = whole.location is not None and _is_plain(array) and size % math.prod(chunks) == 0
    if whole.location is None and whole.data is None:  # nothing but the fill value
        yield _shortened(whole, decoded)
        return
    if decoded <= _PART_BYTES or not (is_plain and chunks):
        if decoded > _LARGEST_BYTES:
            raise NotComparableError(f"its chunks take {decoded} bytes, which is too much")
        yield whole
        return
    item_bytes = size // math.prod(chunks)
    axis = next(
        axis
        for axis in range(len(chunks))
        if math.prod(chunks[axis + 1 :]) * item_bytes <= _PART_BYTES or axis == len(chunks) - 1
    )
    row_bytes = math.prod(chunks[axis + 1 :]) * item_bytes
    rows = max(1, _PART_BYTES // row_bytes)
    extents = [part.stop - part.start for part in whole.region]
    counts = (*extents[:axis], -(-extents[axis] // rows))
    for number in _chosen(math.prod(counts), count, chance):
        *leading, step = map(int, np.unravel_index(number, counts))
        begin, end = step * rows, min((step + 1) * rows, extents[axis])
        before = 0
        for index, length in zip(leading, chunks[:axis], strict=True):
            before = before * length + index
        start = whole.start + (before * chunks[axis] + begin) * row_bytes
        region = (
            *(
                slice(part.start + index, part.start + index + 1)
                for part, index in zip(whole.region[:axis], leading, strict=True)
            ),
            slice(whole.region[axis].start + begin, whole.region[axis].start + end),
            *whole.region[axis + 1 :],
        )
        shape = (*(1,) * axis, end - begin, *chunks[axis + 1 :])
        stop = start + (end - begin) * row_bytes
        yield replace(whole, region=region, shape=shape, start=start, end=stop)


def _shortened(part: Part, decoded: int) -> Part:
    """Take the first value of a chunk that is not stored, if all of them would be too many."""
    if decoded <= _LARGEST_BYTES:
        return part
    first_item = tuple(slice(span.start, span.start + 1) for span in part.region)
    return replace(part, region=first_item, shape=(1,) * len(first_item))


def _is_plain(array: TargetArray) -> bool:
    """Return whether a range of the bytes of a chunk is a range of its values."""
    *before, last = [codec["name"] for codec in array.metadata["codecs"]]
    return last == "bytes" and not set(before) - _POINTWISE


def _itemsize(data_type: Any) -> int | None:
    if isinstance(data_type, Mapping):
        length: int | None = data_type.get("configuration", {}).get("length_bytes")
        return length
    try:
        size: int = np.dtype(data_type).itemsize
    except TypeError:
        return None
    return size


def first_difference(got: NDArray[Any], expected: Expected) -> tuple[int, ...] | None:
    """Return the index of the first value that differs; None if there is none.

    >>> first_difference(np.array([1.0, np.nan]), Expected(np.array([1.0, np.nan])))
    >>> first_difference(np.array([1, 2]), Expected(np.array([1, 3])))
    (1,)
    """
    differs = _differs(got, expected.values, expected.tolerance, expected.period)
    if not differs.any():
        return None
    return tuple(int(number) for number in np.argwhere(differs)[0])


def _differs(
    got: NDArray[Any], expected: NDArray[Any], tolerance: float, period: float
) -> NDArray[np.bool_]:
    if got.dtype.names is not None and expected.dtype.names is not None:
        if len(got.dtype.names) != len(expected.dtype.names):
            return np.ones(got.shape, np.bool_)
        pairs = zip(got.dtype.names, expected.dtype.names, strict=True)
        columns = [_differs(got[a], expected[b], tolerance, period) for a, b in pairs]
        return np.asarray(np.logical_or.reduce(columns))
    if got.dtype.kind in "SUTO" or expected.dtype.kind in "SUTO":
        return np.asarray(_texts(got) != _texts(expected))
    if tolerance or period:
        return _far_apart(got, expected, tolerance, period)
    left, other = _native(got), _native(expected)
    if left.dtype != other.dtype:
        is_nan = _is_nan(left) & _is_nan(other)
        return np.asarray((left != other) & ~is_nan)
    return _other_bits(left, other)


def _far_apart(
    got: NDArray[Any], expected: NDArray[Any], tolerance: float, period: float
) -> NDArray[np.bool_]:
    is_nan = _is_nan(got) & _is_nan(expected)
    with np.errstate(invalid="ignore"):  # infinite values have no difference
        apart = np.where(got == expected, 0.0, got.astype(np.float64) - expected)
    if period:
        apart -= period * np.round(apart / period)
    return np.asarray(~(np.abs(apart) <= tolerance) & ~is_nan)


def _other_bits(left: NDArray[Any], other: NDArray[Any]) -> NDArray[np.bool_]:
    if left.dtype.kind == "c":
        return _other_bits(left.real.copy(), other.real.copy()) | _other_bits(
            left.imag.copy(), other.imag.copy()
        )
    if left.dtype.kind != "f":
        return np.asarray(left != other)
    bits = np.dtype(f"u{left.dtype.itemsize}")
    same = np.ascontiguousarray(left).view(bits) == np.ascontiguousarray(other).view(bits)
    is_nan = _is_nan(left) & _is_nan(other)
    return np.asarray(~(same | is_nan)).reshape(left.shape)


def _native_type(values: NDArray[Any]) -> np.dtype[Any]:
    """Return the type in the byte order of this machine; text of any length has none."""
    return values.dtype if values.dtype.kind == "T" else values.dtype.newbyteorder("=")


def _native(values: NDArray[Any]) -> NDArray[Any]:
    if values.dtype.kind in "mM":
        return values.astype(values.dtype.newbyteorder("=")).view(np.int64)
    return values.astype(values.dtype.newbyteorder("="))


def _is_nan(values: NDArray[Any]) -> NDArray[np.bool_]:
    if values.dtype.kind not in "fc":
        return np.zeros(values.shape, np.bool_)
    return np.asarray(np.isnan(values))


def _texts(values: NDArray[Any]) -> NDArray[Any]:
    """Write all values as text, without the zeros that only fill up a field."""
    texts = np.empty(values.shape, object)
    for index in np.ndindex(values.shape):
        value = values[index]
        if isinstance(value, bytes):
            value = value.decode("utf-8", "surrogateescape")
        texts[index] = str(value).rstrip("\0")
    return texts


def shown_value(values: NDArray[Any], index: tuple[int, ...]) -> str:
    """Return a value as text."""
    value = values[index]
    return repr(value.item() if isinstance(value, np.generic) else value)


_CHUNKS: Final = 3
"""Of each variable of a file in a sample: the first, the last, and one between."""
_ROWS: Final = 32
"""Of loaded values, this many rows at the beginning, in the middle and at the end."""

_INDIRECT: Final = frozenset({Format.KERCHUNK_JSON, Format.KERCHUNK_PARQUET, Format.DMRPP})
"""Formats that only point at other files: these are what is read."""


class CheckPlan(Record):
    """The parameters of the check of any file."""

    arrays: tuple[TargetArray, ...]
    group: str = ""
    """Of the files, which is taken as their root."""
    chunks: int | None = _CHUNKS
    """Of each array of a file; None for all."""


def plan_check(combined: Combined, check: ValueCheck, group: str | None) -> CheckPlan:
    """Plan the check of the arrays of a dataset."""
    return CheckPlan(combined.arrays, group or "", None if check == "all" else _CHUNKS)


def choose_files(
    facts: Sequence[FileFacts], combined: Combined, check: ValueCheck
) -> dict[int, PlacedFile]:
    """Choose the files to check, by number: some of each schema, format and parser.

    Of each kind the first one and the last one are among them, and others by chance, which is
    the same each time.
    """
    if check == "none":
        return {}
    rows: dict[tuple[object, ...], list[int]] = {}
    for row, number in enumerate(combined.files):
        file = facts[number]
        digest = None if file.schema is None else file.schema.digest
        rows.setdefault((file.format, file.parser, digest), []).append(row)
    chosen = sorted(row for kind in rows.values() for row in _some(kind, check))
    return {combined.files[row]: combined.placed_file(row, facts) for row in chosen}


def _some(rows: Sequence[int], check: ValueCheck) -> Sequence[int]:
    if not isinstance(check, int) or len(rows) <= check:
        return rows
    if check == 1:
        return rows[:1]
    between = random.Random(len(rows)).sample(rows[1:-1], check - 2)  # noqa: S311 - no secret
    return [rows[0], *between, rows[-1]]


def require_same_values(
    report: Report,
    checks: Sequence[CheckedValues],
    facts: Sequence[FileFacts],
    access: SourceAccess,
) -> Report:
    """Put what was compared into a report; raise `ValuesMismatchError` if values differ."""
    checked = sum_checks(checks)
    if checked.mismatches:
        url = checked.mismatches[0].url
        before = next(file.state for file in facts if file.url == url)
        if before.size is not None and not _is_as_before(before, access):
            raise SourceError(
                f"{url} changed after it was parsed: wait until it is complete and try again",
                ErrorKind.SOURCE_CHANGED,
                url=url,
            )
        raise ValuesMismatchError(checked)
    return replace(report, checked=checked)


def _is_as_before(before: SourceState, access: SourceAccess) -> bool:
    try:
        return is_unchanged(before, run_blocking(look_at(before.url, access)))
    except ObjectNotFoundError:
        return False


# -- one file --------------------------------------------------------------------------------


def check_file(
    file: PlacedFile,
    references: Mapping[str, References],
    plan: CheckPlan,
    access: SourceAccess,
) -> CheckedValues:
    """Compare values of a file; `references` are as parsed, by path of array.

    Failures of the storage are raised; everything else is part of the outcome.
    """
    began = time.perf_counter()
    check = _FileCheck(file, references, plan, access)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zarr and readers warn of unusual types and codecs
        check.run()
    return replace(check.outcome(), seconds=time.perf_counter() - began)


@contextmanager
def _blaming(what: str, failures: Sequence[Exception]) -> Iterator[None]:
    """Turn what a library raises into `NotComparableError`, but for failures of the storage."""
    try:
        yield
    except (IcefloeError, NotComparableError, OtherChunkError, KeyError):
        raise
    except Exception as error:
        if failures:
            raise failures[-1] from error
        raise NotComparableError(f"{what}: {_shown(error)}") from error


class _Asked(Record):
    """A reader whose failures are distinguished from ours."""

    reader: Reader
    failures: Sequence[Exception]

    def shape(self, path: str) -> tuple[int, ...] | None:
        with _blaming(f"{self.reader.name} cannot read it", self.failures):
            return self.reader.shape(path)

    def read(self, path: str, region: Region, chunk: ChunkPlace) -> Expected:
        with _blaming(f"{self.reader.name} cannot read it", self.failures):
            return self.reader.read(path, region, chunk)


class _FileCheck(MutableRecord):
    file: PlacedFile
    references: Mapping[str, References]
    plan: CheckPlan
    access: SourceAccess
    chunks: int = 0
    values: int = 0
    reader: str = ""
    unchecked: list[Unchecked] = field(default_factory=list)
    mismatches: list[Mismatch] = field(default_factory=list)

    @property
    def url(self) -> str:
        return self.file.facts.url

    @property
    def kind(self) -> Format:
        assert self.file.facts.format is not None, "files with problems are not used"
        return Format(self.file.facts.format)

    @property
    def is_indirect(self) -> bool:
        return self.kind in _INDIRECT

    def outcome(self) -> CheckedValues:
        readers = {self.reader: self.chunks} if self.chunks else {}
        return CheckedValues(
            files=int(self.chunks > 0),
            chunks=self.chunks,
            values=self.values,
            readers=readers,
            unchecked=tuple(self.unchecked),
            mismatches=tuple(self.mismatches),
        )

    def run(self) -> None:
        failures: list[Exception] = []
        try:
            with self._open(failures) as reader:
                self.reader = reader.name
                asked = _Asked(reader, failures)
                for array in self.plan.arrays:
                    self._check_array(array, asked)
        except NotComparableError as error:
            self._leave_out("", str(error))

    @contextmanager
    def _open(self, failures: list[Exception]) -> Iterator[Reader]:
        kind, url = self.kind, self.url
        if self.is_indirect:
            kind, url = self._file_pointed_at()
        source = Source(self.access.place(url), self.plan.group, failures)
        with ExitStack() as stack:
            with _blaming("it cannot be opened independently", failures):
                reader = stack.enter_context(open_reader(kind, source))
            yield reader

    def _file_pointed_at(self) -> tuple[Format, str]:
        locations = {text for reference in self.references.values() for text in reference.locations}
        if len(locations) != 1:
            raise NotComparableError(f"its chunks lie in {len(locations)} files")
        [url] = locations
        source = self.access.place(url)
        [head] = source.read([(0, min(source.size(), HEAD_BYTES))])
        kind = detect_format(bytes(head))
        if kind is None:
            raise NotComparableError(f"{url}, which it points at, is of an unknown format")
        return kind, url

    def _name(self, path: str) -> str:
        """Name an array or a dimension as the file does."""
        return self.file.facts.names.get(path, path)

    def _leave_out(self, path: str, reason: str) -> None:
        self.unchecked.append(Unchecked(reason, path, self.url))

    def _refuse(
        self,
        path: str,
        expected: str,
        got: str,
        part: Part | None = None,
        index: Sequence[int] = (),
    ) -> None:
        cell = () if part is None else part.cell
        self.mismatches.append(
            Mismatch(
                url=self.url,
                path=path,
                chunk=cell,
                index=tuple(index),
                expected=expected,
                got=got,
                reader=self.reader,
            )
        )

    # -- arrays ------------------------------------------------------------------------------

    def _check_array(self, array: TargetArray, asked: "_Asked") -> None:
        path = array.path
        is_loaded = path in self.file.facts.values
        is_giver = self.file.family in array.families
        if not is_giver or not (is_loaded or path in self.references):
            return
        if self._name(path) == NOT_IN_FILE:
            return
        try:
            added = self._added_axes(array, asked)
            if added is None:
                return
            for part in self._loaded_parts(array) if is_loaded else self._parts(array):
                if not self._check_part(array, part, added, asked):
                    return
        except NotComparableError as error:
            self._leave_out(path, str(error))

    def _added_axes(self, array: TargetArray, asked: "_Asked") -> int | None:
        """Count the axes that the dataset has before those of the file; None if it is refused."""
        shape = self._shape(array)
        try:
            actual = asked.shape(self._name(array.path))
        except KeyError:
            if self.is_indirect:
                raise NotComparableError(f"{self.reader} finds no such array") from None
            self._refuse(array.path, "no such array", f"an array of the shape {list(shape)}")
            return None
        if actual is None:
            return 0
        added = len(shape) - len(actual)
        if added < 0 or shape[added:] != actual or set(shape[:added]) - {1}:
            if self.is_indirect:
                raise NotComparableError(f"it has another shape in the file: {list(actual)}")
            self._refuse(array.path, f"the shape {list(actual)}", f"the shape {list(shape)}")
            return None
        return added

    def _shape(self, array: TargetArray) -> tuple[int, ...]:
        """Return the lengths of an array in the file."""
        shape = list(array.metadata["shape"])
        for axis, name in array.growing:
            shape[axis] = self.file.facts.lengths[name]
        return tuple(shape)

    def _check_part(self, array: TargetArray, part: Part, added: int, asked: "_Asked") -> bool:
        """Compare a part; return whether it makes sense to go on with the array."""
        path = array.path
        lengths = tuple(span.stop - span.start for span in part.region)
        got = self._decoded(array, part, lengths)
        offset = None if part.location is None else part.start
        attributes = array.metadata["attributes"]
        number = array.metadata["codecs"][0].get("configuration", {}).get("field", 0)
        chunk_place = ChunkPlace(offset, self._axes(array, part), attributes, number)
        try:
            expected = asked.read(self._name(path), part.region[added:], chunk_place)
        except OtherChunkError as error:
            self._refuse(path, error.expected, error.got, part)
            return False
        except NotComparableError as error:
            if isinstance(got, str):  # neither of both can read it: it is damaged
                self._refuse(path, f"nothing ({error})", got, part)
                return False
            raise
        if isinstance(got, str):
            self._refuse(path, "values", got, part)
            return False
        expected_part = replace(expected, values=expected.values.reshape(lengths))
        types = [_native_type(values) for values in (got, expected_part.values)]
        if self.is_indirect and types[0] != types[1]:
            raise NotComparableError(f"it has another type in the file: {types[1]}")
        self.chunks += 1
        self.values += got.size
        at = first_difference(got, expected_part)
        if at is None:
            return True
        index = [span.start + step for span, step in zip(part.region, at, strict=True)]
        values = shown_value(expected_part.values, at), shown_value(got, at)
        self._refuse(path, *values, part, index[added:])
        return False

    def _decoded(
        self, array: TargetArray, part: Part, lengths: Sequence[int]
    ) -> NDArray[Any] | str:
        """Read a part as zarr will; return why that is not possible."""
        if array.path in self.file.facts.values:
            return np.asarray(self.file.facts.values[array.path].values[part.region])
        data: Any = part.data
        try:
            if part.location is not None:
                [data] = self.access.place(part.location).read([(part.start, part.end)])
            decoded = decode_chunk(array.metadata, part.shape, data)
            return np.asarray(decoded[tuple(slice(0, length) for length in lengths)])
        except (FormatError, InvalidInputError, ObjectNotFoundError) as error:  # or other bytes
            return f"an error: {_shown(error)}"
        except IcefloeError:
            raise
        except Exception as error:  # noqa: BLE001 - codecs raise anything for wrong bytes
            return f"an error: {_shown(error)}"

    def _axes(self, array: TargetArray, part: Part) -> dict[str, Axis]:
        """Return the coordinates over a part, for formats whose chunks have no names."""
        if self.kind is not Format.GRIB:
            return {}
        group, _, _ = array.path.rpartition("/")
        spans = dict(zip(array.metadata["dimension_names"], part.region, strict=True))
        pointed = str(array.metadata["attributes"].get("coordinates", "")).split()
        axes = {}
        for name in (*spans, *pointed):
            path = joined_path(group, name)
            target = next((other for other in self.plan.arrays if other.path == path), None)
            if target is None or len(target.metadata["shape"]) != int(name in spans):
                continue
            if path in self.file.facts.values:
                values = self.file.facts.values[path].values
            elif path in self.references:
                values = read_values(target.metadata, self.references[path], self.access)
            else:
                continue
            if (name_in_file := self._name(str(name))) != NOT_IN_FILE:
                axes[name_in_file] = Axis(values[spans[name]] if name in spans else values)
        return axes

    # -- parts -------------------------------------------------------------------------------

    def _loaded_parts(self, array: TargetArray) -> Iterator[Part]:
        """Cut values that were loaded while parsing: some rows of them, or all."""
        shape = self.file.facts.values[array.path].values.shape
        rows = shape[0] if shape else 1
        spans = [(0, rows)]
        if self.plan.chunks is not None and rows > 3 * _ROWS:
            starts = (0, rows // 2, rows - _ROWS)
            spans = [(start, start + _ROWS) for start in starts]
        rest = tuple(slice(0, length) for length in shape[1:])
        begin = self.file.starts[array.growing[0][1]] if array.growing else 0
        for start, end in spans:
            region = (slice(start, end), *rest) if shape else ()
            yield Part(((begin + start) // array.chunks[0],), region, ())

    def _parts(self, array: TargetArray) -> Iterator[Part]:
        placed = self.file.references_in(array, self.references[array.path])
        shape, cells = self._shape(array), array.cells
        first = [0] * len(shape)
        for axis, name in array.growing:
            first[axis] = self.file.starts[name]
        low = [int(own.of(np.array([start]))[0]) for own, start in zip(cells, first, strict=True)]
        ends = np.array([first, shape]).sum(axis=0) - 1
        grid = tuple(
            int(own.of(np.array([end]))[0]) + 1 - begin
            for own, end, begin in zip(cells, ends.tolist(), low, strict=True)
        )
        chance = random.Random(f"{self.url}#{array.path}")  # noqa: S311 - no secret
        for cell, row in sampled_cells(placed, low, grid, self.plan.chunks, chance):
            spans = [own.span(number) for own, number in zip(cells, cell, strict=True)]
            chunks = tuple(chunk for _, chunk in spans)
            origin = [begin - start for (begin, _), start in zip(spans, first, strict=True)]
            extents = [
                min(chunk, length - begin)
                for chunk, length, begin in zip(chunks, shape, origin, strict=True)
            ]
            if any(begin < 0 or extent < 1 for begin, extent in zip(origin, extents, strict=True)):
                outside = Part(cell, (), ())
                self._refuse(array.path, f"the shape {list(shape)}", "a chunk outside", outside)
                return
            whole = whole_chunk(placed, row, cell, chunks, origin, extents)
            yield from cut(array, whole, self.plan.chunks, chance)


def _shown(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}"
