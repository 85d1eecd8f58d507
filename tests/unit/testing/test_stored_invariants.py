"""The independent checker remembers what it saw, and accepts what the format allows."""

import pytest

from icefloe.effects import run_blocking
from icefloe.format.ids import INITIAL_SNAPSHOT_ID
from icefloe.format.layout import (
    REPO_KEY,
    backup_key,
    chunk_key,
    manifest_key,
    snapshot_key,
    tag_key,
    tag_tombstone_key,
)
from icefloe.format.snapshot import decode_snapshot, encode_snapshot
from icefloe.records import replace
from icefloe.testing.invariants import BrokenRepositoryError
from tests.golden.files import expected
from tests.support.checking import InvariantChecker, check_repository
from tests.support.invariants import StoredInvariants
from tests.unit.testing.small_repository import BACKUPS, CHUNK, FIRST, INLINE, SmallRepository
from tests.unit.testing.test_invariants import backend_with, golden_files


@pytest.mark.parametrize("name", sorted(expected()))
def test_what_the_reference_wrote_is_sound(name: str) -> None:
    checker, files = StoredInvariants(), golden_files(name)
    assert checker.violations(files) == []
    assert checker.violations(files) == []


def test_no_repository_at_all_is_a_violation() -> None:
    assert StoredInvariants().violations({}) == ["there is no branch main"]


@pytest.mark.parametrize(
    "key", [snapshot_key(FIRST), manifest_key(INLINE), chunk_key(CHUNK), backup_key(BACKUPS[1])]
)
def test_a_file_that_changes_is_found_by_the_next_check(key: str) -> None:
    files, checker = SmallRepository().files, StoredInvariants()
    assert checker.violations(files) == []
    changed = checker.violations(files | {key: files[key] + b"\0"})
    assert f"{key} has changed since it was written" in changed


def test_the_repo_object_may_change() -> None:
    repository, checker = SmallRepository(), StoredInvariants()
    assert checker.violations(repository.files) == []
    before = repository.files[REPO_KEY]
    repository.change_repo(lambda repo: replace(repo, branches={**repo.branches, "dev": FIRST}))
    assert repository.files[REPO_KEY] != before
    assert checker.violations(repository.files) == []


def test_only_the_parent_of_a_snapshot_of_spec_1_may_change() -> None:
    files, checker = golden_files("v1-basic"), StoredInvariants()
    assert checker.violations(files) == []
    key = next(
        key
        for key, data in files.items()
        if key.startswith("snapshots/")
        and decode_snapshot(data).parent_id not in (None, INITIAL_SNAPSHOT_ID)
    )
    snapshot = decode_snapshot(files[key])
    expired = encode_snapshot(replace(snapshot, parent_id=INITIAL_SNAPSHOT_ID))
    rewritten = encode_snapshot(replace(snapshot, message="rewritten"))
    changed = f"{key} has changed since it was written"
    assert changed not in checker.violations(files | {key: expired})
    assert changed in checker.violations(files | {key: rewritten})


def test_a_deleted_tag_stays_deleted() -> None:
    files, checker = golden_files("v1-basic"), StoredInvariants()
    files[tag_key("lost")] = b'{"snapshot":"000G40R40M30E209185G"}'
    files[tag_tombstone_key("lost")] = b""
    assert checker.violations(files) == []
    del files[tag_tombstone_key("lost")], files[tag_key("lost")]
    [violation] = checker.violations(files)
    assert "the tag 'lost' was deleted" in violation


def test_a_tag_deleted_in_the_repo_object_stays_deleted() -> None:
    repository, checker = SmallRepository(), StoredInvariants()
    repository.change_repo(lambda repo: replace(repo, deleted_tags=("v1",)))
    assert checker.violations(repository.files) == []
    repository.change_repo(lambda repo: replace(repo, deleted_tags=(), tags={"v1": FIRST}))
    [violation] = checker.violations(repository.files)
    assert "the tag 'v1' was deleted" in violation


def test_both_checkers_tell_what_they_find() -> None:
    files = SmallRepository().files
    del files[chunk_key(CHUNK)]
    backend = backend_with(files)
    with pytest.raises(BrokenRepositoryError) as caught:
        run_blocking(check_repository(backend))
    assert [one.partition(")")[0] for one in caught.value.violations] == ["(independent", "(verify"]
    with pytest.raises(BrokenRepositoryError, match="2 invariants"):
        InvariantChecker().check_blocking(backend)
