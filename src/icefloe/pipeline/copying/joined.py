"""The dataset that files make, as a source of copies: where the values of a region come from.

Each array is made of pieces, one for each file, and neighbours that are stored alike are one piece.
The values of a piece come either by reference, through chunks that a parser found, or by opening
the file with the library of its format. What files pack differently is unpacked on the way.

References are kept in a staging repository. Files that store everything alike are of one *kind*,
and a group there; there they lie one behind the other so that no two of them share a chunk. So
files need not fill whole chunks, and kinds need nothing in common.
"""

import hashlib
import math
import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import numpy as np
import zarr
from numpy.typing import NDArray
from obspec_utils.readers import BlockStoreReader

from icefloe.api.session import Session
from icefloe.effects import run_blocking
from icefloe.errors import ErrorKind, ObjectNotFoundError, SourceError
from icefloe.format.paths import joined_path
from icefloe.pipeline.combining.combine import (
    Combined,
    Existing,
    TargetArray,
    array_metadata,
)
from icefloe.pipeline.combining.copied import CopyRules, decoding_of
from icefloe.pipeline.combining.insertions import Insertions
from icefloe.pipeline.copying.origins import Needs, RepositorySource
from icefloe.pipeline.copying.pieces import (
    Box,
    Overlap,
    Pieces,
    earlier_pieces,
    packed_starts,
)
from icefloe.pipeline.files.decoding import Decoding, missing_marker
from icefloe.pipeline.files.facts import (
    ANY_CHUNK,
    ArraySchema,
    FileFacts,
    SourceState,
    canonical_json,
)
from icefloe.pipeline.files.hdf5 import open_hdf5, read_part
from icefloe.pipeline.files.parsing import is_unchanged
from icefloe.pipeline.files.sources import SourceAccess, look_at, registry_for
from icefloe.records import Record, asdict, replace

DATASET: Final = "dataset"
"""The group of the staging repository that describes the joined arrays, with small ones."""


def kind_group(number: int) -> str:
    """Name the group with the references of a kind of files."""
    return f"kinds/{number}"


# -- kinds of files --------------------------------------------------------------------------


def find_kinds(facts: Sequence[FileFacts], combined: Combined) -> list[Combined]:
    """Sort files by the way in which they store arrays, and lay those of each kind out."""
    keys: dict[int, str] = {}
    rows_by_kind: dict[tuple[str, int], list[int]] = {}
    for row, number in enumerate(combined.files):
        schema = facts[number].schema
        assert schema is not None, "files with problems are not used"
        key = keys.get(id(schema))
        if key is None:
            alone = sorted(facts[number].unreferenced)
            key = _digest([alone, *(_as_stored(array) for array in schema.arrays)])
            keys[id(schema)] = key
        rows_by_kind.setdefault((key, combined.families[row]), []).append(row)
    return [_kind(facts, combined, rows) for rows in rows_by_kind.values()]


def _as_stored(array: ArraySchema) -> dict[str, Any]:
    """Return what tells how bytes become the numbers of a file."""
    return asdict(replace(array, encoding={}, is_coordinate=False))


def _digest(tree: Any) -> str:
    return hashlib.blake2b(canonical_json(tree).encode(), digest_size=16).hexdigest()


def _kind(facts: Sequence[FileFacts], combined: Combined, rows: Sequence[int]) -> Combined:
    numbers = [combined.files[row] for row in rows]
    first = facts[numbers[0]]
    assert first.schema is not None, "files with problems are not used"
    starts: dict[str, NDArray[np.int64]] = {}
    lengths: dict[str, int] = {}
    for name in combined.starts:
        chunks = _chunks_along(first, facts, numbers, name)
        places, ranks = np.unique(combined.starts[name][list(rows)], return_inverse=True)
        steps = np.zeros(len(places), np.int64)
        np.maximum.at(steps, ranks, [facts[number].lengths[name] for number in numbers])
        packed = packed_starts(steps, chunks)
        starts[name], lengths[name] = packed[ranks], int(packed[-1])
    arrays = [
        joined if joined.is_native else _stored_array(joined, first, facts, numbers, lengths)
        for joined in combined.arrays
        if joined.path in first.schema.by_path and joined.path not in first.unreferenced
    ]
    return replace(
        combined,
        arrays=tuple(replace(array, families=(0,)) for array in arrays),
        files=tuple(numbers),
        families=(0,) * len(numbers),
        starts=starts,
        lengths=lengths,
        inserted={},
        lacking={},
    )


