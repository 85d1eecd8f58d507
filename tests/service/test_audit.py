"""The audit: nothing is changed unnoticed."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, delete, event, select, update
from sqlalchemy.exc import DBAPIError

from icefloe.catalog.wire import AuditEntry
from icefloe.errors import ConflictError, ErrorKind, ServiceError
from icefloe.service.database import audit
from icefloe.service.database.engine import Database
from icefloe.service.database.tables import audit as entries
from icefloe.service.database.tables import audit_head as head

KEY = b"k" * 32
NOW = datetime(2026, 1, 1, 12, 0, 0, 123_456, tzinfo=UTC)


def entry(number: int) -> AuditEntry:
    return AuditEntry(
        at=NOW + timedelta(microseconds=number),
        person="ada",
        action="repositories:open",
        resource=f"lab/r{number}",
        allowed=number % 3 != 0,
        request_id=f"req-{number}",
        organisation="lab" if number % 2 else None,
        details={"reasons": ["é", 1.5, None]},
    )


@pytest.fixture
def written(database: Database) -> Database:
    with database.writing() as connection:
        audit.append(connection, KEY, [entry(number) for number in range(1, 4)])
    with database.writing() as connection:
        audit.append(connection, KEY, [entry(number) for number in range(4, 8)])
    return database


def unprotected(connection: Connection) -> None:
    """Take away what keeps honest mistakes out, as an attacker would."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("ALTER TABLE audit DISABLE TRIGGER ALL")
    else:
        connection.exec_driver_sql("DROP TRIGGER audit_refuses_update")
        connection.exec_driver_sql("DROP TRIGGER audit_refuses_delete")


def test_an_honest_chain(written: Database) -> None:
    with written.reading() as connection:
        end = audit.verify(connection, KEY)
        assert end.number == 7
        assert audit.verify(connection, KEY) == end


def test_an_empty_chain(database: Database) -> None:
    with database.writing() as connection:
        audit.append(connection, KEY, [])
        assert audit.verify(connection, KEY).number == 0


@pytest.mark.server
def test_of_two_first_entries_one_waits_for_the_other(postgresql_database: str) -> None:
    """There is no row yet that could be locked."""
    database, looked = Database(postgresql_database), threading.Event()
    database.migrate()

    def note(*arguments: Any) -> None:
        if "audit_head" in arguments[2] and threading.current_thread() is not main:
            looked.set()

    def write_second() -> None:
        with database.writing() as connection:
            audit.append(connection, KEY, [entry(2)])

    main = threading.current_thread()
    event.listen(database.engine, "after_cursor_execute", note)
    with ThreadPoolExecutor(1) as threads:
        with database.writing() as connection:
            audit.append(connection, KEY, [entry(1)])
            second = threads.submit(write_second)
            assert looked.wait(60)  # the other one has seen that there is no entry
        second.result()
    with database.reading() as connection:
        assert audit.verify(connection, KEY).number == 2
        assert [found.resource for found in audit.read(connection)] == ["lab/r2", "lab/r1"]
    database.close()


def test_entries_are_read_newest_first(written: Database) -> None:
    with written.reading() as connection:
        newest = audit.read(connection, limit=2)
        assert [found.number for found in newest] == [7, 6]
        older = audit.read(connection, entries.c.organisation == "lab", before=6, limit=2)
        assert [found.number for found in older] == [5, 3]
        assert older[0].details == {"reasons": ["é", 1.5, None]}
        assert older[0].at == NOW + timedelta(microseconds=5)


@pytest.mark.parametrize("statement", [update(entries).values(person="eve"), delete(entries)])
def test_the_database_itself_refuses_changes(written: Database, statement: Any) -> None:
    with pytest.raises((ServiceError, ConflictError)) as told, written.writing() as connection:
        connection.execute(statement)
    assert isinstance(told.value.__cause__, DBAPIError)


def change_of(name: str, value: object) -> Callable[[Connection], object]:
    statement = update(entries).where(entries.c.number == 4).values({name: value})
    return lambda connection: connection.execute(statement)


VALUES = {
    "at": NOW,
    "person": "eve",
    "action": "repositories:see",
    "organisation": "zoo",
    "resource": "lab/other",
    "allowed": False,
    "details": "{}",
    "request_id": "other",
    "mac": b"x" * 32,
    "number": 40,
}
CHANGES: dict[str, Callable[[Connection], object]] = {
    **{f"change {name}": change_of(name, value) for name, value in VALUES.items()},
    "delete the first": lambda c: c.execute(delete(entries).where(entries.c.number == 1)),
    "delete one": lambda c: c.execute(delete(entries).where(entries.c.number == 4)),
    "delete the last": lambda c: c.execute(delete(entries).where(entries.c.number == 7)),
    "delete all": lambda c: c.execute(delete(entries)),
    "delete the head": lambda c: c.execute(delete(head)),
    "change the head": lambda c: c.execute(update(head).values(number=6)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_any_tampering_is_found(written: Database, change: str) -> None:
    with written.writing() as connection:
        unprotected(connection)
        CHANGES[change](connection)
    with written.reading() as connection, pytest.raises(ServiceError, match="tampered") as told:
        audit.verify(connection, KEY)
    assert told.value.kind == ErrorKind.AUDIT_TAMPERED


def test_cutting_the_end_off_with_its_head_is_found(written: Database) -> None:
    with written.writing() as connection:
        unprotected(connection)
        connection.execute(delete(entries).where(entries.c.number == 7))
        last = connection.execute(select(entries).where(entries.c.number == 6)).one()
        connection.execute(update(head).values(number=6, mac=last.mac))
    with written.reading() as connection, pytest.raises(ServiceError, match="row that was changed"):
        audit.verify(connection, KEY)


def test_exchanged_entries_are_found(written: Database) -> None:
    with written.writing() as connection:
        unprotected(connection)
        for old, new in [(4, 100), (5, 4), (100, 5)]:
            connection.execute(update(entries).where(entries.c.number == old).values(number=new))
    with written.reading() as connection, pytest.raises(ServiceError, match="tampered"):
        audit.verify(connection, KEY)


def test_another_key_verifies_nothing(written: Database) -> None:
    with written.reading() as connection, pytest.raises(ServiceError, match="tampered"):
        audit.verify(connection, b"x" * 32)


def test_an_entry_and_its_change_are_written_together(written: Database) -> None:
    def fail_after_appending() -> None:
        with written.writing() as connection:
            audit.append(connection, KEY, [entry(8)])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_after_appending()
    with written.reading() as connection:
        assert audit.verify(connection, KEY).number == 7
