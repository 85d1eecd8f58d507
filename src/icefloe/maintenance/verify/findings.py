"""Findings of a verification: kinds of damage, what they harm, and how to repair them.

Damages of one kind are reported together, with their versions. Sets of chunks are reported as
boxes, which people can read.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from threading import Lock
from typing import Final

import numpy as np

from icefloe.forks import renew_lock_in_children
from icefloe.format.chunk_table import Coordinates
from icefloe.format.ids import ManifestId, NodeId, SnapshotId
from icefloe.maintenance.verify.report import AffectedArray, Damage
from icefloe.manifests.partition import Box
from icefloe.records import MutableRecord, Record, field, replace
from icefloe.walk.links import ManifestUse
from icefloe.walk.regions import Regions, joined, regions

MOST_BOXES: Final = 100


def boxes_of(coordinates: Coordinates, most: int = MOST_BOXES) -> tuple[Box, ...]:
    """Cover chunks with boxes that hold nothing else.

    If it takes more than `most` of them, the one box around everything stands for all.

    >>> boxes_of(np.array([[0, 1], [0, 2], [1, 1], [1, 2], [5, 0]], np.uint32))
    (((0, 2), (1, 3)), ((5, 6), (0, 1)))
    """
    return _boxes(regions(coordinates, most))


def joined_boxes(boxes: Sequence[Box], most: int = MOST_BOXES) -> tuple[Box, ...]:
    """Join boxes that touch, as far as they make boxes again; the same ones count once.

    >>> joined_boxes([((0, 2), (0, 3)), ((2, 4), (0, 3)), ((0, 2), (0, 3))])
    (((0, 4), (0, 3)),)
    """
    distinct = sorted(set(boxes))
    if len({len(box) for box in distinct}) != 1 or not distinct[0]:
        return tuple(distinct)
    edges = np.array(distinct, np.int64)
    return _boxes(joined(edges[:, :, 0], edges[:, :, 1], most))


def _boxes(covering: Regions) -> tuple[Box, ...]:
    return tuple(map(tuple, covering.pairs()))


class Harm(StrEnum):
    """The data that a damage makes unreadable."""

    DATA = "data"
    """Some version cannot be read, or reads as something else than was written."""
    HISTORY = "history"
    """Data is whole; its description is not: differences, rebases, the log of operations."""


class DamageKind(StrEnum):
    """In which way something is wrong."""

    NO_REPO_OBJECT = "no-repo-object"
    BAD_REPO_OBJECT = "bad-repo-object"
    BAD_REF = "bad-ref"
    BAD_CONFIG = "bad-config"
    NO_SNAPSHOT = "no-snapshot"
    BAD_SNAPSHOT = "bad-snapshot"
    BAD_NODE = "bad-node"
    BAD_MANIFEST_LIST = "bad-manifest-list"
    NO_MANIFEST = "no-manifest"
    BAD_MANIFEST = "bad-manifest"
    BAD_EXTENTS = "bad-extents"
    NO_CHUNK = "no-chunk"
    SHORT_CHUNK = "short-chunk"
    BAD_CHUNK = "bad-chunk"
    NO_VIRTUAL_OBJECT = "no-virtual-object"
    SHORT_VIRTUAL_OBJECT = "short-virtual-object"
    CHANGED_VIRTUAL_OBJECT = "changed-virtual-object"
    BAD_HISTORY = "bad-history"
    BAD_ENTRY = "bad-entry"
    NO_LOG = "no-log"
    BAD_LOG = "bad-log"
    UNTRUE_LOG = "untrue-log"
    NO_BACKUP = "no-backup"
    BAD_BACKUP = "bad-backup"
    BAD_OPERATIONS = "bad-operations"

    @property
    def harm(self) -> Harm:
        """The data that is lost."""
        return Harm.HISTORY if self in _HARMLESS else Harm.DATA

    @property
    def remedy(self) -> str:
        """The possible remedy."""
        return _REMEDIES[self]


_K = DamageKind
_HARMLESS: Final = frozenset(
    {
        _K.BAD_HISTORY,
        _K.BAD_ENTRY,
        _K.NO_LOG,
        _K.BAD_LOG,
        _K.UNTRUE_LOG,
        _K.NO_BACKUP,
        _K.BAD_BACKUP,
        _K.BAD_OPERATIONS,
    }
)

_PUT_BACK: Final = (
    "put the object back under the same key, from a copy or from what the storage keeps of"
    " deleted objects"
)
_WRITE_AGAIN: Final = (
    "write the region again in a new commit, or let icefloe repair --drop-lost-references make"
    " it read as never written; older versions stay as they are"
)
_RESTORE: Final = (
    "icefloe repair puts back the newest backup of overwritten/ that can be read, and finds what"
    " was committed since among the snapshots"
)
_DROP: Final = (
    "else let icefloe repair --drop-lost-versions take it out of the history, or let branches"
    " and tags name versions that are whole"
)
_ONLY_TELLS: Final = (
    "data is not touched: nothing has to be done, unless differences and rebases over this"
    " commit are needed; icefloe repair --rebuild-logs writes the log again"
)
_LOG_ENDS: Final = (
    "data is not touched: the log of operations ends there, and this state of the repository"
    " cannot be gone back to; icefloe repair --rebuild-logs cuts the log there"
)
_REMEDIES: Final = {
    _K.NO_REPO_OBJECT: _RESTORE,
    _K.BAD_REPO_OBJECT: _RESTORE,
    _K.BAD_REF: "icefloe repair puts the branch or tag back, where it is known or said which"
    " snapshot it should name",
    _K.BAD_CONFIG: "save the configuration again, or let icefloe repair put back the last one that"
    " can be read",
    _K.NO_SNAPSHOT: f"{_PUT_BACK}; {_DROP}",
    _K.BAD_SNAPSHOT: f"{_PUT_BACK}; {_DROP}",
    _K.BAD_NODE: "write the metadata of the node again in a new commit",
    _K.BAD_MANIFEST_LIST: "rewrite the manifests of the branch in a new commit, as icefloe repair"
    " --drop-lost-references does",
    _K.NO_MANIFEST: f"{_PUT_BACK}; else {_WRITE_AGAIN}",
    _K.BAD_MANIFEST: f"{_PUT_BACK}; else {_WRITE_AGAIN}",
    _K.BAD_EXTENTS: "rewrite the manifests of the branch in a new commit, as icefloe repair"
    " --drop-lost-references does",
    _K.NO_CHUNK: f"{_PUT_BACK}; else {_WRITE_AGAIN}",
    _K.SHORT_CHUNK: f"{_PUT_BACK}; else {_WRITE_AGAIN}",
    _K.BAD_CHUNK: f"ask the storage's operators; else {_WRITE_AGAIN}",
    _K.NO_VIRTUAL_OBJECT: "put the file back, or record where it is now in a new commit",
    _K.SHORT_VIRTUAL_OBJECT: "put the file back as it was, or record its chunks again",
    _K.CHANGED_VIRTUAL_OBJECT: "put the file back as it was, or record its chunks again; if the"
    " change does no harm, set on_change='warn' on its container",
    _K.BAD_HISTORY: "icefloe repair takes the history from backups, or from what logs tell; a wrong"
    " time of a snapshot stays",
    _K.BAD_ENTRY: "data is not touched: what the snapshot's own file says is what counts",
    _K.NO_LOG: _ONLY_TELLS,
    _K.BAD_LOG: _ONLY_TELLS,
    _K.UNTRUE_LOG: _ONLY_TELLS,
    _K.NO_BACKUP: _LOG_ENDS,
    _K.BAD_BACKUP: _LOG_ENDS,
    _K.BAD_OPERATIONS: "data is not touched: the log of operations cannot be relied on; icefloe"
    " repair --rebuild-logs keeps the part that can be",
}
assert set(_REMEDIES) == set(DamageKind)


MOST_DAMAGES: Final = 1000
"""Damages that are reported one by one."""
MOST_KEYS: Final = 20
_MOST_DRAFTS: Final = 20_000
"""Damages that are recorded; damages of one kind are reported together."""
_MOST_UNCHECKED: Final = 1000


class Site(Record):
    """The location of a damage: the references of arrays in a manifest."""

    manifest: ManifestId
    node: NodeId | None = None
    """None: all arrays that use the manifest."""
    use: ManifestUse | None = None
    """Only where it is used in this way."""
    region: tuple[Box, ...] | None = None
    """None: all that the manifest covers."""

    def concerns(self, use: ManifestUse) -> bool:
        """Return whether a use of the manifest is concerned."""
        if self.use is not None:
            return use == self.use
        return use.manifest == self.manifest and self.node in (None, use.node)


class _Draft(MutableRecord):
    kind: DamageKind
    message: str
    keys: dict[str, None] = field(default_factory=dict)
    objects: int = 0
    versions: set[SnapshotId] = field(default_factory=set)
    arrays: dict[tuple[str, tuple[Box, ...]], set[SnapshotId]] = field(default_factory=dict)
    """Paths of nodes, with the affected boxes: none stands for the whole node."""
    sites: dict[Site, None] = field(default_factory=dict)


class KnownUse(Record):
    """A use of a manifest, and the versions that have it."""

    path: str
    """In the newest of the versions."""
    versions: tuple[SnapshotId, ...]
    """Newest first."""


type KnownUses = Mapping[ManifestId, Mapping[ManifestUse, KnownUse]]


class Findings:
    """Records damages, from any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        renew_lock_in_children(self)
        self._drafts: dict[tuple[DamageKind, str], _Draft] = {}
        """By kind, and an identity within the kind."""
        self._unchecked: dict[str, str] = {}
        self.left_out = 0
        """Damages beyond those that are reported one by one."""
        self.unchecked_objects = 0

    def __len__(self) -> int:
        return len(self._drafts)

    def report(
        self,
        kind: DamageKind,
        message: str,
        keys: str | Iterable[str],
        *,
        objects: int = 1,
        versions: Iterable[SnapshotId] = (),
        array: str | None = None,
        region: Iterable[Box] = (),
        sites: Iterable[Site] = (),
        identity: str | None = None,
    ) -> None:
        """Note a damage; the same in another version is the same one.

        Those of one kind with the same `identity`, or without one the same message, are one.
        """
        versions = set(versions)
        with self._lock:
            draft = self._drafts.get((kind, identity or message))
            if draft is None:
                if len(self._drafts) >= _MOST_DRAFTS:
                    self.left_out += 1
                    return
                draft = self._drafts[kind, identity or message] = _Draft(kind, message)
                draft.objects = objects
            for key in [keys] if isinstance(keys, str) else keys:
                if len(draft.keys) < MOST_KEYS:
                    draft.keys[key] = None
            draft.versions |= versions
            draft.sites |= dict.fromkeys(sites)
            if array is not None:
                draft.arrays.setdefault((array, tuple(region)), set()).update(versions)

    def require(
        self,
        holds: object,
        kind: DamageKind,
        message: str,
        keys: str | Iterable[str],
        *,
        versions: Iterable[SnapshotId] = (),
        array: str | None = None,
        sites: Iterable[Site] = (),
    ) -> None:
        """Note a damage unless a condition holds."""
        if not holds:
            self.report(kind, message, keys, versions=versions, array=array, sites=sites)

    def unchecked(self, key: str, reason: str, *, objects: int = 1) -> None:
        """Record an object that could not be examined."""
        with self._lock:
            self.unchecked_objects += objects
            if len(self._unchecked) < _MOST_UNCHECKED:
                self._unchecked[key] = reason

    @property
    def unchecked_keys(self) -> Mapping[str, str]:
        """Return what could not be checked, up to a limit, with the reasons."""
        return self._unchecked

    @property
    def manifests(self) -> set[ManifestId]:
        """List the manifests whose versions have to be found out."""
        return {site.manifest for draft in self._drafts.values() for site in draft.sites}

    def damages(
        self, uses: KnownUses, rank: Callable[[SnapshotId], int], alive: set[SnapshotId] | None
    ) -> list[Damage]:
        """Return all damages.

        `rank` orders versions, newest first. Damages that concern nothing but versions that are
        not `alive` any more are left out: somebody removed those meanwhile.
        """
        finished = (_finished(draft, uses, rank, alive) for draft in self._drafts.values())
        told = _together([damage for damage in finished if damage is not None])
        self.left_out += max(len(told) - MOST_DAMAGES, 0)
        return sorted(told, key=lambda damage: damage.harms)[:MOST_DAMAGES]


