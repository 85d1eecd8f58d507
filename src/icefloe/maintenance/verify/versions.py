"""List the versions of a repository: from the repo object of spec 2 or the ref files of spec 1.

What the repo object says is checked too: the log of operations, and its continuation in backups.
"""

import json
from collections.abc import Mapping, Sequence
from itertools import islice, pairwise
from operator import lt
from typing import Final

from icefloe.effects import map_concurrently
from icefloe.errors import FormatError, RepositoryNotFoundError
from icefloe.format.config_file import decode_config_flexbuffer, decode_config_yaml
from icefloe.format.ids import INITIAL_SNAPSHOT_ID, SnapshotId
from icefloe.format.layout import (
    BACKUPS_PREFIX,
    CONFIG_KEY,
    REFS_PREFIX,
    REPO_KEY,
    SNAPSHOTS_PREFIX,
    backup_key,
    branch_key,
    snapshot_key,
    tag_tombstone_key,
)
from icefloe.format.repo_info import MAIN_BRANCH, RepoInfo, decode_repo_info
from icefloe.format.snapshot_table import SnapshotEntry
from icefloe.format.update_table import UpdateEntry, UpdateKind
from icefloe.maintenance.verify.files import CheckedFiles
from icefloe.maintenance.verify.findings import DamageKind, Findings
from icefloe.records import Record, field, replace
from icefloe.storage import Buffer
from icefloe.walk.history import oldest_ancestors

_AT_ONCE: Final = 16


class BackupRules(Record):
    """The number of backups of the repo object to check."""

    most: int | None = 16
    """How many backups to read, newest first; None: all. The others must only be there.

    Each holds the whole history of its time, so only a deep verification reads all.
    """
    follows_log: bool = True


async def check_operations(files: CheckedFiles, repo: RepoInfo, rules: BackupRules) -> None:
    """Check the log in the repo object, and its continuation in the backups."""
    prefix = len(BACKUPS_PREFIX)
    present = {
        info.key[prefix:] async for batch in files.backend.list(BACKUPS_PREFIX) for info in batch
    }
    reader = _Backups(files, present, rules.most)
    newest = repo.updates.entry(0)
    files.findings.require(
        _led_to(newest, repo),
        DamageKind.BAD_OPERATIONS,
        f"the newest operation in {REPO_KEY} is {newest.kind.name}, but the repository is not as"
        " that operation leaves it",
        REPO_KEY,
    )
    name: str = REPO_KEY
    visited: set[str] = set()
    state: RepoInfo | None = repo
    newer: UpdateEntry | None = None
    while state is not None:
        entries = state.updates.entries()
        await _check_entries(files, entries, name, reader)
        if newer is not None:
            files.findings.require(
                newer.updated_at > entries[0].updated_at,
                DamageKind.BAD_OPERATIONS,
                f"{name} is not older than what it backs",
                backup_key(name),
            )
        newer, before = entries[-1], state.repo_before_updates
        if before is None:
            return
        if before in visited:
            message = f"the log of operations comes back to {before}"
            files.findings.report(DamageKind.BAD_OPERATIONS, message, backup_key(before))
            return
        name = before
        visited.add(name)
        state = await reader.read(name)


def _led_to(newest: UpdateEntry, repo: RepoInfo) -> bool:
    """Return whether a repository is as its newest operation leaves it."""
    name = newest.name or ""
    match newest.kind:
        case UpdateKind.TAG_CREATED:
            return name in repo.tags
        case UpdateKind.TAG_DELETED:
            return name in repo.deleted_tags
        case UpdateKind.BRANCH_CREATED | UpdateKind.BRANCH_RESET:
            return name in repo.branches
        case UpdateKind.BRANCH_DELETED:
            return name not in repo.branches
        case UpdateKind.NEW_COMMIT | UpdateKind.COMMIT_AMENDED:
            return repo.branches.get(name) == newest.new
        case UpdateKind.NEW_DETACHED_SNAPSHOT:
            return newest.new is not None and repo.snapshots.row_of(newest.new) is not None
    return True


