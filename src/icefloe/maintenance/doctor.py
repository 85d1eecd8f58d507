"""Find out what a storage really does, by trials under a prefix that is deleted afterwards."""

import secrets
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from icefloe.effects import blocking, map_concurrently
from icefloe.errors import (
    ErrorKind,
    IcefloeError,
    InvalidInputError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    PreconditionFailedError,
)
from icefloe.format.layout import REPO_KEY, branch_key
from icefloe.format.repo_info import MAIN_BRANCH
from icefloe.records import MutableRecord, Record, field
from icefloe.reports import Report
from icefloe.storage import Backend, ObjectInfo, Storage, Version
from icefloe.storage.locks import LOCK_FILE, QUEUE_FILE
from icefloe.storage.specs import LocalSpec
from icefloe.values.model import Progress

_RACERS: Final = 8
_BATCH: Final = 12
_DIGITS: Final = b"0123456789"
_MOST_SKEW_SECONDS: Final = 60


class Outcome(StrEnum):
    """The outcome of a trial."""

    HOLDS = "holds"
    FAILS = "fails"
    LACKS = "lacks"
    """The storage does not have it, and nothing depends on it."""
    UNKNOWN = "unknown"
    """It could not be tried."""


class Trial(StrEnum):
    """A property of a storage that the doctor tests."""

    WRITE = "write"
    READ_AFTER_WRITE = "read-after-write"
    VERSIONS = "versions"
    CONDITIONAL_CREATE = "conditional-create"
    CONDITIONAL_UPDATE = "conditional-update"
    CREATE_RACE = "create-race"
    UPDATE_RACE = "update-race"
    RANGES = "ranges"
    COPY = "copy"
    USER_METADATA = "user-metadata"
    LIST_AFTER_WRITE = "list-after-write"
    LIST_PREFIX = "list-prefix"
    LIST_ORDER = "list-order"
    DELETE = "delete"
    BATCH_DELETE = "batch-delete"
    CLOCK = "clock"


class Probe(Record):
    """The result of a trial."""

    trial: Trial
    outcome: Outcome
    detail: str


class _RefutedError(Exception):
    """A storage does not do what a trial expects of it."""


class _LackingError(Exception):
    """A storage does not have what a trial is about."""


def _expect(holds: object, otherwise: str) -> None:
    if not holds:
        raise _RefutedError(otherwise)


