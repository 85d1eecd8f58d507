"""What an attempt to commit wrote, for the next one to find."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from icefloe.format.chunk_table import ChunkTable
from icefloe.format.ids import ManifestId, NodeId
from icefloe.format.nodes import ManifestRef
from icefloe.records import MutableRecord, Record, field, replace

if TYPE_CHECKING:
    from icefloe.manifests.build import Part
    from icefloe.manifests.packer import ArrayFacts
    from icefloe.manifests.partition import Box


class ArrayState(Record):
    """What the manifests of an array are made from: if it is the same, so are they."""

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
    facts: ArrayFacts
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
