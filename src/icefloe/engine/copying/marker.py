"""A note in a place that is being filled: what with, so that it is finished and not mixed up."""

import json
from dataclasses import dataclass
from typing import Any, Final

from icefloe.errors import (
    ErrorKind,
    InvalidInputError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StorageError,
)
from icefloe.storage import Backend

_JSON: Final = "application/json"
CLONE_MARKER: Final = "clone-in-progress.json"
EXPORT_MARKER: Final = "export-in-progress.json"


@dataclass(frozen=True, slots=True)
class Marker:
    """Says what a place is being filled with; it goes when that is done."""

    key: str
    what: dict[str, Any]

    async def claim(self, target: Backend) -> bool:
        """Take an empty place, or one that the same work was begun in; say which: True for empty.

        Any other place is refused.
        """
        if (found := await self._find(target)) is not None:
            if found != self.what:
                raise InvalidInputError(
                    f"something else was begun in this place, and not finished: {_shown(found)};"
                    " finish that, or empty the place first",
                    ErrorKind.PARENT_DIRECTORY_NOT_CLEAN,
                )
            return False
        async for batch in target.list():
            if batch:
                raise InvalidInputError(
                    f"the place is not empty, there is {batch[0].key!r}: choose another one",
                    ErrorKind.PARENT_DIRECTORY_NOT_CLEAN,
                    key=batch[0].key,
                )
        try:
            data = json.dumps(self.what).encode()
            await target.put(self.key, data, if_absent=True, content_type=_JSON)
        except PreconditionFailedError:
            return await self.claim(target)  # somebody else is beginning just now
        return True

    async def remove(self, target: Backend) -> None:
        """Say that it is done."""
        report = await target.delete_many([self.key])
        if report.failures:
            raise StorageError(
                f"all is done, but {self.key!r} could not be deleted"
                f" ({report.failures[self.key]}): run it again, or delete that object",
                retryable=bool(report.retryable),
                key=self.key,
            )

    async def _find(self, target: Backend) -> dict[str, Any] | None:
        try:
            data = (await target.get(self.key)).data
        except ObjectNotFoundError:
            return None
        try:
            found = json.loads(bytes(data))
        except ValueError:
            found = None
        return found if isinstance(found, dict) else {"of": "something that cannot be read"}


def _shown(what: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in what.items() if value is not None)


async def has_unfinished_clone(backend: Backend) -> bool:
    """Say whether a clone was begun in a place and not finished."""
    try:
        await backend.head(CLONE_MARKER)
    except StorageError:
        return False
    return True
