"""What tasks are about to write, noted first, so that what failed attempts left can be removed.

Notes lie in the storage of the repository below `icefloe/jobs/`, where neither its readers nor
garbage collection look. Each attempt at a region has a note of its own, a list of keys. When a
job ends, well or not, it removes what it wrote for nothing, and its notes. Notes that are there
while no job runs are those of a driver that was killed.
"""

import secrets
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial
from typing import Final

from icefloe.api.repository import Repository
from icefloe.effects import iterate_blocking, map_concurrently, run_blocking
from icefloe.engine.context import RepoContext
from icefloe.errors import ErrorKind, InvalidInputError, StorageError
from icefloe.format.ids import ManifestId
from icefloe.format.layout import manifest_key

JOBS_PREFIX: Final = "icefloe/jobs/"
JOB_METADATA: Final = "icefloe.job"
"""Under which a commit names the job that made it."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A job that noted what it writes, and did not remove its notes."""

    job: str
    notes: int
    """How many tasks wrote something, or were about to."""


def note_key(job: str, array: int, region: int) -> str:
    """Name a new note for an attempt at a region."""
    return f"{JOBS_PREFIX}{job}/{array}-{region}-{secrets.token_hex(4)}"


def list_attempts(repository: Repository) -> list[Attempt]:
    """List jobs that did not end as they should, and those that run right now."""
    context = repository._context  # noqa: SLF001 - the same package
    counts: dict[str, int] = {}
    for key in _keys(context, JOBS_PREFIX):
        job = key.removeprefix(JOBS_PREFIX).partition("/")[0]
        counts[job] = counts.get(job, 0) + 1
    return [Attempt(job, notes) for job, notes in sorted(counts.items())]


def discard_attempt(repository: Repository, job: str) -> int:
    """Remove what a job wrote that no version uses, and its notes; gives the number of objects.

    Must not be done while the job runs.
    """
    if not job or "/" in job:
        raise InvalidInputError(f"{job!r} is not the id of a job", ErrorKind.INVALID_KEY)
    context = repository._context  # noqa: SLF001 - the same package
    return clear_attempt(context, job, used=_used_manifests(repository, job))


def clear_attempt(
    context: RepoContext, job: str, *, used: AbstractSet[str], successful: int = 0
) -> int:
    """Remove what attempts wrote of which nothing is used, and all notes.

    If there are no more notes than successful attempts, nobody has to read them.
    """
    notes = _keys(context, f"{JOBS_PREFIX}{job}/")
    leftovers: list[str] = []
    if len(notes) != successful:
        written = run_blocking(
            map_concurrently(
                partial(_read, context), notes, limit=context.config.max_concurrent_requests
            )
        )
        leftovers = [key for keys in written if used.isdisjoint(keys) for key in keys]
    _delete(context, leftovers)
    _delete(context, notes)
    return len(leftovers)


def _used_manifests(repository: Repository, job: str) -> set[str]:
    """Find the version that a job committed, if it did, and list its manifests."""
    tips = [("branch", name) for name in repository.list_branches()]
    tips += [("tag", name) for name in repository.list_tags()]
    for kind, name in sorted(tips):
        for version in repository.ancestry(**{kind: name}):
            if version.metadata.get(JOB_METADATA) == job:
                files = repository.list_manifest_files(version.id)
                return {manifest_key(ManifestId.parse(file.id)) for file in files}
    return set()


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
            f"{len(report.failures)} objects of a job that failed could not be removed,"
            f" {key!r} among them: {reason}",
            ErrorKind.OBJECT_STORE,
            key=key,
        )
