"""The structure of HDF5 and netCDF-4 files, read with h5py: quickly, for what most of them have.

Numbers of all usual types, plain or compressed with deflate, shuffled or with checksums. Anything
else (text, compound types, other filters) is `UnusualError`, for a parser that knows more. What
would be read wrongly is never referred to: data in other files, chunks that some filter left as
they were. `describe_hdf5` describes such arrays nevertheless, and `read_part` reads their values
with HDF5 itself.
"""

import base64
import math
import struct
from collections.abc import Iterator
from typing import Any, BinaryIO, Final, override

import h5py
import numpy as np
from h5py import h5a, h5d, h5ds, h5i, h5l, h5o, h5r, h5z
from numpy.typing import NDArray

from icefloe.format.columns import BytesColumn
from icefloe.pipeline.files.describing import FileContent, RawArray
from icefloe.pipeline.files.facts import SCALE_ATTRIBUTES, Single
from icefloe.pipeline.files.references import References
from icefloe.records import Record, replace

_HIDDEN: Final = frozenset(
    {
        "REFERENCE_LIST",
        "CLASS",
        "DIMENSION_LIST",
        "NAME",
        "_Netcdf4Dimid",
        "_Netcdf4Coordinates",
        "_nc3_strict",
        "_NCProperties",
    }
)
"""Attributes that only say how netCDF is written as HDF5."""

_SCALE: Final = "DIMENSION_SCALE"
_SCALES: Final = frozenset(name.encode() for name in SCALE_ATTRIBUTES)
_NUMBERS: Final = frozenset("iuf")
_WIDEST: Final = 8


class UnusualError(Exception):
    """There is something in a file that is not known here."""


def read_hdf5(
    source: str | BinaryIO, url: str, *, group: str | None = None, drop: tuple[str, ...] = ()
) -> FileContent:
    """Read what arrays there are in a file, and where their chunks lie.

    `source` is the path of a local file, or something that reads as one; `url` is what references
    name. Of a path, nothing but this file is opened, whatever links there are in it.
    """
    with open_hdf5(source) as file:
        return _Reading(url, _root(file, group), frozenset(drop)).content()


def describe_hdf5(
    source: str | BinaryIO,
    url: str,
    *,
    group: str | None = None,
    drop: tuple[str, ...] = (),
    follow_links: bool = False,
) -> FileContent:
    """Read what arrays there are in a file, also those that nobody can refer to.

    These have no references, and the reason is in `unreferenced`; small coordinates among them
    come along as bytes. With `follow_links` data in other files is described, too: links of a file
    can name any file of this machine.
    """
    import hdf5plugin  # noqa: F401 - registers filters

    with open_hdf5(source) as file:
        reading = _Describing(url, _root(file, group), frozenset(drop), follows=follow_links)
        return reading.content()


def open_hdf5(source: str | BinaryIO) -> h5py.File:
    """Open a file for reading, by its path or as a file object."""
    options: dict[str, Any] = {"locking": False} if isinstance(source, str) else {}
    return h5py.File(source, "r", **options)


def read_part(dataset: h5py.Dataset, box: tuple[slice, ...]) -> NDArray[Any]:
    """Read a box of an array with HDF5; text of any length is decoded."""
    if h5py.check_string_dtype(dataset.dtype) is not None and dataset.dtype.kind == "O":
        return np.asarray(dataset.asstr("utf-8", "surrogateescape")[box])
    return np.asarray(dataset[box])


def _root(file: h5py.File, group: str | None) -> h5py.Group:
    root = file.get(group or "/")
    if not isinstance(root, h5py.Group):
        raise ValueError(f"there is no group {group!r}")  # noqa: TRY004 - of the file's content
    return root


class _Dataset(Record):
    path: str
    """Below the group that is taken as the root."""
    name: str
    """In the file."""
    id: h5d.DatasetID

    @property
    def group(self) -> str:
        return self.name.rpartition("/")[0]


