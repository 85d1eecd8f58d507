"""Rewriting all manifests: the same data in a new layout, as one commit.

The new version differs from its parent in its manifests alone, so its log is empty. Whatever
others commit meanwhile is taken over: only what they changed is laid out once more.
"""

import logging
from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any, Final, Literal, TypeAlias

from icefloe.config import RepositoryConfig
from icefloe.engine.commit import (
    RESERVED_KEY,
    forget_superseded,
    log_to_replace,
    publish,
    with_notes,
    write_version,
)
from icefloe.engine.context import RepoContext
from icefloe.engine.manifests.relayout import Relayout
from icefloe.engine.session import SessionMode, SessionState
from icefloe.errors import ConflictError, ErrorKind, InvalidInputError
from icefloe.format.config_file import manifest_layout_json
from icefloe.format.ids import SnapshotId
from icefloe.format.metadata_items import Metadata
from icefloe.values.progress import Progress

CommitMethod: TypeAlias = Literal["new_commit", "amend"]  # noqa: UP040 - compared at run time
"""Whether changes become a commit of their own, or part of the newest one."""

_log = logging.getLogger(__name__)
_METHODS: Final = ("new_commit", "amend")
_MOST_TRIES: Final = 100


async def rewrite_manifests(
    context: RepoContext,
    message: str,
    *,
    branch: str,
    metadata: Mapping[str, Any] | None = None,
    commit_method: CommitMethod = "new_commit",
    on_progress: Progress | None = None,
) -> SnapshotId:
    """Lay out the manifests of a branch as the configuration says, and commit that.

    If the branch moves meanwhile, a new commit is tried again on top of it. To amend is refused
    then, with `ConflictError`: the commit to be replaced would be another than was meant.
    """
    if commit_method not in _METHODS:
        raise InvalidInputError(
            f"{commit_method!r} is no commit method: choose one of {', '.join(_METHODS)}",
            ErrorKind.INVALID_COMMIT_CONFIGURATION,
        )
    notes = _noted(metadata, context.user_config)
    relayout = Relayout(context, on_progress)
    tip = await context.ledger.writable_tip(branch)
    for attempt in range(_MOST_TRIES):
        try:
            async with nullcontext() if attempt == 0 else context.ledger.turn(branch):
                if attempt > 0:
                    tip = await context.ledger.writable_tip(branch)
                return await _rewrite(context, tip, branch, message, notes, commit_method, relayout)
        except ConflictError as conflict:
            is_lost_race = conflict.kind == ErrorKind.COMMIT_CONFLICT
            if commit_method == "amend" or not is_lost_race or attempt == _MOST_TRIES - 1:
                raise
            _log.info("branch %r moved: rewriting the manifests that it changed", branch)
    raise AssertionError("the last attempt returns or raises")


async def _rewrite(
    context: RepoContext,
    tip: SnapshotId,
    branch: str,
    message: str,
    notes: Metadata,
    method: CommitMethod,
    relayout: Relayout,
) -> SnapshotId:
    snapshot = await context.assets.load_snapshot(tip)
    session = SessionState(context, snapshot, SessionMode.writable, branch=branch)
    replaced = await log_to_replace(session) if method == "amend" else None
    manifests = await relayout.manifests(snapshot)
    version = await write_version(session, message, notes, replaced=replaced, manifests=manifests)
    move = context.ledger.commit if replaced is None else context.ledger.amend
    await publish(session, version, partial(move, branch, tip))
    forget_superseded(session, version.snapshot)
    _log.info("rewrote the manifests of branch %r: %s", branch, version.snapshot.id)
    return version.snapshot.id


def _noted(metadata: Mapping[str, Any] | None, config: RepositoryConfig) -> Metadata:
    """Note the layout in the metadata of the commit, next to what else is noted there."""
    given = dict(metadata or {})
    before = given.get(RESERVED_KEY)
    notes = {**(before if isinstance(before, dict) else {}), **manifest_layout_json(config)}
    return with_notes(given, notes or None)
