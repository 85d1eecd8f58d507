"""What a repository needs from outside, as users see it."""

import html
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

from icefloe.format.arrow import pa
from icefloe.format.columns import BytesColumn, numbers_to_arrow
from icefloe.maintenance.dependencies.access import AccessFacts, ContainerAccess
from icefloe.maintenance.dependencies.summary import By, Dependencies
from icefloe.printable import printable
from icefloe.records import Record, asdict
from icefloe.reports import shown_bytes, table_html, table_text

_SHOWN_ROWS: Final = 30
_SHORT_ID: Final = 8
_HEADINGS: Final = ("chunks", "bytes", "arrays", "versions", "newest", "oldest")


class VirtualDependency(Record):
    """Virtual chunks in one place.

    Chunks, bytes and arrays are those of the newest version that has chunks there.
    """

    place: str
    chunks: int
    bytes: int
    arrays: int
    versions: int
    newest_snapshot: str
    oldest_snapshot: str


class VirtualDependencies:
    """Where virtual chunks lie, a row for each place; most bytes first.

    Iterate over it for the rows, or take all as an Arrow table.
    """

    def __init__(self, by: By, dependencies: Dependencies) -> None:
        self.by = by
        self._found = dependencies

    def __len__(self) -> int:
        return len(self._found)

    def __iter__(self) -> Iterator[VirtualDependency]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, row: int) -> VirtualDependency:
        columns = self._found
        row = range(len(columns))[row]
        return VirtualDependency(
            columns.places[row].decode(),
            int(columns.chunks[row]),
            int(columns.bytes_[row]),
            int(columns.arrays[row]),
            int(columns.versions[row]),
            str(columns.entries[columns.newest[row]].id),
            str(columns.entries[columns.oldest[row]].id),
        )

    @property
    def chunks(self) -> int:
        """The number of chunks in all places."""
        return int(self._found.chunks.sum())

    @property
    def bytes(self) -> int:
        """What these chunks take."""
        return int(self._found.bytes_.sum())

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return the rows as dictionaries, ready for JSON."""
        return [asdict(row) for row in self]

    def to_arrow(self) -> "pa.Table":
        """Return all rows as an Arrow table: no Python object for each, for millions of places."""
        dependencies = self._found
        ids = BytesColumn.from_strings(
            [str(entry.id) for entry in dependencies.entries]
        ).to_arrow_strings()
        columns = {
            "place": dependencies.places.to_arrow_strings(),
            "chunks": numbers_to_arrow(dependencies.chunks),
            "bytes": numbers_to_arrow(dependencies.bytes_),
            "arrays": numbers_to_arrow(dependencies.arrays),
            "versions": numbers_to_arrow(dependencies.versions),
            "newest_snapshot": ids.take(numbers_to_arrow(dependencies.newest)),
            "oldest_snapshot": ids.take(numbers_to_arrow(dependencies.oldest)),
        }
        return pa.Table.from_arrays(list(columns.values()), list(columns))

    @property
    def headings(self) -> tuple[str, ...]:
        """What stands over the columns that `rows` gives."""
        return (self.by, *_HEADINGS)

    def rows(self, most: int = _SHOWN_ROWS) -> list[list[object]]:
        """Write the first rows for people."""
        return [
            [
                row.place,
                row.chunks,
                shown_bytes(row.bytes),
                row.arrays,
                row.versions,
                row.newest_snapshot[:_SHORT_ID],
                row.oldest_snapshot[:_SHORT_ID],
            ]
            for row in islice(self, min(most, len(self)))
        ]

    def total(self, most: int = _SHOWN_ROWS) -> str:
        """Sum up in a line, with how many rows are left out."""
        text = f"{len(self)} in all: {self.chunks} chunks, {shown_bytes(self.bytes)}"
        left_out = len(self) - most
        return f"{text} ({left_out} not shown)" if left_out > 0 else text

    def __repr__(self) -> str:
        return f"{table_text(self.headings, self.rows())}\n{self.total()}"

    def _repr_html_(self) -> str:
        return f"{table_html(self.headings, self.rows())}<p>{self.total()}</p>"


class AccessReport:
    """What it takes to read the virtual chunks of a repository; see `Repository.describe_access`.

    Print it, or let a notebook show it; `containers` has a row for each place.
    """

    def __init__(self, facts: AccessFacts) -> None:
        self._facts = facts

    @property
    def snapshot_id(self) -> str:
        """The version whose references were counted."""
        return str(self._facts.version.id)

    @property
    def containers(self) -> tuple[ContainerAccess, ...]:
        """All places: those with most references first."""
        return self._facts.containers

    @property
    def disputed(self) -> tuple[str, ...]:
        """Prefixes about which the stored configuration contradicts itself; never read."""
        return self._facts.disputed

    @property
    def missing(self) -> tuple[ContainerAccess, ...]:
        """The places that have references and were not, or not wholly, authorised."""
        return tuple(
            container
            for container in self.containers
            if container.is_used and not container.is_authorized
        )

    @property
    def how_to_open(self) -> str | None:
        """What to write to open the repository so that all its virtual chunks can be read.

        None if there are none.
        """
        used = [
            container
            for container in self.containers
            if container.is_used and container.needs is not None
        ]
        if not used:
            return None
        entries = "".join(
            f"        {printable(container_access.url_prefix)!r}: {container_access.needs},\n"
            for container_access in used
        )
        return (
            "icefloe.Repository.open(\n    storage,\n"
            "    authorize_virtual_chunk_access=icefloe.containers_credentials({\n"
            f"{entries}    }}),\n)"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return everything as a dictionary, ready for JSON."""
        containers = [
            asdict(container)
            | {"is_authorized": container.is_authorized, "is_used": container.is_used}
            for container in self.containers
        ]
        return {
            "snapshot_id": self.snapshot_id,
            "containers": containers,
            "disputed": list(self.disputed),
            "how_to_open": self.how_to_open,
        }

    def notes(self) -> list[str]:
        """Describe in sentences what the table does not show."""
        return [*map(printable, _notes(self))]

    def __repr__(self) -> str:
        if not self.containers:
            return "no virtual chunks, and no containers for any: nothing to authorise"
        parts = [table_text(ACCESS_HEADINGS, access_rows(self)), *self.notes()]
        if self.how_to_open is not None:
            parts.append(f"to read everything:\n{self.how_to_open}")
        return "\n".join(parts)

    def _repr_html_(self) -> str:
        table = table_html(ACCESS_HEADINGS, access_rows(self))
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self.notes())
        code = "" if self.how_to_open is None else f"<pre>{html.escape(self.how_to_open)}</pre>"
        return f"{table}{notes}{code}"


