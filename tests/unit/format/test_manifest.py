"""Manifests: layout, limits, lookups, and references that others may write."""

from typing import Any

import numpy as np
import pytest

from icefloe.errors import ErrorKind, FormatError, InvalidInputError
from icefloe.format.chunk_table import (
    ChunkKind,
    ChunkTable,
    InlineChunk,
    VirtualChunk,
    concat_tables,
)
from icefloe.format.columns import BytesColumn
from icefloe.format.envelope import FileType
from icefloe.format.locations import LocationCompression, compress_locations
from icefloe.format.manifest import MAX_APPARENT_BYTES, ManifestFile, encode_manifest
from tests.fuzz.bombs import Layout, enclosed
from tests.unit.format import oracle, samples
from tests.unit.format.samples import expanded, grid, manifest_id, node_id

NODE = node_id(1)


def encoded(table: ChunkTable, **options: Any) -> bytes:
    return encode_manifest(manifest_id(1), {NODE: table}, **options)


@pytest.mark.parametrize("spec_version", [1, 2])
def test_everything_comes_back(spec_version: int) -> None:
    tables = samples.manifest_tables()
    file = ManifestFile(encode_manifest(manifest_id(1), tables, spec_version=spec_version))
    assert file.id == manifest_id(1)
    assert file.spec_version == spec_version
    assert list(file.nodes) == sorted(tables)
    assert file.num_chunk_refs == sum(map(len, tables.values()))
    assert {node: len(table) for node, table in tables.items() if len(table)} == {
        node: len(table) for node, table in file.tables().items() if len(table)
    }
    for node, table in tables.items():
        if len(table):
            assert file.table(node) == table
            for row, (index, reference) in enumerate(oracle.references(table)):
                if row % 37 == 0:
                    assert file.find(node, index) == reference


