"""Rules for manifests: on their own, and in relation to the arrays of versions."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np

from icefloe.effects import map_concurrently, offload
from icefloe.errors import FormatError, InvalidInputError
from icefloe.format.chunk_table import ChunkTable
from icefloe.format.ids import ManifestId, NodeId, raw_rows
from icefloe.format.layout import manifest_key
from icefloe.format.manifest import ManifestFile
from icefloe.format.snapshot import Snapshot
from icefloe.maintenance.verify.files import CheckedFiles
from icefloe.maintenance.verify.findings import (
    DamageKind,
    Findings,
    Site,
    boxes_of,
)
from icefloe.maintenance.verify.objects import (
    ChunkObjects,
    VirtualNeeds,
    VirtualObjects,
    virtual_needs,
)
from icefloe.maintenance.verify.version_rules import report_listed
from icefloe.manifests.partition import Box
from icefloe.records import MutableRecord, Record, field
from icefloe.walk.links import ManifestUse
from icefloe.walk.reachability import native_needs
from icefloe.walk.spill import Keys, Values

AT_ONCE: Final = 8
"""Manifests that are decoded at the same time."""


class _File(Record):
    """The facts about a manifest that later rules need."""

    size_bytes: int
    num_chunk_refs: int


class _Part(Record):
    """The facts about an array's references in a manifest that later rules need."""

    rows: int
    dimensions: int
    extents: Box
    """Tight bounds of the coordinates."""


class _Examined(MutableRecord):
    """The result of reading a manifest."""

    manifest: ManifestId
    file: _File | None = None
    parts: dict[NodeId, _Part | None] = field(default_factory=dict)
    native: list[tuple[Keys, Values]] = field(default_factory=list)
    virtual: list[VirtualNeeds] = field(default_factory=list)


