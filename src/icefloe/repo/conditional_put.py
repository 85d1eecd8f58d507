"""Small files written under a condition, whatever becomes of the answers."""

from collections.abc import Mapping
from typing import Final

from icefloe.errors import (
    ObjectNotFoundError,
    OutcomeUnknownError,
    PreconditionFailedError,
    StorageError,
)
from icefloe.storage import Backend, Version
from icefloe.storage.keys import same_state

MOST_WRITES: Final = 5
"""How often to write when no answer comes; the storage has tried again by itself each time."""


async def put_settled(
    backend: Backend,
    key: str,
    data: bytes,
    *,
    replacing: Version | None,
    content_type: str | None = None,
    attributes: Mapping[str, str] | None = None,
) -> Version:
    """Put a file in the place of a state of it; None: where there is none yet.

    If the answer is lost, the file is read back: if these bytes are there, they were written; if
    nothing has changed, they are written again. Something else, whether it came before or after
    ours, is a `PreconditionFailedError`. `OutcomeUnknownError` means that reading failed too.
    """
    for _ in range(MOST_WRITES):
        try:
            return await backend.put(
                key,
                data,
                if_absent=replacing is None,
                if_version=replacing,
                content_type=content_type,
                attributes=attributes,
            )
        except OutcomeUnknownError as error:
            unknown = error
        try:
            stored = await backend.get(key)
        except ObjectNotFoundError as gone:
            if replacing is None:
                continue
            raise PreconditionFailedError(
                f"{key!r} was deleted by somebody else", key=key
            ) from gone
        except StorageError as failure:
            raise unknown from failure
        if bytes(stored.data) == data:
            return stored.info.version
        if replacing is None or not same_state(stored.info.version, replacing):
            raise PreconditionFailedError(f"{key!r} was written by somebody else", key=key)
    raise unknown
