"""A repository under several sessions at once, against the model, by one or more actors."""

import pickle
import shutil
import tempfile
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import zarr
from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from icefloe.storage.local import LocalBackend
from icefloe.testing.invariants import InvariantChecker
from tests.stateful.actors import (
    Actor,
    chunk_key,
    delete,
    delete_dir,
    key_of,
    put,
    seen_by,
    told_by,
)
from tests.stateful.model import (
    CHUNK_LENGTH,
    INITIAL,
    Coords,
    NodeModel,
    RepositoryModel,
    SessionModel,
    SnapshotModel,
    child_path,
    described,
    is_within,
    seen_in,
)

NAMES = ("a", "b", "c-d")
BRANCHES = ("main", "dev", "ñ/2")
TAGS = ("v1", "v2")
MAX_SESSIONS = 3
MAX_DEPTH = 3

attributes = st.dictionaries(st.sampled_from("xy"), st.integers(0, 9), max_size=2)
shapes = st.lists(st.integers(1, 4 * CHUNK_LENGTH), min_size=1, max_size=2).map(tuple)
chunks = st.binary(min_size=1, max_size=20)


@dataclass
class Open:
    """A session of an actor, with its model."""

    actor: Actor
    session: Any
    branch: str
    model: SessionModel


class RepositoryMachine(RuleBasedStateMachine):
    """Rules common to all machines; subclasses say who acts and on which spec version."""

    spec: ClassVar[int] = 2
    modules: ClassVar[dict[str, Callable[[], Any]]] = {}
    """Name and module of each actor."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="icefloe-machine-"))
        self.backend = LocalBackend(str(self.folder))
        self.checker = InvariantChecker()
        self.actors = [Actor(name, module(), self.folder) for name, module in self.modules.items()]
        self.model = RepositoryModel()
        self.open: list[Open] = []
        self.commits = 0

    def teardown(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    @initialize(data=st.data(), updates_per_file=st.sampled_from((2, 5, 1000)))
    def create(self, data: st.DataObject, updates_per_file: int) -> None:
        creator = data.draw(st.sampled_from(self.actors), "creator")
        creator.create(self.spec, updates_per_file)
        for actor in self.actors:
            if actor is not creator:
                actor.open()
        self.check_refs()
        self.check_files()

    # -- choosing ----------------------------------------------------------------------------

    def _actor(self, data: st.DataObject) -> Actor:
        return data.draw(st.sampled_from(self.actors), "actor")

    def _session(self, data: st.DataObject) -> Open:
        return self.open[data.draw(st.integers(0, len(self.open) - 1), "session")]

    def _has_sessions(self) -> bool:
        return bool(self.open)

    def _path(self, data: st.DataObject, opened: Open, *, arrays: bool) -> str | None:
        content = opened.model.content
        paths = sorted(path for path, node in content.items() if node.is_array == arrays)
        return data.draw(st.sampled_from(paths), "path") if paths else None

    def _coords(self, data: st.DataObject, node: NodeModel) -> Coords:
        return tuple(data.draw(st.integers(0, size - 1)) for size in node.grid)

    # -- sessions ----------------------------------------------------------------------------

    @precondition(lambda self: len(self.open) < MAX_SESSIONS)
    @rule(data=st.data())
    def open_session(self, data: st.DataObject) -> None:
        actor = self._actor(data)
        branch = data.draw(st.sampled_from(sorted(self.model.branches)), "branch")
        session = actor.repo.writable_session(branch)
        tip = self.model.branches[branch]
        assert session.snapshot_id == tip
        assert not session.has_uncommitted_changes
        model = SessionModel(tip, self.model.snapshots[tip].content)
        self.open.append(Open(actor, session, branch, model))

    @precondition(_has_sessions)
    @rule(data=st.data(), name=st.sampled_from(NAMES), values=attributes, shape=shapes)
    def create_node(
        self, data: st.DataObject, name: str, values: dict[str, int], shape: Coords
    ) -> None:
        opened = self._session(data)
        content = opened.model.content
        parent = self._path(data, opened, arrays=False)
        path = "/" if parent is None else child_path(parent, name)
        if path in content or path.count("/") > MAX_DEPTH:
            return
        is_array = path != "/" and data.draw(st.booleans(), "is array")
        node = NodeModel(values, shape if is_array else None)
        put(opened.session, key_of(path, "zarr.json"), node.encoded())
        opened.model.create(path, node)

    @precondition(_has_sessions)
    @rule(data=st.data(), values=attributes, arrays=st.booleans())
    def update_attributes(self, data: st.DataObject, values: dict[str, int], arrays: bool) -> None:
        opened = self._session(data)
        if (path := self._path(data, opened, arrays=arrays)) is not None:
            opened.model.update(path, values)
            node = opened.model.content[path]
            put(opened.session, key_of(path, "zarr.json"), node.encoded())

    @precondition(_has_sessions)
    @rule(data=st.data(), contents=st.lists(chunks, min_size=1, max_size=4))
    def set_chunks(self, data: st.DataObject, contents: list[bytes]) -> None:
        opened = self._session(data)
        if (path := self._path(data, opened, arrays=True)) is not None:
            for content in contents:
                coords = self._coords(data, opened.model.content[path])
                put(opened.session, chunk_key(path, coords), content)
                opened.model.set_chunk(path, coords, content)

    @precondition(_has_sessions)
    @rule(data=st.data())
    def delete_chunk(self, data: st.DataObject) -> None:
        opened = self._session(data)
        if (path := self._path(data, opened, arrays=True)) is not None:
            coords = self._coords(data, opened.model.content[path])
            delete(opened.session, chunk_key(path, coords))
            opened.model.delete_chunk(path, coords)

    @precondition(_has_sessions)
    @rule(data=st.data())
    def resize(self, data: st.DataObject) -> None:
        opened = self._session(data)
        if (path := self._path(data, opened, arrays=True)) is None:
            return
        node = opened.model.content[path]
        lengths = st.integers(1, 4 * CHUNK_LENGTH)
        shape = tuple(data.draw(lengths, "length") for _ in node.shape or ())
        zarr.open_array(opened.session.store, path=key_of(path)).resize(shape)
        opened.model.resize(path, shape)

    @precondition(_has_sessions)
    @rule(data=st.data(), steps=st.tuples(st.integers(-2, 2), st.integers(-2, 2)))
    def shift(self, data: st.DataObject, steps: Coords) -> None:
        opened = self._session(data)
        if (path := self._path(data, opened, arrays=True)) is None:
            return
        offset = steps[: len(opened.model.content[path].grid)]
        opened.session.shift_array(path, list(offset))
        opened.model.shift(path, offset)
        self.take_chunk_record(opened, path)

    @precondition(_has_sessions)
    @rule(data=st.data())
    def reindex(self, data: st.DataObject) -> None:
        """Turn the first dimension around, up to a point."""
        opened = self._session(data)
        if (path := self._path(data, opened, arrays=True)) is None:
            return
        size = opened.model.content[path].grid[0]
        last = data.draw(st.integers(0, size - 1), "last")

        def turned(coords: Any) -> list[int] | None:
            first, *rest = coords
            return [last - first, *rest] if first <= last else None

        present = opened.model.content[path].chunks
        moves = {c: tuple(target) for c in present if (target := turned(c)) is not None}
        opened.session.reindex_array(path, turned)
        opened.model.reindex(path, moves)
        self.take_chunk_record(opened, path)

    def take_chunk_record(self, opened: Open, path: str) -> None:
        """Which unchanged places count as touched by a relabelling is left open."""
        told = told_by(opened.session.status())["updated_chunks"].get(path, [])
        uid = opened.model.content[path].uid
        touched = {tuple(coords) for coords in told}
        known = opened.model.record.chunks.get(uid, set())
        assert touched >= {c for c in known if opened.model.content[path].has_room_for(c)}
        opened.model.record.chunks[uid] = touched | known
        if not opened.model.record.chunks[uid]:
            del opened.model.record.chunks[uid]

    @precondition(_has_sessions)
    @rule(data=st.data(), arrays=st.booleans())
    def delete_node(self, data: st.DataObject, arrays: bool) -> None:
        opened = self._session(data)
        path = self._path(data, opened, arrays=arrays)
        if path is None or path == "/":
            return
        delete_dir(opened.session, key_of(path))
        opened.model.delete(path)

    @precondition(_has_sessions)
    @rule(data=st.data())
    def discard(self, data: st.DataObject) -> None:
        opened = self._session(data)
        opened.session.discard_changes()
        opened.model.discard()
        assert not opened.session.has_uncommitted_changes

    @precondition(_has_sessions)
    @rule(data=st.data(), workers=st.integers(1, 2), contents=st.lists(chunks, max_size=3))
    def fork_and_merge(self, data: st.DataObject, workers: int, contents: list[bytes]) -> None:
        """Let workers write chunks; where they meet, the one merged later wins."""
        opened = self._session(data)
        if (path := self._path(data, opened, arrays=True)) is None:
            return
        fork = opened.session.fork()
        forks = [pickle.loads(pickle.dumps(fork)) for _ in range(workers)]
        for one in forks:
            for content in contents:
                coords = self._coords(data, opened.model.content[path])
                put(one, chunk_key(path, coords), content)
                opened.model.set_chunk(path, coords, content)
        opened.session.merge(*forks)
        self.check_session_contents(opened)

    @precondition(_has_sessions)
    @rule(data=st.data())
    def look_at_session(self, data: st.DataObject) -> None:
        self.check_session_contents(self._session(data))

    def check_session_contents(self, opened: Open) -> None:
        assert seen_by(opened.session) == seen_in(opened.model.content)
        assert told_by(opened.session.status()) == opened.model.status()
        if not opened.model.record.is_disputed:
            changed = not opened.model.record.is_empty
            assert opened.session.has_uncommitted_changes == changed

    # -- commits -----------------------------------------------------------------------------

    def _next_message(self) -> str:
        self.commits += 1
        return f"commit {self.commits}"

    @precondition(_has_sessions)
    @rule(data=st.data(), values=attributes)
    def commit(self, data: st.DataObject, values: dict[str, int]) -> None:
        opened = self._session(data)
        if self._refused(opened, lambda: opened.session.commit("refused", allow_empty=True)):
            return
        allow_empty = self._allow_empty(data, opened)
        if allow_empty is None:
            with pytest.raises(opened.actor.module.IcechunkError) as caught:
                opened.session.commit("nothing")
            assert caught.value.kind == "no-changes-to-commit"
            return
        message = self._next_message()
        new = opened.session.commit(message, values, allow_empty=allow_empty)
        self._committed(opened, new, message, values)

    def _allow_empty(self, data: st.DataObject, opened: Open) -> bool | None:
        """Choose whether to allow an empty commit; `None` to see one refused."""
        record = opened.model.record
        if record.is_disputed and record.is_empty:
            return True
        allowed = data.draw(st.booleans(), "allow empty")
        return None if record.is_empty and not allowed else allowed

    def _refused(self, opened: Open, attempt: Callable[[], object]) -> bool:
        """See that a commit is refused if the branch moved or is gone."""
        tip = self.model.branches.get(opened.branch)
        if tip == opened.model.base:
            return False
        if tip is None:
            with pytest.raises(opened.actor.error("RefNotFoundError")):
                attempt()
        else:
            with pytest.raises(opened.actor.error("ConflictError")) as caught:
                attempt()
            conflict: Any = caught.value
            assert (conflict.expected_parent, conflict.actual_parent) == (opened.model.base, tip)
        self.check_session_contents(opened)
        return True

    def _committed(
        self,
        opened: Open,
        new: str,
        message: str,
        metadata: dict[str, Any],
        *,
        amends: bool = False,
    ) -> None:
        model, record = opened.model, opened.model.record
        parent: str | None = model.base
        if amends:
            replaced = self.model.snapshots[model.base]
            parent, record = replaced.parent, replaced.record.united(record)
        self.model.snapshots[new] = SnapshotModel(
            parent, deepcopy(model.content), record, message, metadata
        )
        self.model.branches[opened.branch] = new
        assert opened.session.snapshot_id == new
        assert opened.session.read_only
        self.open.remove(opened)
        self.check_snapshot(new)
        self.check_refs()
        self.check_files()

    @precondition(lambda self: self.open and self.spec > 1)
    @rule(data=st.data(), values=attributes)
    def amend(self, data: st.DataObject, values: dict[str, int]) -> None:
        opened = self._session(data)
        base = self.model.snapshots[opened.model.base]
        if base.record.moves:
            return  # an ordinary session may not amend a commit that moved nodes
        if opened.model.base == INITIAL:
            with pytest.raises(opened.actor.module.IcechunkError) as caught:
                opened.session.amend("first", allow_empty=True)
            assert caught.value.kind == "no-amend-for-initial-commit"
            return
        if self.model.branches.get(opened.branch) != opened.model.base:
            with pytest.raises(opened.actor.module.IcechunkError):
                opened.session.amend("refused", allow_empty=True)
            return
        message = self._next_message()
        new = opened.session.amend(message, metadata=values, allow_empty=True)
        self._committed(opened, new, message, values, amends=True)

    @precondition(_has_sessions)
    @rule(data=st.data())
    def flush(self, data: st.DataObject) -> None:
        opened = self._session(data)
        if opened.model.record.is_empty:
            return
        message = self._next_message()
        new = opened.session.flush(message)
        self.open.remove(opened)
        model = opened.model
        self.model.snapshots[new] = SnapshotModel(
            model.base, deepcopy(model.content), model.record, message, {}
        )
        self.check_snapshot(new)
        self.check_refs()
        self.check_files()

    def _missed(self, opened: Open) -> list[str] | None:
        """Give the commits to rebase over; `None` where what happens is not laid down."""
        tip = self.model.branches.get(opened.branch)
        missed = None if tip is None else self.model.between(opened.model.base, tip)
        if missed is None:
            return None
        model = deepcopy(opened.model)
        for one in missed:
            theirs = self.model.snapshots[one]
            if model.is_unsettled_with(theirs):
                return None
            if model.conflicts_with(theirs):
                break
            model.rebase_on(one, theirs)
        return missed

    def _rebase_model(self, opened: Open, missed: Sequence[str]) -> list[str]:
        for one in missed:
            theirs = self.model.snapshots[one]
            if conflicts := opened.model.conflicts_with(theirs):
                return conflicts
            opened.model.rebase_on(one, theirs)
        return []

    @precondition(_has_sessions)
    @rule(data=st.data())
    def rebase(self, data: st.DataObject) -> None:
        opened = self._session(data)
        if (missed := self._missed(opened)) is None:
            return
        conflicts = self._rebase_model(opened, missed)
        note(f"rebase over {missed}: {conflicts}")
        solver = opened.actor.module.BasicConflictSolver()
        if conflicts:
            with pytest.raises(opened.actor.error("RebaseFailedError")):
                opened.session.rebase(solver)
        else:
            opened.session.rebase(solver)
        assert opened.session.snapshot_id == opened.model.base
        self.check_session_contents(opened)

    @precondition(_has_sessions)
    @rule(data=st.data())
    def commit_with_rebase(self, data: st.DataObject) -> None:
        opened = self._session(data)
        if opened.model.record.is_empty or (missed := self._missed(opened)) is None:
            return
        solver = opened.actor.module.BasicConflictSolver()
        message = self._next_message()
        if self._rebase_model(opened, missed):
            with pytest.raises(opened.actor.error("RebaseFailedError")):
                opened.session.commit(message, rebase_with=solver)
            assert opened.session.snapshot_id == opened.model.base
            self.check_session_contents(opened)
        else:
            new = opened.session.commit(message, rebase_with=solver, allow_empty=True)
            self._committed(opened, new, message, {})

    @precondition(lambda self: self.spec > 1)
    @rule(data=st.data())
    def rearrange(self, data: st.DataObject) -> None:
        """Move some nodes and commit."""
        actor = self._actor(data)
        branch = data.draw(st.sampled_from(sorted(self.model.branches)), "branch")
        tip = self.model.branches[branch]
        session = actor.repo.rearrange_session(branch)
        model = SessionModel(tip, self.model.snapshots[tip].content)
        moved = False
        for _ in range(data.draw(st.integers(1, 3), "moves")):
            moved |= self._move(data, actor, session, model)
        if not moved:
            return
        opened = Open(actor, session, branch, model)
        self.check_session_contents(opened)
        self.open.append(opened)
        message = self._next_message()
        new = session.commit(message, allow_empty=True)
        self._committed(opened, new, message, {})

    def _move(self, data: st.DataObject, actor: Actor, session: Any, model: SessionModel) -> bool:
        content = model.content
        sources = sorted(path for path in content if path != "/")
        groups = sorted(path for path, node in content.items() if not node.is_array)
        if not sources or not groups:
            return False
        source = data.draw(st.sampled_from(sources), "source")
        parent = data.draw(st.sampled_from(groups), "group")
        target = child_path(parent, data.draw(st.sampled_from(NAMES), "name"))
        if is_within(target, source) or target in content:
            with pytest.raises(actor.module.IcechunkError) as caught:
                session.move(source, target)
            assert caught.value.kind in ("move-wont-overwrite", "move-into-self-or-descendant")
            return False
        session.move(source, target)
        model.move(source, target)
        return True

    # -- refs --------------------------------------------------------------------------------

    def _snapshot(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(sorted(self.model.snapshots)), "snapshot")

    def _branch_names(self) -> Sequence[str]:
        # Spec 1 on a local file system lists other names percent-encoded, and has no slash.
        return BRANCHES if self.spec > 1 else BRANCHES[:2]

    def _listed(self, data: st.DataObject) -> str:
        """Choose a snapshot that refs may point at: in spec 1, one that they reach already."""
        if self.spec > 1:
            return self._snapshot(data)
        tips = {*self.model.branches.values(), *self.model.tags.values()}
        reached = {one for tip in tips for one in self.model.history(tip)}
        return data.draw(st.sampled_from(sorted(reached)), "snapshot")

    @rule(data=st.data())
    def create_branch(self, data: st.DataObject) -> None:
        actor = self._actor(data)
        name = data.draw(st.sampled_from(self._branch_names()), "branch")
        target = self._listed(data)
        if name in self.model.branches:
            # The reference calls it a conflict in spec 1.
            with pytest.raises((actor.error("AlreadyExistsError"), actor.error("ConflictError"))):
                actor.repo.create_branch(name, target)
        else:
            actor.repo.create_branch(name, target)
            self.model.branches[name] = target
        self.check_refs()

    @rule(data=st.data())
    def delete_branch(self, data: st.DataObject) -> None:
        actor = self._actor(data)
        name = data.draw(st.sampled_from(self._branch_names()), "branch")
        if name == "main":
            with pytest.raises(actor.module.IcechunkError) as caught:
                actor.repo.delete_branch(name)
            assert caught.value.kind == "cannot-delete-main"
        elif name not in self.model.branches:
            with pytest.raises(actor.error("RefNotFoundError")):
                actor.repo.delete_branch(name)
        else:
            actor.repo.delete_branch(name)
            del self.model.branches[name]
        self.check_refs()

    @rule(data=st.data(), careful=st.booleans())
    def reset_branch(self, data: st.DataObject, careful: bool) -> None:
        actor = self._actor(data)
        name = data.draw(st.sampled_from(sorted(self.model.branches)), "branch")
        target = self._listed(data)
        if careful:
            expected = self._snapshot(data)
            if expected != self.model.branches[name]:
                with pytest.raises(actor.error("ConflictError")):
                    actor.repo.reset_branch(name, target, from_snapshot_id=expected)
                return
            actor.repo.reset_branch(name, target, from_snapshot_id=expected)
        else:
            actor.repo.reset_branch(name, target)
        self.model.branches[name] = target
        self.check_refs()

    @rule(data=st.data(), name=st.sampled_from(TAGS))
    def create_tag(self, data: st.DataObject, name: str) -> None:
        actor = self._actor(data)
        target = self._listed(data)
        if name in self.model.used_tags:
            with pytest.raises(actor.error("AlreadyExistsError")):
                actor.repo.create_tag(name, target)
        else:
            actor.repo.create_tag(name, target)
            self.model.tags[name] = target
            self.model.used_tags.add(name)
        self.check_refs()

    @rule(data=st.data(), name=st.sampled_from(TAGS))
    def delete_tag(self, data: st.DataObject, name: str) -> None:
        actor = self._actor(data)
        if name in self.model.tags:
            actor.repo.delete_tag(name)
            del self.model.tags[name]
        else:
            with pytest.raises(actor.error("RefNotFoundError")):
                actor.repo.delete_tag(name)
        self.check_refs()

    # -- looking -----------------------------------------------------------------------------

    @rule(data=st.data())
    def reopen(self, data: st.DataObject) -> None:
        self._actor(data).open()

    @rule(data=st.data())
    def time_travel(self, data: st.DataObject) -> None:
        actor = self._actor(data)
        branch = data.draw(st.sampled_from(sorted(self.model.branches)), "branch")
        history = list(actor.repo.ancestry(branch=branch))
        wanted = data.draw(st.sampled_from(history), "moment")
        session = actor.repo.readonly_session(branch, as_of=wanted.written_at)
        assert session.snapshot_id == wanted.id
        assert seen_by(session) == seen_in(self.model.snapshots[wanted.id].content)

    @rule(data=st.data())
    def look_at_snapshot(self, data: st.DataObject) -> None:
        self.check_snapshot(self._snapshot(data))

    @rule(data=st.data())
    def compare_versions(self, data: st.DataObject) -> None:
        """All actors tell the same difference between two versions."""
        tip = self._listed(data)
        start = data.draw(st.sampled_from(self.model.history(tip)), "start")
        if start == tip:
            return
        told = [
            told_by(actor.repo.diff(from_snapshot_id=start, to_snapshot_id=tip))
            for actor in self.actors
        ]
        assert all(one == told[0] for one in told)

    def check_snapshot(self, snapshot: str) -> None:
        """Every actor reads what was written, and what the commit did."""
        model = self.model.snapshots[snapshot]
        for actor in self.actors:
            session = actor.repo.readonly_session(snapshot_id=snapshot)
            assert seen_by(session) == seen_in(model.content), actor.name
            if model.parent is not None:
                diff = actor.repo.diff(from_snapshot_id=model.parent, to_snapshot_id=snapshot)
                self._check_diff(told_by(diff), model, actor)

    def _check_diff(self, told: dict[str, Any], model: SnapshotModel, actor: Actor) -> None:
        expected = described(model.record, model.content)
        if not model.record.created.isdisjoint(model.record.deleted):
            return  # amended: how a node that came and went is told is left open
        assert told == expected, actor.name

    def check_refs(self) -> None:
        """Every actor sees the same branches, tags and histories."""
        for actor in self.actors:
            repo = actor.repo
            assert repo.list_branches() == set(self.model.branches), actor.name
            assert repo.list_tags() == set(self.model.tags), actor.name
            for name, tip in self.model.tags.items():
                assert repo.lookup_tag(name) == tip
            for name, tip in self.model.branches.items():
                assert repo.lookup_branch(name) == tip
                self._check_history(actor, name, tip)

    def _check_history(self, actor: Actor, branch: str, tip: str) -> None:
        found = list(actor.repo.ancestry(branch=branch))
        assert [one.id for one in found] == self.model.history(tip), actor.name
        for one in found:
            model = self.model.snapshots[one.id]
            assert (one.parent_id, one.message) == (model.parent, model.message)
            # Implementations may add notes of their own under one name.
            given = {name: value for name, value in one.metadata.items() if name != "__icechunk"}
            assert given == model.metadata

    def check_files(self) -> None:
        self.checker.check_blocking(self.backend)
