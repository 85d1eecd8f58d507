"""What jobs did that made references or copied values: for people, and as JSON for programs."""

from collections.abc import Mapping

from icefloe.pipeline.combining.report import Report
from icefloe.records import Record, field, replace
from icefloe.reports import JsonReady


class JobReport(JsonReady, Record):
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


class CopyReport(JsonReady, Record):
    """What a job did that copied values.

    >>> report = CopyReport("0a", "main", "", arrays=2, objects=9, written=8, stored_bytes=4096)
    >>> print(report.summary())
    2 arrays; 8 of 9 objects hold data (4096 bytes); nothing to commit
    """

    job: str
    branch: str
    group: str
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
    manifests: int = 0
    commits: int = 0
    """More than one for a job in waves."""
    skipped_commits: int = 0
    """Of an earlier run that was broken off: these were not repeated."""
    snapshot: str | None = None
    """The new version."""
    scan: Report | None = None
    """What was found in the files, if it was files that were copied."""
    stages: Mapping[str, float] = field(default_factory=dict)
    """Seconds by name of stage."""
    notes: tuple[str, ...] = ()
    """What could not be done before the commit, such as opening it with a library."""

    def with_commit(self, done: "CopiedWave") -> "CopyReport":
        """Add what one more commit did."""
        return replace(
            self,
            commits=self.commits + 1,
            objects=self.objects + done.objects,
            written=self.written + done.written,
            stored_bytes=self.stored_bytes + done.stored_bytes,
            regions=self.regions + done.regions,
            memory_per_task=max(self.memory_per_task, done.memory_bytes),
            source_reads=self.source_reads + done.source_reads,
            manifests=self.manifests + done.manifests,
            snapshot=done.snapshot,
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
        if self.snapshot is None:
            parts.append("nothing to commit")
        else:
            parts.append(f"committed {self.snapshot} to {self.branch!r}")
        return "; ".join(parts)


class CopiedWave(Record):
    """What one commit did; see `CopyReport`."""

    snapshot: str
    objects: int
    written: int
    stored_bytes: int
    regions: int
    memory_bytes: int
    source_reads: int
    manifests: int
    notes: tuple[str, ...] = ()
