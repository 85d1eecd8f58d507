"""Names of repositories on this machine: `icefloe config add`, `list`, `remove`, and their use."""

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
import zarr
from typer.testing import CliRunner, Result

import icefloe
from icefloe.cli.common import place_of
from icefloe.cli.main import EXIT_CODES, app
from icefloe.errors import InvalidInputError, NotFoundError
from icefloe.storage.specs import S3Spec
from tests.support.servers import S3Endpoint

WRONG = EXIT_CODES[InvalidInputError]


@pytest.fixture(autouse=True)
def names_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep names in a folder of the test, which is empty otherwise."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "settings" / "icefloe" / "names.toml"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [*map(str, arguments)])


def found(*arguments: object) -> Any:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_a_name_stands_for_a_repository_in_all_commands(tmp_path: Path, names_file: Path) -> None:
    assert run("config", "add", "cube", "../repo").exit_code == 0
    assert run("create", "cube").exit_code == 0
    storage = icefloe.local_filesystem_storage(str(tmp_path / "repo"))
    with icefloe.Repository.open(storage).transaction("main", message="data") as store:
        zarr.create_array(store, name="a", shape=4, dtype="i4", fill_value=0)[:] = 1
    for arguments in (
        ("log", "cube"),
        ("tree", "cube"),
        ("status", "cube"),
        ("inspect", "cube"),
        ("verify", "cube"),
        ("stats", "cube"),
        ("gc", "cube", "--dry-run"),
        ("manifests", "show", "cube"),
        ("doctor", "cube"),
        ("config", "show", "cube"),
        ("tag", "create", "cube", "v1"),
        ("repair", "cube"),
        ("export", "cube", "copy.zarr"),
    ):
        result = run(*arguments)
        assert result.exit_code == 0, (arguments, result.output)
    assert run("config", "add", "backup", "../backup").exit_code == 0
    assert run("clone", "cube", "backup").exit_code == 0
    assert found("log", "backup") == found("log", "cube")
    assert not Path("backup").exists()
    assert stat.S_IMODE(names_file.stat().st_mode) == 0o600
    assert stat.S_IMODE(names_file.parent.stat().st_mode) == 0o700


def test_list_and_remove(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert found("config", "list") == {"names": []}
    options = ("--region", "eu-west-1", "--endpoint", "https://s3.example.org", "--anonymous")
    added = found("config", "add", "era5", "s3://climate/era5", *options)
    assert added == {
        "name": "era5",
        "url": "s3://climate/era5?region=eu-west-1&endpoint_url=https://s3.example.org"
        "&anonymous=true",
        "profile": None,
        "credential": None,
    }
    assert run("config", "add", "folder", "some-org/sst").exit_code == 0
    monkeypatch.setenv("ICEFLOE_SERVICE", "https://data.example.org")
    assert run("config", "add", "lab", "some-org/sst").exit_code == 0
    assert run("config", "add", "here", ".").exit_code == 0
    listed = {entry["name"]: entry for entry in found("config", "list")["names"]}
    assert listed["era5"] == added
    assert listed["folder"]["url"] == str(tmp_path / "work" / "some-org" / "sst")
    assert listed["lab"]["url"] == "icefloe://data.example.org/some-org/sst"
    assert listed["here"]["url"] == str(tmp_path / "work")
    assert "era5" in run("config", "list").stdout
    taken = run("config", "add", "era5", "s3://other/x")
    assert taken.exit_code == 1
    assert "is taken" in taken.stderr
    assert run("config", "add", "era5", "s3://other/x", "--replace").exit_code == 0
    assert found("config", "remove", "era5")["url"] == "s3://other/x"
    gone = run("config", "remove", "era5")
    assert gone.exit_code == EXIT_CODES[NotFoundError]
    assert "known are: folder, here, lab" in gone.stderr


def test_the_options_of_a_name_reach_the_storage() -> None:
    options = ("--region", "eu-west-1", "--endpoint-url", "http://localhost:9000", "--allow-http")
    arguments = ("cube", "s3://bucket/cube", *options, "--force-path-style", "--profile", "lab")
    assert run("config", "add", *arguments).exit_code == 0
    spec = place_of("cube").storage.spec
    assert isinstance(spec, S3Spec)
    assert (spec.bucket, spec.prefix) == ("bucket", "cube")
    assert spec.options.region == "eu-west-1"
    assert spec.options.endpoint_url == "http://localhost:9000"
    assert spec.options.force_path_style
    assert os.environ.pop("AWS_PROFILE") == "lab"


def test_a_profile_of_the_environment_counts_first(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("config", "add", "cube", "s3://bucket/cube", "--profile", "lab").exit_code == 0
    monkeypatch.setenv("AWS_PROFILE", "mine")
    place_of("cube")
    assert os.environ["AWS_PROFILE"] == "mine"


@pytest.mark.parametrize(
    "arguments",
    [
        ("s3://me:word@bucket/x",),
        ("https://me:word@host/x",),
        ("https://host/x?token=word",),
        ("s3://bucket/x?secret_access_key=word",),
        ("az://account/container/x?sig=word",),
        ("s3://bucket/x#word",),
        ("s3://bucket/x", "--endpoint-url", "https://me:word@host"),
        ("icefloe://me:word@host/org/name",),
    ],
)
def test_secrets_are_refused_and_not_repeated(names_file: Path, arguments: tuple[str, ...]) -> None:
    result = run("config", "add", "cube", *arguments)
    assert result.exit_code == WRONG, result.output
    assert "word" not in result.output.replace("password", "")
    assert not names_file.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("a/b", "s3://bucket/x"), "cannot be a name"),
        (("-x", "s3://bucket/x"), ""),
        (("x", "ftp://host/x"), "'ftp'"),
        (("x", "memory://"), "nothing to name"),
        (("x", "./repo", "--region", "here"), "takes no options: --region"),
        (("x", "gs://bucket/x", "--profile", "lab"), "not for gs://"),
        (("x", "gs://bucket/x", "--region", "here"), "region"),
        (("x", "icefloe://host/org/name", "--anonymous"), "takes no options: --anonymous"),
        (("x", "icefloe://host/org"), "org"),
    ],
)
def test_names_that_are_wrong(names_file: Path, arguments: tuple[str, ...], message: str) -> None:
    result = run("config", "add", *arguments)
    assert result.exit_code in (WRONG, 2), result.output
    assert message in " ".join(result.stderr.split())
    assert not names_file.exists()


