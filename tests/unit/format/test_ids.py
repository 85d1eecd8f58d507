"""Ids as bytes and as text, and the keys made of them."""

import os
from base64 import b32encode
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe.errors import InvalidInputError
from icefloe.format import layout
from icefloe.format.ids import (
    ChunkId,
    IdPrefix,
    ManifestId,
    NodeId,
    ObjectId,
    SeriesOfIds,
    SnapshotId,
    decode_ids,
    encode_ids,
    has_repeated_node,
    id_rows,
    ids_of_rows,
    texts_of_rows,
)

PAIRS = [
    (bytes(range(12)), "000G40R40M30E209185G"),
    (bytes(12), "0" * 20),
    (b"\xff" * 12, "ZZZZZZZZZZZZZZZZZZZG"),
    (bytes.fromhex("0b1cc8d6787580f0e33a6534"), "1CECHNKREP0F1RSTCMT0"),
    (bytes.fromhex("133724d83b497b38c07a6cac"), "2CVJ9P1V95XKHG3TDJP0"),
]


@pytest.mark.parametrize(("raw", "text"), PAIRS)
def test_known_pairs(raw: bytes, text: str) -> None:
    assert str(ObjectId(raw)) == text
    assert ObjectId.parse(text).raw == raw


def test_node_ids_are_shorter() -> None:
    node = NodeId(bytes.fromhex("433c2b4924077134"))
    assert str(node) == "8CY2PJ940XRK8"
    assert NodeId.parse("8cy2pj940xrk8") == node


@pytest.mark.parametrize(
    "text", ["ooog4or40m3oe2o9l85g", "000G40R40M30E209I85G", "000G40R40M30E209185Z"]
)
def test_reading_is_lenient(text: str) -> None:
    """Look-alikes, lower case and bits beyond the last byte do no harm."""
    assert ObjectId.parse(text).raw == bytes(range(12))


@pytest.mark.parametrize(
    "text", ["", "0", "000G40R40M30E209185", "U" * 20, "0" * 21, "é" * 10, " " * 20]
)
def test_what_is_not_an_id_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="not an id"):
        SnapshotId.parse(text)


def test_wrong_lengths_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="takes 12 bytes, got 8"):
        SnapshotId(bytes(8))
    with pytest.raises(InvalidInputError, match="takes 8 bytes, got 12"):
        NodeId(bytes(12))


def test_kinds_do_not_mix() -> None:
    raw = bytes(12)
    manifest: ObjectId = ManifestId(raw)
    assert manifest != SnapshotId(raw)
    assert SnapshotId(raw) == SnapshotId(raw)
    assert repr(SnapshotId(raw)) == "SnapshotId.parse('00000000000000000000')"
    assert len({SnapshotId.random() for _ in range(100)}) == 100


def test_ids_sort_as_their_text_does() -> None:
    ids = sorted(ObjectId.random() for _ in range(200))
    assert [str(one) for one in ids] == sorted(str(one) for one in ids)


def test_columns_of_ids() -> None:
    ids = [NodeId.random() for _ in range(50)]
    rows = id_rows(NodeId, ids)
    assert rows.shape == (50, 8)
    assert ids_of_rows(NodeId, rows) == ids
    assert [text.decode() for text in encode_ids(rows)] == [str(one) for one in ids]
    assert np.array_equal(decode_ids(encode_ids(rows), 8), rows)
    assert id_rows(SnapshotId, []).shape == (0, 12)
    assert ids_of_rows(SnapshotId, np.empty((0, 12), np.uint8)) == []
    assert not has_repeated_node(rows)
    assert has_repeated_node(np.concatenate([rows, rows[7:8]]))


