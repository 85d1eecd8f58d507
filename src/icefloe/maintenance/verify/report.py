"""The report of a verification: a verdict, and what is damaged where."""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any, Final

from icefloe.records import Record
from icefloe.reports import JsonReady, Report, counted, plain

type Region = tuple[tuple[tuple[int, int], ...], ...]
"""Boxes of chunk coordinates: first and first after, along each dimension."""

_SHOWN_ROWS: Final = 50
_SHORT_ID: Final = 8
_SHOWN_BOXES: Final = 3


class Verdict(StrEnum):
    """The conclusion about a repository."""

    HEALTHY = "healthy"
    DAMAGED = "damaged"
    INCOMPLETE = "incomplete"
    """No damage was found, but not everything could be examined."""


class AffectedArray(JsonReady, Record):
    """The part of an array that a damage concerns."""

    path: str
    """In the newest of the versions."""
    region: Region
    """What is concerned, in chunk coordinates; empty if it is the array as a whole."""
    versions: tuple[str, ...]
    """Ids of snapshots, newest first."""


class Damage(JsonReady, Record):
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


class VerificationReport(Report, Record):
    """Whether a repository is whole, and if not, what is affected; see `Repository.verify`.

    Print it, or let a notebook show it.
    """

    is_deep: bool
    """Whether chunks and foreign objects were examined, too."""
    checked: Mapping[str, int]
    """How many objects were examined, by kind."""
    damages: tuple[Damage, ...]
    """What is wrong; what harms data comes first."""
    damages_left_out: int
    """How many more damages there are."""
    unchecked: Mapping[str, str]
    """The first objects that could not be examined, with the reasons."""
    unchecked_objects: int
    """How many objects could not be examined, in all."""

    headings = ("damage", "harms", "array", "chunks", "versions", "object")
    shown_rows = _SHOWN_ROWS

    @property
    def verdict(self) -> Verdict:
        """Healthy, damaged, or not known for sure."""
        if self.damages:
            return Verdict.DAMAGED
        return Verdict.INCOMPLETE if self.unchecked_objects else Verdict.HEALTHY

    @property
    def is_healthy(self) -> bool:
        """Whether everything was examined and nothing is wrong."""
        return self.verdict is Verdict.HEALTHY

    def to_dict(self) -> dict[str, Any]:
        """Return everything as a dictionary, ready for JSON."""
        return {
            "verdict": str(self.verdict),
            "deep": self.is_deep,
            "checked": dict(self.checked),
            "damages": plain(self.damages),
            "damages_left_out": self.damages_left_out,
            "unchecked": dict(self.unchecked),
            "unchecked_objects": self.unchecked_objects,
        }

    def _rows(self) -> Iterator[list[object]]:
        for damage in self.damages:
            yield from damage.rows()

    def _notes(self) -> Iterator[str]:
        for damage in self.damages[:_SHOWN_ROWS]:
            yield damage.message
            yield f"  to do: {damage.remedy}"
        for key, reason in list(self.unchecked.items())[:_SHOWN_ROWS]:
            yield f"{key} could not be looked at: {reason}"
        yield self.summary()

    def summary(self) -> str:
        """Sum up in a line."""
        checked = self.checked.items()
        counts = ", ".join(
            counted(count, name.removesuffix("s").replace("_", " ")) for name, count in checked
        )
        text = f"{self.verdict}: {counts} looked at"
        if self.damages:
            text += f"; {counted(len(self.damages) + self.damages_left_out, 'damage')}"
        if self.unchecked_objects:
            text += f"; {counted(self.unchecked_objects, 'object')} could not be looked at"
        return text


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
        case (version,):
            return version[:_SHORT_ID]
        case (newest, *_, oldest):
            return f"{len(versions)}: {newest[:_SHORT_ID]} … {oldest[:_SHORT_ID]}"
    return ""
