"""The store through which Zarr reads and writes a session."""

from icefloe.zarr_store.keys import MissingKeyError, ReadOnlyStoreError
from icefloe.zarr_store.store import IcechunkStore, StoreOwner

__all__ = ["IcechunkStore", "MissingKeyError", "ReadOnlyStoreError", "StoreOwner"]
