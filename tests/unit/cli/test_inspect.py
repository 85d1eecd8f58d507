"""`icefloe inspect` on repositories that the reference wrote."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import icefloe
from icefloe import errors
from icefloe.cli.main import EXIT_CODES, app, exit_code

GOLDEN = Path(__file__).parents[4] / "shared" / "golden"
EXPECTED: dict[str, Any] = json.loads((GOLDEN / "expected.json").read_text())["repositories"]
SPEC_2 = sorted(name for name in EXPECTED if name.startswith("v2"))
FILES = [
    (
        path.relative_to(GOLDEN).parts[0],
        path.relative_to(GOLDEN / path.relative_to(GOLDEN).parts[0]),
    )
    for folder in ("snapshots", "manifests", "transactions", "overwritten")
    for path in sorted(GOLDEN.glob(f"*/{folder}/*"))
]


def run(*arguments: str) -> Any:
    result = CliRunner().invoke(app, ["inspect", *arguments])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def failure(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["inspect", *arguments])
    return result.exit_code, result.stderr


@pytest.mark.parametrize("name", SPEC_2)
def test_a_repository_shows_its_refs_and_history(name: str) -> None:
    shown = run(str(GOLDEN / name))
    assert shown["branches"] == EXPECTED[name]["branches"]
    assert shown["tags"] == EXPECTED[name]["tags"]
    for ancestry in EXPECTED[name]["ancestry"].values():
        for snapshot in ancestry:
            [found] = [one for one in shown["snapshots"] if one["id"] == snapshot["id"]]
            assert found["message"] == snapshot["message"]
            assert found.get("parent_id") == snapshot["parent"]
            assert found["metadata"] == snapshot["metadata"]


def test_a_repository_of_spec_1_shows_its_refs_and_configuration() -> None:
    shown = run(str(GOLDEN / "v1-basic"))
    assert shown["spec_version"] == "1.0"
    branches = EXPECTED["v1-basic"]["branches"]
    assert shown["refs"]["refs/branch.main/ref.json"] == {"snapshot": branches["main"]}
    assert shown["refs"]["refs/tag.gone/ref.json.deleted"] == {"deleted": True}
    assert "s3://golden-bucket/" in shown["config"]["virtual_chunk_containers"]


@pytest.mark.parametrize(("repository", "path"), FILES, ids=str)
def test_every_metadata_file_can_be_shown(repository: str, path: Path) -> None:
    shown = run(str(GOLDEN / repository), path.as_posix())
    if path.parts[0] == "overwritten":
        assert "config" in shown or shown["header"]["file_type"] == "repo-info"
    else:
        assert shown["id"] == path.name


def test_an_id_alone_names_a_snapshot() -> None:
    main = EXPECTED["v2-basic"]["branches"]["main"]
    assert run(str(GOLDEN / "v2-basic"), main.lower())["commit_message"] == "move nodes"


def test_long_lists_are_cut_and_say_so() -> None:
    [manifest] = [
        one
        for one in (GOLDEN / "v2-compressed-locations" / "manifests").iterdir()
        if run(str(GOLDEN / "v2-compressed-locations"), one.name)["total_virtual"]
    ]
    shown = run(str(GOLDEN / "v2-compressed-locations"), manifest.name, "--max-rows", "3")
    [array] = shown["arrays"]
    assert len(array["chunks"]) == 3
    assert array["chunks_left_out"] == array["num_chunk_refs"] - 3 == 1097
    assert shown["compression"]["uses_location_compression"]


def test_nothing_there_is_explained(tmp_path: Path) -> None:
    code, message = failure(str(tmp_path))
    assert code == 3
    assert "no repository here" in message


def test_what_is_no_id_is_explained() -> None:
    code, message = failure(str(GOLDEN / "v2-basic"), "foo")
    assert code == 5
    assert "20 base32 characters" in message


def test_a_chunk_is_not_metadata() -> None:
    code, message = failure(str(GOLDEN / "v2-basic"), "chunks/000G40R40M30E209185G")
    assert code == 5
    assert "chunk" in message


def test_damage_is_reported_not_shown(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "v2-empty", tmp_path / "repo")
    repo = tmp_path / "repo" / "repo"
    repo.chmod(0o644)
    repo.write_bytes(repo.read_bytes()[:-5])
    code, message = failure(str(tmp_path / "repo"))
    assert code == 4
    assert "zstd" in message


def test_every_error_has_an_exit_code() -> None:
    every = [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.IcefloeError)
    ]
    made = [
        kind("x", []) if kind is errors.RebaseFailedError else kind(message="x") for kind in every
    ]
    assert {exit_code(error) for error in made} == set(EXIT_CODES.values())


def test_the_version_is_shown() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert result.exit_code == 0
    assert result.stdout == f"icefloe {icefloe.__version__}\n"
