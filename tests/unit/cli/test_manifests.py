"""`icefloe manifests`: show, suggest and rewrite."""

import json
from pathlib import Path

import numpy as np
import pytest
import zarr
from typer.testing import CliRunner, Result

import icefloe
from icefloe.cli.main import EXIT_CODES, app
from icefloe.errors import InvalidInputError, NotFoundError

MANY = 3


@pytest.fixture
def place(tmp_path: Path) -> str:
    """A repository whose coordinates came one by one, each in a manifest of its own."""
    path = str(tmp_path / "repository")
    repository = icefloe.Repository.create(icefloe.local_filesystem_storage(path))
    for name in ("x", "y", "z"):
        with repository.transaction("main", message=f"add {name}") as store:
            zarr.create_array(
                store, name=name, shape=6, chunks=2, dtype="i4", dimension_names=(name,)
            )[:] = np.arange(1, 7)
    return path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["manifests", *arguments])


def test_show(place: str) -> None:
    result = run("show", place)
    assert result.exit_code == 0, result.output
    heading, *rows, total = result.stdout.splitlines()
    assert heading.split() == ["manifest", "arrays", "references", "bytes", "paths"]
    assert sorted(row.split()[-1] for row in rows) == ["/x", "/y", "/z"]
    assert total == f"{MANY} in all: 9 references"
    found = json.loads(run("show", place, "--json").stdout)
    assert [one["references"] for one in found] == [3] * MANY
    assert all(one["bytes"] > 0 and len(one["arrays"]) == 1 for one in found)


def test_suggest_and_rewrite(place: str) -> None:
    result = run("suggest", place)
    assert result.exit_code == 0, result.output
    assert "all coordinates" in result.stdout
    assert "the configuration is good as it is" in result.stdout
    assert "should be rewritten" in result.stdout
    before = json.loads(run("suggest", place, "--json").stdout)
    assert before["is_worth_a_rewrite"] is True
    assert before["now"]["coordinates"]["fetched"] == MANY
    assert before["proposed"]["coordinates"]["fetched"] == 1

    result = run("rewrite", place, "--branch", "main", "-m", "together")
    assert result.exit_code == 0, result.output
    repository = icefloe.Repository.open(icefloe.local_filesystem_storage(place))
    latest = next(repository.ancestry(branch="main"))
    assert (latest.id, latest.message) == (result.stdout.strip(), "together")
    after = json.loads(run("suggest", place, "--json").stdout)
    assert after["now"]["coordinates"]["fetched"] == 1
    assert after["is_worth_a_rewrite"] is False


def test_rewrite_with_a_configuration(place: str, tmp_path: Path) -> None:
    config = tmp_path / "layout.yaml"
    config.write_text("chunk-manifests: {sets: [default: {arrays-per-manifest: 2}]}")
    result = run("rewrite", place, "--config", str(config), "--save", "--amend")
    assert result.exit_code == 0, result.output
    storage = icefloe.local_filesystem_storage(place)
    repository = icefloe.Repository.open(storage)
    assert sorted(len(one.arrays) for one in repository.manifest_layout()) == [1, 2]
    assert len(list(repository.ancestry(branch="main"))) == MANY + 1
    stored = icefloe.Repository.fetch_config(storage)
    assert stored is not None
    assert stored.chunk_manifests is not None
    assert stored.chunk_manifests.sets[0].arrays_per_manifest == 2


@pytest.mark.slow
def test_what_is_suggested_can_be_used(tmp_path: Path) -> None:
    path = str(tmp_path / "repository")
    repository = icefloe.Repository.create(icefloe.local_filesystem_storage(path))
    with repository.transaction("main", message="many") as store:
        for number in range(60):
            zarr.create_array(
                store, name=f"c{number}", shape=60, chunks=1, dtype="u1", fill_value=9
            )[:] = 1
    advice = repository.suggest_manifests()
    assert advice.changes_config
    file = tmp_path / "layout.yaml"
    file.write_text(advice.yaml)
    assert run("suggest", path).stdout.endswith(advice.yaml)
    assert run("rewrite", path, "--config", str(file), "--save").exit_code == 0
    repository = icefloe.Repository.open(icefloe.local_filesystem_storage(path))
    assert not repository.suggest_manifests().changes_config
    assert "good as it is" in repr(repository.suggest_manifests())


def test_nothing_to_suggest_and_nowhere(tmp_path: Path) -> None:
    path = str(tmp_path / "repository")
    icefloe.Repository.create(icefloe.local_filesystem_storage(path))
    assert "nothing to suggest" in run("suggest", path).stdout
    assert json.loads(run("suggest", path, "--json").stdout)["proposed"] is None
    assert run("rewrite", path, "--branch", "no").exit_code == EXIT_CODES[NotFoundError]
    result = run("rewrite", path, "--config", str(tmp_path / "none.yaml"))
    assert result.exit_code == EXIT_CODES[InvalidInputError]
