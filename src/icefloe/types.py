"""Names for annotations."""

from icefloe.engine.manifests.rewriting import CommitMethod

__all__ = ["CommitMethod"]
