"""Clients of Zarr that know nothing of Icefloe: each reads an array over HTTP."""

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import tensorstore
import xarray as xr
import zarr
from obstore.fsspec import FsspecStore as ObstoreFileSystem
from obstore.store import HTTPStore
from zarr.storage import FsspecStore, ObjectStore

from tests.support.chromium import PROJECT

_SECONDS = 300
_HTTPFiles: Any = ObstoreFileSystem  # whose types do not know this protocol
_GDAL = """
import sys

import rasterio

url, path, token = sys.argv[1:]
headers = {"GDAL_HTTP_HEADERS": f"Authorization: Bearer {token}"} if token else {}
with (
    rasterio.Env(**headers, GDAL_PAM_ENABLED="NO"),
    rasterio.open(f'ZARR:"/vsicurl/{url}":/{path}') as dataset,
):
    values = dataset.read()
sys.stdout.buffer.write(f"{values.dtype.str}\\n".encode() + values.tobytes())
"""

type Reader = Callable[[str, str, str], Any]
"""Reads an array: from the address of a version, its path there, and a token or nothing."""


def _headers(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"} if token else {}


def _options(token: str) -> Any:
    return {"allow_http": True, "default_headers": _headers(token)}


def _obstore(url: str, token: str) -> ObjectStore[Any]:
    return ObjectStore(HTTPStore(url, client_options=_options(token)), read_only=True)


def _fsspec(url: str, token: str) -> FsspecStore:
    # The file system for HTTP of fsspec itself needs aiohttp, which is not here.
    files = _HTTPFiles("http", client_options=_options(token), asynchronous=True)
    return FsspecStore(files, read_only=True, path=url)


def read_with_zarr(url: str, path: str, token: str) -> Any:
    group = zarr.open_group(_obstore(url, token), mode="r", use_consolidated=True)
    return group[path][:]  # type: ignore[index]


def read_with_zarr_over_fsspec(url: str, path: str, token: str) -> Any:
    group = zarr.open_group(_fsspec(url, token), mode="r", use_consolidated=False)
    return group[path][:]  # type: ignore[index]


def read_with_xarray(url: str, path: str, token: str) -> Any:
    folder, _, name = path.rpartition("/")
    dataset = xr.open_zarr(
        _fsspec(url, token), group=folder or None, consolidated=True, mask_and_scale=False
    )
    return dataset[name].to_numpy()


def read_with_tensorstore(url: str, path: str, token: str) -> Any:
    headers = [f"{name}: {value}" for name, value in _headers(token).items()]
    store = {"driver": "http", "base_url": f"{url}/", "path": f"{path}/", "headers": headers}
    opened = tensorstore.open({"driver": "zarr3", "kvstore": store}, read=True)
    return opened.result().read().result()


def read_with_gdal(url: str, path: str, token: str) -> Any:
    # In a process of its own: it waits for answers without letting a server in this one answer.
    dtype, content = _output([sys.executable, "-W", "ignore", "-c", _GDAL, url, path, token])
    return np.frombuffer(content, np.dtype(dtype))  # bands, without the shape


def read_with_zarrita(url: str, path: str, token: str) -> Any:
    header, content = _output(["node", str(PROJECT / "read_zarr.js"), url, path, token])
    dtype, shape = json.loads(header)
    return np.frombuffer(content, np.dtype(cast("str", dtype))).reshape(shape)


def _output(command: list[str]) -> tuple[str, bytes]:
    """Run a program that writes a line and bytes; return both."""
    done = subprocess.run(command, check=False, capture_output=True, timeout=_SECONDS)
    assert done.returncode == 0, done.stderr.decode()
    line, _, content = done.stdout.partition(b"\n")
    return line.decode(), content


READERS: dict[str, Reader] = {
    "zarr": read_with_zarr,
    "zarr over fsspec": read_with_zarr_over_fsspec,
    "xarray": read_with_xarray,
    "tensorstore": read_with_tensorstore,
    "gdal": read_with_gdal,
    "zarrita": read_with_zarrita,
}


def check_values(reader: str, address: str, path: str, expected: Any, token: str = "") -> None:
    """Read an array with a client, and compare its type and all of its values."""
    values = READERS[reader](address, path, token)
    assert values.dtype.newbyteorder("=") == expected.dtype.newbyteorder("=")
    shape = values.shape if reader == "gdal" else expected.shape
    assert values.shape == shape
    np.testing.assert_array_equal(values, expected.reshape(shape))
