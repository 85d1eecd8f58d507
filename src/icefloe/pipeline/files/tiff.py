"""The structure of TIFF files: pages, bands, overviews and masks, and where their chunks lie.

A file becomes a dataset as `xarray.open_dataset(..., engine="rasterio")` gives it: the variable
`band_data` with the dimensions band, y and x. Pages of one kind are stacked along a dimension. Only
tags are read, and offsets of strips and tiles become columns.
"""

import base64
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from icefloe.codecs import TIFF_SEGMENT, TiffSegment
from icefloe.pipeline.files.describing import FileContent, RawArray, computed_array
from icefloe.pipeline.files.facts import canonical_json
from icefloe.pipeline.files.geotiff import GeoTags, band_attributes, stack_of
from icefloe.pipeline.files.hdf5 import encoded_fill
from icefloe.pipeline.files.options import ParseOptions
from icefloe.pipeline.files.references import References
from icefloe.pipeline.files.sources import truncated

DATA: Final = "band_data"
"""The name of the variable, as the engine rasterio of xarray has it."""
MASK: Final = "mask"

_TYPES: Final = {
    1: "u1", 2: "S1", 3: "u2", 4: "u4", 5: "u4", 6: "i1", 7: "u1", 8: "i2", 9: "i4", 10: "i4",
    11: "f4", 12: "f8", 13: "u4", 16: "u8", 17: "i8", 18: "u8",
}  # fmt: skip
_PAIRS: Final = frozenset({5, 10})
_MOST_PAGES: Final = 1 << 20

_COMPRESSIONS: Final = {
    1: "none",
    5: "lzw",
    7: "jpeg",
    8: "deflate",
    32773: "packbits",
    32946: "deflate",
    34712: "jpeg2000",
    33005: "jpeg2000",
    34887: "lerc",
    34925: "lzma",
    50000: "zstd",
    50001: "webp",
    50002: "jpegxl",
    52546: "jpegxl",
}
_REFUSED: Final = {
    2: "CCITT RLE", 3: "CCITT Group 3", 4: "CCITT Group 4", 6: "JPEG of the old kind",
    32771: "CCITT RLE/W", 32809: "ThunderScan", 33003: "JPEG 2000 of Aperio",
    34661: "JBIG", 34676: "SGI LogL", 34677: "SGI LogLuv", 34933: "PNG",
}  # fmt: skip
_IMAGES: Final = frozenset({"jpeg", "jpeg2000", "jpegxl", "webp", "lerc"})
_STANDARD: Final[dict[str, dict[str, Any]]] = {
    "deflate": {"name": "numcodecs.zlib", "configuration": {"level": 6}},
    "zstd": {"name": "zstd", "configuration": {"level": 0, "checksum": False}},
}
"""Compressions that zarr has a codec for."""
_COLOURS: Final = {0: "gray", 1: "gray", 2: "rgb", 5: "cmyk", 6: "ycbcr"}
_KINDS: Final = {1: "u", 2: "i", 3: "f", 4: "u", 6: "c"}

type Tags = Mapping[int, Any]
"""By code: text, or an array of numbers."""


