"""The kinds of stored chunks."""

from icefloe.values import NamedNumber


class ChunkType(NamedNumber):
    """The storage of a chunk's bytes; `uninitialized` means that there are none.

    >>> ChunkType.native
    icefloe.storage.ChunkType.native
    """

    uninitialized = 0
    native = 1
    virtual = 2
    inline = 3
