"""The repo object of spec 2: refs, history, status, configuration and the log, in one file."""

from collections.abc import Mapping
from functools import cache
from typing import Final

import numpy as np

from icefloe.errors import ErrorKind, FormatError, InvalidInputError
from icefloe.format.envelope import DEFAULT_LEVEL, FileType, decompress, open_envelope
from icefloe.format.flatbuffer_reader import Buffer, Vectors, refuse
from icefloe.format.flatbuffer_scalar import FEW_TABLES, Deferred, ScalarBuffer, ScalarTable
from icefloe.format.flatbuffer_writer import OFFSET, TableShape, Tree, seal_buffer
from icefloe.format.ids import SnapshotId
from icefloe.format.metadata import Metadata, read_metadata, write_metadata
from icefloe.format.snapshot_table import SnapshotTable, read_snapshot_id
from icefloe.format.update_table import Status, UpdateTable, read_status, write_status
from icefloe.records import Record, field

SPEC_VERSION = 2
MAIN_BRANCH = "main"


class _Repo:
    """Slots of the root table."""

    SPEC_VERSION = 0
    TAGS = 1
    BRANCHES = 2
    DELETED_TAGS = 3
    SNAPSHOTS = 4
    STATUS = 5
    METADATA = 6
    LATEST_UPDATES = 7
    REPO_BEFORE_UPDATES = 8
    CONFIG = 9
    ENABLED_FEATURE_FLAGS = 10
    DISABLED_FEATURE_FLAGS = 11


_REF_NAME, _REF_SNAPSHOT = 0, 1
_REF: Final = TableShape((_REF_NAME, OFFSET), (_REF_SNAPSHOT, "I"))


class RepoInfo(Record, eq=False):
    """The content of the repo object: branches, tags, snapshots, configuration, status."""

    branches: Mapping[str, SnapshotId]
    history: SnapshotTable | Deferred[SnapshotTable]
    log: UpdateTable | Deferred[UpdateTable]
    tags: Mapping[str, SnapshotId] = field(default_factory=dict)
    deleted_tags: tuple[str, ...] = ()
    status: Status = field(default_factory=Status)
    metadata: Metadata = field(default_factory=dict)
    repo_before_updates: str | None = None
    """Name of the copy in which the log goes on."""
    config: bytes | None = None
    """The stored configuration, still encoded; `None` when it was never set."""
    enabled_flags: tuple[int, ...] | None = None
    disabled_flags: tuple[int, ...] | None = None

    @property
    def snapshots(self) -> SnapshotTable:
        """All snapshots."""
        return self.history() if isinstance(self.history, Deferred) else self.history

    @property
    def updates(self) -> UpdateTable:
        """The log of operations, newest first."""
        return self.log() if isinstance(self.log, Deferred) else self.log


def encode_repo_info(repo: RepoInfo, *, level: int = DEFAULT_LEVEL, few: int = FEW_TABLES) -> bytes:
    """Write a repo object; lists of up to `few` entries one by one.

    What is written for an entry is kept with it: the next state of a repository has the same
    entries, but for one or two.
    """
    before = None if repo.repo_before_updates is None else repo.repo_before_updates.encode()
    blobs = {_Repo.REPO_BEFORE_UPDATES: before, _Repo.CONFIG: repo.config}
    flags = {
        _Repo.ENABLED_FEATURE_FLAGS: repo.enabled_flags,
        _Repo.DISABLED_FEATURE_FLAGS: repo.disabled_flags,
    }
    extra = tuple(slot for slot, value in (blobs | flags).items() if value is not None)
    shape = _root_shape(extra)
    tree = Tree()
    root = tree.table(shape, SPEC_VERSION)
    positions = {slot: root + offset for slot, offset in shape.at.items()}
    _write_refs(tree, repo.tags, repo, positions[_Repo.TAGS])
    _write_refs(tree, repo.branches, repo, positions[_Repo.BRANCHES])
    deleted = sorted(name.encode() for name in repo.deleted_tags)
    for link, name in zip(
        tree.links(len(deleted), positions[_Repo.DELETED_TAGS]), deleted, strict=True
    ):
        tree.blob(name, link)
    write_status(tree, repo.status, positions[_Repo.STATUS])
    write_metadata(tree, repo.metadata, SPEC_VERSION, positions[_Repo.METADATA])
    for slot, raw in blobs.items():
        if raw is not None:
            tree.blob(raw, positions[slot])
    for slot, ids in flags.items():
        if ids is not None:
            tree.items(len(ids), np.array(sorted(ids), "<u2").tobytes(), positions[slot])
    repo.snapshots.write(tree, positions[_Repo.SNAPSHOTS], few)
    repo.updates.write(tree, positions[_Repo.LATEST_UPDATES], few)
    return seal_buffer([tree], FileType.REPO_INFO, SPEC_VERSION, level=level)


@cache
def _root_shape(extra: tuple[int, ...]) -> TableShape:
    always = range(_Repo.TAGS, _Repo.LATEST_UPDATES + 1)
    return TableShape(*((slot, OFFSET) for slot in (*always, *extra)), (_Repo.SPEC_VERSION, "B"))


