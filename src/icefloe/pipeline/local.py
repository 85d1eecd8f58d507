"""Virtualising an archive in this process: every part of the pipeline, one after the other."""

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.core.buffer import default_buffer_prototype

from icefloe.api.session import Session
from icefloe.engine.paths import joined_path
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format.arrow import pa
from icefloe.pipeline.checking.opening import require_openable
from icefloe.pipeline.checking.values import (
    check_file,
    choose_files,
    plan_check,
    require_same_values,
)
from icefloe.pipeline.combining.combine import (
    Combined,
    Existing,
    combine,
    placed_references,
)
from icefloe.pipeline.combining.existing import read_existing
from icefloe.pipeline.combining.targets import TargetArray
from icefloe.pipeline.files.access import SourceAccess
from icefloe.pipeline.files.arrow_columns import int_column, text_column
from icefloe.pipeline.files.describing import ParsedFile
from icefloe.pipeline.files.facts import FileFacts, SourceState
from icefloe.pipeline.files.parsing import parse_or_report
from icefloe.pipeline.files.references import References
from icefloe.pipeline.files.sources import Pattern, list_sources
from icefloe.pipeline.options import CombineOptions, ParseOptions
from icefloe.pipeline.report import MisfitsError, Report
from icefloe.zarr_store import IcechunkStore

_ROWS_AT_ONCE: Final = 1_000_000


def virtualize_locally(
    session: Session,
    sources: Pattern | Iterable[Pattern],
    options: CombineOptions,
    *,
    parse: ParseOptions | None = None,
    access: SourceAccess | None = None,
    group: str = "",
    append: bool = False,
) -> Report:
    """Write an archive's chunks as references through a session; nothing is committed.

    All files are parsed and compared first: if one does not fit, `MisfitsError` has everything
    that was found, and the session is as it was. So it is if values of the sample that
    `options.check_values` asks for differ from those of an independent reader, which raises
    `ValuesMismatchError`. If zarr or xarray could not open the outcome, `SourceError` says why:
    then discard the changes of the session. With `append`, files are added to what is in
    the group. The repository must have virtual chunk containers that cover the files.
    """
    reached = access or SourceAccess()
    how = parse or ParseOptions(options.concat)
    if how.concat != options.concat:
        raise InvalidInputError(
            "files must be parsed for the same dimensions that they are joined along",
            ErrorKind.BAD_METADATA,
        )
    parsed = [
        parse_or_report(state.url, how, reached, listed=state)
        for state in _states(sources, reached)
    ]
    facts = [each.facts if isinstance(each, ParsedFile) else each for each in parsed]
    store = session.store
    existing = read_existing(store, group, options) if append else None
    combined = combine(facts, options, existing)
    if combined.report.misfits and options.on_misfit == "fail":
        raise MisfitsError(combined.report)
    if not combined.files:
        return combined.report
    report = _check_values(combined, facts, parsed, options, how, reached)
    write_metadata(store, group, combined, existing)
    write_native(store, group, combined)
    notes = require_opening(session, group, combined)
    for array in combined.arrays:
        if not array.is_native:
            _write_references(store, group, combined, array, parsed)
    return replace(report, notes=(*report.notes, *notes))


def require_opening(session: Session, group: str, combined: Combined) -> tuple[str, ...]:
    """Open a dataset whose metadata and coordinates are written; return notes for a report."""
    paths = [array.path for array in combined.arrays]
    native = [array.path for array in combined.arrays if array.is_native]
    return require_openable(session, group, paths, native)


def _check_values(
    combined: Combined,
    facts: Sequence[FileFacts],
    parsed: Sequence[ParsedFile | FileFacts],
    options: CombineOptions,
    parse: ParseOptions,
    access: SourceAccess,
) -> Report:
    """Compare a sample of values with independent readers, before anything is written."""
    if options.check_values == "none":
        return combined.report
    plan = plan_check(combined, options.check_values, parse.group)
    checks = []
    for number, file in choose_files(facts, combined, options.check_values).items():
        whole = parsed[number]
        assert isinstance(whole, ParsedFile), "files with problems are not used"
        checks.append(check_file(file, whole.references, plan, access))
    return require_same_values(combined.report, checks, facts, access)


def _states(sources: Pattern | Iterable[Pattern], access: SourceAccess) -> list[SourceState]:
    return [
        SourceState(url, size, etag, modified)
        for batch in list_sources(sources, access)
        for url, size, etag, modified in zip(
            batch.column("url").to_pylist(),
            batch.column("size").to_pylist(),
            batch.column("etag").to_pylist(),
            batch.column("modified").cast("int64").to_pylist(),
            strict=True,
        )
    ]


def write_metadata(
    store: IcechunkStore, group: str, combined: Combined, existing: Existing | None
) -> None:
    """Make the groups and arrays, or give those that are there their new lengths."""
    there = set() if existing is None else set(existing.schema.by_path)
    if existing is None:
        parts = group.strip("/").split("/") if group.strip("/") else []
        for depth in range(len(parts)):
            _put_group(store, "/".join(parts[:depth]), None)
        for path, attributes in combined.groups.items():
            _put_group(store, joined_path(group, path), attributes)
    for array in combined.arrays:
        key = f"{joined_path(group, array.path)}/zarr.json"
        if array.path in there:
            if not array.growing:
                continue
            held = json.loads(_get(store, key))
            metadata: Mapping[str, Any] = {**held, "shape": array.metadata["shape"]}
        else:
            metadata = array.metadata
        _put(store, key, json.dumps(metadata).encode())


