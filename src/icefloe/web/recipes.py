"""Lines of code that open a node elsewhere, to copy: in xarray, Icefloe, icechunk and Spark.

All of them name the version of the page, and authorise the containers of virtual chunks that the
reader authorised, or may authorise without harm.
"""

from math import prod
from typing import Final

from icefloe.catalog.handles import is_service_url, parse_service_url
from icefloe.format.nodes import ArrayNode
from icefloe.format.paths import node_name, parent_path
from icefloe.records import Record
from icefloe.storage.specs import MemorySpec, source_code
from icefloe.web.dependencies import Way, ways_in
from icefloe.web.nodes import facts_of
from icefloe.web.pictures import dimensions_of
from icefloe.web.texts import fits_address
from icefloe.web.versions import MAIN, Version, Viewed, literal
from icefloe.zarr_store.openings import RECTILINEAR

_MOST_ROWS: Final = 1_000_000
"""How many rows of a table a task on Spark makes at once, if a step has no more."""
_CALENDARS_OF_SPARK: Final = ("standard", "gregorian", "proleptic_gregorian")
_LONGEST_LINE: Final = 88
_INDENT: Final = "    "


class Recipe(Record):
    """Lines of code that open a version elsewhere."""

    title: str
    code: str


class _Places(Record):
    """The prefixes that the lines authorise."""

    ways: tuple[Way, ...]

    def of_repository(self, module: str) -> str | None:
        """Return the argument that authorises them when a repository is opened."""
        if not self.ways:
            return None
        return f"authorize_virtual_chunk_access={module}.containers_credentials({self._by(module)})"

    @property
    def of_dataset(self) -> str | None:
        """Return the argument that authorises them when xarray opens a dataset."""
        if not self.ways:
            return None
        if self.needs_credentials:
            return f"authorize={self._by('icefloe')}"
        return f"authorize=[{', '.join(literal(way.prefix) for way in self.ways)}]"

    @property
    def needs_credentials(self) -> bool:
        """Whether a list of prefixes is not enough: it is read with those of the environment."""
        return any(way.is_anonymous and not way.is_open for way in self.ways)

    def _by(self, module: str) -> str:
        entries = ", ".join(f"{literal(way.prefix)}: {way.code(module)}" for way in self.ways)
        return f"{{{entries}}}"


def recipes_of(
    viewed: Viewed, version: Version, path: str, origin: str, table: ArrayNode | None
) -> list[Recipe]:
    """Return lines that open a group or an array; `origin` is the address of the pages.

    `table` is the array that the lines for Spark read.
    """
    is_array = table is not None and table.path == path
    group = ((parent_path(path) or "/") if is_array else path).lstrip("/")
    places = _Places(() if is_service_url(viewed.url) else ways_in(version))
    dataset = _dataset(viewed, version, group, places)
    kind = "array" if is_array else "group"
    chosen = f"[{literal(node_name(path))}]" if is_array else ""
    recipes = [
        Recipe("xarray", f"{_imports(places)}import xarray as xr\n\nds = {dataset}{chosen}"),
        Recipe(
            "Icefloe", _with_zarr(_opening(viewed, places), "icefloe", version, kind, path, table)
        ),
    ]
    foreign = _foreign_opening(viewed, places)
    if foreign is not None:
        recipes.append(
            Recipe("icechunk", _with_zarr(foreign, "icechunk", version, kind, path, table))
        )
    if table is not None and table.array.shape and _fits_lines(table):
        recipes.append(Recipe("Spark", _on_spark(viewed, version, table, places)))
    return [*recipes, Recipe(*viewed.zarr_code(version, origin))]


def _fits_lines(table: ArrayNode) -> bool:
    return fits_address(table.path, facts_of(table).dimensions[0])


def _imports(places: _Places) -> str:
    return "import icefloe\n" if places.needs_credentials else ""


