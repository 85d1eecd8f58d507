"""Repositories that are derived from others: the selected part of a version, by manifests alone.

An update touches only what changed since the version that was followed last: both versions are
compared, manifest by manifest, and manifests that both have are not even read. If that version is
gone, the new one is compared with what the derived repository refers to.

Arrays of one dimension, such as the coordinates themselves, are copied where whole chunks would
not be exact.
"""

import json
from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any, Final

import msgspec
import numpy as np
import zarr

from icefloe.api.repository import Repository
from icefloe.api.session import Session, state_of
from icefloe.catalog.model import Filter
from icefloe.catalog.wire import FollowAnswer
from icefloe.config import RepositoryConfig
from icefloe.credentials import containers_credentials
from icefloe.effects import run_blocking
from icefloe.errors import InvalidInputError, NotFoundError
from icefloe.format.nodes import ArrayNode, Node
from icefloe.maintenance.derived import ArrayPart, derive_array, part_changes, update_array
from icefloe.records import Record
from icefloe.service.domain.filters import chosen_nodes
from icefloe.service.progress import Progress
from icefloe.service.windows import (
    Window,
    chunk_shape,
    coordinate_of,
    offered_window,
    step_of,
    wanted_window,
)
from icefloe.storage import Storage
from icefloe.transactions.nodes import delete_node, put_metadata

BRANCH: Final = "main"
_NOTE: Final = "icefloe-follows"
"""The key under which a commit of the derived repository tells what it was made from."""


class Side(Record):
    """A repository that the service itself opens."""

    storage: Storage
    config: RepositoryConfig
    credentials: dict[str, Any]
    anchor: object = None
    """Whatever the renewal of the credentials needs: it lives as long as the side."""

    def open(self) -> Repository:
        """Open the repository with the settings of the service only."""
        access = containers_credentials(self.credentials) if self.credentials else None
        return Repository.open(self.storage, self.config, access)


class Provider(Record):
    """The repository that another one is derived from."""

    name: str
    repository: Repository
    snapshot_id: str | None = None
    """The version to derive from; None for the newest."""

    def version(self) -> Session:
        """Return a session on the version to derive from."""
        if self.snapshot_id is None:
            return self.repository.readonly_session(BRANCH)
        return self.repository.readonly_session(snapshot_id=self.snapshot_id)

    def former_version(self, note: "Note | None") -> Session | None:
        """Return a session on the version that was followed last; None if it is gone."""
        if note is None or note.repository != self.name:
            return None
        try:
            return self.repository.readonly_session(snapshot_id=note.snapshot)
        except (NotFoundError, InvalidInputError):
            return None


class Note(Record):
    """The origin of a version of a derived repository."""

    repository: str
    snapshot: str
    nodes: tuple[tuple[str, ...], ...]
    """The nodes of each filter."""
    windows: dict[str, Window]
    copied: tuple[str, ...]


class Written(Record):
    """The changes of an update."""

    arrays: int
    kept: int
    references: int


def derive(
    provider: Provider,
    target: Side,
    offered: Filter | None,
    wanted_filter: Filter | None,
    prefix: str | None,
    message: str,
    progress: Progress | None = None,
) -> FollowAnswer:
    """Make one commit of a version of a provider, unless it has been made already.

    `prefix` is where the target finds chunk objects of the provider; None if it must not. The
    progress is counted in arrays.
    """
    progress = progress or Progress()
    newest = provider.version()
    repository = Repository.open_or_create(target.storage, target.config)
    keep_config(repository, target)
    session = repository.writable_session(BRANCH)
    plan = Plan.of(newest, offered, wanted_filter)
    filters = [f for f in (offered, wanted_filter) if f is not None]
    note = Note(
        provider.name,
        newest.snapshot_id,
        tuple(f.nodes for f in filters),
        plan.windows,
        tuple(sorted(plan.copied)),
    )
    last = _last_note(repository)
    if last == note:
        return FollowAnswer(newest.snapshot_id, session.snapshot_id, changed=False)
    former = provider.former_version(last)
    before = None if former is None or last is None else Plan.noted(former, last)
    try:
        written = plan.write(session, before, prefix, progress)
    except NotFoundError:  # files of the version that was followed last are gone
        session.discard_changes()
        written = plan.write(session, None, prefix, progress)
    commit = session.commit(message, {_NOTE: msgspec.to_builtins(note)}, allow_empty=True)
    return FollowAnswer(
        newest.snapshot_id,
        commit,
        changed=True,
        written=written.arrays,
        kept=written.kept,
        references=written.references,
    )


