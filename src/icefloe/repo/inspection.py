"""The files of a repository, described for people who look inside."""

from typing import Final

from icefloe.effects import map_concurrently
from icefloe.errors import ErrorKind, FormatError, NotFoundError, SnapshotNotFoundError
from icefloe.format.description import Description, describe_file, describe_log
from icefloe.format.ids import ManifestId, SnapshotId
from icefloe.format.layout import REPO_KEY, manifest_key, snapshot_key, transaction_log_key
from icefloe.format.transaction_log import TransactionLog, unite_logs
from icefloe.repo.context import RepoContext

_COMPOSITE_NOTE: Final = (
    "Expiration removed versions before this snapshot from the history. The lists of this report"
    " unite their transaction logs with the log of the snapshot; `header` is of the latter."
)


async def describe_snapshot(context: RepoContext, snapshot: SnapshotId, rows: int) -> Description:
    """Describe a snapshot file."""
    return await _describe(context, snapshot_key(snapshot), rows)


async def describe_transaction_log(
    context: RepoContext, snapshot: SnapshotId, rows: int
) -> Description:
    """Describe the log of the commit that made a snapshot.

    If expiration removed versions before it, the lists unite their logs too, and
    `synthetic_composite` names these logs, and those that are missing.
    """
    described = await _describe(context, transaction_log_key(snapshot), rows)
    pruned = await _pruned_ancestors(context, snapshot)
    if not pruned:
        return described

    async def load(ancestor: SnapshotId) -> TransactionLog | None:
        try:
            return await context.assets.load_transaction_log(ancestor)
        except NotFoundError:
            return None

    own = await context.assets.load_transaction_log(snapshot)
    logs = await map_concurrently(load, pruned, limit=context.config.max_concurrent_requests)
    merged = [log for log in logs if log is not None]
    missing = [ancestor for ancestor, log in zip(pruned, logs, strict=True) if log is None]
    return {
        "header": described["header"],
        **describe_log(unite_logs([*merged, own], snapshot), rows),
        "synthetic_composite": {
            "note": _COMPOSITE_NOTE,
            "merged_pruned_ancestor_tx_logs": [str(log.id) for log in merged],
            "missing_tx_logs": [str(ancestor) for ancestor in missing],
        },
    }


async def _pruned_ancestors(context: RepoContext, snapshot: SnapshotId) -> list[SnapshotId]:
    """List the versions before a snapshot that expiration removed, oldest first."""
    if context.spec_version == 1:
        return []
    try:
        return [*(await context.ledger.entry(snapshot)).pruned_ancestors]
    except SnapshotNotFoundError:
        return []  # of a snapshot that is no longer listed, only the log is left


async def describe_manifest(context: RepoContext, manifest: ManifestId, rows: int) -> Description:
    """Describe a manifest."""
    return await _describe(context, manifest_key(manifest), rows)


async def describe_repo_info(context: RepoContext, rows: int) -> Description:
    """Describe the repo object, which spec 2 introduced."""
    if context.spec_version == 1:
        raise FormatError(
            "this repository has spec version 1, which keeps refs in files of their own: there "
            "is no repo object to describe",
            ErrorKind.UNSUPPORTED_SPEC_VERSION,
        )
    return await _describe(context, REPO_KEY, rows)


async def _describe(context: RepoContext, key: str, rows: int) -> Description:
    fetched = await context.backend.get(key)
    return describe_file(bytes(fetched.data), rows)


async def manifest_files(
    context: RepoContext, snapshot: SnapshotId
) -> list[tuple[ManifestId, int, int]]:
    """List the manifests of a snapshot: id, size in bytes, number of chunk references."""
    files = (await context.assets.load_snapshot(snapshot)).manifests
    return [
        (ManifestId(row.tobytes()), size, count)
        for row, size, count in zip(
            files.ids, files.sizes_bytes.tolist(), files.num_chunk_refs.tolist(), strict=True
        )
    ]