class Trials(MutableRecord):
    """Runs all trials, and records the keys that they write."""

    backend: Backend
    corner: str
    probes: list[Probe] = field(default_factory=list)
    written: set[str] = field(default_factory=set)
    is_read_only: bool = False

    async def run(self, progress: Progress | None) -> None:
        """Try everything; if nothing can be written, there is nothing to try."""
        trials: dict[Trial, Callable[[], Awaitable[str]]] = {
            Trial.WRITE: self._write,
            Trial.READ_AFTER_WRITE: self._read_after_write,
            Trial.VERSIONS: self._versions,
            Trial.CONDITIONAL_CREATE: self._conditional_create,
            Trial.CONDITIONAL_UPDATE: self._conditional_update,
            Trial.CREATE_RACE: self._create_race,
            Trial.UPDATE_RACE: self._update_race,
            Trial.RANGES: self._ranges,
            Trial.COPY: self._copy,
            Trial.USER_METADATA: self._user_metadata,
            Trial.LIST_AFTER_WRITE: self._list_after_write,
            Trial.LIST_PREFIX: self._list_prefix,
            Trial.LIST_ORDER: self._list_order,
            Trial.DELETE: self._delete,
            Trial.BATCH_DELETE: self._batch_delete,
            Trial.CLOCK: self._clock,
        }
        for number, (trial, run) in enumerate(trials.items(), start=1):
            self.probes.append(await self._try(trial, run))
            if progress is not None:
                progress(number, len(trials))
            if trial is Trial.WRITE and self.probes[-1].outcome is not Outcome.HOLDS:
                rest = [other_trial for other_trial in trials if other_trial is not trial]
                why = "nothing could be written"
                self.probes += [Probe(other_trial, Outcome.UNKNOWN, why) for other_trial in rest]
                return

    async def _try(self, trial: Trial, run: Callable[[], Awaitable[str]]) -> Probe:
        try:
            return Probe(trial, Outcome.HOLDS, await run())
        except _RefutedError as refuted:
            return Probe(trial, Outcome.FAILS, str(refuted))
        except _LackingError as lacking:
            return Probe(trial, Outcome.LACKS, str(lacking))
        except IcefloeError as failure:
            lacks = failure.kind == ErrorKind.UNIMPLEMENTED
            outcome = Outcome.FAILS if lacks else Outcome.UNKNOWN
            return Probe(trial, outcome, failure.message)

    async def _put(self, name: str, data: bytes = _DIGITS, **options: object) -> Version:
        key = self.corner + name
        self.written.add(key)
        return await self.backend.put(key, data, **options)  # type: ignore[arg-type]

    async def _get(self, name: str) -> bytes:
        return bytes((await self.backend.get(self.corner + name)).data)

    async def _list(self, prefix: str = "") -> list[ObjectInfo]:
        whole = self.corner + prefix
        return [info async for batch in self.backend.list(whole) for info in batch]

    async def _names(self, prefix: str = "") -> list[str]:
        return [info.key.removeprefix(self.corner) for info in await self._list(prefix)]

    # -- objects ---------------------------------------------------------------------------

    async def _write(self) -> str:
        try:
            await self._put("first")
        except OutcomeUnknownError:
            raise
        except IcefloeError:
            # The storage answers, as looking for a repository has shown: it is us it refuses.
            self.written.clear()
            self.is_read_only = True
            raise
        return "an object can be written"

    async def _read_after_write(self) -> str:
        for number in range(5):
            data = b"%d" % number * (number + 1)
            await self._put("first", data)
            _expect(await self._get("first") == data, "a read shows what was there before")
            size = (await self.backend.head(self.corner + "first")).info.size_bytes
            _expect(size == len(data), "a look shows the size of what was there before")
        return "a read after a write shows what was written, also over something else"

    async def _versions(self) -> str:
        seen = set()
        for number in range(4):
            written = await self._put("versions", b"%d" % number)
            read = (await self.backend.get(self.corner + "versions")).info.version
            looked = (await self.backend.head(self.corner + "versions")).info.version
            _expect(read == looked, "reading and looking tell different versions of one state")
            _expect(written in (Version(), read), "writing and reading tell different versions")
            _expect(read != Version(), "the storage tells no versions of objects")
            seen.add(read)
        _expect(len(seen) == 4, "different states of an object have the same version")
        return "each state of an object has a version of its own"

    async def _conditional_create(self) -> str:
        await self._put("created", b"first", if_absent=True)
        try:
            await self._put("created", b"other", if_absent=True)
        except PreconditionFailedError:
            pass
        else:
            raise _RefutedError("an object that exists was created again")
        _expect(await self._get("created") == b"first", "a refused write changed the object")
        return "an object is created only if there is none"

    async def _conditional_update(self) -> str:
        old = await self._state("updated", b"one")
        await self._put("updated", b"two", if_version=old)
        try:
            await self._put("updated", b"three", if_version=old)
        except PreconditionFailedError:
            pass
        else:
            raise _RefutedError("an object was replaced although it had changed")
        _expect(await self._get("updated") == b"two", "a refused write changed the object")
        current = (await self.backend.head(self.corner + "updated")).info.version
        await self.backend.delete_many([self.corner + "updated"])
        try:
            await self._put("updated", b"four", if_version=current)
        except (PreconditionFailedError, ObjectNotFoundError):
            return "an object is replaced only in the state that the writer saw"
        raise _RefutedError("an object that is gone was replaced")

    async def _state(self, name: str, data: bytes) -> Version:
        await self._put(name, data)
        return (await self.backend.head(self.corner + name)).info.version

    async def _create_race(self) -> str:
        async def create(number: int) -> bool | None:
            return await self._wins("race", number, if_absent=True)

        return self._winner(
            await map_concurrently(create, range(_RACERS), limit=_RACERS), await self._get("race")
        )

    async def _update_race(self) -> str:
        start = await self._state("swap", b"start")

        async def replace(number: int) -> bool | None:
            return await self._wins("swap", number, if_version=start)

        return self._winner(
            await map_concurrently(replace, range(_RACERS), limit=_RACERS), await self._get("swap")
        )

    async def _wins(self, name: str, number: int, **condition: object) -> bool | None:
        try:
            await self._put(name, b"%d" % number, **condition)
        except PreconditionFailedError:
            return False
        except OutcomeUnknownError:
            return None
        return True

    def _winner(self, outcomes: Sequence[bool | None], data: bytes) -> str:
        winners = [number for number, won in enumerate(outcomes) if won]
        _expect(len(winners) <= 1, f"{len(winners)} of {_RACERS} writers were told that they won")
        if winners:
            _expect(data == b"%d" % winners[0], "the object is not what the winner wrote")
        return f"of {_RACERS} writers at the same time, one wins"

    async def _ranges(self) -> str:
        await self._put("ranges")
        key = self.corner + "ranges"
        part = bytes((await self.backend.get(key, (3, 7))).data)
        _expect(part == _DIGITS[3:7], f"bytes 3 to 7 came as {part!r}")
        parts = await self.backend.get_ranges(key, [(8, 10), (0, 1)])
        _expect(list(map(bytes, parts)) == [b"89", b"0"], "several ranges came back wrong")
        try:
            await self.backend.get(key, (20, 30))
        except InvalidInputError:
            return "parts of objects can be read"
        raise _RefutedError("a range past the end of an object is not refused")

    async def _copy(self) -> str:
        version = await self._state("source", b"copied")
        target = self.corner + "target"
        self.written.add(target)
        await self.backend.copy(self.corner + "source", target, if_version=version)
        _expect(await self._get("target") == b"copied", "the copy differs")
        await self._put("source", b"changed")
        try:
            await self.backend.copy(self.corner + "source", target, if_version=version)
        except PreconditionFailedError:
            return "objects can be copied in the state that was seen"
        raise _RefutedError("an object was copied although it had changed")

    async def _user_metadata(self) -> str:
        await self._put("metadata", attributes={"icefloeprobe": "kept"})
        attributes = (await self.backend.head(self.corner + "metadata")).attributes
        if attributes.get("icefloeprobe") != "kept":
            raise _LackingError(
                "the storage keeps no user metadata: when the answer to a write is lost, it cannot"
                " always be found out whether it was made"
            )
        return "user metadata is kept"

    # -- listings and deletions ------------------------------------------------------------

    async def _list_after_write(self) -> str:
        for number in range(3):
            name = f"listed/{number}"
            await self._put(name, bytes(number))
            sizes = {info.key: info.size_bytes for info in await self._list("listed/")}
            _expect(self.corner + name in sizes, "a listing lacks what was just written")
            _expect(sizes[self.corner + name] == number, "a listing tells a wrong size")
        await self.backend.delete_many([self.corner + "listed/0"])
        names = await self._names("listed/")
        _expect("listed/0" not in names, "a listing shows what was just deleted")
        return "a listing shows what was just written, and not what was just deleted"

    async def _list_prefix(self) -> str:
        expected = {"tree/xa", "tree/xb/y", "tree/xy"}
        for name in (*expected, "tree/w", "treetop"):
            await self._put(name)
        names = sorted(await self._names("tree/x"))
        _expect(names == sorted(expected), f"'tree/x' lists {names}")
        below = sorted(await self._names("tree/"))
        _expect(below == sorted({*expected, "tree/w"}), f"'tree/' lists {below}")
        _expect(not await self._names("absent/"), "a prefix without objects lists some")
        return "a prefix lists the keys that begin with it, and no others"

    async def _list_order(self) -> str:
        for name in ("b", "a", "c/d", "c-", "B"):
            await self._put(f"order/{name}")
        names = await self._names("order/")
        if names != sorted(names):
            raise _LackingError("keys are listed in no set order: nothing depends on it")
        return "keys are listed in the order of their bytes"

    async def _delete(self) -> str:
        await self._put("deleted")
        for when in ("once", "again"):
            report = await self.backend.delete_many([self.corner + "deleted"])
            _expect(not report.failures, f"an object could not be deleted {when}")
        try:
            await self._get("deleted")
        except ObjectNotFoundError:
            return "an object can be deleted, and deleting it again does no harm"
        raise _RefutedError("an object that was deleted can be read")

    async def _batch_delete(self) -> str:
        keys = [f"batch/{number:02d}" for number in range(_BATCH)]
        await map_concurrently(self._put, keys, limit=_BATCH)
        report = await self.backend.delete_many([self.corner + key for key in keys])
        _expect(report.deleted == _BATCH, f"{report.deleted} of {_BATCH} objects were deleted")
        left = await self._names("batch/")
        _expect(not left, f"{len(left)} of {_BATCH} objects are still listed")
        return "many objects can be deleted in one request"

    async def _clock(self) -> str:
        before = datetime.now(UTC)
        await self._put("clock")
        told = (await self.backend.head(self.corner + "clock")).info.last_modified
        skew = abs((told - before).total_seconds())
        _expect(
            skew < _MOST_SKEW_SECONDS,
            f"the clocks of this machine and of the storage differ by {skew:.0f} s",
        )
        return "the storage's clock agrees with this machine's"


