"""What can be wrong with a repository, what that harms, and what can be done about it."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from icefloe.engine.verification.regions import Box
from icefloe.format.ids import SnapshotId


class Harm(StrEnum):
    """What a damage takes away."""

    DATA = "data"
    """Some version cannot be read, or reads as something else than was written."""
    HISTORY = "history"
    """Data is whole; what is told about it is not: differences, rebases, the log of operations."""


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
        """What is lost by it."""
        return Harm.HISTORY if self in _HARMLESS else Harm.DATA

    @property
    def remedy(self) -> str:
        """What can be done."""
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
    " commit are needed; icefloe repair --rebuild-logs writes the log anew"
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
    _K.BAD_CONFIG: "save the configuration anew, or let icefloe repair put back the last one that"
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
    _K.SHORT_VIRTUAL_OBJECT: "put the file back as it was, or record its chunks anew",
    _K.CHANGED_VIRTUAL_OBJECT: "put the file back as it was, or record its chunks anew; if the"
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


@dataclass(frozen=True, slots=True)
class Affected:
    """The part of an array that a damage concerns."""

    array: str
    """Its path, in the newest of the versions."""
    region: tuple[Box, ...]
    """Boxes of chunk coordinates."""
    versions: tuple[SnapshotId, ...]
    """Newest first."""


@dataclass(frozen=True, slots=True)
class Damage:
    """One thing that is wrong."""

    kind: DamageKind
    message: str
    keys: tuple[str, ...]
    """The objects; of many, the first few."""
    objects: int
    """How many objects there are in all."""
    affected: tuple[Affected, ...]
    """Arrays, where the damage can be told to concern some."""
    versions: tuple[SnapshotId, ...]
    """Snapshots that need what is damaged, newest first."""

    @property
    def harm(self) -> Harm:
        """What is lost by it."""
        return self.kind.harm

    @property
    def remedy(self) -> str:
        """What can be done."""
        return self.kind.remedy


@dataclass(frozen=True, slots=True)
class Unchecked:
    """Something that could not be looked at."""

    key: str
    reason: str
