"""What repair is asked to do, and what it did."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from icefloe.engine.verification.damage import Affected
from icefloe.engine.verification.run import Verification
from icefloe.format.ids import SnapshotId


class RepairKind(StrEnum):
    """What one step of a repair is."""

    RESTORE_REPO = "restore-repo-object"
    """A backup of the repo object takes its place again."""
    REBUILD_REPO = "rebuild-repo-object"
    """There is no backup: branches and history are made from the snapshots."""
    RESTORE_REF = "restore-ref"
    RESTORE_CONFIG = "restore-configuration"
    RESTORE_FIRST = "restore-first-snapshot"
    """The first snapshot of every repository is empty, and its log too."""
    RECOVER_VERSION = "recover-version"
    """A version that the repository does not list gets a branch."""
    MEND_HISTORY = "mend-history"
    DROP_VERSIONS = "drop-versions"
    DROP_REFERENCES = "drop-references"
    REBUILD_LOG = "rebuild-log"


@dataclass(frozen=True, slots=True)
class Repair:
    """One step."""

    kind: RepairKind
    message: str
    """What is done, and what is lost by it."""
    keys: tuple[str, ...] = ()
    """The objects that are written; of many, the first few."""
    kept_aside: str | None = None
    """Where the damaged object is kept."""
    affected: tuple[Affected, ...] = ()
    """Arrays, and the chunks of them, that read as never written afterwards."""
    versions: tuple[SnapshotId, ...] = ()
    """Versions that are made, recovered or dropped."""


@dataclass(frozen=True, slots=True)
class RepairRules:
    """What may be done, beyond putting back what makes a repository one."""

    backup: str | None = None
    """The name of the backup to restore the repo object from, rather than the one we choose."""
    branches: Mapping[str, SnapshotId] = field(default_factory=dict)
    """Where branches end that have to be made anew."""
    tags: Mapping[str, SnapshotId] = field(default_factory=dict)
    recover_versions: bool = False
    """Give branches to versions that are there but not listed."""
    drop_lost_versions: bool = False
    """Take versions out of the history whose snapshots are lost."""
    drop_lost_references: bool = False
    """Commit to each branch a version without references to what is lost."""
    drop_damaged_versions: bool = False
    """Take versions out of the history of which data is lost, but for those that refs name."""
    rebuild_logs: bool = False
    """Write logs of commits anew, from what the versions hold."""
    deep: bool = False
    """Also count chunks as lost that cannot be read to their end, and foreign files."""


@dataclass(frozen=True, slots=True)
class RepairOutcome:
    """What came of it."""

    is_dry: bool
    """Whether all of it happened in memory only."""
    before: Verification
    repairs: tuple[Repair, ...]
    after: Verification
    """What is wrong after the repairs: that cannot be repaired, or was not asked for."""
    notes: tuple[str, ...] = ()
    """What could not be decided, and what to do about it."""
