"""What copying a repository did, as users see it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from icefloe.maintenance.clone.run import Cloned
from icefloe.records import asdict
from icefloe.reports import object_html, object_text, shown_bytes
from icefloe.zarr_store.exporting import Exported

CLONE_HEADINGS: Final = ("kind", "copied", "there already")


@dataclass(frozen=True, slots=True, repr=False)
class CloneReport:
    """What `Repository.clone_to` did."""

    spec_version: int
    versions: int
    """How many versions the clone has."""
    objects_copied: Mapping[str, int]
    """By kind."""
    objects_present: Mapping[str, int]
    """Those that an earlier run had copied."""
    bytes_copied: int
    objects_compared: int
    """How many were compared byte by byte."""
    objects_missing: Mapping[str, int]
    """Logs and backups of the source that are lost there: no version needs them to be read."""
    is_server_side: bool
    """Whether the store copied by itself, without the bytes coming here."""
    was_complete: bool
    """Whether the very same repository was there already, so that nothing was to be done."""

    @classmethod
    def of(cls, cloned: Cloned) -> Self:
        """Sum up a clone."""
        done = cloned.done
        return cls(
            cloned.spec_version,
            cloned.versions,
            done.copied,
            done.present,
            done.size_bytes,
            done.compared,
            done.missing,
            cloned.is_server_side,
            cloned.was_complete,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return everything as a dictionary, ready for JSON."""
        return asdict(self)

    def rows(self) -> list[list[object]]:
        """Write the numbers of objects for people, under `CLONE_HEADINGS`."""
        return [
            [kind.replace("_", " "), copied, self.objects_present[kind]]
            for kind, copied in self.objects_copied.items()
        ]

    def notes(self) -> list[str]:
        """Describe the rest in sentences."""
        return [*self._notes()]

    def _notes(self) -> Iterator[str]:
        if self.was_complete:
            yield "the same repository was there already: nothing was copied"
            return
        way = "by the store itself" if self.is_server_side else "through this machine"
        yield f"{shown_bytes(self.bytes_copied)} copied {way}, {self.versions} versions"
        if self.objects_compared:
            yield f"{self.objects_compared} objects compared byte by byte: all the same"
        else:
            yield "all objects are there, with their sizes"
        for kind, count in self.objects_missing.items():
            name = kind.replace("_", " ")
            yield f"{count} {name} are lost in the source: history only, all data is there"

    def __repr__(self) -> str:
        return object_text("CloneReport", self.to_dict())

    def _repr_html_(self) -> str:
        return object_html("CloneReport", self.to_dict())


@dataclass(frozen=True, slots=True, repr=False)
class ExportReport:
    """What `Repository.export_to_zarr` did."""

    snapshot_id: str
    groups: int
    arrays: int
    chunks: int
    chunks_copied: int
    """Those that an earlier run had not copied."""
    bytes_copied: int
    """Of those chunks."""
    chunks_compared: int
    """How many were read again and compared."""

    @classmethod
    def of(cls, snapshot_id: str, done: Exported) -> Self:
        """Sum up an export."""
        return cls(
            snapshot_id,
            done.groups,
            done.arrays,
            done.chunks,
            done.copied,
            done.size_bytes,
            done.compared,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return everything as a dictionary, ready for JSON."""
        return asdict(self)

    def notes(self) -> list[str]:
        """Describe the result in sentences."""
        there = self.chunks - self.chunks_copied
        lines = [
            f"version {self.snapshot_id}: {self.groups} groups, {self.arrays} arrays",
            f"{self.chunks_copied} chunks copied ({shown_bytes(self.bytes_copied)}),"
            f" {there} were there already",
        ]
        if self.chunks_compared:
            lines.append(f"{self.chunks_compared} chunks compared byte by byte: all the same")
        return lines

    def __repr__(self) -> str:
        return object_text("ExportReport", self.to_dict())

    def _repr_html_(self) -> str:
        return object_html("ExportReport", self.to_dict())
