"""Repair puts back what can be, drops what is lost when asked to, and says what it cannot do."""

import asyncio
from collections.abc import Callable
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import icefloe
from icefloe.effects import run_blocking
from icefloe.errors import (
    FormatError,
    NotFoundError,
    PreconditionFailedError,
    ReadOnlyError,
    RepositoryNotFoundError,
    SnapshotNotFoundError,
)
from icefloe.format.ids import INITIAL_SNAPSHOT_ID, SnapshotId
from icefloe.format.layout import (
    BACKUPS_PREFIX,
    CHUNKS_PREFIX,
    REPO_KEY,
    branch_key,
    snapshot_key,
    tag_key,
    tag_tombstone_key,
    transaction_log_key,
)
from icefloe.format.nodes import ArrayNode
from icefloe.maintenance.repair.repair_log import RepairReport, RepairRules
from icefloe.maintenance.repair.run import repair
from icefloe.storage import Storage
from icefloe.testing.schedules import WrappedStorage
from tests.property.reachable import stored
from tests.support.checking import check_repository_blocking
from tests.unit.testing.small_repository import BACKUPS, SECOND, SmallRepository
from tests.unit.testing.test_invariants import BROKEN, V1_BROKEN, golden_files

pytestmark = pytest.mark.slow

EVERYTHING = RepairRules(
    recover_versions=True,
    drop_lost_versions=True,
    drop_lost_references=True,
    drop_damaged_versions=True,
    rebuild_logs=True,
    deep=True,
)


def storage_with(files: dict[str, bytes]) -> Storage:
    storage = icefloe.in_memory_storage()
    for key, data in files.items():
        run_blocking(storage.open().put(key, data))
    return storage


def repaired(storage: Storage, rules: RepairRules = EVERYTHING) -> RepairReport:
    """Repair, and see that nothing was deleted and all that was replaced is kept."""
    before = stored(storage.open())
    dry = run_blocking(repair(storage, rules))
    assert stored(storage.open()) == before
    outcome = run_blocking(repair(storage, rules, dry_run=False))
    after = stored(storage.open())
    kept = {data for key, data in after.items() if key.startswith(BACKUPS_PREFIX)}
    for key, data in before.items():
        if key.startswith("refs/") and not any(key in one.keys for one in outcome.steps):
            continue  # branches of spec 1 move when something is committed to them
        assert after[key] == data or data in kept, f"{key} was replaced without a copy"
    assert [one.kind for one in dry.steps] == [one.kind for one in outcome.steps]
    assert dry.before.damages == outcome.before.damages
    assert len(dry.after.damages) == len(outcome.after.damages)
    for step in outcome.steps:
        assert step.message
        assert step.kept_aside is None or step.kept_aside in after
    return outcome


# -- every way in which tests break repositories -------------------------------------------

CANNOT = {
    "time stands still": "nothing tells the true time",
    "relative path": "nothing tells the true path",
    "same id twice": "nothing tells which node is which",
    "no JSON": "nothing tells the metadata",
    "other kind": "nothing tells the true kind",
    "other shape": "nothing tells the true shape",
    "other number of chunks": "nothing tells the true grid",
    "deleted tag is back": "nothing tells whether the tag is wanted",
    "flag both ways": "nothing tells which way the flag was set",
}
"""What cannot be repaired, and why."""


@pytest.mark.parametrize("name", BROKEN)
def test_each_break_is_repaired_or_said_to_stay(name: str) -> None:
    break_it, _ = BROKEN[name]
    repository = SmallRepository()
    break_it(repository)
    storage = storage_with(repository.files)
    outcome = repaired(storage)
    left = [(one.kind, one.message) for one in outcome.after.damages]
    if name in CANNOT:
        assert left
        assert all(one.remedy for one in outcome.after.damages)
    else:
        assert left == []
        assert outcome.steps
        check_repository_blocking(storage.open())
    assert icefloe.Repository.open(storage).lookup_branch("main")


V1_CANNOT = {
    "stray file": "what is not ours is not touched",
    "filled tombstone": "the tag is deleted all the same",
    "tombstone of nothing": "the tag is deleted all the same",
    "ref without snapshot": "nothing tells where the branch ended",
    "ref without JSON": "nothing tells where the branch ended",
    "ref without id": "nothing tells what the tag named",
    "branch to nowhere": "nothing tells where the branch ended",
}


