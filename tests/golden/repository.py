"""A golden repository, read with nothing but the format layer and plain files."""

import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import zarr
from zarr.core.buffer import default_buffer_prototype
from zarr.storage import MemoryStore

from icefloe.format.chunk_table import ChunkRef, InlineChunk, NativeChunk
from icefloe.format.ids import SnapshotId
from icefloe.format.layout import (
    BACKUPS_PREFIX,
    REPO_KEY,
    branch_key,
    chunk_key,
    manifest_key,
    snapshot_key,
    tag_key,
    tag_tombstone_key,
)
from icefloe.format.manifest import ManifestFile
from icefloe.format.nodes import ArrayNode, Node
from icefloe.format.repo_info import RepoInfo, decode_repo_info
from icefloe.format.snapshot import Snapshot, decode_snapshot
from icefloe.format.update_table import UpdateEntry
from icefloe.records import replace
from tests.golden.files import GOLDEN, expected, read
from tests.unit.format import oracle


@dataclass(frozen=True)
class GoldenRepository:
    """One of the repositories; `spec_version` is what it says of itself."""

    name: str

    @property
    def expected(self) -> dict[str, Any]:
        repository: dict[str, Any] = expected()[self.name]
        return repository

    def read(self, key: str) -> bytes:
        return read(self.name, key)

    def has(self, key: str) -> bool:
        return (GOLDEN / self.name / key).is_file()

    @cached_property
    def repo(self) -> RepoInfo | None:
        """The repo object; `None` in spec 1."""
        return decode_repo_info(self.read(REPO_KEY)) if self.has(REPO_KEY) else None

    def refs(self, kind: str) -> dict[str, SnapshotId]:
        """Branches or tags, from wherever the spec version keeps them."""
        if self.repo is not None:
            return dict(self.repo.branches if kind == "branch" else self.repo.tags)
        key_of = branch_key if kind == "branch" else tag_key
        found = {}
        for folder in sorted((GOLDEN / self.name / "refs").glob(f"{kind}.*")):
            name = folder.name.removeprefix(f"{kind}.")
            if kind == "tag" and self.has(tag_tombstone_key(name)):
                assert self.read(tag_tombstone_key(name)) == b""
                continue
            stored = json.loads(self.read(key_of(name)))
            assert list(stored) == ["snapshot"]
            found[name] = SnapshotId.parse(stored["snapshot"])
        return found

    def snapshot(self, snapshot: SnapshotId) -> Snapshot:
        return decode_snapshot(self.read(snapshot_key(snapshot)))

    def ancestry(self, tip: SnapshotId) -> list[tuple[SnapshotId, SnapshotId | None]]:
        """Each snapshot with its parent, back to the first."""
        if self.repo is not None:
            table = self.repo.snapshots
            entries = [table.entry(row) for row in table.ancestry(tip)]
            return [(entry.id, entry.parent) for entry in entries]
        history, at = [], tip
        while True:
            parent = self.snapshot(at).parent_id
            history.append((at, parent))
            if parent is None:
                return history
            at = parent

    def ops_log(self) -> list[UpdateEntry]:
        """All operations, through the backups, whose newest entry does not know its backup."""
        entries, repo, name = list[UpdateEntry](), self.repo, None
        while repo is not None:
            newest, *older = repo.updates.entries()
            entries += [replace(newest, backup_path=name), *older]
            name = repo.repo_before_updates
            key = f"{BACKUPS_PREFIX}{name}"
            repo = decode_repo_info(self.read(key)) if name and self.has(key) else None
        return entries

    def chunks(self, node: Node) -> dict[tuple[int, ...], ChunkRef]:
        """All chunk references of an array, from all of its manifests."""
        assert isinstance(node, ArrayNode)
        found: dict[tuple[int, ...], ChunkRef] = {}
        for ref in node.array.manifests:
            table = ManifestFile(self.read(manifest_key(ref.id))).table(node.id)
            if table.dimensions:
                assert table.extents().tolist() == [list(pair) for pair in ref.extents]
            found |= dict(oracle.references(table))
        return found

    def chunk_bytes(self, ref: ChunkRef) -> bytes | None:
        """The bytes of a chunk that the repository itself holds."""
        match ref:
            case InlineChunk(data):
                return data
            case NativeChunk(chunk, offset, length):
                data = self.read(chunk_key(chunk))[offset : offset + length]
                assert len(data) == length
                return data
        return None

    def as_zarr(self, snapshot: Snapshot) -> zarr.Group:
        """A snapshot as a group that zarr reads."""
        prototype = default_buffer_prototype()
        keys = {}
        for node in oracle.node_list(snapshot.nodes):
            folder = "" if node.path == "/" else f"{node.path[1:]}/"
            keys[f"{folder}zarr.json"] = node.user_data
            if isinstance(node, ArrayNode):
                for index, ref in self.chunks(node).items():
                    if (data := self.chunk_bytes(ref)) is not None:
                        keys[folder + "/".join(["c", *map(str, index)])] = data
        buffers = {key: prototype.buffer.from_bytes(data) for key, data in keys.items()}
        return zarr.open_group(MemoryStore(buffers), mode="r")


def values_of(array: zarr.Array[Any]) -> np.ndarray[Any, np.dtype[Any]]:
    return np.ascontiguousarray(array[...])
