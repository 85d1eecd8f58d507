"""Other ways to combine files that do not fit: tried, so that what is said of them is true."""

from collections.abc import Iterable, Iterator, Sequence

from icefloe.errors import IcefloeError
from icefloe.pipeline.combining.combine import Combined, Existing, combine
from icefloe.pipeline.combining.copied import CopyRules
from icefloe.pipeline.combining.report import MisfitsError, Report
from icefloe.pipeline.files.facts import FileFacts
from icefloe.pipeline.files.options import CombineOptions
from icefloe.records import Record, replace
from icefloe.reports import counted


class Way(Record):
    """A way to combine files.

    >>> Way(CombineOptions(("time",)), CopyRules()).copies
    CopyRules(decode=False)
    """

    options: CombineOptions
    copies: CopyRules | None = None
    """The rules for files whose values are copied; None if files are referred to."""


class Remedy(Record):
    """A way in which more files fit."""

    way: Way
    combined: Combined

    @property
    def misfits(self) -> int:
        """Return how many files do not fit even so."""
        return len(self.combined.report.by_file())

    def words(self, asked: Way, *, may_copy: bool = False) -> str:
        """Describe what differs from the way that was asked for, with the options to give.

        With `may_copy` values are copied where it is necessary, and no option is needed for that.
        """
        parts, copies = [], self.way.copies
        if copies is not None and copies != asked.copies:
            option = (
                "copy=CopyOptions.of(decode=True)" if copies.decode else "copy=CopyOptions.of()"
            )
            unpacked = ", unpacked" if copies.decode else ""
            parts.append(f"as copies of their values{unpacked}{'' if may_copy else f' ({option})'}")
        if self.way.options.fill_missing and not asked.options.fill_missing:
            parts.append("with gaps for variables that some lack (fill_missing=True)")
        rest = f" but {counted(self.misfits, 'file')}" if self.misfits else ""
        return f"All files{rest} fit {', '.join(parts)}"


def find_remedy(
    ways: Iterable[Way],
    facts: Sequence[FileFacts],
    existing: Existing | None,
    report: Report,
) -> Remedy | None:
    """Return the first of the ways in which most files fit; None if no more fit than reported."""
    best, fewest = None, len(report.by_file())
    for way in ways:
        if not fewest:
            break
        try:
            combined = combine(facts, way.options, existing, way.copies)
        except IcefloeError:
            continue
        remedy = Remedy(way, combined)
        if remedy.misfits < fewest:
            best, fewest = remedy, remedy.misfits
    return best


def misfits_error(
    report: Report,
    facts: Sequence[FileFacts],
    options: CombineOptions,
    existing: Existing | None = None,
    copies: CopyRules | None = None,
    *,
    may_copy: bool = False,
) -> MisfitsError:
    """Return the error for files that do not fit, with the options that would help most files."""
    asked = Way(replace(options, on_misfit="fail"), copies)
    remedy = find_remedy(_other_ways(asked, existing), facts, existing, report)
    words = "" if remedy is None else remedy.words(asked, may_copy=may_copy)
    if remedy is None and existing is not None and copies is None:
        words = _words_for_references(asked, facts, existing, report)
    if remedy is not None and _is_uneven(asked, remedy, facts, existing, report):
        words += ", or by reference to chunks of different lengths (rectilinear=True)"
    return MisfitsError(replace(report, remedy=words))


def _words_for_references(
    asked: Way, facts: Sequence[FileFacts], existing: Existing, report: Report
) -> str:
    """Return how a dataset of references can become a copy that takes more files."""
    remedy = find_remedy([Way(asked.options, CopyRules())], facts, existing, report)
    if remedy is None:
        return ""
    rest = f" but {counted(remedy.misfits, 'file')}" if remedy.misfits else ""
    return (
        f"All files{rest} fit a copy: have the dataset copied in its own place"
        " (icefloe.rechunk(repository, repository, CopyOptions.of(overwrite=True))), then append"
    )


def _is_uneven(
    asked: Way,
    remedy: Remedy,
    facts: Sequence[FileFacts],
    existing: Existing | None,
    report: Report,
) -> bool:
    """Return whether as many files as with a remedy fit if chunks may have different lengths."""
    options = asked.options
    if existing is not None or asked.copies or options.rectilinear or options.gaps == "leave":
        return False
    uneven = find_remedy([Way(replace(options, rectilinear=True))], facts, None, report)
    return uneven is not None and uneven.misfits <= remedy.misfits


def _other_ways(asked: Way, existing: Existing | None) -> Iterator[Way]:
    """Yield what could help, the least change first."""
    forms = [asked.copies]
    if existing is None:
        forms += [rules for rules in copy_rules(asked.copies) if rules not in forms]
    filling = replace(asked.options, fill_missing=True)
    for rules in forms:
        if rules != asked.copies:
            yield Way(asked.options, rules)
        if not asked.options.fill_missing:
            yield Way(filling, rules)


def copy_rules(least: CopyRules | None = None) -> tuple[CopyRules, ...]:
    """Return the rules of copies that differ from files at least so much, the least change first.

    >>> [rules.decode for rules in copy_rules()]
    [False, True]
    """
    decoding = CopyRules(decode=True)
    return (decoding,) if least == decoding else (CopyRules(), decoding)
