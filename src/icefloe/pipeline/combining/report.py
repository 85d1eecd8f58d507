"""Misfits and gaps: as values, as a table, as JSON."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from icefloe.errors import ErrorKind, SourceError
from icefloe.pipeline.files.facts import Kind
from icefloe.records import Record, field, replace
from icefloe.reports import JsonReady, TextPrinter, counted, object_html, table_text


class Misfit(Record, order=True):
    """Why one file does not fit.

    >>> print(Misfit("a.nc", Kind.DTYPE, "float64 instead of float32", "t2m").kind)
    dtype
    """

    url: str
    kind: Kind
    message: str
    path: str = ""
    """The array it is about; empty for the whole file."""


class Gap(Record):
    """Steps between two files that no file has."""

    dimension: str
    after: str
    before: str
    missing: int
    """About how many steps, at the usual distance."""


class Hole(Record):
    """A place between others, along all dimensions, for which there is no file."""

    variables: tuple[str, ...]
    starts: tuple[int, ...]
    lengths: tuple[int, ...]


class Coverage(Record):
    """The covered part of each dimension."""

    lengths: dict[str, int] = field(default_factory=dict)
    first: dict[str, str] = field(default_factory=dict)
    last: dict[str, str] = field(default_factory=dict)
    gaps: tuple[Gap, ...] = ()
    holes: tuple[Hole, ...] = ()
    """The first ones."""
    missing_places: int = 0
    """How many holes there are."""
    late: tuple[str, ...] = ()
    """Files that fell into place before the end of what was there."""


class Mismatch(Record, order=True):
    """A value that reads otherwise through our references than with an independent reader."""

    url: str
    path: str
    """Of the array, in the dataset."""
    chunk: tuple[int, ...]
    """Place in the grid of chunks of the dataset."""
    index: tuple[int, ...]
    """Of the value, in the file."""
    expected: str
    """What the independent reader reads."""
    got: str
    """What the references that would be committed lead to."""
    reader: str

    def __str__(self) -> str:
        return (
            f"{self.path!r} in {self.url}, chunk {list(self.chunk)}, value at {list(self.index)}:"
            f" {self.reader} reads {self.expected}, but our references lead to {self.got}"
        )


class Unchecked(Record, order=True):
    """Values that could not be compared."""

    reason: str
    path: str = ""
    """Of the array; empty for the whole file."""
    url: str = ""
    """Of the first such file."""
    files: int = 1

    def __str__(self) -> str:
        what = f"{self.path!r}" if self.path else "values"
        more = f" and {counted(self.files - 1, 'more file')}" if self.files > 1 else ""
        return f"not compared: {what} in {self.url}{more}: {self.reason}"


class CheckedValues(Record):
    """The amount of data that was compared with independent readers, and the reasons for gaps."""

    files: int = 0
    chunks: int = 0
    """Chunks, or parts of large ones."""
    values: int = 0
    readers: Mapping[str, int] = field(default_factory=dict)
    """Chunks by name of reader."""
    unchecked: tuple[Unchecked, ...] = ()
    mismatches: tuple[Mismatch, ...] = ()
    seconds: float = 0.0
    """That the comparison took, summed over files."""

    def summary(self) -> str:
        """Return one line.

        >>> CheckedValues(2, 12, 9600, {"h5py": 12}).summary()
        '9600 values in 12 chunks of 2 files compared (h5py)'
        """
        if not self.chunks:
            text = "no values compared"
        else:
            names = ", ".join(sorted(self.readers))
            text = (
                f"{counted(self.values, 'value')} in {counted(self.chunks, 'chunk')} of"
                f" {counted(self.files, 'file')} compared ({names})"
            )
        arrays = len({unchecked.path for unchecked in self.unchecked if unchecked.path})
        files = sum(unchecked.files for unchecked in self.unchecked if not unchecked.path)
        text += f", {counted(arrays, 'array')} could not be" if arrays else ""
        return f"{text}, {counted(files, 'file')} could not be" if files else text


def sum_checks(checks: Iterable[CheckedValues]) -> CheckedValues:
    """Put the checks of many files together; the same reason is kept once for each array."""
    all_checks = list(checks)
    readers: Counter[str] = Counter()
    unchecked: dict[tuple[str, str], Unchecked] = {}
    for check in all_checks:
        readers.update(check.readers)
        for item in check.unchecked:
            before = unchecked.get((item.reason, item.path))
            unchecked[item.reason, item.path] = (
                item if before is None else replace(before, files=before.files + item.files)
            )
    return CheckedValues(
        files=sum(check.files for check in all_checks),
        chunks=sum(check.chunks for check in all_checks),
        values=sum(check.values for check in all_checks),
        readers=dict(readers),
        unchecked=tuple(sorted(unchecked.values())),
        mismatches=tuple(sorted(m for check in all_checks for m in check.mismatches)),
        seconds=sum(check.seconds for check in all_checks),
    )


class Report(JsonReady, Record):
    """The result of a scan of all files.

    >>> Report(3, 2).summary()
    '2 of 3 files fit'
    """

    files: int
    used: int
    misfits: tuple[Misfit, ...] = ()
    coverage: Coverage = field(default_factory=Coverage)
    notes: tuple[str, ...] = ()
    """What was settled without asking, such as attributes that differ and were left out."""
    checked: CheckedValues | None = None
    """What was compared with independent readers; None if that was not asked for."""
    remedy: str = ""
    """What would let files fit that do not; empty if nothing does."""

    def counts(self) -> dict[str, int]:
        """Count misfits by kind.

        >>> Report(1, 0, (Misfit("a.nc", Kind.DTYPE, "float64 instead of float32"),)).counts()
        {'dtype': 1}
        """
        return dict(sorted(Counter(misfit.kind.value for misfit in self.misfits).items()))

    def by_file(self) -> dict[str, list[Misfit]]:
        """Gather misfits by file."""
        misfits: dict[str, list[Misfit]] = {}
        for misfit in sorted(self.misfits):
            misfits.setdefault(misfit.url, []).append(misfit)
        return misfits

    def table(self, most: int = 50) -> str:
        """Write misfits as lines for people, file by file."""
        rows = [(misfit.url, misfit.kind.value, misfit.message) for misfit in sorted(self.misfits)]
        lines = [table_text(("file", "kind", "what"), rows[:most])] if rows else []
        if len(rows) > most:
            lines.append(f"... and {len(rows) - most} more")
        lines.append(self.summary())
        return "\n".join(lines)

    def summary(self) -> str:
        """Return a summary in one line."""
        parts = [f"{self.used} of {counted(self.files, 'file fits', 'files fit')}"]
        if not self.files:
            parts = ["no new file"]
        if self.misfits:
            parts.append(", ".join(f"{kind}: {n}" for kind, n in self.counts().items()))
        if self.coverage.gaps:
            missing = sum(gap.missing for gap in self.coverage.gaps)
            gaps = counted(len(self.coverage.gaps), "gap")
            parts.append(f"{gaps}, about {counted(missing, 'step')} missing")
        if self.coverage.missing_places:
            parts.append(f"{counted(self.coverage.missing_places, 'place')} without a file")
        if self.checked is not None:
            parts.append(self.checked.summary())
        return "; ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {**super().to_dict(), "counts": self.counts()}

    def tables(self, most: int = 50) -> dict[str, tuple[tuple[str, ...], list[list[object]]]]:
        """Return what people look at in tables, with their headings, by the text above each."""
        misfits = sorted(self.misfits)
        rows: list[list[object]] = [[m.url, m.kind.value, m.message] for m in misfits[:most]]
        if len(misfits) > most:
            rows.append([f"… and {len(misfits) - most} more", "", ""])
        unchecked = () if self.checked is None else self.checked.unchecked
        notes = [*self.notes, *map(str, unchecked)]
        return {
            counted(len(misfits), "misfit"): (("file", "kind", "what"), rows),
            counted(len(notes), "note"): (("note",), [[note] for note in notes[:most]]),
        }

    def _repr_pretty_(self, printer: TextPrinter, _: bool) -> None:  # noqa: FBT001 - of IPython
        printer.text(self.summary())

    def _repr_html_(self) -> str:
        return object_html("pipeline.Report", {"files": self.summary()}, tables=self.tables())


class ValuesMismatchError(SourceError):
    """Values read wrongly through references; nothing was written. `checked` has the details.

    >>> ValuesMismatchError.default_kind.value
    'source-values'
    """

    default_kind = ErrorKind.SOURCE_VALUES

    def __init__(self, checked: CheckedValues) -> None:
        first, *others = checked.mismatches
        more = (
            f"\n... and {counted(len(others), 'more mismatch', 'more mismatches')}"
            if others
            else ""
        )
        super().__init__(
            f"values would be read wrongly, and nothing was written: {first}{more}\nLeave the"
            " file or the variable out (drop=...), or convert the file to another format",
            url=first.url,
        )
        self.checked = checked


class MisfitsError(SourceError):
    """Files do not fit together; nothing was written. `report` has all of them.

    >>> misfit = Misfit("a.nc", Kind.DTYPE, "float64 instead of float32")
    >>> MisfitsError(Report(3, 2, (misfit,))).report.counts()
    {'dtype': 1}
    """

    default_kind = ErrorKind.SOURCE_MISFIT

    def __init__(self, report: Report) -> None:
        first = report.misfits[0].url if report.misfits else ""
        unfit = f"{len(report.by_file())} of {counted(report.files, 'file does', 'files do')}"
        head = f"{unfit} not fit, and nothing was written"
        remedy = f"{report.remedy}. Or" if report.remedy else ""
        mend = "mend or remove them, or leave them out with on_misfit='skip'"
        advice = f"{remedy} {mend}" if remedy else mend.capitalize()
        super().__init__(f"{head}:\n{report.table(20)}\n{advice}", url=first)
        self.report = report
        self.in_short = f"{head}. {advice}"
        """The message without the list of files."""
