"""Random trees of forks against a model: what one side alone did is never lost.

In the model, a change is a number. A session knows some changes, and shows for every node and
chunk the newest change that it knows. A merge takes over what the session does not know, and may
refuse only if both sides changed something without knowing of each other.
"""

import pickle
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import icechunk
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icefloe.errors import ErrorKind, SessionStateError
from icefloe.format.paths import ancestors, parent_path
from icefloe.records import replace
from icefloe.storage import local_filesystem_storage
from icefloe.transactions import nodes
from icefloe.transactions.session import SessionState
from tests.interop.sides import Reference
from tests.support.sides import Ours, array_json, furnish, group_json

pytestmark = pytest.mark.interop

PATHS: Final = ("/a", "/g", "/g/x", "/n")
MOST_SESSIONS: Final = 8

type Change = int
type ChunkKey = tuple[int, int]


@dataclass(frozen=True)
class NodeModel:
    """A group or, with a length, an array; `node` is different for a node made again."""

    node: int
    path: str
    length: int | None
    mark: int = 0

    @property
    def metadata(self) -> bytes:
        return (
            group_json(self.mark) if self.length is None else array_json([self.length], self.mark)
        )


@dataclass
class State:
    """For every node and chunk the newest change and what it made of it; None is deleted."""

    nodes: dict[int, tuple[Change, NodeModel | None, str]] = field(default_factory=dict)
    chunks: dict[ChunkKey, tuple[Change, bytes | None]] = field(default_factory=dict)

    def over(self, base: "State") -> "State":
        return State({**base.nodes, **self.nodes}, {**base.chunks, **self.chunks})

    def copy(self) -> "State":
        return State(dict(self.nodes), dict(self.chunks))


@dataclass
class Model:
    """A session: a base and its changes, and which changes both hold."""

    base: State
    base_known: frozenset[Change]
    own: State = field(default_factory=State)
    own_known: set[Change] = field(default_factory=set)
    needs: frozenset[Change] = frozenset()
    """Changes of the forks that this one was made from."""
    is_fork: bool = False

    @property
    def known(self) -> set[Change]:
        return self.own_known | self.base_known

    @property
    def view(self) -> State:
        return self.own.over(self.base)

    def alive(self) -> dict[str, NodeModel]:
        found = [node for _, node, _ in self.view.nodes.values() if node is not None]
        assert len({node.path for node in found}) == len(found), "two nodes at one path"
        return {node.path: node for node in found}

    def tree(self) -> dict[str, tuple[bytes, dict[int, bytes] | None]]:
        """Show metadata and chunks of every path."""
        shown: dict[str, tuple[bytes, dict[int, bytes] | None]] = {}
        by_node: dict[int, dict[int, bytes]] = {}
        for (node, index), (_, data) in self.view.chunks.items():
            if data is not None:
                by_node.setdefault(node, {})[index] = data
        for path, model in self.alive().items():
            chunks = None if model.length is None else by_node.get(model.node, {})
            assert chunks is None or all(index < (model.length or 0) for index in chunks)
            shown[path] = model.metadata, chunks
        return shown

    def put(self, change: Change, model: NodeModel) -> None:
        self.own.nodes[model.node] = change, model, model.path
        self.own_known.add(change)

    def put_chunk(self, change: Change, key: ChunkKey, data: bytes | None) -> None:
        self.own.chunks[key] = change, data
        self.own_known.add(change)

    def delete(self, change: Change, model: NodeModel) -> None:
        self.own.nodes[model.node] = change, None, model.path
        self.own_known.add(change)

    def fork(self) -> "Model":
        needs = self.needs | (self.own_known if self.is_fork else frozenset())
        return Model(self.view, frozenset(self.known), needs=frozenset(needs), is_fork=True)

    def copy(self) -> "Model":
        return replace(self, own=self.own.copy(), own_known=set(self.own_known))

    def merged(self, other: "Model") -> "Model":
        """Take over what is not known here, in the order in which merges happen."""
        merged = self.copy()
        for node, entry in other.own.nodes.items():
            if entry[0] not in self.known:
                merged.own.nodes[node] = entry
        for key, chunk in other.own.chunks.items():
            if chunk[0] not in self.known:
                merged.own.chunks[key] = chunk
        merged.own_known |= other.own_known
        return merged

    def news(self, other: "Model") -> dict[str, set[int]]:
        """List paths, and nodes there, with changes that another session does not know."""
        paths: dict[str, set[int]] = {}
        for node, (change, _, path) in self.own.nodes.items():
            if change not in other.known:
                paths.setdefault(path, set()).add(node)
        for (node, _), (change, _) in self.own.chunks.items():
            if change not in other.known and node in self.view.nodes:
                paths.setdefault(self.view.nodes[node][2], set()).add(node)
        return paths


