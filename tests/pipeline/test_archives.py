"""Whole archives: faults are named, nothing is written before they are mended, values are right."""

from pathlib import Path

import h5py
import numpy as np
import pytest
from numpy.testing import assert_array_equal

import icefloe
from examples.archives import Archive, Fault, write_archive
from icefloe.errors import InvalidInputError
from icefloe.pipeline.combining.report import MisfitsError
from icefloe.pipeline.files.options import CombineOptions
from icefloe.pipeline.local import virtualize_locally
from tests.pipeline.repositories import opened, repository_for

TIME = CombineOptions(("time",))
FAULTS = dict(zip(range(2, 40, 5), Fault, strict=False))


def assert_complete(session: icefloe.Session, archive: Archive) -> None:
    found = opened(session)
    every = range(archive.files)
    assert_array_equal(
        found.temperature.values, np.concatenate([archive.expected_temperature(n) for n in every])
    )
    assert_array_equal(
        found.pressure.values, np.concatenate([archive.expected_pressure(n) for n in every])
    )
    hours = np.arange(archive.files * archive.steps) * np.timedelta64(1, "h")
    assert_array_equal(found.time.values, np.datetime64("2000-01-01") + hours)


def test_every_fault_is_named_and_the_mended_archive_fits(tmp_path: Path) -> None:
    archive = write_archive(tmp_path / "data", 40, faults=FAULTS, steps=2)
    repository = repository_for(tmp_path)
    session = repository.writable_session("main")
    with pytest.raises(MisfitsError) as caught:
        virtualize_locally(session, archive.pattern, TIME)
    found = {
        url: [each.kind.value for each in misfits]
        for url, misfits in caught.value.report.by_file().items()
    }
    urls = archive.urls()
    assert found == {urls[number]: [fault.value] for number, fault in FAULTS.items()}
    assert not session.has_uncommitted_changes
    for number in FAULTS:
        archive.write(number)
    virtualize_locally(session, archive.pattern, TIME)
    session.commit("the whole archive")
    assert_complete(repository.readonly_session("main"), archive)


def test_misfits_can_be_left_out(tmp_path: Path) -> None:
    archive = write_archive(tmp_path, 40, faults=FAULTS)
    session = repository_for(tmp_path).writable_session("main")
    report = virtualize_locally(
        session, archive.pattern, CombineOptions(("time",), on_misfit="skip")
    )
    assert (report.files, report.used, len(report.misfits)) == (40, 34, 6)
    assert len(report.coverage.gaps) == 6
    good = [number for number in range(40) if number not in FAULTS]
    expected = np.concatenate([archive.expected_temperature(number) for number in good])
    assert_array_equal(opened(session).temperature.values, expected)


def test_late_files_fall_into_the_gaps_that_were_left(tmp_path: Path) -> None:
    archive = write_archive(tmp_path, 12, steps=2)
    urls = archive.urls()
    options = CombineOptions(("time",), gaps="leave")
    session = repository_for(tmp_path).writable_session("main")
    report = virtualize_locally(session, [*urls[:3], *urls[5:9]], options)
    assert sum(gap.missing for gap in report.coverage.gaps) == 4
    assert np.isnan(opened(session).temperature.values[6:10]).all()
    report = virtualize_locally(session, [*urls[3:5], *urls[9:]], options, append=True)
    assert report.coverage.late == tuple(urls[3:5])
    assert_complete(session, archive)


def test_appending_gives_what_one_go_gives(tmp_path: Path) -> None:
    archive = write_archive(tmp_path, 7, steps=3)
    urls = archive.urls()
    session = repository_for(tmp_path).writable_session("main")
    virtualize_locally(session, urls[:4], TIME, group="model/run")
    virtualize_locally(session, urls[4:], TIME, group="model/run", append=True)
    at_once = repository_for(tmp_path).writable_session("main")
    virtualize_locally(at_once, urls, TIME)
    assert_complete(at_once, archive)
    assert opened(session, "model/run").identical(opened(at_once))


def test_what_is_there_decides_what_fits(tmp_path: Path) -> None:
    archive = write_archive(tmp_path, 4)
    urls = archive.urls()
    session = repository_for(tmp_path).writable_session("main")
    virtualize_locally(session, urls[:2], TIME)
    archive.write(2, Fault.SCALE_OFFSET)
    archive.write(3, Fault.SCALE_OFFSET)
    with pytest.raises(MisfitsError) as caught:
        virtualize_locally(session, urls[2:], TIME, append=True)
    assert caught.value.report.counts() == {"scale-offset": 2}


def test_months_without_compression_are_cut_into_chunks_that_fit(tmp_path: Path) -> None:
    values = np.random.default_rng(1).random((89, 3, 4))
    first = 0
    for month, days in enumerate((31, 28, 30)):
        with h5py.File(tmp_path / f"{month}.h5", "w") as file:
            file.create_dataset("time", data=np.arange(first, first + days)).make_scale("time")
            array = file.create_dataset("t", data=values[first : first + days])
            array.dims[0].attach_scale(file["time"])
        first += days
    session = repository_for(tmp_path).writable_session("main")
    virtualize_locally(session, tmp_path / "*.h5", TIME)
    found = opened(session)
    assert found.t.encoding["chunks"] == (1, 3, 4)
    assert_array_equal(found.t.values, values)


def test_a_place_that_no_container_covers_is_refused(tmp_path: Path) -> None:
    archive = write_archive(tmp_path / "data", 2)
    (tmp_path / "other").mkdir()
    session = repository_for(tmp_path / "other").writable_session("main")
    with pytest.raises(InvalidInputError, match="container"):
        virtualize_locally(session, archive.pattern, TIME)


@pytest.mark.interop
def test_the_reference_reads_the_same_values(tmp_path: Path) -> None:
    import icechunk
    import zarr

    archive = write_archive(tmp_path / "data", 5, steps=2)
    storage = icefloe.local_filesystem_storage(str(tmp_path / "repository"))
    repository = repository_for(tmp_path / "data", storage=storage)
    session = repository.writable_session("main")
    virtualize_locally(session, archive.pattern, TIME)
    session.commit("for others")
    prefix = f"{(tmp_path / 'data').as_uri()}/"
    theirs = icechunk.Repository.open(
        icechunk.local_filesystem_storage(str(tmp_path / "repository")),
        authorize_virtual_chunk_access=icechunk.containers_credentials(
            {prefix: icechunk.credentials.LocalFileSystemAccess}
        ),
    )
    group = zarr.open_group(theirs.readonly_session("main").store, mode="r")
    packed = np.concatenate([archive.packed_temperature(number) for number in range(5)])
    assert_array_equal(np.asarray(group["temperature"]), packed)
