"""Virtual chunks through the store: each method in a blocking and an asynchronous form.

References are kept in memory until the session commits, so neither form ever waits.
"""

from datetime import datetime
from typing import Any

import numpy as np

from icefloe.config import VirtualChunkSpec
from icefloe.engine.session import SessionState
from icefloe.zarr_store import virtual_refs


class VirtualWrites:
    """The part of a store that records byte ranges of foreign objects as chunks."""

    _state: SessionState

    def _check_writable(self) -> None:
        self._state.require_writable()

    def set_virtual_ref(
        self,
        key: str,
        location: str,
        *,
        offset: int,
        length: int,
        checksum: str | datetime | None = None,
        validate_container: bool = True,
    ) -> None:
        """Record a chunk as a byte range of a foreign object.

        `checksum` is the object's etag or last modification, checked on reading;
        `validate_container` refuses locations that no virtual chunk container covers.
        """
        self._check_writable()
        etag = checksum if isinstance(checksum, str) else None
        modified = checksum if isinstance(checksum, datetime) else None
        spec = VirtualChunkSpec([], location, offset, length, etag, modified)
        virtual_refs.set_one(self._state, key, spec, validate_container=validate_container)

    async def set_virtual_ref_async(
        self,
        key: str,
        location: str,
        *,
        offset: int,
        length: int,
        checksum: str | datetime | None = None,
        validate_container: bool = True,
    ) -> None:
        """Do what `set_virtual_ref` does."""
        self.set_virtual_ref(
            key,
            location,
            offset=offset,
            length=length,
            checksum=checksum,
            validate_container=validate_container,
        )

    def set_virtual_refs(
        self,
        array_path: str,
        chunks: list[VirtualChunkSpec],
        *,
        validate_containers: bool = True,
    ) -> list[tuple[int, ...]] | None:
        """Record many chunks of an array as byte ranges of foreign objects.

        Returns the coordinates of those whose location no container covers, which are not
        recorded; `None` when all are fine.
        """
        self._check_writable()
        return virtual_refs.set_specs(
            self._state, array_path, chunks, validate_containers=validate_containers
        )

    async def set_virtual_refs_async(
        self,
        array_path: str,
        chunks: list[VirtualChunkSpec],
        *,
        validate_containers: bool = True,
    ) -> list[tuple[int, ...]] | None:
        """Do what `set_virtual_refs` does."""
        return self.set_virtual_refs(array_path, chunks, validate_containers=validate_containers)

    def set_virtual_refs_arr(
        self,
        array_path: str,
        chunk_grid_shape: tuple[int, ...],
        locations: list[str],
        offsets: "np.ndarray[Any, np.dtype[np.uint64]]",
        lengths: "np.ndarray[Any, np.dtype[np.uint64]]",
        *,
        validate_containers: bool = True,
        arr_offset: tuple[int, ...] | None = None,
        checksum: datetime | str | None = None,
    ) -> list[tuple[int, ...]] | None:
        """Record a box of chunks, given flat and in row-major order.

        An empty location leaves its chunk out; `arr_offset` says where in the array the box
        begins. Returns what `set_virtual_refs` does.
        """
        self._check_writable()
        return virtual_refs.set_grid(
            self._state,
            array_path,
            chunk_grid_shape,
            locations,
            offsets,
            lengths,
            validate_containers=validate_containers,
            grid_offset=arr_offset,
            checksum=checksum,
        )

    async def set_virtual_refs_arr_async(
        self,
        array_path: str,
        chunk_grid_shape: tuple[int, ...],
        locations: list[str],
        offsets: "np.ndarray[Any, np.dtype[np.uint64]]",
        lengths: "np.ndarray[Any, np.dtype[np.uint64]]",
        *,
        validate_containers: bool = True,
        arr_offset: tuple[int, ...] | None = None,
        checksum: datetime | str | None = None,
    ) -> list[tuple[int, ...]] | None:
        """Do what `set_virtual_refs_arr` does."""
        return self.set_virtual_refs_arr(
            array_path,
            chunk_grid_shape,
            locations,
            offsets,
            lengths,
            validate_containers=validate_containers,
            arr_offset=arr_offset,
            checksum=checksum,
        )
