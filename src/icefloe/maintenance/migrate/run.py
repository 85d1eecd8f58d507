"""Migrate a repository from spec 1 to spec 2: write the repo object that replaces small files."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

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
from icefloe.format.ids import SnapshotId
from icefloe.format.layout import BACKUPS_PREFIX, CONFIG_KEY, branch_key, snapshot_key
from icefloe.format.repo_info import MAIN_BRANCH, RepoInfo, encode_repo_info
from icefloe.format.snapshot_table import SnapshotEntry, SnapshotTable
from icefloe.format.update_table import Status, UpdateEntry, UpdateKind, UpdateTable
from icefloe.maintenance.migrate.spec_one import (
    Look,
    RefFiles,
    SmallFiles,
    list_small_files,
    look,
    look_again,
    read_targets,
)
from icefloe.records import Record, field, replace
from icefloe.repo.context import RepoContext
from icefloe.repo.migration_state import is_unfinished, unfinished
from icefloe.repo.repo_changes import ONLINE
from icefloe.repo.repo_ledger import StoredRepo, create_repo, load_repo, replace_repo
from icefloe.reports import FactsReport
from icefloe.storage import Backend
from icefloe.values.model import Progress

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
"""Where the small files of spec 1 go when they are not needed any more."""
_AT_ONCE: Final = 64
_MOST_LOOKS: Final = 20


class MigrationRules(Record):
    """What to do."""

    dry_run: bool = False
    removes_old_files: bool = False
    """Whether the small files of spec 1 are put aside."""
    at_once: int = _AT_ONCE
    """How many files to read at the same time."""


class MigrationReport(FactsReport, Record):
    """What a migration did; in a dry run, what it would do."""

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
            f"{self.versions} versions, {self.branches} branches, {self.tags} tags,"
            f" {self.deleted_tags} deleted tags"
        )
        if self.was_migrated:
            yield f"the repository is of spec version 2 already: {what}"
        elif self.dry_run:
            yield f"can be migrated to spec version 2: {what}; nothing was changed"
        else:
            yield f"migrated to spec version 2: {what}"
        if self.old_files_removed:
            yield f"{self.old_files_removed} files of spec version 1 moved to {SET_ASIDE_PREFIX}"
        elif self.old_files and not self.dry_run and not self.not_removed:
            yield (
                f"{self.old_files} files of spec version 1 were kept: without the object `repo` the"
                " repository is what it was before"
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
    """Create the repo object, so that from now on writers of spec 1 notice."""
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
    """Let the repo object say what the files of spec 1 say, and let it take changes.

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

    The branch main goes first: without it, programs that know spec 1 alone see no repository.
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