@pytest.mark.parametrize("name", V1_BROKEN)
def test_each_break_of_spec_1_is_repaired_or_said_to_stay(name: str) -> None:
    break_it, _ = V1_BROKEN[name]
    files = golden_files("v1-basic")
    break_it(files)
    storage = storage_with(files)
    outcome = repaired(storage)
    left = [(one.kind, one.message) for one in outcome.after.damages]
    assert bool(left) == (name in V1_CANNOT), left


def test_a_healthy_repository_is_left_alone() -> None:
    storage = storage_with(SmallRepository().files)
    outcome = repaired(storage)
    assert (outcome.steps, outcome.open_questions, outcome.after.damages) == ((), (), ())


# -- real repositories ---------------------------------------------------------------------


def made(spec: int) -> icefloe.Repository:
    """Several versions of two arrays, with inline and native chunks, branches and a tag."""
    repository = icefloe.Repository.create(
        icefloe.in_memory_storage(),
        icefloe.RepositoryConfig(inline_chunk_threshold_bytes=8),
        spec_version=spec,
    )
    with repository.transaction("main", message="arrays") as store:
        root = zarr.group(store)
        for name in ("a", "g/b"):
            root.create_array(
                name, shape=(8, 40), chunks=(2, 10), dtype="i4", compressors=None, fill_value=-1
            )
        root.create_array("s", shape=(), dtype="i2", compressors=None)[...] = 7
    for number in range(3):
        with repository.transaction("main", message=f"no. {number}") as store:
            zarr.open_array(store, path="a")[2 * number : 2 * number + 2] = number + 1
            zarr.open_array(store, path="g/b")[:2] = number + 1
    repository.create_tag("v1", repository.lookup_branch("main"))
    repository.create_branch("other", repository.lookup_branch("main"))
    with repository.transaction("other", message="smaller") as store:
        zarr.open_array(store, path="a").resize((4, 40))
    with repository.transaction("main", message="last") as store:
        zarr.open_group(store)["g/b"].attrs["units"] = "K"
    return repository


@pytest.fixture(params=[1, 2], ids=["spec 1", "spec 2"])
def history(request: pytest.FixtureRequest) -> icefloe.Repository:
    return made(request.param)


def values(storage: Storage, branch: str = "main") -> dict[str, Any]:
    store = icefloe.Repository.open(storage).readonly_session(branch).store
    root = zarr.open_group(store, mode="r")
    return {name: root[name][...] for name in ("a", "g/b", "s")}  # type: ignore[index]


def copied(storage: Storage) -> Storage:
    return storage_with(stored(storage.open()))


