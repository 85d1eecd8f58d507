"""Containers of virtual chunks in every form, stored by one side and used by the other."""

from pathlib import Path
from typing import Any

import icechunk as ic
import numpy as np
import pytest
import zarr

import icefloe
from icefloe.config import (
    ObjectStoreConfig,
    RepositoryConfig,
    S3Options,
    VirtualChunkContainer,
    azure_store,
    gcs_store,
    http_store,
    local_filesystem_store,
    s3_store,
)
from icefloe.credentials import LocalFileSystemAccess, containers_credentials
from icefloe.format.columns import BytesColumn
from tests.interop.reference import RAW

pytestmark = pytest.mark.interop

SPECS = pytest.mark.parametrize("spec", [1, 2])


def every_form(m: Any) -> list[Any]:
    """Make a container of each platform, in the form that both libraries accept."""
    tigris = m.ObjectStoreConfig.Tigris(m.S3Options(region="iad"))
    stores = {
        "s3://plain/": m.s3_store(region="eu-west-1"),
        "s3://minio/a/b/": m.s3_store(
            endpoint_url="http://localhost:9000",
            allow_http=True,
            s3_compatible=True,
            force_path_style=True,
            anonymous=True,
        ),
        "s3://tigris-bucket/": tigris,
        "tigris://bucket/": tigris,
        "gs://bucket/": m.gcs_store({"timeout": "10s"}),
        "gcs://bucket/x/": m.gcs_store(),
        "az://container/": m.ObjectStoreConfig.Azure({"account": "mine"}),
        "azure://container/": m.ObjectStoreConfig.Azure({"account": "mine"}),
        "abfs://container/": m.ObjectStoreConfig.Azure({"account": "mine", "timeout": "9s"}),
        "http://host:8080/data/": m.http_store({"timeout": "8s"}),
        "https://host/data/": m.http_store(None, {"x-key": "1"}),
        "file:///some/folder/": m.local_filesystem_store("/some/folder"),
    }
    return [
        m.VirtualChunkContainer(prefix, store, f"name of {number}" if number % 2 else None)
        for number, (prefix, store) in enumerate(stores.items())
    ]


def prefixes(config: Any) -> dict[str, str]:
    return {key: each.url_prefix for key, each in (config.virtual_chunk_containers or {}).items()}


@SPECS
def test_containers_of_the_reference_are_read_and_written_back(tmp_path: Path, spec: int) -> None:
    theirs = ic.RepositoryConfig.default()
    ours = RepositoryConfig()
    for container in every_form(ic):
        theirs.set_virtual_chunk_container(container)
    for container in every_form(icefloe):
        ours.set_virtual_chunk_container(container)
    place = str(tmp_path / "repo")
    ic.Repository.create(ic.local_filesystem_storage(place), theirs, spec_version=spec)
    opened = icefloe.Repository.open(icefloe.local_filesystem_storage(place))
    assert opened.config.virtual_chunk_containers == ours.virtual_chunk_containers
    opened.save_config()
    again = ic.Repository.open(ic.local_filesystem_storage(place))
    assert again.config.virtual_chunk_containers == theirs.virtual_chunk_containers


WIDER = [
    VirtualChunkContainer("s3", s3_store(region="eu-west-1"), "every bucket"),
    VirtualChunkContainer("gs://", gcs_store()),
    VirtualChunkContainer("s3://no-slash", s3_store()),
    VirtualChunkContainer("s3://bucket/one-object.nc", s3_store(), on_change="warn"),
    VirtualChunkContainer("models://", s3_store(endpoint_url="https://models.example")),
    VirtualChunkContainer("models://bucket/x/", azure_store(account="mine"), on_change="off"),
    VirtualChunkContainer("my-tiles://", ObjectStoreConfig.Tigris(S3Options())),
    VirtualChunkContainer("https", http_store()),
]
"""Forms that the reference does not accept."""


