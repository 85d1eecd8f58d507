"""The repo object of spec 2 that says the same as the small files of spec 1."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from icefloe.engine.migration.spec_one import RefFiles
from icefloe.engine.repo_changes import ONLINE
from icefloe.errors import FormatError
from icefloe.format.ids import SnapshotId
from icefloe.format.repo_info import MAIN_BRANCH, RepoInfo
from icefloe.format.snapshot_table import SnapshotEntry, SnapshotTable
from icefloe.format.update_table import Status, UpdateEntry, UpdateKind, UpdateTable

_FROM_TO: Final = (1, 2, 0)
_MILLISECOND: Final = 1000


def migrated(
    refs: RefFiles,
    entries: Mapping[SnapshotId, SnapshotEntry],
    *,
    config: bytes | None,
    now: int,
) -> RepoInfo:
    """Put branches, tags and history into one object, with a log as it may have been.

    Nobody wrote down what happened when. So the log says that each version was committed at its
    time, to the first branch that has it, and that branches and tags came right after the
    version they lead to. It ends with the migration.
    """
    if MAIN_BRANCH not in refs.branches:
        raise FormatError("the repository has no branch main")
    table = SnapshotTable.from_entries(list(entries.values()))
    for tip in refs.tips:
        table.ancestry(tip)  # refuses histories that run in circles
    root = table.entry(table.ancestry(refs.branches[MAIN_BRANCH])[-1])
    past = _in_order(_operations(refs, entries, table, root))
    last = UpdateEntry(
        UpdateKind.REPO_MIGRATED, max(now, past[-1].updated_at + 1), numbers=_FROM_TO
    )
    return RepoInfo(
        dict(refs.branches),
        table,
        UpdateTable.from_entries([last, *reversed(past)]),
        tags=dict(refs.tags),
        deleted_tags=tuple(refs.deleted_tags),
        status=Status(ONLINE, root.flushed_at),
        config=config,
    )


def _operations(
    refs: RefFiles,
    entries: Mapping[SnapshotId, SnapshotEntry],
    table: SnapshotTable,
    root: SnapshotEntry,
) -> Iterator[UpdateEntry]:
    def after(target: SnapshotId, milliseconds: int) -> int:
        # What deleted tags named may be gone; then only the beginning is certain.
        at = entries.get(target, root)
        return at.flushed_at + milliseconds * _MILLISECOND

    yield UpdateEntry(UpdateKind.REPO_INITIALIZED, root.flushed_at)
    others = sorted(refs.branches.keys() - {MAIN_BRANCH}, key=str.encode)
    yield from _commits([MAIN_BRANCH, *others], refs, table)
    for name in others:
        yield UpdateEntry(UpdateKind.BRANCH_CREATED, after(refs.branches[name], 1), name=name)
    for name in sorted(refs.tags, key=str.encode):
        yield UpdateEntry(UpdateKind.TAG_CREATED, after(refs.tags[name], 1), name=name)
    for name, target in refs.deleted_tags.items():
        if target is not None:
            yield UpdateEntry(UpdateKind.TAG_CREATED, after(target, 1), name=name)
            yield UpdateEntry(UpdateKind.TAG_DELETED, after(target, 2), name=name, previous=target)


def _commits(
    branches: Iterable[str], refs: RefFiles, table: SnapshotTable
) -> Iterator[UpdateEntry]:
    told: set[int] = set()
    times = table.flushed_at.tolist()
    for name in branches:
        *rows, _ = table.ancestry(refs.branches[name])
        for row in rows:
            if row in told:
                break  # and so are all before it
            told.add(row)
            yield UpdateEntry(UpdateKind.NEW_COMMIT, times[row], name=name, new=table.id(row))


def _in_order(operations: Iterable[UpdateEntry]) -> list[UpdateEntry]:
    """Sort by time, oldest first; no two have the same."""
    ordered = sorted(operations, key=lambda one: one.updated_at)
    for place in range(1, len(ordered)):
        earliest = ordered[place - 1].updated_at + 1
        if ordered[place].updated_at < earliest:
            ordered[place] = replace(ordered[place], updated_at=earliest)
    return ordered