def broken_copies(
    repository: icefloe.Repository, damage: Callable[[bytes], bytes | None]
) -> list[tuple[str, Storage]]:
    """Break some objects of each kind, and all that others lead to."""
    files = stored(repository.storage.open())
    tips = {repository.lookup_branch(name) for name in repository.list_branches()}
    kinds: dict[str, list[str]] = {}
    for key in sorted(files):
        kinds.setdefault(key.partition("/")[0], []).append(key)
    chosen = {key for some in kinds.values() for key in some[:2]}
    found = []
    for key in sorted(chosen | {f"snapshots/{tip}" for tip in tips}):
        left = damage(files[key])
        others = {name: data for name, data in files.items() if name != key}
        if left != files[key]:
            found.append((key, storage_with(others if left is None else others | {key: left})))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "damage", [lambda _: None, lambda data: data[: len(data) // 2]], ids=["lost", "cut"]
)
def test_every_object_that_is_lost_or_cut_leaves_the_rest_whole(
    history: icefloe.Repository, damage: Callable[[bytes], bytes | None]
) -> None:
    expected = values(history.storage)
    for key, storage in broken_copies(history, damage):
        if key.startswith("refs/") and key != branch_key("main"):
            continue  # see below
        outcome = run_blocking(repair(storage, EVERYTHING, dry_run=False))
        left = [one for one in outcome.after.damages if not _names_a_tag(one, history)]
        if history.spec_version == 1 and key == f"snapshots/{history.lookup_branch('other')}":
            # What came before it was said in this file only, so that its owner has to say it.
            assert [one.kind for one in left] in (["no-snapshot"], ["bad-snapshot"])
            assert any("'other'" in note for note in outcome.open_questions)
        else:
            assert left == [], (key, left)
        for name, array in values(storage).items():
            lost = array != expected[name]
            # Lost chunks read as never written; everything else is as it was.
            assert (array[lost] == (-1 if name != "s" else 0)).all(), (key, name)
            if not key.startswith((CHUNKS_PREFIX, "manifests/", "snapshots/")):
                assert not lost.any() or key in (REPO_KEY, branch_key("main")), (key, name)


def _names_a_tag(damage: Any, repository: icefloe.Repository) -> bool:
    """A tag goes on naming a version that lost data: only its owner may say otherwise."""
    return repository.lookup_tag("v1") in damage.versions


# -- the repo object -----------------------------------------------------------------------


def backups(storage: Storage) -> list[str]:
    names = sorted(key for key in stored(storage.open()) if key.startswith("overwritten/repo."))
    return [name.removeprefix(BACKUPS_PREFIX) for name in names]


def test_the_newest_backup_that_can_be_read_takes_the_place_of_the_repo_object() -> None:
    storage = made(2).storage
    newest, next_one, *_ = backups(storage)
    files = stored(storage.open())
    for torn, expected in (([REPO_KEY], newest), ([REPO_KEY, BACKUPS_PREFIX + newest], next_one)):
        broken = storage_with(files | dict.fromkeys(torn, b"torn"))
        outcome = repaired(broken, RepairRules())
        [step] = outcome.steps
        assert step.kind == "restore-repo-object"
        assert expected in step.message
        assert step.kept_aside is not None
        now = stored(broken.open())
        assert now[REPO_KEY] == files[BACKUPS_PREFIX + expected]
        assert now[step.kept_aside] == b"torn"
        assert outcome.after.damages == ()


def test_another_backup_can_be_chosen() -> None:
    storage = made(2).storage
    chosen = backups(storage)[3]
    files = stored(storage.open())
    del files[REPO_KEY]
    broken = storage_with(files)
    run_blocking(repair(broken, RepairRules(backup=chosen), dry_run=False))
    assert stored(broken.open())[REPO_KEY] == files[BACKUPS_PREFIX + chosen]
    with pytest.raises(NotFoundError, match=r"repo\.nothing"):
        run_blocking(repair(storage_with(files), RepairRules(backup="repo.nothing")))


def test_a_backup_whose_refs_name_lost_versions_comes_after_others() -> None:
    repository = SmallRepository()
    newer, older = BACKUPS
    repository.files[REPO_KEY] = b"torn"
    del repository.files[snapshot_key(SnapshotId(b"snapshot one"))]
    [step] = run_blocking(repair(storage_with(repository.files))).steps
    assert older in step.message
    assert newer not in step.message


def test_the_commit_that_is_lost_from_the_log_is_found_and_can_be_recovered() -> None:
    repository = made(2)
    storage, expected = repository.storage, values(repository.storage)
    lost = repository.lookup_branch("main")
    run_blocking(storage.open().put(REPO_KEY, b"torn"))
    outcome = repaired(copied(storage), RepairRules())
    assert any(lost in note for note in outcome.open_questions)
    again = copied(storage)
    outcome = repaired(again, RepairRules(recover_versions=True))
    assert [one.kind for one in outcome.steps] == ["restore-repo-object", "recover-version"]
    opened = icefloe.Repository.open(again)
    assert opened.lookup_branch(f"recovered-{lost}") == lost
    assert opened.lookup_branch("main") != lost
    assert [one.id for one in opened.ancestry(snapshot_id=lost)] == [
        one.id for one in icefloe.Repository.open(made_again(storage)).ancestry(snapshot_id=lost)
    ]
    moving = RepairRules(recover_versions=True, branches={"main": SnapshotId.parse(lost)})
    run_blocking(repair(again, moving, dry_run=False))
    assert icefloe.Repository.open(again).lookup_branch("main") == lost
    assert all((values(again)[name] == expected[name]).all() for name in expected)
    check_repository_blocking(again.open())


def made_again(storage: Storage) -> Storage:
    """Repair everything there is, with the lost commit as main."""
    other = copied(storage)
    run_blocking(repair(other, RepairRules(recover_versions=True), dry_run=False))
    return other


def test_without_any_backup_the_history_is_found_in_the_snapshots() -> None:
    repository = made(2)
    expected = values(repository.storage)
    ids = [one.id for one in repository.ancestry(branch="main")]
    other = [one.id for one in repository.ancestry(branch="other")]
    files = stored(repository.storage.open())
    left = {
        key: data
        for key, data in files.items()
        if key != REPO_KEY and not key.startswith(BACKUPS_PREFIX)
    }
    for extra in ({}, {REPO_KEY: b"torn"}):
        storage = storage_with(left | extra)
        outcome = repaired(storage, RepairRules())
        assert [one.kind for one in outcome.steps] == ["rebuild-repo-object"]
        assert outcome.after.damages == ()
        again = icefloe.Repository.open(storage)
        assert [one.id for one in again.ancestry(branch="main")] == ids
        assert again.list_branches() == {"main", f"recovered-{other[0]}"}
        assert [one.id for one in again.ancestry(snapshot_id=other[0])] == other
        assert all((values(storage)[name] == expected[name]).all() for name in expected)
        with again.transaction("main", message="goes on") as store:
            zarr.open_array(store, path="a")[0] = 9
        check_repository_blocking(storage.open())


def test_when_nothing_is_left_nothing_is_invented() -> None:
    with pytest.raises(RepositoryNotFoundError):
        run_blocking(repair(icefloe.in_memory_storage()))
    with pytest.raises(RepositoryNotFoundError, match="nothing tells"):
        run_blocking(repair(storage_with({REPO_KEY: b"torn"})))


def test_a_repository_that_is_newer_than_we_are_is_not_damaged() -> None:
    files = SmallRepository().files
    data = bytearray(files[REPO_KEY])
    data[36] = 77
    with pytest.raises(FormatError, match="upgrade"):
        run_blocking(repair(storage_with(files | {REPO_KEY: bytes(data)}), dry_run=False))


def test_somebody_else_putting_it_back_first_is_not_undone() -> None:
    storage = made(2).storage
    whole = stored(storage.open())[REPO_KEY]
    run_blocking(storage.open().put(REPO_KEY, b"torn"))

    class Quicker:
        def __init__(self, inner: Any) -> None:
            self._inner = inner

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

        async def put(self, key: str, *args: Any, **kwargs: Any) -> Any:
            if key == REPO_KEY:
                await self._inner.put(REPO_KEY, whole)
            return await self._inner.put(key, *args, **kwargs)

    with pytest.raises(PreconditionFailedError):
        run_blocking(repair(WrappedStorage(storage, Quicker), dry_run=False))
    assert stored(storage.open())[REPO_KEY] == whole


def test_a_repository_that_is_read_only_stays_as_it_is() -> None:
    repository = made(2)
    chunk = min(key for key in stored(repository.storage.open()) if key.startswith(CHUNKS_PREFIX))
    run_blocking(repository.storage.open().delete_many([chunk]))
    repository.set_status(icefloe.RepoStatus(icefloe.RepoAvailability.read_only))
    with pytest.raises(ReadOnlyError):
        run_blocking(repair(repository.storage, EVERYTHING, dry_run=False))


# -- branches and tags of spec 1 -----------------------------------------------------------


def test_main_is_found_again_by_its_history() -> None:
    repository = made(1)
    expected, tip = values(repository.storage), repository.lookup_branch("main")
    files = stored(repository.storage.open())
    for state in (None, b"torn", b'{"snapshot":"?"}'):
        changed = {key: data for key, data in files.items() if key != branch_key("main")}
        storage = storage_with(changed | ({} if state is None else {branch_key("main"): state}))
        outcome = repaired(storage, RepairRules())
        [step] = outcome.steps
        assert step.kind == "restore-ref"
        assert outcome.after.damages == ()
        assert icefloe.Repository.open(storage).lookup_branch("main") == tip
        assert all((values(storage)[name] == expected[name]).all() for name in expected)


def test_refs_can_be_given() -> None:
    repository = made(1)
    tips = {one.message: one.id for one in repository.ancestry(branch="main")}
    target = SnapshotId.parse(tips["no. 1"])
    files = stored(repository.storage.open())
    storage = storage_with(files | {branch_key("other"): b"?", tag_key("v1"): b"?"})
    unknown = repaired(copied(storage), RepairRules())
    assert len(unknown.after.damages) == 2
    for ref in ("branch 'other'", "tag 'v1'"):
        assert any(ref in note for note in unknown.open_questions)
    rules = RepairRules(branches={"other": target}, tags={"v1": target})
    assert repaired(storage, rules).after.damages == ()
    again = icefloe.Repository.open(storage)
    assert (again.lookup_branch("other"), again.lookup_tag("v1")) == (str(target), str(target))
    nowhere = RepairRules(branches={"other": SnapshotId(b"never was on")})
    broken = storage_with(files | {branch_key("other"): b"?"})
    with pytest.raises(SnapshotNotFoundError):
        run_blocking(repair(broken, nowhere, dry_run=False))


def test_a_tag_of_a_lost_version_is_deleted_on_request() -> None:
    repository = made(1)
    storage = repository.storage
    run_blocking(
        storage.open().delete_many([snapshot_key(SnapshotId.parse(repository.lookup_tag("v1")))])
    )
    assert len(repaired(copied(storage), RepairRules()).steps) == 0
    outcome = repaired(storage, EVERYTHING)
    assert outcome.after.damages == ()
    assert tag_tombstone_key("v1") in stored(storage.open())
    assert tag_key("v1") in stored(storage.open())


# -- chunks and manifests ------------------------------------------------------------------


def lose_chunk(repository: icefloe.Repository, path: str, index: tuple[int, int]) -> str:
    state = repository.readonly_session("main")._session
    node = state.tree.find(path)
    assert node is not None
    assert isinstance(node, ArrayNode)
    for ref in node.array.manifests:
        table = run_blocking(state.context.assets.load_manifest(ref.id)).table(node.id)
        if (found := table.find(index)) is not None:
            key = CHUNKS_PREFIX + str(found.id)  # type: ignore[union-attr]
            run_blocking(repository.storage.open().delete_many([key]))
            return key
    raise AssertionError(f"no chunk {index}")


def test_lost_chunks_read_as_never_written_in_a_new_version(history: icefloe.Repository) -> None:
    storage = history.storage
    expected = values(storage)
    before = list(history.ancestry(branch="main"))
    lose_chunk(history, "/a", (1, 2))
    assert repaired(copied(storage), RepairRules()).steps == ()
    outcome = repaired(storage, RepairRules(drop_lost_references=True))
    steps = [one for one in outcome.steps if one.kind == "drop-references"]
    assert len(steps) == len(outcome.steps) == 2  # main and other
    [part] = steps[0].arrays
    assert (part.path, part.region) == ("/a", (((1, 2), (2, 3)),))
    again = icefloe.Repository.open(storage)
    now = list(again.ancestry(branch="main"))
    assert [one.id for one in now[1:]] == [one.id for one in before]
    assert again.lookup_tag("v1") == history.lookup_tag("v1")
    expected["a"][2:4, 20:30] = -1
    assert all((values(storage)[name] == expected[name]).all() for name in expected)
    changes = again.diff(from_snapshot_id=before[0].id, to_snapshot_id=now[0].id)
    assert changes.updated_chunks == {"/a": [[1, 2]]}
    # The versions before still refer to it, which verification goes on to say.
    assert {one.kind for one in outcome.after.damages} == {"no-chunk"}
    told = {one for damage in outcome.after.damages for one in damage.versions}
    assert now[0].id not in told
    assert before[0].id in told


def test_versions_that_lost_data_leave_the_history_on_request(history: icefloe.Repository) -> None:
    history.delete_tag("v1")
    storage = history.storage
    lose_chunk(history, "/a", (1, 2))
    outcome = repaired(storage)
    assert outcome.after.damages == ()
    messages = [one.message for one in icefloe.Repository.open(storage).ancestry(branch="main")]
    assert messages[1:] == ["no. 0", "arrays", "Repository initialized"]
    check_repository_blocking(storage.open())


def test_a_lost_manifest_takes_what_it_covers_along(history: icefloe.Repository) -> None:
    storage = history.storage
    expected = values(storage)
    snapshot = history.readonly_session("main")._session.snapshot
    node = snapshot.nodes.find("/g/b")
    assert node is not None
    assert isinstance(node, ArrayNode)
    [ref] = node.array.manifests
    run_blocking(storage.open().delete_many([f"manifests/{ref.id}"]))
    outcome = repaired(storage, RepairRules(drop_lost_references=True))
    told = {part.path: part.region for one in outcome.steps for part in one.arrays}
    assert told["/g/b"] == (ref.extents,)
    assert told.keys() == {"/a", "/g/b"}  # which share it
    for name in ("a", "g/b"):
        expected[name][...] = -1
    assert all((values(storage)[name] == expected[name]).all() for name in expected)


def test_arrays_that_share_a_manifest_keep_their_part() -> None:
    config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0)
    repository = icefloe.Repository.create(icefloe.in_memory_storage(), config)
    with repository.transaction("main", message="two") as store:
        for name in ("x", "y"):
            array = zarr.create_array(
                store, name=name, shape=6, chunks=1, dtype="u1", fill_value=255, compressors=None
            )
            array[:] = np.arange(6)
    state = repository.readonly_session("main")._session
    refs = {path: state.tree.find(path).array.manifests for path in ("/x", "/y")}  # type: ignore[union-attr]
    lose_chunk(repository, "/x", (4,))  # type: ignore[arg-type]
    repaired(repository.storage, RepairRules(drop_lost_references=True))
    store = icefloe.Repository.open(repository.storage).readonly_session("main").store
    found: dict[str, Any] = {
        name: zarr.open_array(store, path=name, mode="r")[:] for name in ("x", "y")
    }
    assert found["x"].tolist() == [0, 1, 2, 3, 255, 5]
    assert found["y"].tolist() == [*range(6)]
    after = icefloe.Repository.open(repository.storage).readonly_session("main")._session
    assert after.tree.find("/y").array.manifests == refs["/y"]  # type: ignore[union-attr]


