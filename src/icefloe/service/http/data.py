"""Routes for data: values, map tiles, plans of chunks, and versions as Zarr.

All of them are those of `icefloe.web`, for repositories that the caller may open. A request is
decided about as `open` is.
"""

from collections.abc import Callable
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Request, Response

from icefloe.service.http import examples
from icefloe.service.http.access import Permit, may_open
from icefloe.service.http.opened import ZARR, opened_of
from icefloe.service.http.problems import PROBLEMS, REFUSED_OPENING, problem, problem_of
from icefloe.web.data_site import DataSite
from icefloe.web.formats import MEDIA_TYPES, Format
from icefloe.web.tiles import COLOURS
from icefloe.web.zarr_files import RangeError

_ERRORS: Final = PROBLEMS | REFUSED_OPENING
_TILE: Final = "/repos/{org}/{name}/tiles/{path:path}/{zoom:int}/{column:int}/{row:int}.png"

router = APIRouter(tags=["data"], responses=_ERRORS, default_response_class=Response)
zarr_router = APIRouter(tags=["zarr"], responses=_ERRORS, default_response_class=Response)
_Reader = Annotated[Permit, Depends(may_open)]


# What the OpenAPI document says beside the routes


def _parameter(
    name: str, text: str, schema: dict[str, Any] | None = None, *, where: str = "query"
) -> dict[str, Any]:
    schema = schema or {"type": "string"}
    return {"name": name, "in": where, "required": False, "description": text, "schema": schema}


def _parameters(*parameters: dict[str, Any]) -> dict[str, Any]:
    return {"parameters": [*parameters]}


def _content(**answers: tuple[str, dict[str, Any]]) -> dict[int | str, dict[str, Any]]:
    """Return the description of an answer; each form has an example, a media type and a schema."""
    content = {
        media_type: {"schema": schema, "example": examples.DATA[name]}
        for name, (media_type, schema) in answers.items()
    }
    return {200: {"description": "Successful Response", "content": content}}


def _object(*names: str) -> dict[str, Any]:
    return {"type": "object", "required": [*names]}


_BINARY: Final = {"type": "string", "format": "binary"}
_VERSION: Final = _parameter("version", "A branch, a tag, a snapshot id or a moment; `main`")
_SELECTION: Final = {
    **_parameter(
        "selection",
        "A parameter for each dimension that is to be cut: its name with a position or a range,"
        " `sel.NAME` the same, `i.NAME` with numbers of steps, `stride.NAME` with a stride",
        {"type": "object", "additionalProperties": {"type": "string"}},
    ),
    "style": "form",
    "explode": True,
}
_METHOD: Final = _parameter(
    "method", "How positions are found", {"type": "string", "enum": ["nearest", "exact"]}
)
_OF_TILES: Final = (
    _VERSION,
    _parameter("colours", "The table of colours", {"type": "string", "enum": [*COLOURS]}),
    _parameter("range", "The values of the first and the last colour, like `250,310`"),
    _SELECTION,
)
_VALUES: Final = _content(
    json=(
        MEDIA_TYPES[Format.JSON].name,
        _object("path", "version", "snapshot", "dims", "coords", "variables"),
    ),
    csv=("text/csv", {"type": "string"}),
    arrow=(MEDIA_TYPES[Format.ARROW].name, _BINARY),
    netcdf=(MEDIA_TYPES[Format.NETCDF].name, _BINARY),
)
_TILE_DOCUMENT: Final = _content(tilejson=("application/json", _object("tilejson", "tiles")))
_PLAN: Final = _content(
    plan=("application/json", _object("path", "snapshot", "selection", "expires_at", "chunks"))
)
_FILE: Final = _content(
    document=("application/json", _object("zarr_format")),
    chunk=("application/octet-stream", _BINARY),
)
_PART: Final[dict[int | str, dict[str, Any]]] = {
    206: {**_FILE[200], "description": "The range that was asked for"},
    416: problem_of("No byte of the range is there"),
}


# Data


@router.get(
    "/repos/{org}/{name}/data/{path:path}",
    responses=_VALUES,
    openapi_extra=_parameters(
        _VERSION,
        _parameter("variables", "Arrays of a group, with commas between them"),
        _parameter(
            "format", "Otherwise `Accept` decides", {"type": "string", "enum": [*map(str, Format)]}
        ),
        _parameter("decode", "Whether values are decoded by the CF rules", {"type": "boolean"}),
        _METHOD,
        _SELECTION,
    ),
)
async def read_values(
    request: Request, permit: _Reader, org: str, name: str, path: str
) -> Response:
    """Return values of an array or a group: of a position, an area or a cube."""
    del org, name, path
    return await _read(request, permit, DataSite.values)


@router.get(
    "/repos/{org}/{name}/tiles/{path:path}/tilejson.json",
    responses=_TILE_DOCUMENT,
    openapi_extra=_parameters(*_OF_TILES),
)
async def describe_tiles(
    request: Request, permit: _Reader, org: str, name: str, path: str
) -> Response:
    """Return the TileJSON document of an array: the address of its tiles, zooms and bounds."""
    del org, name, path
    return await _read(request, permit, DataSite.tile_description)


@router.get(
    _TILE, responses=_content(tile=("image/png", _BINARY)), openapi_extra=_parameters(*_OF_TILES)
)
async def draw_tile(
    request: Request,
    permit: _Reader,
    org: str,
    name: str,
    path: str,
    zoom: int,
    column: int,
    row: int,
) -> Response:
    """Return a tile of a map in Web Mercator as PNG."""
    del org, name, path, zoom, column, row
    return await _read(request, permit, DataSite.tile)


@router.get(
    "/repos/{org}/{name}/plan/{path:path}",
    responses=_PLAN,
    openapi_extra=_parameters(_VERSION, _METHOD, _SELECTION),
)
async def plan_reading(
    request: Request, permit: _Reader, org: str, name: str, path: str
) -> Response:
    """Return where the chunks of a selection are, to read them from the bucket itself."""
    del org, name, path
    return await _read(request, permit, DataSite.plan)


async def _read(
    request: Request, permit: Permit, read: Callable[[DataSite, Request], Response]
) -> Response:
    return await opened_of(request).read_data(request, permit, read)


# Zarr


@zarr_router.get(
    f"{ZARR}/{{org}}/{{name}}@{{version}}/{{key:path}}",
    responses=_FILE | _PART,
    openapi_extra=_parameters(
        _parameter("range", "A range of bytes, like `bytes=0-99`", where="header")
    ),
)
@zarr_router.head(
    f"{ZARR}/{{org}}/{{name}}@{{version}}/{{key:path}}",
    include_in_schema=False,  # as every GET may be asked for its head
)
async def read_zarr(
    request: Request, permit: _Reader, org: str, name: str, version: str, key: str
) -> Response:
    """Return a key of a version as Zarr stores it, for every client of Zarr; or a range of it."""
    del org, name
    try:
        return await opened_of(request).read_zarr(request, permit, version, key)
    except RangeError as error:
        return problem(request, 416, error.kind, str(error), error.headers)
