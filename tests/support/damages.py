"""Many ways to damage the files of a repository, one at a time."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import zstandard

from tests.support.oracle import (
    HEADER_BYTES,
    NUMBERS,
    STRUCTS,
    Field,
    Reader,
    Record,
    decode,
    expand,
)

_TABLES: Final = {
    "repo": "Repo",
    "overwritten": "Repo",
    "snapshots": "Snapshot",
    "manifests": "Manifest",
    "transactions": "TransactionLog",
}
_HEADER_DAMAGES: Final = {"magic": 0, "spec version": 36, "file type": 37, "compression": 38}


@dataclass(frozen=True, slots=True)
class Damage:
    """The files of a repository, one of them damaged."""

    kind: str
    """What was done, without naming the file."""
    key: str
    files: Mapping[str, bytes]


def folder_of(key: str) -> str:
    return key.partition("/")[0]


# -- whole files ---------------------------------------------------------------------------


def damaged_files(files: Mapping[str, bytes], instances: int = 1) -> Iterator[Damage]:
    """Delete, cut, garble and exchange files: of each folder, the first few."""
    done: Counter[str] = Counter()
    for key in sorted(files):
        for change, changed in _changed_file(files, key):
            kind = f"{folder_of(key)} {change}"
            if done[kind] < instances:
                done[kind] += 1
                yield Damage(kind, key, changed)


def _changed_file(
    files: Mapping[str, bytes], key: str
) -> Iterator[tuple[str, Mapping[str, bytes]]]:
    data, folder = files[key], folder_of(key)
    yield "missing", {name: content for name, content in files.items() if name != key}
    contents = {"empty": b"", "cut": data[:-1], "halved": data[: len(data) // 2]}
    if folder in _TABLES:
        contents["longer"] = data + b"\0"
        for name, at in _HEADER_DAMAGES.items():
            contents[f"header {name}"] = data[:at] + bytes([data[at] ^ 0xF0]) + data[at + 1 :]
    for kind, content in contents.items():
        if content != data:
            yield kind, {**files, key: content}
    others = [name for name in files if folder_of(name) == folder and name != key]
    if others and folder in ("snapshots", "manifests", "transactions"):
        yield "exchanged", {**files, key: files[others[0]], others[0]: data}


# -- single fields -------------------------------------------------------------------------


class _Tracer(Reader):
    """Remembers where every field of a file lies."""

    def __init__(self, buffer: bytes) -> None:
        super().__init__(buffer)
        self.fields: list[tuple[str, Field, int]] = []

    def table(self, name: str, at: int) -> Record:
        self.fields += [(name, field, at + offset) for field, offset, _ in self.layout(name, at)]
        return super().table(name, at)


def damaged_fields(files: Mapping[str, bytes], instances: int = 1) -> Iterator[Damage]:
    """Change fields in every way that fits their type: of each field, the last few there are."""
    done: Counter[str] = Counter()
    for key in sorted(files, reverse=True):
        table = _TABLES.get(folder_of(key))
        if table is None:
            continue
        tracer = _Tracer(expand(files[key], table))
        tracer.root(table)
        for name, field, at in reversed(tracer.fields):
            for change, buffer in _changed(tracer, field, at):
                kind = f"{folder_of(key)} {name}.{field.name} {change}"
                if done[kind] < instances:
                    done[kind] += 1
                    yield Damage(kind, key, _with_buffer(files, key, buffer))


def _changed(reader: Reader, field: Field, at: int) -> Iterator[tuple[str, bytes]]:
    kind = field.type
    if kind in NUMBERS:
        yield "more", _added(reader.buffer, at, NUMBERS[kind].size, 1)
        yield "less", _added(reader.buffer, at, NUMBERS[kind].size, -1)
    elif kind[0] == "@":
        yield "other", _added(reader.buffer, at + int(kind[1:]) - 1, 1, 1)
    elif kind in ("str", "bytes"):
        start, count = reader.vector(at)
        if count:
            yield "other", _added(reader.buffer, start + count - 1, 1, 1)
            yield "shorter", _added(reader.buffer, start - 4, 4, -1)
    elif kind[0] == "[":
        yield from _changed_vector(reader, kind[1:-1], at)


def _changed_vector(reader: Reader, item: str, at: int) -> Iterator[tuple[str, bytes]]:
    start, count = reader.vector(at)
    if not count:
        return
    width = 4
    if item in NUMBERS:
        width = NUMBERS[item].size
    elif item[0] == "@":
        width = int(item[1:])
    elif item[0] == "=":
        width = STRUCTS[item[1:]].size
    yield "shorter", _added(reader.buffer, start - 4, 4, -1)
    last = start + width * (count - 1)
    if item in NUMBERS or item[0] in "@=":
        for offset in range(0, width, 4):
            yield f"other at {offset}", _added(reader.buffer, last + offset, 1, 1)
    if count > 1:
        # Tables are named by their distance, which depends on where the name stands.
        step = 0 if item in NUMBERS or item[0] in "@=" else width
        one, other = (reader.buffer[place : place + width] for place in (last - width, last))
        moved = _shifted(other, step), _shifted(one, -step)
        for change, pair in {
            "swapped": (moved[0], moved[1]),
            "doubled": (one, moved[1]),
        }.items():
            yield change, _replaced(reader.buffer, last - width, b"".join(pair))


def _shifted(distance: bytes, by: int) -> bytes:
    if not by:
        return distance
    return (int.from_bytes(distance, "little") + by).to_bytes(len(distance), "little")


def _added(buffer: bytes, at: int, width: int, by: int) -> bytes:
    number = int.from_bytes(buffer[at : at + width], "little") + by
    return _replaced(buffer, at, (number % 2 ** (8 * width)).to_bytes(width, "little"))


def _replaced(buffer: bytes, at: int, content: bytes) -> bytes:
    return buffer[:at] + content + buffer[at + len(content) :]


def _with_buffer(files: Mapping[str, bytes], key: str, buffer: bytes) -> dict[str, bytes]:
    """Put other contents into a file; snapshots give the new size of a manifest."""
    data = files[key]
    sealed = data[:HEADER_BYTES] + zstandard.ZstdCompressor().compress(buffer)
    changed = dict(files) | {key: sealed}
    if folder_of(key) == "manifests":
        for name in files:
            if folder_of(name) == "snapshots":
                changed[name] = _with_size(files[name], data, sealed)
    return changed


def _with_size(snapshot: bytes, old: bytes, new: bytes) -> bytes:
    """Let a snapshot that lists a manifest know its new size."""
    manifest_id = decode("Manifest", old).id
    tracer = _Tracer(expand(snapshot, "Snapshot"))
    tracer.root("Snapshot")
    buffer = tracer.buffer
    size = len(new).to_bytes(8, "little")
    listed = b""
    for _, field, at in tracer.fields:
        if field.name == "manifest_files":
            start, count = tracer.vector(at)
            width = STRUCTS["ManifestFileInfo"].size
            for place in range(start, start + width * count, width):
                if buffer[place : place + 12] == manifest_id:
                    buffer = _replaced(buffer, place + 16, size)
        elif field.name == "size_bytes" and listed == manifest_id:
            buffer = _replaced(buffer, at, size)
        listed = buffer[at : at + 12] if field.type == "@12" else b""
    return snapshot[:HEADER_BYTES] + zstandard.ZstdCompressor().compress(buffer)
