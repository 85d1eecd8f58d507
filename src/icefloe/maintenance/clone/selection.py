"""What a clone consists of: fixed once, so that it does not matter what others do meanwhile."""

from collections.abc import Mapping
from typing import Final

import numpy as np

from icefloe.effects import map_concurrently
from icefloe.errors import ObjectNotFoundError
from icefloe.format.envelope import FileType, object_attributes
from icefloe.format.ids import SnapshotId, ids_of_rows
from icefloe.format.layout import (
    CONFIG_KEY,
    REPO_KEY,
    backup_key,
    branch_key,
    snapshot_key,
    tag_key,
)
from icefloe.format.repo_info import (
    MAIN_BRANCH,
    SPEC_VERSION,
    RepoInfo,
    decode_repo_info,
    encode_repo_info,
)
from icefloe.format.snapshot import with_parent
from icefloe.format.update_table import Status, UpdateEntry, UpdateKind, UpdateTable
from icefloe.maintenance import expiration
from icefloe.maintenance.migrate.spec_one import list_small_files
from icefloe.records import Record, field
from icefloe.repo import repo_ledger
from icefloe.repo.context import RepoContext
from icefloe.repo.migration_state import require_unmigrated
from icefloe.repo.ref_ledger import parse_ref, ref_bytes
from icefloe.repo.repo_changes import ONLINE, require_listed
from icefloe.storage import Backend
from icefloe.walk.history import read_ancestry

_AT_ONCE: Final = 64
_REF_FILE: Final = "/ref.json"
_DELETED: Final = ".deleted"


class Version(Record):
    """One version of a repository, and by which name it was asked for."""

    snapshot: SnapshotId
    branch: str | None = None
    tag: str | None = None


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


async def select(context: RepoContext, version: Version | None) -> Selection:
    """Fix what to copy: everything that branches and tags lead to now, or one version."""
    if context.spec_version == SPEC_VERSION:
        data = bytes((await context.backend.get(REPO_KEY)).data)
        repo = decode_repo_info(data)
        if version is None:
            return await _everything(context.backend, repo, data)
        return _one_version(context, repo, version)
    if version is None:
        return await _everything_in_files(context)
    return await _one_version_in_files(context, version)


# -- spec 2 --------------------------------------------------------------------------------


async def _everything(backend: Backend, repo: RepoInfo, data: bytes) -> Selection:
    backups: set[str] = set()
    async for page in repo_ledger.pages(backend, repo):
        backups |= {
            backup_key(update.backup_path) for update in page if update.backup_path is not None
        }
    listed = ids_of_rows(SnapshotId, repo.snapshots.ids)
    pruned = ids_of_rows(SnapshotId, repo.snapshots.pruned_ids)
    return Selection(
        SPEC_VERSION,
        frozenset(listed),
        frozenset([*listed, *pruned]),
        (_repo_file(data),),
        backups=frozenset(backups),
    )


def _one_version(context: RepoContext, repo: RepoInfo, version: Version) -> Selection:
    """Keep one version after the first one, as if all others had expired."""
    row = require_listed(repo, version.snapshot)
    is_kept = np.zeros(len(repo.snapshots), np.bool_)
    is_kept[[row, repo.snapshots.ancestry(version.snapshot)[-1]]] = True
    table = expiration.without(repo.snapshots, is_kept, to_root=True)
    now = context.clock()
    alone = RepoInfo(
        {MAIN_BRANCH: version.snapshot, version.branch or MAIN_BRANCH: version.snapshot},
        table,
        UpdateTable.from_entries([UpdateEntry(UpdateKind.REPO_INITIALIZED, now)]),
        tags={} if version.tag is None else {version.tag: version.snapshot},
        status=Status(ONLINE, now),
        metadata=repo.metadata,
        config=repo.config,
        enabled_flags=repo.enabled_flags,
        disabled_flags=repo.disabled_flags,
    )
    snapshot_ids = ids_of_rows(SnapshotId, table.ids)
    data = encode_repo_info(alone, level=context.config.compression.level)
    return Selection(
        SPEC_VERSION,
        frozenset(snapshot_ids),
        frozenset([*snapshot_ids, *ids_of_rows(SnapshotId, table.pruned_ids)]),
        (_repo_file(data),),
        is_everything=False,
    )


def _repo_file(data: bytes) -> LastFile:
    return LastFile(REPO_KEY, data, object_attributes(FileType.REPO_INFO, SPEC_VERSION))


# -- spec 1 --------------------------------------------------------------------------------


async def _everything_in_files(context: RepoContext) -> Selection:
    files = await list_small_files(context.backend)
    if branch_key(MAIN_BRANCH) not in files.infos:
        await require_unmigrated(context.backend)

    async def read(key: str) -> LastFile | None:
        try:
            return LastFile(key, bytes((await context.backend.get(key)).data))
        except ObjectNotFoundError:
            return None  # deleted since it was listed

    files_read = await map_concurrently(read, files.keys, limit=_AT_ONCE)
    last = sorted((file for file in files_read if file is not None), key=_moment)
    keys = {file.key for file in last}
    tips = {
        parse_ref(file.key, file.data)
        for file in last
        if file.key.endswith(_REF_FILE) and f"{file.key}{_DELETED}" not in keys
    }
    ids = frozenset(await read_ancestry(context, tips, at_once=_AT_ONCE))
    return Selection(1, ids, ids, tuple(last))


def _moment(file: LastFile) -> tuple[int, str]:
    """Return when a file may be written.

    Tags that were deleted must not show, and without the branch main there is no repository.
    """
    if file.key == branch_key(MAIN_BRANCH):
        return (2, file.key)
    return (0 if file.key.endswith(_DELETED) else 1, file.key)


async def _one_version_in_files(context: RepoContext, version: Version) -> Selection:
    """Keep one version after the first one, as expiration in spec 1 would leave it."""
    history = await read_ancestry(context, [version.snapshot], at_once=_AT_ONCE)
    entry = history[version.snapshot]
    root = next(history_entry for history_entry in history.values() if history_entry.parent is None)
    rewritten: dict[str, bytes] = {}
    if entry.parent not in {None, root.id}:
        key = snapshot_key(entry.id)
        stored = (await context.backend.get(key)).data
        level = context.config.compression.level
        rewritten[key] = with_parent(stored, root.id, level=level)
    content = ref_bytes(entry.id)
    keys = [] if version.tag is None else [tag_key(version.tag)]
    keys += [branch_key(name) for name in (version.branch, MAIN_BRANCH) if name is not None]
    last = [LastFile(key, content) for key in dict.fromkeys(keys)]
    try:
        config = bytes((await context.backend.get(CONFIG_KEY)).data)
        last.insert(0, LastFile(CONFIG_KEY, config))
    except ObjectNotFoundError:
        pass
    return Selection(
        1,
        frozenset({root.id, entry.id}),
        frozenset({root.id, entry.id}),
        tuple(sorted(last, key=_moment)),
        rewritten=rewritten,
        is_everything=False,
    )
