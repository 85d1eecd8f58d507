"""Codecs for chunks of foreign files that zarr has no codec for.

zarr finds them by name once Icefloe is installed, without an import of it.
"""

import zlib
from base64 import standard_b64decode
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from io import BytesIO
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Self, override

import numpy as np
from numpy.typing import NDArray
from zarr.abc.codec import ArrayBytesCodec

from icefloe.effects import offload
from icefloe.errors import ErrorKind, FormatError, SourceError

if TYPE_CHECKING:
    from zarr.core.array_spec import ArraySpec
    from zarr.core.buffer import Buffer, NDBuffer

type Compression = Literal[
    "none",
    "deflate",
    "lzw",
    "packbits",
    "lzma",
    "zstd",
    "jpeg",
    "jpeg2000",
    "jpegxl",
    "webp",
    "lerc",
    "lerc-deflate",
    "lerc-zstd",
]
"""How the bytes of a strip or tile are compressed."""

_IMAGES: Final = frozenset(
    {"jpeg", "jpeg2000", "jpegxl", "webp", "lerc", "lerc-deflate", "lerc-zstd"}
)
"""Compressions whose result has a shape and a data type."""


TIFF_SEGMENT: Final = "icefloe.tiff"
"""The name of the codec."""
FITS_IMAGE: Final = "icefloe.fits"
"""The name of the codec."""
GRIB_FIELD: Final = "icefloe.grib"
"""The name of the codec."""


