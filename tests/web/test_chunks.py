"""Counts of chunks, and the cells of the drawn grid."""

from itertools import product

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

import icefloe
from icefloe.format.nodes import ArrayNode
from icefloe.pipeline.coverage import Axis
from icefloe.web import chunks
from icefloe.web.chunks import Cells
from icefloe.web.nodes import find_node
from icefloe.web.pictures import Dimension
from icefloe.web.regions import describe_cells
from icefloe.web.versions import Viewed


@pytest.mark.parametrize("arrays_per_manifest", [1, 2])
def test_many_chunks_are_counted_by_the_list_of_manifests(
    monkeypatch: pytest.MonkeyPatch, arrays_per_manifest: int
) -> None:
    config = icefloe.RepositoryConfig.default()
    manifest_set = icefloe.ManifestSet("default", arrays_per_manifest=arrays_per_manifest)
    config.chunk_manifests = icefloe.ChunkManifestsConfig([manifest_set])
    repository = icefloe.Repository.create(icefloe.in_memory_storage(), config)
    with repository.transaction("main", message="data") as store:
        for name, length in {"large": 20, "small": 3}.items():
            array = zarr.create_array(store, name=name, shape=length, chunks=1, dtype="i4")
            array[:] = np.arange(length) + 1
    version = Viewed(repository, "x", "x").version(None)
    node = find_node(version, "/large")
    assert isinstance(node, ArrayNode)
    assert chunks.read_counts(version, node).inline == 20
    monkeypatch.setattr(chunks, "MOST_COUNTED", 10)
    counts = chunks.read_counts(version, node)
    if arrays_per_manifest == 1:
        assert (counts.listed, counts.present, counts.is_complete) == (20, 0, False)
    else:  # the manifest has 23 references, and nobody knows whose without reading it
        assert (counts.listed, counts.present, counts.is_complete) == (None, 20, True)


@given(st.lists(st.integers(1, 250), max_size=3).map(tuple), st.data())
def test_cells_stand_for_all_chunks(grid: tuple[int, ...], data: st.DataObject) -> None:
    cells = Cells.of(grid)
    assert cells.room().shape == cells.shape
    assert cells.room().sum() == np.prod(grid, dtype=np.int64)
    some = data.draw(st.lists(st.tuples(*(st.integers(0, n - 1) for n in grid)), max_size=20))
    counts = cells.count(np.array(some, np.uint32).reshape(len(some), len(grid)))
    assert counts.shape == cells.shape
    assert counts.sum() == len(some)


def test_no_cell_counts_more_chunks_than_it_stands_for() -> None:
    cells = Cells.of((5, 200))
    every = np.array(list(product(range(5), range(200))), np.uint32)
    np.testing.assert_array_equal(cells.count(every), cells.room())


def test_a_drawn_grid_in_regions() -> None:
    cells = Cells.of((200, 3))
    kinds = {"native": cells.count(np.array([[0, 1], [1, 1], [199, 2]], np.uint32))}
    dimensions = [
        Dimension("t", 400, None, "", "", Axis("t", 400)),
        Dimension("x", 30, np.arange(30.0), "m", "", Axis("x", 30, np.arange(30.0))),
    ]
    listed, left_out = describe_cells(cells, kinds, dimensions, (2, 10))
    assert [(region.spans, region.chunks) for region in listed] == [
        ((("0 to 2", ""), ("1", "10 to 19 m")), 2),
        ((("198 to 199", ""), ("2", "20 to 29 m")), 1),
    ]
    assert left_out == 0
    checked = {"missing": np.indices(cells.shape).sum(axis=0) % 2}
    listed, left_out = describe_cells(cells, checked, dimensions, None)
    assert (len(listed), left_out) == (100, 96 * 3 // 2 - 100)
