"""What was found so far: damages of the same sort together, with the versions of each."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Final

from icefloe.engine.verification.damage import Affected, Damage, DamageKind, Unchecked
from icefloe.engine.verification.regions import Box, joined_boxes
from icefloe.engine.verification.uses import ManifestUse
from icefloe.forks import renew_lock_in_children
from icefloe.format.ids import ManifestId, NodeId, SnapshotId

MOST_DAMAGES: Final = 1000
"""That are told one by one."""
MOST_KEYS: Final = 20
_MOST_DRAFTS: Final = 20_000
"""That are taken down; those that are alike are told together."""
_MOST_UNCHECKED: Final = 1000


@dataclass(frozen=True, slots=True)
class Site:
    """Where a damage lies: the references of arrays in one manifest."""

    manifest: ManifestId
    node: NodeId | None = None
    """None: all arrays that use the manifest."""
    use: ManifestUse | None = None
    """Only where it is used in this way."""
    region: tuple[Box, ...] | None = None
    """None: all that the manifest covers."""

    def concerns(self, use: ManifestUse) -> bool:
        """Say whether a use of the manifest is concerned."""
        if self.use is not None:
            return use == self.use
        return use.manifest == self.manifest and self.node in (None, use.node)


@dataclass(slots=True)
class _Draft:
    kind: DamageKind
    message: str
    keys: dict[str, None] = field(default_factory=dict)
    objects: int = 0
    versions: set[SnapshotId] = field(default_factory=set)
    arrays: dict[tuple[str, tuple[Box, ...]], set[SnapshotId]] = field(default_factory=dict)
    """Paths of nodes, with what is concerned of them: nothing stands for the whole."""
    sites: dict[Site, None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KnownUse:
    """A use of a manifest, and the versions that have it."""

    path: str
    """In the newest of the versions."""
    versions: tuple[SnapshotId, ...]
    """Newest first."""


type KnownUses = Mapping[ManifestId, Mapping[ManifestUse, KnownUse]]


class Findings:
    """Takes down damages, from any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        renew_lock_in_children(self)
        self._drafts: dict[tuple[DamageKind, str], _Draft] = {}
        """By kind, and what tells those of a kind apart."""
        self._unchecked: dict[str, Unchecked] = {}
        self.left_out = 0
        """Damages beyond those that are told one by one."""
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
        """Note something that could not be looked at."""
        with self._lock:
            self.unchecked_objects += objects
            if len(self._unchecked) < _MOST_UNCHECKED:
                self._unchecked[key] = Unchecked(key, reason)

    @property
    def unchecked_list(self) -> tuple[Unchecked, ...]:
        """Give what could not be looked at; of very much, the first."""
        return tuple(self._unchecked.values())

    @property
    def manifests(self) -> set[ManifestId]:
        """List the manifests whose versions have to be found out."""
        return {site.manifest for draft in self._drafts.values() for site in draft.sites}

    def damages(
        self, uses: KnownUses, rank: Callable[[SnapshotId], int], alive: set[SnapshotId] | None
    ) -> list[Damage]:
        """Put everything together.

        `rank` orders versions, newest first. Damages that concern nothing but versions that are
        not `alive` any more are left out: somebody let those go meanwhile.
        """
        found = (_finished(draft, uses, rank, alive) for draft in self._drafts.values())
        told = _together([damage for damage in found if damage is not None])
        self.left_out += max(len(told) - MOST_DAMAGES, 0)
        return sorted(told, key=lambda damage: damage.harm)[:MOST_DAMAGES]


def _finished(
    draft: _Draft,
    uses: KnownUses,
    rank: Callable[[SnapshotId], int],
    alive: set[SnapshotId] | None,
) -> Damage | None:
    def ordered(versions: Iterable[SnapshotId]) -> tuple[SnapshotId, ...]:
        kept = {one for one in versions if alive is None or one in alive}
        return tuple(sorted(kept, key=lambda one: (rank(one), one)))

    affected = _affected(draft, uses, ordered)
    touched = {*draft.versions, *(one for part in affected for one in part.versions)}
    versions = ordered(touched)
    if (touched or draft.sites) and not versions:
        return None
    return Damage(
        draft.kind, draft.message, tuple(draft.keys), draft.objects, tuple(affected), versions
    )


def _affected(
    draft: _Draft,
    uses: KnownUses,
    ordered: Callable[[Iterable[SnapshotId]], tuple[SnapshotId, ...]],
) -> list[Affected]:
    """Bring together what is affected in the same versions, then the versions of each region."""
    regions: dict[tuple[str, tuple[SnapshotId, ...]], list[Box]] = {}
    for (path, boxes), found in draft.arrays.items():
        regions.setdefault((path, ordered(found)), []).extend(boxes)
    for site in draft.sites:
        for use, known in uses.get(site.manifest, {}).items():
            if site.concerns(use) and (users := ordered(known.versions)):
                region = (use.extents,) if site.region is None else site.region
                regions.setdefault((known.path, users), []).extend(region)
    versions: dict[tuple[str, tuple[Box, ...]], list[SnapshotId]] = {}
    for (path, users), parts in regions.items():
        versions.setdefault((path, joined_boxes(parts)), []).extend(users)
    return [Affected(path, region, ordered(some)) for (path, region), some in versions.items()]


_ALIKE: Final = frozenset({DamageKind.NO_CHUNK, DamageKind.SHORT_CHUNK, DamageKind.BAD_CHUNK})
"""Of these there may be one for each manifest: versions and arrays that share them count."""


def _together(damages: Sequence[Damage]) -> list[Damage]:
    """Tell damages to chunks of one array in the same versions as one."""
    groups: dict[object, list[Damage]] = {}
    for place, damage in enumerate(damages):
        where = tuple((part.array, part.versions) for part in damage.affected)
        key = (damage.kind, where) if damage.kind in _ALIKE else place
        groups.setdefault(key, []).append(damage)
    return [_joined(group) for group in groups.values()]


def _joined(group: Sequence[Damage]) -> Damage:
    first = group[0]
    if len(group) == 1:
        return first
    objects = sum(damage.objects for damage in group)
    keys = tuple(key for damage in group for key in damage.keys)
    affected = tuple(
        replace(
            part, region=joined_boxes([box for one in group for box in one.affected[at].region])
        )
        for at, part in enumerate(first.affected)
    )
    message = f"{first.message} ({objects} such objects in all)"
    return replace(
        first, message=message, keys=keys[:MOST_KEYS], objects=objects, affected=affected
    )
