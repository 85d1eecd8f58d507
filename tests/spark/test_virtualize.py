"""Archives on Spark: one job, one commit, the values of the files, and nothing left behind."""

from pathlib import Path
from typing import Any

import iris_sample_data
import numpy as np
import pytest
import zarr
from numpy.testing import assert_array_equal

from examples.archives import Fault, write_archive
from icefloe.errors import InvalidInputError, RebaseFailedError
from icefloe.format.envelope import FileType, decompress, open_envelope
from icefloe.pipeline.combining.report import MisfitsError
from icefloe.pipeline.files.options import CombineOptions
from icefloe.pipeline.local import virtualize_locally
from icefloe.spark import StageProgress, append, virtualize
from tests.pipeline.repositories import opened, repository_for
from tests.spark.archives import TIME, assert_complete, assert_sound, stored_repository

pytestmark = pytest.mark.spark

FAULTS = dict(zip(range(2, 40, 5), Fault, strict=False))
SAMPLES = Path(iris_sample_data.__file__).parent / "sample_data"


def test_an_archive_becomes_a_dataset_in_one_commit(spark: Any, tmp_path: Path) -> None:
    archive = write_archive(tmp_path / "data", 120, steps=2)
    repository = stored_repository(tmp_path)
    seen: list[StageProgress] = []
    report = virtualize(
        spark, repository, archive.pattern, TIME, message="all of it", on_progress=seen.append
    )
    assert (report.scan.files, report.scan.used, report.references) == (120, 120, 482)
    stages = ["list", "scan", "combine", "check", "write", "commit"]
    assert {each.stage for each in seen} == set(stages)
    assert any(each.tasks_done == each.tasks > 1 for each in seen if each.stage == "scan")
    assert list(report.stages) == stages
    checked = report.scan.checked
    assert checked is not None
    assert (checked.files, set(checked.readers), checked.unchecked) == (2, {"h5py"}, ())
    assert_sound(repository)
    history = list(repository.ancestry(branch="main"))
    assert [version.message for version in history] == ["all of it", "Repository initialized"]
    assert history[0].id == report.snapshot
    assert_complete(repository.readonly_session("main"), archive)
    locally = repository_for(tmp_path / "data").writable_session("main")
    virtualize_locally(locally, archive.pattern, TIME)
    assert opened(repository.readonly_session("main")).identical(opened(locally))


def test_every_fault_is_named_and_nothing_is_written(spark: Any, tmp_path: Path) -> None:
    archive = write_archive(tmp_path / "data", 40, faults=FAULTS, steps=2)
    repository = stored_repository(tmp_path)
    before = repository.storage.list_objects()
    with pytest.raises(MisfitsError) as caught:
        virtualize(spark, repository, archive.pattern, TIME)
    found = {
        url: [each.kind.value for each in misfits]
        for url, misfits in caught.value.report.by_file().items()
    }
    urls = archive.urls()
    assert found == {urls[number]: [fault.value] for number, fault in FAULTS.items()}
    assert repository.storage.list_objects() == before
    left_out = virtualize(spark, repository, archive.pattern, TIME, group="some", on_misfit="skip")
    assert (left_out.scan.used, len(left_out.scan.misfits)) == (34, 6)
    for number in FAULTS:
        archive.write(number)
    virtualize(spark, repository, archive.pattern, TIME)
    assert_complete(repository.readonly_session("main"), archive)
    assert_sound(repository)


def test_appending_again_and_again(spark: Any, tmp_path: Path) -> None:
    archive = write_archive(tmp_path / "data", 12, steps=3)
    urls = archive.urls()
    repository = stored_repository(tmp_path)
    virtualize(spark, repository, urls[:5], TIME, group="model/run")
    report = append(spark, repository, archive.pattern, group="model/run")
    assert (report.known, report.scan.used, report.references) == (5, 7, 42)
    assert_complete(repository.readonly_session("main"), archive, "model/run")
    again = append(spark, repository, archive.pattern, group="model/run")
    assert (again.known, again.snapshot) == (12, None)
    assert repository.lookup_branch("main") == report.snapshot
    with pytest.raises(InvalidInputError, match="12 files already"):
        virtualize(spark, repository, urls, TIME, group="model/run")
    record = opened(repository.readonly_session("main"), "icefloe/sources/model%2Frun")
    assert sorted(record.url.values) == urls
    assert sorted(record.start.values) == list(range(0, 36, 3))
    assert_sound(repository)