def _chunks_along(
    first: FileFacts, facts: Sequence[FileFacts], numbers: Sequence[int], name: str
) -> list[int]:
    """Return the lengths of chunks along a dimension that there are in arrays by reference."""
    assert first.schema is not None, "files with problems are not used"
    return sorted(
        {
            _chunk(array, array.dimensions.index(name), facts, numbers)
            for array in first.schema.arrays
            if name in array.dimensions and array.path not in first.values
        }
    )


def _chunk(
    array: ArraySchema, axis: int, facts: Sequence[FileFacts], numbers: Sequence[int]
) -> int:
    if array.chunks[axis] != ANY_CHUNK:
        return array.chunks[axis]
    return int(np.gcd.reduce([facts[number].chunks[array.path] for number in numbers]))


def _stored_array(
    joined: TargetArray,
    first: FileFacts,
    facts: Sequence[FileFacts],
    numbers: Sequence[int],
    lengths: Mapping[str, int],
) -> TargetArray:
    """Describe an array as the files of a kind store it."""
    assert first.schema is not None, "files with problems are not used"
    schema = first.schema.by_path[joined.path]
    growing = dict(joined.growing)
    shape = tuple(
        lengths[growing[axis]] if axis in growing else length
        for axis, length in enumerate(schema.shape)
    )
    chunks = tuple(
        _chunk(schema, axis, facts, numbers) if axis in growing else length
        for axis, length in enumerate(schema.chunks)
    )
    settings = {} if joined.path not in first.attributes else dict(first.attributes[joined.path])
    metadata = array_metadata(
        schema, shape, chunks, list(schema.codecs), {**settings, **schema.encoding}
    )
    return TargetArray(joined.path, metadata, joined.growing, is_native=False, families=(0,))


# -- arrays of pieces ------------------------------------------------------------------------


class Values(Protocol):
    """Something that has the values of a piece, as they are stored."""

    def __getitem__(self, box: Box, /) -> Any:
        """Read a box."""
        ...


class Referred(Record):
    """An array whose chunks are found through references."""

    path: str
    """In the staging repository."""

    def open(self, staging: Session, _: SourceAccess) -> Values:
        """Open the array."""
        return RepositorySource(staging).array(self.path)


class InFile(Record):
    """An array that HDF5 reads out of a file."""

    state: SourceState
    name: str
    """With its group."""

    def open(self, _: Session, access: SourceAccess) -> Values:
        """Open the file, unless it is open."""
        return _InOpenFile(self, access)


class Missing(Record):
    """No values: a file lacks the array."""

    marker: Any
    """What stands for missing values, as in `zarr.json`."""

    def open(self, _: Session, __: SourceAccess) -> Values:
        """Return an array of any size."""
        return _MissingValues(self.marker)


class _MissingValues:
    def __init__(self, marker: Any) -> None:
        text = isinstance(marker, str) and marker != ""
        self._value = float(marker) if text else marker  # NaN and infinities are texts in JSON

    def __getitem__(self, box: Box, /) -> NDArray[Any]:
        return np.full(_lengths(box), self._value)


class PieceSource(Record):
    """Where pieces have their values, and what these mean."""

    place: Referred | InFile | Missing
    decoding: Decoding | None = None