class _Backups:
    """Reads backups, as many as are wanted."""

    def __init__(self, files: CheckedFiles, present: set[str], most: int | None) -> None:
        self._files = files
        self._present = present
        self._left = most

    async def read(self, name: str) -> RepoInfo | None:
        """Read a backup that continues the log."""
        loaded = await self._files.load(
            backup_key(name),
            decode_repo_info,
            "the log of operations",
            missing=DamageKind.NO_BACKUP,
            damaged=DamageKind.BAD_BACKUP,
        )
        return None if loaded is None else loaded[0]

    async def first_entries(self, names: Sequence[str]) -> dict[str, UpdateEntry]:
        """Return the newest entries of backups, up to a limit; check that others exist."""
        backup_names = list(names if self._left is None else islice(names, self._left))
        if self._left is not None:
            self._left -= len(backup_names)
        for name in names[len(backup_names) :]:
            key = backup_key(name)
            self._files.findings.require(
                name in self._present,
                DamageKind.NO_BACKUP,
                f"{key} does not exist, but the log of operations needs it",
                key,
            )

        async def first(name: str) -> UpdateEntry | None:
            repo = await self.read(name)
            return None if repo is None else repo.updates.entry(0)

        entries = await map_concurrently(first, backup_names, limit=_AT_ONCE)
        return {
            name: entry
            for name, entry in zip(backup_names, entries, strict=True)
            if entry is not None
        }


async def _check_entries(
    files: CheckedFiles, entries: Sequence[UpdateEntry], name: str, backups: _Backups
) -> None:
    def require(holds: object, message: str) -> None:
        key = REPO_KEY if name == REPO_KEY else backup_key(name)
        files.findings.require(holds, DamageKind.BAD_OPERATIONS, message, key)

    newest, *older = entries
    require(newest.backup_path is None, f"the newest operation in {name} has a backup already")
    times = [entry.updated_at for entry in entries]
    require(
        all(newer > older for newer, older in pairwise(times)),
        f"the operations in {name} are not newest first, each at a time of its own",
    )
    migrated_at = max(
        (entry.updated_at for entry in entries if entry.kind is UpdateKind.REPO_MIGRATED), default=0
    )
    for entry in older:
        require(
            entry.backup_path is not None or entry.updated_at < migrated_at,
            f"the operation {entry.kind.name} in {name} at {entry.updated_at} has no backup",
        )
    with_backup = {entry.backup_path: entry for entry in older if entry.backup_path is not None}
    firsts = await backups.first_entries(list(with_backup))
    for path, entry in with_backup.items():
        first = firsts.get(path)
        require(
            first is None or replace(first, backup_path=path) == entry,
            f"{path} is not the backup of {entry.kind.name} at {entry.updated_at}",
        )


_REF_FILE: Final = "/ref.json"
_TOMBSTONE: Final = "/ref.json.deleted"
_CONCURRENT_REFS: Final = 64


class ListedVersions(Record):
    """All versions that a repository lists, or that its refs lead to."""

    spec_version: int
    parents: Mapping[SnapshotId, SnapshotId | None]
    times: Mapping[SnapshotId, int] = field(default_factory=dict)
    repo: RepoInfo | None = None
    """The repo object; None in spec 1."""
    lost: frozenset[SnapshotId] = frozenset()
    """Those that something leads to, but that could not be read (in spec 1)."""

    def order(self) -> list[SnapshotId]:
        """List all, parents before their children where the history allows it."""
        return sorted(self.parents, key=lambda snapshot_id: (self.times[snapshot_id], snapshot_id))

    def entry(self, snapshot: SnapshotId) -> SnapshotEntry | None:
        """Return the entry of a snapshot in the repo object; spec 1 has none."""
        if self.repo is None:
            return None
        row = self.repo.snapshots.row_of(snapshot)
        return None if row is None else self.repo.snapshots.entry(row)

    def pruned_ancestors(self, snapshot: SnapshotId) -> list[SnapshotId]:
        """Return the ancestors that expiration took out of the history, oldest first."""
        row = None if self.repo is None else self.repo.snapshots.row_of(snapshot)
        if self.repo is None or row is None:
            return []
        return self.repo.snapshots.pruned_ancestors(row)


