"""Changes to the description of a file before it is compared with others.

Variables are selected and renamed, and coordinates added that the file does not have. The file is
not changed: references to its chunks stay as they are, and new values come along as bytes.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import numcodecs
import numpy as np
from numpy.typing import ArrayLike, NDArray

from icefloe.errors import ErrorKind, IcefloeError, InvalidInputError, SourceError
from icefloe.format.columns import BytesColumn
from icefloe.format.paths import joined_path, node_name
from icefloe.pipeline.files.describing import POINTING, RawArray, find_helpers
from icefloe.pipeline.files.facts import Attributes, Kind, is_named
from icefloe.pipeline.files.file_names import Scalar, name_pattern
from icefloe.pipeline.files.options import ParseOptions
from icefloe.pipeline.files.references import References, read_values
from icefloe.pipeline.files.sources import SourceAccess
from icefloe.records import Record

NOT_IN_FILE: Final = ""
"""Stands for the name of an array that the file does not have."""

_DAYS: Final = "days since 1970-01-01"
_SECONDS: Final = "seconds since 1970-01-01"
_MICROSECONDS: Final = "microseconds since 1970-01-01"
_CALENDAR: Final = "proleptic_gregorian"


class UnfitFileError(SourceError):
    """A file does not fit the options; `misfit` is in what way.

    >>> UnfitFileError("it has none of the variables", Kind.MISSING_VARIABLE).misfit.value
    'missing-variable'
    """

    default_kind = ErrorKind.SOURCE_MISFIT

    def __init__(self, message: str, misfit: Kind, **about: Any) -> None:
        super().__init__(message, **about)
        self.misfit = misfit


class FileVariable(Record):
    """A variable of a file. Its attributes may be changed.

    >>> FileVariable(("time", "x"), (1, 4), {"units": "K"}).shape
    (1, 4)
    """

    dimensions: tuple[str, ...]
    shape: tuple[int, ...]
    attributes: dict[str, Any]


class EditableFile:
    """The description of a file, as `preprocess` gets it: change it as the dataset should have it.

    Variables are named by their path: `t2m`, or `group/t2m`. Coordinates that are set are part of
    the dataset; the file itself is never changed, and chunks of data cannot be.

    >>> def preprocess(file: EditableFile) -> None:
    ...     file.rename({"latitude": "lat"})
    ...     file.drop("checksum")
    ...     file.set_coordinate("member", int(file.url[-4]))
    ...     file.variables["t2m"].attributes["units"] = "K"
    """

    def __init__(
        self,
        url: str,
        arrays: Mapping[str, RawArray],
        groups: Attributes,
        access: SourceAccess,
    ) -> None:
        self.url = url
        """Where the file is."""
        self._arrays = dict(arrays)
        self._groups = {path: dict(attributes) for path, attributes in groups.items()}
        self._access = access
        self._names: dict[str, str] = {}
        self._attributes = {path: dict(array.attributes) for path, array in arrays.items()}

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes of the file itself, which may be changed."""
        return self._groups.setdefault("", {})

    @property
    def variables(self) -> Mapping[str, FileVariable]:
        """All variables by path, coordinates among them."""
        return {
            path: FileVariable(array.dimensions, array.shape, self._attributes[path])
            for path, array in self._arrays.items()
        }

    @property
    def dimensions(self) -> dict[str, int]:
        """The lengths of all dimensions; of those with several lengths, any."""
        return {
            name: length
            for array in self._arrays.values()
            for name, length in zip(array.dimensions, array.shape, strict=True)
        }

    def values(self, name: str) -> NDArray[Any]:
        """Read all values of a variable, as they are stored: neither scaled nor decoded."""
        array = self._arrays[self._path(name)]
        return read_values(array.metadata, array.references, self._access)

    def drop(self, *names: str) -> None:
        """Leave variables out; those that the file does not have are no error."""
        for path in [path for path in self._arrays if any(is_named(path, name) for name in names)]:
            del self._arrays[path], self._attributes[path]
            self._names.pop(path, None)

    def select(self, names: Sequence[str]) -> None:
        """Leave out all other variables, but for coordinates of these.

        Raise if the file has none of them.
        """
        chosen = {path for path in self._arrays if any(is_named(path, name) for name in names)}
        if not chosen:
            raise UnfitFileError(
                f"it has none of the variables {', '.join(names)} (variables=...), but"
                f" {', '.join(sorted(self._arrays)) or 'no arrays at all'}",
                Kind.MISSING_VARIABLE,
                url=self.url,
            )
        used = {name for path in chosen for name in self._arrays[path].dimensions}
        helpers = find_helpers(self._arrays, self._groups)
        chosen |= {path for path in helpers if used.issuperset(self._arrays[path].dimensions)}
        waiting = list(chosen)
        while waiting:
            path = waiting.pop()
            for pointed in _pointed(path, self._attributes[path]):
                if pointed in self._arrays and pointed not in chosen:
                    chosen.add(pointed)
                    waiting.append(pointed)
        self.drop(*(self._arrays.keys() - chosen))

    def rename(self, names: Mapping[str, str]) -> None:
        """Change names of variables and dimensions; attributes that point to them follow.

        A file that has the new name already and not the old one is left as it is.
        """
        for old, new in names.items():
            self._require_renaming(old, new, names)
        paths = {path: _renamed(path, names) for path in self._arrays}
        if len(set(paths.values())) < len(paths):
            taken = next(
                new
                for path, new in paths.items()
                if path != new and list(paths.values()).count(new) > 1
            )
            raise UnfitFileError(
                f"it has a variable {taken!r} already, which another one is to be called"
                f" (rename=...)",
                Kind.EXTRA_VARIABLE,
                url=self.url,
            )
        self._names = {
            new: self._names.get(path, path)
            for path, new in paths.items()
            if path != new or path in self._names
        }
        self._attributes = {
            paths[path]: _with_words(attributes, names)
            for path, attributes in self._attributes.items()
        }
        self._groups = {
            path: _with_words(attributes, names) for path, attributes in self._groups.items()
        }
        self._arrays = {
            paths[path]: _with_dimensions(
                array, tuple(names.get(name, name) for name in array.dimensions)
            )
            for path, array in self._arrays.items()
        }

    def set_coordinate(
        self, name: str, values: ArrayLike | datetime, attributes: Mapping[str, Any] | None = None
    ) -> None:
        """Add a coordinate, or replace its values: a single value, or one for each step.

        Values are numbers, texts, or times (`datetime` or `numpy.datetime64`). A single value
        becomes a dimension if files are joined along it. Values for each step of a dimension need
        the name of that dimension.
        """
        encoded, encoding = _encoded(values)
        self._set(name, encoded, {**encoding, **(attributes or {})})

    def _set(self, name: str, values: NDArray[Any], attributes: Mapping[str, Any]) -> None:
        length = self.dimensions.get(name)
        if length is not None and values.ndim == 0 and length == 1:
            values = values.reshape(1)
        expected = () if length is None else (length,)
        if values.shape != expected:
            amount = f"{values.size} values" if values.ndim else "a single value"
            raise UnfitFileError(
                f"it cannot get {amount} of {name!r}: "
                + (
                    "it has no such dimension"
                    if length is None
                    else f"it has {length} steps along that dimension"
                ),
                Kind.COORDINATE,
                url=self.url,
            )
        self._arrays[name] = _array_of(values, (name,) if values.ndim else ())
        self._attributes[name] = dict(attributes)
        self._names[name] = NOT_IN_FILE
        if not values.ndim:
            words = str(self.attributes.get("coordinates", "")).split()
            self.attributes["coordinates"] = " ".join(dict.fromkeys([*words, name]))

    def _path(self, name: str) -> str:
        if name in self._arrays:
            return name
        raise KeyError(
            f"{self.url} has no variable {name!r}, but {', '.join(sorted(self._arrays))}"
        )

    def _require_renaming(self, old: str, new: str, names: Mapping[str, str]) -> None:
        present = {*self._arrays, *map(node_name, self._arrays), *self.dimensions}
        if old not in present and new not in present:
            raise UnfitFileError(
                f"it has neither {old!r} nor {new!r} (rename=...), but"
                f" {', '.join(sorted({*self._arrays, *self.dimensions}))}",
                Kind.MISSING_VARIABLE,
                url=self.url,
            )

    def parts(self) -> tuple[dict[str, RawArray], Attributes, dict[str, str]]:
        """Return arrays, attributes of groups, and names in the file where they are others."""
        arrays = {
            path: RawArray(
                {**array.metadata, "attributes": self._attributes[path]}, array.references
            )
            for path, array in self._arrays.items()
        }
        return arrays, self._groups, self._names