SCRATCH: Final = "icefloe-doctor-"
"""How the names of scratch corners begin."""


class Guarantee(Record):
    """A guarantee that users rely on, and the trials that prove it."""

    name: str
    needs: tuple[Trial, ...]
    without: str
    """What goes wrong if it does not hold."""


_T = Trial
GUARANTEES: Final = (
    Guarantee(
        "commits of many writers are safe",
        (_T.READ_AFTER_WRITE, _T.VERSIONS, _T.CONDITIONAL_UPDATE, _T.UPDATE_RACE),
        "two writers at the same time may undo each other's commits: have one writer only",
    ),
    Guarantee(
        "a place becomes one repository only",
        (_T.CONDITIONAL_CREATE, _T.CREATE_RACE),
        "two who create a repository in the same place may mix them up: create it from one place",
    ),
    Guarantee(
        "data can be read, also in parts",
        (_T.READ_AFTER_WRITE, _T.RANGES),
        "chunks, which may share objects, cannot be read",
    ),
    Guarantee(
        "each state of the repository is backed up",
        (_T.WRITE, _T.COPY),
        "no commit can be made: each begins with a copy of the state before",
    ),
    Guarantee(
        "maintenance sees everything",
        (_T.LIST_AFTER_WRITE, _T.LIST_PREFIX, _T.CLOCK),
        "do not collect garbage here: it tells what is in use by listings and times",
    ),
    Guarantee(
        "garbage collection makes room",
        (_T.DELETE, _T.BATCH_DELETE),
        "files that nobody needs stay",
    ),
)


