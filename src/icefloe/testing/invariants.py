"""What must hold of every repository at every moment, seen in its stored files alone.

- Every file that can be reached from `repo` (or the refs of spec 1) exists, can be read, and
  holds the id that its name says.
- Every history ends in the initial snapshot; times increase along it.
- Snapshots list just the manifests that their arrays use, with their exact sizes and counts;
  extents are tight and disjoint; references are sorted and inside the grid; chunk objects are
  long enough.
- Transaction logs tell what happened between a snapshot and its parent.
- The log of operations is newest first and goes on in backups that exist.
- A file once written never changes.

    checker = InvariantChecker()
    ...
    run_blocking(checker.check(backend))  # after every step of a test

Everything found is listed in one `BrokenRepositoryError`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from icefloe.effects import run_blocking
from icefloe.errors import ErrorKind, FormatError, IcefloeError
from icefloe.format.config_file import decode_config_flexbuffer, decode_config_yaml
from icefloe.format.ids import INITIAL_SNAPSHOT_ID, SnapshotId
from icefloe.format.layout import (
    BACKUPS_PREFIX,
    CHUNKS_PREFIX,
    CONFIG_KEY,
    MANIFESTS_PREFIX,
    REFS_PREFIX,
    REPO_KEY,
    SNAPSHOTS_PREFIX,
    TRANSACTIONS_PREFIX,
    backup_key,
    tag_tombstone_key,
    transaction_log_key,
)
from icefloe.format.repo_info import MAIN_BRANCH, RepoInfo, decode_repo_info
from icefloe.format.snapshot import Snapshot
from icefloe.format.snapshot_table import SnapshotEntry
from icefloe.format.update_table import UpdateEntry, UpdateKind
from icefloe.storage.port import Backend
from icefloe.testing.snapshot_rules import Step, check_snapshot, check_step
from icefloe.testing.stored_files import DecodedFiles, StoredFiles, digest, read_all

_IMMUTABLE: Final = (
    SNAPSHOTS_PREFIX,
    MANIFESTS_PREFIX,
    TRANSACTIONS_PREFIX,
    CHUNKS_PREFIX,
    BACKUPS_PREFIX,
)


class BrokenRepositoryError(IcefloeError):
    """The stored files of a repository break rules that must always hold."""

    default_kind = ErrorKind.INVALID_FILE_FORMAT

    def __init__(self, violations: Sequence[str]) -> None:
        lines = "\n".join(f"- {violation}" for violation in violations)
        super().__init__(f"{len(violations)} invariants of the repository are broken:\n{lines}")
        self.violations = tuple(violations)


class InvariantChecker:
    """Checks a repository again and again, and remembers its files from one time to the next."""

    def __init__(self) -> None:
        self._digests: dict[str, bytes] = {}
        self._decoded = DecodedFiles()

    async def check(self, backend: Backend) -> None:
        """Check everything; raise `BrokenRepositoryError` with all violations."""
        files = StoredFiles(await read_all(backend), self._decoded)
        self._check_unchanged(files)
        _check_contents(files)
        if files.problems:
            raise BrokenRepositoryError(files.problems)

    def check_blocking(self, backend: Backend) -> None:
        """Check everything, for callers that block."""
        run_blocking(self.check(backend))

    def _check_unchanged(self, files: StoredFiles) -> None:
        now = {
            key: digest(data) for key, data in files.contents.items() if key.startswith(_IMMUTABLE)
        }
        for key, before in self._digests.items():
            files.require(now.get(key, before) == before, f"{key} has changed since it was written")
        self._digests |= now


async def check_repository(backend: Backend) -> None:
    """Check a repository once; raise `BrokenRepositoryError` with all violations."""
    await InvariantChecker().check(backend)


def check_repository_blocking(backend: Backend) -> None:
    """Check a repository once, for callers that block."""
    run_blocking(check_repository(backend))


# -- what a repository says of itself ------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Listed:
    """A snapshot with what is known of it outside of its file."""

    parent: SnapshotId | None
    entry: SnapshotEntry | None = None
    """From the repo object; spec 1 has none."""


type _Histories = Mapping[SnapshotId, _Listed]


def _check_contents(files: StoredFiles) -> None:
    is_spec_2 = REPO_KEY in files.contents
    histories = _read_repo_object(files) if is_spec_2 else _read_ref_files(files)
    for snapshot_id in sorted(histories):
        _check_history(files, snapshot_id, histories)
        _check_listed(files, snapshot_id, histories[snapshot_id])


def _read_repo_object(files: StoredFiles) -> _Histories:
    repo = files.decode(REPO_KEY, "the repository", decode_repo_info)
    if repo is None:
        return {}
    _check_operations(files, repo)
    if repo.config is not None:
        try:
            decode_config_flexbuffer(repo.config)
        except FormatError as failure:
            files.report(f"the configuration in {REPO_KEY} cannot be read: {failure}")
    entries = [repo.snapshots.entry(row) for row in range(len(repo.snapshots))]
    return {entry.id: _Listed(entry.parent, entry) for entry in entries}


def _read_ref_files(files: StoredFiles) -> _Histories:
    """Follow all refs of spec 1; decoding checks what they lead to."""
    if CONFIG_KEY in files.contents:
        files.decode(CONFIG_KEY, "the repository", decode_config_yaml)
    listed: dict[SnapshotId, _Listed] = {}
    for name, tip in _ref_tips(files).items():
        at: SnapshotId | None = tip
        while at is not None and at not in listed:
            snapshot = files.snapshot(at, name)
            if snapshot is None:
                break
            listed[at] = _Listed(snapshot.parent_id)
            at = snapshot.parent_id
    return listed


def _ref_tips(files: StoredFiles) -> dict[str, SnapshotId]:
    tips = {}
    for key, data in sorted(files.contents.items()):
        if not key.startswith(REFS_PREFIX):
            continue
        if key.endswith("/ref.json.deleted"):
            files.require(data == b"", f"{key} is not empty")
            files.require(key.removesuffix(".deleted") in files.contents, f"{key} deletes nothing")
            continue
        name = key.removeprefix(REFS_PREFIX).removesuffix("/ref.json")
        kind, _, ref = name.partition(".")
        if kind not in ("branch", "tag") or not key.endswith("/ref.json"):
            files.report(f"{key} is not the file of a branch or tag")
        elif not (kind == "tag" and tag_tombstone_key(ref) in files.contents):
            target = files.decode(key, name, _decode_ref)
            if target is not None:
                tips[f"{kind} {ref!r}"] = target
    files.require(f"branch {MAIN_BRANCH!r}" in tips, "there is no branch main")
    return tips


def _decode_ref(data: bytes) -> SnapshotId:
    try:
        document = json.loads(data)
    except ValueError as failure:
        raise FormatError(f"a ref is not JSON: {failure}") from failure
    match document:
        case {"snapshot": str(text)} if len(document) == 1:
            return SnapshotId.parse(text)
    raise FormatError(f"a ref holds something else than a snapshot: {data[:80]!r}")


# -- histories -----------------------------------------------------------------------------


def _check_history(files: StoredFiles, tip: SnapshotId, histories: _Histories) -> None:
    seen = {tip}
    at = tip
    while (parent := histories[at].parent) is not None:
        if parent in seen:
            files.report(f"the history of {tip} runs in a circle")
            return
        if parent not in histories:
            files.report(f"the parent {parent} of {at} is not there")
            return
        seen.add(parent)
        at = parent
    files.require(
        at == INITIAL_SNAPSHOT_ID, f"the history of {tip} ends in {at}, not the initial snapshot"
    )


def _check_listed(files: StoredFiles, snapshot_id: SnapshotId, listed: _Listed) -> None:
    snapshot = files.snapshot(snapshot_id, "a history")
    if snapshot is None:
        return
    check_snapshot(files, snapshot)
    if listed.entry is not None:
        _check_entry(files, snapshot, listed.entry)
    if listed.parent is None:
        _check_initial(files, snapshot)
        return
    parent = files.snapshot(listed.parent, f"its child {snapshot_id}")
    pruned = () if listed.entry is None else listed.entry.pruned_ancestors
    logs = [files.log(one, f"snapshot {snapshot_id}") for one in (*pruned, snapshot_id)]
    if parent is None:
        return
    files.require(
        snapshot.flushed_at > parent.flushed_at,
        f"snapshot {snapshot_id} is not later than its parent {parent.id}",
    )
    found = [log for log in logs if log is not None]
    if len(found) == len(logs):
        # Expiration in spec 1 puts the initial snapshot as parent and leaves no other trace.
        is_whole = not (snapshot.spec_version == 1 and parent.id == INITIAL_SNAPSHOT_ID)
        check_step(files, Step(snapshot, parent, found, is_whole))


def _check_initial(files: StoredFiles, snapshot: Snapshot) -> None:
    files.require(len(snapshot.nodes) == 0, "the initial snapshot has nodes")
    is_old = snapshot.spec_version == 1
    if transaction_log_key(snapshot.id) in files.contents or not is_old:
        log = files.log(snapshot.id, "the initial snapshot")
        if log is not None:
            check_step(files, Step(snapshot, snapshot, [log]))


def _check_entry(files: StoredFiles, snapshot: Snapshot, entry: SnapshotEntry) -> None:
    for name in ("flushed_at", "message", "metadata"):
        stored, copied = getattr(snapshot, name), getattr(entry, name)
        files.require(
            stored == copied,
            f"the repo object says {name} {copied!r} of {snapshot.id}, its file {stored!r}",
        )


# -- the log of operations -----------------------------------------------------------------


def _check_operations(files: StoredFiles, repo: RepoInfo) -> None:
    """Check the log in the repo object, and that it goes on in the backups."""
    name: str | None = REPO_KEY
    visited: set[str] = set()
    at: RepoInfo | None = repo
    newer: UpdateEntry | None = None
    while at is not None and name is not None:
        entries = at.updates.entries()
        _check_entries(files, entries, name)
        if newer is not None:
            files.require(
                newer.updated_at > entries[0].updated_at, f"{name} is not older than what it backs"
            )
        newer, name = entries[-1], at.repo_before_updates
        if name is None:
            return
        if name in visited:
            files.report(f"the log of operations comes back to {name}")
            return
        visited.add(name)
        at = _backup(files, name)


def _check_entries(files: StoredFiles, entries: Sequence[UpdateEntry], name: str) -> None:
    newest, *older = entries
    files.require(
        newest.backup_path is None, f"the newest operation in {name} has a backup already"
    )
    times = [entry.updated_at for entry in entries]
    files.require(
        all(newer > older for newer, older in pairwise(times)),
        f"the operations in {name} are not newest first, each at a time of its own",
    )
    migrated_at = max(
        (entry.updated_at for entry in entries if entry.kind is UpdateKind.REPO_MIGRATED), default=0
    )
    for entry in older:
        if entry.backup_path is None:
            files.require(
                entry.updated_at < migrated_at,
                f"the operation {entry.kind.name} in {name} at {entry.updated_at} has no backup",
            )
            continue
        backup = _backup(files, entry.backup_path)
        if backup is not None:
            first = backup.updates.entry(0)
            files.require(
                (first.kind, first.updated_at) == (entry.kind, entry.updated_at),
                f"{entry.backup_path} is not the backup of {entry.kind.name} at {entry.updated_at}",
            )


def _backup(files: StoredFiles, name: str) -> RepoInfo | None:
    return files.decode(backup_key(name), "the log of operations", decode_repo_info)
