"""Values as JSON, CSV and Arrow, made in pieces.

Tables are long: a row for each combination of the coordinates, a column for each coordinate and
each variable. A variable that lacks a dimension repeats along it.
"""

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from math import prod
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icefloe.printable import harmless_cell
from icefloe.records import Record, replace
from icefloe.web.data import Dataset, Variable
from icefloe.web.netcdf import to_netcdf
from icefloe.web.pictures import MOST_BYTES
from icefloe.web.selection import TooLargeError, narrower

_ROWS: Final = 16_384
"""How many rows, or values, become text at a time."""
_CELL_BYTES: Final = 16
"""What a number counts for when it is written as text."""
_SHOWN_ATTRIBUTES: Final = ("units", "long_name", "standard_name")


class Format(StrEnum):
    """The forms in which values are answered."""

    JSON = "json"
    CSV = "csv"
    ARROW = "arrow"
    NETCDF = "netcdf"


class MediaType(Record):
    """How an answer names its form."""

    name: str
    suffix: str


MEDIA_TYPES: Final = {
    Format.JSON: MediaType("application/json", "json"),
    Format.CSV: MediaType("text/csv; charset=utf-8", "csv"),
    Format.ARROW: MediaType("application/vnd.apache.arrow.stream", "arrows"),
    Format.NETCDF: MediaType("application/x-netcdf", "nc"),
}


def write(dataset: Dataset, form: Format, header: Mapping[str, Any]) -> Iterator[bytes]:
    """Return the pieces of an answer; raise `TooLargeError` if it has too many values.

    `header` is for JSON: where the values come from.
    """
    _check_size(dataset, form)
    match form:
        case Format.JSON:
            return to_json(dataset, header)
        case Format.CSV:
            return to_csv(dataset)
        case Format.ARROW:
            return to_arrow(dataset)
        case Format.NETCDF:
            return iter([to_netcdf(dataset)])


def _check_size(dataset: Dataset, form: Format) -> None:
    variables = [*dataset.variables, *dataset.coordinates.values()]
    rows = prod(dataset.shape.values())
    match form:
        case Format.JSON:
            size = _CELL_BYTES * sum(variable.values.size for variable in variables)
        case Format.CSV:
            size = _CELL_BYTES * rows * len(variables)
        case Format.ARROW:
            size = rows * sum(variable.values.dtype.itemsize for variable in variables)
        case Format.NETCDF:
            return
    if size > MOST_BYTES:
        raise TooLargeError(
            f"as {form} the answer would have about {size >> 20:,} MiB, and it has"
            f" {MOST_BYTES >> 20} MiB at most: {narrower([*dataset.dimensions.values()])}"
        )


# JSON


def to_json(dataset: Dataset, header: Mapping[str, Any]) -> Iterator[bytes]:
    """Write values as nested lists, with null for missing ones."""
    yield json.dumps({**header, "dims": dataset.shape})[:-1].encode()
    yield b', "coords": {'
    yield from _json_variables(dataset.coordinates)
    yield b'}, "variables": {'
    yield from _json_variables({variable.name: variable for variable in dataset.variables})
    yield b"}}\n"


def _json_variables(variables: Mapping[str, Variable]) -> Iterator[bytes]:
    for number, (name, variable) in enumerate(variables.items()):
        facts: dict[str, Any] = {
            "dims": list(variable.dimensions),
            "shape": list(variable.values.shape),
            "dtype": _type_name(variable.values.dtype),
        }
        for key in _SHOWN_ATTRIBUTES:
            text = variable.units if key == "units" else variable.attributes.get(key)
            if isinstance(text, str) and text:
                facts[key] = text
        start = json.dumps({name: facts})[1:-2]
        yield f"{', ' if number else ''}{start}, ".encode()
        yield b'"values": '
        yield from _nested(variable.values)
        yield b"}"


def _type_name(dtype: np.dtype[Any]) -> str:
    return "string" if dtype.kind in "UTOS" else dtype.name


def _nested(values: NDArray[Any]) -> Iterator[bytes]:
    """Write an array as nested lists, a part of it at a time.

    >>> b"".join(_nested(np.array([[1.5, np.nan], [3, 4]])))
    b'[[1.5,null],[3,4]]'
    """
    if values.ndim == 0:
        yield texts_of(values.reshape(1), json.dumps)[0].encode()
        return
    if values.size == 0:
        yield json.dumps(values.tolist()).encode()
        return
    # The number of lists that end behind a value; the last of all is closed at the end.
    lengths = np.cumprod(values.shape[:0:-1])
    separators = [f"{']' * level},{'[' * level}" for level in range(values.ndim)]
    flat = values.reshape(-1)
    yield b"[" * values.ndim
    for start in range(0, flat.size, _ROWS):
        part = flat[start : start + _ROWS]
        places = np.arange(start, start + part.size)
        levels = np.zeros(part.size, np.int64)
        for length in lengths:
            levels += places % length == 0
        pieces: list[str] = []
        for row, text, level in zip(
            places.tolist(), texts_of(part, json.dumps), levels.tolist(), strict=True
        ):
            pieces += (separators[level] if row else "", text)
        yield "".join(pieces).encode()
    yield b"]" * values.ndim