@SPECS
def test_wider_forms_do_not_disturb_the_reference(tmp_path: Path, spec: int) -> None:
    """It passes over prefixes that it cannot use, and reads virtual chunks of the others."""
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "raw.bin").write_bytes(RAW)
    prefix = f"file://{folder}/"
    config = RepositoryConfig()
    for container in WIDER:
        config.set_virtual_chunk_container(container)
    config.set_virtual_chunk_container(
        VirtualChunkContainer(prefix, local_filesystem_store(str(folder)), "data")
    )
    place = str(tmp_path / "repo")
    repository = icefloe.Repository.create(
        icefloe.local_filesystem_storage(place),
        config,
        authorize_virtual_chunk_access=containers_credentials({prefix: LocalFileSystemAccess}),
        spec_version=spec,
    )
    session = repository.writable_session("main")
    array = zarr.create_array(
        session.store, name="v", shape=(8,), chunks=(4,), dtype="u1", compressors=None
    )
    session.store.set_virtual_ref("v/c/0", f"{prefix}raw.bin", offset=10, length=4)
    session.store.set_virtual_ref("v/c/1", f"{prefix}raw.bin", offset=20, length=4)
    session.commit("virtual")
    expected = np.frombuffer(RAW[10:14] + RAW[20:24], "u1")
    assert np.array_equal(zarr.open_array(session.store, path="v", mode="r")[:], expected)
    assert array.shape == (8,)

    theirs = ic.Repository.open(
        ic.local_filesystem_storage(place),
        authorize_virtual_chunk_access={prefix: ic.credentials.LocalFileSystemAccess},
    )
    store = theirs.readonly_session("main").store
    assert np.array_equal(zarr.open_array(store, path="v", mode="r")[:], expected)
    assert theirs.authorized_virtual_container_prefixes == {prefix}
    assert repository.authorized_virtual_container_prefixes == {prefix}

    theirs.save_config()
    reopened = icefloe.Repository.open(icefloe.local_filesystem_storage(place)).config
    assert prefixes(reopened) == prefixes(config)
    # The reference knows no such setting, and drops it: what is left is the strict one.
    kept = (reopened.virtual_chunk_containers or {}).values()
    assert {each.on_change for each in kept} == {"strict"}


@SPECS
def test_what_to_do_about_changes_is_kept_among_ourselves(tmp_path: Path, spec: int) -> None:
    config = RepositoryConfig()
    for container in WIDER:
        config.set_virtual_chunk_container(container)
    storage = icefloe.local_filesystem_storage(str(tmp_path / "repo"))
    icefloe.Repository.create(storage, config, spec_version=spec)
    reopened = icefloe.Repository.open(storage).config
    assert reopened.virtual_chunk_containers == config.virtual_chunk_containers
    theirs = ic.Repository.open(ic.local_filesystem_storage(str(tmp_path / "repo")))
    assert prefixes(theirs.config) == prefixes(config)


@SPECS
def test_both_sides_match_locations_to_the_same_containers(tmp_path: Path, spec: int) -> None:
    """Where the reference finds a container for a location, we do; and not where it does not.

    Beyond that we know that the names of hosts and some schemes can be written in several ways.
    """
    place = str(tmp_path / "repo")
    config = ic.RepositoryConfig.default()
    for container in every_form(ic):
        config.set_virtual_chunk_container(container)
    theirs = ic.Repository.create(ic.local_filesystem_storage(place), config, spec_version=spec)
    their_session = theirs.writable_session("main")
    zarr.create_array(their_session.store, name="v", shape=(8,), chunks=(1,), dtype="u1")
    reader = icefloe.Repository.open(icefloe.local_filesystem_storage(place))._context.virtual
    for location in (
        "s3://plain/k",
        "s3://plain-evil/k",
        "s3://plain/a b",
        "s3://plain/a%20b",
        "s3://minio/a/b/k",
        "s3://minio/a/k",
        "s3://minio/a/bb/k",
        "S3://plain/k",
        "https://host/data/k",
        "https://host:444/data/k",
        "http://host/data/k",
        "file:///some/folder/k",
        "file:///some/folder/../folder/k",
        "file:///some/folder/../k",
        "file:///some/folderol/k",
        "vcc://name of 1/k",
        "vcc://nobody/k",
    ):
        _, uncovered = reader.recorded(BytesColumn.from_strings([location]), validate=True)
        is_covered = uncovered is not None and not uncovered[0]
        try:
            their_session.store.set_virtual_ref("v/c/0", location, offset=0, length=1)
            is_covered_there = True
        except ic.IcechunkError as error:
            if "container" not in str(error):
                raise
            is_covered_there = False
        assert (location, is_covered) == (location, is_covered_there)
