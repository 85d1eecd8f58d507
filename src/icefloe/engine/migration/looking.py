"""One look at everything that a repository of spec 1 says, and another that reads what changed."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from icefloe.engine.context import RepoContext
from icefloe.engine.migration.spec_one import (
    RefFiles,
    SmallFiles,
    is_ref_file,
    list_small_files,
    list_snapshots,
    read_history,
    read_targets,
)
from icefloe.errors import ObjectNotFoundError
from icefloe.format.config_file import decode_config_yaml, encode_config_flexbuffer
from icefloe.format.ids import SnapshotId
from icefloe.format.layout import CONFIG_KEY
from icefloe.format.snapshot_table import SnapshotEntry
from icefloe.storage import ObjectInfo
from icefloe.values.progress import Progress


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
    entries = await read_history(
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
    rewritten = {one for one in before.entries if snapshots.get(one) != before.snapshots.get(one)}
    if not rewritten and not listed.changed_since(before.files):
        return before
    files, targets, config = await _read_files(context, listed, before, at_once)
    entries = await read_history(
        context,
        RefFiles.of(files, targets).tips,
        at_once=at_once,
        known={one: entry for one, entry in before.entries.items() if one not in rewritten},
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