@pytest.mark.parametrize("rows", [0, 1, 511, 512, 513, 1025])
def test_blocks_at_their_edges(rows: int) -> None:
    for table in (samples.virtual_table(rows, 5), samples.native_table(grid(rows))):
        file = ManifestFile(encoded(table))
        assert oracle.references(file.table(NODE)) == oracle.references(table)
        for row in {0, rows // 2, rows - 1} if rows else ():
            assert file.find(NODE, table.coordinates[row].tolist()) == table.ref(row)


def test_arrays_that_are_not_there() -> None:
    file = ManifestFile(encoded(samples.mixed_table()))
    assert file.find(node_id(99), (0, 0)) is None
    assert len(file.table(node_id(99))) == 0
    assert ManifestFile(encode_manifest(manifest_id(1), {})).tables() == {}


def test_coordinates_of_another_length_are_not_found() -> None:
    file = ManifestFile(encoded(samples.mixed_table()))
    for index in ((), (0,), (0, 0, 0)):
        assert file.find(NODE, index) is None


def test_locations_are_stored_once_even_across_blocks() -> None:
    table = samples.virtual_table(3000, 7, checksums=False)
    buffer = expanded(encoded(table))
    assert buffer.count(b"s3://bucket") == 7


def test_unused_targets_are_not_stored() -> None:
    table = samples.virtual_table(30, 7).take(slice(0, 3))
    assert expanded(encoded(table)).count(b"s3://bucket") == 3


def test_inline_bytes_that_rows_share_are_stored_once() -> None:
    table = ChunkTable(
        grid(2000),
        np.full(2000, ChunkKind.INLINE, np.uint8),
        np.zeros(2000, np.uint64),
        np.full(2000, 9, np.uint64),
        np.zeros(2000, np.uint32),
        inline=BytesColumn.from_list([b"<filling>"]),
    )
    data = encoded(table)
    assert expanded(data).count(b"<filling>") == 1
    decoded = ManifestFile(data).table(NODE)
    assert decoded == table
    assert len(decoded.inline) == 1


def test_lengths_beyond_the_precision_of_floats() -> None:
    length = 2**53 + 1
    native = ChunkTable.native(grid(1), np.zeros((1, 12), np.uint8), np.array([length], np.uint64))
    inline = samples.inline_table(np.array([[1]], np.uint32), [b"x"])
    decoded = ManifestFile(encoded(concat_tables([native, inline]))).table(NODE)
    assert decoded.lengths.tolist() == [length, 1]


def test_lookups_never_wear_a_manifest_out() -> None:
    """What one reading may take is taken again by the next, for as long as the file is kept."""
    coordinates = np.zeros((3000, 64), np.uint32)
    coordinates[:, 63] = np.arange(3000)
    file = ManifestFile(encoded(samples.native_table(coordinates)))
    for _ in range(120):
        assert len(file.table(NODE)) == 3000
    for _ in range(20):
        assert len(file.tables()) == 1
    for row in range(300):
        assert file.find(NODE, coordinates[row]) is not None


def test_our_reader_takes_whatever_our_writer_makes() -> None:
    """Long locations in turn: shared by many rows, none of which stand side by side."""
    locations = [f"s3://bucket/{n}/" + "x" * 4000 for n in range(2)]
    rows = 100_000
    table = ChunkTable.virtual(
        grid(rows),
        BytesColumn.from_strings(locations),
        np.zeros(rows, np.uint64),
        np.ones(rows, np.uint64),
        targets=(np.arange(rows) % 2).astype(np.uint32),
    )
    decoded = ManifestFile(encoded(table)).table(NODE)
    assert decoded.locations.to_strings() == locations
    assert np.array_equal(decoded.targets, table.targets)


def shared(rows: int, length: int, kind: ChunkKind) -> ChunkTable:
    """References that all lead to the same long string."""
    column, nothing = BytesColumn.from_list([b"x" * length]), BytesColumn.empty()
    return ChunkTable(
        grid(rows),
        np.full(rows, kind, np.uint8),
        np.zeros(rows, np.uint64),
        np.ones(rows, np.uint64),
        np.zeros(rows, np.uint32),
        locations=column if kind is ChunkKind.VIRTUAL else nothing,
        inline=column if kind is ChunkKind.INLINE else nothing,
    )


@pytest.mark.parametrize("kind", [ChunkKind.VIRTUAL, ChunkKind.INLINE])
def test_what_other_readers_would_refuse_is_not_written(kind: ChunkKind) -> None:
    with pytest.raises(InvalidInputError, match="split them over several") as caught:
        encoded(shared(2060, 2**20, kind))
    assert caught.value.kind == ErrorKind.LIMIT_EXCEEDED
    assert MAX_APPARENT_BYTES < 2**31
    assert len(ManifestFile(encoded(shared(2030, 2**20, kind))).table(NODE)) == 2030


# -- compressed locations ------------------------------------------------------------------


def test_compressed_locations_round_trip_beside_other_kinds() -> None:
    tables = samples.manifest_tables()
    data = encode_manifest(
        manifest_id(1), tables, location_compression=LocationCompression(min_num_chunks=1)
    )
    virtual = sum(int((t.kinds == ChunkKind.VIRTUAL).sum()) for t in tables.values())
    assert oracle.compressed_references(expanded(data)) == virtual
    file = ManifestFile(data)
    for node, table in tables.items():
        assert oracle.references(file.table(node)) == oracle.references(table)
    index, reference = oracle.references(tables[node_id(5)])[17]
    assert file.find(node_id(5), index) == reference


def mixed_locations(*, dictionary: bytes | None, algorithm: int | None = None) -> bytes:
    """One plain and one compressed location, an inline chunk and a native one."""
    texts = BytesColumn.from_strings([f"s3://bucket/{n:04d}" for n in range(100)])
    result = compress_locations(texts, LocationCompression())
    assert result is not None
    frames, trained = result
    layout = Layout()
    root: dict[int, bytes | str] = {0: bytes(12), 1: "arrays"}
    if dictionary is not None:
        root[2] = "dictionary"
    if algorithm is not None:
        root[3] = bytes([algorithm])
    layout.table("root", root)
    layout.links("arrays", ["array"])
    layout.table("array", {0: NODE.raw, 1: "refs"})
    layout.links("refs", ["plain", "compressed", "inline", "native", "both"])
    length = (10).to_bytes(8, "little")
    layout.table("plain", {0: "index0", 3: length, 5: "location"})
    layout.table("compressed", {0: "index1", 3: length, 8: "frame"})
    layout.table("inline", {0: "index2", 1: "bytes"})
    unused: dict[int, bytes | str] = {1: "bytes", 5: "location", 6: "etag", 7: b"time"}
    layout.table("native", {0: "index3", 3: length, 4: bytes(range(12)), **unused})
    layout.table("both", {0: "index4", 3: length, 5: "location", 8: "frame", 1: "bytes"})
    for n in range(5):
        layout.vector(f"index{n}", 1, n.to_bytes(4, "little"))
    layout.vector("location", 5, b"s3://")
    layout.vector("frame", len(frames[42]), frames[42])
    layout.vector("bytes", 3, b"abc")
    layout.vector("etag", 3, b"tag")
    used = trained if dictionary == b"trained" else dictionary or b""
    layout.vector("dictionary", len(used), used)
    return enclosed(FileType.MANIFEST, layout.finish())


def test_plain_and_compressed_locations_may_be_mixed() -> None:
    file = ManifestFile(mixed_locations(dictionary=b"trained"))
    table = file.table(NODE)
    assert table.kinds.tolist() == [2, 2, 3, 1, 2]
    expected = [
        VirtualChunk("s3://", 0, 10),
        VirtualChunk("s3://bucket/0042", 0, 10),
        InlineChunk(b"abc"),
    ]
    assert [table.ref(row) for row in range(3)] == expected
    assert table.ref(4) == expected[1], "a compressed location goes before a plain one"
    assert [file.find(NODE, (row,)) for row in range(5)] == [table.ref(row) for row in range(5)]


def test_only_virtual_chunks_have_checksums() -> None:
    file = ManifestFile(mixed_locations(dictionary=b"trained"))
    one_by_one, in_columns = (file.table(NODE, few=few) for few in (10, 0))
    assert one_by_one == in_columns
    for table in (one_by_one, in_columns):
        assert table.etag_rows is None
        assert table.last_modified is None


@pytest.mark.parametrize(("dictionary", "algorithm"), [(None, None), (None, 1), (b"trained", 0)])
def test_compressed_locations_need_their_dictionary(
    dictionary: bytes | None, algorithm: int | None
) -> None:
    file = ManifestFile(mixed_locations(dictionary=dictionary, algorithm=algorithm))
    assert file.find(NODE, (0,)) == VirtualChunk("s3://", 0, 10)
    with pytest.raises(FormatError, match="without the dictionary"):
        file.table(NODE)


def test_unknown_compression_of_locations_is_refused() -> None:
    with pytest.raises(FormatError, match="unknown compression 2"):
        ManifestFile(mixed_locations(dictionary=b"trained", algorithm=2)).tables()


# -- damage --------------------------------------------------------------------------------


def broken(ref: dict[int, bytes | str]) -> ManifestFile:
    layout = Layout()
    layout.table("root", {0: bytes(12), 1: "arrays"})
    layout.links("arrays", ["array"])
    layout.table("array", {0: NODE.raw, 1: "refs"})
    layout.links("refs", ["ref"])
    layout.table("ref", ref)
    layout.vector("index", 1, bytes(4))
    layout.vector("latin", 1, b"\xe9")
    return ManifestFile(enclosed(FileType.MANIFEST, layout.finish()))


@pytest.mark.parametrize(
    ("ref", "problem"),
    [
        ({0: "index"}, "neither native, virtual nor inline"),
        ({1: "latin"}, "required field is missing"),
        ({0: "index", 5: "latin"}, "not UTF-8"),
        ({0: "index", 5: "index", 6: "latin"}, "not UTF-8"),
    ],
)
def test_broken_references_are_refused(ref: dict[int, bytes | str], problem: str) -> None:
    file = broken(ref)
    with pytest.raises(FormatError, match=problem):
        file.table(NODE)
    with pytest.raises(FormatError, match=problem):
        file.find(NODE, (0,))


def test_an_array_listed_twice_is_refused() -> None:
    """Which of the two lists counts would be a guess."""
    layout = Layout()
    layout.table("root", {0: bytes(12), 1: "arrays"})
    layout.links("arrays", ["array", "array"])
    layout.table("array", {0: NODE.raw, 1: "refs"})
    layout.links("refs", [])
    with pytest.raises(FormatError, match="lists an array twice"):
        ManifestFile(enclosed(FileType.MANIFEST, layout.finish()))


def test_a_table_in_parts_is_the_table() -> None:
    node = node_id(3)
    numbers = np.arange(1000)
    table = ChunkTable.virtual(
        numbers.astype(np.uint32)[:, None],
        BytesColumn.from_strings([f"s3://bucket/{n // 7}.nc" for n in range(1000)]),
        numbers.astype(np.uint64),
        numbers.astype(np.uint64) + np.uint64(1),
    )
    file = ManifestFile(encode_manifest(manifest_id(1), {node: table}))
    for rows in (1, 300, 999, 1000, 5000):
        parts = list(file.table_parts(node, rows))
        assert [len(part) for part in parts[:-1]] == [rows] * (len(parts) - 1)
        assert concat_tables(parts) == table
    assert [len(part) for part in file.table_parts(node_id(4), 10)] == [0]
