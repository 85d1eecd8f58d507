"""The application: pages of one repository, their data, and Zarr over HTTP.

Pages come from templates with escaping. Nothing is loaded from elsewhere, and no page contains a
script or a style of its own: the policy of the answers forbids both.
"""

import json
from collections.abc import Callable, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from icefloe.errors import AccessDeniedError, IcefloeError, InvalidInputError, NotFoundError
from icefloe.format.nodes import ArrayNode
from icefloe.format.paths import absolute_path
from icefloe.printable import printable
from icefloe.records import Record
from icefloe.reports import shown_bytes
from icefloe.web import chunks, nodes, pictures, zarr_files
from icefloe.web.data_site import DataSite, download_fields
from icefloe.web.origins import DataForOrigins
from icefloe.web.versions import Version, Viewed

_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "content-security-policy": _POLICY,
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "cross-origin-resource-policy": "same-origin",
}
_LOCAL_HOSTS: Final = ("127.0.0.1", "localhost", "[::1]")
_LONGEST_TEXT: Final = 2_000
"""How many characters of an attribute a page shows."""
_MOST_COMMITS: Final = 200
_YEAR_SECONDS: Final = 365 * 86_400
_README_KEYS: Final = ("readme", "README", "description", "summary", "title")


def create_site(viewed: Viewed, allow_origins: Sequence[str] = ()) -> Starlette:
    """Return the application that shows a repository to browsers on this machine.

    `allow_origins` are sites whose pages may read data, as `parse_origin` returns them.
    """
    site = Site(viewed)
    return Starlette(
        routes=[*site.routes(), static_files()],
        middleware=[
            # A page of another site that resolves its own name to this machine sends that name.
            Middleware(TrustedHostMiddleware, allowed_hosts=list(_LOCAL_HOSTS)),
            *([Middleware(DataForOrigins, origins=allow_origins)] if allow_origins else []),
        ],
        exception_handlers={IcefloeError: site.problem, 404: site.problem},
    )


def static_files() -> Mount:
    """Return the route of style sheets and scripts, at the root of whatever site has the pages."""
    return Mount("/static", StaticFiles(directory=Path(str(files("icefloe.web") / "static"))))


class Change(Record):
    """A kind of change of a commit, with what it changed."""

    title: str
    paths: tuple[str, ...]
    left_out: int