def may_refuse(mine: Model, other: Model) -> bool:
    """Tell whether there is any reason for which a merge may be refused."""
    if not other.needs <= mine.known:
        return True
    ours, theirs = mine.news(other), other.news(mine)
    related = any(
        one == two or one in ancestors(two) or two in ancestors(one)
        for one in ours
        for two in theirs
    )
    # A sibling that was forked at another moment may rest on nodes that are not here.
    created = other.own.nodes.keys() - other.base.nodes.keys()
    there = {model.node for model in mine.alive().values()} | created
    missing = any(node not in there for at_path in theirs.values() for node in at_path)
    hidden = any(
        path in alive and alive[path].node not in at_path
        for alive in [mine.alive()]
        for path, at_path in theirs.items()
    )
    parents = any(
        (above := parent_path(path)) is not None
        and above not in theirs
        and ((found := mine.alive().get(above)) is None or found.length is not None)
        for path in theirs
    )
    return related or missing or hidden or parents


def must_refuse(mine: Model, other: Model) -> bool:
    """Tell whether a merge would lose something that one side did, without the other knowing."""
    for node, (change, model, _) in other.own.nodes.items():
        if change in mine.known:
            continue
        ours = mine.own.nodes.get(node)
        if ours is not None and ours[0] not in other.known:
            old, new = ours[1], model
            if (old is None) is not (new is None):
                return True
            if old is not None and new is not None and old.metadata != new.metadata:
                return True
        if model is None and _has_chunk_news(mine, other, node):
            return True
    return any(
        model is None and change not in other.known and _has_chunk_news(other, mine, node)
        for node, (change, model, _) in mine.own.nodes.items()
    )


def _has_chunk_news(side: Model, other: Model, node: int) -> bool:
    return side.view.nodes[node][1] is not None and any(
        at == node and change not in other.known for (at, _), (change, _) in side.own.chunks.items()
    )


EDITS: Final = ("create", "write", "write", "write", "erase", "mark", "resize", "delete")
WORK: Final = (*EDITS, "fork", "copy", "merge", "merge", "merge", "merge two", "discard")


def operations(of: tuple[str, ...], sessions: int, fewest: int, most: int) -> Any:
    chosen = st.tuples(
        st.sampled_from(of), st.integers(0, sessions - 1), st.integers(0, 7), st.integers(0, 5)
    )
    return st.lists(chosen, min_size=fewest, max_size=most)


TREES: Final = st.tuples(
    operations(EDITS, 1, 0, 3),
    st.lists(st.tuples(st.sampled_from(["fork", "fork", "copy"]), st.integers(0, 3)),
             min_size=1, max_size=3),
    operations(WORK, MOST_SESSIONS, 6, 20),
)  # fmt: skip
"""What the session does at first, which forks and copies there are then, and what they do."""

type Operation = tuple[str, int, int, int]