def test_virtual_chunks_whose_files_are_gone_are_lost_only_with_a_deep_look(
    tmp_path: Path,
) -> None:
    files = tmp_path / "files"
    files.mkdir()
    for name in ("one.bin", "two.bin"):
        (files / name).write_bytes(bytes(8))
    url = f"file://{files}/"
    config = icefloe.RepositoryConfig.default()
    config.set_virtual_chunk_container(
        icefloe.VirtualChunkContainer(url, icefloe.local_filesystem_store(str(files)))
    )
    access = icefloe.containers_credentials({url: icefloe.credentials.LocalFileSystemAccess})
    storage = icefloe.in_memory_storage()
    repository = icefloe.Repository.create(storage, config, access)
    with repository.transaction("main", message="refs") as store:
        zarr.create_array(
            store, name="v", shape=16, chunks=8, dtype="u1", fill_value=9, compressors=None
        )
        for at, name in enumerate(("one.bin", "two.bin")):
            store.set_virtual_ref(f"v/c/{at}", url + name, offset=0, length=8)
    (files / "two.bin").unlink()
    rules: dict[str, Any] = {"drop_lost_references": True, "authorize_virtual_chunk_access": access}
    assert icefloe.Repository.repair_storage(storage, **rules).steps == ()
    unauthorised = icefloe.Repository.repair_storage(storage, drop_lost_references=True, deep=True)
    assert unauthorised.steps == ()
    assert unauthorised.after.verdict == "incomplete"
    report = icefloe.Repository.repair_storage(storage, dry_run=False, deep=True, **rules)
    [step] = report.steps
    assert step.arrays[0].region == (((1, 2),),)
    again = icefloe.Repository.open(storage, authorize_virtual_chunk_access=access)
    array: Any = zarr.open_array(again.readonly_session("main").store, path="v", mode="r")
    assert array[:].tolist() == [0] * 8 + [9] * 8


