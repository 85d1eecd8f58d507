"""Looking up chunks of a manifest gives the same answers however often it is done."""

from itertools import product

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from icefloe.errors import FormatError
from icefloe.format.chunk_table import ChunkTable, NativeChunk, RowFinder, row_of_sorted
from icefloe.format.columns import BytesColumn
from icefloe.format.envelope import FileType, decompress, open_envelope
from icefloe.format.flatbuffer_scalar import ScalarBuffer, ScalarTable
from icefloe.format.ids import ManifestId, NodeId
from icefloe.format.manifest import ManifestFile, encode_manifest
from icefloe.format.manifest_refs import NativeRefs, read_ref

indices = st.integers(1, 3).flatmap(
    lambda dimensions: st.sets(st.tuples(*[st.integers(0, 4)] * dimensions), min_size=1)
)


@settings(max_examples=60)
@given(indices, st.lists(st.lists(st.integers(0, 5), max_size=4), max_size=40))
def test_lookups_agree_with_the_table(held: set[tuple[int, ...]], wanted: list[list[int]]) -> None:
    rows = sorted(held)
    data = BytesColumn.from_list([str(row).encode() for row in rows])
    table = ChunkTable.inlined(np.array(rows, np.uint32), data)
    node = NodeId.random()
    manifest = ManifestFile(encode_manifest(ManifestId.random(), {node: table}))
    for _ in range(3):  # the first lookups walk the buffer, later ones search decoded columns
        for index in [*rows, *map(tuple, wanted)]:
            assert manifest.find(node, index) == table.find(index)
            assert (table.find(index) is not None) is (index in held)


def native_table(rows: list[tuple[int, ...]], seed: int) -> ChunkTable:
    """Make references of which some share a chunk object, at other offsets."""
    rng = np.random.default_rng(seed)
    return ChunkTable.native(
        np.array(rows, np.uint32),
        rng.integers(0, 256, (len(rows), 12), np.uint8),
        rng.integers(1, 2**40, len(rows), np.uint64),
        rng.integers(0, 3, len(rows), np.uint64) * np.uint64(2**33),
        rng.integers(0, len(rows), len(rows), np.uint32),
    )


@settings(max_examples=60)
@given(indices, st.integers(0, 100), st.sampled_from([1, 2]))
def test_native_lookups_agree_with_the_table(
    held: set[tuple[int, ...]], seed: int, spec_version: int
) -> None:
    rows = sorted(held)
    table, node = native_table(rows, seed), NodeId.random()
    data = encode_manifest(ManifestId.random(), {node: table}, spec_version=spec_version)
    manifest = ManifestFile(data)
    for _ in range(3):
        for index in product(range(6), repeat=len(rows[0])):
            assert manifest.find(node, index) == table.find(index)


boxes = st.lists(st.tuples(st.integers(0, 2**32 - 4), st.integers(1, 3)), max_size=3)


@given(boxes, st.data())
def test_rows_are_counted_as_they_are_searched(
    box: list[tuple[int, int]], data: st.DataObject
) -> None:
    """Whether chunks fill a box or leave a gap in it."""
    ranges = [range(max(0, first - 1), first + count + 1) for first, count in box]
    full = list(product(*(range(first, first + count) for first, count in box)))
    gaps = data.draw(st.sets(st.integers(0, len(full) - 1), max_size=2))
    rows = [row for place, row in enumerate(full) if place not in gaps]
    matrix = np.array(rows, np.uint32).reshape(len(rows), len(box))
    finder = RowFinder(matrix)
    for index in product(*ranges):
        assert finder.find(index) == row_of_sorted(matrix, index)
    assert finder.find((*[0] * len(box), 0)) is None


@given(
    st.integers(1, 40),
    st.lists(st.tuples(st.integers(0, 2**20), st.integers(0, 255)), max_size=6),
)
def test_known_shapes_never_accept_what_the_careful_reader_refuses(
    count: int, damages: list[tuple[int, int]]
) -> None:
    rows: list[tuple[int, ...]] = [(index,) for index in range(count)]
    data = encode_manifest(ManifestId.random(), {NodeId.random(): native_table(rows, count)})
    sound = bytes(decompress(open_envelope(data, FileType.MANIFEST).payload))
    start, _ = ScalarBuffer(sound).root().children(1)[0].vector(1, 4)
    fields = [start + 4 * row for row in range(count)]
    damaged = bytearray(sound)
    for position, value in damages:
        damaged[position % len(damaged)] = value
    buffer = ScalarBuffer(bytes(damaged))
    natives = NativeRefs(buffer.data)
    for _ in range(2):
        for field in fields:
            quick = natives.read(field)
            try:
                table = ScalarTable(buffer, field + buffer.word(field))
                careful = read_ref(table, None)
            except FormatError:
                assert quick is None
                continue
            assert quick in (None, careful)
            if isinstance(careful, NativeChunk):
                natives.learn(table)
                if not damages:
                    assert natives.read(field) == careful
