"""The existing dataset of a group, and the record of the files that it was made of.

The record is an ordinary Zarr group, so it is versioned with the data, and anyone can open it
with xarray. It has one row for each file:

    url, size, etag, modified     the state that was ingested (modified: microseconds since 1970)
    start, length                 its position along the first dimension that files join along
    further                       the same along the others, as start+length, separated by spaces
    variables                     the variables taken from it, separated by spaces
    ingested                      when it first came (microseconds since 1970), alike in a commit

Attributes hold the options of the ingest, so that appending needs no options; those of a copy are
among them if values were copied. The record also answers which positions of the dataset are taken.
"""

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal, cast
from urllib.parse import quote, unquote

import msgspec
import numpy as np
import zarr
from numpy.typing import NDArray

from icefloe.effects import iterate_blocking, map_concurrently, run_blocking
from icefloe.errors import ErrorKind, InvalidInputError, ObjectNotFoundError, StorageError
from icefloe.pipeline.combining.combine import NATIVE_CHUNK, Combined, Existing, combine
from icefloe.pipeline.combining.copied import CopyRules
from icefloe.pipeline.combining.insertions import Insertions
from icefloe.pipeline.combining.report import Misfit
from icefloe.pipeline.files import RECORDS_GROUP
from icefloe.pipeline.files.facts import (
    FileFacts,
    Kind,
    Problem,
    SourceState,
)
from icefloe.pipeline.files.options import CombineOptions, ParseOptions, Preprocess, format_of_name
from icefloe.pipeline.files.sources import SourceAccess, look_at
from icefloe.records import Record, asdict, field, replace
from icefloe.reports import counted
from icefloe.zarr_store import IcechunkStore

_UNKNOWN: Final = -1
_TEXTS: Final = ("url", "etag", "variables", "further")
_NUMBERS: Final = ("size", "modified", "start", "length", "ingested")
_OF_STATE: Final = frozenset({"url", "etag", "size", "modified"})
_OF_PLACE: Final = frozenset({"start", "further"})
_OPTIONS: Final = "icefloe"
_GRID: Final = "grid"
COPY: Final = "copy"
"""Under which the options of a copy are among those of a record."""

type OnChanged = Literal["report", "replace", "fail"]
"""Recorded files that changed are kept and reported, ingested again, or an error."""


class RecordedFile(Record):
    """One file of the record."""

    state: SourceState
    start: int
    length: int
    variables: str
    ingested: int | None = None
    """When it first came, in microseconds since 1970; the same for all files of a commit."""
    further: str = ""
    """Where it lies along further dimensions, as start+length, separated by spaces."""


