"""Copies on Spark: the values of the source, in chunks of one's choice, and nothing left behind."""

import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import Any, override

import numpy as np
import pytest
import xarray
import zarr
from numpy.testing import assert_array_equal
from zarr.core.buffer import Buffer, BufferPrototype

import icefloe
from examples.archives import Fault, write_archive
from icefloe.errors import InvalidInputError, RebaseFailedError
from icefloe.pipeline.combining.report import MisfitsError
from icefloe.pipeline.copying.layouts import CopyOptions, LayoutOptions
from icefloe.pipeline.copying.origins import CopySource, ZarrSource
from icefloe.pipeline.copying.transfer import ReadingStore
from icefloe.pipeline.files.sources import SourceAccess
from icefloe.pipeline.local import virtualize_locally
from icefloe.pipeline.running.job import Job, Target
from icefloe.pipeline.running.native import NativeProducer
from icefloe.spark import (
    CopyReport,
    StageProgress,
    append,
    discard_attempt,
    ingest,
    list_attempts,
    rechunk,
)
from icefloe.spark.engine import SparkEngine, attempts_may_differ
from tests.pipeline.repositories import opened
from tests.spark.archives import TIME, assert_complete, assert_sound, stored_repository
from tests.spark.copies import (
    assert_clean,
    assert_same_values,
    group_of,
    plain_repository,
    seen_by_the_reference,
)

pytestmark = pytest.mark.spark


def test_files_are_copied_and_not_needed_any_more(spark: Any, tmp_path: Path) -> None:
    archive = write_archive(tmp_path / "data", 7, steps=3)
    virtual = stored_repository(tmp_path / "virtual", tmp_path / "data")
    session = virtual.writable_session("main")
    virtualize_locally(session, archive.pattern, TIME)
    session.commit("by reference")
    originals = group_of(virtual)
    repository = plain_repository(tmp_path)
    seen: list[StageProgress] = []
    report = ingest(
        spark,
        repository,
        archive.pattern,
        TIME,
        chunks={"time": 5, "lat": 7},
        memory_per_task=100_000,
        message="all of it",
        on_progress=seen.append,
    )
    assert report.scan is not None
    assert (report.scan.used, report.arrays, report.commits) == (7, 5, 1)
    assert report.written == report.objects == 2 * 5 * 2 + 3
    assert report.memory_per_task <= 100_000
    assert [each.stage for each in seen].index("copy") > 0
    history = [version.message for version in repository.ancestry(branch="main")]
    assert history == ["all of it", "Repository initialized"]
    copy = group_of(repository)
    assert_same_values(copy, originals)
    temperature: Any = copy["temperature"]
    original: Any = originals["temperature"]
    assert temperature.chunks == (5, 7, 16)
    assert temperature.fill_value == original.fill_value == -32768
    assert temperature.attrs.asdict() == original.attrs.asdict()
    assert temperature.metadata.dimension_names == ("time", "lat", "lon")
    assert_same_values(seen_by_the_reference(tmp_path / "repository"), originals)
    assert_clean(repository)
    shutil.rmtree(tmp_path / "data")
    assert_complete(repository.readonly_session("main"), archive)


def test_files_are_added_to_a_copy(spark: Any, tmp_path: Path) -> None:
    archive = write_archive(tmp_path / "data", 4, steps=3)
    repository = plain_repository(tmp_path)
    first, more = archive.urls()[1:2], archive.urls()
    copy = CopyOptions.of({"time": 5, "lat": 7})
    icefloe.ingest(repository, first, TIME, copy=copy, engine="local")
    report = append(spark, repository, more, memory_per_task=100_000)
    assert (report.known, report.scan.used, report.commits) == (1, 3, 1)
    assert report.copied is not None
    assert 0 < report.copied.memory_per_task <= 100_000
    assert_complete(repository.readonly_session("main"), archive)
    assert_clean(repository)


def test_files_that_do_not_fit_leave_nothing(spark: Any, tmp_path: Path) -> None:
    archive = write_archive(tmp_path / "data", 3, faults={1: Fault.DTYPE})
    repository = plain_repository(tmp_path)
    before = repository.storage.list_objects()
    with pytest.raises(MisfitsError):
        ingest(spark, repository, archive.pattern, TIME, chunks={"time": 2})
    assert repository.storage.list_objects() == before


