"""Images of FITS files: astropy reads the headers, and pixels are referred to where they lie.

An image becomes a variable with the name of its unit, and the cards of its header become
attributes, from which `astropy.wcs.WCS` can be made again. Tables are left out.
"""

import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import numpy as np

from icefloe.codecs import FITS_IMAGE
from icefloe.errors import ErrorKind, SourceError
from icefloe.pipeline.files.describing import FileContent, RawArray, computed_array
from icefloe.pipeline.files.hdf5 import encoded_fill
from icefloe.pipeline.files.options import ParseOptions
from icefloe.pipeline.files.references import References

_TYPES: Final = {8: ">u1", 16: ">i2", 32: ">i4", 64: ">i8", -32: ">f4", -64: ">f8"}
_AXES: Final = ("x", "y", "z")
_COMMENTS: Final = frozenset({"COMMENT", "HISTORY", ""})
_SMALL: Final = 16
"""Scaled integers up to this number of bits become floats of four bytes in astropy."""


def read_fits(file: Any, url: str, options: ParseOptions) -> FileContent:
    """Read which images there are in a file, and where their pixels lie."""
    from astropy.io import fits

    if options.group:
        raise SourceError(
            f"{url} is a FITS file, which has no groups: leave out group={options.group!r}",
            ErrorKind.SOURCE_UNSUPPORTED,
            url=url,
        )
    arrays: dict[str, RawArray] = {}
    tables: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of cards that do not keep to the standard
        with fits.open(
            file, memmap=False, do_not_scale_image_data=True, lazy_load_hdus=False
        ) as units:
            for name, unit in zip(fits_names(units), units, strict=True):
                if name in options.drop:
                    continue
                if isinstance(unit, fits.CompImageHDU) or unit.is_image:
                    arrays |= _image(name, unit, url, options)
                else:
                    tables.append(name)
    if not arrays:
        listed = f": it has the tables {', '.join(map(repr, tables))} only" if tables else ""
        raise SourceError(
            f"{url} has no images{listed}. Leave the file out",
            ErrorKind.SOURCE_UNSUPPORTED,
            url=url,
        )
    notes = (f"tables of FITS files are left out: {', '.join(tables)}",) if tables else ()
    return FileContent(arrays, {"": {}}, notes)


def fits_names(units: Iterable[Any]) -> list[str]:
    """Name the units of a FITS file; all names differ."""
    names: list[str] = []
    for number, unit in enumerate(units):
        name = unit.name or str(number)
        names.append(f"{name}_{number}" if name in names else name)
    return names


def _image(name: str, unit: Any, url: str, options: ParseOptions) -> dict[str, RawArray]:
    from astropy.io import fits

    header = unit.header
    if isinstance(unit, fits.GroupsHDU):
        raise SourceError(
            f"{name!r} in {url} is a random-groups structure, which cannot be read as an array:"
            f" leave it out (drop=({name!r},))",
            ErrorKind.SOURCE_UNSUPPORTED,
            url=url,
        )
    axes = int(header["NAXIS"])
    shape = tuple(int(header[f"NAXIS{number}"]) for number in range(axes, 0, -1))
    if not shape or not math.prod(shape):
        return {}
    names = tuple(
        f"{name}_{_AXES[number] if number < len(_AXES) else number + 1}"
        for number in reversed(range(axes))
    )
    attributes = dict(_cards(header))
    is_compressed = isinstance(unit, fits.CompImageHDU)
    kind, codecs = _compressed(header) if is_compressed else _plain(name, header, url)
    if (marker := _blank(header, kind, is_compressed=is_compressed)) is not None:
        attributes["_FillValue"] = encoded_fill(marker, kind)
    position = unit.fileinfo()
    if is_compressed:
        begin, length = (
            position["hdrLoc"],
            position["datLoc"] + position["datSpan"] - position["hdrLoc"],
        )
    else:
        begin, length = position["datLoc"], math.prod(shape) * abs(int(header["BITPIX"])) // 8
    metadata = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": shape,
        "data_type": kind.name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": shape}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 0.0 if kind.kind == "f" else 0,
        "codecs": codecs,
        "attributes": attributes,
        "dimension_names": names,
        "storage_transformers": (),
    }
    cell = np.zeros((1, axes), np.int64)
    image = RawArray(metadata, References.in_file(url, cell, [begin], [length]))
    coordinates = {
        path: array
        for path, array in _coordinates(names, header, shape)
        if path not in options.drop
    }
    return {name: image, **coordinates}


def _cards(header: Any) -> Iterator[tuple[str, Any]]:
    for key, value in header.items():
        if key in _COMMENTS:
            continue
        if isinstance(value, (bool, int, str)) or (
            isinstance(value, float) and math.isfinite(value)
        ):
            yield key, value