def edited(
    url: str,
    arrays: Mapping[str, RawArray],
    groups: Attributes,
    options: ParseOptions,
    access: SourceAccess,
) -> tuple[Mapping[str, RawArray], Attributes, Mapping[str, str]]:
    """Return arrays, attributes and names in the file of what options make of a file."""
    if not options.edits:
        return arrays, groups, {}
    file = EditableFile(url, arrays, groups, access)
    if options.drop:
        file.drop(*options.drop)
    if options.variables:
        file.select(options.variables)
    if options.rename:
        file.rename(options.rename)
    for name, value in options.constants.items():
        file.set_coordinate(name, value)
    if options.from_name is not None:
        for name, array, attributes in _named_coordinates(url, options.from_name):
            file._set(name, array, attributes)  # noqa: SLF001 - the same module
    if options.preprocess is not None:
        _preprocessed(file, options)
    return file.parts()


def _preprocessed(file: EditableFile, options: ParseOptions) -> None:
    assert options.preprocess is not None
    try:
        outcome = options.preprocess(file)
    except IcefloeError:
        raise
    except Exception as error:
        raise SourceError(
            f"preprocess failed for {file.url}: {type(error).__name__}: {error}",
            ErrorKind.SOURCE_UNSUPPORTED,
            url=file.url,
        ) from error
    if outcome is not None and outcome is not file:
        raise InvalidInputError(
            f"preprocess returned {type(outcome).__name__}: it gets an EditableFile, changes it,"
            " and returns it or nothing",
            ErrorKind.BAD_METADATA,
        )


