"""Chunks that lie in foreign objects, and where those may be."""

from icefloe.config import VirtualChunkContainer, VirtualChunkSpec

__all__ = ["VirtualChunkContainer", "VirtualChunkSpec"]
