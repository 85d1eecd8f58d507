"""Trying again what failed in passing, where that is safe.

This layer owns all retries; the client library below is configured to make none. Reads, listings,
copies, deletions and plain writes can be repeated as they are: their effect is the same when
applied twice (keys of plain writes are random or hold the same bytes each time).

Conditional writes cannot. A server may apply a write while its answer is lost; the write is
repeated, and now the condition fails because of our own first attempt. Reporting a conflict would
be false, and repeating without the condition could destroy somebody else's write. So every
conditional write carries a random *write id* in the object's user metadata, the same one in all
attempts, and whenever it matters the object is looked at again. An attempt is *ambiguous* when it
may have been applied although we got no proper answer; `429 Too Many Requests` is not, but every
other failure that may pass is.

========================= ==================== ============================= =================
after                     ambiguous before?    the object now                we
========================= ==================== ============================= =================
success                   any                  (not looked at)               succeed
refused (412, 409)        any                  has our write id              succeed
refused                   any                  absent, on a creation         try again
refused                   any                  in the expected state         try again
refused                   no                   anything else                 report a conflict
refused                   yes                  anything else                 outcome unknown
refused, retryable (409)  any                  not ours                      try again
no proper answer          any                  has our write id              succeed
no proper answer          any                  absent, on a creation         try again
no proper answer          any                  in the expected state         try again
no proper answer          any                  anything else                 outcome unknown
definite failure (403...) no                   (not looked at)               report it
definite failure          yes                  has our write id              succeed
definite failure          yes                  anything else, or no answer   outcome unknown
out of attempts           yes                  not ours                      outcome unknown
========================= ==================== ============================= =================

Trying again is safe although an earlier attempt may still be on its way: both are bound to
the same condition, so at most one is applied, and the write id tells that it was ours. (Only
if somebody deletes an object between our attempts to create it, it may be created again.) A
foreign write id after an ambiguous attempt is *not* a conflict: our write may have landed and
been replaced since. Callers who know that an object is never replaced (tags, for example) may
read it and conclude more.

Without user metadata (`unsafe_use_metadata=False`) no object "has our write id".
"""

import logging
import random
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from operator import le
from typing import Any, Final, Literal, Unpack

from icefloe import effects
from icefloe.config import EffectiveStorageSettings
from icefloe.errors import (
    ObjectNotFoundError,
    OutcomeUnknownError,
    PreconditionFailedError,
    StorageError,
)
from icefloe.records import Record
from icefloe.storage.keys import same_state
from icefloe.storage.metering import Meter
from icefloe.storage.port import Backend, Buffer, DeleteReport, ObjectInfo, PutOptions, Version
from icefloe.storage.wrapper import BackendWrapper, Request, Verb

_log = logging.getLogger(__name__)

WRITE_ID: Final = "icechunkwriteid"
_WRITE_IDS: Final = (WRITE_ID, "icechunk_write_id")  # the second is what older writers used

_TOO_MANY_REQUESTS: Final = 429

type _Sight = Literal["ours", "unchanged", "other", "hidden"]
"""What a look at the object tells; `hidden` is that it could not be looked at."""


