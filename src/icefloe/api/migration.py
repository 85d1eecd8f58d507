"""Repositories of spec 1 become repositories of spec 2, as users see it."""

from typing import Never, cast

from icefloe.api.repository import Repository
from icefloe.effects import blocking
from icefloe.errors import ErrorKind, InvalidInputError, RepositoryMigratedError
from icefloe.maintenance.migrate import MigrationReport, MigrationRules, migrate
from icefloe.repo import lifecycle
from icefloe.repo.context import RepoContext
from icefloe.storage import Storage
from icefloe.values.model import Progress


async def migrate_repository_async(
    storage: Storage,
    *,
    dry_run: bool = False,
    delete_unused_v1_files: bool = False,
    on_progress: Progress | None = None,
) -> MigrationReport:
    """Make a repository of spec 1 one of spec 2, and say what was done.

    Only one object is written, `repo`; all versions stay where they are. Others may write to the
    repository with this library meanwhile: what they were told is committed is migrated with the
    rest, and after that they get a `RepositoryMigratedError`. Programs that write with `icechunk`
    do not notice: stop them first. The small files of spec 1 stay, unless they are to go: then
    they are moved below `overwritten/spec-1/`. A `dry_run` reads everything, and changes nothing.

    >>> import icefloe
    >>> storage = icefloe.in_memory_storage()
    >>> _ = icefloe.Repository.create(storage, spec_version=1)
    >>> icefloe.migrate_repository(storage).versions
    1
    >>> int(icefloe.Repository.open(storage).spec_version)
    2
    """
    context = await lifecycle.open_(storage)
    rules = MigrationRules(dry_run=dry_run, removes_old_files=delete_unused_v1_files)
    return await migrate(context, rules, on_progress)


migrate_repository = blocking(migrate_repository_async)


async def upgrade_icechunk_repository_async(
    repo: Repository,
    *,
    dry_run: bool,
    delete_unused_v1_files: bool = True,
    prefetch_concurrency: int | None = None,
) -> Repository:
    """Make a repository of spec 1 one of spec 2, and give it newly opened.

    As `migrate_repository`, under the name and with the defaults of `icechunk`: the small files
    of spec 1 are moved below `overwritten/spec-1/` unless told otherwise. The object that was
    given cannot be used any more. `prefetch_concurrency` says how many versions to read at the
    same time, over a network.

    >>> import icefloe
    >>> old = icefloe.Repository.create(icefloe.in_memory_storage(), spec_version=1)
    >>> new = icefloe.upgrade_icechunk_repository(old, dry_run=False)
    >>> int(new.spec_version)
    2
    """
    if prefetch_concurrency is not None and prefetch_concurrency < 1:
        raise InvalidInputError(
            f"prefetch_concurrency must be at least 1, got {prefetch_concurrency}",
            ErrorKind.INVALID_CONFIG,
        )
    rules = MigrationRules(
        dry_run=dry_run,
        removes_old_files=delete_unused_v1_files,
        at_once=prefetch_concurrency or MigrationRules().at_once,
    )
    await migrate(repo._context, rules)  # noqa: SLF001 - a function of the drop-in surface
    new = await repo.reopen_async()
    if not dry_run:
        repo._context = cast("RepoContext", _Replaced())  # noqa: SLF001
    return new


upgrade_icechunk_repository = blocking(upgrade_icechunk_repository_async)


class _Replaced:
    """Stands where the state of a repository was that is of another spec version now."""

    def __getattr__(self, name: str) -> Never:
        raise RepositoryMigratedError(
            "this repository was migrated to spec version 2: use the object that"
            " upgrade_icechunk_repository gave, or open it again"
        )
