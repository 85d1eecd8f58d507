"""Credentials under names: secrets are in the keyring or in the environment, never in a file."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keyring
import pytest
from keyring.backend import KeyringBackend
from keyring.backends.fail import Keyring as NoKeyring
from keyring.errors import PasswordDeleteError
from typer.testing import CliRunner, Result

import icefloe
from icefloe.cli.common import authorised, place_of
from icefloe.cli.main import EXIT_CODES, app
from icefloe.credentials import Credentials
from icefloe.errors import IcefloeError, InvalidInputError, NotFoundError
from icefloe.storage.specs import S3Spec
from tests.support.servers import S3Endpoint

WRONG = EXIT_CODES[InvalidInputError]
MISSING = EXIT_CODES[NotFoundError]
ANSWERS = "AKIALAB\nvery-secret\n\n"


class MemoryKeyring(KeyringBackend):
    """A keyring that lasts as long as a test."""

    priority = 1

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.passwords: dict[tuple[str, str], str] = {}

    def get_password(self, service: str, username: str) -> str | None:
        return self.passwords.get((service, username))

    def set_password(self, service: str, username: str, password: str) -> None:
        self.passwords[service, username] = password

    def delete_password(self, service: str, username: str) -> None:
        if (service, username) not in self.passwords:
            raise PasswordDeleteError
        del self.passwords[service, username]


@pytest.fixture(autouse=True)
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "icefloe"


@pytest.fixture(autouse=True)
def ring() -> Iterator[MemoryKeyring]:
    before = keyring.get_keyring()
    made = MemoryKeyring()
    keyring.set_keyring(made)
    yield made
    keyring.set_keyring(before)


def run(*arguments: object, typed: str | None = None, code: int = 0) -> Result:
    result = CliRunner().invoke(app, [*map(str, arguments)], input=typed)
    assert result.exit_code == code, result.output
    return result


def files(folder: Path) -> str:
    return "\n".join(path.read_text() for path in folder.rglob("*") if path.is_file())


def opened(name: str) -> Any:
    spec = place_of(name).storage.spec
    assert isinstance(spec, S3Spec)
    return spec.credentials


def test_secrets_are_asked_for_and_go_to_the_keyring(settings: Path, ring: MemoryKeyring) -> None:
    added = run("credential", "add", "lab", typed=ANSWERS)
    assert "very-secret" not in added.output
    kept = json.loads(ring.passwords["icefloe", "lab"])
    assert kept == {"access_key_id": "AKIALAB", "secret_access_key": "very-secret"}
    run("config", "add", "cube", "s3://climate/cube", "--credential", "lab")
    assert opened("cube") == icefloe.s3_credentials(
        access_key_id="AKIALAB", secret_access_key="very-secret"
    )
    assert "AKIALAB" not in files(settings)
    assert "very-secret" not in files(settings)
    listed = json.loads(run("credential", "list", "--json").stdout)
    assert listed == {"credentials": [{"name": "lab", "kind": "s3", "variables": {}}]}
    run("credential", "remove", "lab")
    assert ring.passwords == {}
    gone = run("log", "cube", code=MISSING)
    assert "no saved credential 'lab'" in " ".join(gone.stderr.split())


def test_secrets_of_the_environment_are_looked_up_at_each_use(
    settings: Path, ring: MemoryKeyring, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = ("--env", "access_key_id=LAB_ID", "--env", "secret_access_key=LAB_SECRET")
    run("credential", "add", "lab", *parts)
    run("config", "add", "cube", "s3://climate/cube", "--credential", "lab")
    refused = run("log", "cube", code=WRONG)
    assert "lacks LAB_ID and LAB_SECRET" in " ".join(refused.stderr.split())
    for secret in ("first", "second"):
        monkeypatch.setenv("LAB_ID", "AKIALAB")
        monkeypatch.setenv("LAB_SECRET", secret)
        assert opened("cube").credentials.secret_access_key == secret
    assert ring.passwords == {}
    assert "second" not in files(settings)
    assert "environment: LAB_ID, LAB_SECRET" in run("credential", "list").stdout


def test_a_credential_is_replaced_only_if_asked(ring: MemoryKeyring) -> None:
    run("credential", "add", "lab", typed=ANSWERS)
    taken = run("credential", "add", "lab", typed=ANSWERS, code=EXIT_CODES[IcefloeError])
    assert "already" in taken.stderr
    token = ("--kind", "gcs-token", "--env", "bearer_token=TOKEN", "--replace")
    run("credential", "add", "lab", *token)
    assert ring.passwords == {}  # nothing is left behind of what was replaced


@pytest.mark.parametrize(
    ("kind", "variable", "url"),
    [
        ("gcs-token", "bearer_token", "gs://bucket/x"),
        ("gcs-service-account", "service_account_key", "gs://bucket/x"),
        ("azure-key", "access_key", "az://account/box/x"),
        ("azure-sas", "sas_token", "az://account/box/x"),
        ("azure-token", "bearer_token", "az://account/box/x"),
    ],
)
def test_each_kind_opens_its_platform_and_no_other(
    monkeypatch: pytest.MonkeyPatch, kind: str, variable: str, url: str
) -> None:
    monkeypatch.setenv("SECRET", "c2VjcmV0")
    run("credential", "add", "mine", "--kind", kind, "--env", f"{variable}=SECRET")
    run("config", "add", "cube", url, "--credential", "mine")
    spec: Any = place_of("cube").storage.spec
    assert "c2VjcmV0" in vars(spec.credentials.credentials).values()
    other = run("config", "add", "x", "s3://bucket/x", "--credential", "mine", code=WRONG)
    assert "does not open s3:// URLs" in " ".join(other.stderr.split())


def test_virtual_chunks_are_authorised_with_a_saved_credential() -> None:
    run("credential", "add", "lab", typed=ANSWERS)
    access = authorised(["lab=s3://era5/"], [])
    assert [*access] == ["s3://era5/"]
    granted = access["s3://era5/"]
    assert isinstance(granted, Credentials.S3)
    keys: Any = granted.credentials
    assert keys.credentials.access_key_id == "AKIALAB"
    run("create", "cube")
    wrong = run("export", "cube", "out", "--authorize", "lab=gs://era5/", code=2)
    assert "does not open" in wrong.stderr
    unknown = run("export", "cube", "out", "--authorize", "other=s3://era5/", code=MISSING)
    assert "known are: lab" in " ".join(unknown.stderr.split())


@pytest.mark.parametrize(
    "arguments",
    [
        ("--env", "access_key_id"),
        ("--env", "password=X"),
        ("--env", "access_key_id=not a name"),
        ("--env", "access_key_id=X"),  # and the other part is missing
    ],
)
def test_wrong_variables_are_explained(settings: Path, arguments: tuple[str, ...]) -> None:
    wrong = run("credential", "add", "lab", *arguments, code=2)
    assert "--env" in wrong.stderr
    assert not settings.exists()


def test_a_machine_without_a_keyring_is_told_of_the_environment(settings: Path) -> None:
    keyring.set_keyring(NoKeyring())  # type: ignore[no-untyped-call]
    failed = run("credential", "add", "lab", typed=ANSWERS, code=WRONG)
    assert "credential add NAME --env" in " ".join(failed.stderr.split())
    assert "very-secret" not in failed.output
    assert not (settings / "credentials.toml").exists()


@pytest.mark.parametrize("content", ["[credentials", '[credentials.x]\nkind = "ftp"', "\xff"])
def test_a_damaged_file_is_explained(settings: Path, content: str) -> None:
    settings.mkdir()
    (settings / "credentials.toml").write_bytes(content.encode("latin-1"))
    assert "correct or delete the file" in run("credential", "list", code=WRONG).stderr


@pytest.mark.server
def test_a_saved_credential_opens_a_bucket_in_the_shell_and_in_python(
    s3_endpoint: S3Endpoint, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    typed = f"{s3_endpoint.access_key_id}\n{s3_endpoint.secret_access_key}\n\n"
    run("credential", "add", "lab", typed=typed)
    options = ("--region", s3_endpoint.region, "--endpoint-url", s3_endpoint.url, "--allow-http")
    url = f"s3://{s3_endpoint.bucket}/{prefix}"
    run("config", "add", "cube", url, *options, "--force-path-style", "--credential", "lab")
    run("create", "cube")
    run("tag", "create", "cube", "v1", "1cec")
    assert icefloe.Repository.open(icefloe.saved_storage("cube")).list_tags() == {"v1"}