def _named_coordinates(
    url: str, text: str
) -> Iterator[tuple[str, NDArray[Any], Mapping[str, Any]]]:
    pattern = name_pattern(text)
    try:
        values = pattern.values(url)
    except ValueError as error:
        raise UnfitFileError(
            f"its name does not tell a coordinate ({error}), as from_name={text!r} needs",
            Kind.COORDINATE,
            url=url,
        ) from error
    if values is None:
        raise UnfitFileError(
            f"its name does not match from_name={text!r}", Kind.COORDINATE, url=url
        )
    for name, value in values.items():
        yield name, *_encoded_name(value, is_date=pattern.is_date(name))


def _encoded_name(value: Scalar, *, is_date: bool) -> tuple[NDArray[Any], dict[str, Any]]:
    if not isinstance(value, datetime):
        return _encoded(value)
    units = _DAYS if is_date else _SECONDS if not value.microsecond else _MICROSECONDS
    return _in_units(np.asarray(value.replace(tzinfo=None), "datetime64[us]"), units)


def _encoded(values: ArrayLike | datetime) -> tuple[NDArray[Any], dict[str, Any]]:
    """Return values that can be stored, and the attributes that tell their meaning."""
    if isinstance(values, datetime) and values.tzinfo is not None:
        values = values.astimezone(UTC).replace(tzinfo=None)
    array = np.asarray(values)
    if array.dtype.kind == "O" and array.size and isinstance(array.ravel()[0], datetime):
        array = array.astype("datetime64[us]")
    if array.dtype.kind == "M":
        whole = array.astype("datetime64[us]")
        is_whole = (whole == whole.astype("datetime64[s]")).all()
        return _in_units(whole, _SECONDS if is_whole else _MICROSECONDS)
    if array.dtype.kind in {"O", "T"}:
        array = np.array(array.tolist(), np.str_).reshape(array.shape)
    if array.dtype.kind not in "iufUb" or array.ndim > 1:
        raise InvalidInputError(
            f"values of a coordinate are numbers, texts or times along one dimension at most, not"
            f" {array.dtype} with {array.ndim} dimensions",
            ErrorKind.BAD_METADATA,
        )
    return array, {}


