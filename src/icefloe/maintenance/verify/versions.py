"""Which versions there are, by the repo object of spec 2 or the ref files of spec 1."""

import json
from collections.abc import Mapping, Sequence
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
    branch_key,
    snapshot_key,
    tag_tombstone_key,
)
from icefloe.format.repo_info import MAIN_BRANCH, RepoInfo, decode_repo_info
from icefloe.format.snapshot_table import SnapshotEntry
from icefloe.maintenance.verify.files import CheckedFiles
from icefloe.maintenance.verify.findings import DamageKind, Findings
from icefloe.maintenance.verify.operations import BackupRules, check_operations
from icefloe.records import Record, field
from icefloe.storage import Buffer

_REF_FILE: Final = "/ref.json"
_TOMBSTONE: Final = "/ref.json.deleted"
_CONCURRENT_REFS: Final = 64


class Versions(Record):
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


NO_VERSIONS: Final = Versions(2, {})


async def read_versions(files: CheckedFiles, backups: BackupRules) -> Versions:
    """Find all versions, and check what tells of them."""
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


async def _read_repo_object(files: CheckedFiles, backups: BackupRules) -> Versions:
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
    return Versions(2, dict(zip(ids, parents, strict=True)), times, repo)


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


async def _read_ref_files(files: CheckedFiles) -> Versions:
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
    return Versions(1, parents, times, lost=frozenset(lost))


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

_CIRCLE: Final = "circle"


def _check_histories(files: CheckedFiles, versions: Versions) -> None:
    """Check that all histories end in the initial snapshot, each step once."""
    ends: dict[SnapshotId, SnapshotId | str] = {}
    for tip in versions.parents:
        _follow(tip, versions.parents, ends)
    wrong: dict[SnapshotId | str, list[SnapshotId]] = {}
    for snapshot, end in ends.items():
        if end != INITIAL_SNAPSHOT_ID:
            wrong.setdefault(end, []).append(snapshot)
    for end, versions_wrong in wrong.items():
        newest = max(
            versions_wrong, key=lambda snapshot_id: (versions.times[snapshot_id], snapshot_id)
        )
        if end == _CIRCLE:
            message = f"the history of {newest} runs in a circle"
        elif end not in versions.parents:
            # What was not found has been reported; its children have no history to speak of.
            continue
        else:
            message = f"the history of {newest} ends in {end}, not the initial snapshot"
        files.findings.report(
            DamageKind.BAD_HISTORY, message, snapshot_key(newest), versions=versions_wrong
        )


def _follow(
    tip: SnapshotId,
    parents: Mapping[SnapshotId, SnapshotId | None],
    ends: dict[SnapshotId, SnapshotId | str],
) -> None:
    """Find the end of a history, and of all that lie on the way to it."""
    way: dict[SnapshotId, None] = {}
    snapshot_id = tip
    while True:
        if snapshot_id in ends:
            end = ends[snapshot_id]
            break
        if snapshot_id in way:
            end = _CIRCLE
            break
        if snapshot_id not in parents:
            end = snapshot_id
            break
        way[snapshot_id] = None
        parent = parents[snapshot_id]
        if parent is None:
            end = snapshot_id
            break
        snapshot_id = parent
    ends.update(dict.fromkeys(way, end))
