"""Listing only some objects: where looking at each costs more than its name."""

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Protocol, runtime_checkable

from icefloe.storage.port import Backend, ObjectInfo

type Batch = list[ObjectInfo]
type Wanted = Callable[[Sequence[str]], Sequence[bool]]
"""Says of each key whether the object is of interest."""


@runtime_checkable
class SelectiveLister(Protocol):
    """A backend that can pass over objects by their keys alone."""

    def list_wanted(self, prefix: str, wanted: Wanted) -> AsyncIterator[Batch]:
        """Walk the objects whose key starts with `prefix` and that are wanted."""
        ...


async def list_wanted(backend: Backend, prefix: str, wanted: Wanted) -> AsyncIterator[Batch]:
    """Walk some of the objects whose key starts with `prefix`, in batches, as `list` does.

    Batches may be empty.
    """
    if isinstance(backend, SelectiveLister):
        async for batch in backend.list_wanted(prefix, wanted):
            yield batch
        return
    async for batch in backend.list(prefix):
        chosen = wanted([info.key for info in batch])
        yield [info for info, yes in zip(batch, chosen, strict=True) if yes]
