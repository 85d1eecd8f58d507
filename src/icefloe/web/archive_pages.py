"""Pages about archives: what datasets cover, which files they need, and what those files need."""

from collections.abc import Callable, Mapping
from itertools import groupby
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from icefloe.errors import IcefloeError, InvalidInputError, NotFoundError
from icefloe.format.columns import memory_of_columns
from icefloe.format.nodes import ArrayNode
from icefloe.format.paths import absolute_path
from icefloe.pipeline.coverage import (
    WORDS,
    DatasetCoverage,
    FamilyCoverage,
    Presence,
    Span,
    cells,
    read_coverage,
)
from icefloe.pipeline.writing.provenance import record_path, recorded_groups
from icefloe.printable import printable
from icefloe.records import Record
from icefloe.values.urls import without_user
from icefloe.web import dependencies, nodes, references, sources
from icefloe.web.history_pages import MakePage
from icefloe.web.versions import Version, Viewed

MOST_RECORDED: Final = 200_000
"""Of how many files a page works out the coverage."""
_MOST_DATASETS: Final = 50
_MOST_FAMILIES: Final = 20
_MOST_SPANS: Final = 200
_MOST_LATE: Final = 100
_COLUMNS: Final = 360
"""Into how many columns a picture of the coverage is cut."""
_HEIGHTS: Final = {
    Presence.PRESENT: 24,
    Presence.LATE: 20,
    Presence.PARTIAL: 12,
    Presence.MISSING: 3,
}
"""Of bars: the state is to be seen without colours, too."""
_MOST_KEPT_BYTES: Final = 4 << 20
"""Counts that take more memory are made again for each page."""


class Bar(Record):
    """Columns of a picture that are alike."""

    presence: Presence
    first: int
    width: int

    @property
    def height(self) -> int:
        """The height, at the foot of the picture."""
        return _HEIGHTS[self.presence]

    @property
    def word(self) -> str:
        """The state in words."""
        return WORDS[self.presence]


class FamilyPicture(Record):
    """The coverage of files with the same variables, as a picture and as a table."""

    coverage: FamilyCoverage
    bars: tuple[Bar, ...]
    spans: tuple[Span, ...]
    late_files: tuple[str, ...]

    @property
    def steps(self) -> dict[str, int]:
        """The steps of each state, by its word; only those that occur."""
        counts = {WORDS[presence]: self.coverage.steps(presence) for presence in WORDS}
        return {word: steps for word, steps in counts.items() if steps}

    @classmethod
    def of(cls, family: FamilyCoverage) -> "FamilyPicture":
        """Draw the coverage of a family."""
        bars, column = [], 0
        for presence, run in groupby(cells(family, _COLUMNS)):
            width = len(list(run))
            bars.append(Bar(presence, column, width))
            column += width
        late = tuple(map(without_user, family.late_files[:_MOST_LATE]))
        return cls(family, tuple(bars), family.spans[:_MOST_SPANS], late)


class DatasetPicture(Record):
    """The coverage of a dataset, or the reason why it is not known."""

    group: str
    coverage: DatasetCoverage | None = None
    families: tuple[FamilyPicture, ...] = ()
    problem: str = ""


type FindShares = Callable[[Request], Mapping[str, dependencies.Shared] | None]
"""Returns who shares each container with the reader, by its prefix; None without a service."""


