"""Manifests that were built elsewhere, as the session that links them knows them.

Only what a snapshot lists is here, a few bytes for each manifest: the references stay where they
were written. A region is what was built in one go. Its new manifests take the place of all
manifests that it was built over, whose references they hold.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from icefloe.engine.manifests.partition import Box, Boxes, boxes_of
from icefloe.engine.manifests.parts import NewManifest
from icefloe.format.ids import ManifestId
from icefloe.format.node_table import ManifestRef


@dataclass(frozen=True, slots=True)
class StoredManifest:
    """A manifest of an array as it is stored: what somebody needs who builds over it."""

    ref: ManifestRef
    size_bytes: int
    num_refs: int
    """Of all arrays in it."""


@dataclass(frozen=True, slots=True)
class LinkedPart:
    """A new manifest with references of one array only."""

    manifest: NewManifest
    box: Box
    """The exact box around its chunks."""

    @property
    def ref(self) -> ManifestRef:
        """How the array links to it."""
        return ManifestRef(self.manifest.id, self.box)


@dataclass(frozen=True, slots=True)
class LinkedRegion:
    """What was built of one region of an array; small enough to be sent around by the thousand.

    >>> part = LinkedPart(NewManifest(ManifestId.random(), 512, 3), ((0, 2), (4, 7)))
    >>> region = LinkedRegion((part,), (ManifestId.random(),), num_changed=3)
    >>> LinkedRegion.from_bytes(region.to_bytes()) == region
    True
    """

    parts: tuple[LinkedPart, ...]
    """None if all references of the region were deleted."""
    replaced: tuple[ManifestId, ...] = ()
    """The manifests that it was built over."""
    num_changed: int = 0
    """How many chunks were set or deleted."""

    def to_bytes(self) -> bytes:
        """Pack the region for a journey to another process."""
        parts = [
            [str(one.manifest.id), one.manifest.size_bytes, one.manifest.num_chunk_refs, one.box]
            for one in self.parts
        ]
        return json.dumps([parts, [str(one) for one in self.replaced], self.num_changed]).encode()

    @classmethod
    def from_bytes(cls, packed: bytes) -> "LinkedRegion":
        """Unpack a region."""
        parts, replaced, num_changed = json.loads(packed)
        return cls(
            tuple(
                LinkedPart(
                    NewManifest(ManifestId.parse(one), size_bytes, num_refs),
                    tuple((int(first), int(last)) for first, last in box),
                )
                for one, size_bytes, num_refs, box in parts
            ),
            tuple(ManifestId.parse(one) for one in replaced),
            num_changed,
        )


@dataclass(frozen=True)
class LinkedArray:
    """All that a session linked to one array."""

    regions: tuple[LinkedRegion, ...]

    @cached_property
    def parts(self) -> tuple[LinkedPart, ...]:
        """The manifests to link; one that a later region was built over is not among them."""
        return tuple(
            part
            for region in self.regions
            for part in region.parts
            if part.manifest.id not in self._built_over
        )

    @cached_property
    def _built_over(self) -> frozenset[ManifestId]:
        return frozenset(one for region in self.regions for one in region.replaced)

    @cached_property
    def replaced(self) -> frozenset[ManifestId]:
        """The manifests of the base snapshot whose place they take."""
        own = {part.manifest.id for region in self.regions for part in region.parts}
        return self._built_over - own

    @property
    def num_changed(self) -> int:
        """How many chunks were set or deleted."""
        return sum(region.num_changed for region in self.regions)

    def boxes(self, dimensions: int) -> Boxes:
        """Give the boxes around the references in each new manifest."""
        return boxes_of([part.box for part in self.parts], dimensions)

    def with_regions(self, more: Iterable[LinkedRegion]) -> "LinkedArray":
        """Link more, which may be built over some of these."""
        return LinkedArray((*self.regions, *more))

    def over(self, stored: Sequence[ManifestRef]) -> tuple[ManifestRef, ...]:
        """List the manifests of the array, given those of the base snapshot."""
        kept = [ref for ref in stored if ref.id not in self.replaced]
        return tuple(sorted([*kept, *(part.ref for part in self.parts)], key=_first_chunk))


def _first_chunk(ref: ManifestRef) -> Box:
    return ref.extents
