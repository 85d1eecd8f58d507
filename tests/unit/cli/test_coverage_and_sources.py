"""`icefloe coverage` and `icefloe sources`: what a version holds, as a shell sees it."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import zarr
from typer.testing import CliRunner, Result

import icefloe
from icefloe.cli.main import app
from icefloe.pipeline.combining.combine import NATIVE_CHUNK
from icefloe.pipeline.files.facts import SourceState
from icefloe.pipeline.files.options import CombineOptions, ParseOptions
from icefloe.pipeline.writing.provenance import (
    RecordedFile,
    options_to_json,
    read_record,
    record_path,
    recorded_groups,
    write_record,
)

OPTIONS = options_to_json(CombineOptions(("time",), gaps="leave"), ParseOptions(("time",)))
HOUR = 3_600_000_000


def add(store: Any, group: str, days: Sequence[int], length: int, hour: int) -> None:
    """Write what a job would: the coordinate of a dataset, and the record of its files."""
    path = f"{group}/time".lstrip("/")
    before = read_record(store, group)
    if before is None:
        zarr.create_array(
            store,
            name=path,
            shape=length,
            chunks=(NATIVE_CHUNK,),
            dtype="f8",
            attributes={"units": "days since 2015-01-01", "calendar": "360_day"},
            dimension_names=["time"],
        )
    time = zarr.open_array(store, path=path)
    time.resize((length,))
    time[:] = np.arange(length)
    files = [
        RecordedFile(
            SourceState(f"s3://bucket/day_{day:03d}.nc", 2048, f"e{day}", hour * HOUR),
            day,
            1,
            "t",
            hour * HOUR,
        )
        for day in days
    ]
    write_record(store, group, before, files, OPTIONS)


@pytest.fixture
def place(tmp_path: Path) -> str:
    path = str(tmp_path / "repository")
    repository = icefloe.Repository.create(icefloe.local_filesystem_storage(path))
    with repository.transaction("main", message="without three days") as store:
        add(store, "model", [day for day in range(40) if day not in (28, 29, 30)], 40, 1)
        add(store, "", [0, 1], 2, 1)
    repository.create_tag("v1", repository.lookup_branch("main"))
    with repository.transaction("main", message="two of them") as store:
        add(store, "model", [28, 29, *range(40, 50)], 50, 2)
    return path


def run(*arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == code, result.output
    return result


def test_missing_and_late_days_are_shown(place: str) -> None:
    shown = run("coverage", place, "--group", "model").stdout
    assert "group model, 50 steps along time: 2015-01-01 … 2015-02-20" in shown
    assert "t: 49 of 50 steps, 49 files, 2 came late" in shown
    assert "missing: time 2015-02-01" in shown
    assert "█ present  ▓ came late  ▄ in part" in shown


def test_another_version_had_other_gaps(place: str) -> None:
    [held] = json.loads(run("coverage", place, "--group", "model", "--tag", "v1", "--json").stdout)
    assert (held["length"], held["is_complete"]) == (40, False)
    [family] = held["families"]
    assert family["steps"] == {"present": 37, "late": 0, "missing": 3, "partial": 0}
    assert family["spans"][1] == {
        "presence": "missing",
        "first": "2015-01-29",
        "last": "2015-02-01",
        "steps": 3,
        "start": 28,
    }
    repository = icefloe.Repository.open(icefloe.local_filesystem_storage(place))
    then = repository.lookup_snapshot(repository.lookup_tag("v1"))
    for version in (("--snapshot", then.id[:8]), ("--as-of", then.written_at.isoformat())):
        [same] = json.loads(run("coverage", place, "--group", "model", *version, "--json").stdout)
        assert same == held
        files = json.loads(run("sources", place, "--group", "model", *version, "--json").stdout)
        assert len(files) == 37


def test_all_datasets_unless_one_is_named(place: str) -> None:
    held = json.loads(run("coverage", place, "--json").stdout)
    assert [(each["group"], each["is_complete"]) for each in held] == [("", True), ("model", False)]
    [root] = json.loads(run("coverage", place, "--group", "", "--json").stdout)
    assert root["length"] == 2


def test_a_plot_is_drawn(place: str, tmp_path: Path) -> None:
    picture = tmp_path / "coverage.svg"
    run("coverage", place, "--plot", str(picture))
    shapes = ElementTree.parse(picture).getroot()
    classes = {each.get("class") for each in shapes.iter() if each.tag.endswith("rect")}
    assert {"present", "late", "missing"} <= classes
    assert "svg" in run("coverage", place, "--plot", "coverage.png", code=2).stderr


def test_files_are_listed_in_the_order_of_their_places(place: str) -> None:
    rows = json.loads(run("sources", place, "--group", "model", "--json").stdout)
    assert [row["start"] for row in rows] == [day for day in range(50) if day != 30]
    assert [row["start"] for row in rows if row["is_late"]] == [28, 29]
    assert rows[28] == {
        "url": "s3://bucket/day_028.nc",
        "group": "model",
        "start": 28,
        "length": 1,
        "first": "2015-01-29",
        "last": "2015-01-29",
        "size": 2048,
        "etag": "e28",
        "modified": "1970-01-01T02:00:00+00:00",
        "ingested": "1970-01-01T02:00:00+00:00",
        "is_late": True,
        "variables": ["t"],
    }


@pytest.mark.parametrize(
    ("like", "count"),
    [
        ("day_02?.nc", 10),
        ("s3://bucket/day_02*.nc", 10),
        ("**/day_02[0-4].nc", 5),
        ("day_0{01,02}.nc", 2),
        ("bucket/*", 0),
        ("s3://*/day_001.nc", 1),
    ],
)
def test_files_are_found_by_globs(place: str, like: str, count: int) -> None:
    found = json.loads(run("sources", place, "--group=model", "--like", like, "--json").stdout)
    assert len(found) == count


def test_long_lists_are_cut(place: str) -> None:
    lines = run("sources", place, "--group=model", "--max-rows=2").stdout.splitlines()
    assert lines[0].split()[0] == "file"
    first = lines[1].split()
    assert first[:4] == ["s3://bucket/day_000.nc", "2015-01-01", "2015-01-01", "1"]
    assert lines[-1] == "49 files (47 not shown)"


@pytest.mark.parametrize("command", ["coverage", "sources"])
def test_a_group_without_a_record_is_told_from_those_with_one(place: str, command: str) -> None:
    failed = run(command, place, "--group", "nope", code=3)
    assert "'nope'" in failed.stderr
    assert "'model'" in failed.stderr
    run(command, place, "--branch", "nope", code=3)


def test_a_bad_glob_is_the_users_mistake(place: str) -> None:
    assert "glob" in run("sources", place, "--like", "[z-a]", code=5).stderr


def test_the_first_arrival_stays_when_a_file_is_replaced() -> None:
    session = icefloe.Repository.create(icefloe.in_memory_storage()).writable_session("main")
    add(session.store, "a/b", [0, 1], 2, 1)
    add(session.store, "a/b", [1], 2, 7)
    record = read_record(session.store, "a/b")
    assert record is not None
    assert [each.ingested for each in record.files] == [HOUR, HOUR]
    assert record.files[1].state.modified == 7 * HOUR
    assert recorded_groups(session.store) == ["a/b"]


def test_records_that_do_not_know_when_files_came() -> None:
    session = icefloe.Repository.create(icefloe.in_memory_storage()).writable_session("main")
    add(session.store, "", [0, 2], 3, 1)
    del zarr.open_group(session.store, path=record_path(""), mode="r+")["ingested"]
    before = read_record(session.store, "")
    assert before is not None
    assert [each.ingested for each in before.files] == [None, None]
    add(session.store, "", [1], 3, 5)
    after = read_record(session.store, "")
    assert after is not None
    assert [each.ingested for each in after.files] == [None, None, 5 * HOUR]
