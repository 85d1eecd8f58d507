"""Verification finds every way to break a repository, and says what is affected."""

import asyncio
import os
import random
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

import icefloe
from icefloe.effects import run_blocking
from icefloe.errors import RepositoryNotFoundError, StorageError
from icefloe.format.ids import INITIAL_SNAPSHOT_ID, SnapshotId
from icefloe.format.layout import (
    BACKUPS_PREFIX,
    CHUNKS_PREFIX,
    REFS_PREFIX,
    REPO_KEY,
    branch_key,
    chunk_key,
)
from icefloe.format.nodes import ArrayNode
from icefloe.maintenance.verify.findings import DamageKind, Harm, boxes_of, joined_boxes
from icefloe.maintenance.verify.report import VerificationReport
from icefloe.maintenance.verify.run import VerificationRules, verify
from icefloe.storage import Backend
from icefloe.storage.local import LocalBackend
from icefloe.storage.memory import MemoryBackend
from icefloe.testing.faulty import FaultyBackend
from tests.golden.files import GOLDEN, expected
from tests.support.http_server import file_server
from tests.unit.testing.small_repository import (
    CHUNK,
    FIRST,
    SECOND,
    SmallRepository,
)
from tests.unit.testing.test_invariants import BROKEN, V1_BROKEN, backend_with, golden_files

pytestmark = pytest.mark.slow

K = DamageKind
type Part = tuple[str, tuple[tuple[tuple[int, int], ...], ...]]
WHOLE: Part = ("/a", ())
INLINE_PART: Part = ("/a", (((0, 3),),))
NATIVE_PART: Part = ("/a", (((3, 5),),))
BOTH, ONLY_FIRST, ONLY_SECOND = (SECOND, FIRST), (FIRST,), (SECOND,)

