"""A file to its arrays and their references: the only module that knows VirtualiZarr.

Most files are HDF5 with nothing unusual in them; these are read without it, in a fraction of the
time, and it is not even imported. All others go through its parsers.

What may be raised: `SourceError`, which names the file and says whether it is truncated, of
another format, damaged, uses something unsupported, or changed while it was read; and
`StorageError`, when it could not be read at all.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray
from obspec_utils.readers import BlockStoreReader
from zarr.core.metadata import ArrayV3Metadata

from icefloe.effects import run_blocking
from icefloe.errors import (
    ErrorKind,
    IcefloeError,
    InvalidInputError,
    ObjectNotFoundError,
    SourceError,
    StorageError,
)
from icefloe.format.columns import BytesColumn
from icefloe.format.paths import joined_path
from icefloe.pipeline.files.describing import FileContent, ParsedFile, RawArray, describe
from icefloe.pipeline.files.editing import UnfitFileError, edited
from icefloe.pipeline.files.facts import FileFacts, Kind, Problem, SourceState
from icefloe.pipeline.files.fills import with_fill_values
from icefloe.pipeline.files.hdf5 import UnusualError, describe_hdf5, read_hdf5
from icefloe.pipeline.files.options import (
    HEAD_BYTES,
    Format,
    ParseOptions,
    describe_unknown,
    detect_format,
    format_of_name,
    stored_end,
)
from icefloe.pipeline.files.references import References
from icefloe.pipeline.files.sources import (
    Registry,
    SourceAccess,
    WatchedReader,
    look_at,
    registry_for,
    truncated,
)
from icefloe.pipeline.files.zarr_keys import with_keys_of_format_2
from icefloe.records import replace
from icefloe.storage.storage import as_storage_error

if TYPE_CHECKING:
    from virtualizarr.manifests import ChunkManifest, ManifestArray, ManifestGroup

_ATTEMPTS: Final = 4
"""How often a file is parsed again when its storage failed in passing."""

_KINDS: Final = {
    ErrorKind.SOURCE_TRUNCATED: Kind.TRUNCATED,
    ErrorKind.SOURCE_WRONG_FORMAT: Kind.WRONG_FORMAT,
    ErrorKind.SOURCE_UNSUPPORTED: Kind.UNSUPPORTED,
    ErrorKind.SOURCE_CHANGED: Kind.CHANGED,
}


def parse_file(
    url: str,
    options: ParseOptions,
    access: SourceAccess | None = None,
    *,
    listed: SourceState | None = None,
) -> ParsedFile:
    """Parse one file, and make sure that it did not change meanwhile.

    `listed` is what a listing said of it, which saves a request.
    """
    reached = access or SourceAccess()
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return _parse_once(url, options, reached, listed)
        except StorageError as error:
            if not error.retryable or attempt == _ATTEMPTS:
                raise
        except SourceError as error:
            if error.kind != ErrorKind.SOURCE_CHANGED or listed is None:
                raise
            listed = None  # the listing may be older than the file: look again
    raise AssertionError("the last attempt returns or raises")


def parse_or_report(
    url: str,
    options: ParseOptions,
    access: SourceAccess | None = None,
    *,
    listed: SourceState | None = None,
) -> ParsedFile | FileFacts:
    """Parse one file; give facts with a problem for one that cannot be used.

    Failures of the storage are raised, except that a file is not there.
    """
    try:
        return parse_file(url, options, access, listed=listed)
    except SourceError as error:
        kind = _KINDS.get(ErrorKind(error.kind), Kind.UNREADABLE)
        if isinstance(error, UnfitFileError):
            kind = error.misfit
        return FileFacts(listed or SourceState(url), problem=Problem(kind, str(error)))
    except ObjectNotFoundError as error:
        return FileFacts(SourceState(url), problem=Problem(Kind.UNREADABLE, str(error)))


def _parse_once(
    url: str, options: ParseOptions, access: SourceAccess, listed: SourceState | None
) -> ParsedFile:
    kind, head, before = _look(url, options, access, listed)
    try:
        parser, content = _content(url, kind, options, access, before)
        _check_ends(url, content.arrays, before)
        filled = with_fill_values(url, kind, content.arrays, options.group, access)
        groups = content.attributes
        arrays, attributes, names = edited(url, filled, groups, options, access)
        parsed = describe(before, kind, arrays, attributes, options, access, names, content.digests)
    except Exception as error:
        raise _explained(error, url, kind, head, before) from error
    _check_unchanged(url, kind, access, before)
    unreferenced = {
        path: content.unreferenced[name]
        for path in parsed.references
        if (name := names.get(path, path)) in content.unreferenced
    }
    facts = replace(parsed.facts, parser=parser, notes=content.notes, unreferenced=unreferenced)
    return replace(parsed, facts=facts)


def _look(
    url: str, options: ParseOptions, access: SourceAccess, listed: SourceState | None
) -> tuple[Format, bytes, SourceState]:
    """Find out the format and the state of a file."""
    by_name = options.format or format_of_name(url)
    if by_name is not None and by_name.is_directory:
        return by_name, b"", SourceState(url)
    state = listed
    if state is None or (state.etag is None and state.modified is None) or state.size is None:
        state = run_blocking(look_at(url, access))
    assert state.size is not None
    end = min(state.size, HEAD_BYTES)
    source, head = access.place(url), b""
    try:
        if end:
            head = bytes(run_blocking(source.backend.get(source.key, (0, end))).data)
    except InvalidInputError:
        raise _changed(url, "it is shorter now") from None
    detected = detect_format(head)
    file_format = options.format or detected
    if file_format is None or detected is not file_format:
        expected = "" if options.format is None else f" (expected {options.format.value})"
        raise SourceError(
            f"cannot use {url}{expected}: "
            + (describe_unknown(head) if detected is None else f"it is {detected.value}"),
            ErrorKind.SOURCE_TRUNCATED if not head else ErrorKind.SOURCE_WRONG_FORMAT,
            url=url,
        )
    return file_format, head, state


def _check_unchanged(url: str, kind: Format, access: SourceAccess, before: SourceState) -> None:
    if kind.is_directory:
        return
    try:
        after = run_blocking(look_at(url, access))
    except ObjectNotFoundError:
        raise _changed(url, "it is gone") from None
    if not is_unchanged(before, after):
        raise _changed(url, "size, etag or time of modification differ")


def is_unchanged(before: SourceState, after: SourceState) -> bool:
    """Return whether a file is in the same state as before."""
    same_time = before.modified == after.modified or before.etag is not None
    return (before.size, before.etag) == (after.size, after.etag) and same_time


def _changed(url: str, how: str) -> SourceError:
    return SourceError(
        f"{url} changed while it was parsed ({how}): wait until it is complete and try again",
        ErrorKind.SOURCE_CHANGED,
        url=url,
    )


def _check_ends(url: str, arrays: Mapping[str, RawArray], state: SourceState) -> None:
    """Refuse a file that ends before data that it claims to have."""
    end = max((array.references.ends_of(url) for array in arrays.values()), default=0)
    if state.size is not None and end > state.size:
        raise truncated(url, end, state.size)


def _explained(
    error: Exception, url: str, kind: Format, head: bytes, state: SourceState
) -> IcefloeError:
    """Return what a parser's exception means for the user."""
    for cause in _causes(error):
        if isinstance(cause, IcefloeError):
            return cause
        if (of_storage := as_storage_error(cause, url)) is not None:
            return of_storage
    end = stored_end(head)
    if end is not None and state.size is not None and end > state.size:
        return truncated(url, end, state.size)
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, ImportError):
        return SourceError(
            f"{url} is {kind.value}, and a library for that is missing ({error}):"
            ' pip install "icefloe[virtual,formats]", on the executors too',
            ErrorKind.SOURCE_UNSUPPORTED,
            url=url,
        )
    if isinstance(error, NotImplementedError):
        return SourceError(
            f"{url} uses something that cannot be virtualised: {text}."
            " Leave the variable out (drop=...)",
            ErrorKind.SOURCE_UNSUPPORTED,
            url=url,
        )
    return SourceError(
        f"{url} cannot be read as {kind.value}: {text}", ErrorKind.SOURCE_DAMAGED, url=url
    )


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


