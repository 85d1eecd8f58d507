"""What repair did, or would do, as users see it."""

import html
from collections.abc import Iterator
from typing import Any, Final, Self

from icefloe.api.verification import AffectedArray, VerificationReport, shown_region
from icefloe.maintenance.repair import repair_log as found
from icefloe.printable import printable
from icefloe.records import Record
from icefloe.reports import table_html, table_text

REPAIR_HEADINGS: Final = ("step", "array", "chunks", "object", "kept aside as")
_SHOWN_ROWS: Final = 50


class RepairStep(Record):
    """One thing that repair did, or would do."""

    kind: str
    message: str
    """What is done, and what is lost by it."""
    keys: tuple[str, ...]
    """The objects that are written."""
    kept_aside: str | None
    """Where the damaged object is kept; None if it was missing, or a commit is added."""
    arrays: tuple[AffectedArray, ...]
    """Chunks that read as never written afterwards."""
    versions: tuple[str, ...]
    """Versions that are made, recovered or dropped."""

    @classmethod
    def of(cls, step: found.Repair) -> Self:
        """Show a step to users."""
        return cls(
            str(step.kind),
            step.message,
            step.keys,
            step.kept_aside,
            tuple(
                AffectedArray(part.array, part.region, tuple(map(str, part.versions)))
                for part in step.affected
            ),
            tuple(map(str, step.versions)),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return everything as a dictionary, ready for JSON."""
        return {
            "kind": self.kind,
            "message": self.message,
            "keys": list(self.keys),
            "kept_aside": self.kept_aside,
            "arrays": [array.to_dict() for array in self.arrays],
            "versions": list(self.versions),
        }

    def rows(self) -> Iterator[list[object]]:
        """Write it for people, a row for each array."""
        key = self.keys[0] if self.keys else ""
        for part in self.arrays or (AffectedArray("", (), ()),):
            yield [self.kind, part.path, shown_region(part.region), key, self.kept_aside or ""]


class RepairReport:
    """What was wrong, what repair did about it, and what is still wrong; print it.

    In a dry run everything happened in memory: `after` is what would be.
    """

    def __init__(self, outcome: found.RepairOutcome) -> None:
        self.is_dry_run = outcome.is_dry
        self.before = VerificationReport(outcome.before)
        """What was found at first."""
        self.steps = tuple(map(RepairStep.of, outcome.repairs))
        self.after = VerificationReport(outcome.after)
        """What is left: it cannot be repaired, or was not asked for."""
        self.open_questions = tuple(outcome.notes)
        """What could not be decided, and what to do about it."""

    @property
    def is_healthy(self) -> bool:
        """Whether nothing is wrong after the repair."""
        return self.after.is_healthy

    def to_dict(self) -> dict[str, Any]:
        """Return everything as a dictionary, ready for JSON."""
        return {
            "dry_run": self.is_dry_run,
            "before": self.before.to_dict(),
            "steps": [step.to_dict() for step in self.steps],
            "open_questions": list(self.open_questions),
            "after": self.after.to_dict(),
        }

    def rows(self, most: int = _SHOWN_ROWS) -> list[list[object]]:
        """Write the steps for people, under `REPAIR_HEADINGS`."""
        return [row for step in self.steps for row in step.rows()][:most]

    def notes(self) -> list[str]:
        """Describe in sentences what was repaired and what is left, with a summary."""
        return [*map(printable, self._notes())]

    def _notes(self) -> Iterator[str]:
        will = "would be done" if self.is_dry_run else "done"
        for step in self.steps[:_SHOWN_ROWS]:
            yield f"{will}: {step.message}"
        for question in self.open_questions[:_SHOWN_ROWS]:
            yield f"open: {question}"
        for damage in self.after.damages[:_SHOWN_ROWS]:
            yield f"left: {damage.message}"
            yield f"  to do: {damage.remedy}"
        yield f"before: {self.before.summary()}"
        yield f"after: {self.after.summary()}"
        if self.is_dry_run and self.steps:
            yield "nothing was changed: this was a dry run"

    def __repr__(self) -> str:
        lines = [table_text(REPAIR_HEADINGS, self.rows())] if self.steps else []
        return "\n".join([*lines, *self.notes()])

    def _repr_html_(self) -> str:
        table = table_html(REPAIR_HEADINGS, self.rows()) if self.steps else ""
        return table + "".join(f"<p>{html.escape(note)}</p>" for note in self.notes())
