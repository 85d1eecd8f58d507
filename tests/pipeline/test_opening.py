"""What zarr or xarray cannot open is refused before it is committed."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import zarr
from zarr.core.buffer import default_buffer_prototype

from icefloe.errors import ErrorKind, SourceError
from icefloe.pipeline.files.options import CombineOptions, ParseOptions
from icefloe.pipeline.local import virtualize_locally
from icefloe.pipeline.writing.dataset import require_openable
from tests.pipeline.files_of_formats import write_netcdf3, write_unusual_netcdf4
from tests.pipeline.repositories import opened, repository_for

TIME = CombineOptions(("time",), by="order")


@pytest.mark.parametrize(
    ("write", "expected"),
    [
        (write_netcdf3, [b"abc", b"de ", b"f  ", b"xyz"]),
        (write_unusual_netcdf4, [b"abc", b"de ", b"f", b"xxx"]),
    ],
)
def test_characters_with_a_fill_value(
    tmp_path: Path, write: Callable[[Path], None], expected: list[bytes]
) -> None:
    write(tmp_path / "a.nc")
    session = repository_for(tmp_path).writable_session("main")
    virtualize_locally(session, tmp_path / "a.nc", TIME)
    found = opened(session)
    assert found.names.values.tolist() == expected
    array = zarr.open_array(session.store, path="names", mode="r")
    assert array.fill_value == b"x"
    assert "_FillValue" not in array.attrs


def test_what_xarray_cannot_open_is_named(tmp_path: Path) -> None:
    group = zarr.create_group(tmp_path / "a.zarr", zarr_format=3)
    group.create_array("good", data=np.arange(4.0), dimension_names=("time",))
    bad = group.create_array("bad", data=np.ones((4, 2)), dimension_names=("time", "x"))
    bad.attrs["_FillValue"] = "no number"
    session = repository_for(tmp_path).writable_session("main")
    with pytest.raises(SourceError, match="xarray could not open the array 'bad'") as caught:
        virtualize_locally(session, tmp_path / "a.zarr", TIME)
    assert caught.value.kind == ErrorKind.SOURCE_UNOPENABLE
    session.discard_changes()
    parse = ParseOptions(("time",), drop=("bad",))
    virtualize_locally(session, tmp_path / "a.zarr", TIME, parse=parse)
    assert opened(session).good.values.tolist() == [0, 1, 2, 3]


def test_times_that_cannot_be_decoded_are_named(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("time", data=np.array([0.0, 1e300])).make_scale("time")
        file["time"].attrs["units"] = "days since 2000-01-01"
    session = repository_for(tmp_path).writable_session("main")
    with pytest.raises(SourceError, match="'time'"):
        virtualize_locally(session, tmp_path / "a.h5", TIME)


def test_arrays_that_do_not_go_together(tmp_path: Path) -> None:
    """Two arrays have the same dimensions, with other lengths."""
    group = zarr.create_group(tmp_path / "a.zarr", zarr_format=3)
    for name, size in (("large", 64), ("small", 32)):
        group.create_array(name, data=np.zeros((size, size)), dimension_names=("y", "x"))
    session = repository_for(tmp_path).writable_session("main")
    options = CombineOptions(("date",), by="order")
    with pytest.raises(SourceError, match="xarray could not open the group") as caught:
        virtualize_locally(session, tmp_path / "a.zarr", options)
    assert caught.value.kind == ErrorKind.SOURCE_UNOPENABLE
    session.discard_changes()
    parse = ParseOptions(("date",), drop=("small",))
    virtualize_locally(session, tmp_path / "a.zarr", options, parse=parse)
    assert opened(session)["large"].shape == (1, 64, 64)


def test_without_xarray_zarr_alone_opens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = repository_for(tmp_path).writable_session("main")
    zarr.create_array(session.store, name="some/t", shape=(4,), dtype="f4")
    monkeypatch.setitem(sys.modules, "xarray", None)  # as if it were not installed
    [note] = require_openable(session, "some", ["t"], [])
    assert 'pip install "icefloe[xarray]"' in note


def test_what_zarr_cannot_open_is_named(tmp_path: Path) -> None:
    session = repository_for(tmp_path).writable_session("main")
    made: Any = zarr.create_array(session.store, name="t", shape=(4,), dtype="f4")
    document = made.metadata.to_dict() | {"codecs": [{"name": "bytes"}, {"name": "of nobody"}]}
    data = default_buffer_prototype().buffer.from_bytes(json.dumps(document).encode())
    session.store.set_sync("t/zarr.json", data)
    with pytest.raises(SourceError, match="zarr could not open the array 't'"):
        require_openable(session, "", ["t"], [])
