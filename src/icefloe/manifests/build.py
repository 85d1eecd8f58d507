"""Manifests made from columns, and how arrays link to them.

This is all that somebody needs who builds manifests elsewhere, in another process say, to have
them linked by one commit: `make_part` writes one and gives back a summary of a few bytes;
`link_parts` puts such summaries beside the manifests that an array has already.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from icefloe.assets import Assets, EncodedManifest
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format.chunk_table import ChunkTable
from icefloe.format.ids import ManifestId, NodeId
from icefloe.format.nodes import ManifestRef
from icefloe.manifests.partition import Box, boxes_meeting, boxes_of
from icefloe.records import MutableRecord, Record, field, replace

if TYPE_CHECKING:
    from icefloe.manifests.packer import ArrayFacts


class NewManifest(Record):
    """A manifest made for a commit, as the snapshot lists it."""

    id: ManifestId
    size_bytes: int
    num_chunk_refs: int


class Part(Record):
    """A new manifest, and how the arrays in it link to it."""

    manifest: NewManifest
    refs: Mapping[NodeId, ManifestRef]
    held_back: EncodedManifest | None = None
    """The file, if it is still to be written."""


async def make_part(
    assets: Assets,
    tables: Mapping[NodeId, ChunkTable],
    *,
    boxes: Mapping[NodeId, Box] | None = None,
    hold_back_bytes: int = 0,
) -> Part:
    """Make a manifest of the references of some arrays, none of them empty, and write it.

    `boxes` are the exact boxes around them where they are known. A file of no more than
    `hold_back_bytes` is given back instead of written, for the caller to do.
    """
    encoded = await assets.encode_manifest(tables)
    num_chunk_refs = sum(map(len, tables.values()))
    manifest = NewManifest(encoded.id, len(encoded.data), num_chunk_refs)
    refs = dict[NodeId, ManifestRef]()
    for node, table in tables.items():
        if boxes is None or (box := boxes.get(node)) is None:
            box = tuple((first, last) for first, last in table.extents().tolist())
        refs[node] = ManifestRef(encoded.id, box)
    if manifest.size_bytes <= hold_back_bytes:
        return Part(manifest, refs, encoded)
    await assets.save_manifest(encoded)
    return Part(manifest, refs)


def link_parts(
    before: Sequence[ManifestRef], parts: Sequence[ManifestRef]
) -> tuple[ManifestRef, ...]:
    """Put new manifests of an array beside those that it has, in the order of their chunks.

    Their boxes must be apart, as a chunk is looked for in one manifest only. An array of one
    chunk without coordinates has one manifest.
    """
    linked = sorted((*before, *parts), key=lambda ref: ref.extents)
    if len(linked) > 1 and not all(ref.extents for ref in linked):
        raise InvalidInputError(
            "a manifest without extents covers all of an array: it cannot be linked with others",
            ErrorKind.INVALID_CHUNK_INDEX,
        )
    _require_apart(linked)
    return tuple(linked)


def _require_apart(refs: Sequence[ManifestRef]) -> None:
    """Refuse boxes that meet; they come in the order of where they begin."""
    if all(left.extents[0][1] <= other.extents[0][0] for left, other in pairwise(refs)):
        return
    boxes = boxes_of([ref.extents for ref in refs], len(refs[0].extents))
    for row in range(1, len(boxes)):
        met = boxes_meeting(boxes[:row], boxes[row : row + 1])
        if met.any():
            left, other = refs[int(met.argmax())], refs[row]
            raise InvalidInputError(
                f"the manifests {left.id} and {other.id} both cover chunks of one array, "
                f"{left.extents} and {other.extents}: build them from disjoint parts of it",
                ErrorKind.INVALID_CHUNK_INDEX,
            )


# -- what an attempt to commit wrote, for the next one to find ----------------------------------


class ArrayState(Record):
    """The input of an array's manifests: equal input means equal manifests."""

    before: tuple[ManifestRef, ...]
    revision: int
    num_chunks: tuple[int, ...]


class SplitArray(Record):
    """An array whose manifests are its own: those that stayed, and new ones."""

    state: ArrayState
    kept: tuple[ManifestRef, ...]
    parts: tuple[Part, ...]


class WholeArray(Record, eq=False):
    """An array that goes into one manifest, maybe with others."""

    state: ArrayState | ManifestId
    """One that only keeps company with others is as it was in their manifest."""
    table: ChunkTable
    facts: "ArrayFacts"
    box: Box | None = None
    """The box around its chunks, if it is known."""


class Pack(Record):
    """A manifest of whole arrays, and the state of each that is in it."""

    states: Mapping[NodeId, ArrayState | ManifestId]
    part: Part


class WrittenManifests(MutableRecord, eq=False):
    """Manifests made for a commit that may have to be tried again."""

    _arrays: dict[NodeId, SplitArray | WholeArray] = field(default_factory=dict)
    _packs: dict[frozenset[NodeId], Pack] = field(default_factory=dict)

    def array(self, node: NodeId, state: ArrayState) -> SplitArray | WholeArray | None:
        """Find what was made of an array, if it was in the same state."""
        cached = self._arrays.get(node)
        return cached if cached is not None and cached.state == state else None

    def pack(self, states: Mapping[NodeId, ArrayState | ManifestId]) -> Pack | None:
        """Find the manifest that holds just these arrays, each in the same state."""
        cached = self._packs.get(frozenset(states))
        return cached if cached is not None and cached.states == states else None

    def keep_array(self, node: NodeId, array: SplitArray | WholeArray) -> list[ManifestId]:
        """Remember what was made of an array; give manifests that were made for nothing."""
        before = self._arrays.get(node)
        self._arrays[node] = array
        return [part.manifest.id for part in before.parts] if isinstance(before, SplitArray) else []

    def keep_packs(self, packs: Iterable[Pack]) -> list[ManifestId]:
        """Remember these manifests only; give those that were made for nothing."""
        before = {pack.part.manifest.id for pack in self._packs.values()}
        self._packs = {frozenset(pack.states): pack for pack in packs}
        return sorted(before - {pack.part.manifest.id for pack in self._packs.values()})

    def note_written(self) -> None:
        """Remember that the files that were held back are written now."""
        for node, array in self._arrays.items():
            if isinstance(array, SplitArray):
                parts = tuple(replace(part, held_back=None) for part in array.parts)
                self._arrays[node] = replace(array, parts=parts)
        for nodes, pack in self._packs.items():
            self._packs[nodes] = Pack(pack.states, replace(pack.part, held_back=None))