NO_VERSIONS: Final = ListedVersions(2, {})


async def read_versions(files: CheckedFiles, backups: BackupRules) -> ListedVersions:
    """Find all versions, and check the files that list them."""
    if (has_repo := await files.exists(REPO_KEY)) is None:
        return NO_VERSIONS
    if has_repo:
        versions = await _read_repo_object(files, backups)
    else:
        await _require_refs(files)
        versions = await _read_ref_files(files)
    _check_histories(files, versions)
    return versions


async def list_versions(files: CheckedFiles) -> set[SnapshotId]:
    """List the versions there are now, without checking anything."""
    versions = await read_versions(files, BackupRules(most=0, follows_log=False))
    return {*versions.parents, *versions.lost}


async def _read_repo_object(files: CheckedFiles, backups: BackupRules) -> ListedVersions:
    loaded = await files.load(
        REPO_KEY,
        decode_repo_info,
        "the repository",
        missing=DamageKind.NO_REPO_OBJECT,
        damaged=DamageKind.BAD_REPO_OBJECT,
    )
    if loaded is None:
        return NO_VERSIONS
    repo = loaded[0]
    _check_lists(files.findings, repo)
    if backups.follows_log:
        await check_operations(files, repo, backups)
    if repo.config is not None:
        try:
            decode_config_flexbuffer(repo.config)
        except FormatError as failure:
            message = f"the configuration in {REPO_KEY} cannot be read: {failure}"
            files.findings.report(DamageKind.BAD_CONFIG, message, REPO_KEY)
    table = repo.snapshots
    ids = [table.id(row) for row in range(len(table))]
    parents = [None if row < 0 else ids[row] for row in table.parents.tolist()]
    times = dict(zip(ids, table.flushed_at.tolist(), strict=True))
    return ListedVersions(2, dict(zip(ids, parents, strict=True)), times, repo)


def _check_lists(findings: Findings, repo: RepoInfo) -> None:
    """Check the order of names and flags: other readers search them and would miss some."""
    for what, names in {
        "branches": repo.branches,
        "tags": repo.tags,
        "deleted tags": repo.deleted_tags,
    }.items():
        findings.require(
            _is_ascending([name.encode() for name in names]),
            DamageKind.BAD_REF,
            f"the {what} in {REPO_KEY} are not sorted by name: readers that search for a name may"
            " not find it, until the next change of the repository sorts them",
            REPO_KEY,
        )
    for name in sorted({*repo.tags} & {*repo.deleted_tags}):
        message = f"the tag {name!r} exists in {REPO_KEY}, but is among the deleted tags too"
        findings.report(DamageKind.BAD_REF, message, REPO_KEY)
    enabled, disabled = repo.enabled_flags or (), repo.disabled_flags or ()
    findings.require(
        _is_ascending(enabled) and _is_ascending(disabled) and not {*enabled} & {*disabled},
        DamageKind.BAD_CONFIG,
        f"the feature flags in {REPO_KEY} are not sorted, or a flag is both enabled and disabled",
        REPO_KEY,
    )


def _is_ascending(items: Sequence[bytes] | Sequence[int]) -> bool:
    return all(map(lt, items, items[1:]))


# -- spec 1 --------------------------------------------------------------------------------


async def _require_refs(files: CheckedFiles) -> None:
    """Raise unless there are refs: the repository lost its first files, or there is none."""
    if await files.exists(branch_key(MAIN_BRANCH)) is not False:
        return
    for prefix in (BACKUPS_PREFIX, REFS_PREFIX, SNAPSHOTS_PREFIX):
        async for batch in files.backend.list(prefix):
            if not batch:
                continue
            if prefix != REFS_PREFIX:
                message = f"{REPO_KEY} does not exist, but there is {batch[0].key}"
                files.findings.report(DamageKind.NO_REPO_OBJECT, message, REPO_KEY)
            return
    raise RepositoryNotFoundError("there is no repository to verify: check the place")


