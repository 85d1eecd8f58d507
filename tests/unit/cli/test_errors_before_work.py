"""What the reader did not authorise is refused before anything starts or is created."""

from pathlib import Path

import pytest
import zarr
from typer.testing import CliRunner

import icefloe
from examples.archives import write_archive
from icefloe.cli.main import EXIT_CODES, app
from icefloe.errors import InvalidInputError
from icefloe.pipeline import CopyOptions

WRONG = EXIT_CODES[InvalidInputError]


@pytest.fixture
def cube(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    archive = write_archive(tmp_path / "archive", 3)
    arguments = ["ingest", "virtual", archive.pattern, "--repo", str(tmp_path / "cube")]
    arguments += ["--concat", "time", "--group", "files", "--check-values", "none"]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    monkeypatch.chdir(tmp_path)
    return tmp_path / "cube"


@pytest.fixture
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr("icefloe.spark.session.session_while", refuse)


@pytest.mark.usefixtures("no_spark")
@pytest.mark.parametrize(
    "arguments",
    [
        ("rechunk", "cube", "--repo", "out", "--from-group", "files"),
        ("rechunk", "cube", "--repo", "out", "--from-group", "files", "--engine", "spark"),
        ("export", "cube", "out"),
        ("export", "cube", "out", "--group", "files"),
    ],
)
def test_an_option_is_named_and_nothing_is_created(cube: Path, arguments: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == WRONG, result.output
    prefix = f"{cube.parent.as_uri()}/"
    text = "".join(result.stderr.split())  # long paths are broken at the end of lines
    assert f"give--authorize'{prefix}'" in text or f"give--authorize'{prefix}archive/'" in text
    assert result.stderr.count("error (") == 1
    assert "Traceback" not in result.output
    assert not Path("out").exists()


def test_with_the_option_it_is_done(cube: Path) -> None:
    given = ("--authorize", f"{cube.parent.as_uri()}/")
    for command in (
        ("rechunk", "cube", "--repo", "copy", "--from-group", "files"),
        ("export", "cube", "plain.zarr"),
    ):
        result = CliRunner().invoke(app, [*command, *given])
        assert result.exit_code == 0, result.output


def test_other_groups_do_not_matter(cube: Path) -> None:
    repository = icefloe.Repository.open(icefloe.local_filesystem_storage(str(cube)))
    with repository.transaction("main", message="native") as store:
        zarr.create_array(store, name="own/a", shape=4, dtype="i4", fill_value=0)[:] = 1
    result = CliRunner().invoke(app, ["rechunk", "cube", "--repo", "out", "--from-group", "own"])
    assert result.exit_code == 0, result.output
    target = icefloe.Repository.create(icefloe.in_memory_storage())
    source = repository.readonly_session("main")
    with pytest.raises(InvalidInputError, match="which you did not authorise"):
        icefloe.rechunk(target, source, CopyOptions.of({}), source_group="files")