def _scaling(header: Mapping[str, Any]) -> tuple[float, float]:
    return float(header.get("BSCALE", 1)), float(header.get("BZERO", 0))


def _shifts_sign(header: Mapping[str, Any]) -> bool:
    """Return whether a header states the convention for the other sign of integers."""
    bits = int(header["BITPIX"])
    if bits < 0 or header.get("BSCALE", 1) != 1:
        return False
    zero = header.get("BZERO", 0)
    return bool(zero == (-128 if bits == 8 else 1 << (bits - 1)))


def _plain(
    name: str, header: Mapping[str, Any], url: str
) -> tuple[np.dtype[Any], tuple[dict[str, Any], ...]]:
    """Return type and codecs of an image whose pixels lie one after the other."""
    stored = np.dtype(_TYPES[int(header["BITPIX"])])
    scale, zero = _scaling(header)
    if scale == 0:
        raise SourceError(
            f"the image {name!r} in {url} has the scale 0 (BSCALE), so its values are lost: leave"
            f" it out (drop=({name!r},))",
            ErrorKind.SOURCE_DAMAGED,
            url=url,
        )
    if _shifts_sign(header):
        kind = np.dtype("i1" if stored.itemsize == 1 else f"u{stored.itemsize}")
        return kind, ({"name": FITS_IMAGE, "configuration": {"stored": stored.str}},)
    plain: dict[str, Any] = {"name": "bytes"}
    if stored.itemsize > 1:
        plain["configuration"] = {"endian": "big"}
    if (scale, zero) == (1.0, 0.0):
        return stored.newbyteorder("="), (plain,)
    kind = np.dtype("f8")
    settings = {"offset": zero, "scale": 1 / scale, "astype": stored.str, "dtype": "<f8"}
    codecs = ({"name": "numcodecs.fixedscaleoffset", "configuration": settings}, plain)
    return kind, codecs


def _compressed(header: Mapping[str, Any]) -> tuple[np.dtype[Any], tuple[dict[str, Any], ...]]:
    """Return type and codecs of an image in compressed tiles, which astropy decodes."""
    bits = int(header["BITPIX"])
    kind = np.dtype(_TYPES[bits]).newbyteorder("=")
    if _shifts_sign(header):
        kind = np.dtype("i1" if bits == 8 else f"u{bits // 8}")
    elif _scaling(header) != (1.0, 0.0) or (bits > 0 and "BLANK" in header):
        kind = np.dtype("f4" if abs(bits) <= _SMALL or bits == -32 else "f8")
    return kind, ({"name": FITS_IMAGE, "configuration": {"compressed": True}},)


def _blank(header: Mapping[str, Any], kind: np.dtype[Any], *, is_compressed: bool) -> float | None:
    """Return the value of undefined pixels of integers; floats have NaN."""
    if "BLANK" not in header or int(header["BITPIX"]) < 0 or (is_compressed and kind.kind == "f"):
        return None
    scale, zero = _scaling(header)
    blank = int(header["BLANK"])
    value = blank * scale + zero if kind.kind == "f" else blank + int(zero)
    if kind.kind in "iu" and not np.iinfo(kind).min <= value <= np.iinfo(kind).max:
        return None  # no pixel can have it
    return value


def _coordinates(
    names: tuple[str, ...], header: Any, shape: tuple[int, ...]
) -> Iterator[tuple[str, RawArray]]:
    """Compute coordinates of axes that depend on no other axis, such as wavelengths."""
    from astropy.wcs import WCS

    try:
        wcs = WCS(header)
        correlated = np.asarray(wcs.axis_correlation_matrix)
    except Exception:  # noqa: BLE001 - what is wrong with it, astropy says of the attributes, too
        return
    if wcs.pixel_n_dim != len(shape):
        return
    for axis in range(len(shape)):
        worlds = np.flatnonzero(correlated[:, axis])
        if len(worlds) != 1 or correlated[worlds[0]].sum() != 1:
            continue
        world = int(worlds[0])
        label = str(wcs.wcs.ctype[world])
        if not label:
            continue
        length = shape[len(shape) - 1 - axis]
        pixels = np.zeros((length, len(shape)))
        pixels[:, axis] = np.arange(length)
        values = wcs.wcs_pix2world(pixels, 0)[:, world]
        if not np.isfinite(values).all():
            continue
        name = names[len(shape) - 1 - axis]
        attributes = {"long_name": label, "units": str(wcs.wcs.cunit[world])}
        yield name, computed_array(values, (name,), attributes)
