"""Virtual chunks through the store: each method in a blocking and an asynchronous form.

References are kept in memory until the session commits, so neither form ever waits.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from icefloe.config import VirtualChunkSpec
from icefloe.effects import awaitable
from icefloe.transactions.session import SessionState

if TYPE_CHECKING:
    from icefloe.zarr_store.virtual_columns import (
        CoordinateColumn,
        NumberColumn,
        TextColumn,
        TimeColumn,
    )


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
        checksum: str | int | datetime | None = None,
        validate_container: bool = True,
        validate_containers: bool | None = None,
    ) -> None:
        """Record a chunk as a byte range of a foreign object.

        `checksum` is the object's etag or last modification, checked on reading: a time (local
        time if it has no time zone, such as `datetime.now()`) or seconds since 1970.
        `validate_container`, or by its other name `validate_containers`, refuses locations that
        no virtual chunk container covers.
        """
        from icefloe.zarr_store.virtual_refs import set_one

        self._check_writable()
        validate = validate_container if validate_containers is None else validate_containers
        set_one(
            self._state,
            key,
            location,
            offset,
            length,
            checksum=checksum,
            validate_container=validate,
        )

    set_virtual_ref_async = awaitable(set_virtual_ref)

    def set_virtual_refs(
        self,
        array_path: str,
        chunks: list[VirtualChunkSpec],
        *,
        validate_containers: bool = True,
    ) -> list[tuple[int, ...]] | None:
        """Record many chunks of an array as byte ranges of foreign objects.

        Of several references to one chunk the last counts. Returns the coordinates of those
        whose location no container covers, which are not recorded; `None` when all are fine.
        """
        from icefloe.zarr_store.virtual_refs import set_specs

        self._check_writable()
        return set_specs(self._state, array_path, chunks, validate_containers=validate_containers)

    set_virtual_refs_async = awaitable(set_virtual_refs)

    def set_virtual_refs_arr(
        self,
        array_path: str,
        chunk_grid_shape: tuple[int, ...],
        locations: TextColumn,
        offsets: np.ndarray[Any, np.dtype[np.uint64]],
        lengths: np.ndarray[Any, np.dtype[np.uint64]],
        *,
        validate_containers: bool = True,
        arr_offset: tuple[int, ...] | None = None,
        checksum: datetime | str | int | None = None,
    ) -> list[tuple[int, ...]] | None:
        """Record a box of chunks, given flat and in row-major order.

        An empty location leaves its chunk out; `arr_offset` says where in the array the box
        begins, and `checksum` is that of all objects. Returns what `set_virtual_refs` does.
        """
        from icefloe.zarr_store.virtual_refs import set_grid

        self._check_writable()
        return set_grid(
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

    set_virtual_refs_arr_async = awaitable(set_virtual_refs_arr)

    def set_virtual_refs_columns(
        self,
        array_path: str,
        *,
        coordinates: CoordinateColumn,
        locations: TextColumn,
        offsets: NumberColumn | int,
        lengths: NumberColumn | int,
        etags: TextColumn | str | None = None,
        last_modified: TimeColumn | datetime | int | None = None,
        validate_containers: bool = True,
    ) -> NDArray[np.uint32]:
        """Record millions of references of an array, given as columns.

        Columns are numpy arrays, Arrow arrays (of any library) or lists, with one row for each
        reference, in any order; of several for one chunk the last counts. It is quickest where
        chunks of one file follow each other, and with Arrow dictionaries of locations.

        Args:
            array_path: of the array.
            coordinates: of the chunks: a matrix of one row for each and one column for each
                dimension, or an Arrow column of fixed size lists; one plain column is enough
                for an array of one dimension.
            locations: URLs of the objects.
            offsets: where each chunk starts in its object; a number counts for all.
            lengths: how many bytes each chunk has; a number counts for all.
            etags: of the objects, checked on reading; `None`, null or empty for none.
            last_modified: of the objects, checked on reading: times, or seconds since 1970;
                `None`, null, not-a-time or 0 for none. Times without a zone, as numpy has
                them, are in UTC.
            validate_containers: refuse locations that no virtual chunk container covers.

        Returns:
            The coordinates of the references that were refused, a row for each: they are not
            recorded. Without any rows all is well.

        >>> import icefloe, zarr
        >>> import numpy as np
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> session = repo.writable_session("main")
        >>> array = zarr.create_array(
        ...     session.store, name="t", shape=(4, 10), chunks=(1, 10), dtype="f4"
        ... )
        >>> session.store.set_virtual_refs_columns(
        ...     "t",
        ...     coordinates=np.array([[0, 0], [1, 0], [2, 0]]),
        ...     locations=["s3://archive/2023.nc", "s3://archive/2023.nc", "s3://archive/2024.nc"],
        ...     offsets=np.array([4096, 4136, 4096]),
        ...     lengths=40,
        ...     etags=['"a1"', '"a1"', '"b2"'],
        ...     validate_containers=False,
        ... )
        array([], shape=(0, 2), dtype=uint32)
        >>> session.all_virtual_chunk_locations()
        ['s3://archive/2023.nc', 's3://archive/2023.nc', 's3://archive/2024.nc']
        """
        from icefloe.zarr_store.virtual_refs import set_columns

        self._check_writable()
        return set_columns(
            self._state,
            array_path,
            coordinates,
            locations,
            offsets,
            lengths,
            etags=etags,
            last_modified=last_modified,
            validate_containers=validate_containers,
        )

    set_virtual_refs_columns_async = awaitable(set_virtual_refs_columns)
