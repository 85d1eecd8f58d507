"""Repairing a repository, whether it can be opened or not.

Each step is found out from what is stored, and leaves something that is at least as whole as
before: a repair that was interrupted is finished by the next one. Nothing is ever deleted, and
of each object that is replaced a copy is kept below `overwritten/`.

A dry run does all of it in memory, above the real storage, and so tells exactly what would be
done and what would still be wrong.
"""

from icefloe.config import RepositoryConfig, effective_config
from icefloe.errors import (
    FormatError,
    IcefloeError,
    RefNotFoundError,
    RepositoryNotFoundError,
)
from icefloe.format.ids import INITIAL_SNAPSHOT_ID
from icefloe.format.layout import REFS_PREFIX, REPO_KEY
from icefloe.maintenance.repair.histories import (
    LOST,
    damaged_versions,
    drop_versions,
    mend,
    restore_first,
    versions_with,
)
from icefloe.maintenance.repair.logs import rebuild_logs
from icefloe.maintenance.repair.ref_objects import (
    bridge_lost_versions,
    named_versions,
    restore_config_file,
    restore_refs,
)
from icefloe.maintenance.repair.references import drop_references
from icefloe.maintenance.repair.repair_log import RepairKind, RepairReport, RepairRules, Workshop
from icefloe.maintenance.repair.repo_objects import (
    recover_versions,
    restore_repo_object,
    unlisted_versions,
)
from icefloe.maintenance.verify.report import Damage, VerificationReport
from icefloe.maintenance.verify.run import VerificationRules, verify_storage
from icefloe.repo.context import Access, Clock, RepoContext, now_microseconds
from icefloe.repo.lifecycle import open_
from icefloe.repo.repo_changes import CreateBranch, CreateTag, ResetBranch
from icefloe.repo.repo_ledger import RepoObjectLedger
from icefloe.storage import Storage
from icefloe.storage.overlay import OverlayStorage
from icefloe.values.model import Progress


async def repair(
    storage: Storage,
    rules: RepairRules | None = None,
    *,
    dry_run: bool = True,
    access: Access | None = None,
    progress: Progress | None = None,
    clock: Clock = now_microseconds,
) -> RepairReport:
    """Repair the repository in a storage, within the rules."""
    rules = rules or RepairRules()
    work_storage = OverlayStorage(storage) if dry_run else storage
    return await _Repairing(work_storage, rules, access, progress, clock).run(is_dry=dry_run)


