"""Independent readers of file formats, which share no code with the parsers.

Only this module imports their libraries. A remote object is read as a Python file object, which
fetches only the ranges that are read.
"""

import io
import math
import os
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from typing import Any, BinaryIO, Final, Protocol, cast, override

import numpy as np
import zarr
from numpy.typing import NDArray

from icefloe.codecs import field_message, load_eccodes
from icefloe.format.paths import joined_path
from icefloe.pipeline.copying.transfer import ReadingStore
from icefloe.pipeline.files.fits import fits_names
from icefloe.pipeline.files.geotiff import stack_of
from icefloe.pipeline.files.options import Format
from icefloe.pipeline.files.sources import SourceObject
from icefloe.pipeline.files.tiff import DATA
from icefloe.records import Record, field

_BLOCK_BYTES: Final = 256 * 1024
_MOST_BLOCKS: Final = 64
"""So many blocks stay in memory; longer reads are not kept."""

_COPIED_BYTES: Final = 16 * 1024
"""The smallest part of a file that a sparse copy fetches."""


class RangeFile(io.RawIOBase):
    """A file that is read block by block; recent blocks stay in memory.

    `failures` gets the reasons of failed reads, which libraries may hide.
    """

    def __init__(self, source: SourceObject, size: int, failures: list[Exception]) -> None:
        super().__init__()
        self._source, self._size, self._failures = source, size, failures
        self._position = 0
        self._blocks: OrderedDict[int, bytes] = OrderedDict()

    @override
    def readable(self) -> bool:
        """Return True."""
        return True

    @override
    def seekable(self) -> bool:
        """Return True."""
        return True

    @override
    def tell(self) -> int:
        """Return the position."""
        return self._position

    @override
    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Move the position."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        self._position = max(0, base + offset)
        return self._position

    @override
    def readinto(self, buffer: Any, /) -> int:
        """Read as many bytes as the buffer takes, or as the file has."""
        target = memoryview(buffer).cast("B")
        start = self._position
        end = min(start + len(target), self._size)
        if end <= start:
            return 0
        first, last = start // _BLOCK_BYTES, (end - 1) // _BLOCK_BYTES
        if last - first >= _MOST_BLOCKS // 2:
            target[: end - start] = self._fetch([(start, end)])[0]
        else:
            blocks = self._read_blocks(range(first, last + 1))
            skipped = start - first * _BLOCK_BYTES
            target[: end - start] = b"".join(blocks)[skipped : skipped + end - start]
        self._position = end
        return end - start

    def _read_blocks(self, numbers: Sequence[int]) -> list[bytes]:
        missing = [number for number in numbers if number not in self._blocks]
        edges = [(number * _BLOCK_BYTES, (number + 1) * _BLOCK_BYTES) for number in missing]
        fetched = self._fetch([(low, min(high, self._size)) for low, high in edges])
        self._blocks.update(zip(missing, map(bytes, fetched), strict=True))
        for number in numbers:
            self._blocks.move_to_end(number)
        blocks = [self._blocks[number] for number in numbers]
        while len(self._blocks) > _MOST_BLOCKS:
            self._blocks.popitem(last=False)
        return blocks

    def _fetch(self, ranges: Sequence[tuple[int, int]]) -> list[Any]:
        # HDF5 keeps its lock meanwhile. Another thread needs it to free an object of HDF5, which
        # Python may do there at any moment: to wait for that thread could last for ever.
        try:
            return self._source.read(ranges, "worker")
        except Exception as error:
            self._failures.append(error)
            raise


