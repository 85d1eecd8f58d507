"""The files of a repository, described for people who look inside."""

from icefloe.engine.context import RepoContext
from icefloe.errors import ErrorKind, FormatError
from icefloe.format.description import Description, describe_file
from icefloe.format.ids import ManifestId, SnapshotId
from icefloe.format.layout import REPO_KEY, manifest_key, snapshot_key, transaction_log_key


async def describe_snapshot(context: RepoContext, snapshot: SnapshotId, rows: int) -> Description:
    """Describe a snapshot file."""
    return await _describe(context, snapshot_key(snapshot), rows)


async def describe_transaction_log(
    context: RepoContext, snapshot: SnapshotId, rows: int
) -> Description:
    """Describe the log of the commit that made a snapshot."""
    return await _describe(context, transaction_log_key(snapshot), rows)


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