class StorageVerdict(StrEnum):
    """The conclusion about a storage."""

    SOUND = "sound"
    UNSAFE = "unsafe"
    """Something that repositories rely on does not hold."""
    READ_ONLY = "read-only"
    INCOMPLETE = "incomplete"
    """Nothing was found to fail, but not everything could be tried."""


class StorageGuarantee(Record):
    """Something that users of a repository rely on."""

    name: str
    holds: bool | None
    """None: it could not be found out."""
    without: str
    """What goes wrong if it does not hold."""


class StorageCheckup(Report, Record):
    """The abilities of a storage, and the guarantees that follow; see `check_storage`.

    Print it, or let a notebook show it.
    """

    probes: tuple[Probe, ...]
    """What came of each trial."""
    has_repository: bool | None
    """Whether there is a repository in the place; nothing of it was touched."""
    is_read_only: bool
    scratch: str
    """The prefix under which everything was tried."""
    left_behind: tuple[str, ...] = ()
    """Objects of the trials that could not be removed; usually none."""

    headings = ("trial", "outcome", "what was seen")

    @property
    def guarantees(self) -> tuple[StorageGuarantee, ...]:
        """The guarantees that hold on this storage."""
        return tuple(
            StorageGuarantee(guarantee.name, self._holds(guarantee), guarantee.without)
            for guarantee in GUARANTEES
        )

    @property
    def trials(self) -> dict[str, str]:
        """The outcome of each trial: `holds`, `fails`, `lacks` (which is harmless) or `unknown`."""
        return {str(probe.trial): str(probe.outcome) for probe in self.probes}

    @property
    def verdict(self) -> StorageVerdict:
        """Sound, unsafe, read-only, or not known for sure."""
        if self.is_read_only:
            return StorageVerdict.READ_ONLY
        outcomes = [guarantee.holds for guarantee in self.guarantees]
        if False in outcomes:
            return StorageVerdict.UNSAFE
        return StorageVerdict.INCOMPLETE if None in outcomes else StorageVerdict.SOUND

    def _holds(self, guarantee: Guarantee) -> bool | None:
        """Return whether a guarantee holds; None if it is not known."""
        outcomes = {self.trials.get(trial, Outcome.UNKNOWN) for trial in guarantee.needs}
        if outcomes & {Outcome.FAILS, Outcome.LACKS}:
            return False
        return None if Outcome.UNKNOWN in outcomes else True

    def to_dict(self) -> dict[str, Any]:
        """Return everything as a dictionary, ready for JSON."""
        return {
            "verdict": str(self.verdict),
            "has_repository": self.has_repository,
            "guarantees": {guarantee.name: guarantee.holds for guarantee in self.guarantees},
            "trials": {
                str(probe.trial): {"outcome": str(probe.outcome), "detail": probe.detail}
                for probe in self.probes
            },
            "scratch": self.scratch,
            "left_behind": list(self.left_behind),
        }

    def _rows(self) -> Iterator[list[object]]:
        for probe in self.probes:
            yield [probe.trial, probe.outcome, probe.detail]

    def _notes(self) -> Iterator[str]:
        match self.verdict:
            case StorageVerdict.READ_ONLY:
                yield "read-only: nothing could be written here, so that nothing more was tried"
            case verdict:
                for guarantee in self.guarantees:
                    mark = {True: "yes", False: "NO", None: "not known"}[guarantee.holds]
                    yield f"{mark}: {guarantee.name}" + (
                        f" - {guarantee.without}" if not guarantee.holds else ""
                    )
                yield f"{verdict}"
        if self.has_repository:
            yield "there is a repository here; nothing of it was touched"
        if self.left_behind:
            yield f"could not be removed, do so yourself: {', '.join(self.left_behind)}"


