"""Clones and exports that die, fail or race: half of one is never taken for a whole."""

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import cache
from typing import Any

import pytest
import zarr

import icefloe
from icefloe.effects import run_blocking
from icefloe.errors import IcefloeError, RepositoryNotFoundError
from icefloe.repo.lifecycle import CLONE_MARKER
from icefloe.storage import Storage
from icefloe.testing.faulty import (
    Crash,
    Fail,
    FaultyBackend,
    SimulatedCrash,
    every_crash,
    every_failure,
)
from icefloe.testing.schedules import (
    Schedule,
    ScheduleRun,
    SteppingStorage,
    WrappedStorage,
    all_schedules,
    run_schedule,
)
from tests.faults.pasts import copied, versions, with_a_past
from tests.faults.sessions import BIG, put_chunk
from tests.property.reachable import listing, needed_by_refs, stored
from tests.support.checking import check_repository_blocking

SPECS = pytest.mark.parametrize("spec", [1, 2])
KEPT = ("snapshots/", "transactions/", "manifests/", "chunks/")
LOOKS_IN_VAIN = {(0, "after"), (1, "after")}
"""Steps that look for what is not there, after which nothing can go wrong."""
type Work = Callable[[Storage, Storage], Any]


def clone(source: Storage, target: Storage, **options: Any) -> icefloe.CloneReport:
    return icefloe.Repository.open(source).clone_to(target, **options)


def export(source: Storage, target: Storage, **options: Any) -> icefloe.ExportReport:
    return icefloe.Repository.open(source).export_to_zarr(target, "main", **options)


@SPECS
def test_a_whole_clone(spec: int) -> None:
    source, target = with_a_past(spec), icefloe.in_memory_storage()
    report = clone(source, target, deep=True)
    check_repository_blocking(target.open())
    assert versions(target) == versions(source)
    ours, theirs = stored(target.open()), stored(source.open())
    assert all(theirs[key] == data for key, data in ours.items())
    mutable = [key for key in theirs if not key.startswith((*KEPT, "overwritten/"))]
    assert all(key in ours for key in mutable)
    lists_more = spec == 2  # versions that no branch leads to, until they are collected
    needed = {key for key in needed_by_refs(theirs) if key in theirs}
    found = {key for key in ours if key.startswith(KEPT)}
    assert needed < found if lists_more else needed == found
    assert report.objects_copied["chunks"] == sum(key.startswith("chunks/") for key in found)
    assert report.bytes_copied == sum(len(data) for key, data in ours.items() if key not in mutable)
    assert report.objects_compared == sum(report.objects_copied.values())
    assert not report.is_server_side
    again = clone(source, target)
    assert again.was_complete
    assert sum(again.objects_copied.values()) == 0


@SPECS
def test_one_version(spec: int) -> None:
    source = with_a_past(spec)
    repo = icefloe.Repository.open(source)
    before = versions(source)
    tip, kept = repo.lookup_branch("main"), repo.lookup_tag("kept")
    moment = next(one for one in repo.ancestry(branch="main") if one.id == kept).written_at
    for snapshot, branches, tags, options in (
        (tip, {"main"}, set(), {"branch": "main"}),
        (kept, {"main"}, {"kept"}, {"tag": "kept"}),
        (kept, {"main"}, set(), {"snapshot_id": kept}),
        (kept, {"main"}, set(), {"branch": "main", "as_of": moment}),
        (repo.lookup_branch("old"), {"main", "old"}, set(), {"branch": "old"}),
    ):
        target = icefloe.in_memory_storage()
        report = clone(source, target, **options)
        check_repository_blocking(target.open())
        alone = icefloe.Repository.open(target)
        assert alone.list_branches() == branches
        assert alone.list_tags() == tags
        history = [one.id for one in alone.ancestry(branch="main")]
        assert history[0] == snapshot
        assert len(history) == report.versions == 2
        assert {one: files for one, files in versions(target).items() if one != history[1]} == {
            snapshot: before[snapshot]
        }
        session = alone.writable_session("main")
        run_blocking(put_chunk(session, 2, 9, BIG))
        session.commit("goes on")
        check_repository_blocking(target.open())


# -- interrupted ---------------------------------------------------------------------------


def traced(work: Work, source: Storage) -> int:
    backend = FaultyBackend(icefloe.in_memory_storage().open())
    work(source, WrappedStorage(icefloe.in_memory_storage(), lambda _: backend))
    return len(backend.trace)


