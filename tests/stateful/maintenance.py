"""A repository whose old versions expire and are collected, again and again, by several actors.

Each expiration and each collection is carried out by all actors, each on a copy of the same
repository. All copies must come out the same, and one of them is gone on with. Branches are
reset onto versions that have expired, as long as these are still stored.
"""

import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar, Final

import icechunk
from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

import icefloe
from icefloe.storage.local import LocalBackend
from tests.stateful.actors import Actor, chunk_key, key_of, put, seen_by
from tests.stateful.former_reference import FormerReference
from tests.stateful.model import INITIAL, NodeModel, Seen
from tests.support.checking import check_repository_blocking

BRANCHES: Final = ("main", "dev", "old")
FOLDERS: Final = ("snapshots", "transactions", "manifests", "chunks")
TOMORROW: Final = timedelta(days=1)
FORMER: Final = "former icechunk"

type Expire = Callable[..., set[str]]
type Collect = Callable[[Path, datetime], None]


@dataclass(frozen=True)
class Keeper:
    """Someone who lets versions expire and collects garbage, in the repository at a path."""

    expire: Expire
    collect: Collect


def keeper(module: Any) -> Keeper:
    def opened(path: Path) -> Any:
        return module.Repository.open(module.local_filesystem_storage(str(path)))

    def expire(path: Path, older_than: datetime, **options: bool) -> set[str]:
        expired: set[str] = opened(path).expire_snapshots(older_than, **options)
        return expired

    def collect(path: Path, older_than: datetime) -> None:
        opened(path).garbage_collect(older_than)

    return Keeper(expire, collect)


@dataclass(frozen=True)
class State:
    """What branches and tags lead to, and which files there are."""

    branches: dict[str, list[str]]
    tags: dict[str, list[str]]
    files: frozenset[str]

    @classmethod
    def of(cls, path: Path) -> "State":
        repo = icefloe.Repository.open(icefloe.local_filesystem_storage(str(path)))
        return cls(
            {
                name: [version.id for version in repo.ancestry(branch=name)]
                for name in sorted(repo.list_branches())
            },
            {
                name: [version.id for version in repo.ancestry(tag=name)]
                for name in sorted(repo.list_tags())
            },
            frozenset(
                f"{folder}/{file.name}"
                for folder in FOLDERS
                for file in (path / folder).glob("*")
                if "#" not in file.name  # a write of the file system adapter under way
            ),
        )

    @property
    def lines(self) -> list[list[str]]:
        """The history of each branch and tag, newest version first."""
        return [*self.branches.values(), *self.tags.values()]

    @property
    def reached(self) -> set[str]:
        return {version for line in self.lines for version in line}


