"""Files added to a copy: the values are those of all files, and only new objects are written."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray
import zarr
from numpy.testing import assert_array_equal

import icefloe
from icefloe.effects import iterate_blocking
from icefloe.errors import ConflictError, IcefloeError, InvalidInputError
from icefloe.format.chunk_table import NativeChunk
from icefloe.format.nodes import ArrayNode
from icefloe.pipeline import (
    CombineOptions,
    CopyOptions,
    JobReport,
    LocalEngine,
    MisfitsError,
    list_attempts,
    plan,
    read_coverage,
    read_sources,
)
from icefloe.pipeline.running.jobs import virtualize
from icefloe.pipeline.running.progress import StageProgress
from icefloe.transactions.chunks import chunk_tables
from tests.pipeline.repositories import opened, repository_for

TIME = CombineOptions(("time",))
EPOCH = np.datetime64("2001-01-01")
CELLS = 40


class Stop(BaseException):
    """Somebody interrupts a job."""


def days(first: int, count: int) -> Any:
    return np.arange(first, first + count, dtype="f8")


JANUARY, FEBRUARY, MARCH = days(0, 31), days(31, 28), days(59, 31)


def write(folder: Path, times: Any, name: str = "t", **how: Any) -> str:
    """Write a file with noise of two decimals, which depends on the times and the cells only."""
    path = folder / f"{name}_{int(times[0]):03}.nc"
    cells = how.get("cells", range(CELLS))
    noise = np.random.default_rng(7).integers(-9999, 9999, (200, 2 * CELLS)) / 100
    values = noise[np.ix_(times.astype(int), cells)] + how.get("shift", 0)
    dataset = xarray.Dataset(
        {name: (("time", "x"), values), "height": ("x", np.array(cells) * 1.0)},
        {
            "time": ("time", times - how.get("origin", 0)),
            "x": np.array(cells) * 2.0,
        },
        {"title": "months", **how.get("attributes", {})},
    )
    dataset.time.attrs["units"] = f"days since {EPOCH + np.timedelta64(how.get('origin', 0), 'D')}"
    encoding: Any = {"dtype": "f8", "chunksizes": (min(7, len(times)), len(cells))}
    dataset.to_netcdf(
        path, engine="h5netcdf", encoding={name: {**encoding, **how.get("encoding", {})}}
    )
    return path.as_uri()


def copied(
    folder: Path, urls: list[str], options: CombineOptions = TIME, **how: Any
) -> icefloe.Repository:
    repository = icefloe.Repository.create(icefloe.local_filesystem_storage(str(folder / "repo")))
    icefloe.ingest(repository, urls, options, copy=CopyOptions.of(**how), engine="local")
    return repository


def appended(repository: icefloe.Repository, urls: list[str], **how: Any) -> JobReport:
    return icefloe.append(repository, urls, engine="local", **how)


def assert_as_files(repository: icefloe.Repository, urls: list[str], **how: Any) -> None:
    """Compare everything with what xarray makes of all files."""
    expected = xarray.open_mfdataset(
        [url.removeprefix("file://") for url in urls],
        engine="h5netcdf",
        combine="by_coords",
        data_vars="minimal",
        coords="minimal",
        compat="no_conflicts",
        join="outer",
        combine_attrs="drop_conflicts",
        **how,
    ).load()
    found = opened(repository.readonly_session("main"), **how).load()
    xarray.testing.assert_identical(found, expected)


def references(repository: icefloe.Repository, path: str = "t") -> dict[tuple[int, ...], Any]:
    """Return the references of an array by the coordinates of their chunks."""
    state = repository.readonly_session("main")._session
    node = state.tree.find(f"/{path}")
    assert isinstance(node, ArrayNode)
    return {
        tuple(cell): table.ref(row)
        for table in iterate_blocking(chunk_tables(state, node))
        for row, cell in enumerate(table.coordinates.tolist())
    }


def assert_clean(repository: icefloe.Repository) -> None:
    """Check that everything stored is used by a version, and that no attempt left anything."""
    state = icefloe.Repository.open(repository.storage)
    used = set()
    for version in state.ancestry(branch="main"):
        session = state.readonly_session(snapshot_id=version.id)._session
        for node in session.tree.below("/"):
            if isinstance(node, ArrayNode):
                for table in iterate_blocking(chunk_tables(session, node)):
                    rows = (table.ref(row) for row in range(len(table)))
                    used |= {str(ref.id) for ref in rows if isinstance(ref, NativeChunk)}
    assert {key for key, _ in repository.storage.list_objects(prefix="chunks")} == used
    assert not repository.storage.list_objects(prefix="icefloe")
    assert not list_attempts(repository)


# -- along time ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("order", "how"),
    [
        ((JANUARY, FEBRUARY, MARCH), {"packing": True}),
        ((JANUARY, FEBRUARY, MARCH), {"shards": {"time": 20}}),
        ((FEBRUARY, MARCH, JANUARY), {"shards": {"time": 20}}),
        ((MARCH, FEBRUARY, JANUARY), {}),
    ],
    ids=["packed", "shards", "first-last", "backwards"],
)
def test_months_into_chunks_that_they_do_not_fill(tmp_path: Path, order: Any, how: Any) -> None:
    urls = [write(tmp_path, month, origin=int(month[0])) for month in order]
    repository = copied(tmp_path, urls[:1], chunks={"time": 10, "x": 20}, **how)
    for known in (1, 2):
        before = references(repository)
        report = appended(repository, urls[: known + 1], check_values="all")
        assert (report.known, report.scan.used, report.commits) == (known, 1, 1)
        assert report.scan.checked is not None
        length = how.get("shards", {"time": 10})["time"]
        whole = sum(map(len, order[:known])) // length if order[known][0] else 0
        if order[known][0] > order[0][0]:  # behind: whole chunks stay
            kept = {cell for cell, ref in before.items() if references(repository)[cell] == ref}
            assert kept == {cell for cell in before if cell[0] < whole}
    assert_as_files(repository, urls)
    assert_clean(repository)
    version = repository.lookup_branch("main")
    assert appended(repository, urls).snapshot is None
    assert repository.lookup_branch("main") == version
    [coverage] = read_coverage(repository.readonly_session("main"))
    assert (coverage.length, coverage.is_complete, coverage.last) == (90, True, "2001-03-31")
    assert [source.first for source in read_sources(repository.readonly_session("main"))] == [
        "2001-01-01",
        "2001-02-01",
        "2001-03-01",
    ]


def test_chunks_move_behind_steps_that_fill_chunks(tmp_path: Path) -> None:
    urls = [write(tmp_path, days(20, 25)), write(tmp_path, days(0, 20))]
    repository = copied(tmp_path, urls[:1], chunks={"time": 10})
    before = references(repository)
    urls.append(write(tmp_path, days(45, 9)))
    report = appended(repository, urls)
    assert report.scan.notes == ("20 steps along 'time' came before existing ones: 25 steps moved",)
    after = references(repository)
    assert {(cell[0] - 2, cell[1]) for cell in after if after[cell] in before.values()} == {
        (0, 0),
        (1, 0),
    }
    assert_as_files(repository, urls)
    assert_clean(repository)


@pytest.mark.parametrize(
    ("late", "kept"),
    [
        (days(20, 10), {(0, 0), (1, 0), (2, 0), (3, 0), (4, 0)}),  # whole chunks: all stay or move
        (days(21, 4), {(0, 0), (1, 0)}),  # what lies before stays
    ],
)
def test_files_go_between_steps(tmp_path: Path, late: Any, kept: set[tuple[int, ...]]) -> None:
    last = int(late[-1]) + 1
    urls = [write(tmp_path, days(0, int(late[0]))), write(tmp_path, days(last, 30))]
    repository = copied(tmp_path, urls, chunks={"time": 10})
    before = references(repository)
    urls.append(write(tmp_path, late))
    appended(repository, urls, check_values="all")
    after = list(references(repository).values())
    assert {cell for cell, ref in before.items() if ref in after} == kept
    assert_as_files(repository, urls)
    assert_clean(repository)


def test_references_become_a_copy_for_files_that_only_a_copy_takes(tmp_path: Path) -> None:
    urls = [
        write(tmp_path, month, encoding={"chunksizes": (len(month), CELLS)})
        for month in (JANUARY, MARCH, FEBRUARY)
    ]
    storage = icefloe.local_filesystem_storage(str(tmp_path / "repo"))
    repository = repository_for(tmp_path, storage=storage)
    icefloe.ingest(repository, urls[:2], TIME, engine="local")
    with pytest.raises(MisfitsError, match=r"All files fit a copy: .*icefloe\.rechunk"):
        appended(repository, urls)
    icefloe.rechunk(repository, repository, CopyOptions.of(overwrite=True), engine="local")
    assert appended(repository, urls).known == 2
    assert_as_files(repository, urls)


def test_other_packing_and_types_are_unpacked(tmp_path: Path) -> None:
    packed = {"dtype": "i2", "scale_factor": 0.01, "_FillValue": -9}
    urls = [write(tmp_path, days(0, 5), encoding=packed)]
    repository = copied(tmp_path, urls, chunks={"time": 4}, decode=True)
    for first, how in ((5, {"scale_factor": 0.02, "add_offset": 100.0}), (10, {"dtype": "i4"})):
        urls.append(write(tmp_path, days(first, 5), encoding={**packed, **how}))
    urls.append(write(tmp_path, days(15, 5), encoding={"dtype": "f4"}))
    appended(repository, urls, check_values="all")
    assert_as_files(repository, urls)


def test_types_and_packing_of_a_copy_stay(tmp_path: Path) -> None:
    narrow = {"dtype": "f4"}
    urls = [write(tmp_path, days(0, 5), encoding=narrow), write(tmp_path, days(5, 5))]
    repository = copied(tmp_path, urls[:1], decode=True)
    version = repository.lookup_branch("main")
    with pytest.raises(MisfitsError, match=r"(?s)t: float64 instead of float32.*overwrite=True"):
        appended(repository, urls)
    packed = write(
        tmp_path, days(10, 5), encoding={"dtype": "i2", "scale_factor": 0.01, "_FillValue": -9}
    )
    with pytest.raises(MisfitsError, match="t: float64 instead of float32"):
        appended(repository, [packed])
    assert repository.lookup_branch("main") == version
    icefloe.ingest(
        repository, urls, TIME, copy=CopyOptions.of(decode=True, overwrite=True), engine="local"
    )
    assert appended(repository, urls).known == 2
    assert_as_files(repository, urls)


def test_a_changed_file_is_reported_or_copied_again(tmp_path: Path) -> None:
    urls = [write(tmp_path, days(first, 6)) for first in (0, 6, 12)]
    repository = copied(tmp_path, urls, chunks={"time": 4})
    before = references(repository)
    write(tmp_path, days(6, 6), shift=1000)
    report = appended(repository, urls)
    assert (report.changed, report.replaced, report.snapshot) == ((urls[1],), (), None)
    report = appended(repository, urls, on_changed="replace")
    assert report.replaced == (urls[1],)
    after = references(repository)
    assert {cell[0] for cell, ref in after.items() if before[cell] != ref} == {1, 2}
    assert_as_files(repository, urls)
    write(tmp_path, days(6, 6), shift=np.nan)
    appended(repository, urls, on_changed="replace")
    assert {cell[0] for cell in references(repository)} == {0, 1, 3, 4}  # nothing is in the third
    assert_as_files(repository, urls)
    Path(urls[0].removeprefix("file://")).unlink()
    report = appended(repository, [str(tmp_path / "*.nc")])
    assert (report.missing, report.snapshot) == ((urls[0],), None)
    assert "disappeared" in report.summary()


def two(folder: Path, **how: Any) -> icefloe.Repository:
    """Copy a file of five steps into chunks of three; one of six comes later."""
    return copied(folder, [write(folder, days(0, 5))], chunks={"time": 3}, **how)


def test_of_two_appends_at_the_same_time_one_is_refused(tmp_path: Path) -> None:
    repository, other = two(tmp_path), write(tmp_path, days(5, 6))
    later = [write(tmp_path, days(11, 6))]

    def race(progress: StageProgress) -> None:
        if progress.stage == "copy" and progress.is_over:
            appended(icefloe.Repository.open(repository.storage), [other])

    with pytest.raises(ConflictError):
        appended(repository, later, on_progress=race)
    assert_as_files(repository, [write(tmp_path, days(0, 5)), other])
    assert_clean(repository)
    appended(repository, later)
    assert_as_files(repository, [write(tmp_path, days(0, 5)), other, *later])


def test_an_append_that_is_interrupted_leaves_nothing(tmp_path: Path) -> None:
    repository, other = two(tmp_path), write(tmp_path, days(5, 6))
    version = repository.lookup_branch("main")

    def stop(progress: StageProgress) -> None:
        if progress.stage == "copy" and progress.is_over:
            raise Stop

    with pytest.raises(Stop):
        appended(repository, [other], on_progress=stop)
    assert repository.lookup_branch("main") == version
    assert_as_files(repository, [write(tmp_path, days(0, 5))])
    assert_clean(repository)
    appended(repository, [other])
    assert_as_files(repository, [write(tmp_path, days(0, 5)), other])


def test_many_objects_are_added_in_waves_that_are_complete(tmp_path: Path) -> None:
    first, *more = (write(tmp_path, days(start, 7)) for start in (7, 0, 14, 21, 28))
    repository = copied(tmp_path, [first], chunks={"time": 3}, most_references=4)
    ingested = repository.lookup_branch("main")
    copied_waves = []

    def stop(progress: StageProgress) -> None:
        copied_waves.extend([progress] if progress.stage == "copy" and progress.is_over else [])
        if len(copied_waves) == 2:
            raise Stop

    with pytest.raises(Stop):
        appended(repository, more, on_progress=stop)
    report = appended(repository, more)
    assert (report.known, report.commits > 1) == (1, True)
    assert report.snapshot == repository.lookup_branch("main")
    for version in repository.ancestry(branch="main"):
        if version.id == ingested:
            break
        session = repository.readonly_session(snapshot_id=version.id)
        there = [source.url for source in read_sources(session)]
        found = opened(session)
        steps = np.concatenate(
            [
                xarray.open_dataset(url.removeprefix("file://"), engine="h5netcdf").time.values
                for url in there
            ]
        )
        assert set(steps) <= set(found.time.values)
    assert_as_files(repository, [first, *more])
    assert_clean(repository)


def test_memory_of_a_task_is_kept(tmp_path: Path) -> None:
    repository = copied(
        tmp_path, [write(tmp_path, days(0, 50))], chunks={"time": 10}, memory_per_task=40_000
    )
    urls = [write(tmp_path, days(0, 50)), write(tmp_path, days(55, 70))]
    with pytest.raises(InvalidInputError, match="memory_per_task"):
        appended(repository, urls, memory_per_task=9_000)
    report = appended(repository, urls)
    assert report.copied is not None
    assert 0 < report.copied.memory_per_task <= 40_000
    assert report.copied.regions > 2
    assert_as_files(repository, urls)


# -- variables, attributes, records ----------------------------------------------------------


def test_variables_that_new_files_lack_are_missing_there(tmp_path: Path) -> None:
    fill = CombineOptions(("time",), fill_missing=True)
    plain = {"dtype": "f4", "_FillValue": None}  # what was not written reads as 0

    def both(first: int, *names: str) -> str:
        urls = [write(tmp_path, days(first, 4), name) for name in names]
        parts = [xarray.load_dataset(url.removeprefix("file://")) for url in urls]
        path = tmp_path / f"{first:02}.nc"
        merged = xarray.merge(parts, compat="override")
        merged.to_netcdf(path, engine="h5netcdf", encoding=dict.fromkeys(names, plain))
        return path.as_uri()

    urls = [both(0, "t", "u")]
    repository = copied(tmp_path, urls, fill, chunks={"time": 3})
    for first, names in ((4, ["t"]), (8, ["t", "u"])):
        urls.append(both(first, *names))
        appended(repository, urls)
    urls[:0] = [both(20, "t"), both(24, "t", "u")]
    appended(repository, urls)
    assert_as_files(repository, sorted(urls))


def test_a_variable_that_cannot_be_missing_must_not_lack(tmp_path: Path) -> None:
    fill = CombineOptions(("time",), fill_missing=True)

    def both(first: int, *names: str) -> str:
        path = tmp_path / f"{first}.nc"
        variables = {name: ("time", np.arange(3, dtype="i2") + first) for name in names}
        dataset = xarray.Dataset(variables, {"time": np.arange(3) + first})
        dataset.to_netcdf(path, engine="h5netcdf")
        return path.as_uri()

    repository = copied(tmp_path, [both(0, "t", "n")], fill, decode=True)
    more = [both(3, "t"), both(6, "t", "n")]
    for urls in (more, more[:1]):
        with pytest.raises(MisfitsError, match="n is missing, and nothing marks"):
            appended(repository, urls)
    report = appended(repository, more, on_misfit="skip")
    assert report.scan.used == 1
    assert_array_equal(opened(repository.readonly_session("main")).n, [0, 1, 2, 6, 7, 8])


def test_attributes_become_arrays_that_grow(tmp_path: Path) -> None:
    options = CombineOptions(("time",), attributes="promote")
    urls = [
        write(tmp_path, days(first, 5), attributes={"run": run})
        for first, run in ((5, "b"), (10, "long c"), (0, "a"), (15, "d"))
    ]
    repository = copied(tmp_path, urls[:2], options, chunks={"time": 3})
    appended(repository, urls)
    found = opened(repository.readonly_session("main"))
    assert found.run.values.tolist() == ["a"] * 5 + ["b"] * 5 + ["long c"] * 5 + ["d"] * 5


def test_a_copy_that_was_rechunked_grows_in_its_new_chunks(tmp_path: Path) -> None:
    urls = [write(tmp_path, month) for month in (JANUARY, FEBRUARY, MARCH)]
    repository = copied(tmp_path, urls[:1], chunks={"time": 10})
    how = CopyOptions.of({"time": 4, "x": -1}, {"time": 8}, overwrite=True)
    icefloe.rechunk(repository, repository.readonly_session("main"), how, engine="local")
    other = CopyOptions.of({"time": 5})
    source = repository.readonly_session("main")
    icefloe.rechunk(repository, source, other, group="other", engine="local")
    appended(repository, urls[:2])
    array = zarr.open_array(repository.readonly_session("main").store, path="t", mode="r")
    assert (array.chunks, array.shards, array.shape) == ((4, CELLS), (8, CELLS), (59, CELLS))
    with pytest.raises(InvalidInputError, match=re.escape("copy all files again (overwrite=True)")):
        appended(repository, urls, group="other")
    assert_as_files(repository, urls[:2])


def test_references_that_are_rechunked_in_their_place_go_on_as_a_copy(tmp_path: Path) -> None:
    urls = [write(tmp_path, days(first, 7)) for first in (0, 7, 14)]
    storage = icefloe.local_filesystem_storage(str(tmp_path / "repo"))
    repository = repository_for(tmp_path, storage=storage)
    icefloe.ingest(repository, urls[:1], TIME, engine="local")
    how = CopyOptions.of({"time": 4}, overwrite=True)
    icefloe.rechunk(repository, repository.readonly_session("main"), how, engine="local")
    assert appended(repository, urls).known == 1
    alone = icefloe.Repository.open(storage)
    for url in urls[1:]:
        Path(url.removeprefix("file://")).rename(tmp_path / Path(url).name.upper())
    moved = [urls[0], *((tmp_path / Path(url).name.upper()).as_uri() for url in urls[1:])]
    assert_as_files(alone, moved)


def test_a_hierarchy_has_no_record(tmp_path: Path) -> None:
    xarray.Dataset({"t": ("time", [1.0])}, {"time": [1]}).to_zarr(
        tmp_path / "a.zarr", zarr_format=3, consolidated=False
    )
    repository = icefloe.Repository.create(icefloe.local_filesystem_storage(str(tmp_path / "repo")))
    icefloe.ingest(repository, str(tmp_path / "a.zarr"), copy=CopyOptions.of(), engine="local")
    with pytest.raises(InvalidInputError, match=re.escape("copy all files again (overwrite=True)")):
        appended(repository, [write(tmp_path, days(0, 3))])


def test_another_dataset_in_the_same_group_replaces_the_record_or_is_refused(
    tmp_path: Path,
) -> None:
    repository, path = two(tmp_path), tmp_path / "other.nc"
    xarray.Dataset({"u": ("time", np.arange(3.0))}).to_netcdf(path, engine="h5netcdf")
    by_order = CombineOptions(("time",), by="order")
    with pytest.raises(InvalidInputError, match="append to it, or choose another group"):
        icefloe.ingest(repository, str(path), by_order, copy=CopyOptions.of(), engine="local")
    session = repository.writable_session("main")
    for name in ("t", "height", "time", "x"):
        session.store.delete_sync(f"{name}/zarr.json")
    session.commit("without the first dataset")
    how = CopyOptions.of(overwrite=True)
    icefloe.ingest(repository, str(path), by_order, copy=how, engine="local")
    [source] = read_sources(repository.readonly_session("main"))
    assert (source.url, source.variables) == (path.as_uri(), ("u",))


def test_references_are_not_added_to_a_copy(tmp_path: Path) -> None:
    repository, other = two(tmp_path), write(tmp_path, days(5, 6))
    refused = pytest.raises(InvalidInputError, match="holds copied values")
    with LocalEngine(processes=0) as engine, refused:
        virtualize(engine, repository, [other], TIME, append=True)
    with pytest.raises(IcefloeError, match="plan_copy"):
        plan(repository, [other], cores=1)
