"""From changes to a new version.

Manifests, snapshot and log are written first; nobody can see them. The last step moves the
branch, on condition that it is still where the session began. A process that dies before that step
leaves garbage, and nothing else.
"""

import logging
import operator
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from icefloe.effects import map_concurrently
from icefloe.errors import ConflictError, ErrorKind, ObjectNotFoundError, SessionStateError
from icefloe.format.ids import INITIAL_SNAPSHOT_ID, ManifestId, NodeId, SnapshotId, raw_rows
from icefloe.format.layout import transaction_log_key
from icefloe.format.metadata import Metadata
from icefloe.format.nodes import ArrayNode, ManifestRef, NodeTable
from icefloe.format.snapshot import ManifestFiles, Snapshot
from icefloe.format.snapshot_table import SnapshotEntry
from icefloe.format.transaction_log import TransactionLog, unite_logs
from icefloe.manifests.build import NewManifest
from icefloe.records import Record, replace
from icefloe.repo.context import RepoContext
from icefloe.repo.repo_changes import AddDetached, Amend, Commit
from icefloe.repo.repo_ledger import warn_of_lag
from icefloe.transactions.collected_objects import publish
from icefloe.transactions.conflicts import ConflictSolver, require_solver
from icefloe.transactions.external_manifests import save_log
from icefloe.transactions.manifest_writing import ManifestChanges, write_manifests
from icefloe.transactions.rearrange import moves_made
from icefloe.transactions.rebase import replay
from icefloe.transactions.session import SessionMode, SessionState

_log = logging.getLogger(__name__)

RESERVED_KEY: Final = "__icechunk"
"""The metadata key under which the format keeps notes of its own."""

type LogWriter = Callable[[TransactionLog], Awaitable[None]]
"""Writes a log, with the chunks in linked manifests, which the one that it is given lacks."""


class Version(Record):
    """A version whose files are written but to which nothing points yet."""

    snapshot: Snapshot
    log: TransactionLog
    entry: SnapshotEntry
    manifests: tuple[NewManifest, ...]
    """Those that were made for it, or linked."""


async def commit(
    session: SessionState,
    message: str,
    *,
    metadata: Mapping[str, Any] | None = None,
    solver: ConflictSolver | None = None,
    rebase_tries: int = 1000,
    allow_empty: bool = False,
    log_writer: LogWriter | None = None,
) -> SnapshotId:
    """Make the changes of a session the new tip of its branch.

    Without a solver, another commit on the branch is a `ConflictError`. With one, the session
    is rebased and the commit tried again, keeping the manifests that are still good.

    `log_writer` is asked at every attempt to write the log, of another snapshot each time.
    """
    if solver is not None:
        require_solver(solver)
    branch = _branch_to_commit(session, allow_empty=allow_empty)
    ledger, rivals = session.context.ledger, session.context.ledger.rivals
    rebases = 0

    async def attempt() -> Version:
        notes = None if solver is None else {"rebase_attempts": rebases}
        version = await write_version(
            session, message, with_notes(metadata, notes), log_writer=log_writer
        )
        change = Commit(branch, session.snapshot_id, version.entry)
        await publish(session, change, version.manifests)
        return version

    with session.changes.frozen():
        version = None
        # Where others got ahead of us lately, they would again: so it is not tried in vain.
        if solver is None or not (rivals.are_expected and rivals.can_wait_for_us and rebase_tries):
            try:
                version = await attempt()
            except ConflictError as conflict:
                if solver is None or not _may_rebase(conflict, branch, rebases, rebase_tries):
                    raise
                rivals.note_race(was_lost=True)
        while version is None:
            assert solver is not None
            async with ledger.turn(branch):
                begun = time.monotonic()
                moved = await replay(session, solver)
                rebases += 1 if moved else 0
                rivals.note_race(was_lost=moved > 0)
                try:
                    version = await attempt()
                except ConflictError as conflict:
                    if not _may_rebase(conflict, branch, rebases, rebase_tries):
                        raise
                    rivals.note_race(was_lost=True)
                rivals.pace.note(time.monotonic() - begun)
    forget_superseded(session, version.snapshot)
    session.become_readonly(version.snapshot)
    _log.info("committed %s to branch %r", version.snapshot.id, branch)
    return version.snapshot.id