def keep_config(repository: Repository, target: Side) -> None:
    """Store the containers of a repository, if others are stored."""
    stored = Repository.fetch_config(target.storage)
    containers = target.config.virtual_chunk_containers
    if stored is None or stored.virtual_chunk_containers != containers:
        repository.save_config()


def _last_note(repository: Repository) -> Note | None:
    metadata = next(iter(repository.ancestry(branch=BRANCH))).metadata
    try:
        return msgspec.convert(metadata.get(_NOTE), Note)
    except msgspec.ValidationError:
        return None


class Plan(Record, eq=False):
    """The selected nodes of a version, and the selected indices of their dimensions."""

    session: Session
    """A session without changes, on that version."""
    nodes: dict[str, Node]
    windows: dict[str, Window]
    """By the path of the coordinate."""
    coordinates: dict[str, tuple[str | None, ...]]
    """For each array, the path of the coordinate of each dimension that is cut."""
    copied: frozenset[str]
    """Arrays whose values are copied, because their chunks are not cut exactly."""

    @classmethod
    def of(cls, session: Session, offered: Filter | None, wanted_filter: Filter | None) -> "Plan":
        """Plan what a provider offers and a subscriber wants of a version."""
        filters = [f for f in (offered, wanted_filter) if f is not None]
        everything = _all_nodes(session)
        nodes = _chosen(everything, filters)
        coordinates = _coordinates(everything, nodes, {name for f in filters for name in f.ranges})
        windows = {}
        for path in sorted({p for paths in coordinates.values() for p in paths if p}):
            step = step_of(nodes, coordinates, path)
            windows[path] = (
                wanted_window(session, everything, path, step, filters)
                if offered is None
                else offered_window(session, everything, path, step, offered, wanted_filter)
            )
        strict = {path for path in windows if offered and path.rsplit("/", 1)[1] in offered.ranges}
        copied = frozenset(
            path
            for path, (along, *others) in ((p, c) for p, c in coordinates.items() if c)
            if not others
            and along is not None
            and (along in strict or windows[along][0] % chunk_shape(nodes[path])[0])
        )
        return cls(session, nodes, windows, coordinates, copied)

    @classmethod
    def noted(cls, session: Session, note: Note) -> "Plan":
        """Return the plan from which a version was made, without reading any coordinate."""
        everything = _all_nodes(session)
        nodes = _chosen(everything, [Filter(paths) for paths in note.nodes])
        names = {path.rsplit("/", 1)[1] for path in note.windows}
        coordinates = _coordinates(everything, nodes, names)
        return cls(session, nodes, note.windows, coordinates, frozenset(note.copied))

    def write(
        self, target: Session, before: "Plan | None", prefix: str | None, progress: Progress
    ) -> Written:
        """Change the tree of the target to the planned one.

        `before` is what the target was made from; None if that is not known any more.
        """
        ours = state_of(target)
        for path in [p for p in ours.tree.paths_below("/") if p not in self.nodes]:
            delete_node(ours, path)
        progress.expect(sum(isinstance(node, ArrayNode) for node in self.nodes.values()))
        arrays = kept = references = 0
        for path, node in self.nodes.items():
            present = ours.tree.find(path)
            part = self.part_of(path)
            if part is None:
                if isinstance(present, ArrayNode):
                    delete_node(ours, path)
                put_metadata(ours, path, _group_metadata(node))
                continue
            old = None if before is None else before.part_of(path)
            count = _write_array(part, target, old, prefix)
            after = ours.tree.find(path)
            assert after is not None
            if count == 0 and present is not None and present.user_data == after.user_data:
                kept += 1
            else:
                arrays += 1
                references += count
            progress.advance()
        return Written(arrays, kept, references)

    def part_of(self, path: str) -> "SelectedArray | None":
        """Return the selected part of an array; None if there is no array."""
        node = self.nodes.get(path)
        if not isinstance(node, ArrayNode):
            return None
        windows = tuple(
            (0, size) if along is None else self.windows[along]
            for along, size in zip(self.coordinates[path], node.array.shape, strict=True)
        )
        is_cut = any(self.coordinates[path])
        return SelectedArray(self.session, node, windows, is_cut, path in self.copied)


