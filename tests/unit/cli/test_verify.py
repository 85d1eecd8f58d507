"""`icefloe verify`: verdict, table, JSON, and exit codes for schedulers."""

import json
from pathlib import Path

import pytest
import zarr
from typer.testing import CliRunner, Result

import icefloe
from icefloe.cli.health import REPOSITORY_CODES
from icefloe.cli.main import EXIT_CODES, app
from icefloe.errors import InvalidInputError, NotFoundError


@pytest.fixture
def place(tmp_path: Path) -> Path:
    path = tmp_path / "repository"
    repository = icefloe.Repository.create(
        icefloe.local_filesystem_storage(str(path)),
        icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0),
    )
    for number in range(2):
        with repository.transaction("main", message=f"no. {number}") as store:
            array = zarr.create_array(
                store, name="t2m", shape=(4, 4), chunks=(2, 2), dtype="i4", overwrite=True
            )
            array[:] = number + 1
    return path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["verify", *arguments])


def test_healthy(place: Path) -> None:
    for arguments in ((), ("--deep",)):
        result = run(str(place), *arguments)
        assert result.exit_code == 0, result.output
        [line] = result.stdout.splitlines()
        assert line.startswith("healthy: 3 snapshots, 2 manifests, 8 references, 8 chunk objects")


def test_damaged(place: Path) -> None:
    lost = min((place / "chunks").iterdir())
    lost.unlink()
    result = run(str(place))
    assert result.exit_code == 10
    heading, row, message, remedy, summary = result.stdout.splitlines()
    assert heading.split()[:5] == ["damage", "harms", "array", "chunks", "versions"]
    assert row.split()[:3] == ["no-chunk", "data", "/t2m"]
    assert f"chunks/{lost.name}" in row
    assert f"chunks/{lost.name} does not exist" in message
    assert remedy.startswith("  to do: put the object back")
    assert summary.startswith("damaged:")
    assert summary.endswith("1 damage")


def test_damaged_as_json(place: Path) -> None:
    for chunk in (place / "chunks").iterdir():
        chunk.write_bytes(b"x")
    result = run(str(place), "--json")
    assert result.exit_code == 10
    found = json.loads(result.stdout)
    assert found["verdict"] == "damaged"
    assert not found["deep"]
    assert found["checked"]["references"] == 8
    assert found["unchecked"] == {}
    assert [damage["kind"] for damage in found["damages"]] == ["short-chunk"] * 2
    for damage in found["damages"]:
        assert damage["harms"] == "data"
        assert damage["objects"] == len(damage["keys"]) == 4
        [array] = damage["arrays"]
        assert array["path"] == "/t2m"
        assert array["region"] == [[[0, 2], [0, 2]]]
        assert array["versions"] == damage["versions"]
        assert len(damage["versions"]) == 1


def test_rows_can_be_limited(place: Path) -> None:
    for chunk in (place / "chunks").iterdir():
        chunk.unlink()
    shown = run(str(place), "--max-rows", "1").stdout.splitlines()
    assert sum(line.startswith("no-chunk") for line in shown) == 1


def test_a_torn_repo_object(place: Path) -> None:
    (place / "repo").write_bytes(b"torn")
    result = run(str(place))
    assert result.exit_code == 10
    assert "bad-repo-object" in result.stdout
    assert "overwritten/" in result.stdout


def test_what_was_not_authorised_could_not_be_checked(tmp_path: Path) -> None:
    config = icefloe.RepositoryConfig.default()
    config.set_virtual_chunk_container(
        icefloe.VirtualChunkContainer("s3://bucket/", icefloe.s3_store(region="eu-west-1"))
    )
    storage = icefloe.local_filesystem_storage(str(tmp_path))
    repository = icefloe.Repository.create(storage, config)
    with repository.transaction("main", message="refs") as store:
        zarr.create_array(store, name="v", shape=2, chunks=1, dtype="i4")
        store.set_virtual_ref("v/c/0", "s3://bucket/a.nc", offset=0, length=4)
    assert run(str(tmp_path)).exit_code == 0
    result = run(str(tmp_path), "--deep")
    assert result.exit_code == 11
    assert "s3://bucket/a.nc could not be looked at" in result.stdout
    found = json.loads(run(str(tmp_path), "--deep", "--json").stdout)
    assert found["verdict"] == "incomplete"
    assert found["unchecked_objects"] == 1


def test_files_of_others_can_be_authorised(tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    (files / "a.bin").write_bytes(bytes(3))
    url = f"{files.as_uri()}/"
    config = icefloe.RepositoryConfig.default()
    config.set_virtual_chunk_container(
        icefloe.VirtualChunkContainer(url, icefloe.local_filesystem_store(str(files)))
    )
    place = str(tmp_path / "repository")
    repository = icefloe.Repository.create(icefloe.local_filesystem_storage(place), config)
    with repository.transaction("main", message="refs") as store:
        zarr.create_array(store, name="v", shape=2, chunks=1, dtype="i4")
        store.set_virtual_ref("v/c/1", f"{url}a.bin", offset=0, length=4)
    result = run(place, "--deep", "--authorize", url)
    assert result.exit_code == 10, result.output
    row = result.stdout.splitlines()[1].split()
    assert row[:4] == ["short-virtual-object", "data", "/v", "[1]"]
    (files / "a.bin").write_bytes(bytes(4))
    assert run(place, "--deep", "--authorize-anonymous", url).exit_code == 0
    assert (
        run(place, "--deep", "--authorize", "ftp://x/").exit_code == EXIT_CODES[InvalidInputError]
    )


def test_no_repository(tmp_path: Path) -> None:
    result = run(str(tmp_path))
    assert result.exit_code == EXIT_CODES[NotFoundError]
    assert "no repository" in result.stderr


def test_codes_are_told_apart_from_those_of_errors() -> None:
    codes = [code for code in REPOSITORY_CODES.values() if code]
    assert len({*codes}) == len(codes)
    assert not {*codes} & {*EXIT_CODES.values(), 2}
    assert {*REPOSITORY_CODES} == {*icefloe.Verdict}


def test_what_a_repository_says_is_not_taken_for_control(tmp_path: Path) -> None:
    repository = icefloe.Repository.create(
        icefloe.local_filesystem_storage(str(tmp_path)),
        icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0),
    )
    with repository.transaction("main", message="odd") as store:
        zarr.create_array(store, name="a\x1b[31m", shape=1, dtype="i4")[:] = 1
    for chunk in (tmp_path / "chunks").iterdir():
        chunk.unlink()
    result = run(str(tmp_path))
    assert result.exit_code == 10
    assert "\x1b" not in result.stdout
