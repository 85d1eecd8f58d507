"""Facts of files that never existed."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from icefloe.pipeline.files.facts import (
    ANY_CHUNK,
    ANY_LENGTH,
    ArraySchema,
    DatasetSchema,
    FileFacts,
    LoadedValues,
    SourceState,
)

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
            path=name,
            data_type="float32",
            dimensions=(*dims, "x"),
            shape=(*(ANY_LENGTH,) * len(dims), 4),
            chunks=(
                *((ANY_CHUNK if whole else chunk,) if dims else ()),
                *(1,) * (len(dims) - 1),
                4,
            ),
            codecs=PLAIN if whole else ZLIB,
            fill_value=0.0,
        )
        for name in variables
    ]
    arrays += [
        ArraySchema(
            path=name,
            data_type="float64",
            dimensions=(name,),
            shape=(ANY_LENGTH,),
            chunks=(512,),
            codecs=PLAIN,
            fill_value=0.0,
            encoding={},
            is_coordinate=True,
        )
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
