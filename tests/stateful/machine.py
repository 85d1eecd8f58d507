"""A repository under several sessions at once, against the model, by one or more actors."""

import shutil
import tempfile
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import reduce
from pathlib import Path
from typing import Any, ClassVar, Final

import pytest
from hypothesis import note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from icefloe.records import replace
from icefloe.storage.local import LocalBackend
from tests.stateful.actors import Actor, chunk_key, key_of, put, seen_by, told_by
from tests.stateful.edits import EDITS, NAMES, Open, attributes, create_node, set_chunks
from tests.stateful.model import (
    INITIAL,
    NodeModel,
    Record,
    RepositoryModel,
    SessionModel,
    SnapshotModel,
    child_path,
    described,
    is_within,
    seen_in,
)
from tests.support.checking import InvariantChecker

BRANCHES: Final = ("main", "dev", "ñ/2")
TAGS: Final = ("v1", "v2")
MAX_SESSIONS: Final = 3
STEPS: Final = 25
ENDS: Final = ("commit", "rebase", "amend", "flush", "move")


def runs(examples: int) -> settings:
    """So many runs of a machine, each of them short enough to be understood."""
    return settings(max_examples=examples, stateful_step_count=STEPS)


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
        self._fill(self._open_session(data))

    def _fill(self, opened: Open) -> None:
        """Begin with something to meet over."""
        nodes = {
            "/": NodeModel({}),
            "/a": NodeModel({}, (8,)),
            "/b": NodeModel({"x": 1}),
            "/b/a": NodeModel({}, (3, 4)),
        }
        for path, node in nodes.items():
            put(opened.session, key_of(path, "zarr.json"), node.encoded())
            opened.model.create(path, node)
        for number in range(4):
            data = bytes([number]) * 4 * (number + 1)
            put(opened.session, chunk_key("/a", (number,)), data)
            opened.model.set_chunk("/a", (number,), data)
        self._committed(opened, opened.session.commit("filled"), "filled", {})

    # -- rules -------------------------------------------------------------------------------

    @rule(data=st.data(), count=st.integers(1, 4))
    def edit(self, data: st.DataObject, count: int) -> None:
        opened = self._session(data)
        for _ in range(count):
            data.draw(st.sampled_from(EDITS), "edit")(data, opened)

    @precondition(lambda self: len(self.open) < MAX_SESSIONS)
    @rule(data=st.data())
    def open_another(self, data: st.DataObject) -> None:
        opened = self._open_session(data)
        create_node(data, opened)
        set_chunks(data, opened)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), end=st.sampled_from(ENDS))
    def conclude(self, data: st.DataObject, end: str) -> None:
        opened = self._session(data)
        match end:
            case "commit":
                self.commit(data, opened)
            case "rebase":
                self.commit_with_rebase(opened)
            case "amend" if self.spec > 1:
                self.amend(data, opened)
            case "move" if self.spec > 1:
                self.move_nodes(data)
            case _:
                self.flush(opened)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def catch_up(self, data: st.DataObject) -> None:
        self.rebase(self._session(data))

    @precondition(lambda self: len(self.open) < MAX_SESSIONS - 1)
    @rule(data=st.data(), count=st.integers(1, 3), catch_up_first=st.booleans())
    def race(self, data: st.DataObject, count: int, catch_up_first: bool) -> None:
        """Change the same branch twice; the later one has to take in the other."""
        branch = data.draw(st.sampled_from(list(self.model.branches)), "branch")
        first, second = self._open_session(data, branch), self._open_session(data, branch)
        for _ in range(count):
            for opened in (first, second):
                data.draw(st.sampled_from(EDITS), "edit")(data, opened)
        self.commit(data, first)
        if catch_up_first:
            self.rebase(second)
        self.commit_with_rebase(second)

    @rule(data=st.data())
    def change_refs(self, data: st.DataObject) -> None:
        changes = (
            self.create_branch,
            self.delete_branch,
            self.reset_branch,
            self.create_tag,
            self.delete_tag,
        )
        data.draw(st.sampled_from(changes), "change")(data)
        self.check_refs()

    @rule(data=st.data())
    def look(self, data: st.DataObject) -> None:
        looks = (
            self.reopen,
            self.time_travel,
            self.look_at_snapshot,
            self.compare_versions,
            self.look_at_session,
        )
        data.draw(st.sampled_from(looks), "look")(data)

    # -- choosing ----------------------------------------------------------------------------

    def _actor(self, data: st.DataObject) -> Actor:
        return data.draw(st.sampled_from(self.actors), "actor")

    def _session(self, data: st.DataObject) -> Open:
        if not self.open:
            return self._open_session(data)
        return self.open[data.draw(st.integers(0, len(self.open) - 1), "session")]

    def _open_session(self, data: st.DataObject, branch: str | None = None) -> Open:
        actor = self._actor(data)
        if branch is None:
            branch = data.draw(st.sampled_from(list(self.model.branches)), "branch")
        session = actor.repo.writable_session(branch)
        tip = self.model.branches[branch]
        assert session.snapshot_id == tip
        assert not session.has_uncommitted_changes
        opened = Open(actor, session, branch, SessionModel(tip, self.model.snapshots[tip].content))
        self.open.append(opened)
        return opened

    def look_at_session(self, data: st.DataObject) -> None:
        self._session(data).check()

    # -- commits -----------------------------------------------------------------------------

    def _next_message(self) -> str:
        self.commits += 1
        return f"commit {self.commits}"

    def commit(self, data: st.DataObject, opened: Open) -> None:
        values = data.draw(attributes, "metadata")
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
            # The reference calls it a conflict in spec 1.
            is_conflict = self.spec == 1 and opened.actor.name == "icechunk"
            with pytest.raises(
                opened.actor.error("ConflictError" if is_conflict else "RefNotFoundError")
            ):
                attempt()
        else:
            with pytest.raises(opened.actor.error("ConflictError")) as caught:
                attempt()
            conflict: Any = caught.value
            assert (conflict.expected_parent, conflict.actual_parent) == (opened.model.base, tip)
        opened.check()
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

    def amend(self, data: st.DataObject, opened: Open) -> None:
        values = data.draw(attributes, "metadata")
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
        replaced, options = opened.model.base, dict[str, bool]()
        if opened.actor.has_extras and data.draw(st.booleans(), "move other branches"):
            options["move_other_branches"] = True
        new = opened.session.amend(message, metadata=values, allow_empty=True, **options)
        if options:
            branches = self.model.branches
            branches |= {name: new for name, tip in branches.items() if tip == replaced}
        self._committed(opened, new, message, values, amends=True)

    def flush(self, opened: Open) -> None:
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
                return missed if self._conflicts_in_sum(opened.model, missed) else None
            model.rebase_on(one, theirs)
        return missed

    def _conflicts_in_sum(self, model: SessionModel, missed: Sequence[str]) -> bool:
        """Whether it is the outcome that conflicts, not only one commit on the way to it.

        What later commits undo is no conflict for Icefloe, but one for the reference.
        """
        commits = [self.model.snapshots[one] for one in missed]
        record = reduce(Record.united, (commit.record for commit in commits))
        return bool(
            model.conflicts_with(replace(commits[-1], record=record.without_passing_nodes()))
        )

    def _rebase_model(self, opened: Open, missed: Sequence[str]) -> list[str]:
        for one in missed:
            theirs = self.model.snapshots[one]
            if conflicts := opened.model.conflicts_with(theirs):
                return conflicts
            opened.model.rebase_on(one, theirs)
        return []

    def rebase(self, opened: Open) -> None:
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
        opened.check()

    def commit_with_rebase(self, opened: Open) -> None:
        if opened.model.record.is_empty or (missed := self._missed(opened)) is None:
            return
        solver = opened.actor.module.BasicConflictSolver()
        message = self._next_message()
        if self._rebase_model(opened, missed):
            with pytest.raises(opened.actor.error("RebaseFailedError")):
                opened.session.commit(message, rebase_with=solver)
            assert opened.session.snapshot_id == opened.model.base
            opened.check()
        else:
            new = opened.session.commit(message, rebase_with=solver, allow_empty=True)
            self._committed(opened, new, message, {})

    def move_nodes(self, data: st.DataObject) -> None:
        """Move some nodes and commit."""
        actor = self._actor(data)
        branch = data.draw(st.sampled_from(list(self.model.branches)), "branch")
        tip = self.model.branches[branch]
        session = actor.repo.rearrange_session(branch)
        model = SessionModel(tip, self.model.snapshots[tip].content)
        moved = False
        for _ in range(data.draw(st.integers(1, 3), "moves")):
            moved |= self._move(data, actor, session, model)
        if not moved:
            return
        opened = Open(actor, session, branch, model)
        opened.check()
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
        # In the order of their creation: their names are random.
        return data.draw(st.sampled_from(list(self.model.snapshots)), "snapshot")

    def _branch_names(self) -> Sequence[str]:
        # Spec 1 on a local file system lists other names percent-encoded, and has no slash.
        return BRANCHES if self.spec > 1 else BRANCHES[:2]

    def _listed(self, data: st.DataObject) -> str:
        """Choose a snapshot that refs may point at: in spec 1, one that they reach already."""
        if self.spec > 1:
            return self._snapshot(data)
        tips = {*self.model.branches.values(), *self.model.tags.values()}
        reached = {one for tip in tips for one in self.model.history(tip)}
        known = [one for one in self.model.snapshots if one in reached]
        return data.draw(st.sampled_from(known), "snapshot")

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
        elif actor.has_extras and data.draw(st.booleans(), "careful"):
            expected = self._snapshot(data)
            if expected != self.model.branches[name]:
                with pytest.raises(actor.error("ConflictError")):
                    actor.repo.delete_branch(name, from_snapshot_id=expected)
                return
            actor.repo.delete_branch(name, from_snapshot_id=expected)
            del self.model.branches[name]
        else:
            actor.repo.delete_branch(name)
            del self.model.branches[name]

    def reset_branch(self, data: st.DataObject) -> None:
        careful = data.draw(st.booleans(), "careful")
        actor = self._actor(data)
        name = data.draw(st.sampled_from(list(self.model.branches)), "branch")
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

    def create_tag(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(TAGS), "tag")
        actor = self._actor(data)
        target = self._listed(data)
        if name in self.model.used_tags:
            with pytest.raises(actor.error("AlreadyExistsError")):
                actor.repo.create_tag(name, target)
        else:
            actor.repo.create_tag(name, target)
            self.model.tags[name] = target
            self.model.used_tags.add(name)

    def delete_tag(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(TAGS), "tag")
        actor = self._actor(data)
        if name in self.model.tags:
            actor.repo.delete_tag(name)
            del self.model.tags[name]
        else:
            with pytest.raises(actor.error("RefNotFoundError")):
                actor.repo.delete_tag(name)

    # -- looking -----------------------------------------------------------------------------

    def reopen(self, data: st.DataObject) -> None:
        self._actor(data).open()

    def time_travel(self, data: st.DataObject) -> None:
        actor = self._actor(data)
        branch = data.draw(st.sampled_from(list(self.model.branches)), "branch")
        history = list(actor.repo.ancestry(branch=branch))
        wanted = data.draw(st.sampled_from(history), "moment")
        session = actor.repo.readonly_session(branch, as_of=wanted.written_at)
        assert session.snapshot_id == wanted.id
        assert seen_by(session) == seen_in(self.model.snapshots[wanted.id].content)

    def look_at_snapshot(self, data: st.DataObject) -> None:
        self.check_snapshot(self._snapshot(data))

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
        told = []
        for actor in self.actors:
            session = actor.repo.readonly_session(snapshot_id=snapshot)
            assert seen_by(session) == seen_in(model.content), actor.name
            if model.parent is not None:
                diff = actor.repo.diff(from_snapshot_id=model.parent, to_snapshot_id=snapshot)
                told.append(told_by(diff))
        assert all(one == told[0] for one in told), told
        if told and not model.record.is_ambiguous:
            before = self.model.snapshots[model.parent or INITIAL].content
            assert told[0] == described(model.record.gone_from(before), model.content)

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