def test_virtual_chunks_become_shards_of_another_repository(spark: Any, tmp_path: Path) -> None:
    archive = write_archive(tmp_path / "data", 9, steps=2)
    source = stored_repository(tmp_path / "virtual", tmp_path / "data")
    session = source.writable_session("main")
    virtualize_locally(session, archive.pattern, TIME, group="model/run")
    source.create_tag("v1", session.commit("by reference"))
    repository = plain_repository(tmp_path)
    report = rechunk(
        spark,
        repository,
        source.readonly_session(tag="v1"),
        source_group="model",
        group="copies",
        chunks={"time": 4, "lat": 5, "lon": 8},
        shards={"time": 8, "lat": -1},
        compressors=[zarr.codecs.GzipCodec(level=1)],
        packing=True,
    )
    assert report.written == 2 * 3 * 1 * 2 + 3
    copy = group_of(repository, "copies")
    temperature: Any = copy["run/temperature"]
    assert (temperature.chunks, temperature.shards) == ((4, 5, 8), (8, 15, 8))
    originals = zarr.open_group(source.readonly_session("main").store, path="model", mode="r")
    assert_same_values(copy, originals)
    assert_same_values(seen_by_the_reference(tmp_path / "repository", "copies"), originals)
    assert_complete(repository.readonly_session("main"), archive, "copies/run")
    assert_clean(repository)


def write_zarr(folder: Path, zarr_format: Any) -> zarr.Group:
    """Write a hierarchy with everything that is unusual."""
    root = zarr.open_group(str(folder), mode="w", zarr_format=zarr_format)
    root.attrs["title"] = "all kinds of things"
    names: dict[str, Any] = {"dimension_names": ["time", "x"]} if zarr_format == 3 else {}
    made = root.create_array(
        "inner/field", shape=(23, 17), chunks=(4, 5), dtype="f4", fill_value=np.nan, **names
    )
    if zarr_format == 2:
        made.attrs["_ARRAY_DIMENSIONS"] = ["time", "x"]
    values: Any = np.full((23, 17), np.nan, np.float32)
    values[20:23, 15:17] = [[1, -0.0], [np.inf, 0.0], [5, 6]]
    values[0, 0] = 7
    made[...] = values
    made.attrs.update(units="K", scale_factor=0.5)
    root.create_array("scalar", shape=(), dtype="i8", fill_value=0)[...] = 42
    root.create_array("nothing", shape=(0, 3), chunks=(2, 2), dtype="i2", fill_value=0)
    root.create_array("empty", shape=(30,), chunks=(7,), dtype="u2", fill_value=9)
    root.create_array("zeros", shape=(30,), chunks=(7,), dtype="f8", fill_value=0.0)[8:9] = -0.0
    big = root.create_array("big-endian", shape=(9,), chunks=(2,), dtype=">i4", fill_value=0)
    big[...] = np.arange(9)
    texts = root.create_array("names", shape=(3,), chunks=(2,), dtype="string", fill_value="")
    texts[...] = np.array(["a", "", "łódź"], dtype=object)
    return root


@pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_any_zarr_hierarchy_is_copied(spark: Any, tmp_path: Path, zarr_format: int) -> None:
    root = write_zarr(tmp_path / "source.zarr", zarr_format)
    repository = plain_repository(tmp_path)
    report = ingest(spark, repository, str(tmp_path / "source.zarr"), chunks={"time": 10, "x": 6})
    copy = group_of(repository)
    assert_same_values(copy, root)
    field: Any = copy["inner/field"]
    assert (field.chunks, field.metadata.dimension_names) == ((10, 6), ("time", "x"))
    assert copy.attrs["title"] == "all kinds of things"
    session = repository.readonly_session("main")
    assert stored_cells(session, "/inner/field") == {(0, 0), (2, 2)}
    assert stored_cells(session, "/empty") == set()
    assert stored_cells(session, "/zeros") == {(1,)}
    assert report.written == 2 + 1 + 1 + 5 + 2
    assert_same_values(seen_by_the_reference(tmp_path / "repository"), root)
    assert opened(session, "inner").field.attrs["units"] == "K"
    theirs = xarray.open_zarr(str(tmp_path / "source.zarr"), group="inner", consolidated=False)
    assert_array_equal(opened(session, "inner").field.values, theirs.field.values)
    assert_clean(repository)


