"""The report of a repair: its steps, and what was wrong before and after them."""

from collections.abc import Iterator
from typing import Any, Final

from icefloe.maintenance.verify.report import AffectedArray, VerificationReport, shown_region
from icefloe.records import Record
from icefloe.reports import JsonReady, Report, plain

_SHOWN_ROWS: Final = 50


class RepairStep(JsonReady, Record):
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

    def rows(self) -> Iterator[list[object]]:
        """Write it for people, a row for each array."""
        key = self.keys[0] if self.keys else ""
        for part in self.arrays or (AffectedArray("", (), ()),):
            yield [self.kind, part.path, shown_region(part.region), key, self.kept_aside or ""]


class RepairReport(Report, Record):
    """What was wrong, what repair did about it, and what is still wrong; print it.

    In a dry run everything happened in memory: `after` is what would be.
    """

    is_dry_run: bool
    before: VerificationReport
    """What was found at first."""
    steps: tuple[RepairStep, ...]
    after: VerificationReport
    """What is left: it cannot be repaired, or was not asked for."""
    open_questions: tuple[str, ...] = ()
    """What could not be decided, and what to do about it."""

    headings = ("step", "array", "chunks", "object", "kept aside as")
    shown_rows = _SHOWN_ROWS

    @property
    def is_healthy(self) -> bool:
        """Whether nothing is wrong after the repair."""
        return self.after.is_healthy

    def to_dict(self) -> dict[str, Any]:
        """Return everything as a dictionary, ready for JSON."""
        return {
            "dry_run": self.is_dry_run,
            "before": self.before.to_dict(),
            "steps": plain(self.steps),
            "open_questions": list(self.open_questions),
            "after": self.after.to_dict(),
        }

    def _rows(self) -> Iterator[list[object]]:
        for step in self.steps:
            yield from step.rows()

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