def half_done(work: Work, source: Storage, fault: Any) -> tuple[Storage, BaseException | None]:
    target = icefloe.in_memory_storage()
    try:
        work(source, WrappedStorage(target, lambda inner: FaultyBackend(inner, fault)))
    except (SimulatedCrash, IcefloeError) as end:
        return target, end
    return target, None


def check_half(target: Storage, whole: dict[str, bytes]) -> None:
    """There is a whole clone, or none that could be taken for one."""
    found = stored(target.open())
    if not found.keys() & {"repo", "refs/branch.main/ref.json"}:
        with pytest.raises(RepositoryNotFoundError) as error:
            icefloe.Repository.open(target)
        assert ("not finished" in error.value.message) == (CLONE_MARKER in found)
        return
    check_repository_blocking(target.open())
    assert found.keys() - {CLONE_MARKER} == whole.keys()


@SPECS
@pytest.mark.parametrize(
    ("version", "every"),
    [({}, every_crash), ({"tag": "kept"}, every_failure)],
    ids=["everything", "one version"],
)
def test_a_clone_that_is_interrupted_at_every_step(
    spec: int, version: dict[str, Any], every: Callable[[int], Iterator[Crash | Fail]]
) -> None:
    source = with_a_past(spec)

    def work(source: Storage, target: Storage) -> Any:
        return clone(source, target, **version)

    target = icefloe.in_memory_storage()
    work(source, target)
    whole = stored(target.open())
    for fault in every(traced(work, source)):
        target, end = half_done(work, source, fault)
        assert end is not None or (fault.step, fault.moment) in LOOKS_IN_VAIN, fault
        check_half(target, whole)
        there = {key for key in stored(target.open()) if key.startswith(KEPT)}
        report = work(source, target)
        copied_now = sum(report.objects_copied.values())
        if not version and spec == 2:  # nothing is written twice
            backups = sum(key.startswith("overwritten/") for key in whole)
            needed = sum(key.startswith(KEPT) for key in whole) + backups
            assert report.was_complete or copied_now <= needed - len(there)
        found = stored(target.open())
        assert found.keys() == whole.keys()
        check_repository_blocking(target.open())
        if not version:
            assert found == whole


def test_an_export_that_is_interrupted_at_every_step() -> None:
    source = with_a_past(2)
    target = icefloe.in_memory_storage()
    export(source, target)
    whole = stored(target.open())
    steps = traced(export, source)
    for fault in [*every_crash(steps), *every_failure(steps)]:
        target, _ = half_done(export, source, fault)
        found = stored(target.open())
        assert "zarr.json" not in found or found.keys() >= whole.keys()
        there = sum("/c/" in key for key in found)
        if found == whole:
            continue  # and so, not to be written over
        report = export(source, target)
        assert report.chunks_copied == report.chunks - there
        assert stored(target.open()) == whole


# -- places --------------------------------------------------------------------------------


def test_places_that_are_in_use_are_refused() -> None:
    source = with_a_past(2)
    used = icefloe.in_memory_storage()
    icefloe.Repository.create(used)
    before = stored(used.open())
    for work in (clone, export):
        with pytest.raises(icefloe.InvalidInputError) as error:
            work(source, used)
        assert error.value.kind == "parent-directory-not-clean"
    assert stored(used.open()) == before
    with pytest.raises(icefloe.InvalidInputError, match="onto itself"):
        clone(source, source)
    for marker, other in (("clone", "a clone"), ("export", "an export")):
        target = icefloe.in_memory_storage()
        note = json.dumps({"of": other, "snapshot": "another"}).encode()
        run_blocking(target.open().put(f"{marker}-in-progress.json", note))
        with pytest.raises(icefloe.InvalidInputError, match=f"{other}, snapshot another"):
            (clone if marker == "clone" else export)(source, target)


def test_updating_a_clone() -> None:
    source, target = with_a_past(2), icefloe.in_memory_storage()
    clone(source, target)
    repo = icefloe.Repository.open(source)
    session = repo.writable_session("main")
    run_blocking(put_chunk(session, 6, 66, BIG))
    session.commit("later")
    with pytest.raises(icefloe.InvalidInputError, match="not the same"):
        clone(source, target)
    report = clone(source, target, update=True)
    assert report.objects_copied["chunks"] == report.objects_copied["snapshots"] == 1
    check_repository_blocking(target.open())
    assert versions(target) == versions(source)
    other = icefloe.Repository.open(target).writable_session("main")
    run_blocking(put_chunk(other, 6, 67, BIG))
    other.commit("in the clone")
    with pytest.raises(icefloe.ConflictError, match="1 version that the source does not list"):
        clone(source, target, update=True)


