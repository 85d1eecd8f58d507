"""What a job did: for people, and as JSON for programs."""

import json
from collections.abc import Mapping
from typing import Any

from icefloe.pipeline.combining.report import Report
from icefloe.records import Record, asdict, field, replace


class JobReport(Record):
    """What a job did.

    >>> report = JobReport("0a", "main", "", Report(3, 2), snapshot="VY76", references=120)
    >>> print(report.summary())
    2 of 3 files fit; 120 chunks (0 bytes) in 0 manifests; committed VY76 to 'main'
    """

    job: str
    branch: str
    group: str
    scan: Report
    """What was found in the files that were parsed."""
    snapshot: str | None = None
    """The new version; None if there was nothing to commit."""
    commits: int = 0
    """More than one for a job in waves."""
    references: int = 0
    """Chunks that were recorded."""
    data_bytes: int = 0
    """What these chunks take where they are."""
    manifests: int = 0
    known: int = 0
    """Files that were ingested before, in the same state."""
    changed: tuple[str, ...] = ()
    """Files that were ingested before, and have changed since; see `on_changed`."""
    replaced: tuple[str, ...] = ()
    """Those of them that were ingested again."""
    stages: Mapping[str, float] = field(default_factory=dict)
    """Seconds by name of stage."""

    def with_commit(
        self,
        snapshot: str,
        references: int,
        data_bytes: int,
        manifests: int,
        notes: tuple[str, ...] = (),
    ) -> "JobReport":
        """Add what one more commit did."""
        new = tuple(note for note in notes if note not in self.scan.notes)
        return replace(
            self,
            scan=replace(self.scan, notes=(*self.scan.notes, *new)),
            snapshot=snapshot,
            commits=self.commits + 1,
            references=self.references + references,
            data_bytes=self.data_bytes + data_bytes,
            manifests=self.manifests + manifests,
        )

    def summary(self) -> str:
        """Return a summary in a few lines."""
        parts = [self.scan.summary()]
        if self.known:
            parts.append(f"{self.known} were there already")
        if left := len(self.changed) - len(self.replaced):
            parts.append(f"{left} have changed since and were left as they are")
        if self.replaced:
            parts.append(f"{len(self.replaced)} were replaced")
        if self.snapshot is None:
            parts.append("nothing to commit")
        else:
            parts.append(
                f"{self.references} chunks ({self.data_bytes} bytes) in {self.manifests} manifests"
            )
            parts.append(f"committed {self.snapshot} to {self.branch!r}")
        return "; ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {**asdict(self), "scan": self.scan.to_dict()}

    def to_json(self) -> str:
        """Write everything for programs."""
        return json.dumps(self.to_dict())
