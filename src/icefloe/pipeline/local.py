"""Virtualising an archive in this process: every part of the pipeline, one after the other."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from icefloe.api.session import Session, state_of
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format.arrow import pa
from icefloe.format.paths import joined_path
from icefloe.pipeline.checking.values import (
    check_file,
    choose_files,
    plan_check,
    require_same_values,
)
from icefloe.pipeline.combining.combine import Combined, combine
from icefloe.pipeline.combining.remedies import misfits_error
from icefloe.pipeline.combining.report import Report
from icefloe.pipeline.files.containers import not_covered
from icefloe.pipeline.files.describing import ParsedFile
from icefloe.pipeline.files.facts import FileFacts, SourceState, int_column, text_column
from icefloe.pipeline.files.options import CombineOptions, ParseOptions
from icefloe.pipeline.files.parsing import parse_or_report
from icefloe.pipeline.files.references import References, concat_references
from icefloe.pipeline.files.sources import SourceAccess, Sources, list_states
from icefloe.pipeline.writing.building import check_of, make_room
from icefloe.pipeline.writing.dataset import (
    put_document,
    read_existing,
    require_opening,
    write_metadata,
    write_native,
)
from icefloe.records import replace
from icefloe.zarr_store import IcechunkStore


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
    how = options.parse_options(parse)
    parsed = [
        parse_or_report(state.url, how, reached, listed=state)
        for state in list_states(sources, reached)
    ]
    facts = [file.facts if isinstance(file, ParsedFile) else file for file in parsed]
    store = session.store
    existing = read_existing(store, group, options) if append else None
    combined = combine(facts, options, existing)
    if combined.report.misfits and options.on_misfit == "fail":
        raise misfits_error(combined.report, facts, options, existing)
    if not combined.files:
        return combined.report
    report = _check_values(combined, facts, parsed, options, how, reached)
    write_metadata(store, group, combined, existing)
    if existing is not None:
        state = state_of(session)
        make_room(state, state, group, facts, combined, existing)
    write_native(store, group, combined)
    notes = require_opening(session, group, combined)
    for array in combined.arrays:
        if not array.is_native:
            parts = [
                (
                    facts[combined.files[row]].state,
                    combined.placed_file(row, facts).references_in(
                        array, _references(parsed[combined.files[row]])[array.path]
                    ),
                )
                for row in combined.rows_of(array)
            ]
            _write_references(store, joined_path(group, array.path), parts)
    return replace(report, notes=(*report.notes, *notes))


def _references(file: ParsedFile | FileFacts) -> Mapping[str, References]:
    assert isinstance(file, ParsedFile), "files with problems are not used"
    return file.references


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
        checks.append(check_file(file, _references(parsed[number]), plan, access))
    return require_same_values(combined.report, checks, facts, access)


def _write_references(
    store: IcechunkStore, path: str, parts: Sequence[tuple[SourceState, References]]
) -> None:
    """Record the references of an array, and write the chunks that came along as bytes."""
    whole = concat_references([references for _, references in parts])
    cells = whole.inlined_coordinates.tolist()
    for cell, data in zip(cells, whole.inlined.to_list(), strict=True):
        put_document(store, "/".join([path, "c", *map(str, cell)]), data)
    if not len(whole):
        return
    counts = np.array([len(references) for _, references in parts], np.int64)
    files = np.repeat(np.arange(len(parts)), counts)  # for each reference, the row of its file
    checks = [check_of(state, references) for state, references in parts]
    refused = store.set_virtual_refs_columns(
        path,
        coordinates=whole.coordinates.astype(np.uint32),
        locations=_dictionary(whole.location_rows.astype(np.int64), whole.locations),
        offsets=whole.offsets,
        lengths=whole.lengths,
        etags=_dictionary(files, [check.etag for check in checks]),
        last_modified=np.array([check.seconds for check in checks], np.int64)[files],
    )
    if len(refused):
        raise InvalidInputError(
            not_covered(whole.locations[0]),
            ErrorKind.NO_CONTAINER_FOR_VIRTUAL_CHUNK,
        )


def _dictionary(rows: NDArray[np.int64], texts: Sequence[str | None]) -> "pa.Array":
    return pa.DictionaryArray.from_arrays(int_column(rows), text_column(texts))