class Site:
    """The pages of a repository."""

    def __init__(self, viewed: Viewed) -> None:
        self._viewed: Final = viewed

    def routes(self) -> list[Route]:
        """Return the routes of the pages, below the root of the repository."""
        return [
            Route("/", self.home),
            Route("/node/{path:path}", self.node),
            Route("/fragment/chunks/{path:path}", self.chunk_fragment),
            Route("/fragment/statistics/{path:path}", self.statistics_fragment),
            Route("/picture/{path:path}", self.picture),
            Route("/series/{path:path}", self.series),
            Route("/history", self.history),
            Route("/history.svg", self.history_picture),
            Route("/commit/{snapshot}", self.commit),
            Route("/zarr/{version}/{key:path}", self.zarr, methods=["GET", "HEAD"]),
            *DataSite(self._viewed, HEADERS).routes(),
        ]

    # Pages

    def home(self, request: Request) -> Response:
        """Show the root of a version."""
        return self._node_page(request, "/")

    def node(self, request: Request) -> Response:
        """Show a group or an array."""
        return self._node_page(request, absolute_path(request.path_params["path"]))

    def _node_page(self, request: Request, path: str) -> Response:
        version = self._version(request)
        node = nodes.find_node(version, path)
        attributes = nodes.attributes_of(node)
        common: dict[str, Any] = {
            "path": path,
            "parents": nodes.ancestors(path),
            "attributes": [(str(key), _shown(value)) for key, value in attributes.items()],
        }
        if isinstance(node, ArrayNode):
            facts = nodes.facts_of(node)
            plan, reason = _plan(version, node)
            return self._page(
                request,
                version,
                "array.html",
                facts=facts,
                plan=plan,
                reason=reason,
                fields=download_fields(version, node),
                **common,
            )
        after = request.query_params.get("after")
        listing = nodes.children(version, path, after)
        readme = next((attributes[key] for key in _README_KEYS if attributes.get(key)), None)
        return self._page(
            request,
            version,
            "group.html",
            listing=listing,
            readme=_shown(readme) if isinstance(readme, str) else None,
            **common,
        )

    def history(self, request: Request) -> Response:
        """Show the commits that lead to a version."""
        version = self._version(request)
        commits = []
        for commit in self._viewed.repository.ancestry(snapshot_id=version.session.snapshot_id):
            commits.append(commit)
            if len(commits) == _MOST_COMMITS:
                break
        return self._page(request, version, "history.html", commits=commits)

    def history_picture(self, _request: Request) -> Response:
        """Draw the commits of all branches and tags."""
        drawing = self._viewed.repository.ancestry_graph().to_svg()
        return Response(drawing, headers=HEADERS, media_type="image/svg+xml")

    def commit(self, request: Request) -> Response:
        """Show a commit and what it changed."""
        repository = self._viewed.repository
        snapshot_id = request.path_params["snapshot"]
        version = self._viewed.version(snapshot_id)
        commit = repository.lookup_snapshot(version.session.snapshot_id)
        changes: list[Change] = []
        if commit.parent_id is not None:
            diff = repository.diff(
                from_snapshot_id=commit.parent_id, to_snapshot_id=version.session.snapshot_id
            )
            changes = _changes(diff)
        metadata = [(key, _shown(value)) for key, value in commit.metadata.items()]
        return self._page(
            request, version, "commit.html", commit=commit, changes=changes, metadata=metadata
        )

    # Parts of pages

    def chunk_fragment(self, request: Request) -> Response:
        """Show how many chunks an array has, and where."""
        version, node = self._array(request)
        grid = chunks.read_grid(version, node)
        facts = nodes.facts_of(node)
        drawing = json.dumps(
            {
                "room": grid.room.tolist(),
                **{name: cells.tolist() for name, cells in grid.cells.items()},
            }
        )
        axes = [None if axis is None else facts.dimensions[axis] for axis in grid.axes]
        is_short = "short" in request.query_params
        template = "chunk_counts.html" if is_short else "chunk_grid.html"
        return self._fragment(template, counts=grid.counts, drawing=drawing, axes=axes)

    def statistics_fragment(self, request: Request) -> Response:
        """Show figures about the values of an array."""
        version, node = self._array(request)
        try:
            figures = pictures.read_statistics(version, node)
        except IcefloeError as error:
            return self._fragment("problem_part.html", text=_problem_text(error))
        units = nodes.facts_of(node).units
        return self._fragment("statistics.html", figures=figures, units=units)

    # Data

    def picture(self, request: Request) -> Response:
        """Return the values of a picture; a problem is a text that the page shows."""
        return self._numbers(
            request,
            lambda version, node, index: pictures.read_picture(
                version, node, pictures.make_plan(version, node, index)
            ),
        )

    def series(self, request: Request) -> Response:
        """Return the values along a dimension at a point."""
        dimension = request.query_params.get("along", "")
        return self._numbers(
            request,
            lambda version, node, index: pictures.read_series(
                version, node, dimension, index or (0,) * len(node.array.shape)
            ),
        )

    def _numbers(
        self,
        request: Request,
        read: Callable[[Version, ArrayNode, list[int] | None], pictures.Picture],
    ) -> Response:
        version, node = self._array(request)
        try:
            content = read(version, node, _index(request)).to_bytes()
        except IcefloeError as error:
            return PlainTextResponse(_problem_text(error), 422, HEADERS)
        return Response(content, headers=HEADERS, media_type="application/octet-stream")

    def zarr(self, request: Request) -> Response:
        """Return a key of a version, as Zarr stores it."""
        name, _, version_name = request.path_params["version"].rpartition("@")
        if name != self._viewed.name:
            return PlainTextResponse("there is no such repository", 404, HEADERS)
        version, key = self._viewed.version(version_name), request.path_params["key"]
        tag = f'"{version.session.snapshot_id}"'
        headers = HEADERS | {"etag": tag, "accept-ranges": "bytes"}
        is_fixed = version.is_fixed
        headers["cache-control"] = (
            f"private, max-age={_YEAR_SECONDS}, immutable" if is_fixed else "no-cache"
        )
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        kind = "application/json" if zarr_files.is_metadata(key) else "application/octet-stream"
        if request.method == "HEAD":
            size = zarr_files.size_of_file(version, key)
            if size is not None:
                headers |= {"content-length": str(size)}
                return Response(headers=headers, media_type=kind)
        is_same = request.headers.get("if-range", tag) == tag
        try:
            file = zarr_files.read_file(
                version, key, request.headers.get("range") if is_same else None
            )
        except zarr_files.RangeError as error:
            headers["content-range"] = f"bytes */{error.context['size']}"
            return PlainTextResponse(str(error), 416, headers)
        if file is None:
            return PlainTextResponse("there is no such key", 404, HEADERS)
        if file.is_part:
            last = file.first + len(file.data) - 1
            headers["content-range"] = f"bytes {file.first}-{last}/{file.size_bytes}"
        return Response(file.data, 206 if file.is_part else 200, headers, media_type=kind)

    # Shared

    def _version(self, request: Request) -> Version:
        return self._viewed.version(request.query_params.get("version") or None)

    def _array(self, request: Request) -> tuple[Version, ArrayNode]:
        version = self._version(request)
        path = absolute_path(request.path_params["path"])
        node = nodes.find_node(version, path)
        if not isinstance(node, ArrayNode):
            raise NotFoundError(f"{path} is a group")
        return version, node

    def _page(self, request: Request, version: Version, template: str, **values: Any) -> Response:
        root = request.scope.get("root_path", "")  # not empty where the pages are a part of a site

        def link(path: str, **query: str) -> str:
            chosen = request.query_params.get("version")
            parameters = ({"version": chosen} if chosen else {}) | query
            return _url(root + path, **parameters)

        text = (
            _templates()
            .get_template(template)
            .render(
                viewed=self._viewed,
                version=version,
                version_names=list(self._viewed.version_names()),
                link=link,
                origin=str(request.base_url).rstrip("/"),
                **values,
            )
        )
        return HTMLResponse(text, headers=HEADERS)

    def _fragment(self, template: str, **values: Any) -> Response:
        return HTMLResponse(_templates().get_template(template).render(**values), headers=HEADERS)

    def problem(self, request: Request, error: Exception) -> Response:
        """Show an error as a page."""
        status = 500
        text = "There is no such page."
        if isinstance(error, IcefloeError):
            text = _problem_text(error)
            if isinstance(error, NotFoundError):
                status = 404
            elif isinstance(error, InvalidInputError):
                status = 400
            elif isinstance(error, AccessDeniedError):
                status = 403
        else:
            status = 404
        template = _templates().get_template("problem.html")
        root = request.scope.get("root_path", "") + "/"
        content = template.render(viewed=self._viewed, text=text, root=root)
        return HTMLResponse(content, status, HEADERS)


