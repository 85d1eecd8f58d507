"""A repository as people have them, and the pages that show it, on a real socket."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx2 as httpx
import numpy as np
import pytest
import xarray
import zarr
from starlette.testclient import TestClient

import icefloe
from icefloe.web.server import listening_socket, server_of
from icefloe.web.site import create_site
from icefloe.web.versions import Viewed
from icefloe.xarray import to_icechunk
from tests.web.cubes import write_cubes

HOSTILE = "<script>alert(1)</script> javascript:alert(2) \u202eevil"


def example_data() -> xarray.Dataset:
    """Return a map over time, an image, a line, text, and attributes that nobody should run."""
    time, lat, lon = np.arange(20), np.linspace(-90, 90, 19), np.arange(0.0, 360, 10)
    field = np.arange(20 * 19 * 36, dtype="f4").reshape(20, 19, 36)
    field[3, 4, 5] = np.nan
    return xarray.Dataset(
        {
            "t2m": (("time", "lat", "lon"), field, {"units": "K", "long_name": "Temperature"}),
            "image": (("y", "x"), np.arange(1200.0).reshape(30, 40)),
            "line": (("time",), np.sin(time / 5.0)),
            "deep": (
                ("run", "level", "lat", "lon"),
                np.arange(2 * 3 * 19 * 36.0).reshape(2, 3, 19, 36),
            ),
            "high": (("p",), np.array([1e9, 1.2e9])),
            "names": (("n",), np.array(["a", "b"])),
            "packed": (("p", "q"), np.array([[np.nan, 1.5, 2.0], [2.5, np.nan, 3.0]])),
            "marked": (("p", "q"), np.array([[np.nan, 1.5, 2.0], [2.5, np.nan, 3.0]])),
        },
        {
            "time": ("time", time, {"units": "days since 2024-01-01"}),
            "level": ("level", [1000.0, 500, 250]),
            "lat": ("lat", lat, {"units": "degrees_north"}),
            "lon": ("lon", lon, {"units": "degrees_east"}),
        },
        {"title": "Example", "hostile": HOSTILE, "long": "x" * 1_000_000},
    )


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> icefloe.Repository:
    """A repository with two versions, a tag, a sparse array and a virtual chunk."""
    folder: Path = tmp_path_factory.mktemp("view")
    (folder / "raw.bin").write_bytes(np.arange(4, dtype="<i2").tobytes())
    prefix = f"file://{folder}/"
    config = icefloe.RepositoryConfig.default()
    config.set_virtual_chunk_container(
        icefloe.VirtualChunkContainer(prefix, icefloe.local_filesystem_store(str(folder)))
    )
    repository = icefloe.Repository.create(
        icefloe.local_filesystem_storage(str(folder / "cube")),
        config,
        authorize_virtual_chunk_access={prefix: icefloe.credentials.LocalFileSystemAccess},
    )
    session = repository.writable_session("main")
    packed = {"dtype": "i2", "scale_factor": 0.5, "_FillValue": -9}
    encoding = {"t2m": {"chunks": (5, 10, 18)}, "packed": packed, "marked": {"_FillValue": -1.0}}
    to_icechunk(example_data(), session, encoding=encoding)
    ocean = zarr.open_group(session.store, mode="a").create_group("ocean")
    ocean.create_array("sparse", shape=(100, 100), chunks=(10, 10), dtype="i2")[20:30] = 7
    ocean.create_array("virtual", shape=4, chunks=4, dtype="<i2", compressors=None, fill_value=-1)
    session.store.set_virtual_ref("ocean/virtual/c/0", f"{prefix}raw.bin", offset=0, length=8)
    session.commit(f"first {HOSTILE}", metadata={"author": HOSTILE})
    repository.create_tag("v1", repository.lookup_branch("main"))
    session = repository.writable_session("main")
    zarr.open_array(session.store, path="t2m", mode="r+")[0] = 5
    session.commit("a correction")
    return repository


@pytest.fixture(scope="session")
def viewed(repository: icefloe.Repository) -> Viewed:
    return Viewed(repository, "cube", "./cube")


@contextmanager
def served(viewed: Viewed, allow_origins: Sequence[str] = ()) -> Iterator[str]:
    """Serve pages on this machine."""
    server = server_of(viewed, allow_origins)
    with listening_socket("127.0.0.1", 0) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture(scope="session")
def address(viewed: Viewed) -> Iterator[str]:
    """The pages, served on this machine."""
    with served(viewed) as address:
        yield address


@pytest.fixture(scope="session")
def client(address: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=address, timeout=60, trust_env=False) as client:
        yield client


@pytest.fixture(scope="session")
def cubes_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a repository with arrays of many kinds."""
    folder: Path = tmp_path_factory.mktemp("cubes") / "cube"
    write_cubes(folder)
    return folder


@pytest.fixture(scope="session")
def cubes(cubes_folder: Path) -> Iterator[TestClient]:
    """The pages of that repository, without a socket; an error of the server fails the test."""
    storage = icefloe.local_filesystem_storage(str(cubes_folder))
    viewed = Viewed(icefloe.Repository.open(storage), "cube", str(cubes_folder))
    with TestClient(create_site(viewed), base_url="http://localhost") as client:
        yield client
