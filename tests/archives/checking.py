"""Ingest a case and compare every value with those of its independent reader."""

import re
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import xarray
import zarr
from numpy.testing import assert_allclose, assert_array_equal

import icefloe
from icefloe.errors import IcefloeError
from icefloe.pipeline import CombineOptions, CopyOptions, CopyReport, JobReport, ParseOptions
from tests.archives.cases import Case, Expected, Options
from tests.pipeline.repositories import repository_for

type EngineName = Literal["local", "spark"]
_RECORD = "/icefloe"


def written(case: Case, folder: Path) -> Path:
    """Write the files of a case; return their folder."""
    if case.folder is not None:
        return case.folder
    data = folder / "data"
    data.mkdir()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the libraries that write
        case.write(data)
    return data


def expected_values(case: Case, data: Path) -> Expected:
    """Read the files with the independent reader."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return case.read(sorted(data.glob(case.files)))


def check_case(case: Case, data: Path, folder: Path, engine: EngineName, *, native: bool) -> None:
    """Ingest in one form, or expect the refusal and then try the remedy."""
    refused = case.native if native else case.virtual
    expected = expected_values(case, data)
    if refused is None:
        session = ingested(case, case.options, data, folder / "repository", engine, native=native)
        compare(found_values(session), expected, case)
        return
    with pytest.raises(IcefloeError) as caught:
        ingested(case, case.options, data, folder / "refused", engine, native=native)
    assert re.search(refused.message, str(caught.value), re.DOTALL), str(caught.value)
    if refused.remedy is not None:
        if refused.read is not None:
            expected = refused.read(sorted(data.glob(case.files)))
        session = ingested(case, refused.remedy, data, folder / "mended", engine, native=native)
        compare(found_values(session), expected, case)


def check_automatic(case: Case, data: Path, folder: Path) -> None:
    """Ingest an archive that fits only as a copy, and have the job find that out."""
    expected, options = expected_values(case, data), case.options
    is_decoded = False
    if case.native is not None:
        assert case.native.remedy is not None
        remedy = case.native.remedy
        is_decoded = bool(remedy.copy.get("decode"))
        options = replace(remedy, copy={})
        if case.native.read is not None:
            expected = case.native.read(sorted(data.glob(case.files)))
    target = folder / "automatic"
    session, report = reported(case, options, data, target, "local", copy="auto")
    compare(found_values(session), expected, case)
    assert isinstance(report, CopyReport)
    assert report.reason is not None
    assert (report.form, report.reason.decode) == ("copy", is_decoded)
    assert report.reason.values_bytes <= report.values_bytes


def check_in_parts(
    case: Case, data: Path, expected: Expected, folder: Path, *, native: bool
) -> None:
    """Ingest some files and append the others, behind them, before them and between them."""
    urls = [path.as_uri() for path in sorted(data.glob(case.files))]
    options = case.options
    if native and case.native is not None and case.native.remedy is not None:
        options = case.native.remedy
    is_placed = options.combine.get("by") != "order" and case.name not in _NEED_THE_FIRST
    parts = [(urls[:-1], urls[-1:])]
    if is_placed:  # in order, the second part is behind
        has_middle = len(urls) > 2 and case.name not in _CUT_ALIKE
        late = [urls[0], urls[len(urls) // 2]] if has_middle else urls[:1]
        parts.append(([url for url in urls if url not in late], late))
    how: dict[str, Any] = {"copy": CopyOptions.of(**options.copy)} if native else {}
    for number, (first, second) in enumerate(parts if len(urls) > 1 else ()):
        storage = icefloe.local_filesystem_storage(str(folder / f"part{number}"))
        repository = repository_for(data, storage=storage)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of parsers and codecs
            icefloe.ingest(
                repository,
                first,
                CombineOptions(options.concat, **{"check_values": "all", **options.combine}),
                parse=ParseOptions(options.concat, **options.parse),
                engine="local",
                **how,
            )
            icefloe.append(repository, second, engine="local")
        found = found_values(repository.readonly_session("main"))
        compare(found, expected, case)


_NEED_THE_FIRST = frozenset({"netcdf-4-a-file-without-any-time"})
"""Cases whose other files alone are not such an archive."""


_CUT_ALIKE = frozenset({"netcdf-4-days-by-month-not-compressed"})
"""Cases whose files are cut into chunks that fit all files of the first part."""


def ingested(
    case: Case, options: Options, data: Path, target: Path, engine: EngineName, *, native: bool
) -> icefloe.Session:
    """Ingest the files of a case into a new repository."""
    copy = CopyOptions.of(**options.copy) if native else None
    return reported(case, options, data, target, engine, copy=copy)[0]


def reported(
    case: Case, options: Options, data: Path, target: Path, engine: EngineName, *, copy: Any
) -> tuple[icefloe.Session, JobReport | CopyReport]:
    """Ingest the files of a case into a new repository; return also the report."""
    storage = icefloe.local_filesystem_storage(str(target))
    repository = repository_for(data, storage=storage)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of parsers and codecs
        report = icefloe.ingest(
            repository,
            [path.as_uri() for path in sorted(data.glob(case.files))],
            CombineOptions(options.concat, **{"check_values": "all", **options.combine}),
            parse=ParseOptions(options.concat, **options.parse),
            copy=copy,
            engine=engine,
        )
    return repository.readonly_session("main"), report


def found_values(session: icefloe.Session) -> dict[str, xarray.Variable]:
    """Read all arrays of a repository, as users do."""
    with warnings.catch_warnings(), zarr.config.set({"array.rectilinear_chunks": True}):
        warnings.simplefilter("ignore")  # of codecs and dtypes that Zarr has not specified
        store: Any = session.store
        groups = xarray.open_groups(store, engine="zarr", consolidated=False)
        return {
            f"{path}/{name}".lstrip("/"): variable.load()
            for path, dataset in groups.items()
            if not path.startswith(_RECORD)
            for name, variable in dataset.variables.items()
        }


def compare(found: Mapping[str, xarray.Variable], expected: Expected, case: Case) -> None:
    """Compare names, dimensions and all values."""
    assert expected, "the independent reader found nothing"
    for path, (ours, theirs) in (case.pair or _same_names)(found, expected).items():
        got, wanted = ours.values, theirs.values
        assert got.shape == wanted.shape, path
        if got.dtype.kind in "TOSU" or wanted.dtype.kind in "TOSU":
            got, wanted = got.astype(object), wanted.astype(object)
        if case.tolerance and np.issubdtype(got.dtype, np.floating):
            assert_allclose(got, wanted, rtol=case.tolerance, atol=0, err_msg=path)
        else:
            assert_array_equal(got, wanted, err_msg=path)


def _same_names(
    found: Expected, expected: Expected
) -> dict[str, tuple[xarray.Variable, xarray.Variable]]:
    assert set(found) == set(expected)
    for path, variable in expected.items():
        assert found[path].dims == variable.dims, path
    return {path: (found[path], variable) for path, variable in expected.items()}
