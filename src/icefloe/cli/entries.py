"""Shared parts of commands about a service: its client, and entries as tables, facts and JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from icefloe.cli.common import echo, present
from icefloe.reports import Report

if TYPE_CHECKING:
    from icefloe.catalog.client import Client

ServiceOption = Annotated[
    str | None,
    typer.Option("--service", help="The address of the service. [default: that of the last login]"),
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")]
WaitOption = Annotated[
    bool, typer.Option("--wait/--no-wait", help="Wait until it is done, or show the job.")
]
OrganisationArgument = Annotated[str, typer.Argument(help="The organisation.")]


def client_of(service: str | None) -> Client:
    """Return a client of a service; of the last login if none is named."""
    from icefloe.catalog.client import Client

    return Client(service)


class Entries(Report):
    """Entries of a service, with some of their fields as columns."""

    __slots__ = ("_columns", "_entries")
    has_empty_table = True

    def __init__(self, entries: Iterable[object], *columns: str) -> None:
        self._entries = list(entries)
        self._columns = columns

    @property
    def headings(self) -> Sequence[str]:
        """The fields that are shown."""
        return [name.replace("_", " ") for name in self._columns]

    def _rows(self) -> Iterable[Iterable[object]]:
        return ([_shown(getattr(entry, name)) for name in self._columns] for entry in self._entries)

    def to_dict(self) -> dict[str, Any]:
        """Return all entries with all of their fields."""
        return {"entries": [_plain(entry) for entry in self._entries]}


class Entry(Report):
    """One entry of a service, with a line for each field, also of the records in it."""

    __slots__ = ("_entry", "_sentences")

    def __init__(self, entry: object, *notes: str) -> None:
        self._entry = entry
        self._sentences = notes

    @property
    def headings(self) -> Sequence[str]:
        """The headings of the table."""
        return ("field", "value")

    def _rows(self) -> Iterable[Iterable[object]]:
        return _facts(self._entry)

    def _notes(self) -> Iterable[str]:
        return self._sentences

    def to_dict(self) -> dict[str, Any]:
        """Return all fields."""
        fields: dict[str, Any] = _plain(self._entry)
        return fields


def show_entries(entries: Iterable[object], *columns: str, as_json: bool) -> None:
    """Print entries of a service."""
    present(Entries(entries, *columns), as_json=as_json)


def show_entry(entry: object, *notes: str, as_json: bool) -> None:
    """Print an entry of a service, and notes about it."""
    present(Entry(entry, *notes), as_json=as_json)


def done(text: str, *, as_json: bool) -> None:
    """Report that something was done that leaves nothing to show."""
    if as_json:
        present(Entry({"done": text}), as_json=True)
    else:
        echo(text)


def _plain(entry: object) -> Any:
    import msgspec

    return entry if isinstance(entry, dict) else msgspec.to_builtins(entry)


def _facts(entry: object, prefix: str = "") -> Iterable[tuple[str, object]]:
    """Iterate over the names and the values of fields; those of a record within come alone."""
    from icefloe.records import Record

    for name, value in _plain(entry).items():
        label = prefix + name.replace("_", " ")
        part = getattr(entry, name, None)
        if isinstance(part, Record):
            yield from _facts(part, f"{label} ")
        else:
            yield label, _shown(value)


def _shown(value: object) -> object:
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case list() | tuple():
            return ", ".join(_item(item) for item in value)
        case Mapping():
            return ", ".join(f"{name}: {_shown(item)}" for name, item in value.items())
        case int():
            return value
    return str(value)


def _item(value: object) -> str:
    """Return an item of a list as text; the parts of a pair stand side by side."""
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(_shown(value))
