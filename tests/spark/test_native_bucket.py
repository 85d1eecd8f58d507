"""Copies between repositories in a bucket of a real server, and what Spark keeps of its keys."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.storage import ObjectStore

from examples.archives import write_archive
from icefloe.spark import StageProgress, rechunk
from icefloe.storage.storage import open_foreign_client
from tests.cluster.places import (
    assert_not_told,
    contents,
    copy_files,
    copy_site,
    on_s3,
    upload,
)
from tests.spark.archives import assert_complete
from tests.spark.conftest import wait_for_events
from tests.spark.copies import assert_clean, assert_same_values, group_of, used_chunks
from tests.support.servers import S3Endpoint

pytestmark = [pytest.mark.spark, pytest.mark.server]


class Onlooker:
    """Reads what lies in Spark's folders while values are copied: variables go when a job ends."""

    def __init__(self, spark: Any) -> None:
        self.variables = Path(spark.sparkContext._temp_dir)
        self.blocks = Path(spark.sparkContext.getConf().get("spark.local.dir"))
        self.folders = (self.variables.parent, self.blocks)
        self.seen: dict[Path, bytes] = {}

    def __call__(self, each: StageProgress) -> None:
        if each.stage == "copy":
            self.seen |= contents(*self.folders)


def test_files_to_chunks_to_packs(
    spark: Any, event_logs: Path, s3_endpoint: S3Endpoint, prefix: str, tmp_path: Path
) -> None:
    archive = write_archive(tmp_path / "data", 6, steps=2)
    source, target = (on_s3(s3_endpoint, f"{prefix}/{name}") for name in ("source", "target"))
    upload(source, archive)
    repository, other = source.create(), target.create()
    onlooker, settings = Onlooker(spark), spark.conf.getAll
    report = copy_files(spark, source, on_progress=onlooker)
    assert (report.written, report.objects) == (2 * 3 + 3, 2 * 3 + 3)
    assert_complete(repository.readonly_session("main"), archive)
    assert len(used_chunks(repository)) == 2 * 3
    assert_clean(repository)
    copy_site(spark, source, target, compressors=None, packing=True, on_progress=onlooker)
    temperature: Any = group_of(other)["temperature"]
    assert temperature.chunks == (12, 5, 5)
    assert_same_values(group_of(other), group_of(repository))
    assert_complete(other.readonly_session("main"), archive)
    assert 0 < len(used_chunks(other)) < 2 * 3 * 4  # in packs
    assert_clean(other)
    assert spark.conf.getAll == settings
    for folder in (onlooker.variables, onlooker.blocks):
        assert any(path.is_relative_to(folder) for path in onlooker.seen)
    wait_for_events(spark)
    logged = contents(event_logs)
    assert any(b"copy: 27 objects" in content for content in logged.values())
    assert_not_told(s3_endpoint.secret_access_key, {**logged, **onlooker.seen})
    assert_not_told(s3_endpoint.secret_access_key, contents(*onlooker.folders))


def test_a_hierarchy_of_shards(spark: Any, s3_endpoint: S3Endpoint, prefix: str) -> None:
    site = on_s3(s3_endpoint, prefix)
    repository = site.create()
    storage = site.access.storages[site.prefix]
    root = zarr.open_group(ObjectStore(open_foreign_client(storage)), path="model.zarr")
    names = ["time", "x"]
    values = np.random.default_rng(7).integers(0, 2**31, (24, 60), np.int32)
    values[6:12] = 0  # a shard that is not there
    root.create_array("a", data=values, chunks=(2, 20), shards=(6, 60), dimension_names=names)
    url = f"{site.prefix}model.zarr"
    report = rechunk(spark, repository, url, chunks={"time": 3, "x": 60}, access=site.access)
    copy: Any = group_of(repository)["a"]
    assert (copy.chunks, copy.shards) == ((3, 60), None)
    assert_same_values(group_of(repository), root)
    assert (report.written, report.objects) == (6, 8)
    assert len(used_chunks(repository)) == 6
    assert_clean(repository)
