"""Named metadata values of snapshots and of the repo object: any JSON value.

Spec 1 encodes values as MessagePack, spec 2 as FlexBuffers.
"""

import math
import struct
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Final, Self

import msgspec
import numpy as np

from icefloe.config import SpecVersion
from icefloe.errors import ErrorKind, FormatError, InvalidInputError
from icefloe.format.columns import BytesColumn, Ints, ranges, splits_of, take_ragged
from icefloe.format.flatbuffer_reader import Vectors, refuse
from icefloe.format.flatbuffer_scalar import ScalarTable
from icefloe.format.flatbuffer_writer import OFFSET, Carried, TableShape, Tree, pack_tables
from icefloe.format.flexbuffers import decode_flexbuffer, encode_flexbuffer
from icefloe.format.json_value import (
    MAX_DEPTH,
    MAX_ENCODED_BYTES,
    MAX_VALUES,
    JsonValue,
    as_json_value,
)
from icefloe.records import Record


def encode_metadata_value(value: object, spec_version: int) -> bytes:
    """Check and encode the value of one metadata item.

    >>> encode_metadata_value([1, 2, 3], SpecVersion.v2).hex(" ")
    '01 02 03 03 50 01'
    """
    checked = as_json_value(value)
    match spec_version:
        case SpecVersion.v1:
            return encode_messagepack(checked)
        case SpecVersion.v2:
            return encode_flexbuffer(checked)
    raise InvalidInputError(
        f"metadata cannot be written for spec version {spec_version}",
        ErrorKind.UNSUPPORTED_SPEC_VERSION,
    )


def decode_metadata_value(data: bytes | memoryview, spec_version: int) -> JsonValue:
    """Decode the value of one metadata item of a file of that spec version.

    >>> decode_metadata_value(bytes.fromhex("01 02 03 03 50 01"), SpecVersion.v2)
    [1, 2, 3]
    """
    match spec_version:
        case SpecVersion.v1:
            return decode_messagepack(data)
        case SpecVersion.v2:
            return decode_flexbuffer(data)
    raise FormatError(
        f"metadata of spec version {spec_version} cannot be read",
        ErrorKind.UNSUPPORTED_SPEC_VERSION,
    )


# -- MessagePack -----------------------------------------------------------------------------

_NUMBERS: Final = {
    0xCA: ">f",
    0xCB: ">d",
    0xCC: ">B",
    0xCD: ">H",
    0xCE: ">I",
    0xCF: ">Q",
    0xD0: ">b",
    0xD1: ">h",
    0xD2: ">i",
    0xD3: ">q",
}
_TEXT_LENGTHS: Final = {0xD9: ">B", 0xDA: ">H", 0xDB: ">I"}
_NESTED_LENGTHS: Final = {0xDC: ">H", 0xDD: ">I", 0xDE: ">H", 0xDF: ">I"}
"""Of long lists (the first two) and maps; short ones have their length in the head."""
_CONSTANTS: Final = {0xC0: None, 0xC2: False, 0xC3: True}


def encode_messagepack(value: JsonValue) -> bytes:
    """Encode a value: integers in their smallest form, floats in 64 bits."""
    data = msgspec.msgpack.encode(value)
    if len(data) > MAX_ENCODED_BYTES:
        raise InvalidInputError(
            f"the value takes {len(data)} bytes, the most is {MAX_ENCODED_BYTES}",
            ErrorKind.LIMIT_EXCEEDED,
        )
    return data


def decode_messagepack(data: bytes | memoryview) -> JsonValue:
    """Decode one value; anything unsound in the bytes, or after it, is a `FormatError`."""
    if len(data) > MAX_ENCODED_BYTES:
        raise _unsound(f"{len(data)} bytes are more than the {MAX_ENCODED_BYTES} allowed", 0)
    reader = _MessagePackReader(bytes(data))
    value = reader.value(MAX_DEPTH)
    if reader.position != len(data):
        raise _unsound("bytes are left over", reader.position)
    return value


