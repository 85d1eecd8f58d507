"""A record of the objects that tasks will write, so that leftovers of failed attempts can be
deleted.

Notes lie in the storage of the repository below `icefloe/jobs/`, where neither its readers nor
garbage collection look. Each attempt at a region has a note of its own, a list of keys. When a
job ends, well or not, it removes what it wrote for nothing, and its notes. Notes that are there
while no job runs are those of a driver that was killed.
"""

import logging
import secrets
from collections.abc import Set as AbstractSet
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from icefloe.api.repository import Repository
from icefloe.api.status import RepoAvailability, RepoStatus
from icefloe.effects import iterate_blocking, map_concurrently, run_blocking
from icefloe.errors import (
    ConflictError,
    ErrorKind,
    IcefloeError,
    InvalidInputError,
    StorageError,
)
from icefloe.format.ids import SnapshotId, ids_of_rows
from icefloe.format.layout import (
    CHUNKS_PREFIX,
    REFS_PREFIX,
    REPO_KEY,
    SNAPSHOTS_PREFIX,
    manifest_key,
)
from icefloe.pipeline.copying.origins import STAGING_PREFIX, staging_key
from icefloe.records import Record
from icefloe.repo.context import RepoContext
from icefloe.repo.repo_changes import CloseIfNew
from icefloe.reports import counted
from icefloe.storage.keys import is_temporary
from icefloe.storage.specs import LocalSpec
from icefloe.walk.reachability import Reachable
from icefloe.walk.spill import keys_of_names

_log = logging.getLogger(__name__)

JOBS_PREFIX: Final = "icefloe/jobs/"
JOB_METADATA: Final = "icefloe.job"
"""Under which a commit names the job that made it."""


class Attempt(Record):
    """A job that noted what it writes, and did not remove its notes; see `list_attempts`.

    >>> Attempt("0a1b", 3).notes
    3
    """

    job: str
    notes: int
    """How many tasks wrote something, or were about to."""


def note_key(job: str, array: int, region: int) -> str:
    """Name a new note for an attempt at a region."""
    return f"{JOBS_PREFIX}{job}/{array}-{region}-{secrets.token_hex(4)}"


def list_attempts(repository: Repository) -> list[Attempt]:
    """List jobs that did not end as they should, and those that run right now.

    >>> import icefloe
    >>> repository = icefloe.Repository.create(icefloe.in_memory_storage())
    >>> list_attempts(repository)
    []
    """
    context = repository._context  # noqa: SLF001 - the same package
    counts: dict[str, int] = {}
    for key in _keys(context, JOBS_PREFIX):
        job = key.removeprefix(JOBS_PREFIX).partition("/")[0]
        counts[job] = counts.get(job, 0) + 1
    for key in _keys(context, STAGING_PREFIX):
        counts.setdefault(key.removeprefix(STAGING_PREFIX).partition("/")[0], 0)
    return [Attempt(job, notes) for job, notes in sorted(counts.items())]


def discard_attempt(repository: Repository, job: str) -> int:
    """Remove what a job wrote that no version uses, and its notes; return the number of objects.

    Must not be done while the job runs.

    >>> import icefloe
    >>> repository = icefloe.Repository.create(icefloe.in_memory_storage())
    >>> for attempt in list_attempts(repository):
    ...     discard_attempt(repository, attempt.job)
    """
    if not job or "/" in job:
        raise InvalidInputError(f"{job!r} is not the id of a job", ErrorKind.INVALID_KEY)
    context = repository._context  # noqa: SLF001 - the same package
    notes = _keys(context, f"{JOBS_PREFIX}{job}/")
    leftovers = run_blocking(_unused(context, job, _written(context, notes)))
    leftovers += _keys(context, staging_key(job))
    _delete(context, leftovers)
    _delete(context, notes)
    return len(leftovers)


def discard_if_empty(repository: Repository) -> bool:
    """Delete a repository without any commit; return whether it was deleted.

    For the caller that created it a moment ago, and failed to put anything into it. It is taken
    offline by the same conditional write that finds it empty, so that nobody can commit to it
    between that and its end. Others who open it meanwhile find it gone.
    """
    context = repository._context  # noqa: SLF001 - the same package
    reason = "the job that created it failed, and deletes it"
    offline = RepoStatus(RepoAvailability.offline, limited_availability_reason=reason)
    try:
        run_blocking(context.ledger.update(CloseIfNew(offline.stored())))
    except ConflictError:
        return False
    keys = _keys(context, "")
    first = [key for key in keys if key == REPO_KEY or key.startswith(REFS_PREFIX)]
    _delete(context, first)  # from now on there is no repository
    _delete(context, [key for key in keys if key not in first])
    spec = repository.storage.spec
    if isinstance(spec, LocalSpec):
        _remove_folders(Path(spec.path))
    return True


