"""Committers that race, in every order their requests can come: nothing acknowledged is lost.

Only requests for files that change are turns; all others have names of their own and cannot
race. Every schedule runs on a fresh repository in memory.
"""

from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import icefloe
from icefloe.effects import run_blocking
from icefloe.format.layout import REPO_KEY
from icefloe.storage import Storage
from icefloe.testing.schedules import (
    MUTABLE_KEYS,
    Schedule,
    ScheduleRun,
    SteppingStorage,
    all_schedules,
    run_schedule,
)
from tests.faults.sessions import BIG, prepared, put_chunk, seen_in
from tests.support.checking import check_repository_blocking

SPECS = pytest.mark.parametrize("spec", [1, 2])

type Committer = Callable[[Storage, int], Coroutine[Any, Any, str]]


def stepping(storage: Storage) -> Storage:
    """Pause before requests for files that somebody changes.

    In spec 1 that is not `repo`: nobody migrates the repository here.
    """
    is_spec_1 = icefloe.Repository.fetch_spec_version(storage) == 1
    keys = tuple(key for key in MUTABLE_KEYS if not (is_spec_1 and key == REPO_KEY))
    return SteppingStorage(storage, keys)


def session_of(storage: Storage, number: int) -> icefloe.Session:
    """Open a session as another process would, and write a chunk of its own in it."""
    repo = icefloe.Repository.open(stepping(storage))
    session = repo.writable_session("main")
    run_blocking(put_chunk(session, number + 2, number + 1, BIG))
    return session


def rebasing(storage: Storage, number: int) -> Coroutine[Any, Any, str]:
    session = session_of(storage, number)
    return session.commit_async(f"commit {number}", rebase_with=icefloe.ConflictDetector())


def plain(storage: Storage, number: int) -> Coroutine[Any, Any, str]:
    return session_of(storage, number).commit_async(f"commit {number}")


def amending(storage: Storage, number: int) -> Coroutine[Any, Any, str]:
    return session_of(storage, number).amend_async(f"commit {number}")


async def tag(storage: Storage, number: int) -> str:
    repo = await icefloe.Repository.open_async(stepping(storage))
    name = f"tag {number}"
    await repo.create_tag_async(name, await repo.lookup_branch_async("main"))
    return name


class Race:
    """The same committers on a fresh repository, again and again."""

    def __init__(self, spec: int, *committers: Committer, **options: Any) -> None:
        self.spec = spec
        self.committers = committers
        self.options = options
        self.storage: Storage

    def play(self, schedule: Schedule) -> ScheduleRun:
        self.storage = prepared(self.spec)
        work = [committer(self.storage, n) for n, committer in enumerate(self.committers)]
        return run_schedule(work, schedule, **self.options)

    def check(self, run: ScheduleRun) -> None:
        """What was acknowledged is there, once; the history is a line; the files are sound."""
        check_repository_blocking(self.storage.open())
        repo = icefloe.Repository.open(self.storage)
        ids = [one.id for one in repo.ancestry(branch="main")]
        seen = seen_in(self.storage)
        assert len(set(ids)) == len(ids)
        for number, outcome in enumerate(run.outcomes):
            if outcome.succeeded and self.committers[number] is not tag:
                assert ids.count(outcome.result) == 1, run.choices
                assert seen.files[f"a/c/{number + 2}"] == bytes([number + 1]) * BIG
            if outcome.error is not None:
                assert f"commit {number}" not in seen.messages


@SPECS
def test_two_that_rebase_both_succeed(spec: int) -> None:
    race = Race(spec, rebasing, rebasing)
    count = 0
    for run in all_schedules(race.play):
        count += 1
        assert all(outcome.succeeded for outcome in run.outcomes), run
        race.check(run)
        assert len(seen_in(race.storage).messages) == 4
    assert count > 10


@SPECS
def test_of_two_that_do_not_rebase_one_wins(spec: int) -> None:
    race = Race(spec, plain, plain)
    winners = set()
    for run in all_schedules(race.play):
        won = [outcome.succeeded for outcome in run.outcomes]
        assert won.count(True) == 1, run
        winners.add(won.index(True))
        [loser] = [outcome.error for outcome in run.outcomes if outcome.error is not None]
        assert isinstance(loser, icefloe.ConflictError)
        race.check(run)
    assert winners == {0, 1}


@SPECS
def test_a_tag_does_not_disturb_a_commit(spec: int) -> None:
    race = Race(spec, plain, tag)
    for run in all_schedules(race.play):
        assert all(outcome.succeeded for outcome in run.outcomes), run
        race.check(run)
        assert seen_in(race.storage).tags == {"tag 1"}


def test_of_an_amendment_and_a_commit_one_wins() -> None:
    race = Race(2, amending, plain)
    for run in all_schedules(race.play):
        assert [outcome.succeeded for outcome in run.outcomes].count(True) == 1, run
        race.check(run)


@SPECS
@pytest.mark.parametrize("steps", range(8))
def test_one_dies_and_the_other_goes_on(spec: int, steps: int) -> None:
    race = Race(spec, rebasing, rebasing, crashes={0: steps})
    for run in all_schedules(race.play):
        assert run.outcomes[1].succeeded, run
        race.check(run)
        if run.outcomes[0].succeeded:
            assert len(seen_in(race.storage).messages) == 4


@SPECS
@settings(max_examples=150)
@given(schedule=st.lists(st.integers(0, 2), max_size=40))
def test_three_that_rebase_all_succeed(spec: int, schedule: list[int]) -> None:
    race = Race(spec, rebasing, rebasing, rebasing)
    run = race.play(schedule)
    assert all(outcome.succeeded for outcome in run.outcomes), run
    race.check(run)
    assert len(seen_in(race.storage).messages) == 5


@SPECS
@settings(max_examples=100)
@given(schedule=st.lists(st.integers(0, 2), max_size=40), steps=st.integers(0, 10))
def test_three_of_which_one_dies(spec: int, schedule: list[int], steps: int) -> None:
    race = Race(spec, rebasing, rebasing, plain, crashes={0: steps})
    run = race.play(schedule)
    assert run.outcomes[1].succeeded, run
    race.check(run)
