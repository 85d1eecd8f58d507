"""`--engine`: what runs on this machine needs neither Spark nor Java, and leaves nothing behind."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import zarr
from typer.testing import CliRunner

import icefloe
from examples.archives import Fault, write_archive
from icefloe.cli.main import app
from icefloe.effects import run_blocking
from icefloe.errors import IcefloeError, InvalidInputError, ReadOnlyError
from icefloe.format.update_table import Status
from icefloe.jobs import MOST_FILES, Work, engine_for
from icefloe.pipeline.files.facts import SourceState
from icefloe.pipeline.running.orphans import discard_if_empty
from icefloe.repo.repo_changes import CloseIfNew
from tests.pipeline.repositories import repository_for
from tests.spark.archives import assert_complete

PROGRAM = """
import json, sys
from icefloe.cli.main import app
for arguments in json.loads(sys.argv[1]):
    try:
        app(arguments)
    except SystemExit as end:
        assert not end.code, end.code
print(json.dumps([name for name in sys.modules if name.partition(".")[0] in {"pyspark", "py4j"}]))
"""


def run(*arguments: str, code: int = 0) -> Any:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == code, result.output
    return result


def test_local_jobs_load_no_spark_and_need_no_java(tmp_path: Path) -> None:
    archive = write_archive(tmp_path / "data", 3)
    folders = os.environ["PATH"].split(os.pathsep)
    environment = {
        **{name: text for name, text in os.environ.items() if name != "JAVA_HOME"},
        "PATH": os.pathsep.join(f for f in folders if not Path(f, "java").exists()),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    last = archive.path(2).rename(tmp_path / "last.nc")
    cube, copy = (["--repo", str(tmp_path / name)] for name in ("cube", "copy"))
    commands = [
        ["ingest", "virtual", archive.pattern, *cube, "--concat=time", "--engine=local"],
        ["append", f"{last.parent}/*.nc", *cube, "--check-values=all", "--skip-misfits"],
        ["ingest", "native", archive.pattern, *copy, "--concat=time", "--chunks=time=2"],
        ["rechunk", str(tmp_path / "copy"), *copy, "--group=long", "--chunks=time=-1"],
    ]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(commands)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == []
    assert done.stdout.count("committed") == 3
    assert "uncovered" in done.stdout  # the appended file lies where nobody may read it


def test_from_files_to_a_repository_and_on(tmp_path: Path) -> None:
    archive = write_archive(tmp_path / "data", 4)
    repo = ["--repo", str(tmp_path / "cube")]
    last = archive.path(3).read_bytes()
    archive.path(3).unlink()
    first = run("ingest", "virtual", archive.pattern, *repo, "--concat=time", "--json")
    assert json.loads(first.stdout)["scan"]["used"] == 3
    archive.path(3).write_bytes(last)
    assert "committed" in run("append", archive.pattern, *repo, "--engine=local").stdout
    assert "nothing to commit" in run("append", archive.pattern, *repo).stdout
    prefix = f"{archive.folder.as_uri()}/"
    access = {prefix: icefloe.credentials.LocalFileSystemAccess}
    repository = icefloe.Repository.open(
        icefloe.local_filesystem_storage(repo[1]),
        authorize_virtual_chunk_access=icefloe.containers_credentials(access),
    )
    assert_complete(repository.readonly_session("main"), archive)


def test_a_job_that_fails_leaves_no_new_repository(tmp_path: Path) -> None:
    archive = write_archive(tmp_path / "data", 3, faults={1: Fault.DTYPE})
    cube = tmp_path / "cube"
    for kind in ("virtual", "native"):
        arguments = ["ingest", kind, archive.pattern, "--concat=time", "--repo", str(cube)]
        failed = run(*arguments, code=4)
        assert archive.urls()[1] in failed.stdout
        assert "source-misfit" in failed.stderr
        assert not cube.exists()
    run("rechunk", str(tmp_path / "none.zarr"), "--repo", str(cube), code=3)
    assert not cube.exists()


def test_a_job_that_fails_leaves_an_old_repository_alone(tmp_path: Path) -> None:
    archive = write_archive(tmp_path / "data", 3, faults={1: Fault.DTYPE})
    storage = icefloe.local_filesystem_storage(str(tmp_path / "cube"))
    repository = repository_for(archive.folder, storage=storage)
    before = storage.list_objects()
    run(
        "ingest",
        "virtual",
        archive.pattern,
        "--concat=time",
        "--repo",
        str(tmp_path / "cube"),
        code=4,
    )
    assert storage.list_objects() == before
    assert repository.lookup_branch("main")


def test_a_new_repository_to_which_others_committed_stays(tmp_path: Path) -> None:
    storage = icefloe.local_filesystem_storage(str(tmp_path / "cube"))
    repository = icefloe.Repository.create(storage)
    other = icefloe.Repository.open(storage).writable_session("main")
    zarr.create_array(other.store, name="a", shape=2, dtype="i4")
    version = other.commit("of somebody else")
    assert not discard_if_empty(repository)
    assert icefloe.Repository.open(storage).lookup_branch("main") == version
    icefloe.Repository.open(storage).create_tag("t", version)


def test_nobody_commits_to_a_repository_that_is_deleted(tmp_path: Path) -> None:
    storage = icefloe.local_filesystem_storage(str(tmp_path / "cube"))
    repository = icefloe.Repository.create(storage)
    others = [icefloe.Repository.open(storage).writable_session("main") for _ in range(2)]
    for number, session in enumerate(others):
        zarr.create_array(session.store, name=f"a{number}", shape=2, dtype="i4")
    run_blocking(repository._context.ledger.update(CloseIfNew(Status(2, 5, "it is deleted"))))
    with pytest.raises(ReadOnlyError, match="it is deleted"):
        others[0].commit("while it is deleted")
    assert discard_if_empty(repository)
    with pytest.raises(IcefloeError):
        others[1].commit("after it was deleted")
    assert not storage.list_objects(prefix="repo")


def test_a_master_is_for_spark(tmp_path: Path) -> None:
    arguments = ["ingest", "virtual", "x.nc", "--concat=time", "--repo", str(tmp_path / "cube")]
    failed = run(*arguments, "--engine=local", "--master=spark://host:7077", code=5)
    assert "leave one out" in failed.stderr
    assert not (tmp_path / "cube").exists()


@pytest.mark.parametrize(
    ("work", "is_here", "is_local"),
    [
        (Work(), True, True),
        (Work(files=32), True, True),
        (Work(files=32, is_near=False), False, True),
        (Work(files=3, size_bytes=1 << 40), True, True),
        (Work(files=3, size_bytes=1 << 30, is_copied=True), False, True),
        (Work(files=3, size_bytes=1 << 40, is_copied=True), False, False),
        (Work(files=MOST_FILES), False, True),
        (Work(files=MOST_FILES + 1), False, False),
        (Work(files=3, size_bytes=11 << 40), True, False),
    ],
)
def test_small_archives_are_for_this_machine(work: Work, is_here: bool, is_local: bool) -> None:
    assert (work.suits_this_process, work.suits_this_machine) == (is_here, is_local)


def test_files_are_counted_and_measured() -> None:
    states = [
        SourceState("file:///a.nc", 3),
        SourceState("s3://b/c.nc", 4),
        SourceState("file:///d"),
    ]
    assert Work.of_files(states) == Work(3, 7, is_copied=False, is_near=False)
    assert Work.of_files(states[:1], is_copied=True) == Work(1, 3, is_copied=True, is_near=True)


def test_processes_are_for_those_who_need_them() -> None:
    with engine_for(Work(files=3)) as engine:
        assert engine.cores == 1
    with engine_for(Work(files=3000), "local") as engine:
        assert engine.cores >= 1
    with pytest.raises(InvalidInputError), engine_for(Work(), "local", "yarn"):
        pass


def test_references_need_options(tmp_path: Path) -> None:
    repository: Any = repository_for(tmp_path)
    archive = write_archive(tmp_path, 2)
    with pytest.raises(InvalidInputError, match=r"along which dimension.*concat=\('time',\)"):
        icefloe.ingest(repository, archive.pattern)  # type: ignore[call-overload] # what is tested
