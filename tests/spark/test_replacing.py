"""Files that changed where only their names are given, and that hold less than they did."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from numpy.testing import assert_array_equal

import icefloe
from examples.archives import Archive, write_archive
from icefloe.spark import append, virtualize
from tests.pipeline.repositories import opened
from tests.spark.archives import TIME, assert_complete, assert_sound
from tests.support.http_server import file_server

pytestmark = pytest.mark.spark


def leave_out_last_step(archive: Archive, number: int) -> None:
    """Write a file again, with the chunk of its last step missing."""
    archive.write(number)
    with h5py.File(archive.path(number), "r+") as file:
        whole = file["temperature"]
        attributes = {name: whole.attrs[name] for name in ("scale_factor", "add_offset", "units")}
        del file["temperature"]
        part = file.create_dataset(
            "temperature",
            shape=(archive.steps, *archive.grid),
            dtype=np.int16,
            chunks=(1, *archive.grid),
            compression="gzip",
            compression_opts=1,
            fillvalue=-32768,
        )
        part[:-1] = archive.packed_temperature(number)[:-1]
        part.attrs.update(attributes, _FillValue=np.int16(-32768))
        for axis, name in enumerate(("time", "lat", "lon")):
            part.dims[axis].attach_scale(file[name])


def test_chunks_that_are_gone_from_a_changed_file_are_gone(spark: Any, tmp_path: Path) -> None:
    archive = write_archive(tmp_path / "data", 4, steps=3)
    with file_server(tmp_path / "data") as server:
        prefix = f"{server.url}/"
        config = icefloe.RepositoryConfig.default()
        container = icefloe.VirtualChunkContainer(prefix, icefloe.http_store())
        config.set_virtual_chunk_container(container)
        repository = icefloe.Repository.create(
            icefloe.local_filesystem_storage(str(tmp_path / "repository")),
            config,
            authorize_virtual_chunk_access=icefloe.containers_credentials(
                {prefix: icefloe.credentials.HttpAccess}
            ),
        )
        urls = [
            prefix + str(archive.path(number).relative_to(archive.folder)) for number in range(4)
        ]
        virtualize(spark, repository, urls, TIME)
        assert append(spark, repository, urls).snapshot is None
        assert_complete(repository.readonly_session("main"), archive)
        leave_out_last_step(archive, 2)
        report = append(spark, repository, urls)
        assert (report.changed, report.snapshot) == ((urls[2],), None)
        report = append(spark, repository, urls, on_changed="replace")
        assert (report.replaced, report.references) == ((urls[2],), 5 + 2)
        found = opened(repository.readonly_session("main"))
        expected = np.concatenate([archive.expected_temperature(n) for n in range(4)])
        expected[8] = np.nan
        assert_array_equal(found.temperature.values, expected)
    assert_sound(repository)
    [version, *_] = repository.ancestry(branch="main")
    changed = repository.diff(from_snapshot_id=version.parent_id, to_snapshot_id=version.id)
    assert sorted(changed.updated_chunks["/temperature"]) == [[6, 0, 0], [7, 0, 0], [8, 0, 0]]