def _in_units(moments: NDArray[Any], units: str) -> tuple[NDArray[Any], dict[str, Any]]:
    unit = {_DAYS: "D", _SECONDS: "s", _MICROSECONDS: "us"}[units]
    numbers = np.asarray(moments.astype(f"datetime64[{unit}]")).astype(np.int64)
    return numbers, {"units": units, "calendar": _CALENDAR, "standard_name": "time"}


def _array_of(values: NDArray[Any], dimensions: tuple[str, ...]) -> RawArray:
    """Return an array whose only chunk comes along as bytes."""
    is_text = values.dtype.kind == "U"
    if is_text:
        data = bytes(numcodecs.VLenUTF8().encode(values.astype(object).reshape(-1)))
        codecs = [{"name": "vlen-utf8", "configuration": {}}]
    else:
        values = values.astype(values.dtype.newbyteorder("<"))
        data = values.tobytes()
        codecs = [{"name": "bytes", "configuration": {"endian": "little"}}]
    metadata = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(values.shape),
        "data_type": "string" if is_text else values.dtype.name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(values.shape)}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": "" if is_text else False if values.dtype.kind == "b" else 0,
        "codecs": codecs,
        "attributes": {},
        "dimension_names": list(dimensions),
        "storage_transformers": [],
    }
    if values.dtype.kind == "f":
        metadata["fill_value"] = 0.0
    cells = np.zeros((1, values.ndim), np.int64)
    references = References(
        np.empty((0, values.ndim), np.int64),
        np.empty(0, np.uint64),
        np.empty(0, np.uint64),
        (),
        np.empty(0, np.uint32),
        cells,
        BytesColumn.from_list([data]),
    )
    return RawArray(metadata, references)


def _renamed(path: str, names: Mapping[str, str]) -> str:
    if path in names:
        return names[path]
    group, _, name = path.rpartition("/")
    return joined_path(group, names.get(name, name))


def _with_dimensions(array: RawArray, dimensions: tuple[str, ...]) -> RawArray:
    if dimensions == array.dimensions:
        return array
    return RawArray({**array.metadata, "dimension_names": dimensions}, array.references)


def _with_words(attributes: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Rename what attributes such as `coordinates` point to."""
    changed = dict(attributes)
    for attribute in POINTING:
        text = changed.get(attribute)
        if isinstance(text, str) and not names.keys().isdisjoint(_words(text)):
            stems = [(word, word.rstrip(":")) for word in text.split()]
            changed[attribute] = " ".join(
                names.get(stem, stem) + word[len(stem) :] for word, stem in stems
            )
    return changed


def _words(text: str) -> Iterable[str]:
    return (word.rstrip(":") for word in text.split())


def _pointed(path: str, attributes: Mapping[str, Any]) -> Iterator[str]:
    group = path.rpartition("/")[0]
    for attribute in POINTING:
        text = attributes.get(attribute)
        if isinstance(text, str):
            for word in _words(text):
                yield joined_path(group, word)
