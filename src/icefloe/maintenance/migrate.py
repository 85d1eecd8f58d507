"""Migrate a repository from spec 1 to spec 2: write the repo object that replaces small files.

Spec 1 stores branches, tags and the configuration in small files, and the history in snapshots.
They are read twice; the second reading loads only the files that changed since the first.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final, Self

from icefloe.effects import map_concurrently
from icefloe.errors import (
    ConflictError,
    ErrorKind,
    FormatError,
    ObjectNotFoundError,
    PreconditionFailedError,
    SessionStateError,
    StorageError,
)
from icefloe.format.config_file import decode_config_yaml, encode_config_flexbuffer
from icefloe.format.ids import SnapshotId
from icefloe.format.layout import BACKUPS_PREFIX, CONFIG_KEY, REFS_PREFIX, branch_key, snapshot_key
from icefloe.format.repo_info import MAIN_BRANCH, RepoInfo, encode_repo_info
from icefloe.format.snapshot_table import SnapshotEntry, SnapshotTable
from icefloe.format.update_table import Status, UpdateEntry, UpdateKind, UpdateTable
from icefloe.records import Record, field, replace
from icefloe.repo.context import RepoContext
from icefloe.repo.migration_state import is_unfinished, unfinished
from icefloe.repo.ref_ledger import parse_ref
from icefloe.repo.repo_changes import ONLINE
from icefloe.repo.repo_ledger import StoredRepo, create_repo, load_repo, replace_repo
from icefloe.reports import FactsReport, counted
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
        """List the keys of files that were added, deleted or changed."""
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
    """Snapshot ids of branches and tags, by name."""

    branches: Mapping[str, SnapshotId]
    tags: Mapping[str, SnapshotId]
    deleted_tags: Mapping[str, SnapshotId | None]
    """The snapshots that they named; None if unknown."""

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


class Look(Record):
    """The content and the versions of the files of a repository of spec 1."""

    files: SmallFiles
    """Those whose contents the look is made of."""
    targets: Mapping[str, SnapshotId]
    """Where files of branches and tags point, by key."""
    config: bytes | None
    """The stored configuration, encoded as in spec 2."""
    entries: Mapping[SnapshotId, SnapshotEntry]
    """All versions that branches and tags lead to."""
    snapshots: Mapping[SnapshotId, ObjectInfo]
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


_FROM_TO: Final = (1, 2, 0)
_MILLISECOND: Final = 1000


def migrated(
    refs: RefFiles,
    entries: Mapping[SnapshotId, SnapshotEntry],
    *,
    config: bytes | None,
    now: int,
) -> RepoInfo:
    """Put branches, tags and history into one object, with a log as it may have been.

    Nobody wrote down what happened when. So the log says that each version was committed at its
    time, to the first branch that has it, and that branches and tags came right after the
    version they lead to. It ends with the migration.
    """
    if MAIN_BRANCH not in refs.branches:
        raise FormatError("the repository has no branch main")
    table = SnapshotTable.from_entries(list(entries.values()))
    for tip in refs.tips:
        table.ancestry(tip)  # refuses histories that run in circles
    root = table.entry(table.ancestry(refs.branches[MAIN_BRANCH])[-1])
    past = _in_order(_operations(refs, entries, table, root))
    last = UpdateEntry(
        UpdateKind.REPO_MIGRATED, max(now, past[-1].updated_at + 1), numbers=_FROM_TO
    )
    return RepoInfo(
        dict(refs.branches),
        table,
        UpdateTable.from_entries([last, *reversed(past)]),
        tags=dict(refs.tags),
        deleted_tags=tuple(refs.deleted_tags),
        status=Status(ONLINE, root.flushed_at),
        config=config,
    )


def _operations(
    refs: RefFiles,
    entries: Mapping[SnapshotId, SnapshotEntry],
    table: SnapshotTable,
    root: SnapshotEntry,
) -> Iterator[UpdateEntry]:
    def after(target: SnapshotId, milliseconds: int) -> int:
        # What deleted tags named may be gone; then only the beginning is certain.
        entry = entries.get(target, root)
        return entry.flushed_at + milliseconds * _MILLISECOND

    yield UpdateEntry(UpdateKind.REPO_INITIALIZED, root.flushed_at)
    others = sorted(refs.branches.keys() - {MAIN_BRANCH}, key=str.encode)
    yield from _commits([MAIN_BRANCH, *others], refs, table)
    for name in others:
        yield UpdateEntry(UpdateKind.BRANCH_CREATED, after(refs.branches[name], 1), name=name)
    for name in sorted(refs.tags, key=str.encode):
        yield UpdateEntry(UpdateKind.TAG_CREATED, after(refs.tags[name], 1), name=name)
    for name, target in refs.deleted_tags.items():
        if target is not None:
            yield UpdateEntry(UpdateKind.TAG_CREATED, after(target, 1), name=name)
            yield UpdateEntry(UpdateKind.TAG_DELETED, after(target, 2), name=name, previous=target)


def _commits(
    branches: Iterable[str], refs: RefFiles, table: SnapshotTable
) -> Iterator[UpdateEntry]:
    told: set[int] = set()
    times = table.flushed_at.tolist()
    for name in branches:
        *rows, _ = table.ancestry(refs.branches[name])
        for row in rows:
            if row in told:
                break  # and so are all before it
            told.add(row)
            yield UpdateEntry(UpdateKind.NEW_COMMIT, times[row], name=name, new=table.id(row))


def _in_order(operations: Iterable[UpdateEntry]) -> list[UpdateEntry]:
    """Sort by time, oldest first; no two have the same."""
    ordered = sorted(operations, key=lambda operation: operation.updated_at)
    for position in range(1, len(ordered)):
        earliest = ordered[position - 1].updated_at + 1
        if ordered[position].updated_at < earliest:
            ordered[position] = replace(ordered[position], updated_at=earliest)
    return ordered


SET_ASIDE_PREFIX: Final = f"{BACKUPS_PREFIX}spec-1/"
"""Where the small files of spec 1 are kept after the migration."""
_AT_ONCE: Final = 64
_MOST_LOOKS: Final = 20


class MigrationRules(Record):
    """Options of a migration."""

    dry_run: bool = False
    removes_old_files: bool = False
    """Whether the small files of spec 1 are put aside."""
    at_once: int = _AT_ONCE
    """How many files to read at the same time."""


class MigrationReport(FactsReport, Record):
    """The result of a migration; in a dry run, the changes that it would make."""

    dry_run: bool
    was_migrated: bool
    """Whether the repository was of spec 2 already."""
    branches: int
    tags: int
    deleted_tags: int
    versions: int
    repo_object_bytes: int
    """Size of the one file that is written."""
    old_files: int
    """How many files of spec 1 there were."""
    old_files_removed: int = 0
    """How many of them were moved below `overwritten/spec-1/`."""
    not_removed: dict[str, str] = field(default_factory=dict)
    """Those that could not be, with the reasons; they do no harm."""

    def _notes(self) -> Iterator[str]:
        what = (
            f"{counted(self.versions, 'version')}, {counted(self.branches, 'branch', 'branches')},"
            f" {counted(self.tags, 'tag')},"
            f" {self.deleted_tags} deleted tags"
        )
        if self.was_migrated:
            yield f"the repository is of spec version 2 already: {what}"
        elif self.dry_run:
            yield f"can be migrated to spec version 2: {what}; nothing was changed"
        else:
            yield f"migrated to spec version 2: {what}"
        if self.old_files_removed:
            moved = counted(self.old_files_removed, "file")
            yield f"{moved} of spec version 1 moved to {SET_ASIDE_PREFIX}"
        elif self.old_files and not self.dry_run and not self.not_removed:
            yield (
                f"{counted(self.old_files, 'file')} of spec version 1 stayed: without the object"
                " `repo` the repository is what it was before"
            )
        for key, reason in self.not_removed.items():
            yield f"{key} is not needed any more, but could not be removed: {reason}"


async def migrate(
    context: RepoContext, rules: MigrationRules, progress: Progress | None = None
) -> MigrationReport:
    """Migrate a repository of spec 1 to spec 2, even while others write to it.

    A migration that was interrupted is finished. Where an earlier migration left files of spec 1,
    a new one puts them aside if it is to.
    """
    backend = context.backend
    stored = await _repo_object(backend)
    if stored is not None and not is_unfinished(stored.info):
        return await _finish(backend, stored.info, await list_small_files(backend), rules)
    at_once = 1 if context.is_near else max(rules.at_once, 1)
    seen = await look(context, at_once=at_once, progress=progress)
    if MAIN_BRANCH not in seen.refs.branches and await _is_complete(backend):
        raise _migrated_by_others()
    if rules.dry_run:
        repo = _repo_of(context, seen)
        return _report(repo, seen.files, rules, _size_bytes(context, repo))
    if stored is None:
        stored = await _announce(context, seen)
    repo, seen = await _complete(context, stored, seen, at_once)
    report = _report(repo, seen.files, rules, _size_bytes(context, repo))
    if not rules.removes_old_files:
        return report
    removed, left = await _put_aside(backend, seen.files, rules.at_once)
    return replace(report, old_files_removed=removed, not_removed=left)


def _size_bytes(context: RepoContext, repo: RepoInfo) -> int:
    return len(encode_repo_info(repo, level=context.config.compression.level))


def _report(
    repo: RepoInfo, files: SmallFiles, rules: MigrationRules, size_bytes: int
) -> MigrationReport:
    """Sum up; a size of 0 stands for a repo object that was there already."""
    return MigrationReport(
        dry_run=rules.dry_run,
        was_migrated=size_bytes == 0,
        branches=len(repo.branches),
        tags=len(repo.tags),
        deleted_tags=len(repo.deleted_tags),
        versions=len(repo.snapshots),
        repo_object_bytes=size_bytes,
        old_files=len(files.infos),
    )


def _repo_of(context: RepoContext, seen: Look) -> RepoInfo:
    return migrated(seen.refs, seen.entries, config=seen.config, now=context.clock())


async def _repo_object(backend: Backend) -> StoredRepo | None:
    try:
        return await load_repo(backend)
    except ObjectNotFoundError:
        return None


async def _is_complete(backend: Backend) -> bool:
    """Return whether somebody has migrated the repository, and perhaps moved its files aside."""
    stored = await _repo_object(backend)
    return stored is not None and not is_unfinished(stored.info)


# -- the two writes ------------------------------------------------------------------------


async def _announce(context: RepoContext, seen: Look) -> StoredRepo:
    """Create the repo object: from now on, writers of spec 1 notice the migration."""
    repo = unfinished(_repo_of(context, seen), context.clock())
    level = context.config.compression.level
    try:
        return await create_repo(context.backend, repo, level=level)
    except PreconditionFailedError:
        raise _migrated_by_others() from None


def _migrated_by_others() -> ConflictError:
    return ConflictError(
        message="somebody else migrated the repository at the same time: open it again",
        kind=ErrorKind.INVALID_REPOSITORY_MIGRATION,
    )


async def _complete(
    context: RepoContext, stored: StoredRepo, seen: Look, at_once: int
) -> tuple[RepoInfo, Look]:
    """Bring the repo object up to date with the files of spec 1, and allow changes to it.

    The first write of this loop has all that was acknowledged in spec 1. Those that follow are
    for programs that do not look for the repo object, and for writes that were under way.
    """
    backend, level = context.backend, context.config.compression.level
    for _ in range(_MOST_LOOKS):
        before, seen = seen, await look_again(context, seen, at_once=at_once)
        if seen is before and not is_unfinished(stored.info):
            return stored.info, seen
        if MAIN_BRANCH in seen.refs.branches or not await _is_complete(backend):
            try:
                stored = await replace_repo(
                    backend, _repo_of(context, seen), stored.version, level=level
                )
                continue
            except PreconditionFailedError:
                pass
        stored = await load_repo(backend)
        if not is_unfinished(stored.info):  # somebody finished it, or went on in spec 2
            await _require_known(backend, stored.info, sorted(seen.refs.tips))
            return stored.info, seen
    raise ConflictError(
        message="the repository was migrated, but some program that knows only spec version 1 goes"
        f" on changing its files ({', '.join(seen.files.keys)}), which does not show: stop it,"
        " compare the files with the branches and tags, and set those right",
        kind=ErrorKind.INVALID_REPOSITORY_MIGRATION,
    )


# -- afterwards ----------------------------------------------------------------------------


async def _finish(
    backend: Backend, repo: RepoInfo, files: SmallFiles, rules: MigrationRules
) -> MigrationReport:
    """Put aside what an earlier migration left, if there is anything."""
    if not files.infos or not rules.removes_old_files:
        raise SessionStateError(
            "the repository is of spec version 2 already: there is nothing to migrate",
            ErrorKind.INVALID_REPOSITORY_MIGRATION,
        )
    read = await read_targets(backend, files.keys, at_once=rules.at_once)
    refs = RefFiles.of(files, {key: target for key, (target, _) in read.items()})
    await _require_known(backend, repo, sorted(refs.tips))
    report = _report(repo, files, rules, 0)
    if rules.dry_run:
        return report
    removed, left = await _put_aside(backend, files, rules.at_once)
    return replace(report, old_files_removed=removed, not_removed=left)


async def _require_known(backend: Backend, repo: RepoInfo, tips: Sequence[SnapshotId]) -> None:
    """Refuse to put files aside that lead to versions that nothing else leads to."""
    for tip in tips:
        if repo.snapshots.row_of(tip) is None:
            try:
                await backend.head(snapshot_key(tip))
            except ObjectNotFoundError:
                continue  # expired and collected since
            raise ConflictError(
                message=f"files of spec version 1 lead to the version {tip}, which the migrated"
                " repository does not know: some program went on using spec version 1; keep the"
                " files until that is sorted out",
                kind=ErrorKind.INVALID_REPOSITORY_MIGRATION,
            )


async def _put_aside(
    backend: Backend, files: SmallFiles, at_once: int
) -> tuple[int, dict[str, str]]:
    """Move files below `overwritten/`; return how many, and why others could not be.

    The branch main is moved first: without it, programs that know only spec 1 see no repository.
    """

    async def keep(key: str) -> None:
        await backend.copy(key, SET_ASIDE_PREFIX + key, if_version=files.infos[key].version)

    keys = files.keys
    try:
        await map_concurrently(keep, keys, limit=at_once)
    except StorageError as failure:
        return 0, dict.fromkeys(keys, f"no copy could be made: {failure.message}")
    first = [key for key in keys if key == branch_key(MAIN_BRANCH)]
    last = [key for key in keys if key == CONFIG_KEY]
    rest = [key for key in keys if key not in {*first, *last}]
    removed, left = 0, dict[str, str]()
    for some in (first, rest, last):
        if some:
            report = await backend.delete_many(some)
            removed += report.deleted
            left |= report.failures
    return removed, left