EXPECTED: dict[str, tuple[DamageKind, tuple[SnapshotId, ...], list[Part]]] = {
    "no snapshot": (K.NO_SNAPSHOT, ONLY_FIRST, []),
    "no manifest": (K.NO_MANIFEST, BOTH, [INLINE_PART]),
    "no chunk": (K.NO_CHUNK, ONLY_SECOND, [NATIVE_PART]),
    "no log": (K.NO_LOG, ONLY_SECOND, []),
    "no first log": (K.NO_LOG, (INITIAL_SNAPSHOT_ID,), []),
    "torn repo": (K.BAD_REPO_OBJECT, (), []),
    "torn snapshot": (K.BAD_SNAPSHOT, ONLY_SECOND, []),
    "torn manifest": (K.BAD_MANIFEST, ONLY_SECOND, [NATIVE_PART]),
    "other snapshot": (K.BAD_SNAPSHOT, ONLY_SECOND, []),
    "other manifest": (K.BAD_MANIFEST, BOTH, [INLINE_PART]),
    "other log": (K.BAD_LOG, ONLY_SECOND, []),
    "history without end": (K.BAD_HISTORY, BOTH, []),
    "circle": (K.BAD_HISTORY, BOTH, []),
    "time stands still": (K.BAD_HISTORY, ONLY_SECOND, []),
    "other time in the repo object": (K.BAD_ENTRY, ONLY_SECOND, []),
    "other message": (K.BAD_ENTRY, ONLY_SECOND, []),
    "other metadata": (K.BAD_ENTRY, ONLY_FIRST, []),
    "no log of a released ancestor": (K.NO_LOG, ONLY_SECOND, []),
    "not listed": (K.BAD_MANIFEST_LIST, ONLY_SECOND, [NATIVE_PART]),
    "listed for nothing": (K.BAD_MANIFEST_LIST, ONLY_FIRST, []),
    "inexact size": (K.BAD_MANIFEST_LIST, ONLY_FIRST, [INLINE_PART]),
    "inexact count": (K.BAD_MANIFEST_LIST, ONLY_FIRST, [INLINE_PART]),
    "wide extents": (K.BAD_EXTENTS, ONLY_FIRST, [INLINE_PART]),
    "overlap": (K.BAD_EXTENTS, ONLY_SECOND, [("/a", (((3, 4),),))]),
    "nothing inside": (K.BAD_MANIFEST, BOTH, [INLINE_PART]),
    "outside of the grid": (K.BAD_EXTENTS, ONLY_SECOND, [NATIVE_PART]),
    "other dimensions": (K.BAD_MANIFEST, BOTH, [INLINE_PART]),
    "unsorted": (K.BAD_MANIFEST, ONLY_SECOND, [NATIVE_PART]),
    "short chunk": (K.SHORT_CHUNK, ONLY_SECOND, [("/a", (((4, 5),),))]),
    "chunk of no length": (K.BAD_MANIFEST, ONLY_SECOND, [NATIVE_PART]),
    "relative path": (K.BAD_NODE, ONLY_SECOND, [("a", ())]),
    "same id twice": (K.BAD_NODE, ONLY_SECOND, []),
    "no JSON": (K.BAD_NODE, ONLY_SECOND, [WHOLE]),
    "other kind": (K.BAD_NODE, ONLY_SECOND, [WHOLE]),
    "other shape": (K.BAD_NODE, ONLY_SECOND, [WHOLE]),
    "other number of chunks": (K.BAD_NODE, ONLY_SECOND, [WHOLE]),
    "new but old": (K.UNTRUE_LOG, ONLY_SECOND, []),
    "new but nowhere": (K.UNTRUE_LOG, ONLY_FIRST, []),
    "deleted but there": (K.UNTRUE_LOG, ONLY_SECOND, []),
    "updated but nowhere": (K.UNTRUE_LOG, ONLY_SECOND, []),
    "chunks of nobody": (K.UNTRUE_LOG, ONLY_SECOND, []),
    "chunks of a group": (K.UNTRUE_LOG, ONLY_SECOND, [("/", ())]),
    "chunks in other dimensions": (K.UNTRUE_LOG, ONLY_FIRST, [WHOLE]),
    "group among arrays": (K.UNTRUE_LOG, ONLY_FIRST, [("/", ())]),
    "array among groups": (K.UNTRUE_LOG, ONLY_SECOND, [WHOLE]),
    "move to nowhere": (K.UNTRUE_LOG, ONLY_SECOND, []),
    "new unnamed": (K.UNTRUE_LOG, ONLY_FIRST, [("/", ())]),
    "deleted unnamed": (K.UNTRUE_LOG, ONLY_SECOND, []),
    "metadata unnamed": (K.UNTRUE_LOG, ONLY_SECOND, [WHOLE]),
    "chunks unnamed": (K.UNTRUE_LOG, ONLY_SECOND, [WHOLE]),
    "chunks of a new array unnamed": (K.UNTRUE_LOG, ONLY_FIRST, [WHOLE]),
    "move untold": (K.UNTRUE_LOG, ONLY_SECOND, [("/b", ())]),
    "not newest first": (K.BAD_OPERATIONS, (), []),
    "newest has a backup": (K.BAD_OPERATIONS, (), []),
    "older has none": (K.BAD_OPERATIONS, (), []),
    "no backup": (K.NO_BACKUP, (), []),
    "no older backup": (K.NO_BACKUP, (), []),
    "another's backup": (K.BAD_OPERATIONS, (), []),
    "backup of another commit": (K.BAD_OPERATIONS, (), []),
    "newest operation is not what happened": (K.BAD_OPERATIONS, (), []),
    "log in a circle": (K.BAD_OPERATIONS, (), []),
    "older log is younger": (K.BAD_OPERATIONS, (), []),
    "deleted tag is back": (K.BAD_REF, (), []),
    "flag both ways": (K.BAD_CONFIG, (), []),
    "torn configuration": (K.BAD_CONFIG, (), []),
}


