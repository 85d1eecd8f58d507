"""Reads of one object that come together become one request; reads in order are read ahead.

A read ends in one of three ways: with bytes that are held (`held`), with the answer to a
request that is on its way, or with a request of its own. Who makes a request is one of the
readers it serves, on its own thread or task; the others wait for it. What to ask for is
decided in `windows`.

A request for several reads may fail because of one of them, or because it is too large for the
network or the server. Then everybody asks for itself, and gets the error that is its own.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable

from icefloe.effects import Company, Landing, company, let_others_join
from icefloe.engine.virtual.held import HeldWindows, cut
from icefloe.engine.virtual.windows import Limits, Progress, Request, merge_reads, read_ahead
from icefloe.errors import ErrorKind, IcefloeError, StorageError
from icefloe.forks import renew_lock_in_children
from icefloe.storage import ByteRange, Fetched

type Fetch = Callable[[ByteRange], Awaitable[Fetched]]
"""Reads a range of an object, all of it, or fails."""

type _Landed = Fetched | IcefloeError | None
"""How a request ended; None: let everybody ask for itself."""


class _Read:
    """One reader, waiting to be assigned to a request."""

    __slots__ = ("byte_range", "flight", "source")

    def __init__(self, source: Hashable, byte_range: ByteRange) -> None:
        self.source = source
        self.byte_range = byte_range
        self.flight: _Flight | None = None


class _Flight:
    """A request on its way, and who makes it."""

    __slots__ = ("landing", "leader", "request", "unread_bytes")

    def __init__(self, request: Request, leader: _Read) -> None:
        self.request = request
        self.unread_bytes = request.ahead_bytes
        self.leader = leader
        self.landing = Landing[_Landed]()


class Coalescer:
    """Reads ranges of objects with few requests.

    Safe to use from several threads and event loops of one process. They share what is held;
    requests on their way are shared by threads, and by the tasks of one loop.
    """

    def __init__(
        self, limits: Limits | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limits = limits or Limits()
        self._clock = clock
        self._lock = threading.Lock()
        renew_lock_in_children(self)
        self._held = HeldWindows(self._limits)
        self._progress: OrderedDict[Hashable, Progress] = OrderedDict()
        self._gathering: dict[tuple[Company, Hashable], list[_Read]] = {}
        self._flights: dict[tuple[Company, Hashable], list[_Flight]] = {}

    @property
    def held_bytes(self) -> int:
        """How much is kept for reads to come, or on its way for them."""
        with self._lock:
            return self._held.total_bytes

    async def read(self, source: Hashable, byte_range: ByteRange, fetch: Fetch) -> Fetched:
        """Read a range, which is not empty, of the object that `source` names.

        The bytes come with the state of the object that they are of. `fetch` reads any range
        of this object.
        """
        place = (company(), source)
        with self._lock:
            held = self._held.find(source, byte_range, self._clock())
            if held is not None:
                return held
            flight = self._on_its_way(place, byte_range)
            read = _Read(source, byte_range)
            if flight is None:
                self._gathering.setdefault(place, []).append(read)
            else:
                flight.unread_bytes -= flight.request.ahead_of(byte_range)
        if flight is None:
            flight = await self._assigned(place, read)
            if flight.leader is read:
                return await self._lead(place, read, flight, fetch)
        landed = await flight.landing.wait()
        if isinstance(landed, Fetched):
            return cut(landed, flight.request.start, byte_range)
        if landed is not None:
            raise landed
        return await fetch(byte_range)

    def _on_its_way(self, place: tuple[Company, Hashable], byte_range: ByteRange) -> _Flight | None:
        flights = self._flights.get(place, ())
        return next((each for each in flights if each.request.covers(byte_range)), None)

    async def _assigned(self, place: tuple[Company, Hashable], read: _Read) -> _Flight:
        """Wait for those who come at the same time; the first to go on plans for all."""
        try:
            await let_others_join()
        except BaseException:
            self._withdraw(place, read)
            raise
        with self._lock:
            if read.flight is None:
                self._plan(place)
        assert read.flight is not None
        return read.flight

    def _plan(self, place: tuple[Company, Hashable]) -> None:
        reads = self._gathering.pop(place)
        progress = self._progress.get(place[1], Progress())
        for merged in merge_reads([each.byte_range for each in reads], self._limits):
            request, progress = read_ahead(progress, merged, self._limits, self._held.allowance())
            if request.ahead_bytes:
                self._held.reserve(place[1], request)
            flight = _Flight(request, leader=reads[min(request.rows)])
            self._flights.setdefault(place, []).append(flight)
            for row in request.rows:
                reads[row].flight = flight
        self._remember(place[1], progress)

    def _remember(self, source: Hashable, progress: Progress) -> None:
        self._progress[source] = progress
        self._progress.move_to_end(source)
        if len(self._progress) > self._limits.objects:
            self._progress.popitem(last=False)

    def _withdraw(self, place: tuple[Company, Hashable], read: _Read) -> None:
        """Take back a read whose task was cancelled before it went on."""
        with self._lock:
            if read.flight is None:
                self._gathering[place].remove(read)
                if not self._gathering[place]:
                    del self._gathering[place]
                return
        if read.flight.leader is read:
            self._land(place, read.flight, None)

    async def _lead(
        self, place: tuple[Company, Hashable], read: _Read, flight: _Flight, fetch: Fetch
    ) -> Fetched:
        landed: _Landed = None
        request = flight.request
        try:
            landed = await fetch(request.window)
            return cut(landed, request.start, read.byte_range)
        except IcefloeError as failure:
            if not _depends_on_range(failure):
                landed = failure
            if landed is not None or request.window == read.byte_range:
                raise
        finally:
            self._land(place, flight, landed)
        return await fetch(read.byte_range)

    def _land(self, place: tuple[Company, Hashable], flight: _Flight, landed: _Landed) -> None:
        source, request = place[1], flight.request
        with self._lock:
            flights = self._flights[place]
            flights.remove(flight)
            if not flights:
                del self._flights[place]
            progress = self._progress.get(source, Progress())
            if isinstance(landed, Fetched):
                self._remember(source, progress.answered(landed.info.size_bytes))
                if request.ahead_bytes:
                    self._held.keep(source, request, landed, flight.unread_bytes, self._clock())
            else:
                self._remember(source, progress.failed(request))
                if request.ahead_bytes:
                    self._held.release(request)
        flight.landing.land(landed)


def _depends_on_range(failure: IcefloeError) -> bool:
    """Tell whether another range of the object, or a shorter one, may be read all the same."""
    if failure.kind == ErrorKind.INVALID_BYTE_RANGE:
        return True
    return isinstance(failure, StorageError) and failure.retryable