class MaintenanceMachine(RuleBasedStateMachine):
    """Commits, resets, expirations and collections; subclasses say in which spec version."""

    spec: ClassVar[int] = 2
    former: ClassVar[FormerReference | None] = None
    """Takes part if given."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="icefloe-maintenance-"))
        self.path = self.folder / "repo"
        self.actors = [
            Actor(name, module, self.path)
            for name, module in (("icefloe", icefloe), ("icechunk", icechunk))
        ]
        self.keepers = {actor.name: keeper(actor.module) for actor in self.actors}
        if self.former is not None:
            self.keepers[FORMER] = Keeper(self.former.expire, self.former.collect)
        self.commits = 0
        self.seen: dict[str, Seen] = {}
        """What was read of each version when it was made, in the order of their creation."""
        self.times: dict[str, datetime] = {}

    def teardown(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    @initialize(data=st.data())
    def create(self, data: st.DataObject) -> None:
        creator = data.draw(st.sampled_from(self.actors), "creator")
        creator.create(self.spec, updates_per_file=1000)
        self._reopen()
        for _ in range(3):
            self.commit(data, "main")

    # -- changes -----------------------------------------------------------------------------

    @rule(data=st.data(), branch=st.sampled_from(BRANCHES))
    def commit(self, data: st.DataObject, branch: str) -> None:
        actor = self._actor(data)
        if branch not in actor.repo.list_branches():
            return
        self.commits += 1
        session = actor.repo.writable_session(branch)
        if session.snapshot_id == INITIAL:
            put(session, key_of("/", "zarr.json"), NodeModel({}).encoded())
            put(session, key_of("/a", "zarr.json"), NodeModel({}, (8,)).encoded())
        content = self.commits.to_bytes(4, "big") * 5  # too long to be kept inline
        put(session, chunk_key("/a", (self.commits % 4,)), content)
        version = session.commit(f"commit {self.commits}")
        self.seen[version] = seen_by(session)
        self.times[version] = actor.repo.lookup_snapshot(version).written_at

    @rule(data=st.data(), branch=st.sampled_from(BRANCHES))
    def set_branch(self, data: st.DataObject, branch: str) -> None:
        """Create a branch, or reset it."""
        repo = self._actor(data).repo
        target = self._target(data)
        if branch in repo.list_branches():
            repo.reset_branch(branch, target)
        else:
            repo.create_branch(branch, target)

    @rule(data=st.data())
    def tag(self, data: st.DataObject) -> None:
        self.commits += 1
        self._actor(data).repo.create_tag(f"tag {self.commits}", self._target(data))

    @rule(data=st.data(), branch=st.sampled_from(BRANCHES[1:]))
    def delete_branch(self, data: st.DataObject, branch: str) -> None:
        repo = self._actor(data).repo
        if branch in repo.list_branches():
            repo.delete_branch(branch)

    # -- maintenance -------------------------------------------------------------------------

    @rule(data=st.data(), delete_branches=st.booleans(), delete_tags=st.booleans())
    def expire(self, data: st.DataObject, delete_branches: bool, delete_tags: bool) -> None:
        before = State.of(self.path)
        times = sorted(self.times[version] for version in before.reached - {INITIAL})
        moments = [*times, *(moment + TOMORROW for moment in times[-1:])]
        older_than = data.draw(st.sampled_from(moments), "older than")
        options = {
            "delete_expired_branches": delete_branches,
            "delete_expired_tags": delete_tags,
        }
        expired = {
            name: keeper.expire(self._copy(name), older_than, **options)
            for name, keeper in self.keepers.items()
        }
        after = self._take_over(data)
        note(f"{before.branches} {before.tags} expired {expired}")
        ours = expired.pop("icefloe")
        assert ours >= before.reached - after.reached
        assert not ours & after.reached
        assert ours <= self.times.keys()  # also versions that no branch or tag leads to any more
        named = self._named_by_the_reference(before, older_than) if self.spec == 1 else ours
        for name, theirs in expired.items():
            assert theirs == named, name

    def _named_by_the_reference(self, before: State, older_than: datetime) -> set[str]:
        """List what the reference says has expired in spec 1, also if refs still lead to it.

        Of each line it names all old versions, unless there is only one after the first snapshot.
        """
        return {
            version
            for line in before.lines
            if len(line) > len(["the only version", INITIAL])
            for version in line[:-1]
            if self.times[version] < older_than
        }

    @rule(data=st.data())
    def collect(self, data: st.DataObject) -> None:
        before = State.of(self.path)
        moment = datetime.now(UTC) + TOMORROW
        for name, keeper in self.keepers.items():
            keeper.collect(self._copy(name), moment)
        after = self._take_over(data)
        assert (after.branches, after.tags) == (before.branches, before.tags)
        stored = {file.removeprefix("snapshots/") for file in after.files}
        assert {version for version in self.seen if version in stored} == after.reached - {INITIAL}

    def _copy(self, name: str) -> Path:
        target = self.folder / name
        shutil.copytree(self.path, target)
        return target

    def _take_over(self, data: st.DataObject) -> State:
        """Compare the copies, and go on with one of them."""
        states = {name: State.of(self.folder / name) for name in self.keepers}
        ours = states["icefloe"]
        for name, state in states.items():
            assert state == ours, name
        chosen = data.draw(st.sampled_from(list(self.keepers)), "goes on with")
        shutil.rmtree(self.path)
        shutil.move(self.folder / chosen, self.path)
        for name in self.keepers:
            shutil.rmtree(self.folder / name, ignore_errors=True)
        check_repository_blocking(LocalBackend(str(self.path)))
        self._reopen()
        for actor in self.actors:
            for version in sorted(ours.reached - {INITIAL}):
                session = actor.repo.readonly_session(snapshot_id=version)
                assert seen_by(session) == self.seen[version], actor.name
        return ours

    # -- choosing ----------------------------------------------------------------------------

    def _actor(self, data: st.DataObject) -> Actor:
        return data.draw(st.sampled_from(self.actors), "actor")

    def _target(self, data: st.DataObject) -> str:
        """Choose a version that is stored: in spec 2, one that the repository lists."""
        return data.draw(st.sampled_from(self._available()), "version")

    def _available(self) -> Sequence[str]:
        if self.spec == 1:
            return [v for v in self.seen if (self.path / "snapshots" / v).exists()]
        repo = icefloe.Repository.open(icefloe.local_filesystem_storage(str(self.path)))
        listed = {entry["id"] for entry in repo.inspect_repo_info()["snapshots"]}
        return [version for version in self.seen if version in listed]

    def _reopen(self) -> None:
        """Forget what was remembered: in spec 1 versions get other parents."""
        for actor in self.actors:
            actor.open()
