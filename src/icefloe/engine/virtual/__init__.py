"""Virtual chunks: ranges of foreign objects, read from places that the reader authorised."""

from icefloe.engine.virtual.reader import Place, VirtualReader

__all__ = ["Place", "VirtualReader"]