class ArchivePages:
    """The pages; `page` renders a template with the frame of the site."""

    def __init__(self, viewed: Viewed, page: MakePage, shares: FindShares) -> None:
        self._viewed: Final = viewed
        self._page: Final = page
        self._shares: Final = shares
        self._counted: tuple[str, sources.SourceFiles] | None = None

    def routes(self) -> list[Route]:
        """Return the routes of the pages, below the root of the repository."""
        return [
            Route("/coverage", self.show_coverage),
            Route("/sources", self.show_sources),
            Route("/dependencies", self.show_dependencies),
            Route("/chunk/{path:path}", self.show_chunk),
        ]

    def show_coverage(self, request: Request) -> Response:
        """Show which steps of ingested datasets are present, missing or late."""
        version = self._version(request)
        groups = recorded_groups(version.session.store)
        return self._page(
            request,
            version,
            "coverage.html",
            datasets=[_dataset(version, group) for group in groups[:_MOST_DATASETS]],
            left_out=len(groups[_MOST_DATASETS:]),
            columns=_COLUMNS,
            tallest=max(_HEIGHTS.values()),
            words=WORDS,
        )

    def show_sources(self, request: Request) -> Response:
        """Show the files of virtual chunks; on demand with their states now."""
        version = self._version(request)
        search = request.query_params.get("search", "").strip()
        after = request.query_params.get("after")
        files = self._files(version)
        listing = sources.list_files(version, files, search, after)
        states: dict[str, sources.LookedAt] | None = None
        if "check" in request.query_params:
            states = sources.look_at_files(version, [row.name for row in listing.rows])
        return self._page(
            request,
            version,
            "sources.html",
            files=files,
            listing=listing,
            search=search,
            after=after,
            states=states,
            unknown=sources.LookedAt(sources.FileState.UNKNOWN),
        )

    def show_dependencies(self, request: Request) -> Response:
        """Show the containers of virtual chunks and what they need."""
        version = self._version(request)
        files = self._files(version)
        needs = dependencies.read_dependencies(version, files, self._viewed.url)
        shares = self._shares(request)
        owners, unshared = dependencies.by_owner(needs, shares or {})
        return self._page(
            request,
            version,
            "dependencies.html",
            files=files,
            dependencies=needs,
            kinds=files.kinds,
            shares=shares,
            owners=owners,
            unshared=unshared,
        )

    def show_chunk(self, request: Request) -> Response:
        """Show where a chunk is stored; a problem with the question is a part of the page."""
        version = self._version(request)
        path = absolute_path(request.path_params["path"])
        node = nodes.find_node(version, path)
        if not isinstance(node, ArrayNode):
            raise NotFoundError(f"{path} is a group")
        way = request.query_params.get("by", "step")
        texts = request.query_params.getlist("at")
        place, problem = None, ""
        try:
            place = references.find_place(version, node, way, texts)
        except InvalidInputError as error:
            problem = printable(error.message, keep="\n")
        return self._page(
            request,
            version,
            "chunk.html",
            path=path,
            parents=nodes.ancestors(path),
            place=place,
            problem=problem,
        )

    def _version(self, request: Request) -> Version:
        return self._viewed.version(request.query_params.get("version") or None)

    def _files(self, version: Version) -> sources.SourceFiles:
        """Count the files of a version, or return the last counts if they are of this version."""
        snapshot_id = version.session.snapshot_id
        counted = self._counted
        if counted is not None and counted[0] == snapshot_id:
            return counted[1]
        files = sources.count_files(version)
        if memory_of_columns(files) <= _MOST_KEPT_BYTES:
            self._counted = snapshot_id, files
        return files


def _dataset(version: Version, group: str) -> DatasetPicture:
    """Work out the coverage of a dataset; a record that cannot be read does not hide others."""
    try:
        _require_few(version, group)
        [coverage] = read_coverage(version.session, group)
    except IcefloeError as error:
        return DatasetPicture(group, problem=printable(error.message, keep="\n"))
    except (ValueError, KeyError, TypeError):  # columns that others wrote, and that do not fit
        return DatasetPicture(group, problem="the record of its files is damaged")
    families = tuple(map(FamilyPicture.of, coverage.families[:_MOST_FAMILIES]))
    return DatasetPicture(group, coverage, families)


def _require_few(version: Version, group: str) -> None:
    node = version.state.tree.find(f"/{record_path(group)}/url")
    files = node.array.shape[0] if isinstance(node, ArrayNode) and node.array.shape else 0
    if files > MOST_RECORDED:
        raise InvalidInputError(
            f"{files:,} files are recorded, and a page reads {MOST_RECORDED:,} at most: the"
            f" command `icefloe coverage` shows them all"
        )