def verified(source: dict[str, bytes] | Backend, **rules: Any) -> VerificationReport:
    backend = backend_with(source) if isinstance(source, dict) else source
    return run_blocking(verify(backend, VerificationRules(**rules)))


def test_all_breaks_have_an_expectation() -> None:
    assert EXPECTED.keys() == BROKEN.keys()


@pytest.mark.parametrize("name", BROKEN)
def test_each_break_is_told_with_what_it_affects(name: str) -> None:
    break_it, text = BROKEN[name]
    kind, versions, parts = EXPECTED[name]
    repository = SmallRepository()
    break_it(repository)
    outcome = verified(repository.files)
    [damage] = [one for one in outcome.damages if one.kind == kind and text in one.message]
    assert damage.versions == tuple(map(str, versions))
    assert [(one.path, one.region) for one in damage.arrays] == parts
    assert all(one.versions == damage.versions for one in damage.arrays)
    assert damage.keys
    assert damage.remedy
    assert outcome.unchecked == {}


@pytest.mark.parametrize("name", V1_BROKEN)
def test_each_break_of_spec_1_is_told(name: str) -> None:
    break_it, text = V1_BROKEN[name]
    files = golden_files("v1-basic")
    break_it(files)
    assert any(text in damage.message for damage in verified(files).damages)


@pytest.mark.parametrize("name", sorted(expected()))
@pytest.mark.parametrize("deep", [False, True])
def test_what_the_reference_wrote_is_healthy(name: str, deep: bool) -> None:
    backend = LocalBackend(str(GOLDEN / name))
    outcome = verified(backend, deep=deep)
    assert outcome.damages == ()
    assert outcome.checked["snapshots"] > 0
    if outcome.checked["virtual_objects"] == 0:
        assert outcome.unchecked == {}


def test_kinds_that_harm_data_come_first() -> None:
    repository = SmallRepository()
    del repository.files[chunk_key(CHUNK)]
    break_it, _ = BROKEN["no log"]
    break_it(repository)
    assert [one.harms for one in verified(repository.files).damages] == [Harm.DATA, Harm.HISTORY]


# -- real repositories ---------------------------------------------------------------------


@pytest.fixture(params=[1, 2], ids=["spec 1", "spec 2"])
def history(request: pytest.FixtureRequest) -> icefloe.Repository:
    """Several versions of two arrays, with inline and native chunks, branches and tags."""
    repository = icefloe.Repository.create(
        icefloe.in_memory_storage(),
        icefloe.RepositoryConfig(inline_chunk_threshold_bytes=8),
        spec_version=request.param,
    )
    with repository.transaction("main", message="arrays") as store:
        root = zarr.group(store)
        for name in ("a", "g/b"):
            root.create_array(name, shape=(8, 40), chunks=(2, 10), dtype="i4", compressors=None)
        root.create_array("s", shape=(), dtype="i2", compressors=None)[...] = 7
    for number in range(4):
        with repository.transaction("main", message=f"no. {number}") as store:
            zarr.open_array(store, path="a")[2 * number : 2 * number + 2] = number + 1
            zarr.open_array(store, path="g/b")[:2] = number + 1
    repository.create_tag("v1", repository.lookup_branch("main"))
    repository.create_branch("other", repository.lookup_branch("main"))
    with repository.transaction("other", message="smaller") as store:
        zarr.open_array(store, path="a").resize((4, 40))
        zarr.open_group(store)["g/b"].attrs["units"] = "K"
    return repository


def contents(repository: icefloe.Repository) -> dict[str, bytes]:
    backend = repository.storage.open()
    keys = [info.key for info in listed(backend)]
    return {key: bytes(run_blocking(backend.get(key)).data) for key in keys}


def listed(backend: Backend) -> list[Any]:
    async def all_of_it() -> list[Any]:
        return [info async for batch in backend.list() for info in batch]

    return run_blocking(all_of_it())


