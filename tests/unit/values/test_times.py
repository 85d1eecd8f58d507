"""Times of many rows are those of each row."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe.errors import FormatError
from icefloe.values.times import to_datetime, to_datetimes

LATEST = (datetime.max.replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(
    microseconds=1
)


@given(st.lists(st.integers(0, LATEST)))
def test_columns_are_read_as_each_time_is(times: list[int]) -> None:
    moments = to_datetimes(np.array(times, np.uint64))
    assert moments == [to_datetime(time) for time in times]
    assert all(moment.tzinfo is UTC for moment in moments)


@pytest.mark.parametrize("late", [LATEST + 1, 2**63 - 1, 2**63, 2**64 - 1])
def test_times_later_than_any_date_are_refused(late: int) -> None:
    with pytest.raises(FormatError, match=f"a stored time is {late} microseconds after 1970"):
        to_datetimes(np.array([0, late], np.uint64))
