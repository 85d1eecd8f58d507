"""The audit: who did what, in a chain that shows any change.

Each entry carries a code over itself and the entry before it, made with a key that is sealed in
the vault. Without the master key, nobody who can write to the database can change, insert or
delete an entry unnoticed. A row of its own seals the last entry, so the end cannot be cut off
either, except by putting back an older copy of the whole database: `verify` prints the number and
the code of the last entry for those who note them elsewhere.
"""

import hashlib
import hmac
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from sqlalchemy import Connection, Row, insert, select, update

from icefloe.catalog.wire import AuditEntry, AuditHead
from icefloe.errors import ErrorKind, ServiceError
from icefloe.service.database.tables import audit, audit_head

_FIRST: Final = b"icefloe audit"
_FIRST_LOCK: Final = 4_212_731_007  # any number that nobody else locks
_PAGE: Final = 1000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LOCKED_HEAD: Final = select(audit_head).with_for_update()
_NEW_ENTRY: Final = insert(audit)
_NEW_HEAD: Final = insert(audit_head).values(id=1)
_NEXT_HEAD: Final = update(audit_head)


def append(connection: Connection, key: bytes, entries: Sequence[AuditEntry]) -> None:
    """Write entries at the end of the chain, in this transaction."""
    head = connection.execute(_LOCKED_HEAD).first()
    if head is None and connection.dialect.name == "postgresql":
        # There is no row to lock yet: of two first entries, one waits here for the other.
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_FIRST_LOCK})")
        head = connection.execute(_LOCKED_HEAD).first()
    number, mac = (0, _FIRST) if head is None else (head.number, bytes(head.mac))
    rows = []
    for entry in entries:
        number += 1
        row = {
            "number": number,
            "at": entry.at,
            "person": entry.person,
            "action": entry.action,
            "organisation": entry.organisation,
            "resource": entry.resource,
            "allowed": entry.allowed,
            "details": json.dumps(entry.details, sort_keys=True, default=str),
            "request_id": entry.request_id,
        }
        mac = _code(key, mac, row)
        rows.append(row | {"mac": mac})
    if not rows:
        return
    connection.execute(_NEW_ENTRY, rows)
    last = {"number": number, "mac": mac, "seal": _seal(key, number, mac)}
    connection.execute(_NEW_HEAD if head is None else _NEXT_HEAD, last)


def verify(connection: Connection, key: bytes) -> AuditHead:
    """Check the whole chain and return its end; raise `ServiceError` where it was changed."""
    head = connection.execute(select(audit_head)).first()
    number, mac = 0, _FIRST
    for row in _rows(connection):
        number += 1
        if row.number != number:
            raise _tampered(number, "is missing")
        mac = _code(key, mac, row._asdict())
        if not hmac.compare_digest(mac, bytes(row.mac)):
            raise _tampered(number, "was changed, or the entry before it")
    if head is None:
        if number:
            raise _tampered(number, "has lost the row that seals it")
        return AuditHead(0, "")
    if not hmac.compare_digest(bytes(head.seal), _seal(key, head.number, bytes(head.mac))):
        raise _tampered(number, "is sealed by a row that was changed")
    if (head.number, bytes(head.mac)) != (number, mac):
        raise _tampered(number + 1, f"is missing: {head.number} entries were written")
    return AuditHead(number, mac.hex())


def read(
    connection: Connection,
    *conditions: Any,
    before: int | None = None,
    limit: int = 100,
) -> list[AuditEntry]:
    """Return the newest entries for which conditions on the table hold, the last one first."""
    query = select(audit).where(*conditions).order_by(audit.c.number.desc()).limit(limit)
    if before is not None:
        query = query.where(audit.c.number < before)
    return [
        AuditEntry(
            at=row.at,
            person=row.person,
            action=row.action,
            resource=row.resource,
            allowed=row.allowed,
            request_id=row.request_id,
            organisation=row.organisation,
            details=json.loads(row.details),
            number=row.number,
        )
        for row in connection.execute(query)
    ]


def _rows(connection: Connection) -> Iterator[Row[Any]]:
    last = None
    while True:
        query = select(audit).order_by(audit.c.number).limit(_PAGE)
        if last is not None:
            query = query.where(audit.c.number > last)
        rows = connection.execute(query).all()
        yield from rows
        if len(rows) < _PAGE:
            return
        last = rows[-1].number


def _code(key: bytes, previous: bytes, row: Mapping[str, Any]) -> bytes:
    moment: datetime = row["at"]
    content = [
        row["number"],
        (moment - _EPOCH) // timedelta(microseconds=1),
        row["person"],
        row["action"],
        row["organisation"],
        row["resource"],
        bool(row["allowed"]),
        row["details"],
        row["request_id"],
    ]
    text = json.dumps(content, separators=(",", ":")).encode()
    return hmac.digest(key, previous + text, hashlib.sha256)


def _seal(key: bytes, number: int, mac: bytes) -> bytes:
    return hmac.digest(key, f"head {number} ".encode() + mac, hashlib.sha256)


def _tampered(number: int, what: str) -> ServiceError:
    problem = f"the audit was tampered with: entry {number} {what}"
    return ServiceError(problem, ErrorKind.AUDIT_TAMPERED, number=number)
