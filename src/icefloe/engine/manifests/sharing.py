"""Which arrays of a snapshot are in one manifest with others."""

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from icefloe.engine.tree import BaseNodes
from icefloe.format.columns import Ints
from icefloe.format.ids import ManifestId, NodeId, ids_of_rows


class SharedManifests:
    """The manifests that more than one array links to; most snapshots have few or none."""

    def __init__(self, base: BaseNodes, num_files: int) -> None:
        self._base = base
        table = base.table
        self._ids: NDArray[np.bytes_] = np.empty(0, f"S{ManifestId.WIDTH}")
        self._numbers: Ints = np.empty(0, np.int64)
        self._rows: Ints = np.empty(0, np.int64)
        self._known: dict[NodeId, set[ManifestId]] = {}
        if len(table.manifest_ids) == num_files:
            return  # each is linked to once
        links = np.ascontiguousarray(table.manifest_ids).view(self._ids.dtype).ravel()
        self._ids, numbers, counts = np.unique(links, return_inverse=True, return_counts=True)
        is_shared = counts[numbers] > 1
        rows = np.repeat(np.arange(len(table)), np.diff(table.manifest_splits))
        self._numbers, self._rows = numbers[is_shared], rows[is_shared]

    @cached_property
    def manifests_of(self) -> Mapping[NodeId, AbstractSet[ManifestId]]:
        """The shared manifests of each array that has any."""
        return _ManifestsOf(self)

    @cached_property
    def arrays_in(self) -> Mapping[ManifestId, AbstractSet[NodeId]]:
        """The arrays in each shared manifest."""
        return _ArraysIn(self)

    @cached_property
    def _by_manifest(self) -> tuple[Ints, Ints]:
        order = np.argsort(self._numbers, kind="stable")
        return self._numbers[order], self._rows[order]

    def of(self, node: NodeId) -> set[ManifestId]:
        """Find the shared manifests of an array."""
        if len(self._rows) == 0:
            return set()
        if (known := self._known.get(node)) is None:
            row = self._base.find_row(node)
            first, last = (0, 0) if row is None else self._rows.searchsorted([row, row + 1])
            known = {self._manifest(number) for number in self._numbers[first:last].tolist()}
            self._known[node] = known
        return known

    def within(self, manifest: ManifestId) -> set[NodeId]:
        """Find the arrays in a manifest, if it is shared."""
        number = int(np.searchsorted(self._ids, np.frombuffer(manifest.raw, self._ids.dtype)[0]))
        numbers, rows = self._by_manifest
        first, last = np.searchsorted(numbers, [number, number + 1])
        if first == last or self._manifest(number) != manifest:
            return set()
        return set(ids_of_rows(NodeId, self._base.table.ids[rows[first:last]]))

    def _manifest(self, number: int) -> ManifestId:
        return ManifestId(self._ids[number : number + 1].tobytes())

    def nodes(self) -> list[NodeId]:
        """List the arrays that share a manifest."""
        return ids_of_rows(NodeId, self._base.table.ids[np.unique(self._rows)])

    def manifests(self) -> list[ManifestId]:
        """List the manifests that are shared."""
        return [self._manifest(number) for number in np.unique(self._numbers).tolist()]


class _ManifestsOf(Mapping[NodeId, AbstractSet[ManifestId]]):
    def __init__(self, shared: SharedManifests) -> None:
        self._shared = shared

    def __getitem__(self, node: NodeId) -> AbstractSet[ManifestId]:
        if not (found := self._shared.of(node)):
            raise KeyError(node)
        return found

    def __iter__(self) -> Iterator[NodeId]:
        return iter(self._shared.nodes())

    def __len__(self) -> int:
        return len(self._shared.nodes())


class _ArraysIn(Mapping[ManifestId, AbstractSet[NodeId]]):
    def __init__(self, shared: SharedManifests) -> None:
        self._shared = shared

    def __getitem__(self, manifest: ManifestId) -> AbstractSet[NodeId]:
        if not (found := self._shared.within(manifest)):
            raise KeyError(manifest)
        return found

    def __iter__(self) -> Iterator[ManifestId]:
        return iter(self._shared.manifests())

    def __len__(self) -> int:
        return len(self._shared.manifests())