def needed(files: dict[str, bytes]) -> list[str]:
    """List what some version or the log needs: of a fresh repository that is everything."""
    return sorted(key for key in files if key != "config.yaml")


def is_free_to_go(key: str) -> bool:
    """Say whether an object may be gone because somebody deleted a branch or tag of spec 1."""
    return key.startswith(REFS_PREFIX) and key != branch_key("main")


def test_a_history_is_healthy(history: icefloe.Repository) -> None:
    report = history.verify(deep=True)
    assert report.is_healthy, report
    assert report.checked["snapshots"] == 7
    assert report.checked["references"] > 30
    assert report.checked["chunk_objects"] == sum(
        key.startswith(CHUNKS_PREFIX) for key in contents(history)
    )


@pytest.mark.slow
def test_every_object_that_is_lost_is_missed(history: icefloe.Repository) -> None:
    files = contents(history)
    for key in needed(files):
        if is_free_to_go(key):
            continue
        left = {name: data for name, data in files.items() if name != key}
        damages = verified(left).damages
        assert any(key in damage.keys for damage in damages), key


@pytest.mark.slow
def test_every_object_that_is_cut_is_noticed(history: icefloe.Repository) -> None:
    files = contents(history)
    for key, length in product(needed(files), (0, -1)):
        if files[key][:length] == files[key]:
            continue  # the file of a deleted tag is empty
        damages = verified(files | {key: files[key][:length]}, deep=True).damages
        assert any(key in damage.keys for damage in damages), (key, length)


@pytest.mark.slow
def test_every_metadata_file_that_is_garbled_is_noticed(history: icefloe.Repository) -> None:
    files = contents(history)
    dice = random.Random(7)
    for key in needed(files):
        if key.startswith(CHUNKS_PREFIX):
            continue  # nothing tells what the bytes of a chunk should be
        garbled = files | {key: dice.randbytes(len(files[key]))}
        damages = verified(garbled, deep=True).damages
        assert any(key in damage.keys for damage in damages), key


def test_a_lost_chunk_is_told_with_its_region_and_versions(history: icefloe.Repository) -> None:
    """The second row of /a was written in the second edit, and never again."""
    versions = list(history.ancestry(branch="main"))
    refs = chunk_ids(history, versions[0].id, "/a")
    backend = history.storage.open()
    lost = [refs[1, 1], refs[1, 2]]
    run_blocking(backend.delete_many(lost))
    [damage] = history.verify().damages
    assert damage.kind == "no-chunk"
    assert set(damage.keys) == {*lost}
    assert damage.objects == 2
    [array] = damage.arrays
    assert (array.path, array.region) == ("/a", (((1, 2), (1, 3)),))
    after = {one.id for one in versions if one.message in ("no. 1", "no. 2", "no. 3")}
    assert {*array.versions} == {*damage.versions} == after | {history.lookup_branch("other")}
    assert array.versions[0] == history.lookup_branch("other")


def test_a_chunk_of_one_version_only_is_told_as_such(history: icefloe.Repository) -> None:
    """The first row of /g/b is written in each edit."""
    versions = list(history.ancestry(branch="main"))
    [key] = {chunk_ids(history, versions[1].id, "/g/b")[0, 3]}
    run_blocking(history.storage.open().delete_many([key]))
    [damage] = history.verify().damages
    [array] = damage.arrays
    assert (array.path, array.region) == ("/g/b", (((0, 1), (3, 4)),))
    assert damage.versions == (versions[1].id,)


def chunk_ids(
    repository: icefloe.Repository, version: str, path: str
) -> dict[tuple[int, ...], str]:
    session = repository.readonly_session(snapshot_id=version)
    state = session._session
    node = state.tree.find(path)
    assert node is not None
    assert isinstance(node, ArrayNode)
    found = {}
    for ref in node.array.manifests:
        table = run_blocking(state.context.assets.load_manifest(ref.id)).table(node.id)
        for row, index in enumerate(table.coordinates.tolist()):
            found[tuple(index)] = chunk_key(table.ref(row).id)  # type: ignore[union-attr]
    return found


