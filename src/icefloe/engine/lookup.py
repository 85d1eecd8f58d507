"""Which manifest of an array holds a chunk."""

import numpy as np

from icefloe.format.ids import ManifestId, id_rows
from icefloe.format.node_table import ManifestRef
from icefloe.format.snapshot import ManifestFiles


class ArrayLookup:
    """The manifests of one array, with the boxes of chunks that they cover."""

    def __init__(self, manifests: tuple[ManifestRef, ...], files: ManifestFiles) -> None:
        self.manifests = manifests
        self._sizes = sizes_of([ref.id for ref in manifests], files)
        self._boxes: np.ndarray[tuple[int, int, int], np.dtype[np.uint32]] | None = None

    def find(self, index: tuple[int, ...]) -> tuple[ManifestRef, int] | None:
        """Find the manifest whose box holds a chunk; also its size in bytes."""
        manifests = self.manifests
        if len(manifests) == 1:
            return (manifests[0], self._sizes[0]) if _holds(manifests[0].extents, index) else None
        if not manifests:
            return None
        boxes = self._all_boxes(len(index))
        wanted = np.array(index, np.int64)
        inside = ((boxes[:, :, 0] <= wanted) & (wanted < boxes[:, :, 1])).all(axis=1)
        place = int(inside.argmax())
        return (manifests[place], self._sizes[place]) if inside[place] else None

    def sizes(self) -> list[tuple[ManifestRef, int]]:
        """List all manifests with their sizes."""
        return list(zip(self.manifests, self._sizes, strict=True))

    def _all_boxes(self, dimensions: int) -> np.ndarray[tuple[int, int, int], np.dtype[np.uint32]]:
        if self._boxes is None:
            everything = ((0, np.iinfo(np.uint32).max),) * dimensions
            boxes = [ref.extents or everything for ref in self.manifests]
            self._boxes = np.array(boxes, np.uint32).reshape(len(boxes), dimensions, 2)
        return self._boxes


def _holds(box: tuple[tuple[int, int], ...], index: tuple[int, ...]) -> bool:
    if box:
        for at, (first, last) in zip(index, box, strict=True):
            if not first <= at < last:
                return False
    return True


def sizes_of(ids: list[ManifestId], files: ManifestFiles) -> list[int]:
    """Look up the sizes of manifests in the list of a snapshot; 0 for one that is not there."""
    if not ids or not len(files):
        return [0] * len(ids)
    stored = np.ascontiguousarray(files.ids).view(f"S{ManifestId.WIDTH}").ravel()
    wanted = np.ascontiguousarray(id_rows(ManifestId, ids)).view(f"S{ManifestId.WIDTH}").ravel()
    rows = np.minimum(np.searchsorted(stored, wanted), len(stored) - 1)
    sizes: list[int] = np.where(stored[rows] == wanted, files.sizes_bytes[rows], 0).tolist()
    return sizes
