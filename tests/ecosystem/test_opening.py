"""`icefloe.open`, and arrays of dask on top of what was opened: whole selections at once."""

import pickle
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import dask.array
import numpy as np
import pytest
import xarray
import zarr
from distributed import Client

import icefloe
from icefloe.errors import InvalidInputError, NotFoundError
from icefloe.zarr_store.selections import SelectionPipeline
from tests.property.test_selections import far_repository

FUSED = "zarr.core.codec_pipeline.FusedCodecPipeline"
VALUES = np.arange(60, dtype="i4").reshape(20, 3)


@pytest.fixture
def repository(tmp_path: Path) -> icefloe.Repository:
    made = icefloe.Repository.create(icefloe.local_filesystem_storage(str(tmp_path / "repository")))
    with made.transaction("main", message="twenty rows") as store:
        names = ("row", "column")
        zarr.create_array(
            store, name="model/run/a", shape=(20, 3), chunks=(2, 3), dtype="i4",
            dimension_names=names,
        )[:] = VALUES  # fmt: skip
        zarr.create_array(store, name="b", shape=(), dtype="i4")[...] = 7
    return made


def pipeline_of(array: Any) -> type:
    """Return the pipeline of an array, on whichever machine this runs."""
    kind: type = type(array.async_array.codec_pipeline)
    return kind


def test_every_source_and_path_can_be_opened(repository: icefloe.Repository) -> None:
    spec: Any = repository.storage.spec
    path = spec.path
    session = repository.readonly_session("main")
    for source in (path, Path(path), repository.storage, repository, session, session.store):
        root: Any = icefloe.open(source)
        assert issubclass(type(root), zarr.Group)
        np.testing.assert_array_equal(root["model/run/a"][:], VALUES)
        np.testing.assert_array_equal(icefloe.open(source, "/model/run/a")[1:3], VALUES[1:3])
        assert icefloe.open(source, "b")[()] == 7


def test_every_way_to_an_array_leads_to_whole_selections(repository: icefloe.Repository) -> None:
    root: Any = icefloe.open(repository)
    model, run = root["model"], root.get_group("model")["run"]
    arrays = [
        root["model/run/a"],
        root.get("model/run/a"),
        root.get_array("model/run/a"),
        run["a"],
        model["run"]["a"],
        dict(model.groups())["run"]["a"],
        next(iter(model.group_values()))["a"],
        dict(run.arrays())["a"],
        next(iter(run.array_values())),
        dict(root.members(max_depth=None))["model/run/a"],
        dict(root.members())["model"]["run/a"],
        pickle.loads(pickle.dumps(model))["run/a"],
        pickle.loads(pickle.dumps(root["model/run/a"])),
        icefloe.open(repository, "model/run/a"),
    ]
    for array in arrays:
        assert pipeline_of(array) is SelectionPipeline
        np.testing.assert_array_equal(array[:], VALUES)
    assert pipeline_of(zarr.open_group(root.store, mode="r")["b"]) is not SelectionPipeline


def test_a_pipeline_that_the_user_chose_stays(repository: icefloe.Repository) -> None:
    with zarr.config.set({"codec_pipeline.path": FUSED}):
        root: Any = icefloe.open(repository)
        assert pipeline_of(root["b"]).__name__ == "FusedCodecPipeline"


def test_versions_are_chosen_as_in_sessions(repository: icefloe.Repository) -> None:
    first = repository.lookup_branch("main")
    repository.create_tag("v1", first)
    written = next(iter(repository.ancestry(branch="main"))).written_at
    with repository.transaction("main", message="other") as store:
        zarr.open_array(store, path="b")[...] = 8
    assert icefloe.open(repository, "b")[()] == 8
    assert icefloe.open(repository, "b", tag="v1")[()] == 7
    assert icefloe.open(repository, "b", snapshot_id=first)[()] == 7
    assert icefloe.open(repository, "b", branch="main", as_of=written)[()] == 7
    with pytest.raises(NotFoundError):
        icefloe.open(repository, as_of=written - timedelta(days=10_000))
    with pytest.raises(InvalidInputError, match="of one version"):
        icefloe.open(repository.readonly_session("main"), tag="v1")


def test_it_is_read_only_and_names_what_is_missing(repository: icefloe.Repository) -> None:
    root: Any = icefloe.open(repository)
    with pytest.raises(ValueError, match="read-only"):
        root["b"][...] = 1
    with pytest.raises(NotFoundError, match="no array or group at 'c'"):
        icefloe.open(repository, "c")
    with pytest.raises(KeyError):
        root["c"]


def test_virtual_chunks_need_authorisation(tmp_path: Path) -> None:
    (tmp_path / "archive").mkdir()
    (tmp_path / "archive" / "values.bin").write_bytes(VALUES.tobytes())
    prefix = f"{(tmp_path / 'archive').as_uri()}/"
    config = icefloe.RepositoryConfig.default()
    store_config = icefloe.local_filesystem_store(str(tmp_path / "archive"))
    config.set_virtual_chunk_container(icefloe.VirtualChunkContainer(prefix, store_config))
    storage = icefloe.local_filesystem_storage(str(tmp_path / "cube"))
    made = icefloe.Repository.create(storage, config)
    with made.transaction("main", message="twenty rows elsewhere") as store:
        zarr.create_array(
            store, name="a", shape=(20, 3), chunks=(20, 3), dtype="i4", compressors=None
        )
        store.set_virtual_ref("a/c/0/0", f"{prefix}values.bin", offset=0, length=240)
    choices: list[Any] = [[prefix], True]
    for authorize in choices:
        np.testing.assert_array_equal(icefloe.open(storage, "a", authorize=authorize)[:], VALUES)
    choices = [None, []]
    for authorize in choices:
        with pytest.raises(icefloe.IcefloeError, match="authorize"):
            icefloe.open(storage, "a", authorize=authorize)[:]


def test_a_block_of_dask_reads_its_chunks_together() -> None:
    storage = icefloe.in_memory_storage()
    repository: Any = far_repository(storage=storage, inline_bytes=0)
    session = repository.writable_session("main", packing=True)
    zarr.create_array(
        session.store, name="a", shape=(20, 3), chunks=(1, 3), dtype="i4",
        dimension_names=("row", "column"),
    )[:] = VALUES  # fmt: skip
    session.commit("twenty chunks in one object")
    dataset = xarray.open_dataset(repository, engine="icefloe", chunks={"row": 10})
    opened = dask.array.from_array(icefloe.open(repository, "a"), chunks=(10, 3))
    for blocks in (dataset.a.data, opened):
        assert blocks.numblocks == (2, 1)
        blocks[0].compute(scheduler="sync")  # the manifest
        storage.reset_request_counts()
        np.testing.assert_array_equal(blocks.compute(scheduler="sync"), VALUES)
        assert storage.request_counts().requests == 2


def test_workers_elsewhere_keep_the_pipeline(
    repository: icefloe.Repository, cluster: Client
) -> None:
    opened, source = icefloe.open(repository, "model/run/a"), cast("Any", repository)
    dataset = xarray.open_dataset(source, engine="icefloe", group="model/run")
    within: Any = dataset.a.variable._data
    while not hasattr(within, "_array"):
        within = within.array
    for array in (opened, within._array):
        assert cluster.submit(pipeline_of, array).result() is SelectionPipeline
    blocks = dask.array.from_array(opened, chunks=(10, 3))
    assert blocks.sum().compute() == VALUES.sum()
    lazy = xarray.open_dataset(source, engine="icefloe", group="model/run", chunks={"row": 10})
    assert lazy.a.sum().compute() == VALUES.sum()
