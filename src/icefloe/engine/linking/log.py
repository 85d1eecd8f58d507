"""The transaction log of a commit that links manifests built elsewhere.

It lists every chunk that was set or deleted, and those who commit do not have them. So the log is
completed where they are known: from pieces of coordinates (`write_log`), or from the manifests
themselves (`save_log`).
"""

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from icefloe.assets.files import Assets
from icefloe.engine.linking.linked import LinkedArray
from icefloe.engine.manifests.lookup import listed_in
from icefloe.engine.session import SessionState
from icefloe.format.chunk_table import ChunkKind, ChunkTable, Coordinates, concat_tables, sort_keys
from icefloe.format.columns import Bools, BytesColumn, concat_bytes
from icefloe.format.coordinate_runs import CoordinateRuns
from icefloe.format.ids import ManifestId, NodeId
from icefloe.format.manifest import Manifest
from icefloe.format.transaction_log import TransactionLog, encode_transaction_log

type Touched = Iterable[tuple[NodeId, Coordinates]]
"""Chunks that were set or deleted: of each array in any number of pieces, in any order."""


def complete_log(own: TransactionLog, touched: Touched, *, spec_version: int = 2) -> bytes:
    """Encode the log of a commit: what the session knew of, and the chunks that it did not.

    Pieces are taken one at a time, and held compressed.
    """
    return encode_transaction_log(own, spec_version=spec_version, runs=_gathered(own, touched))


async def write_log(assets: Assets, own: TransactionLog, touched: Touched) -> None:
    """Write the log of a commit to where it belongs, completed as `complete_log` does."""
    await assets.save_transaction_log(own, _gathered(own, touched))


def _gathered(own: TransactionLog, touched: Touched) -> dict[NodeId, CoordinateRuns]:
    runs: dict[NodeId, CoordinateRuns] = {}
    for node, coordinates in touched:
        _add(runs, own, node, coordinates)
    return runs


def _add(
    runs: dict[NodeId, CoordinateRuns], own: TransactionLog, node: NodeId, chunks: Coordinates
) -> None:
    if len(chunks) == 0:
        return
    if node not in runs:
        runs[node] = CoordinateRuns(chunks.shape[1])
        runs[node].add(own.updated_chunks.get(node, chunks[:0]))
    runs[node].add(chunks)


# -- from the manifests ----------------------------------------------------------------------


async def save_log(session: SessionState, own: TransactionLog) -> None:
    """Write the log of a commit, with the chunks that its linked manifests tell of.

    They are read one region at a time. Where a region was built over stored manifests, the two
    are compared: a chunk that was set to what it was already is not listed.
    """
    runs: dict[NodeId, CoordinateRuns] = {}
    for node, linked in session.changes.links.items():
        async for chunks in _changed_by(session, node, linked):
            _add(runs, own, node, chunks)
    await session.context.assets.save_transaction_log(own, runs)


async def _changed_by(
    session: SessionState, node: NodeId, linked: LinkedArray
) -> AsyncIterator[Coordinates]:
    for region in linked.regions:
        sizes = {part.manifest.id: part.manifest.size_bytes for part in region.parts}
        if not region.replaced:
            for one, size in sizes.items():
                yield (await _load(session, one, size)).coordinates(node)
            continue
        listed = listed_in(session.manifest_files, list(region.replaced))[0]
        old = zip(region.replaced, listed, strict=True)
        yield changed_between(
            [(await _load(session, *each)).table(node) for each in old],
            [(await _load(session, *each)).table(node) for each in sizes.items()],
        )


async def _load(session: SessionState, one: ManifestId, size_bytes: int) -> Manifest:
    """Load a manifest; one that was not in memory does not stay there."""
    assets = session.context.assets
    if (held := assets.held_manifest(one)) is not None:
        return held
    manifest = await assets.load_manifest(one, size_bytes)
    assets.forget_manifests([one])
    return manifest


def changed_between(before: Sequence[ChunkTable], after: Sequence[ChunkTable]) -> Coordinates:
    """List the chunks that two states of a part of an array do not have in common."""
    old, new = (
        concat_tables([one for one in some if len(one)] or [_NONE]) for some in (before, after)
    )
    if not len(old) or not len(new):
        return new.coordinates if len(new) else old.coordinates
    keys_before, keys_after = sort_keys(old.coordinates, new.coordinates)
    was_there, is_there = np.isin(keys_after, keys_before), np.isin(keys_before, keys_after)
    left, right = old.take(is_there), new.take(was_there)
    return np.concatenate(
        [
            old.coordinates[~is_there],
            new.coordinates[~was_there],
            right.coordinates[_differing(left, right)],
        ]
    )


_NONE: Final = ChunkTable.empty(0)


def _differing(left: ChunkTable, right: ChunkTable) -> Bools:
    """Mark the rows in which two tables with the same coordinates differ."""
    differs: Bools = (
        (left.kinds != right.kinds)
        | (left.offsets != right.offsets)
        | (left.lengths != right.lengths)
        | (_modified(left) != _modified(right))
    )
    kinds = np.where(differs, 0, left.kinds)
    native = np.flatnonzero(kinds == ChunkKind.NATIVE)
    ids = left.chunk_ids[left.targets[native]] != right.chunk_ids[right.targets[native]]
    differs[native] |= ids.any(axis=1)
    for kind, name in ((ChunkKind.VIRTUAL, "locations"), (ChunkKind.INLINE, "inline")):
        rows = np.flatnonzero(kinds == kind)
        ours, theirs = left.targets[rows], right.targets[rows]
        differs[rows] |= _unlike(getattr(left, name), ours, getattr(right, name), theirs)
    etags, other_etags = _etag_rows(left), _etag_rows(right)
    differs |= (etags >= 0) != (other_etags >= 0)
    rows = np.flatnonzero((etags >= 0) & (other_etags >= 0))
    differs[rows] |= _unlike(left.etags, etags[rows], right.etags, other_etags[rows])
    return differs


def _unlike(
    left: BytesColumn, ours: NDArray[np.integer], right: BytesColumn, theirs: NDArray[np.integer]
) -> Bools:
    """Compare rows of two columns, each distinct one once."""
    _, numbers = concat_bytes([left, right]).distinct()
    unlike: Bools = numbers[ours] != numbers[len(left) :][theirs]
    return unlike


def _etag_rows(table: ChunkTable) -> NDArray[np.int32]:
    return np.full(len(table), -1, np.int32) if table.etag_rows is None else table.etag_rows


def _modified(table: ChunkTable) -> NDArray[np.uint32]:
    return np.zeros(len(table), np.uint32) if table.last_modified is None else table.last_modified