type _Parser = Callable[[str, Any], Any]


_OWN: Final = "icefloe"
_GENERAL: Final = "virtualizarr"


def _content(
    url: str, kind: Format, options: ParseOptions, access: SourceAccess, state: SourceState
) -> tuple[str, FileContent]:
    """Return the name of the parser, and what it found."""
    registry = registry_for(access)
    if kind is Format.HDF5:
        parser, content = _hdf5_content(url, options, registry)
        _refuse_compounds(url, content.arrays)
        return parser, content
    if kind is Format.TIFF:
        return _OWN, _tiff_content(url, options, registry, state)
    if kind is Format.GRIB:
        return _OWN, _grib_content(url, options, access, state)
    if kind is Format.FITS:
        return _OWN, _fits_content(url, options, registry)
    content = _parsed(url, _PARSERS[kind](options), options, registry)
    if kind is Format.ZARR:
        arrays = with_keys_of_format_2(url, content.arrays, options.group, access)
        content = replace(content, arrays=arrays)
    return _GENERAL, content


def _refuse_compounds(url: str, arrays: Mapping[str, RawArray]) -> None:
    """Refuse arrays of compound types, whose members may lie anywhere in an element."""
    compound = [
        path for path, array in arrays.items() if _name_of(array.metadata["data_type"]) in _RECORDS
    ]
    if compound:
        listed = ", ".join(map(repr, compound))
        raise SourceError(
            f"{url} has compound types, of which no arrays of Zarr can be made: {listed}. Leave"
            " them out (drop=...)",
            ErrorKind.SOURCE_UNSUPPORTED,
            url=url,
        )