class ManifestRules:
    """Reads each manifest once, and checks every way in which it is used."""

    def __init__(
        self, files: CheckedFiles, chunks: ChunkObjects, virtual: VirtualObjects | None
    ) -> None:
        self._files = files
        self._findings: Findings = files.findings
        self._chunks = chunks
        self._virtual = virtual
        self._read: dict[ManifestId, _File | None] = {}
        self._parts: dict[tuple[ManifestId, NodeId], _Part | None] = {}
        self._listed: set[tuple[bytes, int, int]] = set()
        self.references = 0

    def __len__(self) -> int:
        return len(self._read)

    @property
    def parts(self) -> dict[ManifestId, list[NodeId]]:
        """List the arrays that could be read of each manifest."""
        nodes_by_manifest: dict[ManifestId, list[NodeId]] = {}
        for (manifest, node), part in self._parts.items():
            if part is not None:
                nodes_by_manifest.setdefault(manifest, []).append(node)
        return nodes_by_manifest

    def unread(self, uses: Iterable[ManifestUse]) -> dict[ManifestId, list[NodeId]]:
        """List the manifests to read for some uses, each with the arrays that matter."""
        nodes_by_manifest: dict[ManifestId, dict[NodeId, None]] = {}
        for use in uses:
            if (use.manifest, use.node) not in self._parts:
                nodes_by_manifest.setdefault(use.manifest, {})[use.node] = None
        return {manifest: [*nodes] for manifest, nodes in nodes_by_manifest.items()}

    async def read(self, parts: Sequence[tuple[ManifestId, list[NodeId]]]) -> None:
        """Read manifests, which is where most of the work is."""
        examined = await map_concurrently(self._examine, parts, limit=AT_ONCE)
        for result in examined:
            self._read[result.manifest] = result.file
            for node, part in result.parts.items():
                self._parts[result.manifest, node] = part
                self.references += 0 if part is None else part.rows
            for keys, ends in result.native:
                self._chunks.add(keys, ends)
            if self._virtual is not None:
                for needs in result.virtual:
                    self._virtual.add(needs)

    async def _examine(self, part: tuple[ManifestId, list[NodeId]]) -> _Examined:
        manifest_id, nodes = part
        examined = _Examined(manifest_id, parts=dict.fromkeys(nodes))
        if (loaded := await self._files.manifest(manifest_id)) is None:
            return examined
        manifest, size_bytes = loaded
        examined.file = _File(size_bytes, manifest.num_chunk_refs)
        return await offload(lambda: self._decode(manifest, nodes, examined))

    def _decode(
        self, manifest: ManifestFile, nodes: Sequence[NodeId], examined: _Examined
    ) -> _Examined:
        for node in nodes:
            table = self.table(manifest, examined.manifest, node)
            if table is None:
                continue
            extents: Box = ()
            if len(table):
                low, high = table.coordinates.min(axis=0), table.coordinates.max(axis=0)
                extents = tuple(
                    (first, last + 1)
                    for first, last in zip(low.tolist(), high.tolist(), strict=True)
                )
            examined.parts[node] = _Part(len(table), table.dimensions, extents)
            self._check_lengths(table, examined.manifest, node)
            examined.native.append(native_needs(table))
            if self._virtual is not None:
                examined.virtual.append(virtual_needs(table))
        return examined

    def table(
        self, manifest: ManifestFile, manifest_id: ManifestId, node: NodeId
    ) -> ChunkTable | None:
        """Decode the references of an array, which also sees to it that they are sorted."""
        try:
            return manifest.table(node)
        except (FormatError, InvalidInputError) as failure:
            self._findings.report(
                DamageKind.BAD_MANIFEST,
                f"the references of {node} in the manifest {manifest_id}: {failure}",
                manifest_key(manifest_id),
                sites=[Site(manifest_id, node)],
            )
            return None

    def _check_lengths(self, table: ChunkTable, manifest_id: ManifestId, node: NodeId) -> None:
        empty = table.lengths == 0
        if empty.any():
            region = boxes_of(table.coordinates[empty])
            self._findings.report(
                DamageKind.BAD_MANIFEST,
                f"{manifest_id} refers to chunks of no length",
                manifest_key(manifest_id),
                sites=[Site(manifest_id, node, region=region)],
            )

    # -- how versions use them -------------------------------------------------------------

    def check_use(self, use: ManifestUse, path: str) -> None:
        """Check that a manifest holds what an array expects of it."""
        part = self._parts.get((use.manifest, use.node))
        if part is None:
            return  # reported already
        for kind, message in _broken(use, part):
            region = (part.extents,) if part.dimensions == len(use.grid) and part.rows else None
            self._findings.report(
                kind,
                f"{path}: {message}",
                manifest_key(use.manifest),
                sites=[Site(use.manifest, use=use, region=region)],
            )

    def check_list(self, snapshot: Snapshot) -> None:
        """Check that a version knows the sizes of its manifests and the references in them."""
        files = snapshot.manifests
        rows = zip(
            raw_rows(files.ids), files.sizes_bytes.tolist(), files.num_chunk_refs.tolist(),
            strict=True,
        )  # fmt: skip
        for row in rows:
            if row not in self._listed and self._is_true(snapshot, *row):
                self._listed.add(row)

    def _is_true(self, snapshot: Snapshot, raw: bytes, size: int, refs: int) -> bool:
        manifest = ManifestId(raw)
        if (file := self._read.get(manifest)) is None:
            return False  # missing, damaged, or used by no array: reported already
        wrong = []
        if size != file.size_bytes:
            wrong.append(
                f"the manifest {manifest} has {file.size_bytes} bytes, the list says {size}"
            )
        if refs != file.num_chunk_refs:
            wrong.append(
                f"the manifest {manifest} has {file.num_chunk_refs} references,"
                f" the list says {refs}"
            )
        for message in wrong:
            report_listed(self._findings, snapshot, manifest, message)
        return not wrong

    def references_of(self, manifest: ManifestId) -> int:
        """Return the number of references of a manifest, if it is known."""
        file = self._read.get(manifest)
        return 0 if file is None else file.num_chunk_refs


def _broken(use: ManifestUse, part: _Part) -> Iterator[tuple[DamageKind, str]]:
    if part.rows == 0:
        yield DamageKind.BAD_MANIFEST, f"the manifest {use.manifest} holds nothing of it"
        return
    if part.dimensions != len(use.grid):
        message = f"{use.manifest} has coordinates of {part.dimensions} dimensions"
        yield DamageKind.BAD_MANIFEST, message
        return
    if part.extents != use.extents:
        message = f"{use.manifest} covers {part.extents}, its extents say {use.extents}"
        yield DamageKind.BAD_EXTENTS, message
    lasts = np.array([last for _, last in part.extents], np.int64)
    if (lasts > np.array(use.grid, np.int64)).any():
        yield DamageKind.BAD_EXTENTS, f"{use.manifest} has chunks outside of the grid"
