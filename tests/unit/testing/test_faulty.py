"""The faulty backend strikes where it is told to, and is faithful everywhere else."""

import pytest

from icefloe.effects import run_blocking
from icefloe.errors import ObjectNotFoundError, StorageError
from icefloe.storage.memory import MemoryBackend
from icefloe.storage.port import Backend
from icefloe.testing.faulty import (
    Crash,
    Fail,
    FaultyBackend,
    Operation,
    ShortRead,
    SimulatedCrash,
    every_crash,
    every_failure,
)
from icefloe.testing.storage_suite import StorageConformance, keys_of


class TestWithoutFaults(StorageConformance):
    @pytest.fixture
    def backend(self) -> Backend:
        return FaultyBackend(MemoryBackend())


async def replace(backend: Backend) -> None:
    """Write two objects, delete two others, and end by looking at the result."""
    await backend.put("new/a", b"1")
    await backend.put("new/b", b"2", if_absent=True)
    await backend.delete_many(["old/a", "old/b"])
    assert await keys_of(backend) == ["new/a", "new/b"]


def filled() -> MemoryBackend:
    backend = MemoryBackend()
    for key in ("old/a", "old/b"):
        run_blocking(backend.put(key, b"0"))
    return backend


EFFECTS = (
    {"old/a", "old/b"},
    {"old/a", "old/b", "new/a"},
    {"old/a", "old/b", "new/a", "new/b"},
    {"old/b", "new/a", "new/b"},
    {"new/a", "new/b"},
    {"new/a", "new/b"},
)
"""What is stored after each number of steps of `replace`."""


def test_trace_names_every_step() -> None:
    backend = FaultyBackend(filled())
    run_blocking(replace(backend))
    expected: list[tuple[Operation, str]] = [
        ("put", "new/a"),
        ("put", "new/b"),
        ("delete", "old/a"),
        ("delete", "old/b"),
        ("list", ""),
    ]
    assert [(step.operation, step.key) for step in backend.trace] == expected
    assert [step.number for step in backend.trace] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("crash", list(every_crash(5)), ids=str)
def test_crash_leaves_exactly_the_steps_before_it(crash: Crash) -> None:
    inner = filled()
    backend = FaultyBackend(inner, crash)
    with pytest.raises(SimulatedCrash):
        run_blocking(replace(backend))
    done = crash.step + (crash.moment == "after")
    assert set(run_blocking(keys_of(inner))) == EFFECTS[done]


def test_dead_process_stays_dead() -> None:
    backend = FaultyBackend(filled(), Crash(0, "before"))
    with pytest.raises(SimulatedCrash):
        run_blocking(backend.head("old/a"))
    with pytest.raises(SimulatedCrash):
        run_blocking(backend.head("old/a"))
    assert len(backend.trace) == 1


def test_crash_is_no_exception_to_handle() -> None:
    assert not issubclass(SimulatedCrash, Exception)


@pytest.mark.parametrize("fault", list(every_failure(2, retryable=True)), ids=str)
def test_failure_strikes_once(fault: Fail) -> None:
    inner = filled()
    backend = FaultyBackend(inner, fault)
    with pytest.raises(StorageError) as caught:
        run_blocking(replace(backend))
    assert caught.value.retryable
    done = fault.step + (fault.moment == "after")
    assert set(run_blocking(keys_of(inner))) == EFFECTS[done]
    run_blocking(backend.put("works/again", b""))


def test_failed_deletion_is_reported_and_the_others_go_on() -> None:
    inner = filled()
    backend = FaultyBackend(inner, Fail(0, "before", retryable=True))
    report = run_blocking(backend.delete_many(["old/a", "old/b"]))
    assert report.deleted == 1
    assert set(report.failures) == report.retryable == {"old/a"}
    assert run_blocking(keys_of(inner)) == ["old/a"]


def test_short_reads() -> None:
    inner = filled()
    run_blocking(inner.put("object", b"0123456789"))
    backend = FaultyBackend(inner, ShortRead(0, 3), ShortRead(2, 1))
    assert bytes(run_blocking(backend.get("object")).data) == b"012"
    assert bytes(run_blocking(backend.get("object")).data) == b"0123456789"
    ranges = run_blocking(backend.get_ranges("object", [(0, 2), (5, 9)]))
    assert [bytes(each) for each in ranges] == [b"0", b"5"]


def test_short_write_is_a_mistake_in_the_test() -> None:
    backend = FaultyBackend(filled(), ShortRead(0, 3))
    with pytest.raises(AssertionError, match="does not read"):
        run_blocking(backend.put("object", b"x"))


def test_stale_lists() -> None:
    backend = FaultyBackend(filled())
    run_blocking(backend.freeze_lists())
    run_blocking(backend.delete_many(["old/a"]))
    run_blocking(backend.put("new", b"1"))
    assert run_blocking(keys_of(backend)) == ["old/a", "old/b"]
    assert run_blocking(keys_of(backend, "new")) == []
    with pytest.raises(ObjectNotFoundError):
        run_blocking(backend.get("old/a"))
    backend.thaw_lists()
    assert run_blocking(keys_of(backend)) == ["new", "old/b"]