class SelectedArray(Record, eq=False):
    """The selected part of an array of a version."""

    session: Session
    node: ArrayNode
    windows: tuple[Window, ...]
    is_cut: bool
    is_copied: bool

    @property
    def metadata(self) -> bytes:
        """The `zarr.json` of the part."""
        shape = [last - first for first, last in self.windows]
        if list(self.node.array.shape) == shape:
            return self.node.user_data
        return json.dumps(json.loads(self.node.user_data) | {"shape": shape}).encode()

    @property
    def chunks(self) -> ArrayPart:
        """The chunks that contain the part."""
        box = tuple((0, count) for count in self.node.array.num_chunks)
        if self.is_cut:
            pairs = zip(self.windows, chunk_shape(self.node), strict=True)
            box = tuple((first // size, ceil(last / size)) for (first, last), size in pairs)
        return ArrayPart(state_of(self.session), self.node, box)


def _write_array(
    part: SelectedArray, target: Session, before: SelectedArray | None, prefix: str | None
) -> int:
    """Write an array of the target; return how many of its references changed."""
    path, ours, metadata = part.node.path, state_of(target), part.metadata
    present = ours.tree.find(path)
    if present is not None and not _can_become(present, metadata):
        delete_node(ours, path)
        present = None
    if before is not None and (present is None or before.is_copied is not part.is_copied):
        before = None
    if part.is_copied:
        return _copy_array(part, target, before)
    if present is None:
        return run_blocking(derive_array(part.chunks, ours, metadata, prefix))
    chunks_before = None if before is None else before.chunks
    return run_blocking(update_array(chunks_before, part.chunks, ours, metadata, prefix))


def _copy_array(part: SelectedArray, target: Session, before: SelectedArray | None) -> int:
    """Copy the values of an array of one dimension, as far as they changed; count the chunks."""
    path, ours = part.node.path, state_of(target)
    ((first, last),) = part.windows
    low, high = first, last
    if before is not None and before.windows[0][0] == first:
        low, high = _changed_values(part, before)
    else:
        delete_node(ours, path)
    put_metadata(ours, path, part.metadata)
    if low >= high:
        return 0
    values = zarr.open_array(part.session.store, path=path, mode="r")[low:high]
    copy = zarr.open_array(target.store, path=path, mode="r+")
    copy[low - first : high - first] = values
    (size,) = chunk_shape(part.node)
    return ceil((high - first) / size) - (low - first) // size


def _changed_values(part: SelectedArray, before: SelectedArray) -> Window:
    """Return the first index at which values changed, and the first after them."""
    ((first, last),), ((_, last_before),) = part.windows, before.windows
    (size,) = chunk_shape(part.node)
    changed, gone = run_blocking(part_changes(before.chunks, part.chunks))
    numbers = np.concatenate([changed.coordinates, gone]).astype(np.int64) + first // size
    low, high = last, first
    if len(numbers):
        low, high = int(numbers.min()) * size, (int(numbers.max()) + 1) * size
    if last != last_before:
        low, high = min(low, last_before), last
    return max(low, first), min(high, last)


def _all_nodes(session: Session) -> dict[str, Node]:
    return {node.path: node for node in state_of(session).tree.below("/")}


def _chosen(everything: Mapping[str, Node], filters: Sequence[Filter]) -> dict[str, Node]:
    chosen = chosen_nodes(filters, everything)
    return {path: everything[path] for path in sorted(chosen) if path in everything}


def _coordinates(
    everything: Mapping[str, Node], nodes: Mapping[str, Node], cut: set[str]
) -> dict[str, tuple[str | None, ...]]:
    return {
        path: tuple(
            coordinate_of(everything, path, name) if name in cut else None
            for name in node.array.dimension_names or (None,) * len(node.array.shape)
        )
        for path, node in nodes.items()
        if isinstance(node, ArrayNode)
    }


def _group_metadata(node: Node) -> bytes:
    """Return the metadata of a group without that of nodes below it, which may not be shared."""
    document = json.loads(node.user_data)
    if document.pop("consolidated_metadata", None) is None:
        return node.user_data
    return json.dumps(document).encode()


def _can_become(node: Node, metadata: bytes) -> bool:
    """Return whether an array differs from other metadata in shape and attributes at most."""
    if not isinstance(node, ArrayNode):
        return False
    ours, theirs = (
        {key: value for key, value in json.loads(raw).items() if key not in {"shape", "attributes"}}
        for raw in (node.user_data, metadata)
    )
    return ours == theirs