_RECORDS: Final = frozenset({"struct", "structured"})


def _name_of(data_type: Any) -> Any:
    return data_type.get("name") if isinstance(data_type, Mapping) else data_type


def _parsed(url: str, parser: _Parser, options: ParseOptions, registry: Registry) -> FileContent:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # parsers warn of codecs that zarr finds unusual
        group = parser(url, registry)._group  # noqa: SLF001 - what it is all about
        return _flattened(group, options)


def _hdf5_content(url: str, options: ParseOptions, registry: Registry) -> tuple[str, FileContent]:
    if (path := registry.local_path(url)) is not None:
        with open(path, "rb") as file:  # noqa: PTH123 - takes half the time of a client
            return _hdf5_content_of(url, options, registry, path, file)
    failures: list[Exception] = []
    reader: Any = WatchedReader(BlockStoreReader(*registry.resolve(url)), failures)
    try:
        return _hdf5_content_of(url, options, registry, reader, reader)
    except Exception as error:
        if failures:  # what HDF5 makes of a failed read hides the reason
            raise failures[-1] from error
        raise


def _hdf5_content_of(
    url: str, options: ParseOptions, registry: Registry, source: Any, file: Any
) -> tuple[str, FileContent]:
    """Find what others can refer to; else describe what HDF5 alone can read."""
    named: Any = {"group": options.group, "drop": options.drop}
    try:
        return _OWN, read_hdf5(source, url, **named)
    except NotImplementedError:
        return _OWN, describe_hdf5(source, url, follow_links=options.follow_links, **named)
    except UnusualError:
        try:
            content = _parsed(url, _general_hdf5_parser(options, file), options, registry)
            _require_known_codecs(content)
        except (IcefloeError, ImportError):
            raise
        except Exception as error:  # noqa: BLE001 - parsers raise anything for what is unusual
            try:
                return _OWN, describe_hdf5(source, url, follow_links=options.follow_links, **named)
            except UnusualError:
                raise error from None
        return _GENERAL, content


def _require_known_codecs(content: FileContent) -> None:
    """Raise if Zarr could not open an array."""
    for array in content.arrays.values():
        ArrayV3Metadata.from_dict(dict(array.metadata))


def _general_hdf5_parser(options: ParseOptions, source: Any) -> _Parser:
    parser: _Parser = _library().HDFParser(options.group, options.drop or None, lambda *_: source)
    return parser


def _tiff_content(
    url: str, options: ParseOptions, registry: Registry, state: SourceState
) -> FileContent:
    from icefloe.pipeline.files.tiff import read_tiff

    assert state.size is not None
    if (path := registry.local_path(url)) is not None:
        with open(path, "rb") as file:  # noqa: PTH123 - a path of any kind
            return read_tiff(file, state.size, url, options)
    reader: Any = BlockStoreReader(*registry.resolve(url))
    return read_tiff(reader, state.size, url, options)


