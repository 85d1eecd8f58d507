"""Coordinates in our own layout are read at once, and mean what following all offsets finds."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from icefloe.errors import FormatError
from icefloe.format.envelope import FileType, decompress, open_envelope, seal
from icefloe.format.flatbuffer_scalar import ScalarBuffer
from icefloe.format.ids import NodeId, SnapshotId
from icefloe.format.log_chunks import recognise_coordinates
from icefloe.format.transaction_log import (
    TransactionLog,
    decode_transaction_log,
    encode_transaction_log,
)

NODE = NodeId(b"12345678")


def _log(count: int, dimensions: int) -> bytes:
    size = round(count ** (1 / dimensions)) + 1
    cells = np.stack(np.unravel_index(np.arange(count), (size,) * dimensions), axis=1)
    log = TransactionLog(SnapshotId(bytes(12)), updated_chunks={NODE: cells.astype(np.uint32)})
    return encode_transaction_log(log)


def _payload(file: bytes) -> bytes:
    return bytes(decompress(open_envelope(file, FileType.TRANSACTION_LOG).payload))


def _outcome(file: bytes, *, few: int) -> list[list[int]] | str:
    try:
        found = decode_transaction_log(file, few=few)
    except FormatError:
        return "refused"
    return found.updated_chunks[NODE].tolist() if NODE in found.updated_chunks else "none"


counts = st.one_of(st.integers(33, 600), st.sampled_from([511, 512, 513, 1024, 1500]))


@settings(max_examples=30)
@given(counts, st.integers(1, 4))
def test_our_own_layout_is_recognised(count: int, dimensions: int) -> None:
    file = _log(count, dimensions)
    payload = _payload(file)
    [array] = ScalarBuffer(payload).root().children(7)
    start, found = array.vector(1, 4)
    words = np.frombuffer(payload[: len(payload) & ~3], "<u4")
    known = recognise_coordinates(words, start, found)
    assert known is not None
    assert known.tolist() == _outcome(file, few=0)


@settings(max_examples=150)
@given(counts, st.integers(1, 3), st.data())
def test_a_changed_byte_is_read_alike(count: int, dimensions: int, data: st.DataObject) -> None:
    payload = bytearray(_payload(_log(count, dimensions)))
    for _ in range(data.draw(st.integers(1, 3))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    file = seal([bytes(payload)], len(payload), FileType.TRANSACTION_LOG, 2)
    assert _outcome(file, few=1) == _outcome(file, few=0)
