"""Facts of files that never existed."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from icefloe.pipeline.files.facts import FileFacts, LoadedValues, SourceState
from icefloe.pipeline.files.schema import ANY_CHUNK, ANY_LENGTH, ArraySchema, DatasetSchema

ZLIB = ({"name": "bytes"}, {"name": "numcodecs.zlib", "configuration": {"level": 1}})
PLAIN = ({"name": "bytes"},)


def made_up(
    url: str,
    coordinates: Mapping[str, Sequence[Any]],
    *,
    variables: Sequence[str] = ("t",),
    chunk: int = 1,
    units: str | None = None,
    calendar: str | None = None,
    attributes: Mapping[str, Any] | None = None,
    whole: bool = False,
    **changes: Any,
) -> FileFacts:
    """Facts of a file with variables along all given dimensions and `x`."""
    dims = tuple(coordinates)
    arrays = [
        ArraySchema(
            name,
            "float32",
            (*dims, "x"),
            (*(ANY_LENGTH,) * len(dims), 4),
            (*((ANY_CHUNK if whole else chunk,) if dims else ()), *(1,) * (len(dims) - 1), 4),
            PLAIN if whole else ZLIB,
            0.0,
        )
        for name in variables
    ]
    arrays += [
        ArraySchema(name, "float64", (name,), (ANY_LENGTH,), (512,), PLAIN, 0.0, {}, True)
        for name in dims
    ]
    lengths = {name: len(values) for name, values in coordinates.items()}
    facts = {
        "attributes": {"": dict(attributes or {})},
        "lengths": lengths,
        "chunks": dict.fromkeys(variables, lengths[dims[0]]) if whole else {},
        "values": {
            name: LoadedValues(np.asarray(values, np.float64), units, calendar)
            for name, values in coordinates.items()
        },
    }
    return FileFacts(
        SourceState(url, 100, "etag", 1), "hdf5", DatasetSchema.of(arrays), **{**facts, **changes}
    )
