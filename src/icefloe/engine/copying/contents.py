"""What versions need, brought to another storage: chunks, manifests, logs, snapshots, backups."""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from icefloe.effects import map_concurrently, offload
from icefloe.engine.context import RepoContext
from icefloe.engine.copying.selection import Selection
from icefloe.engine.copying.transfer import Transfer, attributes_of, gone
from icefloe.engine.maintenance.key_set import Keys, KeySet, keys_of_names
from icefloe.engine.maintenance.reachability import (
    ManifestFact,
    ReadLimits,
    portions,
    read_facts,
    requests_at_once,
    tables_of,
)
from icefloe.engine.verification.chunk_objects import ChunkObjects, Faults, native_needs
from icefloe.engine.verification.keyed import Values
from icefloe.errors import ErrorKind, StorageError
from icefloe.format.columns import Bools
from icefloe.format.ids import INITIAL_SNAPSHOT_ID
from icefloe.format.layout import (
    BACKUPS_PREFIX,
    CHUNKS_PREFIX,
    MANIFESTS_PREFIX,
    SNAPSHOTS_PREFIX,
    TRANSACTIONS_PREFIX,
    manifest_key,
    snapshot_key,
    transaction_log_key,
)
from icefloe.storage import Backend, ObjectInfo
from icefloe.storage.selective import list_wanted
from icefloe.values.progress import Progress

_NAMES: Final = {
    CHUNKS_PREFIX: "chunks",
    MANIFESTS_PREFIX: "manifests",
    TRANSACTIONS_PREFIX: "transaction_logs",
    SNAPSHOTS_PREFIX: "snapshots",
    BACKUPS_PREFIX: "backups",
}
_MAY_BE_MISSING: Final = frozenset({TRANSACTIONS_PREFIX, BACKUPS_PREFIX})
"""Of these the history of a repository can lack some, and all versions are whole nevertheless."""


@dataclass(slots=True)
class Done:
    """What was copied, by kind of object."""

    copied: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_NAMES.values(), 0))
    present: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_NAMES.values(), 0))
    """What was there already."""
    missing: dict[str, int] = field(default_factory=dict)
    """What the source does not have either: logs and backups, which only the history needs."""
    compared: int = 0
    """How many objects were compared byte by byte."""
    size_bytes: int = 0
    """Of what was copied."""


