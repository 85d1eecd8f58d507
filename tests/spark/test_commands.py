"""`icefloe ingest virtual` and `icefloe append`, as a shell sees them."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import icefloe
from examples.archives import Fault, write_archive
from icefloe.cli.main import app
from tests.spark.archives import assert_complete

pytestmark = pytest.mark.spark


def run(*arguments: str, code: int = 0) -> Any:
    result = CliRunner().invoke(app, [*arguments, "--engine=spark"])
    assert result.exit_code == code, result.output
    return result


def readable(path: Path, data: Path) -> icefloe.Session:
    prefix = f"{data.as_uri()}/"
    access = {prefix: icefloe.credentials.LocalFileSystemAccess}
    repository = icefloe.Repository.open(
        icefloe.local_filesystem_storage(str(path)),
        authorize_virtual_chunk_access=icefloe.containers_credentials(access),
    )
    return repository.readonly_session("main")


@pytest.mark.usefixtures("spark")
def test_from_files_to_a_repository_and_on(tmp_path: Path) -> None:
    archive = write_archive(tmp_path / "data", 6)
    repo = ["--repo", str(tmp_path / "cube")]
    last = archive.path(5).read_bytes()
    archive.path(5).unlink()
    first = run(
        "ingest", "virtual", archive.pattern, *repo, "--concat=time", "--message=five", "--json"
    )
    report = json.loads(first.stdout)
    assert (report["scan"]["used"], report["references"]) == (5, 12)
    assert (report["holds"]["length"], report["holds"]["is_complete"]) == (5, True)
    archive.path(5).write_bytes(last)
    picture = tmp_path / "coverage.svg"
    shown = run("append", archive.pattern, *repo, f"--plot={picture}").stdout
    assert "committed" in shown
    assert "6 of 6 steps, 6 files" in shown
    assert picture.read_text().startswith("<svg")
    assert "nothing to commit" in run("append", archive.pattern, *repo).stdout
    session = readable(tmp_path / "cube", archive.folder)
    assert_complete(session, archive)


@pytest.mark.usefixtures("spark")
def test_misfits_are_listed_and_nothing_is_committed(tmp_path: Path) -> None:
    archive = write_archive(tmp_path / "data", 4, faults={2: Fault.DTYPE})
    arguments = ["ingest", "virtual", archive.pattern, "--concat=time"]
    arguments += ["--repo", str(tmp_path / "cube")]
    failed = run(*arguments, code=4)
    assert archive.urls()[2] in failed.stdout
    assert "dtype" in failed.stdout
    assert "source-misfit" in failed.stderr
    as_json = json.loads(run(*arguments, "--json", code=4).stdout)
    assert as_json["counts"] == {"dtype": 1}
    assert "3 of 4 files fit" in run(*arguments, "--skip-misfits").stdout


def test_a_coordinate_must_be_given_as_a_pair(tmp_path: Path) -> None:
    arguments = ["ingest", "virtual", "x.nc", "--concat=time", "--coordinate=time"]
    failed = run(*arguments, "--repo", str(tmp_path / "cube"), code=2)
    assert "DIM=NAME" in failed.stderr
