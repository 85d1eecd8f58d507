"""Find the manifest of an array that contains a chunk."""

from bisect import bisect_right
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from icefloe.format.columns import Ints
from icefloe.format.ids import ManifestId, id_rows
from icefloe.format.nodes import ManifestRef
from icefloe.format.snapshot import ManifestFiles, StoredFiles
from icefloe.manifests.partition import Boxes, boxes_of
from icefloe.records import Record

_NOWHERE = -1


class ArrayLookup:
    """The manifests of one array, with the boxes of chunks that they cover."""

    def __init__(
        self, manifests: tuple[ManifestRef, ...], files: ManifestFiles | StoredFiles
    ) -> None:
        self.manifests = manifests
        self._files = files

    def find(self, index: tuple[int, ...]) -> ManifestId | None:
        """Find the manifest whose box holds a chunk."""
        manifests = self.manifests
        if not manifests:
            return None
        branch: _Branch = 0 if len(manifests) == 1 else self._index
        while not isinstance(branch, int):
            branch = branch.next(index)
        if branch == _NOWHERE or not _holds(manifests[branch].extents, index):
            return None
        return manifests[branch].id

    def size_of(self, manifest: ManifestId) -> int:
        """Look up the size of a manifest in bytes; 0 if the snapshot does not list it."""
        return self._files.size_of(manifest)

    def sizes(self) -> list[tuple[ManifestId, int]]:
        """List all manifests with their sizes."""
        ids = [ref.id for ref in self.manifests]
        return list(zip(ids, sizes_of(ids, self._files), strict=True))

    @cached_property
    def _index(self) -> "_Branch":
        if not all(ref.extents for ref in self.manifests):  # without any, it covers everything
            return _Scan(self.manifests, tuple(range(len(self.manifests))))
        dimensions = len(self.manifests[0].extents)
        boxes = boxes_of([ref.extents for ref in self.manifests], dimensions)
        return _branch(self.manifests, boxes, np.arange(len(boxes)))


class _Cut(Record):
    """Groups of boxes that lie one after the other along an axis."""

    axis: int
    starts: list[int]
    ends: list[int]
    groups: list["_Branch"]

    def next(self, index: tuple[int, ...]) -> "_Branch":
        at = index[self.axis]
        place = bisect_right(self.starts, at) - 1
        return self.groups[place] if place >= 0 and at < self.ends[place] else _NOWHERE


class _Scan(Record):
    """Boxes that no straight cut tells apart: those that we write never need this."""

    manifests: tuple[ManifestRef, ...]
    places: tuple[int, ...]

    def next(self, index: tuple[int, ...]) -> "_Branch":
        for place in self.places:
            if _holds(self.manifests[place].extents, index):
                return place
        return _NOWHERE


type _Branch = int | _Cut | _Scan
"""The place of a manifest, or what leads there."""


def _branch(manifests: tuple[ManifestRef, ...], boxes: Boxes, places: Ints) -> _Branch:
    """Cut boxes along the axis that gives most groups, and each group again."""
    if len(places) == 1:
        return int(places[0])
    cuts = [_groups(boxes[places, axis]) for axis in range(boxes.shape[1])]
    axis = max(range(len(cuts)), key=lambda dimension: len(cuts[dimension]), default=0)
    if not cuts or len(cuts[axis]) == 1:
        return _Scan(manifests, tuple(places.tolist()))
    groups = [places[rows] for rows in cuts[axis]]
    return _Cut(
        axis,
        [int(boxes[group, axis, 0].min()) for group in groups],
        [int(boxes[group, axis, 1].max()) for group in groups],
        [_branch(manifests, boxes, group) for group in groups],
    )


def _groups(ranges: NDArray[np.int64]) -> list[Ints]:
    """Sort ranges into groups that do not meet each other."""
    order = np.argsort(ranges[:, 0], kind="stable")
    ends = np.maximum.accumulate(ranges[order, 1])
    return np.split(order, np.flatnonzero(ranges[order[1:], 0] >= ends[:-1]) + 1)


def _holds(box: tuple[tuple[int, int], ...], index: tuple[int, ...]) -> bool:
    if box:
        for number, (first, last) in zip(index, box, strict=True):
            if not first <= number < last:
                return False
    return True


def sizes_of(ids: list[ManifestId], files: ManifestFiles | StoredFiles) -> list[int]:
    """Look up the sizes of manifests in the list of a snapshot; 0 for one that is not there."""
    return listed_in(files, ids)[0]


def listed_in(
    files: ManifestFiles | StoredFiles, ids: list[ManifestId]
) -> tuple[list[int], list[int]]:
    """Look up the sizes and reference counts of manifests; 0 for one that is not in the list."""
    if not ids or not len(files):
        return [0] * len(ids), [0] * len(ids)
    files = files.table()
    stored = np.ascontiguousarray(files.ids).view(f"S{ManifestId.WIDTH}").ravel()
    wanted_ids = np.ascontiguousarray(id_rows(ManifestId, ids)).view(f"S{ManifestId.WIDTH}").ravel()
    rows = np.minimum(np.searchsorted(stored, wanted_ids), len(stored) - 1)
    is_listed = stored[rows] == wanted_ids
    sizes: list[int] = np.where(is_listed, files.sizes_bytes[rows], 0).tolist()
    counts: list[int] = np.where(is_listed, files.num_chunk_refs[rows], 0).tolist()
    return sizes, counts
