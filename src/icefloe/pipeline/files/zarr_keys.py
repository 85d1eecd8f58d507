"""Chunks of Zarr arrays of format 3 whose keys are those of format 2, found by listing them."""

import json
import re
from collections.abc import Mapping
from typing import Final

import numpy as np

from icefloe.effects import iterate_blocking, run_blocking
from icefloe.errors import ObjectNotFoundError
from icefloe.format.paths import joined_path
from icefloe.pipeline.files.describing import RawArray
from icefloe.pipeline.files.references import References
from icefloe.pipeline.files.sources import SourceAccess
from icefloe.records import replace

_KEY: Final = re.compile(r"\d+(?:[./]\d+)*")


def with_keys_of_format_2(
    url: str, arrays: Mapping[str, RawArray], group: str | None, access: SourceAccess
) -> dict[str, RawArray]:
    """Find the chunks of arrays that seem to have none."""
    root = f"{url.rstrip('/')}/{(group or '').strip('/')}".rstrip("/")
    return {
        path: replace(array, references=_listed(f"{root}/{path}", array, access))
        if not len(array.references) and not len(array.references.inlined)
        else array
        for path, array in arrays.items()
    }


def _listed(url: str, array: RawArray, access: SourceAccess) -> References:
    source = access.place(joined_path(url, "zarr.json"))
    try:
        document = json.loads(bytes(run_blocking(source.backend.get(source.key)).data))
    except ObjectNotFoundError:  # an array of format 2
        return array.references
    if document.get("chunk_key_encoding", {}).get("name") != "v2":
        return array.references
    separator = document["chunk_key_encoding"].get("configuration", {}).get("separator", ".")
    folder = source.key.removesuffix("zarr.json")
    cells: list[list[int]] = []
    locations: list[str] = []
    sizes: list[int] = []
    for batch in iterate_blocking(source.backend.list(folder)):
        for info in batch:
            key = info.key.removeprefix(folder)
            if not _KEY.fullmatch(key):
                continue
            cell = [int(part) for part in key.split(separator)] if array.shape else []
            if len(cell) == len(array.shape):
                cells.append(cell)
                locations.append(source.url_of(info.key))
                sizes.append(info.size_bytes)
    return References(
        np.array(cells, np.int64).reshape(len(cells), len(array.shape)),
        np.zeros(len(cells), np.uint64),
        np.array(sizes, np.uint64),
        tuple(locations),
        np.arange(len(cells), dtype=np.uint32),
    )
