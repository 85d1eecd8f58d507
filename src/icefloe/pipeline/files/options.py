"""Options of parsing and combining, as plain values that travel, and the formats of files.

The format of a file follows from its first bytes and, where these say little, from its name.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, Final, Literal

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.pipeline.files import FILES_CHECKED
from icefloe.pipeline.files.file_names import name_pattern
from icefloe.records import Record, field

HEAD_BYTES: Final = 4096
"""How much of a file is looked at."""

_HDF5: Final = b"\x89HDF\r\n\x1a\n"
_HDF5_STARTS: Final = (0, 512, 1024, 2048)  # behind a user block of such a size
_TIFF: Final = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_GRIB_WITHIN: Final = 256  # bulletins of the WMO put a heading before
_HDF4: Final = b"\x0e\x03\x13\x01"
_GZIP: Final = b"\x1f\x8b"
_DMRPP: Final = re.compile(rb"<(\w+:)?Dataset\b[^>]*(dmrpp|xml\.opendap\.org)", re.DOTALL)


class Format(StrEnum):
    """Kinds of files that can be virtualised.

    >>> Format.ZARR.is_directory, Format.GRIB.is_directory
    (True, False)
    """

    HDF5 = "hdf5"
    NETCDF3 = "netcdf3"
    GRIB = "grib"
    TIFF = "tiff"
    FITS = "fits"
    ZARR = "zarr"
    KERCHUNK_JSON = "kerchunk-json"
    KERCHUNK_PARQUET = "kerchunk-parquet"
    DMRPP = "dmrpp"

    @property
    def is_directory(self) -> bool:
        """Return whether a source is many objects below one URL."""
        return self in {Format.ZARR, Format.KERCHUNK_PARQUET}


def format_of_name(url: str) -> Format | None:
    """Guess by the name alone whether a URL names a directory of objects.

    >>> format_of_name("s3://bucket/cube.zarr/")
    <Format.ZARR: 'zarr'>
    """
    name = url.rstrip("/").rpartition("/")[2].lower()
    if name.endswith(".zarr"):
        return Format.ZARR
    if name.endswith((".parq", ".parquet")):
        return Format.KERCHUNK_PARQUET
    return None


def detect_format(head: bytes) -> Format | None:
    """Detect the format of a file by its first bytes; return None if it is unknown.

    >>> detect_format(b"CDF" + bytes([2]))
    <Format.NETCDF3: 'netcdf3'>
    """
    if any(head.startswith(_HDF5, start) for start in _HDF5_STARTS):
        return Format.HDF5
    if head[:3] == b"CDF" and head[3:4] in {b"\1", b"\2", b"\5"}:
        return Format.NETCDF3
    if head.startswith(_TIFF):
        return Format.TIFF
    if head.startswith(b"SIMPLE  ="):
        return Format.FITS
    if b"GRIB" in head[:_GRIB_WITHIN]:
        return Format.GRIB
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if text.startswith(b"{"):
        return Format.KERCHUNK_JSON
    if text.startswith(b"<") and _DMRPP.search(text):
        return Format.DMRPP
    return None


def describe_unknown(head: bytes) -> str:
    """Describe a file whose format is unknown."""
    if not head:
        return "it is empty"
    if head.startswith(_HDF4):
        return "it is HDF4, which is not supported: convert it, or give its DMR++"
    if head.startswith(_GZIP):
        return "it is compressed with gzip as a whole, so parts of it cannot be read: unpack it"
    names = ", ".join(file_format.value for file_format in Format)
    return f"it begins with {head[:8]!r}, like no kind we know ({names})"


def stored_end(head: bytes) -> int | None:
    """Return the length that an HDF5 or GRIB file declares, or None."""
    for start in _HDF5_STARTS:
        if head.startswith(_HDF5, start):
            return _hdf5_end(head[start:])
    if head.startswith(b"GRIB") and len(head) >= 16:
        return int.from_bytes(head[8:16]) if head[7] == 2 else int.from_bytes(head[4:7])
    return None


def _hdf5_end(superblock: bytes) -> int | None:
    if len(superblock) < 9:
        return None
    version = superblock[8]
    if version in {0, 1}:
        width, first = superblock[13:14], 24 if version == 0 else 28
    else:
        width, first = superblock[9:10], 12
    size = int.from_bytes(width)
    base = superblock[first : first + size]
    end = superblock[first + 2 * size : first + 3 * size]
    if size not in {2, 4, 8} or len(end) < size:
        return None
    return int.from_bytes(base, "little") + int.from_bytes(end, "little")


_ONE_MEBIBYTE: Final = 1 << 20

type AttributeRule = Literal["drop", "first", "promote", "fail"]
"""Attributes that differ from file to file are left out, taken from the first file, made an array
along the first dimension that files are joined along, or a misfit."""

type GapRule = Literal["close", "leave", "fail"]
"""Steps missing between files are closed up, left free for files to come, or a misfit."""

type ValueCheck = int | Literal["all", "none"]
"""How many files of each schema and parser have a few chunks of each variable compared with an
independent reader; `"all"` compares every chunk of every file."""


type Preprocess = Callable[[Any], Any]
"""Gets an `EditableFile`, changes it, and returns it or nothing."""


class ParseOptions(Record):
    """Options of the parsers.

    >>> ParseOptions(("time",), drop=("time_bnds",)).format is None
    True
    """

    concat: tuple[str, ...]
    """Dimensions that files are joined along, the outermost first."""
    format: Format | None = None
    """What all files are; found out for each one if not given."""
    group: str | None = None
    """The group of the files to take as their root."""
    drop: tuple[str, ...] = ()
    """Names of variables to leave out, as they are in the files."""
    overviews: bool = False
    """Whether overviews of TIFF images become groups; otherwise they are left out."""
    load_below: int = _ONE_MEBIBYTE
    """Values of arrays with one dimension are read up to this many bytes."""
    variables: tuple[str, ...] = ()
    """Names of the only variables to take, as they are in the files; their coordinates come along.
    """
    rename: Mapping[str, str] = field(default_factory=dict)
    """By name in the files, other names of variables and dimensions. All other options use them."""
    from_name: str | None = None
    """A pattern of the names of files that tells coordinates, such as `*_%Y%m%d.tif` for `time`,
    or `run_{member:d}.nc`."""
    constants: Mapping[str, int | float | str] = field(default_factory=dict)
    """Coordinates with one value, which all files get."""
    follow_links: bool = False
    """Whether data that HDF5 files keep in other files is copied. Links can name any file of the
    machine that reads them: only for files that are to be trusted."""
    preprocess: Any = None
    """Called with an `EditableFile` for each file, after all other options were applied."""

    @property
    def edits(self) -> bool:
        """Whether the dataset gets anything else than what the files have."""
        choices = (self.drop, self.variables, self.rename, self.constants)
        return any(choices) or self.from_name is not None or self.preprocess is not None

    def __post_init__(self) -> None:
        if self.from_name is not None:
            twice = set(name_pattern(self.from_name).names) & self.constants.keys()
            if twice:
                raise InvalidInputError(
                    f"the names of files tell {min(twice)!r} (from_name={self.from_name!r}), and"
                    " so do constants: leave it out of one of them",
                    ErrorKind.BAD_METADATA,
                )
        both = set(self.drop) & set(self.variables)
        if both:
            raise InvalidInputError(
                f"{min(both)!r} is among the variables to take and those to drop: leave it out of"
                " one of them",
                ErrorKind.BAD_METADATA,
            )
        if len(set(self.rename.values())) < len(self.rename):
            [(twice_named, _)] = Counter(self.rename.values()).most_common(1)
            raise InvalidInputError(
                f"two names are to become {twice_named!r} (rename=...)",
                ErrorKind.BAD_METADATA,
            )


class CombineOptions(Record):
    """Options for the combination of files.

    >>> CombineOptions(("time",), on_misfit="skip").check_values
    2
    """

    concat: tuple[str, ...]
    by: Literal["coordinates", "order"] = "coordinates"
    """Where files go: by the values of their coordinates, or one after the other as given."""
    coordinates: Mapping[str, str] = field(default_factory=dict)
    """By dimension, the array whose values tell where files go; of the same name if not given."""
    on_misfit: Literal["fail", "skip"] = "fail"
    """Whether files that do not fit stop everything, or are left out and recorded."""
    attributes: AttributeRule = "drop"
    gaps: GapRule = "close"
    check_values: ValueCheck = FILES_CHECKED
    """Which files have values compared with an independent reader before anything is written."""
    tolerance: Mapping[str, float] = field(default_factory=dict)
    """By name of a coordinate that files do not differ in, how much its values may differ between
    files. The values of the first file are taken."""
    take_first: tuple[str, ...] = ()
    """Names of coordinates whose values are those of the first file, whatever others have."""
    fill_missing: bool = False
    """Whether variables that some files lack are missing there, instead of a misfit."""
    rectilinear: bool = False
    """Whether chunks along the first dimension of an array that files are joined along may have
    other lengths in each file, such as months. All arrays whose chunks hold several steps then
    get such a grid, which Zarr opens only with a setting."""

    def __post_init__(self) -> None:
        if self.rectilinear and self.gaps == "leave":
            raise InvalidInputError(
                "gaps='leave' needs to know the chunks of files to come, which rectilinear=True"
                " leaves open: leave one of them out",
                ErrorKind.BAD_METADATA,
            )
        for name, most in self.tolerance.items():
            if not (math.isfinite(most) and most >= 0):
                raise InvalidInputError(
                    f"the tolerance of {name!r} is {most}: give a number of at least 0, in the"
                    " units of the coordinate",
                    ErrorKind.BAD_METADATA,
                )
        check = self.check_values
        is_number = isinstance(check, int) and not isinstance(check, bool) and check > 0
        if not is_number and check not in {"all", "none"}:
            raise InvalidInputError(
                f"check_values is {check!r}: give a number of files above 0, 'all' or 'none'",
                ErrorKind.BAD_METADATA,
            )

    def parse_options(self, parse: ParseOptions | None) -> ParseOptions:
        """Return how files are parsed that are put together in this way."""
        options = parse or ParseOptions(self.concat)
        if options.concat != self.concat:
            raise InvalidInputError(
                "files must be parsed for the same dimensions that they are joined along",
                ErrorKind.BAD_METADATA,
            )
        return options
