"""Archives of HDF5 files that no netCDF library wrote, and read by h5py or netCDF-C."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin
import numpy as np
import xarray

from tests.archives.cases import (
    COPIED,
    Case,
    Expected,
    Options,
    Refused,
    Write,
    variables_of,
)
from tests.archives.netcdf import numbers

BY_ORDER = Options(combine={"by": "order"})


def scaled(file: Any, name: str, values: Any) -> Any:
    file.create_dataset(name, data=values).make_scale(name)
    return file[name]


def with_scales(fill: Callable[[Any], object], count: int = 2) -> Write:
    """Write files with times and columns as dimension scales."""

    def write(folder: Path) -> None:
        for number in range(count):
            with h5py.File(folder / f"{number}.h5", "w") as file:
                scaled(file, "time", np.arange(2 * number, 2 * number + 2))
                scaled(file, "x", np.arange(5.0))
                fill(file)
                for dataset in file.values():
                    if dataset.ndim and not dataset.is_scale:
                        dataset.dims[0].attach_scale(file["time"])
                        if dataset.ndim == 2:
                            dataset.dims[1].attach_scale(file["x"])

    return write


def dataset(kind: Any = "f4", **how: Any) -> Callable[[Any], object]:
    """Make a dataset of two times and five columns."""

    def fill(file: Any) -> None:
        values = numbers(2, 5, seed=int(file["time"][0])).astype(kind)
        file.create_dataset("t", data=values, **how)

    return fill


def read(paths: Sequence[Path]) -> Expected:
    """Read the root of files with h5py, which knows no attributes, and join them along time."""
    parts: dict[str, list[Any]] = {}
    dims: dict[str, tuple[str, ...]] = {}
    for path in paths:
        with h5py.File(path) as file:
            for name, found in file.items():
                if isinstance(found, h5py.Group) or found.shape is None:
                    continue
                is_text = h5py.check_string_dtype(found.dtype) is not None
                whole = found.asstr() if is_text and found.dtype.kind == "O" else found
                parts.setdefault(name, []).append(whole[...])
                names = [axis[0].name.strip("/") if len(axis) else "" for axis in found.dims]
                dims[name] = (name,) if found.is_scale else tuple(names)
    return {
        name: xarray.Variable(
            dims[name], np.concatenate(values) if "time" in dims[name] else values[0]
        )
        for name, values in parts.items()
    }


def read_phony(paths: Sequence[Path]) -> Expected:
    """Read files without dimension scales, with the names that netCDF gives to dimensions."""
    datasets = [xarray.open_dataset(path, engine="h5netcdf", phony_dims="sort") for path in paths]
    along = xarray.concat(datasets, "phony_dim_0")
    return variables_of(along)


def compact(file: Any) -> None:
    layout = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    layout.set_layout(h5py.h5d.COMPACT)
    values = numbers(2, 5, seed=int(file["time"][0])).astype("f4")
    space = h5py.h5s.create_simple(values.shape)
    made = h5py.h5d.create(file.id, b"t", h5py.h5t.IEEE_F32LE, space, layout)
    made.write(h5py.h5s.ALL, h5py.h5s.ALL, values)


def flat(folder: Path) -> None:
    for number in range(2):
        with h5py.File(folder / f"{number}.h5", "w") as file:
            file.create_dataset("t", data=numbers(2, 5, seed=number), chunks=(1, 5))


def user_block(folder: Path) -> None:
    for number in range(2):
        with h5py.File(folder / f"{number}.h5", "w", userblock_size=512) as file:
            scaled(file, "time", np.arange(2 * number, 2 * number + 2))
            file.create_dataset("t", data=numbers(2, 5, seed=number), chunks=(1, 5))
            scaled(file, "x", np.arange(5.0))
            file["t"].dims[0].attach_scale(file["time"])
            file["t"].dims[1].attach_scale(file["x"])


def newest(folder: Path) -> None:
    for number in range(2):
        with h5py.File(folder / f"{number}.h5", "w", libver="latest") as file:
            scaled(file, "time", np.arange(2 * number, 2 * number + 2))
            scaled(file, "x", np.arange(5.0))
            file.create_dataset(
                "t", data=numbers(2, 5, seed=number), chunks=(1, 5), maxshape=(None, None)
            )
            file["t"].dims[0].attach_scale(file["time"])
            file["t"].dims[1].attach_scale(file["x"])


def linked(folder: Path) -> None:
    with_scales(dataset(chunks=(1, 5)))(folder)
    (folder / "other").mkdir()
    for number in range(2):
        with h5py.File(folder / "other" / f"{number}.h5", "w") as file:
            file.create_dataset("u", data=numbers(2, 5, seed=9 + number))
        with h5py.File(folder / f"{number}.h5", "a") as file:
            file["u"] = h5py.ExternalLink(f"other/{number}.h5", "u")
            file["u"]


def stitched(folder: Path) -> None:
    (folder / "parts").mkdir()
    for number in range(2):
        with h5py.File(folder / "parts" / f"{number}.h5", "w") as file:
            file.create_dataset("t", data=numbers(5, seed=number))
    layout = h5py.VirtualLayout((2, 5), "f8")
    for number in range(2):
        layout[number] = h5py.VirtualSource(folder / "parts" / f"{number}.h5", "t", (5,))
    with h5py.File(folder / "all.h5", "w") as file:
        scaled(file, "time", np.arange(2))
        scaled(file, "x", np.arange(5.0))
        file.create_virtual_dataset("t", layout)
        file["t"].dims[0].attach_scale(file["time"])
        file["t"].dims[1].attach_scale(file["x"])


def outside(folder: Path) -> None:
    values = numbers(2, 5)
    (folder / "values.bin").write_bytes(values.tobytes())
    with h5py.File(folder / "all.h5", "w") as file:
        scaled(file, "time", np.arange(2))
        scaled(file, "x", np.arange(5.0))
        file.create_dataset(
            "t", (2, 5), "f8", external=[(str(folder / "values.bin"), 0, values.nbytes)]
        )
        file["t"].dims[0].attach_scale(file["time"])
        file["t"].dims[1].attach_scale(file["x"])


def texts(file: Any) -> None:
    file.create_dataset("t", data=np.array([b"ab", b"c"]))
    file.create_dataset("u", data=["ä", ""], dtype=h5py.string_dtype())


def empty(file: Any) -> None:
    dataset(chunks=(1, 5))(file)
    file.create_dataset("nothing", data=h5py.Empty("f4"))


def read_linked(paths: Sequence[Path]) -> Expected:
    found = dict(read(paths))
    parts = [xarray.Variable(NO_SCALES, h5py.File(path)["u"][...]) for path in paths]
    # Nobody joins dimensions without names: those of the first file are taken.
    return {**found, "u": parts[0]}


def odd_scales(folder: Path) -> None:
    for number in range(2):
        with h5py.File(folder / f"{number}.h5", "w") as file:
            times = np.arange(2 * number, 2 * number + 2)
            file.create_dataset("time", data=times, chunks=(2,), scaleoffset=0)
            file.create_dataset("x", data=np.arange(5.0), chunks=(5,), **hdf5plugin.LZ4())
            file.create_dataset(
                "t", data=numbers(2, 5, seed=number), chunks=(1, 5), compression="lzf"
            )
            for name in ("time", "x"):
                file[name].make_scale(name)
            file["t"].dims[0].attach_scale(file["time"])
            file["t"].dims[1].attach_scale(file["x"])


def case(title: str, write: Write, reader: Any = read, **how: Any) -> Case:
    return Case("HDF5", title, how.pop("made_with", "h5py"), write, reader, files="*.h5", **how)


NO_SCALES = ("phony_dim_0", "phony_dim_1")
IN_OTHER_FILES = Refused("a copy.*follow_links=True", word="copy, with `--follow-links`")
FOLLOWED = Refused(
    "follow_links=True", Options(parse={"follow_links": True}), word="`--follow-links`"
)

CASES = (
    case("chunks", with_scales(dataset(chunks=(1, 5)))),
    case("contiguous", with_scales(dataset())),
    case("compact", with_scales(compact)),
    case(
        "gzip, shuffle and checksum",
        with_scales(dataset(chunks=(1, 5), compression="gzip", shuffle=True, fletcher32=True)),
    ),
    case("LZF", with_scales(dataset(chunks=(1, 5), compression="lzf")), virtual=COPIED),
    case(
        "integers with offset filter",
        with_scales(dataset("i4", chunks=(1, 5), scaleoffset=0)),
        virtual=COPIED,
    ),
    case(
        "LZ4",
        with_scales(dataset(chunks=(1, 5), **hdf5plugin.LZ4())),
        made_with="h5py, hdf5plugin",
        virtual=COPIED,
    ),
    case(
        "Blosc2",
        with_scales(dataset(chunks=(1, 5), **hdf5plugin.Blosc2())),
        made_with="h5py, hdf5plugin",
        virtual=COPIED,
    ),
    case(
        "Zstandard",
        with_scales(dataset(chunks=(1, 5), **hdf5plugin.Zstd())),
        made_with="h5py, hdf5plugin",
    ),
    case(
        "Bitshuffle",
        with_scales(dataset(chunks=(1, 5), **hdf5plugin.Bitshuffle())),
        made_with="h5py, hdf5plugin",
        virtual=COPIED,
    ),
    case(
        "ZFP",
        with_scales(dataset(chunks=(2, 5), **hdf5plugin.Zfp(reversible=True))),
        made_with="h5py, hdf5plugin",
        virtual=COPIED,
    ),
    case("half precision", with_scales(dataset("f2", chunks=(1, 5)))),
    case("complex numbers", with_scales(dataset("c8", chunks=(1, 5)))),
    case("boolean", with_scales(dataset("?", chunks=(1, 5)))),
    case("big-endian", with_scales(dataset(">f8", chunks=(1, 5)))),
    case("text of fixed and of any length", with_scales(texts)),
    case(
        "no dimension scales", flat, read_phony, options=Options(("phony_dim_0",), {"by": "order"})
    ),
    case("a user block of 512 bytes", user_block),
    case("the newest layout of files", newest),
    case("external links", linked, read_linked, virtual=IN_OTHER_FILES, native=FOLLOWED),
    case("virtual datasets", stitched, virtual=IN_OTHER_FILES, native=FOLLOWED),
    case("values in another file", outside, virtual=IN_OTHER_FILES, native=FOLLOWED),
    case("coordinates that only HDF5 can read", odd_scales, virtual=COPIED),
    case("a dataset without a shape", with_scales(empty)),
)