async def check_storage_async(
    storage: Storage, *, on_progress: Progress | None = None
) -> StorageCheckup:
    """Find out what a storage really does, and whether repositories are safe in it.

    Tries conditional writes (also in races), reads after writes, ranges, listings and deletions
    under keys of its own, which are removed afterwards. A repository in the same place is not
    touched, and may be in use.

    >>> import icefloe
    >>> checkup = check_storage(icefloe.in_memory_storage())
    >>> str(checkup.verdict)
    'sound'
    """
    corner = f"{SCRATCH}{secrets.token_hex(8)}/"
    root = Path(storage.spec.path) if isinstance(storage.spec, LocalSpec) else None
    is_new = root is not None and not root.exists()
    backend = storage.open()
    has_repository = await _has_repository(backend)
    trials = Trials(backend, corner)
    try:
        await trials.run(on_progress)
    finally:
        left = await _clean(backend, trials)
        if root is not None:
            _remove_empty_folders(root / corner)
            if is_new:
                _remove_folder(root)
    return StorageCheckup(
        probes=tuple(trials.probes),
        has_repository=has_repository,
        is_read_only=trials.is_read_only,
        scratch=corner,
        left_behind=tuple(left),
    )


check_storage = blocking(check_storage_async)


async def _has_repository(backend: Backend) -> bool | None:
    for key in (REPO_KEY, branch_key(MAIN_BRANCH)):
        try:
            await backend.head(key)
        except ObjectNotFoundError:
            continue
        except InvalidInputError:
            return None
        return True
    return False


async def _clean(backend: Backend, trials: Trials) -> list[str]:
    """Remove all that was written, and give what could not be."""
    if not trials.written:
        return []
    keys = sorted(trials.written)
    try:
        report = await backend.delete_many(keys)
    except IcefloeError:
        return keys
    return sorted(report.failures)


def _remove_empty_folders(top: Path) -> None:
    """Remove folders that files were in; those that still hold something stay."""
    folders = [path for path in top.rglob("*") if path.is_dir()] if top.is_dir() else []
    for folder in (*sorted(folders, reverse=True), top):
        _remove_folder(folder)


def _remove_folder(folder: Path) -> None:
    """Remove a folder with the files of its locks, unless it holds something else."""
    with suppress(OSError):
        files = list(folder.iterdir())
        if {file.name for file in files} <= {LOCK_FILE, QUEUE_FILE}:
            for file in files:
                file.unlink()
            folder.rmdir()
