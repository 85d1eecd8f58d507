"""`icefloe migrate`, `icefloe clone` and `icefloe export`."""

import json
from pathlib import Path
from typing import Any

import pytest
import zarr
from typer.testing import CliRunner, Result

import icefloe
from icefloe.cli.common import DECLINED
from icefloe.cli.main import EXIT_CODES, app
from icefloe.errors import InvalidInputError, NotFoundError


@pytest.fixture(params=[1, 2])
def place(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    path = tmp_path / "repository"
    repository = icefloe.Repository.create(
        icefloe.local_filesystem_storage(str(path)),
        icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0),
        spec_version=request.param,
    )
    for number in range(2):
        with repository.transaction("main", message=f"no. {number}") as store:
            array = zarr.create_array(
                store, name="g/t2m", shape=(4, 4), chunks=(2, 2), dtype="i4", overwrite=True
            )
            array[:] = number + 1
        repository.create_tag(f"v{number}", repository.lookup_branch("main"))
    return path


def run(*arguments: str, answer: str | None = None) -> Result:
    return CliRunner().invoke(app, [*arguments], input=answer)


def values_of(group: zarr.Group, name: str) -> set[int]:
    array: Any = group[name]
    return {*array[:].ravel().tolist()}


def spec_of(path: Path) -> int:
    return int(icefloe.Repository.open(icefloe.local_filesystem_storage(str(path))).spec_version)


def test_migrate(place: Path) -> None:
    spec = spec_of(place)
    dry = run("migrate", str(place), "--dry-run")
    assert dry.exit_code == 0, dry.output
    assert spec_of(place) == spec
    if spec == 2:
        assert "nothing to migrate" in dry.stdout
        found = json.loads(run("migrate", str(place), "--yes", "--json").stdout)
        assert found["was_migrated"] is True
        return
    assert "can be migrated to spec version 2: 3 versions, 1 branch, 2 tags" in dry.stdout
    assert run("migrate", str(place), answer="n\n").exit_code == DECLINED
    assert spec_of(place) == 1
    done = run("migrate", str(place), answer="y\n")
    assert done.exit_code == 0, done.output
    assert "migrated to spec version 2" in done.stdout
    assert "4 files of spec version 1 stayed" in done.stdout
    assert spec_of(place) == 2
    again = run("migrate", str(place), "--yes", "--delete-unused-v1-files", "--json")
    assert again.exit_code == 0, again.output
    assert json.loads(again.stdout)["old_files_removed"] == 4
    assert {one.name for one in (place / "overwritten" / "spec-1").iterdir()} == {
        "refs",
        "config.yaml",
    }


def test_clone(place: Path, tmp_path: Path) -> None:
    target = tmp_path / "clone"
    result = run("clone", str(place), str(target), "--deep")
    assert result.exit_code == 0, result.output
    assert ["chunks", "8", "0"] in [line.split() for line in result.stdout.splitlines()]
    assert "compared byte by byte: all the same" in result.stdout
    assert run("verify", str(target), "--deep").exit_code == 0
    assert "nothing was copied" in run("clone", str(place), str(target)).stdout
    one = tmp_path / "one"
    report = json.loads(run("clone", str(place), str(one), "--tag", "v0", "--json").stdout)
    assert (report["versions"], report["objects_copied"]["chunks"]) == (2, 4)
    clone = icefloe.Repository.open(icefloe.local_filesystem_storage(str(one)))
    assert clone.list_tags() == {"v0"}


def test_export(place: Path, tmp_path: Path) -> None:
    target = tmp_path / "plain.zarr"
    result = run("export", str(place), str(target), "--group", "g", "--consolidated", "--deep")
    assert result.exit_code == 0, result.output
    assert "1 group, 1 array" in result.stdout
    assert "4 chunks copied" in result.stdout
    assert "4 chunks compared" in result.stdout
    group = zarr.open_group(str(target), mode="r")
    assert values_of(group, "t2m") == {2}
    other = tmp_path / "other.zarr"
    report = json.loads(run("export", str(place), str(other), "--tag", "v0", "--json").stdout)
    assert (report["groups"], report["chunks"]) == (2, 4)
    assert values_of(zarr.open_group(str(other), mode="r"), "g/t2m") == {1}


def test_errors(place: Path, tmp_path: Path) -> None:
    in_use = EXIT_CODES[InvalidInputError]
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").touch()
    for command in ("clone", "export"):
        result = run(command, str(place), str(tmp_path / "used"))
        assert result.exit_code == in_use
        assert "not empty" in result.stderr
        nowhere = run(command, str(tmp_path / "none"), str(tmp_path / "new"))
        assert nowhere.exit_code == EXIT_CODES[NotFoundError]
        unclear = run(command, str(place), str(tmp_path / "new"), "--branch", "b", "--tag", "t")
        assert unclear.exit_code == in_use
        late = run(command, str(place), str(tmp_path / "x"), "--branch", "main", "--as-of", "soon")
        assert late.exit_code == 2
        assert "--as-of" in late.stderr
    missing = run("export", str(place), str(tmp_path / "new"), "--group", "nothing")
    assert missing.exit_code == EXIT_CODES[NotFoundError]
    assert not (tmp_path / "new").exists()
