"""A repository driven through the engine, in the few words that tests of conflicts need.

Another implementation with the same words lets one test run on both.
"""

import json
from collections.abc import Iterable
from typing import Any, Final

from icefloe.effects import run_blocking
from icefloe.format.ids import SnapshotId
from icefloe.format.nodes import ArrayNode
from icefloe.repo import lifecycle
from icefloe.repo.context import RepoContext
from icefloe.storage import Storage
from icefloe.transactions import chunks, commit, merge, nodes, rearrange, rebase
from icefloe.transactions.conflicts import ConflictSolver
from icefloe.transactions.diffs import Diff, diff, status
from icefloe.transactions.session import SessionMode, SessionState, open_session

GROUP: Final = {"zarr_format": 3, "node_type": "group"}


def group_json(mark: int = 0) -> bytes:
    return json.dumps({**GROUP, "attributes": {"mark": mark}}).encode()


def array_json(shape: Iterable[int], mark: int = 0) -> bytes:
    """Describe an array of one-byte chunks."""
    lengths = list(shape)
    return json.dumps(
        {
            "zarr_format": 3,
            "node_type": "array",
            "shape": lengths,
            "data_type": "uint8",
            "chunk_grid": {
                "name": "regular",
                "configuration": {"chunk_shape": [1] * len(lengths)},
            },
            "chunk_key_encoding": {"name": "default"},
            "fill_value": 0,
            "codecs": [{"name": "bytes"}],
            "attributes": {"mark": mark},
        }
    ).encode()


type Tree = dict[str, dict[tuple[int, ...], bytes] | None]
"""Path to chunks; `None` for a group."""


class Ours:
    """Our engine."""

    def __init__(self, spec_version: int = 2, storage: Storage | None = None) -> None:
        self.storage = storage or Storage.new_in_memory()
        self.context: RepoContext = run_blocking(
            lifecycle.create(self.storage, spec_version=spec_version)
        )

    def tip(self, branch: str = "main") -> SnapshotId:
        return run_blocking(self.context.ledger.branch_tip(branch))

    def begin(self, branch: str = "main") -> SessionState:
        return self._open(SessionMode.writable, branch)

    def begin_moving(self, branch: str = "main") -> SessionState:
        return self._open(SessionMode.rearrange, branch)

    def _open(self, mode: SessionMode, branch: str | None) -> SessionState:
        tip = self.tip(branch or "main")
        return run_blocking(open_session(self.context, tip, mode, branch=branch))

    def at(self, snapshot: SnapshotId) -> SessionState:
        return run_blocking(open_session(self.context, snapshot, SessionMode.readonly))

    def group(self, session: SessionState, path: str, mark: int = 0) -> None:
        nodes.put_metadata(session, path, group_json(mark))

    def array(self, session: SessionState, path: str, *shape: int, mark: int = 0) -> None:
        nodes.put_metadata(session, path, array_json(shape, mark))

    def write(self, session: SessionState, path: str, *index: int, value: bytes = b"x") -> None:
        node = nodes.require_array(session, path)
        run_blocking(chunks.write_chunk(session, node, index, value))

    def erase(self, session: SessionState, path: str, *index: int) -> None:
        chunks.delete_chunk(session, nodes.require_array(session, path), index)

    def delete(self, session: SessionState, path: str) -> None:
        nodes.delete_node(session, path)

    def move(self, session: SessionState, source: str, target: str) -> None:
        rearrange.move(session, source, target)

    def shift(self, session: SessionState, path: str, *offset: int) -> None:
        run_blocking(rearrange.shift_array(session, path, offset))

    def reindex(self, session: SessionState, path: str, forward: Any, backward: Any = None) -> None:
        run_blocking(rearrange.reindex_array(session, path, forward, backward))

    def commit(self, session: SessionState, **options: Any) -> SnapshotId:
        return run_blocking(commit.commit(session, "a commit", **options))

    def rebase(self, session: SessionState, solver: ConflictSolver) -> int:
        return run_blocking(rebase.rebase(session, solver))

    def fork(self, session: SessionState) -> SessionState:
        return run_blocking(merge.fork(session))

    def merge(self, session: SessionState, *others: SessionState, **options: Any) -> None:
        run_blocking(merge.merge(session, others, **options))

    def status(self, session: SessionState) -> Diff:
        return status(session)

    def diff(self, before: SnapshotId, after: SnapshotId) -> Diff:
        return run_blocking(diff(self.context, before, after))

    def tree(self, session: SessionState | None = None) -> Tree:
        """List all nodes with the contents of their chunks."""
        session = session or self.at(self.tip())
        return {node.path: self._contents(session, node) for node in session.tree.below("/")}

    def _contents(self, session: SessionState, node: Any) -> dict[tuple[int, ...], bytes] | None:
        if not isinstance(node, ArrayNode):
            return None

        async def read() -> dict[tuple[int, ...], bytes]:
            found = {}
            async for table in chunks.chunk_tables(session, node):
                for index in map(tuple, table.coordinates.tolist()):
                    data = await chunks.read_chunk(session, node, index)
                    assert data is not None
                    found[index] = bytes(data)
            return found

        return run_blocking(read())


def furnish(side: Any) -> Any:
    """Commit the nodes that most tests begin with."""
    session = side.begin()
    for path in ("/", "/g", "/g/s", "/h"):
        side.group(session, path)
    side.array(session, "/a", 8)
    side.array(session, "/g/x", 4)
    for index in range(8):
        side.write(session, "/a", index, value=bytes([index + 1]))
    side.commit(session)
    return side
