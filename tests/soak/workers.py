"""What the processes of a soak do until their time is over, or somebody kills them.

Writers own a row of two arrays, whose values always change together: a reader that sees them
differ has seen half a commit. The value of a cell is the number of the writer's commit.
"""

import random
import time
import traceback
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import zarr

import icefloe
from icefloe.errors import NotFoundError, PreconditionFailedError, StorageError
from icefloe.storage import Storage
from tests.soak.journal import Intent, Journal, intents

WRITERS: Final = 6
CELLS: Final = 8
EMPTY: Final = -1
"""The value of a cell before the first commit to it."""
WIDTH: Final = 128
"""Numbers in a block, so that its chunk is not stored inline."""
MAIN: Final = "main"


class _Actor(Protocol):
    def act(self) -> None: ...


def create(storage: Storage, spec_version: int) -> None:
    """Create the repository, its arrays and the branches of the writers."""
    repo = icefloe.Repository.create(storage, spec_version=spec_version)
    with repo.transaction(MAIN, message="created") as store:
        root = zarr.create_group(store)
        shape = (WRITERS, CELLS)
        root.create_array("cells", shape=shape, chunks=(1, 1), dtype="i8", fill_value=EMPTY)
        root.create_array(
            "blocks",
            shape=(*shape, WIDTH),
            chunks=(1, 1, WIDTH),
            dtype="i8",
            fill_value=EMPTY,
            compressors=None,
        )
    for writer in range(WRITERS):
        repo.create_branch(own_branch(writer), repo.lookup_branch(MAIN))


def own_branch(writer: int) -> str:
    """Return the branch that only one writer commits to."""
    return f"writer-{writer}"


def message_of(writer: int, number: int) -> str:
    """Return the commit message of a writer's commit."""
    return f"writer {writer}, commit {number}"


def write(storage: Storage, journal_path: Path, stop: Path, writer: int) -> None:
    """Commit, tag and read as one of the writers, until the file `stop` exists."""
    _repeat(Journal(journal_path), stop, lambda: _Writer(storage, journal_path, writer))


def read(storage: Storage, journal_path: Path, stop: Path) -> None:
    """Read versions and check that each is whole and none goes back in time."""
    _repeat(Journal(journal_path), stop, lambda: _Reader(storage))


def maintain(
    storage: Storage, calm: Storage, journal_path: Path, stop: Path, grace_seconds: float
) -> None:
    """Expire and collect; verify through a storage without faults."""
    grace = timedelta(seconds=grace_seconds)
    journal = Journal(journal_path)
    _repeat(journal, stop, lambda: _Caretaker(storage, calm, journal, grace))


def _repeat(journal: Journal, stop: Path, open_actor: Callable[[], _Actor]) -> None:
    """Act until told to stop; storage may fail, and every other error is a defect."""
    actor: _Actor | None = None
    while not stop.exists():
        try:
            if actor is None:
                actor = open_actor()
            actor.act()
        except (NotFoundError, PreconditionFailedError):
            journal.note("defect", text=traceback.format_exc())
        except StorageError as refusal:
            journal.note("refusal", text=str(refusal))
        except Exception:  # noqa: BLE001 - every surprise is reported
            journal.note("defect", text=traceback.format_exc())


