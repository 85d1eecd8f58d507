"""Locations compressed with a dictionary: every form that may be read, and what may not."""

import numpy as np
import pytest
import zstandard

from icefloe.errors import FormatError
from icefloe.format.columns import BytesColumn
from icefloe.format.locations import (
    MAX_LOCATION_BYTES,
    LocationCompression,
    compress_locations,
    expand_locations,
)

TEXTS = [f"s3://bucket/year={2000 + n % 9}/part-{n:05d}.nc" for n in range(300)]
DICTIONARY = b"s3://bucket/year=2000/part-00000.nc"


def expand(frames: list[bytes], dictionary: bytes = DICTIONARY) -> list[bytes]:
    column = BytesColumn.from_list(frames)
    return expand_locations(column, dictionary, charge=lambda _: None).to_list()


def compressor(**options: bool) -> zstandard.ZstdCompressor:
    raw = zstandard.ZstdCompressionDict(DICTIONARY, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
    return zstandard.ZstdCompressor(dict_data=raw, **options)  # type: ignore[arg-type]


def test_round_trip_with_a_trained_dictionary() -> None:
    result = compress_locations(BytesColumn.from_strings(TEXTS), LocationCompression())
    assert result is not None
    frames, dictionary = result
    assert dictionary[:4] == bytes.fromhex("37a430ec")
    assert len(dictionary) <= 2048
    assert frames.lengths().sum() < sum(map(len, TEXTS))
    found = expand_locations(frames, dictionary, charge=lambda _: None)
    assert found.to_strings() == TEXTS
    parameters = zstandard.get_frame_parameters(frames[0])
    assert parameters.content_size == len(TEXTS[0])
    assert parameters.dict_id != 0


def test_what_does_not_lend_itself_stays_plain() -> None:
    options = LocationCompression()
    long = "s3://b/" + "x" * MAX_LOCATION_BYTES
    assert compress_locations(BytesColumn.from_strings([*TEXTS, long]), options) is None
    assert compress_locations(BytesColumn.from_strings(["a", "b"]), options) is None
    assert compress_locations(BytesColumn.empty(), options) is None


def test_frames_without_size_dictionary_id_or_with_checksum() -> None:
    frames = [
        compressor().compress(b"plain"),
        compressor(write_content_size=False).compress(b"no size"),
        compressor(write_checksum=True, write_dict_id=False).compress(b"checked"),
        compressor().compress(b"x" * 300),
        compressor().compress(b""),
    ]
    expected = [b"plain", b"no size", b"checked", b"x" * 300, b""]
    assert expand(frames) == expected
    assert expand([frames[0], *frames[2:]]) == [expected[0], *expected[2:]]
    assert expand(frames[4:]) == [b""]
    assert expand([]) == []


@pytest.mark.parametrize("size", [True, False])
def test_locations_have_a_longest_length(size: bool) -> None:
    fits = compressor(write_content_size=size).compress(b"x" * MAX_LOCATION_BYTES)
    assert expand([fits]) == [b"x" * 1024]
    beyond = compressor(write_content_size=size).compress(b"x" * (MAX_LOCATION_BYTES + 1))
    with pytest.raises(FormatError):
        expand([beyond])


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"short",
        b"not a frame at all",
        compressor().compress(b"x" * 100)[:-1],
        compressor().compress(b"cut")[:7],
        bytes.fromhex("28b52ffd e0 ffffffffffffffff 010000"),
        bytes.fromhex("28b52ffd 20 05 010000"),
    ],
)
def test_damaged_frames_are_refused(frame: bytes) -> None:
    good = compressor().compress(b"good")
    for frames in (
        [frame],
        [good, frame],
        [frame, compressor(write_content_size=False).compress(b"x")],
    ):
        with pytest.raises(FormatError):
            expand(frames)


@pytest.mark.parametrize(
    "dictionary", [b"", b"\x37\xa4\x30\xec", bytes.fromhex("37a430ec") + b"x" * 300]
)
def test_a_damaged_dictionary_is_refused(dictionary: bytes) -> None:
    result = compress_locations(BytesColumn.from_strings(TEXTS), LocationCompression())
    assert result is not None
    with pytest.raises(FormatError):
        expand(result[0].to_list()[:5], dictionary)


def test_sizes_are_charged_before_anything_expands() -> None:
    charged: list[int] = []

    def refuse(size: int) -> None:
        charged.append(size)
        raise FormatError("too much")

    frames = [
        compressor().compress(b"x" * 1000),
        compressor(write_content_size=False).compress(b"y"),
    ]
    with pytest.raises(FormatError, match="too much"):
        expand_locations(BytesColumn.from_list(frames), DICTIONARY, charge=refuse)
    assert charged == [1000 + MAX_LOCATION_BYTES]


def test_a_frame_with_another_size_than_it_announces() -> None:
    whole = bytearray(compressor().compress(b"abcdef"))
    at = bytes(whole).index(6, 4)
    whole[at] = 5
    with pytest.raises(FormatError):
        expand([bytes(whole)])
    assert np.array_equal(BytesColumn.from_list([bytes(whole)]).lengths(), [len(whole)])


@pytest.mark.parametrize(
    "rows",
    [
        [b""],
        [b"", b""],
        [b"", b"s3://bucket/a"],
        [b"s3://bucket/a", b""],
        [b"s3://bucket/a", b"s3://bucket/b", b"", b"s3://bucket/c", b"", b""],
    ],
)
def test_frames_that_expand_to_nothing(rows: list[bytes]) -> None:
    """At the end of a list they once made the bulk function of the library corrupt memory."""
    frames = [compressor().compress(row) for row in rows]
    for _ in range(50):
        assert expand(frames) == rows


@pytest.mark.parametrize("texts", [["", *TEXTS], [*TEXTS, "", ""]])
def test_empty_locations_are_compressed_too(texts: list[str]) -> None:
    result = compress_locations(BytesColumn.from_strings(texts), LocationCompression())
    assert result is not None
    frames, dictionary = result
    found = expand_locations(frames, dictionary, charge=lambda _: None)
    assert found.to_strings() == texts


def test_nothing_but_empty_locations_stays_plain() -> None:
    assert compress_locations(BytesColumn.from_list([b""] * 300), LocationCompression()) is None