class _MessagePackReader:
    """Reads one element after the other: whatever a header promises, it holds what it has read."""

    __slots__ = ("_data", "_values_left", "position")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._values_left = MAX_VALUES
        self.position = 0

    def value(self, depth_left: int) -> JsonValue:
        self._values_left -= 1
        if self._values_left < 0:
            raise _unsound(f"it holds more than {MAX_VALUES} values", self.position)
        head = self._take(1)[0]
        if 0x80 <= head <= 0x9F or head in _NESTED_LENGTHS:
            if depth_left == 0:
                raise _unsound(f"values are nested deeper than {MAX_DEPTH} levels", self.position)
            return self._nested(head, depth_left - 1)
        return self._scalar(head)

    def _scalar(self, head: int) -> JsonValue:
        if head <= 0x7F:
            return head
        if head >= 0xE0:
            return head - 0x100
        if head in _CONSTANTS:
            return _CONSTANTS[head]
        if head in _NUMBERS:
            return _json_number(self._number(_NUMBERS[head]))
        if 0xA0 <= head <= 0xBF:
            return self._text(head & 0x1F)
        if head in _TEXT_LENGTHS:
            return self._text(self._length(_TEXT_LENGTHS[head]))
        raise _unsound(f"0x{head:02x} does not start a JSON value", self.position - 1)

    def _nested(self, head: int, depth_left: int) -> JsonValue:
        form = _NESTED_LENGTHS.get(head)
        count = head & 0xF if form is None else self._length(form)
        is_map = head <= 0x8F or head >= 0xDE
        if not is_map:
            return [self.value(depth_left) for _ in range(count)]
        result: dict[str, JsonValue] = {}
        for _ in range(count):
            start = self.position
            key = self._scalar(self._take(1)[0])
            if not isinstance(key, str):
                raise _unsound("a key is not text", start)
            result[key] = self.value(depth_left)
        return result

    def _text(self, size: int) -> str:
        start = self.position
        try:
            return self._take(size).decode()
        except UnicodeDecodeError:
            raise _unsound("a text is not UTF-8", start) from None

    def _length(self, form: str) -> int:
        return int(self._number(form))

    def _number(self, form: str) -> int | float:
        number: int | float = struct.unpack(form, self._take(struct.calcsize(form)))[0]
        return number

    def _take(self, size: int) -> bytes:
        start = self.position
        if size > len(self._data) - start:
            raise _unsound("a value reaches beyond the end", start)
        self.position = start + size
        return self._data[start : self.position]


def _json_number(number: float) -> float | None:
    """Pass what JSON has; NaN and the infinities become None."""
    return number if math.isfinite(number) else None


def _unsound(problem: str, position: int) -> FormatError:
    return FormatError(
        f"damaged MessagePack value: {problem} (at byte {position})", ErrorKind.DESERIALIZATION
    )


# -- items -----------------------------------------------------------------------------------

type Metadata = Mapping[str, JsonValue]


class _Item:
    """Slots of one item."""

    NAME = 0
    VALUE = 1


_ITEM: Final = TableShape((_Item.NAME, OFFSET), (_Item.VALUE, OFFSET))


class MetadataItems(Record):
    """The metadata of several owners (snapshots, say), one behind the other."""

    splits: Ints
    names: BytesColumn
    values: BytesColumn

    @classmethod
    def encode(cls, owners: Sequence[Metadata], spec_version: int) -> Self:
        """Encode the metadata of several owners, each sorted by name."""
        names, values = list[str](), list[bytes]()
        for metadata in owners:
            own = sorted(metadata, key=str.encode)
            names += own
            values += encode_values([metadata[name] for name in own], spec_version)
        counts = np.array([len(metadata) for metadata in owners], np.int64)
        return cls(
            splits_of(counts), BytesColumn.from_strings(names), BytesColumn.from_list(values)
        )

    @classmethod
    def read(cls, vectors: Vectors) -> Self:
        """Read the items of all owners."""
        if not vectors.counts.any():
            return cls(vectors.splits(), BytesColumn.empty(), BytesColumn.empty())
        tables = vectors.tables()
        names = tables.blobs(_Item.NAME, required=True).column()
        names.check_text()
        return cls(vectors.splits(), names, tables.blobs(_Item.VALUE, required=True).column())

    def decode(self, owner: int, spec_version: int) -> dict[str, JsonValue]:
        """Decode the metadata of one owner."""
        return self.decode_many(np.array([owner]), spec_version)[0]

    def decode_many(self, owners: Ints, spec_version: int) -> list[dict[str, JsonValue]]:
        """Decode the metadata of some owners."""
        picked = self.take(owners)
        names, values = picked.names.to_strings(), picked.values.to_list()
        splits = picked.splits.tolist()
        decoded = list[dict[str, JsonValue]]()
        for first, last in pairwise(splits):
            if first == last:
                decoded.append({})
                continue
            decoded.append(decode_items(names[first:last], values[first:last], spec_version))
        return decoded

    def take(self, owners: Ints) -> Self:
        """Pick owners."""
        splits, items = take_ragged(self.splits, owners)
        return type(self)(splits, self.names.take(items), self.values.take(items))

    def with_owner(self, row: int, metadata: Metadata, spec_version: int) -> Self:
        """Insert the metadata of one owner before an owner."""
        first, count = int(self.splits[row]), len(metadata)
        splits = np.concatenate([self.splits[: row + 1], self.splits[row:] + count])
        if count == 0:
            return type(self)(splits, self.names, self.values)
        items = self.encode([metadata], spec_version)
        names = self.names.with_rows(first, items.names)
        return type(self)(splits, names, self.values.with_rows(first, items.values))

    def packed(self) -> BytesColumn:
        """Write the vector of items of each owner, with the items behind it."""
        names, values = (
            Carried.blobs(slot, column)
            for slot, column in ((_Item.NAME, self.names), (_Item.VALUE, self.values))
        )
        items = pack_tables(len(self.names), _ITEM, {}, [names, values])
        counts = np.diff(self.splits)
        heads = 1 + counts  # words: how many there are, and an offset to each
        item_words = items.splits >> 2
        starts = splits_of(heads + np.diff(item_words[self.splits]))
        words = np.zeros(int(starts[-1]), "<u4")
        words[starts[:-1]] = counts
        # What is before an item in the buffer: the items before it, the heads up to its owner's.
        shift = np.repeat(np.cumsum(heads), counts)
        fields = np.repeat(starts[:-1] + 1 - self.splits[:-1], counts) + np.arange(len(self.names))
        tables = 4 * (item_words[:-1] + shift) + _ITEM.lead_bytes
        words[fields] = tables - 4 * fields
        where = ranges(item_words[:-1] + shift, np.diff(item_words))
        words[where] = items.data.view("<u4")
        return BytesColumn(words.view(np.uint8), 4 * starts)

    def write(self, tree: Tree, owner: int, field: int) -> None:
        """Add the items of one owner."""
        first, last = self.splits[owner : owner + 2].tolist()
        _write_items(tree, self.names.rows(first, last), self.values.rows(first, last), field)


