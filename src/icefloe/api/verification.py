"""What verification found, as users see it."""

import html
from collections.abc import Iterator
from enum import StrEnum
from typing import Any, Final, Self

from icefloe.maintenance.verify import findings as found
from icefloe.maintenance.verify.run import Verification
from icefloe.printable import printable
from icefloe.records import Record
from icefloe.reports import table_html, table_text

type Region = tuple[tuple[tuple[int, int], ...], ...]
"""Boxes of chunk coordinates: first and first after, along each dimension."""

DAMAGE_HEADINGS: Final = ("damage", "harms", "array", "chunks", "versions", "object")
_SHOWN_ROWS: Final = 50
_SHORT_ID: Final = 8
_SHOWN_BOXES: Final = 3


class Verdict(StrEnum):
    """What a repository was found to be."""

    HEALTHY = "healthy"
    DAMAGED = "damaged"
    INCOMPLETE = "incomplete"
    """No damage was found, but not everything could be looked at."""


class AffectedArray(Record):
    """The part of an array that a damage concerns."""

    path: str
    """In the newest of the versions."""
    region: Region
    """What is concerned, in chunk coordinates; empty if it is the array as a whole."""
    versions: tuple[str, ...]
    """Ids of snapshots, newest first."""

    def to_dict(self) -> dict[str, Any]:
        """Return everything as a dictionary, ready for JSON."""
        region = [[list(edges) for edges in box] for box in self.region]
        return {"path": self.path, "region": region, "versions": list(self.versions)}


class Damage(Record):
    """One thing that is wrong with a repository."""

    kind: str
    harms: str
    """`data`: something cannot be read. `history`: only the description of data is damaged."""
    message: str
    remedy: str
    """What can be done."""
    keys: tuple[str, ...]
    """The objects; of many, the first few."""
    objects: int
    """How many objects there are in all."""
    arrays: tuple[AffectedArray, ...]
    versions: tuple[str, ...]
    """Ids of the snapshots that are concerned, newest first; none if it is the repository."""

    @classmethod
    def of(cls, damage: found.Damage) -> Self:
        """Show a damage to users."""
        return cls(
            str(damage.kind),
            str(damage.harm),
            damage.message,
            damage.remedy,
            damage.keys,
            damage.objects,
            tuple(
                AffectedArray(part.array, part.region, tuple(map(str, part.versions)))
                for part in damage.affected
            ),
            tuple(map(str, damage.versions)),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return everything as a dictionary, ready for JSON."""
        return {
            "kind": self.kind,
            "harms": self.harms,
            "message": self.message,
            "remedy": self.remedy,
            "keys": list(self.keys),
            "objects": self.objects,
            "arrays": [array.to_dict() for array in self.arrays],
            "versions": list(self.versions),
        }

    def rows(self) -> Iterator[list[object]]:
        """Write it for people, a row for each array."""
        key = self.keys[0] if self.keys else ""
        if self.objects > 1:
            key = f"{key} and {self.objects - 1} more"
        parts = self.arrays or (AffectedArray("", (), self.versions),)
        for part in parts:
            versions = part.versions or self.versions
            yield [
                self.kind,
                self.harms,
                part.path,
                shown_region(part.region),
                _shown_versions(versions),
                key,
            ]


class VerificationReport:
    """Whether a repository is whole, and if not, what is affected; see `Repository.verify`.

    Print it, or let a notebook show it.
    """

    def __init__(self, outcome: Verification) -> None:
        self._outcome = outcome
        self.damages = tuple(map(Damage.of, outcome.damages))
        """What is wrong; what harms data comes first."""

    @property
    def verdict(self) -> Verdict:
        """Healthy, damaged, or not known for sure."""
        if self.damages:
            return Verdict.DAMAGED
        return Verdict.INCOMPLETE if self._outcome.unchecked_objects else Verdict.HEALTHY

    @property
    def is_healthy(self) -> bool:
        """Whether everything was looked at and nothing is wrong."""
        return self.verdict is Verdict.HEALTHY

    @property
    def unchecked(self) -> dict[str, str]:
        """What could not be looked at, and why; of very much, the first."""
        return {entry.key: entry.reason for entry in self._outcome.unchecked}

    @property
    def checked(self) -> dict[str, int]:
        """How much was looked at."""
        checked = self._outcome.checked
        return {name: getattr(checked, name) for name in checked.__struct_fields__}

    @property
    def is_deep(self) -> bool:
        """Whether chunks and foreign objects were looked at, too."""
        return self._outcome.rules.deep

    def to_dict(self) -> dict[str, Any]:
        """Return everything as a dictionary, ready for JSON."""
        return {
            "verdict": str(self.verdict),
            "deep": self.is_deep,
            "checked": self.checked,
            "damages": [damage.to_dict() for damage in self.damages],
            "damages_left_out": self._outcome.left_out,
            "unchecked": self.unchecked,
            "unchecked_objects": self._outcome.unchecked_objects,
        }

    def rows(self, most: int = _SHOWN_ROWS) -> list[list[object]]:
        """Write the damages for people, under `DAMAGE_HEADINGS`."""
        return [row for damage in self.damages for row in damage.rows()][:most]

    def notes(self) -> list[str]:
        """Describe in sentences the damage and its remedies, with a summary."""
        return [*map(printable, self._notes())]

    def _notes(self) -> Iterator[str]:
        for damage in self.damages[:_SHOWN_ROWS]:
            yield damage.message
            yield f"  to do: {damage.remedy}"
        for key, reason in list(self.unchecked.items())[:_SHOWN_ROWS]:
            yield f"{key} could not be looked at: {reason}"
        yield self.summary()

    def summary(self) -> str:
        """Sum up in a line."""
        counts = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in
                           self.checked.items())  # fmt: skip
        text = f"{self.verdict}: {counts} looked at"
        if self.damages:
            text += f"; {len(self.damages) + self._outcome.left_out} damages"
        if self._outcome.unchecked_objects:
            text += f"; {self._outcome.unchecked_objects} objects could not be looked at"
        return text

    def __repr__(self) -> str:
        lines = [table_text(DAMAGE_HEADINGS, self.rows())] if self.damages else []
        return "\n".join([*lines, *self.notes()])

    def _repr_html_(self) -> str:
        table = table_html(DAMAGE_HEADINGS, self.rows()) if self.damages else ""
        return table + "".join(f"<p>{html.escape(note)}</p>" for note in self.notes())


def shown_region(region: Region) -> str:
    """Write boxes of chunks for people.

    >>> shown_region((((0, 3), (5, 6)),))
    '[0:3, 5]'
    """
    boxes = [
        "[" + ", ".join(str(a) if b == a + 1 else f"{a}:{b}" for a, b in box) + "]"
        for box in region[:_SHOWN_BOXES]
    ]
    more = len(region) - _SHOWN_BOXES
    return " ".join(boxes) + (f" and {more} more" if more > 0 else "")


def _shown_versions(versions: tuple[str, ...]) -> str:
    match versions:
        case ():
            return "all"
        case (one,):
            return one[:_SHORT_ID]
        case (newest, *_, oldest):
            return f"{len(versions)}: {newest[:_SHORT_ID]} … {oldest[:_SHORT_ID]}"
    return ""
