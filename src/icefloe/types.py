"""Names for annotations."""

from icefloe.maintenance.layout.rewriting import CommitMethod

__all__ = ["CommitMethod"]
