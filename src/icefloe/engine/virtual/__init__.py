"""Virtual chunks: ranges of foreign objects, read from places that the reader authorised."""

from icefloe.engine.virtual.places import Place
from icefloe.engine.virtual.reader import VirtualReader

__all__ = ["Place", "VirtualReader"]
