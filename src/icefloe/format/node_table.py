"""The groups and arrays of a snapshot, as columns sorted by path."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Self, cast

import numpy as np
from numpy.typing import NDArray

from icefloe.format.columns import (
    Bools,
    Bytes,
    BytesColumn,
    Ints,
    concat_bytes,
    splits_of,
    take_ragged,
)
from icefloe.format.ids import ManifestId, NodeId, id_rows, ids_of_rows


@dataclass(frozen=True, slots=True)
class ManifestRef:
    """A manifest of an array, and the box of chunks that it covers."""

    id: ManifestId
    extents: tuple[tuple[int, int], ...]
    """First chunk and first chunk after, for each dimension; none: everything."""


@dataclass(frozen=True, slots=True)
class ArrayInfo:
    """What a snapshot knows of an array beyond its Zarr metadata."""

    shape: tuple[int, ...]
    num_chunks: tuple[int, ...]
    dimension_names: tuple[str | None, ...] | None = None
    manifests: tuple[ManifestRef, ...] = ()


@dataclass(frozen=True, slots=True)
class Node:
    """A group or an array at a path."""

    id: NodeId
    path: str
    user_data: bytes
    """The exact bytes of its `zarr.json`."""
    array: ArrayInfo | None = None
    """`None` for a group."""


@dataclass(frozen=True, slots=True, eq=False)
class NodeTable:
    """Nodes in columns, sorted by the bytes of their paths.

    A column with a `…_splits` beside it holds several items for each row: those of row `i`
    lie from `splits[i]` up to `splits[i + 1]`.
    """

    ids: Bytes
    paths: BytesColumn
    user_data: BytesColumn
    is_array: Bools
    shape_splits: Ints
    array_lengths: NDArray[np.uint64]
    num_chunks: NDArray[np.uint32]
    has_names: Bools
    name_splits: Ints
    names: BytesColumn
    """Dimension names; an empty one stands for none."""
    manifest_splits: Ints
    manifest_ids: Bytes
    extent_splits: Ints
    """Splits `extents` by manifest, not by node."""
    extents: NDArray[np.uint32]
    """(n, 2): first chunk and first chunk after."""
    _known_rows: dict[str, int] | None = field(default=None, init=False, repr=False)

    @classmethod
    def from_nodes(cls, nodes: Sequence[Node]) -> Self:
        """Pack a list of nodes, in any order.

        >>> root = Node(NodeId.random(), "/", b'{"zarr_format":3,"node_type":"group"}')
        >>> NodeTable.from_nodes([root]).find("/") == root
        True
        """
        nodes = sorted(nodes, key=lambda node: node.path.encode())
        arrays = [node.array or ArrayInfo((), ()) for node in nodes]
        names = [array.dimension_names or () for array in arrays]
        manifests = [ref for array in arrays for ref in array.manifests]
        return cls(
            ids=id_rows(NodeId, [node.id for node in nodes]),
            paths=BytesColumn.from_strings([node.path for node in nodes]),
            user_data=BytesColumn.from_list([node.user_data for node in nodes]),
            is_array=np.array([node.array is not None for node in nodes], np.bool_),
            shape_splits=_splits([array.shape for array in arrays]),
            array_lengths=np.array([n for array in arrays for n in array.shape], np.uint64),
            num_chunks=np.array([n for array in arrays for n in array.num_chunks], np.uint32),
            has_names=np.array([a.dimension_names is not None for a in arrays], np.bool_),
            name_splits=_splits(names),
            names=BytesColumn.from_strings([name or "" for own in names for name in own]),
            manifest_splits=_splits([array.manifests for array in arrays]),
            manifest_ids=id_rows(ManifestId, [ref.id for ref in manifests]),
            extent_splits=_splits([ref.extents for ref in manifests]),
            extents=np.array([r for ref in manifests for r in ref.extents], np.uint32).reshape(
                -1, 2
            ),
        )

    def table(self) -> Self:
        """Give all nodes in columns, as those do that are still in a file."""
        return self

    def __len__(self) -> int:
        return len(self.is_array)

    def row_of(self, path: str) -> int | None:
        """Find the row of a path."""
        return self._rows.get(path)

    @property
    def _rows(self) -> dict[str, int]:
        """Where each path is: made when first asked for, because many tables never are."""
        if self._known_rows is None:
            rows = {path: row for row, path in enumerate(self.paths.to_strings())}
            object.__setattr__(self, "_known_rows", rows)
            return rows
        return self._known_rows

    def find(self, path: str) -> Node | None:
        """Look up one node."""
        row = self.row_of(path)
        return None if row is None else self.node(row)

    def node(self, row: int) -> Node:
        """Give one row as an object."""
        return Node(
            NodeId(self.ids[row].tobytes()),
            self.paths[row].decode(),
            self.user_data[row],
            self._array(row) if self.is_array[row] else None,
        )

    def _array(self, row: int) -> ArrayInfo:
        first_dim, last_dim = self.shape_splits[row : row + 2].tolist()
        names = None
        if self.has_names[row]:
            first, last = self.name_splits[row : row + 2].tolist()
            names = tuple(name.decode() or None for name in self.names.rows(first, last))
        return ArrayInfo(
            tuple(self.array_lengths[first_dim:last_dim].tolist()),
            tuple(self.num_chunks[first_dim:last_dim].tolist()),
            names,
            self._manifests(row),
        )

    def _manifests(self, row: int) -> tuple[ManifestRef, ...]:
        first, last = self.manifest_splits[row : row + 2].tolist()
        if first == last:
            return ()
        ids = ids_of_rows(ManifestId, self.manifest_ids[first:last])
        splits = self.extent_splits[first : last + 1].tolist()
        ranges = self.extents[splits[0] : splits[-1]].tolist()
        boxes = cast("list[tuple[int, int]]", list(map(tuple, ranges)))
        return tuple(
            ManifestRef(one, tuple(boxes[begin - splits[0] : end - splits[0]]))
            for one, (begin, end) in zip(ids, pairwise(splits), strict=True)
        )

    def take(self, rows: Ints) -> Self:
        """Pick rows, in the order given."""
        shape_splits, dims = take_ragged(self.shape_splits, rows)
        name_splits, names = take_ragged(self.name_splits, rows)
        manifest_splits, manifests = take_ragged(self.manifest_splits, rows)
        extent_splits, extents = take_ragged(self.extent_splits, manifests)
        return type(self)(
            ids=self.ids[rows],
            paths=self.paths.take(rows),
            user_data=self.user_data.take(rows),
            is_array=self.is_array[rows],
            shape_splits=shape_splits,
            array_lengths=self.array_lengths[dims],
            num_chunks=self.num_chunks[dims],
            has_names=self.has_names[rows],
            name_splits=name_splits,
            names=self.names.take(names),
            manifest_splits=manifest_splits,
            manifest_ids=self.manifest_ids[manifests],
            extent_splits=extent_splits,
            extents=self.extents[extents],
        )

    def with_manifests(self, manifests: Mapping[int, Sequence[ManifestRef]]) -> Self:
        """Give the arrays in some rows other manifests."""
        refs = [ref for own in manifests.values() for ref in own]
        links = _joined(self.manifest_splits, _splits(list(manifests.values())))
        boxes = _joined(self.extent_splits, _splits([ref.extents for ref in refs]))
        ids = np.concatenate([self.manifest_ids, id_rows(ManifestId, [ref.id for ref in refs])])
        pairs = np.array([pair for ref in refs for pair in ref.extents], np.uint32)
        extents = np.concatenate([self.extents, pairs.reshape(-1, 2)])
        rows = np.arange(len(self))
        rows[list(manifests)] = len(self) + np.arange(len(manifests))
        manifest_splits, taken = take_ragged(links, rows)
        extent_splits, taken_extents = take_ragged(boxes, taken)
        table = replace(
            self,
            manifest_splits=manifest_splits,
            manifest_ids=ids[taken],
            extent_splits=extent_splits,
            extents=extents[taken_extents],
        )
        object.__setattr__(table, "_known_rows", self._known_rows)
        return table

    def overlay(self, newer: Self, deleted_paths: Sequence[str] = ()) -> Self:
        """Delete some paths, then put newer nodes over these."""
        replaced = {*newer.paths.to_list(), *(path.encode() for path in deleted_paths)}
        united = _concat([self, newer])
        paths = united.paths.to_list()
        kept = [row for row in range(len(self)) if paths[row] not in replaced]
        order = sorted([*kept, *range(len(self), len(united))], key=paths.__getitem__)
        return united.take(np.array(order, np.int64))


def _splits(rows: Sequence[Sequence[object]]) -> Ints:
    return splits_of(np.array([len(row) for row in rows], np.int64))


def _joined(first: Ints, second: Ints) -> Ints:
    """Put the rows of two ragged columns one behind the other."""
    return np.concatenate([first, first[-1] + second[1:]])


def _concat[T: NodeTable](tables: Sequence[T]) -> T:
    def splits(name: str) -> Ints:
        return splits_of(np.concatenate([np.diff(getattr(table, name)) for table in tables]))

    return type(tables[0])(
        ids=np.concatenate([t.ids for t in tables]),
        paths=concat_bytes([t.paths for t in tables]),
        user_data=concat_bytes([t.user_data for t in tables]),
        is_array=np.concatenate([t.is_array for t in tables]),
        shape_splits=splits("shape_splits"),
        array_lengths=np.concatenate([t.array_lengths for t in tables]),
        num_chunks=np.concatenate([t.num_chunks for t in tables]),
        has_names=np.concatenate([t.has_names for t in tables]),
        name_splits=splits("name_splits"),
        names=concat_bytes([t.names for t in tables]),
        manifest_splits=splits("manifest_splits"),
        manifest_ids=np.concatenate([t.manifest_ids for t in tables]),
        extent_splits=splits("extent_splits"),
        extents=np.concatenate([t.extents for t in tables]),
    )
