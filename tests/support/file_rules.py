"""What must hold of each file of a repository by itself, and of a manifest as an array uses it."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations, pairwise
from typing import Any, Final

import msgpack
from flatbuffers import flexbuffers

from tests.support.oracle import UNIONS, Record, UnreadableError, id_bytes, id_text, remembered

INITIAL: Final = bytes.fromhex("0b1cc8d6787580f0e33a6534")
_NO_PARENT: Final = -1

type Box = tuple[tuple[int, int], ...]
type Coordinate = tuple[int, ...]
type Target = tuple[Any, ...]
"""Kind of a reference, and where its bytes are."""


def is_ascending(items: Iterable[Any]) -> bool:
    return all(one < other for one, other in pairwise(items))


def _names(items: Iterable[Record] | None) -> list[bytes]:
    return [item.name.encode() for item in items or ()]


# -- refs of spec 1 ------------------------------------------------------------------------


def decode_ref(data: bytes) -> bytes:
    """Return the snapshot that a `ref.json` names."""
    try:
        document = json.loads(data)
    except ValueError as failure:
        raise UnreadableError(str(failure)) from failure
    match document:
        case {"snapshot": str(text), **others} if not others:
            return id_bytes(text)
    raise UnreadableError("it does not hold a snapshot, and nothing else")


# -- the repo object -----------------------------------------------------------------------


@remembered
def repo_problems(repo: Record) -> tuple[str, ...]:
    """Find what is wrong within a repo object."""
    return (
        *backup_problems(repo),
        *_root_problems(repo),
        *_setting_problems(repo),
        *_newest_problems(repo),
    )


@remembered
def backup_problems(repo: Record) -> tuple[str, ...]:
    """Find what is wrong within the backup of a repo object, which may show a broken history."""
    is_spec_2 = repo.spec == repo.spec_version == 2
    return (
        *(() if is_spec_2 else ("its spec version is not 2",)),
        *_table_problems(repo),
        *_ref_problems(repo),
        *(() if repo.latest_updates else ("its log of operations is empty",)),
    )


def _table_problems(repo: Record) -> Iterator[str]:
    if not is_ascending(entry.id for entry in repo.snapshots):
        yield "its snapshots are not in order"
    for entry in repo.snapshots:
        if not _NO_PARENT <= entry.parent_offset < len(repo.snapshots):
            yield f"the parent of {id_text(entry.id)} is not in the list"
    for items in (repo.metadata, *(entry.metadata for entry in repo.snapshots)):
        if len({*_names(items)}) != len(items or ()):
            yield "two metadata items have the same name"


def _root_problems(repo: Record) -> Iterator[str]:
    roots = [entry.id for entry in repo.snapshots if entry.parent_offset == _NO_PARENT]
    if roots != [INITIAL]:
        yield "the initial snapshot is not the only one without a parent"


def _ref_problems(repo: Record) -> Iterator[str]:
    for kind in ("branches", "tags"):
        refs = getattr(repo, kind)
        if not is_ascending(_names(refs)):
            yield f"its {kind} are not in order"
        for ref in refs:
            if ref.snapshot_index >= len(repo.snapshots):
                yield f"{ref.name!r} of {kind} names no snapshot"
    if b"main" not in _names(repo.branches):
        yield "there is no branch main"
    deleted = [name.encode() for name in repo.deleted_tags]
    if not is_ascending(deleted):
        yield "its deleted tags are not in order"
    for name in sorted({*deleted} & {*_names(repo.tags)}):
        yield f"the deleted tag {name!r} is back"


def _setting_problems(repo: Record) -> Iterator[str]:
    enabled, disabled = repo.enabled_feature_flags or (), repo.disabled_feature_flags or ()
    if not (is_ascending(enabled) and is_ascending(disabled)) or {*enabled} & {*disabled}:
        yield "its feature flags are not in order, or both enabled and disabled"
    if not is_ascending(_names(repo.metadata)):
        yield "its metadata is not in order"
    if repo.config is not None and not isinstance(_flexbuffer(repo.config), dict):
        yield "its configuration is not a map"
    if any(_flexbuffer(item.value) is _NOT_A_VALUE for item in repo.metadata or ()):
        yield "its metadata cannot be read"


_NOT_A_VALUE: Final = object()


def _flexbuffer(data: bytes) -> Any:
    try:
        return flexbuffers.Loads(data)
    except Exception:  # noqa: BLE001  (the library raises whatever it stumbles over)
        return _NOT_A_VALUE


def _message_pack(data: bytes) -> Any:
    try:
        return msgpack.unpackb(data)
    except Exception:  # noqa: BLE001  (the library raises whatever it stumbles over)
        return _NOT_A_VALUE


def _newest_problems(repo: Record) -> Iterator[str]:
    """Check that the newest operation tells of the state that it led to."""
    if not repo.latest_updates:
        return
    newest = repo.latest_updates[0]
    ids = [entry.id for entry in repo.snapshots]
    tips = {ref.name: ids[ref.snapshot_index : ref.snapshot_index + 1] for ref in repo.branches}
    tags = {ref.name for ref in repo.tags}
    change, kind = newest.update_type, _kind(newest)
    holds: dict[str, Callable[[], bool]] = {
        "TagCreated": lambda: change.name in tags,
        "TagDeleted": lambda: change.name in repo.deleted_tags,
        "BranchCreated": lambda: change.name in tips,
        "BranchDeleted": lambda: change.name not in tips,
        "BranchReset": lambda: change.name in tips,
        "NewCommit": lambda: tips.get(change.name) == [change.new_snap_id],
        "CommitAmended": lambda: tips.get(change.name) == [change.new_snap_id],
        "NewDetachedSnapshot": lambda: change.new_snap_id in ids,
    }
    if kind in holds and not holds[kind]():
        yield f"its newest operation, {kind}, is not what it shows"


def _kind(update: Record) -> str:
    return str(UNIONS["UpdateType"][update.update_type_type])


@remembered
def operation_problems(repo: Record) -> tuple[str, ...]:
    """Find what is wrong with the operations that a repo object lists."""
    return tuple(_operation_problems(repo.latest_updates))


def _operation_problems(updates: Sequence[Record]) -> Iterator[str]:
    if not is_ascending(update.updated_at for update in reversed(updates)):
        yield "its operations are not newest first"
    if updates and updates[0].backup_path is not None:
        yield "its newest operation has a backup already"
    migrations = [one.updated_at for one in updates if _kind(one) == "RepoMigrated"]
    for update in updates[1:]:
        if update.backup_path is None and update.updated_at >= max(migrations, default=0):
            yield f"its operation at {update.updated_at} has no backup"


def is_same_operation(one: Record, other: Record) -> bool:
    """Compare two entries of the log of operations, but for the backups they name."""
    first, second = ((_kind(e), e.updated_at, repr(e.update_type)) for e in (one, other))
    return first == second


def entry_problems(entry: Record, snapshot: Record) -> Iterator[str]:
    """Compare what the repo object repeats of a snapshot with the snapshot."""
    if (entry.flushed_at, entry.message) != (snapshot.flushed_at, snapshot.message):
        yield "its time or message is not that of the file"
    copied = {item.name: item.value for item in entry.metadata or ()}
    stored = {item.name: item.value for item in snapshot.metadata}
    if snapshot.spec == 2 and copied == stored:
        return
    load = _message_pack if snapshot.spec == 1 else _flexbuffer
    if {name: _flexbuffer(value) for name, value in copied.items()} != {
        name: load(value) for name, value in stored.items()
    }:
        yield "its metadata is not that of the file"


# -- snapshots -----------------------------------------------------------------------------


def listed_manifests(snapshot: Record) -> list[tuple[bytes, int, int]]:
    """Return id, size and number of references of the manifests that a snapshot lists."""
    if snapshot.manifest_files_v2 is None:
        return list(snapshot.manifest_files)
    return [(one.id, one.size_bytes, one.num_chunk_refs) for one in snapshot.manifest_files_v2]


def is_array(node: Record) -> bool:
    return bool(node.node_data_type == 1)


def manifest_refs(node: Record) -> list[Record]:
    return list(node.node_data.manifests) if is_array(node) else []


def grid_of(node: Record) -> tuple[int, ...]:
    """Return the number of chunks along each dimension."""
    return tuple(count for _, count in _shape(node))


def _shape(node: Record) -> list[tuple[int, int]]:
    data = node.node_data
    if data.shape_v2 is not None:
        return [(one.array_length, one.num_chunks) for one in data.shape_v2]
    return [(length, -(-length // chunk) if chunk else 0) for length, chunk in data.shape]


@remembered
def snapshot_problems(snapshot: Record) -> tuple[str, ...]:
    """Find what is wrong within a snapshot."""
    nodes = [f"{node.path}: {text}" for node in snapshot.nodes for text in _node_problems(node)]
    return (*_snapshot_problems(snapshot), *nodes)


def _snapshot_problems(snapshot: Record) -> Iterator[str]:
    if not is_ascending(node.path.encode() for node in snapshot.nodes):
        yield "its nodes are not in order, or two have the same path"
    if len({node.id for node in snapshot.nodes}) != len(snapshot.nodes):
        yield "two of its nodes have the same id"
    if snapshot.id == INITIAL and (snapshot.nodes or snapshot.parent_id):
        yield "it is the initial snapshot, and not empty"
    listed = [raw for raw, _, _ in listed_manifests(snapshot)]
    if not is_ascending(listed):
        yield "its manifests are not listed in order"
    used = {ref.object_id for node in snapshot.nodes for ref in manifest_refs(node)}
    if used != {*listed}:
        yield "the manifests it lists are not those that its arrays use"
    if not is_ascending(_names(snapshot.metadata)):
        yield "its metadata is not in order"
    load = _message_pack if snapshot.spec == 1 else _flexbuffer
    if any(load(item.value) is _NOT_A_VALUE for item in snapshot.metadata):
        yield "its metadata cannot be read"


def _node_problems(node: Record) -> Iterator[str]:
    root, *segments = node.path.split("/")
    if node.path != "/" and (root or not segments or {"", ".", ".."} & {*segments}):
        yield "its path is not absolute"
    try:
        document = json.loads(node.user_data)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        yield "its metadata is not a JSON object"
    elif document.get("node_type") != ("array" if is_array(node) else "group"):
        yield "its metadata is that of another kind of node"
    elif is_array(node):
        yield from _array_problems(node, document)


def _array_problems(node: Record, document: Mapping[str, Any]) -> Iterator[str]:
    if document.get("shape") != [length for length, _ in _shape(node)]:
        yield "its shape is not that of its metadata"
    counts = _chunk_counts(document)
    if counts is not None and counts != grid_of(node):
        yield "its number of chunks is not that of its metadata"
    for one, other in combinations(node.node_data.manifests, 2):
        if _meet(one.extents, other.extents):
            yield "the extents of two of its manifests overlap"


def _chunk_counts(document: Mapping[str, Any]) -> tuple[int, ...] | None:
    """Return the number of chunks of each dimension; None if the grid is of no known kind."""
    match document:
        case {
            "shape": list(shape),
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(chunks)}},
        }:
            pairs = zip(shape, chunks, strict=False)
            return tuple(-(-length // chunk) if chunk else 0 for length, chunk in pairs)
        case {"chunk_grid": {"name": "rectilinear", "configuration": {"chunk_shapes": runs}}}:
            sizes = [[run if isinstance(run, list) else [run, 1] for run in one] for one in runs]
            return tuple(sum(count for _, count in one) for one in sizes)
    return None


def _meet(one: Box, other: Box) -> bool:
    # Extents without dimensions contain everything.
    return all(a < d and c < b for (a, b), (c, d) in zip(one, other, strict=False))


# -- manifests -----------------------------------------------------------------------------


@remembered
def references(manifest: Record) -> dict[bytes, list[tuple[Coordinate, Target]]]:
    """Return the references of each array: native, virtual or inline, as the format decides."""
    return {
        array.node_id: [(ref.index, _target(ref)) for ref in array.refs]
        for array in manifest.arrays
    }


def _target(ref: Record) -> Target:
    if ref.chunk_id is not None:
        return "native", ref.chunk_id, ref.offset, ref.length
    if ref.location is not None:
        checksum = (ref.checksum_etag, ref.checksum_last_modified)
        return "virtual", ref.location, ref.offset, ref.length, checksum
    return "inline", ref.inline


@remembered
def use_problems(
    manifest: Record, node_id: bytes, grid: tuple[int, ...], extents: Box
) -> tuple[str, ...]:
    """Find what is wrong with a manifest as an array uses it."""
    refs = references(manifest).get(node_id, [])
    bounds: list[str] = []
    if {len(index) for index, _ in refs} == {len(grid)}:
        bounds = [*_bound_problems([index for index, _ in refs], grid, extents)]
    elif refs:
        bounds = ["its references have other dimensions than the array"]
    problems = (
        *(() if refs else ("it has no references of the array",)),
        *_order_problems(manifest, refs),
        *bounds,
        *_target_problems({target for _, target in refs}),
    )
    return tuple(f"manifest {id_text(manifest.id)}: {problem}" for problem in problems)


def _order_problems(manifest: Record, refs: Sequence[tuple[Coordinate, Target]]) -> Iterator[str]:
    if not is_ascending(array.node_id for array in manifest.arrays):
        yield "its arrays are not in order"
    if not is_ascending(index for index, _ in refs):
        yield "its references are not in order"


def _bound_problems(
    indices: Sequence[Coordinate], grid: tuple[int, ...], extents: Box
) -> Iterator[str]:
    bounds = tuple((min(along), max(along) + 1) for along in zip(*indices, strict=True))
    if bounds != extents:
        yield f"its references span {bounds}, its extents are {extents}"
    if any(last > count for (_, last), count in zip(bounds, grid, strict=True)):
        yield "it has references outside of the grid"


def _target_problems(targets: Iterable[Target]) -> Iterator[str]:
    for kind, where, *rest in targets:
        if kind == "inline":
            if not where:
                yield "it has an inline chunk without bytes"
        elif not rest[1]:
            yield "it has a reference of no length"
        elif kind == "virtual" and not _is_location(where):
            yield f"it has a virtual chunk at {where!r}, which is not a URL"


def _is_location(location: str) -> bool:
    scheme, separator, rest = location.partition("://")
    host, _, path = rest.partition("/")
    return bool(scheme and separator and path and (host or scheme == "file"))


@remembered
def native_needs(manifest: Record, node_id: bytes) -> tuple[tuple[bytes, int], ...]:
    """Return the chunk objects of an array, and how far references reach into them."""
    ends: dict[bytes, int] = {}
    for _, target in references(manifest).get(node_id, ()):
        if target[0] == "native":
            _, chunk, offset, length = target
            ends[chunk] = max(ends.get(chunk, 0), offset + length)
    return tuple(ends.items())
