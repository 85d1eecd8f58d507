from collections.abc import AsyncIterator, Sequence

import pytest

from icefloe.config import (
    EffectiveStorageSettings,
    StorageRetriesSettings,
    StorageSettings,
    StorageTimeoutSettings,
    effective_storage_settings,
)
from icefloe.effects import run_blocking
from icefloe.errors import StorageError
from icefloe.storage.memory import MemoryBackend
from icefloe.storage.metering import Meter
from icefloe.storage.port import DeleteReport, ObjectInfo
from icefloe.storage.retrying import Attempts, RetryingBackend
from icefloe.testing.faulty import Fail, FaultyBackend


def settings(
    tries: int, initial_ms: int = 0, limit_ms: int | None = None
) -> EffectiveStorageSettings:
    return effective_storage_settings(
        StorageSettings(
            retries=StorageRetriesSettings(tries, initial_ms, 1000),
            timeouts=StorageTimeoutSettings(operation_timeout_ms=limit_ms),
        )
    )


class TestAttempts:
    def test_pauses_grow_up_to_a_bound(self) -> None:
        longest: list[float] = []

        def draw(low: float, high: float) -> float:
            longest.append(high)
            return low

        attempts = Attempts(settings(8, 100), draw=draw)
        while run_blocking(attempts.pause()):
            pass
        assert longest == [0.1, 0.2, 0.4, 0.8, 1, 1, 1]

    def test_one_try_is_no_pause(self) -> None:
        assert not run_blocking(Attempts(settings(1)).pause())

    def test_the_operation_ends_in_time(self) -> None:
        now = 100.0
        attempts = Attempts(settings(50, limit_ms=2500), clock=lambda: now)
        assert run_blocking(attempts.pause())
        now += 2.4
        assert run_blocking(attempts.pause())
        now += 0.2
        assert not run_blocking(attempts.pause())

    def test_retries_are_reported(self) -> None:
        count = 0

        def note() -> None:
            nonlocal count
            count += 1

        attempts = Attempts(settings(4), note)
        while run_blocking(attempts.pause()):
            pass
        assert count == 3


def test_lasting_failures_are_not_repeated() -> None:
    faulty = FaultyBackend(MemoryBackend(), Fail(0, "before"))
    with pytest.raises(StorageError):
        run_blocking(RetryingBackend(faulty, settings(5), Meter()).head("x"))
    assert len(faulty.trace) == 1


class Pages(MemoryBackend):
    """Lists in pages, of which some break; in order or not."""

    def __init__(self, pages: Sequence[Sequence[str]], breaks_at: Sequence[int]) -> None:
        super().__init__()
        self.pages = pages
        self.breaks_at = list(breaks_at)

    async def list(self, prefix: str = "") -> AsyncIterator[list[ObjectInfo]]:
        for number, page in enumerate(self.pages):
            if self.breaks_at and self.breaks_at[0] == number:
                self.breaks_at.pop(0)
                raise StorageError("broken", retryable=True)
            yield [(await self.head(key)).info for key in page]


async def listed(backend: RetryingBackend) -> list[str]:
    return [info.key async for batch in backend.list() for info in batch]


def pages(names: Sequence[str], breaks_at: Sequence[int]) -> RetryingBackend:
    inner = Pages([list(page) for page in names], breaks_at)
    for key in "".join(names):
        run_blocking(inner.put(key, b""))
    return RetryingBackend(inner, settings(4), Meter())


class TestListing:
    @pytest.mark.parametrize("breaks_at", [[], [0], [1], [2], [2, 1, 0]])
    def test_a_broken_listing_is_resumed(self, breaks_at: list[int]) -> None:
        assert run_blocking(listed(pages(["abc", "de", "f"], breaks_at))) == list("abcdef")

    def test_without_order_only_from_the_start(self) -> None:
        assert run_blocking(listed(pages(["bac", "fed"], [0]))) == list("bacfed")
        with pytest.raises(StorageError):
            run_blocking(listed(pages(["bac", "fed"], [1])))

    def test_it_gives_up(self) -> None:
        with pytest.raises(StorageError):
            run_blocking(listed(pages(["abc", "de"], [1, 1, 1, 1])))


class Stubborn(MemoryBackend):
    """Deletes some keys only after a few attempts, some never."""

    def __init__(self, attempts_needed: dict[str, int]) -> None:
        super().__init__()
        self.needed = attempts_needed
        self.asked: list[list[str]] = []

    async def delete_many(self, keys: Sequence[str]) -> DeleteReport:
        self.asked.append(sorted(keys))
        failures = {}
        for key in keys:
            self.needed[key] -= 1
            if self.needed[key] > 0:
                failures[key] = "not yet"
        lasting = {key for key in failures if key.startswith("never")}
        return DeleteReport(
            len(keys) - len(failures), failures, frozenset(failures.keys() - lasting)
        )


def test_only_failed_deletions_are_repeated() -> None:
    inner = Stubborn({"a": 1, "b": 2, "c": 3, "d": 99, "never": 99})
    report = run_blocking(
        RetryingBackend(inner, settings(4), Meter()).delete_many(["a", "b", "c", "d", "never"])
    )
    assert inner.asked == [["a", "b", "c", "d", "never"], ["b", "c", "d"], ["c", "d"], ["d"]]
    assert report.deleted == 3
    assert dict(report.failures) == {"d": "not yet", "never": "not yet"}