class LateMetadata:
    """The metadata of some owners, each decoded when it is asked for."""

    __slots__ = ("_items", "_lists", "_spec_version")

    def __init__(self, items: MetadataItems, spec_version: int) -> None:
        self._items = items
        self._spec_version = spec_version
        self._lists: tuple[list[int], list[str], list[bytes]] | None = None

    def owners_of_none(self) -> list[int]:
        """List the owners without any."""
        splits = self._items.splits
        owners: list[int] = np.flatnonzero(splits[1:] == splits[:-1]).tolist()
        return owners

    def __getitem__(self, owner: int) -> dict[str, JsonValue]:
        """Decode the metadata of one owner."""
        if self._lists is None:
            items = self._items
            self._lists = (
                items.splits.tolist(),
                items.names.to_strings(),
                items.values.to_list(),
            )
        splits, names, values = self._lists
        own = slice(splits[owner], splits[owner + 1])
        return decode_items(names[own], values[own], self._spec_version)


def write_metadata(tree: Tree, metadata: Metadata, spec_version: int, field: int) -> None:
    """Add the items of one owner, sorted by name."""
    names = sorted(metadata, key=str.encode)
    values = encode_values([metadata[name] for name in names], spec_version)
    _write_items(tree, [name.encode() for name in names], values, field)


def _write_items(tree: Tree, names: Sequence[bytes], values: Sequence[bytes], field: int) -> None:
    for name, value, link in zip(names, values, tree.links(len(names), field), strict=True):
        position = tree.table(_ITEM, field=link)
        tree.blob(name, position + _ITEM.at[_Item.NAME])
        tree.blob(value, position + _ITEM.at[_Item.VALUE])


def read_items(owners: Sequence[Sequence[ScalarTable]]) -> MetadataItems:
    """Read the items of some owners, still encoded."""
    items = [item for own in owners for item in own]
    return MetadataItems(
        np.array(list(accumulate(map(len, owners), initial=0)), np.int64),
        BytesColumn.from_strings([item.text(_Item.NAME) for item in items]),
        BytesColumn.from_list([item.blob(_Item.VALUE) for item in items]),
    )


def read_metadata(items: Sequence[ScalarTable], spec_version: int) -> dict[str, JsonValue]:
    """Read the items of one owner."""
    names = [item.text(_Item.NAME) for item in items]
    values = [item.blob(_Item.VALUE) for item in items]
    return decode_items(names, values, spec_version)


def encode_values(values: Sequence[JsonValue], spec_version: int) -> list[bytes]:
    """Encode the values of one owner, which together must not be too large."""
    encoded = [encode_metadata_value(value, spec_version) for value in values]
    if (total := sum(map(len, encoded))) > MAX_ENCODED_BYTES:
        raise InvalidInputError(
            f"the metadata takes {total} bytes, the most is {MAX_ENCODED_BYTES}",
            ErrorKind.LIMIT_EXCEEDED,
        )
    return encoded


def decode_items(
    names: Sequence[str], values: Sequence[bytes], spec_version: int
) -> dict[str, JsonValue]:
    """Decode the values of one owner."""
    if sum(map(len, values)) > MAX_ENCODED_BYTES:
        refuse("metadata items share values so often that they would not fit in memory")
    items = {
        name: decode_metadata_value(value, spec_version)
        for name, value in zip(names, values, strict=True)
    }
    if len(items) < len(names):
        refuse("two metadata items have the same name")
    return items
