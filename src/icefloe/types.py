"""Names for annotations."""

from icefloe.engine.rewriting import CommitMethod

__all__ = ["CommitMethod"]