async def _read_ref_files(files: CheckedFiles) -> ListedVersions:
    """Follow all refs, reading one snapshot after the other."""
    if await files.exists(CONFIG_KEY):
        await files.load(
            CONFIG_KEY,
            lambda data: decode_config_yaml(bytes(data)),
            "the repository",
            missing=DamageKind.BAD_CONFIG,
            damaged=DamageKind.BAD_CONFIG,
        )
    parents: dict[SnapshotId, SnapshotId | None] = {}
    times: dict[SnapshotId, int] = {}
    lost: set[SnapshotId] = set()
    for name, tip in (await _ref_tips(files)).items():
        snapshot_id: SnapshotId | None = tip
        while snapshot_id is not None and snapshot_id not in parents:
            snapshot = await files.snapshot(snapshot_id, name)
            if snapshot is None:
                lost.add(snapshot_id)
                break
            parents[snapshot_id], times[snapshot_id] = snapshot.parent_id, snapshot.flushed_at
            snapshot_id = snapshot.parent_id
    return ListedVersions(1, parents, times, lost=frozenset(lost))


async def _ref_tips(files: CheckedFiles) -> dict[str, SnapshotId]:
    infos = [info async for batch in files.backend.list(REFS_PREFIX) for info in batch]
    sizes = {info.key: info.size_bytes for info in infos}
    bad, findings = DamageKind.BAD_REF, files.findings
    names: dict[str, str] = {}
    for key in sorted(sizes):
        if key.endswith(_TOMBSTONE):
            findings.require(sizes[key] == 0, bad, f"{key} is not empty", key)
            deleted = key.removesuffix(".deleted")
            findings.require(deleted in sizes, bad, f"{key} deletes nothing", key)
            continue
        kind, _, ref = key.removeprefix(REFS_PREFIX).removesuffix(_REF_FILE).partition(".")
        if kind not in ("branch", "tag") or not key.endswith(_REF_FILE):
            findings.report(bad, f"{key} is not the file of a branch or tag", key)
        elif not (kind == "tag" and tag_tombstone_key(ref) in sizes):
            names[key] = f"{kind} {ref!r}"
    main = branch_key(MAIN_BRANCH)
    findings.require(main in names, bad, "there is no branch main", main)

    async def read(key: str) -> SnapshotId | None:
        loaded = await files.load(key, _decode_ref, names[key], missing=bad, damaged=bad)
        return None if loaded is None else loaded[0]

    tips = await map_concurrently(read, names, limit=_CONCURRENT_REFS)
    return {name: tip for name, tip in zip(names.values(), tips, strict=True) if tip is not None}


def _decode_ref(data: Buffer) -> SnapshotId:
    try:
        document = json.loads(bytes(data))
    except ValueError as failure:
        raise FormatError(f"a ref is not JSON: {failure}") from failure
    match document:
        case {"snapshot": str(text)} if len(document) == 1:
            return SnapshotId.parse(text)
    raise FormatError(f"a ref holds something else than a snapshot: {bytes(data[:80])!r}")


# -- histories -----------------------------------------------------------------------------


def _check_histories(files: CheckedFiles, versions: ListedVersions) -> None:
    """Check that all histories end in the initial snapshot, each step once."""
    wrong: dict[SnapshotId | None, list[SnapshotId]] = {}
    for snapshot, end in oldest_ancestors(versions.parents).items():
        if end != INITIAL_SNAPSHOT_ID:
            wrong.setdefault(end, []).append(snapshot)
    for end, versions_wrong in wrong.items():
        newest = max(versions_wrong, key=lambda version: (versions.times[version], version))
        if end is None:
            message = f"the history of {newest} runs in a circle"
        elif end not in versions.parents:
            continue  # the missing version has been reported
        else:
            message = f"the history of {newest} ends in {end}, not the initial snapshot"
        files.findings.report(
            DamageKind.BAD_HISTORY, message, snapshot_key(newest), versions=versions_wrong
        )
