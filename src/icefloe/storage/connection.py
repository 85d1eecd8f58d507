"""Open connections to an object store, and the check that their threads exist in this process.

The threads start with the first request and serve the whole process. A child that is forked later
has the memory that says they run, but not the threads: it would wait for them forever.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from icefloe.errors import IcefloeError, StorageError

if TYPE_CHECKING:
    from obstore.store import ObjectStore


_owner: int | None = None


def require_request_threads() -> None:
    """Refuse a request in a child of a process that made some before it forked."""
    global _owner  # noqa: PLW0603 - there is one set of threads in a process
    process = os.getpid()
    if _owner is None:
        _owner = process
    elif _owner != process:
        raise StorageError(
            "this process was forked from one that had used object storage already, and the"
            " threads that do requests stayed behind there. Start processes with"
            " multiprocessing.get_context('forkserver') or 'spawn', or fork before the first use"
        )


class CredentialSource:
    """A function that gives credentials to `obstore`, remembering why it last failed.

    `obstore` reports such a failure as a text of its own; ours says more and less.
    """

    def __init__(self, get: Callable[[], Any]) -> None:
        self._get = get
        self.failure: IcefloeError | None = None

    def __call__(self) -> Any:
        """Get credentials."""
        try:
            credentials = self._get()
        except IcefloeError as failure:
            self.failure = failure
            raise
        self.failure = None
        return credentials


@dataclass(frozen=True, slots=True)
class Clients:
    """Open connections to one place; they differ where reads and writes send other headers."""

    reader: "ObjectStore"
    writer: "ObjectStore | None"
    """None makes the storage read-only."""
    place: str
    """What messages call it: no secrets."""
    encodes_keys: bool
    """Whether keys are percent-encoded in the storage (see `icefloe.storage.keys`)."""
    credential_source: CredentialSource | None = None
