"""Coordinates in usual layouts are read at once, and mean what following all offsets finds."""

from collections.abc import Callable

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from icefloe.errors import FormatError
from icefloe.format.chunk_table import Coordinates
from icefloe.format.envelope import FileType, decompress, open_envelope, seal
from icefloe.format.flatbuffer_scalar import ScalarBuffer
from icefloe.format.ids import NodeId, SnapshotId
from icefloe.format.log_chunks import recognise_coordinates, spaced_coordinates
from icefloe.format.transaction_log import (
    ID_LISTS,
    TransactionLog,
    decode_transaction_log,
    encode_transaction_log,
)
from tests.unit.format.oracle import write_log

NODE = NodeId(b"12345678")


def _cells(count: int, dimensions: int) -> Coordinates:
    size = round(count ** (1 / dimensions)) + 1
    cells = np.stack(np.unravel_index(np.arange(count), (size,) * dimensions), axis=1)
    return cells.astype(np.uint32)


def _log(count: int, dimensions: int) -> bytes:
    updated = {NODE: _cells(count, dimensions)}
    return encode_transaction_log(TransactionLog(SnapshotId(bytes(12)), updated_chunks=updated))


def _log_of_others(count: int, dimensions: int) -> bytes:
    """Write a log as the usual library of flatbuffers lays it out."""
    lists: dict[str, list[NodeId]] = {name: [] for name in ID_LISTS}
    updated = {NODE: _cells(count, dimensions).tolist()}
    log = {"id": SnapshotId(bytes(12)), **lists, "updated_chunks": updated, "moves": ()}
    return write_log(log)


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


@settings(max_examples=30)
@given(counts, st.integers(1, 4))
def test_tables_at_one_distance_are_recognised(count: int, dimensions: int) -> None:
    file = _log_of_others(count, dimensions)
    payload = ScalarBuffer(_payload(file))
    [array] = payload.root().children(7)
    second = array.vector(1, 4)[0] + 4  # the vtable lies behind the first
    words = np.frombuffer(payload.data[: payload.size & ~3], "<u4")
    known = spaced_coordinates(words, payload.child_at(second), second, count - 1)
    assert known is not None
    assert known.tolist() == _outcome(file, few=0)[1:]
    assert _outcome(file, few=1) == _outcome(file, few=0)


@settings(max_examples=200)
@given(st.sampled_from([_log, _log_of_others]), counts, st.integers(1, 3), st.data())
def test_a_changed_byte_is_read_alike(
    write: Callable[[int, int], bytes], count: int, dimensions: int, data: st.DataObject
) -> None:
    payload = bytearray(_payload(write(count, dimensions)))
    for _ in range(data.draw(st.integers(1, 3))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    file = seal([bytes(payload)], len(payload), FileType.TRANSACTION_LOG, 2)
    assert _outcome(file, few=1) == _outcome(file, few=0)