def _put_group(store: IcechunkStore, path: str, attributes: Mapping[str, Any] | None) -> None:
    key = f"{path}/zarr.json" if path else "zarr.json"
    if attributes is None and store.get_sync(key, prototype=default_buffer_prototype()):
        return
    document = {"zarr_format": 3, "node_type": "group", "attributes": dict(attributes or {})}
    _put(store, key, json.dumps(document).encode())


def write_native(store: IcechunkStore, group: str, combined: Combined) -> None:
    """Write the values of small arrays; what is there already stays where nothing is new."""
    for array in combined.arrays:
        if array.is_native:
            target = zarr.open_array(store, path=joined_path(group, array.path), mode="r+")
            values = np.array(target[...])
            for start, run in combined.native[array.path]:
                values[start : start + len(run)] = run
            target[...] = values


def _write_references(
    store: IcechunkStore,
    group: str,
    combined: Combined,
    array: TargetArray,
    parsed: Sequence[ParsedFile | FileFacts],
) -> None:
    donor = combined.donor(array)
    held: list[tuple[SourceState, References]] = []
    rows = 0
    for position, number in enumerate(combined.files):
        file = parsed[number]
        is_wanted = combined.families[position] == array.family and donor in {None, number}
        if not is_wanted or not isinstance(file, ParsedFile):
            continue
        references = placed_references(
            combined, array, position, file.references[array.path], file.facts
        )
        _write_inlined(store, group, array, references)
        held.append((file.facts.state, references))
        rows += len(references)
        if rows >= _ROWS_AT_ONCE:
            _flush(store, group, array, held)
            held, rows = [], 0
    _flush(store, group, array, held)


def _write_inlined(
    store: IcechunkStore, group: str, array: TargetArray, references: References
) -> None:
    path = joined_path(group, array.path)
    cells = references.inlined_coordinates.tolist()
    for cell, data in zip(cells, references.inlined.to_list(), strict=True):
        _put(store, "/".join([path, "c", *map(str, cell)]), data)


def _flush(
    store: IcechunkStore,
    group: str,
    array: TargetArray,
    held: Sequence[tuple[SourceState, References]],
) -> None:
    """Record the references of some files, as columns."""
    rows = np.array([len(references) for _, references in held], np.int64)
    if not rows.sum():
        return
    checks = [check_of(state, references) for state, references in held]
    refused = store.set_virtual_refs_columns(
        joined_path(group, array.path),
        coordinates=np.concatenate([each.coordinates for _, each in held]).astype(np.uint32),
        locations=_locations([each for _, each in held]),
        offsets=np.concatenate([each.offsets for _, each in held]),
        lengths=np.concatenate([each.lengths for _, each in held]),
        etags=_repeated([check.etag for check in checks], rows),
        last_modified=np.repeat(np.array([check.seconds for check in checks], np.int64), rows),
    )
    if len(refused):
        raise InvalidInputError(
            f"no virtual chunk container covers {held[0][1].locations[0]}: add one to the"
            " repository's configuration",
            ErrorKind.NO_CONTAINER_FOR_VIRTUAL_CHUNK,
        )


def _locations(tables: Sequence[References]) -> "pa.Array":
    """Give all locations, each distinct one of a file only once."""
    counts = np.array([len(each.locations) for each in tables], np.int64)
    numbers = np.concatenate(
        [
            each.location_rows.astype(np.int64) + first
            for each, first in zip(tables, np.cumsum(counts) - counts, strict=True)
        ]
    )
    texts = text_column([text for each in tables for text in each.locations])
    return pa.DictionaryArray.from_arrays(int_column(numbers), texts)


def _repeated(texts: Sequence[str | None], rows: NDArray[np.int64]) -> "pa.Array":
    numbers = np.repeat(np.arange(len(texts)), rows)
    return pa.DictionaryArray.from_arrays(int_column(numbers), text_column(texts))


@dataclass(frozen=True, slots=True)
class Check:
    """What readers compare an object with, to notice that it changed."""

    etag: str | None
    seconds: int
    """Since 1970; 0 for none."""


def check_of(state: SourceState, references: References, now: int | None = None) -> Check:
    """Choose what to record of the state of a file.

    For local files it is the time of modification, as programs make etags of these in different
    ways; for what a file only points at, that it was not modified later than now, in seconds
    since 1970.
    """
    is_own = references.locations == (state.url,)
    if is_own and state.etag is not None and not state.url.startswith("file:"):
        return Check(state.etag, 0)
    if is_own and state.modified is not None:
        return Check(None, -(-state.modified // 1_000_000))  # not modified later than that
    return Check(None, int(time.time()) if now is None else now)


def _put(store: IcechunkStore, key: str, data: bytes) -> None:
    store.set_sync(key, default_buffer_prototype().buffer.from_bytes(data))


def _get(store: IcechunkStore, key: str) -> bytes:
    found = store.get_sync(key, prototype=default_buffer_prototype())
    if found is None:
        raise InvalidInputError(f"nothing is at {key!r}", ErrorKind.NODE_NOT_FOUND)
    return found.to_bytes()
