"""The reference opens, reads and extends repositories that store our manifest sets."""

from pathlib import Path

import icechunk as ic
import numpy as np
import pytest
import zarr

import icefloe

pytestmark = pytest.mark.interop

CONFIG = icefloe.ChunkManifestsConfig(
    [icefloe.ManifestSet("coordinates", max_manifest_size=100, cardinality=2)],
    [icefloe.ManifestRule("coordinates", path=".*/(lat|lon)", metadata_chunks=(0, 10))],
    preload=icefloe.ManifestSetPreload([".*/lat"]),
)


def created(path: Path, spec: int) -> icefloe.Repository:
    """Make a repository with some arrays, and with manifest sets that are stored."""
    repo = icefloe.Repository.create(
        icefloe.local_filesystem_storage(str(path)),
        config=icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0, chunk_manifests=CONFIG),
        spec_version=spec,
    )
    repo.save_config()
    session = repo.writable_session("main")
    group = zarr.group(session.store)
    for name, length in (("lat", 4), ("lon", 6), ("data", 24)):
        array = group.create_array(name, shape=(length,), chunks=(2,), dtype="i4")
        array[:] = np.arange(length)
    session.commit("arrays")
    return repo


@pytest.mark.parametrize("spec", [1, 2])
def test_the_reference_reads_and_extends_it(tmp_path: Path, spec: int) -> None:
    created(tmp_path, spec)
    theirs = ic.Repository.open(ic.local_filesystem_storage(str(tmp_path)))
    assert theirs.config.inline_chunk_threshold_bytes == 0
    session = theirs.writable_session("main")
    group = zarr.open_group(session.store)
    for name, length in (("lat", 4), ("lon", 6), ("data", 24)):
        assert group[name][:].tolist() == list(range(length))  # type: ignore[index,union-attr]
    group["data"][3] = -1  # type: ignore[index]
    session.commit("theirs")
    ours = icefloe.Repository.open(icefloe.local_filesystem_storage(str(tmp_path)))
    assert ours.config.chunk_manifests == CONFIG  # a commit of theirs keeps it
    values = zarr.open_group(ours.readonly_session("main").store, mode="r")["data"][:]  # type: ignore[index]
    assert values.tolist() == [0, 1, 2, -1, *range(4, 24)]  # type: ignore[union-attr]


@pytest.mark.parametrize("spec", [1, 2])
def test_our_repository_finds_what_it_stored(tmp_path: Path, spec: int) -> None:
    created(tmp_path, spec)
    storage = icefloe.local_filesystem_storage(str(tmp_path))
    assert icefloe.Repository.fetch_config(storage).chunk_manifests == CONFIG  # type: ignore[union-attr]
    runtime = icefloe.ChunkManifestsConfig()
    repo = icefloe.Repository.open(
        storage, config=icefloe.RepositoryConfig(chunk_manifests=runtime)
    )
    assert repo.config.chunk_manifests == runtime
    stored = icefloe.Repository.fetch_config(storage)
    assert stored is not None
    assert stored.chunk_manifests == CONFIG  # until it is saved
    repo.save_config()
    stored = icefloe.Repository.fetch_config(storage)
    assert stored is not None
    assert stored.chunk_manifests == runtime


@pytest.mark.parametrize("spec", [1, 2])
def test_a_configuration_that_the_reference_saves_has_no_sets(tmp_path: Path, spec: int) -> None:
    """It writes the keys that it knows: this is documented, and noticed here if it changes."""
    created(tmp_path, spec)
    theirs = ic.Repository.open(
        ic.local_filesystem_storage(str(tmp_path)),
        config=ic.RepositoryConfig(get_partial_values_concurrency=3),
    )
    theirs.save_config()
    ours = icefloe.Repository.open(icefloe.local_filesystem_storage(str(tmp_path)))
    assert ours.config.get_partial_values_concurrency == 3
    assert ours.config.chunk_manifests is None
