"""Times and periods as they are written on the command line."""

import re
from datetime import UTC, datetime, timedelta
from typing import Final

import typer

_UNITS: Final = {
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
    "w": timedelta(weeks=1),
}
_PERIOD: Final = re.compile(r"(\d+)([smhdw])")

OLDER_THAN_HELP: Final = (
    "A period before now, such as 12h, 30d or 8w; a date or time such as 2026-01-31 or"
    " 2026-01-31T06:00+01:00 (UTC unless it says otherwise); or now."
)


def moment(text: str, now: datetime | None = None, *, option: str = "--older-than") -> datetime:
    """Read a moment, or a period before now.

    >>> noon = datetime(2026, 3, 31, 12, tzinfo=UTC)
    >>> moment("30d", noon).isoformat()
    '2026-03-01T12:00:00+00:00'
    >>> moment("2026-01-31").isoformat()
    '2026-01-31T00:00:00+00:00'
    """
    now = now or datetime.now(UTC)
    if text == "now":
        return now
    try:
        if found := _PERIOD.fullmatch(text):
            return now - int(found[1]) * _UNITS[found[2]]
        given = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise typer.BadParameter(
            f"{text!r} is no moment: write a period before now such as 30d or 12h, a date such as"
            " 2026-01-31, or now",
            param_hint=option,
        ) from None
    return given if given.tzinfo is not None else given.replace(tzinfo=UTC)
