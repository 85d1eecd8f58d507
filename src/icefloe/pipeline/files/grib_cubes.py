"""Fields of a GRIB file as datasets, with the names and coordinates that cfgrib gives them.

ecCodes reads the headers. Fields of one variable form a hypercube over ensemble member, time, step
and level. Variables whose coordinates agree share a dataset; otherwise each dataset is a group.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icefloe.codecs import GRIB_FIELD, load_eccodes
from icefloe.errors import ErrorKind, SourceError
from icefloe.format.columns import BytesColumn
from icefloe.pipeline.files.describing import FileContent, RawArray, computed_array
from icefloe.pipeline.files.facts import canonical_json
from icefloe.pipeline.files.grib import Field, read_messages
from icefloe.pipeline.files.options import ParseOptions
from icefloe.pipeline.files.references import References
from icefloe.pipeline.files.sources import SourceAccess
from icefloe.records import Record, replace

_DATASET_KEYS: Final = ("edition", "centre", "centreDescription", "subCentre")
_VARIABLE_KEYS: Final = (
    "paramId", "dataType", "numberOfPoints", "typeOfLevel", "stepType", "gridType",
    "uvRelativeToGrid",
)  # fmt: skip
_MORE_KEYS: Final = (
    "shortName", "units", "name", "cfName", "cfVarName", "totalNumber", "numberOfDirections",
    "numberOfFrequencies", "NV", "gridDefinitionDescription",
)  # fmt: skip
_STATIC_KEYS: Final = (
    *_DATASET_KEYS, *_VARIABLE_KEYS, *_MORE_KEYS, "md5GridSection", "number", "directionNumber",
    "frequencyNumber", "discipline", "parameterCategory", "parameterNumber", "table2Version",
    "indicatorOfParameter", "typeOfFirstFixedSurface", "indicatorOfTypeOfLevel",
)  # fmt: skip

_SCAN: Final = ("iScansNegatively", "jPointsAreConsecutive", "jScansPositively")
_FIRST: Final = ("latitudeOfFirstGridPointInDegrees", "longitudeOfFirstGridPointInDegrees")
_LAST: Final = ("latitudeOfLastGridPointInDegrees", "longitudeOfLastGridPointInDegrees")
_STEPS: Final = ("iDirectionIncrementInDegrees", "jDirectionIncrementInDegrees")
_POLE: Final = ("latitudeOfSouthernPoleInDegrees", "longitudeOfSouthernPoleInDegrees")
_GRID_KEYS: Final[dict[str, tuple[str, ...]]] = {
    "regular_ll": ("Nx", "Ny", *_STEPS, *_SCAN, *_FIRST, *_LAST),
    "rotated_ll": (
        "Nx", "Ny", "angleOfRotationInDegrees", *_STEPS, *_SCAN, *_FIRST, *_LAST, *_POLE,
    ),
    "reduced_ll": (
        "Ny", "jDirectionIncrementInDegrees", "jPointsAreConsecutive", "jScansPositively",
        *_FIRST, *_LAST,
    ),
    "regular_gg": ("N", "Ni", "Nj", _STEPS[0], *_SCAN, *_FIRST, *_LAST),
    "rotated_gg": (
        "Nx", "Ny", "N", "angleOfRotationInDegrees", _STEPS[0], *_SCAN, *_FIRST, *_LAST, *_POLE,
    ),
    "lambert": (
        "LaDInDegrees", "LoVInDegrees", *_SCAN, *_FIRST, *_POLE, "DyInMetres", "DxInMetres",
        "Latin2InDegrees", "Latin1InDegrees", "Ny", "Nx",
    ),
    "reduced_gg": ("N", "pl"),
    "sh": ("M", "K", "J"),
}  # fmt: skip
"""Keys that describe a grid, by its type."""

_RECTANGULAR: Final = frozenset({"regular_ll", "regular_gg"})
_CURVED: Final = frozenset(
    {
        "rotated_ll", "rotated_gg", "lambert", "lambert_azimuthal_equal_area", "albers",
        "polar_stereographic",
    }
)  # fmt: skip
"""Grids of rows and columns whose points need a latitude and a longitude each."""

_EPOCH: Final = {
    "units": "seconds since 1970-01-01T00:00:00",
    "calendar": "proleptic_gregorian",
}
_PRESSURE: Final = {"positive": "down", "standard_name": "air_pressure", "long_name": "pressure"}
_DEPTH: Final = {
    "units": "m",
    "positive": "down",
    "long_name": "soil depth",
    "standard_name": "depth",
}
_DECREASING: Final = {"stored_direction": "decreasing"}
_COORDINATES: Final[dict[str, dict[str, str]]] = {
    "latitude": {
        "units": "degrees_north", "standard_name": "latitude", "long_name": "latitude",
    },
    "longitude": {
        "units": "degrees_east", "standard_name": "longitude", "long_name": "longitude",
    },
    "number": {
        "units": "1", "standard_name": "realization",
        "long_name": "ensemble member numerical id",
    },
    "time": {
        **_EPOCH, "standard_name": "forecast_reference_time",
        "long_name": "initial time of forecast",
    },
    "step": {
        "units": "hours", "standard_name": "forecast_period", "dtype": "timedelta64[ns]",
        "long_name": "time since forecast_reference_time",
    },
    "valid_time": {**_EPOCH, "standard_name": "time", "long_name": "time"},
    "depthBelowLand": _DEPTH,
    "depthBelowLandLayer": _DEPTH,
    "hybrid": {
        "units": "1", "positive": "down", "long_name": "hybrid level",
        "standard_name": "atmosphere_hybrid_sigma_pressure_coordinate",
    },
    "heightAboveGround": {
        "units": "m", "positive": "up", "long_name": "height above the surface",
        "standard_name": "height",
    },
    "isobaricInhPa": {"units": "hPa", **_PRESSURE, **_DECREASING},
    "isobaricInPa": {"units": "Pa", **_PRESSURE, **_DECREASING},
    "isobaricLayer": {"units": "Pa", **_PRESSURE},
}  # fmt: skip
"""Attributes of coordinates, as cfgrib writes them."""

_SECONDS: Final = {0: 60, 1: 3600, 2: 86400, 10: 10800, 11: 21600, 12: 43200, 13: 1, 14: 900,
                   15: 1800}  # fmt: skip
"""By the code of a unit of time."""

_MOST_KNOWN: Final = 1 << 14
_MOST_GRIDS: Final = 16
_UNKNOWN: Final = frozenset({None, "undef", "unknown", "~", ""})

type Keys = Mapping[str, Any]


def read_grib(url: str, size: int, options: ParseOptions, access: SourceAccess) -> FileContent:
    """Read which datasets there are in a file, and where their fields lie."""
    messages = read_messages(url, size, access)
    headers = _Headers(url, options)
    described = [headers.read(field) for field in messages.fields]
    variables = _variables(url, [field for field in described if field], options, access)
    if not variables:
        return FileContent({}, {"": {}}, messages.notes)
    cubes = _cubes(variables)
    notes = messages.notes
    if options.group:
        group = options.group.strip("/")
        chosen = [cube for cube in cubes if cube.group == group]
        if not chosen:
            raise SourceError(
                f"{url} has no group {group!r}: its fields form"
                + (
                    f" the groups {', '.join(repr(cube.group) for cube in cubes)}"
                    if len(cubes) > 1
                    else " one dataset, without groups"
                ),
                ErrorKind.SOURCE_UNSUPPORTED,
                url=url,
            )
        cubes = [replace(chosen[0], group="")]
    if len(cubes) > 1:
        notes = (*notes, _groups_note(cubes))
    content = _Content(url, options)
    for cube in cubes:
        content.add(cube)
    holes = {note for cube in cubes for note in cube.holes()}
    notes = (*notes, *sorted(holes))
    return FileContent(content.arrays, content.attributes, notes, digests=content.digests)


def _groups_note(cubes: "Sequence[_Cube]") -> str:
    listed = "; ".join(
        f"{cube.group} ({', '.join(variable.name for variable in cube.variables)})"
        for cube in cubes
    )
    return (
        f"the fields of the GRIB files do not fit into one dataset, so there is a group for each"
        f' kind: {listed}. Open one with xr.open_dataset(..., engine="icefloe",'
        f" group={cubes[0].group!r})"
    )


class _Described(Record):
    """A field with what its headers say."""

    field: Field
    keys: Keys
    """What does not depend on the time; one object for all fields that share it."""
    coordinates: Mapping[str, Any]
    start: float
    """The step in hours at which an interval begins."""


class _Headers:
    """Reads headers with ecCodes. Tables of names are slow, so their results are kept."""

    _known: Final[dict[bytes, Keys]] = {}

    def __init__(self, url: str, options: ParseOptions) -> None:
        self._url, self._options = url, options
        self._library = load_eccodes()

    def read(self, field: Field) -> _Described | None:
        """Describe a field; None for one that is left out."""
        handle = self._library.codes_new_from_message(field.header)
        try:
            keys = self._static(field.header, handle)
            if keys["variable"] in self._options.drop:
                return None
            return self._described(field, keys, handle)
        except self._library.CodesInternalError as error:
            raise SourceError(
                f"{self._url}: ecCodes cannot read the message at byte {field.offset}: {error}",
                ErrorKind.SOURCE_DAMAGED,
                url=self._url,
            ) from error
        finally:
            self._library.codes_release(handle)

    def _static(self, header: bytes, handle: Any) -> Keys:
        signature = _without_times(header)
        keys = self._known.get(signature)
        if keys is None:
            while len(self._known) >= _MOST_KNOWN:
                del self._known[next(iter(self._known))]
            keys = self._known[signature] = self._all_keys(handle)
        return keys

    def _all_keys(self, handle: Any) -> Keys:
        keys = {name: self._get(handle, name) for name in _STATIC_KEYS}
        for name in _GRID_KEYS.get(keys["gridType"], ()):
            keys[name] = self._get(handle, name)
        keys["level"] = self._library.codes_get_double(handle, "level")
        for name in ("Nx", "Ny", "alternativeRowScanning", "jPointsAreConsecutive"):
            keys.setdefault(name, self._get(handle, name))
        name = keys["cfVarName"] if keys["cfVarName"] not in _UNKNOWN else keys["shortName"]
        keys["variable"] = _unknown_name(keys) if name in _UNKNOWN else name
        keys["surface"] = keys["typeOfLevel"]
        if keys["surface"] in _UNKNOWN:
            code = keys["typeOfFirstFixedSurface" if keys["edition"] == 2 else _LEVEL_1]
            keys["surface"] = f"level_{code}"
        return keys

    def _get(self, handle: Any, key: str) -> Any:
        library = self._library
        try:
            if key == "pl":
                return library.codes_get_array(handle, key).tolist()
            if library.codes_is_missing(handle, key):
                return None
            return library.codes_get(handle, key)
        except (library.KeyValueNotFoundError, library.WrongGridError):
            return None

    def _described(self, field: Field, keys: Keys, handle: Any) -> _Described:
        get = self._library.codes_get_long
        time = _moment(get(handle, "dataDate"), get(handle, "dataTime"))
        if keys["edition"] == 2:
            time += get(handle, "second")
        unit = _SECONDS.get(get(handle, "stepUnits"))
        if unit is None:
            raise self._refused(field, keys, "its step is in months or years")
        step = get(handle, "endStep") * unit
        start = get(handle, "startStep") * unit
        valid = _moment(get(handle, "validityDate"), get(handle, "validityTime"))
        if valid != (time + step) // 60 * 60:
            raise self._refused(
                field, keys, "its time and step do not give the time for which it is valid"
            )
        coordinates: dict[str, Any] = {}
        if keys["number"] is not None:
            coordinates["number"] = keys["number"]
        if "valid_time" in self._options.concat:
            coordinates["valid_time"] = time + step
        else:
            coordinates |= {"time": time, "step": step / 3600}
        coordinates[keys["surface"]] = keys["level"]
        for name in ("directionNumber", "frequencyNumber"):
            if keys[name] is not None:
                coordinates[name] = keys[name]
        return _Described(field, keys, coordinates, start / 3600)

    def _refused(self, field: Field, keys: Keys, why: str) -> SourceError:
        name = keys["variable"]
        return SourceError(
            f"{name!r} in {self._url} has a message (at byte {field.offset}) that cannot be placed:"
            f" {why}. Leave the variable out (drop=({name!r},))",
            ErrorKind.SOURCE_UNSUPPORTED,
            url=self._url,
        )


_LEVEL_1: Final = "indicatorOfTypeOfLevel"


def _unknown_name(keys: Keys) -> str:
    """Name a parameter that the tables of ecCodes do not have, by its numbers."""
    numbers = (
        ("discipline", "parameterCategory", "parameterNumber")
        if keys["edition"] == 2
        else ("table2Version", "indicatorOfParameter")
    )
    return "_".join(["unknown", *(str(keys[name]) for name in numbers)])


def _moment(date: int, time: int) -> int:
    """Return seconds since 1970 of a date YYYYMMDD and a time HHMM."""
    day = np.datetime64(f"{date // 10000:04}-{date // 100 % 100:02}-{date % 100:02}", "s")
    return int(day.astype(np.int64)) + time // 100 * 3600 + time % 100 * 60


_TIMES_2: Final[dict[int, tuple[slice, ...]]] = {
    0: (), 1: (), 2: (), 8: (slice(34, 41),), 9: (slice(47, 54),), 10: (slice(35, 42),),
    11: (slice(37, 44),), 12: (slice(36, 43),),
}  # fmt: skip
"""By number of the template of a product, where it has times besides the forecast time."""


def _without_times(header: bytes) -> bytes:
    """Return headers without times, so that fields of other times have the same."""
    blank = bytearray(header)
    if header[7] == 1:
        for octets in (slice(20, 25), slice(32, 33)):
            blank[octets] = bytes(octets.stop - octets.start)
        grid = 8 + int.from_bytes(header[8:11])
        return bytes(blank[: grid + int.from_bytes(header[grid : grid + 3])])
    position = 16
    while header[position : position + 4] != b"7777":
        length, section = int.from_bytes(header[position : position + 4]), header[position + 4]
        if section == 1:
            blank[position + 12 : position + 19] = bytes(7)
        elif section == 4:
            template = int.from_bytes(header[position + 7 : position + 9])
            if template in _TIMES_2:
                blank[position + 18 : position + 22] = bytes(4)
                for octets in _TIMES_2[template]:
                    blank[position + octets.start : position + octets.stop] = bytes(7)
        elif section == 5:  # how values are packed says nothing about them
            blank[position : position + length] = bytes(length)
        position += length
    return bytes(blank)


class _Variable(Record):
    """The fields of one variable."""

    name: str
    fields: tuple[_Described, ...]
    grid: "_Grid"
    interval: str = ""
    """What tells it from another variable of the same name, whose intervals are others."""
    concat: tuple[str, ...] = ()

    @property
    def keys(self) -> Keys:
        """Return the keys that all fields share."""
        return self.fields[0].keys

    def axis(self, name: str) -> NDArray[Any]:
        """Return the sorted values of a coordinate."""
        values = np.unique([field.coordinates[name] for field in self.fields])
        is_reversed = "stored_direction" in _COORDINATES.get(name, {})
        return values[::-1] if is_reversed else values

    def axes(self) -> dict[str, NDArray[Any]]:
        """Return all coordinates of fields; those with one value have no dimension."""
        axes = {name: self.axis(name) for name in self.fields[0].coordinates}
        return {
            name: values if len(values) > 1 or name in self.concat else values[0]
            for name, values in axes.items()
        }

    def cells(self, names: Iterable[str]) -> NDArray[np.int64]:
        """Return the place of each field along some coordinates."""
        columns = []
        for name in names:
            values = [field.coordinates[name] for field in self.fields]
            sorted_values, inverse = np.unique(values, return_inverse=True)
            is_reversed = "stored_direction" in _COORDINATES.get(name, {})
            columns.append(len(sorted_values) - 1 - inverse if is_reversed else inverse)
        shape = (len(columns), len(self.fields))
        return np.array(columns, np.int64).reshape(shape).T


class _Grid(Record, eq=False):
    """The points of a field."""

    dimensions: tuple[str, ...]
    shape: tuple[int, ...]
    axes: Mapping[str, NDArray[Any]]
    """Latitudes and longitudes of one dimension each."""
    digest: str
    """Of latitudes and longitudes of all points, where they are no axes."""
    has_points: bool = False
    """Whether ecCodes computes a latitude and a longitude for each point."""


class _Grids:
    """Grids by the section that describes them."""

    _known: Final[dict[str, _Grid]] = {}

    def of(self, field: _Described) -> _Grid:
        """Return the grid of a field."""
        keys = field.keys
        name = canonical_json([keys[key] for key in ("edition", "gridType", "md5GridSection")])
        name += canonical_json([keys["numberOfPoints"], keys["Nx"], keys["Ny"]])
        if name not in self._known:
            while len(self._known) >= _MOST_GRIDS:
                del self._known[next(iter(self._known))]
            self._known[name] = self._read(field)
        return self._known[name]

    def _read(self, field: _Described) -> _Grid:
        library, keys = load_eccodes(), field.keys
        points: dict[str, NDArray[Any]] = {}
        handle = library.codes_new_from_message(field.field.header)
        try:
            for name in ("latitudes", "longitudes", "distinctLatitudes", "distinctLongitudes"):
                with suppress(library.CodesInternalError):
                    points[name] = np.atleast_1d(library.codes_get_array(handle, name))
        finally:
            library.codes_release(handle)
        count, kind = int(keys["numberOfPoints"]), keys["gridType"]
        has_points = {"latitudes", "longitudes"} <= points.keys()
        if has_points and not all(len(points[f"{name}s"]) == count for name in _POINTS):
            raise NotImplementedError(f"ecCodes finds another number of points than {count}")
        digest = hashlib.blake2b(digest_size=12)
        for name in ("latitudes", "longitudes") if has_points else ():
            digest.update(np.round(points[name] * 1e6).astype(np.int64).tobytes())
        if not has_points:
            digest.update(str(keys["md5GridSection"]).encode())
        if kind in _RECTANGULAR | _CURVED:
            _require_rows(keys, count)
            shape = (int(keys["Ny"]), int(keys["Nx"]))
            if kind in _CURVED:
                return _Grid(("y", "x"), shape, {}, digest.hexdigest(), has_points)
            return _Grid(_POINTS, shape, _axes(points, shape), "")
        return _Grid(("values",), (count,), {}, digest.hexdigest(), has_points)


_POINTS: Final = ("latitude", "longitude")


def _require_rows(keys: Keys, count: int) -> None:
    """Refuse orders of points that are not rows, one after the other."""
    if keys["jPointsAreConsecutive"] or keys["alternativeRowScanning"]:
        raise NotImplementedError("the points of its grid go along columns, or change direction")
    if None in {keys["Nx"], keys["Ny"]} or keys["Nx"] * keys["Ny"] != count:
        raise NotImplementedError("the rows of its grid differ in length")


def _axes(points: Mapping[str, NDArray[Any]], shape: tuple[int, int]) -> dict[str, NDArray[Any]]:
    """Return latitudes by row and longitudes by column, which all points must have."""
    latitudes = points["latitudes"].reshape(shape)
    longitudes = points["longitudes"].reshape(shape)
    axes = {"latitude": latitudes[:, 0].copy(), "longitude": longitudes[0].copy()}
    for name, key in (("latitude", "distinctLatitudes"), ("longitude", "distinctLongitudes")):
        distinct = points.get(key)
        if distinct is not None and distinct.shape == axes[name].shape:
            turns = np.round((axes[name] - distinct) / 360) if name == "longitude" else 0
            if np.allclose(axes[name] - 360 * turns, distinct, rtol=0, atol=_SAME):
                axes[name] = distinct
    turned = longitudes - axes["longitude"]
    is_regular = np.allclose(latitudes, axes["latitude"][:, None], rtol=0, atol=_SAME)
    if not is_regular or not np.allclose(turned, 360 * np.round(turned / 360), rtol=0, atol=_SAME):
        raise NotImplementedError(
            "rows and columns of its grid have no latitudes and longitudes of their own"
        )
    return axes


_SAME: Final = 1e-6


def _variables(
    url: str, fields: Sequence[_Described], options: ParseOptions, access: SourceAccess
) -> list[_Variable]:
    """Gather fields by variable, in the order of the file."""
    grids = _Grids()
    gathered: dict[str, list[_Described]] = {}
    for field in fields:
        keys = field.keys
        named = [keys[key] for key in (*_DATASET_KEYS, *_VARIABLE_KEYS, "md5GridSection")]
        text = canonical_json([keys["variable"], keys["surface"], *named, list(field.coordinates)])
        gathered.setdefault(text, []).append(field)
    variables, doubtful = [], dict[str, str]()
    for members in gathered.values():
        name = members[0].keys["variable"]
        for interval, part in _by_interval(members).items():
            distinct, twice = _without_copies(url, part, access)
            if twice is not None:
                doubtful[name] = _place(twice)
            try:
                grid = grids.of(distinct[0])
            except NotImplementedError as error:
                raise SourceError(
                    f"{name!r} in {url} cannot be read: {error}. Leave it out (drop=({name!r},))",
                    ErrorKind.SOURCE_UNSUPPORTED,
                    url=url,
                ) from error
            variables.append(_Variable(name, tuple(distinct), grid, interval, options.concat))
    if doubtful:
        listed = ", ".join(f"{name!r} ({where})" for name, where in doubtful.items())
        names = ", ".join(map(repr, doubtful))
        raise SourceError(
            f"{url} has several fields with the same coordinates, which differ in something that"
            f" cfgrib gives no coordinate for: {listed}. Leave them out (drop=({names},))",
            ErrorKind.SOURCE_UNSUPPORTED,
            url=url,
        )
    return variables


def _place(field: _Described) -> str:
    return ", ".join(f"{name} {value}" for name, value in field.coordinates.items())


def _by_interval(members: Sequence[_Described]) -> dict[str, list[_Described]]:
    """Separate sums since the start from those over an hour or a day, where there are both."""
    places = {canonical_json(field.coordinates) for field in members}
    if len(places) == len(members) or "step" not in members[0].coordinates:
        return {"": list(members)}
    parts: dict[str, list[_Described]] = {}
    for field in members:
        hours = field.coordinates["step"] - field.start
        parts.setdefault(f"{hours:g}h" if field.start else "", []).append(field)
    return parts


def _without_copies(
    url: str, members: Sequence[_Described], access: SourceAccess
) -> tuple[list[_Described], _Described | None]:
    """Leave out exact copies of messages; return also one whose place another one has."""
    distinct: dict[str, _Described] = {}
    for field in members:
        position = canonical_json(field.coordinates)
        other = distinct.setdefault(position, field)
        if other is not field and not _is_copy(url, other.field, field.field, access):
            return list(distinct.values()), field
    return list(distinct.values()), None


def _is_copy(url: str, first: Field, second: Field, access: SourceAccess) -> bool:
    described = [(field.header, field.length, field.number) for field in (first, second)]
    if described[0] != described[1]:
        return False
    ranges = [(field.offset, field.offset + field.length) for field in (first, second)]
    messages = access.place(url).read(ranges)
    return bytes(messages[0]) == bytes(messages[1])


class _Cube(Record):
    """Variables that share coordinates."""

    variables: tuple[_Variable, ...]
    axes: Mapping[str, NDArray[Any]]
    group: str = ""

    def accepts(self, variable: _Variable, axes: Mapping[str, NDArray[Any]]) -> bool:
        """Return whether a variable agrees with those that are here."""
        first = self.variables[0]
        return (
            variable.grid is first.grid
            and all(variable.keys[key] == first.keys[key] for key in _DATASET_KEYS)
            and all(variable.name != other.name for other in self.variables)
            and all(np.array_equal(axes[name], self.axes[name]) for name in axes.keys() & self.axes)
        )

    def told(self) -> dict[str, str]:
        """Return what may tell the cube from others."""
        keys = {variable.name: variable.keys for variable in self.variables}.values()
        first = self.variables[0]
        level = self.axes[first.keys["surface"]]
        told = {
            "level": f"{level:g}" if not np.ndim(level) else "",
            "dataType": first.keys["dataType"],
            "stepType": first.keys["stepType"],
            "interval": first.interval,
            "gridType": first.keys["gridType"],
            "edition": f"grib{first.keys['edition']}",
        }
        for name in ("dataType", "stepType", "gridType"):
            if len({key[name] for key in keys}) > 1:
                told[name] = ""
        return {name: str(value) for name, value in told.items()}

    def holes(self) -> Iterable[str]:
        """Describe fields that the file does not have."""
        for variable in self.variables:
            count = int(np.prod([np.size(values) for values in variable.axes().values()]))
            if missing := count - len(variable.fields):
                where = f" in the group {self.group!r}" if self.group else ""
                yield (
                    f"{missing} of {count} fields of {variable.name!r}{where} are not in the GRIB"
                    " file, and read as NaN"
                )


def _cubes(variables: Sequence[_Variable]) -> list[_Cube]:
    """Put variables together: all of them, if they agree, or those of one kind of level."""
    together = _merged(variables)
    if len(together) == 1:
        return together
    by_level: dict[str, list[_Variable]] = {}
    for variable in variables:
        by_level.setdefault(variable.keys["surface"], []).append(variable)
    return [
        cube for surface, members in by_level.items() for cube in _named(surface, _merged(members))
    ]


def _merged(variables: Sequence[_Variable]) -> list[_Cube]:
    cubes: list[_Cube] = []
    for variable in variables:
        axes = variable.axes()
        for number, cube in enumerate(cubes):
            if cube.accepts(variable, axes):
                cubes[number] = replace(
                    cube, variables=(*cube.variables, variable), axes={**cube.axes, **axes}
                )
                break
        else:
            cubes.append(_Cube((variable,), axes))
    return cubes


def _named(surface: str, cubes: Sequence[_Cube]) -> list[_Cube]:
    """Name groups after their level, and after that in which they differ."""
    told = [cube.told() for cube in cubes]
    names = [surface] * len(cubes)
    for key in told[0]:
        if len(set(names)) == len(cubes):
            break
        if len({each[key] for each in told}) > 1:
            names = [
                "_".join(filter(None, (name, each[key])))
                for name, each in zip(names, told, strict=True)
            ]
    if len(set(names)) < len(cubes):
        names = [
            f"{name}_{cube.variables[0].name}" if names.count(name) > 1 else name
            for name, cube in zip(names, cubes, strict=True)
        ]
    if len(set(names)) < len(cubes):
        names = [f"{name}_{number}" for number, name in enumerate(names)]
    return [replace(cube, group=name) for name, cube in zip(names, cubes, strict=True)]


class _Content:
    """Cubes to arrays."""

    def __init__(self, url: str, options: ParseOptions) -> None:
        self._url, self._options = url, options
        self.arrays: dict[str, RawArray] = {}
        self.attributes: dict[str, dict[str, Any]] = {"": {}}
        self.digests: dict[str, str] = {}

    def add(self, cube: _Cube) -> None:
        below = f"{cube.group}/" if cube.group else ""
        self.attributes[cube.group] = _dataset_attributes(cube.variables[0].keys)
        for name, values in {**cube.axes, **cube.variables[0].grid.axes}.items():
            attributes = _COORDINATES.get(name) or {
                "long_name": f"original GRIB coordinate for key: {_original(name, cube)}",
                "units": "1",
            }
            if name == "latitude" and values[0] > values[-1]:
                attributes = {**attributes, **_DECREASING}
            names = (name,) if np.ndim(values) else ()
            self._add(below + name, computed_array(_native(values), names, attributes))
        if {"time", "step"} <= cube.axes.keys():
            self._add(below + "valid_time", self._valid_time(cube))
        self._add_points(below, cube)
        for variable in cube.variables:
            name = variable.name
            if name in cube.axes or name in {"valid_time", *_POINTS}:
                name = f"{name}_field"
            self._add(below + name, self._array(variable))

    def _add(self, path: str, array: RawArray) -> None:
        if path.rpartition("/")[2] not in self._options.drop:
            self.arrays[path] = array

    def _add_points(self, below: str, cube: _Cube) -> None:
        grid = cube.variables[0].grid
        if not grid.has_points:
            return
        first = cube.variables[0].fields[0].field
        for name in _POINTS:
            codec = _codec(first.number, f"{name}s")
            metadata = _metadata(grid.shape, grid.shape, codec, _COORDINATES[name], grid.dimensions)
            cell = np.zeros((1, len(grid.shape)), np.int64)
            references = References.in_file(self._url, cell, [first.offset], [first.length])
            self._add(below + name, RawArray(metadata, references))
            self.digests[below + name] = grid.digest

    def _valid_time(self, cube: _Cube) -> RawArray:
        """Compute the times for which fields are valid, in chunks of one step of a growing one."""
        time, step = np.asarray(cube.axes["time"]), np.asarray(cube.axes["step"])
        names = (*(("time",) if time.ndim else ()), *(("step",) if step.ndim else ()))
        seconds = np.rint(step * 3600).astype(np.int64)
        values = np.add.outer(time, seconds)
        array = computed_array(values, names, _COORDINATES["valid_time"])
        if len(names) < 2 or not set(names) & set(self._options.concat):
            return array
        chunks = tuple(
            1 if name in self._options.concat else length
            for name, length in zip(names, values.shape, strict=True)
        )
        counts = tuple(length // chunk for length, chunk in zip(values.shape, chunks, strict=True))
        cells = np.stack(np.unravel_index(np.arange(np.prod(counts)), counts), axis=1)
        parts = [
            values[tuple(slice(c * n, c * n + n) for c, n in zip(cell, chunks, strict=True))]
            for cell in cells.tolist()
        ]
        references = replace(
            array.references,
            inlined_coordinates=cells.astype(np.int64),
            inlined=BytesColumn.from_list([part.astype("<i8").tobytes() for part in parts]),
        )
        grid = {"name": "regular", "configuration": {"chunk_shape": chunks}}
        return RawArray({**array.metadata, "chunk_grid": grid}, references)

    def _array(self, variable: _Variable) -> RawArray:
        axes = variable.axes()
        along = [name for name, values in axes.items() if np.ndim(values)]
        shape = (*(len(axes[name]) for name in along), *variable.grid.shape)
        chunks = (*(1 for _ in along), *variable.grid.shape)
        names = (*along, *variable.grid.dimensions)
        numbers = {field.field.number for field in variable.fields}
        if len(numbers) > 1:
            raise NotImplementedError(
                f"{variable.name!r} is at different places of messages that have several fields"
            )
        attributes = _variable_attributes(variable.keys)
        others = [name for name in axes if name not in along]
        others += ["valid_time"] if {"time", "step"} <= axes.keys() else []
        others += list(_POINTS) if variable.grid.has_points else []
        if auxiliary := [name for name in others if name not in self._options.drop]:
            attributes["coordinates"] = " ".join(auxiliary)
        metadata = _metadata(shape, chunks, _codec(numbers.pop()), attributes, names)
        cells = np.concatenate(
            [
                variable.cells(along),
                np.zeros((len(variable.fields), len(variable.grid.shape)), np.int64),
            ],
            axis=1,
        )
        offsets = [field.field.offset for field in variable.fields]
        lengths = [field.field.length for field in variable.fields]
        order = np.lexsort(cells.T[::-1])
        references = References.in_file(
            self._url, cells[order], np.array(offsets)[order], np.array(lengths)[order]
        )
        return RawArray(metadata, references)


def _native(values: Any) -> NDArray[Any]:
    array = np.asarray(values)
    return array.astype(np.int64 if array.dtype.kind in "iu" else np.float64)


def _original(name: str, cube: _Cube) -> str:
    is_level = any(variable.keys["surface"] == name for variable in cube.variables)
    return f"level({name})" if is_level else f"{name}({name})"


def _codec(field: int, key: str = "values") -> dict[str, Any]:
    settings: dict[str, Any] = {"key": key} if key != "values" else {}
    if field:
        settings["field"] = field
    return {"name": GRIB_FIELD, "configuration": settings}


def _metadata(
    shape: tuple[int, ...],
    chunks: tuple[int, ...],
    codec: Mapping[str, Any],
    attributes: Mapping[str, Any],
    names: tuple[str, ...],
) -> dict[str, Any]:
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": shape,
        "data_type": "float64",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunks}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": "NaN",
        "codecs": (codec,),
        "attributes": dict(attributes),
        "dimension_names": names,
        "storage_transformers": (),
    }


def _dataset_attributes(keys: Keys) -> dict[str, Any]:
    attributes = {f"GRIB_{key}": keys[key] for key in _DATASET_KEYS if keys[key] not in _UNKNOWN}
    attributes["Conventions"] = "CF-1.7"
    if keys["centreDescription"] not in _UNKNOWN:
        attributes["institution"] = keys["centreDescription"]
    return attributes


def _variable_attributes(keys: Keys) -> dict[str, Any]:
    attributes = {f"GRIB_{key}": keys[key] for key in _VARIABLE_KEYS if keys[key] not in _UNKNOWN}
    attributes["GRIB_stepUnits"] = 1
    described = (*_MORE_KEYS, *_GRID_KEYS.get(keys["gridType"], ()))
    attributes |= {f"GRIB_{key}": keys[key] for key in described if keys[key] is not None}
    attributes["long_name"] = keys["name"] or f"original GRIB paramId: {keys['paramId']}"
    attributes["units"] = keys["units"] or "1"
    if keys["cfName"] is not None:
        attributes["standard_name"] = keys["cfName"]
    return attributes