class _Writer:
    def __init__(self, storage: Storage, journal_path: Path, writer: int) -> None:
        self._repo = icefloe.Repository.open(storage)
        self._journal = Journal(journal_path)
        self._writer = writer
        earlier = intents(self._journal)
        self._number = len(earlier)  # numbers count from 0
        self._tags = _tags_left(earlier)

    def act(self) -> None:
        """Do one of the things that writers do."""
        actions: list[tuple[int, Callable[[], None]]] = [
            (60, lambda: self._commit(MAIN)),
            (15, lambda: self._commit(own_branch(self._writer))),
            (10, self._commit_with_forks),
            (10, self._tag),
            (5, self._untag),
        ]
        if self._repo.spec_version > 1:
            actions.append((5, self._amend))
        weights, functions = zip(*actions, strict=True)
        random.choices(functions, weights)[0]()

    def _commit(self, branch: str) -> None:
        session = self._repo.writable_session(branch)
        number, cells = self._intend("commit", branch)
        self._fill(session, number, cells)
        message = message_of(self._writer, number)
        session.commit(message, rebase_with=icefloe.ConflictDetector())
        self._journal.note("ack", number=number)

    def _amend(self) -> None:
        branch = own_branch(self._writer)
        session = self._repo.writable_session(branch)
        if session.snapshot_id == self._repo.lookup_branch(MAIN):
            return  # the commit that all branches share is nobody's to replace
        number, cells = self._intend("commit", branch)
        self._fill(session, number, cells)
        session.amend(message_of(self._writer, number))
        self._journal.note("ack", number=number)

    def _commit_with_forks(self) -> None:
        session = self._repo.writable_session(MAIN)
        number, cells = self._intend("commit", MAIN)
        forks = [session.fork() for _ in cells]
        for fork, cell in zip(forks, cells, strict=True):
            self._fill(fork, number, [cell])
        session.merge(*forks)
        message = message_of(self._writer, number)
        session.commit(message, rebase_with=icefloe.ConflictDetector())
        self._journal.note("ack", number=number)

    def _tag(self) -> None:
        name = f"{self._writer}-{self._number}"
        number, _ = self._intend("tag", name)
        self._repo.create_tag(name, self._repo.lookup_branch(MAIN))
        self._journal.note("ack", number=number)
        self._tags.append(name)

    def _untag(self) -> None:
        if len(self._tags) < 3:
            return
        name = self._tags.pop(0)
        number, _ = self._intend("untag", name)
        self._repo.delete_tag(name)
        self._journal.note("ack", number=number)

    def _intend(self, action: str, ref: str) -> tuple[int, list[int]]:
        number = self._number
        self._number += 1
        cells = random.sample(range(CELLS), random.randint(1, 3)) if action == "commit" else []
        self._journal.note("intent", number=number, action=action, ref=ref, cells=cells)
        return number, cells

    def _fill(self, session: icefloe.Session, number: int, cells: Sequence[int]) -> None:
        root = zarr.open_group(session.store, mode="r+")
        for cell in cells:
            _array(root, "cells")[self._writer, cell] = number
            _array(root, "blocks")[self._writer, cell] = number


def _tags_left(earlier: Sequence[Intent]) -> list[str]:
    created = [it.ref for it in earlier if it.action == "tag" and it.is_acknowledged]
    deleted = {it.ref for it in earlier if it.action == "untag"}
    return [name for name in created if name not in deleted]


class _Reader:
    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._latest = np.full((WRITERS, CELLS), EMPTY)

    def act(self) -> None:
        """Read a branch or a tag whole."""
        repo = icefloe.Repository.open(self._storage)
        tags = sorted(repo.list_tags())
        if tags and random.random() < 0.3:
            try:
                session = repo.readonly_session(tag=random.choice(tags))
            except NotFoundError:
                return  # deleted since it was listed
            values_in(session.store)
            return
        branch = random.choice([MAIN, MAIN, *map(own_branch, range(WRITERS))])
        values = values_in(repo.readonly_session(branch).store)
        if branch == MAIN:
            assert (values >= self._latest).all(), "main went back in time"
            self._latest = values


class _Caretaker:
    def __init__(self, storage: Storage, calm: Storage, journal: Journal, grace: timedelta) -> None:
        self._storage = storage
        self._calm = calm
        self._journal = journal
        self._grace = grace

    def act(self) -> None:
        """Do one of the things that keep a repository healthy."""
        old = datetime.now(UTC) - self._grace
        match random.choice(("expire", "collect", "collect", "verify")):
            case "expire":
                self._journal.note("expiration", older_than=old.timestamp())
                icefloe.Repository.open(self._storage).expire_snapshots(old)
            case "collect":
                icefloe.Repository.open(self._storage).garbage_collect(old)
            case _:
                report = icefloe.Repository.open(self._calm).verify()
                assert report.is_healthy, str(report)
        time.sleep(random.uniform(0, 1))


def values_in(store: Any) -> "np.ndarray[Any, np.dtype[np.int64]]":
    """Read all cells of a version; raise if the two arrays do not agree."""
    root = zarr.open_group(store, mode="r")
    cells = np.asarray(_array(root, "cells")[...])
    blocks = np.asarray(_array(root, "blocks")[...])
    assert (blocks == cells[..., None]).all(), "half a commit is visible"
    return cells


def _array(root: zarr.Group, name: str) -> Any:
    return root[name]
