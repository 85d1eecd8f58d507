"""The migration of a repository from spec 1 to spec 2.

Snapshots, manifests, logs and chunks stay as they are. All that is written is the repo object,
in one conditional write: before it there is a repository of spec 1, after it one of spec 2, and
never anything in between. The small files of spec 1 are not needed any more then. They may stay,
or are put aside below `overwritten/`, so that there is a way back in either case.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from icefloe.effects import map_concurrently
from icefloe.engine.config_yaml import load_config_file
from icefloe.engine.context import RepoContext
from icefloe.engine.migration.repo_object import migrated
from icefloe.engine.migration.spec_one import (
    SmallFiles,
    list_small_files,
    read_history,
    read_ref_files,
)
from icefloe.engine.repo_object import StoredRepo, create_repo, load_repo
from icefloe.errors import (
    ConflictError,
    ErrorKind,
    ObjectNotFoundError,
    PreconditionFailedError,
    SessionStateError,
    StorageError,
)
from icefloe.format.config_file import encode_config_flexbuffer
from icefloe.format.ids import SnapshotId
from icefloe.format.layout import BACKUPS_PREFIX, CONFIG_KEY, REPO_KEY, branch_key, snapshot_key
from icefloe.format.repo_info import MAIN_BRANCH, RepoInfo, encode_repo_info
from icefloe.storage import Backend
from icefloe.values.progress import Progress

SET_ASIDE_PREFIX: Final = f"{BACKUPS_PREFIX}spec-1/"
"""Where the small files of spec 1 go when they are not needed any more."""
_AT_ONCE: Final = 64
_SHOWN_KEYS: Final = 5


@dataclass(frozen=True, slots=True)
class MigrationRules:
    """What to do."""

    dry_run: bool = False
    removes_old_files: bool = False
    """Whether the small files of spec 1 are put aside."""
    at_once: int = _AT_ONCE
    """How many files to read at the same time."""


@dataclass(frozen=True, slots=True)
class Migration:
    """What was done, or would be."""

    repo: RepoInfo
    """The repo object."""
    size_bytes: int
    """How large it is; 0 if it was there already."""
    old_files: int
    """How many small files there were."""
    removed: int = 0
    """How many of them were put aside."""
    left: Mapping[str, str] = field(default_factory=dict)
    """Those that could not be, with the reason."""


async def migrate(
    context: RepoContext, rules: MigrationRules, progress: Progress | None = None
) -> Migration:
    """Make a repository of spec 1 one of spec 2, unless somebody else changes it meanwhile.

    Where an earlier migration left files of spec 1, a new one puts them aside if it is to.
    """
    backend = context.backend
    before = await list_small_files(backend)
    if (stored := await _repo_object(backend)) is not None:
        return await _finish(backend, stored.info, before, rules)
    info = await _planned(context, before, rules, progress)
    level = context.config.compression.level
    size_bytes = len(encode_repo_info(info, level=level))
    _require_unchanged(before, await list_small_files(backend))
    done = Migration(info, size_bytes, len(before.infos))
    if rules.dry_run:
        return done
    try:
        stored = await create_repo(backend, info, level=level)
    except PreconditionFailedError:
        raise ConflictError(
            message="somebody else migrated the repository at the same time: open it again",
            kind=ErrorKind.INVALID_REPOSITORY_MIGRATION,
        ) from None
    await _settle(backend, stored, before)
    if not rules.removes_old_files:
        return done
    removed, left = await _put_aside(backend, before, rules.at_once)
    return Migration(info, size_bytes, len(before.infos), removed, left)


async def _planned(
    context: RepoContext, files: SmallFiles, rules: MigrationRules, progress: Progress | None
) -> RepoInfo:
    at_once = 1 if context.is_near else max(rules.at_once, 1)
    refs = await read_ref_files(context.backend, files, at_once=at_once)
    entries = await read_history(context, refs.tips, at_once=at_once, progress=progress)
    config, _ = await load_config_file(context.backend)
    stored = None if config is None else encode_config_flexbuffer(config)
    return migrated(refs, entries, config=stored, now=context.clock())


async def _repo_object(backend: Backend) -> StoredRepo | None:
    try:
        return await load_repo(backend)
    except ObjectNotFoundError:
        return None


# -- others --------------------------------------------------------------------------------


def _require_unchanged(before: SmallFiles, now: SmallFiles) -> None:
    if changed := now.changed_since(before):
        raise _changed(changed)


def _changed(keys: Sequence[str]) -> ConflictError:
    return ConflictError(
        message=f"somebody changed the repository meanwhile ({_shown(keys)}): nothing was"
        " migrated; stop all writers, and migrate again",
        kind=ErrorKind.INVALID_REPOSITORY_MIGRATION,
    )


async def _settle(backend: Backend, written: StoredRepo, before: SmallFiles) -> None:
    """Look whether what was written is what is there, and all that there is to know.

    Writers of spec 1 do not ask for the repo object. What one of them did between our last look
    and our write would be lost, so then the write is taken back.
    """
    now = await load_repo(backend)
    changed = (await list_small_files(backend)).changed_since(before)
    is_ours = now.version == written.version
    if not changed:
        return  # perhaps somebody went on already, in spec 2
    if not is_ours:
        raise ConflictError(
            message=f"the repository was migrated, but some program that knew only spec version 1"
            f" changed it at the same time ({_shown(changed)}), which does not show; its files are"
            " all there: compare them with the branches and tags, and set those right",
            kind=ErrorKind.INVALID_REPOSITORY_MIGRATION,
        )
    report = await backend.delete_many([REPO_KEY])
    if report.failures:
        raise StorageError(
            f"somebody changed the repository meanwhile ({_shown(changed)}), and {REPO_KEY!r} could"
            f" not be taken back ({report.failures[REPO_KEY]}): delete it, and migrate again",
            key=REPO_KEY,
        )
    raise _changed(changed)


# -- afterwards ----------------------------------------------------------------------------


async def _finish(
    backend: Backend, repo: RepoInfo, files: SmallFiles, rules: MigrationRules
) -> Migration:
    """Put aside what an earlier migration left, if there is anything."""
    if not files.infos or not rules.removes_old_files:
        raise SessionStateError(
            "the repository is of spec version 2 already: there is nothing to migrate",
            ErrorKind.INVALID_REPOSITORY_MIGRATION,
        )
    refs = await read_ref_files(backend, files, at_once=rules.at_once)
    await _require_known(backend, repo, sorted(refs.tips))
    if rules.dry_run:
        return Migration(repo, 0, len(files.infos))
    removed, left = await _put_aside(backend, files, rules.at_once)
    return Migration(repo, 0, len(files.infos), removed, left)


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
    """Move files below `overwritten/`; give how many, and why others could not be.

    The branch main goes first: without it, programs that know spec 1 alone see no repository.
    """

    async def keep(key: str) -> None:
        await backend.copy(key, SET_ASIDE_PREFIX + key)

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


def _shown(keys: Sequence[str]) -> str:
    more = f" and {len(keys) - _SHOWN_KEYS} more" if len(keys) > _SHOWN_KEYS else ""
    return ", ".join(keys[:_SHOWN_KEYS]) + more