def _write_refs(tree: Tree, refs: Mapping[str, SnapshotId], repo: RepoInfo, field: int) -> None:
    names = sorted(refs, key=str.encode)
    for link, name in zip(tree.links(len(names), field), names, strict=True):
        row = repo.snapshots.row_of(refs[name])
        if row is None:
            raise InvalidInputError(
                f"{name!r} points at snapshot {refs[name]}, which the repository does not list",
                ErrorKind.SNAPSHOT_NOT_FOUND,
            )
        position = tree.table(_REF, row, field=link)
        tree.blob(name.encode(), position + _REF.at[_REF_NAME])


def decode_repo_info(data: bytes | bytearray | memoryview, *, few: int = FEW_TABLES) -> RepoInfo:
    """Read a repo object, all of it; lists of up to `few` entries one by one."""
    buffer = _open(data)
    return _read_repo(buffer, _read_snapshots(buffer, few), _read_updates(buffer, few))


def open_repo_info(data: bytes | bytearray | memoryview) -> RepoInfo:
    """Read a repo object, and its history and log when somebody asks for them.

    Those who only read a branch never do; damage there is not noticed.
    """
    buffer = _open(data)
    return _read_repo(
        buffer,
        Deferred(lambda: _read_snapshots(ScalarBuffer(buffer.data), FEW_TABLES)),
        Deferred(lambda: _read_updates(ScalarBuffer(buffer.data), FEW_TABLES)),
    )


def _open(data: bytes | bytearray | memoryview) -> ScalarBuffer:
    buffer = ScalarBuffer(decompress(open_envelope(data, FileType.REPO_INFO).payload))
    spec_version = buffer.root().number(_Repo.SPEC_VERSION, "B")
    if spec_version != SPEC_VERSION:
        raise FormatError(
            f"the repository is of spec version {spec_version}: upgrade icefloe",
            ErrorKind.UNSUPPORTED_SPEC_VERSION,
        )
    return buffer


def _read_repo(
    buffer: ScalarBuffer,
    history: SnapshotTable | Deferred[SnapshotTable],
    log: UpdateTable | Deferred[UpdateTable],
) -> RepoInfo:
    root = buffer.root()
    branches = _read_refs(buffer, _Repo.BRANCHES)
    if MAIN_BRANCH not in branches:
        refuse("the repository has no branch main")
    if root.vector(_Repo.LATEST_UPDATES, 4)[1] == 0:
        refuse("the log of operations is empty")
    return RepoInfo(
        branches,
        history,
        log,
        _read_refs(buffer, _Repo.TAGS),
        tuple(root.texts(_Repo.DELETED_TAGS)),
        read_status(root.child(_Repo.STATUS)),
        read_metadata(root.optional_children(_Repo.METADATA) or [], SPEC_VERSION),
        root.optional_text(_Repo.REPO_BEFORE_UPDATES),
        root.optional_blob(_Repo.CONFIG),
        _read_flags(root, _Repo.ENABLED_FEATURE_FLAGS),
        _read_flags(root, _Repo.DISABLED_FEATURE_FLAGS),
    )


def _read_snapshots(buffer: ScalarBuffer, few: int) -> SnapshotTable:
    root = buffer.root()
    if root.vector(_Repo.SNAPSHOTS, 4)[1] <= few:
        return SnapshotTable.read_few(root.children(_Repo.SNAPSHOTS), SPEC_VERSION)
    return SnapshotTable.read(_vectors(buffer, _Repo.SNAPSHOTS), SPEC_VERSION)


def _read_updates(buffer: ScalarBuffer, few: int) -> UpdateTable:
    root = buffer.root()
    if root.vector(_Repo.LATEST_UPDATES, 4)[1] <= few:
        return UpdateTable.read_few(root.children(_Repo.LATEST_UPDATES))
    return UpdateTable.read(_vectors(buffer, _Repo.LATEST_UPDATES))


def _vectors(buffer: ScalarBuffer, slot: int) -> Vectors:
    """Find a list for those who read it in columns."""
    return Buffer(buffer.data).root().vectors(slot, required=True)


def _read_refs(buffer: ScalarBuffer, slot: int) -> dict[str, SnapshotId]:
    root = buffer.root()
    tables = root.children(slot)
    rows = {table.text(_REF_NAME): table.number(_REF_SNAPSHOT, "I") for table in tables}
    if len(rows) < len(tables):
        refuse("two branches or two tags have the same name")
    start, count = root.vector(_Repo.SNAPSHOTS, 4)
    if max(rows.values(), default=-1) >= count:
        refuse("a branch or tag points at a snapshot that is not in the list")
    return {name: read_snapshot_id(buffer.child_at(start + 4 * row)) for name, row in rows.items()}


def _read_flags(root: ScalarTable, slot: int) -> tuple[int, ...] | None:
    raw = root.items(slot, 2, 2)
    return None if raw is None else tuple(np.frombuffer(raw, "<u2").tolist())
