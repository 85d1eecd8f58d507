"""Jobs on this machine: in this process, or in a pool of processes that may die."""

import os
import pickle
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import icechunk
import numpy as np
import psutil
import pytest
import zarr
from numpy.testing import assert_array_equal

import icefloe
from examples.archives import Fault, write_archive
from icefloe.errors import IcefloeError, InternalError, StorageError
from icefloe.format.arrow import pa
from icefloe.pipeline import CombineOptions, LocalEngine, MisfitsError, SourceAccess, StageProgress
from icefloe.pipeline.files.facts import int_column, text_column
from icefloe.pipeline.running.engines import NUMBER, SLICE
from icefloe.pipeline.running.jobs import append, ingest, rechunk, virtualize
from icefloe.pipeline.running.orphans import list_attempts
from icefloe.pipeline.running.pool import Pool
from icefloe.pipeline.running.tasks import ATTEMPTS
from tests.pipeline.engine_tasks import Deadly, count, die, fail, fail_thrice, squares, total
from tests.pipeline.repositories import repository_for, stored_contents
from tests.spark.archives import TIME, assert_complete, assert_sound, stored_repository

SECRET = "a-word-that-nobody-may-read"


@pytest.fixture(scope="module")
def pool() -> Iterator[LocalEngine]:
    """Processes take a second to start: one pair serves all tests."""
    with LocalEngine(2) as engine:
        yield engine


@pytest.fixture(scope="module")
def inline() -> Iterator[LocalEngine]:
    with LocalEngine(0) as engine:
        yield engine


@pytest.fixture(params=["inline", "pool"])
def engine(request: pytest.FixtureRequest) -> LocalEngine:
    chosen: LocalEngine = request.getfixturevalue(request.param)
    return chosen


def workers() -> list[psutil.Process]:
    """List the processes of pools that still run."""
    found = []
    for process in psutil.Process().children():
        with suppress(psutil.Error):  # it has just ended
            if any("icefloe.pipeline.running.worker" in word for word in process.cmdline()):
                found.append(process)
    return found


# -- rows ------------------------------------------------------------------------------------


def test_rows_are_mapped_matched_divided_and_gathered(engine: LocalEngine) -> None:
    before = sorted(Path(engine.folder).iterdir())
    given = np.arange(40)
    table = pa.table({"number": int_column(given), SLICE: int_column(given % 4)})
    rows = engine.rows_of(table, 4).map(squares, 1, columns="number long, kind long, text string")
    expected = [(n, None if n % 5 == 0 else str(n**2 + 1)) for n in range(40)]
    with rows.kept() as kept:
        gathered = kept.select("number", "text").gather().sort_by("number").to_pylist()
        assert [(row["number"], row["text"]) for row in gathered] == expected
        without = kept.where("text", is_null=True).gather().column("number").to_pylist()
        assert sorted(without) == list(range(0, 40, 5))
        chosen = pa.table({"number": int_column([31, 7, 99]), "more": text_column(["a", "b", "c"])})
        matched = kept.matching(chosen, "number").gather().sort_by("number").to_pylist()
        assert [(row["number"], row["text"], row["more"]) for row in matched] == [
            (7, "50", "b"),
            (31, "962", "a"),
        ]
        also = pa.table(
            {"number": int_column([100]), "kind": int_column([2]), "text": text_column(["x"])}
        )
        columns = "kind long, sum binary"
        grouped = kept.grouped(total, 10, by=["kind"], columns=columns, tasks=2, also=also)
        sums = {row["kind"]: pickle.loads(row["sum"]) for row in grouped.gather().to_pylist()}
        assert sums == {
            kind: (
                10 * (sum(range(kind, 40, 3)) + 100 * (kind == 2)),
                sorted([str(n**2 + 1) for n in range(kind, 40, 3) if n % 5] + ["x"] * (kind == 2)),
            )
            for kind in range(3)
        }
        alone = kept.in_one_task(count, columns="rows long").gather()
        assert alone.column("rows").to_pylist() == [40]
        empty = kept.where("kind", is_null=True).select("text").gather()
        assert (empty.num_rows, empty.column_names) == (0, ["text"])
    assert sorted(Path(engine.folder).iterdir()) == before


# -- jobs ------------------------------------------------------------------------------------


