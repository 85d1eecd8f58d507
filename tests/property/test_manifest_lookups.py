"""Looking up chunks of a manifest gives the same answers however often it is done."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from icefloe.format.chunk_table import ChunkTable
from icefloe.format.columns import BytesColumn
from icefloe.format.ids import ManifestId, NodeId
from icefloe.format.manifest import ManifestFile, encode_manifest

indices = st.integers(1, 3).flatmap(
    lambda dimensions: st.sets(st.tuples(*[st.integers(0, 4)] * dimensions), min_size=1)
)


@settings(deadline=None, max_examples=60)
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
