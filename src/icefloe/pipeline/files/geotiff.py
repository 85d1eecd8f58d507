"""Tags of TIFF files about their pixels: coordinates, reference systems, names and scales of bands.

Names and attributes are those that rioxarray gives; reference systems become WKT with pyproj.
"""

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, Self
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from icefloe.records import Record, replace

_MOST_XML: Final = 16 << 20
_USER_DEFINED: Final = 32767
_PIXEL_IS_POINT: Final = 2

type Tags = Mapping[int, Any]


class GeoTags(Record, eq=False):
    """The place of an image on Earth."""

    size: tuple[int, int]
    """Height and width."""
    transform: tuple[float, ...] | None = None
    """As GDAL orders it: x of the corner, width of pixels, shear, y of it, shear, height."""
    keys: Mapping[int, Any] = {}
    is_version_1_1: bool = False

    @classmethod
    def of(cls, tags: Tags, size: tuple[int, int]) -> Self:
        """Read the tags of GeoTIFF."""
        keys = _geo_keys(tags)
        transform = _transform(tags)
        if transform is not None and keys.get(1025) == _PIXEL_IS_POINT:
            x, dx, rx, y, ry, dy = transform  # from the centre of the first pixel to its corner
            transform = (x - (dx + rx) / 2, dx, rx, y - (ry + dy) / 2, ry, dy)
        directory = tags.get(34735)
        minor = int(directory[2]) if directory is not None and len(directory) > 2 else 0
        return cls(size, transform, keys, minor >= 1)

    @property
    def is_known(self) -> bool:
        """Return whether the file says anything of the place."""
        return self.transform is not None or bool(self.keys)

    def scaled(self, size: tuple[int, int]) -> Self:
        """Return the place of an overview with this height and width."""
        if self.transform is None:
            return replace(self, size=size)
        down, across = self.size[0] / size[0], self.size[1] / size[1]
        x, dx, rx, y, ry, dy = self.transform
        transform = (x, dx * across, rx * down, y, ry * across, dy * down)
        return replace(self, size=size, transform=transform)

    def x(self) -> NDArray[np.float64] | None:
        """Return the x of the centres of columns; None if it is not known or differs by row."""
        if self.transform is None or self.transform[2] or self.transform[4]:
            return None
        return np.asarray(self.transform[0] + self.transform[1] * (np.arange(self.size[1]) + 0.5))

    def y(self) -> NDArray[np.float64] | None:
        """Return the y of the centres of rows; None if it is not known or differs by column."""
        if self.transform is None or self.transform[2] or self.transform[4]:
            return None
        return np.asarray(self.transform[3] + self.transform[5] * (np.arange(self.size[0]) + 0.5))

    def spatial_ref(self) -> tuple[dict[str, Any], str]:
        """Return the attributes of `spatial_ref` as rioxarray writes them, and a note."""
        attributes: dict[str, Any] = {}
        note = ""
        if self.keys:
            system = _reference_system(tuple(sorted(self.keys.items())), self.is_version_1_1)
            if system is None:
                note = (
                    "the reference system of images is not known: the attribute geo_keys of"
                    " spatial_ref has its parameters"
                )
                attributes["geo_keys"] = {str(key): value for key, value in self.keys.items()}
            else:
                attributes |= system
        if self.transform is not None:
            attributes["GeoTransform"] = " ".join(map(str, self.transform))
        return attributes, note


def _transform(tags: Tags) -> tuple[float, ...] | None:
    scale, points, matrix = tags.get(33550), tags.get(33922), tags.get(34264)
    if matrix is not None and len(matrix) >= 8:
        a = [float(number) for number in matrix[:8]]
        return (a[3], a[0], a[1], a[7], a[4], a[5])
    if scale is None or points is None or len(scale) < 2 or len(points) != 6:
        return None
    dx, dy = float(scale[0]), -abs(float(scale[1]))
    column, row, _, x, y, _ = map(float, points)
    return (x - column * dx, dx, 0.0, y - row * dy, 0.0, dy)