def stored_cells(session: icefloe.Session, path: str) -> set[tuple[int, ...]]:
    """List the chunks that are stored of an array."""
    store = zarr.open_array(session.store, path=path.strip("/"), mode="r")
    grid = [-(-length // chunk) for length, chunk in zip(store.shape, store.chunks, strict=True)]
    return {
        cell
        for cell in np.ndindex(*grid)
        if session.chunk_type(path, cell) is not icefloe.ChunkType.uninitialized
    }


class Stumbling(ZarrSource):
    """Cannot be read beyond a row, once or until a marker is there."""

    row: int = 0
    marker: str = ""
    is_permanent: bool = False

    @override
    def array(self, path: str) -> "zarr.Array[Any]":
        place = self.access.place(self.url)
        store = StumblingStore(place.backend, place.key)
        store.source = self
        return zarr.open_array(store, path=path, mode="r")


class StumblingStore(ReadingStore):
    """Fails when a row of chunks is read."""

    source: Stumbling

    @override
    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: Any = None
    ) -> Buffer | None:
        parts = key.split("/")
        if parts[:2] == ["a", "c"] and int(parts[2]) == self.source.row:
            self._stumble()
        return await super().get(key, prototype, byte_range)

    def _stumble(self) -> None:
        marker = Path(self.source.marker)
        if not marker.exists():
            if not self.source.is_permanent:
                marker.touch()
            raise OSError("this cannot be read now")


def rows_of_chunks(tmp_path: Path) -> zarr.Group:
    root = zarr.open_group(str(tmp_path / "source.zarr"), mode="w")
    array = root.create_array(
        "a", shape=(64, 900), chunks=(1, 900), dtype="i4", dimension_names=["time", "x"]
    )
    array[...] = np.arange(64 * 900).reshape(64, 900)
    return root


def stumbling(tmp_path: Path, row: int, *, is_permanent: bool = False) -> Stumbling:
    url = (tmp_path / "source.zarr").as_uri()
    marker = str(tmp_path / "marker")
    return Stumbling(url, SourceAccess(), "", row, marker, is_permanent)


def copy(
    spark: Any, repository: icefloe.Repository, source: CopySource, few: int = 100, **options: Any
) -> CopyReport:
    layout = LayoutOptions({"x": 300})
    chosen = CopyOptions(layout, memory_per_task=40_000, **options)
    job = Job(SparkEngine(spark), Target(repository, "main", ""), few_references=few)
    return job.run(NativeProducer(source=source, options=chosen))


def test_a_task_that_fails_once_leaves_nothing_behind(spark: Any, tmp_path: Path) -> None:
    root = rows_of_chunks(tmp_path)
    repository = plain_repository(tmp_path)
    report = copy(spark, repository, stumbling(tmp_path, 3), few=10)
    assert (tmp_path / "marker").exists()
    assert (report.written, report.objects) == (192, 192)
    assert_same_values(group_of(repository), root)
    assert_clean(repository)


def test_a_copy_in_waves_goes_on_where_it_was_broken_off(spark: Any, tmp_path: Path) -> None:
    root = rows_of_chunks(tmp_path)
    repository = plain_repository(tmp_path)
    source = stumbling(tmp_path, 40, is_permanent=True)
    with pytest.raises(Exception, match="cannot be read now"):  # of one kind of Spark's or another
        copy(spark, repository, source, most_references=60)
    broken_off = [each.message for each in repository.ancestry(branch="main")]
    assert broken_off == ["60 chunks copied"] * 2 + ["Repository initialized"]
    (tmp_path / "marker").touch()
    with pytest.raises(InvalidInputError, match="choose another group"):
        copy(spark, repository, source, most_references=100)
    report = copy(spark, repository, source, most_references=60)
    assert (report.skipped_commits, report.commits, report.written) == (2, 2, 72)
    assert_same_values(group_of(repository), root)
    for each in list_attempts(repository):  # of tasks that went on writing for a moment
        discard_attempt(repository, each.job)
    assert_sound(repository, allow_garbage=True)
    with pytest.raises(InvalidInputError, match="choose another group"):
        copy(spark, repository, source, most_references=60)


def test_other_commits_are_no_obstacle_unless_they_meet(spark: Any, tmp_path: Path) -> None:
    root = rows_of_chunks(tmp_path)
    repository = plain_repository(tmp_path)
    with repository.transaction("main", message="a root") as store:
        zarr.create_group(store)
    committed: list[str] = []

    def commit_beside(path: str, each: StageProgress) -> None:
        if each.stage == "copy" and path not in committed:
            committed.append(path)
            with repository.transaction("main", message="beside") as store:
                zarr.create_array(store, name=path, shape=2, dtype="i2")[...] = [1, 2]

    url = str(tmp_path / "source.zarr")
    chunks = {"x": 450}
    report = rechunk(
        spark,
        repository,
        url,
        chunks=chunks,
        on_progress=lambda each: commit_beside("other", each),
    )
    messages = [version.message for version in repository.ancestry(branch="main")]
    assert messages == ["128 chunks copied", "beside", "a root", "Repository initialized"]
    assert repository.lookup_branch("main") == report.snapshot
    with pytest.raises(RebaseFailedError):
        rechunk(
            spark,
            repository,
            url,
            group="again",
            chunks=chunks,
            on_progress=lambda each: commit_beside("again/a", each),
        )
    assert_clean(repository)
    copy: Any = group_of(repository)["a"]
    assert_array_equal(copy[...], np.asarray(root["a"][...]))  # type: ignore[index]


def test_a_dataset_is_rechunked_in_its_place(spark: Any, tmp_path: Path) -> None:
    archive = write_archive(tmp_path / "data", 4)
    repository = stored_repository(tmp_path)
    session = repository.writable_session("main")
    virtualize_locally(session, archive.pattern, TIME)
    session.commit("by reference")
    with pytest.raises(InvalidInputError, match="overwrite"):
        rechunk(spark, repository, repository, chunks={"time": 2})
    rechunk(spark, repository, repository, chunks={"time": 2}, overwrite=True)
    copy: Any = group_of(repository)["temperature"]
    assert copy.chunks == (2, 12, 16)
    assert_complete(repository.readonly_session("main"), archive)
    assert repository.readonly_session("main").all_virtual_chunk_locations() == []
    with pytest.raises(InvalidInputError, match="memory_per_task"):
        rechunk(spark, repository, repository, group="x", memory_per_task=100)
    with pytest.raises(InvalidInputError, match="'day'"):
        rechunk(spark, repository, repository, group="x", chunks={"day": 1})
    with pytest.raises(InvalidInputError, match="commit first"):
        rechunk(spark, repository, repository.writable_session("main"), group="x")


def test_what_a_killed_driver_left_of_a_copy_can_be_removed(tmp_path: Path) -> None:
    repository = plain_repository(tmp_path)
    for key in ("chunks/0000000000000000000G", "icefloe/staging/dead/repo"):
        path = tmp_path / "repository" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"left")
    note = tmp_path / "repository" / "icefloe/jobs/dead/-1--1-00"
    note.parent.mkdir(parents=True)
    note.write_text("chunks/0000000000000000000G")
    assert [(each.job, each.notes) for each in list_attempts(repository)] == [("dead", 1)]
    assert discard_attempt(repository, "dead") == 2
    assert list_attempts(repository) == []
    assert_clean(repository)


def test_the_last_of_copies_beside_each_other_puts_the_setting_back(spark: Any) -> None:
    name = "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch"
    before = spark.conf.get(name)
    assert before == "true"
    with ExitStack() as first, ExitStack() as second:
        for copy in (first, second):
            copy.enter_context(attempts_may_differ(spark))
        first.close()
        assert spark.conf.get(name) == "false"
    assert spark.conf.get(name) == before
