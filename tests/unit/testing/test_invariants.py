"""The checker accepts sound repositories and finds each way to break one."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from icefloe.effects import run_blocking
from icefloe.format.chunk_table import ChunkTable
from icefloe.format.columns import BytesColumn
from icefloe.format.ids import INITIAL_SNAPSHOT_ID, ChunkId, ManifestId, NodeId, SnapshotId, id_rows
from icefloe.format.layout import (
    REPO_KEY,
    backup_key,
    branch_key,
    chunk_key,
    manifest_key,
    snapshot_key,
    tag_key,
    tag_tombstone_key,
    transaction_log_key,
)
from icefloe.format.nodes import ArrayNode, ManifestRef, Node
from icefloe.format.snapshot import ManifestFiles
from icefloe.format.transaction_log import Move
from icefloe.records import replace
from icefloe.storage.local import LocalBackend
from icefloe.storage.memory import MemoryBackend
from icefloe.testing.invariants import (
    BrokenRepositoryError,
    InvariantChecker,
    check_repository,
    check_repository_blocking,
)
from tests.golden.files import GOLDEN, expected
from tests.unit.testing.small_repository import (
    ARRAY,
    BACKUPS,
    CHUNK,
    CHUNK_BYTES,
    FIRST,
    GROUP,
    INLINE,
    NATIVE,
    SECOND,
    SmallRepository,
    coordinates,
)


def backend_with(files: dict[str, bytes]) -> MemoryBackend:
    backend = MemoryBackend()
    for key, data in files.items():
        run_blocking(backend.put(key, data))
    return backend


def violations(files: dict[str, bytes]) -> list[str]:
    try:
        check_repository_blocking(backend_with(files))
    except BrokenRepositoryError as broken:
        return list(broken.violations)
    return []


def golden_files(name: str) -> dict[str, bytes]:
    root = GOLDEN / name
    files = (path for path in root.rglob("*") if path.is_file())
    return {str(path.relative_to(root)): path.read_bytes() for path in files}


@pytest.mark.parametrize("name", sorted(expected()))
def test_what_the_reference_wrote_is_sound(name: str) -> None:
    check_repository_blocking(LocalBackend(str(GOLDEN / name)))


def test_the_small_repository_is_sound() -> None:
    assert violations(SmallRepository().files) == []


def test_no_repository_at_all_is_a_violation() -> None:
    assert violations({}) == ["there is no branch main"]


def with_array(node: Node, **fields: object) -> Node:
    assert isinstance(node, ArrayNode)
    return replace(node, array=replace(node.array, **fields))


def nodes(*ids: NodeId) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    return id_rows(NodeId, ids)


def stop_the_clock(repository: SmallRepository) -> None:
    repository.change_snapshot(SECOND, lambda s: replace(s, flushed_at=20))
    repository.change_entry(SECOND, flushed_at=20)


type Break = Callable[[SmallRepository], object]

UNKNOWN = NodeId(b"unknown!")
WITH_GRID = (
    b'{"node_type":"array","shape":[60],'
    b'"chunk_grid":{"name":"regular","configuration":{"chunk_shape":[10]}}}'
)
INLINE_REF, NATIVE_REF = ManifestRef(INLINE, ((0, 3),)), ManifestRef(NATIVE, ((3, 5),))

BROKEN: dict[str, tuple[Break, str]] = {
    # Every file that can be reached exists and can be read.
    "no snapshot": (
        lambda r: r.files.pop(snapshot_key(FIRST)),
        f"snapshots/{FIRST} does not exist",
    ),
    "no manifest": (lambda r: r.files.pop(manifest_key(INLINE)), f"manifests/{INLINE} does not"),
    "no chunk": (lambda r: r.files.pop(chunk_key(CHUNK)), f"chunks/{CHUNK} does not exist"),
    "no log": (lambda r: r.files.pop(transaction_log_key(SECOND)), f"transactions/{SECOND} does"),
    "no first log": (
        lambda r: r.files.pop(transaction_log_key(INITIAL_SNAPSHOT_ID)),
        f"transactions/{INITIAL_SNAPSHOT_ID} does not exist",
    ),
    "torn repo": (lambda r: r.files.update({REPO_KEY: b"ICE"}), "repo cannot be read"),
    "torn snapshot": (
        lambda r: r.files.update({snapshot_key(SECOND): r.files[snapshot_key(SECOND)][:-3]}),
        f"snapshots/{SECOND} cannot be read",
    ),
    "torn manifest": (
        lambda r: r.files.update({manifest_key(NATIVE): r.files[manifest_key(NATIVE)][:50]}),
        f"manifests/{NATIVE} cannot be read",
    ),
    # The id inside is the name.
    "other snapshot": (
        lambda r: r.change_snapshot(SECOND, lambda s: replace(s, id=SnapshotId(b"somebody els"))),
        f"snapshots/{SECOND} holds the id",
    ),
    "other manifest": (
        lambda r: r.files.update({manifest_key(INLINE): r.files[manifest_key(NATIVE)]}),
        f"manifests/{INLINE} holds the id {NATIVE}",
    ),
    "other log": (
        lambda r: r.change_log(SECOND, id=FIRST),
        f"transactions/{SECOND} holds the id {FIRST}",
    ),
    # Histories.
    "history without end": (
        lambda r: r.change_entry(FIRST, parent=None),
        f"the history of {SECOND} ends in {FIRST}",
    ),
    "circle": (
        lambda r: r.change_entry(FIRST, parent=SECOND),
        f"the history of {SECOND} runs in a circle",
    ),
    "time stands still": (
        stop_the_clock,
        f"snapshot {SECOND} is not later than its parent {FIRST}",
    ),
    "other time in the repo object": (
        lambda r: r.change_entry(SECOND, flushed_at=31),
        f"flushed_at 31 of {SECOND}, its file 30",
    ),
    "other message": (
        lambda r: r.change_entry(SECOND, message="x"),
        f"the repo object says message 'x' of {SECOND}",
    ),
    "other metadata": (
        lambda r: r.change_entry(FIRST, metadata={"n": 2}),
        f"the repo object says metadata {{'n': 2}} of {FIRST}",
    ),
    "no log of a released ancestor": (
        lambda r: r.change_entry(SECOND, pruned_ancestors=(SnapshotId(b"released one"),)),
        "does not exist, but snapshot",
    ),
    # Manifests: listed just when used, exact, tight, disjoint.
    "not listed": (
        lambda r: r.change_snapshot(SECOND, lambda s: replace(s, files=r.listed(INLINE))),
        f"an array uses the manifest {NATIVE}, which is not in the list",
    ),
    "listed for nothing": (
        lambda r: r.change_snapshot(FIRST, lambda s: replace(s, files=r.listed(INLINE, NATIVE))),
        f"it lists the manifest {NATIVE}, which no array uses",
    ),
    "inexact size": (
        lambda r: r.change_snapshot(
            FIRST,
            lambda s: replace(s, files=ManifestFiles.from_list([(INLINE, 1, 2)])),
        ),
        "bytes, the list says 1",
    ),
    "inexact count": (
        lambda r: r.change_snapshot(
            FIRST,
            lambda s: replace(
                s, files=replace(s.manifests, num_chunk_refs=np.array([3], np.uint32))
            ),
        ),
        "has 2 references, the list says 3",
    ),
    "wide extents": (
        lambda r: r.change_array(
            FIRST, lambda n: with_array(n, manifests=(ManifestRef(INLINE, ((0, 4),)),))
        ),
        "covers ((0, 3),), its extents say ((0, 4),)",
    ),
    "overlap": (
        lambda r: r.change_array(
            SECOND,
            lambda n: with_array(n, manifests=(ManifestRef(INLINE, ((0, 4),)), NATIVE_REF)),
        ),
        f"{INLINE} and {NATIVE} overlap",
    ),
    "nothing inside": (
        lambda r: r.put_manifest(
            INLINE, {UNKNOWN: ChunkTable.inlined(coordinates((0,)), BytesColumn.from_list([b"x"]))}
        ),
        f"the manifest {INLINE} holds nothing of it",
    ),
    "outside of the grid": (
        lambda r: r.change_array(SECOND, lambda n: with_array(n, num_chunks=(4,))),
        f"{NATIVE} has chunks outside of the grid",
    ),
    "other dimensions": (
        lambda r: r.put_manifest(
            INLINE, {ARRAY: ChunkTable.inlined(coordinates((0, 0)), BytesColumn.from_list([b"x"]))}
        ),
        f"{INLINE} has coordinates of 2 dimensions",
    ),
    "unsorted": (
        lambda r: r.change_table(
            NATIVE, lambda t: replace(t, coordinates=np.ascontiguousarray(t.coordinates[::-1]))
        ),
        "not sorted by their coordinates",
    ),
    # Chunks.
    "short chunk": (
        lambda r: r.files.update({chunk_key(CHUNK): bytes(CHUNK_BYTES - 1)}),
        f"needs {CHUNK_BYTES} bytes of chunks/{CHUNK}, which has {CHUNK_BYTES - 1}",
    ),
    "chunk of no length": (
        lambda r: r.change_table(NATIVE, lambda t: replace(t, lengths=t.lengths * np.uint64(0))),
        "refers to chunks of no length",
    ),
    # Nodes.
    "relative path": (
        lambda r: r.change_array(SECOND, lambda n: replace(n, path="a")),
        "'a' is not an absolute path",
    ),
    "same id twice": (
        lambda r: r.change_array(SECOND, lambda n: replace(n, id=GROUP)),
        f"2 nodes have the id {GROUP}",
    ),
    "no JSON": (
        lambda r: r.change_array(SECOND, lambda n: replace(n, user_data=b"{")),
        "the metadata of /a is not JSON",
    ),
    "other kind": (
        lambda r: r.change_array(SECOND, lambda n: replace(n, user_data=b'{"node_type":"group"}')),
        "/a is stored as array, its metadata group",
    ),
    "other shape": (
        lambda r: r.change_array(SECOND, lambda n: with_array(n, shape=(59,))),
        "/a has the shape (59,), its metadata say (60,)",
    ),
    "other number of chunks": (
        lambda r: r.change_array(
            SECOND, lambda n: with_array(replace(n, user_data=WITH_GRID), num_chunks=(7,))
        ),
        "/a has (7,) chunks, its metadata say (6,)",
    ),
    # Logs tell nothing wrong ...
    "new but old": (
        lambda r: r.change_log(SECOND, new_arrays=nodes(ARRAY)),
        f"log of {SECOND} names as new a node that its parent has: {ARRAY}",
    ),
    "new but nowhere": (
        lambda r: r.change_log(FIRST, new_groups=nodes(GROUP, UNKNOWN)),
        f"names as new a node that the snapshot lacks: {UNKNOWN}",
    ),
    "deleted but there": (
        lambda r: r.change_log(SECOND, deleted_groups=nodes(GROUP)),
        f"names as deleted a node that the snapshot has: {GROUP}",
    ),
    "updated but nowhere": (
        lambda r: r.change_log(SECOND, updated_arrays=nodes(ARRAY, UNKNOWN)),
        f"names as updated a node that the snapshot lacks: {UNKNOWN}",
    ),
    "chunks of nobody": (
        lambda r: r.change_log(
            SECOND, updated_chunks={ARRAY: coordinates((3,), (4,)), UNKNOWN: coordinates((0,))}
        ),
        f"names chunks of a node that the snapshot lacks: {UNKNOWN}",
    ),
    "chunks of a group": (
        lambda r: r.change_log(
            SECOND, updated_chunks={ARRAY: coordinates((3,), (4,)), GROUP: coordinates((0,))}
        ),
        "names chunks of the group /",
    ),
    "chunks in other dimensions": (
        lambda r: r.change_log(FIRST, updated_chunks={ARRAY: coordinates((0, 0))}),
        "names chunks of /a in 2 dimensions",
    ),
    "group among arrays": (
        lambda r: r.change_log(FIRST, new_arrays=nodes(ARRAY, GROUP), new_groups=nodes()),
        "/ in new_arrays",
    ),
    "array among groups": (
        lambda r: r.change_log(SECOND, updated_arrays=nodes(), updated_groups=nodes(ARRAY)),
        "/a in updated_groups",
    ),
    "move to nowhere": (
        lambda r: r.change_log(SECOND, moves=(Move("/a", "/b", ARRAY, is_array=True),)),
        "tells of a move to /b, where the node is not",
    ),
    # ... and leave nothing out.
    "new unnamed": (
        lambda r: r.change_log(FIRST, new_groups=nodes()),
        f"log of {FIRST} does not name the new node /",
    ),
    "deleted unnamed": (
        lambda r: r.change_snapshot(
            SECOND, lambda s: replace(s, contents=s.nodes.take(np.array([1])))
        ),
        f"log of {SECOND} does not name the deleted node {GROUP}",
    ),
    "metadata unnamed": (
        lambda r: r.change_log(SECOND, updated_arrays=nodes()),
        "the metadata of /a changed, which it does not say",
    ),
    "chunks unnamed": (
        lambda r: r.change_log(SECOND, updated_chunks={ARRAY: coordinates((3,))}),
        "does not name all chunks of /a that changed",
    ),
    "chunks of a new array unnamed": (
        lambda r: r.change_log(FIRST, updated_chunks={ARRAY: coordinates((2,))}),
        f"log of {FIRST} does not name all chunks of /a that changed",
    ),
    "move untold": (
        lambda r: r.change_array(SECOND, lambda n: replace(n, path="/b")),
        "does not tell the move of /a to /b",
    ),
    # Operations.
    "not newest first": (
        lambda r: r.change_updates(lambda u: [replace(u[0], updated_at=20), u[1]]),
        "the operations in repo are not newest first",
    ),
    "newest has a backup": (
        lambda r: r.change_updates(lambda u: [replace(u[0], backup_path=BACKUPS[0]), u[1]]),
        "the newest operation in repo has a backup already",
    ),
    "older has none": (
        lambda r: r.change_updates(lambda u: [u[0], replace(u[1], backup_path=None)]),
        "the operation NEW_COMMIT in repo at 20 has no backup",
    ),
    "no backup": (
        lambda r: r.files.pop(backup_key(BACKUPS[0])),
        f"overwritten/{BACKUPS[0]} does not exist",
    ),
    "no older backup": (
        lambda r: r.files.pop(backup_key(BACKUPS[1])),
        f"overwritten/{BACKUPS[1]} does not exist",
    ),
    "another's backup": (
        lambda r: r.change_updates(lambda u: [u[0], replace(u[1], backup_path=BACKUPS[1])]),
        f"{BACKUPS[1]} is not the backup of NEW_COMMIT at 20",
    ),
    "backup of another commit": (
        lambda r: r.change_updates(lambda u: [u[0], replace(u[1], new=SECOND)]),
        f"{BACKUPS[0]} is not the backup of NEW_COMMIT at 20",
    ),
    "newest operation is not what happened": (
        lambda r: r.change_updates(lambda u: [replace(u[0], new=FIRST), u[1]]),
        "the newest operation in repo is NEW_COMMIT, but the repository is not as",
    ),
    "log in a circle": (
        lambda r: r.change_repo(
            lambda repo: replace(repo, repo_before_updates=BACKUPS[1]), backup_key(BACKUPS[1])
        ),
        f"the log of operations comes back to {BACKUPS[1]}",
    ),
    "older log is younger": (
        lambda r: r.change_updates(
            lambda u: [replace(u[0], updated_at=25)], backup_key(BACKUPS[1])
        ),
        f"{BACKUPS[1]} is not older than what it backs",
    ),
    "deleted tag is back": (
        lambda r: r.change_repo(
            lambda repo: replace(repo, tags={"v1": FIRST}, deleted_tags=("v1",))
        ),
        "the tag 'v1' exists in repo, but is among the deleted tags too",
    ),
    "flag both ways": (
        lambda r: r.change_repo(
            lambda repo: replace(repo, enabled_flags=(3, 4), disabled_flags=(4,))
        ),
        "the feature flags in repo are not sorted, or a flag is both enabled and disabled",
    ),
    "torn configuration": (
        lambda r: r.change_repo(lambda repo: replace(repo, config=b"\xff")),
        "the configuration in repo cannot be read",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_each_break_is_found(name: str) -> None:
    damage, expected_text = BROKEN[name]
    repository = SmallRepository()
    damage(repository)
    found = violations(repository.files)
    assert any(expected_text in violation for violation in found), found


V1_BROKEN: dict[str, tuple[Callable[[dict[str, bytes]], object], str]] = {
    "no main": (lambda f: f.pop(branch_key("main")), "there is no branch main"),
    "branch to nowhere": (
        lambda f: f.update({branch_key("x"): b'{"snapshot":"000G40R40M30E209185G"}'}),
        "but branch 'x' needs it",
    ),
    "tag to nowhere": (
        lambda f: f.update({tag_key("x"): b'{"snapshot":"000G40R40M30E209185G"}'}),
        "but tag 'x' needs it",
    ),
    "ref without snapshot": (lambda f: f.update({branch_key("x"): b"{}"}), "something else than"),
    "ref without JSON": (lambda f: f.update({branch_key("x"): b"{"}), "a ref is not JSON"),
    "ref without id": (lambda f: f.update({tag_key("x"): b'{"snapshot":"?"}'}), "not an id"),
    "stray file": (lambda f: f.update({"refs/other": b""}), "not the file of a branch or tag"),
    "filled tombstone": (
        lambda f: f.update({tag_tombstone_key("gone"): b"x"}),
        "ref.json.deleted is not empty",
    ),
    "tombstone of nothing": (
        lambda f: f.update({tag_tombstone_key("never"): b""}),
        "ref.json.deleted deletes nothing",
    ),
    "torn configuration": (lambda f: f.update({"config.yaml": b"["}), "config.yaml cannot be read"),
}


@pytest.mark.parametrize("name", V1_BROKEN)
def test_each_break_of_spec_1_is_found(name: str) -> None:
    damage, expected_text = V1_BROKEN[name]
    files = golden_files("v1-basic")
    damage(files)
    found = violations(files)
    assert any(expected_text in violation for violation in found), found


def test_a_deleted_tag_may_point_anywhere() -> None:
    files = golden_files("v1-basic")
    files[tag_key("lost")] = b'{"snapshot":"000G40R40M30E209185G"}'
    files[tag_tombstone_key("lost")] = b""
    assert violations(files) == []


@pytest.mark.parametrize(
    "key", [snapshot_key(FIRST), manifest_key(INLINE), chunk_key(CHUNK), backup_key(BACKUPS[1])]
)
def test_a_file_that_changes_is_found_by_the_next_check(key: str) -> None:
    repository = SmallRepository()
    backend = backend_with(repository.files)
    checker = InvariantChecker()
    checker.check_blocking(backend)
    run_blocking(backend.put(key, repository.files[key] + b"\0"))
    with pytest.raises(BrokenRepositoryError, match=f"{key} has changed since it was written"):
        checker.check_blocking(backend)


def test_files_may_go_away_once_nothing_needs_them() -> None:
    repository = SmallRepository()
    orphan = chunk_key(ChunkId(b"orphan chunk"))
    repository.files[orphan] = b"x"
    backend = backend_with(repository.files)
    checker = InvariantChecker()
    checker.check_blocking(backend)
    run_blocking(backend.delete_many([orphan]))
    checker.check_blocking(backend)


def test_all_violations_are_listed() -> None:
    repository = SmallRepository()
    del repository.files[chunk_key(CHUNK)]
    del repository.files[transaction_log_key(FIRST)]
    with pytest.raises(BrokenRepositoryError) as caught:
        run_blocking(check_repository(backend_with(repository.files)))
    assert len(caught.value.violations) == 2
    assert str(CHUNK) in str(caught.value)
    assert str(FIRST) in str(caught.value)


def test_manifests_of_other_snapshots_do_not_matter(tmp_path: Path) -> None:
    files = SmallRepository().files
    stray = tmp_path / manifest_key(ManifestId(b"stray manife"))
    for key, data in files.items():
        (tmp_path / key).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / key).write_bytes(data)
    stray.write_bytes(b"not even a manifest")
    check_repository_blocking(LocalBackend(str(tmp_path)))
