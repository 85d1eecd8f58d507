"""What users choose about parsing and combining, as plain values that travel."""

from collections.abc import Mapping
from typing import Final, Literal

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.pipeline.files import FILES_CHECKED
from icefloe.pipeline.files.formats import Format
from icefloe.records import Record, field

_ONE_MEBIBYTE: Final = 1 << 20

type AttributeRule = Literal["drop", "first", "promote", "fail"]
"""Attributes that differ from file to file are left out, taken from the first file, made an array
along the first dimension that files are joined along, or a misfit."""

type GapRule = Literal["close", "leave", "fail"]
"""Steps missing between files are closed up, left free for files to come, or a misfit."""

type ValueCheck = int | Literal["all", "none"]
"""How many files of each schema and parser have a few chunks of each variable compared with an
independent reader; `"all"` compares every chunk of every file."""


class ParseOptions(Record):
    """How files are parsed."""

    concat: tuple[str, ...]
    """Dimensions that files are joined along, the outermost first."""
    format: Format | None = None
    """What all files are; found out for each one if not given."""
    group: str | None = None
    """The group of the files to take as their root."""
    drop: tuple[str, ...] = ()
    """Names of variables to leave out."""
    load_below: int = _ONE_MEBIBYTE
    """Values of arrays with one dimension are read up to this many bytes."""


class CombineOptions(Record):
    """How files are put together."""

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

    def __post_init__(self) -> None:
        check = self.check_values
        is_number = isinstance(check, int) and not isinstance(check, bool) and check > 0
        if not is_number and check not in {"all", "none"}:
            raise InvalidInputError(
                f"check_values is {check!r}: give a number of files above 0, 'all' or 'none'",
                ErrorKind.BAD_METADATA,
            )
