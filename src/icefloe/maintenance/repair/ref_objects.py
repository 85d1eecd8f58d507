"""Putting back what makes a repository of spec 1 one: files of branches and tags, configuration.

Snapshots of spec 1 name their parents, so that all histories are known; only where a branch ended
is not, if its file is lost. Assumptions are reported, and can be overridden.
"""

import json
from typing import Final

from icefloe.config import RepositoryConfig
from icefloe.errors import SnapshotNotFoundError
from icefloe.format.config_file import decode_config_yaml, encode_config_yaml
from icefloe.format.envelope import FileType, object_attributes
from icefloe.format.ids import INITIAL_SNAPSHOT_ID, SnapshotId
from icefloe.format.layout import (
    CONFIG_KEY,
    REFS_PREFIX,
    backup_key,
    branch_key,
    snapshot_key,
    tag_key,
    tag_tombstone_key,
)
from icefloe.format.repo_info import MAIN_BRANCH
from icefloe.format.snapshot import Snapshot, with_parent
from icefloe.maintenance.repair.repair_log import RepairKind, Workshop
from icefloe.maintenance.repair.repo_objects import leaves_of
from icefloe.records import MutableRecord, field
from icefloe.repo.ref_ledger import bury_ref, ref_bytes
from icefloe.storage import Buffer, Version

_JSON: Final = "application/json"
_YAML: Final = "application/yaml"
_REF_FILE: Final = "/ref.json"
_SPEC_1: Final = 1
_SHOWN_ENDS: Final = 10


class _Ref(MutableRecord):
    kind: str
    name: str
    target: SnapshotId | None
    """None: its file cannot be read, or is missing."""
    version: Version | None
    """None: there is no file."""

    @property
    def key(self) -> str:
        return branch_key(self.name) if self.kind == "branch" else tag_key(self.name)


class _History(MutableRecord):
    """The refs and snapshots of a repository of spec 1."""

    refs: list[_Ref]
    snapshots: dict[SnapshotId, Snapshot]
    claimed: set[SnapshotId] = field(default_factory=set)
    """Versions that refs lead to."""

    def claim(self, tip: SnapshotId) -> None:
        snapshot_id: SnapshotId | None = tip
        while snapshot_id is not None and snapshot_id not in self.claimed:
            self.claimed.add(snapshot_id)
            snapshot_id = (
                self.snapshots[snapshot_id].parent_id if snapshot_id in self.snapshots else None
            )

    def unclaimed_ends(self) -> list[SnapshotId]:
        """List ends of histories that nothing leads to, newest first."""
        parents = {
            snapshot_id: snapshot.parent_id for snapshot_id, snapshot in self.snapshots.items()
        }
        ends = leaves_of(parents) & self.snapshots.keys() - self.claimed
        return self.newest_first(ends)

    def newest_first(self, versions: set[SnapshotId]) -> list[SnapshotId]:
        return sorted(
            versions, key=lambda snapshot_id: (-self.snapshots[snapshot_id].flushed_at, snapshot_id)
        )


async def restore_refs(shop: Workshop) -> None:
    """Put back files of branches and tags that are missing or cannot be read."""
    refs = await _read_refs(shop)
    drops = shop.rules.drop_lost_versions
    if all(ref.target is not None for ref in refs) and not drops:
        return
    history = _History(refs, await shop.snapshots(await shop.snapshot_ids()))
    lost = [ref for ref in refs if ref.target is None or (drops and _is_lost(ref, history))]
    for ref in refs:
        if ref.target is not None and ref not in lost:
            history.claim(ref.target)
    lost.sort(key=lambda ref: (ref.kind, ref.name != MAIN_BRANCH, ref.name))
    for ref in lost:
        if (target := await _choose(shop, ref, history)) is not None:
            await _write(shop, ref, target, history)


def _is_lost(ref: _Ref, history: _History) -> bool:
    return ref.target is not None and ref.target not in history.snapshots


async def named_versions(shop: Workshop) -> frozenset[SnapshotId]:
    """List the versions that branches and tags name, as far as their files can be read."""
    return frozenset(ref.target for ref in await _read_refs(shop) if ref.target is not None)


async def _read_refs(shop: Workshop) -> list[_Ref]:
    names = await shop.names(REFS_PREFIX)
    refs = []
    for name in names:
        kind, _, rest = name.partition(".")
        if kind not in ("branch", "tag") or not rest.endswith(_REF_FILE):
            continue
        ref = rest.removesuffix(_REF_FILE)
        if kind == "tag" and f"{name}.deleted" in names:
            continue
        fetched = await shop.fetch(REFS_PREFIX + name)
        if fetched is not None:
            target = _target(bytes(fetched.data))
            refs.append(_Ref(kind, ref, target, fetched.info.version))
    if not any(ref.key == branch_key(MAIN_BRANCH) for ref in refs):
        refs.append(_Ref("branch", MAIN_BRANCH, None, None))
    known_refs = {(ref.kind, ref.name) for ref in refs}
    refs += [
        _Ref("branch", name, None, None)
        for name in shop.rules.branches
        if ("branch", name) not in known_refs
    ]
    refs += [
        _Ref("tag", name, None, None) for name in shop.rules.tags if ("tag", name) not in known_refs
    ]
    return refs


def _target(data: bytes) -> SnapshotId | None:
    try:
        match json.loads(data):
            case {"snapshot": str(text)}:
                return SnapshotId.parse(text)
    except (ValueError, RecursionError):
        pass
    return None


