"""Fill values of arrays that were described in format 2 of Zarr: hierarchies, and Kerchunk.

In format 2, xarray masks the fill value of an array. In format 3, in which datasets are stored, it
masks only the value of the attribute `_FillValue`.
"""

import base64
import json
import struct
from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np

from icefloe.effects import run_blocking
from icefloe.errors import ObjectNotFoundError
from icefloe.format.paths import joined_path
from icefloe.pipeline.files.describing import RawArray
from icefloe.pipeline.files.options import Format
from icefloe.pipeline.files.sources import SourceAccess
from icefloe.records import replace

_FILL_VALUE: Final = "_FillValue"
_ARRAY: Final = ".zarray"
_FORMATS: Final = frozenset({Format.ZARR, Format.KERCHUNK_JSON, Format.KERCHUNK_PARQUET})


def with_fill_values(
    url: str,
    kind: Format,
    arrays: Mapping[str, RawArray],
    group: str | None,
    access: SourceAccess,
) -> dict[str, RawArray]:
    """Add the attribute `_FillValue` to arrays that are described in format 2."""
    if kind not in _FORMATS:
        return dict(arrays)
    fills = _fills(url, kind, arrays, group, access)
    return {path: _with_fill(array, fills.get(path)) for path, array in arrays.items()}


def _with_fill(array: RawArray, fill: Any) -> RawArray:
    attributes = dict(array.metadata.get("attributes") or {})
    if fill is None or _FILL_VALUE in attributes:
        return array
    attributes[_FILL_VALUE] = fill
    return replace(array, metadata={**array.metadata, "attributes": attributes})


def _encoded(value: Any, kind: np.dtype[Any]) -> Any:
    """Return the attribute `_FillValue` as xarray writes it in Zarr; None for other types.

    >>> _encoded(-999.0, np.dtype("i2")), _encoded("NaN", np.dtype("f4"))
    (-999, 'AAAAAAAA+H8=')
    """
    match kind.kind:
        case "f":
            return base64.standard_b64encode(struct.pack("<d", float(value))).decode()
        case "i" | "u":
            return int(value)
        case "b":
            return bool(value)
        case _:
            return None


def _fills(
    url: str, kind: Format, paths: Iterable[str], group: str | None, access: SourceAccess
) -> dict[str, Any]:
    """Return the attribute `_FillValue` by path, of arrays that are described in format 2."""
    documents = _documents(url, kind, access)
    fills = {}
    for path in paths:
        key = f"{joined_path((group or '').strip('/'), path)}/{_ARRAY}"
        if documents is None:
            stored = _object(f"{url.rstrip('/')}/{key}", access)
        else:
            stored = documents.get(key)
        document = json.loads(stored) if isinstance(stored, (bytes, str)) else stored
        if document is None or document.get("fill_value") is None:
            continue
        try:
            type_of_values = np.dtype(document["dtype"])
        except TypeError:  # structures and text
            continue
        fill = _encoded(document["fill_value"], type_of_values)
        if fill is not None:
            fills[path] = fill
    return fills


def _documents(url: str, kind: Format, access: SourceAccess) -> Mapping[str, Any] | None:
    """Return all documents of a hierarchy by key; None if they are in objects of their own."""
    if kind is Format.KERCHUNK_JSON:
        references: dict[str, Any] = json.loads(_object(url, access) or b"{}")
        refs: dict[str, Any] = references.get("refs", references)
        return refs
    consolidated = _object(f"{url.rstrip('/')}/.zmetadata", access)
    if consolidated is None:
        return None
    metadata: dict[str, Any] = json.loads(consolidated)["metadata"]
    return metadata


def _object(url: str, access: SourceAccess) -> bytes | None:
    source = access.place(url)
    try:
        return bytes(run_blocking(source.backend.get(source.key)).data)
    except ObjectNotFoundError:
        return None
