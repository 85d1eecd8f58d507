"""The repo object of spec 2: refs, history, status, configuration and the log, in one file."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from icefloe.errors import ErrorKind, FormatError, InvalidInputError
from icefloe.format.columns import BytesColumn
from icefloe.format.envelope import DEFAULT_LEVEL, FileType, decompress, open_envelope
from icefloe.format.flatbuffer_reader import Buffer, Tables, Vectors, refuse
from icefloe.format.flatbuffer_writer import (
    BlobSection,
    Field,
    Link,
    Section,
    TableSection,
    VectorSection,
    number,
    seal_buffer,
)
from icefloe.format.ids import SnapshotId
from icefloe.format.metadata_items import Metadata, MetadataItems
from icefloe.format.snapshot_table import SnapshotTable
from icefloe.format.update_table import Status, StatusTable, UpdateTable

SPEC_VERSION = 2
MAIN_BRANCH = "main"


class _Repo(IntEnum):
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


@dataclass(frozen=True, slots=True, eq=False)
class RepoInfo:
    """Everything about a repository that is not in a snapshot."""

    branches: Mapping[str, SnapshotId]
    snapshots: SnapshotTable
    updates: UpdateTable
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


def encode_repo_info(repo: RepoInfo, *, level: int = DEFAULT_LEVEL) -> bytes:
    """Write a repo object."""
    tags, branches = _ref_sections(repo.tags, repo), _ref_sections(repo.branches, repo)
    deleted = BlobSection(BytesColumn.from_strings(sorted(repo.deleted_tags, key=str.encode)))
    deleted_list = VectorSection(np.array([len(repo.deleted_tags)]), Link(deleted))
    snapshots, updates = repo.snapshots.sections(), repo.updates.sections()
    status = StatusTable.from_list([repo.status]).sections()
    metadata = MetadataItems.encode(repo.metadata, SPEC_VERSION).sections()
    fields = [
        number(_Repo.SPEC_VERSION, np.array([SPEC_VERSION], np.uint8)),
        Field(_Repo.TAGS, Link(tags[0])),
        Field(_Repo.BRANCHES, Link(branches[0])),
        Field(_Repo.DELETED_TAGS, Link(deleted_list)),
        Field(_Repo.SNAPSHOTS, Link(snapshots[0])),
        Field(_Repo.STATUS, Link(status[0])),
        Field(_Repo.METADATA, Link(metadata[0])),
        Field(_Repo.LATEST_UPDATES, Link(updates[0])),
    ]
    sections = [*tags, *branches, deleted_list, deleted, *status, *metadata]
    sections += [*snapshots, *updates]
    before = repo.repo_before_updates
    for slot, raw in (
        (_Repo.REPO_BEFORE_UPDATES, None if before is None else before.encode()),
        (_Repo.CONFIG, repo.config),
    ):
        if raw is not None:
            blob = BlobSection(BytesColumn.from_list([raw]))
            fields.append(Field(slot, Link(blob)))
            sections.append(blob)
    for slot, flags in (
        (_Repo.ENABLED_FEATURE_FLAGS, repo.enabled_flags),
        (_Repo.DISABLED_FEATURE_FLAGS, repo.disabled_flags),
    ):
        if flags is not None:
            vector = VectorSection(np.array([len(flags)]), np.array(sorted(flags), "<u2"))
            fields.append(Field(slot, Link(vector)))
            sections.append(vector)
    return seal_buffer(
        [TableSection(1, fields), *sections], FileType.REPO_INFO, SPEC_VERSION, level=level
    )


def _ref_sections(refs: Mapping[str, SnapshotId], repo: RepoInfo) -> list[Section]:
    names = sorted(refs, key=str.encode)
    rows = [repo.snapshots.row_of(refs[name]) for name in names]
    if None in rows:
        name = names[rows.index(None)]
        raise InvalidInputError(
            f"{name!r} points at snapshot {refs[name]}, which the repository does not list",
            ErrorKind.SNAPSHOT_NOT_FOUND,
        )
    texts = BlobSection(BytesColumn.from_strings(names))
    tables = TableSection(
        len(names),
        [
            Field(_REF_NAME, Link(texts)),
            number(_REF_SNAPSHOT, np.array(rows, np.uint32)),
        ],
    )
    return [VectorSection(np.array([len(names)]), Link(tables)), tables, texts]


def decode_repo_info(data: bytes | bytearray | memoryview) -> RepoInfo:
    """Read a repo object."""
    envelope = open_envelope(data, FileType.REPO_INFO)
    root = Buffer(decompress(envelope.payload)).root()
    spec_version = int(root.u8(_Repo.SPEC_VERSION)[0])
    if spec_version != SPEC_VERSION:
        raise FormatError(
            f"the repository is of spec version {spec_version}: upgrade icefloe",
            ErrorKind.UNSUPPORTED_SPEC_VERSION,
        )
    snapshots = SnapshotTable.read(root.vectors(_Repo.SNAPSHOTS, required=True), SPEC_VERSION)
    branches = _read_refs(root.vectors(_Repo.BRANCHES, required=True), snapshots)
    if MAIN_BRANCH not in branches:
        refuse("the repository has no branch main")
    updates = UpdateTable.read(root.vectors(_Repo.LATEST_UPDATES, required=True))
    if len(updates) == 0:
        refuse("the log of operations is empty")
    metadata = root.vectors(_Repo.METADATA)
    return RepoInfo(
        branches,
        snapshots,
        updates,
        _read_refs(root.vectors(_Repo.TAGS, required=True), snapshots),
        tuple(root.vectors(_Repo.DELETED_TAGS, required=True).strings().to_strings()),
        StatusTable.read(root.children(_Repo.STATUS)).status(0),
        MetadataItems.read(metadata).decode(0, SPEC_VERSION),
        _read_text(root, _Repo.REPO_BEFORE_UPDATES),
        _read_bytes(root, _Repo.CONFIG),
        _read_flags(root, _Repo.ENABLED_FEATURE_FLAGS),
        _read_flags(root, _Repo.DISABLED_FEATURE_FLAGS),
    )


def _read_refs(vectors: Vectors, snapshots: SnapshotTable) -> dict[str, SnapshotId]:
    tables = vectors.tables()
    names = tables.blobs(_REF_NAME, required=True).column().to_strings()
    if len(set(names)) < len(names):
        refuse("two branches or two tags have the same name")
    rows: NDArray[np.uint32] = tables.u32(_REF_SNAPSHOT)
    if len(rows) and rows.max() >= len(snapshots):
        refuse("a branch or tag points at a snapshot that is not in the list")
    return {name: snapshots.id(int(row)) for name, row in zip(names, rows, strict=True)}


def _read_bytes(root: Tables, slot: int) -> bytes | None:
    blobs = root.blobs(slot)
    return blobs.column()[0] if blobs.present[0] else None


def _read_text(root: Tables, slot: int) -> str | None:
    blobs = root.blobs(slot)
    return blobs.column().to_strings()[0] if blobs.present[0] else None


def _read_flags(root: Tables, slot: int) -> tuple[int, ...] | None:
    vectors = root.vectors(slot, 2)
    return tuple(vectors.u16().tolist()) if vectors.present[0] else None
