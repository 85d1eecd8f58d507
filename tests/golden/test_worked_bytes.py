"""Files written out byte by byte, as the specification of the format shows them."""

import pytest

from icefloe.format.chunk_table import NativeChunk
from icefloe.format.envelope import FileType, decompress, open_envelope, seal
from icefloe.format.ids import INITIAL_SNAPSHOT_ID, ChunkId, ManifestId, NodeId, SnapshotId
from icefloe.format.manifest import ManifestFile
from icefloe.format.snapshot import decode_snapshot
from icefloe.format.transaction_log import ID_LISTS, decode_transaction_log
from tests.golden.files import GOLDEN

INITIAL_LOG = bytes.fromhex(
    """
    49 43 45 f0 9f a7 8a 43 48 55 4e 4b 69 63 2d 32 2e 33 2e 30 20 20 20 20 20 20 20 20 20 20 20 20
    20 20 20 20 02 04 01 28 b5 2f fd 20 70 35 02 00 72 c4 0e 1b c0 35 73 1b 5f 83 fe ff 4d 26 a0 33
    40 7c 95 29 cd 45 2e 72 9e 4b 59 b6 fa 3c a4 d1 0b f5 76 f7 f7 e5 39 8a e1 30 08 08 0a 84 45 3c
    75 91 2d bb aa 47 23 9a 4c 03 9e 86 39 0b 02 00 38 57 c1 99 33 03
    """
)
INITIAL_LOG_BUFFER = bytes.fromhex(
    """
        20 00 00 00 49 63 68 6b 00 00 16 00 30 00 04 00 10 00 14 00 18 00 1c 00 20 00 24 00 28 00
        2c 00 16 00 00 00 0b 1c c8 d6 78 75 80 f0 e3 3a 65 34 3c 00 00 00 34 00 00 00 2c 00 00 00
        24 00 00 00 18 00 00 00 18 00 00 00 0c 00 00 00 04 00 00 00
        """
) + bytes(32)
ONE_NATIVE_REFERENCE = bytes.fromhex(
    """
    14 00 00 00 49 63 68 6b 0c 00 18 00 08 00 14 00 00 00 07 00 0c 00 00 00 00 00 00 00 13 37 24 d8
    3b 49 7b 38 c0 7a 6c ac 04 00 00 00 01 00 00 00 0c 00 00 00 08 00 10 00 04 00 0c 00 08 00 00 00
    43 3c 2b 49 24 07 71 34 04 00 00 00 01 00 00 00 14 00 00 00 00 00 0e 00 1c 00 04 00 00 00 00 00
    14 00 08 00 0e 00 00 00 18 00 00 00 26 f9 21 9f b4 a3 4e 70 f4 cb 1a 47 d0 07 00 00 00 00 00 00
    01 00 00 00 00 00 00 00
    """
)
INITIAL_SNAPSHOT_BUFFER = bytes.fromhex(
    """
    1c 00 00 00 49 63 68 6b 14 00 2c 00 04 00 00 00 10 00 24 00 14 00 18 00 1c 00 20 00 14 00 00 00
    0b 1c c8 d6 78 75 80 f0 e3 3a 65 34 1c 00 00 00 1c 00 00 00 34 00 00 00 74 00 00 00 78 00 00 00
    89 f2 4d 81 54 60 06 00 00 00 00 00 16 00 00 00 52 65 70 6f 73 69 74 6f 72 79 20 69 6e 69 74 69
    61 6c 69 7a 65 64 00 00 01 00 00 00 0c 00 00 00 08 00 0c 00 04 00 08 00 08 00 00 00 20 00 00 00
    04 00 00 00 12 00 00 00 69 73 5f 72 6f 6f 74 00 01 09 01 01 01 01 68 02 24 01 00 00 0a 00 00 00
    5f 5f 69 63 65 63 68 75 6e 6b 00 00 00 00 00 00 00 00 00 00 00 00 00 00
    """
)


def test_the_log_of_the_initial_snapshot() -> None:
    assert len(INITIAL_LOG) == 118
    envelope = open_envelope(INITIAL_LOG)
    assert envelope.file_type is FileType.TRANSACTION_LOG
    assert envelope.spec_version == 2
    assert envelope.writer == "ic-2.3.0"
    assert decompress(envelope.payload) == INITIAL_LOG_BUFFER
    log = decode_transaction_log(INITIAL_LOG)
    assert log.id == INITIAL_SNAPSHOT_ID
    assert all(len(getattr(log, name)) == 0 for name in ID_LISTS)
    assert log.updated_chunks == {}
    assert log.moves == ()


@pytest.mark.parametrize("repository", ["v2-empty", "v2-basic", "v2-split"])
def test_it_is_the_same_in_every_repository(repository: str) -> None:
    path = GOLDEN / repository / "transactions" / "1CECHNKREP0F1RSTCMT0"
    assert path.read_bytes() == INITIAL_LOG


def test_a_manifest_with_one_native_reference() -> None:
    assert len(ONE_NATIVE_REFERENCE) == 136
    data = seal([ONE_NATIVE_REFERENCE], 136, FileType.MANIFEST, 2)
    file = ManifestFile(data)
    node = NodeId.parse("8CY2PJ940XRK8")
    assert file.id == ManifestId.parse("2CVJ9P1V95XKHG3TDJP0")
    assert list(file.nodes) == [node]
    wanted = NativeChunk(ChunkId.parse("4VWJ37XMMD771X6B393G"), 0, 2000)
    assert file.find(node, [0]) == wanted
    assert file.table(node).find([0]) == wanted
    assert file.find(node, [1]) is None


def test_the_initial_snapshot() -> None:
    assert len(INITIAL_SNAPSHOT_BUFFER) == 184
    snapshot = decode_snapshot(seal([INITIAL_SNAPSHOT_BUFFER], 184, FileType.SNAPSHOT, 2))
    assert snapshot.id == INITIAL_SNAPSHOT_ID
    assert snapshot.parent_id is None
    assert snapshot.flushed_at == 1_794_765_923_152_521
    assert snapshot.message == "Repository initialized"
    assert snapshot.metadata == {"__icechunk": {"is_root": True}}
    assert len(snapshot.nodes) == 0
    assert len(snapshot.manifests) == 0


def test_the_first_snapshot_has_a_known_name() -> None:
    assert str(INITIAL_SNAPSHOT_ID) == "1CECHNKREP0F1RSTCMT0"
    assert SnapshotId.parse("1CECHNKREP0F1RSTCMT0") == INITIAL_SNAPSHOT_ID