def _may_rebase(conflict: ConflictError, branch: str, rebases: int, limit: int) -> bool:
    """Return whether a commit that lost a race may be put on top of the one that won."""
    if conflict.kind != ErrorKind.COMMIT_CONFLICT or rebases >= limit:
        return False
    _log.info(
        "branch %r moved to %s: rebasing the commit over it (attempt %d)",
        branch,
        conflict.actual_parent,
        rebases + 1,
    )
    return True


async def amend(
    session: SessionState,
    message: str,
    *,
    metadata: Mapping[str, Any] | None = None,
    allow_empty: bool = False,
    move_other_branches: bool = False,
    log_writer: LogWriter | None = None,
) -> SnapshotId:
    """Replace the tip of the branch by one commit with its changes and those of the session.

    With `move_other_branches`, all branches that end at that tip move to the new commit.
    """
    _require_amendable(session)
    branch = _branch_to_commit(session, allow_empty=allow_empty)
    with session.changes.frozen():
        replaced = await log_to_replace(session)
        version = await write_version(
            session,
            message,
            with_notes(metadata, None),
            replaced=replaced,
            log_writer=log_writer,
        )
        change = Amend(
            branch, session.snapshot_id, version.entry, move_other_branches=move_other_branches
        )
        await publish(session, change, version.manifests)
    forget_superseded(session, version.snapshot)
    session.become_readonly(version.snapshot)
    return version.snapshot.id


async def log_to_replace(session: SessionState) -> TransactionLog:
    """Return the log of the commit that the session is on, if that can be amended."""
    _require_amendable(session)
    replaced = await session.context.assets.load_transaction_log(session.snapshot_id)
    if replaced.moves and session.mode is not SessionMode.rearrange:
        raise SessionStateError(
            "the commit to amend moved nodes: amend it in repo.rearrange_session(branch)",
            ErrorKind.REARRANGE_SESSION_ONLY,
        )
    return replaced


def _require_amendable(session: SessionState) -> None:
    session.context.require_spec(2, "amending a commit")
    if session.snapshot_id == INITIAL_SNAPSHOT_ID:
        raise SessionStateError(
            "the first snapshot of a repository cannot be amended: commit instead",
            ErrorKind.NO_AMEND_FOR_INITIAL_COMMIT,
        )


async def flush(
    session: SessionState,
    message: str,
    *,
    metadata: Mapping[str, Any] | None = None,
    log_writer: LogWriter | None = None,
) -> SnapshotId:
    """Write a snapshot that no branch points at."""
    _require_open(session)
    with session.changes.frozen():
        version = await write_version(
            session, message, with_notes(metadata, None), log_writer=log_writer
        )
        await publish(session, AddDetached(version.entry), version.manifests)
    session.become_readonly(version.snapshot)
    return version.snapshot.id


async def write_version(
    session: SessionState,
    message: str,
    metadata: Metadata,
    *,
    replaced: TransactionLog | None = None,
    manifests: ManifestChanges | None = None,
    log_writer: LogWriter | None = None,
) -> Version:
    """Write packed chunks, manifests, snapshot and log of the session as it is now.

    `replaced` is the log of the commit that this one takes the place of, to be united with;
    `manifests` are given by who has made them already.
    """
    context = session.context
    new_id = SnapshotId.random()
    base = session.snapshot
    if context.spec_version == 1:  # in spec 2, the ledger compares with the newest update
        warn_of_lag(context.clock(), base.flushed_at)
    if session.packer is not None:
        await session.packer.flush()
    if manifests is None:
        manifests = await write_manifests(session)
    nodes = _new_nodes(session, manifests.refs)
    snapshot = Snapshot(
        new_id,
        max(context.clock(), base.flushed_at + 1),
        message,
        nodes,
        _files_in_use(nodes, base.manifests, manifests.new),
        metadata,
        base.id if context.spec_version == 1 else None,
        context.spec_version,
    )
    log = session.changes.to_log(new_id)
    if session.changes.moves:
        log = replace(log, moves=moves_made(session))
    if replaced is not None:
        log = unite_logs([replaced, log], new_id)
    is_complete = log_writer is None and not session.changes.links
    assets = context.assets
    saves: list[Callable[[], Awaitable[None]]] = [
        *(partial(assets.save_manifest, manifest) for manifest in manifests.held_back),
        partial(assets.save_snapshot, snapshot),
        *([partial(assets.save_transaction_log, log)] if is_complete else []),
    ]
    await map_concurrently(operator.call, saves, limit=context.write_concurrency)
    if log_writer is not None:
        await log_writer(log)
        await _require_log(context, new_id)
    elif not is_complete:
        await save_log(session, log)
    session.written.note_written()
    entry = SnapshotEntry(new_id, base.id, snapshot.flushed_at, message, metadata)
    return Version(snapshot, log, entry, manifests.new)


