"""Times as users see them: `datetime` in UTC."""

from datetime import UTC, datetime, timedelta
from typing import Final

import numpy as np
from numpy.typing import NDArray

from icefloe.errors import ErrorKind, FormatError, WrongTypeError

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST: Final = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)


def to_datetime(microseconds: int) -> datetime:
    """Turn stored microseconds since 1970 into a time in UTC."""
    try:
        return _EPOCH + timedelta(microseconds=microseconds)
    except OverflowError as error:
        raise FormatError(
            f"a stored time is {microseconds} microseconds after 1970, later than any date",
            ErrorKind.DESERIALIZATION,
        ) from error


def to_datetimes(microseconds: NDArray[np.uint64]) -> list[datetime]:
    """Turn many stored times into times in UTC."""
    if len(microseconds) == 0 or microseconds.max() > _LATEST:
        return [to_datetime(moment) for moment in microseconds.tolist()]
    spans: list[timedelta] = microseconds.view("m8[us]").tolist()
    return [_EPOCH + span for span in spans]


def to_microseconds(moment: datetime, parameter: str) -> int:
    """Turn a time with a time zone into microseconds since 1970."""
    if not isinstance(moment, datetime):
        raise WrongTypeError(
            f"{parameter} must be a datetime with a time zone, got {type(moment).__name__}",
            ErrorKind.INVALID_CONFIG,
        )
    if moment.tzinfo is None:
        raise WrongTypeError(
            f"{parameter} must be a datetime with a time zone, such as datetime.now(UTC): "
            f"{moment.isoformat()} could mean several moments",
            ErrorKind.INVALID_CONFIG,
        )
    return (moment - _EPOCH) // timedelta(microseconds=1)