def test_an_archive_is_ingested_appended_copied_and_read_by_the_reference(
    engine: LocalEngine, tmp_path: Path
) -> None:
    archive = write_archive(tmp_path / "data", 9, steps=2)
    repository = stored_repository(tmp_path)
    seen: list[StageProgress] = []
    first = virtualize(engine, repository, archive.urls()[:6], TIME, on_progress=seen.append)
    assert (first.scan.used, first.commits) == (6, 1)
    last = {stage.stage: stage for stage in seen}
    assert all(stage.is_over for stage in last.values())
    assert list(last) == ["list", "scan", "combine", "check", "write", "commit"]
    assert last["scan"].tasks_done == last["scan"].tasks > 0
    report = append(engine, repository, archive.pattern)
    assert (report.known, report.scan.used) == (6, 3)
    assert append(engine, repository, archive.pattern).snapshot is None
    assert_complete(repository.readonly_session("main"), archive)
    assert_sound(repository)
    copied = ingest(engine, repository, archive.pattern, TIME, chunks={"time": 6}, group="copy")
    assert copied.scan is not None
    assert (copied.scan.used, copied.objects) == (9, 9)
    rechunk(engine, repository, repository, source_group="copy", chunks={"time": -1}, group="long")
    assert not list_attempts(repository)
    prefix = f"{archive.folder.as_uri()}/"
    allowed = {prefix: icechunk.credentials.LocalFileSystemAccess}
    theirs = icechunk.Repository.open(
        icechunk.local_filesystem_storage(str(tmp_path / "repository")),
        authorize_virtual_chunk_access=icechunk.containers_credentials(allowed),
    )
    root: Any = zarr.open_group(theirs.readonly_session("main").store, mode="r")
    packed = np.concatenate([archive.packed_temperature(number) for number in range(9)])
    for path in ("temperature", "copy/temperature", "long/temperature"):
        assert_array_equal(root[path][...], packed)
    assert root["long/temperature"].chunks[0] == 18


def test_waves_and_logs_written_by_a_task(engine: LocalEngine, tmp_path: Path) -> None:
    from icefloe.pipeline.running.job import Job, Target
    from icefloe.pipeline.running.virtual import VirtualProducer

    archive = write_archive(tmp_path / "data", 12)
    repository = stored_repository(tmp_path)
    job = Job(engine, Target(repository, "main", ""), few_references=3)
    producer = VirtualProducer(
        sources=archive.pattern, options=TIME, parse=TIME.parse_options(None), most_references=20
    )
    assert job.run(producer).commits > 1
    assert_complete(repository.readonly_session("main"), archive)
    assert_sound(repository)
    changes = repository.diff(
        from_snapshot_id=[*repository.ancestry(branch="main")][-1].id, to_branch="main"
    )
    assert len(changes.updated_chunks["/temperature"]) == 12


def test_repositories_in_memory_stay_in_this_process(pool: LocalEngine, tmp_path: Path) -> None:
    archive = write_archive(tmp_path, 3)
    repository = repository_for(tmp_path)
    virtualize(pool, repository, archive.pattern, TIME)
    assert_complete(repository.readonly_session("main"), archive)


def test_both_ways_store_the_same(inline: LocalEngine, pool: LocalEngine, tmp_path: Path) -> None:
    archive = write_archive(tmp_path / "data", 7, steps=3)
    found = []
    for name, engine in (("inline", inline), ("pool", pool)):
        storage = icefloe.local_filesystem_storage(str(tmp_path / name))
        repository = repository_for(archive.folder, storage=storage)
        virtualize(engine, repository, archive.pattern, TIME)
        found.append(stored_contents(repository))
    assert found[0] == found[1]
    assert len(found[0]["/temperature"][1]) == 21


# -- what goes wrong -------------------------------------------------------------------------


def test_a_killed_process_is_made_up_for(pool: LocalEngine, tmp_path: Path) -> None:
    archive = write_archive(tmp_path / "data", 10)
    repository = stored_repository(tmp_path)
    access = Deadly(marker=str(tmp_path / "killed"))
    virtualize(pool, repository, archive.urls(), TIME, access=access)
    assert (tmp_path / "killed").exists()
    assert_complete(repository.readonly_session("main"), archive)
    assert_sound(repository)