async def _require_log(context: RepoContext, snapshot: SnapshotId) -> None:
    """Look whether a log that somebody else was to write is there."""
    try:
        await context.backend.head(transaction_log_key(snapshot))
    except ObjectNotFoundError as missing:
        raise SessionStateError(
            f"the log writer of the commit did not write the transaction log of {snapshot}: "
            "nothing was committed",
            ErrorKind.COMMIT_NOT_ALLOWED,
            snapshot=str(snapshot),
        ) from missing


def _new_nodes(
    session: SessionState, manifests: Mapping[NodeId, tuple[ManifestRef, ...]]
) -> NodeTable:
    changes, base = session.changes, session.base
    gone = [node.path for node in changes.deleted.values()]
    only_chunks = manifests.keys() - {node.id for node in changes.nodes.values()}
    rows = {base.row_by_id(node): manifests[node] for node in only_chunks}
    table = base.table.with_manifests(rows) if rows else base.table
    if not changes.nodes and not gone:
        return table
    nodes = [
        replace(node, array=replace(node.array, manifests=manifests.get(node.id, ())))
        if isinstance(node, ArrayNode)
        else node
        for node in changes.nodes.values()
    ]
    return table.overlay(NodeTable.from_nodes(nodes), gone)


def _files_in_use(
    nodes: NodeTable, before: ManifestFiles, new_manifests: Sequence[NewManifest]
) -> ManifestFiles:
    """List the manifests that any node uses: old ones that stayed, and new ones."""
    new = ManifestFiles.from_list(
        [(manifest.id, manifest.size_bytes, manifest.num_chunk_refs) for manifest in new_manifests]
    )
    ids = np.concatenate([before.ids, new.ids])
    sizes = np.concatenate([before.sizes_bytes, new.sizes_bytes])
    refs = np.concatenate([before.num_chunk_refs, new.num_chunk_refs])
    used = set(raw_rows(nodes.manifest_ids))
    keys = raw_rows(ids)
    rows = sorted((row for row, key in enumerate(keys) if key in used), key=keys.__getitem__)
    return ManifestFiles(ids[rows], sizes[rows], refs[rows])


def with_notes(metadata: Mapping[str, Any] | None, notes: dict[str, Any] | None) -> Metadata:
    """Add notes of the format to the metadata of a commit."""
    notes_and_metadata = dict(metadata or {})
    return notes_and_metadata if notes is None else {**notes_and_metadata, RESERVED_KEY: notes}


def forget_superseded(session: SessionState, snapshot: Snapshot) -> None:
    """Do not keep manifests around that the new tip of the branch does not use any more."""
    before, after = (
        set(raw_rows(version.manifests.ids)) for version in (session.snapshot, snapshot)
    )
    session.context.assets.forget_manifests(ManifestId(raw) for raw in before - after)


def _require_open(session: SessionState) -> None:
    if session.fork_of is not None:
        raise SessionStateError(
            "a forked session cannot commit: merge it into the session it came from, "
            "with session.merge(fork), and commit that one",
            ErrorKind.COMMIT_NOT_ALLOWED,
        )
    if session.mode is SessionMode.readonly:
        raise SessionStateError(
            "a read-only session, and so one that was committed, cannot commit: open another "
            "with repo.writable_session(branch)",
            ErrorKind.COMMIT_NOT_ALLOWED,
        )


def _branch_to_commit(session: SessionState, *, allow_empty: bool) -> str:
    _require_open(session)
    if session.branch is None:
        raise SessionStateError("this session is not on a branch", ErrorKind.NOT_ON_BRANCH)
    if not allow_empty and session.changes.is_empty():
        raise SessionStateError(
            "nothing was changed in this session: pass allow_empty=True to commit anyway",
            ErrorKind.NO_CHANGES_TO_COMMIT,
        )
    return session.branch