def _finished(
    draft: _Draft,
    uses: KnownUses,
    rank: Callable[[SnapshotId], int],
    alive: set[SnapshotId] | None,
) -> Damage | None:
    def ordered(versions: Iterable[SnapshotId]) -> tuple[SnapshotId, ...]:
        remaining = {version for version in versions if alive is None or version in alive}
        return tuple(sorted(remaining, key=lambda snapshot_id: (rank(snapshot_id), snapshot_id)))

    affected = _affected(draft, uses, ordered)
    touched = draft.versions.union(*affected.values())
    versions = ordered(touched)
    if (touched or draft.sites) and not versions:
        return None
    return Damage(
        kind=str(draft.kind),
        harms=str(draft.kind.harm),
        message=draft.message,
        remedy=draft.kind.remedy,
        keys=tuple(draft.keys),
        objects=draft.objects,
        arrays=tuple(
            AffectedArray(path, region, tuple(map(str, some)))
            for (path, region), some in affected.items()
        ),
        versions=tuple(map(str, versions)),
    )


def _affected(
    draft: _Draft,
    uses: KnownUses,
    ordered: Callable[[Iterable[SnapshotId]], tuple[SnapshotId, ...]],
) -> dict[tuple[str, tuple[Box, ...]], tuple[SnapshotId, ...]]:
    """Join regions that are affected in the same versions, then the versions of each region."""
    regions: dict[tuple[str, tuple[SnapshotId, ...]], list[Box]] = {}
    for (path, boxes), affected_versions in draft.arrays.items():
        regions.setdefault((path, ordered(affected_versions)), []).extend(boxes)
    for site in draft.sites:
        for use, known_use in uses.get(site.manifest, {}).items():
            if site.concerns(use) and (users := ordered(known_use.versions)):
                region = (use.extents,) if site.region is None else site.region
                regions.setdefault((known_use.path, users), []).extend(region)
    versions: dict[tuple[str, tuple[Box, ...]], list[SnapshotId]] = {}
    for (path, users), parts in regions.items():
        versions.setdefault((path, joined_boxes(parts)), []).extend(users)
    return {part: ordered(some) for part, some in versions.items()}


_ALIKE: Final = frozenset({DamageKind.NO_CHUNK, DamageKind.SHORT_CHUNK, DamageKind.BAD_CHUNK})
"""Of these there may be one for each manifest: versions and arrays that share them count."""


def _together(damages: Sequence[Damage]) -> list[Damage]:
    """Join damages to chunks of one array in the same versions."""
    groups: dict[object, list[Damage]] = {}
    for position, damage in enumerate(damages):
        where = tuple((part.path, part.versions) for part in damage.arrays)
        key = (damage.kind, where) if damage.kind in _ALIKE else position
        groups.setdefault(key, []).append(damage)
    return [_joined(group) for group in groups.values()]


def _joined(group: Sequence[Damage]) -> Damage:
    first = group[0]
    if len(group) == 1:
        return first
    objects = sum(damage.objects for damage in group)
    keys = tuple(key for damage in group for key in damage.keys)
    arrays = tuple(
        replace(
            part,
            region=joined_boxes(
                [box for member in group for box in member.arrays[position].region]
            ),
        )
        for position, part in enumerate(first.arrays)
    )
    message = f"{first.message} ({objects} such objects in all)"
    return replace(first, message=message, keys=keys[:MOST_KEYS], objects=objects, arrays=arrays)
