"""The store through which Zarr reads and writes a session."""

from icefloe.zarr_store import IcechunkStore

__all__ = ["IcechunkStore"]
