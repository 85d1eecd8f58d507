"""Open connections to an object store, as the adapter uses them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from icefloe.errors import IcefloeError

if TYPE_CHECKING:
    from obstore.store import ObjectStore


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
