"""The dimensions that files have, and along which of them they should be joined."""

from collections.abc import Collection, Iterator, Sequence
from pathlib import PurePosixPath
from typing import Final

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format.paths import node_name
from icefloe.pipeline.files.facts import ANY_LENGTH, FileFacts, is_named
from icefloe.pipeline.files.options import CombineOptions
from icefloe.records import Record

_MOST_SHOWN: Final = 12


class Dimension(Record):
    """A dimension of some files, or a coordinate with a single value.

    >>> str(Dimension("time", 28, 31, varies=True)), str(Dimension("lat", 721, 721))
    ('time (28 to 31 steps, other values in each file)', 'lat (721)')
    """

    name: str
    shortest: int
    longest: int
    varies: bool = False
    """Whether lengths or values differ between files."""
    is_time: bool = False

    def __str__(self) -> str:
        if not self.varies:
            return f"{self.name} ({self.longest})"
        lengths = f"{self.shortest} to {self.longest}"
        steps = str(self.longest) if self.shortest == self.longest else lengths
        plural = "" if steps == "1" else "s"
        return f"{self.name} ({steps} step{plural}, other values in each file)"


def find_dimensions(files: Sequence[FileFacts], without: Collection[str] = ()) -> list[Dimension]:
    """Describe all dimensions of files, but for some; in the order in which arrays have them."""
    found: dict[str, None] = {}
    lengths: dict[str, set[int]] = {}
    for name, length in _lengths(files):
        if length != ANY_LENGTH and name not in without:
            found[name] = None
            lengths.setdefault(name, set()).add(length)
    single = [name for name in _single_values(files) if name not in {*found, *without}]
    return [
        Dimension(
            name,
            min(lengths.get(name, {1})),
            max(lengths.get(name, {1})),
            varies=len(lengths.get(name, {1})) > 1 or _differs(files, name),
            is_time=_is_time(files, name),
        )
        for name in (*found, *single)
    ]


def _lengths(files: Sequence[FileFacts]) -> Iterator[tuple[str, int]]:
    for file in files:
        for array in () if file.schema is None else file.schema.arrays:
            yield from zip(array.dimensions, array.shape, strict=True)


def _single_values(files: Sequence[FileFacts]) -> list[str]:
    """Name numbers that are others in other files."""
    paths = {
        array.path: None
        for file in files
        if file.schema is not None
        for array in file.schema.arrays
        if not array.shape
    }
    return [node_name(path) for path in paths if _differs(files, node_name(path))]


def _differs(files: Sequence[FileFacts], name: str) -> bool:
    digests = {
        digest for file in files for path, digest in file.digests.items() if is_named(path, name)
    }
    return len(digests) > 1


def _is_time(files: Sequence[FileFacts], name: str) -> bool:
    return any(
        " since " in str(array.encoding.get("units", ""))
        for file in files
        if file.schema is not None
        for array in file.schema.arrays
        if is_named(array.path, name)
    )


def suggest_dimension(dimensions: Sequence[Dimension]) -> str | None:
    """Name the dimension along which files should be joined; None if that is not clear.

    >>> suggest_dimension([Dimension("time", 1, 1, varies=True), Dimension("lat", 3, 3)])
    'time'
    """
    varying = [dimension for dimension in dimensions if dimension.varies]
    for candidates in (varying, [d for d in varying or dimensions if d.is_time]):
        if len(candidates) == 1:
            return candidates[0].name
    return None


def advise(dimensions: Sequence[Dimension], url: str = "") -> str:
    """List dimensions, and advise along which one files are joined; `url` is that of a file."""
    shown = ", ".join(map(str, dimensions[:_MOST_SHOWN]))
    more = len(dimensions) - _MOST_SHOWN
    text = f"the files have {shown or 'no dimensions'}" + (f" and {more} more" if more > 0 else "")
    name = suggest_dimension(dimensions)
    if name is not None:
        return f"{text}. Join them along {name!r}, with concat=({name!r},)"
    if any(dimension.varies for dimension in dimensions):
        return f"{text}. Choose one, or several, of those whose values differ"
    return (
        f"{text}. If the names of the files tell where they go, name the pattern, such as"
        f" from_name='*_%Y%m%d{PurePosixPath(url).suffix}'; or join them in the order given, with"
        " by='order'"
    )


def require_dimensions(files: Sequence[FileFacts], options: CombineOptions) -> None:
    """Raise if files are to be joined along something that none of them knows of."""
    readable = [file for file in files if file.schema is not None]
    if not readable or options.by == "order":
        return
    for name in options.concat:
        coordinate = options.coordinates.get(name, name)
        is_known = any(
            name not in file.added or any(is_named(path, coordinate) for path in file.values)
            for file in readable
        )
        if not is_known:
            raise InvalidInputError(
                f"no file has the dimension {name!r}, along which files are to be joined, nor a"
                f" coordinate {coordinate!r}: "
                f"{advise(find_dimensions(readable, options.concat), readable[0].url)}",
                ErrorKind.BAD_METADATA,
            )
