"""Which requests serve the reads of one object, and how far they read ahead. Pure.

Small reads of a file cost a request each, and a request costs far more waiting than bytes. So
reads that come together and lie side by side share a request, and who reads on where an
earlier request ended gets more than asked for, twice as much each time. Reads in any other
order get what they ask for and no more.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from icefloe.storage import ByteRange


@dataclass(frozen=True, slots=True)
class Limits:
    """How much is read at once, read ahead and held."""

    gap_bytes: int = 8 << 10
    """Reads this far apart still share a request: headers and indexes lie between the chunks of
    a file, and skipping them would cost a hundred times what reading them does."""
    mergeable_bytes: int = 2 << 20
    """A longer read is a request of its own: it waits for bytes more than for an answer."""
    window_bytes: int = 16 << 20
    """The most that one request asks for on behalf of several reads."""
    held_bytes: int = 64 << 20
    """The most that is kept for reads to come, with what is on its way for them."""
    held_seconds: float = 15.0
    """How long it waits for the next read: whoever reads on does so soon, and objects change."""
    streams: int = 8
    """How many places of one object are read on from at the same time."""
    objects: int = 256
    """For how many objects these places are remembered."""


@dataclass(frozen=True, slots=True)
class Request:
    """What to fetch at once, and for which of the reads."""

    start: int
    stop: int
    """Where the bytes end that were asked for."""
    end: int
    """Where those end that are fetched: beyond `stop`, if it reads ahead."""
    rows: tuple[int, ...]
    """Which reads it serves."""
    unit: int
    """Length of the last of them: what the next ones may be like."""

    @property
    def window(self) -> ByteRange:
        """The bytes that are fetched."""
        return (self.start, self.end)

    @property
    def size_bytes(self) -> int:
        """How many that are."""
        return self.end - self.start

    @property
    def ahead_bytes(self) -> int:
        """How many of them nobody asked for yet."""
        return self.end - self.stop

    def ahead_of(self, byte_range: ByteRange) -> int:
        """Say how many bytes of a range it reads ahead."""
        start, stop = byte_range
        return max(min(stop, self.end) - max(start, self.stop), 0)

    def covers(self, byte_range: ByteRange) -> bool:
        """Tell whether it brings all bytes of a range."""
        return self.start <= byte_range[0] and byte_range[1] <= self.end


@dataclass(frozen=True, slots=True)
class Progress:
    """What is known about an object, and where it is being read."""

    streams: tuple[ByteRange, ...] = ()
    """The last requests, the newest first."""
    size_bytes: int | None = None
    """As the last answer had it."""
    most_bytes: int | None = None
    """How far to read ahead at most, if a request failed that went further."""

    def answered(self, size_bytes: int) -> Self:
        """Note what a request taught."""
        return self if size_bytes == self.size_bytes else replace(self, size_bytes=size_bytes)

    def failed(self, request: Request) -> Self:
        """Forget a request, so that nothing reads on from it; the next ones ask for less."""
        streams = tuple(stream for stream in self.streams if stream != request.window)
        most = request.size_bytes // 2 if request.ahead_bytes else self.most_bytes
        return replace(self, streams=streams, most_bytes=most)


def merge_reads(reads: Sequence[ByteRange], limits: Limits) -> list[Request]:
    """Find few requests that serve all reads, none of which is empty.

    >>> for request in merge_reads([(100, 200), (0, 100), (10**9, 10**9 + 1)], Limits()):
    ...     print(request.window, request.rows)
    (0, 200) (1, 0)
    (1000000000, 1000000001) (2,)
    """
    requests: list[Request] = []
    for row in sorted(range(len(reads)), key=reads.__getitem__):
        start, stop = reads[row]
        if requests and _may_join(requests[-1], (start, stop), limits):
            last = requests[-1]
            until, unit = (last.stop, last.unit) if stop <= last.stop else (stop, stop - start)
            requests[-1] = Request(last.start, until, until, (*last.rows, row), unit)
        else:
            requests.append(Request(start, stop, stop, (row,), stop - start))
    return requests


def _may_join(request: Request, read: ByteRange, limits: Limits) -> bool:
    start, stop = read
    if stop <= request.stop:
        return True  # it asks for nothing new
    return (
        start <= request.stop + limits.gap_bytes
        and stop - request.start <= limits.window_bytes
        and max(stop - start, request.unit) <= limits.mergeable_bytes
    )


def read_ahead(
    progress: Progress, request: Request, limits: Limits, most_bytes: int
) -> tuple[Request, Progress]:
    """Let a request that goes on where an earlier one ended ask for more, and remember it.

    It gets twice the bytes of the earlier one, but not above `most_bytes`, nor beyond the end
    of the object; never less than it asks for itself.
    """
    if request.unit > limits.mergeable_bytes:
        return request, progress
    earlier = next((s for s in progress.streams if _goes_on(s, request, limits)), None)
    if earlier is not None and progress.size_bytes is not None:
        size = min(2 * (earlier[1] - earlier[0]), most_bytes, progress.most_bytes or most_bytes)
        end = request.start + size
        if end >= progress.size_bytes:
            end = progress.size_bytes
        else:  # reads of the same length will fill it
            end -= (end - request.stop) % request.unit
        request = replace(request, end=max(end, request.stop))
    others = (stream for stream in progress.streams if stream != earlier)
    streams = (request.window, *others)[: limits.streams]
    return request, replace(progress, streams=streams)


def _goes_on(stream: ByteRange, request: Request, limits: Limits) -> bool:
    """Tell whether a request begins where another ended, or a read was cut off by its end."""
    start, end = stream
    return start <= request.start <= end + limits.gap_bytes and request.stop > end
