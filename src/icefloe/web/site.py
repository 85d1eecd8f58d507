"""The application: pages of one repository, their data, and Zarr over HTTP.

Pages come from templates with escaping. Nothing is loaded from elsewhere, and no page contains a
script or a style of its own: the policy of the answers forbids both.
"""

import json
from collections.abc import Callable, Hashable, Sequence
from functools import cache
from typing import Any, Final
from urllib.parse import quote, urlsplit

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route

from icefloe.errors import (
    AccessDeniedError,
    IcefloeError,
    InvalidInputError,
    NodeNotFoundError,
    NotFoundError,
)
from icefloe.format.nodes import ArrayNode, Node
from icefloe.format.paths import absolute_path
from icefloe.printable import printable
from icefloe.records import replace
from icefloe.reports import shown_bytes
from icefloe.web import chunks, decoding, nodes, pictures, regions, zarr_files
from icefloe.web.answers import StaticFiles, compressed
from icefloe.web.archive_pages import ArchivePages, FindShares
from icefloe.web.data_site import DataSite, download_fields, root_address
from icefloe.web.dependencies import problem_text
from icefloe.web.history import headline
from icefloe.web.history_pages import HistoryPages, page_number
from icefloe.web.origins import DataForOrigins
from icefloe.web.picker import VERSIONS_PAGE, Picker, Target, ref_page
from icefloe.web.recent import Recent
from icefloe.web.recipes import recipes_of
from icefloe.web.texts import LONGEST_TEXT, fits_address, shown_name, shown_text
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
_LONGEST_README: Final = 60_000
_YEAR_SECONDS: Final = 365 * 86_400
_MOST_PICTURES: Final = 4
"""How many pictures are kept, for the exact values of a point: 1 MiB each at most."""
_AREAS: Final = {
    "node": "/",
    "commit": "/history",
    "diff": "/history",
    "versions": "/history",
    "chunk": "/",
    "sources": "/dependencies",
}
"""The link of the navigation that stands for a page, where it is not that of the page itself."""
_MOST_BRANCHES: Final = 200
"""How many branches the field for moments offers."""
_README_KEYS: Final = ("readme", "README", "description", "summary", "title")


def _area(path: str) -> str:
    """Return the link of the navigation that a page belongs to.

    >>> _area("/history"), _area("/node/ocean/sst"), _area("")
    ('/history', '/', '/')
    """
    first = path.strip("/").partition("/")[0]
    return _AREAS.get(first, f"/{first}")


def create_site(viewed: Viewed, allow_origins: Sequence[str] = ()) -> Starlette:
    """Return the application that shows a repository to browsers on this machine.

    `allow_origins` are sites whose pages may read data, as `parse_origin` returns them.
    """
    site = Site(viewed)
    zarr = Route("/zarr/{version}/{key:path}", site.zarr, methods=["GET", "HEAD"])
    return Starlette(
        routes=[*site.routes(), zarr, static_files()],
        middleware=[
            # A page of another site that resolves its own name to this machine sends that name.
            Middleware(TrustedHostMiddleware, allowed_hosts=list(_LOCAL_HOSTS)),
            *([Middleware(DataForOrigins, origins=allow_origins)] if allow_origins else []),
        ],
        exception_handlers={IcefloeError: site.problem, 404: site.problem},
    )


def static_files() -> Mount:
    """Return the route of style sheets and scripts, at the root of whatever site has the pages."""
    return Mount("/static", StaticFiles())


