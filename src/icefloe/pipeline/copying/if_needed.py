"""Copies of values where references cannot hold what files have: when, how many, and why."""

from collections.abc import Callable
from math import prod
from typing import Any, Final

import numpy as np

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.pipeline.combining.combine import Combined
from icefloe.pipeline.combining.report import Misfit, Report
from icefloe.pipeline.copying.layouts import CopyOptions
from icefloe.records import Record, field
from icefloe.reports import counted, shown_bytes

MOST_BYTES: Final = 100 << 30
"""Values up to this size are copied unless the caller allows more."""
_TEXT_BYTES: Final = 64
"""What a value of any length is taken for."""


class CopyReason(Record):
    """Why values are copied that nobody asked to copy, and how many.

    >>> reason = CopyReason("file:///b.nc", "szip", misfits=1, files=2, values_bytes=4096)
    >>> print(reason)
    values are copied (4.0 KiB before compression): 1 of 2 files does not fit by reference: \
file:///b.nc: szip
    """

    url: str
    """The first file that does not fit by reference; empty if it would be any."""
    message: str
    """What is wrong with it."""
    misfits: int
    """How many files do not fit by reference."""
    files: int
    """The number of all files; 0 if what is copied are no files."""
    values_bytes: int
    """What the values take before they are compressed."""
    decode: bool = False
    """Whether numbers are unpacked: without that, copies would not fit either."""

    @classmethod
    def of(cls, report: Report, values_bytes: int, *, decode: bool) -> "CopyReason":
        """Return the reason that a report on references tells."""
        first: Misfit = min(report.misfits)
        misfits = len(report.by_file())
        return cls(first.url, first.message, misfits, report.files, values_bytes, decode)

    @property
    def in_short(self) -> str:
        """Return the reason without details."""
        return f"values are copied{' and unpacked' if self.decode else ''}, as {self._misfits}"

    @property
    def details(self) -> str:
        """Return which files do not fit by reference, and what is wrong with the first."""
        parts = dict.fromkeys((self._misfits, self.url, self.message))
        return ": ".join(filter(None, parts))

    @property
    def _misfits(self) -> str:
        if not self.files:
            return self.message
        does = "does" if self.misfits == 1 else "do"
        return f"{self.misfits} of {counted(self.files, 'file')} {does} not fit by reference"

    def __str__(self) -> str:
        size = f"{shown_bytes(self.values_bytes)} before compression"
        how = f"copied ({size})"
        if self.decode:
            how = f"copied and unpacked ({size}), which leaves them as xarray shows them"
        return f"values are {how}: {self.details}"


class CopyIfNeeded(Record, kw_only=True):
    """Have values copied only if files do not fit by reference.

    >>> CopyIfNeeded(how=CopyOptions.of({"time": 24}), most_bytes=10 << 40).most_bytes
    10995116277760
    """

    how: CopyOptions = field(default_factory=CopyOptions.of)
    """Chunks, shards and codecs of copies, if there will be any. Numbers are unpacked also where
    it does not ask for that, if files fit only then."""
    most_bytes: int = MOST_BYTES
    """Values up to this size are copied, before compression. If they take more, an error tells how
    much, and nothing is written."""
    on_copy: Callable[[CopyReason], None] | None = None
    """Called before values are copied; may raise to stop that."""
    refused: str = ""
    """Why no file can be referred to, if that is known. Then all values are copied."""

    def allow(self, reason: CopyReason) -> None:
        """Announce that values will be copied; raise if they are too many."""
        if reason.values_bytes > self.most_bytes:
            raise InvalidInputError(
                f"copies of the values would take {shown_bytes(reason.values_bytes)} before"
                f" compression, which is more than {shown_bytes(self.most_bytes)}, and nothing was"
                f" written: allow more (most_bytes=...), or change the files. {reason.details}",
                ErrorKind.LIMIT_EXCEEDED,
                **({"url": reason.url} if reason.url else {}),
            )
        if self.on_copy is not None:
            self.on_copy(reason)


def copied_bytes(combined: Combined) -> int:
    """Return how many bytes the values of a dataset take that files make."""
    return sum(
        prod(array.metadata["shape"]) * _item_bytes(array.metadata["data_type"])
        for array in combined.arrays
    )


def _item_bytes(data_type: Any) -> int:
    if not isinstance(data_type, str):  # of one length, which its configuration tells
        configuration = data_type.get("configuration", {})
        return int(configuration.get("length_bytes", _TEXT_BYTES))
    try:
        return np.dtype(data_type).itemsize or _TEXT_BYTES
    except TypeError:
        return _TEXT_BYTES