# -- versions and logs ---------------------------------------------------------------------


def test_a_version_whose_snapshot_is_lost_leaves_the_history(history: icefloe.Repository) -> None:
    expected = values(history.storage)
    versions = list(history.ancestry(branch="main"))
    lost = versions[3]
    assert lost.message == "no. 0"
    run_blocking(history.storage.open().delete_many([f"snapshots/{lost.id}"]))
    assert repaired(copied(history.storage), RepairRules()).steps == ()
    outcome = repaired(history.storage, RepairRules(drop_lost_versions=True))
    assert [one.kind for one in outcome.steps] == ["drop-versions"]
    assert lost.id in outcome.steps[0].versions
    again = icefloe.Repository.open(history.storage)
    left = [one.id for one in again.ancestry(branch="main")]
    if history.spec_version == 2:
        assert left == [one.id for one in versions if one.id != lost.id]
    assert all((values(history.storage)[name] == expected[name]).all() for name in expected)
    assert outcome.after.damages == ()


def test_a_branch_whose_newest_version_is_lost_goes_back(history: icefloe.Repository) -> None:
    tip, parent, *_ = history.ancestry(branch="main")
    run_blocking(history.storage.open().delete_many([f"snapshots/{tip.id}"]))
    outcome = repaired(history.storage, RepairRules(drop_lost_versions=True))
    assert outcome.after.damages == ()
    assert icefloe.Repository.open(history.storage).lookup_branch("main") == parent.id