def texts_of(values: NDArray[Any], quote: Callable[[str], str], missing: str = "null") -> list[str]:
    """Return values as texts: the shortest ones that mean the same numbers, dates in ISO 8601.

    >>> texts_of(np.array([0.1, np.nan, np.inf], "f4"), json.dumps)
    ['0.1', 'null', '"Infinity"']
    """
    match values.dtype.kind:
        case "f":
            return _number_texts(values, quote, missing)
        case "b":
            return ["true" if value else "false" for value in values.tolist()]
        case "M":
            unit = next(
                (unit for unit in ("s", "us") if _is_whole(values, unit)),
                "ns",
            )
            texts = np.datetime_as_string(values.astype(f"datetime64[{unit}]")).tolist()
            return [missing if text == "NaT" else quote(text) for text in texts]
        case "m":
            numbers = values.astype(np.int64).tolist()
            absent = np.isnat(values).tolist()
            return [missing if a else str(n) for n, a in zip(numbers, absent, strict=True)]
        case "i" | "u":
            return [*map(str, values.tolist())]
    return [missing if value is None else quote(_text(value)) for value in values.tolist()]


def _is_whole(values: NDArray[Any], unit: str) -> bool:
    return bool(((values == values.astype(f"datetime64[{unit}]")) | np.isnat(values)).all())


def _number_texts(values: NDArray[Any], quote: Callable[[str], str], missing: str) -> list[str]:
    numbers = values.astype(np.float32) if values.dtype.itemsize < 4 else values
    texts: list[str] = pa.array(numbers).cast(pa.string()).to_pylist()
    for row in np.flatnonzero(~np.isfinite(numbers)).tolist():
        number = numbers[row]
        infinity = "Infinity" if number > 0 else "-Infinity"
        texts[row] = missing if np.isnan(number) else quote(infinity)
    return texts


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


# Tables


def _blocks(dataset: Dataset, columns: Sequence[Variable]) -> Iterator[list[NDArray[Any]]]:
    """Yield rows of the table, column by column."""
    shape = dataset.shape
    rows = prod(shape.values())
    for start in range(0, rows, _ROWS):
        numbers = np.arange(start, min(rows, start + _ROWS))
        places: dict[str, NDArray[Any]] = {}
        if shape:
            unravelled = np.unravel_index(numbers, tuple(shape.values()))
            places = dict(zip(shape, unravelled, strict=True))
        yield [
            column.values[tuple(places[name] for name in column.dimensions)]
            if column.dimensions
            else np.broadcast_to(column.values, len(numbers))
            for column in columns
        ]


def to_csv(dataset: Dataset) -> Iterator[bytes]:
    """Write a table as CSV; cells for missing values are empty.

    Texts that spreadsheets would compute begin with an apostrophe.
    """
    columns = dataset.columns
    # What repeats along a dimension becomes text once.
    repeats = [len(column.dimensions) < len(dataset.shape) for column in columns]
    prepared = [
        _as_texts(column) if is_repeated else column
        for column, is_repeated in zip(columns, repeats, strict=True)
    ]
    output = io.StringIO()
    writer = csv.writer(output, lineterminator="\r\n")
    writer.writerow([harmless_cell(column.name) for column in columns])
    for block in _blocks(dataset, prepared):
        cells = [
            values.tolist() if is_repeated else texts_of(values, harmless_cell, missing="")
            for values, is_repeated in zip(block, repeats, strict=True)
        ]
        writer.writerows(zip(*cells, strict=True))
        yield output.getvalue().encode()
        output.seek(0)
        output.truncate()
    yield output.getvalue().encode()


def _as_texts(column: Variable) -> Variable:
    texts = texts_of(column.values.reshape(-1), harmless_cell, missing="")
    values = np.array(texts, np.object_).reshape(column.values.shape)
    return replace(column, values=values)


def to_arrow(dataset: Dataset) -> Iterator[bytes]:
    """Write a table as a stream of Arrow record batches; missing values are null."""
    columns = dataset.columns
    fields = [
        pa.field(
            column.name,
            _arrow_type(column.values.dtype),
            metadata={"units": column.units} if column.units else None,
        )
        for column in columns
    ]
    schema = pa.schema(fields)
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, schema) as stream:
        for block in _blocks(dataset, columns):
            arrays = [
                _arrow_array(values, field.type)
                for values, field in zip(block, fields, strict=True)
            ]
            stream.write_batch(pa.record_batch(arrays, schema=schema))
            yield sink.getvalue()
            sink.seek(0)
            sink.truncate()
    yield sink.getvalue()


def _arrow_type(dtype: np.dtype[Any]) -> Any:
    if dtype.kind in "UTOS":
        return pa.string()
    if dtype.kind in "Mm" and np.datetime_data(dtype)[0] not in ("s", "ms", "us", "ns"):
        return pa.timestamp("s") if dtype.kind == "M" else pa.int64()
    return pa.from_numpy_dtype(dtype)


def _arrow_array(values: NDArray[Any], arrow_type: Any) -> Any:
    if values.dtype.kind in "UTOS":
        texts = [None if value is None else _text(value) for value in values.tolist()]
        return pa.array(texts, arrow_type)
    if pa.types.is_timestamp(arrow_type):
        values = values.astype(f"datetime64[{arrow_type.unit}]")
    elif arrow_type == pa.int64():
        values = values.astype(np.int64)
    return pa.array(np.ascontiguousarray(values), arrow_type, from_pandas=True)
