"""Data over HTTP: values, map tiles and plans of chunks, as routes of the pages."""

import re
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import quote, urlencode

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from icefloe.errors import (
    AccessDeniedError,
    ErrorKind,
    FormatError,
    IcefloeError,
    InvalidInputError,
    NotFoundError,
    StorageError,
)
from icefloe.format.nodes import ArrayNode, Node
from icefloe.format.paths import absolute_path
from icefloe.records import Record
from icefloe.web import data, formats, nodes, pictures, plans, tiles
from icefloe.web.answers import has_tag
from icefloe.web.formats import MEDIA_TYPES, Format
from icefloe.web.selection import COORDINATE, parse_query
from icefloe.web.texts import fits_address
from icefloe.web.versions import Version, Viewed

_YEAR_SECONDS: Final = 365 * 86_400
_OF_DATA: Final = ("version", "variables", "format", "decode")
_OF_TILES: Final = ("version", "colours", "range")
_OF_PLANS: Final = ("version",)
_ACCEPTED: Final = {
    "application/json": Format.JSON,
    "text/csv": Format.CSV,
    "application/vnd.apache.arrow.stream": Format.ARROW,
    "application/x-netcdf": Format.NETCDF,
    "application/netcdf": Format.NETCDF,
}
_STATUS_OF: Final[tuple[tuple[type[IcefloeError], int], ...]] = (
    (AccessDeniedError, 403),
    (StorageError, 502),  # before NotFoundError: an object that is missing is no missing entry
    (FormatError, 502),
    (NotFoundError, 404),
    (InvalidInputError, 400),
    (IcefloeError, 500),
)


class Field(Record):
    """A field of the form with which values are downloaded."""

    parameter: str
    name: str
    hint: str


def root_address(request: Request) -> str:
    """Return the address of the repository, wherever its pages are.

    `base_url` would be that of the larger site that the pages are a part of.
    """
    root = quote(request.scope.get("root_path", ""))
    return f"{request.url.scheme}://{request.url.netloc}{root}"


class DataSite:
    """The data of a repository, each kind of answer as a method that raises its errors.

    `address` returns the address of the repository, below which the addresses in answers are.
    """

    def __init__(
        self,
        viewed: Viewed,
        headers: Mapping[str, str],
        address: Callable[[Request], str] = root_address,
    ) -> None:
        self._viewed: Final = viewed
        self._headers: Final = dict(headers)
        self._address: Final = address

    def routes(self) -> list[Route]:
        """Return the routes, below the root of the repository; they answer errors, too."""
        tile = "/tiles/{path:path}/{zoom:int}/{column:int}/{row:int}.png"
        return [
            Route("/api/v1/data/{path:path}", self._answering(self.values)),
            Route("/tiles/{path:path}/tilejson.json", self._answering(self.tile_description)),
            Route(tile, self._answering(self.tile)),
            Route("/plan/{path:path}", self._answering(self.plan)),
        ]

    def _answering(self, make: Callable[[Request], Response]) -> Callable[[Request], Response]:
        def answer(request: Request) -> Response:
            try:
                return make(request)
            except IcefloeError as error:
                if "text/html" in request.headers.get("accept", ""):
                    raise  # somebody looks at this in a browser, and gets a page
                status = next(status for kind, status in _STATUS_OF if isinstance(error, kind))
                problem = {"code": error.kind, "message": str(error)}
                return JSONResponse(problem, status, self._headers | {"cache-control": "no-store"})

        return answer

    def values(self, request: Request) -> Response:
        """Return the values of a position, an area or a cube."""
        version, node = self._node(request)
        form = _format(request)
        headers = self._kept(version, form) | {"vary": "accept"}
        if has_tag(request, headers["etag"]):
            return Response(status_code=304, headers=headers)
        decode = _decode(request, form)
        query = parse_query(request.query_params.multi_items(), _OF_DATA)
        arrays = data.find_variables(version, node, request.query_params.get("variables"))
        dataset = data.read_dataset(version, arrays, query, decode=decode)
        header = {
            "path": node.path,
            "version": version.name,
            "snapshot": version.session.snapshot_id,
        }
        content = formats.write(dataset, form, header)
        if form is not Format.JSON:
            name = _file_name(node.path, MEDIA_TYPES[form].suffix)
            headers["content-disposition"] = f'attachment; filename="{name}"'
        return StreamingResponse(content, headers=headers, media_type=MEDIA_TYPES[form].name)

    def tile(self, request: Request) -> Response:
        """Return a tile of a map as PNG."""
        version, node = self._array(request)
        headers = self._kept(version, "png")
        if has_tag(request, headers["etag"]):
            return Response(status_code=304, headers=headers)
        query = parse_query(request.query_params.multi_items(), _OF_TILES)
        style = tiles.parse_style(request.query_params, nodes.attributes_of(node))
        opened = tiles.open_tiles(version, node, query)
        numbers = (request.path_params[name] for name in ("zoom", "column", "row"))
        values = tiles.read_tile(version, opened, *numbers)
        return Response(tiles.to_png(values, style), headers=headers, media_type="image/png")

    def tile_description(self, request: Request) -> Response:
        """Return the TileJSON document of an array."""
        version, node = self._array(request)
        parameters = request.query_params
        query = parse_query(parameters.multi_items(), _OF_TILES)
        opened = tiles.open_tiles(version, node, query)
        attributes = nodes.attributes_of(node)
        choices = dict(parameters)
        if not choices.get("range") and tiles.valid_range(attributes) is None:
            choices["range"] = _usual_range(version, opened)
        style = tiles.parse_style(choices, attributes)
        chosen = [(key, value) for key, value in parameters.multi_items() if key not in _OF_TILES]
        limits = f"{style.least!r},{style.greatest!r}"
        fixed = [("version", version.session.snapshot_id), ("colours", style.colours)]
        address = urlencode([*fixed, ("range", limits), *chosen], quote_via=quote)
        tiles_url = f"{self._address(request)}/tiles{quote(node.path)}"
        document = {
            "tilejson": "3.0.0",
            "name": node.path,
            "scheme": "xyz",
            "tiles": [f"{tiles_url}/{{z}}/{{x}}/{{y}}.png?{address}"],
            "minzoom": tiles.coarsest_zoom(version, opened),
            "maxzoom": tiles.finest_zoom(opened),
            "bounds": tiles.bounds(opened),
        }
        return JSONResponse(document, headers=self._kept(version, "tilejson"))

    def plan(self, request: Request) -> Response:
        """Return where the chunks of a selection are."""
        version, node = self._array(request)
        query = parse_query(request.query_params.multi_items(), _OF_PLANS)
        zarr_url = self._viewed.zarr_url(version.session.snapshot_id, self._address(request))
        plan = plans.make_plan(version, node, query, zarr_url)
        # Addresses expire, and are secrets while they do not.
        return JSONResponse(plan, headers=self._headers | {"cache-control": "no-store"})

    # Shared

    def _node(self, request: Request) -> tuple[Version, Node]:
        version = self._viewed.version(request.query_params.get("version") or None)
        return version, nodes.find_node(version, absolute_path(request.path_params["path"]))

    def _array(self, request: Request) -> tuple[Version, ArrayNode]:
        version, node = self._node(request)
        if not isinstance(node, ArrayNode):
            raise NotFoundError(f"{node.path} is a group", ErrorKind.NODE_NOT_FOUND)
        return version, node

    def _kept(self, version: Version, form: str) -> dict[str, str]:
        """Return the headers of an answer that clients may keep as long as the version lasts."""
        forever = f"private, max-age={_YEAR_SECONDS}, immutable"
        return self._headers | {
            "etag": f'"{version.session.snapshot_id}-{form}"',
            "cache-control": forever if version.is_fixed else "no-cache",
        }


