"""Conflicts between the changes of a session and another commit, and who resolves them.

A solver answers one question for each conflict: can the session go on, and whose version
counts. Not every answer is sound. Keeping a delete of a group below which the other commit
created a node would leave that node without its parent, so no solver can choose it; the same
holds for a node created where the other commit put another one, or in a group that it deleted,
and for moves. `sound_resolutions` is the list of what can be chosen.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from html import escape
from typing import Final, override

import numpy as np

from icefloe.format.chunk_table import Coordinates
from icefloe.values import NamedNumber

_SHOWN_CHUNKS: Final = 20


class ConflictType(NamedNumber):
    """The kind of a conflict between changes.

    >>> str(ConflictType.ChunkDoubleUpdate), ConflictType(6) is ConflictType.ChunkDoubleUpdate
    ('Chunk double update', True)
    """

    NewNodeConflictsWithExistingNode = 1
    NewNodeInInvalidGroup = 2
    ZarrMetadataDoubleUpdate = 3
    ZarrMetadataUpdateOfDeletedArray = 4
    ZarrMetadataUpdateOfDeletedGroup = 5
    ChunkDoubleUpdate = 6
    ChunksUpdatedInDeletedArray = 7
    ChunksUpdatedInUpdatedArray = 8
    DeleteOfUpdatedArray = 9
    DeleteOfUpdatedGroup = 10
    MoveOperationCannotBeRebased = 11

    @override
    def __str__(self) -> str:
        return re.sub(r"(?<!^)(?=[A-Z])", " ", self.name).capitalize()


class VersionSelection(NamedNumber):
    """Whose chunks to keep where both sides wrote; `UseOurs` is the session being rebased."""

    Fail = 0
    UseOurs = 1
    UseTheirs = 2


class Conflict:
    """One thing that a session and another commit both changed.

    `conflicted_chunks` is set for chunk conflicts only. `new_nodes` lists the nodes that the
    other commit created below a group that the session deleted.

    >>> conflict = Conflict(ConflictType.ChunkDoubleUpdate, "/t2m", [[0, 1], [0, 2]])
    >>> conflict.path, conflict.conflicted_chunks
    ('/t2m', [[0, 1], [0, 2]])
    """

    __slots__ = ("_chunks", "_is_linked", "_new_nodes", "_path", "_type")

    def __init__(
        self,
        conflict_type: ConflictType,
        path: str,
        conflicted_chunks: Coordinates | Sequence[Sequence[int]] | None = None,
        *,
        new_nodes: Sequence[str] = (),
        is_linked: bool = False,
    ) -> None:
        self._type = ConflictType(conflict_type)
        self._path = path
        self._chunks = conflicted_chunks
        self._new_nodes = tuple(new_nodes)
        self._is_linked = is_linked

    @property
    def conflict_type(self) -> ConflictType:
        """The kind of the conflict."""
        return self._type

    @property
    def path(self) -> str:
        """The node that the conflict is about."""
        return self._path

    @property
    def conflicted_chunks(self) -> list[list[int]] | None:
        """The chunks that both sides changed, for chunk conflicts."""
        if self._chunks is None:
            return None
        chunks: list[list[int]] = np.asarray(self._chunks).tolist()
        return chunks

    @property
    def coordinates(self) -> Coordinates | None:
        """The same chunks as a matrix, however many they are."""
        return None if self._chunks is None else np.asarray(self._chunks, np.uint32)

    @property
    def new_nodes(self) -> tuple[str, ...]:
        """The nodes that the other commit created below the group that the session deleted."""
        return self._new_nodes

    @property
    def is_linked(self) -> bool:
        """Whether the session has the chunks in manifests that were built elsewhere.

        Single chunks cannot be taken out of these: they have to be built again.
        """
        return self._is_linked

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Conflict):
            return NotImplemented
        return self._key() == other._key() and (
            self._chunks is other._chunks or self.conflicted_chunks == other.conflicted_chunks
        )

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[object, ...]:
        count = None if self._chunks is None else len(self._chunks)
        return self._type, self._path, self._new_nodes, self._is_linked, count

    def __repr__(self) -> str:
        if self._chunks is not None and len(self._chunks) > _SHOWN_CHUNKS:
            return f"<icefloe.Conflict: {self}>"
        arguments = [repr(self._type), repr(self._path)]
        if self._chunks is not None:
            arguments.append(repr(self.conflicted_chunks))
        if self._new_nodes:
            arguments.append(f"new_nodes={self._new_nodes!r}")
        if self._is_linked:
            arguments.append("is_linked=True")
        return f"icefloe.Conflict({', '.join(arguments)})"

    def __str__(self) -> str:
        text = f"{self._type} at {self._path}"
        if self._chunks is not None:
            first = [list(map(int, chunk)) for chunk in self._chunks[:_SHOWN_CHUNKS]]
            more = len(self._chunks) - len(first)
            text += f", chunks {first}" + (f" and {more} more" if more else "")
        if self._new_nodes:
            first_nodes = self._new_nodes[:_SHOWN_CHUNKS]
            more = len(self._new_nodes) - len(first_nodes)
            text += f", new below it: {', '.join(first_nodes)}" + (f" and {more} more" * bool(more))
        if self._is_linked:
            text += ", where manifests are linked: build these again over the new state"
        return text

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"


class Resolution(Enum):
    """The resolution of a conflict."""

    FAIL = "stop the rebase"
    USE_OURS = "keep the change of the session"
    USE_THEIRS = "forget the change of the session"


_OURS_OR_THEIRS: Final = frozenset({Resolution.USE_OURS, Resolution.USE_THEIRS})
_OURS: Final = frozenset({Resolution.USE_OURS})
_NEITHER: Final[frozenset[Resolution]] = frozenset()


def sound_resolutions(conflict: Conflict) -> frozenset[Resolution]:
    """List the ways out of a conflict that damage nothing.

    Chunks can be taken from either side, unless ours are in linked manifests. A delete can stand
    over updates of what it deletes, but not where that would leave nodes of the other commit
    without their parent. Everything else needs a person, who starts from the new state of the
    branch.
    """
    match conflict.conflict_type:
        case ConflictType.ChunkDoubleUpdate:
            return _NEITHER if conflict.is_linked else _OURS_OR_THEIRS
        case ConflictType.DeleteOfUpdatedArray | ConflictType.DeleteOfUpdatedGroup:
            return _NEITHER if conflict.new_nodes else _OURS
        case _:
            return _NEITHER


class ConflictSolver(ABC):
    """Decides what a rebase does about conflicts; `solve` is asked about each of them."""

    @abstractmethod
    def solve(self, conflict: Conflict) -> Resolution:
        """Choose one of `sound_resolutions`; any other choice stops the rebase."""


def require_solver(value: object) -> None:
    """Refuse at once what could not answer later, when a conflict comes up."""
    if not isinstance(value, ConflictSolver):
        raise TypeError(
            "conflicts are left to a solver, such as ConflictDetector() or "
            f"BasicConflictSolver(), not to {type(value).__name__}"
        )


@dataclass(frozen=True, slots=True)
class ConflictDetector(ConflictSolver):
    """Never resolves anything: a rebase stops and reports every conflict."""

    @override
    def solve(self, conflict: Conflict) -> Resolution:
        return Resolution.FAIL


@dataclass(frozen=True, slots=True, kw_only=True)
class BasicConflictSolver(ConflictSolver):
    """Resolves chunk conflicts by the chosen side, and lets deletes of updated nodes stand.

    All other conflicts stop the rebase: changes of the same metadata, nodes created in the same
    place, and a delete of a group in which the other commit created nodes.

    >>> solver = BasicConflictSolver(on_chunk_conflict=VersionSelection.UseTheirs)
    >>> solver.solve(Conflict(ConflictType.ChunkDoubleUpdate, "/t2m", [[0]])).name
    'USE_THEIRS'
    """

    on_chunk_conflict: VersionSelection = VersionSelection.UseOurs
    fail_on_delete_of_updated_array: bool = False
    fail_on_delete_of_updated_group: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.on_chunk_conflict, VersionSelection):
            raise TypeError(
                "on_chunk_conflict takes a VersionSelection, "
                f"not {type(self.on_chunk_conflict).__name__}"
            )

    @override
    def solve(self, conflict: Conflict) -> Resolution:
        chosen = self._choose(conflict.conflict_type)
        return chosen if chosen in sound_resolutions(conflict) else Resolution.FAIL

    def _choose(self, conflict_type: ConflictType) -> Resolution:
        match conflict_type:
            case ConflictType.ChunkDoubleUpdate:
                return _OF_SELECTION[self.on_chunk_conflict]
            case ConflictType.DeleteOfUpdatedArray:
                fails = self.fail_on_delete_of_updated_array
            case ConflictType.DeleteOfUpdatedGroup:
                fails = self.fail_on_delete_of_updated_group
            case _:
                fails = True
        return Resolution.FAIL if fails else Resolution.USE_OURS


_OF_SELECTION: Final = {
    VersionSelection.Fail: Resolution.FAIL,
    VersionSelection.UseOurs: Resolution.USE_OURS,
    VersionSelection.UseTheirs: Resolution.USE_THEIRS,
}