class SparseCopy(io.FileIO):
    """A local file as long as a remote one, which holds only the parts that were asked for.

    It is for libraries that map files into memory. It has no name, and vanishes when it is closed.
    """

    def __init__(self, source: SourceObject, size: int) -> None:
        descriptor, name = tempfile.mkstemp(prefix="icefloe-")
        os.unlink(name)  # noqa: PTH108 - the file lives as long as it is open
        super().__init__(descriptor, "r+")
        os.ftruncate(descriptor, size)
        self._source, self._size = source, size
        self._is_present = np.zeros(-(-size // _COPIED_BYTES), np.bool_)

    @override
    def read(self, size: int | None = -1, /) -> bytes:
        """Read bytes, which are fetched first."""
        count = self._size if size is None or size < 0 else size
        self.fill([(self.tell(), self.tell() + count)])
        return super().read(count)

    def fill(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Fetch what is missing of some ranges of bytes."""
        is_wanted = np.zeros_like(self._is_present)
        for start, end in ranges:
            is_wanted[start // _COPIED_BYTES : -(-end // _COPIED_BYTES)] = True
        missing = np.flatnonzero(is_wanted & ~self._is_present)
        if not len(missing):
            return
        runs = np.split(missing, np.flatnonzero(np.diff(missing) > 1) + 1)
        edges = [
            (int(run[0]) * _COPIED_BYTES, min((int(run[-1]) + 1) * _COPIED_BYTES, self._size))
            for run in runs
        ]
        for (start, _), data in zip(edges, self._source.read(edges), strict=True):
            os.pwrite(self.fileno(), data, start)
        self._is_present[missing] = True


type Region = tuple[slice, ...]
"""A box of an array; all slices have a start and a stop."""


class NotComparableError(Exception):
    """A reader cannot read this; the text says why."""


class OtherChunkError(Exception):
    """A chunk is not the one that it is taken for."""

    def __init__(self, expected: str, got: str) -> None:
        super().__init__(f"{got} instead of {expected}")
        self.expected, self.got = expected, got


class Axis(Record):
    """The values of a coordinate over a region."""

    values: NDArray[Any]


class ChunkPlace(Record):
    """Our facts about a chunk; formats whose arrays have no names need them."""

    offset: int | None = None
    """Where it begins in the file; None for one that is not in it."""
    axes: Mapping[str, Axis] = field(default_factory=dict)
    """By name of a dimension, or of a coordinate with a single value."""
    attributes: Mapping[str, Any] = field(default_factory=dict)
    """Of the array."""
    field: int = 0
    """The number of a field in a message of GRIB."""


class Expected(Record):
    """The value that a reader expects, and the tolerated difference."""

    values: NDArray[Any]
    tolerance: float = 0.0
    """The largest difference; 0 for the same bits."""
    period: float = 0.0
    """Values that differ by multiples of it are the same, such as longitudes."""


class Reader(Protocol):
    """One open file."""

    @property
    def name(self) -> str:
        """Return the name of the library."""
        ...

    def shape(self, path: str) -> tuple[int, ...] | None:
        """Return the lengths of an array; None if the format has no names; raise `KeyError`."""
        ...

    def read(self, path: str, region: Region, chunk: ChunkPlace) -> Expected:
        """Read a part of an array."""
        ...


class Source(Record):
    """A file to open."""

    object: SourceObject
    group: str = ""
    """Its group that is taken as the root."""
    failures: list[Exception] = field(default_factory=list)
    """Why reads of the storage failed: libraries hide that."""

    @contextmanager
    def file(self) -> Iterator[BinaryIO]:
        """Open it as a file object."""
        if (path := self.object.local_path) is None:
            with RangeFile(self.object, self.object.size(), self.failures) as remote:
                yield cast("BinaryIO", remote)
        else:
            with open(path, "rb") as local:  # noqa: PTH123 - a path of any kind
                yield local


@contextmanager
def open_reader(kind: Format, source: Source) -> Iterator[Reader]:
    """Open a file with the reader of its format.

    Raise `NotComparableError` if there is none, or it is not installed.
    """
    opener = _OPENERS.get(kind)
    if opener is None:
        raise NotComparableError(f"there is no independent reader of {kind.value}")
    with ExitStack() as stack:
        try:
            reader = stack.enter_context(contextmanager(opener)(source))
        except ImportError as error:
            raise NotComparableError(
                f"{error.name or error} is not installed, on the workers too:"
                f' pip install "icefloe[{_EXTRAS.get(kind, "formats")}]"'
            ) from error
        yield reader


_EXTRAS: Final = {Format.HDF5: "virtual"}


# -- HDF5 and netCDF-4 -----------------------------------------------------------------------


class _Hdf5(Record):
    root: Any
    name: str = "h5py"

    def shape(self, path: str) -> tuple[int, ...]:
        return tuple(self.root[path].shape)

    def read(self, path: str, region: Region, _: ChunkPlace) -> Expected:
        return Expected(np.asarray(self.root[path][region]))


def _hdf5(source: Source) -> Iterator[Reader]:
    import h5py
    import hdf5plugin  # noqa: F401 - registers filters

    root = source.group or "/"
    if (path := source.object.local_path) is not None:
        with h5py.File(path, "r", locking=False) as file:
            yield _Hdf5(file[root])
    else:
        with source.file() as opened, h5py.File(opened, "r") as file:
            yield _Hdf5(file[root])


# -- netCDF-3 --------------------------------------------------------------------------------


class _Netcdf3(Record):
    file: Any
    copy: SparseCopy | None
    name: str = "scipy"

    def shape(self, path: str) -> tuple[int, ...]:
        return tuple(self.file.variables[path].data.shape)

    def read(self, path: str, region: Region, _: ChunkPlace) -> Expected:
        view = self.file.variables[path].data[region]
        if self.copy is not None and view.size:
            self.copy.fill(_byte_ranges(view))
        return Expected(np.array(view))  # a copy: the mapped file must not outlive the reader


def _byte_ranges(view: NDArray[Any]) -> list[tuple[int, int]]:
    """Find the bytes of a mapped file that a view is made of; records lie apart."""
    whole: Any = view
    while isinstance(whole.base, np.ndarray):
        whole = whole.base
    begin = whole.__array_interface__["data"][0]
    is_whole = view.ndim == 0 or view.flags.c_contiguous
    rows = [view] if is_whole else [view[number : number + 1] for number in range(len(view))]
    bounds = map(np.lib.array_utils.byte_bounds, rows)
    return [(low - begin, high - begin) for low, high in bounds]


def _netcdf3(source: Source) -> Iterator[Reader]:
    from scipy.io import netcdf_file

    path = source.object.local_path
    with ExitStack() as stack:
        copy = None
        if path is None:
            copy = stack.enter_context(SparseCopy(source.object, source.object.size()))
        try:
            opened = netcdf_file(path if copy is None else copy, mmap=True)
        except TypeError as error:  # what scipy raises for CDF-5
            raise NotComparableError(f"scipy cannot read it: {error}") from error
        yield _Netcdf3(stack.enter_context(opened), copy)


# -- FITS ------------------------------------------------------------------------------------


class _Fits(Record):
    units: Mapping[str, Any]
    scaled: Mapping[str, Any]
    """The same units, whose values astropy decodes."""
    name: str = "astropy"

    def shape(self, path: str) -> tuple[int, ...]:
        return tuple(self._unit(path).shape)

    def _unit(self, path: str) -> Any:
        if path not in self.units and path[-2:] in {"_x", "_y", "_z"}:
            raise NotComparableError("it is computed from the header, not stored")
        return self.units[path]

    def read(self, path: str, region: Region, _: ChunkPlace) -> Expected:
        from astropy.io import fits

        unit, scaled = self._unit(path), self.scaled[path]
        if isinstance(unit, fits.CompImageHDU) or scaled.section.dtype.kind in "iu":
            return Expected(np.asarray(scaled.section[region]))
        stored = np.asarray(unit.section[region])
        if "BSCALE" not in unit.header and "BZERO" not in unit.header:
            return Expected(stored)
        scale, zero = float(unit.header.get("BSCALE", 1)), float(unit.header.get("BZERO", 0))
        physical = stored.astype(np.float64) * scale + zero
        return Expected(physical, _ROUNDING * max(abs(zero), _largest(physical)))


_ROUNDING: Final = 1e-14
"""Codecs divide by the reciprocal of a scale, which rounds the last digits otherwise."""


def _largest(values: NDArray[Any]) -> float:
    finite = np.abs(values[np.isfinite(values)])
    return float(finite.max(initial=0.0))


def _fits(source: Source) -> Iterator[Reader]:
    from astropy.io import fits

    with (
        source.file() as file,
        fits.open(file, memmap=False, do_not_scale_image_data=True) as units,
    ):
        names = fits_names(units)
        with source.file() as again, fits.open(again, memmap=False) as scaled:
            yield _Fits(dict(zip(names, units, strict=True)), dict(zip(names, scaled, strict=True)))


# -- TIFF ------------------------------------------------------------------------------------


class _Tiff(Record):
    file: Any
    name: str = "tifffile"

    def shape(self, path: str) -> tuple[int, ...]:
        pages, name = self._pages(path)
        planes, _, rows, columns, samples = pages[0].shaped
        if name != DATA:
            return {
                "x": (columns,),
                "y": (rows,),
                "band": (planes * samples,),
                "mask": (rows, columns),
            }.get(name, ())
        leading = tuple(length for _, length in stack_of(pages[0].description, len(pages)))
        bands = (planes * samples,) if planes * samples > 1 or len(pages) == 1 else ()
        return (*leading, *bands, rows, columns)

    def read(self, path: str, region: Region, _: ChunkPlace) -> Expected:
        pages, name = self._pages(path)
        if name in {"x", "y"}:
            return Expected(self._centres(pages[0], name)[region], _CENTRES)
        if name == "band":
            return Expected(np.arange(1, 1 + self.shape(path)[0])[region])
        if name == "spatial_ref":
            return Expected(np.array(0))
        shape = self.shape(path)
        bands = 1 if name == DATA and (len(pages) == 1 or pages[0].samplesperpixel > 1) else 0
        depth = len(shape) - 2 - bands
        leading, inner = region[:depth], region[depth:]
        numbers = np.arange(len(pages)).reshape(shape[:depth])[leading]
        parts = [_decoded(pages[number], inner) for number in numbers.ravel().tolist()]
        lengths = [part.stop - part.start for part in region]
        values = np.stack(parts).reshape(lengths)
        if values.dtype == np.bool_:
            values = values.astype(np.uint8) * np.uint8(255 if name == "mask" else 1)
        return Expected(values)

    def _pages(self, path: str) -> tuple[list[Any], str]:
        """Find the pages of an array, the first ones by kind, as a person would."""
        group, _, name = path.rpartition("/")
        images = [page for page in self.file.pages if not page.subfiletype & 5]
        images = images or [self.file.pages[0]]
        kinds: dict[Any, list[Any]] = {}
        for page in images:
            kinds.setdefault((page.shaped, page.dtype, page.compression, page.chunks), []).append(
                page
            )
        if group.startswith("overview_"):
            below = [sub for page in self.file.pages for sub in page.pages or ()]
            others = [page for page in [*self.file.pages, *below] if page not in images]
            reduced = [page for page in others if not page.subfiletype & 4]
            reduced.sort(key=lambda page: page.shaped[2:4], reverse=True)
            return [reduced[int(group.removeprefix("overview_")) - 1]], name
        if name == "mask":
            return [page for page in self.file.pages if page.subfiletype & 4][:1], name
        number = int(group.removeprefix("image_")) if group.startswith("image_") else 0
        if number >= len(kinds) or name not in {DATA, "x", "y", "band", "spatial_ref"}:
            raise KeyError(path)
        return list(kinds.values())[number], name

    def _centres(self, page: Any, name: str) -> NDArray[np.float64]:
        """Compute the centres of pixels from the tags of the first image."""
        first = self.file.pages[0]
        tags = first.geotiff_tags
        axis = 0 if name == "x" else 1
        whole, own = first.shaped[3 - axis], page.shaped[3 - axis]
        if "ModelTransformation" in tags:
            matrix = np.asarray(tags["ModelTransformation"], float).reshape(4, 4)
            step, start = matrix[axis, axis], matrix[axis, 3]
        elif "ModelPixelScale" in tags:
            point = tags["ModelTiepoint"]
            step = tags["ModelPixelScale"][axis] * (-1 if axis else 1)
            start = point[3 + axis] - point[axis] * step
        else:
            raise NotComparableError("tifffile finds no coordinates of pixels")
        if int(tags.get("GTRasterTypeGeoKey", 1)) == 2:
            start -= step / 2
        centres: NDArray[np.float64] = start + step * whole / own * (np.arange(own) + 0.5)
        return centres


_CENTRES: Final = 1e-9


def _decoded(page: Any, region: Region) -> NDArray[Any]:
    """Decode the strips or tiles of a page that a region meets."""
    planes, _depth, _rows, _columns, samples = page.shaped
    bands, rows, columns = region if len(region) == 3 else (slice(0, 1), *region)
    values = np.zeros([part.stop - part.start for part in (bands, rows, columns)], page.dtype)
    if page.nodata is not None:
        values[...] = page.nodata
    for number, (offset, size) in enumerate(
        zip(page.dataoffsets, page.databytecounts, strict=True)
    ):
        _, (plane, _, row, column, _), extent = page.decode(None, number)
        first = plane if planes > 1 else 0
        low = (first, row, column)
        high = (first + (1 if planes > 1 else samples), row + extent[1], column + extent[2])
        box = _overlap((bands, rows, columns), low, high)
        if box is None or not size:
            continue
        page.parent.filehandle.seek(offset)
        data = page.parent.filehandle.read(size)
        segment, _, extent = page.decode(data, number, jpegtables=page.jpegtables)
        decoded = np.moveaxis(segment.reshape(extent)[0], -1, 0)
        source = tuple(slice(a - c, b - c) for (a, b), c in zip(box, low, strict=True))
        origin = (bands.start, rows.start, columns.start)
        target = tuple(slice(a - c, b - c) for (a, b), c in zip(box, origin, strict=True))
        values[target] = decoded[source]
    return values.reshape([part.stop - part.start for part in region])


def _overlap(
    region: Region, low: tuple[int, ...], high: tuple[int, ...]
) -> list[tuple[int, int]] | None:
    box = [
        (max(part.start, a), min(part.stop, b))
        for part, a, b in zip(region, low, high, strict=True)
    ]
    return box if all(a < b for a, b in box) else None


def _tiff(source: Source) -> Iterator[Reader]:
    import tifffile

    with source.file() as file, tifffile.TiffFile(file) as opened:
        yield _Tiff(opened)


# -- GRIB ------------------------------------------------------------------------------------


class _Grib(Record):
    """Messages have no names: the one at the place of a chunk is read, and must be the right one.

    Its parameter must be that of the array, and its time, its step, its level and its grid those of
    the coordinates of the dataset. Values come from gribberish, which shares no code with ecCodes,
    where it knows the grid and the packing.
    """

    file: BinaryIO
    library: Any
    name: str = "eccodes"

    def shape(self, _: str) -> None:
        return None

    def read(self, path: str, region: Region, chunk: ChunkPlace) -> Expected:
        if chunk.offset is None:
            raise NotComparableError("it is computed from the headers of messages, not stored")
        message = field_message(self._message(chunk.offset), chunk.field)
        handle = self.library.codes_new_from_message(message)
        try:
            return self._expected(handle, message, path.rpartition("/")[2], region, chunk)
        finally:
            self.library.codes_release(handle)

    def _message(self, offset: int) -> bytes:
        self.file.seek(offset)
        head = self.file.read(16)
        if head[:4] != b"GRIB":
            raise OtherChunkError("a GRIB message", f"bytes that begin with {head[:4]!r}")
        size = int.from_bytes(head[8:16]) if head[7] == 2 else int.from_bytes(head[4:7])
        if head[7] == 1 and size & 0x800000:
            raise NotComparableError("it is in a message of more than 8 MB of GRIB 1")
        self.file.seek(offset)
        return self.file.read(size)

    def _expected(
        self, handle: Any, message: bytes, name: str, region: Region, chunk: ChunkPlace
    ) -> Expected:
        shape = [part.stop - part.start for part in region]
        if name in {"latitude", "longitude"}:
            points = self.library.codes_get_array(handle, f"{name}s")
            period = 360.0 if name == "longitude" else 0.0
            return Expected(_shaped(points, shape), _MICRODEGREES, period)
        self._compare_parameter(handle, chunk.attributes)
        self._compare_axes(handle, chunk.axes)
        values = self._values(handle, message)
        return Expected(_shaped(values, shape), self._tolerance(handle, _largest(values)))

    def _values(self, handle: Any, message: bytes) -> NDArray[np.float64]:
        packing, grid = self._get(handle, "packingType"), self._get(handle, "gridType")
        is_known = packing in _GRIBBERISH and grid == "regular_ll"
        if is_known and self._get(handle, "edition") == 2 and not self._get(handle, "NV"):
            with suppress(ImportError):
                import gribberish

                decoded = gribberish.parse_grib_array(message, 0)
                return np.asarray(decoded, np.float64).ravel()
        values = np.asarray(self.library.codes_get_values(handle), np.float64)
        if self._get(handle, "bitmapPresent"):
            values = np.where(values == self._get(handle, "missingValue"), np.nan, values)
        return values

    def _tolerance(self, handle: Any, largest: float) -> float:
        """Return a hundredth of the step between packed values: decoders may round otherwise."""
        binary = self._get(handle, "binaryScaleFactor")
        decimal = self._get(handle, "decimalScaleFactor")
        if binary is None or decimal is None:
            return _ROUNDING * largest
        return max(float(2.0**binary * 10.0**-decimal) / 100, _ROUNDING * largest)

    def _compare_parameter(self, handle: Any, attributes: Mapping[str, Any]) -> None:
        for key in ("shortName", "paramId", "typeOfLevel", "stepType", "gridType"):
            actual, recorded = self._get(handle, key), attributes.get(f"GRIB_{key}")
            if None not in {actual, recorded} and actual != recorded:
                raise OtherChunkError(f"a message with {key} {actual}", f"{key} {recorded}")

    def _compare_axes(self, handle: Any, axes: Mapping[str, Axis]) -> None:
        for name, axis in axes.items():
            expected = self._along(handle, name, axis)
            recorded = np.asarray(axis.values, np.float64).ravel()
            if expected is None:
                continue
            same = recorded.shape == expected.shape and np.allclose(
                recorded, expected, rtol=1e-9, atol=_MICRODEGREES
            )
            if not same:
                raise OtherChunkError(
                    f"a message with {name} {_brief(expected)}", f"{name} {_brief(recorded)}"
                )

    def _along(self, handle: Any, name: str, axis: Axis) -> NDArray[np.float64] | None:
        """Return what a GRIB message states about a coordinate; None if it states nothing."""
        match name:
            case "time":
                return self._moment(handle, "dataDate", "dataTime")
            case "valid_time":
                return self._moment(handle, "validityDate", "validityTime")
            case "step":
                first = self._moment(handle, "dataDate", "dataTime")
                valid = self._moment(handle, "validityDate", "validityTime")
                return (valid - first) / 3600
            case "number":
                number = self._get(handle, "perturbationNumber")
                return None if number is None else np.array([float(number)])
            case "latitude" | "longitude":
                return self._degrees(handle, name, axis)
            case level if level == self._get(handle, "typeOfLevel"):
                return np.array([self.library.codes_get_double(handle, "level")])
            case _:
                return None

    def _moment(self, handle: Any, day_key: str, time_key: str) -> NDArray[np.float64]:
        day, time = self._get(handle, day_key), self._get(handle, time_key)
        moment = datetime(
            day // 10000, day // 100 % 100, day % 100, time // 100, time % 100, tzinfo=UTC
        )
        return np.array([moment.timestamp()])

    def _degrees(self, handle: Any, name: str, axis: Axis) -> NDArray[np.float64] | None:
        if self._get(handle, "gridType") not in {"regular_ll", "regular_gg"}:
            return None
        grid = (self._get(handle, "Nj"), self._get(handle, "Ni"))
        points = self.library.codes_get_array(handle, f"{name}s").reshape(grid)
        along = points[:, 0] if name == "latitude" else points[0]
        if name == "longitude":
            turns = np.round((along - np.asarray(axis.values, np.float64).ravel()) / 360)
            along = along - 360 * turns
        degrees: NDArray[np.float64] = along
        return degrees

    def _get(self, handle: Any, key: str) -> Any:
        try:
            if self.library.codes_is_missing(handle, key):
                return None
            return self.library.codes_get(handle, key)
        except self.library.KeyValueNotFoundError:
            return None


_GRIBBERISH: Final = frozenset(
    {
        "grid_simple",
        "grid_ccsds",
        "grid_jpeg",
        "grid_png",
        "grid_complex",
        "grid_complex_spatial_differencing",
    }
)
"""Packings that gribberish decodes, too."""

_MICRODEGREES: Final = 2e-6
"""Grids of GRIB are given to a millionth of a degree."""


def _shaped(values: NDArray[Any], shape: list[int]) -> NDArray[Any]:
    if values.size != math.prod(shape):
        raise OtherChunkError(f"{values.size} values", f"a chunk of {math.prod(shape)}")
    return values.reshape(shape)


def _brief(values: NDArray[np.float64]) -> str:
    first, last = values[0].item(), values[-1].item()
    return f"{first}" if len(values) == 1 else f"{first} to {last} ({len(values)} values)"


def _grib(source: Source) -> Iterator[Reader]:
    eccodes = load_eccodes()
    with source.file() as file:
        yield _Grib(file, eccodes)


# -- Zarr ------------------------------------------------------------------------------------


class _Zarr(Record):
    store: ReadingStore
    group: str
    name: str = "zarr"

    def shape(self, path: str) -> tuple[int, ...]:
        return self._array(path).shape

    def read(self, path: str, region: Region, _: ChunkPlace) -> Expected:
        return Expected(np.asarray(self._array(path)[region]))

    def _array(self, path: str) -> "zarr.Array[Any]":
        whole = joined_path(self.group, path)
        try:
            return zarr.open_array(self.store, path=whole, mode="r")
        except FileNotFoundError as error:
            raise KeyError(path) from error


def _zarr(source: Source) -> Iterator[Reader]:
    yield _Zarr(ReadingStore(source.object.backend, source.object.key), source.group)


_OPENERS: Final[dict[Format, Callable[[Source], Iterator[Reader]]]] = {
    Format.HDF5: _hdf5,
    Format.NETCDF3: _netcdf3,
    Format.FITS: _fits,
    Format.TIFF: _tiff,
    Format.GRIB: _grib,
    Format.ZARR: _zarr,
}