def test_keys() -> None:
    raw = bytes(range(12))
    text = "000G40R40M30E209185G"
    assert layout.snapshot_key(SnapshotId(raw)) == f"snapshots/{text}"
    assert layout.transaction_log_key(SnapshotId(raw)) == f"transactions/{text}"
    assert layout.manifest_key(ManifestId(raw)) == f"manifests/{text}"
    assert layout.chunk_key(ChunkId(raw)) == f"chunks/{text}"
    assert layout.branch_key("main") == "refs/branch.main/ref.json"
    assert layout.tag_key("v1") == "refs/tag.v1/ref.json"
    assert layout.tag_tombstone_key("v1") == "refs/tag.v1/ref.json.deleted"
    assert layout.backup_key("repo.1") == "overwritten/repo.1"


def test_backups_of_later_moments_sort_first() -> None:
    unique = ObjectId.parse("KX1HBB98DXT7FWBFJCE0")
    name = layout.backup_name("repo", 32_503_680_000_000 - 30_708_914_770_077, unique)
    assert name == "repo.30708914770077.KX1HBB98DXT7FWBFJCE0"
    later = layout.backup_name("repo", 1_794_765_229_924, unique)
    assert later < name
    assert (
        layout.backup_name("config.yaml", 32_503_679_999_999, unique).split(".")[2]
        == "0" * 13 + "1"
    )


def test_a_series_never_repeats_itself_in_threads() -> None:
    series = SeriesOfIds()
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda _: series.next(), range(1000)))
    assert len(set(made)) == 1000
    assert len({one.raw[:8] for one in made}) == 1
    assert SeriesOfIds().next().raw[:8] != made[0].raw[:8]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_begins_a_series_of_its_own() -> None:
    series = SeriesOfIds()
    series.next()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, series.next().raw)
        os._exit(0)
    os.waitpid(child, 0)
    theirs = os.read(reader, 12)
    os.close(reader)
    os.close(writer)
    assert theirs[:8] != series.next().raw[:8]


@pytest.mark.parametrize("width", [1, 4, 5, 8, 10, 12, 15])
@pytest.mark.parametrize("count", [0, 1, 300])
def test_columns_of_ids_are_in_base_32(width: int, count: int) -> None:
    usual, ours = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", b"0123456789ABCDEFGHJKMNPQRSTVWXYZ"
    rows = np.random.default_rng(width).integers(0, 256, (count, width), dtype=np.uint8)
    encoded = [b32encode(row.tobytes()).rstrip(b"=") for row in rows]
    texts = [text.translate(bytes.maketrans(usual, ours)) for text in encoded]
    assert encode_ids(rows).tolist() == texts
    assert texts_of_rows(rows) == [text.decode() for text in texts]


@given(st.lists(st.binary(min_size=12, max_size=12), min_size=1))
def test_ids_of_the_usual_width_are_written_as_columns_are(raw: list[bytes]) -> None:
    rows = np.frombuffer(b"".join(raw), np.uint8).reshape(-1, 12)
    assert [text.decode() for text in encode_ids(rows)] == [str(ObjectId(one)) for one in raw]
    assert {ObjectId(one) for one in raw} == {ObjectId(bytes(one)) for one in set(raw)}


@given(st.binary(min_size=12, max_size=12), st.binary(min_size=12, max_size=12), st.integers(0, 20))
def test_beginnings_of_ids_are_beginnings_of_their_texts(
    one: bytes, other: bytes, length: int
) -> None:
    ids = [SnapshotId(one), SnapshotId(other), SnapshotId(one[:6] + other[6:])]
    beginning = str(ids[0])[:length]
    prefix = IdPrefix.parse(beginning.lower())
    assert prefix is not None
    fitting = [each for each in ids if str(each).startswith(beginning)]
    assert [each for each in ids if prefix.fits(each)] == fitting
    assert prefix.rows(id_rows(SnapshotId, ids)) == fitting


@pytest.mark.parametrize("text", ["u", "1CEC-", "0" * 21, "é", "\udc80"])
def test_what_no_id_begins_with_is_no_beginning(text: str) -> None:
    assert IdPrefix.parse(text) is None
