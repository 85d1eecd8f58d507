"""The arrays of the dataset that files make, as they are to be written."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.pipeline.combining.axes import PlacedFiles
from icefloe.pipeline.combining.schema import ArraySchema
from icefloe.pipeline.files.facts import FileFacts
from icefloe.pipeline.options import CombineOptions

NATIVE_CHUNK: Final = 8192
"""Steps in a chunk of the small arrays that are written as they are."""


@dataclass(frozen=True, slots=True)
class TargetArray:
    """An array of the dataset."""

    path: str
    metadata: Mapping[str, Any]
    """As in `zarr.json`."""
    growing: tuple[tuple[int, str], ...]
    """Axes along which files are joined, with the names of these dimensions."""
    is_native: bool
    """Whether its values are written as they are, instead of references."""
    family: int
    """The files it comes from."""

    @property
    def chunks(self) -> tuple[int, ...]:
        """Give the lengths of chunks."""
        return tuple(self.metadata["chunk_grid"]["configuration"]["chunk_shape"])


def array_metadata(
    schema: ArraySchema,
    shape: tuple[int, ...],
    chunks: tuple[int, ...],
    codecs: list[Any],
    attributes: Mapping[str, Any],
) -> dict[str, Any]:
    """Write the `zarr.json` of an array."""
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(shape),
        "data_type": schema.data_type,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(chunks)}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": schema.fill_value,
        "codecs": codecs,
        "attributes": dict(attributes),
        "dimension_names": list(schema.dimensions),
        "storage_transformers": [],
    }


def native_metadata(
    schema: ArraySchema, shape: tuple[int, ...], attributes: Mapping[str, Any]
) -> dict[str, Any]:
    """Write the `zarr.json` of an array whose values are written as they are."""
    is_text = schema.data_type == "string"
    codecs = [
        {"name": "vlen-utf8", "configuration": {}}
        if is_text
        else {"name": "bytes", "configuration": {"endian": "little"}},
        {"name": "zstd", "configuration": {"level": 3, "checksum": False}},
    ]
    chunks = tuple(
        NATIVE_CHUNK if axis == 0 else max(1, length) for axis, length in enumerate(shape)
    )
    return array_metadata(schema, shape, chunks, codecs, attributes)


def promoted_runs(
    path: str,
    values: Sequence[Any],
    files: Sequence[FileFacts],
    placed: PlacedFiles,
    options: CombineOptions,
) -> list[tuple[int, NDArray[Any]]]:
    """Repeat the attribute of each file for each of its steps."""
    if len(options.concat) != 1:
        raise InvalidInputError(
            f"the attribute {path!r} differs, and cannot be made an array: files are joined along"
            f" several dimensions. Choose another rule for attributes",
            ErrorKind.BAD_METADATA,
        )
    [name] = options.concat
    is_number = all(
        isinstance(value, (int, float)) and not isinstance(value, bool) for value in values
    )
    given = [value if is_number else ("" if value is None else str(value)) for value in values]
    column = np.array(given)
    return [
        (
            int(placed.starts[name][row]),
            np.repeat(column[row], files[number].lengths[name]),
        )
        for row, number in enumerate(placed.files)
    ]


def promoted_target(
    path: str,
    runs: Sequence[tuple[int, NDArray[Any]]],
    placed: PlacedFiles,
    options: CombineOptions,
) -> TargetArray:
    """Describe the array that an attribute becomes."""
    [name] = options.concat
    kind = runs[0][1].dtype
    data_type = "string" if kind.kind == "U" else kind.name
    schema = ArraySchema(path, data_type, (name,), (-1,), (1,), (), "" if kind.kind == "U" else 0)
    metadata = native_metadata(schema, (placed.lengths[name],), {})
    return TargetArray(path, metadata, ((0, name),), is_native=True, family=0)