@dataclass(frozen=True)
class _ForeignCodec(ArrayBytesCodec):
    """Decodes chunks in foreign files, and encodes none."""

    is_fixed_size = False
    _name: ClassVar[str]
    _content: ClassVar[str]
    """What an array refers to."""

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Make the codec from its metadata."""
        settings = data.get("configuration") or {}
        if unknown := settings.keys() - {field.name for field in fields(cls)}:
            raise FormatError(f"the codec {cls._name} has no setting {min(unknown)!r}")
        return cls(**settings)

    @override
    def to_dict(self) -> dict[str, Any]:
        """Return the metadata: settings that are not the defaults."""
        settings = {
            field.name: value
            for field, value in zip(fields(self), asdict(self).values(), strict=True)
            if value != field.default
        }
        return {"name": self._name, "configuration": settings}

    @override
    def compute_encoded_size(self, input_byte_length: int, _chunk_spec: "ArraySpec") -> int:
        """Refuse: the size follows from the content."""
        raise NotImplementedError

    @override
    async def _decode_single(self, chunk_data: "Buffer", chunk_spec: "ArraySpec") -> "NDBuffer":
        return await offload(lambda: self._decode_sync(chunk_data, chunk_spec))

    def _decode_sync(self, chunk_data: "Buffer", chunk_spec: "ArraySpec") -> "NDBuffer":
        kind = chunk_spec.dtype.to_native_dtype()
        values = self.decoded(chunk_data.to_bytes(), chunk_spec.shape, kind)
        return chunk_spec.prototype.nd_buffer.from_ndarray_like(values)

    @override
    async def _encode_single(self, chunk_data: "NDBuffer", chunk_spec: "ArraySpec") -> "Buffer":
        return self._encode_sync(chunk_data, chunk_spec)

    def _encode_sync(self, _chunk_data: "NDBuffer", _chunk_spec: "ArraySpec") -> "Buffer":
        raise SourceError(
            f"this array refers to {self._content}, and no chunks can be written in their"
            " format: copy the data first (icefloe rechunk), and write to the copy",
            ErrorKind.SOURCE_UNSUPPORTED,
        )

    def decoded(self, data: bytes, shape: tuple[int, ...], kind: np.dtype[Any]) -> NDArray[Any]:
        """Decode bytes to a chunk of a shape and data type."""
        raise NotImplementedError


@dataclass(frozen=True)
class TiffSegment(_ForeignCodec):
    """A strip or tile of a TIFF file: the last dimensions of its chunk are band, y and x.

    A strip may have fewer rows than the chunk; the rest is zero and lies outside of the array.

    >>> TiffSegment("lzw", predictor=2).to_dict()["configuration"]
    {'compression': 'lzw', 'predictor': 2}
    """

    _name = TIFF_SEGMENT
    _content = "chunks of TIFF files"

    compression: Compression = "none"
    endian: Literal["little", "big"] = "little"
    predictor: Literal[1, 2, 3] = 1
    """1 for none, 2 for differences of neighbours, 3 for those of the bytes of floats."""
    bits: int = 0
    """Bits of a packed sample; 0 for samples of whole bytes."""
    reversed_bits: bool = False
    """Whether the first pixel is in the lowest bit of a byte."""
    colours: Literal["", "ycbcr", "rgb", "gray", "cmyk"] = ""
    """What a JPEG image stores."""
    tables: str = ""
    """Tables that all JPEG images of a file share, as base64."""
    scale: int = 1
    """By which samples are multiplied: masks of one bit are stored as 0 and 255."""

    @override
    def decoded(self, data: bytes, shape: tuple[int, ...], kind: np.dtype[Any]) -> NDArray[Any]:
        """Decode a strip or tile to a chunk of a shape and data type."""
        *_, bands, rows, columns = (1, *shape)
        expected = (rows, columns, bands)
        if self.compression in _IMAGES:
            pixels = self._image(data, expected)
        else:
            pixels = self._pixels(data, expected, kind)
        if pixels.shape[1:] != (columns, bands):
            height, width, samples = pixels.shape
            raise FormatError(
                f"a strip or tile of a TIFF file has {height} x {width} pixels of {samples}"
                f" samples, instead of {rows} x {columns} pixels of {bands}"
            )
        chunk = np.zeros((bands, rows, columns), kind)
        chunk[:, : len(pixels)] = np.moveaxis(pixels[:rows], 2, 0)
        if self.scale != 1:
            chunk *= kind.type(self.scale)
        return chunk.reshape(shape)

    def _pixels(
        self, data: bytes, shape: tuple[int, int, int], kind: np.dtype[Any]
    ) -> NDArray[Any]:
        """Decode bytes to rows of pixels; there may be fewer rows than in the shape."""
        rows, columns, bands = shape
        row_bytes = -(-columns * bands * (self.bits or 8 * kind.itemsize) // 8)
        if self.reversed_bits:
            bits = np.unpackbits(np.frombuffer(data, np.uint8))
            data = np.packbits(bits, bitorder="little").tobytes()
        plain = self._decompressed(data, rows * row_bytes)
        present = min(len(plain) // row_bytes, rows)
        if not present:
            raise FormatError(
                f"a strip or tile of a TIFF file has {len(plain)} bytes, and its rows {row_bytes}"
            )
        raw = np.frombuffer(plain, np.uint8, present * row_bytes)
        if self.bits:
            unpack = _imagecodecs().packints_decode
            samples = unpack(raw.tobytes(), kind.str, self.bits, runlen=columns * bands)
            return np.asarray(samples).reshape(present, columns, bands)
        if self.predictor == 3:
            return _from_float_differences(raw, (present, columns, bands), kind)
        stored = raw.view(kind.newbyteorder(self.endian)).reshape(present, columns, bands)
        if self.predictor == 2:
            unsigned = np.dtype(f"u{kind.itemsize}")
            differences = stored.astype(kind).view(unsigned)
            return differences.cumsum(axis=1, dtype=unsigned).view(kind)
        return stored

    def _decompressed(self, data: bytes, most: int) -> bytes:
        match self.compression:
            case "none":
                return data
            case "deflate":
                return zlib.decompressobj().decompress(data, most)
            case name:
                decoded: bytes = getattr(_imagecodecs(), f"{name}_decode")(data, out=most)
                return decoded

    def _image(self, data: bytes, shape: tuple[int, int, int]) -> NDArray[Any]:
        codecs = _imagecodecs()
        rows, columns, bands = shape
        match self.compression:
            case "jpeg":
                spaces = _COLOUR_SPACES.get(self.colours, (None, None))
                pixels = codecs.jpeg_decode(
                    data,
                    tables=standard_b64decode(self.tables) or None,
                    colorspace=spaces[0],
                    outcolorspace=spaces[1],
                    shape=(rows, columns),
                )
            case "webp":
                pixels = codecs.webp_decode(data, hasalpha=bands == 4)
            case "jpeg2000":
                pixels = codecs.jpeg2k_decode(data)
            case "jpegxl":
                pixels = codecs.jpegxl_decode(data)
            case other:
                if other == "lerc-deflate":
                    data = codecs.zlib_decode(data)
                elif other == "lerc-zstd":
                    data = codecs.zstd_decode(data)
                pixels = _from_lerc(data)
        return np.asarray(pixels).reshape(
            -1, pixels.shape[1], max(1, pixels.size // (pixels.shape[0] * pixels.shape[1]))
        )


_COLOUR_SPACES: Final = {
    "ycbcr": ("YCBCR", "RGB"),
    "rgb": ("RGB", "RGB"),
    "gray": ("GRAYSCALE", "GRAYSCALE"),
    "cmyk": ("CMYK", "CMYK"),
}


def _from_lerc(data: bytes) -> NDArray[Any]:
    values, masks = _imagecodecs().lerc_decode(data, masks=True)
    if masks is not None and values.dtype.kind == "f":
        valid = np.asarray(masks, np.bool_)
        values = np.where(valid if valid.ndim == values.ndim else valid[..., None], values, np.nan)
    decoded: NDArray[Any] = values
    return decoded


def _from_float_differences(
    raw: NDArray[np.uint8], shape: tuple[int, int, int], kind: np.dtype[Any]
) -> NDArray[Any]:
    """Undo predictor 3: rows hold the highest bytes of all floats first, as differences."""
    rows, columns, bands = shape
    differences = raw.reshape(rows, columns * kind.itemsize, bands)
    planes = differences.cumsum(axis=1, dtype=np.uint8).reshape(rows, kind.itemsize, -1)
    together = np.ascontiguousarray(planes.transpose(0, 2, 1))
    floats: NDArray[Any] = together.view(kind.newbyteorder(">")).reshape(shape)
    return floats


def _imagecodecs() -> Any:
    try:
        import imagecodecs
    except ImportError as error:
        raise SourceError(
            "the chunk is compressed in a way that needs the library imagecodecs:"
            ' pip install "icefloe[formats]"',
            ErrorKind.SOURCE_UNSUPPORTED,
        ) from error
    return imagecodecs


@dataclass(frozen=True)
class FitsImage(_ForeignCodec):
    """An image of a FITS file that no codec of Zarr decodes.

    >>> FitsImage(stored=">i2").to_dict()
    {'name': 'icefloe.fits', 'configuration': {'stored': '>i2'}}
    """

    _name = FITS_IMAGE
    _content = "images of FITS files"

    compressed: bool = False
    """Whether the bytes are a whole unit with compressed tiles, which astropy decodes."""
    stored: str = ""
    """Otherwise, the type of integers that are stored with the other sign."""

    @override
    def decoded(self, data: bytes, shape: tuple[int, ...], kind: np.dtype[Any]) -> NDArray[Any]:
        """Decode an image to a chunk of a shape and data type."""
        values = self._unpacked(data) if self.compressed else self._with_other_sign(data, kind)
        if values.size != int(np.prod(shape)) or values.dtype.kind != kind.kind:
            raise FormatError(
                f"the FITS image has {values.size} values of the type {values.dtype}, instead of"
                f" {int(np.prod(shape))} of {kind}"
            )
        return values.reshape(shape).astype(kind, copy=False)

    def _with_other_sign(self, data: bytes, kind: np.dtype[Any]) -> NDArray[Any]:
        stored = np.dtype(self.stored)
        if len(data) % stored.itemsize or stored.itemsize != kind.itemsize:
            raise FormatError(f"the FITS image has {len(data)} bytes, for values of {stored}")
        bits = (
            np.frombuffer(data, stored).astype(stored.newbyteorder("=")).view(f"u{kind.itemsize}")
        )
        flipped: NDArray[Any] = bits ^ bits.dtype.type(1 << (8 * kind.itemsize - 1))
        return flipped.view(kind)

    def _unpacked(self, data: bytes) -> NDArray[Any]:
        try:
            from astropy.io import fits
        except ImportError as error:
            raise SourceError(
                'compressed images of FITS files need astropy: pip install "icefloe[formats]"',
                ErrorKind.SOURCE_UNSUPPORTED,
            ) from error
        start = fits.PrimaryHDU().header.tostring().encode()
        try:
            with fits.open(BytesIO(start + data), memmap=False) as units:
                return np.array(units[1].data)
        except (OSError, ValueError, IndexError, KeyError, TypeError) as error:
            raise FormatError(f"astropy cannot decode the FITS image: {error}") from error


@dataclass(frozen=True)
class GribField(_ForeignCodec):
    """A field of a GRIB message, decoded by ecCodes.

    The last dimensions of its chunk are those of the grid, with points in the order in which the
    message has them. Missing points are NaN.

    >>> GribField().to_dict()
    {'name': 'icefloe.grib', 'configuration': {}}
    """

    _name = GRIB_FIELD
    _content = "messages of GRIB files"

    key: Literal["values", "latitudes", "longitudes"] = "values"
    """What is read of the message: its values, or the coordinates of its points."""
    field: int = 0
    """The number of the field, in messages that have several."""

    @override
    def decoded(self, data: bytes, shape: tuple[int, ...], kind: np.dtype[Any]) -> NDArray[Any]:
        """Decode a message to a chunk of a shape and data type."""
        library = load_eccodes()
        single = field_message(data, self.field)
        try:
            handle = library.codes_new_from_message(single)
            try:
                if self.key == "values":
                    library.codes_set_double(handle, "missingValue", _MISSING)
                    values = library.codes_get_values(handle)
                    values[values == _MISSING] = np.nan
                else:
                    values = library.codes_get_array(handle, self.key)
            finally:
                library.codes_release(handle)
        except library.CodesInternalError as error:
            raise FormatError(f"ecCodes cannot decode the GRIB message: {error}") from error
        count = int(np.prod(shape))
        if len(values) != count:
            raise FormatError(f"the GRIB message has {len(values)} points, instead of {count}")
        chunk: NDArray[Any] = np.asarray(values, kind).reshape(shape)
        return chunk


_MISSING: Final = -1e300
"""Stands for missing points while ecCodes decodes: no unit makes such a number."""

_GRIB2_HEAD: Final = 16
_END: Final = b"7777"


def field_message(data: bytes, number: int) -> bytes:
    """Return a field of a GRIB message as a message of its own.

    A message of edition 2 may have several fields, which share sections.
    """
    if len(data) < _GRIB2_HEAD or data[:4] != b"GRIB" or data[-4:] != _END:
        raise FormatError(f"the chunk is no GRIB message: it begins with {data[:4]!r}")
    if not number and data[7] != 2:
        return data
    sections: dict[int, bytes] = {}
    position, seen = _GRIB2_HEAD, -1
    while data[position : position + 4] != _END:
        length = int.from_bytes(data[position : position + 4])
        section = data[position + 4] if position + 5 <= len(data) - 4 else 0
        if length < 5 or not 1 <= section <= 7 or position + length > len(data) - 4:
            raise FormatError("the sections of the GRIB message do not fit together")
        position += length
        if section == 7:
            seen += 1
            if seen == number:
                if not number and position == len(data) - 4:
                    return data
                sections[7] = data[position - length : position]
                return joined_sections(data[:8], sections)
        elif section == 6 and data[position - length + 5] == _EARLIER_BITMAP:
            if 6 not in sections:
                raise FormatError("a field of the GRIB message refers to a mask that is missing")
        else:
            sections[section] = data[position - length : position]
    raise FormatError(f"the GRIB message has {seen + 1} fields, and number {number} is needed")


_EARLIER_BITMAP: Final = 254


def joined_sections(start: bytes, sections: Mapping[int, bytes]) -> bytes:
    """Make a GRIB message of edition 2: `start` is the beginning of another one."""
    body = b"".join(sections[number] for number in sorted(sections)) + _END
    return start[:8] + (_GRIB2_HEAD + len(body)).to_bytes(8) + body


def load_eccodes() -> Any:
    """Import eccodes.

    Its wheels bring a PROJ of their own and share its symbols with all libraries that are loaded
    later: with pyproj among these, the process would crash at its end.
    """
    with suppress(ImportError):
        import pyproj  # noqa: F401 - before eccodes
    try:
        import eccodes
    except ImportError as error:
        raise SourceError(
            'GRIB needs the library eccodes: pip install "icefloe[formats]"',
            ErrorKind.SOURCE_UNSUPPORTED,
        ) from error
    return eccodes