class SourceRecord(Record):
    """All files of a dataset, and how they were put together."""

    files: tuple[RecordedFile, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    def by_url(self) -> dict[str, tuple[int, RecordedFile]]:
        """Find files by their URL: their row, and what is known."""
        return {file.state.url: (row, file) for row, file in enumerate(self.files)}

    @property
    def grid(self) -> Mapping[str, str]:
        """Digests of coordinates that all files share, by path."""
        found = self.options.get(_GRID)
        return found if isinstance(found, Mapping) else {}

    @property
    def is_copy(self) -> bool:
        """Whether values were copied, so that nothing depends on the files any more."""
        return COPY in self.options


class SortedSources(Record):
    """Listed files, by what the record says of them."""

    new: tuple[SourceState, ...]
    known: tuple[SourceState, ...] = ()
    """In the state that was ingested."""
    changed: tuple[SourceState, ...] = ()
    """In another state."""


def record_path(group: str) -> str:
    """Return the path of the record of a group.

    >>> record_path(""), record_path("model/run")
    ('icefloe/sources/root', 'icefloe/sources/model%2Frun')
    """
    name = group.strip("/")
    quoted = quote(name, safe="") if name != "root" else "%72oot"
    return f"{RECORDS_GROUP}/{quoted or 'root'}"


def recorded_groups(store: IcechunkStore) -> list[str]:
    """Name the groups that have a record; the root is the empty one."""
    try:
        records = zarr.open_group(store, path=RECORDS_GROUP, mode="r")
    except FileNotFoundError:
        return []
    return sorted("" if name == "root" else unquote(name) for name in records.group_keys())


def read_record(store: IcechunkStore, group: str) -> SourceRecord | None:
    """Read the record of a group, if it has one."""
    try:
        record = zarr.open_group(store, path=record_path(group), mode="r")
    except FileNotFoundError:
        return None
    columns = [_column(record, name) for name in (*_TEXTS, *_NUMBERS)]
    files = tuple(
        RecordedFile(
            state=SourceState(url, _known(size), etag or None, _known(modified)),
            start=start,
            length=length,
            variables=names,
            ingested=_known(ingested),
            further=further,
        )
        for url, etag, names, further, size, modified, start, length, ingested in zip(
            *columns, strict=True
        )
    )
    options: Any = record.attrs.asdict().get(_OPTIONS, {})
    return SourceRecord(files, options)


def require_no_record(store: IcechunkStore, group: str) -> None:
    """Raise `InvalidInputError` if a group holds a dataset of recorded files."""
    if (record := read_record(store, group)) is not None:
        raise InvalidInputError(
            f"the group {group!r} holds a dataset of {counted(len(record.files), 'file')} already:"
            " append to it, or choose another group",
            ErrorKind.NODE_ALREADY_EXISTS,
        )


def _column(record: "zarr.Group", name: str) -> list[Any]:
    if name not in record:  # written before this was recorded
        missing: object = "" if name in _TEXTS else _UNKNOWN
        return [missing] * len(_column(record, "url"))
    return cast("list[Any]", np.asarray(_array(record, name)[...]).tolist())


def _array(record: "zarr.Group", name: str) -> "zarr.Array[Any]":
    array = record[name]
    assert isinstance(array, zarr.Array)
    return array


def _known(number: int) -> int | None:
    return None if number == _UNKNOWN else number


def sort_sources(record: SourceRecord | None, listed: Iterable[SourceState]) -> SortedSources:
    """Separate new files from recorded files and from files that changed since.

    What a listing does not say (a file given by name only) counts as unchanged.
    """
    there = {} if record is None else record.by_url()
    new, unchanged, changed = [], [], []
    for state in listed:
        if state.url not in there:
            new.append(state)
        elif _is_same(there[state.url][1].state, state):
            unchanged.append(state)
        else:
            changed.append(state)
    return SortedSources(tuple(new), tuple(unchanged), tuple(changed))


def _is_same(recorded: SourceState, listed: SourceState) -> bool:
    if None not in {recorded.etag, listed.etag} and not recorded.url.startswith("file:"):
        return recorded.etag == listed.etag
    pairs = ((recorded.size, listed.size), (recorded.modified, listed.modified))
    return all(None in pair or pair[0] == pair[1] for pair in pairs)


def write_record(
    store: IcechunkStore,
    group: str,
    before: SourceRecord | None,
    files: Sequence[RecordedFile],
    options: Mapping[str, Any],
    grid: Mapping[str, str] | None = None,
    inserted: Sequence[Insertions] = (),
) -> None:
    """Add files to the record of a group.

    Those that are in it already are replaced, but for the time at which they first came. `grid`
    are digests of coordinates that all files share, by path. `inserted` are the steps that come
    before existing ones, along each dimension that files are joined along.
    """
    rows = {} if before is None else before.by_url()
    again = [
        (rows[url][0], replace(file, ingested=rows[url][1].ingested))
        for file in files
        if (url := file.state.url) in rows
    ]
    more = [file for file in files if file.state.url not in rows]
    path = record_path(group)
    record = zarr.open_group(store, path=path, mode="a" if before is None else "r+")
    if before is None:
        record.attrs[_OPTIONS] = {**options, _GRID: dict(grid or {})}
    elif (merged := {**before.grid, **(grid or {})}) != before.grid:
        record.attrs[_OPTIONS] = {**before.options, _GRID: merged}
    moved_files = () if before is None else _with_room(before, inserted).files
    for name in (*_TEXTS, *_NUMBERS):
        array = _require(record, name, len(rows))
        start = array.shape[0]
        if name in _OF_PLACE and any(insertions.runs for insertions in inserted):
            array[:] = _values(name, moved_files)
        if more:
            array.resize((start + len(more),))
            array[start:] = _values(name, more)
        for row, file in again:
            array[row : row + 1] = _values(name, [file])


def _require(record: "zarr.Group", name: str, rows: int) -> "zarr.Array[Any]":
    if name in record:
        return _array(record, name)
    return record.create_array(
        name,
        shape=(rows,),
        chunks=(NATIVE_CHUNK,),
        dtype="string" if name in _TEXTS else "int64",
        fill_value="" if name in _TEXTS else _UNKNOWN,
        dimension_names=("file",),
    )


def _values(name: str, files: Sequence[RecordedFile]) -> NDArray[Any]:
    rows = [file.state for file in files] if name in _OF_STATE else files
    values = [getattr(row, name) for row in rows]
    if name in _TEXTS:
        return np.array([text or "" for text in values], np.dtypes.StringDType())
    return np.array([_UNKNOWN if value is None else value for value in values], np.int64)


# -- options ---------------------------------------------------------------------------------


def options_to_json(combine: CombineOptions, parse: ParseOptions) -> dict[str, Any]:
    """Write options as plain values, but for those that each run chooses.

    Of a function, only its name is written.
    """
    whole = {"combine": asdict(combine), "parse": asdict(parse)}
    for name in ("on_misfit", "check_values"):
        del whole["combine"][name]
    if parse.preprocess is not None:
        whole["parse"]["preprocess"] = _name_of(parse.preprocess)
    return whole


def _name_of(function: Any) -> str:
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    return f"{getattr(function, '__module__', None) or '?'}.{name}"


def options_from_json(
    whole: Mapping[str, Any], preprocess: Preprocess | None = None
) -> tuple[CombineOptions, ParseOptions]:
    """Read what `options_to_json` wrote; a function has to be given again."""
    try:
        named = whole["parse"].get("preprocess")
        if named is not None and preprocess is None:
            raise InvalidInputError(
                f"the files of this dataset were changed by a function, {named}, which cannot be"
                " remembered: give it again (preprocess=...)",
                ErrorKind.BAD_METADATA,
            )
        parse = msgspec.convert({**whole["parse"], "preprocess": None}, ParseOptions)
        return (
            msgspec.convert(whole["combine"], CombineOptions),
            replace(parse, preprocess=preprocess),
        )
    except (KeyError, msgspec.ValidationError) as error:
        raise InvalidInputError(
            "the record of sources does not say how files are to be put together: give options",
            ErrorKind.BAD_METADATA,
        ) from error


def _named(group: str) -> str:
    return f"group {group!r}" if group else "root group"


def recorded_options(
    store: IcechunkStore, group: str, preprocess: Preprocess | None = None
) -> tuple[CombineOptions, ParseOptions]:
    """Return the options with which the dataset of a group was made."""
    record = read_record(store, group)
    if record is None:
        raise InvalidInputError(
            f"the {_named(group)} has no record of sources, so that no files can be appended to it."
            " Copies of whole hierarchies have none, nor have copies of earlier versions: copy all"
            " files again (overwrite=True), or write further steps with xarray",
            ErrorKind.BAD_METADATA,
        )
    return options_from_json(record.options, preprocess)


type _Box = tuple[tuple[int, int], ...]
"""Start and length along each dimension that files are joined along."""

_PLACE: Final = re.compile(r"(\d{1,18})\+(\d{1,18})", re.ASCII)


def recorded_files(
    facts: Sequence[FileFacts], combined: Combined, options: CombineOptions
) -> list[RecordedFile]:
    """Return the record of the files that are used, dated now."""
    now = time.time_ns() // 1000
    return [
        _recorded(facts[number], _box(facts[number], combined, row, options), now)
        for row, number in enumerate(combined.files)
    ]


def _recorded(file: FileFacts, box: _Box, now: int) -> RecordedFile:
    (start, length), *others = box
    further = _further(others)
    return RecordedFile(
        state=file.state,
        start=start,
        length=length,
        variables=_variables(file),
        ingested=now,
        further=further,
    )


def _further(places: Iterable[tuple[int, int]]) -> str:
    return " ".join(f"{first}+{steps}" for first, steps in places)


def _with_room(record: SourceRecord, inserted: Sequence[Insertions]) -> SourceRecord:
    """Return a record whose files lie where they are after steps came before them."""
    if not any(insertions.runs for insertions in inserted):
        return record
    boxes = [_recorded_box(file) for file in record.files]
    for axis, insertions in enumerate(inserted):
        rows = [row for row, box in enumerate(boxes) if len(box) > axis]
        starts = insertions.moved(np.array([boxes[row][axis][0] for row in rows], np.int64))
        for row, start in zip(rows, starts.tolist(), strict=True):
            box = boxes[row]
            boxes[row] = (*box[:axis], (start, box[axis][1]), *box[axis + 1 :])
    files = [
        replace(file, start=box[0][0], further=_further(box[1:]))
        for file, box in zip(record.files, boxes, strict=True)
    ]
    return replace(record, files=tuple(files))


def _box(file: FileFacts, combined: Combined, row: int, options: CombineOptions) -> _Box:
    return tuple((int(combined.starts[name][row]), file.lengths[name]) for name in options.concat)


def _recorded_box(file: RecordedFile) -> _Box:
    """Return the box of a file; only along the first dimension if the record has no more."""
    matches = [_PLACE.fullmatch(text) for text in file.further.split()]
    others = [(int(match[1]), int(match[2])) for match in matches if match is not None]
    return ((file.start, file.length), *others)


def insertions_of(combined: Combined, options: CombineOptions) -> list[Insertions]:
    """Return which steps come before existing ones, along each dimension."""
    return [combined.inserted.get(name, Insertions()) for name in options.concat]


def without_occupied(
    facts: Sequence[FileFacts],
    combined: Combined,
    options: CombineOptions,
    existing: Existing | None,
    record: SourceRecord | None,
    copies: CopyRules | None = None,
) -> Combined:
    """Refuse files that would take the place of other files that were ingested before.

    A file that changed takes its own place again, and no other: what it had elsewhere would go
    on pointing to the state that is gone.
    """
    if record is None or existing is None or not combined.arrays:
        return combined
    moved_record = _with_room(record, insertions_of(combined, options))
    refused = _refused(facts, combined, options, moved_record)
    refused |= _between_steps(facts, combined, options, record)
    if not refused:
        return combined
    if options.on_misfit == "fail":
        misfits = (*combined.report.misfits, *refused.values())
        return Combined(replace(combined.report, misfits=tuple(sorted(misfits))))
    left = [
        FileFacts(fact.state, problem=Problem(refused[row].kind, refused[row].message))
        if row in refused
        else fact
        for row, fact in enumerate(facts)
    ]
    return combine(left, options, existing, copies)


def _between_steps(
    facts: Sequence[FileFacts], combined: Combined, options: CombineOptions, record: SourceRecord
) -> dict[int, Misfit]:
    """Find files between the steps of a file, of which the record knows only where it begins."""
    refused: dict[int, Misfit] = {}
    if not combined.inserted:
        return refused
    boxes = [_recorded_box(file) for file in record.files]
    for axis, (name, inserted) in enumerate(
        zip(options.concat, insertions_of(combined, options), strict=True)
    ):
        rows = [row for row, box in enumerate(boxes) if len(box) > axis]
        corners = np.array([boxes[row][axis] for row in rows], np.int64).reshape(-1, 2)
        positions = np.array([position for position, _ in inserted.runs], np.int64)
        first = np.searchsorted(positions, corners[:, 0], side="right")
        end = np.searchsorted(positions, corners.sum(axis=1), side="left")
        # By number of a run that is inserted, the file between whose steps it lies.
        owners: dict[int, str] = {}
        for row in np.flatnonzero(first < end).tolist():
            for run in range(first[row], end[row]):
                owners.setdefault(run, record.files[rows[row]].state.url)
        for number, run in zip(
            combined.files, inserted.run_of(combined.starts[name]).tolist(), strict=True
        ):
            if run in owners:
                text = f"along {name!r} it lies between steps of {owners[run]}: leave it out"
                refused[number] = Misfit(facts[number].url, Kind.OVERLAP, text)
    return refused


def _refused(
    facts: Sequence[FileFacts], combined: Combined, options: CombineOptions, record: SourceRecord
) -> dict[int, Misfit]:
    boxes = {file.state.url: _recorded_box(file) for file in record.files}
    by_variables: dict[str, dict[str, _Box]] = {}
    for file in record.files:
        url = file.state.url
        if len(boxes[url]) == len(options.concat):
            by_variables.setdefault(file.variables, {})[url] = boxes[url]
    occupied = {
        variables: _OccupiedBoxes(files, len(options.concat))
        for variables, files in by_variables.items()
    }
    refused: dict[int, Misfit] = {}
    for row, number in enumerate(combined.files):
        new = facts[number]
        box = _box(new, combined, row, options)
        if new.url in boxes:
            if (moved := _moved(boxes[new.url], box, options)) is not None:
                refused[number] = Misfit(new.url, Kind.COORDINATE, moved)
            continue
        others = occupied.get(_variables(new))
        other = None if others is None else others.owner(box)
        if other is not None:
            text = f"{other} was ingested with the same coordinates"
            refused[number] = Misfit(new.url, Kind.DUPLICATE, text)
    return refused


def _moved(before: _Box, now: _Box, options: CombineOptions) -> str | None:
    """Return how the position of a changed file differs from its old one, if so."""
    for name, old, new in zip(options.concat, before, now, strict=False):
        if old != new:
            return (
                f"along {name} it had {old[1]} steps from number {old[0]}, and now has {new[1]}"
                f" from {new[0]}: ingest all files again, into another group"
            )
    return None


_REQUESTS_AT_ONCE: Final = 32


def look_at_known(
    states: Sequence[SourceState], record: SourceRecord | None, access: SourceAccess
) -> list[SourceState]:
    """Ask for the state of files that were given by name only, if they were ingested before.

    Without that nobody would notice that they changed. One that is gone stays as it was given.
    """
    recorded = {} if record is None else record.by_url()
    rows = [
        row
        for row, state in enumerate(states)
        if state.url in recorded and state == SourceState(state.url) and not _is_folder(state.url)
    ]
    urls = [states[row].url for row in rows]
    present = run_blocking(map_concurrently(partial(_look, access), urls, limit=_REQUESTS_AT_ONCE))
    looked = list(states)
    for row, state in zip(rows, present, strict=True):
        looked[row] = state
    return looked


def find_missing(
    record: SourceRecord | None, states: Sequence[SourceState], access: SourceAccess
) -> tuple[str, ...]:
    """Name recorded files that are not there any more, given those that are listed now.

    Others are looked for by listing their folders. What cannot be listed, as on the web, is not
    called missing.
    """
    if record is None:
        return ()
    listed = {state.url: state for state in states}
    missing, unseen = [], set[str]()
    for file in record.files:
        url = file.state.url
        if url not in listed:
            unseen.add(url)
        # `look_at_known` looked for it in vain.
        elif listed[url] == SourceState(url) and not _is_folder(url):
            missing.append(url)
    folders = sorted({url[: url.rstrip("/").rindex("/") + 1] for url in unseen})
    while folders:
        folder = folders.pop(0)
        folders = [other for other in folders if not other.startswith(folder)]
        missing += _not_listed({url for url in unseen if url.startswith(folder)}, folder, access)
    return tuple(sorted(missing))


def _not_listed(urls: set[str], folder: str, access: SourceAccess) -> set[str]:
    """Return the files of a folder that its listing does not have."""
    if folder.startswith(("http:", "https:")):
        return set()
    left = set(urls)
    trees = {url for url in urls if _is_folder(url)}
    source = access.place(folder)
    try:
        for batch in iterate_blocking(source.backend.list(source.key)):
            for info in batch:
                found = source.url_of(info.key)
                left.discard(found)
                left -= {tree for tree in trees & left if found.startswith(f"{tree.rstrip('/')}/")}
            if not left:
                break
    except StorageError:  # it may be read, but not listed
        return set()
    return left


def _is_folder(url: str) -> bool:
    by_name = format_of_name(url)
    return by_name is not None and by_name.is_directory


async def _look(access: SourceAccess, url: str) -> SourceState:
    try:
        return await look_at(url, access)
    except ObjectNotFoundError:
        return SourceState(url)


class _OccupiedBoxes:
    """Boxes of steps and the files that fill them, sorted by their first step."""

    def __init__(self, boxes: Mapping[str, _Box], dimensions: int) -> None:
        ordered = sorted(boxes.items(), key=lambda entry: entry[1])
        self._urls = [url for url, _ in ordered]
        # A row for each file, a column for each dimension: start and length.
        corners = np.array([box for _, box in ordered], np.int64).reshape(-1, dimensions, 2)
        self._starts, self._ends = corners[:, :, 0], corners.sum(axis=2)
        self._longest = int(corners[:, 0, 1].max(initial=0))

    def owner(self, box: _Box) -> str | None:
        """Name a file that fills any of some steps."""
        starts, ends = np.array([(start, start + length) for start, length in box], np.int64).T
        # Rows are sorted by their first start: only those can meet the box that start before its
        # end, and not earlier than the longest one before its start.
        first = self._starts[:, 0]
        low = int(np.searchsorted(first, starts[0] - self._longest, "right"))
        high = int(np.searchsorted(first, ends[0], "left"))
        meets = (self._starts[low:high] < ends) & (self._ends[low:high] > starts)
        rows = np.flatnonzero(meets.all(axis=1))
        return self._urls[low + int(rows[0])] if len(rows) else None


def _variables(facts: FileFacts) -> str:
    return "" if facts.schema is None else " ".join(sorted(facts.schema.variables))
