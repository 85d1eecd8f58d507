"""Archives of small netCDF files, thousands in seconds, with faults on request.

    archive = write_archive(folder, files=3000, faults={7: Fault.TRUNCATED, 90: Fault.DTYPE})

Each file has `steps` hours of `temperature` (packed, compressed) and `pressure` on a small grid,
with CF coordinates. Values follow from the position (`expected_temperature`), so that whatever is
read back can be checked without the files.

Files of an archive differ in their values only, so all but the first are copies of it in which
these are overwritten.
"""

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import h5py
import numpy as np
from numpy.typing import NDArray

_SCALE: Final = 0.01
_OFFSET: Final = 250.0
_FILL: Final = -32768
_TIMES_PER_CHUNK: Final = 512


class Fault(StrEnum):
    """The defects of a file; the values are the kinds in reports."""

    TRUNCATED = "truncated"
    DTYPE = "dtype"
    CODECS = "codecs"
    DUPLICATE = "duplicate"
    MISSING_VARIABLE = "missing-variable"
    SCALE_OFFSET = "scale-offset"


@dataclass(frozen=True, slots=True)
class Archive:
    """An archive as it was written."""

    folder: Path
    files: int
    steps: int = 1
    grid: tuple[int, int] = (12, 16)
    calendar: str = "standard"
    units: str = "hours since 2000-01-01"
    faults: Mapping[int, Fault] = field(default_factory=dict)

    def path(self, number: int) -> Path:
        """Return the path of a file; there are at most a hundred in a directory."""
        return self.folder / f"{number // 100:04d}" / f"model_{number:06d}.nc"

    def urls(self) -> list[str]:
        """Return the URLs of all files, in order."""
        return [self.path(number).as_uri() for number in range(self.files)]

    @property
    def pattern(self) -> str:
        """Return the glob that matches all files."""
        return str(self.folder / "*" / "model_*.nc")

    def packed_temperature(self, number: int) -> NDArray[np.int16]:
        """Return what one file holds, as stored."""
        first = number * self.steps
        steps = np.arange(first, first + self.steps)[:, None, None]
        cells = np.arange(self.grid[0] * self.grid[1]).reshape(1, *self.grid)
        return ((steps * 7 + cells) % 4000).astype(np.int16)

    def expected_temperature(self, number: int) -> NDArray[np.float64]:
        """Return what one file means."""
        return self.packed_temperature(number).astype(np.float64) * _SCALE + _OFFSET

    def expected_pressure(self, number: int) -> NDArray[np.float32]:
        """Return the other variable of one file."""
        first = number * self.steps
        steps = np.arange(first, first + self.steps, dtype=np.float32)[:, None, None]
        return np.broadcast_to(1000 + steps, (self.steps, *self.grid)).copy()

    def write(self, number: int, fault: Fault | None = None) -> None:
        """Write one file, again if it is there, in the way that the fault says."""
        path = self.path(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        with h5py.File(path, "w", libver=("v108", "v108"), track_order=False) as file:
            self._write_coordinates(file, number - 1 if fault is Fault.DUPLICATE else number)
            self._write_data(file, number, fault)
            file.attrs["Conventions"] = "CF-1.8"
            file.attrs["history"] = _history(number)
        if fault is Fault.TRUNCATED:
            content = path.read_bytes()
            path.write_bytes(content[: len(content) * 2 // 3])

    def _hours(self, number: int) -> NDArray[np.float64]:
        first = number * self.steps
        return np.arange(first, first + self.steps, dtype=np.float64)

    def _write_coordinates(self, file: h5py.File, number: int) -> None:
        hours = self._hours(number)
        attributes = {"units": self.units, "calendar": self.calendar, "standard_name": "time"}
        _dimension(file, "time", hours, attributes, grows=True)
        lat = np.linspace(-60, 60, self.grid[0], dtype=np.float32)
        lon = np.linspace(0, 350, self.grid[1], dtype=np.float32)
        _dimension(file, "lat", lat, {"units": "degrees_north"})
        _dimension(file, "lon", lon, {"units": "degrees_east"})

    def _write_data(self, file: h5py.File, number: int, fault: Fault | None) -> None:
        temperature = self.packed_temperature(number)
        scale = 10 * _SCALE if fault is Fault.SCALE_OFFSET else _SCALE
        packed = file.create_dataset(
            "temperature",
            data=temperature.astype(np.int32) if fault is Fault.DTYPE else temperature,
            chunks=(1, *self.grid),
            compression=None if fault is Fault.CODECS else "gzip",
            compression_opts=None if fault is Fault.CODECS else 1,
            fillvalue=_FILL,
        )
        packed.attrs.update(
            scale_factor=scale, add_offset=_OFFSET, units="K", _FillValue=packed.dtype.type(_FILL)
        )
        _attach(file, packed)
        if fault is not Fault.MISSING_VARIABLE:
            pressure = self.expected_pressure(number)
            plain = file.create_dataset("pressure", data=pressure, chunks=(1, *self.grid))
            plain.attrs["units"] = "hPa"
            _attach(file, plain)


def write_archive(
    folder: Path, files: int, *, faults: Mapping[int, Fault] | None = None, **options: Any
) -> Archive:
    """Write an archive; see `Archive` for the options."""
    archive = Archive(folder, files, faults=dict(faults or {}), **options)
    template: _Template | None = None
    for number in range(files):
        if (fault := archive.faults.get(number)) is not None:
            archive.write(number, fault)
            continue
        template = template or _Template(archive, number)
        path = archive.path(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(template.with_values_of(number))
    return archive


class _Template:
    """The bytes of one file, and where in it the values are that others have."""

    def __init__(self, archive: Archive, number: int) -> None:
        self._archive = archive
        archive.write(number)
        path = archive.path(number)
        with h5py.File(path, "r+") as file:
            temperature = file["temperature"]
            for step, packed in enumerate(self._packed(number)):
                temperature.id.write_direct_chunk((step, 0, 0), packed)
        self._bytes = path.read_bytes()
        with h5py.File(path) as file:
            self._places = [
                self._bytes.index(_history(number).encode()),
                *(
                    file[name].id.get_chunk_info(chunk).byte_offset
                    for name in ("time", "temperature", "pressure")
                    for chunk in range(file[name].id.get_num_chunks())
                ),
            ]

    def with_values_of(self, number: int) -> bytes:
        """Return the bytes of another file."""
        copy = bytearray(self._bytes)
        for place, value in zip(self._places, self._values(number), strict=True):
            copy[place : place + len(value)] = value
        return bytes(copy)

    def _values(self, number: int) -> Iterator[bytes]:
        yield _history(number).encode()
        hours = self._archive._hours(number)  # noqa: SLF001 - the same module
        for first in range(0, len(hours), _TIMES_PER_CHUNK):
            yield hours[first : first + _TIMES_PER_CHUNK].tobytes()
        yield from self._packed(number)
        yield from (step.tobytes() for step in self._archive.expected_pressure(number))

    def _packed(self, number: int) -> Iterator[bytes]:
        for step in self._archive.packed_temperature(number):
            yield zlib.compress(step.tobytes(), 0)  # as long as any other, so that it fits


def _history(number: int) -> str:
    return f"written as number {number:09d}"


def _dimension(
    file: h5py.File,
    name: str,
    values: NDArray[Any],
    attributes: Mapping[str, str],
    *,
    grows: bool = False,
) -> None:
    limits = (None,) if grows else None
    dataset = file.create_dataset(
        name, data=values, maxshape=limits, chunks=(_TIMES_PER_CHUNK,) if grows else None
    )
    dataset.attrs.update(attributes)
    dataset.make_scale(name)


def _attach(file: h5py.File, dataset: h5py.Dataset) -> None:
    for axis, name in enumerate(("time", "lat", "lon")):
        dataset.dims[axis].attach_scale(file[name])