class Page:
    """A page (image file directory): what its tags say of pixels."""

    def __init__(self, number: str, tags: Tags, endian: str) -> None:
        self.number, self.tags, self.endian = number, tags, endian

    def value(self, tag: int, default: int = 0) -> int:
        """Return the first number of a tag."""
        numbers = self.tags.get(tag)
        return default if numbers is None or isinstance(numbers, str) else int(numbers[0])

    def text(self, tag: int) -> str:
        """Return the text of a tag."""
        text = self.tags.get(tag, "")
        return text if isinstance(text, str) else ""

    @property
    def is_reduced(self) -> bool:
        """Return whether the page is an overview of another one."""
        return bool(self.value(254) & 1) or self.value(255) == 2

    @property
    def is_mask(self) -> bool:
        """Return whether the page marks the valid pixels of another one."""
        return bool(self.value(254) & 4)

    @property
    def size(self) -> tuple[int, int]:
        """Return height and width."""
        return self.value(257), self.value(256)

    @property
    def samples(self) -> int:
        """Count the samples of a pixel."""
        return self.value(277, 1)

    @cached_property
    def kind(self) -> np.dtype[Any]:
        """Return the data type of samples."""
        bits, formats = self._common(258, 1), self._common(339, 1)
        letter = _KINDS.get(formats)
        if letter == "u" and bits < 32 and bits not in {8, 16}:
            return np.dtype("u1" if bits < 8 else "u2" if bits < 16 else "u4")
        sizes = {"u": (8, 16, 32, 64), "i": (8, 16, 32, 64), "f": (16, 32, 64), "c": (64, 128)}
        if letter is None or bits not in sizes[letter]:
            raise NotImplementedError(f"samples of {bits} bits in the format {formats}")
        return np.dtype(f"{letter}{bits // 8}")

    @property
    def packed_bits(self) -> int:
        """Return the bits of a packed sample; 0 for samples of whole bytes."""
        bits = self._common(258, 1)
        return 0 if bits == 8 * self.kind.itemsize else bits

    def _common(self, tag: int, default: int) -> int:
        """Return a number that all samples must share."""
        numbers = self.tags.get(tag)
        if numbers is None:
            return default
        if len(set(numbers.tolist())) > 1:
            raise NotImplementedError("samples of one pixel with different types")
        return int(numbers[0])

    @property
    def is_separate(self) -> bool:
        """Return whether bands lie one after the other."""
        return self.value(284, 1) == 2 and self.samples > 1

    @property
    def chunk_size(self) -> tuple[int, int]:
        """Return the height and width of a tile or strip."""
        height, width = self.size
        if 322 in self.tags:
            return self.value(323), self.value(322)
        return min(self.value(278, height) or height, height), width

    @cached_property
    def compression(self) -> str:
        """Name the compression."""
        code = self.value(259, 1)
        if code not in _COMPRESSIONS:
            raise NotImplementedError(f"the compression {_REFUSED.get(code, f'number {code}')}")
        return _COMPRESSIONS[code]

    def codecs(self) -> tuple[dict[str, Any], ...]:
        """Return how a strip or tile is decoded: with codecs of zarr alone where possible."""
        compression, predictor = self.compression, self.value(317, 1)
        is_image = compression in _IMAGES
        self._require_supported(compression, predictor)
        height, _ = self.size
        rows, _ = self.chunk_size
        is_short = 322 not in self.tags and height % rows != 0
        is_plain = not (self.packed_bits or self.value(266, 1) == 2 or is_short or is_image)
        if is_plain and predictor == 1 and compression in {"none", *_STANDARD}:
            return self._standard_codecs(compression)
        settings: dict[str, Any] = {"compression": compression}
        if is_image:
            settings |= self._image_settings(compression)
            return (TiffSegment(**settings).to_dict(),)
        if self.endian == "big":
            settings["endian"] = "big"
        if predictor != 1:
            settings["predictor"] = predictor
        if self.packed_bits:
            settings["bits"] = self.packed_bits
            if self.is_mask:
                settings["scale"] = 255
        if self.value(266, 1) == 2:
            settings["reversed_bits"] = True
        return (TiffSegment(**settings).to_dict(),)  # as arrays that are there have it

    def _require_supported(self, compression: str, predictor: int) -> None:
        if predictor not in {1, 2, 3} and compression not in _IMAGES:
            raise NotImplementedError(f"the predictor {predictor}")
        if predictor == 2 and self.packed_bits:
            raise NotImplementedError("differences of packed samples")
        if self.value(262, 1) == 6 and compression != "jpeg":
            raise NotImplementedError("colours in YCbCr without JPEG")

    def _image_settings(self, compression: str) -> dict[str, Any]:
        settings: dict[str, Any] = {}
        if compression == "jpeg":
            separate = self.is_separate or self.samples == 1
            settings["colours"] = "gray" if separate else _COLOURS.get(self.value(262, 1), "")
            if 347 in self.tags:
                settings["tables"] = base64.standard_b64encode(self.tags[347].tobytes()).decode()
        if compression == "lerc":
            extra = self.tags.get(50674, np.zeros(2, np.uint32))
            settings["compression"] = ("lerc", "lerc-deflate", "lerc-zstd")[int(extra[1])]
        return settings

    def _standard_codecs(self, compression: str) -> tuple[dict[str, Any], ...]:
        codecs: list[dict[str, Any]] = []
        if self.samples > 1 and not self.is_separate:
            codecs.append({"name": "transpose", "configuration": {"order": (1, 2, 0)}})
        plain: dict[str, Any] = {"name": "bytes"}
        if self.kind.itemsize > 1:
            plain["configuration"] = {"endian": self.endian}
        codecs.append(plain)
        if compression != "none":
            codecs.append(_STANDARD[compression])
        return tuple(codecs)

    def layout(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the lengths of array and chunk: bands, rows, columns."""
        rows, columns = self.chunk_size
        bands = 1 if self.is_separate else self.samples
        if min(*self.size, rows, columns, self.samples) < 1 or self.value(32997, 1) > 1:
            raise NotImplementedError("an image without pixels, or with a depth")
        return (self.samples, *self.size), (bands, rows, columns)

    def chunks(self) -> tuple[NDArray[np.int64], NDArray[np.uint64], NDArray[np.uint64]]:
        """Return the place, the offset and the length of each chunk that is stored."""
        shape, chunk = self.layout()
        counts = tuple(-(-length // part) for length, part in zip(shape, chunk, strict=True))
        offsets = self.tags.get(324, self.tags.get(273))
        lengths = self.tags.get(325, self.tags.get(279))
        if offsets is None or len(offsets) != math.prod(counts):
            raise ValueError(f"page {self.number} does not say where all of its pixels are")
        if lengths is None and self.compression == "none":
            full = math.prod(chunk) * self.kind.itemsize
            lengths = np.full(len(offsets), full, np.uint64)
        if lengths is None or len(lengths) != len(offsets):
            raise ValueError(f"page {self.number} does not say how long its chunks are")
        if self.codecs()[0]["name"] != TIFF_SEGMENT and self.compression == "none":
            lengths = np.minimum(lengths, np.uint64(math.prod(chunk) * self.kind.itemsize))
        cells = np.stack(np.unravel_index(np.arange(len(offsets)), counts), axis=1)
        stored = np.flatnonzero((offsets != 0) & (lengths != 0))
        return cells[stored], offsets[stored].astype("u8"), lengths[stored].astype("u8")

    def signature(self) -> tuple[Any, ...]:
        """Return what pages must share to be stacked."""
        return (self.layout(), self.kind, canonical_json(self.codecs()), self.value(262, 1))


class _Reader:
    """Reads tags; nothing that a file says is trusted."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file, self._size = file, size
        head = self._bytes(0, 8)
        self.endian = "little" if head[:2] == b"II" else "big"
        self._mark = "<" if self.endian == "little" else ">"
        self._is_big = self._number(head[2:4], "H") == 43
        if self._is_big:
            head = self._bytes(8, 8)
            self.first = self._number(head, "Q")
        else:
            self.first = self._number(head[4:], "I")

    def _bytes(self, offset: int, count: int) -> bytes:
        if count < 0 or offset + count > self._size:
            raise _TooShortError(offset + count)
        self._file.seek(offset)
        data = self._file.read(count)
        if len(data) != count:
            raise _TooShortError(offset + count)
        return bytes(data)

    def _number(self, data: bytes, kind: str) -> int:
        return int(struct.unpack(self._mark + kind, data)[0])

    def pages(self, start: int, number: str = "") -> Iterator[Page]:
        """Read a chain of pages."""
        seen: set[int] = set()
        while start:
            if start in seen or len(seen) >= _MOST_PAGES:
                raise ValueError("the pages of the file form a circle")
            name = f"{number}{len(seen)}"
            seen.add(start)
            tags, start = self._tags(start)
            yield Page(name, tags, self.endian)

    def subpages(self, page: Page) -> Iterator[Page]:
        """Read the pages below a page."""
        for index, start in enumerate(page.tags.get(330, ())):
            tags, _ = self._tags(int(start))
            yield Page(f"{page.number}.{index}", tags, self.endian)

    def _tags(self, start: int) -> tuple[dict[int, Any], int]:
        width, entry, link = (8, 20, "Q") if self._is_big else (2, 12, "I")
        count = self._number(self._bytes(start, width), "Q" if self._is_big else "H")
        whole = self._bytes(start + width, count * entry + struct.calcsize(link))
        tags: dict[int, Any] = {}
        for position in range(0, count * entry, entry):
            code, kind = struct.unpack_from(f"{self._mark}HH", whole, position)
            length = struct.unpack_from(self._mark + link, whole, position + 4)[0]
            value = whole[position + 4 + struct.calcsize(link) : position + entry]
            if code in _READ and kind in _TYPES:
                tags[code] = self._values(kind, length, value, link)
        return tags, self._number(whole[count * entry :], link)

    def _values(self, kind: int, length: int, value: bytes, link: str) -> Any:
        numbers = 2 * length if kind in _PAIRS else length
        stored = np.dtype(f"{self._mark}{_TYPES[kind]}")
        size = numbers * stored.itemsize
        data = value[:size] if size <= len(value) else self._bytes(self._number(value, link), size)
        if kind == 2:
            return data.split(b"\0")[0].decode("utf-8", "replace")
        read = np.frombuffer(data, stored, numbers).astype(stored.newbyteorder("="))
        return read[::2] / np.maximum(read[1::2], 1) if kind in _PAIRS else read


class _TooShortError(Exception):
    """A file ends before something that it refers to."""


_READ: Final = frozenset(
    {
        254, 255, 256, 257, 258, 259, 262, 266, 269, 270, 273, 277, 278, 279, 282, 283, 284, 296,
        305, 306, 315, 316, 317, 322, 323, 324, 325, 330, 338, 339, 347, 530, 32997, 33432, 33550,
        33922, 34264, 34735, 34736, 34737, 42112, 42113, 50674,
    }
)  # fmt: skip
"""Codes of tags that are read."""


def read_tiff(file: BinaryIO, size: int, url: str, options: ParseOptions) -> FileContent:
    """Read which images there are in a file, and where their chunks lie."""
    try:
        reader = _Reader(file, size)
        pages = list(reader.pages(reader.first))
        below = [sub for page in pages for sub in reader.subpages(page)]
    except _TooShortError as error:
        raise truncated(url, error.args[0], size) from error
    if not pages:
        raise ValueError("it has no page")
    return _Dataset(url, pages, below, options).content()


class _Dataset:
    """Pages to arrays."""

    def __init__(
        self, url: str, pages: list[Page], below: list[Page], options: ParseOptions
    ) -> None:
        self._url, self._options = url, options
        self._arrays: dict[str, RawArray] = {}
        self._attributes: dict[str, dict[str, Any]] = {"": {}}
        self._notes: list[str] = []
        images = [page for page in pages if not (page.is_reduced or page.is_mask)] or pages[:1]
        self._images = images
        first = images[0]
        self._overviews = sorted(
            (page for page in [*pages, *below] if page not in images and not page.is_mask),
            key=lambda page: page.size,
            reverse=True,
        )
        self._mask = next(
            (page for page in pages if page.is_mask and page.size == first.size), None
        )

    def content(self) -> FileContent:
        stacks: dict[tuple[Any, ...], list[Page]] = {}
        for page in self._images:
            stacks.setdefault(page.signature(), []).append(page)
        for number, stack in enumerate(stacks.values()):
            group = f"image_{number}" if number else ""
            self._add_stack(group, stack)
            if group:
                listed = ", ".join(page.number for page in stack)
                self._notes.append(
                    f"pages {listed} have another shape or data type than the first page: they"
                    f" are in the group {group!r}"
                )
        if self._mask is not None and MASK not in self._options.drop:
            self._arrays[MASK] = self._array([self._mask], ("y", "x"), {})
        self._add_overviews()
        return FileContent(self._arrays, self._attributes, tuple(self._notes))

    def _add_stack(self, group: str, stack: list[Page]) -> None:
        first = stack[0]
        axes = stack_of(first.text(270), len(stack))
        has_bands = first.samples > 1 or len(stack) == 1
        names = (*(name for name, _ in axes), *(("band",) if has_bands else ()), "y", "x")
        geo = GeoTags.of(first.tags, first.size)
        self._add(group, stack, names, tuple(length for _, length in axes), geo)

    def _add_overviews(self) -> None:
        if not self._overviews:
            return
        if not self._options.overviews:
            count = len(self._overviews)
            self._notes.append(f"overviews are left out ({count} for each image)")
            return
        geo = GeoTags.of(self._images[0].tags, self._images[0].size)
        for number, page in enumerate(self._overviews, 1):
            group = f"overview_{number}"
            names = ("band", "y", "x")
            self._attributes[group] = {}
            self._add(group, [page], names, (), geo.scaled(page.size), self._images[0])

    def _add(
        self,
        group: str,
        stack: list[Page],
        names: tuple[str, ...],
        lengths: tuple[int, ...],
        geo: GeoTags,
        described: Page | None = None,
    ) -> None:
        self._attributes.setdefault(group, {})
        first = described or stack[0]
        attributes = band_attributes(first.tags, stack[0].samples, stack[0].kind)
        below = f"{group}/" if group else ""
        coordinates: dict[str, NDArray[Any] | None] = {"x": geo.x(), "y": geo.y()}
        if "band" in names:
            coordinates["band"] = np.arange(1, stack[0].samples + 1)
        for name, values in coordinates.items():
            if values is not None and name not in self._options.drop:
                self._arrays[below + name] = computed_array(values, (name,), {})
        if geo.is_known and "spatial_ref" not in self._options.drop:
            mapping, note = geo.spatial_ref()
            self._arrays[f"{below}spatial_ref"] = computed_array(np.int64(0), (), mapping)
            attributes |= {"grid_mapping": "spatial_ref", "coordinates": "spatial_ref"}
            if note:
                self._notes.append(note)
        if DATA not in self._options.drop:
            self._arrays[below + DATA] = self._array(stack, names, attributes, lengths)

    def _array(
        self,
        stack: Sequence[Page],
        names: tuple[str, ...],
        attributes: dict[str, Any],
        lengths: tuple[int, ...] = (),
    ) -> RawArray:
        first = stack[0]
        shape, chunk = first.layout()
        if "band" not in names:
            shape, chunk = shape[1:], chunk[1:]
        leading = len(lengths)
        codecs = tuple(_with_leading(codec, leading) for codec in first.codecs())
        fill = attributes.pop("_FillValue", None)
        if fill is not None and first.kind.kind in "iuf":
            attributes["_FillValue"] = encoded_fill(fill, first.kind)
        metadata = {
            "zarr_format": 3,
            "node_type": "array",
            "shape": (*lengths, *shape),
            "data_type": first.kind.name,
            "chunk_grid": {
                "name": "regular",
                "configuration": {"chunk_shape": (*(1,) * leading, *chunk)},
            },
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": _json_number(fill, first.kind),
            "codecs": codecs,
            "attributes": attributes,
            "dimension_names": names,
            "storage_transformers": (),
        }
        cells, offsets, sizes = [], [], []
        for number, page in enumerate(stack):
            positions, starts, counts = page.chunks()
            if "band" not in names:
                positions = positions[:, 1:]
            index = np.unravel_index(number, lengths) if lengths else ()
            before = np.tile(np.array(index, np.int64).reshape(1, leading), (len(positions), 1))
            cells.append(np.concatenate([before, positions], axis=1))
            offsets.append(starts)
            sizes.append(counts)
        references = References.in_file(
            self._url, np.concatenate(cells), np.concatenate(offsets), np.concatenate(sizes)
        )
        return RawArray(metadata, references)


def _with_leading(codec: dict[str, Any], leading: int) -> dict[str, Any]:
    if codec["name"] != "transpose":
        return codec
    order = (*range(leading), *(axis + leading for axis in codec["configuration"]["order"]))
    return {"name": "transpose", "configuration": {"order": order}}


def _json_number(value: Any, kind: np.dtype[Any]) -> Any:
    """Return the value of pixels that are not stored."""
    if kind.kind == "c":
        return (0.0, 0.0)
    if value is None:
        return 0.0 if kind.kind == "f" else 0
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value
