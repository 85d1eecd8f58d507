"""Commands of operators: backups, keys, the audit's check, lost passwords."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from icefloe.catalog.model import Bucket, Person, Platform
from icefloe.cli.main import app
from icefloe.service.database import rows, tables
from icefloe.service.database.vault import new_master_key
from icefloe.service.runtime import Service
from icefloe.service.settings import Settings
from tests.support.desk import Desk

CANARY = "canary-of-a-bucket-4c1d"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "1000")
    return tmp_path / "icefloe-service"


@pytest.fixture
def desk(folder: Path) -> Iterator[Desk]:
    desk = Desk(Settings(folder=folder))
    with desk.client:
        desk.add_person(Person("root", operator=True))
        yield desk


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def add_bucket(desk: Desk) -> Bucket:
    """Register a bucket with a secret."""
    desk.ask("root", "POST", "/orgs", {"name": "lab"})
    bucket = Bucket("lab", "main", Platform.S3, "lab-data")
    with desk.service.database.writing() as connection:
        rows.add(connection, tables.buckets, bucket)
        desk.service.put_bucket_secret(connection, bucket, {"key": CANARY})
    return bucket


def test_what_serve_refuses(folder: Path) -> None:
    def refused(*arguments: str) -> str:
        code, text = run("serve", *arguments)
        assert code == 5, text
        return text

    assert "pass --insecure" in refused("--host", "0.0.0.0")
    assert "several workers need PostgreSQL" in refused("--workers", "2")
    assert "text or json" in refused("--log-format", "xml")
    assert "not the origin of a site" in refused("--allow-origin", "*")
    assert "leave out" in refused("--demo", "--allow-origin", "https://maps.example.org")
    assert "cannot read the settings" in refused("--config", "nowhere.toml")
    Path("bad.toml").write_text("colour = 'red'")
    assert "colour" in refused("--config", "bad.toml")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert "choose another --port" in refused("--port", str(taken.getsockname()[1]))
    for command in (("audit", "verify"), ("service", "backup", "x.db"), ("service", "rotate-key")):
        code, text = run(*command)
        assert (code, "there is no service in" in text) == (5, True), text
    assert not folder.exists()


def test_a_backup_is_restored_with_its_key_only(folder: Path) -> None:
    desk = Desk(Settings(folder=folder))
    key = folder / "key"
    with desk.client:
        desk.add_person(Person("root", operator=True))
        bucket = add_bucket(desk)
        assert run("service", "backup", "copy.db")[0] == 0
        assert Path("copy.db").stat().st_mode & 0o777 == 0o600
        assert CANARY.encode() not in Path("copy.db").read_bytes()
        assert "exists already" in run("service", "backup", "copy.db")[1]
        desk.ask("root", "POST", "/orgs", {"name": "zoo"})
        code, text = run("service", "restore", "copy.db", "--replace")
        assert (code, "stop it first" in text) == (9, True), text
    assert "pass --replace" in run("service", "restore", "copy.db")[1]
    right = key.read_text()
    key.unlink()
    assert "cannot read the master key" in run("service", "restore", "copy.db", "--replace")[1]
    assert not key.exists()
    key.write_text(new_master_key())
    key.chmod(0o600)
    _, text = run("service", "restore", "copy.db", "--replace")
    assert "needs the master key local-" in text
    key.write_text(right)
    code, text = run("service", "restore", "copy.db", "--replace")
    assert (code, "Its audit is whole" in text) == (0, True), text
    service = Service(Settings(folder=folder))
    assert service.bucket_secret(bucket).values == {"key": CANARY}
    with service.database.reading() as connection:
        names = [row.name for row in connection.execute(tables.organisations.select())]
    assert names == ["lab"]  # the other one was made after the backup
    service.database.close()


def test_a_backup_starts_a_service_elsewhere(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Desk(Settings(folder=folder)).client:
        assert run("service", "backup", "copy.db")[0] == 0
    other = folder.with_name("other")
    other.mkdir()
    (folder / "key").rename(other / "key")
    monkeypatch.setenv("ICEFLOE_SERVICE_FOLDER", str(other))
    assert run("service", "restore", "copy.db")[0] == 0
    assert run("audit", "verify")[0] == 0


@pytest.mark.parametrize("damage", ["half", "other", "changed"])
def test_a_damaged_backup_is_refused(desk: Desk, folder: Path, damage: str) -> None:
    desk.ask("root", "POST", "/orgs", {"name": "lab"})
    assert run("service", "backup", "copy.db")[0] == 0
    backup = Path("copy.db")
    content = backup.read_bytes()
    changed = {
        "half": content[: len(content) // 2],
        "other": b"no database at all" * 100,
        "changed": content.replace(b"organisation lab", b"organisation zoo"),
    }
    assert changed[damage] != content
    backup.write_bytes(changed[damage])
    monday = folder / "monday.db"
    Path("new.toml").write_text(f"database = 'sqlite:///{monday}'\nfolder = '{folder}'\n")
    code, text = run("service", "restore", "copy.db", "--config", "new.toml")
    assert code == 9
    assert {"half": "", "other": "cannot be copied", "changed": "tampered"}[damage] in text
    assert not monday.exists()
    assert not list(folder.glob("*.restoring*"))


def test_a_key_is_rotated_while_the_service_runs(desk: Desk, folder: Path) -> None:
    bucket = add_bucket(desk)
    first = (folder / "key").read_bytes()
    code, text = run("service", "rotate-key")
    assert (code, "Sealed 5 secrets" in text) == (0, True), text
    assert (folder / "key").read_bytes() != first
    assert desk.service.bucket_secret(bucket).values == {"key": CANARY}
    (former,) = folder.glob("key.local-*")
    assert former.name in text
    assert former.stat().st_mode & 0o777 == 0o600
    former.unlink()  # nothing needs it any more
    assert run("audit", "verify")[0] == 0
    again = Service(Settings(folder=folder))
    assert again.bucket_secret(bucket).values == {"key": CANARY}
    again.database.close()


def test_a_rotation_that_was_interrupted_loses_nothing(desk: Desk, folder: Path) -> None:
    from icefloe.service.database.vault import write_new_key

    bucket = add_bucket(desk)
    write_new_key(folder / "key")  # and the process ends here
    again = Service(Settings(folder=folder))
    assert again.bucket_secret(bucket).values == {"key": CANARY}
    again.database.close()
    assert "Sealed 5 secrets" in run("service", "rotate-key")[1]


def test_keys_from_a_command_and_from_a_variable(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [new_master_key() for _ in range(2)]
    Path("0.txt").write_text(keys[0])
    config = Path("service.toml")
    config.write_text("key_command = ['cat', '0.txt']\n")
    monkeypatch.setenv("ICEFLOE_SERVICE_CONFIG", str(config))
    Service(Settings(folder=folder, key_command=("cat", "0.txt"))).database.close()
    assert not (folder / "key").exists()
    assert run("audit", "verify")[0] == 0
    monkeypatch.setenv("THE_KEY", keys[1])
    config.write_text("key_variable = 'THE_KEY'\n")
    assert "needs the master key" in run("audit", "verify")[1]
    config.write_text("key_variable = 'THE_KEY'\nformer_key_commands = [['cat', '0.txt']]\n")
    assert "Sealed 4 secrets" in run("service", "rotate-key")[1]
    config.write_text("key_variable = 'THE_KEY'\n")
    assert run("audit", "verify")[0] == 0
    config.write_text("key_command = ['sh', '-c', 'echo canary; exit 3']\n")
    code, text = run("audit", "verify")
    assert (code, "exit code 3" in text, "canary" in text) == (9, True, False), text
    config.write_text("key_command = ['cat', '0.txt']\nkey_variable = 'THE_KEY'\n")
    assert "not several" in run("audit", "verify")[1]


def test_the_audit_is_checked_in_the_database(desk: Desk, folder: Path) -> None:
    import sqlite3

    desk.ask("root", "POST", "/orgs", {"name": "lab"})
    assert "ends with entry 1," in run("audit", "verify")[1]
    connection = sqlite3.connect(folder / "service.db")
    for (name,) in connection.execute(
        "SELECT name FROM sqlite_master WHERE type='trigger'"
    ).fetchall():
        connection.execute(f"DROP TRIGGER {name}")
    connection.execute("UPDATE audit SET person = 'eve'")
    connection.commit()
    connection.close()
    code, text = run("audit", "verify")
    assert (code, "tampered" in text) == (9, True), text


def test_no_command_of_operators_begins_a_service(folder: Path) -> None:
    for command in (
        ("service", "password-link", "root"),
        ("service", "rotate-key"),
        ("service", "backup", "copy.db"),
        ("audit", "verify"),
    ):
        code, text = run(*command)
        assert (code, "there is no service in icefloe-service" in text) == (5, True), text
    assert list(folder.parent.iterdir()) == []


def test_a_lost_password_and_an_older_schema(desk: Desk) -> None:
    code, text = run("service", "password-link", "root")
    assert (code, "/join/" in text) == (0, True), text
    code, text = run("service", "password-link", "nobody")
    assert (code, "there is no person nobody" in text) == (3, True), text
    assert "revision" in run("service", "migrate")[1]
    desk.service.database.migrate("base")
    assert desk.client.get("/api/v1/health").status_code == 200
    unready = desk.client.get("/api/v1/health/ready")
    assert (unready.status_code, unready.json()["code"]) == (503, "service-unavailable")
    assert run("service", "migrate")[0] == 0
    assert desk.client.get("/api/v1/health/ready").status_code == 200
