"""The work of operators beside the running server: backups, key rotation, audit check."""

import asyncio
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

from sqlalchemy import select

from icefloe.catalog.wire import AuditHead
from icefloe.errors import AlreadyExistsError, ErrorKind, InvalidInputError, ServiceError
from icefloe.records import Record
from icefloe.service import login
from icefloe.service.database import audit, tables
from icefloe.service.database.engine import Database
from icefloe.service.database.vault import (
    Vault,
    get_secret,
    read_former_keys,
    read_master_key,
    rotate_secrets,
    write_new_key,
)
from icefloe.service.runtime import Service, load_master_keys
from icefloe.service.settings import Settings

_AUDIT_KEY: Final = "service/audit"


class Rotation(Record):
    """The result of a rotation of the master key."""

    key_id: str
    secrets: int
    """How many secrets were wrapped again."""
    former_files: tuple[Path, ...]
    """Former keys, which open older backups."""


def migrate(settings: Settings) -> str | None:
    """Bring the schema of the database to the one of this version, and return its revision."""
    with closing(Database(settings.database_url)) as database:
        database.migrate()
        return database.revision()


def verify_audit(settings: Settings) -> AuditHead:
    """Check the whole audit, and return its last entry."""
    with closing(_open(settings)) as database:
        return _verify(database, settings)


def rotate_key(settings: Settings) -> Rotation:
    """Seal all secrets with another master key.

    A key that the service made itself is replaced by a new one. Otherwise the key of the settings
    is the new one, and the key before it must be among the former keys.
    """
    with closing(_open(settings)) as database:
        _check_keys(database, settings)
        is_own = not (settings.key_file or settings.key_command or settings.key_variable)
        if is_own:
            write_new_key(settings.own_key_file)
        keys = load_master_keys(settings)
        with database.writing() as connection:
            count = rotate_secrets(connection, Vault(keys))
    former: tuple[Path, ...] = ()
    if is_own:
        own = settings.own_key_file
        former = tuple(own.with_name(f"{own.name}.{k.key_id}") for k in read_former_keys(own))
    return Rotation(keys[0].key_id, count, former)


def create_password_link(settings: Settings, person: str) -> str:
    """Return a link by which somebody sets a new password."""
    _open(settings).close()  # an error if there is no database
    service = Service(settings)
    try:
        return login.create_password_link(service, person)
    finally:
        asyncio.run(service.close())


# Backups of SQLite


def back_up(settings: Settings, target: Path) -> None:
    """Copy the database to a file while the service runs. The master key is not in it."""
    source = _sqlite_file(settings)
    if target.exists():
        problem = f"{target} exists already: choose another file"
        raise AlreadyExistsError(problem, ErrorKind.ENTRY_ALREADY_EXISTS)
    with closing(_open(settings)) as database:
        database.revision()  # an error if there is no database
    _copy(source, target)


def restore(settings: Settings, source: Path, *, replaces: bool = False) -> AuditHead:
    """Put a backup in the place of the database, and return the last entry of its audit.

    Nothing is changed unless the backup is whole, its audit is unchanged, and the master key of
    the settings opens all its secrets.
    """
    target = _sqlite_file(settings)
    if not source.exists():
        raise InvalidInputError(f"there is no backup {source}", ErrorKind.INVALID_CONFIG)
    is_own = not (settings.key_file or settings.key_command or settings.key_variable)
    if is_own:
        read_master_key(settings.own_key_file)  # a new key would open nothing
    if target.exists() and not replaces:
        problem = f"{target} exists already: pass --replace to lose what it contains"
        raise AlreadyExistsError(problem, ErrorKind.ENTRY_ALREADY_EXISTS)
    copy = target.with_name(f"{target.name}.restoring")
    copy.unlink(missing_ok=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        _copy(source, copy)
        with closing(Database(f"sqlite:///{copy}")) as database:
            if database.revision() is None:
                problem = f"{source} is no backup of a service"
                raise InvalidInputError(problem, ErrorKind.INVALID_CONFIG)
            _check_keys(database, settings)
            head = _verify(database, settings)
        _make_idle(copy)
        if target.exists():
            _make_idle(target)
        copy.replace(target)
    finally:
        for suffix in ("", "-wal", "-shm"):
            copy.with_name(copy.name + suffix).unlink(missing_ok=True)
    return head


def _sqlite_file(settings: Settings) -> Path:
    url = settings.database_url
    if not settings.is_sqlite:
        problem = "this command copies the embedded SQLite database only"
        advice = "back up PostgreSQL with pg_dump, and restore it with pg_restore"
        raise InvalidInputError(f"{problem}: {advice}", ErrorKind.INVALID_CONFIG)
    return Path(url.removeprefix("sqlite:///"))


def _copy(source: Path, target: Path) -> None:
    """Copy a database as it is at one moment, to a file that only its owner may read."""
    os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    try:
        with (
            closing(sqlite3.connect(f"file:{source}?mode=ro", uri=True)) as origin,
            closing(sqlite3.connect(target)) as copy,
        ):
            origin.backup(copy)
            (state,) = copy.execute("PRAGMA integrity_check").fetchone()
    except sqlite3.DatabaseError as error:
        target.unlink()
        problem = f"{source} cannot be copied: {error}"
        raise ServiceError(problem) from error
    if state != "ok":
        target.unlink()
        raise ServiceError(f"{source} is damaged: {state}")


def _make_idle(path: Path) -> None:
    """Write everything into one file; raise `ServiceError` if a process uses the database."""
    try:
        with closing(sqlite3.connect(path, timeout=0)) as connection:
            connection.execute("PRAGMA journal_mode = DELETE")
    except sqlite3.OperationalError as error:
        problem = f"a service is running with {path}: stop it first"
        raise ServiceError(problem) from error


def _open(settings: Settings) -> Database:
    """Open the database of a service, which must exist."""
    if settings.is_sqlite and not _sqlite_file(settings).exists():
        problem = f"there is no service in {settings.folder}"
        advice = "name its settings by --config, or run `icefloe serve` to begin"
        raise InvalidInputError(f"{problem}: {advice}", ErrorKind.INVALID_CONFIG)
    return Database(settings.database_url)


def _check_keys(database: Database, settings: Settings) -> None:
    """Raise `ServiceError` unless the master keys open every secret."""
    vault = Vault(load_master_keys(settings))
    with database.reading() as connection:
        for name in connection.execute(select(tables.secrets.c.name)).scalars().all():
            get_secret(connection, vault, name)


def _verify(database: Database, settings: Settings) -> AuditHead:
    vault = Vault(load_master_keys(settings))
    with database.reading() as connection:
        key = get_secret(connection, vault, _AUDIT_KEY)
        if key is None:
            problem = "the database contains no key of the audit: no service used it yet"
            raise ServiceError(problem)
        return audit.verify(connection, key)
