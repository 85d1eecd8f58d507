"""Pages about versions: the history, a commit, and the difference of two versions."""

import json
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import numpy as np
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from icefloe.errors import IcefloeError, InvalidInputError, NodeNotFoundError
from icefloe.format.nodes import ArrayNode
from icefloe.format.paths import absolute_path
from icefloe.records import Record
from icefloe.repo.snapshot_info import SnapshotInfo
from icefloe.web import differences, diffs, history, nodes, pictures, regions
from icefloe.web.chunks import Cells
from icefloe.web.diffs import ArrayComparison
from icefloe.web.recent import Recent
from icefloe.web.versions import Version, Viewed

_MOST_KEPT: Final = 4
"""How many comparisons of arrays are kept, for the pictures of their pages."""


class MakePage(Protocol):
    """A function that makes a page about a version from a template."""

    def __call__(
        self, request: Request, version: Version, template: str, **values: Any
    ) -> Response:
        """Return the page."""
        ...


class MakeNumbers(Protocol):
    """A function that answers with the values of a picture, or with the reason for none."""

    def __call__(
        self,
        request: Request,
        versions: Sequence[Version],
        read: Callable[[list[int] | None], pictures.Picture],
    ) -> Response:
        """Return the values; `read` has the index of the request as its argument."""
        ...


class Side(Record):
    """One of two versions that are compared."""

    version: Version
    commit: SnapshotInfo
    headline: str


class Since(Record):
    """The chunks of an array that changed since another version."""

    name: str
    chunks: int | None = None
    """How many chunks changed; None if the versions cannot be compared."""
    cells: list[list[int]] | None = None
    problem: str = ""
    is_complete: bool = True


class HistoryPages:
    """The pages of a repository that are about its versions."""

    def __init__(self, viewed: Viewed, page: MakePage, numbers: MakeNumbers) -> None:
        self._viewed: Final = viewed
        self._page: Final = page
        self._numbers: Final = numbers
        self._kept: Final = Recent[tuple[str, str, str], ArrayComparison](_MOST_KEPT)

    def routes(self) -> list[Route]:
        """Return the routes of these pages, below the root of the repository."""
        return [
            Route("/history", self.history),
            Route("/commit", self.commit),
            Route("/commit/{snapshot}", self.commit),
            Route("/diff", self.diff),
            Route("/diff/{path:path}", self.node_diff),
            Route("/difference/{path:path}", self.difference),
        ]

    def history(self, request: Request) -> Response:
        """Show the commits of all branches and tags, or those that lead to a version."""
        version = self._viewed.version(request.query_params.get("version") or None)
        is_only = "only" in request.query_params
        graph = history.read_graph(version, is_only=is_only)
        page = history.history_page(graph, page_number(request))
        return self._page(
            request,
            version,
            "history.html",
            history=page,
            height=history.ROW_HEIGHT,
            is_only=is_only,
        )

    def commit(self, request: Request) -> Response:
        """Show a commit and what it changed."""
        chosen = request.query_params.get("version") or None
        version = self._viewed.version(request.path_params.get("snapshot", chosen))
        commit = self._viewed.repository.lookup_snapshot(version.session.snapshot_id)
        comparison = None
        if commit.parent_id is not None:
            comparison = diffs.compare(self._viewed.version(commit.parent_id), version)
        return self._page(
            request,
            version,
            "commit.html",
            commit=commit,
            author=history.author_of(commit.metadata),
            texts=history.title_and_text(commit.message),
            comparison=comparison,
        )

    def diff(self, request: Request) -> Response:
        """Show how two versions differ."""
        names = [request.query_params.get(key, "").strip() for key in ("from", "to")]
        after = self._viewed.version(names[1] or request.query_params.get("version") or None)
        if not names[0]:
            return self._page(request, after, "diff.html", comparison=None, sides=None)
        before = self._viewed.version(names[0])
        return self._page(
            request,
            self._linked(request, after),
            "diff.html",
            comparison=diffs.compare(before, after),
            sides=[self._side(before), self._side(after)],
        )

    def node_diff(self, request: Request) -> Response:
        """Show how a node differs between two versions."""
        before, after, path = self._compared(request)
        old, new = diffs.find_pair(before, after, path)
        values: dict[str, Any] = {
            "path": path,
            "parents": nodes.ancestors(path),
            "sides": [self._side(before), self._side(after)],
            "old": old,
            "new": new,
            "fields": [] if old is None or new is None else diffs.changed_fields(old, new),
        }
        if old is None and new is None:
            text = f"there is no node {path} in {before.name} or {after.name}"
            raise NodeNotFoundError(text, path=path)
        if isinstance(old, ArrayNode) and isinstance(new, ArrayNode):
            values |= _array_values(self._compare(before, after, old, new))
        return self._page(request, self._linked(request, after), "diff_node.html", **values)

    def difference(self, request: Request) -> Response:
        """Return the difference of the values of two versions of an array."""

        before, after, path = self._compared(request)

        def read(index: list[int] | None) -> pictures.Picture:
            old, new = diffs.find_pair(before, after, path)
            if not isinstance(old, ArrayNode) or not isinstance(new, ArrayNode):
                raise NodeNotFoundError(f"{path} is no array of both versions", path=path)
            comparison = self._compare(before, after, old, new)
            return differences.read_difference(comparison, index)

        return self._numbers(request, (before, after), read)

    def since(self, version: Version, node: ArrayNode, name: str) -> Since:
        """Find the chunks of an array that changed since another version."""
        try:
            before = self._viewed.version(name)
            old, _ = diffs.find_pair(before, version, node.path)
            if not isinstance(old, ArrayNode):
                return Since(name, problem=f"The array is not in {before.name}.")
            if len(old.array.num_chunks) != len(node.array.num_chunks):
                return Since(name, problem="The array had another number of dimensions.")
            comparison = self._compare(before, version, old, node)
        except IcefloeError as error:
            return Since(name, problem=error.message)
        coordinates = comparison.coordinates
        inside = coordinates[(coordinates < np.array(node.array.num_chunks)).all(axis=1)]
        cells = Cells.of(node.array.num_chunks).count(inside).tolist()
        return Since(name, len(inside), cells, is_complete=comparison.is_complete)

    # Shared

    def _linked(self, request: Request, after: Version) -> Version:
        """Return the version that is chosen for links, or else the later one of two."""
        name = request.query_params.get("version")
        return self._viewed.version(name) if name else after

    def _side(self, version: Version) -> Side:
        commit = self._viewed.repository.lookup_snapshot(version.session.snapshot_id)
        return Side(version, commit, history.headline(commit.message))

    def _compared(self, request: Request) -> tuple[Version, Version, str]:
        """Return the versions and the path that a request names."""
        names = [request.query_params.get(key, "").strip() for key in ("from", "to")]
        if not all(names):
            raise InvalidInputError("a difference needs two versions: from=... and to=...")
        before, after = (self._viewed.version(name) for name in names)
        return before, after, absolute_path(request.path_params["path"])

    def _compare(
        self, before: Version, after: Version, old: ArrayNode, new: ArrayNode
    ) -> ArrayComparison:
        """Compare an array, unless that was done for the page whose picture is asked for."""
        key = (before.session.snapshot_id, after.session.snapshot_id, new.path)
        return self._kept.get(key, lambda: diffs.compare_array(before, after, old, new))