async def _choose(shop: Workshop, ref: _Ref, history: _History) -> SnapshotId | None:
    """Return the snapshot that a ref should point at, or None if it is unknown."""
    chosen = (shop.rules.branches if ref.kind == "branch" else shop.rules.tags).get(ref.name)
    if chosen is not None:
        if chosen not in history.snapshots:
            raise SnapshotNotFoundError(
                f"there is no snapshot {chosen} that can be read, for the {ref.kind} {ref.name!r}",
                snapshot=str(chosen),
            )
        return chosen
    if ref.kind == "tag":
        if ref.target is None:
            shop.note(
                f"nothing tells what the tag {ref.name!r} named: say so with its snapshot, or"
                " delete it"
            )
        else:
            await _bury(shop, ref)
        return None
    ends = history.unclaimed_ends()
    if ref.name == MAIN_BRANCH:
        return _end_of_main(ends, history)
    # Ends that nothing leads to may as well be commits that failed, or versions that expired.
    candidates = ", ".join(map(str, ends[:_SHOWN_ENDS])) or "that other branches and tags have"
    shop.note(
        f"nothing tells where the branch {ref.name!r} ended: say so with its snapshot, perhaps"
        f" one of these: {candidates}"
    )
    return None


def _end_of_main(ends: list[SnapshotId], history: _History) -> SnapshotId | None:
    """Choose the newest end that no other branch has, else the newest version a tag names."""
    if ends:
        return ends[0]
    tagged = {
        ref.target
        for ref in history.refs
        if ref.kind == "tag" and ref.target is not None and ref.target in history.snapshots
    }
    chosen = history.newest_first(tagged) or history.newest_first({*history.snapshots})
    return chosen[0] if chosen else None


async def _write(shop: Workshop, ref: _Ref, target: SnapshotId, history: _History) -> None:
    backup = await shop.replace(ref.key, ref_bytes(target), ref.version, content_type=_JSON)
    history.claim(target)
    state = "missing" if ref.version is None else "damaged"
    if ref.target is not None:
        state = f"at {ref.target}, which is lost"
    snapshot = history.snapshots[target]
    shop.done(
        RepairKind.RESTORE_REF,
        f"the {ref.kind} {ref.name!r} is {state}: it names {target} ({snapshot.message!r}) now;"
        " if that is not what it should be, say so",
        [ref.key],
        kept_aside=backup,
        versions=[target],
    )


async def _bury(shop: Workshop, ref: _Ref) -> None:
    key = tag_tombstone_key(ref.name)
    await bury_ref(shop.backend, key)
    message = f"the tag {ref.name!r} named {ref.target}, which is lost: it is deleted"
    shop.done(RepairKind.DROP_VERSIONS, message, [key])


# -- configuration -------------------------------------------------------------------------


async def restore_config_file(shop: Workshop) -> None:
    """Put back the newest configuration that can be read, if the present one cannot be."""
    fetched = await shop.fetch(CONFIG_KEY)
    if fetched is None or await shop.load(CONFIG_KEY, _config) is not None:
        return
    data, source = encode_config_yaml(RepositoryConfig()), "none of its backups can be, either:"
    for name in await shop.backups_of(CONFIG_KEY):
        if (backup := await shop.load(backup_key(name), _config)) is not None:
            data, source = backup, f"the backup {name} takes its place:"
            break
    else:
        source += " the defaults take its place, and"
    damaged_copy = await shop.replace(CONFIG_KEY, data, fetched.info.version, content_type=_YAML)
    message = f"{CONFIG_KEY} cannot be read; {source} newer settings are lost"
    shop.done(RepairKind.RESTORE_CONFIG, message, [CONFIG_KEY], kept_aside=damaged_copy)


def _config(data: Buffer) -> bytes:
    """Return a configuration as it is stored, once it has been decoded."""
    decode_config_yaml(bytes(data))
    return bytes(data)


# -- versions that are lost ----------------------------------------------------------------


async def bridge_lost_versions(shop: Workshop, dropped: frozenset[SnapshotId]) -> None:
    """Bridge lost and dropped versions: their children get the nearest ancestor that is left.

    In spec 1 parents are in the snapshots, so that those that follow are written again, as when
    versions expire. The nearest version that is still there becomes the parent.
    """
    snapshots = await shop.snapshots(await shop.snapshot_ids())
    for snapshot in sorted(snapshots):
        parent = snapshots[snapshot].parent_id
        if parent in (None, INITIAL_SNAPSHOT_ID) or snapshot in dropped:
            continue
        if parent in snapshots and parent not in dropped:
            continue
        skipped = []
        snapshot_id: SnapshotId | None = parent
        while snapshot_id is not None and (snapshot_id in dropped or snapshot_id not in snapshots):
            skipped.append(snapshot_id)
            snapshot_id = snapshots[snapshot_id].parent_id if snapshot_id in snapshots else None
        await _move_below(shop, snapshot, snapshot_id or INITIAL_SNAPSHOT_ID, skipped)


async def _move_below(
    shop: Workshop, snapshot_id: SnapshotId, parent: SnapshotId, skipped: list[SnapshotId]
) -> None:
    key = snapshot_key(snapshot_id)
    fetched = await shop.fetch(key)
    if fetched is None:
        return
    backup = await shop.replace(
        key,
        with_parent(fetched.data, parent, level=shop.level),
        fetched.info.version,
        attributes=object_attributes(FileType.SNAPSHOT, _SPEC_1),
    )
    message = f"the history of {snapshot_id} goes on with {parent}, as {skipped[0]} leaves it"
    shop.done(RepairKind.DROP_VERSIONS, message, [key], kept_aside=backup, versions=skipped)
