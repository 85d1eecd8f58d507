"""Made-up loads: many manifests, the log written by a task, several commits."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import icefloe
from icefloe.spark.committing import Target
from icefloe.spark.synthetic import CHUNK_BYTES, MadeUp, commit_made_up
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
    session = repository.readonly_session("main")
    assert session.store.session is session
    table = session.chunk_references("value")
    assert table.num_rows == 90_000
