"""`authorize=` of the engine: prefixes, credentials, or True for repositories of one's own."""

import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray
import zarr

import icefloe
from icefloe.errors import IcefloeError, InvalidInputError, WrongTypeError
from icefloe.pipeline import container_at
from icefloe.xarray import to_icechunk


def repository_at(folder: Path, *prefixes: str) -> icefloe.Repository:
    """Make a repository with an array of one virtual chunk in the first container."""
    config = icefloe.RepositoryConfig.default()
    for prefix in prefixes:
        config.set_virtual_chunk_container(container_at(prefix))
    storage = icefloe.local_filesystem_storage(str(folder))
    repository = icefloe.Repository.create(storage, config)
    repository.save_config()
    session = repository.writable_session("main")
    zarr.create_array(
        session.store, name="a", shape=(4,), dtype="u1", compressors=None, dimension_names=["x"]
    )
    session.store.set_virtual_ref("a/c/0", f"{prefixes[0]}bytes.bin", offset=2, length=4)
    session.commit("one virtual chunk")
    return repository


def values_in(source: Any, **options: Any) -> list[int]:
    with xarray.open_dataset(source, engine="icefloe", **options) as dataset:
        found: list[int] = np.asarray(dataset.a).tolist()
    return found


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    folder = tmp_path / "archive"
    folder.mkdir()
    (folder / "bytes.bin").write_bytes(bytes(range(10)))
    return folder


def test_forms_of_authorize(archive: Path, tmp_path: Path) -> None:
    prefix = f"{archive.as_uri()}/"
    repository = repository_at(tmp_path / "cube", prefix)
    cube = str(tmp_path / "cube")
    forms: list[Any] = [
        True,
        prefix,
        [prefix],
        (archive.as_uri(),),
        {prefix: icefloe.credentials.LocalFileSystemAccess},
    ]
    for leave in forms:
        assert values_in(cube, authorize=leave) == [2, 3, 4, 5]
        assert values_in(repository, authorize=leave) == [2, 3, 4, 5]
        assert values_in(repository.storage, authorize=leave) == [2, 3, 4, 5]
        with xarray.open_datatree(cube, engine="icefloe", authorize=leave) as tree:
            assert tree.a.values.tolist() == [2, 3, 4, 5]
    refused: list[Any] = [None, False, [], [f"{tmp_path.as_uri()}/elsewhere/"]]
    for leave in refused:
        with pytest.raises(IcefloeError, match="did not authorise"):
            values_in(cube, authorize=leave)
    with pytest.raises(WrongTypeError, match="authorize must be a list"):
        values_in(cube, authorize=7)
    with pytest.raises(InvalidInputError, match="is not the URL of a place"):
        values_in(cube, authorize=["/archive"])
    with pytest.raises(InvalidInputError, match="leave one out"):
        values_in(cube, authorize=True, authorize_virtual_chunk_access={})


@pytest.mark.parametrize(
    ("prefix", "problem"),
    [
        ("s3://era5/", "is not on this machine"),
        ("https://example.org/data/", "is not on this machine"),
        ("file:///etc/", "is a folder of the system"),
        ("file:///proc/self/", "is a folder of the system"),
        ("file:///var/", "is a folder of the system"),  # above one
        (f"{Path.home().as_uri()}/.ssh/", "is a hidden folder"),
        (f"{Path.home().as_uri()}/", "is your home"),
    ],
)
def test_true_is_for_modest_local_folders(
    prefix: str, problem: str, archive: Path, tmp_path: Path
) -> None:
    repository_at(tmp_path / "cube", f"{archive.as_uri()}/", prefix)
    with pytest.raises(InvalidInputError, match=problem) as caught:
        values_in(str(tmp_path / "cube"), authorize=True)
    advice = caught.value.message.partition("authorize=[")[2]
    assert prefix in advice  # which the reader may write instead


def test_true_follows_links_before_it_judges(tmp_path: Path) -> None:
    (tmp_path / "archive").symlink_to("/etc")
    repository_at(tmp_path / "cube", f"{(tmp_path / 'archive').as_uri()}/")
    with pytest.raises(InvalidInputError, match="a folder of the system"):
        values_in(str(tmp_path / "cube"), authorize=True)


def test_true_is_for_repositories_of_ones_own(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = f"{archive.as_uri()}/"
    repository_at(tmp_path / "cube", prefix)
    somebody = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: somebody)
    with pytest.raises(InvalidInputError, match="belongs to another user"):
        values_in(str(tmp_path / "cube"), authorize=True)
    assert values_in(str(tmp_path / "cube"), authorize=[prefix]) == [2, 3, 4, 5]
    elsewhere: Any = icefloe.Repository.create(icefloe.in_memory_storage())
    with pytest.raises(InvalidInputError, match="the repository is not on this machine"):
        xarray.open_dataset(elsewhere, engine="icefloe", authorize=True)


def test_a_group_of_groups_names_them() -> None:
    repository: Any = icefloe.Repository.create(icefloe.in_memory_storage())
    session = repository.writable_session("main")
    for group in ("ocean", "model/weather"):
        to_icechunk(xarray.Dataset({"t": ("x", [1.0])}), session, group=group)
    session.commit("two datasets")
    with pytest.warns(UserWarning, match="the root has no variables, only groups") as told:
        assert not xarray.open_dataset(repository, engine="icefloe").variables
    assert "'model/weather', 'ocean'" in str(told[0].message)
    assert told[0].filename == __file__
    with pytest.warns(UserWarning, match=r"group='model/weather'\)"):
        xarray.open_dataset(repository, engine="icefloe", group="model")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert xarray.open_dataset(repository, engine="icefloe", group="ocean").t.size == 1
        xarray.open_datatree(repository, engine="icefloe")
        empty = icefloe.Repository.create(icefloe.in_memory_storage())
        store: Any = empty.writable_session("main").store
        zarr.create_group(store)
        xarray.open_dataset(store, engine="icefloe")