def _remove_folders(root: Path) -> None:
    """Remove folders without objects."""
    for folder, _, names in root.walk(top_down=False):
        if all(is_temporary(name) for name in names):
            for name in names:
                (folder / name).unlink(missing_ok=True)
            with suppress(OSError):  # it is not empty
                folder.rmdir()


def clear_staging(context: RepoContext, job: str) -> None:
    """Remove the repository in which a job put references to the files that it copied."""
    try:
        _delete(context, _keys(context, staging_key(job)))
    except IcefloeError as error:  # the job itself ended as it ended
        _log.warning(
            "references of job %s are still there: icefloe.pipeline.discard_attempt removes"
            " them (%s)",
            job,
            error,
        )


def remove_replaced(context: RepoContext, job: str, keys: list[str]) -> None:
    """Remove manifests that a job wrote, and replaced by others in the same commit."""
    try:
        _delete(context, keys)
    except IcefloeError as error:  # the commit is there
        _log.warning("job %s left manifests that garbage collection removes (%s)", job, error)


def clear_attempt(
    context: RepoContext, job: str, *, used: AbstractSet[str], successful: int = 0
) -> int:
    """Remove what attempts wrote of which nothing is used, and all notes.

    `used` are keys of objects, or those of whole notes.

    If there are no more notes than successful attempts, nobody has to read them.
    """
    notes = _keys(context, f"{JOBS_PREFIX}{job}/")
    leftovers: list[str] = []
    if len(notes) != successful:
        written = _written(context, [note for note in notes if note not in used])
        leftovers = [key for keys in written if used.isdisjoint(keys) for key in keys]
    _delete(context, leftovers)
    _delete(context, notes)
    return len(leftovers)


async def _unused(context: RepoContext, job: str, written: list[list[str]]) -> list[str]:
    """Choose what no version uses, given the keys of each note.

    The version that a job made may be gone while later ones use what it wrote. So everything that
    is used is checked, no matter who made it; manifests are read only if chunks could be left.
    """
    with Reachable(context) as live:
        await _find_versions(context, job, live)
        used = {manifest_key(manifest) for manifest in live.manifests}
        left = [key for keys in written if used.isdisjoint(keys) for key in keys]
        chunks = [key for key in left if key.startswith(CHUNKS_PREFIX)]
        if not chunks:
            return left
        await live.read_chunks()
        numbers, _ = keys_of_names([key.removeprefix(CHUNKS_PREFIX) for key in chunks])
        is_used = live.chunks.contains(numbers).tolist()
        kept = {key for key, used_one in zip(chunks, is_used, strict=True) if used_one}
        return [key for key in left if key not in kept]


async def _find_versions(context: RepoContext, job: str, live: Reachable) -> None:
    """Find all versions that somebody can open, also those that no branch or tag leads to."""
    ledger = context.ledger
    if (repo := await ledger.repo()) is not None:
        await live.add(ids_of_rows(SnapshotId, repo.snapshots.ids))
        return
    tips = {*(await ledger.branches()).values(), *(await ledger.tags()).values()}
    await live.add(tips, with_ancestors=True)
    # Spec 1 lists versions nowhere: any file can be opened. Only this job's own, if it ended
    # before a branch led to it, is one that nobody knows of.
    async for batch in context.backend.list(SNAPSHOTS_PREFIX):
        names = [info.key.removeprefix(SNAPSHOTS_PREFIX) for info in batch]
        for snapshot_id in {SnapshotId.parse(name) for name in names} - live.snapshots:
            snapshot = await context.assets.read_snapshot(snapshot_id)
            if snapshot.metadata.get(JOB_METADATA) != job:
                await live.add([snapshot_id])


def _written(context: RepoContext, notes: list[str]) -> list[list[str]]:
    limit = context.config.max_concurrent_requests
    return run_blocking(map_concurrently(partial(_read, context), notes, limit=limit))


def _keys(context: RepoContext, prefix: str) -> list[str]:
    batches = iterate_blocking(context.backend.list(prefix))
    return sorted(info.key for batch in batches for info in batch)


async def _read(context: RepoContext, note: str) -> list[str]:
    return bytes((await context.backend.get(note)).data).decode().split()


def _delete(context: RepoContext, keys: list[str]) -> None:
    if not keys:
        return
    report = run_blocking(context.backend.delete_many(keys))
    if report.failures:
        key, reason = next(iter(report.failures.items()))
        raise StorageError(
            f"{counted(len(report.failures), 'object')} of a job that failed could not be removed,"
            f" {key!r} among them: {reason}",
            ErrorKind.OBJECT_STORE,
            key=key,
        )
