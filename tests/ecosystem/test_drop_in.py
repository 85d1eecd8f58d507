"""Libraries that import `icechunk` can be given Icefloe; each test has its own interpreter."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

PREPARED = textwrap.dedent(
    """
    import sys, warnings
    from pathlib import Path
    warnings.simplefilter("error")
    import icefloe
    """
)


def run(program: str, *arguments: object) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PREPARED + textwrap.dedent(program), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_names_are_found_under_the_other_name() -> None:
    run(
        """
        icefloe.install_as_icechunk()
        icefloe.install_as_icechunk()
        import icechunk
        import importlib.util
        assert icechunk.Repository is icefloe.Repository
        assert icechunk.__version__ == "2.3.0"
        assert importlib.util.find_spec("icechunk") is not None
        from icechunk import IcechunkStore, Session, local_filesystem_storage
        from icechunk.session import ForkSession
        from icechunk.store import IcechunkStore as SameStore
        from icechunk.storage import s3_object_store_storage
        from icechunk.xarray import to_icechunk
        from icechunk.dask import store_dask
        from icechunk.distributed import merge_sessions
        from icechunk.testing import LatencyStorage
        assert SameStore is icefloe.IcechunkStore
        assert issubclass(ForkSession, icefloe.Session)
        for name in "config conflicts credentials ops repository snapshots types virtual".split():
            importlib.import_module(f"icechunk.{name}")
        namespace = {}
        exec("from icechunk import *", namespace)
        assert namespace["Repository"] is icefloe.Repository
        try:
            import icechunk.nonsense
        except ModuleNotFoundError:
            pass
        else:
            raise AssertionError("found nonsense")
        try:
            icechunk.nonsense
        except AttributeError as error:
            assert "nonsense" in str(error)
        """
    )


def test_every_module_of_the_surface_is_there() -> None:
    run(
        """
        import importlib, json
        surface = json.loads(Path(sys.argv[1]).read_text())
        icefloe.install_as_icechunk()
        missing = [
            f"{module}.{name}"
            for module, content in surface["modules"].items()
            for name in content["names"]
            if not hasattr(importlib.import_module(f"icechunk.{module}".rstrip(".")), name)
        ]
        assert missing == [], missing
        """,
        Path(__file__).parents[3] / "shared" / "api_surface.json",
    )


@pytest.mark.interop
def test_the_real_one_is_not_replaced_silently_and_comes_back() -> None:
    run(
        """
        import icechunk as real
        from icefloe.errors import SessionStateError
        try:
            icefloe.install_as_icechunk()
        except SessionStateError as error:
            assert "force=True" in str(error)
        else:
            raise AssertionError("replaced")
        import icechunk
        assert icechunk is real
        icefloe.install_as_icechunk(force=True)
        import icechunk
        assert icechunk.Repository is icefloe.Repository
        icefloe.uninstall_as_icechunk()
        import icechunk
        assert icechunk is real
        icefloe.uninstall_as_icechunk()
        """
    )


VIRTUALIZARR = """
    icefloe.install_as_icechunk()
    warnings.simplefilter("default")  # what VirtualiZarr and its parsers warn of is theirs
    import numpy as np
    import obstore
    import xarray as xr
    from obspec_utils.registry import ObjectStoreRegistry
    from virtualizarr import open_virtual_dataset
    from virtualizarr.parsers import HDFParser

    folder = Path(sys.argv[1])
    originals = []
    for part in range(2):
        dataset = xr.Dataset(
            {"t2m": (("time", "x"), np.random.default_rng(part).normal(280, 5, (4, 6)))},
            coords={"time": np.arange(4 * part, 4 * part + 4), "x": np.arange(6.0)},
            attrs={"title": "weather"},
        )
        encoding = {"t2m": {"chunksizes": (2, 3), "zlib": True}}
        dataset.to_netcdf(folder / f"{part}.nc", engine="h5netcdf", encoding=encoding)
        originals.append(dataset)

    url = f"file://{folder}"
    registry = ObjectStoreRegistry({"file://": obstore.store.LocalStore()})

    def parse(part, **options):
        return open_virtual_dataset(
            f"{url}/{part}.nc", registry=registry, parser=HDFParser(), **options
        )

    config = icefloe.RepositoryConfig()
    config.set_virtual_chunk_container(
        icefloe.VirtualChunkContainer(f"{url}/", icefloe.local_filesystem_store(str(folder)))
    )
    storage = icefloe.local_filesystem_storage(str(folder / "repo"))
    repository = icefloe.Repository.create(storage, config)
    access = icefloe.containers_credentials({f"{url}/": icefloe.credentials.LocalFileSystemAccess})
