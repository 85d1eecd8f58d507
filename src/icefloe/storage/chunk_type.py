"""How chunks are kept."""

from icefloe.values import NamedNumber


class ChunkType(NamedNumber):
    """How the bytes of a chunk are stored; `uninitialized` means there are none.

    >>> ChunkType.native
    icefloe.storage.ChunkType.native
    """

    uninitialized = 0
    native = 1
    virtual = 2
    inline = 3
