"""The log of operations on a repository of spec 2, through all the copies it goes on in."""

from collections.abc import AsyncIterator
from dataclasses import replace

from icefloe.errors import FormatError, ObjectNotFoundError
from icefloe.format.layout import backup_key
from icefloe.format.repo_info import RepoInfo, decode_repo_info
from icefloe.format.update_table import UpdateEntry
from icefloe.storage import Backend


async def pages(backend: Backend, repo: RepoInfo) -> AsyncIterator[list[UpdateEntry]]:
    """Give the log, newest first, one list for each copy of the repo object.

    A copy that is missing ends the log: somebody cleaned up. What was newest in a copy gets
    the name of that copy, as it has in later states of the repository.
    """
    entries = repo.updates.entries()
    seen: set[str] = set()
    while True:
        yield entries
        name = repo.repo_before_updates
        if name is None:
            return
        if name in seen:
            raise FormatError(f"the log of operations runs in a circle through {name!r}")
        seen.add(name)
        try:
            copy = await backend.get(backup_key(name))
        except ObjectNotFoundError:
            return
        repo = decode_repo_info(copy.data)
        first, *others = repo.updates.entries()
        entries = [replace(first, backup_path=first.backup_path or name), *others]
