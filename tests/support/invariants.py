"""What must hold of a repository at every moment, checked on the bytes of its files.

The rules follow the format description. They share no code with `Repository.verify` nor with the
codecs of the product: a blind spot there is not a blind spot here.

    checker = StoredInvariants()
    violations = checker.violations({"repo": b"...", ...})  # after every step of a test

Files that never change are decoded and checked once, however often they are seen.

Not demanded, because the format does not demand it and the reference writes such repositories:
that the parent group of a node exists.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from tests.support.file_rules import (
    INITIAL,
    backup_problems,
    decode_ref,
    entry_problems,
    grid_of,
    is_same_operation,
    listed_manifests,
    manifest_refs,
    native_needs,
    operation_problems,
    repo_problems,
    snapshot_problems,
    use_problems,
)
from tests.support.oracle import Record, UnreadableError, decode, id_text
from tests.support.step_rules import log_problems, step_problems

_IMMUTABLE: Final = ("snapshots/", "manifests/", "transactions/", "chunks/", "overwritten/")
_FOLDERS: Final = {
    "Snapshot": "snapshots",
    "Manifest": "manifests",
    "TransactionLog": "transactions",
}
_REF, _TOMBSTONE = "/ref.json", "/ref.json.deleted"


class StoredInvariants:
    """Checks the files of a repository again and again, and remembers them in between."""

    def __init__(self) -> None:
        self._fingerprints: dict[str, bytes] = {}
        self._deleted_tags: set[str] = set()

    def violations(self, files: Mapping[str, bytes]) -> list[str]:
        """Return everything that is wrong with the files, or with how they changed."""
        return [*self._changes(files), *_State(files).violations()]

    def _changes(self, files: Mapping[str, bytes]) -> Iterator[str]:
        now = {key: _fingerprint(key, data) for key, data in files.items() if _never_changes(key)}
        for key, before in self._fingerprints.items():
            if now.get(key, before) != before:
                yield f"{key} has changed since it was written"
        deleted = _deleted_tags(files)
        for name in sorted(self._deleted_tags - deleted):
            yield f"the tag {name!r} was deleted, but the repository does not say so any more"
        self._fingerprints |= now
        self._deleted_tags |= deleted


def _never_changes(key: str) -> bool:
    return key.startswith((*_IMMUTABLE, "refs/tag."))


def _fingerprint(key: str, data: bytes) -> bytes:
    """Tell contents apart; expiration of spec 1 may give a snapshot another parent."""
    if key.startswith("snapshots/") and data[36:37] == b"\x01":
        try:
            fields = {**vars(decode("Snapshot", data)), "parent_id": None}
        except UnreadableError:
            fields = {"data": data}
        data = repr(fields).encode()
    return hashlib.blake2b(data, digest_size=16).digest()


def _deleted_tags(files: Mapping[str, bytes]) -> set[str]:
    if "repo" in files:
        try:
            return {*decode("Repo", files["repo"]).deleted_tags}
        except UnreadableError:
            return set()
    return {_ref_name(key) for key in files if key.endswith(_TOMBSTONE)}


def _ref_name(key: str) -> str:
    return key.rpartition("/")[0].partition(".")[2]


# -- one state of a repository -------------------------------------------------------------


class _State:
    """The files of a repository at one moment."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._files = files
        self._violations: dict[str, None] = {}
        self._records: dict[str, Record | None] = {}

    def violations(self) -> list[str]:
        if "repo" in self._files:
            repo = self._read("Repo", "repo")
            parents = {} if repo is None else self._repo(repo)
        else:
            parents = self._refs()
        self._histories(parents)
        for snapshot_id in parents:
            self._snapshot(snapshot_id, parents)
        return [*self._violations]

    def _require(self, holds: object, violation: str) -> None:
        if not holds:
            self._violations[violation] = None

    def _report(self, where: str, problems: Iterable[str]) -> None:
        self._violations |= {f"{where}: {problem}": None for problem in problems}

    def _read(self, table: str, key: str) -> Record | None:
        """Decode a file that must exist; each file is reported once."""
        if key not in self._records:
            self._records[key] = None
            try:
                self._records[key] = decode(table, self._files[key])
            except KeyError:
                self._require(False, f"{key} is missing")
            except UnreadableError as failure:
                self._require(False, f"{key} cannot be decoded: {failure}")
        return self._records[key]

    def _named(self, table: str, raw: bytes) -> Record | None:
        """Decode a file whose name is its id."""
        key = f"{_FOLDERS[table]}/{id_text(raw)}"
        record = self._read(table, key)
        if record is not None:
            self._require(record.id == raw, f"{key} holds the id {id_text(record.id)}")
        return record

    # -- spec 2 ----------------------------------------------------------------------------

    def _repo(self, repo: Record) -> dict[bytes, bytes | None]:
        self._report("repo", repo_problems(repo))
        self._operations(repo)
        ids = [entry.id for entry in repo.snapshots]
        parents: dict[bytes, bytes | None] = {}
        for entry in repo.snapshots:
            has_parent = 0 <= entry.parent_offset < len(ids)
            parents[entry.id] = ids[entry.parent_offset] if has_parent else None
            snapshot = self._named("Snapshot", entry.id)
            if snapshot is not None:
                self._report(f"repo on {id_text(entry.id)}", entry_problems(entry, snapshot))
        return parents

    def _operations(self, repo: Record) -> None:
        """Check the log of operations, in the repo object and in the backups where it goes on."""
        name, at, newer = "repo", repo, None
        visited: set[str] = set()
        while True:
            self._report(name, operation_problems(at))
            for update in at.latest_updates:
                if update.backup_path is not None:
                    self._backup(update)
            if newer is not None and at.latest_updates:
                is_older = at.latest_updates[0].updated_at < newer
                self._require(is_older, f"{name} is not older than the log that goes on in it")
            newer = at.latest_updates[-1].updated_at if at.latest_updates else newer
            before = at.repo_before_updates
            if before is None:
                return
            self._require(before not in visited, f"the log of operations comes back to {before}")
            backup = self._read("Repo", f"overwritten/{before}")
            if backup is None or before in visited:
                return
            visited.add(before)
            name, at = f"overwritten/{before}", backup

    def _backup(self, update: Record) -> None:
        key = f"overwritten/{update.backup_path}"
        backup = self._read("Repo", key)
        if backup is None:
            return
        self._report(key, backup_problems(backup))
        if backup.latest_updates:
            newest = backup.latest_updates[0]
            self._require(
                is_same_operation(newest, update),
                f"{key} is not the backup of the operation at {update.updated_at}",
            )

    # -- spec 1 ----------------------------------------------------------------------------

    def _refs(self) -> dict[bytes, bytes | None]:
        keys = [key for key in self._files if key.startswith("refs/")]
        self._require(f"refs/branch.main{_REF}" in keys, "there is no branch main")
        parents: dict[bytes, bytes | None] = {}
        for key in sorted(keys):
            if key.endswith(_TOMBSTONE) and key.startswith("refs/tag."):
                self._require(self._files[key] == b"", f"{key} is not empty")
                self._require(key.removesuffix(".deleted") in keys, f"{key} deletes no tag")
            elif not (key.endswith(_REF) and key.startswith(("refs/branch.", "refs/tag."))):
                self._require(False, f"{key} is neither a branch nor a tag")
            elif f"{key}.deleted" not in keys:
                self._follow(key, parents)
        return parents

    def _follow(self, key: str, parents: dict[bytes, bytes | None]) -> None:
        try:
            at: bytes | None = decode_ref(self._files[key])
        except UnreadableError as failure:
            self._require(False, f"{key} cannot be decoded: {failure}")
            return
        while at is not None and at not in parents:
            snapshot = self._named("Snapshot", at)
            if snapshot is None:
                return
            parents[at] = snapshot.parent_id
            at = snapshot.parent_id

    # -- versions --------------------------------------------------------------------------

    def _histories(self, parents: Mapping[bytes, bytes | None]) -> None:
        """Check that every history ends in the initial snapshot."""
        for tip in parents:
            way: set[bytes] = set()
            at: bytes | None = tip
            while at is not None and at in parents and at not in way and at != INITIAL:
                way.add(at)
                at = parents[at]
            if at is not None and at not in parents:
                continue  # a missing file, which has been reported
            self._require(
                at == INITIAL, f"the history of {id_text(tip)} does not end in the initial snapshot"
            )

    def _snapshot(self, raw: bytes, parents: Mapping[bytes, bytes | None]) -> None:
        snapshot = self._named("Snapshot", raw)
        logs = self._logs(raw, snapshot)
        if snapshot is None:
            return
        where = f"snapshots/{id_text(raw)}"
        self._report(where, snapshot_problems(snapshot))
        parent_id = parents[raw]
        parent = None if parent_id is None else self._named("Snapshot", parent_id)
        if parent is not None:
            is_later = snapshot.flushed_at > parent.flushed_at
            self._require(is_later, f"{where} is not later than its parent")
        manifests = self._manifests(snapshot, where)
        if raw == INITIAL:
            parent = snapshot
        if parent is None or logs is None or manifests is None:
            return
        before = self._manifests(parent, f"snapshots/{id_text(parent.id)}")
        if before is not None:
            # Expiration of spec 1 makes the initial snapshot the parent and leaves no other trace.
            is_whole = not (snapshot.spec == 1 and parent_id == INITIAL)
            problems = step_problems(snapshot, parent, before + manifests, logs, is_whole)
            self._report(f"transactions/{id_text(raw)}", problems)

    def _logs(self, raw: bytes, snapshot: Record | None) -> tuple[Record, ...] | None:
        """Return the logs of what happened since the parent; None if one is missing."""
        key = f"transactions/{id_text(raw)}"
        is_old = snapshot is None or snapshot.spec == 1
        if raw == INITIAL and is_old and key not in self._files:
            return ()
        logs = [self._named("TransactionLog", wanted) for wanted in (*self._pruned(raw), raw)]
        found = [log for log in logs if log is not None]
        for log in found:
            self._report(f"transactions/{id_text(log.id)}", log_problems(log))
        return tuple(found) if len(found) == len(logs) else None

    def _pruned(self, raw: bytes) -> list[bytes]:
        repo = self._records.get("repo")
        entries = [] if repo is None else [entry for entry in repo.snapshots if entry.id == raw]
        return [one for entry in entries for one in entry.pruned_ancestor_tx_logs or ()]

    # -- manifests and chunks --------------------------------------------------------------

    def _manifests(self, snapshot: Record, where: str) -> tuple[Record, ...] | None:
        """Check the manifests of a snapshot and return them; None if some cannot be used."""
        listed = {raw: (size, count) for raw, size, count in listed_manifests(snapshot)}
        manifests: list[Record] = []
        for node in snapshot.nodes:
            for ref in manifest_refs(node):
                manifest = self._named("Manifest", ref.object_id)
                if manifest is None or manifest.id != ref.object_id:
                    return None
                manifests.append(manifest)
                extents = tuple(ref.extents)
                problems = use_problems(manifest, node.id, grid_of(node), extents)
                self._report(f"{where}, {node.path}", problems)
                for chunk, end in native_needs(manifest, node.id):
                    self._chunk(chunk, end)
                if ref.object_id in listed:
                    key = f"manifests/{id_text(ref.object_id)}"
                    refs = sum(len(array.refs) for array in manifest.arrays)
                    self._require(
                        listed[ref.object_id] == (len(self._files[key]), refs),
                        f"{where} gives a wrong size or number of references of {key}",
                    )
        return tuple(manifests)

    def _chunk(self, chunk: bytes, end: int) -> None:
        key = f"chunks/{id_text(chunk)}"
        if key not in self._files:
            self._require(False, f"{key} is missing")
        else:
            size = len(self._files[key])
            self._require(end <= size, f"{key} has {size} bytes, but references reach to {end}")
