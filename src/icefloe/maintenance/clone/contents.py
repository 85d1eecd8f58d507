"""Copy the contents of versions to another storage: chunks, manifests, logs, snapshots, backups."""

import re
from collections.abc import (
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from typing import Any, Final

from icefloe.config import EffectiveStorageSettings
from icefloe.effects import map_concurrently
from icefloe.errors import ErrorKind, FormatError, ObjectNotFoundError, StorageError
from icefloe.format.envelope import object_attributes, open_envelope
from icefloe.format.ids import INITIAL_SNAPSHOT_ID, ManifestId, SnapshotId
from icefloe.format.layout import (
    BACKUPS_PREFIX,
    CHUNKS_PREFIX,
    CONFIG_KEY,
    MANIFESTS_PREFIX,
    SNAPSHOTS_PREFIX,
    TRANSACTIONS_PREFIX,
    manifest_key,
    snapshot_key,
    transaction_log_key,
)
from icefloe.maintenance.verify.objects import ChunkObjects
from icefloe.pacing import Pace, map_at_pace
from icefloe.records import MutableRecord, Record, field, replace
from icefloe.repo.context import RepoContext
from icefloe.storage import Backend, Buffer, ObjectInfo, Storage, Version
from icefloe.storage.capabilities import list_wanted
from icefloe.storage.specs import AzureSpec, GcsSpec, LocalSpec, MemorySpec, S3Spec
from icefloe.values.model import Progress
from icefloe.walk.history import (
    ManifestFact,
    ReadLimits,
    SnapshotFacts,
    StepCounter,
    read_manifests,
    read_snapshots,
    tables_of,
)
from icefloe.walk.reachability import list_objects, native_needs
from icefloe.walk.spill import KeySet

MOST_BYTES: Final = 256 * 2**20
"""Of objects that are held at the same time, unless a single one is larger."""
_MOST_OBJECTS: Final = 1024
_PIECE_BYTES: Final = 16 * 2**20
_NEAR_AT_ONCE: Final = 4
_MD5: Final = re.compile(r'"?([0-9a-fA-F]{32})"?\Z')

type ServerCopy = Callable[[str], Awaitable[None]]
"""Copies an object without its bytes coming here."""


class Transfer(Record):
    """Brings objects from one storage to another, under the same keys."""

    source: Backend
    target: Backend
    at_once: int
    is_near: bool
    server_copy: ServerCopy | None = None
    """How to copy within one store; None: through here."""
    pace: Pace = field(default_factory=Pace)

    @classmethod
    def between(
        cls, source: Storage, target: Storage, settings: EffectiveStorageSettings, at_once: int
    ) -> "Transfer":
        """Open both ends; `settings` and `at_once` are how the source is used."""
        is_near = all(
            isinstance(storage.spec, LocalSpec | MemorySpec) for storage in (source, target)
        )
        return cls(
            source.open(settings),
            target.open(),
            at_once,
            is_near,
            server_copy(source, target, settings),
        )

    async def copy(self, infos: Sequence[ObjectInfo]) -> int:
        """Copy objects; return how many bytes they have."""
        for some in portions_by_size(infos, lambda info: info.size_bytes):
            await self._for_each(self._copy, some)
        return sum(info.size_bytes for info in infos)

    async def _for_each[T](
        self, function: Callable[[ObjectInfo], Coroutine[Any, Any, T]], infos: Sequence[ObjectInfo]
    ) -> list[T]:
        if self.is_near:
            return await map_concurrently(function, infos, limit=min(self.at_once, _NEAR_AT_ONCE))
        return await map_at_pace(
            function,
            infos,
            pace=self.pace,
            most=self.at_once,
            size_of=lambda info: info.size_bytes,
        )

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
        comparisons: list[bool] = []
        for some in portions_by_size(infos, lambda info: min(info.size_bytes, _PIECE_BYTES) * 2):
            comparisons += await self._for_each(self._is_same, some)
        return [info.key for info, is_same in zip(infos, comparisons, strict=True) if not is_same]

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
    """Return the user metadata of a metadata file; raise if it is none."""
    try:
        envelope = open_envelope(data)
    except FormatError as damaged:
        damaged.add_note(f"key: {key}")
        raise
    return object_attributes(envelope.file_type, envelope.spec_version)


def have_same_checksum(left: Version, other: Version) -> bool:
    """Return whether two objects have the same checksum of their bytes.

    Entity tags of other forms are no checksums; different tags do not mean different bytes.

    >>> tag = '"9e107d9d372bb6826bd81d3542a419d6"'
    >>> have_same_checksum(Version(tag), Version(tag)), have_same_checksum(Version(), Version())
    (True, False)
    """
    ours, theirs = (_MD5.match(version.etag or "") for version in (left, other))
    return ours is not None and theirs is not None and ours[1].lower() == theirs[1].lower()


def portions_by_size[T](items: Iterable[T], size_of: Callable[[T], int]) -> Iterator[list[T]]:
    """Cut into portions that fit into memory.

    >>> [len(some) for some in portions_by_size([MOST_BYTES // 2 + 1] * 3, lambda size: size)]
    [1, 1, 1]
    """
    some: list[T] = []
    total = 0
    for element in items:
        size = size_of(element)
        if some and (total + size > MOST_BYTES or len(some) >= _MOST_OBJECTS):
            yield some
            some, total = [], 0
        some.append(element)
        total += size
    if some:
        yield some


def server_copy(
    source: Storage, target: Storage, settings: EffectiveStorageSettings
) -> ServerCopy | None:
    """Return a server-side copy function, if both storages are in one bucket and used alike."""
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
    """Return the error for a missing object of the source."""
    return ObjectNotFoundError(
        f"{key!r} is needed, but not in the source: either somebody collects garbage there, then"
        " run this again (what is copied stays), or it is lost, which `icefloe verify` can tell",
        key=key,
    )


_NAMES: Final = {
    CHUNKS_PREFIX: "chunks",
    MANIFESTS_PREFIX: "manifests",
    TRANSACTIONS_PREFIX: "transaction_logs",
    SNAPSHOTS_PREFIX: "snapshots",
    BACKUPS_PREFIX: "backups",
}
_MAY_BE_MISSING: Final = frozenset({TRANSACTIONS_PREFIX, BACKUPS_PREFIX})
"""Of these the history of a repository can lack some, and all versions are whole nevertheless."""


class LastFile(Record):
    """A file by which a place becomes a repository."""

    key: str
    data: bytes
    attributes: Mapping[str, str] = field(default_factory=dict)

    @property
    def content_type(self) -> str | None:
        """Return the content type, where it is plain text."""
        if self.key == CONFIG_KEY:
            return "application/yaml"
        return "application/json" if self.key.endswith(".json") else None


class Selection(Record):
    """The files of a clone; chunks and manifests follow from the snapshots."""

    spec_version: int
    snapshots: frozenset[SnapshotId]
    logs: frozenset[SnapshotId]
    last: tuple[LastFile, ...]
    """To be written when all else is there, in this order."""
    backups: frozenset[str] = frozenset()
    """Keys of earlier states of the repo object, in which the log of operations goes on."""
    rewritten: Mapping[str, bytes] = field(default_factory=dict)
    """Files that are not the same as in the source, by key."""
    is_everything: bool = True


class Done(MutableRecord):
    """Numbers of copied objects, by kind."""

    copied: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_NAMES.values(), 0))
    present: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_NAMES.values(), 0))
    """Objects that the target had already."""
    missing: dict[str, int] = field(default_factory=dict)
    """Logs and backups that the source lacks, too; only the history needs them."""
    compared: int = 0
    """How many objects were compared byte by byte."""
    size_bytes: int = 0
    """Of the objects that were copied."""


