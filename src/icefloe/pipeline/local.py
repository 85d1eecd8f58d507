"""Virtualising an archive in this process: every part of the pipeline, one after the other."""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from icefloe.api.session import Session
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format.arrow import pa
from icefloe.format.paths import joined_path
from icefloe.pipeline.checking.values import (
    check_file,
    choose_files,
    plan_check,
    require_same_values,
)
from icefloe.pipeline.combining.combine import Combined, TargetArray, combine, placed_references
from icefloe.pipeline.combining.report import MisfitsError, Report
from icefloe.pipeline.files.describing import ParsedFile
from icefloe.pipeline.files.facts import FileFacts, SourceState, int_column, text_column
from icefloe.pipeline.files.options import CombineOptions, ParseOptions
from icefloe.pipeline.files.parsing import parse_or_report
from icefloe.pipeline.files.references import References
from icefloe.pipeline.files.sources import SourceAccess, Sources, list_states
from icefloe.pipeline.writing.building import check_of
from icefloe.pipeline.writing.dataset import (
    put_document,
    read_existing,
    require_opening,
    write_metadata,
    write_native,
)
from icefloe.records import replace
from icefloe.zarr_store import IcechunkStore

_ROWS_AT_ONCE: Final = 1_000_000


def virtualize_locally(
    session: Session,
    sources: Sources,
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

    >>> import icefloe, xarray, zarr
    >>> from icefloe.pipeline import container_at, container_prefixes
    >>> for day in (1, 2):
    ...     data = xarray.Dataset({"t2m": (("time", "x"), [[280.0 + day]])}, {"time": [day]})
    ...     data.to_netcdf(f"day-{day}.nc", engine="h5netcdf")
    >>> config = icefloe.RepositoryConfig.default()
    >>> [prefix] = container_prefixes(["day-*.nc"])
    >>> config.set_virtual_chunk_container(container_at(prefix))
    >>> allowed = {prefix: icefloe.credentials.LocalFileSystemAccess}
    >>> access = icefloe.containers_credentials(allowed)
    >>> storage = icefloe.local_filesystem_storage("cube")
    >>> repository = icefloe.Repository.create(storage, config, access)
    >>> session = repository.writable_session("main")
    >>> virtualize_locally(session, "day-*.nc", CombineOptions(("time",))).used
    2
    >>> zarr.open_array(session.store, path="t2m", mode="r")[...]
    array([[281.],
           [282.]])
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
        for state in list_states(sources, reached)
    ]
    facts = [file.facts if isinstance(file, ParsedFile) else file for file in parsed]
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


def _write_references(
    store: IcechunkStore,
    group: str,
    combined: Combined,
    array: TargetArray,
    parsed: Sequence[ParsedFile | FileFacts],
) -> None:
    donor = combined.donor(array)
    pending: list[tuple[SourceState, References]] = []
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
        pending.append((file.facts.state, references))
        rows += len(references)
        if rows >= _ROWS_AT_ONCE:
            _flush(store, group, array, pending)
            pending, rows = [], 0
    _flush(store, group, array, pending)


def _write_inlined(
    store: IcechunkStore, group: str, array: TargetArray, references: References
) -> None:
    path = joined_path(group, array.path)
    cells = references.inlined_coordinates.tolist()
    for cell, data in zip(cells, references.inlined.to_list(), strict=True):
        put_document(store, "/".join([path, "c", *map(str, cell)]), data)


def _flush(
    store: IcechunkStore,
    group: str,
    array: TargetArray,
    pending: Sequence[tuple[SourceState, References]],
) -> None:
    """Record the references of some files, as columns."""
    rows = np.array([len(references) for _, references in pending], np.int64)
    if not rows.sum():
        return
    checks = [check_of(state, references) for state, references in pending]
    refused = store.set_virtual_refs_columns(
        joined_path(group, array.path),
        coordinates=np.concatenate([references.coordinates for _, references in pending]).astype(
            np.uint32
        ),
        locations=_locations([references for _, references in pending]),
        offsets=np.concatenate([references.offsets for _, references in pending]),
        lengths=np.concatenate([references.lengths for _, references in pending]),
        etags=_repeated([check.etag for check in checks], rows),
        last_modified=np.repeat(np.array([check.seconds for check in checks], np.int64), rows),
    )
    if len(refused):
        raise InvalidInputError(
            f"no virtual chunk container covers {pending[0][1].locations[0]}: add one to the"
            " repository's configuration",
            ErrorKind.NO_CONTAINER_FOR_VIRTUAL_CHUNK,
        )


def _locations(tables: Sequence[References]) -> "pa.Array":
    """Return all locations, each distinct one of a file only once."""
    counts = np.array([len(table.locations) for table in tables], np.int64)
    numbers = np.concatenate(
        [
            references.location_rows.astype(np.int64) + first
            for references, first in zip(tables, np.cumsum(counts) - counts, strict=True)
        ]
    )
    texts = text_column([text for table in tables for text in table.locations])
    return pa.DictionaryArray.from_arrays(int_column(numbers), texts)


def _repeated(texts: Sequence[str | None], rows: NDArray[np.int64]) -> "pa.Array":
    numbers = np.repeat(np.arange(len(texts)), rows)
    return pa.DictionaryArray.from_arrays(int_column(numbers), text_column(texts))
