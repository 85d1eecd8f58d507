"""The header of every file, and the limits of what its frame may expand to."""

import random

import pytest
import zstandard

from icefloe.errors import ErrorKind, FormatError
from icefloe.format.envelope import (
    FREE_EXPANSION_BYTES,
    HEADER_BYTES,
    MAGIC,
    MAX_EXPANSION,
    WRITER_NAME,
    FileType,
    decompress,
    object_attributes,
    open_envelope,
    seal,
)

SEALED = seal([b"pay", b"load"], 7, FileType.MANIFEST, 2)


def changed(at: int, value: int) -> bytes:
    data = bytearray(SEALED)
    data[at] = value
    return bytes(data)


def test_what_is_sealed_can_be_opened() -> None:
    envelope = open_envelope(SEALED, FileType.MANIFEST)
    assert envelope.file_type is FileType.MANIFEST
    assert envelope.spec_version == 2
    assert envelope.writer == WRITER_NAME
    assert decompress(envelope.payload) == b"payload"


def test_the_header_has_its_places() -> None:
    assert SEALED[:12] == MAGIC == bytes.fromhex("494345f09fa78a4348554e4b")
    assert SEALED[12:36] == WRITER_NAME.encode().ljust(24)
    assert SEALED[36:39] == bytes([2, 2, 1])
    assert HEADER_BYTES == 39
    parameters = zstandard.get_frame_parameters(SEALED[39:])
    assert parameters.content_size == 7
    assert not parameters.has_checksum
    assert parameters.dict_id == 0


@pytest.mark.parametrize(
    ("data", "problem", "kind"),
    [
        (b"", "not an Icechunk metadata file", ErrorKind.INVALID_FILE_FORMAT),
        (SEALED[:38], "not an Icechunk metadata file", ErrorKind.INVALID_FILE_FORMAT),
        (changed(0, 0), "not an Icechunk metadata file", ErrorKind.INVALID_FILE_FORMAT),
        (changed(36, 3), "upgrade icefloe", ErrorKind.UNSUPPORTED_SPEC_VERSION),
        (changed(36, 0), "spec version 0", ErrorKind.UNSUPPORTED_OPERATION_FOR_VERSION),
        (changed(37, 0), "unknown file type 0", ErrorKind.INVALID_FILE_FORMAT),
        (changed(37, 3), "unknown file type 3", ErrorKind.INVALID_FILE_FORMAT),
        (changed(37, 1), "expected a manifest file", ErrorKind.INVALID_FILE_FORMAT),
        (changed(38, 0), "unknown compression 0", ErrorKind.INVALID_FILE_FORMAT),
        (changed(38, 2), "unknown compression 2", ErrorKind.INVALID_FILE_FORMAT),
    ],
)
def test_bad_headers_are_refused(data: bytes, problem: str, kind: ErrorKind) -> None:
    with pytest.raises(FormatError, match=problem) as caught:
        open_envelope(data, FileType.MANIFEST)
    assert caught.value.kind == kind


def test_repo_objects_begin_with_spec_2() -> None:
    data = seal([b""], 0, FileType.REPO_INFO, 1)
    with pytest.raises(FormatError, match="cannot be of spec version 1") as caught:
        open_envelope(data)
    assert caught.value.kind == ErrorKind.UNSUPPORTED_OPERATION_FOR_VERSION


@pytest.mark.parametrize("padding", [b" ", b"\0"])
def test_any_writer_is_read(padding: bytes) -> None:
    data = SEALED[:12] + b"ic-9.9.9".ljust(24, padding) + SEALED[36:]
    assert open_envelope(data).writer == "ic-9.9.9"
    strange = SEALED[:12] + b"\xff" * 24 + SEALED[36:]
    assert open_envelope(strange).writer == "�" * 24


LARGE = random.Random(7).randbytes(100_000) * 60
"""More than is expanded into `bytes`."""


def frame(data: bytes, *, size: bool = True, checksum: bool = False) -> bytes:
    return zstandard.ZstdCompressor(write_content_size=size, write_checksum=checksum).compress(data)


@pytest.mark.parametrize("size", [True, False])
@pytest.mark.parametrize("checksum", [True, False])
@pytest.mark.parametrize(
    "data",
    [b"", b"x", bytes(3_000_000), bytes(range(256)) * 5000, LARGE, bytes(2**23)],
    ids=["empty", "byte", "zeros", "short", "large", "large-zeros"],
)
def test_frames_with_and_without_size_and_checksum(size: bool, checksum: bool, data: bytes) -> None:
    payload = frame(data, size=size, checksum=checksum)
    assert decompress(memoryview(payload)) == data


@pytest.mark.parametrize("size", [True, False])
@pytest.mark.parametrize("data", [bytes(range(256)) * 9, LARGE], ids=["short", "large"])
def test_damaged_frames_are_refused(size: bool, data: bytes) -> None:
    good = frame(data, size=size, checksum=True)
    flipped = bytearray(good)
    flipped[-1] ^= 1
    empty, skippable = frame(b""), b"\x50\x2a\x4d\x18" + bytes(4)
    cut = (b"", good[:3], good[:-1], good[:-5], good[: len(good) // 2])
    followed = (good + good, good + b"x", good + empty, good + skippable)
    for bad in (*cut, *followed, bytes(flipped)):
        with pytest.raises(FormatError):
            decompress(memoryview(bad))


def test_expansion_is_limited_by_ratio_and_absolutely() -> None:
    small = frame(bytes(FREE_EXPANSION_BYTES + 1))
    assert MAX_EXPANSION * len(small) < FREE_EXPANSION_BYTES
    with pytest.raises(FormatError, match="refused as damaged or hostile"):
        decompress(memoryview(small))
    assert len(decompress(memoryview(frame(bytes(FREE_EXPANSION_BYTES))))) == FREE_EXPANSION_BYTES
    for size in (True, False):
        with pytest.raises(FormatError, match="over the limit of 1000"):
            decompress(memoryview(frame(bytes(5000), size=size)), max_bytes=1000)


def test_attributes_for_object_stores() -> None:
    assert object_attributes(FileType.TRANSACTION_LOG, 1) == {
        "icspecver": "1",
        "icclient": WRITER_NAME,
        "icfiletype": "transaction-log",
        "iccompalg": "zstd",
    }
    names = [one.attribute for one in FileType]
    assert names == ["snapshot", "manifest", "transaction-log", "repo-info"]