class Contents:
    """Copies the objects of a selection that the target does not have yet."""

    def __init__(
        self,
        context: RepoContext,
        transfer: Transfer,
        selection: Selection,
        limits: ReadLimits,
        progress: Progress | None = None,
    ) -> None:
        self._context = context
        self._transfer = transfer
        self._selection = selection
        self._limits = limits
        self._steps = StepCounter(progress)
        self._done = Done()

    async def copy(self, *, deep: bool) -> Done:
        """Copy everything and check it; `deep` compares all bytes in the end."""
        manifests = await self._manifests()
        files = self._files(manifests)
        self._steps.expect(sum(map(len, files.values())) + len(manifests))
        most = self._limits.key_bytes
        with ChunkObjects(self._transfer.target, max_bytes=most) as chunks, KeySet(most) as copied:
            await self._read_needs(manifests.values(), chunks, copied if deep else None)
            await self._copy_chunks(chunks)
            for prefix, keys in files.items():
                await self._copy_files(prefix, keys)
            if deep:
                await self._compare(files, copied)
        return self._done

    # -- what is needed --------------------------------------------------------------------

    async def _manifests(self) -> dict[ManifestId, ManifestFact]:
        """Read all versions for the manifests that they need."""
        facts_by_id: dict[ManifestId, ManifestFact] = {}
        ids = sorted(self._selection.snapshots)
        self._steps.expect(len(ids))
        async for facts in read_snapshots(
            self._context, ids, SnapshotFacts.of, limits=self._limits
        ):
            facts_by_id |= {manifest.id: manifest for manifest in facts.manifests}
            self._steps.advance(1)
        return facts_by_id

    def _files(self, manifests: Iterable[ManifestId]) -> dict[str, set[str]]:
        """Return the keys of files that are not chunks, in the order in which they are copied."""
        chosen = self._selection
        return {
            MANIFESTS_PREFIX: {*map(manifest_key, manifests)},
            TRANSACTIONS_PREFIX: {transaction_log_key(log) for log in chosen.logs},
            SNAPSHOTS_PREFIX: {snapshot_key(snapshot) for snapshot in chosen.snapshots},
            BACKUPS_PREFIX: {*chosen.backups},
        }

    async def _read_needs(
        self, facts: Iterable[ManifestFact], chunks: ChunkObjects, copied: KeySet | None
    ) -> None:
        """Read all manifests for the chunk objects that they refer to."""
        async for _, needs in read_manifests(
            self._context,
            facts,
            lambda manifest: [*map(native_needs, tables_of(manifest).values())],
            limits=self._limits,
            advance=self._steps.advance,
        ):
            for keys, ends in needs:
                chunks.add(keys, ends)
                if copied is not None:
                    copied.add(keys)

    # -- copying ---------------------------------------------------------------------------

    async def _copy_chunks(self, chunks: ChunkObjects) -> None:
        """Copy the chunk objects that are missing or too short, and look again."""
        todo = await chunks.compare()
        name, copied = _NAMES[CHUNKS_PREFIX], 0
        self._done.present[name] = chunks.objects - len(todo)
        if len(todo) == 0:
            return
        self._steps.expect(len(todo))
        async for batch in list_objects(self._transfer.source, CHUNKS_PREFIX, todo.concern):
            self._done.size_bytes += await self._transfer.copy(batch)
            copied += len(batch)
            self._steps.advance(len(batch))
        self._done.copied[name] = copied
        if lost := len(await chunks.compare()):
            raise gone(f"{CHUNKS_PREFIX}… ({lost} objects)")

    async def _copy_files(self, prefix: str, keys: set[str]) -> None:
        """Copy the files of one kind that are missing or of another size, and look again."""
        if not keys:
            return
        name = _NAMES[prefix]
        source = await _listed(self._transfer.source, prefix, keys)
        if absent := keys - source.keys() - {transaction_log_key(INITIAL_SNAPSHOT_ID)}:
            if prefix not in _MAY_BE_MISSING:
                raise gone(min(absent))
            self._done.missing[name] = len(absent)
        rewritten = {key: data for key, data in self._selection.rewritten.items() if key in keys}
        here = await _listed(self._transfer.target, prefix, keys)
        # Expiration in spec 1 writes snapshots again, perhaps of the same size.
        may_change = prefix == SNAPSHOTS_PREFIX and self._selection.spec_version == 1
        todo = [
            info
            for key, info in source.items()
            if key not in rewritten and (may_change or not _is_there(here, info))
        ]
        self._done.size_bytes += await self._transfer.copy(todo)
        for key, data in rewritten.items():
            attributes = attributes_of(key, data)
            await self._transfer.target.put(key, data, attributes=attributes)
        self._done.copied[name] = len(todo) + len(rewritten)
        self._done.present[name] = len(source) - len(todo) - len(rewritten)
        here = await _listed(self._transfer.target, prefix, keys)
        for key, info in source.items():
            if key not in rewritten and not _is_there(here, info):
                raise not_the_same(key)
        self._steps.advance(len(keys))

    # -- making sure -----------------------------------------------------------------------

    async def _compare(self, files: Mapping[str, set[str]], copied: KeySet) -> None:
        async for batch in list_objects(self._transfer.source, CHUNKS_PREFIX, copied.contains):
            await self._require_same(batch)
        for prefix, keys in files.items():
            source = await _listed(self._transfer.source, prefix, keys)
            await self._require_same(
                [info for key, info in source.items() if key not in self._selection.rewritten]
            )

    async def _require_same(self, infos: Sequence[ObjectInfo]) -> None:
        """Compare bytes; what differs is copied once more."""
        self._steps.expect(len(infos))
        if differing := {*await self._transfer.differing(infos)}:
            again = [info for info in infos if info.key in differing]
            self._done.size_bytes += await self._transfer.copy(again)
            for info in again:
                self._done.copied[_NAMES[f"{info.key.partition('/')[0]}/"]] += 1
            if still := await self._transfer.differing(again):
                raise not_the_same(still[0])
        self._done.compared += len(infos)
        self._steps.advance(len(infos))


async def _listed(backend: Backend, prefix: str, keys: set[str]) -> dict[str, ObjectInfo]:
    return {
        info.key: info
        async for batch in list_wanted(
            backend, prefix, lambda names: [name in keys for name in names]
        )
        for info in batch
    }


def _is_there(here: Mapping[str, ObjectInfo], info: ObjectInfo) -> bool:
    stored = here.get(info.key)
    return stored is not None and stored.size_bytes == info.size_bytes


def not_the_same(key: str) -> StorageError:
    """Return the error for an object that differs from the bytes just written under its key."""
    return StorageError(
        f"{key!r} was copied, but is not the same afterwards: see whether somebody else writes to"
        " that place, and whether its storage is sound (`icefloe doctor`)",
        ErrorKind.INVALID_OBJECT_SIZE,
        key=key,
    )