class Attempts:
    """The attempts of one operation: call `pause` after each failure that may pass.

    Pauses grow exponentially and are drawn at random below that ("full jitter"), so that
    clients that failed together do not come back together.
    """

    def __init__(
        self,
        settings: EffectiveStorageSettings,
        on_retry: Callable[[], None] = lambda: None,
        *,
        clock: Callable[[], float] = time.monotonic,
        draw: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._retries = settings.retries
        self._left = settings.retries.max_tries - 1
        self._failures = 0
        self._on_retry = on_retry
        self._clock = clock
        self._draw = draw
        limit_ms = settings.timeouts.operation_timeout_ms
        self._deadline = None if limit_ms is None else clock() + limit_ms / 1000

    async def pause(self) -> bool:
        """Wait before the next attempt; False if there is none."""
        if self._left <= 0:
            return False
        retries = self._retries
        longest_ms = min(retries.max_backoff_ms, retries.initial_backoff_ms * 2**self._failures)
        seconds = self._draw(0, longest_ms / 1000)
        if self._deadline is not None and self._clock() + seconds >= self._deadline:
            return False
        self._left -= 1
        self._failures += 1
        self._on_retry()
        _log.info(
            "a request failed in passing: attempt %d of %d follows in %.2f s",
            self._failures + 1,
            retries.max_tries,
            seconds,
        )
        await effects.sleep(seconds)
        return True

    async def repeat[T](self, request: Callable[[], Awaitable[T]]) -> T:
        """Make a request, which may safely be made twice, until it works."""
        while True:
            try:
                return await request()
            except StorageError as error:
                if not error.retryable or not await self.pause():
                    raise


class RetryingBackend(BackendWrapper):
    """Repeats failed requests to another backend, and settles conditional writes."""

    def __init__(self, inner: Backend, settings: EffectiveStorageSettings, meter: Meter) -> None:
        super().__init__(inner)
        self._settings = settings
        self._meter = meter

    async def around(self, verb: Verb, *arguments: Any, **options: Any) -> Any:
        """Send a request, which may safely be sent twice, until it works."""
        try:
            return await getattr(self.inner, verb)(*arguments, **options)
        except StorageError as error:
            # Attempts are only set up when they are needed: this is the path of every read.
            if not error.retryable:
                raise
            attempts = self._attempts()
            if not await attempts.pause():
                raise
        return await attempts.repeat(partial(getattr(self.inner, verb), *arguments, **options))

    def put(self, key: str, data: Buffer, **options: Unpack[PutOptions]) -> Request[Version]:
        """Write until it works, or until a condition is known to have failed."""
        expected = options.get("if_version")
        if bool(options.get("if_absent")) == (expected is not None):
            # No condition; or both, and the inner backend says what is wrong with that.
            return self.around("put", key, data, **options)
        attributes = options.get("attributes") or {}
        write = ConditionalWrite(
            key,
            data,
            expected,
            attributes,
            options.get("content_type"),
            attributes.get(WRITE_ID) or new_write_id(),
        )
        return put_conditionally(self.inner, write, self._attempts())

    async def delete_many(self, keys: Sequence[str]) -> DeleteReport:
        """Delete, trying again those that may yet go."""
        attempts = self._attempts()
        report = await attempts.repeat(lambda: self.inner.delete_many(keys))
        deleted, failures, pending = report.deleted, dict(report.failures), report.retryable
        while pending and await attempts.pause():
            again = await self.inner.delete_many(sorted(pending))
            deleted += again.deleted
            failures = {key: why for key, why in failures.items() if key not in pending}
            failures |= again.failures
            pending = again.retryable
        return DeleteReport(deleted, failures, pending, report.absent)

    async def list(self, prefix: str = "") -> AsyncIterator[list[ObjectInfo]]:
        """List; a listing that breaks off begins again and passes over what was given.

        That needs keys in order, as the large object stores give them; in any other order only
        a listing that has not given anything yet can begin again.
        """
        attempts = self._attempts()
        last, is_ordered = "", True
        while True:
            previous = ""
            try:
                async for batch in self.inner.list(prefix):
                    keys = [previous, *(info.key for info in batch)]
                    is_ordered = is_ordered and all(map(le, keys, keys[1:]))
                    previous = keys[-1]
                    fresh = [info for info in batch if info.key > last] if last else batch
                    if fresh:
                        yield fresh
                        last = fresh[-1].key
            except StorageError as error:
                may_resume = error.retryable and (is_ordered or not last)
                if not may_resume or not await attempts.pause():
                    raise
            else:
                return

    def _attempts(self) -> Attempts:
        return Attempts(self._settings, lambda: self._meter.add("retries"))


class ConditionalWrite(Record):
    """A write that must happen at most once, in all its attempts."""

    key: str
    data: Buffer
    expected: Version | None
    """None: there must be no object yet."""
    attributes: Mapping[str, str]
    content_type: str | None
    write_id: str

    async def attempt(self, backend: Backend) -> Version:
        """Try it once."""
        return await backend.put(
            self.key,
            self.data,
            if_absent=self.expected is None,
            if_version=self.expected,
            attributes={**self.attributes, WRITE_ID: self.write_id},
            content_type=self.content_type,
        )


def new_write_id() -> str:
    """Make an id that no other write has."""
    return str(uuid.uuid4())


async def put_conditionally(
    backend: Backend, write: ConditionalWrite, attempts: Attempts
) -> Version:
    """Write under a condition; see the table above for what happens when."""
    is_ambiguous = False
    while True:
        try:
            return await write.attempt(backend)
        except PreconditionFailedError as refusal:
            failure: StorageError = refusal
        except StorageError as error:
            failure = error
            if not failure.retryable and not is_ambiguous:
                raise
        is_refusal = isinstance(failure, PreconditionFailedError)
        is_ambiguous = is_ambiguous or (not is_refusal and not _was_turned_away(failure))
        sight, version = await _look(backend, write, attempts)
        if sight == "ours":
            return version
        if is_refusal and not is_ambiguous:
            if not failure.retryable and sight != "unchanged":
                raise failure
        elif is_ambiguous and (sight == "other" or not (failure.retryable or is_refusal)):
            raise _unknown(write, failure)
        if not await attempts.pause():
            raise _unknown(write, failure) if is_ambiguous else failure


def _was_turned_away(failure: StorageError) -> bool:
    """Return whether the server refused a request unread, because too many came."""
    return failure.context.get("status") == _TOO_MANY_REQUESTS


async def _look(
    backend: Backend, write: ConditionalWrite, attempts: Attempts
) -> tuple[_Sight, Version]:
    """Compare the object with what we expected and with what we wrote."""
    try:
        head = await attempts.repeat(lambda: backend.head(write.key))
    except ObjectNotFoundError:
        return ("unchanged" if write.expected is None else "other"), Version()
    except StorageError:
        return "hidden", Version()
    version = head.info.version
    if write.write_id in (head.attributes.get(name) for name in _WRITE_IDS):
        return "ours", version
    if write.expected is not None and same_state(version, write.expected):
        return "unchanged", version
    return "other", version


def _unknown(write: ConditionalWrite, failure: StorageError) -> OutcomeUnknownError:
    error = OutcomeUnknownError(
        f"the write of {write.key!r} got no proper answer, and the storage does not tell whether"
        " it was applied: read the object and decide",
        key=write.key,
        write_id=write.write_id,
    )
    error.__cause__ = failure
    return error