def _plan(version: Version, node: ArrayNode) -> tuple[pictures.Plan | None, str]:
    """Return how an array is drawn, or why it cannot be."""
    try:
        return pictures.make_plan(version, node), ""
    except IcefloeError as error:
        return None, _problem_text(error)


def _index(request: Request) -> list[int] | None:
    text = request.query_params.get("index")
    if not text:
        return None
    try:
        return [int(step) for step in text.split(",")]
    except ValueError:
        raise InvalidInputError(f"an index is numbers with commas, not {text!r}") from None


def _changes(diff: Any) -> list[Change]:
    kinds = {
        "Groups created": sorted(diff.new_groups),
        "Arrays created": sorted(diff.new_arrays),
        "Groups with new attributes": sorted(diff.updated_groups),
        "Arrays with new metadata": sorted(diff.updated_arrays),
        "Groups deleted": sorted(diff.deleted_groups),
        "Arrays deleted": sorted(diff.deleted_arrays),
        "Nodes moved": [f"{source} → {target}" for source, target in diff.moved_nodes],
        "Chunks written or deleted": [
            f"{path}: {len(coordinates):,}" for path, coordinates in diff.chunk_coordinates.items()
        ],
    }
    most = nodes.MOST_CHILDREN
    return [
        Change(title, tuple(paths[:most]), max(0, len(paths) - most))
        for title, paths in kinds.items()
        if paths
    ]


def _shown(value: Any) -> str:
    """Return the text of an attribute, cut to a length that a page can show."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = printable(text, keep="\n")
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}…"


def _problem_text(error: IcefloeError) -> str:
    return printable(error.message, keep="\n")


def _url(path: str, **query: str) -> str:
    """Return a URL of this site.

    >>> _url("/node/a b", version="v 1")
    '/node/a%20b?version=v%201'
    """
    parameters = "&".join(f"{key}={quote(value, safe='')}" for key, value in query.items())
    return quote(path, safe="/") + (f"?{parameters}" if parameters else "")


@cache
def _templates() -> Environment:
    loader = PackageLoader("icefloe.web")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters["bytes"] = shown_bytes
    environment.filters["shown"] = lambda text: printable(str(text), keep="\n")
    return environment
