"""An independent reader of repository files: one field at a time.

The reader follows the tables of the format description and shares no code with the product, so
that a mistake in the product's codecs cannot hide itself.
"""

import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Concatenate, Final

import zstandard

MAGIC: Final = b"ICE\xf0\x9f\xa7\x8aCHUNK"
HEADER_BYTES: Final = 39
LONGEST_LOCATION_BYTES: Final = 1024
FILE_TYPES: Final = {"Snapshot": 1, "Manifest": 2, "TransactionLog": 4, "Repo": 6}
_MOST_CACHED_BYTES: Final = 32 * 2**20
"""Files that are kept decoded, by their sizes before: Python objects take about ten times that."""


class UnreadableError(Exception):
    """The bytes of a file break the rules of their format."""


# -- ids -----------------------------------------------------------------------------------

_DIGITS: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_VALUES: Final = {
    **{digit.lower(): value for value, digit in enumerate(_DIGITS)},
    **{digit: value for value, digit in enumerate(_DIGITS)},
    **dict.fromkeys("iIlL", 1),
    **dict.fromkeys("oO", 0),
}


def id_text(raw: bytes) -> str:
    """Write an id as Crockford base32.

    >>> id_text(bytes(range(12)))
    '000G40R40M30E209185G'
    """
    digits = -(-len(raw) * 8 // 5)
    number = int.from_bytes(raw, "big") << (digits * 5 - len(raw) * 8)
    return "".join(_DIGITS[number >> shift & 31] for shift in range(digits * 5 - 5, -1, -5))


def id_bytes(text: str, width: int = 12) -> bytes:
    """Return the bytes of an id that is written as base32.

    >>> id_text(id_bytes("000g40r40m30e209185g"))
    '000G40R40M30E209185G'
    """
    if len(text) != -(-width * 8 // 5) or not set(text) <= _VALUES.keys():
        raise UnreadableError(f"{text!r} is not an id of {width} bytes")
    number = 0
    for digit in text:
        number = number << 5 | _VALUES[digit]
    return (number >> (len(text) * 5 - width * 8)).to_bytes(width, "big")


# -- the schemas ---------------------------------------------------------------------------

# One line for each table, its fields by slot. `!` marks a required field, `@n` an id of n bytes,
# `[T]` a vector, `=T` a struct, `<T>` a union whose type number is the field before.
_SCHEMA_TEXT: Final = """
MetadataItem: name str!, value bytes!
Manifest: id @12!, arrays [ArrayManifest]!, location_dictionary bytes, compression_algorithm u8=1
ArrayManifest: node_id @8!, refs [ChunkRef]!
ChunkRef: index [u32]!, inline bytes, offset u64, length u64, chunk_id @12, location str, \
checksum_etag str, checksum_last_modified u32, compressed_location bytes
Snapshot: id @12!, parent_id @12, nodes [NodeSnapshot]!, flushed_at u64, message str!, \
metadata [MetadataItem]!, manifest_files [=ManifestFileInfo]!, \
manifest_files_v2 [ManifestFileInfoV2]
ManifestFileInfoV2: id @12!, size_bytes u64, num_chunk_refs u32
NodeSnapshot: id @8!, path str!, user_data bytes!, node_data_type u8!, node_data <NodeData>!
ArrayNodeData: shape [=DimensionShape]!, dimension_names [DimensionName], \
manifests [ManifestRef]!, shape_v2 [DimensionShapeV2]
GroupNodeData:
DimensionName: name str
DimensionShapeV2: array_length u64, num_chunks u32
ManifestRef: object_id @12!, extents [=ChunkIndexRange]!
TransactionLog: id @12!, new_groups [@8]!, new_arrays [@8]!, deleted_groups [@8]!, \
deleted_arrays [@8]!, updated_arrays [@8]!, updated_groups [@8]!, \
updated_chunks [ArrayUpdatedChunks]!, moved_nodes [MoveOperation]
ArrayUpdatedChunks: node_id @8!, chunks [ChunkIndices]!
ChunkIndices: coords [u32]!
MoveOperation: from str!, to str!, node_id @8!, node_type u8
Repo: spec_version u8, tags [Ref]!, branches [Ref]!, deleted_tags [str]!, \
snapshots [SnapshotInfo]!, status RepoStatus!, metadata [MetadataItem], \
latest_updates [Update]!, repo_before_updates str, config bytes, \
enabled_feature_flags [u16], disabled_feature_flags [u16]
Ref: name str!, snapshot_index u32
SnapshotInfo: id @12!, parent_offset i32, flushed_at u64, message str!, \
metadata [MetadataItem], pruned_ancestor_tx_logs [@12]
RepoStatus: availability u8, set_at u64, limited_availability_reason str
Update: update_type_type u8!, update_type <UpdateType>!, updated_at u64, backup_path str
RepoInitialized:
RepoMigrated: from_version u8, to_version u8
ConfigChanged:
MetadataChanged:
TagCreated: name str!
TagDeleted: name str!, previous_snap_id @12!
BranchCreated: name str!
BranchDeleted: name str!, previous_snap_id @12!
BranchReset: name str!, previous_snap_id @12!
NewCommit: name str!, new_snap_id @12!
CommitAmended: name str!, previous_snap_id @12!, new_snap_id @12!
NewDetachedSnapshot: new_snap_id @12!
GCRan:
ExpirationRan:
FeatureFlagChanged: id u16, new_value u8, is_set u8
RepoStatusChanged: status RepoStatus!
"""
UNIONS: Final = {
    "NodeData": ["", "ArrayNodeData", "GroupNodeData"],
    "UpdateType": [
        *("", "RepoInitialized", "RepoMigrated", "ConfigChanged", "MetadataChanged"),
        *("TagCreated", "TagDeleted", "BranchCreated", "BranchDeleted", "BranchReset"),
        *("NewCommit", "CommitAmended", "NewDetachedSnapshot", "GCRan", "ExpirationRan"),
        *("FeatureFlagChanged", "RepoStatusChanged"),
    ],
}
STRUCTS: Final = {
    "ManifestFileInfo": struct.Struct("<12s4xQI4x"),
    "DimensionShape": struct.Struct("<QQ"),
    "ChunkIndexRange": struct.Struct("<II"),
}
NUMBERS: Final = {
    "u8": struct.Struct("<B"),
    "u16": struct.Struct("<H"),
    "u32": struct.Struct("<I"),
    "i32": struct.Struct("<i"),
    "u64": struct.Struct("<Q"),
}


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a table."""

    slot: int
    name: str
    type: str
    default: int
    is_required: bool


def _fields(text: str) -> Iterator[Field]:
    for slot, part in enumerate(re.split(r",\s*", text.strip())):
        name, kind = part.split(" ")
        kind, _, default = kind.partition("=") if kind[0] == "u" else (kind, "", "")
        yield Field(slot, name, kind.rstrip("!"), int(default or 0), kind.endswith("!"))


SCHEMA: Final = {
    table: tuple(_fields(text)) if text.strip() else ()
    for table, _, text in (line.partition(":") for line in _SCHEMA_TEXT.split("\n") if line)
}


_DEFAULTS: Final = {
    table: {field.name: field.default if field.type in NUMBERS else None for field in fields}
    for table, fields in SCHEMA.items()
}


class Record:
    """A decoded table: an attribute for each field, None for what is absent.

    Records are equal only to themselves.
    """

    __slots__ = ("__dict__", "_results")

    def __init__(self, values: dict[str, Any]) -> None:
        self.__dict__ = values
        self._results: dict[Any, Any] | None = None

    @property
    def results(self) -> dict[Any, Any]:
        """What functions of the record found out about it."""
        if self._results is None:
            self._results = {}
        return self._results

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    def __repr__(self) -> str:
        return repr(self.__dict__)


type _Place = tuple[Field, int, Callable[[int], Any] | None]


class Reader:
    """Decodes the tables of one flatbuffer; the layout of like tables is worked out once."""

    def __init__(self, buffer: bytes) -> None:
        self.buffer = buffer
        self._layouts: dict[tuple[str, int], list[_Place]] = {}
        self._texts: dict[int, str] = {}
        self._readers: dict[str, Callable[[int], Any]] = {
            "str": self._text,
            "bytes": lambda at: self._items(at, 1),
        }

    def root(self, table: str) -> Record:
        """Decode the whole file."""
        return self.table(table, self._follow(0))

    def table(self, name: str, at: int) -> Record:
        """Decode a table and everything below it."""
        values = dict(_DEFAULTS[name])
        previous: Any = None
        for field, offset, read in self.layout(name, at):
            if read is None:
                members = UNIONS[field.type[1:-1]]
                if not 0 < previous < len(members):
                    raise UnreadableError(f"{name} has a union without member {previous}")
                previous = self.table(members[previous], self._follow(at + offset))
            else:
                previous = read(at + offset)
            values[field.name] = previous
        return Record(values)

    def layout(self, name: str, at: int) -> "list[_Place]":
        """Return the fields that a table has, where they lie in it, and what reads them."""
        (distance,) = NUMBERS["i32"].unpack_from(self.buffer, at)
        where = at - distance
        layout = self._layouts.get((name, where))
        if layout is None:
            layout = self._layouts[name, where] = [*self._read_layout(name, where)]
        return layout

    def _read_layout(self, name: str, where: int) -> "Iterator[_Place]":
        if where < 0:
            raise UnreadableError("a table describes itself outside of the file")
        (size,) = NUMBERS["u16"].unpack_from(self.buffer, where)
        slots = struct.unpack_from(f"<{size // 2 - 2}H", self.buffer, where + 4)
        for field in SCHEMA[name]:
            offset = slots[field.slot] if field.slot < len(slots) else 0
            if offset:
                yield field, offset, self._reader(field.type)
            elif field.is_required:
                raise UnreadableError(f"{name} has no {field.name}")

    def _reader(self, kind: str) -> Callable[[int], Any] | None:
        """Return what reads a field of a type at a position; None for a union."""
        if kind[0] == "<":
            return None
        if kind not in self._readers:
            self._readers[kind] = self._make_reader(kind)
        return self._readers[kind]

    def _make_reader(self, kind: str) -> Callable[[int], Any]:
        if kind in NUMBERS:
            unpack = NUMBERS[kind].unpack_from
            return lambda at: unpack(self.buffer, at)[0]
        if kind[0] == "@":
            width = int(kind[1:])
            return lambda at: self._bytes(at, width)
        if kind[0] != "[":
            return lambda at: self.table(kind, self._follow(at))
        item = kind[1:-1]
        if item in NUMBERS:
            letter, size = NUMBERS[item].format[1:], NUMBERS[item].size
            return lambda at: struct.unpack(f"<{self.vector(at)[1]}{letter}", self._items(at, size))
        if item[0] == "@":
            width = int(item[1:])
            return lambda at: [
                bytes(raw) for (raw,) in struct.iter_unpack(f"{width}s", self._items(at, width))
            ]
        if item[0] == "=":
            layout = STRUCTS[item[1:]]
            return lambda at: [*layout.iter_unpack(self._items(at, layout.size))]
        if item == "str":
            return lambda at: [self._text(one) for one in self._positions(at)]
        return lambda at: [self.table(item, self._follow(one)) for one in self._positions(at)]

    def _bytes(self, first: int, width: int) -> bytes:
        if first + width > len(self.buffer):
            raise UnreadableError("a field reaches beyond the end of the file")
        return self.buffer[first : first + width]

    def _follow(self, at: int) -> int:
        (distance,) = NUMBERS["u32"].unpack_from(self.buffer, at)
        return int(at + distance)

    def vector(self, at: int) -> tuple[int, int]:
        """Return where the items of a vector begin, and their number."""
        start = self._follow(at)
        (count,) = NUMBERS["u32"].unpack_from(self.buffer, start)
        return start + 4, count

    def _items(self, at: int, width: int) -> bytes:
        start, count = self.vector(at)
        return self._bytes(start, width * count)

    def _positions(self, at: int) -> range:
        start, count = self.vector(at)
        self._bytes(start, 4 * count)
        return range(start, start + 4 * count, 4)

    def _text(self, at: int) -> str:
        start = self._follow(at)
        text = self._texts.get(start)
        if text is None:
            text = self._texts[start] = self._items(at, 1).decode()
        return text


# -- files ---------------------------------------------------------------------------------


def expand(data: bytes, table: str) -> bytes:
    """Return the flatbuffer in a file of a kind."""
    if len(data) < HEADER_BYTES or data[:12] != MAGIC:
        raise UnreadableError("it does not begin as a file of a repository")
    if data[36] not in (1, 2) or data[37] != FILE_TYPES[table] or data[38] != 1:
        raise UnreadableError(f"its header is not that of a {table}: {data[36:39].hex()}")
    frame = zstandard.ZstdDecompressor().decompressobj()
    try:
        buffer = frame.decompress(data[HEADER_BYTES:])
    except zstandard.ZstdError as failure:
        raise UnreadableError(str(failure)) from failure
    if not frame.eof or frame.unused_data:
        raise UnreadableError("its contents are not exactly one zstd frame")
    return buffer


class _Decoded:
    """Files that were decoded before; all of them go when there are too many."""

    def __init__(self) -> None:
        self.records: dict[tuple[str, bytes], Record] = {}
        self._size_bytes = 0

    def add(self, table: str, data: bytes, record: Record, size_bytes: int) -> None:
        if self._size_bytes + size_bytes > _MOST_CACHED_BYTES:
            self.records.clear()
            self._size_bytes = 0
        self.records[table, data] = record
        self._size_bytes += size_bytes


_DECODED: Final = _Decoded()


def decode(table: str, data: bytes) -> Record:
    """Decode a file; the record also has its spec version. The same bytes are decoded once."""
    known = _DECODED.records.get((table, data))
    if known is not None:
        return known
    buffer = expand(data, table)
    try:
        record = Reader(buffer).root(table)
        if table == "Manifest":
            _expand_locations(record)
    except (struct.error, IndexError, ValueError, RecursionError, zstandard.ZstdError) as failure:
        raise UnreadableError(f"{type(failure).__name__}: {failure}") from failure
    record = Record({**vars(record), "spec": data[36]})
    _DECODED.add(table, data, record, len(buffer))
    return record


def remembered[**P, T](
    function: Callable[Concatenate[Record, P], T],
) -> Callable[Concatenate[Record, P], T]:
    """Make a function of a record keep its results for as long as the record is kept."""

    def remembering(record: Record, /, *args: P.args, **kwargs: P.kwargs) -> T:
        key = (function, args, *kwargs.values())
        if key not in record.results:
            record.results[key] = function(record, *args, **kwargs)
        result: T = record.results[key]
        return result

    return remembering


def _expand_locations(manifest: Record) -> None:
    if manifest.compression_algorithm not in (0, 1):
        raise UnreadableError(f"unknown compression {manifest.compression_algorithm} of locations")
    refs = [ref for array in manifest.arrays for ref in array.refs]
    compressed = [ref for ref in refs if ref.compressed_location is not None]
    if not compressed:
        return
    if manifest.location_dictionary is None or manifest.compression_algorithm != 1:
        raise UnreadableError("it has compressed locations without a dictionary")
    dictionary = zstandard.ZstdCompressionDict(manifest.location_dictionary)
    expander = zstandard.ZstdDecompressor(dict_data=dictionary)
    for ref in compressed:
        raw = expander.decompressobj().decompress(ref.compressed_location)
        if len(raw) > LONGEST_LOCATION_BYTES:
            raise UnreadableError("a location is too long")
        ref.location = raw.decode()