@pytest.mark.parametrize("key", [snapshot_key, transaction_log_key])
def test_the_first_snapshot_is_written_anew(
    history: icefloe.Repository, key: Callable[[SnapshotId], str]
) -> None:
    name = key(INITIAL_SNAPSHOT_ID)
    files = stored(history.storage.open())
    if name not in files:
        return  # spec 1 writes no such log
    del files[name]
    storage = storage_with(files)
    outcome = repaired(storage, RepairRules())
    assert [one.kind for one in outcome.steps] == ["restore-first-snapshot"]
    assert outcome.after.damages == ()


@pytest.mark.slow
def test_logs_that_are_written_anew_tell_the_same() -> None:
    repository = made(2)
    versions = [one.id for one in repository.ancestry(branch="main")]
    pairs = [(older, newer) for newer, older in pairwise(versions)]
    told = {
        pair: repository.diff(from_snapshot_id=pair[0], to_snapshot_id=pair[1]) for pair in pairs
    }
    files = stored(repository.storage.open())
    for key, state in product([f"transactions/{one}" for one in versions[:-1]], (None, b"torn")):
        broken = {name: data for name, data in files.items() if name != key}
        storage = storage_with(broken | ({} if state is None else {key: state}))
        outcome = repaired(storage, RepairRules(rebuild_logs=True))
        assert [one.kind for one in outcome.steps] == ["rebuild-log"]
        assert outcome.after.damages == ()
        again = icefloe.Repository.open(storage)
        for pair, expected in told.items():
            found = again.diff(from_snapshot_id=pair[0], to_snapshot_id=pair[1])
            assert repr(found) == repr(expected), key


