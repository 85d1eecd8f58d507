"""What was found so far: damages of the same sort together, with the versions of each."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Final

from icefloe.engine.verification.damage import Affected, Damage, DamageKind, Unchecked
from icefloe.engine.verification.regions import Box
from icefloe.engine.verification.uses import ManifestUse
from icefloe.format.ids import ManifestId, NodeId, SnapshotId

MOST_DAMAGES: Final = 1000
MOST_KEYS: Final = 20
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
    arrays: dict[str, set[SnapshotId]] = field(default_factory=dict)
    """Paths of nodes that are concerned as a whole."""
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

    def __init__(self, most: int = MOST_DAMAGES) -> None:
        self._most = most
        self._lock = Lock()
        self._drafts: dict[tuple[DamageKind, str], _Draft] = {}
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
        sites: Iterable[Site] = (),
    ) -> None:
        """Note a damage; the same in another version is the same one."""
        versions = set(versions)
        with self._lock:
            draft = self._drafts.get((kind, message))
            if draft is None:
                if len(self._drafts) >= self._most:
                    self.left_out += 1
                    return
                draft = self._drafts[kind, message] = _Draft(kind, message)
                draft.objects = objects
            for key in [keys] if isinstance(keys, str) else keys:
                if len(draft.keys) < MOST_KEYS:
                    draft.keys[key] = None
            draft.versions |= versions
            draft.sites |= dict.fromkeys(sites)
            if array is not None:
                draft.arrays.setdefault(array, set()).update(versions)

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
        found = [_finished(draft, uses, rank, alive) for draft in self._drafts.values()]
        return [damage for damage in found if damage is not None]


def _finished(
    draft: _Draft,
    uses: KnownUses,
    rank: Callable[[SnapshotId], int],
    alive: set[SnapshotId] | None,
) -> Damage | None:
    def ordered(versions: Iterable[SnapshotId]) -> tuple[SnapshotId, ...]:
        kept = {one for one in versions if alive is None or one in alive}
        return tuple(sorted(kept, key=lambda one: (rank(one), one)))

    parts: dict[tuple[str, tuple[SnapshotId, ...]], list[Box]] = {}
    for path, versions in draft.arrays.items():
        parts.setdefault((path, ordered(versions)), [])
    for site in draft.sites:
        for use, known in uses.get(site.manifest, {}).items():
            if site.concerns(use) and (versions := ordered(known.versions)):
                region = (use.extents,) if site.region is None else site.region
                parts.setdefault((known.path, versions), []).extend(region)
    affected = [
        Affected(path, tuple(sorted(set(region))), versions)
        for (path, versions), region in parts.items()
    ]
    touched = {*draft.versions, *(one for part in affected for one in part.versions)}
    versions = ordered(touched)
    if (touched or draft.sites) and not versions:
        return None
    return Damage(
        draft.kind, draft.message, tuple(draft.keys), draft.objects, tuple(affected), versions
    )


def sorted_by_harm(damages: Sequence[Damage]) -> list[Damage]:
    """Put what harms data first, else as found."""
    return sorted(damages, key=lambda damage: damage.harm)
