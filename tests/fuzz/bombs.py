"""Small files that describe something huge: each must be refused, or stay within bounds.

Buffers are laid out by hand, since no library would write them: offsets may only point
forward, so that what is shared stands at the end.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import zstandard
from numpy.typing import NDArray

from icefloe.format.envelope import MAGIC, FileType

_MIB = 2**20


def enclosed(file_type: FileType, buffer: bytes) -> bytes:
    """Compress a buffer and put a header before it."""
    return _header(file_type) + zstandard.ZstdCompressor(level=1).compress(buffer)


def _header(file_type: FileType) -> bytes:
    return MAGIC + b"fuzz".ljust(24) + bytes([2, file_type, 1])


class Layout:
    """A buffer under construction, from its start to its end; offsets are filled in later."""

    def __init__(self) -> None:
        self._parts: list[bytes] = [bytes(4) + b"Ichk"]
        self._links: list[tuple[int, str]] = [(0, "root")]
        self._places: dict[str, int] = {}
        self._runs: list[tuple[int, int, str]] = []
        self.size = 8

    def _add(self, data: bytes) -> int:
        at = self.size
        self._parts.append(data + bytes(-len(data) % 8))
        self.size += len(data) + -len(data) % 8
        return at

    def table(self, name: str, fields: dict[int, bytes | str]) -> None:
        """Add a table: bytes are stored as they are, names become offsets."""
        slots = [0] * (1 + max(fields, default=-1))
        body, links = bytearray(4), []
        for slot, value in sorted(fields.items(), key=lambda item: -_width(item[1])):
            body += bytes(-len(body) % _alignment(value))
            slots[slot] = len(body)
            if isinstance(value, str):
                links.append((len(body), value))
                body += bytes(4)
            else:
                body += value
        vtable = struct.pack(f"<{2 + len(slots)}H", 4 + 2 * len(slots), len(body), *slots)
        vtable += bytes(-len(vtable) % 8)
        at = self._add(vtable + struct.pack("<i", len(vtable)) + body[4:])
        table = at + len(vtable)
        self._places[name] = table
        self._links += [(table + offset, target) for offset, target in links]

    def vector(self, name: str, count: int, data: bytes) -> None:
        """Add a vector of plain items, or a string."""
        self._places[name] = self._add(struct.pack("<I", count) + data + b"\0")

    def structs(self, name: str, count: int, data: bytes) -> None:
        """Add a vector of items that are eight bytes wide, or a multiple of that."""
        self._places[name] = self._add(bytes(4) + struct.pack("<I", count) + data) + 4

    def links(self, name: str, targets: Sequence[str]) -> None:
        """Add a vector of offsets."""
        at = self._add(struct.pack("<I", len(targets)) + bytes(4 * len(targets)))
        self._places[name] = at
        self._links += [(at + 4 + 4 * n, target) for n, target in enumerate(targets)]

    def repeated_link(self, name: str, count: int, target: str) -> None:
        """Add a vector of offsets that all lead to one thing."""
        at = self._add(struct.pack("<I", count) + bytes(4 * count))
        self._places[name] = at
        self._runs.append((at + 4, count, target))

    def finish(self) -> bytes:
        """Fill in all offsets."""
        data = bytearray(b"".join(self._parts))
        for at, target in self._links:
            struct.pack_into("<I", data, at, self._places[target] - at)
        words = np.frombuffer(data, "<u4")
        for at, count, target in self._runs:
            fields = at + 4 * np.arange(count)
            words[at // 4 : at // 4 + count] = self._places[target] - fields
        return bytes(data)


def _width(value: bytes | str) -> int:
    return 4 if isinstance(value, str) else len(value)


def _alignment(value: bytes | str) -> int:
    return 4 if isinstance(value, str) or len(value) % 8 else 8


# -- zstd ----------------------------------------------------------------------------------


def _runs_of_zeros(blocks: int) -> bytes:
    """A frame without a size, made of blocks of four bytes that expand to 128 KiB each."""
    run = struct.pack("<I", (128 * 1024) << 3 | 1 << 1)[:3] + b"\0"
    last = struct.pack("<I", 1 << 3 | 1 << 1 | 1)[:3] + b"\0"
    return bytes.fromhex("28b52ffd 00 38") + run * blocks + last


def _announced(size_bytes: int) -> bytes:
    """A frame that promises a size."""
    return bytes.fromhex("28b52ffd e0") + struct.pack("<Q", size_bytes) + b"\1\0\0"


# -- sharing -------------------------------------------------------------------------------


def _manifest(refs: int, ref: dict[int, bytes | str], rest: Callable[[Layout], None]) -> bytes:
    layout = Layout()
    layout.table("root", {0: bytes(12), 1: "arrays", 2: "dictionary"})
    layout.links("arrays", ["array"])
    layout.table("array", {0: bytes(8), 1: "refs"})
    layout.repeated_link("refs", refs, "ref")
    layout.table("ref", ref)
    rest(layout)
    layout.vector("dictionary", 0, b"")
    return enclosed(FileType.MANIFEST, layout.finish())


def shared_inline(refs: int = 200_000) -> bytes:
    def rest(layout: Layout) -> None:
        layout.vector("index", 1, bytes(4))
        layout.vector("inline", _MIB, bytes(_MIB))

    return _manifest(refs, {0: "index", 1: "inline"}, rest)


def many_dimensions() -> bytes:
    """One reference in an array of millions of dimensions."""
    count = 4_000_000

    def rest(layout: Layout) -> None:
        layout.vector("index", count, bytes(4 * count))
        layout.vector("inline", 1, b"x")

    return _manifest(1, {0: "index", 1: "inline"}, rest)


def arrays_that_share_references(arrays: int = 3000, refs: int = 100_000) -> bytes:
    layout = Layout()
    layout.table("root", {0: bytes(12), 1: "arrays"})
    layout.links("arrays", [f"array{n}" for n in range(arrays)])
    for n in range(arrays):
        layout.table(f"array{n}", {0: n.to_bytes(8, "big"), 1: "refs"})
    layout.repeated_link("refs", refs, "ref")
    layout.table("ref", {0: "index", 1: "inline"})
    layout.vector("index", 1, bytes(4))
    layout.vector("inline", 1, b"x")
    return enclosed(FileType.MANIFEST, layout.finish())


def expanding_locations(refs: int = 50_000) -> bytes:
    """Frames of a few bytes, all different, that expand to the most a location may have."""
    layout = Layout()
    layout.table("root", {0: bytes(12), 1: "arrays", 2: "dictionary"})
    layout.links("arrays", ["array"])
    layout.table("array", {0: bytes(8), 1: "refs"})
    layout.links("refs", [f"ref{n}" for n in range(refs)])
    for n in range(refs):
        layout.table(f"ref{n}", {0: f"index{n}", 8: f"frame{n}"})
        layout.vector(f"index{n}", 1, struct.pack("<I", n))
        frame = _frame_of_1024(b"%07d" % n)
        layout.vector(f"frame{n}", len(frame), frame)
    layout.vector("dictionary", 8, b"rawbytes")
    return enclosed(FileType.MANIFEST, layout.finish())


def _frame_of_1024(text: bytes) -> bytes:
    """A frame of a raw block, then one byte repeated."""
    raw = struct.pack("<I", len(text) << 3)[:3] + text
    run = struct.pack("<I", (1024 - len(text)) << 3 | 1 << 1 | 1)[:3] + b"x"
    return bytes.fromhex("28b52ffd 60") + struct.pack("<H", 1024 - 256) + raw + run


def _log(fields: dict[int, bytes | str], rest: Callable[[Layout], None]) -> bytes:
    layout = Layout()
    root: dict[int, bytes | str] = dict.fromkeys(range(1, 8), "none")
    layout.table("root", root | {0: bytes(12)} | fields)
    rest(layout)
    layout.vector("none", 0, b"")
    return enclosed(FileType.TRANSACTION_LOG, layout.finish())


def one_array_listed_often(count: int = 3_000_000) -> bytes:
    def rest(layout: Layout) -> None:
        layout.repeated_link("arrays", count, "array")
        layout.table("array", {0: bytes(8), 1: "none"})

    return _log({7: "arrays"}, rest)


def arrays_that_share_chunks(arrays: int = 3000, chunks: int = 100_000) -> bytes:
    def rest(layout: Layout) -> None:
        layout.links("arrays", [f"array{n}" for n in range(arrays)])
        for n in range(arrays):
            layout.table(f"array{n}", {0: n.to_bytes(8, "big"), 1: "chunks"})
        layout.repeated_link("chunks", chunks, "chunk")
        layout.table("chunk", {0: "coordinates"})
        layout.vector("coordinates", 2, bytes(8))

    return _log({7: "arrays"}, rest)


def chunks_of_every_dimension(most: int = 2500) -> bytes:
    """Arrays of one chunk each, no two of them with equally many dimensions."""

    def rest(layout: Layout) -> None:
        layout.links("arrays", [f"array{n}" for n in range(most)])
        for n in range(most):
            layout.table(f"array{n}", {0: n.to_bytes(8, "big"), 1: f"chunks{n}"})
            layout.links(f"chunks{n}", [f"chunk{n}"])
            layout.table(f"chunk{n}", {0: f"coordinates{n}"})
            layout.vector(f"coordinates{n}", n, bytes(4 * n))

    return _log({7: "arrays"}, rest)


def one_move_listed_often(count: int = 3_000_000) -> bytes:
    def rest(layout: Layout) -> None:
        layout.repeated_link("moves", count, "move")
        layout.table("move", {0: "path", 1: "path", 2: bytes(8)})
        layout.vector("path", 2, b"/a")

    return _log({8: "moves"}, rest)


def _snapshot(rest: Callable[[Layout], None], fields: dict[int, bytes | str]) -> bytes:
    layout = Layout()
    root: dict[int, bytes | str] = dict.fromkeys((2, 4, 5, 6, 7), "none")
    layout.table("root", root | {0: bytes(12)} | fields)
    rest(layout)
    layout.vector("none", 0, b"")
    return enclosed(FileType.SNAPSHOT, layout.finish())


def one_node_listed_often(count: int = 4_000_000, user_data: int = 0) -> bytes:
    def rest(layout: Layout) -> None:
        layout.repeated_link("nodes", count, "node")
        layout.table("node", {0: bytes(8), 1: "path", 2: "data", 3: b"\2", 4: "group"})
        layout.table("group", {})
        layout.vector("path", 2, b"/a")
        layout.vector("data", user_data, bytes(user_data))

    return _snapshot(rest, {2: "nodes"})


def arrays_that_share_manifests(arrays: int = 20_000, manifests: int = 20_000) -> bytes:
    def rest(layout: Layout) -> None:
        layout.repeated_link("nodes", arrays, "node")
        layout.table("node", {0: bytes(8), 1: "none", 2: "none", 3: b"\1", 4: "array"})
        layout.table("array", {0: "none", 2: "manifests", 3: "none"})
        layout.repeated_link("manifests", manifests, "manifest")
        layout.table("manifest", {0: bytes(12), 1: "extents"})
        layout.vector("extents", 100, bytes(800))

    return _snapshot(rest, {2: "nodes"})


def one_item_listed_often(count: int = 3_000_000) -> bytes:
    def rest(layout: Layout) -> None:
        layout.repeated_link("items", count, "item")
        layout.table("item", {0: "name", 1: "value"})
        layout.vector("name", 1, b"a")
        layout.vector("value", 3, b"\1\x68\1")

    return _snapshot(rest, {5: "items"})


def items_that_share_a_value(count: int = 5000) -> bytes:
    size = _MIB

    def rest(layout: Layout) -> None:
        layout.links("items", [f"item{n}" for n in range(count)])
        for n in range(count):
            layout.table(f"item{n}", {0: f"name{n}", 1: "value"})
            layout.vector(f"name{n}", 4, n.to_bytes(4, "big").hex().encode()[:4])
        vector = struct.pack("<I", size // 2) + bytes(size)
        value = vector + struct.pack("<I", size) + bytes([12 << 2 | 1, 4])
        layout.vector("value", len(value), value)

    return _snapshot(rest, {5: "items"})


def _repo(rest: Callable[[Layout], None], fields: dict[int, bytes | str]) -> bytes:
    layout = Layout()
    root: dict[int, bytes | str] = {
        0: b"\2", 1: "none", 2: "branches", 3: "none", 4: "snapshots", 5: "status", 7: "updates",
    }  # fmt: skip
    layout.table("root", root | fields)
    layout.links("branches", ["main"])
    layout.links("snapshots", ["snapshot"])
    layout.links("updates", ["update"])
    rest(layout)
    layout.table("main", {0: "name"})
    layout.table("snapshot", {0: bytes(12), 1: b"\xff" * 4, 3: "name"})
    layout.table("update", {0: b"\x0a", 1: "payload"})
    layout.table("payload", {0: "name", 1: bytes(12), 2: bytes(12)})
    layout.table("status", {2: "name"})
    layout.vector("name", 4, b"main")
    layout.vector("none", 0, b"")
    return enclosed(FileType.REPO_INFO, layout.finish())


def one_update_listed_often(kind: int, count: int = 3_000_000) -> bytes:
    def rest(layout: Layout) -> None:
        layout.repeated_link("many", count, "one")
        layout.table("one", {0: bytes([kind]), 1: "payload" if kind != 16 else "changed"})
        layout.table("changed", {0: "status"})

    return _repo(rest, {7: "many"})


def one_snapshot_listed_often(count: int = 3_000_000) -> bytes:
    return _repo(lambda layout: layout.repeated_link("many", count, "snapshot"), {4: "many"})


def one_tag_listed_often(count: int = 3_000_000) -> bytes:
    return _repo(lambda layout: layout.repeated_link("many", count, "main"), {1: "many"})


def one_deleted_tag_listed_often(count: int = 3_000_000) -> bytes:
    return _repo(lambda layout: layout.repeated_link("many", count, "name"), {3: "many"})


def long_message_shared(count: int = 3_000) -> bytes:
    def rest(layout: Layout) -> None:
        layout.repeated_link("many", count, "one")
        layout.table("one", {0: bytes(12), 1: b"\xff" * 4, 3: "long"})
        layout.vector("long", _MIB, b"x" * _MIB)

    return _repo(rest, {4: "many"})


def overlapping_tables(file_type: FileType, words: Sequence[int], size: int = 16 * _MIB) -> bytes:
    """A short pattern repeated, within which every word is a table and its own vtable."""
    pattern: NDArray[np.uint32] = np.resize(np.array(words, "<u4"), size // 4)
    return enclosed(file_type, pattern.tobytes())


def zeros() -> bytes:
    return enclosed(FileType.REPO_INFO, bytes(64 * _MIB))


def unsized_frame(file_type: FileType) -> bytes:
    return _header(file_type) + _runs_of_zeros(100_000)


def announced_frame(size_bytes: int) -> bytes:
    return _header(FileType.MANIFEST) + _announced(size_bytes)


_BY_TYPE: dict[FileType, Sequence[Callable[[], bytes]]] = {
    FileType.MANIFEST: (
        shared_inline,
        many_dimensions,
        arrays_that_share_references,
        expanding_locations,
        *(partial(announced_frame, size) for size in (2**31, 2**40, 2**63, 2**64 - 3)),
    ),
    FileType.TRANSACTION_LOG: (
        one_array_listed_often,
        arrays_that_share_chunks,
        chunks_of_every_dimension,
        one_move_listed_often,
    ),
    FileType.SNAPSHOT: (
        one_node_listed_often,
        arrays_that_share_manifests,
        one_item_listed_often,
        items_that_share_a_value,
        partial(one_node_listed_often, 10_000, user_data=_MIB),
    ),
    FileType.REPO_INFO: (
        zeros,
        one_snapshot_listed_often,
        one_tag_listed_often,
        one_deleted_tag_listed_often,
        long_message_shared,
        *(partial(one_update_listed_often, kind) for kind in (3, 10, 16)),
    ),
}
_PATTERNS = ((0x00040004,), (0x00140008, 0x00100004), (4, 0x00200010, 0x00080004, 8))


def bombs(file_type: FileType) -> Iterator[Callable[[], bytes]]:
    """All of a type, each made when it is called."""
    yield from _BY_TYPE[file_type]
    yield partial(unsized_frame, file_type)
    for words in _PATTERNS:
        yield partial(overlapping_tables, file_type, words)
