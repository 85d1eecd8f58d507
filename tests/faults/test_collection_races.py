"""Collections and expirations beside others, step by step: no chunk that counts is ever lost.

Where all orders of requests are too many, two families of them are played in full: one is held
up after each of its steps while the others do all of their work, each way round. Others are
drawn at random.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import icefloe
from icefloe.storage import Storage
from icefloe.testing.schedules import (
    MUTABLE_KEYS,
    Schedule,
    ScheduleRun,
    all_schedules,
    run_schedule,
)
from tests.faults.collection_actors import (
    SWEEPS,
    Actor,
    Keys,
    Made,
    amending,
    collecting,
    collecting_incrementally,
    committing,
    committing_to_the_old_branch,
    committing_what_was_written_before,
    expiring,
    flushing,
    flushing_and_tagging,
    forking,
    going_back,
    reading,
    rescuing,
)
from tests.faults.pasts import with_a_past
from tests.property.reachable import read
from tests.support.checking import check_repository_blocking

ALL_KEYS: Keys = ("",)
MAY_LOSE: frozenset[Actor] = frozenset(
    {rescuing, going_back, committing_to_the_old_branch, amending}
)
"""They need what may be gone, or moved, before they come to it: then they are told so."""


class Race:
    """The same actors on a fresh repository, again and again."""

    def __init__(self, spec: int, actors: Sequence[Actor], keys: Keys = ALL_KEYS) -> None:
        self.spec, self.actors, self.keys = spec, actors, keys
        self.storage: Storage

    def play(self, schedule: Schedule) -> ScheduleRun:
        self.storage = with_a_past(self.spec)
        work = [actor(self.storage, self.keys) for actor in self.actors]
        return run_schedule(work, schedule)

    def check(self, run: ScheduleRun) -> None:
        """Everything that refs lead to is there and whole, and what was made is as it was made."""
        check_repository_blocking(self.storage.open())
        repo = icefloe.Repository.open(self.storage)
        for actor, outcome in zip(self.actors, run.outcomes, strict=True):
            if actor in SWEEPS:
                assert outcome.error is None, (actor, run)
                assert getattr(outcome.result, "is_complete", True), (actor, run)
            elif outcome.error is None:
                made = outcome.result
                assert isinstance(made, Made)
                found = read(repo, made.snapshot)
                assert made.chunks.items() <= found.items(), (actor, run.choices)
            else:
                assert actor in MAY_LOSE, (actor, run)
                assert isinstance(outcome.error, icefloe.NotFoundError | icefloe.ConflictError)


def held_up(race: Race) -> Iterator[ScheduleRun]:
    """Hold each actor up after each of its steps, until all others are done."""
    plain = race.play(())
    yield plain
    for place, outcome in enumerate(plain.outcomes):
        others = [other for other in range(len(race.actors)) if other != place]
        for steps in range(outcome.steps + 1):
            yield race.play([place] * steps + [others[0]] * 1000)


def names(value: Any) -> str:
    if isinstance(value, tuple):
        return "-".join(map(names, value))
    return getattr(value, "__name__", str(value))


SHORT_RACES: list[tuple[int, tuple[Actor, ...]]] = [
    (2, (expiring, committing)),
    (2, (expiring, committing_to_the_old_branch)),
    (2, (expiring, rescuing)),
]
PAIRS: list[tuple[int, tuple[Actor, ...]]] = [
    *((2, (collecting, other)) for other in (committing, forking, flushing, reading, amending)),
    *((2, (collecting_incrementally, other)) for other in (forking, reading, rescuing)),
    *((1, (collecting, other)) for other in (committing, forking, flushing)),
    (1, (collecting_incrementally, committing)),
    (1, (expiring, committing)),
    (2, (collecting, committing_what_was_written_before)),
    (2, (collecting, rescuing)),
    (2, (collecting, going_back)),
]
CROWDS: list[tuple[int, tuple[Actor, ...]]] = [
    (1, (collecting, expiring, committing)),
    (2, (collecting, expiring, forking)),
    (2, (collecting, collecting_incrementally, committing)),
    (2, (collecting_incrementally, expiring, reading)),
    (2, (collecting, flushing_and_tagging, amending)),
]


@pytest.mark.parametrize(("spec", "actors"), SHORT_RACES, ids=names)
def test_every_order_of_requests_for_what_changes(spec: int, actors: tuple[Actor, ...]) -> None:
    race = Race(spec, actors, MUTABLE_KEYS)
    count = 0
    for run in all_schedules(race.play, limit=20_000):
        count += 1
        race.check(run)
    assert count > 5


@pytest.mark.parametrize(("spec", "actors"), PAIRS, ids=names)
def test_one_is_held_up_at_every_step(spec: int, actors: tuple[Actor, ...]) -> None:
    race = Race(spec, actors)
    count = 0
    for run in held_up(race):
        count += 1
        race.check(run)
    assert count > 10


@pytest.mark.parametrize(("spec", "actors"), PAIRS, ids=names)
@settings(max_examples=10)
@given(schedule=st.lists(st.integers(0, 1), max_size=80))
def test_random_orders_of_two(spec: int, actors: tuple[Actor, ...], schedule: list[int]) -> None:
    race = Race(spec, actors)
    race.check(race.play(schedule))


@pytest.mark.parametrize(("spec", "actors"), CROWDS, ids=names)
@settings(max_examples=40)
@given(schedule=st.lists(st.integers(0, 2), max_size=120))
def test_random_orders_of_three(spec: int, actors: tuple[Actor, ...], schedule: list[int]) -> None:
    race = Race(spec, actors)
    race.check(race.play(schedule))