class _Reading:
    """One look at the structure of a file."""

    def __init__(self, url: str, root: h5py.Group, drop: frozenset[str]) -> None:
        self._url, self._root, self._drop = url, root, drop
        self._file_number = h5o.get_info(root.id).fileno
        self._names: dict[int, str | None] = {}
        """By address of a dataset, its name; None if it has several."""

    def content(self) -> FileContent:
        attributes: dict[str, dict[str, Any]] = {}
        datasets = list(self._visit(attributes))
        return FileContent({dataset.path: self._array(dataset) for dataset in datasets}, attributes)

    def _visit(self, attributes: dict[str, dict[str, Any]]) -> Iterator[_Dataset]:
        """Find all datasets, noting the attributes of groups on the way."""
        name = str(self._root.name).rstrip("/")
        above: frozenset[int] = frozenset()
        todo = [("", name, self._root.id, above)]
        while todo:
            path, name, group, above = todo.pop()
            address = h5o.get_info(group).addr
            if address in above:
                raise NotImplementedError(f"the group {name!r} is within itself")
            attributes[path] = self._attributes(group)
            for raw in group:
                key = raw.decode()
                if not path and key in self._drop:
                    continue
                below = f"{path}/{key}" if path else key
                node = self._open(group, raw, below, f"{name}/{key}")
                if isinstance(node, h5d.DatasetID):
                    if key not in self._drop and not _is_bare_dimension(node):
                        yield _Dataset(below, f"{name}/{key}", node)
                elif isinstance(node, h5py.h5g.GroupID):
                    todo.append((below, f"{name}/{key}", node, above | {address}))

    def _open(self, group: Any, key: bytes, _path: str, name: str) -> Any:
        """Open what a link leads to, in this file only."""
        if group.links.get_info(key).type == h5l.TYPE_EXTERNAL:
            raise NotImplementedError(f"{name!r} is in another file")
        node = h5o.open(group, key)
        info = h5o.get_info(node)
        if info.fileno != self._file_number:
            raise NotImplementedError(f"{name!r} is in another file")
        if isinstance(node, h5d.DatasetID):
            self._names[info.addr] = None if info.addr in self._names else name
        return node

    def _array(self, dataset: _Dataset) -> RawArray:
        shape, kind = dataset.id.shape, dataset.id.dtype
        is_number = kind.kind in _NUMBERS and kind.itemsize <= _WIDEST
        if shape is None or not (is_number or kind == np.bool_):
            raise UnusualError(f"{dataset.name}: {kind}")
        settings = dataset.id.get_create_plist()
        codecs = _codecs(settings, kind)
        chunks = _chunk_shape(settings, shape)
        attributes = self._attributes(dataset.id)
        if "_FillValue" in attributes:
            attributes["_FillValue"] = encoded_fill(attributes["_FillValue"], kind)
        metadata = _array_metadata(
            shape=shape,
            data_type=kind.name,
            chunks=chunks,
            fill=_fill_value(settings, kind),
            codecs=codecs,
            attributes=attributes,
            names=self._dimensions(dataset, len(shape)),
        )
        return RawArray(metadata, self._references(dataset, settings, shape, chunks))

    def _attributes(self, node: Any) -> dict[str, Any]:
        return _attributes(node)

    # -- dimensions --------------------------------------------------------------------------

    def _dimensions(self, dataset: _Dataset, count: int) -> tuple[str, ...]:
        """Name the dimensions: by the scales at them, or by itself for a scale."""
        scales: list[Any] = [()] * count
        if count and h5a.exists(dataset.id, b"DIMENSION_LIST"):
            listed = _read_attribute(dataset.id, b"DIMENSION_LIST")
            scales = [] if listed is None else list(listed)
        is_scale = all(len(some) == 1 for some in scales) or h5ds.is_scale(dataset.id)
        names = []
        for axis, some in enumerate(scales):
            if len(some) == 1:
                names.append(_below(self._scale_name(dataset, some[0]), dataset.group))
            elif is_scale:
                names.append(_below(dataset.name, dataset.group))
            elif len(some) > 1:
                raise UnusualError(f"{dataset.name}: several scales at one dimension")
            else:
                names.append(f"phony_dim_{axis}")
        return tuple(names)

    def _scale_name(self, dataset: _Dataset, reference: Any) -> str:
        scale = h5r.dereference(reference, dataset.id)
        if scale is None:
            raise UnusualError(f"{dataset.name}: a dimension without its scale")
        # Asking HDF5 for a name would make it search the whole file.
        name = self._names.get(h5o.get_info(scale).addr)
        return name or str(h5i.get_name(scale).decode())

    # -- chunks ------------------------------------------------------------------------------

    def _references(
        self, dataset: _Dataset, settings: Any, shape: tuple[int, ...], chunks: tuple[int, ...]
    ) -> References:
        match settings.get_layout():
            case h5d.CHUNKED:
                return self._chunked(dataset, settings, shape, chunks)
            case h5d.CONTIGUOUS if not settings.get_external_count():
                return self._contiguous(dataset.id, len(shape))
            case h5d.COMPACT:
                return _compact(dataset.id, shape)
            case _:
                raise NotImplementedError(f"the data of {dataset.name!r} is in other files")

    def _contiguous(self, dataset: h5d.DatasetID, dimensions: int) -> References:
        offset = dataset.get_offset()
        if offset is None:
            return References.in_file(self._url, np.empty((0, dimensions)), [], [])
        sizes = [dataset.get_storage_size()]
        return References.in_file(self._url, np.zeros((1, dimensions)), [offset], sizes)

    def _chunked(
        self, dataset: _Dataset, settings: Any, shape: tuple[int, ...], chunks: tuple[int, ...]
    ) -> References:
        infos: list[Any] = []
        if shape and 0 not in shape:
            dataset.id.chunk_iter(infos.append)
        if not infos:
            return References.in_file(self._url, np.empty((0, len(shape))), [], [])
        starts, masks, offsets, sizes = zip(*infos, strict=True)
        if any(masks):
            raise NotImplementedError(
                f"chunks of {dataset.name!r} were written without some filter"
            )
        grid = np.array(starts, np.int64) // np.array(chunks, np.int64)
        counts = tuple(-(-length // chunk) for length, chunk in zip(shape, chunks, strict=True))
        flat = np.ravel_multi_index(tuple(grid.T), counts)
        if chunks != settings.get_chunk():  # of a chunk that was cut, the beginning counts
            sizes = (math.prod(chunks) * dataset.id.dtype.itemsize,) * len(sizes)
        order = np.argsort(flat, kind="stable")
        columns = np.array([offsets, sizes], np.uint64)[:, order]
        return References.in_file(self._url, grid[order], *columns)


class _Describing(_Reading):
    """A look that describes what it cannot refer to."""

    def __init__(self, url: str, root: h5py.Group, drop: frozenset[str], *, follows: bool) -> None:
        super().__init__(url, root, drop)
        self._follows = follows
        self._reasons: dict[str, str] = {}
        self._notes: list[str] = []

    @override
    def content(self) -> FileContent:
        """Describe everything."""
        attributes: dict[str, dict[str, Any]] = {}
        arrays = {}
        for dataset in self._visit(attributes):
            if dataset.id.shape is None:
                self._notes.append(f"left out, as it has no values: {dataset.path}")
            else:
                arrays[dataset.path] = self._array(dataset)
        unreferenced = {path: it for path, it in self._reasons.items() if path in arrays}
        return FileContent(arrays, attributes, tuple(self._notes), unreferenced)

    @override
    def _open(self, group: Any, key: bytes, path: str, name: str) -> Any:
        try:
            return super()._open(group, key, path, name)
        except NotImplementedError as error:
            self._require_following(error)
            node = h5o.open(group, key)
            if not isinstance(node, h5d.DatasetID):
                raise
            self._reasons[path] = "it is in another file"
            return node

    @override
    def _attributes(self, node: Any) -> dict[str, Any]:
        return _attributes(node, skips=True)

    @override
    def _array(self, dataset: _Dataset) -> RawArray:
        if dataset.path not in self._reasons:
            try:
                return super()._array(dataset)
            except (UnusualError, NotImplementedError) as error:
                self._reasons[dataset.path] = str(error).removeprefix(f"{dataset.name}: ")
        settings, kind, shape = dataset.id.get_create_plist(), dataset.id.dtype, dataset.id.shape
        if settings.get_layout() == h5d.VIRTUAL or settings.get_external_count():
            self._require_following(NotImplementedError("its data is in other files"))
        metadata = self._metadata(dataset, _described_type(dataset.name, kind), _filled(settings))
        for number in range(settings.get_nfilters()):
            code, _, _, name = settings.get_filter(number)
            if self._reasons[dataset.path] == f"filter {code}":
                self._reasons[dataset.path] = f"{_filter_name(code, name)} in the chunks of HDF5"
            if not h5z.filter_avail(code):
                raise NotImplementedError(f"{dataset.name}: no library knows filter {code}")
        is_small = math.prod(shape) * kind.itemsize <= _SMALL_BYTES and kind.kind != "O"
        if is_small and (not shape or (len(shape) == 1 and h5ds.is_scale(dataset.id))):
            del self._reasons[dataset.path]
            return RawArray(metadata, _compact(dataset.id, shape))
        nothing = References.in_file(self._url, np.empty((0, len(shape))), [], [])
        return RawArray(metadata, nothing)

    def _require_following(self, error: NotImplementedError) -> None:
        if not self._follows:
            raise NotImplementedError(
                f"{error}; a copy of values reads it with follow_links=True, if these files are to"
                " be trusted: their links can name any file"
            ) from None

    def _metadata(self, dataset: _Dataset, data_type: Any, fill: Any) -> dict[str, Any]:
        shape, kind = dataset.id.shape, dataset.id.dtype
        attributes = self._attributes(dataset.id)
        if "_FillValue" in attributes:
            try:
                attributes["_FillValue"] = encoded_fill(attributes["_FillValue"], kind)
            except UnusualError:
                del attributes["_FillValue"]
        codec = {"name": "vlen-utf8"} if data_type == "string" else _plain_codec(kind)
        chunks = _chunk_shape(dataset.id.get_create_plist(), shape)
        return _array_metadata(
            shape=shape,
            data_type=data_type,
            chunks=tuple(
                min(chunk, max(length, 1)) for chunk, length in zip(chunks, shape, strict=True)
            ),
            fill=fill(dataset.id.dtype),
            codecs=(codec,),
            attributes=attributes,
            names=self._dimensions(dataset, len(shape)),
        )


_SMALL_BYTES: Final = 1 << 20
_FILTERS: Final = {
    4: "szip",
    6: "scale and offset",
    32000: "LZF",
    32001: "Blosc",
    32004: "LZ4",
    32008: "Bitshuffle",
    32013: "ZFP",
    32015: "Zstandard",
    32026: "Blosc2",
}


def _filter_name(code: int, name: bytes) -> str:
    return _FILTERS.get(code) or f"the filter {code} ({name.decode(errors='replace')})"


def _described_type(name: str, kind: np.dtype[Any]) -> Any:
    if kind.kind == "O" and h5py.check_string_dtype(kind) is not None:
        return "string"
    if kind.kind in "iufcb":
        return kind.name
    raise NotImplementedError(
        f"{name} is of the type {kind}, which has no counterpart in Zarr and xarray"
    )


def _filled(settings: Any) -> Any:
    def fill(kind: np.dtype[Any]) -> Any:
        if kind.kind == "O":
            return ""
        try:
            return _fill_value(settings, kind)
        except UnusualError:
            return 0 if kind.kind != "c" else [0.0, 0.0]

    return fill


def _is_bare_dimension(dataset: h5d.DatasetID) -> bool:
    """Return whether a dataset is a dimension of netCDF without a coordinate."""
    if not h5a.exists(dataset, b"_Netcdf4Dimid"):
        return False
    if dataset.get_create_plist().get_layout() == h5d.CHUNKED:
        return dataset.chunk_iter(lambda _: True) is None  # stops at the first one
    return bool(dataset.get_storage_size() == 0)


def _array_metadata(
    *, shape: Any, data_type: Any, chunks: Any, fill: Any, codecs: Any, attributes: Any, names: Any
) -> dict[str, Any]:
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": shape,
        "data_type": data_type,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunks}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": fill,
        "codecs": codecs,
        "attributes": attributes,
        "dimension_names": names,
        "storage_transformers": (),
    }