def test_processes_killed_while_manifests_are_written_are_made_up_for(
    pool: LocalEngine, tmp_path: Path
) -> None:
    archive = write_archive(tmp_path / "data", 10)
    repository = stored_repository(tmp_path)
    killed: list[int] = []

    def kill(progress: StageProgress) -> None:
        if progress.stage == "write" and not killed:
            for process in workers():
                process.kill()
                killed.append(process.pid)

    virtualize(pool, repository, archive.urls(), TIME, on_progress=kill)
    assert killed
    assert_complete(repository.readonly_session("main"), archive)
    assert_sound(repository)


def test_a_task_that_kills_every_process_fails_the_job(pool: LocalEngine) -> None:
    with pytest.raises(IcefloeError, match=f"ended {ATTEMPTS} times.*-9"):
        pool.numbers(2, 2).map(die, columns="id long").gather()
    assert workers() == []


def test_files_that_vanish_or_are_damaged_are_named_and_nothing_is_written(
    engine: LocalEngine, tmp_path: Path
) -> None:
    archive = write_archive(tmp_path / "data", 8, faults={2: Fault.TRUNCATED})
    archive.path(5).write_bytes(b"\x89HDF\r\n\x1a\n" + b"\xff" * 5000)
    repository = stored_repository(tmp_path)
    before = repository.storage.list_objects()

    def remove(progress: StageProgress) -> None:
        if progress.stage == "scan":
            archive.path(7).unlink(missing_ok=True)

    with pytest.raises(MisfitsError) as caught:
        virtualize(engine, repository, archive.pattern, TIME, on_progress=remove)
    found = {misfit.url: misfit.kind for misfit in caught.value.report.misfits}
    urls = archive.urls()
    assert set(found) == {urls[2], urls[5], urls[7]}
    assert found[urls[2]] == "truncated"
    assert repository.storage.list_objects() == before


def test_errors_of_tasks_arrive_as_our_own(engine: LocalEngine) -> None:
    refused = StorageError("the bucket is gone", key="a/b")
    with pytest.raises(StorageError, match="the bucket is gone") as caught:
        engine.numbers(8, 4).map(fail, refused, columns="id long").gather()
    assert caught.value.context == {"key": "a/b"}
    with pytest.raises(InternalError, match="ZeroDivisionError: by nothing"):
        engine.numbers(8, 4).map(fail, ZeroDivisionError("by nothing"), columns="id long").gather()


def test_a_task_whose_storage_fails_for_a_moment_is_tried_again(
    engine: LocalEngine, tmp_path: Path
) -> None:
    rows = engine.numbers(8, 4).map(fail_thrice, str(tmp_path / "try"), columns="id long").gather()
    assert Counter(rows.column(NUMBER).to_pylist()) == Counter(range(8))


def test_a_key_press_ends_all_processes_and_leaves_nothing(
    pool: LocalEngine, tmp_path: Path
) -> None:
    archive = write_archive(tmp_path / "data", 10)
    repository = stored_repository(tmp_path)
    before = repository.storage.list_objects()
    pressed: list[str] = []

    def press_control_c(progress: StageProgress) -> None:
        if progress.stage == "write" and progress.tasks_done and not pressed:
            pressed.append(progress.stage)
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        virtualize(pool, repository, archive.urls(), TIME, on_progress=press_control_c)
    assert workers() == []
    assert repository.storage.list_objects() == before
    virtualize(pool, repository, archive.urls(), TIME)
    assert_complete(repository.readonly_session("main"), archive)
    assert_sound(repository)


def test_secrets_are_neither_in_tasks_nor_on_disks(
    pool: LocalEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = write_archive(tmp_path / "data", 6)
    repository = stored_repository(tmp_path)
    private = icefloe.s3_storage(
        bucket="private",
        prefix=None,
        region="us-east-1",
        access_key_id="someone",
        secret_access_key=SECRET,
    )
    told: list[bytes] = []
    shared: list[bytes] = []
    run = Pool.run

    def watched(self: Pool, stage: bytes, values: dict[str, bytes], tasks: list[bytes]) -> Any:
        shared.extend(values.values())
        for outcome in run(self, stage, values, tasks):
            told.extend(path.read_bytes() for path in Path(pool.folder).iterdir())
            yield outcome
        told.extend([stage, *tasks])

    monkeypatch.setattr(Pool, "run", watched)
    access = SourceAccess({"s3://private/": private})
    virtualize(pool, repository, archive.urls(), CombineOptions(("time",)), access=access)
    assert any(SECRET.encode() in value for value in shared)
    assert told
    assert not any(SECRET.encode() in piece for piece in told)