def download_fields(version: Version, node: ArrayNode) -> list[Field]:
    """Return the fields of the form on the page of an array: one for each dimension."""
    fields = []
    for dimension in pictures.dimensions_of(version, node, with_itself=True):
        name, length = dimension.name, dimension.length
        if not fits_address(name):
            continue
        if dimension.values is None:
            fields.append(Field(f"i.{name}", name, f"0:{length}"))
            continue
        label = dimension.axis.label
        parameter = f"{COORDINATE}{name}" if name in (*_OF_DATA, "method") else name
        hint = f"{label(0)} / {label(length - 1)}" if length else ""
        fields.append(Field(parameter, name, hint))
    return fields


def _format(request: Request) -> Format:
    text = request.query_params.get("format")
    if text:
        if text not in list(Format):
            raise _wrong(f"format is one of {', '.join(Format)}, not {text[:100]!r}")
        return Format(text)
    weighted = []
    for part in request.headers.get("accept", "").split(",")[:32]:
        name, _, weight = part.strip().partition(";q=")
        form = _ACCEPTED.get(name.partition(";")[0].strip().lower())
        if form is not None:
            weighted.append((_weight(weight), form))
    return max(weighted, key=lambda choice: choice[0])[1] if weighted else Format.JSON


def _weight(text: str) -> float:
    try:
        return float(text) if text else 1.0
    except ValueError:
        return 0.0


def _decode(request: Request, form: Format) -> bool:
    text = request.query_params.get("decode")
    if text and text not in ("true", "false"):
        raise _wrong(f"decode is true or false, not {text[:100]!r}")
    if form is Format.NETCDF:
        if text:
            raise _wrong(
                "netCDF has the stored numbers with the attributes that decode them: leave out"
                " decode"
            )
        return False
    return text != "false"


def _usual_range(version: Version, opened: tiles.TileArray) -> str:
    """Return the range of a coarse picture of the same steps, without outliers."""
    index = [int(axis.steps[0]) for axis in opened.selection]
    for axis in (opened.latitude, opened.longitude):
        index[axis] = opened.node.array.shape[axis] // 2
    plan = pictures.make_plan(version, opened.node, index)
    limits = pictures.read_picture(version, opened.node, plan).header["range"]
    least, greatest = (limits["low"], limits["high"]) if limits else (0.0, 1.0)
    if least == greatest:
        least, greatest = least - 0.5, greatest + 0.5
    return f"{least:.10g},{greatest:.10g}"


def _file_name(path: str, suffix: str) -> str:
    """Return a name of a file that is safe in a header.

    >>> _file_name('/ocean/"sst"', "csv"), _file_name("/", "nc")
    ('ocean-_sst_.csv', 'data.nc')
    """
    name = re.sub(r"[^A-Za-z0-9._-]", "_", path.strip("/").replace("/", "-"))[:100]
    return f"{name.strip('.') or 'data'}.{suffix}"


def _wrong(problem: str) -> InvalidInputError:
    return InvalidInputError(problem, ErrorKind.INVALID_REQUEST)