def _grib_content(
    url: str, options: ParseOptions, access: SourceAccess, state: SourceState
) -> FileContent:
    from icefloe.pipeline.files.grib_cubes import read_grib

    assert state.size is not None
    return read_grib(url, state.size, options, access)


def _fits_content(url: str, options: ParseOptions, registry: Registry) -> FileContent:
    from icefloe.pipeline.files.fits import read_fits

    if (path := registry.local_path(url)) is not None:
        with open(path, "rb") as file:  # noqa: PTH123 - a path of any kind
            return read_fits(file, url, options)
    return read_fits(BlockStoreReader(*registry.resolve(url)), url, options)


def _library() -> Any:
    from virtualizarr import parsers

    return parsers


def _skipping(name: str) -> Callable[[ParseOptions], _Parser]:
    def parser(options: ParseOptions) -> _Parser:
        make = getattr(_library(), name)
        parser_made: _Parser = make(group=options.group, skip_variables=options.drop or None)
        return parser_made

    return parser


_PARSERS: Final[dict[Format, Callable[[ParseOptions], _Parser]]] = {
    Format.NETCDF3: _skipping("NetCDF3Parser"),
    Format.ZARR: _skipping("ZarrParser"),
    Format.KERCHUNK_JSON: _skipping("KerchunkJSONParser"),
    Format.KERCHUNK_PARQUET: _skipping("KerchunkParquetParser"),
    Format.DMRPP: _skipping("DMRPPParser"),
}


def _flattened(root: "ManifestGroup", options: ParseOptions) -> FileContent:
    """Return all arrays by path, and the attributes of all groups."""
    arrays: dict[str, RawArray] = {}
    attributes: dict[str, dict[str, Any]] = {}
    todo = [("", root)]
    while todo:
        path, group = todo.pop()
        attributes[path] = dict(group.metadata.attributes)
        for name, array in group.arrays.items():
            if name not in options.drop:
                arrays[joined_path(path, name)] = _raw(array)
        todo.extend((joined_path(path, name), subgroup) for name, subgroup in group.groups.items())
    return FileContent(arrays, attributes)


def _raw(array: "ManifestArray") -> RawArray:
    metadata: dict[str, Any] = dict(array.metadata.to_dict())
    if _is_bytes(metadata["data_type"]):
        # xarray decodes this attribute for numbers and text only, and else opens nothing at all.
        # Chunks that are not stored read as `fill_value`, which says the same.
        attributes = dict(metadata.get("attributes") or {})
        attributes.pop("_FillValue", None)
        metadata["attributes"] = attributes
    return RawArray(metadata, references_of(array.manifest, len(array.shape)))


def _is_bytes(data_type: Any) -> bool:
    """Return whether values are byte strings of a fixed length, such as characters of netCDF."""
    return isinstance(data_type, Mapping) and data_type.get("name") == "null_terminated_bytes"


def references_of(manifest: "ChunkManifest", dimensions: int) -> References:
    """Take the columns out of a manifest."""
    from virtualizarr.manifests.manifest import INLINED_CHUNK_PATH

    paths: NDArray[Any] = manifest._paths  # noqa: SLF001 - its only form with all rows at once
    flat = paths.ravel()
    present = np.flatnonzero((flat != "") & (flat != INLINED_CHUNK_PATH))
    grid = (
        np.stack(np.unravel_index(present, paths.shape), axis=1)
        if paths.ndim
        else np.empty((len(present), 0))
    )
    locations, rows = _distinct(flat[present])
    inlined = manifest._inlined  # noqa: SLF001
    cells = sorted(inlined)
    return References(
        grid.astype(np.int64).reshape(len(present), dimensions),
        manifest._offsets.ravel()[present],  # noqa: SLF001
        manifest._lengths.ravel()[present],  # noqa: SLF001
        locations,
        rows,
        np.array(cells, np.int64).reshape(len(cells), dimensions),
        BytesColumn.from_list([inlined[cell] for cell in cells]),
    )


def _distinct(texts: NDArray[Any]) -> tuple[tuple[str, ...], NDArray[np.uint32]]:
    if not len(texts):
        return (), np.empty(0, np.uint32)
    first = str(texts[0])
    if (texts == first).all():  # a file's own chunks
        return (first,), np.zeros(len(texts), np.uint32)
    distinct, rows = np.unique(texts, return_inverse=True)
    return tuple(map(str, distinct.tolist())), rows.astype(np.uint32)
