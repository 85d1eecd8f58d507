"""The rules for files whose values are copied.

References keep the bytes of files, so everything about these bytes must agree. A copy has its own
bytes: compression, chunks and the order of bytes may differ. Decoded values may also be packed
differently, and be of several types of numbers.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icefloe.pipeline.files.decoding import DECODED_ATTRIBUTES, Decoding, common_type
from icefloe.pipeline.files.facts import (
    ANY_CHUNK,
    ANY_LENGTH,
    ArraySchema,
    DatasetSchema,
    FileFacts,
    LoadedValues,
)
from icefloe.records import Record, replace


class CopyRules(Record):
    """In what files may differ whose values are copied.

    >>> CopyRules().decode
    False
    """

    decode: bool = False
    """Whether numbers are unpacked to what they mean."""


def as_copied(
    files: Sequence[FileFacts], rules: CopyRules, there: DatasetSchema | None = None
) -> list[FileFacts]:
    """Return facts without what a copy changes; the schemas then tell what has to agree.

    `there` is the copy that files are added to. Decoded numbers become those of its type if this
    holds all of them.
    """
    schemas = {id(file.schema): file.schema for file in files if file.schema is not None}
    copied = {
        number: DatasetSchema.of([copied_array(array, rules) for array in schema.arrays])
        for number, schema in schemas.items()
    }
    if rules.decode:
        kinds = _common_types(copied.values()) | _growing_types(there)
        copied = {number: _widened(schema, kinds) for number, schema in copied.items()}
    return [
        file
        if file.schema is None
        else replace(
            file,
            schema=copied[id(file.schema)],
            values=_decoded_values(file, copied[id(file.schema)]) if rules.decode else file.values,
        )
        for file in files
    ]


def copied_array(array: ArraySchema, rules: CopyRules) -> ArraySchema:
    """Return the schema of the copy of one array of one file."""
    decoding = decoding_of(array, rules)
    encoding: Mapping[str, Any] = array.encoding
    if decoding is not None and ANY_LENGTH in array.shape:
        encoding = {name: it for name, it in encoding.items() if name not in DECODED_ATTRIBUTES}
    return replace(
        array,
        data_type=array.data_type if decoding is None else decoding.decoded,
        chunks=(ANY_CHUNK,) * len(array.chunks),
        codecs=(),
        fill_value=None,  # each file has its own
        encoding=encoding,
    )


def decoding_of(array: ArraySchema, rules: CopyRules) -> Decoding | None:
    """Return how the values of an array are decoded; None if they are copied as they are."""
    return Decoding.of(array.data_type, array.encoding) if rules.decode else None


def _common_types(schemas: Collection[DatasetSchema]) -> dict[str, Any]:
    """Name the type of each growing array that holds the numbers of all files, if there is one."""
    kinds: dict[str, set[Any]] = {}
    for schema in schemas:
        for array in schema.arrays:
            if ANY_LENGTH in array.shape:
                kinds.setdefault(array.path, set()).add(_hashable(array.data_type))
    found = {path: common_type(of_path) for path, of_path in kinds.items() if len(of_path) > 1}
    return {path: kind for path, kind in found.items() if kind is not None}


def _growing_types(there: DatasetSchema | None) -> dict[str, Any]:
    arrays = () if there is None else there.arrays
    return {array.path: array.data_type for array in arrays if ANY_LENGTH in array.shape}


def existing_copy(
    there: DatasetSchema, files: Sequence[FileFacts], rules: CopyRules
) -> DatasetSchema:
    """Return the schema of an existing copy in the terms of `as_copied`.

    Arrays along which no file adds may be packed in the files, and are unpacked in the copy.
    """
    packed = {
        array.path: array.encoding
        for file in reversed(files if rules.decode else ())
        if file.schema is not None
        for array in file.schema.arrays
        if ANY_LENGTH not in array.shape
    }
    return DatasetSchema(
        tuple(
            replace(
                array,
                chunks=(ANY_CHUNK,) * len(array.chunks),
                codecs=(),
                fill_value=None,
                encoding=packed.get(array.path, array.encoding),
            )
            for array in there.arrays
        )
    )


def _hashable(data_type: Any) -> Any:
    return data_type if isinstance(data_type, str) else repr(data_type)


def _widened(schema: DatasetSchema, kinds: Mapping[str, Any]) -> DatasetSchema:
    return DatasetSchema(
        tuple(
            replace(array, data_type=kinds[array.path])
            if array.path in kinds and _holds(kinds[array.path], array.data_type)
            else array
            for array in schema.arrays
        )
    )


def _holds(kind: Any, data_type: Any) -> bool:
    """Return whether a type holds all values of another one."""
    return bool(common_type({_hashable(kind), _hashable(data_type)}) == _hashable(kind))


def _decoded_values(file: FileFacts, copied: DatasetSchema) -> Mapping[str, LoadedValues]:
    assert file.schema is not None
    values = dict(file.values)
    for path, loaded in file.values.items():
        array, kind = file.schema.by_path[path], copied.by_path[path].data_type
        decoding = Decoding.of(array.data_type, array.encoding)
        if decoding is None and array.data_type == kind:
            continue
        out: NDArray[Any] = np.empty(loaded.values.shape, kind)
        if decoding is None:
            out[...] = loaded.values
        else:
            decoding.into(loaded.values, out)
        values[path] = replace(loaded, values=out)
    return values