def test_changed_files_are_reported_and_replaced_on_request(spark: Any, tmp_path: Path) -> None:
    archive = write_archive(tmp_path / "data", 6)
    urls = archive.urls()
    repository = stored_repository(tmp_path)
    virtualize(spark, repository, archive.pattern, TIME)
    archive.path(3).unlink()
    longer = type(archive)(archive.folder, 6, grid=archive.grid)
    longer.write(3)
    path = archive.path(3)
    path.write_bytes(path.read_bytes() + b"\0" * 64)
    report = append(spark, repository, archive.pattern)
    assert (report.changed, report.replaced, report.snapshot) == ((urls[3],), (), None)
    report = append(spark, repository, archive.pattern, on_changed="replace")
    assert report.replaced == (urls[3],)
    assert report.snapshot is not None
    assert append(spark, repository, archive.pattern).changed == ()
    assert_complete(repository.readonly_session("main"), archive)
    copy = tmp_path / "data" / "0000" / "model_again.nc"
    copy.write_bytes(archive.path(2).read_bytes())
    with pytest.raises(MisfitsError, match="ingested with the same coordinates"):
        append(spark, repository, archive.pattern)
    assert_sound(repository)


def expanded(path: Path) -> bytes:
    """Give the bytes of a file of the repository without compression."""
    return bytes(decompress(open_envelope(path.read_bytes(), FileType.MANIFEST).payload))


def test_a_large_job_runs_in_waves(spark: Any, tmp_path: Path) -> None:
    archive = write_archive(tmp_path / "data", 10, steps=2)
    repository = stored_repository(tmp_path)
    report = virtualize(
        spark, repository, archive.urls()[:9], TIME, message="a wave", references_per_commit=22
    )
    assert (report.commits, report.references) == (3, 38)
    history = list(repository.ancestry(branch="main"))
    assert [version.message for version in history[:-1]] == ["a wave"] * 3
    first = repository.readonly_session(snapshot_id=history[2].id)
    assert opened(first).sizes["time"] == 6
    append(spark, repository, archive.pattern)
    assert_complete(repository.readonly_session("main"), archive)
    locally = repository_for(tmp_path / "data").writable_session("main")
    virtualize_locally(locally, archive.pattern, TIME)
    assert opened(repository.readonly_session("main")).identical(opened(locally))
    assert_sound(repository)


def test_late_files_fall_into_the_gaps_that_were_left(spark: Any, tmp_path: Path) -> None:
    archive = write_archive(tmp_path / "data", 8, steps=2)
    urls = archive.urls()
    repository = stored_repository(tmp_path)
    options = CombineOptions(("time",), gaps="leave")
    virtualize(spark, repository, [*urls[:2], *urls[4:6]], options)
    report = append(spark, repository, archive.pattern)
    assert report.scan.coverage.late == tuple(urls[2:4])
    assert_complete(repository.readonly_session("main"), archive)
    assert_sound(repository)


def test_earlier_files_go_before_and_between_existing_steps(spark: Any, tmp_path: Path) -> None:
    archive = write_archive(tmp_path / "data", 8, steps=2)
    repository = stored_repository(tmp_path)
    virtualize(spark, repository, archive.urls()[3:6:2], TIME)
    report = append(spark, repository, archive.pattern)
    assert "8 steps along 'time' came before existing ones: 4 steps moved" in report.scan.notes
    assert_complete(repository.readonly_session("main"), archive)
    assert_sound(repository)
    assert not append(spark, repository, archive.pattern).commits