class JoinedArray(Record, eq=False):
    """The pieces of an array; what none of them has is missing."""

    pieces: Pieces
    sources: tuple[PieceSource, ...]
    needs: Needs = Needs()
    inserted: tuple[Insertions, ...] | None = None
    """By axis, the steps that come before those that the array has already, whose values show
    where there is no piece. None for a new array."""


class OpenArray:
    """An array of pieces that can be read."""

    def __init__(
        self,
        array: JoinedArray,
        described: "zarr.Array[Any]",
        staging: Session,
        access: SourceAccess,
    ) -> None:
        self._array, self._staging, self._access = array, staging, access
        self._described, self._kind = described, described.dtype
        inserted = array.inserted
        self._earlier = None if inserted is None else earlier_pieces(described.shape, inserted)
        metadata: Any = described.metadata
        self._fill = metadata.fill_value
        self._opened: dict[int, Values] = {}

    def __getitem__(self, box: Box, /) -> NDArray[Any]:
        """Read a box."""
        shape = _lengths(box)
        overlaps = list(self._array.pieces.within(box))
        if len(overlaps) == 1 and _lengths(overlaps[0].target) == shape:
            [overlap] = overlaps
            if self._array.sources[overlap.source].decoding is None:
                values = self._stored(overlap)
                if values.dtype == self._kind:
                    return values
        out: NDArray[Any] = np.empty(shape, self._kind)
        if sum(math.prod(_lengths(overlap.target)) for overlap in overlaps) < out.size:
            out[...] = self._fill
            self._add_earlier(box, out)
        for overlap in overlaps:
            decoding = self._array.sources[overlap.source].decoding
            if decoding is None:
                out[overlap.target] = self._stored(overlap)
            else:
                view: Any = (*overlap.target, ...)  # of a scalar, too
                decoding.into(self._stored(overlap), out[view])
        return out

    def _add_earlier(self, box: Box, out: NDArray[Any]) -> None:
        """Fill in what the array had before."""
        if self._earlier is None:
            return
        for overlap in self._earlier.within(box):
            out[overlap.target] = self._described[overlap.inside]

    def _stored(self, overlap: Overlap) -> NDArray[Any]:
        number = overlap.source
        if number not in self._opened:
            place = self._array.sources[number].place
            self._opened[number] = place.open(self._staging, self._access)
        return np.asarray(self._opened[number][overlap.inside])


def _lengths(box: Box) -> tuple[int, ...]:
    return tuple(span.stop - span.start for span in box)


class JoinedFiles(Record):
    """The dataset that files make, as a source of copies."""

    staging: Session
    access: SourceAccess
    arrays: Mapping[str, JoinedArray]
    """By path; those that are not here are whole in the staging repository."""
    name: str
    is_near: bool
    """Whether all files are on this machine."""
    earlier: RepositorySource | None = None
    """The copy that files are added to, as it was before."""

    @property
    def identity(self) -> str:
        """Name the files in their state, and what is done to them."""
        return self.name

    @property
    def holds_records(self) -> bool:
        """Never."""
        return False

    def group(self) -> zarr.Group:
        """Open what describes the arrays."""
        return RepositorySource(self.staging, DATASET).group()

    def array(self, path: str) -> Any:
        """Open an array for reading, from threads that block."""
        joined = self.arrays.get(path)
        is_there = joined is not None and joined.inserted is not None
        group = self.earlier if is_there else None
        described = (group or RepositorySource(self.staging, DATASET)).array(path)
        if joined is None:
            return described
        return OpenArray(joined, described, self.staging, self.access)

    def needs(self, path: str) -> Needs:
        """Return what reading an array takes besides its values."""
        return self.arrays[path].needs if path in self.arrays else Needs()


def is_new_step(combined: Combined, existing: Existing, name: str, step: int) -> bool:
    """Return whether a step did not exist before."""
    parts = combined.inserted.get(name, Insertions()).parts(existing.lengths[name])
    return not any(start <= step < start + length for _, start, length in parts.tolist())


