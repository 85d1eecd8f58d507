"""Made-up loads: many manifests, the log written by a task, several commits."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import icefloe
from bench.synthetic_archive import CHUNK_BYTES, MadeUp, commit_made_up
from icefloe.effects import run_blocking
from icefloe.pipeline.running.job import Target
from tests.spark.archives import assert_sound

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("few_references", [0, 1_000_000])
def test_references_arrive_where_they_belong(
    spark: Any, tmp_path: Path, few_references: int
) -> None:
    load = MadeUp(files=90, chunks=1000)
    config = icefloe.RepositoryConfig.default()
    container = icefloe.VirtualChunkContainer(load.prefix, icefloe.s3_store(region="us-east-1"))
    config.set_virtual_chunk_container(container)
    storage = icefloe.local_filesystem_storage(str(tmp_path / "repository"))
    repository = icefloe.Repository.create(storage, config)
    target = Target(repository, "main", "", "made up")
    commits, _ = commit_made_up(
        spark, target, load, references_per_commit=50_000, few_references=few_references
    )
    assert [each.references for each in commits] == [50_000, 40_000]
    assert all(each.manifests > 1 for each in commits)
    assert_sound(repository)
    seen = 0
    state = repository.readonly_session("main")._session
    node = state.tree.find("/value")
    assert node is not None
    for ref in state.tree.manifests(node):
        table = run_blocking(state.context.assets.load_manifest(ref.id)).table(node.id)
        times, columns = table.coordinates.T.astype(np.int64)
        assert_array_equal(table.offsets, columns * CHUNK_BYTES)
        urls = table.locations.to_strings()
        assert [urls[row] for row in table.targets] == [load.state(n).url for n in times.tolist()]
        seen += len(table)
    assert seen == load.files * load.chunks