def test_very_many_lost_chunks_are_told_as_one_damage() -> None:
    repository = icefloe.Repository.create(
        icefloe.in_memory_storage(), icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0)
    )
    with repository.transaction("main", message="many") as store:
        array = zarr.create_array(store, name="a", shape=3000, chunks=1, dtype="u1")
        array[:] = 1
    backend = repository.storage.open()
    chunks = [info.key for info in listed(backend) if info.key.startswith(CHUNKS_PREFIX)]
    run_blocking(backend.delete_many(chunks))
    [damage] = repository.verify().damages
    assert (damage.kind, damage.objects) == ("no-chunk", 3000)
    assert len(damage.keys) < 100
    [array_part] = damage.arrays
    assert array_part.region == (((0, 3000),),)


def test_orphans_and_strays_do_no_harm(history: icefloe.Repository) -> None:
    backend = history.storage.open()
    for key in ("chunks/00000000000000000000", "manifests/stray", "chunks/notes.txt", "README"):
        run_blocking(backend.put(key, b"whatever"))
    assert history.verify(deep=True).is_healthy


def test_few_keys_in_memory_change_nothing(history: icefloe.Repository) -> None:
    files = contents(history)
    gone, short = sorted(key for key in files if key.startswith(CHUNKS_PREFIX))[:2]
    files[short] = files[short][:-1]
    del files[gone]
    whole, spilled = verified(files), verified(files, max_key_bytes=64)
    assert whole.damages == spilled.damages
    assert {damage.kind for damage in whole.damages} == {K.NO_CHUNK, K.SHORT_CHUNK}
    assert whole.checked == spilled.checked


def test_versions_are_compared_in_parts_as_well(history: icefloe.Repository) -> None:
    files = contents(history)
    assert verified(files, max_compared_refs=3).damages == ()
    repository = SmallRepository()
    break_it, text = BROKEN["chunks unnamed"]
    break_it(repository)
    [damage] = verified(repository.files, max_compared_refs=1).damages
    assert text in damage.message


# -- what cannot be opened, or not be looked at --------------------------------------------


def test_a_repository_that_cannot_be_opened_is_verified(history: icefloe.Repository) -> None:
    key = REPO_KEY if history.spec_version == 2 else "refs/branch.main/ref.json"
    storage = history.storage
    run_blocking(storage.open().put(key, b"torn"))
    report = icefloe.Repository.verify_storage(storage)
    assert report.verdict == icefloe.Verdict.DAMAGED
    assert key in report.damages[0].keys


def test_a_lost_repo_object_is_told_from_no_repository() -> None:
    files = SmallRepository().files
    del files[REPO_KEY]
    [damage] = [one for one in verified(files).damages if one.kind == K.NO_REPO_OBJECT]
    assert damage.keys == (REPO_KEY,)
    assert BACKUPS_PREFIX in damage.message
    with pytest.raises(RepositoryNotFoundError):
        verified({})


@pytest.mark.parametrize("prefix", ["repo", "snapshots/", "manifests/", "transactions/", "chunks/"])
def test_what_the_storage_refuses_is_unchecked_not_damaged(prefix: str) -> None:
    class Refusing(MemoryBackend):
        async def get(self, key: str, *args: Any) -> Any:
            if key.startswith(prefix):
                raise StorageError("not today", retryable=True)
            return await super().get(key, *args)

    backend = Refusing()
    for key, data in SmallRepository().files.items():
        run_blocking(backend.put(key, data))
    outcome = verified(backend, deep=True)
    assert outcome.damages == ()
    assert outcome.unchecked_objects > 0
    assert all(key.startswith(prefix) for key in outcome.unchecked)