ACCESS_HEADINGS: Final = (
    "container",
    "name",
    "platform",
    "reached at",
    "references",
    "bytes",
    "authorised",
    "needs",
)


def access_rows(report: AccessReport) -> list[list[object]]:
    """Write the rows of an access report, under `ACCESS_HEADINGS`."""
    return [
        [
            container.url_prefix,
            container.name or "",
            container.platform,
            " ".join(filter(None, (container.endpoint, container.region))),
            container.references,
            shown_bytes(container.size_bytes),
            _authorised(container),
            container.needs or "a container",
        ]
        for container in report.containers
    ]


def _authorised(container: ContainerAccess) -> str:
    if container.is_authorized:
        return "yes"
    return f"in part: {', '.join(container.authorized)}" if container.authorized else "no"


def _notes(report: AccessReport) -> Iterator[str]:
    for container in report.containers:
        if container.needs_consent is not None:
            yield (
                f"{container.url_prefix}: the repository says that it is reached with"
                f" {container.needs_consent}. Your credentials are only sent there if you pass this"
                " container yourself, in the config given to Repository.open"
            )
        if container.is_used and container.needs is None:
            yield (
                f"{container.url_prefix}: no container covers these references, and there is none"
                " by"
                " default: declare one with config.set_virtual_chunk_container(...)"
            )
    for prefix in report.disputed:
        yield (
            f"{prefix}: the stored configuration contradicts itself about this container, so"
            " nothing is read there"
        )
