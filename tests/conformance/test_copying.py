"""Repositories cloned and exported between storages of all kinds; others read the results."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import icechunk as ic
import numpy as np
import pytest
import xarray as xr
import zarr
from zarr.storage import LocalStore, ObjectStore

import icefloe
from icefloe.config import VirtualChunkContainer, local_filesystem_store
from icefloe.credentials import Credentials
from icefloe.storage import Storage
from tests.conformance.storages import azure_storage_at, s3_storage_at
from tests.golden.files import GOLDEN
from tests.property.reachable import listing
from tests.support.checking import check_repository_blocking
from tests.support.servers import AzureEndpoint, S3Endpoint

VALUES = np.arange(3000, dtype="f8").reshape(100, 30)
ODD_NAME = "grüße #1~"


def filled(storage: Storage, virtual: Path) -> icefloe.Repository:
    """Make a repository with chunks of all kinds, and names that not all storages like."""
    prefix = f"{virtual.as_uri()}/"
    (virtual / "raw.bin").write_bytes(b"header" + VALUES.tobytes())
    config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=100)
    store_config = local_filesystem_store(str(virtual))
    config.set_virtual_chunk_container(VirtualChunkContainer(prefix, store_config))
    access: dict[str, Any] = {prefix: Credentials.LocalFileSystemAccess()}
    repo = icefloe.Repository.create(storage, config, access)
    with repo.transaction("main", message="data") as store:
        root = zarr.create_group(store, attributes={"title": "é"})
        root.create_array("scalar", shape=(), dtype="i4")[...] = 7
        names = ("y", "x")
        data = root.create_group("model/sub").create_array(
            "data", shape=(100, 30), chunks=(40, 7), dtype="f8", dimension_names=names
        )
        data[:] = VALUES
        root.create_array(ODD_NAME, shape=5, chunks=1, dtype="i2")[:] = range(5)
        root.create_array(
            "virtual", shape=(100, 30), chunks=(10, 30), dtype="f8", compressors=None,
            dimension_names=names,
        )  # fmt: skip
        for row in range(10):
            store.set_virtual_ref(
                f"virtual/c/{row}/0", f"{prefix}raw.bin", offset=6 + row * 2400, length=2400
            )
    repo.create_tag("v1", repo.lookup_branch("main"))
    with repo.transaction("main", message="more") as store:
        zarr.open_array(store, path="model/sub/data")[:40, :7] = -1
    return repo


def check_values(root: zarr.Group, first: float) -> None:
    expected = VALUES.copy()
    expected[:40, :7] = -1 if first else VALUES[:40, :7]
    data: Any = root["model/sub/data"]
    assert np.array_equal(data[:], expected)
    virtual: Any = root["virtual"]
    assert np.array_equal(virtual[:], VALUES)
    scalar: Any = root["scalar"]
    assert int(scalar[...]) == 7
    odd: Any = root[ODD_NAME]
    assert odd[:].tolist() == [0, 1, 2, 3, 4]
    assert root.attrs["title"] == "é"


@pytest.fixture
def virtual(tmp_path: Path) -> Path:
    path = tmp_path / "virtual"
    path.mkdir()
    return path


def reopened(storage: Storage, virtual: Path) -> icefloe.Repository:
    prefix = f"{virtual.as_uri()}/"
    container = VirtualChunkContainer(prefix, local_filesystem_store(str(virtual)))
    config = icefloe.RepositoryConfig()
    config.set_virtual_chunk_container(container)
    return icefloe.Repository.open(storage, config, {prefix: Credentials.LocalFileSystemAccess()})


class CopyConformance:
    """What holds between a local folder and each kind of storage, both ways."""

    server_side = False

    def test_there_and_back(
        self, place: Callable[[str], Storage], tmp_path: Path, virtual: Path
    ) -> None:
        origin = filled(icefloe.local_filesystem_storage(str(tmp_path / "origin")), virtual)
        there, beside, back = place("there"), place("beside"), tmp_path / "back"
        assert origin.clone_to(there, deep=True).versions == 3
        other = reopened(there, virtual)
        report = other.clone_to(beside)
        assert report.is_server_side is self.server_side
        assert other.clone_to(beside).was_complete
        last = reopened(beside, virtual)
        last.clone_to(icefloe.local_filesystem_storage(str(back)), deep=True)
        for storage in (there, beside, icefloe.local_filesystem_storage(str(back))):
            check_repository_blocking(storage.open())
            assert reopened(storage, virtual).verify(deep=True).is_healthy
            ids = [one.id for one in reopened(storage, virtual).ancestry(branch="main")]
            assert ids == [one.id for one in origin.ancestry(branch="main")]
        ours, theirs = (
            {info.key: info.size_bytes for info in listing(one.open()).values()}
            for one in (beside, there)
        )
        assert ours == theirs
        prefix = f"{virtual.as_uri()}/"
        reference = ic.Repository.open(
            ic.local_filesystem_storage(str(back)),
            authorize_virtual_chunk_access={prefix: ic.credentials.LocalFileSystemAccess},
        )
        assert reference.list_tags() == {"v1"}
        for tag in (None, "v1"):
            version: Any = {"branch": "main"} if tag is None else {"tag": tag}
            store = reference.readonly_session(**version).store
            check_values(zarr.open_group(store, mode="r"), tag is None)

    def test_export(self, place: Callable[[str], Storage], tmp_path: Path, virtual: Path) -> None:
        repo = filled(place("origin"), virtual)
        folder = tmp_path / "plain"
        report = repo.export_to_zarr(
            icefloe.local_filesystem_storage(str(folder)), "main", deep=True
        )
        assert (report.groups, report.arrays) == (3, 4)
        assert report.chunks == report.chunks_copied == report.chunks_compared == 30
        check_values(zarr.open_group(LocalStore(folder), mode="r"), True)
        assert {one.name for one in folder.iterdir()} == {
            "zarr.json", "scalar", "model", ODD_NAME, "virtual",
        }  # fmt: skip

    def test_export_of_a_group_to_an_object_store(
        self, place: Callable[[str], Storage], tmp_path: Path, virtual: Path
    ) -> None:
        repo = filled(icefloe.local_filesystem_storage(str(tmp_path / "origin")), virtual)
        target = place("plain")
        report = repo.export_to_zarr(target, tag="v1", group="model/sub", consolidated=True)
        assert (report.groups, report.arrays, report.chunks) == (1, 1, 15)
        store = self.zarr_store(target, tmp_path)
        array: Any = zarr.open_group(store, mode="r", use_consolidated=True)["data"]
        assert np.array_equal(array[:], VALUES)

    def zarr_store(self, target: Storage, tmp_path: Path) -> Any:
        """Let Zarr read what is there, with nothing of ours in between."""
        raise AssertionError


class TestLocal(CopyConformance):
    @pytest.fixture
    def place(self, tmp_path: Path) -> Callable[[str], Storage]:
        return lambda name: icefloe.local_filesystem_storage(str(tmp_path / "places" / name))

    def zarr_store(self, target: Storage, tmp_path: Path) -> Any:
        return LocalStore(tmp_path / "places" / "plain")


@pytest.mark.server
class TestS3(CopyConformance):
    server_side = True

    @pytest.fixture
    def place(self, s3_endpoint: S3Endpoint, prefix: str) -> Callable[[str], Storage]:
        self.endpoint, self.prefix = s3_endpoint, prefix
        return lambda name: s3_storage_at(s3_endpoint, f"{prefix}/{name}")

    def zarr_store(self, target: Storage, tmp_path: Path) -> Any:
        from obstore.store import S3Store

        return ObjectStore(
            S3Store(
                self.endpoint.bucket,
                prefix=f"{self.prefix}/plain",
                endpoint=self.endpoint.url,
                access_key_id=self.endpoint.access_key_id,
                secret_access_key=self.endpoint.secret_access_key,
                region="us-east-1",
                virtual_hosted_style_request=False,
                client_options={"allow_http": True},
            ),
            read_only=True,
        )


@pytest.mark.server
class TestAzure(CopyConformance):
    server_side = True

    @pytest.fixture
    def place(self, azure_endpoint: AzureEndpoint, prefix: str) -> Callable[[str], Storage]:
        self.endpoint, self.prefix = azure_endpoint, prefix
        return lambda name: azure_storage_at(azure_endpoint, f"{prefix}/{name}")

    def zarr_store(self, target: Storage, tmp_path: Path) -> Any:
        from obstore.store import AzureStore

        return ObjectStore(
            AzureStore(
                self.endpoint.container,
                prefix=f"{self.prefix}/plain",
                account_name=self.endpoint.account,
                account_key=self.endpoint.account_key,
                endpoint=self.endpoint.url,
                client_options={"allow_http": True},
            ),
            read_only=True,
        )


def test_consolidated_metadata_is_what_zarr_writes(tmp_path: Path, virtual: Path) -> None:
    repo = filled(icefloe.in_memory_storage(), virtual)
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    repo.export_to_zarr(icefloe.local_filesystem_storage(str(ours)), "main", consolidated=True)
    repo.export_to_zarr(icefloe.local_filesystem_storage(str(theirs)), "main")
    with pytest.warns(UserWarning, match="Consolidated metadata"):
        zarr.consolidate_metadata(LocalStore(theirs))
    one, other = (
        zarr.open_group(LocalStore(path), mode="r", use_consolidated=True)
        for path in (ours, theirs)
    )
    assert one.metadata == other.metadata
    check_values(one, True)
    with xr.open_zarr(str(ours), group="model/sub", consolidated=False) as dataset:
        assert dataset["data"].dims == ("y", "x")
        assert float(dataset["data"][0, 0]) == -1


@pytest.mark.parametrize("name", ["v1-basic", "v1-split", "v2-basic", "v2-expired", "v2-migrated"])
def test_clones_of_golden_repositories(tmp_path: Path, name: str) -> None:
    shutil.copytree(GOLDEN / name, tmp_path / "origin")
    origin = icefloe.Repository.open(icefloe.local_filesystem_storage(str(tmp_path / "origin")))
    target = tmp_path / "clone"
    origin.clone_to(icefloe.local_filesystem_storage(str(target)), deep=True)
    check_repository_blocking(icefloe.local_filesystem_storage(str(target)).open())
    ours = ic.Repository.open(ic.local_filesystem_storage(str(target)))
    theirs = ic.Repository.open(ic.local_filesystem_storage(str(tmp_path / "origin")))
    assert ours.list_branches() == theirs.list_branches()
    for branch in ours.list_branches():
        assert [*ours.ancestry(branch=branch)] == [*theirs.ancestry(branch=branch)]
    assert ours.list_tags() == theirs.list_tags()
    assert ours.chunk_storage_stats().native_bytes == theirs.chunk_storage_stats().native_bytes
    if "v2" in name:
        assert len([*ours.ops_log()]) == len([*theirs.ops_log()])
    for branch in ours.list_branches():
        alone = tmp_path / f"alone-{branch}"
        origin.clone_to(icefloe.local_filesystem_storage(str(alone)), branch)
        check_repository_blocking(icefloe.local_filesystem_storage(str(alone)).open())
        single = ic.Repository.open(ic.local_filesystem_storage(str(alone)))
        assert single.lookup_branch("main") == ours.lookup_branch(branch)
        assert len([*single.ancestry(branch="main")]) <= 2