def test_the_listing_failing_is_unchecked_not_damaged() -> None:
    class Unlisted(MemoryBackend):
        def list(self, prefix: str = "") -> Any:
            if prefix == CHUNKS_PREFIX:
                raise StorageError("not today")
            return super().list(prefix)

    backend = Unlisted()
    for key, data in SmallRepository().files.items():
        run_blocking(backend.put(key, data))
    outcome = verified(backend)
    assert outcome.damages == ()
    assert list(outcome.unchecked) == [CHUNKS_PREFIX]


def test_what_is_let_go_meanwhile_is_no_damage(history: icefloe.Repository) -> None:
    """Versions are expired and collected as soon as verification knows of them."""
    before = len(list(history.ancestry(branch="main")))
    calls: list[tuple[int, int]] = []

    def let_go(done: int, total: int) -> None:
        if not calls:
            history.expire_snapshots(datetime.now(UTC))
            assert history.garbage_collect(datetime.now(UTC)).snapshots_deleted > 0
        calls.append((done, total))

    report = history.verify(on_progress=let_go)
    assert report.is_healthy, report
    assert calls[-1][0] == calls[-1][1] >= before
    assert len(list(history.ancestry(branch="main"))) < before
    assert history.verify(deep=True).is_healthy


def test_the_async_twin_finds_the_same(history: icefloe.Repository) -> None:
    key = min(key for key in contents(history) if key.startswith(CHUNKS_PREFIX))
    run_blocking(history.storage.open().delete_many([key]))
    again = asyncio.run(history.verify_async(deep=True))
    assert again.to_dict() == history.verify(deep=True).to_dict()
    assert key in repr(again)


# -- files of others -----------------------------------------------------------------------


@pytest.fixture
def virtual(tmp_path: Path) -> tuple[icefloe.Repository, Path]:
    """Four chunks in two files, one with checksums."""
    files = tmp_path / "files"
    files.mkdir()
    for name in ("one.bin", "two.bin"):
        (files / name).write_bytes(bytes(64))
    url = f"file://{files}/"
    config = icefloe.RepositoryConfig.default()
    config.set_virtual_chunk_container(
        icefloe.VirtualChunkContainer(url, icefloe.local_filesystem_store(str(files)))
    )
    access = icefloe.containers_credentials({url: icefloe.credentials.LocalFileSystemAccess})
    repository = icefloe.Repository.create(
        icefloe.local_filesystem_storage(str(tmp_path / "repository")), config, access
    )
    recorded = datetime.fromtimestamp((files / "one.bin").stat().st_mtime + 10, UTC)
    with repository.transaction("main", message="refs") as store:
        zarr.create_array(store, name="v", shape=(2, 64), chunks=(1, 32), dtype="u1")
        for row, name in enumerate(("one.bin", "two.bin")):
            for column in range(2):
                store.set_virtual_ref(
                    f"v/c/{row}/{column}",
                    f"{url}{name}",
                    offset=32 * column,
                    length=32,
                    checksum=recorded if row == 0 else None,
                )
    return repository, files


def test_files_of_others_are_left_alone_unless_authorised(
    virtual: tuple[icefloe.Repository, Path],
) -> None:
    repository, files = virtual
    (files / "one.bin").unlink()
    report = icefloe.Repository.open(repository.storage).verify()
    assert report.is_healthy
    assert report.checked["virtual_objects"] == 0
    report = repository.verify()
    assert [damage.kind for damage in report.damages] == ["no-virtual-object"]


def test_files_of_others_that_are_as_recorded_are_healthy(
    virtual: tuple[icefloe.Repository, Path],
) -> None:
    report = virtual[0].verify(deep=True)
    assert report.is_healthy, report
    assert report.checked["virtual_objects"] == 2


