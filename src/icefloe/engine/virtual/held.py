"""Bytes that were read ahead, until somebody asks for them. Not for several threads at once."""

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass

from icefloe.engine.virtual.windows import Limits, Request
from icefloe.storage import ByteRange, Fetched


def cut(fetched: Fetched, start: int, byte_range: ByteRange) -> Fetched:
    """Take a range out of bytes that begin at `start`, without a copy."""
    first, last = byte_range
    if first == start and last - first == len(fetched.data):
        return fetched
    return Fetched(memoryview(fetched.data)[first - start : last - start], fetched.info)


@dataclass(slots=True)
class _Held:
    request: Request
    fetched: Fetched
    last_read: float
    unread_bytes: int
    was_passed: bool = False
    """Whether its reader has gone on to the next window; gaps between chunks stay unread."""


class HeldWindows:
    """Windows of objects, each kept until all of it was read, or nobody did for a while.

    What is reserved for windows that are on their way counts like what is held. If room is
    short, only windows beyond which the reader has gone on make way for new ones: others would
    have been fetched in vain.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._windows: OrderedDict[tuple[Hashable, int], _Held] = OrderedDict()
        self._starts: dict[Hashable, set[int]] = {}
        self._held_bytes = 0
        self._reserved_bytes = 0

    @property
    def total_bytes(self) -> int:
        """What is held or on its way."""
        return self._held_bytes + self._reserved_bytes

    def find(self, source: Hashable, byte_range: ByteRange, now: float) -> Fetched | None:
        """Give bytes that are held; a window of which all was given is let go."""
        self._expire(now)
        for place, held in self._of(source):
            if held.request.covers(byte_range):
                held.unread_bytes -= held.request.ahead_of(byte_range)
                if held.unread_bytes <= 0:
                    self._drop(place)
                else:
                    held.last_read = now
                    self._windows.move_to_end(place)
                return cut(held.fetched, held.request.start, byte_range)
        return None

    def allowance(self) -> int:
        """Say how large a window may be that is fetched now."""
        passed = sum(held.request.size_bytes for held in self._windows.values() if held.was_passed)
        free = self._limits.held_bytes - self.total_bytes + passed
        return min(self._limits.window_bytes, free)

    def reserve(self, source: Hashable, request: Request) -> None:
        """Make room for a window that is on its way, within the allowance."""
        for _, held in self._of(source):
            if held.request.start <= request.start <= held.request.end + self._limits.gap_bytes:
                held.was_passed = True
        self._reserved_bytes += request.size_bytes
        passed = [place for place, held in self._windows.items() if held.was_passed]
        for place in passed:  # those not read for longest come first
            if self.total_bytes <= self._limits.held_bytes:
                break
            self._drop(place)

    def release(self, request: Request) -> None:
        """Give back the room of a window that did not come."""
        self._reserved_bytes -= request.size_bytes

    def keep(
        self, source: Hashable, request: Request, fetched: Fetched, unread_bytes: int, now: float
    ) -> None:
        """Hold a window for which there is room reserved, unless all of it is spoken for."""
        self.release(request)
        if unread_bytes <= 0:
            return
        place = (source, request.start)
        if place in self._windows:
            self._drop(place)
        self._windows[place] = _Held(request, fetched, now, unread_bytes)
        self._starts.setdefault(source, set()).add(request.start)
        self._held_bytes += request.size_bytes

    def _of(self, source: Hashable) -> Iterator[tuple[tuple[Hashable, int], _Held]]:
        for start in tuple(self._starts.get(source, ())):
            place = (source, start)
            yield place, self._windows[place]

    def _expire(self, now: float) -> None:
        while self._windows:
            place, held = next(iter(self._windows.items()))  # the one not read for longest
            if now - held.last_read <= self._limits.held_seconds:
                return
            self._drop(place)

    def _drop(self, place: tuple[Hashable, int]) -> None:
        held = self._windows.pop(place)
        self._held_bytes -= held.request.size_bytes
        source, start = place
        starts = self._starts[source]
        starts.discard(start)
        if not starts:
            del self._starts[source]
