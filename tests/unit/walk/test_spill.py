"""Sets and maps of any size: on disk beyond a limit, with the same contents."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from icefloe.walk.spill import KeyedColumn, KeySet, largest_of_each


def test_many_ids_go_to_disk() -> None:
    with KeySet(max_bytes=1 << 16) as known:
        keys = np.arange(0, 200_000, 2, dtype=np.uint64)
        for part in np.array_split(keys, 50):
            known.add(part)
        assert known.contains(keys).all()
        assert not known.contains(keys + np.uint64(1)).any()
        assert known.spilled_bytes > 0
        assert len(known.add_new(np.array([1, 1, 2, 3], np.uint64))) == 2
    assert known.spilled_bytes == 0


@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 99))), st.integers(16, 200))
def test_columns_on_disk_hold_what_those_in_memory_do(
    rows: list[tuple[int, int]], max_bytes: int
) -> None:
    keys = np.array([key for key, _ in rows], np.uint64)
    values = np.array([value for _, value in rows], np.uint64)
    with KeyedColumn(max_bytes) as column:
        for first in range(0, len(rows), 3):
            column.add(keys[first : first + 3], values[first : first + 3])
        found = [largest_of_each(*shard) for shard in column.shards()]
    largest: dict[int, int] = {}
    for key, value in rows:
        largest[key] = max(value, largest.get(key, 0))
    pairs = [pair for some in found for pair in zip(*(c.tolist() for c in some), strict=True)]
    assert pairs == sorted(largest.items())
