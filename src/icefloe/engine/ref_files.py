"""Branches and tags of spec 1: a small file for each, which holds the id of a snapshot."""

import json
from typing import Final

from icefloe.engine.settling import put_settled
from icefloe.errors import ErrorKind, FormatError, InvalidInputError
from icefloe.format.ids import SnapshotId
from icefloe.format.layout import REFS_PREFIX
from icefloe.storage import Backend, Version

_JSON: Final = "application/json"
_REF_FILE: Final = "/ref.json"
_TOMBSTONE: Final = "/ref.json.deleted"
_BRANCH: Final = f"{REFS_PREFIX}branch."
_TAG: Final = f"{REFS_PREFIX}tag."


async def read_ref(backend: Backend, key: str) -> tuple[SnapshotId, Version]:
    """Read the file of a branch or tag: where it points, and which state of it that was."""
    found = await backend.get(key)
    return parse_ref(key, bytes(found.data)), found.info.version


def parse_ref(key: str, data: bytes) -> SnapshotId:
    """Say where the contents of the file of a branch or tag point."""
    try:
        return SnapshotId.parse(json.loads(data)["snapshot"])
    except (ValueError, KeyError, TypeError, AttributeError):
        raise FormatError(
            f"{key!r} is damaged: it should hold the id of a snapshot as JSON", key=key
        ) from None


async def create_ref(backend: Backend, key: str, snapshot: SnapshotId) -> None:
    """Write the file of a new branch or tag; there must be none yet."""
    await put_settled(backend, key, ref_bytes(snapshot), replacing=None, content_type=_JSON)


async def bury_ref(backend: Backend, key: str) -> None:
    """Write the file that says that a tag was deleted; there must be none yet."""
    await put_settled(backend, key, b"", replacing=None)


async def move_ref(backend: Backend, key: str, known: Version, snapshot: SnapshotId) -> None:
    """Replace the state of a file that is known, once: a lost answer is `OutcomeUnknownError`."""
    await backend.put(key, ref_bytes(snapshot), if_version=known, content_type=_JSON)


async def list_refs(backend: Backend) -> tuple[set[str], set[str]]:
    """List the names of branches, and of tags without those that were deleted."""
    keys = [info.key async for batch in backend.list(REFS_PREFIX) for info in batch]
    tags = _names(keys, _TAG, _REF_FILE) - _names(keys, _TAG, _TOMBSTONE)
    return _names(keys, _BRANCH, _REF_FILE), tags


def checked_name(name: str) -> str:
    """Refuse a name that has no place among the files."""
    if "/" in name:
        raise InvalidInputError(
            f"the name {name!r} has a slash, which branches and tags of spec 1 cannot have:"
            " choose another name",
            ErrorKind.INVALID_REF_NAME,
        )
    return name


def _names(keys: list[str], start: str, end: str) -> set[str]:
    return {
        key[len(start) : -len(end)] for key in keys if key.startswith(start) and key.endswith(end)
    }


def ref_bytes(snapshot: SnapshotId) -> bytes:
    """Write the contents of the file of a branch or tag."""
    return b'{"snapshot":"%s"}' % str(snapshot).encode()
