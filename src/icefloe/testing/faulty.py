"""A storage that fails, crashes or misleads where a test wants it to.

Every call through the port is a numbered *step*; a listing takes one step for each batch, a
deletion one for each key, so that a crash can fall in between. First run a scenario to learn
its steps, then again for each of them::

    steps = len(recorded.trace)
    for fault in every_crash(steps):
        backend = FaultyBackend(fresh(), fault)
        with pytest.raises(SimulatedCrash):
            run_blocking(scenario(backend))
        check_invariants(backend.inner)

It wraps a real backend and keeps nothing of its own but the trace.
"""

import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, Literal

from icefloe.errors import ObjectNotFoundError, StorageError
from icefloe.records import Record, replace
from icefloe.storage.port import Backend, DeleteReport, Fetched, ObjectInfo
from icefloe.storage.wrapper import BackendWrapper, Verb

type Operation = Literal["get", "get_ranges", "put", "list", "head", "copy", "delete"]
type Moment = Literal["before", "after"]

type _Batch = list[ObjectInfo]

_READS: Final = frozenset({"get", "get_ranges"})


class SimulatedCrash(BaseException):
    """The process died here; no `except Exception` may catch it."""


class Step(Record):
    """One thing that was asked of the storage."""

    number: int
    """Counted from 0."""
    operation: Operation
    key: str
    """For a listing its prefix, for a copy its source."""


class Crash(Record):
    """Die at a step: it and all later ones raise `SimulatedCrash`."""

    step: int
    moment: Moment
    """Whether the step itself still takes effect (`after`)."""


class Fail(Record):
    """Fail one step with a `StorageError`; later ones work again."""

    step: int
    moment: Moment
    retryable: bool = False


class ShortRead(Record):
    """Return fewer bytes than asked for, as a broken storage would."""

    step: int
    kept_bytes: int


type Fault = Crash | Fail | ShortRead


def every_crash(steps: int) -> Iterator[Crash]:
    """Go through all places where a scenario of this many steps can die.

    >>> [(crash.step, crash.moment) for crash in every_crash(2)]
    [(0, 'before'), (0, 'after'), (1, 'before'), (1, 'after')]
    """
    moments: tuple[Moment, ...] = ("before", "after")
    for step in range(steps):
        yield from (Crash(step, moment) for moment in moments)


def every_failure(steps: int, *, retryable: bool = False) -> Iterator[Fail]:
    """Go through all single failures in a scenario of this many steps.

    >>> len(list(every_failure(5)))
    10
    """
    for crash in every_crash(steps):
        yield Fail(crash.step, crash.moment, retryable)


class FaultyBackend(BackendWrapper):
    """A backend around a backend, with faults at chosen steps."""

    def __init__(self, inner: Backend, *faults: Fault) -> None:
        super().__init__(inner)
        self._faults = {fault.step: fault for fault in faults}
        self._trace: list[Step] = []
        self._is_dead = False
        self._frozen_lists: list[ObjectInfo] | None = None
        self._lock = threading.Lock()

    @property
    def trace(self) -> list[Step]:
        """All steps so far, in their order, also those that failed."""
        with self._lock:
            return list(self._trace)

    async def freeze_lists(self) -> None:
        """Make listings show the present objects from now on, whatever happens later."""
        self._frozen_lists = [info async for batch in self.inner.list() for info in batch]

    def thaw_lists(self) -> None:
        """Make listings show the real objects again."""
        self._frozen_lists = None

    async def around(self, verb: Verb, *arguments: Any, **options: Any) -> Any:
        """Send a request on, unless the step is to fail."""
        assert verb != "delete_many"
        step = self._begin(verb, arguments[0])
        answer = await self._do(step, partial(getattr(self.inner, verb), *arguments, **options))
        match self._faults.get(step.number), answer:
            case ShortRead(kept_bytes=kept), Fetched():
                return replace(answer, data=memoryview(answer.data)[:kept])
            case ShortRead(kept_bytes=kept), _:
                return [memoryview(buffer)[:kept] for buffer in answer]
        return answer

    async def delete_many(self, keys: Sequence[str]) -> DeleteReport:
        """Delete one by one, so that a crash can leave some of them."""
        deleted = 0
        failures: dict[str, str] = {}
        retryable: set[str] = set()
        absent: set[str] = set()
        for key in dict.fromkeys(keys):
            step = self._begin("delete", key)
            try:
                report = await self._do(step, partial(self.inner.delete_many, [key]))
            except StorageError as failure:
                failures[key] = failure.message
                retryable |= {key} if failure.retryable else set()
            else:
                deleted += report.deleted
                failures |= report.failures
                retryable |= report.retryable
                absent |= report.absent
        return DeleteReport(deleted, failures, frozenset(retryable), frozenset(absent))

    async def list(self, prefix: str = "") -> AsyncIterator[list[ObjectInfo]]:
        """List, one step for each batch; also one step if there is nothing to list."""
        is_first = True
        async for batch in self._batches(prefix):
            is_first = False
            await self._list_step(prefix)
            yield batch
        if is_first:
            await self._list_step(prefix)

    async def _list_step(self, prefix: str) -> None:
        """Take a step for a batch already fetched: reading it has no effect to prevent."""

        async def nothing() -> None: ...

        await self._do(self._begin("list", prefix), nothing)

    def _begin(self, operation: Operation, key: str) -> Step:
        with self._lock:
            if self._is_dead:
                raise SimulatedCrash(f"{operation} of {key!r} by a process that is dead")
            step = Step(len(self._trace), operation, key)
            self._trace.append(step)
            return step

    async def _do[T](self, step: Step, act: Callable[[], Awaitable[T]]) -> T:
        fault = self._faults.get(step.number)
        self._strike(fault, step, "before")
        try:
            result = await act()
        except ObjectNotFoundError:
            self._strike(fault, step, "after")  # the answer that there is none gets lost, too
            raise
        self._strike(fault, step, "after")
        return result

    def _strike(self, fault: Fault | None, step: Step, moment: Moment) -> None:
        match fault:
            case Crash(moment=at) if at == moment:
                self._is_dead = True
                raise SimulatedCrash(f"crash {moment} {step}")
            case Fail(moment=at, retryable=retryable) if at == moment:
                text = f"simulated failure {moment} {step}"
                raise StorageError(text, retryable=retryable, key=step.key)
            case ShortRead() if step.operation not in _READS:
                raise AssertionError(f"{fault} was planned for a step that does not read: {step}")

    async def _batches(self, prefix: str) -> AsyncIterator[_Batch]:
        if self._frozen_lists is None:
            async for batch in self.inner.list(prefix):
                yield batch
            return
        batch = [info for info in self._frozen_lists if info.key.startswith(prefix)]
        if batch:
            yield batch