"""


def test_the_writer_of_virtualizarr(tmp_path: Path) -> None:
    run(
        VIRTUALIZARR
        + """
    session = repository.writable_session("main")
    parse(0, loadable_variables=["time", "x"]).vz.to_icechunk(session.store)
    session.commit("first file")
    session = repository.writable_session("main")
    parse(1, loadable_variables=["time", "x"]).vz.to_icechunk(session.store, append_dim="time")
    session.commit("second file")

    readable = icefloe.Repository.open(storage, authorize_virtual_chunk_access=access)
    found = xr.open_dataset(readable, engine="icefloe").load()
    expected = xr.concat(originals, "time")
    xr.testing.assert_equal(found, expected)
    locations = readable.readonly_session("main").all_virtual_chunk_locations()
    assert sorted(locations) == [f"{url}/0.nc"] * 4 + [f"{url}/1.nc"] * 4, locations

    from icefloe.errors import InvalidInputError
    try:
        xr.open_dataset(icefloe.Repository.open(storage), engine="icefloe").t2m.load()
    except InvalidInputError as error:
        assert error.kind == "unauthorized-virtual-chunk-container"
    else:
        raise AssertionError("read without authorisation")
    """,
        tmp_path,
    )


def test_a_fully_virtual_dataset_is_read_while_its_file_is_unchanged(tmp_path: Path) -> None:
    run(
        VIRTUALIZARR
        + """
    from datetime import datetime, timedelta, UTC
    session = repository.writable_session("main")
    soon = datetime.now(UTC) + timedelta(seconds=5)
    parse(0, loadable_variables=[]).vz.to_icechunk(session.store, last_updated_at=soon, group="g")
    session.commit("all virtual")
    readable = icefloe.Repository.open(storage, authorize_virtual_chunk_access=access)
    found = xr.open_dataset(readable, engine="icefloe", group="g").load()
    xr.testing.assert_equal(found, originals[0])

    import os
    later = (soon + timedelta(seconds=9)).timestamp()
    os.utime(folder / "0.nc", (later, later))
    from icefloe.errors import StorageError
    try:
        xr.open_dataset(readable, engine="icefloe", group="g").load()
    except StorageError as error:
        assert error.kind == "virtual-chunk-modified", error.kind
    else:
        raise AssertionError("read a file that changed")
    """,
        tmp_path,
    )


def test_the_parser_of_virtualizarr(tmp_path: Path) -> None:
    """It reads the references of a repository through our store and its chunk iterator."""
    run(
        VIRTUALIZARR
        + """
    session = repository.writable_session("main")
    parse(0, loadable_variables=[]).vz.to_icechunk(session.store)
    session.commit("all virtual")
    from virtualizarr.parsers import IcechunkParser
    rooted = ObjectStoreRegistry({url: obstore.store.LocalStore(prefix=folder)})
    parsed = open_virtual_dataset(
        f"{url}/repo", registry=rooted, parser=IcechunkParser(), loadable_variables=[]
    )
    assert set(parsed.variables) == {"t2m", "time", "x"}
    assert parsed.t2m.data.manifest.shape_chunk_grid == (2, 2)
    """,
        tmp_path,
    )