def test_others_may_commit_meanwhile_elsewhere(spark: Any, tmp_path: Path) -> None:
    archive = write_archive(tmp_path / "data", 4)
    repository = stored_repository(tmp_path)
    with repository.transaction("main", message="a root") as store:
        zarr.create_group(store)

    def interfere(path: str) -> Any:
        def on_progress(each: StageProgress) -> None:
            if each.stage == "write" and path not in done:
                done.add(path)
                with repository.transaction("main", message="in between") as store:
                    zarr.create_array(
                        store,
                        name=path,
                        shape=(2,),
                        dtype="i4",
                        fill_value=0,
                        dimension_names=["number"],
                    )

        done: set[str] = set()
        return on_progress

    virtualize(spark, repository, archive.pattern, TIME, on_progress=interfere("other"))
    messages = [version.message for version in repository.ancestry(branch="main")]
    assert messages[:2] == ["4 files by reference", "in between"]
    assert_complete(repository.readonly_session("main"), archive)
    assert_sound(repository)
    with pytest.raises(RebaseFailedError):
        virtualize(
            spark,
            repository,
            archive.pattern,
            TIME,
            group="twice",
            on_progress=interfere("twice/temperature"),
        )
    assert_sound(repository, allow_garbage=True)  # that of the driver, as of any failed commit
    held = [
        key
        for key, _ in repository.storage.list_objects(prefix="manifests")
        if b"model_000000.nc" in expanded(tmp_path / "repository" / "manifests" / key)
    ]
    assert len(held) == 2 + 2  # nothing of tasks: temperature and pressure, latitude and longitude


def test_real_months_with_a_calendar_of_360_days(spark: Any, tmp_path: Path) -> None:
    options = CombineOptions(("time_counter",), coordinates={"time_counter": "time_centered"})
    repository = stored_repository(tmp_path, SAMPLES)
    first, second, third = sorted((SAMPLES / "NEMO").glob("*.nc"))
    virtualize(spark, repository, [first, second], options)
    report = append(spark, repository, [first, second, third])
    assert (report.known, report.scan.used) == (2, 1)
    locally = repository_for(SAMPLES).writable_session("main")
    virtualize_locally(locally, [first, second, third], options)
    assert opened(repository.readonly_session("main")).identical(opened(locally))
    assert_sound(repository)


def test_a_place_that_no_container_covers_is_named(spark: Any, tmp_path: Path) -> None:
    archive = write_archive(tmp_path / "elsewhere", 2)
    (tmp_path / "data").mkdir()
    repository = stored_repository(tmp_path)
    with pytest.raises(MisfitsError) as caught:
        virtualize(spark, repository, archive.pattern, TIME)
    assert caught.value.report.counts() == {"uncovered": 2}


def test_sources_come_as_tables_too(spark: Any, tmp_path: Path) -> None:
    archive = write_archive(tmp_path / "data", 3)
    repository = stored_repository(tmp_path)
    rows = spark.createDataFrame([(url,) for url in archive.urls()], "url string")
    assert virtualize(spark, repository, rows, TIME).scan.used == 3
    assert_complete(repository.readonly_session("main"), archive)


def test_a_repository_in_memory_is_refused(spark: Any, tmp_path: Path) -> None:
    archive = write_archive(tmp_path, 1)
    with pytest.raises(InvalidInputError, match="other processes"):
        virtualize(spark, repository_for(tmp_path), archive.pattern, TIME)


@pytest.mark.interop
def test_the_reference_reads_and_collects(spark: Any, tmp_path: Path) -> None:
    from datetime import UTC, datetime

    import icechunk

    archive = write_archive(tmp_path / "data", 5, steps=2)
    repository = stored_repository(tmp_path)
    virtualize(spark, repository, archive.urls()[:3], TIME)
    append(spark, repository, archive.pattern)
    prefix = f"{(tmp_path / 'data').as_uri()}/"
    theirs = icechunk.Repository.open(
        icechunk.local_filesystem_storage(str(tmp_path / "repository")),
        authorize_virtual_chunk_access=icechunk.containers_credentials(
            {prefix: icechunk.credentials.LocalFileSystemAccess}
        ),
    )
    packed = np.concatenate([archive.packed_temperature(number) for number in range(5)])
    group = zarr.open_group(theirs.readonly_session("main").store, mode="r")
    assert_array_equal(np.asarray(group["temperature"]), packed)
    note = tmp_path / "repository" / "icefloe" / "jobs" / "0a" / "0-0-1"
    note.parent.mkdir(parents=True)
    note.write_text("manifests/0")
    theirs.garbage_collect(datetime.now(UTC))
    assert note.exists()
    assert_array_equal(np.asarray(group["temperature"]), packed)