@pytest.mark.parametrize(
    ("kind", "row", "region"),
    [
        ("no-virtual-object", 0, (((0, 1), (0, 2)),)),
        ("short-virtual-object", 1, (((1, 2), (1, 2)),)),
        ("changed-virtual-object", 0, (((0, 1), (0, 2)),)),
    ],
)
def test_files_of_others_that_differ_are_told(
    virtual: tuple[icefloe.Repository, Path], kind: str, row: int, region: object
) -> None:
    repository, files = virtual
    path = files / ("one.bin", "two.bin")[row]
    match kind:
        case "no-virtual-object":
            path.unlink()
        case "short-virtual-object":
            path.write_bytes(bytes(63))
        case _:
            later = path.stat().st_mtime + 100
            os.utime(path, (later, later))
    [damage] = repository.verify(deep=True).damages
    assert damage.kind == kind
    assert damage.keys[0].endswith(path.name)
    [array] = damage.arrays
    assert (array.path, array.region) == ("/v", region)
    assert damage.versions == (repository.lookup_branch("main"),)


def test_files_that_were_not_authorised_are_unchecked(
    virtual: tuple[icefloe.Repository, Path],
) -> None:
    report = icefloe.Repository.open(virtual[0].storage).verify(deep=True)
    assert report.verdict == icefloe.Verdict.INCOMPLETE
    assert len(report.unchecked) == 2
    assert all("authorise" in reason for reason in report.unchecked.values())
    assert "could not be looked at" in repr(report)


def test_one_look_at_each_file(tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    for name in ("one.bin", "two.bin"):
        (files / name).write_bytes(bytes(64))
    with file_server(files) as server:
        url = f"{server.url}/"
        config = icefloe.RepositoryConfig.default()
        config.set_virtual_chunk_container(icefloe.VirtualChunkContainer(url, icefloe.http_store()))
        repository = icefloe.Repository.create(
            icefloe.in_memory_storage(),
            config,
            icefloe.containers_credentials({url: icefloe.credentials.HttpAccess}),
        )
        for number in range(3):
            with repository.transaction("main", message=f"no. {number}") as store:
                zarr.create_array(store, name=f"v{number}", shape=64, chunks=1, dtype="u1")
                for at in range(64):
                    name = ("one.bin", "two.bin")[at % 2]
                    key = f"v{number}/c/{at}"
                    store.set_virtual_ref(key, f"{url}{name}", offset=at, length=1)
        report = repository.verify(deep=True)
    assert report.is_healthy, report
    assert sorted(server.requests) == ["HEAD /one.bin", "HEAD /two.bin"]


# -- requests ------------------------------------------------------------------------------


def test_chunks_take_one_listing_and_no_request_each(history: icefloe.Repository) -> None:
    backend = FaultyBackend(history.storage.open())
    outcome = run_blocking(verify(backend))
    steps = [(step.operation, step.key) for step in backend.trace]
    assert [key for name, key in steps if name == "list" and "chunks" in key] == [CHUNKS_PREFIX]
    assert not [key for name, key in steps if name != "list" and key.startswith(CHUNKS_PREFIX)]
    gets = [key for name, key in steps if name == "get"]
    assert len(gets) == len(set(gets))
    assert outcome.checked["chunk_objects"] > 10


# -- parts ---------------------------------------------------------------------------------


@given(st.sets(st.tuples(*[st.integers(0, 4)] * 3), max_size=60))
def test_boxes_cover_just_what_they_should(cells: set[tuple[int, int, int]]) -> None:
    coordinates = np.array(sorted(cells), np.uint32).reshape(-1, 3)
    boxes = boxes_of(coordinates, most=1000)
    covered = [cell for box in boxes for cell in product(*(range(a, b) for a, b in box))]
    assert sorted(covered) == sorted(cells)
    assert joined_boxes(boxes, most=1000) == boxes or len(joined_boxes(boxes)) <= len(boxes)


def test_too_many_boxes_become_one() -> None:
    scattered = np.array([[2 * n] for n in range(500)], np.uint32)
    assert boxes_of(scattered) == (((0, 999),),)


def test_the_only_chunk_of_a_scalar_is_a_box() -> None:
    assert boxes_of(np.empty((1, 0), np.uint32)) == ((),)
