"""A case: a small archive, how it is ingested, and the values that an independent reader reads."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import xarray

type Expected = Mapping[str, xarray.Variable]
"""By path of the array in the dataset, such as `model/t`."""
type Write = Callable[[Path], object]
type Read = Callable[[Sequence[Path]], Expected]
type Pair = Callable[[Expected, Expected], Mapping[str, tuple[xarray.Variable, xarray.Variable]]]


def variables_of(dataset: xarray.Dataset) -> dict[str, xarray.Variable]:
    """Load all variables."""
    return {str(name): variable for name, variable in dataset.load().variables.items()}


@dataclass(frozen=True, slots=True)
class Options:
    """The options of an ingest."""

    concat: tuple[str, ...] = ("time",)
    combine: Mapping[str, Any] = field(default_factory=dict)
    parse: Mapping[str, Any] = field(default_factory=dict)
    copy: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Refused:
    """An archive that cannot be ingested in this form."""

    message: str
    """A pattern that the error matches; it names the remedy."""
    remedy: Options | None = None
    """Options with which it can; without, the native form is the remedy, or the files change."""
    read: Read | None = None
    """What is expected then, if it is not the same."""
    word: str = ""
    """The remedy, for the table."""


@dataclass(frozen=True, slots=True)
class Case:
    """An archive and what becomes of it."""

    family: str
    title: str
    made_with: str
    write: Write
    read: Read
    options: Options = Options()
    virtual: Refused | None = None
    native: Refused | None = None
    files: str = "*"
    """A glob of the files to ingest, in the folder that they are written to."""
    pair: Pair | None = None
    """Find the arrays to compare with those expected, where their names are not the same."""
    tolerance: float = 0.0
    """Relative, where the reader computes in another precision."""
    folder: Path | None = None
    """Of files that are there already."""
    note: str = ""

    @property
    def name(self) -> str:
        """Return the name of its test."""
        text = f"{self.family} {self.title}".lower()
        return "-".join("".join(c if c.isalnum() else " " for c in text).split())


COPIED = Refused(
    r"All files fit as copies of their values \(copy=CopyOptions\.of\(\)\)\.",
    word="copy the values",
)
"""References cannot hold it, copies can."""
DECODED = Refused(
    r"unpacked \(copy=CopyOptions\.of\(decode=True\)\)\.", word="copy, with `--decode`"
)

UNEVEN = Refused(
    r"copy=CopyOptions\.of\(\)\), or by reference to .* lengths \(rectilinear=True\)\.",
    Options(combine={"rectilinear": True}),
    word="`--rectilinear`",
)
"""References need chunks of different lengths."""


def with_decoding(**combine: Any) -> Refused:
    """Return the refusal of a copy of values that has to unpack them."""
    return Refused(
        r"copy=CopyOptions\.of\(decode=True\)",
        Options(copy={"decode": True}, combine=combine),
        word="`--decode`" + "".join(f" `--{name.replace('_', '-')}`" for name in combine),
    )


def without(name: str) -> Refused:
    """Return the refusal of a variable that can be left out."""
    return Refused(rf"{name}.*drop=", Options(parse={"drop": (name,)}), word=f"`--drop {name}`")
