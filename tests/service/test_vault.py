"""Secrets at rest."""

import pickle
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import select, update

from icefloe.errors import InvalidInputError, ServiceError
from icefloe.records import replace
from icefloe.service.database import tables
from icefloe.service.database.engine import Database
from icefloe.service.database.vault import (
    Vault,
    delete_secret,
    get_secret,
    new_master_key,
    parse_master_key,
    put_secret,
    read_master_key,
    rotate_secrets,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SECRET = b"canary-5f2b7d"


def new_vault() -> Vault:
    return Vault([parse_master_key(new_master_key())])


def test_a_sealed_secret_does_not_show_it() -> None:
    vault = new_vault()
    sealed = vault.seal("bucket/lab/main", SECRET)
    assert SECRET not in sealed.sealed + sealed.wrapped_key
    assert vault.open("bucket/lab/main", sealed) == SECRET
    assert vault.seal("bucket/lab/main", SECRET) != sealed


def test_a_secret_opens_under_its_own_name_only() -> None:
    vault = new_vault()
    sealed = vault.seal("bucket/lab/main", SECRET)
    with pytest.raises(ServiceError, match="not the one for 'bucket/zoo/main'"):
        vault.open("bucket/zoo/main", sealed)


@pytest.mark.parametrize("part", ["wrapped_key", "sealed"])
def test_every_changed_byte_is_noticed(part: str) -> None:
    vault = new_vault()
    sealed = vault.seal("name", SECRET)
    content: bytes = getattr(sealed, part)
    for position in range(len(content)):
        changed = bytearray(content)
        changed[position] ^= 1
        with pytest.raises(ServiceError):
            vault.open("name", replace(sealed, **{part: bytes(changed)}))
    with pytest.raises(ServiceError):
        vault.open("name", replace(sealed, **{part: b""}))


def test_another_master_key_opens_nothing() -> None:
    sealed = new_vault().seal("name", SECRET)
    with pytest.raises(ServiceError, match="needs the master key local-"):
        new_vault().open("name", sealed)


def test_rotation_needs_both_keys_and_then_only_the_new_one(database: Database) -> None:
    old, new = (parse_master_key(new_master_key()) for _ in range(2))
    with database.writing() as connection:
        for number in range(3):
            put_secret(connection, Vault([old]), f"s{number}", SECRET, NOW)
        assert rotate_secrets(connection, Vault([new, old])) == 3
        assert rotate_secrets(connection, Vault([new, old])) == 0
    with database.reading() as connection:
        assert get_secret(connection, Vault([new]), "s1") == SECRET
        with pytest.raises(ServiceError):
            get_secret(connection, Vault([old]), "s1")


def test_the_database_holds_no_secret_in_plain(database: Database) -> None:
    vault = new_vault()
    with database.writing() as connection:
        put_secret(connection, vault, "a", b"first", NOW)
        put_secret(connection, vault, "a", SECRET, NOW)
        row = connection.execute(select(tables.secrets)).one()
        assert SECRET not in bytes(row.sealed) + bytes(row.wrapped_key)
        assert get_secret(connection, vault, "a") == SECRET
        connection.execute(update(tables.secrets).values(name="b"))
        with pytest.raises(ServiceError):
            get_secret(connection, vault, "b")
        delete_secret(connection, "b")
        assert get_secret(connection, vault, "b") is None


def test_a_key_file_is_made_once_and_for_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "service" / "key"
    with pytest.raises(ServiceError, match="cannot read the master key"):
        read_master_key(path)
    first = read_master_key(path, create=True)
    assert read_master_key(path, create=True).key_id == first.key_id
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o644)
    with pytest.raises(InvalidInputError, match="chmod 600"):
        read_master_key(path)


@pytest.mark.parametrize("text", ["", "short", "!!!", "AAAA" * 8])
def test_a_broken_key_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError):
        parse_master_key(text)


def test_a_master_key_neither_shows_nor_travels() -> None:
    text = new_master_key()
    key = parse_master_key(text)
    assert text not in repr(key)
    with pytest.raises(TypeError):
        pickle.dumps(key)
    with pytest.raises(InvalidInputError):
        Vault([])
