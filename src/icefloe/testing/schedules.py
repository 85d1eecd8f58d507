"""Races that always end the same way: several coroutines of the core, driven step by step.

A coroutine runs until its next request to a `SteppingBackend`, where it pauses; then the
schedule says who goes on. No thread and no event loop is involved, so a schedule can be played
again, all schedules can be tried one after the other, and a property test can draw them::

    def race(schedule: Schedule) -> ScheduleRun:
        storage = SteppingStorage(Storage.new_in_memory())
        ...  # a repository, and two sessions with changes
        return run_schedule([one.commit_async("a"), two.commit_async("b")], schedule)

    for run in all_schedules(race):
        ...  # look at run.outcomes, and at what is stored

A coroutine that is closed at a pause is a process that died there.
"""

from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, Final

from icefloe.config import Attribution, EffectiveStorageSettings, StorageSettings
from icefloe.effects import pause, stepped_context
from icefloe.records import MutableRecord, Record, field
from icefloe.storage.port import (
    Backend,
)
from icefloe.storage.storage import Storage
from icefloe.storage.wrapper import PrecededBackend

type Schedule = Sequence[int]
"""Who goes on at each turn, as a place among those still running; afterwards the first does."""

MUTABLE_KEYS: Final = ("repo", "refs/", "config.yaml")
"""Only requests for these can race; all other files are written once, under names of their own."""


class Outcome(Record):
    """The result of a coroutine."""

    result: Any = None
    error: BaseException | None = None
    crashed: bool = False
    steps: int = 0
    """How often it paused."""

    @property
    def succeeded(self) -> bool:
        """Whether it returned."""
        return self.error is None and not self.crashed


class ScheduleRun(Record):
    """The result of a schedule."""

    outcomes: tuple[Outcome, ...]
    """In the order of the coroutines."""
    choices: tuple[int, ...]
    """The schedule that was in fact played."""
    alternatives: tuple[int, ...]
    """Among how many each choice was made."""


class _Actor(MutableRecord):
    work: Coroutine[Any, Any, Any]
    crash_after: int | None
    steps: int = 0
    outcome: Outcome | None = None
    context: Any = field(default_factory=stepped_context)

    def go_on(self) -> None:
        if self.crash_after is not None and self.steps >= self.crash_after:
            self.work.close()
            self.outcome = Outcome(crashed=True, steps=self.steps)
            return
        try:
            self.context.run(self.work.send, None)
            self.steps += 1
        except StopIteration as done:
            self.outcome = Outcome(result=done.value, steps=self.steps)
        except Exception as failure:  # noqa: BLE001 - it is what the test asks about
            self.outcome = Outcome(error=failure, steps=self.steps)


def run_schedule(
    coroutines: Sequence[Coroutine[Any, Any, Any]],
    schedule: Schedule = (),
    *,
    crashes: Mapping[int, int] | None = None,
) -> ScheduleRun:
    """Drive coroutines to their ends, one step at a time.

    `crashes` names coroutines that die, each after this many of its steps.
    """
    actors = [_Actor(work, (crashes or {}).get(number)) for number, work in enumerate(coroutines)]
    choices, alternatives = list[int](), list[int]()
    while running := [actor for actor in actors if actor.outcome is None]:
        turn = len(choices)
        choice = schedule[turn] % len(running) if turn < len(schedule) else 0
        choices.append(choice)
        alternatives.append(len(running))
        running[choice].go_on()
    outcomes = tuple(actor.outcome for actor in actors if actor.outcome is not None)
    return ScheduleRun(outcomes, tuple(choices), tuple(alternatives))


def all_schedules(
    play: Callable[[Schedule], ScheduleRun], *, limit: int = 100_000
) -> Iterator[ScheduleRun]:
    """Play every schedule there is, each from the beginning.

    `play` makes everything again and runs one schedule. More than `limit` of them are an error:
    then draw schedules at random instead.

    >>> async def twice(log, name):
    ...     await pause()
    ...     log.append(name)
    >>> orders = set()
    >>> def race(schedule):
    ...     log = []
    ...     run = run_schedule([twice(log, "a"), twice(log, "b")], schedule)
    ...     orders.add("".join(log))
    ...     return run
    >>> len(list(all_schedules(race))), sorted(orders)
    (6, ['ab', 'ba'])
    """
    schedule: list[int] | None = []
    played = 0
    while schedule is not None:
        if played >= limit:
            raise RuntimeError(f"more than {limit} schedules: pause at fewer requests")
        run = play(tuple(schedule))
        played += 1
        yield run
        schedule = _following(run)


def _following(run: ScheduleRun) -> list[int] | None:
    """Return the schedule after this one: another choice at the last turn that has one left."""
    for turn in reversed(range(len(run.choices))):
        if run.choices[turn] + 1 < run.alternatives[turn]:
            return [*run.choices[:turn], run.choices[turn] + 1]
    return None


class SteppingBackend(PrecededBackend):
    """Pauses before each request to another backend, so that others may go first."""

    def __init__(self, inner: Backend, prefixes: tuple[str, ...] = ("",)) -> None:
        super().__init__(inner)
        self._prefixes = prefixes
        """Keys before whose requests it pauses; the others are no matter of a race."""

    async def _before(self, *keys: str, writes: bool) -> None:
        if any(key.startswith(self._prefixes) for key in keys):
            await pause()


class WrappedStorage(Storage):
    """A storage whose backend is put into another one, for example one that fails.

    >>> from icefloe.testing.faulty import FaultyBackend
    >>> storage = WrappedStorage(Storage.new_in_memory(), FaultyBackend)
    >>> storage.list_objects()
    []
    """

    def __init__(self, inner: Storage, wrap: Callable[[Backend], Backend]) -> None:
        super().__init__(inner.spec)
        self._memory = inner._memory  # noqa: SLF001 - the same objects in memory, too
        self._inner = inner
        self._wrap = wrap
        self._backend: Backend | None = None

    @property
    def backend(self) -> Backend:
        """The backend that receives all requests."""
        if self._backend is None:
            self._backend = self._wrap(self._inner.open())
        return self._backend

    def open(
        self,
        settings: StorageSettings | EffectiveStorageSettings | None = None,
        attribution: Attribution | None = None,
    ) -> Backend:
        """Return the wrapped backend; it keeps the settings of its first use."""
        if self._backend is None:
            self._backend = self._wrap(self._inner.open(settings, attribution))
        return self._backend


class SteppingStorage(WrappedStorage):
    """A storage that pauses before each request for one of some keys."""

    def __init__(self, inner: Storage, prefixes: tuple[str, ...] = ("",)) -> None:
        super().__init__(inner, lambda backend: SteppingBackend(backend, prefixes))