class Site:
    """The pages of a repository.

    `navigation` returns the HTML above each page where the pages are a part of a larger site, and
    `shares` the owners who share virtual chunks with the reader there.
    """

    def __init__(
        self,
        viewed: Viewed,
        navigation: Callable[[Request], str] = lambda _: "",
        shares: FindShares = lambda _: None,
    ) -> None:
        self._viewed: Final = viewed
        self._shares: Final = shares
        self._navigation: Final = navigation
        self._pictures: Final = Recent[tuple[Hashable, ...], pictures.Picture](_MOST_PICTURES)
        self._versions: Final = HistoryPages(viewed, self._page, self._answer)

    def routes(self) -> list[Route]:
        """Return the routes of the pages, below the root of the repository."""
        return [
            Route("/", self.home),
            Route("/node/{path:path}", self.node),
            Route(VERSIONS_PAGE, self.versions),
            Route("/fragment/chunks/{path:path}", self.chunk_fragment),
            Route("/fragment/statistics/{path:path}", self.statistics_fragment),
            Route("/picture/{path:path}", self.picture),
            Route("/series/{path:path}", self.series),
            *self._versions.routes(),
            *ArchivePages(self._viewed, self._page, self._shares).routes(),
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
        is_root = path == "/"  # which a repository without any data does not have
        node = version.state.tree.find(path) if is_root else nodes.find_node(version, path)
        attributes = {} if node is None else nodes.attributes_of(node)
        common: dict[str, Any] = {
            "path": path,
            "parents": nodes.ancestors(path),
            "attributes": [
                (str(key), _shown(_known_marker(node, key, value)))
                for key, value in attributes.items()
            ],
        }
        if isinstance(node, ArrayNode):
            facts = nodes.facts_of(node)
            plan, reason = _plan(version, node)
            common["since"] = request.query_params.get("since", "").strip()
            return self._page(
                request,
                version,
                "array.html",
                facts=facts,
                plan=plan,
                reason=reason,
                fields=download_fields(version, node),
                recipes=recipes_of(self._viewed, version, path, root_address(request), node),
                **common,
            )
        text = request.query_params.get("search", "").strip()
        listing = (
            nodes.search(version, path, text)
            if text
            else nodes.children(version, path, request.query_params.get("after"))
        )
        table = nodes.largest_array(version, listing)
        readme = next((attributes[key] for key in _README_KEYS if attributes.get(key)), None)
        return self._page(
            request,
            version,
            "group.html",
            listing=listing,
            search=text,
            most=nodes.MOST_CHILDREN,
            recipes=recipes_of(self._viewed, version, path, root_address(request), table),
            readme=_readme(readme) if isinstance(readme, str) else None,
            **common,
        )

    def versions(self, request: Request) -> Response:
        """List branches and tags, or open a page at the moment that a form asks for."""
        version, asked = self._version(request), request.query_params
        root = request.scope.get("root_path", "")
        target = Target.of_request(request, root)
        branch, moment, problem = asked.get("branch", ""), asked.get("moment", "").strip(), ""
        if moment:
            name = f"{branch}@{moment}" if branch else moment
            try:
                self._viewed.version(name)
                return RedirectResponse(target.address(root, name), 303, HEADERS)
            except IcefloeError as error:
                problem = _problem_text(error)
        refs, search = self._viewed.refs(version), asked.get("search", "").strip()
        page = ref_page(refs, search, page_number(request))
        listed = tuple(map(self._viewed.with_commit, page.refs))
        branches = [ref.name for ref in refs if ref.kind == "branch" and fits_address(ref.name)]
        return self._page(
            request,
            version,
            "versions.html",
            page=replace(page, refs=listed),
            addresses=[target.address(root, ref.address_name) for ref in listed],
            branches=branches[:_MOST_BRANCHES],
            search=search,
            branch=branch,
            moment=moment,
            problem=problem,
            headline=headline,
            root=root,
        )

    # Parts of pages

    def chunk_fragment(self, request: Request) -> Response:
        """Show how many chunks an array has, and where."""
        version, node = self._array(request)
        if "short" in request.query_params:
            return self._fragment(
                request, "chunk_counts.html", counts=chunks.read_counts(version, node)
            )
        grid = chunks.read_grid(version, node)
        facts = nodes.facts_of(node)
        name = request.query_params.get("since", "").strip()
        since = self._versions.since(version, node, name) if name else None
        cells = {kind: counts.tolist() for kind, counts in grid.kinds.items()}
        if since is not None and since.cells is not None:
            cells["changed"] = since.cells
        drawn = grid.cells.axes
        values = {
            "axes": drawn,
            "lengths": [None if axis is None else facts.num_chunks[axis] for axis in drawn],
            "room": grid.cells.room().tolist(),
            **cells,
        }
        drawing = json.dumps(values, separators=(",", ":"))
        axes = [None if axis is None else facts.dimensions[axis] for axis in drawn]
        kinds = dict(grid.kinds)
        if grid.counts.is_complete:
            kinds["missing"] = grid.cells.room() - sum(grid.kinds.values())
        if since is not None and since.cells is not None:
            kinds["changed"] = np.array(since.cells)
        listed, left_out = regions.describe_cells(
            grid.cells, kinds, pictures.dimensions_of(version, node), facts.chunk_shape
        )
        return self._fragment(
            request,
            "chunk_grid.html",
            counts=grid.counts,
            drawing=drawing,
            axes=axes,
            since=since,
            regions=listed,
            left_out=left_out,
        )

    def statistics_fragment(self, request: Request) -> Response:
        """Show figures about the values of an array."""
        version, node = self._array(request)
        try:
            figures = pictures.read_statistics(version, node)
        except IcefloeError as error:
            text = problem_text(version, error, self._viewed.url)
            return self._fragment(request, "problem_part.html", text=text)
        rows = pictures.shown_figures(node, figures)
        return self._fragment(request, "statistics.html", figures=figures, rows=rows)

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
        return self._numbers(
            request,
            lambda version, node, index: pictures.read_series(
                version,
                node,
                _dimension_number(request),
                index or (0,) * len(node.array.shape),
            ),
        )

    def _numbers(
        self,
        request: Request,
        read: Callable[[Version, ArrayNode, list[int] | None], pictures.Picture],
    ) -> Response:
        version, node = self._array(request)
        return self._answer(request, (version,), lambda index: read(version, node, index))

    def _answer(
        self,
        request: Request,
        versions: Sequence[Version],
        read: Callable[[list[int] | None], pictures.Picture],
    ) -> Response:
        """Return a picture, or the exact values of some rows and columns of it."""
        asked = request.query_params
        key = (
            request.url.path,
            tuple(version.session.snapshot_id for version in versions),
            asked.get("index"),
            asked.get("along"),
        )
        try:
            picture = self._pictures.get(key, lambda: read(_numbers(request, "index")))
            rows, columns = _numbers(request, "rows"), _numbers(request, "columns")
            if rows is not None and columns is not None:
                picture = picture.exact(rows, columns)
            content = picture.to_bytes()
        except IcefloeError as error:
            # Which containers are authorised is the same for all versions.
            text = problem_text(self._viewed.version(None), error, self._viewed.url)
            return PlainTextResponse(text, 422, HEADERS)
        return compressed(request, content, HEADERS, media_type="application/octet-stream")

    def zarr(self, request: Request) -> Response:
        """Return a key of a version of this repository, as Zarr stores it."""
        name, _, version_name = request.path_params["version"].rpartition("@")
        if name != self._viewed.name:
            return PlainTextResponse("there is no such repository", 404, HEADERS)
        try:
            return self.zarr_file(request, version_name, request.path_params["key"])
        except zarr_files.RangeError as error:
            headers = HEADERS | error.headers
            return PlainTextResponse(str(error), 416, headers)
        except zarr_files.NoSuchKeyError as error:
            return PlainTextResponse(str(error), 404, HEADERS)

    def zarr_file(self, request: Request, version_name: str, key: str) -> Response:
        """Return a key of a version, as Zarr stores it, or the range of it that is asked for.

        Raise `NoSuchKeyError` or `RangeError` if there is nothing to return.
        """
        version = self._viewed.version(version_name)
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
        byte_range = request.headers.get("range") if is_same else None
        file = zarr_files.read_file(version, key, byte_range)
        if file is None:
            raise zarr_files.NoSuchKeyError(f"there is no key {key} in this version")
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
        return self._document(
            request, version, request.query_params.get("version"), template, **values
        )

    def _document(
        self,
        request: Request,
        version: Version,
        chosen: str | None,
        template: str,
        *,
        status: int = 200,
        **values: Any,
    ) -> Response:
        """Return a page about a version, whose links lead to the version that was chosen."""
        root = request.scope.get("root_path", "")  # not empty where the pages are a part of a site

        def link(path: str, **query: str) -> str:
            parameters = ({"version": chosen} if chosen else {}) | query
            return _url(root + path, **parameters)

        navigation = self._navigation(request)
        text = _render(
            template,
            viewed=self._viewed,
            version=version,
            picker=Picker.of(Target.of_request(request, root), root, self._viewed.refs(version)),
            link=link,
            area=_area(request.scope["path"].removeprefix(root)),
            navigation=navigation,
            **values,
        )
        # The navigation of a larger site may have secrets.
        if navigation:
            return HTMLResponse(text, status, HEADERS)
        return _html(request, text, status)

    def _fragment(self, request: Request, template: str, **values: Any) -> Response:
        return _html(request, _render(template, **values))

    def problem(self, request: Request, error: Exception) -> Response:
        """Show an error as a page, with the ways that lead on."""
        status, text = 404, "There is no such page."
        if isinstance(error, IcefloeError):
            text, status = _problem_text(error), _status_of(error)
        if not is_document(request):
            return problem_part(request, text, status)
        chosen = request.query_params.get("version") or None
        try:
            version, chosen = self._chosen_or_default(chosen)
        except IcefloeError:  # not even the navigation can be made
            return PlainTextResponse(text, status, HEADERS)
        path = error.context.get("path") if isinstance(error, NodeNotFoundError) else None
        ways = self._ways(request, version, path) if isinstance(path, str) else []
        return self._document(
            request, version, chosen, "problem.html", status=status, text=text, ways=ways
        )

    def _chosen_or_default(self, name: str | None) -> tuple[Version, str | None]:
        """Return the version with a name, and the name; the default version if there is none."""
        try:
            return self._viewed.version(name), name
        except IcefloeError:
            return self._viewed.version(None), None

    def _ways(self, request: Request, version: Version, path: str) -> list[tuple[str, str]]:
        """Return where to go on from a node that a version does not have: words and addresses."""
        root = request.scope.get("root_path", "")
        ways = []
        above = [parent for _, parent in nodes.ancestors(path)[:-1]]
        nearest = next((p for p in reversed(above) if version.state.tree.find(p) is not None), "/")
        words = f"{nearest} in {version.name}" if nearest != "/" else f"The root of {version.name}"
        ways.append(
            (
                words,
                Target(f"/node{nearest}" if nearest != "/" else "/").address(root, version.name),
            )
        )
        default = self._viewed.version(None)
        if default.name != version.name and default.state.tree.find(path) is not None:
            words = f"{path} in {default.name}"
            ways.append((words, Target(f"/node{path}").address(root, default.name)))
        before = urlsplit(request.headers.get("referer", ""))
        if before.netloc == request.url.netloc and before.path.startswith(f"{root}/"):
            address = before.path + (f"?{before.query}" if before.query else "")
            ways.append(("Back to the page before", address))
        return ways


def _status_of(error: IcefloeError) -> int:
    if isinstance(error, NotFoundError):
        return 404
    if isinstance(error, InvalidInputError):
        return 400
    return 403 if isinstance(error, AccessDeniedError) else 500


def is_document(request: Request) -> bool:
    """Return whether a browser shows the answer as a page; otherwise a script of it asks."""
    return request.headers.get("sec-fetch-dest", "document") == "document"


def problem_part(request: Request, text: str, status: int) -> Response:
    """Return a problem for a script of ours: htmx puts it into the page, others show the text."""
    if "hx-request" in request.headers:
        return HTMLResponse(_render("problem_part.html", text=text), status, HEADERS)
    return PlainTextResponse(text, status, HEADERS)


def _html(request: Request, text: str, status: int = 200) -> Response:
    response = compressed(request, text.encode(), HEADERS, media_type="text/html")
    response.status_code = status
    return response


def _plan(version: Version, node: ArrayNode) -> tuple[pictures.Plan | None, str]:
    """Return how an array is drawn, or why it cannot be."""
    try:
        return pictures.make_plan(version, node), ""
    except IcefloeError as error:
        return None, _problem_text(error)


def _dimension_number(request: Request) -> int:
    numbers = _numbers(request, "along")
    if numbers is None or len(numbers) != 1:
        raise InvalidInputError("along is the number of a dimension, counted from 0")
    return numbers[0]


def _numbers(request: Request, name: str) -> list[int] | None:
    text = request.query_params.get(name)
    if not text:
        return None
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        problem = f"{name} has numbers with commas, not {text[:100]!r}"
        raise InvalidInputError(problem) from None


def _shown(value: Any) -> str:
    """Return the text of an attribute, cut to a length that a page can show."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return shown_text(text)


def _readme(text: str) -> tuple[str, str]:
    """Return the beginning of a text, up to the end of a line, and the rest."""
    text = printable(text[:_LONGEST_README], keep="\n") + (
        "…" if len(text) > _LONGEST_README else ""
    )
    if len(text) <= LONGEST_TEXT:
        return text, ""
    end = max(text.rfind(mark, 0, LONGEST_TEXT) for mark in "\n ") + 1 or LONGEST_TEXT
    return text[:end].rstrip(), text[end:]


def _known_marker(node: Node | None, key: str, value: Any) -> Any:
    """Return the number of a marker of missing values that is stored as the Base64 of 8 bytes."""
    if not isinstance(node, ArrayNode) or key not in ("_FillValue", "missing_value"):
        return value
    data_type = nodes.facts_of(node).data_type
    if not isinstance(value, str) or not data_type.startswith("float"):
        return value
    dtype = np.dtype(data_type)
    number = decoding.marker_of(value, dtype)
    return value if number is None else float(str(dtype.type(number)))


def _problem_text(error: IcefloeError) -> str:
    return shown_text(error.message)


def _url(path: str, **query: str) -> str:
    """Return a URL of this site.

    >>> _url("/node/a b", version="v 1")
    '/node/a%20b?version=v%201'
    """
    parameters = "&".join(f"{key}={quote(value, safe='')}" for key, value in query.items())
    return quote(path, safe="/") + (f"?{parameters}" if parameters else "")


def _render(template: str, **values: Any) -> str:
    return templates_of("icefloe.web").get_template(template).render(**values)


@cache
def templates_of(package: str) -> Environment:
    """Return the templates of a package, with escaping and the filters of our pages."""
    loader = PackageLoader(package)
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters["bytes"] = shown_bytes
    environment.filters["value"] = _shown
    environment.filters["shown"] = lambda text: shown_text(str(text))
    environment.filters["name"] = shown_name
    environment.filters["whole"] = lambda text: printable(str(text), keep="\n")
    environment.tests["address"] = fits_address
    return environment
