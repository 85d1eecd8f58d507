"""Old versions go, and only they: what stays, what it follows, and what the plan says before."""

from datetime import UTC, datetime
from typing import Any

import pytest

import icefloe
from icefloe.effects import run_blocking
from icefloe.format.ids import SnapshotId
from icefloe.format.snapshot import Snapshot, decode_snapshot, encode_snapshot, with_parent
from tests.faults.sessions import BIG, prepared, put_chunk
from tests.support.checking import check_repository_blocking

SPECS = pytest.mark.parametrize("spec", [1, 2])


class History:
    """A repository whose versions have names, and times between them."""

    def __init__(self, spec: int) -> None:
        self.storage = prepared(spec)
        self.repo = icefloe.Repository.open(self.storage)
        self.ids: dict[str, str] = {}
        self.times: dict[str, datetime] = {}

    def commit(self, *names: str, branch: str = "main") -> None:
        for name in names:
            session = self.repo.writable_session(branch)
            run_blocking(put_chunk(session, len(self.ids) % 8, len(self.ids) + 1, BIG))
            self.ids[name] = session.commit(name)
            self.times[name] = self.repo.lookup_snapshot(self.ids[name]).written_at

    def line(self, branch: str = "main", **tag: str) -> list[str]:
        version: Any = tag or {"branch": branch}
        return [one.message for one in self.repo.ancestry(**version)][:-1]

    def expire(self, before: str | datetime, **options: Any) -> set[str]:
        moment = self.times[before] if isinstance(before, str) else before
        plan = self.repo.plan_expiration(moment, **options)
        gone = self.repo.expire_snapshots(moment, **options)
        assert plan.snapshot_ids == gone
        check_repository_blocking(self.storage.open())
        names = {one: name for name, one in self.ids.items()}
        return {names.get(one, "filled") for one in gone}


@SPECS
def test_what_is_older_goes(spec: int) -> None:
    history = History(spec)
    history.commit("a", "b", "c", "d")
    assert history.expire("c") == {"filled", "a", "b"}
    assert history.line() == ["d", "c"]
    assert history.expire("c") == set()


@SPECS
def test_the_newest_version_of_main_stays_whatever_its_age(spec: int) -> None:
    history = History(spec)
    history.commit("a", "b")
    later = datetime.now(UTC)
    assert history.expire(later, delete_expired_branches=True) == {"filled", "a"}
    assert history.line() == ["b"]


@SPECS
def test_branches_and_tags_stay_unless_they_may_go(spec: int) -> None:
    history = History(spec)
    history.commit("a", "b")
    history.repo.create_tag("tag", history.ids["a"])
    history.repo.create_branch("branch", history.ids["b"])
    history.commit("c")
    history.expire("c")
    assert history.line(tag="tag") == ["a"]
    # In spec 2 a version that stays is not skipped by one that follows it directly.
    assert history.line("branch") == (["b"] if spec == 1 else ["b", "a"])
    options: dict[str, Any] = {"delete_expired_branches": True, "delete_expired_tags": True}
    plan = history.repo.plan_expiration(history.times["c"], **options)
    assert plan.branches == {"branch": history.ids["b"]}
    assert plan.tags == {"tag": history.ids["a"]}
    assert history.expire("c", **options) == {"a", "b"}
    assert history.repo.list_branches() == {"main"}
    assert history.repo.list_tags() == set()
    with pytest.raises(icefloe.AlreadyExistsError):
        history.repo.create_tag("tag", history.ids["c"])


@SPECS
def test_what_is_protected_keeps_its_whole_history(spec: int) -> None:
    history = History(spec)
    history.commit("a", "b")
    history.repo.create_tag("release", history.ids["b"])
    history.repo.create_branch("archive", history.ids["b"])
    history.commit("c", branch="archive")
    history.commit("d", "e")
    options: dict[str, Any] = {"delete_expired_branches": True, "delete_expired_tags": True}
    assert history.expire("e", protected_branches=["archive"], **options) == {"d"}
    assert history.line("archive") == ["c", "b", "a", "filled"]
    assert history.line() == ["e"]
    assert history.line(tag="release") == ["b", "a", "filled"]


@SPECS
def test_protecting_what_is_not_there_is_a_mistake(spec: int) -> None:
    history = History(spec)
    with pytest.raises(icefloe.RefNotFoundError):
        history.repo.expire_snapshots(datetime.now(UTC), protected_branches=["nowhere"])
    with pytest.raises(icefloe.RefNotFoundError):
        history.repo.expire_snapshots(datetime.now(UTC), protected_tags=["v1"])
    with pytest.raises(icefloe.InvalidInputError, match="list of names"):
        history.repo.expire_snapshots(datetime.now(UTC), protected_branches="main")


def test_differences_are_told_across_what_is_gone() -> None:
    history = History(2)
    history.commit("a", "b", "c", "d")
    root = list(history.repo.ancestry(branch="main"))[-1].id
    before = history.repo.diff(from_snapshot_id=root, to_branch="main")
    history.expire("d")
    assert history.repo.diff(from_snapshot_id=root, to_branch="main") == before


def test_a_repository_that_takes_no_changes_is_left_alone() -> None:
    history = History(2)
    history.commit("a", "b")
    history.repo.set_status(
        icefloe.RepoStatus(icefloe.RepoAvailability.read_only, limited_availability_reason="audit")
    )
    with pytest.raises(icefloe.ReadOnlyError, match="audit"):
        history.repo.expire_snapshots(datetime.now(UTC))
    assert len(history.repo.plan_expiration(datetime.now(UTC)).snapshots) == 2


def test_times_need_a_zone() -> None:
    with pytest.raises(icefloe.InvalidInputError, match="time zone"):
        History(2).repo.expire_snapshots(datetime(2020, 1, 1))


@SPECS
def test_the_plan_says_what_could_be_reclaimed(spec: int) -> None:
    history = History(spec)
    history.commit(*"abcdefghij")
    history.repo.garbage_collect(datetime.now(UTC))
    plan = history.repo.plan_expiration(history.times["i"])
    history.expire("i")
    done = history.repo.garbage_collect(datetime.now(UTC))
    assert plan.kept == 3
    assert plan.reclaimable_bytes == done.bytes_deleted > BIG
    assert plan.reclaimable_objects == {
        "snapshots": done.snapshots_deleted,
        "transaction_logs": done.transaction_logs_deleted,
        "manifests": done.manifests_deleted,
        "chunks": done.chunks_deleted,
    }
    assert "versions to lose: 9" in repr(plan)
    assert "Versions to lose" in plan._repr_html_()


def test_a_snapshot_with_another_parent_is_the_same_otherwise() -> None:
    one, parent, other = SnapshotId.random(), SnapshotId.random(), SnapshotId.random()
    before = Snapshot(one, 5, "héllo", metadata={"x": [1]}, parent_id=parent, spec_version=1)
    after = decode_snapshot(with_parent(encode_snapshot(before), other))
    assert (after.parent_id, after.message, after.metadata) == (other, "héllo", {"x": [1]})
    assert (after.id, after.flushed_at, after.spec_version) == (one, 5, 1)
    first = Snapshot(one, 5, "first", spec_version=1)
    with pytest.raises(icefloe.InvalidInputError):
        with_parent(encode_snapshot(first), other)
