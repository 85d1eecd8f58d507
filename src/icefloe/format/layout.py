"""Keys of all objects of a repository, relative to its root."""

from typing import Final

from icefloe.format.ids import ChunkId, ManifestId, ObjectId, SnapshotId

REPO_KEY: Final = "repo"
CONFIG_KEY: Final = "config.yaml"
REFS_PREFIX: Final = "refs/"
SNAPSHOTS_PREFIX: Final = "snapshots/"
MANIFESTS_PREFIX: Final = "manifests/"
TRANSACTIONS_PREFIX: Final = "transactions/"
CHUNKS_PREFIX: Final = "chunks/"
BACKUPS_PREFIX: Final = "overwritten/"

_YEAR_3000_MS: Final = 32_503_680_000_000


def snapshot_key(snapshot: SnapshotId) -> str:
    """Return the key of a snapshot."""
    return f"{SNAPSHOTS_PREFIX}{snapshot}"


def transaction_log_key(snapshot: SnapshotId) -> str:
    """Return the key of the log of the commit that made a snapshot."""
    return f"{TRANSACTIONS_PREFIX}{snapshot}"


def manifest_key(manifest: ManifestId) -> str:
    """Return the key of a manifest."""
    return f"{MANIFESTS_PREFIX}{manifest}"


def chunk_key(chunk: ChunkId) -> str:
    """Return the key of a chunk object."""
    return CHUNKS_PREFIX + str(chunk)


def branch_key(name: str) -> str:
    """Return the key of a branch in spec 1."""
    return f"{REFS_PREFIX}branch.{name}/ref.json"


def tag_key(name: str) -> str:
    """Return the key of a tag in spec 1."""
    return f"{REFS_PREFIX}tag.{name}/ref.json"


def tag_tombstone_key(name: str) -> str:
    """Return the key whose presence says that a tag of spec 1 was deleted."""
    return f"{tag_key(name)}.deleted"


def backup_name(source: str, now_ms: int, unique: ObjectId) -> str:
    """Name a backup of `repo` or `config.yaml` so that newer ones sort first.

    >>> from icefloe.format.ids import ObjectId
    >>> backup_name("repo", 1_794_765_229_923, ObjectId(bytes(12)))
    'repo.30708914770077.00000000000000000000'
    """
    return f"{source}.{_YEAR_3000_MS - now_ms:014d}.{unique}"


def backup_key(name: str) -> str:
    """Return the key of a backup from its bare name."""
    return f"{BACKUPS_PREFIX}{name}"