def _geo_keys(tags: Tags) -> dict[int, Any]:
    """Return the keys of GeoTIFF: numbers and text."""
    directory = tags.get(34735)
    if directory is None or len(directory) < 4:
        return {}
    doubles, texts = tags.get(34736, ()), tags.get(34737, "")
    keys: dict[int, Any] = {}
    entries = directory[4 : 4 + 4 * int(directory[3])]
    for key, tag, count, value in entries[: len(entries) // 4 * 4].reshape(-1, 4).tolist():
        if tag == 0:
            keys[key] = value
        elif tag == 34736 and value + count <= len(doubles):
            numbers = [float(number) for number in doubles[value : value + count]]
            keys[key] = numbers[0] if count == 1 else tuple(numbers)
        elif tag == 34737:
            keys[key] = texts[value : value + count].rstrip("|\0")
    return keys


# -- reference systems -----------------------------------------------------------------------


@lru_cache(maxsize=64)
def _reference_system(items: tuple[tuple[int, Any], ...], is_1_1: bool) -> dict[str, Any] | None:  # noqa: FBT001
    """Return the attributes of a reference system by CF, with its WKT."""
    from pyproj import CRS
    from pyproj.exceptions import CRSError

    keys = dict(items)
    try:
        system = _system(keys)
        if system is not None and is_1_1:
            system = _with_heights(system, keys.get(4096))
    except CRSError:
        return None
    if system is None:
        return None
    try:
        wkt = system.to_wkt("WKT1_GDAL", output_axis_rule=True)
    except CRSError:
        wkt = system.to_wkt()
    return {**CRS.from_wkt(wkt).to_cf(), "crs_wkt": wkt, "spatial_ref": wkt}


def _system(keys: Mapping[int, Any]) -> Any:
    from pyproj import CRS

    model = keys.get(1024)
    if model == 1:
        code = keys.get(3072, _USER_DEFINED)
        if code != _USER_DEFINED:
            return _by_code(code)
        for citation in (keys.get(1026), keys.get(3073)):
            if isinstance(citation, str) and "ESRI PE String = " in citation:
                return CRS.from_wkt(citation.partition("ESRI PE String = ")[2])
        return _projected(keys)
    if model in {2, 3}:
        return _geographic(keys)
    return None


def _by_code(code: int) -> Any:
    from pyproj import CRS
    from pyproj.exceptions import CRSError

    try:
        return CRS.from_epsg(code)
    except CRSError:
        return CRS.from_authority("ESRI", code)


def _with_heights(system: Any, code: Any) -> Any:
    from pyproj.crs import CRS, CompoundCRS

    if code in {None, _USER_DEFINED}:
        return system
    heights = CRS.from_epsg(code)
    if not heights.is_vertical:
        return system
    both = CompoundCRS(f"{system.name} + {heights.name}", [system, heights])
    code_of_both = both.to_epsg()
    return both if code_of_both is None else CRS.from_epsg(code_of_both)


def _geographic(keys: Mapping[int, Any]) -> Any:
    from pyproj import crs
    from pyproj.crs import CRS, GeographicCRS
    from pyproj.crs.datum import CustomDatum, CustomEllipsoid

    library: Any = crs

    code = keys.get(2048, _USER_DEFINED)
    if code != _USER_DEFINED:
        return CRS.from_epsg(code)
    name = str(keys.get(2049, "unknown")).split("|")[0] or "unknown"
    datum: Any
    if keys.get(2050, _USER_DEFINED) != _USER_DEFINED:
        datum = library.Datum.from_epsg(keys[2050])
    else:
        if keys.get(2056, _USER_DEFINED) != _USER_DEFINED:
            ellipsoid = library.Ellipsoid.from_epsg(keys[2056])
        elif 2057 in keys:
            flattening = keys.get(2059)
            ellipsoid = CustomEllipsoid(
                semi_major_axis=keys[2057],
                inverse_flattening=flattening,
                semi_minor_axis=None if flattening is not None else keys.get(2058, keys[2057]),
            )
        else:
            return None
        meridian = keys.get(2051, 8901)
        prime = (
            "Greenwich" if meridian == _USER_DEFINED else library.PrimeMeridian.from_epsg(meridian)
        )
        datum = CustomDatum(ellipsoid=ellipsoid, prime_meridian=prime)
    return GeographicCRS(name=name, datum=datum)


def _projected(keys: Mapping[int, Any]) -> Any:
    """Build a reference system of parameters."""
    from pyproj import crs
    from pyproj.crs import CRS, ProjectedCRS, coordinate_operation

    library: Any = crs

    base = _geographic(keys)
    if base is None or keys.get(3076, 9001) != 9001:  # other units than metres
        return None
    name = str(keys.get(3073, keys.get(1026, "unknown"))).split("|")[0] or "unknown"
    code = keys.get(3074, _USER_DEFINED)
    if code != _USER_DEFINED:
        operation = library.CoordinateOperation.from_epsg(code)
        return ProjectedCRS(conversion=operation, name=name, geodetic_crs=base)
    method = _METHODS.get(keys.get(3075, 0))
    if method is None:
        return None
    kind, parameters = method
    settings = {
        argument: next((keys[key] for key in choices if key in keys), default)
        for argument, (choices, default) in parameters.items()
    }
    make = getattr(coordinate_operation, f"{kind}Conversion")
    return CRS(ProjectedCRS(conversion=make(**settings), name=name, geodetic_crs=base))


_EAST: Final = ((3082, 3086, 3090), 0.0)
_NORTH: Final = ((3083, 3087, 3091), 0.0)
_FALSE: Final = {"false_easting": _EAST, "false_northing": _NORTH}
_LATITUDE: Final = ((3081, 3085, 3089), 0.0)
_LONGITUDE: Final = ((3080, 3084, 3088), 0.0)
_NATURAL: Final = {
    "latitude_natural_origin": _LATITUDE,
    "longitude_natural_origin": _LONGITUDE,
    **_FALSE,
}
_SCALE: Final = {"scale_factor_natural_origin": ((3092, 3093), 1.0)}
_FALSE_ORIGIN: Final = {
    "latitude_first_parallel": ((3078,), 0.0),
    "latitude_second_parallel": ((3079,), 0.0),
    "latitude_false_origin": ((3085, 3081, 3089), 0.0),
    "longitude_false_origin": ((3084, 3080, 3088), 0.0),
    "easting_false_origin": _EAST,
    "northing_false_origin": _NORTH,
}
_METHODS: Final[dict[int, tuple[str, dict[str, Any]]]] = {
    1: ("TransverseMercator", {**_NATURAL, **_SCALE}),
    7: ("MercatorA", {**_NATURAL, **_SCALE}),
    8: ("LambertConformalConic2SP", _FALSE_ORIGIN),
    9: ("LambertConformalConic1SP", {**_NATURAL, **_SCALE}),
    10: ("LambertAzimuthalEqualArea", _NATURAL),
    11: ("AlbersEqualArea", _FALSE_ORIGIN),
    12: ("AzimuthalEquidistant", _NATURAL),
    15: (
        "PolarStereographicB",
        {
            "latitude_standard_parallel": ((3081, 3085, 3089), 90.0),
            "longitude_origin": ((3095, 3080, 3088), 0.0),
            **_FALSE,
        },
    ),
    17: (
        "EquidistantCylindrical",
        {
            "latitude_first_parallel": ((3078,), 0.0),
            "latitude_natural_origin": _LATITUDE,
            "longitude_natural_origin": _LONGITUDE,
            **_FALSE,
        },
    ),
    21: ("Orthographic", _NATURAL),
    24: ("Sinusoidal", {"longitude_natural_origin": _LONGITUDE, **_FALSE}),
    28: (
        "LambertCylindricalEqualArea",
        {
            "latitude_first_parallel": ((3078,), 0.0),
            "longitude_natural_origin": _LONGITUDE,
            **_FALSE,
        },
    ),
}
"""By number of a projection: its name for pyproj, and for each argument the keys that may have it,
with a default."""


# -- bands -----------------------------------------------------------------------------------

_TEXTS: Final = {
    269: "TIFFTAG_DOCUMENTNAME",
    270: "TIFFTAG_IMAGEDESCRIPTION",
    305: "TIFFTAG_SOFTWARE",
    306: "TIFFTAG_DATETIME",
    315: "TIFFTAG_ARTIST",
    316: "TIFFTAG_HOSTCOMPUTER",
    33432: "TIFFTAG_COPYRIGHT",
}
_NOT_KEPT: Final = frozenset({"_FillValue", "missing_value", "scale_factor", "add_offset"})


def band_attributes(tags: Tags, bands: int, kind: np.dtype[Any]) -> dict[str, Any]:
    """Return the attributes of the bands of an image."""
    attributes: dict[str, Any] = {
        name: tags[code] for code, name in _TEXTS.items() if tags.get(code)
    }
    by_role: dict[str, list[Any]] = {}
    for element in _gdal_items(tags.get(42112, "")):
        name, role, sample = element.get("name", ""), element.get("role", ""), element.get("sample")
        number = int(sample) if sample is not None and sample.isdigit() else None
        if role in _ROLES and number is not None and number < bands:
            default = _ROLES[role]
            by_role.setdefault(role, [default] * bands)[number] = element.get("text", "")
        elif number in {None, 0} and not role and not element.get("domain"):
            attributes[name] = element.get("text", "")
    for name in _NOT_KEPT & attributes.keys():
        del attributes[name]
    keys = _geo_keys(tags)
    if 1025 in keys:
        is_point = keys[1025] == _PIXEL_IS_POINT
        attributes["AREA_OR_POINT"] = "Point" if is_point else "Area"
    attributes |= _named(by_role) | _scaled(by_role)
    fill = _fill(tags.get(42113, ""), kind)
    if fill is not None:
        attributes["_FillValue"] = fill
    return attributes


_ROLES: Final[dict[str, Any]] = {"description": None, "unittype": "", "scale": 1.0, "offset": 0.0}


def _named(by_role: Mapping[str, list[Any]]) -> dict[str, Any]:
    attributes: dict[str, Any] = {}
    if names := by_role.get("description"):
        attributes["long_name"] = names[0] if len(set(names)) == 1 else names
    if units := by_role.get("unittype"):
        attributes["units"] = units[0] if len(units) == 1 else units
    return attributes


def _scaled(by_role: Mapping[str, list[Any]]) -> dict[str, Any]:
    """Return scale and offset; xarray applies them if all bands share them."""
    attributes: dict[str, Any] = {}
    for role, single, many, default in (
        ("scale", "scale_factor", "scales", 1.0),
        ("offset", "add_offset", "offsets", 0.0),
    ):
        numbers = [float(text) for text in by_role.get(role, ())]
        if len(set(numbers)) > 1:
            attributes[many] = numbers
        elif numbers and numbers[0] != default:
            attributes[single] = numbers[0]
    return attributes


def _gdal_items(text: Any) -> list[dict[str, str]]:
    if not isinstance(text, str) or not text.strip() or len(text) > _MOST_XML:
        return []
    try:
        root = ElementTree.fromstring(text.strip())  # noqa: S314 - a limited number of bytes
    except ElementTree.ParseError:
        return []
    return [{**element.attrib, "text": element.text or ""} for element in root.iter("Item")]


def _fill(text: Any, kind: np.dtype[Any]) -> int | float | None:
    """Return the value of missing pixels, if pixels can have it."""
    try:
        number = float(text) if isinstance(text, str) and text.strip() else None
    except ValueError:
        return None
    if number is None or kind.kind not in "iuf":
        return None
    if kind.kind == "f":
        with np.errstate(over="ignore"):
            return float(kind.type(number))
    limits = np.iinfo(kind)
    if not (math.isfinite(number) and number == int(number)):
        return None
    exact = int(text) if text.strip().lstrip("+-").isdigit() else int(number)
    return exact if limits.min <= exact <= limits.max else None


# -- stacks ----------------------------------------------------------------------------------


def stack_of(description: str, pages: int) -> tuple[tuple[str, int], ...]:
    """Return the dimensions of a stack of pages, the outermost first.

    Files of OME and ImageJ name them; other pages are counted.

    >>> stack_of("ImageJ=1.53\\nimages=6\\nslices=3\\nframes=2\\n", 6)
    (('t', 2), ('z', 3))
    >>> stack_of("", 4), stack_of("", 1)
    ((('page', 4),), ())
    """
    if pages == 1:
        return ()
    for axes in (_ome_axes(description), _imagej_axes(description)):
        longer = tuple((name, length) for name, length in axes if length > 1)
        if longer and math.prod(length for _, length in longer) == pages:
            return longer
    return (("page", pages),)


def _ome_axes(description: str) -> list[tuple[str, int]]:
    if "<OME" not in description[:2000] or len(description) > _MOST_XML:
        return []
    try:
        root = ElementTree.fromstring(description.strip().encode())  # noqa: S314
    except ElementTree.ParseError:
        return []
    pixels = [element for element in root.iter() if element.tag.endswith("}Pixels")]
    if len(pixels) != 1:
        return []
    order = pixels[0].get("DimensionOrder", "")
    sizes = {letter: int(pixels[0].get(f"Size{letter}", "1")) for letter in "CZT"}
    channels = [element for element in pixels[0] if element.tag.endswith("}Channel")]
    samples = max([int(channel.get("SamplesPerPixel", "1")) for channel in channels], default=1)
    sizes["C"] //= samples
    places = [element for element in pixels[0] if element.tag.endswith("}TiffData")]
    if any(element.get("IFD", str(number)) != str(number) for number, element in enumerate(places)):
        return []
    return [(letter.lower(), sizes[letter]) for letter in reversed(order) if letter in sizes]


def _imagej_axes(description: str) -> list[tuple[str, int]]:
    if not description.startswith("ImageJ="):
        return []
    settings = dict(line.partition("=")[::2] for line in description.splitlines())
    names = (("frames", "t"), ("slices", "z"), ("channels", "c"))
    lengths = [(letter, settings.get(name, "1")) for name, letter in names]
    return [(letter, int(text)) for letter, text in lengths if text.isdigit()]
