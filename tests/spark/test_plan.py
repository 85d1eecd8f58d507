"""What `plan` says is what the job then does."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import icefloe
from examples.archives import Fault, write_archive
from icefloe.cli.main import app
from icefloe.errors import SourceError
from icefloe.pipeline.planning import CopyEstimate, JobPlan
from icefloe.spark import (
    CopyReport,
    JobReport,
    append,
    ingest,
    plan,
    plan_copy,
    rechunk,
    virtualize,
)
from tests.spark.archives import TIME, stored_repository
from tests.spark.conftest import wait_for_events
from tests.spark.copies import plain_repository


def events(folder: Path) -> Iterator[dict[str, Any]]:
    for path in folder.rglob("*"):
        if path.is_file():
            yield from (json.loads(line) for line in path.read_text().splitlines())


def stages_since(spark: Any, folder: Path, seen: set[int]) -> tuple[list[int], int]:
    """Give the numbers of tasks of stages that are new, and how much they shuffled."""
    wait_for_events(spark)
    tasks, shuffled = [], 0
    for event in events(folder):
        if event["Event"] != "SparkListenerStageCompleted":
            continue
        stage = event["Stage Info"]
        if stage["Stage ID"] in seen:
            continue
        seen.add(stage["Stage ID"])
        tasks.append(stage["Number of Tasks"])
        shuffled += sum(
            int(each["Value"])
            for each in stage["Accumulables"]
            if each["Name"] == "internal.metrics.shuffle.write.bytesWritten"
        )
    return tasks, shuffled


def assert_as_planned(planned: JobPlan, report: JobReport) -> None:
    assert planned.files == report.scan.files
    assert planned.references == report.references
    assert planned.data_bytes >= report.data_bytes
    assert len(planned.waves) == report.commits
    assert planned.manifests.low <= report.manifests <= planned.manifests.high
    assert planned.known == report.known


@pytest.mark.spark
def test_a_job_does_what_was_planned(spark: Any, tmp_path: Path, event_logs: Path) -> None:
    archive = write_archive(tmp_path / "data", 40, steps=2)
    repository = stored_repository(tmp_path)
    urls = archive.urls()
    planned = plan(repository, urls[:30], TIME, cores=2)
    seen: set[int] = set()
    stages_since(spark, event_logs, seen)
    assert_as_planned(planned, virtualize(spark, repository, urls[:30], TIME))
    tasks, shuffled = stages_since(spark, event_logs, seen)
    [wave] = planned.waves
    assert {planned.scan_tasks, wave.tasks} <= set(tasks)
    assert planned.tasks <= sum(tasks) <= 2 * planned.tasks
    assert 0 < shuffled <= planned.shuffle_bytes
    more = plan(repository, urls, cores=2)
    assert (more.files, more.known) == (10, 30)
    assert_as_planned(more, append(spark, repository, urls))
    nothing = plan(repository, urls, cores=2)
    assert (nothing.files, nothing.known, nothing.waves) == (0, 40, ())


@pytest.mark.spark
def test_commits_in_waves_are_planned(spark: Any, tmp_path: Path) -> None:
    archive = write_archive(tmp_path / "data", 12, steps=2)
    repository = stored_repository(tmp_path)
    planned = plan(repository, archive.urls(), TIME, cores=2, references_per_commit=35)
    report = virtualize(spark, repository, archive.urls(), TIME, references_per_commit=35)
    assert len(planned.waves) == report.commits > 1
    assert planned.references == report.references


def assert_copied_as_planned(planned: CopyEstimate, report: CopyReport) -> None:
    assert planned.arrays == report.arrays
    assert planned.values_bytes == report.values_bytes
    assert planned.objects == report.objects
    assert planned.regions == report.regions
    assert planned.source_reads == report.source_reads
    assert planned.memory_bytes == report.memory_per_task
    assert planned.commits == report.commits


@pytest.mark.spark
def test_copies_do_what_was_planned(spark: Any, tmp_path: Path) -> None:
    archive = write_archive(tmp_path / "data", 6, steps=2)
    repository = plain_repository(tmp_path)
    files: dict[str, Any] = {"chunks": {"time": 4}, "shards": {"time": 8}}
    planned = plan_copy(repository, archive.urls(), TIME, cores=2, **files)
    assert planned.scan is not None
    assert planned.scan.files == 6
    assert_copied_as_planned(planned, ingest(spark, repository, archive.urls(), TIME, **files))
    other, url = plain_repository(tmp_path, "other"), str(tmp_path / "repository")
    again: dict[str, Any] = {"chunks": {"time": -1, "lat": 2}, "references_per_commit": 7}
    planned = plan_copy(other, url, cores=2, **again)
    assert planned.scan is None
    assert planned.commits > 1
    assert_copied_as_planned(planned, rechunk(spark, other, url, **again))


def test_what_is_wrong_with_the_sample_is_told(tmp_path: Path) -> None:
    archive = write_archive(tmp_path / "data", 5, faults={2: Fault.TRUNCATED, 4: Fault.DTYPE})
    planned = plan(stored_repository(tmp_path), archive.urls(), TIME, cores=4)
    assert any("truncated" in problem for problem in planned.problems)
    assert any("temperature" in problem for problem in planned.problems)
    every = write_archive(tmp_path / "bad", 1, faults={0: Fault.TRUNCATED})
    with pytest.raises(SourceError, match="truncated"):
        plan(stored_repository(tmp_path / "x", tmp_path / "bad"), every.urls(), TIME, cores=4)


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == code, result.output
    return str(result.output)


def test_the_command_needs_no_repository_and_makes_none(tmp_path: Path) -> None:
    archive = write_archive(tmp_path / "data", 6)
    repo = ["--repo", str(tmp_path / "cube")]
    told = json.loads(run("plan", archive.pattern, *repo, "--concat=time", "--cores=3", "--json"))
    assert (told["files"], told["cores"], told["scan_tasks"]) == (6, 3, 6)
    assert told["checked"] == 2
    assert told["tasks"] == 3 * told["scan_tasks"] + 2 + told["waves"][0]["tasks"]
    assert 0 < told["seconds"]["low"] < told["seconds"]["high"]
    text = run("plan", archive.pattern, *repo, "--concat=time")
    for word in ("files", "tasks", "shuffle", "memory", "commits", "manifests", "time"):
        assert word in text
    copied = ["plan", archive.pattern, *repo, "--concat=time", "--chunks=time=3"]
    told = json.loads(run(*copied, "--cores=3", "--memory=64M", "--json"))
    assert told["scan"]["files"] == 6
    assert told["tasks"] == told["scan"]["tasks"] + told["copy_tasks"] + told["write_tasks"]
    assert 0 < told["memory_bytes"] <= 64 * 2**20
    text = run(*copied)
    for word in ("scan: files", "values", "reads", "writes", "memory", "commits", "time"):
        assert word in text
    assert not (tmp_path / "cube").exists()
    assert "no record of sources" in run("plan", archive.pattern, *repo, code=5)


def test_a_large_archive_is_planned_from_a_few_files(tmp_path: Path) -> None:
    """Ten thousand URLs of the same few files: three are opened."""
    archive = write_archive(tmp_path / "data", 3)
    source = archive.path(0).read_bytes()
    for number in range(3, 400):
        archive.path(number).parent.mkdir(exist_ok=True)
        archive.path(number).write_bytes(source)
    repository = icefloe.Repository.create(icefloe.in_memory_storage())
    planned = plan(repository, archive.pattern, TIME, cores=64)
    assert (planned.files, len(planned.sampled)) == (400, 3)
    assert planned.references == 2 * 400 + 2
    assert planned.scan_tasks == 256
