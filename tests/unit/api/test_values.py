"""Values that users are given compare, print as source code, and travel."""

import datetime
import pickle
from datetime import UTC

import pytest

import icefloe
from icefloe import (
    BasicConflictSolver,
    ChunkType,
    Conflict,
    ConflictDetector,
    ConflictType,
    FeatureFlag,
    InvalidInputError,
    ManifestFileInfo,
    PackingOptions,
    RepoAvailability,
    RepoStatus,
    SessionMode,
    SnapshotInfo,
    SpecVersion,
    Update,
    UpdateType,
    VersionSelection,
    VirtualChunkSpec,
)
from icefloe.format.ids import INITIAL_SNAPSHOT_ID, SnapshotId
from icefloe.format.update_table import Status, UpdateEntry, UpdateKind

NOON = datetime.datetime(2024, 5, 17, 12, tzinfo=UTC)
STATUS = RepoStatus(RepoAvailability.offline, NOON, "moving <house>")
UPDATES = [
    UpdateType.RepoInitialized(),
    UpdateType.RepoMigrated(SpecVersion.v1, SpecVersion.v2),
    UpdateType.RepoStatusChanged(STATUS),
    UpdateType.ConfigChanged(),
    UpdateType.MetadataChanged(),
    UpdateType.FeatureFlagChanged(4, None),
    UpdateType.TagCreated("t"),
    UpdateType.TagDeleted("t", "A"),
    UpdateType.BranchCreated("b"),
    UpdateType.BranchDeleted("b", "A"),
    UpdateType.BranchReset("b", "A"),
    UpdateType.NewCommit("b", "A"),
    UpdateType.CommitAmended("b", "A", "B"),
    UpdateType.NewDetachedSnapshot("A"),
    UpdateType.GCRan(),
    UpdateType.ExpirationRan(),
]
SOURCE = [
    SnapshotInfo("A", None, NOON, "one\ntwo", {"a": [1, {"b": None}]}),
    ManifestFileInfo("A", 100, 3),
    STATUS,
    FeatureFlag(3, "move_node", default_enabled=True, setting=False),
    VirtualChunkSpec([0, 3], "s3://b/k", 1, 2, "etag", NOON),
    Conflict(ConflictType.ChunkDoubleUpdate, "/t", [[0, 1]]),
    Conflict(ConflictType.DeleteOfUpdatedGroup, "/g", new_nodes=["/g/x"]),
    *UPDATES,
    *(Update(kind, NOON, "repo.1") for kind in UPDATES),
]
ENUMS = [ChunkType.native, SessionMode.writable, VersionSelection.UseTheirs]
SOLVERS = [
    BasicConflictSolver(on_chunk_conflict=VersionSelection.Fail),
    ConflictDetector(),
    PackingOptions(pack_bytes=2**22),
]


@pytest.mark.parametrize("value", [*SOURCE, *ENUMS], ids=lambda value: type(value).__name__)
def test_the_source_code_of_a_value_makes_an_equal_one(value: object) -> None:
    names = {"icefloe": icefloe, "datetime": datetime}
    assert eval(repr(value), names) == value


@pytest.mark.parametrize("value", [*SOURCE, *ENUMS, *SOLVERS], ids=lambda v: type(v).__name__)
def test_values_travel(value: object) -> None:
    assert pickle.loads(pickle.dumps(value)) == value


@pytest.mark.parametrize("value", SOURCE, ids=lambda value: type(value).__name__)
def test_values_show_themselves_in_notebooks(value: object) -> None:
    shown = value._repr_html_()  # type: ignore[attr-defined]
    assert type(value).__name__ in shown or str(value) in shown
    assert "<house>" not in shown


def test_solvers_differ_by_what_they_do() -> None:
    assert BasicConflictSolver() != BasicConflictSolver(fail_on_delete_of_updated_array=True)
    assert BasicConflictSolver() == BasicConflictSolver()


def test_updates_can_be_told_apart() -> None:
    match UpdateType.CommitAmended("main", "A", "B"):
        case UpdateType.NewCommit():
            pytest.fail("another kind")
        case UpdateType.CommitAmended(branch, new_snap_id=new):
            assert (branch, new) == ("main", "B")
    with pytest.raises(TypeError, match="UpdateType"):
        UpdateType()


@pytest.mark.parametrize("kind", list(UpdateKind))
def test_every_stored_operation_is_shown(kind: UpdateKind) -> None:
    entry = UpdateEntry(
        kind,
        1_000_000,
        None,
        "name",
        INITIAL_SNAPSHOT_ID,
        SnapshotId(bytes(12)),
        (1, 2, 1),
        Status(1, 5, "because"),
    )
    shown = Update.of(entry)
    wanted = kind.name.title().replace("_", "").replace("Gc", "GC")
    assert type(shown.kind).__name__ == wanted
    assert shown.updated_at == datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    values = set(shown.kind)
    if "previous_snap_id" in dir(shown.kind):
        assert str(INITIAL_SNAPSHOT_ID) in values
    if "new_snap_id" in dir(shown.kind):
        assert "0" * 20 in values


def test_a_status_is_set_now_unless_said() -> None:
    before = datetime.datetime.now(UTC)
    status = RepoStatus(RepoAvailability.read_only)
    assert before <= status.set_at <= datetime.datetime.now(UTC)
    assert RepoStatus.of(status.stored()) == status


@pytest.mark.parametrize(
    "make",
    [
        lambda: RepoStatus(1),  # type: ignore[arg-type]
        lambda: RepoStatus(RepoAvailability.online, datetime.datetime(2024, 1, 1)),
        lambda: VirtualChunkSpec("0", "s3://b/k", 0, 1),  # type: ignore[arg-type]
        lambda: VirtualChunkSpec([-1], "s3://b/k", 0, 1),
        lambda: VirtualChunkSpec([0], "s3://b/k", -1, 1),
    ],
)
def test_what_makes_no_sense_is_refused(make: object) -> None:
    with pytest.raises(InvalidInputError):
        make()  # type: ignore[operator]
