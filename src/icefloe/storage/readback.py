"""Conditional writes whose answer may be lost: succeed, fail, or say that nobody can know.

The trap: a server applies a write, its answer is lost, the write is repeated, and now the
condition fails because of our own first attempt. Reporting a conflict would be false, and
repeating without the condition could destroy somebody else's write. So every conditional
write carries a random *write id* in the object's user metadata, the same one in all attempts,
and whenever it matters the object is looked at again. An attempt is *ambiguous* when it may
have been applied although we got no proper answer; `429 Too Many Requests` is not, but every
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

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from icefloe.errors import (
    ObjectNotFoundError,
    OutcomeUnknownError,
    PreconditionFailedError,
    StorageError,
)
from icefloe.storage.backoff import Attempts
from icefloe.storage.keys import same_state
from icefloe.storage.port import Backend, Buffer, Version

WRITE_ID: Final = "icechunkwriteid"
_WRITE_IDS: Final = (WRITE_ID, "icechunk_write_id")  # the second is what older writers used

_TOO_MANY_REQUESTS: Final = 429

type _Sight = Literal["ours", "unchanged", "other", "hidden"]
"""What a look at the object tells; `hidden` is that it could not be looked at."""


@dataclass(frozen=True, slots=True)
class ConditionalWrite:
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
