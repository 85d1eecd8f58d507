"""The files that a version holds, with their state and their place, from the record of sources."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from icefloe.api.session import Session
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.pipeline.files.sources import compile_glob
from icefloe.pipeline.holdings.axis import Axis
from icefloe.pipeline.holdings.coverage import late_rows, read_axis, read_records
from icefloe.pipeline.holdings.records import RecordedFile, SourceRecord

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class HeldFile:
    """One file of a dataset."""

    url: str
    group: str
    start: int
    """Its first step along the first dimension that files join along."""
    length: int
    first: str
    """The coordinate there."""
    last: str
    size: int | None
    etag: str | None
    modified: datetime | None
    """With etag and size, the state that was ingested."""
    ingested: datetime | None
    """When it first came."""
    is_late: bool
    """Whether it came in a later commit than something behind it."""
    variables: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Give everything as plain values."""
        return {
            "url": self.url,
            "group": self.group,
            "start": self.start,
            "length": self.length,
            "first": self.first,
            "last": self.last,
            "size": self.size,
            "etag": self.etag,
            "modified": None if self.modified is None else self.modified.isoformat(),
            "ingested": None if self.ingested is None else self.ingested.isoformat(),
            "is_late": self.is_late,
            "variables": list(self.variables),
        }


def read_sources(
    session: Session, group: str | None = None, *, like: str | None = None
) -> list[HeldFile]:
    """List the files that the datasets of a version hold, or only that of one group.

    They come in the order of their places. `like` is a glob over whole URLs: `*` stays within a
    segment, `**` does not; without any slash it is compared with the last segment alone.
    """
    wanted = None if like is None else _matcher(like)
    return [
        held
        for each, record in read_records(session, group)
        for held in _held(each, record, read_axis(session, each, record), wanted)
    ]


def _matcher(like: str) -> re.Pattern[str]:
    try:
        return compile_glob(like if "/" in like else f"**/{like}")
    except re.error as error:
        raise InvalidInputError(
            f"{like!r} is not a glob that can be understood: {error}", ErrorKind.BAD_PREFIX
        ) from None


def _held(
    group: str, record: SourceRecord, axis: Axis, wanted: re.Pattern[str] | None
) -> Iterator[HeldFile]:
    families: dict[str, list[RecordedFile]] = {}
    for each in record.files:
        families.setdefault(each.variables, []).append(each)
    rows = [
        (each, late)
        for files in families.values()
        for each, late in zip(files, late_rows(files).tolist(), strict=True)
        if wanted is None or wanted.fullmatch(each.state.url)
    ]
    for each, late in sorted(rows, key=lambda row: (row[0].start, row[0].state.url)):
        yield _shown(group, axis, each, is_late=late)


def _shown(group: str, axis: Axis, file: RecordedFile, *, is_late: bool) -> HeldFile:
    is_inside = 0 <= file.start < file.start + file.length <= axis.length
    return HeldFile(
        file.state.url,
        group,
        file.start,
        file.length,
        axis.label(file.start) if is_inside else "",
        axis.label(file.start + file.length - 1) if is_inside else "",
        file.state.size,
        file.state.etag,
        _moment(file.state.modified),
        _moment(file.ingested),
        is_late,
        tuple(file.variables.split()),
    )


def _moment(microseconds: int | None) -> datetime | None:
    if microseconds is None:
        return None
    try:
        return _EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:  # nothing that a clock has shown
        return None
