"""What a job did: for people, and as JSON for programs."""

from collections.abc import Mapping
from typing import Self

from icefloe.pipeline.combining.report import Report
from icefloe.pipeline.copying.layouts import Regions
from icefloe.records import Record, field, replace
from icefloe.reports import JsonReady


class Committed(Record, kw_only=True):
    """What one commit did."""

    snapshot: str
    references: int
    data_bytes: int
    manifests: int
    notes: tuple[str, ...] = ()


class AnyReport(JsonReady, Record, kw_only=True):
    """What all jobs report."""

    job: str
    branch: str
    group: str
    snapshot: str | None = None
    """The new version; None if there was nothing to commit."""
    commits: int = 0
    """More than one for a job in waves."""
    manifests: int = 0
    scan: Report | None = None
    """What was found in the files, if the sources are files."""
    stages: Mapping[str, float] = field(default_factory=dict)
    """Seconds by name of stage."""

    def _added(self, done: Committed, **counts: int) -> Self:
        """Add what one more commit did."""
        return replace(
            self,
            snapshot=done.snapshot,
            commits=self.commits + 1,
            manifests=self.manifests + done.manifests,
            **{name: getattr(self, name) + count for name, count in counts.items()},
        )

    def _ending(self) -> str:
        if self.snapshot is None:
            return "nothing to commit"
        return f"committed {self.snapshot} to {self.branch!r}"


class JobReport(AnyReport, kw_only=True):
    """What a job did that refers to files.

    >>> from icefloe.pipeline import Report
    >>> report = JobReport(
    ...     job="0a", branch="main", group="", scan=Report(3, 2), snapshot="VY76", references=120
    ... )
    >>> print(report.summary())
    2 of 3 files fit; 120 chunks (0 bytes) in 0 manifests; committed VY76 to 'main'
    """

    scan: Report
    """What was found in the files that were parsed."""
    references: int = 0
    """Chunks that were recorded."""
    data_bytes: int = 0
    """What these chunks take where they are."""
    known: int = 0
    """Files that were ingested before, in the same state."""
    changed: tuple[str, ...] = ()
    """Files that were ingested before, and have changed since; see `on_changed`."""
    replaced: tuple[str, ...] = ()
    """Those of them that were ingested again."""

    def with_commit(self, done: Committed) -> Self:
        """Add what one more commit did."""
        notes = tuple(dict.fromkeys((*self.scan.notes, *done.notes)))
        added = self._added(done, references=done.references, data_bytes=done.data_bytes)
        return replace(added, scan=replace(self.scan, notes=notes))

    def summary(self) -> str:
        """Return a summary in one line."""
        parts = [self.scan.summary()]
        if self.known:
            parts.append(f"{self.known} were there already")
        if left := len(self.changed) - len(self.replaced):
            parts.append(f"{left} have changed since and were left as they are")
        if self.replaced:
            parts.append(f"{len(self.replaced)} were replaced")
        if self.snapshot is not None:
            parts.append(
                f"{self.references} chunks ({self.data_bytes} bytes) in {self.manifests} manifests"
            )
        return "; ".join([*parts, self._ending()])


class CopyReport(AnyReport, kw_only=True):
    """What a job did that copied values.

    >>> report = CopyReport(
    ...     job="0a", branch="main", group="", arrays=2, objects=9, written=8, stored_bytes=4096
    ... )
    >>> print(report.summary())
    2 arrays; 8 of 9 objects hold data (4096 bytes); nothing to commit
    """

    arrays: int = 0
    values_bytes: int = 0
    """What the values take when they are not compressed."""
    objects: int = 0
    """Chunks or shards that the arrays have."""
    written: int = 0
    """Those of them that were stored; the others hold nothing but the fill value."""
    stored_bytes: int = 0
    """What was stored."""
    regions: int = 0
    """In how many pieces the work was done."""
    memory_per_task: int = 0
    """What a task needed at most by plan, in bytes, besides Python itself."""
    source_reads: int = 0
    """How many chunks of the source were read, by plan; some more than once."""
    skipped_commits: int = 0
    """Of an earlier run that was broken off: these were not repeated."""
    notes: tuple[str, ...] = ()
    """What could not be done before the commit, such as opening it with a library."""

    def with_commit(self, done: Committed, regions: Regions) -> Self:
        """Add what one more commit did, which copied these regions."""
        added = self._added(
            done,
            objects=regions.objects,
            written=done.references,
            stored_bytes=done.data_bytes,
            regions=len(regions),
            source_reads=sum(plan.reads for plan in regions.plans),
        )
        return replace(
            added,
            memory_per_task=max(self.memory_per_task, regions.memory_bytes),
            notes=tuple(dict.fromkeys((*self.notes, *done.notes))),
        )

    def summary(self) -> str:
        """Return a summary in one line."""
        parts = [] if self.scan is None else [self.scan.summary()]
        parts.append(f"{self.arrays} arrays")
        parts.append(
            f"{self.written} of {self.objects} objects hold data ({self.stored_bytes} bytes)"
        )
        if self.skipped_commits:
            parts.append(f"{self.skipped_commits} commits were there already")
        return "; ".join([*parts, self._ending()])