@SPECS
def test_what_is_lost_in_the_source_makes_no_clone(spec: int) -> None:
    for prefix in ("chunks/", "manifests/", "snapshots/"):
        source, target = with_a_past(spec), icefloe.in_memory_storage()
        keys = [key for key in needed_by_refs(stored(source.open())) if key.startswith(prefix)]
        run_blocking(source.open().delete_many(keys[:1]))
        with pytest.raises(icefloe.NotFoundError):
            clone(source, target)
        with pytest.raises(RepositoryNotFoundError):
            icefloe.Repository.open(target)


def test_lost_logs_are_told() -> None:
    source, target = with_a_past(2), icefloe.in_memory_storage()
    logs = [key for key in listing(source.open()) if key.startswith("transactions/")]
    lost = next(key for key in logs if "1CECHNKREP0F1RSTCMT0" not in key)
    run_blocking(source.open().delete_many([lost]))
    report = clone(source, target)
    assert report.objects_missing == {"transaction_logs": 1}
    assert "1 transaction logs are lost in the source" in "".join(report.notes())
    assert versions(target) == versions(source)


def test_a_deep_clone_puts_damage_right() -> None:
    source, target = with_a_past(2), icefloe.in_memory_storage()
    clone(source, target)
    backend = target.open()
    chunk = min(key for key in listing(backend) if key.startswith("chunks/"))
    good = stored(backend)[chunk]
    run_blocking(backend.put(chunk, bytes(len(good))))
    assert clone(source, target).was_complete
    report = clone(source, target, deep=True)
    assert report.objects_copied["chunks"] == 1
    assert stored(backend)[chunk] == good


# -- others --------------------------------------------------------------------------------


@SPECS
def test_commits_while_cloning_change_nothing(spec: int) -> None:
    source, target = with_a_past(spec), icefloe.in_memory_storage()
    before = versions(source)
    repo = icefloe.Repository.open(source)
    commits: list[str] = []

    def commit(done: int, _: int) -> None:
        if done % 3 == 0:
            session = repo.writable_session("main")
            run_blocking(put_chunk(session, 5, done % 200 + 1, BIG))
            commits.append(session.commit("meanwhile"))

    clone(source, target, on_progress=commit, deep=True)
    assert len(commits) > 3
    check_repository_blocking(target.open())
    assert versions(target) == before


@pytest.mark.parametrize("key", ["repo", "clone-in-progress"])
def test_two_clones_to_one_place(key: str) -> None:
    origin = with_a_past(2)

    def play(schedule: Schedule) -> ScheduleRun:
        targets[:] = [icefloe.in_memory_storage()]
        stepping = SteppingStorage(targets[0], (key,))
        repo = icefloe.Repository.open(origin)
        return run_schedule([repo.clone_to_async(stepping) for _ in range(2)], schedule)

    targets: list[Storage] = []
    for run in all_schedules(play, limit=20_000):
        assert all(one.succeeded for one in run.outcomes), run
        check_repository_blocking(targets[0].open())
        assert CLONE_MARKER not in listing(targets[0].open())


@cache
def _arrays() -> Storage:
    storage = icefloe.in_memory_storage()
    config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=100)
    repo = icefloe.Repository.create(storage, config)
    with repo.transaction("main", message="data") as store:
        root = zarr.create_group(store, attributes={"title": "é"})
        root.create_array("small", shape=(), dtype="i4")[...] = 7
        big = root.create_group("grüße/sub").create_array(
            "big #1~", shape=(100, 30), chunks=(40, 7), dtype="f8", dimension_names=("y", "x")
        )
        big[:] = 1.5
        big[50:, :] = 0
    return storage


def test_the_time_of_a_version_is_that_of_its_clone() -> None:
    target = icefloe.in_memory_storage()
    clone(copied(_arrays()), target, branch="main", as_of=datetime.now(UTC))
    assert [one.message for one in icefloe.Repository.open(target).ancestry(branch="main")] == [
        "data",
        "Repository initialized",
    ]