def _call(function: str, arguments: list[str | None]) -> str:
    """Write a call, in lines if it is long.

    >>> _call("open", ["1", None, "b=2"])
    'open(1, b=2)'
    """
    present = [argument for argument in arguments if argument is not None]
    short = f"{function}({', '.join(present)})"
    if len(short) <= _LONGEST_LINE:
        return short
    lines = "".join(f"{_INDENT}{argument},\n" for argument in present)
    return f"{function}(\n{lines})"


def _dataset(
    viewed: Viewed, version: Version, group: str, places: _Places, more: str | None = None
) -> str:
    return _call(
        "xr.open_dataset",
        [
            literal(viewed.url),
            'engine="icefloe"',
            f"group={literal(group)}" if group else None,
            None if version.name == MAIN else version.argument,
            places.of_dataset,
            more,
        ],
    )


def _opening(viewed: Viewed, places: _Places) -> str:
    """Return the lines that open the repository with Icefloe."""
    if is_service_url(viewed.url):
        service, name = parse_service_url(viewed.url)
        client = f"client = icefloe.Client({literal(service)}).login()"
        return f"{client}\nrepository = client.get_repo({literal(name)})"
    storage = f"icefloe.storage_from_url({literal(viewed.url)})"
    opening = _call("icefloe.Repository.open", [storage, places.of_repository("icefloe")])
    return f"repository = {opening}"


def _foreign_opening(viewed: Viewed, places: _Places) -> str | None:
    """Return the lines that open the repository with the package icechunk.

    None for repositories that it cannot open: those of a service, and those in memory.
    """
    spec = viewed.repository.storage.spec
    if is_service_url(viewed.url) or isinstance(spec, MemorySpec):
        return None
    storage = source_code(spec).removeprefix("icefloe.storage.")
    opening = _call(
        "icechunk.Repository.open", [f"icechunk.{storage}", places.of_repository("icechunk")]
    )
    return f"repository = {opening}"


def _with_zarr(
    opening: str, module: str, version: Version, kind: str, path: str, table: ArrayNode | None
) -> str:
    is_uneven = table is not None and facts_of(table).chunk_shape is None
    setting = f"zarr.config.set({{{literal(RECTILINEAR)}: True}})\n" if is_uneven else ""
    session = f"store = repository.readonly_session({version.argument}).store"
    path_argument = None if path == "/" else f"path={literal(path.lstrip('/'))}"
    reading = _call(f"zarr.open_{kind}", ["store", path_argument, 'mode="r"'])
    return f"import {module}\nimport zarr\n\n{setting}{opening}\n{session}\n{kind} = {reading}"


def _on_spark(viewed: Viewed, version: Version, table: ArrayNode, places: _Places) -> str:
    """Return lines that make a table on Spark, with a row for each value of an array."""
    facts, name = facts_of(table), literal(node_name(table.path))
    steps = max(1, min(facts.largest_chunk[0], _MOST_ROWS // max(1, prod(facts.shape[1:]))))
    calendars = {axis.axis.calendar for axis in dimensions_of(version, table, with_itself=True)}
    # Spark has no dates of other calendars.
    is_odd = bool(calendars - {None, *_CALENDARS_OF_SPARK})
    group = (parent_path(table.path) or "/").lstrip("/")
    dataset = _dataset(viewed, version, group, places, "decode_times=False" if is_odd else None)
    opening = dataset.replace("\n", f"\n{_INDENT}")
    part = f"{literal(facts.dimensions[0])}: slice(first, first + {steps})"
    return f"""{_imports(places)}import xarray as xr
from icefloe.spark import local_session

def read(parts):
    ds = {opening}[[{name}]]
    for part in parts:
        for first in part["id"]:
            yield ds.isel({{{part}}}).to_dataframe().reset_index()

spark = local_session()
starts = spark.range(0, {facts.shape[0]}, {steps})
sample = next(read([starts.limit(1).toPandas()]))
table = starts.mapInPandas(read, spark.createDataFrame(sample.head(1)).schema)"""
