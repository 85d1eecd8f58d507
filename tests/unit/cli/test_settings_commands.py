"""`icefloe create`, `config show`, `config set` and `container` on local repositories."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import icefloe
from icefloe.cli.main import EXIT_CODES, app
from icefloe.errors import InvalidInputError, NotFoundError
from icefloe.pipeline.files.sources import as_url

WRONG = EXIT_CODES[InvalidInputError]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    path = tmp_path / "repo"
    icefloe.Repository.create(icefloe.local_filesystem_storage(str(path)))
    return path


def run(*arguments: object, answer: str | None = None) -> Result:
    return CliRunner().invoke(app, [*map(str, arguments)], input=answer)


def found(*arguments: object) -> Any:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def opened(path: Path) -> icefloe.Repository:
    return icefloe.Repository.open(icefloe.local_filesystem_storage(str(path)))


def test_create(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("inline_chunk_threshold_bytes: 7\n")
    created = found("create", tmp_path / "new", "--config", config)
    assert created == {
        "url": str(tmp_path / "new"),
        "spec_version": 2,
        "branch": "main",
        "snapshot_id": "1CECHNKREP0F1RSTCMT0",
    }
    assert opened(tmp_path / "new").config.inline_chunk_threshold_bytes == 7
    assert run("create", tmp_path / "old", "--spec-version", 1).exit_code == 0
    assert opened(tmp_path / "old").spec_version == 1
    again = run("create", tmp_path / "new")
    assert again.exit_code == 1
    assert "there is a repository" in again.stderr


def test_create_where_something_else_is(tmp_path: Path) -> None:
    (tmp_path / "letter").write_text("dear")
    result = run("create", tmp_path)
    assert result.exit_code == WRONG
    assert "choose another prefix" in " ".join(result.stderr.split())
    assert "check_clean_root" not in result.stderr
    assert run("create", tmp_path / "new", "--spec-version", 3).exit_code == 2
    missing = run("create", tmp_path / "new", "--config", tmp_path / "none.yaml")
    assert missing.exit_code == WRONG
    assert not (tmp_path / "new").exists()


def test_config(place: Path) -> None:
    before = found("config", "show", place)
    assert before["settings"]["compression.level"] == 3
    assert before["changed"] == []
    assert "compression.level" in run("config", "show", place).stdout
    changed = ("compression.level=9", "storage.retries.max_tries=4", "storage.storage_class=COLD")
    result = run("config", "set", place, *changed)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[0] == "compression.level = 9"
    config = opened(place).config
    assert config.compression is not None
    assert config.storage is not None
    assert config.storage.retries is not None
    assert config.compression.level == 9
    assert config.storage.retries.max_tries == 4
    assert config.storage.storage_class == "COLD"
    after = found("config", "show", place, "--changed")
    assert after["settings"] == {
        "compression.level": 9,
        "storage.retries.max_tries": 4,
        "storage.storage_class": "COLD",
    }
    # A value that is the default again is no change.
    assert run("config", "set", place, "compression.level=3").exit_code == 0
    assert "compression.level" not in found("config", "show", place)["changed"]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("compression.level", "not like KEY=VALUE"),
        ("=3", "not like KEY=VALUE"),
        ("compression.level=high", "compression.level must"),
        ("compression.level=[", "no YAML"),
        ("compression.depth=1", "there is no setting compression.depth; known are compression."),
        ("nothing=1", "there is no setting nothing"),
        ("compression=3", "compression must be a map"),
        ("virtual_chunk_containers.x=1", "icefloe container add"),
    ],
)
def test_settings_that_are_wrong(place: Path, setting: str, message: str) -> None:
    result = run("config", "set", place, "inline_chunk_threshold_bytes=9", setting)
    assert result.exit_code == WRONG
    assert message in " ".join(result.stderr.split())
    assert opened(place).config.inline_chunk_threshold_bytes != 9
    twice = run("config", "set", place, "compression.level=1", "compression.level=2")
    assert "given twice" in twice.stderr


def test_containers(place: Path) -> None:
    assert found("container", "list", place) == {"containers": []}
    assert run("container", "add", place, "s3://era5", "--region", "us-east-1").exit_code == 0
    local = ("--endpoint-url", "http://localhost:9000", "--allow-http", "--force-path-style")
    added = run("container", "add", place, "s3://own/x/", *local, "--name", "own")
    assert added.exit_code == 0
    folder = ("file:///data/", "--on-change", "warn")
    assert run("container", "add", place, *folder).exit_code == 0
    assert run("container", "add", place, "az://box/", "--account", "acme").exit_code == 0
    models = ("models://", "--endpoint-url", "https://s3.example.org")
    assert run("container", "add", place, *models).exit_code == 0
    containers = {
        each["url_prefix"]: each for each in found("container", "list", place)["containers"]
    }
    assert set(containers) == {
        "s3://era5/",
        "s3://own/x/",
        "file:///data/",
        "az://box/",
        "models://",
    }
    assert containers["s3://era5/"]["options"] == {"region": "us-east-1"}
    assert containers["s3://own/x/"] == {
        "url_prefix": "s3://own/x/",
        "name": "own",
        "store": "S3Compatible",
        "options": {
            "endpoint_url": "http://localhost:9000",
            "allow_http": True,
            "force_path_style": True,
        },
        "on_change": "strict",
    }
    assert containers["file:///data/"]["on_change"] == "warn"
    assert containers["az://box/"]["options"] == {"account": "acme"}
    assert set(opened(place).config.virtual_chunk_containers or {}) == set(containers)
    shown = run("container", "list", place).stdout
    assert "region=us-east-1" in shown


def test_removing_a_container_asks(place: Path) -> None:
    for prefix in ("s3://a/", "s3://b/"):
        assert run("container", "add", place, prefix, "--name", prefix[5]).exit_code == 0
    assert run("container", "remove", place, "s3://a", answer="n\n").exit_code == 1
    assert len(opened(place).config.virtual_chunk_containers or {}) == 2
    assert found("container", "remove", place, "s3://a", "--yes")["url_prefix"] == "s3://a/"
    assert run("container", "remove", place, "b", "--yes").exit_code == 0
    assert opened(place).config.virtual_chunk_containers == {}
    missing = run("container", "remove", place, "s3://a", "--yes")
    assert missing.exit_code == EXIT_CODES[NotFoundError]


def test_a_container_is_a_folder_of_this_machine(place: Path, tmp_path: Path) -> None:
    folder = tmp_path / "my files"
    folder.mkdir()
    prefix = f"{folder.as_uri()}/"
    assert found("container", "add", place, folder)["url_prefix"] == prefix
    [stored] = found("container", "list", place)["containers"]
    assert stored["url_prefix"] == prefix
    assert found("container", "remove", place, folder, "--yes")["url_prefix"] == prefix
    assert found("container", "list", place) == {"containers": []}


def test_the_container_of_a_folder_is_that_of_its_files(place: Path, tmp_path: Path) -> None:
    (tmp_path / "disk" / "v1+v2").mkdir(parents=True)
    (tmp_path / "archive").symlink_to(tmp_path / "disk")
    folder = tmp_path / "archive" / "v1+v2"
    prefix = found("container", "add", place, folder)["url_prefix"]
    assert as_url(folder / "a.nc") == f"{prefix}a.nc"
    assert found("container", "remove", place, folder, "--yes")["url_prefix"] == prefix


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("gs://a/", "--region", "x"), "--region cannot be given for gs://"),
        (("az://a/",), "needs --account"),
        (("s3://a/", "--account", "x"), "--account cannot be given"),
        (("s3://a/", "--endpoint-url", "https://me:word@host"), "--authorize URL"),
        (("nowhere",), "there is no folder 'nowhere': a container is"),
        (("tigris://a/",), "in Python"),
    ],
)
def test_containers_that_are_wrong(place: Path, arguments: tuple[str, ...], message: str) -> None:
    result = run("container", "add", place, *arguments)
    assert result.exit_code == WRONG, result.output
    assert message in " ".join(result.stderr.split())
    assert "word" not in result.stderr.replace("password", "")
    assert not opened(place).config.virtual_chunk_containers
