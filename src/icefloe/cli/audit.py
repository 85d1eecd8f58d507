"""`icefloe audit`: who did what on a service."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from icefloe.cli.common import JsonOption
from icefloe.cli.entries import ServiceOption, client_of, done, show_entries, show_entry
from icefloe.errors import ErrorKind, NotFoundError
from icefloe.reports import counted

if TYPE_CHECKING:
    from icefloe.catalog.wire import AuditEntry

OrganisationOption = Annotated[
    str | None,
    typer.Option("--org", help="Of this organisation. [default: the whole service, for operators]"),
]


def list_(
    *,
    org: OrganisationOption = None,
    limit: Annotated[int, typer.Option(help="Show at most this many entries.", min=1)] = 50,
    service: ServiceOption = None,
    as_json: JsonOption = False,
) -> None:
    """List what was done, the newest first.

    Example: icefloe audit list --org ocean-lab
    """
    entries = islice(client_of(service).audit(org), limit)
    columns = ("number", "at", "person", "action", "resource", "allowed")
    show_entries(entries, *columns, as_json=as_json)


def show(
    number: Annotated[int, typer.Argument(help="The number of the entry.", min=1)],
    *,
    org: OrganisationOption = None,
    service: ServiceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show an entry of the audit with its details: reasons, grants and their ends.

    Example: icefloe audit show 1042 --org ocean-lab
    """
    entry = next(client_of(service).audit(org, before=number + 1), None)
    if entry is None or entry.number != number:
        problem = f"there is no entry {number} here: `icefloe audit list` shows the numbers"
        raise NotFoundError(problem, ErrorKind.ENTRY_NOT_FOUND)
    show_entry(entry, as_json=as_json)


def export(
    file: Annotated[Path, typer.Argument(help="The file to write; - for standard output.")],
    *,
    org: OrganisationOption = None,
    service: ServiceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write all entries of the audit to a file, a line of JSON for each, the newest first.

    Example: icefloe audit export audit.jsonl --org ocean-lab
    """
    entries: Iterator[AuditEntry] = iter(client_of(service).audit(org))
    if str(file) == "-":
        for line in _lines(entries):
            sys.stdout.write(line)
        return
    count = 0
    with file.open("w") as output:
        for count, line in enumerate(_lines(entries), 1):  # noqa: B007 - used below
            output.write(line)
    done(f"{counted(count, 'entry was', 'entries were')} written to {file}", as_json=as_json)


def _lines(entries: Iterator[AuditEntry]) -> Iterator[str]:
    import msgspec

    from icefloe.printable import printable_json

    for entry in entries:
        yield printable_json(msgspec.json.encode(entry).decode()) + "\n"
