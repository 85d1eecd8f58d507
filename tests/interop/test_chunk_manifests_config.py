"""The reference opens, reads and extends repositories that store our manifest sets."""

import re
import warnings
from pathlib import Path
from typing import Any

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
    storage = icefloe.local_filesystem_storage(str(tmp_path))
    if spec == 1:  # which has no room for a copy that the reference leaves alone
        ours = icefloe.Repository.open(storage)
    else:
        with pytest.warns(UserWarning, match="dropped its manifest sets"):
            ours = icefloe.Repository.open(storage)
    assert ours.config.get_partial_values_concurrency == 3
    assert ours.config.chunk_manifests is None


def warned(tmp_path: Path) -> str | None:
    """Open a repository; give what it warns of, if anything."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        icefloe.Repository.open(icefloe.local_filesystem_storage(str(tmp_path)))
    assert len(caught) <= 1
    return str(caught[0].message) if caught else None


def saved_by_the_reference(tmp_path: Path) -> None:
    storage = ic.local_filesystem_storage(str(tmp_path))
    theirs = ic.Repository.open(storage, config=ic.RepositoryConfig(max_concurrent_requests=3))
    theirs.save_config()


def test_dropped_sets_are_noticed_and_can_be_restored(tmp_path: Path) -> None:
    created(tmp_path, 2)
    assert warned(tmp_path) is None
    saved_by_the_reference(tmp_path)
    theirs = ic.Repository.open(ic.local_filesystem_storage(str(tmp_path)))
    theirs.update_metadata({"mine": 1})
    theirs.create_branch("more", theirs.lookup_branch("main"))
    text = warned(tmp_path)
    assert text is not None
    assert "chunk-manifests" in text
    assert "save_config()" in text
    advice = re.search(r"config=(icefloe\.RepositoryConfig\(.*\)) and call", text)
    assert advice is not None
    config = eval(advice[1], {"icefloe": icefloe})
    storage = icefloe.local_filesystem_storage(str(tmp_path))
    icefloe.Repository.open(storage, config=config).save_config()
    assert warned(tmp_path) is None
    stored = icefloe.Repository.fetch_config(storage)
    assert stored is not None
    assert stored.chunk_manifests == CONFIG
    assert stored.max_concurrent_requests == 3


def test_dropped_sets_stay_noticed_until_somebody_decides(tmp_path: Path) -> None:
    created(tmp_path, 2)
    saved_by_the_reference(tmp_path)
    storage = icefloe.local_filesystem_storage(str(tmp_path))
    with pytest.warns(UserWarning, match="manifest sets"):
        ours = icefloe.Repository.open(storage, icefloe.RepositoryConfig(max_concurrent_requests=4))
    ours.save_config()  # knows of no sets, and takes none out
    assert warned(tmp_path) is not None
    with pytest.warns(UserWarning, match="manifest sets"):
        ours = icefloe.Repository.open(storage)
    ours.set_metadata({"title": "mine"})
    assert ours.update_metadata({"more": 2}) == {"title": "mine", "more": 2}
    assert ours.get_metadata() == {"title": "mine", "more": 2}
    assert warned(tmp_path) is not None
    chosen = icefloe.RepositoryConfig(chunk_manifests=icefloe.ChunkManifestsConfig())
    icefloe.Repository.open(storage, chosen).save_config()
    assert warned(tmp_path) is None


def test_metadata_that_only_looks_like_a_copy_does_no_harm(tmp_path: Path) -> None:
    created(tmp_path, 2)
    saved_by_the_reference(tmp_path)
    theirs = ic.Repository.open(ic.local_filesystem_storage(str(tmp_path)))
    values: list[Any] = [7, "text", [], {"sets": [{"a\x1b[31m\u202e": 5}]}, {"sets": 5}, None]
    for forged in values:
        theirs.update_metadata({"icefloe.chunk-manifests": forged})
        assert (warned(tmp_path) or "").isprintable()
