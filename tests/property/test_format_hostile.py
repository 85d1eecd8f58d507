"""Arbitrary bytes, wherever they are put, raise nothing but `FormatError`."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icefloe.format.envelope import FileType
from tests.fuzz.bombs import enclosed
from tests.fuzz.corpus import corpus
from tests.fuzz.exercise import is_refused

fast = settings(max_examples=80)

each_type = pytest.mark.parametrize("file_type", FileType, ids=lambda one: one.attribute)


@each_type
@given(st.binary(max_size=200))
@fast
def test_any_bytes_as_a_file(file_type: FileType, data: bytes) -> None:
    assert is_refused(file_type, data)


@each_type
@given(st.binary(max_size=200))
@fast
def test_any_bytes_as_a_payload(file_type: FileType, data: bytes) -> None:
    header = enclosed(file_type, b"")[:39]
    assert is_refused(file_type, header + data)


words = st.lists(
    st.sampled_from([0, 4, 8, 12, 16, 0xFFFFFFFF, 0x7FFFFFFF, 0x00080006, 0x000C0008, 0x00140010])
    | st.integers(0, 2**32 - 1)
    | st.integers(0, 64),
    max_size=60,
)


@each_type
@given(words)
@fast
def test_any_words_as_a_buffer(file_type: FileType, chosen: list[int]) -> None:
    """Small numbers make plausible offsets, lengths and vtables."""
    is_refused(file_type, enclosed(file_type, b"".join(w.to_bytes(4, "little") for w in chosen)))


@each_type
@given(st.data())
@fast
def test_any_change_to_a_valid_buffer(file_type: FileType, data: st.DataObject) -> None:
    seeds = [seed for seed in corpus() if seed.file_type is file_type]
    seed = data.draw(st.sampled_from(seeds))
    buffer = bytearray(seed.buffer)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(buffer) - 1))
        buffer[at : at + 4] = data.draw(st.binary(min_size=1, max_size=4))
    is_refused(file_type, enclosed(file_type, bytes(buffer)))


@each_type
@given(st.data())
@fast
def test_any_beginning_of_a_valid_file(file_type: FileType, data: st.DataObject) -> None:
    seeds = [seed for seed in corpus() if seed.file_type is file_type]
    seed = data.draw(st.sampled_from(seeds))
    cut = data.draw(st.integers(0, len(seed.data) - 1))
    assert is_refused(file_type, seed.data[:cut])
