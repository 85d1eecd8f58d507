"""All that a repository of spec 1 keeps in small files, and its history."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from icefloe.effects import map_concurrently
from icefloe.engine.context import RepoContext
from icefloe.engine.ref_files import read_ref
from icefloe.errors import (
    FormatError,
    IcefloeError,
    InvalidInputError,
    ObjectNotFoundError,
    SnapshotNotFoundError,
)
from icefloe.format.ids import SnapshotId
from icefloe.format.layout import (
    CONFIG_KEY,
    REFS_PREFIX,
    SNAPSHOTS_PREFIX,
    snapshot_key,
)
from icefloe.format.snapshot import decode_snapshot_entry
from icefloe.format.snapshot_table import SnapshotEntry
from icefloe.storage import Backend, ObjectInfo
from icefloe.values.progress import Progress

_BRANCH: Final = f"{REFS_PREFIX}branch."
_TAG: Final = f"{REFS_PREFIX}tag."
_REF_FILE: Final = "/ref.json"
_TOMBSTONE: Final = "/ref.json.deleted"


@dataclass(frozen=True, slots=True)
class SmallFiles:
    """The files that change in spec 1, and the states that they are in."""

    infos: Mapping[str, ObjectInfo]

    @property
    def keys(self) -> tuple[str, ...]:
        """Their keys."""
        return tuple(sorted(self.infos))

    def changed_since(self, before: "SmallFiles") -> list[str]:
        """List the keys of files that came, went or changed."""
        return sorted(
            key
            for key in self.infos.keys() | before.infos.keys()
            if self.infos.get(key) != before.infos.get(key)
        )


async def list_small_files(backend: Backend) -> SmallFiles:
    """Look at the files of branches and tags, and at the configuration."""
    infos = {info.key: info async for batch in backend.list(REFS_PREFIX) for info in batch}
    with suppress(ObjectNotFoundError):
        infos[CONFIG_KEY] = (await backend.head(CONFIG_KEY)).info
    return SmallFiles(infos)


@dataclass(frozen=True, slots=True)
class RefFiles:
    """Where branches and tags lead, by name."""

    branches: Mapping[str, SnapshotId]
    tags: Mapping[str, SnapshotId]
    deleted_tags: Mapping[str, SnapshotId | None]
    """What they named before; None if nothing tells."""

    @property
    def tips(self) -> set[SnapshotId]:
        """The versions that branches and tags lead to."""
        return {*self.branches.values(), *self.tags.values()}


async def read_ref_files(backend: Backend, files: SmallFiles, *, at_once: int) -> RefFiles:
    """Read all branches and tags."""
    branches = _names(files.keys, _BRANCH, _REF_FILE)
    tags = _names(files.keys, _TAG, _REF_FILE)
    buried = _names(files.keys, _TAG, _TOMBSTONE)

    async def target(key: str) -> SnapshotId:
        return (await read_ref(backend, key))[0]

    async def targets(names: Iterable[str], start: str) -> dict[str, SnapshotId]:
        ordered = sorted(names, key=str.encode)
        keys = [f"{start}{name}{_REF_FILE}" for name in ordered]
        found = await map_concurrently(target, keys, limit=at_once)
        return dict(zip(ordered, found, strict=True))

    named = await targets(tags, _TAG)
    return RefFiles(
        await targets(branches, _BRANCH),
        {name: at for name, at in named.items() if name not in buried},
        {name: named.get(name) for name in sorted(buried, key=str.encode)},
    )


def _names(keys: Iterable[str], start: str, end: str) -> set[str]:
    return {
        key[len(start) : -len(end)] for key in keys if key.startswith(start) and key.endswith(end)
    }


# -- history -------------------------------------------------------------------------------


async def read_history(
    context: RepoContext,
    tips: Iterable[SnapshotId],
    *,
    at_once: int,
    progress: Progress | None = None,
) -> dict[SnapshotId, SnapshotEntry]:
    """Read all versions that some lead back to, as they are stored now.

    Each names its parent, so that they can only be followed one by one. Over a network that
    would take long: there, all that are listed are read at the same time first.
    """
    known: dict[SnapshotId, SnapshotEntry] = {}
    if not context.is_near:
        known = await _read_listed(context.backend, at_once, progress)
    entries: dict[SnapshotId, SnapshotEntry] = {}
    todo = set(tips)
    while todo:
        unread = sorted(one for one in todo if one not in known)
        for entry in await map_concurrently(
            lambda one: read_entry(context.backend, one), unread, limit=at_once
        ):
            known[entry.id] = entry
        for one in todo:
            entries[one] = known[one]
        if progress is not None:
            progress(len(entries), max(len(entries) + 1, len(known)))
        parents = [entries[one].parent for one in todo]
        todo = {one for one in parents if one is not None and one not in entries}
    if progress is not None:
        progress(len(entries), len(entries))
    return entries


async def read_entry(backend: Backend, snapshot_id: SnapshotId) -> SnapshotEntry:
    """Read what a snapshot says of its place in the history."""
    key = snapshot_key(snapshot_id)
    try:
        entry = decode_snapshot_entry((await backend.get(key)).data)
    except ObjectNotFoundError as missing:
        raise SnapshotNotFoundError(
            f"the snapshot {snapshot_id} does not exist, but the history needs it:"
            " `icefloe verify` tells what is lost",
            snapshot=str(snapshot_id),
        ) from missing
    except FormatError as damaged:
        damaged.add_note(f"key: {key}")
        raise
    if entry.id != snapshot_id:
        raise FormatError(f"{key!r} holds the snapshot {entry.id}", key=key)
    return entry


async def _read_listed(
    backend: Backend, at_once: int, progress: Progress | None
) -> dict[SnapshotId, SnapshotEntry]:
    """Read all snapshots there are; those that cannot be read may not be needed."""
    skip = len(SNAPSHOTS_PREFIX)
    names = [info.key[skip:] async for batch in backend.list(SNAPSHOTS_PREFIX) for info in batch]
    ids = [one for name in names if (one := _parsed(name)) is not None]

    async def read(snapshot_id: SnapshotId) -> SnapshotEntry | None:
        try:
            return await read_entry(backend, snapshot_id)
        except IcefloeError:
            return None

    known: dict[SnapshotId, SnapshotEntry] = {}
    for some in _portions(ids, at_once * 8):
        found = await map_concurrently(read, some, limit=at_once)
        known |= {entry.id: entry for entry in found if entry is not None}
        if progress is not None:
            progress(len(known), len(ids))
    return known


def _parsed(name: str) -> SnapshotId | None:
    try:
        return SnapshotId.parse(name)
    except InvalidInputError:
        return None


def _portions(ids: Sequence[SnapshotId], size: int) -> Iterable[Sequence[SnapshotId]]:
    return (ids[first : first + size] for first in range(0, len(ids), size))