def test_a_name_that_is_also_a_folder_is_refused() -> None:
    assert run("config", "add", "cube", "../repo").exit_code == 0
    assert run("create", "./cube").exit_code == 0
    result = run("log", "cube")
    assert result.exit_code == WRONG
    assert "write ./cube" in " ".join(result.stderr.split())
    assert run("log", "./cube").exit_code == 0


def test_a_copy_does_not_go_to_a_service() -> None:
    assert run("config", "add", "lab", "icefloe://data.example.org/org/name").exit_code == 0
    assert run("create", "./cube").exit_code == 0
    for command in ("clone", "export"):
        result = run(command, "./cube", "lab")
        assert result.exit_code == 2
        assert "a repository of a service" in " ".join(result.stderr.replace("│", "").split())
    assert not Path("lab").exists()


def test_without_a_name_a_word_is_a_folder() -> None:
    assert run("create", "cube").exit_code == 0
    assert Path("cube/repo").exists()
    assert run("log", "cube").exit_code == 0


@pytest.mark.parametrize("content", ["[names", 'names = "x"', "[names.cube]\nurl = 7", "\xff"])
def test_a_damaged_file_is_explained(names_file: Path, content: str) -> None:
    names_file.parent.mkdir(parents=True)
    names_file.write_bytes(content.encode("latin-1"))
    result = run("log", "cube")
    assert result.exit_code == WRONG
    assert "correct or delete the file" in " ".join(result.stderr.split())


@pytest.mark.server
def test_a_name_with_options_opens_a_bucket(
    s3_endpoint: S3Endpoint, prefix: str, monkeypatch: pytest.MonkeyPatch, names_file: Path
) -> None:
    credentials = names_file.parents[1] / "credentials"
    credentials.parent.mkdir(exist_ok=True)
    credentials.write_text(
        f"[lab]\naws_access_key_id = {s3_endpoint.access_key_id}\n"
        f"aws_secret_access_key = {s3_endpoint.secret_access_key}\n"
    )
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(credentials))
    monkeypatch.setenv("AWS_PROFILE", "")  # so that it is put back afterwards
    monkeypatch.delenv("AWS_PROFILE")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    url = f"s3://{s3_endpoint.bucket}/{prefix}"
    options = ("--region", s3_endpoint.region, "--endpoint-url", s3_endpoint.url, "--allow-http")
    added = run("config", "add", "cube", url, *options, "--force-path-style", "--profile", "lab")
    assert added.exit_code == 0, added.output
    assert run("create", "cube").exit_code == 0
    assert run("tag", "create", "cube", "v1", "1cec").exit_code == 0
    assert found("log", "cube")["versions"][0]["tags"] == ["v1"]
    assert s3_endpoint.secret_access_key not in names_file.read_text()