class _Repairing:
    """One run."""

    def __init__(
        self,
        storage: Storage,
        rules: RepairRules,
        access: Access | None,
        progress: Progress | None,
        clock: Clock,
    ) -> None:
        self._storage = storage
        self._rules = rules
        self._access = access
        self._progress = progress
        self._clock = clock
        self._config = effective_config(
            RepositoryConfig(), storage_defaults=storage.default_settings()
        )
        level = self._config.compression.level
        self._shop = Workshop(storage.open(), rules, clock, level)
        self._verified = -1
        """The number of steps before the last verification."""
        self._found: VerificationReport

    async def run(self, *, is_dry: bool) -> RepairReport:
        """Go through all steps."""
        before = await self._look()
        if before.damages or self._is_asked_for_more():
            if await self._is_of_spec_1():
                await self._repair_spec_1()
            else:
                await self._repair_spec_2()
        after = await self._look()
        shop = self._shop
        return RepairReport(is_dry, before, tuple(shop.steps), after, tuple(shop.notes))

    def _is_asked_for_more(self) -> bool:
        return bool(self._rules.recover_versions or self._rules.branches or self._rules.tags)

    async def _look(self) -> VerificationReport:
        """Verify, unless nothing has changed since."""
        if self._verified != len(self._shop.steps):
            self._found = await verify_storage(
                self._storage,
                VerificationRules(deep=self._rules.deep),
                access=self._access,
                progress=self._progress,
            )
            self._verified = len(self._shop.steps)
        return self._found

    async def _damages(self) -> tuple[Damage, ...]:
        return (await self._look()).damages

    async def _is_of_spec_1(self) -> bool:
        """Return whether a repository is of spec 1, also if its first files are lost."""
        if await self._shop.fetch(REPO_KEY) is not None:
            return False
        if await self._shop.backups_of(REPO_KEY):
            return False
        if await self._shop.names(REFS_PREFIX):
            return True
        ids = await self._shop.snapshot_ids()
        snapshots = await self._shop.snapshots(ids)
        if not snapshots:
            raise RepositoryNotFoundError(
                "there is neither a repo object nor a branch, a backup or a snapshot that can be"
                " read: nothing tells what was in this repository"
            )
        return all(snapshot.spec_version == 1 for snapshot in snapshots.values())

    # -- spec 2 ----------------------------------------------------------------------------

    async def _repair_spec_2(self) -> None:
        shop, rules = self._shop, self._rules
        await restore_repo_object(shop)
        ledger = RepoObjectLedger(shop.backend, self._config, self._clock)
        await restore_first(shop, await ledger.repo(), 2, await self._damages())
        await mend(shop, ledger, await self._damages())
        if rules.recover_versions:
            await recover_versions(shop, ledger)
        else:
            await self._note_unlisted(ledger)
        await self._move_branches(ledger)
        if rules.drop_lost_versions:
            lost = versions_with(await self._damages(), LOST)
            await drop_versions(shop, ledger, lost, "their snapshots are lost")
        await self._repair_references()
        if rules.drop_damaged_versions:
            repo = await ledger.repo()
            named = {*repo.branches.values(), *repo.tags.values()}
            damaged = damaged_versions(await self._damages()) - named
            await drop_versions(shop, ledger, damaged, "data of them is lost")
        if rules.rebuild_logs:
            await mend(shop, ledger, await self._damages())
            table = (await ledger.repo()).snapshots
            parents = {entry.id: entry.parent for entry in table.entries(range(len(table)))}
            await rebuild_logs(shop, await self._damages(), parents)

    async def _note_unlisted(self, ledger: RepoObjectLedger) -> None:
        """Note versions that may have been committed after the restored backup."""
        if all(step.kind != RepairKind.RESTORE_REPO for step in self._shop.steps):
            return
        repo = await ledger.repo()
        newest = int(repo.snapshots.flushed_at.max())
        for entry in await unlisted_versions(self._shop, repo):
            if entry.flushed_at > newest:
                self._shop.note(
                    f"the snapshot {entry.id} ({entry.message!r}) is newer than all that are"
                    " listed:"
                    " it may be a commit that is lost from the log; recover_versions gives it a"
                    " branch"
                )

    async def _move_branches(self, ledger: RepoObjectLedger) -> None:
        """Move branches and tags to the snapshots that the rules name."""
        shop, repo = self._shop, await ledger.repo()
        for name, tip in self._rules.branches.items():
            if repo.branches.get(name) == tip:
                continue
            if name in repo.branches:
                await ledger.update(ResetBranch(name, tip))
            else:
                await ledger.update(CreateBranch(name, tip))
            message = f"the branch {name!r} ends at {tip} now, as was asked for"
            shop.done(RepairKind.RESTORE_REF, message, [REPO_KEY], versions=[tip])
        for name, tip in self._rules.tags.items():
            if repo.tags.get(name) == tip:
                continue
            await ledger.update(CreateTag(name, tip))
            message = f"the tag {name!r} names {tip} now, as was asked for"
            shop.done(RepairKind.RESTORE_REF, message, [REPO_KEY], versions=[tip])

    # -- spec 1 ----------------------------------------------------------------------------

    async def _repair_spec_1(self) -> None:
        shop, rules = self._shop, self._rules
        await restore_config_file(shop)
        await restore_refs(shop)
        await restore_first(shop, None, 1, await self._damages())
        if rules.drop_lost_versions and versions_with(await self._damages(), LOST):
            await bridge_lost_versions(shop, frozenset())
        await self._repair_references()
        if rules.drop_damaged_versions:
            damaged = damaged_versions(await self._damages()) - await named_versions(shop)
            await bridge_lost_versions(shop, damaged - {INITIAL_SNAPSHOT_ID})
        if rules.rebuild_logs:
            snapshots = await shop.snapshots(await shop.snapshot_ids())
            parents = {
                snapshot_id: snapshot.parent_id for snapshot_id, snapshot in snapshots.items()
            }
            await rebuild_logs(shop, await self._damages(), parents)

    # -- both ------------------------------------------------------------------------------

    async def _repair_references(self) -> None:
        if not self._rules.drop_lost_references:
            return
        context = await self._opened()
        if context is None:
            return
        for name in sorted(await context.ledger.branch_names()):
            try:
                await drop_references(self._shop, context, name)
            except RefNotFoundError:
                continue  # deleted meanwhile
            except FormatError as damaged:
                self._shop.note(f"the branch {name!r} is left as it is: {damaged.message}")

    async def _opened(self) -> RepoContext | None:
        try:
            return await open_(self._storage, access=self._access, clock=self._clock)
        except IcefloeError as obstacle:
            self._shop.note(f"the repository cannot be opened: {obstacle.message}")
            return None
