"""`icefloe access`: what a newcomer learns before opening a repository."""

import io
import json
from pathlib import Path

import pytest
import zarr
from rich.console import Console
from typer.testing import CliRunner, Result

import icefloe
from icefloe.cli.common import drawn_table, progress_bar
from icefloe.cli.main import app


@pytest.fixture
def place(tmp_path: Path) -> str:
    config = icefloe.RepositoryConfig.default()
    for container in (
        icefloe.VirtualChunkContainer("s3://bucket/", icefloe.s3_store(region="eu-west-1"), "data"),
        icefloe.VirtualChunkContainer(
            "s3://lab/", icefloe.s3_store(endpoint_url="https://lab.example", s3_compatible=True)
        ),
    ):
        config.set_virtual_chunk_container(container)
    path = str(tmp_path / "repository")
    repository = icefloe.Repository.create(icefloe.local_filesystem_storage(path), config)
    for number, location in enumerate(("s3://bucket/1.nc", "vcc://data/2.nc", "s3://lab/[red]3")):
        with repository.transaction("main", message="one more") as store:
            zarr.create_array(store, name=f"a{number}", shape=2, chunks=1, dtype="i4")
            store.set_virtual_ref(f"a{number}/c/0", location, offset=0, length=100)
        if number == 0:
            repository.create_tag("first", repository.lookup_branch("main"))
    return path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["access", *arguments])


def test_it_lists_containers_needs_and_counts(place: str) -> None:
    result = run(place)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0].split()[:2] == ["container", "name"]
    [bucket] = [line for line in lines if line.startswith("s3://bucket/")]
    assert bucket.split() == [
        *("s3://bucket/", "data", "Amazon", "S3", "eu-west-1", "2", "200", "B", "no"),
        "icefloe.s3_credentials(...)",
    ]
    assert "reached with the endpoint 'https://lab.example'" in result.stdout
    assert "icefloe.Repository.open(" in result.stdout
    assert "to read everything with a command:\n--authorize " in result.stdout


def test_json_holds_the_same(place: str) -> None:
    result = run(place, "--json")
    assert result.exit_code == 0, result.output
    shown = json.loads(result.stdout)
    repository = icefloe.Repository.open(icefloe.local_filesystem_storage(place))
    assert shown == json.loads(json.dumps(repository.describe_access().to_dict()))
    rows = {row["url_prefix"]: row for row in shown["containers"]}
    assert rows["s3://bucket/"]["references"] == 2
    assert rows["s3://lab/"]["needs_consent"]
    assert not rows["s3://lab/"]["is_authorized"]


def test_another_version_can_be_asked_for(place: str) -> None:
    [first] = [
        row["references"]
        for row in json.loads(run(place, "--tag", "first", "--json").stdout)["containers"]
        if row["url_prefix"] == "s3://bucket/"
    ]
    assert first == 1


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--branch", "nope"), 3, "nope"),
        (("--snapshot", "nope"), 3, "begins with 'nope'"),
        (("--snapshot", "no!"), 5, "not the beginning of the id of a snapshot"),
        (("--branch", "main", "--tag", "first"), 5, "--branch and --tag exclude each other"),
    ],
)
def test_mistakes_have_their_exit_codes(
    place: str, arguments: tuple[str, ...], code: int, message: str
) -> None:
    result = run(place, *arguments)
    assert result.exit_code == code
    assert message in " ".join(result.stderr.split())
    assert result.stdout == ""


def test_nothing_there_is_not_found(tmp_path: Path) -> None:
    assert run(str(tmp_path)).exit_code == 3


def test_a_repository_without_virtual_chunks_says_so(tmp_path: Path) -> None:
    icefloe.Repository.create(icefloe.local_filesystem_storage(str(tmp_path)))
    result = run(str(tmp_path))
    assert result.exit_code == 0
    assert "nothing to authorise" in result.stdout


def test_on_a_terminal_a_table_is_drawn_and_nothing_is_markup() -> None:
    out = io.StringIO()
    table = drawn_table(["place", "chunks"], [["s3://b/[red]x[/red]", 5], ["\x1b[31mred", 12]])
    Console(file=out, width=60, force_terminal=True, color_system=None).print(table)
    text = out.getvalue()
    assert "[red]x[/red]" in text
    assert "\\x1b[31mred" in text
    assert "┃" in text


def test_progress_is_silent_where_nobody_watches() -> None:
    with progress_bar("reading") as on_progress:
        assert on_progress is None


def test_progress_is_shown_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with progress_bar("reading manifests") as on_progress:
        assert on_progress is not None
        on_progress(1, 2)
        on_progress(2, 2)
    assert "reading manifests" in capsys.readouterr().err