def joined_arrays(
    facts: Sequence[FileFacts],
    combined: Combined,
    kinds: Sequence[Combined],
    rules: CopyRules,
    group: str = "",
    existing: Existing | None = None,
) -> dict[str, JoinedArray]:
    """Find the pieces of all arrays; `group` is that of the files which is taken as their root.

    `existing` is the copy that files are added to.
    """
    places = {
        number: (kind_number, row)
        for kind_number, kind in enumerate(kinds)
        for row, number in enumerate(kind.files)
    }
    joining = _Joining(facts, combined, kinds, places, rules, group, existing)
    return {array.path: joining.array(array) for array in combined.arrays if not array.is_native}


class _Joining(Record):
    facts: Sequence[FileFacts]
    combined: Combined
    kinds: Sequence[Combined]
    places: Mapping[int, tuple[int, int]]
    """By number of file, its kind and its row there."""
    rules: CopyRules
    group: str
    existing: Existing | None

    def array(self, joined: TargetArray) -> JoinedArray:
        rows = self.combined.rows_of(joined)[: None if joined.growing else 1]
        sources: dict[PieceSource, int] = {}
        shape = joined.metadata["shape"]
        starts, lengths, origins = (np.zeros((len(rows), len(shape)), np.int64) for _ in range(3))
        numbers = np.zeros(len(rows), np.int64)
        lengths[:] = shape
        for place, row in enumerate(rows):
            number = self.combined.files[row]
            for axis, name in joined.growing:
                starts[place, axis] = self.combined.starts[name][row]
                lengths[place, axis] = self.facts[number].lengths[name]
            source, origins[place] = self._source(joined, number)
            numbers[place] = sources.setdefault(source, len(sources))
        pieces = Pieces(starts, lengths, origins, numbers)
        there = self._there(joined.path)
        if there is None:
            pieces = pieces.merged()
            needs = self._needs(joined, rows, is_direct=len(pieces) == 1)
            return JoinedArray(pieces, tuple(sources), needs)
        growing = dict(joined.growing)
        inserted = tuple(
            self.combined.inserted.get(growing.get(axis, ""), Insertions())
            for axis in range(len(shape))
        )
        gaps = self._missing(joined, rows)
        if len(gaps):
            marker = missing_marker(there.data_type, there.encoding)
            sources[PieceSource(Missing(marker))] = len(sources)
            pieces = pieces.with_boxes(*gaps, source=len(sources) - 1)
        needs = self._needs(joined, rows, is_direct=False)
        return JoinedArray(pieces.merged(), tuple(sources), needs, inserted)

    def _there(self, path: str) -> ArraySchema | None:
        return None if self.existing is None else self.existing.schema.by_path.get(path)

    def _missing(
        self, joined: TargetArray, rows: Sequence[int]
    ) -> tuple[()] | tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return starts and lengths of the boxes that no file fills, as those there lack the array.

        Values that the array has already stay unless a file alone could have changed them.
        """
        assert self.existing is not None
        lacking = self.combined.lacking.get(joined.path)
        if not lacking or not joined.growing:
            return ()
        filled = {self._place(joined, row) for row in rows}
        is_whole = len(joined.growing) == len(self.combined.starts)
        boxes: dict[tuple[int, ...], list[int]] = {}
        for row, number in enumerate(self.combined.files):
            place = self._place(joined, row)
            if number not in lacking or place in filled:
                continue
            is_new = any(
                is_new_step(self.combined, self.existing, name, start)
                for start, (_, name) in zip(place, joined.growing, strict=True)
            )
            if is_whole or is_new:
                boxes[place] = [self.facts[number].lengths[name] for _, name in joined.growing]
        if not boxes:
            return ()
        starts = np.zeros((len(boxes), len(joined.metadata["shape"])), np.int64)
        lengths = np.zeros_like(starts) + joined.metadata["shape"]
        axes = [axis for axis, _ in joined.growing]
        starts[:, axes], lengths[:, axes] = list(boxes), list(boxes.values())
        return starts, lengths

    def _place(self, joined: TargetArray, row: int) -> tuple[int, ...]:
        return tuple(int(self.combined.starts[name][row]) for _, name in joined.growing)

    def _source(self, joined: TargetArray, number: int) -> tuple[PieceSource, list[int]]:
        file, path = self.facts[number], joined.path
        decoding = decoding_of(self._schema(number, path), self.rules)
        origins = [0] * len(joined.metadata["shape"])
        if path in file.unreferenced:
            name = joined_path(self.group, file.names.get(path, path))
            return PieceSource(InFile(file.state, name), decoding), origins
        kind, row = self.places[number]
        stored = next(array for array in self.kinds[kind].arrays if array.path == path)
        for axis, name in joined.growing:
            chunk = stored.chunks[axis]
            origins[axis] = int(self.kinds[kind].starts[name][row]) // chunk * chunk
        return PieceSource(Referred(joined_path(kind_group(kind), path)), decoding), origins

    def _schema(self, number: int, path: str) -> ArraySchema:
        schema = self.facts[number].schema
        assert schema is not None, "files with problems are not used"
        return schema.by_path[path]

    def _needs(self, joined: TargetArray, rows: Sequence[int], *, is_direct: bool) -> Needs:
        schemas: dict[int, tuple[ArraySchema, int]] = {}
        for row in rows:
            number = self.combined.files[row]
            schema = self._schema(number, joined.path)
            schemas[id(schema)] = (schema, number)
        item_bytes, object_bytes = 0, 0
        for schema, number in schemas.values():
            size = _item_bytes(schema.data_type)
            chunks = (
                self.facts[number].chunks[joined.path] if chunk == ANY_CHUNK else chunk
                for chunk in schema.chunks
            )
            item_bytes = max(item_bytes, size)
            object_bytes = max(object_bytes, size * math.prod(chunks))
        is_direct = is_direct and not self.rules.decode
        return Needs(0 if is_direct else item_bytes, object_bytes)


def _item_bytes(data_type: Any) -> int:
    try:
        return np.dtype(data_type).itemsize if isinstance(data_type, str) else 0
    except TypeError:
        return 0


# -- open files ------------------------------------------------------------------------------

_MOST_OPEN: Final = 32


class _InOpenFile:
    """An array of a file, which is opened when it is read, and stays open for a while."""

    def __init__(self, source: InFile, access: SourceAccess) -> None:
        self._source, self._access = source, access

    def __getitem__(self, box: Box, /) -> NDArray[Any]:
        """Read a box; dimensions that the file does not have have one step."""
        file = _opened(self._source.state, self._access)
        dataset = file[self._source.name]
        values = read_part(dataset, box[len(box) - dataset.ndim :])
        return values.reshape(_lengths(box))


_open_files: Final[OrderedDict[tuple[int, int, SourceState], Any]] = OrderedDict()


def _opened(state: SourceState, access: SourceAccess) -> Any:
    """Open a file, or take one that is open; it must be in the state in which it was parsed."""
    import hdf5plugin  # noqa: F401 - registers filters

    key = (os.getpid(), id(access), state)
    if key not in _open_files:
        _require_same(state, access)
        while len(_open_files) >= _MOST_OPEN:
            _open_files.popitem(last=False)[1].close()
        registry = registry_for(access)
        path = registry.local_path(state.url)
        reader: Any = path or BlockStoreReader(*registry.resolve(state.url))
        _open_files[key] = open_hdf5(reader)
    _open_files.move_to_end(key)
    return _open_files[key]


def _require_same(state: SourceState, access: SourceAccess) -> None:
    try:
        is_same = is_unchanged(state, run_blocking(look_at(state.url, access)))
    except ObjectNotFoundError:
        is_same = False
    if not is_same:
        raise SourceError(
            f"{state.url} changed after it was parsed: wait until it is complete and try again",
            ErrorKind.SOURCE_CHANGED,
            url=state.url,
        )
