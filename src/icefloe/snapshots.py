"""Versions, their differences and their order."""

from icefloe.api.graph import AncestryGraph
from icefloe.repo.snapshot_info import ManifestFileInfo, SnapshotInfo
from icefloe.transactions.diffs import Diff

__all__ = ["AncestryGraph", "Diff", "ManifestFileInfo", "SnapshotInfo"]