def page_number(request: Request) -> int:
    """Return the number of the page of a list that a request asks for."""
    text = request.query_params.get("page", "1")
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise InvalidInputError(f"a page is a number from 1 on, not {text!r}")
    return int(text)


def _array_values(comparison: ArrayComparison) -> dict[str, Any]:
    """Return what the page of an array shows: regions, a drawing of the grid, a picture."""
    facts = [nodes.facts_of(node) for node in (comparison.old, comparison.new)]
    plan, reason = None, ""
    try:
        plan = differences.plan_difference(comparison)
    except IcefloeError as error:
        reason = error.message
    listed, drawing = None, None
    axes: tuple[int | None, int | None] = (None, None)
    if len(comparison.coordinates):
        grid = tuple(map(max, facts[0].num_chunks, facts[1].num_chunks))
        cells = Cells.of(grid)
        content = {
            "room": cells.room().tolist(),
            "changed": cells.count(comparison.coordinates).tolist(),
        }
        drawing = json.dumps(content, separators=(",", ":"))
        axes = cells.axes
        if comparison.has_same_grid:
            sides = (comparison.after, comparison.new), (comparison.before, comparison.old)
            dimensions = [
                max(pair, key=lambda dimension: dimension.length)
                for pair in zip(*(pictures.dimensions_of(*side) for side in sides), strict=True)
            ]
            listed = regions.describe(comparison.coordinates, facts[1].largest_chunk, dimensions)
    return {
        "comparison": comparison,
        "facts": facts,
        "regions": listed,
        "drawing": drawing,
        "axes": [None if axis is None else facts[1].dimensions[axis] for axis in axes],
        "plan": plan,
        "reason": reason,
    }
