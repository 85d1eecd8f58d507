"""Sessions: where users read and change the arrays of a repository."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, overload

from icefloe.config import RepositoryConfig
from icefloe.effects import AsyncCloseableIterator, blocking
from icefloe.errors import ErrorKind, ReadOnlyError, WrongTypeError
from icefloe.format.json_value import as_metadata
from icefloe.format.nodes import ArrayNode, Node
from icefloe.format.paths import ROOT, node_name
from icefloe.printable import printable
from icefloe.reports import object_html, object_text
from icefloe.storage import ChunkType
from icefloe.transactions.session import SessionMode, SessionState
from icefloe.values.checks import require_text

if TYPE_CHECKING:
    import pyarrow as pa

    from icefloe.transactions.conflicts import ConflictSolver
    from icefloe.transactions.diffs import Diff
    from icefloe.zarr_store import IcechunkStore

_MOST_NODES: Final = 200
"""A tree of more nodes than these is cut, and says so."""

type Overlap = Literal["newest", "fail"]
"""What to do when several forks wrote the same chunk."""

type CoordinateMap = Callable[[Iterable[int]], Iterable[int] | None]
"""Takes the coordinates of a chunk to others, or to None: nowhere."""


class Session:
    """One version of a repository, and changes on top of it that others do not see yet.

    Sessions are opened with `Repository.readonly_session`, `writable_session` and
    `rearrange_session`. All reading and writing of data goes through `store`; `commit` makes
    the changes a new version for everybody, after which the session is read-only.

    Read-only sessions can be pickled. A writable one cannot: its `fork` can.

    >>> import icefloe, zarr
    >>> repository = icefloe.Repository.create(icefloe.in_memory_storage())
    >>> session = repository.writable_session("main")
    >>> _ = zarr.create_array(session.store, name="t2m", shape=4, dtype="i4", fill_value=0)
    >>> session.status().new_arrays
    {'/t2m'}
    >>> _ = session.commit("add temperature")
    >>> session.read_only, session.has_uncommitted_changes
    (True, False)
    """

    def __init__(
        self, session: SessionState, *, default_metadata: Mapping[str, Any] | None = None
    ) -> None:
        self._session = session
        self._default_metadata = dict(default_metadata or {})

    def __repr__(self) -> str:
        return object_text(type(self).__name__, _facts(self._session))

    def _repr_html_(self) -> str:
        return object_html(
            type(self).__name__,
            _facts(self._session),
            drawing=list(tree_lines(self)),
            heading="Groups and arrays",
        )

    def __eq__(self, value: object) -> bool:
        return isinstance(value, Session) and self._session is value._session

    def __hash__(self) -> int:
        return hash(id(self._session))

    def __getstate__(self) -> object:
        if not self.read_only:
            raise ValueError(
                "a writable session cannot be pickled: two copies would commit different "
                "things. Pickle `session.fork()` instead, write through its store elsewhere, "
                "send it back and call `session.merge(fork)`. For xarray with dask, "
                "`icefloe.xarray.to_icechunk` does all that"
            )
        return {"session": self._session}

    def __setstate__(self, state: Any) -> None:
        self._session = state["session"]
        self._default_metadata = {}

    # -- what it is ------------------------------------------------------------------------

    @property
    def read_only(self) -> bool:
        """Whether the session refuses every change."""
        return self._session.mode is SessionMode.readonly

    @property
    def mode(self) -> SessionMode:
        """The mode of the session: read-only, writable or rearrange."""
        return self._session.mode

    @property
    def snapshot_id(self) -> str:
        """The snapshot that the session is based on; after a commit, the new one."""
        return str(self._session.snapshot_id)

    @property
    def branch(self) -> str | None:
        """The branch that a commit moves; None for read-only sessions and forks."""
        return self._session.branch

    @property
    def has_uncommitted_changes(self) -> bool:
        """Whether there is anything to commit."""
        return not self._session.changes.is_empty()

    @property
    def config(self) -> RepositoryConfig:
        """A copy of the configuration of the repository that the session belongs to.

        Its virtual chunk containers include the default ones, below which chunks can be recorded
        (`s3://`, `gs://` and so on, where the repository declares none): programs that write
        virtual chunks ask for them here.
        """
        from icefloe.virtual_chunks.locations import with_defaults

        config = self._session.context.user_config.merge(RepositoryConfig())
        config.virtual_chunk_containers = with_defaults(config.virtual_chunk_containers or {})
        return config

    @property
    def store(self) -> IcechunkStore:
        """The Zarr store through which the session reads and writes."""
        from icefloe.zarr_store import IcechunkStore

        return IcechunkStore(self._session, session=self, read_only=self.read_only)

    # -- changes ---------------------------------------------------------------------------

    def status(self) -> Diff:
        """Return the uncommitted changes since the snapshot."""
        from icefloe.transactions.diffs import status

        return status(self._session)

    def discard_changes(self) -> None:
        """Forget all changes, and see the snapshot again."""
        if self.read_only:
            raise ReadOnlyError("a read-only session has no changes to discard")
        self._session.discard_changes()

    def move(self, from_path: str, to_path: str) -> None:
        """Move a group or array to another path; only in a session for rearranging.

        The new path must be free, and the group that it lies in must exist.

        >>> import icefloe, zarr
        >>> repository = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> with repository.transaction("main", message="one group") as store:
        ...     _ = zarr.create_group(store, path="draft")
        >>> session = repository.rearrange_session("main")
        >>> session.move("/draft", "/final")
        >>> session.status().moved_nodes
        [('/draft', '/final')]
        """
        from icefloe.transactions import rearrange

        rearrange.move(self._session, from_path, to_path)

    async def move_async(self, from_path: str, to_path: str) -> None:
        from icefloe.transactions import rearrange

        rearrange.move(self._session, from_path, to_path)

    async def reindex_array_async(
        self, array_path: str, forward: CoordinateMap, backward: CoordinateMap | None = None
    ) -> None:
        """Move the chunks of an array to other coordinates, without copying their bytes.

        `forward` takes the coordinates of a chunk to its new ones, or to None to leave it where
        it is. A place that nothing moves to keeps its chunk, unless `backward`, the inverse, is
        given too: then a place whose origin it does not know is emptied.
        """
        from icefloe.transactions import rearrange

        await rearrange.reindex_array(self._session, array_path, forward, backward)

    reindex_array = blocking(reindex_array_async)

    async def shift_array_async(self, array_path: str, chunk_offset: Iterable[int]) -> None:
        """Move all chunks of an array by this many places along each dimension.

        What leaves the grid is dropped; vacated places are empty. No bytes are copied.
        """
        from icefloe.transactions import rearrange

        await rearrange.shift_array(self._session, array_path, chunk_offset)

    shift_array = blocking(shift_array_async)

    # -- looking around --------------------------------------------------------------------

    async def get_node_id_async(self, path: str) -> str:
        """Return the id that a group or array keeps for life, through every move."""
        from icefloe.format.paths import check_path
        from icefloe.transactions.nodes import require_node

        return str(require_node(self._session, check_path(path)).id)

    get_node_id = blocking(get_node_id_async)

    async def all_virtual_chunk_locations_async(self) -> list[str]:
        """List where virtual chunks lie: one entry for each."""
        from icefloe.transactions import chunks

        return await chunks.virtual_locations(self._session)

    all_virtual_chunk_locations = blocking(all_virtual_chunk_locations_async)

    @overload
    def virtual_chunk_locations(
        self,
        *,
        prefix: str | None = None,
        glob: str | None = None,
        distinct: bool = True,
        batch_size: int = 65536,
        arrow: Literal[False] = False,
    ) -> AsyncCloseableIterator[list[str]]: ...

    @overload
    def virtual_chunk_locations(
        self,
        *,
        prefix: str | None = None,
        glob: str | None = None,
        distinct: bool = True,
        batch_size: int = 65536,
        arrow: Literal[True],
    ) -> AsyncCloseableIterator[pa.LargeStringArray]: ...

    def virtual_chunk_locations(
        self,
        *,
        prefix: str | None = None,
        glob: str | None = None,
        distinct: bool = True,
        batch_size: int = 65536,
        arrow: bool = False,
    ) -> AsyncCloseableIterator[list[str]] | AsyncCloseableIterator[pa.LargeStringArray]:
        """Walk over where virtual chunks lie, in batches: lists, or Arrow arrays with `arrow`.

        Each location comes once, or without `distinct` once for each chunk. `prefix` (a place
        and all below it) and `glob` (`*` within a segment, `**` across) choose some of them.
        Works with `for` and `async for`.
        """
        from icefloe.transactions import chunks
        from icefloe.virtual_chunks.grouping import LocationQuery

        batches = chunks.virtual_location_batches(
            self._session,
            LocationQuery(prefix, glob),
            is_distinct=distinct,
            batch_size=batch_size,
        )
        if arrow:
            return AsyncCloseableIterator(batch.to_arrow_strings() async for batch in batches)
        return AsyncCloseableIterator(batch.to_strings() async for batch in batches)

    def chunk_coordinates(
        self, array_path: str, batch_size: int = 1000
    ) -> AsyncCloseableIterator[tuple[int, ...]]:
        """Iterate over the coordinates of all chunks that an array has, in no set order.

        Works with `for` and `async for`; `batch_size` coordinates at a time become objects.
        """
        from icefloe.transactions import chunks
        from icefloe.zarr_store.listing import FlattenedIterator

        return FlattenedIterator(chunks.coordinate_batches(self._session, array_path, batch_size))

    async def chunk_type_async(
        self, array_path: str, chunk_coordinates: Sequence[int]
    ) -> ChunkType:
        """Return how a chunk is stored, or that it does not exist."""
        from icefloe.transactions import chunks

        return await chunks.chunk_type(self._session, array_path, chunk_coordinates)

    chunk_type = blocking(chunk_type_async)

    # -- making versions -------------------------------------------------------------------

    async def commit_async(
        self,
        message: str,
        metadata: dict[str, Any] | None = None,
        *,
        rebase_with: ConflictSolver | None = None,
        rebase_tries: int = 1000,
        allow_empty: bool = False,
    ) -> str:
        """Write all changes as a new snapshot, move the branch to it, and give its id.

        If the branch has moved since the session began, this is a `ConflictError`, unless
        `rebase_with` says how to settle contradictions: then the changes are put on top of the
        new commits, and that is tried up to `rebase_tries` times. The session is read-only
        afterwards, on the new snapshot.
        """
        from icefloe.transactions import commit as commits

        new = await commits.commit(
            self._session,
            _checked_message(message),
            metadata=self._with_defaults(metadata),
            solver=rebase_with,
            rebase_tries=rebase_tries,
            allow_empty=allow_empty,
        )
        return str(new)

    commit = blocking(commit_async)

    async def amend_async(
        self,
        message: str,
        *,
        metadata: dict[str, Any] | None = None,
        allow_empty: bool = False,
        move_other_branches: bool = False,
    ) -> str:
        """Replace the newest commit of the branch by one that holds these changes too.

        The commit that is replaced can still be opened by its id. Tags that name it stay there,
        and so do commits on top of it and other branches; with `move_other_branches`, branches
        that end exactly there move to the new commit in the same step.

        >>> import icefloe, zarr
        >>> repository = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> with repository.transaction("main", message="draft") as store:
        ...     _ = zarr.create_group(store)
        >>> repository.create_branch("nightly", repository.lookup_branch("main"))
        >>> session = repository.writable_session("main")
        >>> new = session.amend("final", allow_empty=True, move_other_branches=True)
        >>> repository.lookup_branch("nightly") == repository.lookup_branch("main") == new
        True
        """
        from icefloe.transactions import commit as commits

        new = await commits.amend(
            self._session,
            _checked_message(message),
            metadata=self._with_defaults(metadata),
            allow_empty=allow_empty,
            move_other_branches=move_other_branches,
        )
        return str(new)

    amend = blocking(amend_async)

    async def flush_async(self, message: str, *, metadata: dict[str, Any] | None = None) -> str:
        """Write a snapshot that no branch points at, and give its id.

        It can be opened, tagged or made a branch by that id. The session is then read-only.
        """
        from icefloe.transactions import commit as commits

        new = await commits.flush(
            self._session, _checked_message(message), metadata=self._with_defaults(metadata)
        )
        return str(new)

    flush = blocking(flush_async)

    async def rebase_async(self, solver: ConflictSolver) -> None:
        """Put the changes on top of what was committed to the branch meanwhile.

        `RebaseFailedError` lists the contradictions that the solver leaves; the session then
        rests on the last commit that agrees with it, with all its changes.
        """
        from icefloe.transactions.rebase import rebase

        await rebase(self._session, solver)

    rebase = blocking(rebase_async)

    def _with_defaults(self, metadata: Mapping[str, Any] | None) -> dict[str, Any]:
        return {**self._default_metadata, **as_metadata({} if metadata is None else metadata)}

    # -- writing from many places ----------------------------------------------------------

    async def fork_async(self) -> ForkSession:
        """Make a session that can be sent to other processes, write there, and be merged back.

        Changes made so far are first written as a snapshot that nothing points at, on which the
        fork rests; this session keeps them as changes of its own.
        """
        from icefloe.transactions import merge

        return ForkSession(await merge.fork(self._session))

    fork = blocking(fork_async)

    async def merge_async(
        self,
        *others: ForkSession,
        expected: Iterable[ForkSession | str] | None = None,
        on_overlap: Overlap = "newest",
    ) -> None:
        """Take in the changes that forks of this session made elsewhere: all, or none.

        A fork may change what this session did before the fork. Changes that both sides made
        without knowing of each other must not contradict.
        Where several wrote the same chunk, the last one given wins; `on_overlap="fail"` refuses
        that instead. `expected` are all forks that were handed out, or their `fork_id`: if the
        changes of one are missing here, because its worker died, nothing is merged. That needs
        a fork for each worker.

        >>> import icefloe, zarr
        >>> repository = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> session = repository.writable_session("main")
        >>> _ = zarr.create_array(session.store, name="a", shape=2, chunks=1, dtype="i4")
        >>> left, right = session.fork(), session.fork()
        >>> zarr.open_array(left.store, path="a")[0] = 1
        >>> zarr.open_array(right.store, path="a")[1] = 2
        >>> session.merge(left, right, expected=[left, right], on_overlap="fail")
        >>> zarr.open_array(session.store, path="a")[:].tolist()
        [1, 2]
        """
        from icefloe.transactions import merge

        for other in others:
            if not isinstance(other, Session):
                raise WrongTypeError(
                    f"merge takes forks of this session, not {type(other).__name__}: make them"
                    " with session.fork()",
                    ErrorKind.MERGE_FAILED,
                )
        ids = None
        if expected is not None:
            ids = [fork if isinstance(fork, str) else fork.fork_id for fork in expected]
        forks = [other._session for other in others]  # noqa: SLF001 - sessions know each other
        await merge.merge(self._session, forks, expected=ids, on_overlap=on_overlap)

    merge = blocking(merge_async)


class ForkSession(Session):
    """A copy of a session for another process, to be merged back into it.

    It can be pickled and forked again, and takes in other forks with `merge`; only the session
    that it came from can commit.
    """

    @property
    def fork_id(self) -> str:
        """The id of this fork; a pickled copy has the same id."""
        return self._session.id

    def __getstate__(self) -> object:
        return {"session": self._session}


def state_of(session: Session) -> SessionState:
    """Return the state behind a session, for other parts of the package that read it directly."""
    return session._session  # noqa: SLF001 - the one place where others reach it


def _checked_message(message: object) -> str:
    return require_text(message, "the message of a commit", ErrorKind.BAD_METADATA)


def _facts(session: SessionState) -> dict[str, object]:
    """Gather what is worth knowing about a session; asks no storage."""
    facts: dict[str, object] = {"mode": session.mode.name, "snapshot_id": session.snapshot_id}
    if session.branch is not None:
        facts["branch"] = session.branch
    if session.mode.name != "readonly":
        facts["has_uncommitted_changes"] = not session.changes.is_empty()
    return facts


def tree_lines(session: Session) -> Iterator[str]:
    """Draw the groups and arrays of a session, each below the group that holds it."""
    tree = session._session.tree  # noqa: SLF001 - the same module
    paths = tree.paths_below(ROOT)
    for path in sorted(paths, key=lambda path: path.split("/"))[:_MOST_NODES]:
        if (node := tree.find(path)) is not None:
            depth = 0 if path == ROOT else path.count("/")
            yield "    " * depth + _node_line(node)
    if len(paths) > _MOST_NODES:
        yield f"… and {len(paths) - _MOST_NODES} more"


def _node_line(node: Node) -> str:
    name = printable(node_name(node.path) or ROOT)
    if not isinstance(node, ArrayNode):
        return name if name == ROOT else f"{name}/"
    shape, names = node.array.shape, node.array.dimension_names
    if not names or len(names) != len(shape):
        return f"{name} {tuple(shape)}"
    sizes = (
        f"{printable(dim)}: {length}" if dim else str(length)
        for dim, length in zip(names, shape, strict=True)
    )
    return f"{name} ({', '.join(sizes)})"
