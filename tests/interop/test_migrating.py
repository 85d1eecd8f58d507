"""Migration does to a repository of spec 1 what the reference does to a copy of it."""

import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import icechunk as ic
import pytest
import zarr

import icefloe
from icefloe.format.config_file import decode_config_flexbuffer
from icefloe.format.repo_info import decode_repo_info
from icefloe.format.update_table import UpdateKind
from icefloe.records import replace
from icefloe.storage import Backend, Storage
from icefloe.storage.wrapper import PrecededBackend
from icefloe.testing.schedules import WrappedStorage
from tests.golden.files import GOLDEN
from tests.interop.reference import Place, build_expired, build_split, build_varied
from tests.interop.test_maintenance import (
    arrays,
    contents,
    made,
    opened,
    reference_at,
)
from tests.support.checking import check_repository_blocking

pytestmark = pytest.mark.interop

KEEPS = pytest.mark.parametrize("keeps", [False, True], ids=["removed", "kept"])
BUILDERS = {"varied": build_varied, "split": build_split, "expired": build_expired}
GOLDEN_NAMES = ["v1-basic", "v1-empty", "v1-expired", "v1-split"]


def repo_object(path: Path) -> dict[str, Any]:
    """Describe a repo object, but for the moment of the migration."""
    info = decode_repo_info((path / "repo").read_bytes())
    newest, *older = info.updates.entries()
    assert newest.kind is UpdateKind.REPO_MIGRATED
    assert newest.updated_at > max(one.updated_at for one in older)
    return {
        "branches": dict(info.branches),
        "tags": dict(info.tags),
        "deleted": info.deleted_tags,
        "snapshots": [info.snapshots.entry(row) for row in range(len(info.snapshots))],
        "updates": [replace(newest, updated_at=0), *older],
        "status": info.status,
        "metadata": info.metadata,
        "before": info.repo_before_updates,
        "config": None if info.config is None else decode_config_flexbuffer(info.config),
        "flags": (info.enabled_flags, info.disabled_flags),
    }


def files(path: Path) -> dict[str, bytes]:
    return {
        str(one.relative_to(path)): one.read_bytes()
        for one in sorted(path.rglob("*"))
        if one.is_file() and "#" not in one.name
    }


def old_files(path: Path) -> dict[str, bytes]:
    found = files(path)
    return {key: found[key] for key in found if key.startswith("refs/") or key == "config.yaml"}


def migrate_both(ours: Path, theirs: Path, *, keeps: bool) -> None:
    """Migrate two copies of a repository, and compare them file by file."""
    before, old = files(ours), old_files(ours)
    icefloe.upgrade_icechunk_repository(opened(ours), dry_run=True)
    assert files(ours) == before
    new = icefloe.upgrade_icechunk_repository(
        opened(ours), dry_run=False, delete_unused_v1_files=not keeps
    )
    assert new.spec_version == 2
    ic.upgrade_icechunk_repository(
        reference_at(theirs), dry_run=False, delete_unused_v1_files=not keeps
    )
    assert repo_object(ours) == repo_object(theirs)
    found, expected = files(ours), files(theirs)
    aside = {key: found.pop(key) for key in [*found] if key.startswith("overwritten/spec-1/")}
    assert aside == ({} if keeps else {f"overwritten/spec-1/{key}": old[key] for key in old})
    del found["repo"], expected["repo"]
    assert found == expected
    check_repository_blocking(icefloe.local_filesystem_storage(str(ours)).open())


@KEEPS
@pytest.mark.parametrize("seed", range(6))
def test_random_histories(tmp_path: Path, seed: int, keeps: bool) -> None:
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    made(theirs, 1, seed)
    shutil.copytree(theirs, ours)
    before = contents(ours)
    migrate_both(ours, theirs, keeps=keeps)
    assert contents(ours) == before == contents(theirs)
    repo = reference_at(ours)
    assert repo.spec_version == ic.SpecVersion.v2
    for name in repo.list_branches():
        ids = [one.id for one in repo.ancestry(branch=name)]
        assert ids == [one.id for one in opened(ours).ancestry(branch=name)]
        assert all(arrays(repo, one) == arrays(opened(ours), one) for one in ids[:-1])
    operations = [(type(one.kind).__name__, one.updated_at) for one in repo.ops_log()]
    assert len(operations) == len(list(opened(ours).ops_log()))
    session = repo.writable_session("main")
    array: Any = zarr.open_array(session.store, path="a")
    array[:] = 7
    new = session.commit("the reference goes on")
    assert opened(ours).lookup_branch("main") == new
    check_repository_blocking(icefloe.local_filesystem_storage(str(ours)).open())


