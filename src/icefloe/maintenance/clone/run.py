"""Copy a repository to another storage, with all of its history or as one version.

What to copy is decided once, so that it does not matter what others do meanwhile. Then everything
that versions need is copied, and last the files that make the target a repository: until those
exist, there is only a note that a clone was begun. Objects that are in the target already are not
copied again, so an interrupted clone is finished by running it again.
"""

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np

from icefloe.effects import map_concurrently
from icefloe.errors import (
    ConflictError,
    ErrorKind,
    InvalidInputError,
    ObjectNotFoundError,
    PreconditionFailedError,
)
from icefloe.format.envelope import FileType, object_attributes
from icefloe.format.ids import SnapshotId, ids_of_rows
from icefloe.format.layout import (
    CONFIG_KEY,
    REFS_PREFIX,
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
from icefloe.maintenance.clone.contents import (
    Contents,
    Done,
    LastFile,
    Selection,
    Transfer,
)
from icefloe.maintenance.migrate import is_ref_file, list_small_files
from icefloe.records import Record, field
from icefloe.repo import repo_ledger
from icefloe.repo.context import RepoContext
from icefloe.repo.ledger import put_settled
from icefloe.repo.lifecycle import CLONE_MARKER, Marker
from icefloe.repo.migration_state import require_unmigrated
from icefloe.repo.ref_ledger import parse_ref, ref_bytes
from icefloe.repo.repo_changes import ONLINE, require_listed
from icefloe.reports import FactsReport, counted, shown_bytes
from icefloe.storage import Backend, Storage
from icefloe.storage import Version as State
from icefloe.values.model import Progress
from icefloe.walk.history import ReadLimits, read_ancestry

_AT_ONCE: Final = 64
_DELETED: Final = ".deleted"


class CloneVersion(Record):
    """One version of a repository, and by which name it was asked for."""

    snapshot: SnapshotId
    branch: str | None = None
    tag: str | None = None


async def select(context: RepoContext, version: CloneVersion | None) -> Selection:
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


def _one_version(context: RepoContext, repo: RepoInfo, version: CloneVersion) -> Selection:
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
        if is_ref_file(file.key) and f"{file.key}{_DELETED}" not in keys
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


async def _one_version_in_files(context: RepoContext, version: CloneVersion) -> Selection:
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


class CloneRules(Record):
    """The selection of versions to copy, and the checks of the copy."""

    version: CloneVersion | None = None
    """One version; None: all that branches and tags lead to."""
    update: bool = False
    """Whether an earlier clone may be brought up to date."""
    deep: bool = False
    """Whether to compare all objects byte by byte in the end."""
    limits: ReadLimits = field(default_factory=ReadLimits)


class CloneReport(FactsReport, Record):
    """The result of `Repository.clone_to`."""

    spec_version: int
    versions: int
    """How many versions the clone has."""
    objects_copied: Mapping[str, int]
    """By kind."""
    objects_present: Mapping[str, int]
    """Those that an earlier run had copied."""
    bytes_copied: int
    objects_compared: int
    """How many were compared byte by byte."""
    objects_missing: Mapping[str, int]
    """Logs and backups of the source that are lost there: no version needs them to be read."""
    is_server_side: bool
    """Whether the store copied the objects itself, not through this machine."""
    was_complete: bool
    """Whether the target was the same repository already, so nothing was copied."""

    headings = ("kind", "copied", "there already")

    def _rows(self) -> Iterator[list[object]]:
        for kind, copied in () if self.was_complete else self.objects_copied.items():
            yield [kind.replace("_", " "), copied, self.objects_present[kind]]

    def _notes(self) -> Iterator[str]:
        if self.was_complete:
            yield "the same repository was there already: nothing was copied"
            return
        way = "by the store itself" if self.is_server_side else "through this machine"
        yield f"{shown_bytes(self.bytes_copied)} copied {way}, {counted(self.versions, 'version')}"
        if self.objects_compared:
            yield f"{counted(self.objects_compared, 'object')} compared byte by byte: all the same"
        else:
            yield "all objects are there, with their sizes"
        for kind, count in self.objects_missing.items():
            name = kind.replace("_", " ")
            yield f"{count} {name} are lost in the source: history only, all data is there"


async def clone(
    context: RepoContext, target: Storage, rules: CloneRules, progress: Progress | None = None
) -> CloneReport:
    """Copy a repository to a place that is empty, or where the same was begun."""
    selection = await select(context, rules.version)
    transfer = Transfer.between(
        context.storage, target, context.config.storage, context.config.max_concurrent_requests
    )
    version = None if rules.version is None else str(rules.version.snapshot)
    marker = Marker(CLONE_MARKER, {"of": "a clone", "snapshot": version})
    destination = await _look_at(transfer.target, selection)
    is_done = destination.is_same and not rules.deep
    if not is_done:
        await _require_place(transfer.target, destination, selection, rules, marker)
        contents = Contents(context, transfer, selection, rules.limits, progress)
        done = await contents.copy(deep=rules.deep)
        if not destination.is_same:
            await _put_last(transfer.target, selection, destination.replacing)
    else:
        done = Done()
    if destination.replacing is None:
        await marker.remove(transfer.target)
    return CloneReport(
        spec_version=selection.spec_version,
        versions=len(selection.snapshots),
        objects_copied=done.copied,
        objects_present=done.present,
        bytes_copied=done.size_bytes,
        objects_compared=done.compared,
        objects_missing=done.missing,
        is_server_side=transfer.server_copy is not None,
        was_complete=is_done,
    )


# -- the place -----------------------------------------------------------------------------


class _Place(Record):
    """The present content of a clone's destination."""

    has_repository: bool = False
    is_same: bool = False
    """Whether that is the very repository that is to be there."""
    older: RepoInfo | None = None
    """Its repo object in spec 2."""
    replacing: State | None = None


async def _look_at(target: Backend, selection: Selection) -> _Place:
    last = selection.last[-1]
    try:
        stored = await target.get(last.key)
    except ObjectNotFoundError:
        return _Place()
    if selection.spec_version == SPEC_VERSION:
        info = decode_repo_info(stored.data)
        if _are_same(selection, bytes(stored.data), info):
            return _Place(has_repository=True, is_same=True)
        return _Place(has_repository=True, older=info, replacing=stored.info.version)
    are_same = [await _holds(target, file) for file in selection.last]
    return _Place(has_repository=True, is_same=all(are_same))


def _are_same(selection: Selection, data: bytes, info: RepoInfo) -> bool:
    expected = selection.last[-1].data
    if selection.is_everything:
        return data == expected

    def key(repo: RepoInfo) -> tuple[object, ...]:
        return (dict(repo.branches), dict(repo.tags), repo.snapshots.ids.tobytes())

    return key(info) == key(decode_repo_info(expected))  # but for the time of the clone


async def _holds(target: Backend, file: LastFile) -> bool:
    try:
        return bytes((await target.get(file.key)).data) == file.data
    except ObjectNotFoundError:
        return False


async def _require_place(
    target: Backend, destination: _Place, selection: Selection, rules: CloneRules, marker: Marker
) -> None:
    """Raise if the clone would overwrite something else."""
    if destination.is_same:
        return
    if not destination.has_repository:
        try:
            await marker.claim(target)
        except InvalidInputError:
            # Perhaps somebody else has just finished the same.
            if not (await _look_at(target, selection)).is_same:
                raise
        return
    if not rules.update:
        raise InvalidInputError(
            "there is a repository already, and it is not the same: choose another place, or"
            " update it if it is an earlier clone",
            ErrorKind.PARENT_DIRECTORY_NOT_CLEAN,
        )
    if destination.older is None or not selection.is_everything:
        raise InvalidInputError(
            "only whole clones of repositories of spec version 2 can be updated: choose an empty"
            " place"
        )
    theirs = {raw.tobytes() for raw in destination.older.snapshots.ids}
    ours = {snapshot.raw for snapshot in selection.snapshots}
    if unknown := len(theirs - ours):
        raise ConflictError(
            message=f"the repository there has {counted(unknown, 'version')} that the source does"
            " not list (any more): it is no earlier clone, or was written to, or versions have"
            " expired; choose an empty place",
            kind=ErrorKind.REPO_INFO_UPDATED,
        )


# -- the end -------------------------------------------------------------------------------


async def _put_last(target: Backend, selection: Selection, replacing: State | None) -> None:
    """Make the place a repository."""
    *others, last = selection.last
    if selection.spec_version != SPEC_VERSION:
        await _clear_refs(target, {file.key for file in selection.last})
    for file in others:  # nobody reads these before the last one is there
        await target.put(file.key, file.data, content_type=file.content_type)
    try:
        await put_settled(
            target,
            last.key,
            last.data,
            replacing=replacing,
            content_type=last.content_type,
            attributes=last.attributes,
        )
    except PreconditionFailedError:
        if not await _holds(target, last):
            raise ConflictError(
                message=f"somebody else wrote {last.key!r} in the place of the clone meanwhile:"
                " look who uses it, and choose another place",
                kind=ErrorKind.REPO_INFO_UPDATED,
            ) from None


async def _clear_refs(target: Backend, kept_keys: set[str]) -> None:
    """Remove refs that an interrupted clone wrote and that the source has deleted since."""
    keys = [info.key async for batch in target.list(REFS_PREFIX) for info in batch]
    if stale := [key for key in keys if key not in kept_keys]:
        await target.delete_many(stale)
