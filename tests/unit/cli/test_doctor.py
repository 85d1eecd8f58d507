"""`icefloe doctor`: what a storage does, and exit codes for scripts."""

import json
from pathlib import Path

from typer.testing import CliRunner, Result

import icefloe
from icefloe.cli.health import STORAGE_CODES
from icefloe.cli.main import EXIT_CODES, app
from tests.support.http_server import file_server


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["doctor", *arguments])


def test_a_folder(tmp_path: Path) -> None:
    result = run(str(tmp_path / "new"))
    assert result.exit_code == 0, result.output
    heading, *lines = result.stdout.splitlines()
    assert heading.split()[:2] == ["trial", "outcome"]
    assert lines[-1] == "sound"
    assert any(line.split()[:2] == ["conditional-update", "holds"] for line in lines)
    assert "yes: commits of many writers are safe" in lines
    assert list(tmp_path.iterdir()) == []


def test_a_repository_as_json(tmp_path: Path) -> None:
    icefloe.Repository.create(icefloe.local_filesystem_storage(str(tmp_path)))
    before = {path: path.stat() for path in tmp_path.rglob("*")}
    result = run(str(tmp_path), "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["verdict"] == "sound"
    assert found["has_repository"] is True
    assert found["left_behind"] == []
    assert found["trials"]["update-race"]["outcome"] == "holds"
    assert set(found["guarantees"].values()) == {True}
    assert {*tmp_path.rglob("*")} == {*before}
    files = [path for path in before if path.is_file()]
    assert all(path.stat().st_mtime_ns == before[path].st_mtime_ns for path in files)


def test_a_storage_that_can_only_be_read(tmp_path: Path) -> None:
    icefloe.Repository.create(icefloe.local_filesystem_storage(str(tmp_path)))
    with file_server(tmp_path) as server:
        result = run(server.url)
    assert result.exit_code == 11, result.output
    assert "read-only: nothing could be written here" in result.stdout
    assert "there is a repository here" in result.stdout


def test_codes_are_told_apart_from_those_of_errors() -> None:
    assert not {code for code in STORAGE_CODES.values() if code} & {*EXIT_CODES.values(), 2}
    assert {*STORAGE_CODES} == {*icefloe.StorageVerdict}