def _compact(dataset: h5d.DatasetID, shape: tuple[int, ...]) -> References:
    """Take data along that is kept among the metadata of the file, where nobody can point at."""
    values = np.empty(shape, dataset.dtype)
    if values.size:
        dataset.read(h5py.h5s.ALL, h5py.h5s.ALL, values)
    payloads = [values.tobytes()] if values.size else []
    return replace(
        References.in_file("", np.empty((0, len(shape))), [], []),
        inlined_coordinates=np.zeros((len(payloads), len(shape)), np.int64),
        inlined=BytesColumn.from_list(payloads),
    )


def _chunk_shape(settings: Any, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the lengths of chunks.

    One that is longer than the array, as it may grow, is cut to its length if that leaves the
    beginning of its bytes: otherwise files could not be joined.
    """
    if settings.get_layout() != h5d.CHUNKED:
        return tuple(max(length, 1) for length in shape)
    stored: tuple[int, ...] = settings.get_chunk()
    cut = tuple(min(chunk, max(length, 1)) for chunk, length in zip(stored, shape, strict=True))
    is_plain = settings.get_nfilters() == 0
    return cut if is_plain and cut[1:] == stored[1:] else stored


def _plain_codec(kind: np.dtype[Any]) -> dict[str, Any]:
    plain: dict[str, Any] = {"name": "bytes"}
    if kind.itemsize > 1:
        endian = "big" if kind.newbyteorder(">") == kind else "little"
        plain["configuration"] = {"endian": endian}
    return plain


def _codecs(settings: Any, kind: np.dtype[Any]) -> tuple[dict[str, Any], ...]:
    codecs = [_plain_codec(kind)]
    for number in range(settings.get_nfilters()):
        code, _, values, _ = settings.get_filter(number)
        match code, values:
            case h5z.FILTER_DEFLATE, (level, *_):
                codecs.append({"name": "numcodecs.zlib", "configuration": {"level": level}})
            case h5z.FILTER_SHUFFLE, (size, *_):
                codecs.append({"name": "numcodecs.shuffle", "configuration": {"elementsize": size}})
            case 307, _:  # bzip2
                codecs.append({"name": "numcodecs.bz2", "configuration": {"level": 9}})
            case h5z.FILTER_FLETCHER32, _:
                codecs.append({"name": "numcodecs.fletcher32", "configuration": {}})
            case _:
                raise UnusualError(f"filter {code}")
    return tuple(codecs)


# -- values of metadata ----------------------------------------------------------------------


def _fill_value(settings: Any, kind: np.dtype[Any]) -> Any:
    value = np.zeros((), kind)
    try:
        settings.get_fill_value(value)
    except RuntimeError:  # it was never defined
        raise UnusualError("no fill value") from None
    plain = value[()].item()
    if isinstance(plain, float) and not math.isfinite(plain):
        return "NaN" if math.isnan(plain) else "Infinity" if plain > 0 else "-Infinity"
    return plain


def encoded_fill(value: Any, kind: np.dtype[Any]) -> Any:
    """Write the attribute `_FillValue` as xarray does in Zarr."""
    if not isinstance(value, (int, float)):
        raise UnusualError("a fill value that is no number")
    if kind.kind == "f":
        return base64.standard_b64encode(struct.pack("<d", float(value))).decode()
    return bool(value) if kind.kind == "b" else int(value)


def _attributes(node: Any, *, skips: bool = False) -> dict[str, Any]:
    """Read attributes; raise if there is none in JSON like one of them, or skip it."""
    names: list[bytes] = []
    h5a.iterate(node, names.append)
    attributes: dict[str, Any] = {}
    for name in names:
        if (text := name.decode()) in _HIDDEN:
            continue
        try:
            value = _plain(node, name)
        except UnusualError:
            if not skips:
                raise
            continue
        if value != _SCALE:
            attributes[text] = value
    return attributes


def _plain(node: Any, name: bytes) -> Any:
    """Return the value of an attribute as JSON has it."""
    values = _read_attribute(node, name)
    if values is None:
        return ""
    if values.dtype == np.float32 and values.size == 1 and name in _SCALES:
        return Single(values.reshape(-1)[0])
    match values.dtype.kind:
        case "S" if values.ndim:
            return np.strings.decode(values, "utf-8").tolist()
        case "S":
            return bytes(values[()]).decode() or " "
        case "O" if all(isinstance(text, bytes) for text in values.flat):
            texts = [text.decode("utf-8", "surrogateescape") for text in values.flat]
            return texts[0] if len(texts) == 1 else _nested(texts, values.shape)
        case "b" | "i" | "u" | "f":
            return values.reshape(-1).tolist()[0] if values.size == 1 else values.tolist()
        case other:
            raise UnusualError(f"an attribute of kind {other}")


def _read_attribute(node: Any, name: bytes) -> NDArray[Any] | None:
    """Read an attribute; None for one without any value.

    In a few steps: what h5py has for it on top takes most of the time that files with many
    attributes need.
    """
    attribute = h5a.open(node, name)
    shape, kind = attribute.shape, attribute.dtype
    if shape is None:
        return None
    if kind.subdtype is not None:
        raise UnusualError("an attribute of arrays")
    values = np.zeros(shape, kind)
    attribute.read(values)
    return values


def _nested(texts: list[str], shape: tuple[int, ...]) -> Any:
    return np.array(texts, np.dtypes.StringDType()).reshape(shape).tolist()


def _below(name: str, group: str) -> str:
    """Return the name of something in a group without that of the group.

    >>> _below("/model/time", "/model"), _below("/time", "/model")
    ('time', 'time')
    """
    inside = f"{group}/"
    return name.removeprefix(inside) if name.startswith(inside) else name.removeprefix("/")
