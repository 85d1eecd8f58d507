"""A repository copied to another storage, with all of its history or as one version.

First everything that versions need, then the files by which the place becomes a repository: until
those are there, there is none, only a note that a clone was begun. What is copied already is not
copied again, so that work that was interrupted is finished by doing it again.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from icefloe.errors import (
    ConflictError,
    ErrorKind,
    InvalidInputError,
    ObjectNotFoundError,
    PreconditionFailedError,
)
from icefloe.format.layout import REFS_PREFIX
from icefloe.format.repo_info import RepoInfo, decode_repo_info
from icefloe.maintenance.clone.contents import Contents, Done, Transfer
from icefloe.maintenance.clone.selection import LastFile, Selection, Version, select
from icefloe.records import Record, field
from icefloe.repo.conditional_put import put_settled
from icefloe.repo.context import RepoContext
from icefloe.repo.lifecycle import CLONE_MARKER, Marker
from icefloe.reports import FactsReport, shown_bytes
from icefloe.storage import Backend, Storage
from icefloe.storage import Version as State
from icefloe.values.model import Progress
from icefloe.walk.history import ReadLimits

_SPEC_2: Final = 2


class CloneRules(Record):
    """What to copy, and how to make sure of it."""

    version: Version | None = None
    """One version; None: all that branches and tags lead to."""
    update: bool = False
    """Whether an earlier clone may be brought up to date."""
    deep: bool = False
    """Whether to compare all objects byte by byte in the end."""
    limits: ReadLimits = field(default_factory=ReadLimits)


class CloneReport(FactsReport, Record):
    """What `Repository.clone_to` did."""

    spec_version: int
    versions: int
    """How many versions the clone has."""
    objects_copied: Mapping[str, int]
    """By kind."""
    objects_present: Mapping[str, int]
    """Those that an earlier run had copied."""
    bytes_copied: int
    objects_compared: int
    """How many were compared byte by byte."""
    objects_missing: Mapping[str, int]
    """Logs and backups of the source that are lost there: no version needs them to be read."""
    is_server_side: bool
    """Whether the store copied by itself, without the bytes coming here."""
    was_complete: bool
    """Whether the very same repository was there already, so that nothing was to be done."""

    headings = ("kind", "copied", "there already")

    def _rows(self) -> Iterator[list[object]]:
        for kind, copied in () if self.was_complete else self.objects_copied.items():
            yield [kind.replace("_", " "), copied, self.objects_present[kind]]

    def _notes(self) -> Iterator[str]:
        if self.was_complete:
            yield "the same repository was there already: nothing was copied"
            return
        way = "by the store itself" if self.is_server_side else "through this machine"
        yield f"{shown_bytes(self.bytes_copied)} copied {way}, {self.versions} versions"
        if self.objects_compared:
            yield f"{self.objects_compared} objects compared byte by byte: all the same"
        else:
            yield "all objects are there, with their sizes"
        for kind, count in self.objects_missing.items():
            name = kind.replace("_", " ")
            yield f"{count} {name} are lost in the source: history only, all data is there"


async def clone(
    context: RepoContext, target: Storage, rules: CloneRules, progress: Progress | None = None
) -> CloneReport:
    """Copy a repository to a place that is empty, or where the same was begun."""
    selection = await select(context, rules.version)
    transfer = Transfer.between(
        context.storage, target, context.config.storage, context.config.max_concurrent_requests
    )
    version = None if rules.version is None else str(rules.version.snapshot)
    marker = Marker(CLONE_MARKER, {"of": "a clone", "snapshot": version})
    destination = await _look_at(transfer.target, selection)
    is_done = destination.is_same and not rules.deep
    if not is_done:
        await _require_place(transfer.target, destination, selection, rules, marker)
        contents = Contents(context, transfer, selection, rules.limits, progress)
        done = await contents.copy(deep=rules.deep)
        if not destination.is_same:
            await _put_last(transfer.target, selection, destination.replacing)
    else:
        done = Done()
    if destination.replacing is None:
        await marker.remove(transfer.target)
    return CloneReport(
        spec_version=selection.spec_version,
        versions=len(selection.snapshots),
        objects_copied=done.copied,
        objects_present=done.present,
        bytes_copied=done.size_bytes,
        objects_compared=done.compared,
        objects_missing=done.missing,
        is_server_side=transfer.server_copy is not None,
        was_complete=is_done,
    )


# -- the place -----------------------------------------------------------------------------


class _Place(Record):
    """What is in the place where a clone is to be."""

    has_repository: bool = False
    is_same: bool = False
    """Whether that is the very repository that is to be there."""
    older: RepoInfo | None = None
    """Its repo object in spec 2."""
    replacing: State | None = None


async def _look_at(target: Backend, selection: Selection) -> _Place:
    last = selection.last[-1]
    try:
        stored = await target.get(last.key)
    except ObjectNotFoundError:
        return _Place()
    if selection.spec_version == _SPEC_2:
        info = decode_repo_info(stored.data)
        if _are_same(selection, bytes(stored.data), info):
            return _Place(has_repository=True, is_same=True)
        return _Place(has_repository=True, older=info, replacing=stored.info.version)
    are_same = [await _holds(target, file) for file in selection.last]
    return _Place(has_repository=True, is_same=all(are_same))


def _are_same(selection: Selection, data: bytes, info: RepoInfo) -> bool:
    expected = selection.last[-1].data
    if selection.is_everything:
        return data == expected

    def key(repo: RepoInfo) -> tuple[object, ...]:
        return (dict(repo.branches), dict(repo.tags), repo.snapshots.ids.tobytes())

    return key(info) == key(decode_repo_info(expected))  # but for the time of the clone


async def _holds(target: Backend, file: LastFile) -> bool:
    try:
        return bytes((await target.get(file.key)).data) == file.data
    except ObjectNotFoundError:
        return False


async def _require_place(
    target: Backend, destination: _Place, selection: Selection, rules: CloneRules, marker: Marker
) -> None:
    """Refuse to write over what is not ours."""
    if destination.is_same:
        return
    if not destination.has_repository:
        try:
            await marker.claim(target)
        except InvalidInputError:
            # Perhaps somebody else has just finished the same.
            if not (await _look_at(target, selection)).is_same:
                raise
        return
    if not rules.update:
        raise InvalidInputError(
            "there is a repository already, and it is not the same: choose another place, or"
            " update it if it is an earlier clone",
            ErrorKind.PARENT_DIRECTORY_NOT_CLEAN,
        )
    if destination.older is None or not selection.is_everything:
        raise InvalidInputError(
            "only whole clones of repositories of spec version 2 can be updated: choose an empty"
            " place"
        )
    theirs = {raw.tobytes() for raw in destination.older.snapshots.ids}
    ours = {snapshot.raw for snapshot in selection.snapshots}
    if unknown := len(theirs - ours):
        raise ConflictError(
            message=f"the repository there has {unknown} versions that the source does not list"
            " (any more): it is no earlier clone, or was written to, or versions have expired;"
            " choose an empty place",
            kind=ErrorKind.REPO_INFO_UPDATED,
        )


# -- the end -------------------------------------------------------------------------------


async def _put_last(target: Backend, selection: Selection, replacing: State | None) -> None:
    """Make the place a repository."""
    *others, last = selection.last
    if selection.spec_version != _SPEC_2:
        await _clear_refs(target, {file.key for file in selection.last})
    for file in others:  # nobody reads these before the last one is there
        await target.put(file.key, file.data, content_type=file.content_type)
    try:
        await put_settled(
            target,
            last.key,
            last.data,
            replacing=replacing,
            content_type=last.content_type,
            attributes=last.attributes,
        )
    except PreconditionFailedError:
        if not await _holds(target, last):
            raise ConflictError(
                message=f"somebody else wrote {last.key!r} in the place of the clone meanwhile:"
                " look who uses it, and choose another place",
                kind=ErrorKind.REPO_INFO_UPDATED,
            ) from None


async def _clear_refs(target: Backend, kept_keys: set[str]) -> None:
    """Remove what an interrupted clone wrote of branches and tags that are gone since."""
    keys = [info.key async for batch in target.list(REFS_PREFIX) for info in batch]
    if stale := [key for key in keys if key not in kept_keys]:
        await target.delete_many(stale)
