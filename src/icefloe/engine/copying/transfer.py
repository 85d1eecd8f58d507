"""Objects on their way from one storage to another."""

import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from icefloe.config import EffectiveStorageSettings
from icefloe.effects import map_concurrently
from icefloe.errors import ErrorKind, FormatError, ObjectNotFoundError, StorageError
from icefloe.format.envelope import object_attributes, open_envelope
from icefloe.format.layout import CHUNKS_PREFIX
from icefloe.storage import Backend, Buffer, ObjectInfo, Storage, Version
from icefloe.storage.specs import AzureSpec, GcsSpec, LocalSpec, MemorySpec, S3Spec

MOST_BYTES: Final = 256 * 2**20
"""Of objects that are held at the same time, unless a single one is larger."""
_MOST_OBJECTS: Final = 1024
_PIECE_BYTES: Final = 16 * 2**20
_NEAR_AT_ONCE: Final = 4
_MD5: Final = re.compile(r'"?([0-9a-fA-F]{32})"?\Z')

type ServerCopy = Callable[[str], Awaitable[None]]
"""Copies an object without its bytes coming here."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """Brings objects from one storage to another, under the same keys."""

    source: Backend
    target: Backend
    at_once: int
    server_copy: ServerCopy | None = None
    """How to copy within one store; None: through here."""

    @classmethod
    def between(
        cls, source: Storage, target: Storage, settings: EffectiveStorageSettings, at_once: int
    ) -> "Transfer":
        """Open both ends; `settings` and `at_once` are how the source is used."""
        is_near = all(isinstance(one.spec, LocalSpec | MemorySpec) for one in (source, target))
        return cls(
            source.open(settings),
            target.open(),
            min(at_once, _NEAR_AT_ONCE) if is_near else at_once,
            server_copy(source, target, settings),
        )

    async def copy(self, infos: Sequence[ObjectInfo]) -> int:
        """Copy objects; give how many bytes they have."""
        for some in portions(infos, lambda info: info.size_bytes):
            await map_concurrently(self._copy, some, limit=self.at_once)
        return sum(info.size_bytes for info in infos)

    async def _copy(self, info: ObjectInfo) -> None:
        if self.server_copy is not None:
            try:
                await self.server_copy(info.key)
            except ObjectNotFoundError:
                raise gone(info.key) from None
            except StorageError:
                pass  # too large for one request, or not allowed: the bytes come this way
            else:
                return
        try:
            fetched = await self.source.get(info.key)
        except ObjectNotFoundError:
            raise gone(info.key) from None
        if len(fetched.data) != info.size_bytes:
            raise StorageError(
                f"{info.key!r} has {len(fetched.data)} bytes where the storage lists"
                f" {info.size_bytes}: it is damaged, or being written",
                ErrorKind.INVALID_OBJECT_SIZE,
                key=info.key,
            )
        attributes = {**fetched.attributes}
        if not info.key.startswith(CHUNKS_PREFIX):
            attributes = {**attributes_of(info.key, fetched.data), **attributes}
        await self.target.put(info.key, fetched.data, attributes=attributes)

    async def differing(self, infos: Sequence[ObjectInfo]) -> list[str]:
        """Compare objects byte by byte, and list those that are not the same."""
        found: list[bool] = []
        for some in portions(infos, lambda info: min(info.size_bytes, _PIECE_BYTES) * 2):
            found += await map_concurrently(self._is_same, some, limit=self.at_once)
        return [info.key for info, is_same in zip(infos, found, strict=True) if not is_same]

    async def _is_same(self, info: ObjectInfo) -> bool:
        try:
            there = (await self.target.head(info.key)).info
        except ObjectNotFoundError:
            return False
        if there.size_bytes != info.size_bytes:
            return False
        if have_same_checksum(info.version, there.version):
            return True
        for first in range(0, info.size_bytes, _PIECE_BYTES):
            piece = (first, min(first + _PIECE_BYTES, info.size_bytes))
            ours = (await self.source.get(info.key, piece)).data
            theirs = (await self.target.get(info.key, piece)).data
            if memoryview(ours) != memoryview(theirs):
                return False
        return True


def attributes_of(key: str, data: Buffer) -> dict[str, str]:
    """Give the user metadata that goes with a metadata file; refuse what is none."""
    try:
        envelope = open_envelope(data)
    except FormatError as damaged:
        damaged.add_note(f"key: {key}")
        raise
    return object_attributes(envelope.file_type, envelope.spec_version)


def have_same_checksum(one: Version, other: Version) -> bool:
    """Say whether storages tell by a checksum of the bytes that two objects are the same.

    Entity tags of other forms tell nothing, and even of this form only if they are equal.

    >>> tag = '"9e107d9d372bb6826bd81d3542a419d6"'
    >>> have_same_checksum(Version(tag), Version(tag)), have_same_checksum(Version(), Version())
    (True, False)
    """
    ours, theirs = (_MD5.match(version.etag or "") for version in (one, other))
    return ours is not None and theirs is not None and ours[1].lower() == theirs[1].lower()


def portions[T](items: Iterable[T], size_of: Callable[[T], int]) -> Iterator[list[T]]:
    """Cut into portions that may be held at once.

    >>> [len(some) for some in portions([MOST_BYTES // 2 + 1] * 3, lambda size: size)]
    [1, 1, 1]
    """
    some: list[T] = []
    held = 0
    for item in items:
        size = size_of(item)
        if some and (held + size > MOST_BYTES or len(some) >= _MOST_OBJECTS):
            yield some
            some, held = [], 0
        some.append(item)
        held += size
    if some:
        yield some


def server_copy(
    source: Storage, target: Storage, settings: EffectiveStorageSettings
) -> ServerCopy | None:
    """Say how to copy within one bucket, if both are in the same and used in the same way."""
    match source.spec, target.spec:
        case (
            (S3Spec() as ours, S3Spec() as theirs)
            | (GcsSpec() as ours, GcsSpec() as theirs)
            | (AzureSpec() as ours, AzureSpec() as theirs)
        ):
            whole = replace(ours, prefix="")
            if whole != replace(theirs, prefix="") or type(source) is not type(target):
                return None
            bucket = Storage(whole).open(settings)

            async def copy(key: str) -> None:
                await bucket.copy(_below(ours.prefix, key), _below(theirs.prefix, key))

            return copy
    return None


def _below(prefix: str, key: str) -> str:
    return f"{prefix}/{key}" if prefix else key


def gone(key: str) -> ObjectNotFoundError:
    """Say that an object of the source is not there."""
    return ObjectNotFoundError(
        f"{key!r} is needed, but not in the source: either somebody collects garbage there, then"
        " run this again (what is copied stays), or it is lost, which `icefloe verify` can tell",
        key=key,
    )