def test_the_log_of_operations_is_cut_where_it_cannot_be_relied_on() -> None:
    repository = SmallRepository()
    repository.files[REPO_KEY + "x"] = b""
    break_it, _ = BROKEN["no backup"]
    break_it(repository)
    storage = storage_with(repository.files)
    assert repaired(copied(storage), RepairRules()).steps == ()
    outcome = repaired(storage, RepairRules(rebuild_logs=True))
    assert outcome.after.damages == ()
    log = list(icefloe.Repository.open(storage).ops_log())
    assert len(log) == 2
    assert icefloe.Repository.open(storage).lookup_branch("main") == str(SECOND)


# -- as users see it -----------------------------------------------------------------------


def test_the_report_says_everything() -> None:
    repository = made(2)
    storage = repository.storage
    lose_chunk(repository, "/a", (1, 2))
    run_blocking(storage.open().put(REPO_KEY, b"torn"))
    plan = icefloe.Repository.repair_storage(storage, drop_lost_references=True)
    assert plan.is_dry_run
    assert not plan.is_healthy
    text = repr(plan)
    for expected in ("restore-repo-object", "would be done", "[1, 2]", "dry run", "to do:"):
        assert expected in text
    assert "<table>" in plan._repr_html_()
    report = asyncio.run(
        icefloe.Repository.repair_storage_async(storage, dry_run=False, drop_lost_references=True)
    )
    assert [step.kind for step in report.steps] == [step.kind for step in plan.steps]
    document = report.to_dict()
    assert document["steps"][0]["kept_aside"].startswith("overwritten/damaged.repo.")
    assert document["before"]["verdict"] == "damaged"
