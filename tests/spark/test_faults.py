"""Workers that die, jobs that fail or are killed, secrets: nothing is lost, left or told."""

import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

import icefloe
from examples.archives import write_archive
from icefloe.errors import InvalidInputError
from icefloe.pipeline.files.options import CombineOptions
from icefloe.pipeline.files.sources import SourceAccess, SourceObject
from icefloe.pipeline.running.orphans import note_key
from icefloe.pipeline.running.progress import Watch
from icefloe.spark import StageProgress, discard_attempt, list_attempts, virtualize
from icefloe.spark.engine import SparkEngine
from tests.spark.archives import TIME, assert_complete, assert_sound, stored_repository
from tests.spark.conftest import wait_for_events

pytestmark = pytest.mark.spark

SECRET = "a-word-that-nobody-may-read"


@dataclass(frozen=True, slots=True)
class DeadlyOnce(SourceAccess):
    """Kills the first process that looks for a file."""

    marker: str = ""

    def place(self, url: str) -> SourceObject:
        try:
            os.close(os.open(self.marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return SourceAccess.place(self, url)
        os._exit(1)


def test_a_worker_that_dies_while_it_parses_is_made_up_for(spark: Any, tmp_path: Path) -> None:
    archive = write_archive(tmp_path / "data", 10)
    repository = stored_repository(tmp_path)
    access = DeadlyOnce(marker=str(tmp_path / "killed"))
    virtualize(spark, repository, archive.urls(), TIME, access=access)
    assert (tmp_path / "killed").exists()
    assert_complete(repository.readonly_session("main"), archive)
    assert_sound(repository)


def python_workers() -> list[psutil.Process]:
    """List the processes in which tasks run: children of a process that forks them."""
    return [each for each in psutil.Process().children(recursive=True) if is_worker(each)]


def is_worker(process: psutil.Process) -> bool:
    try:
        parent = process.parent()
        return all(
            each is not None and "pyspark.daemon" in each.cmdline() for each in (process, parent)
        )
    except psutil.Error:  # it ended meanwhile
        return False


def test_workers_killed_while_manifests_are_written_are_made_up_for(
    spark: Any, tmp_path: Path
) -> None:
    archive = write_archive(tmp_path / "data", 10)
    repository = stored_repository(tmp_path)
    killed: list[int] = []

    def kill(each: StageProgress) -> None:
        if each.stage == "write" and not killed:
            for worker in python_workers():
                with suppress(psutil.NoSuchProcess):
                    worker.kill()
                    killed.append(worker.pid)

    virtualize(spark, repository, archive.urls(), TIME, on_progress=kill)
    assert killed
    assert_complete(repository.readonly_session("main"), archive)
    assert_sound(repository)


def test_an_interrupted_job_commits_nothing_and_can_be_run_again(
    spark: Any, tmp_path: Path
) -> None:
    archive = write_archive(tmp_path / "data", 10)
    repository = stored_repository(tmp_path)
    pressed: list[str] = []

    def press_control_c(each: StageProgress) -> None:
        if each.stage == "write" and not pressed:
            pressed.append(each.stage)
            os.kill(os.getpid(), signal.SIGINT)

    before = repository.lookup_branch("main")
    with pytest.raises(KeyboardInterrupt):
        virtualize(spark, repository, archive.urls(), TIME, on_progress=press_control_c)
    assert repository.lookup_branch("main") == before
    virtualize(spark, repository, archive.urls(), TIME)
    for each in list_attempts(repository):  # of tasks that went on writing for a moment
        discard_attempt(repository, each.job)
    assert_complete(repository.readonly_session("main"), archive)


def test_a_key_press_is_told_whatever_spark_makes_of_it(spark: Any) -> None:
    def collect() -> None:  # as Spark does: its own error while the key press is on its way
        try:
            raise KeyboardInterrupt
        finally:
            raise RuntimeError("the job was cancelled")

    watch = Watch(SparkEngine(spark), "interrupted", None)
    with pytest.raises(KeyboardInterrupt), watch.stage("write", "2 files"):
        collect()
    with pytest.raises(ZeroDivisionError), watch.stage("write", "2 files"):
        1 / 0  # noqa: B018 - any other error stays what it is


def test_progress_that_cannot_be_shown_stops_nothing(
    spark: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    archive = write_archive(tmp_path / "data", 2)
    repository = stored_repository(tmp_path)

    def stumble(_: StageProgress) -> None:
        raise RuntimeError("the terminal is gone")

    report = virtualize(spark, repository, archive.urls(), TIME, on_progress=stumble)
    assert repository.lookup_branch("main") == report.snapshot
    assert "progress cannot be shown" in caplog.text
    assert_sound(repository)


def manifest_names(root: Path) -> list[str]:
    """List the manifests; the lock file of their folder is none."""
    return sorted(file.name for file in (root / "manifests").iterdir() if file.name != "#0")


def test_what_a_killed_driver_left_can_be_removed(spark: Any, tmp_path: Path) -> None:
    archive = write_archive(tmp_path / "data", 4)
    repository = stored_repository(tmp_path)
    report = virtualize(spark, repository, archive.urls(), TIME)
    root = tmp_path / "repository"
    linked = manifest_names(root)
    (root / "manifests" / "00000000000000000000").write_bytes(b"of an attempt that was lost")
    for job, names in (("dead", ["00000000000000000000"]), (report.job, linked[:1])):
        note = root / note_key(job, 0, 0)
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text("\n".join(f"manifests/{name}" for name in names))
    assert {each.job for each in list_attempts(repository)} == {"dead", report.job}
    assert discard_attempt(repository, "dead") == 1
    assert discard_attempt(repository, report.job) == 0
    assert list_attempts(repository) == []
    assert manifest_names(root) == linked
    assert_sound(repository)
    with pytest.raises(InvalidInputError):
        discard_attempt(repository, "../other")


def test_secrets_are_not_in_event_logs(spark: Any, tmp_path: Path, event_logs: Path) -> None:
    archive = write_archive(tmp_path / "data", 3)
    repository = stored_repository(tmp_path)
    private = icefloe.s3_storage(
        bucket="private",
        prefix=None,
        region="us-east-1",
        access_key_id="someone",
        secret_access_key=SECRET,
    )
    access = SourceAccess({"s3://private/": private})
    virtualize(spark, repository, archive.urls(), CombineOptions(("time",)), access=access)
    wait_for_events(spark)
    told = b"".join(path.read_bytes() for path in event_logs.rglob("*") if path.is_file())
    assert b"scan: 3 files" in told
    assert SECRET.encode() not in told
