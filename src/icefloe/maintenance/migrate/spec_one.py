"""Read the refs, configuration and history that a repository of spec 1 stores in small files.

A second reading loads only the files that changed since the first.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Self

from icefloe.effects import map_concurrently
from icefloe.errors import ObjectNotFoundError
from icefloe.format.config_file import decode_config_yaml, encode_config_flexbuffer
from icefloe.format.ids import SnapshotId
from icefloe.format.layout import CONFIG_KEY, REFS_PREFIX
from icefloe.format.snapshot_table import SnapshotEntry
from icefloe.records import Record
from icefloe.repo.context import RepoContext
from icefloe.repo.ref_ledger import parse_ref
from icefloe.storage import Backend, ObjectInfo
from icefloe.storage.keys import same_state
from icefloe.values.model import Progress
from icefloe.walk.history import list_snapshots, read_ancestry

_BRANCH: Final = f"{REFS_PREFIX}branch."
_TAG: Final = f"{REFS_PREFIX}tag."
_REF_FILE: Final = "/ref.json"
_TOMBSTONE: Final = "/ref.json.deleted"


class SmallFiles(Record):
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
            if not _is_same(self.infos.get(key), before.infos.get(key))
        )


def _is_same(info: ObjectInfo | None, other: ObjectInfo | None) -> bool:
    if info is None or other is None:
        return info is other
    return info == other or same_state(info.version, other.version)


async def list_small_files(backend: Backend, expected: Iterable[str] = ()) -> SmallFiles:
    """Look at the files of branches and tags, and at the configuration.

    Files that are expected and not listed are asked for by name: a directory that is read while
    a file in it is replaced may show neither the old nor the new one.
    """
    infos = {info.key: info async for batch in backend.list(REFS_PREFIX) for info in batch}
    for key in sorted({CONFIG_KEY, *expected} - infos.keys()):
        with suppress(ObjectNotFoundError):
            infos[key] = (await backend.head(key)).info
    return SmallFiles(infos)


class RefFiles(Record):
    """Where branches and tags lead, by name."""

    branches: Mapping[str, SnapshotId]
    tags: Mapping[str, SnapshotId]
    deleted_tags: Mapping[str, SnapshotId | None]
    """What they named before; None if nothing tells."""

    @classmethod
    def of(cls, files: SmallFiles, targets: Mapping[str, SnapshotId]) -> Self:
        """Sort out where the files with some keys point."""

        def named(start: str) -> dict[str, SnapshotId]:
            names = sorted(_names(targets, start, _REF_FILE), key=str.encode)
            return {name: targets[f"{start}{name}{_REF_FILE}"] for name in names}

        buried = sorted(_names(files.keys, _TAG, _TOMBSTONE), key=str.encode)
        tags = named(_TAG)
        deleted = {name: tags.pop(name, None) for name in buried}
        return cls(named(_BRANCH), tags, deleted)

    @property
    def tips(self) -> set[SnapshotId]:
        """The versions that branches and tags lead to."""
        return {*self.branches.values(), *self.tags.values()}


async def read_targets(
    backend: Backend, keys: Iterable[str], *, at_once: int
) -> dict[str, tuple[SnapshotId, ObjectInfo]]:
    """Read where the files of branches and tags point, and in which states they were, by key.

    Keys of other files are left out, and files that were deleted since they were listed.
    """

    async def target(key: str) -> tuple[SnapshotId, ObjectInfo] | None:
        try:
            stored = await backend.get(key)
        except ObjectNotFoundError:
            return None
        return parse_ref(key, bytes(stored.data)), stored.info

    ref_keys = [key for key in keys if is_ref_file(key)]
    targets = await map_concurrently(target, ref_keys, limit=at_once)
    return {
        key: snapshot_id
        for key, snapshot_id in zip(ref_keys, targets, strict=True)
        if snapshot_id is not None
    }


def is_ref_file(key: str) -> bool:
    """Return whether a file says where a branch or tag points, by its key."""
    return key.startswith((_BRANCH, _TAG)) and key.endswith(_REF_FILE)


def _names(keys: Iterable[str], start: str, end: str) -> set[str]:
    return {
        key[len(start) : -len(end)] for key in keys if key.startswith(start) and key.endswith(end)
    }


@dataclass(frozen=True, slots=True)
class Look:
    """What the files of a repository of spec 1 said, and in which states they were."""

    files: SmallFiles
    """Those whose contents the look is made of."""
    targets: Mapping[str, SnapshotId]
    """Where files of branches and tags point, by key."""
    config: bytes | None
    """The stored configuration, encoded as in spec 2."""
    entries: Mapping[SnapshotId, SnapshotEntry]
    """All versions that branches and tags lead to."""
    snapshots: Mapping[SnapshotId, ObjectInfo] = field(repr=False)
    """The files of snapshots that were there before any of them was read."""

    @property
    def refs(self) -> RefFiles:
        """Branches and tags by name."""
        return RefFiles.of(self.files, self.targets)


async def look(context: RepoContext, *, at_once: int, progress: Progress | None = None) -> Look:
    """Read everything."""
    listed = await list_small_files(context.backend)
    snapshots = await list_snapshots(context.backend)
    nothing = Look(SmallFiles({}), {}, None, {}, snapshots)
    files, targets, config = await _read_files(context, listed, nothing, at_once)
    tips = RefFiles.of(files, targets).tips
    entries = await read_ancestry(
        context, tips, at_once=at_once, listed=snapshots, progress=progress
    )
    return Look(files, targets, config, entries, snapshots)


async def look_again(context: RepoContext, before: Look, *, at_once: int) -> Look:
    """Read what has changed; return `before` itself if nothing has.

    All that was written before the call is seen.
    """
    backend = context.backend
    listed = await list_small_files(backend, before.files.keys)
    snapshots = await list_snapshots(backend)
    rewritten = {
        snapshot_id
        for snapshot_id in before.entries
        if snapshots.get(snapshot_id) != before.snapshots.get(snapshot_id)
    }
    if not rewritten and not listed.changed_since(before.files):
        return before
    files, targets, config = await _read_files(context, listed, before, at_once)
    entries = await read_ancestry(
        context,
        RefFiles.of(files, targets).tips,
        at_once=at_once,
        known_entries={
            snapshot_id: entry
            for snapshot_id, entry in before.entries.items()
            if snapshot_id not in rewritten
        },
    )
    return Look(files, targets, config, entries, snapshots)


async def _read_files(
    context: RepoContext, listed: SmallFiles, before: Look, at_once: int
) -> tuple[SmallFiles, dict[str, SnapshotId], bytes | None]:
    """Read the small files that changed since a look; return all of them as they were read."""
    changed = listed.changed_since(before.files)
    read = await read_targets(
        context.backend, [key for key in changed if key in listed.infos], at_once=at_once
    )
    infos = {
        key: info
        for key, info in listed.infos.items()
        if key not in changed or not (is_ref_file(key) or key == CONFIG_KEY)
    }
    infos |= {key: info for key, (_, info) in read.items()}
    targets = {key: target for key, target in before.targets.items() if key in infos}
    targets |= {key: target for key, (target, _) in read.items()}
    config = before.config
    if CONFIG_KEY in changed:
        config, info = await _read_config(context)
        if info is not None:
            infos[CONFIG_KEY] = info
    return SmallFiles(infos), targets, config


async def _read_config(context: RepoContext) -> tuple[bytes | None, ObjectInfo | None]:
    try:
        stored = await context.backend.get(CONFIG_KEY)
    except ObjectNotFoundError:
        return None, None
    config = decode_config_yaml(bytes(stored.data))
    return encode_config_flexbuffer(config), stored.info