@pytest.mark.parametrize("name", BUILDERS)
def test_repositories_with_everything(tmp_path: Path, name: str) -> None:
    theirs, ours, virtual = tmp_path / "theirs", tmp_path / "ours", tmp_path / "virtual"
    virtual.mkdir()
    (virtual / "raw.bin").write_bytes(bytes(1 << 16))
    BUILDERS[name](Place(theirs, virtual), 1)
    shutil.copytree(theirs, ours)
    migrate_both(ours, theirs, keeps=False)
    assert repo_object(ours)["config"] is not None


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_golden_repositories(tmp_path: Path, name: str) -> None:
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    shutil.copytree(GOLDEN / name, theirs)
    shutil.copytree(GOLDEN / name, ours)
    migrate_both(ours, theirs, keeps=False)


def test_names_of_deleted_tags_stay_taken(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "v1-basic", tmp_path / "repo")
    icefloe.upgrade_icechunk_repository(opened(tmp_path / "repo"), dry_run=False)
    repo = reference_at(tmp_path / "repo")
    with pytest.raises(ic.AlreadyExistsError):
        repo.create_tag("gone", repo.lookup_branch("main"))
    with pytest.raises(icefloe.AlreadyExistsError):
        opened(tmp_path / "repo").create_tag("gone", repo.lookup_branch("main"))


def test_refusals_are_the_same(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "v2-basic", tmp_path / "ours")
    shutil.copytree(GOLDEN / "v2-basic", tmp_path / "theirs")
    with pytest.raises(ic.SessionStateError) as theirs:
        ic.upgrade_icechunk_repository(reference_at(tmp_path / "theirs"), dry_run=False)
    with pytest.raises(icefloe.SessionStateError) as ours:
        icefloe.upgrade_icechunk_repository(opened(tmp_path / "ours"), dry_run=False)
    assert ours.value.kind == theirs.value.kind == "invalid-repository-migration"


class Interrupting(PrecededBackend):
    """Lets somebody else do something before a write of the repo object."""

    def __init__(self, inner: Backend, write: int, work: Callable[[], object]) -> None:
        super().__init__(inner)
        self._writes_left = write
        self._work = work

    async def _before(self, *keys: str, writes: bool) -> None:
        if writes and "repo" in keys:
            self._writes_left -= 1
            if self._writes_left == 0:
                self._work()


def interrupted(path: Path, write: int, work: Callable[[], object]) -> Storage:
    storage = icefloe.local_filesystem_storage(str(path))
    return WrappedStorage(storage, lambda inner: Interrupting(inner, write, work))


@pytest.mark.parametrize("write", [1, 2])
def test_commits_of_the_reference_before_either_write_are_migrated(
    tmp_path: Path, write: int
) -> None:
    shutil.copytree(GOLDEN / "v1-basic", tmp_path / "repo")
    theirs = reference_at(tmp_path / "repo")
    committed: list[str] = []

    def commit() -> None:
        session = theirs.writable_session("main")
        zarr.create_group(session.store, path=f"new-{len(committed)}")
        committed.append(session.commit("by the reference"))
        theirs.create_tag("theirs", committed[-1])

    icefloe.migrate_repository(interrupted(tmp_path / "repo", write, commit))
    repo = opened(tmp_path / "repo")
    assert [repo.lookup_branch("main")] == committed
    assert repo.lookup_tag("theirs") == reference_at(tmp_path / "repo").lookup_tag("theirs")


def test_between_the_two_writes_the_reference_can_only_read(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "v1-basic", tmp_path / "repo")
    before = opened(tmp_path / "repo").lookup_branch("main")

    def look() -> None:
        repo = reference_at(tmp_path / "repo")
        assert repo.spec_version == ic.SpecVersion.v2
        assert repo.lookup_branch("main") == before
        with pytest.raises(ic.ReadOnlyError, match="icefloe migrate"):
            repo.create_tag("theirs", before)
        with pytest.raises(ic.ReadOnlyError):
            repo.garbage_collect(datetime.now(UTC))
        looks.append(True)

    looks: list[bool] = []
    icefloe.migrate_repository(interrupted(tmp_path / "repo", 2, look))
    assert looks == [True]
    reference_at(tmp_path / "repo").create_tag("theirs", before)


def test_the_old_object_is_of_no_use(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "v1-basic", tmp_path / "repo")
    old = opened(tmp_path / "repo")
    same = icefloe.upgrade_icechunk_repository(old, dry_run=True)
    assert old.list_branches() == same.list_branches()
    assert same.spec_version == 1
    icefloe.upgrade_icechunk_repository(old, dry_run=False)
    with pytest.raises(RuntimeError, match="was migrated") as caught:
        old.list_branches()
    assert isinstance(caught.value, icefloe.RepositoryMigratedError)
