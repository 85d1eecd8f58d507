"""The lines that pages show to copy: all of them run, and open the same values."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import icechunk
import numpy as np
import pytest
import xarray
import zarr

import icefloe
from icefloe.cli.common import lasting_url
from icefloe.format.nodes import ArrayNode
from icefloe.web.nodes import find_node
from icefloe.web.recipes import recipes_of
from icefloe.web.versions import Viewed
from icefloe.xarray import to_icechunk
from tests.web.conftest import served

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.interop]

VALUES = np.arange(6 * 4 * 5, dtype="f4").reshape(6, 4, 5)
DAYS = np.array("2024-01-01", "M8[ns]") + np.arange(6) * np.timedelta64(1, "D")


@pytest.fixture(scope="module")
def viewed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Viewed, str]]:
    """A repository with virtual chunks that its reader authorised, and its pages."""
    folder: Path = tmp_path_factory.mktemp("recipes")
    (folder / "raw.bin").write_bytes(VALUES.tobytes())
    prefix = f"file://{folder}/"
    config = icefloe.RepositoryConfig.default()
    config.set_virtual_chunk_container(
        icefloe.VirtualChunkContainer(prefix, icefloe.local_filesystem_store(str(folder)))
    )
    storage = icefloe.local_filesystem_storage(str(folder / "my cube"))
    repository = icefloe.Repository.create(storage, config)
    session = repository.writable_session("main")
    dims = ("time", "lat", "lon")
    data = xarray.Dataset({"t2m": (dims, VALUES)}, {"time": DAYS, "lat": np.arange(4.0)})
    to_icechunk(data, session, group="ocean", encoding={"t2m": {"chunks": (2, 4, 5)}})
    zarr.open_group(session.store, path="ocean", mode="a").create_array(
        "raw", shape=VALUES.shape, chunks=(2, 4, 5), dtype="f4", dimension_names=dims,
        compressors=None,
    )  # fmt: skip
    for part in range(3):
        session.store.set_virtual_ref(
            f"ocean/raw/c/{part}/0/0", f"{prefix}raw.bin", offset=part * 160, length=160
        )
    session.commit("data")
    repository.create_tag("v 1", repository.lookup_branch("main"))
    viewed = Viewed(icefloe.Repository.open(storage), "cube", lasting_url(str(folder / "my cube")))
    with served(viewed) as address:
        yield viewed, address


def run(viewed: Viewed, address: str, path: str, title: str) -> dict[str, Any]:
    """Run the lines with a title, as in an empty program, and return its names."""
    version = viewed.version("v 1")
    table = find_node(version, "/ocean/raw")
    assert isinstance(table, ArrayNode)
    recipes = recipes_of(viewed, version, path, address, table)
    names: dict[str, Any] = {"__name__": "__main__"}
    [code] = [recipe.code for recipe in recipes if recipe.title.startswith(title)]
    exec(code, names)
    return names


def test_lines_for_a_group(viewed: tuple[Viewed, str]) -> None:
    dataset = run(*viewed, "/ocean", "xarray")["ds"]
    np.testing.assert_array_equal(dataset["raw"], VALUES)
    for title, package in {"Icefloe": icefloe, "icechunk": icechunk}.items():
        names = run(*viewed, "/ocean", title)
        assert isinstance(names["repository"], package.Repository)
        np.testing.assert_array_equal(names["group"]["raw"][:], VALUES)
        np.testing.assert_array_equal(names["group"]["t2m"][:], VALUES)
    np.testing.assert_array_equal(run(*viewed, "/", "Zarr")["group"]["ocean/t2m"][:], VALUES)


def test_lines_for_an_array(viewed: tuple[Viewed, str]) -> None:
    np.testing.assert_array_equal(run(*viewed, "/ocean/raw", "xarray")["ds"], VALUES)
    for title in ("Icefloe", "icechunk"):
        np.testing.assert_array_equal(run(*viewed, "/ocean/raw", title)["array"][:], VALUES)


def test_lines_for_spark(viewed: tuple[Viewed, str], spark: Any) -> None:
    table = run(*viewed, "/ocean", "Spark")["table"]
    assert table.sparkSession == spark
    frame = table.toPandas().sort_values(["time", "lat", "lon"])
    assert list(frame.columns) == ["time", "lat", "lon", "raw"]
    np.testing.assert_array_equal(frame["raw"].to_numpy().reshape(VALUES.shape), VALUES)
    np.testing.assert_array_equal(frame["time"].to_numpy()[::20], DAYS)


def test_lines_name_nothing_that_does_not_last(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ICEFLOE_SERVICE", "https://data.example.org")
    (tmp_path / "cube").mkdir()
    assert lasting_url("cube") == str(tmp_path / "cube")
    assert lasting_url("lab/sst") == "icefloe://data.example.org/lab/sst"
    assert lasting_url("s3://b/p", anonymous=True) == "s3://b/p?anonymous=true"
    repository = icefloe.Repository.create(icefloe.local_filesystem_storage("cube"))
    viewed = Viewed(repository, "lab/sst", lasting_url("lab/sst"))
    version = viewed.version(None)
    recipes = recipes_of(viewed, version, "/", "http://localhost", None)
    code = {recipe.title: recipe.code for recipe in recipes}
    assert "icechunk" not in code  # that package cannot ask a service
    assert (
        'xr.open_dataset("icefloe://data.example.org/lab/sst", engine="icefloe")' in code["xarray"]
    )
    assert re.search(
        r'Client\("https://data.example.org"\).login\(\)\nrep.*"lab/sst"', code["Icefloe"]
    )