class Contents:
    """Copies what a selection needs, so far as it is not there yet."""

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
        self._progress = progress
        self._steps = self._total = 0
        self._done = Done()

    async def copy(self, *, deep: bool) -> Done:
        """Copy everything, and make sure of it; `deep` compares all bytes in the end."""
        manifests = await self._manifests()
        files = self._files(manifests)
        self._expect(sum(map(len, files.values())) + len(manifests))
        most = self._limits.key_bytes
        with ChunkObjects(self._transfer.target, max_bytes=most) as chunks, KeySet(most) as known:
            await self._read_needs(manifests.values(), chunks, known if deep else None)
            await self._copy_chunks(chunks)
            for prefix, keys in files.items():
                await self._copy_files(prefix, keys)
            if deep:
                await self._compare(files, known)
        return self._done

    def _expect(self, steps: int) -> None:
        self._total += steps
        self._advance(0)

    def _advance(self, steps: int) -> None:
        self._steps += steps
        if self._progress is not None:
            self._progress(self._steps, self._total)

    # -- what is needed --------------------------------------------------------------------

    async def _manifests(self) -> dict[bytes, ManifestFact]:
        """Read all versions for the manifests that they need."""
        found: dict[bytes, ManifestFact] = {}
        ids = sorted(self._selection.snapshots)
        self._expect(len(ids))
        size = self._limits.snapshots
        for first in range(0, len(ids), size):
            some = ids[first : first + size]
            for facts in await read_facts(self._context, some):
                found.update((one.id.raw, one) for one in facts.manifests)
            self._advance(len(some))
        return found

    def _files(self, manifests: Mapping[bytes, ManifestFact]) -> dict[str, set[str]]:
        """Give the keys of files that are not chunks, in the order in which they are copied."""
        chosen = self._selection
        return {
            MANIFESTS_PREFIX: {manifest_key(one.id) for one in manifests.values()},
            TRANSACTIONS_PREFIX: {transaction_log_key(one) for one in chosen.logs},
            SNAPSHOTS_PREFIX: {snapshot_key(one) for one in chosen.snapshots},
            BACKUPS_PREFIX: {*chosen.backups},
        }

    async def _read_needs(
        self, facts: Iterable[ManifestFact], chunks: ChunkObjects, known: KeySet | None
    ) -> None:
        """Read all manifests for the chunk objects that they refer to."""

        async def read(fact: ManifestFact) -> list[tuple[Keys, Values]]:
            manifest = await self._context.assets.read_manifest(fact.id, fact.size_bytes)
            return await offload(lambda: [*map(native_needs, tables_of(manifest).values())])

        limit = requests_at_once(self._context, self._limits.manifests)
        for some in portions(facts, self._limits):
            for needs in await map_concurrently(read, some, limit=limit):
                for keys, ends in needs:
                    chunks.add(keys, ends)
                    if known is not None:
                        known.add(keys)
            self._advance(len(some))

    # -- copying ---------------------------------------------------------------------------

    async def _copy_chunks(self, chunks: ChunkObjects) -> None:
        """Copy the chunk objects that are missing or too short, and look again."""
        todo = await chunks.compare()
        name, copied = _NAMES[CHUNKS_PREFIX], 0
        self._done.present[name] = chunks.objects - len(todo)
        if len(todo) == 0:
            return
        self._expect(len(todo))
        async for batch in self._listed_chunks(lambda keys: _among(todo, keys)):
            self._done.size_bytes += await self._transfer.copy(batch)
            copied += len(batch)
            self._advance(len(batch))
        self._done.copied[name] = copied
        if lost := len(await chunks.compare()):
            raise gone(f"{CHUNKS_PREFIX}… ({lost} objects)")

    async def _listed_chunks(
        self, wanted: Callable[[Keys], Bools]
    ) -> AsyncIterator[list[ObjectInfo]]:
        skip = len(CHUNKS_PREFIX)

        def is_wanted(keys: Sequence[str]) -> list[bool]:
            numbers, is_id = keys_of_names([key[skip:] for key in keys])
            chosen: list[bool] = (is_id & wanted(numbers)).tolist()
            return chosen

        async for batch in list_wanted(self._transfer.source, CHUNKS_PREFIX, is_wanted):
            if batch:
                yield batch

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
        # Expiration in spec 1 writes snapshots anew, perhaps of the same size.
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
        self._advance(len(keys))

    # -- making sure -----------------------------------------------------------------------

    async def _compare(self, files: Mapping[str, set[str]], known: KeySet) -> None:
        async for batch in self._listed_chunks(known.contains):
            await self._require_same(batch)
        for prefix, keys in files.items():
            source = await _listed(self._transfer.source, prefix, keys)
            await self._require_same(
                [one for key, one in source.items() if key not in self._selection.rewritten]
            )

    async def _require_same(self, infos: Sequence[ObjectInfo]) -> None:
        """Compare bytes; what differs is copied once more."""
        self._expect(len(infos))
        if differing := {*await self._transfer.differing(infos)}:
            again = [info for info in infos if info.key in differing]
            self._done.size_bytes += await self._transfer.copy(again)
            for info in again:
                self._done.copied[_NAMES[f"{info.key.partition('/')[0]}/"]] += 1
            if still := await self._transfer.differing(again):
                raise not_the_same(still[0])
        self._done.compared += len(infos)
        self._advance(len(infos))


async def _listed(backend: Backend, prefix: str, keys: set[str]) -> dict[str, ObjectInfo]:
    return {
        info.key: info
        async for batch in list_wanted(
            backend, prefix, lambda names: [name in keys for name in names]
        )
        for info in batch
    }


def _is_there(here: Mapping[str, ObjectInfo], info: ObjectInfo) -> bool:
    found = here.get(info.key)
    return found is not None and found.size_bytes == info.size_bytes


def _among(faults: Faults, keys: Keys) -> Bools:
    places = np.minimum(np.searchsorted(faults.keys, keys), len(faults.keys) - 1)
    found: Bools = faults.keys[places] == keys
    return found


def not_the_same(key: str) -> StorageError:
    """Say that an object is not what was just written to its place."""
    return StorageError(
        f"{key!r} was copied, but is not the same afterwards: see whether somebody else writes to"
        " that place, and whether its storage is sound (`icefloe doctor`)",
        ErrorKind.INVALID_OBJECT_SIZE,
        key=key,
    )
