"""Advice for files that do not fit, which is true: they are combined again as it says."""

from collections.abc import Iterator, Sequence

from icefloe.errors import IcefloeError
from icefloe.pipeline.combining.combine import Existing, combine
from icefloe.pipeline.combining.copied import CopyRules
from icefloe.pipeline.combining.report import MisfitsError, Report
from icefloe.pipeline.files.facts import FileFacts
from icefloe.pipeline.files.options import CombineOptions
from icefloe.records import Record, replace
from icefloe.reports import counted


class _Remedy(Record):
    words: str
    options: CombineOptions
    copies: CopyRules | None


def misfits_error(
    report: Report,
    facts: Sequence[FileFacts],
    options: CombineOptions,
    existing: Existing | None = None,
    copies: CopyRules | None = None,
) -> MisfitsError:
    """Return the error for files that do not fit, with the option that would help most files."""
    return MisfitsError(replace(report, remedy=_found(report, facts, options, existing, copies)))


def _found(
    report: Report,
    facts: Sequence[FileFacts],
    options: CombineOptions,
    existing: Existing | None,
    copies: CopyRules | None,
) -> str:
    best, fewest = "", len(report.by_file())
    for remedy in _remedies(options, existing, copies):
        left = _left(remedy, facts, existing)
        if left < fewest:
            rest = "" if not left else f" but {counted(left, 'file')}"
            best, fewest = f"All files{rest} fit {remedy.words}", left
    if best and existing is None and copies is None and options.gaps != "leave":
        uneven = replace(options, on_misfit="fail", rectilinear=True)
        words = "by reference to chunks of different lengths (rectilinear=True)"
        if _left(_Remedy(words, uneven, None), facts, existing) <= fewest:
            best += f", or {words}"
    return best


def _left(remedy: _Remedy, facts: Sequence[FileFacts], existing: Existing | None) -> int:
    """Return how many files a remedy leaves that do not fit."""
    try:
        outcome = combine(facts, remedy.options, existing, remedy.copies)
    except IcefloeError:
        return len(facts) + 1
    return len(outcome.report.by_file())


def _remedies(
    options: CombineOptions, existing: Existing | None, copies: CopyRules | None
) -> Iterator[_Remedy]:
    """Yield what could help, the least change first."""
    tried = replace(options, on_misfit="fail")
    filling = replace(tried, fill_missing=True)
    decoding = CopyRules(decode=True)
    forms: list[tuple[str, CopyRules | None]] = [("", copies)]
    if existing is None and copies is None:
        forms.append(("as copies of their values (copy=CopyOptions.of())", CopyRules()))
    if existing is None and copies != decoding:
        words = "as copies of their values, unpacked (copy=CopyOptions.of(decode=True))"
        forms.append((words, decoding))
    for words, rules in forms:
        if words:
            yield _Remedy(words, tried, rules)
        if not options.fill_missing:
            more = "with gaps for variables that some lack (fill_missing=True)"
            yield _Remedy(f"{words}, {more}" if words else more, filling, rules)