class Forks:
    """Sessions and their models, driven by the same operations; the first is the root."""

    def __init__(self, folder: Path, spec: int) -> None:
        self.folder = folder
        self.side: Ours = furnish(Ours(spec, local_filesystem_storage(str(folder))))
        self.changes = count(1)
        self.new_nodes = count(1)
        session = self.side.begin()
        base = State()
        for path in ("/", "/g", "/g/s", "/h", "/a", "/g/x"):
            length = {"/a": 8, "/g/x": 4}.get(path)
            model = NodeModel(next(self.new_nodes), path, length)
            base.nodes[model.node] = 0, model, path
            if path == "/a":
                base.chunks |= {(model.node, i): (0, bytes([i + 1])) for i in range(8)}
        self.all = [(session, Model(base, frozenset({0})))]

    def perform(self, operation: Operation) -> None:
        what, one, two, number = operation
        session, model = self.all[one % len(self.all)]
        match what:
            case "fork" | "copy":
                self._add(session, model, is_fork=what == "fork" or not model.is_fork)
            case "merge":
                self._merge(one, [two])
            case "merge two":
                self._merge(one, [two, number])
            case "discard":
                if model.is_fork and number == 0:
                    session.discard_changes()
                    model.own, model.own_known = State(), set()
            case _:
                self._edit(what, session, model, PATHS[two % len(PATHS)], number)

    def _add(self, session: SessionState, model: Model, *, is_fork: bool) -> None:
        if len(self.all) < MOST_SESSIONS:
            if is_fork:
                self.all.append((self.side.fork(session), model.fork()))
            else:
                self.all.append((pickle.loads(pickle.dumps(session)), model.copy()))

    def _edit(self, what: str, session: SessionState, model: Model, path: str, number: int) -> None:
        alive, change = model.alive(), next(self.changes)
        node = alive.get(path)
        if node is None:
            if what == "create":
                self._create(session, model, change, path, number)
        elif what == "mark":
            self._put(session, model, change, replace(node, mark=number % 3))
        elif what == "delete":
            self.side.delete(session, path)
            for below in alive.values():
                if below.path == path or below.path.startswith(f"{path}/"):
                    model.delete(change, below)
        elif node.length is not None and what == "resize":
            self._resize(session, model, change, replace(node, length=number + 1))
        elif node.length is not None and what in ("write", "erase"):
            index, data = number % node.length, change.to_bytes(2)
            if what == "erase":
                self.side.erase(session, path, index)
            else:
                self.side.write(session, path, index, value=data)
            model.put_chunk(change, (node.node, index), None if what == "erase" else data)

    def _create(
        self, session: SessionState, model: Model, change: Change, path: str, number: int
    ) -> None:
        parent = model.alive().get(parent_path(path) or "/")
        if parent is not None and parent.length is None:
            length = number + 1 if number % 2 else None
            made = NodeModel(next(self.new_nodes), path, length, number)
            self._put(session, model, change, made)

    def _put(self, session: SessionState, model: Model, change: Change, node: NodeModel) -> None:
        if model.alive().get(node.path) != node:
            nodes.put_metadata(session, node.path, node.metadata)
            model.put(change, node)

    def _resize(
        self, session: SessionState, model: Model, change: Change, resized: NodeModel
    ) -> None:
        for (node, index), (_, data) in list(model.view.chunks.items()):
            if node == resized.node and data is not None and index >= (resized.length or 0):
                self.side.erase(session, resized.path, index)
                model.put_chunk(change, (node, index), None)
        self._put(session, model, change, resized)

    def _merge(self, one: int, others: list[int]) -> None:
        at = one % len(self.all)
        session, model = self.all[at]
        forks = self.all[1:]
        chosen = [forks[other % len(forks)] for other in others]
        before = self.seen(session)
        refusal = self._refusal(session, [other for other, _ in chosen])
        models = [theirs for _, theirs in chosen]
        if refusal is None:
            self.all[at] = session, self._merged(model, models)
            self.check(*self.all[at])
        else:
            assert refusal.kind == ErrorKind.MERGE_FAILED
            assert self.seen(session) == before
            assert self._is_justified(model, models), refusal

    def _refusal(
        self, session: SessionState, others: list[SessionState]
    ) -> SessionStateError | None:
        try:
            self.side.merge(session, *others)
        except SessionStateError as error:
            return error
        return None

    def _merged(self, model: Model, others: list[Model]) -> Model:
        for theirs in sorted(others, key=lambda one: not one.needs <= model.known):
            assert theirs.needs <= model.known
            assert not must_refuse(model, theirs)
            model = model.merged(theirs)
        return model

    def _is_justified(self, model: Model, others: list[Model]) -> bool:
        for theirs in sorted(others, key=lambda one: not one.needs <= model.known):
            if may_refuse(model, theirs):
                return True
            model = model.merged(theirs)
        return False

    def seen(self, session: SessionState) -> dict[str, Any]:
        metadata = {node.path: node.user_data for node in session.tree.below("/")}
        return {
            path: (
                metadata[path],
                None if chunks is None else {index[0]: data for index, data in chunks.items()},
            )
            for path, chunks in self.side.tree(session).items()
        }

    def check(self, session: SessionState, model: Model) -> None:
        """The session shows what the model does, and that is a tree."""
        shown = model.tree()
        assert self.seen(session) == shown
        for path in shown:
            if (parent := parent_path(path)) is not None:
                assert shown[parent][1] is None

    def finish(self) -> None:
        """Commit the root; the reference must read all of it."""
        for session, model in self.all:
            self.check(session, model)
        session, model = self.all[0]
        self.side.commit(session, allow_empty=True)
        expected = {
            path: None if chunks is None else {(index,): data for index, data in chunks.items()}
            for path, (_, chunks) in model.tree().items()
        }
        assert self.side.tree() == expected
        storage = icechunk.local_filesystem_storage(str(self.folder))
        assert Reference(repo=icechunk.Repository.open(storage)).tree() == expected


@pytest.mark.parametrize("spec", [1, 2])
@settings(max_examples=100)
@given(TREES)
def test_nothing_is_lost_in_a_tree_of_forks(
    spec: int, tree: tuple[list[Operation], list[tuple[str, int]], list[Operation]]
) -> None:
    first, branches, work = tree
    with TemporaryDirectory() as folder:
        forks = Forks(Path(folder), spec)
        for operation in [
            *first,
            ("fork", 0, 0, 0),
            *((what, one, 0, 0) for what, one in branches),
            *work,
        ]:
            forks.perform(operation)
        forks.finish()
