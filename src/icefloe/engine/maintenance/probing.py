"""What a storage really does: tried out in a corner of its own, which is removed after.

Documents say what a storage should do; this finds out what it does, through the same code that
repositories use. Nothing outside of the corner is written, and nothing in it is left.
"""

import secrets
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from icefloe.engine.maintenance.storage_trials import Outcome, Probe, Trial, Trials
from icefloe.errors import IcefloeError, InvalidInputError, ObjectNotFoundError
from icefloe.format.layout import REPO_KEY, branch_key
from icefloe.format.repo_info import MAIN_BRANCH
from icefloe.storage import Backend, Storage
from icefloe.storage.file_queue import QUEUE_FILE
from icefloe.storage.locks import LOCK_FILE
from icefloe.storage.specs import LocalSpec
from icefloe.values.progress import Progress

SCRATCH: Final = "icefloe-doctor-"
"""How the names of scratch corners begin."""


@dataclass(frozen=True, slots=True)
class Guarantee:
    """Something that users rely on, and what it takes."""

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


@dataclass(frozen=True, slots=True)
class Checkup:
    """All trials of a storage."""

    probes: tuple[Probe, ...]
    has_repository: bool | None
    """Whether there is a repository; None if that could not be found out."""
    is_read_only: bool
    scratch: str
    left_behind: tuple[str, ...] = ()
    """Objects of the corner that could not be removed."""

    def outcome(self, trial: Trial) -> Outcome:
        """Say how a trial ended."""
        return next((p.outcome for p in self.probes if p.trial is trial), Outcome.UNKNOWN)

    def holds(self, guarantee: Guarantee) -> bool | None:
        """Say whether a guarantee holds; None if it is not known."""
        outcomes = {self.outcome(trial) for trial in guarantee.needs}
        if outcomes & {Outcome.FAILS, Outcome.LACKS}:
            return False
        return None if Outcome.UNKNOWN in outcomes else True


async def probe(storage: Storage, *, progress: Progress | None = None) -> Checkup:
    """Try out a storage; one that cannot be reached raises `StorageError`."""
    corner = f"{SCRATCH}{secrets.token_hex(8)}/"
    root = Path(storage.spec.path) if isinstance(storage.spec, LocalSpec) else None
    is_new = root is not None and not root.exists()
    backend = storage.open()
    has_repository = await _has_repository(backend)
    trials = Trials(backend, corner)
    try:
        await trials.run(progress)
    finally:
        left = await _clean(backend, trials)
        if root is not None:
            _remove_empty_folders(root / corner)
            if is_new:
                _remove_folder(root)
    return Checkup(tuple(trials.probes), has_repository, trials.is_read_only, corner, tuple(left))


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
