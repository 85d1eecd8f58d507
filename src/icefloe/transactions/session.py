"""A session: one snapshot, and what was changed on top of it."""

import secrets
from collections.abc import Hashable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icefloe.assets import ByteCache
from icefloe.background import BackgroundWork
from icefloe.effects import run_blocking
from icefloe.errors import ErrorKind, ReadOnlyError, SessionStateError
from icefloe.format.ids import NodeId, SnapshotId
from icefloe.format.nodes import Node
from icefloe.format.snapshot import ManifestFiles, Snapshot, StoredFiles
from icefloe.manifests.lookup import ArrayLookup
from icefloe.repo.context import RepoContext
from icefloe.transactions.causality import Clock
from icefloe.transactions.changes import ChangeSet
from icefloe.transactions.packing import ChunkPacker, PackingOptions
from icefloe.transactions.preload import start_preload
from icefloe.transactions.tree import BaseNodes, Tree, renamed
from icefloe.values import NamedNumber

_SHARD_INDEX_BYTES: Final = 16 << 20


class SessionMode(NamedNumber):
    """The abilities of a session; a `rearrange` session can only move nodes."""

    readonly = 0
    writable = 1
    rearrange = 2


class SessionState:
    """The state that a user's session, its store and the functions of this package share."""

    def __init__(
        self,
        context: RepoContext,
        snapshot: Snapshot | SnapshotId,
        mode: SessionMode,
        *,
        branch: str | None = None,
        packing: PackingOptions | None = None,
    ) -> None:
        from icefloe.manifests.build import WrittenManifests

        self.context = context
        self.mode = mode
        self.branch = branch
        self.id = secrets.token_hex(8)
        """Tells the forks of one session from those of another."""
        self.fork_of: str | None = None
        """The id of the session that this one was forked from, and can only be merged into."""
        self.merged_forks: set[str] = set()
        """The ids of forks that were merged into this one, directly or within others."""
        self.root = self.id
        """The id of the session at the beginning, of which this is a fork of a fork."""
        self.rests_on: tuple[tuple[str, Clock], ...] = ()
        """The forks whose changes are in the snapshot of this one, and what they held."""
        self._snapshot = snapshot
        self._base: BaseNodes | None = None
        self.changes = ChangeSet()
        # Readers never need it, and would have to decode the log of operations for it.
        is_writing = mode is not SessionMode.readonly
        self.known_update = context.ledger.newest_update() if is_writing else 0
        """The newest update of the repository when the session began, or one before it."""
        self.packing = packing
        self.packer = ChunkPacker(context.assets, packing) if packing else None
        self.written = WrittenManifests()
        """Manifests written by an attempt to commit, for the next one."""
        self.preloading: BackgroundWork | None = None
        """Manifests on their way to the cache; nobody has to wait for them."""
        self.shard_indices = ByteCache[Hashable, NDArray[np.uint64]](_SHARD_INDEX_BYTES)
        """The indices of shards that were read, which need not be requested again."""
        self._lookups: dict[NodeId, ArrayLookup] = {}
        self._files: ManifestFiles | None = None

    @property
    def snapshot_id(self) -> SnapshotId:
        """The snapshot that the session is based on."""
        snapshot = self._snapshot
        return snapshot.id if isinstance(snapshot, Snapshot) else snapshot

    @property
    def snapshot(self) -> Snapshot:
        """The snapshot itself; a session that came from another process loads it when asked."""
        if not isinstance(self._snapshot, Snapshot):
            self._snapshot = run_blocking(self.context.assets.load_snapshot(self._snapshot))
        return self._snapshot

    @property
    def base(self) -> BaseNodes:
        """The nodes of the snapshot; under their new names in a session that moved some."""
        if self._base is None:
            base = BaseNodes(self.snapshot.contents)
            for source, target in self.changes.moves:
                base = BaseNodes(renamed(base.table, source, target))
            self._base = base
        return self._base

    @property
    def manifest_files(self) -> ManifestFiles | StoredFiles:
        """The manifests of the snapshot, and those that the session linked."""
        if not self.changes.links:
            return self.snapshot.files
        if self._files is None:
            new = [part.manifest for link in self.changes.links.values() for part in link.parts]
            self._files = self.snapshot.manifests.with_files(
                [(manifest.id, manifest.size_bytes, manifest.num_chunk_refs) for manifest in new]
            )
        return self._files

    @property
    def tree(self) -> Tree:
        """The nodes as the session sees them now."""
        return Tree(self.base, self.changes)

    def require_writable(self) -> None:
        """Refuse to write through a session that may only read or rearrange."""
        if self.mode is SessionMode.readonly:
            raise ReadOnlyError(
                "this session is read-only: open another with repo.writable_session(branch)",
                ErrorKind.READ_ONLY_SESSION,
            )
        if self.mode is SessionMode.rearrange:
            raise SessionStateError(
                "this session can only move nodes: commit it, then open one with "
                "repo.writable_session(branch)",
                ErrorKind.REARRANGE_SESSION_ONLY,
            )

    def rest_on(self, snapshot: Snapshot) -> None:
        """Put the changes on top of another snapshot."""
        self._snapshot = snapshot
        self.forget_views()

    def forget_views(self) -> None:
        """Look at the snapshot and the moves again."""
        self._base = None
        self._files = None
        self._lookups = {}

    def move(self, source: str, target: str) -> None:
        """Move a node to another path, which must be free; see `rearrange` for the rules."""
        moved = renamed(self.base.table, source, target)
        with self.changes.writing() as changes:
            changes.moves.append((source, target))
            self._base = BaseNodes(moved)

    def become_readonly(self, snapshot: Snapshot) -> None:
        """End the transaction, on the snapshot that it made."""
        self.mode = SessionMode.readonly
        self.branch = None
        self._snapshot = snapshot
        self.discard_changes()

    def discard_changes(self) -> None:
        """Go back to the base snapshot."""
        from icefloe.manifests.build import WrittenManifests

        self.changes = ChangeSet(self.changes.history.beneath)
        self.written = WrittenManifests()
        self.merged_forks = set()
        self.forget_views()
        if self.packer is not None:
            self.packer.discard()

    def lookup(self, node: Node) -> ArrayLookup:
        """Return the lookup of manifests of an array of the base snapshot."""
        if (array_lookup := self._lookups.get(node.id)) is None:
            array_lookup = ArrayLookup(self.tree.manifests(node), self.manifest_files)
            self._lookups[node.id] = array_lookup
        return array_lookup

    def __getstate__(self) -> dict[str, object]:
        """Carry the changes and the name of the snapshot; the rest is opened where it arrives."""
        if self.packer is not None:
            run_blocking(self.packer.flush())  # a pack in memory would not arrive
        return {
            "context": self.context,
            "mode": self.mode,
            "branch": self.branch,
            "id": self.id,
            "fork_of": self.fork_of,
            "root": self.root,
            "rests_on": self.rests_on,
            "merged_forks": self.merged_forks,
            "snapshot": self.snapshot_id,
            "changes": self.changes,
            "known_update": self.known_update,
            "packing": self.packing,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(  # type: ignore[misc] # locks and views are made again
            state["context"],
            state["snapshot"],
            state["mode"],
            branch=state["branch"],
            packing=state["packing"],
        )
        self.id, self.fork_of, self.changes = state["id"], state["fork_of"], state["changes"]
        self.merged_forks, self.known_update = state["merged_forks"], state["known_update"]
        self.root, self.rests_on = state["root"], state["rests_on"]


async def open_session(
    context: RepoContext,
    snapshot: SnapshotId,
    mode: SessionMode,
    *,
    branch: str | None = None,
    packing: PackingOptions | None = None,
) -> SessionState:
    """Load a snapshot, and begin a session on it."""
    base = await context.assets.load_snapshot(snapshot)
    return begin_session(context, base, mode, branch=branch, packing=packing)


def begin_session(
    context: RepoContext,
    base: Snapshot,
    mode: SessionMode,
    *,
    branch: str | None = None,
    packing: PackingOptions | None = None,
) -> SessionState:
    """Begin a session on a snapshot, and in the background to fetch what it may need soon."""
    session = SessionState(context, base, mode, branch=branch, packing=packing)
    if mode is not SessionMode.rearrange:
        is_writing = mode is SessionMode.writable
        session.preloading = start_preload(context, base, is_writing=is_writing)
    return session
