"""Arrays of pieces, and numbers that are unpacked: compared with NumPy and with xarray."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import xarray
import zarr
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

import icefloe
from icefloe.errors import ErrorKind, InvalidInputError, SourceError
from icefloe.pipeline import CombineOptions, CopyOptions, LocalEngine, MisfitsError, ParseOptions
from icefloe.pipeline.combining.insertions import Insertions
from icefloe.pipeline.copying.joined import InFile
from icefloe.pipeline.copying.pieces import Pieces, earlier_pieces, packed_starts
from icefloe.pipeline.files.decoding import Decoding, missing_marker
from icefloe.pipeline.files.facts import Single, SourceState
from icefloe.pipeline.files.sources import SourceAccess
from icefloe.pipeline.running.jobs import copy_sources
from tests.pipeline.repositories import repository_for

TIME = CombineOptions(("time",))


# -- pieces ----------------------------------------------------------------------------------


@st.composite
def cuts(draw: st.DrawFn) -> list[list[int]]:
    """Return where boxes end along each of one to three dimensions."""
    lengths = st.lists(st.integers(1, 4), min_size=1, max_size=4)
    return [np.cumsum(some).tolist() for some in draw(st.lists(lengths, min_size=1, max_size=3))]


@given(st.data())
def test_pieces_lead_to_the_values_before_and_after_they_are_merged(data: st.DataObject) -> None:
    ends = data.draw(cuts())
    shape = tuple(of_axis[-1] for of_axis in ends)
    whole = np.arange(np.prod(shape)).reshape(shape)
    sources = [whole, np.pad(whole, 2)]
    rows = []
    for cell in np.ndindex(*map(len, ends)):
        starts = [([0, *of_axis])[place] for of_axis, place in zip(ends, cell, strict=True)]
        stops = [of_axis[place] for of_axis, place in zip(ends, cell, strict=True)]
        source = data.draw(st.integers(0, 1))
        lengths = [stop - start for start, stop in zip(starts, stops, strict=True)]
        rows.append((starts, lengths, [start + 2 * source for start in starts], source))
    rows = data.draw(st.permutations(rows))
    pieces = Pieces.of(*map(list, zip(*rows, strict=True)))
    merged = pieces.merged()
    assert len(merged) <= len(pieces)
    assert merged.volume == pieces.volume == whole.size
    box = []
    for length in shape:
        start = data.draw(st.integers(0, length - 1))
        box.append(slice(start, data.draw(st.integers(start + 1, length))))
    for some in (pieces, merged):
        out = np.full([span.stop - span.start for span in box], -1)
        for overlap in some.within(tuple(box)):
            out[overlap.target] = sources[overlap.source][overlap.inside]
        assert_array_equal(out, whole[tuple(box)])


@given(
    st.lists(
        st.dictionaries(st.integers(0, 3), st.integers(1, 3), max_size=3), min_size=0, max_size=2
    )
)
def test_what_an_array_has_moves_behind_new_steps(inserted: list[dict[int, int]]) -> None:
    runs = [Insertions(tuple(sorted(of_axis.items()))) for of_axis in inserted]
    before = np.arange(4 ** len(runs)).reshape((4,) * len(runs))
    after = before
    for axis, of_axis in enumerate(runs):
        positions = [position for position, steps in of_axis.runs for _ in range(steps)]
        after = np.insert(after, positions, -1, axis=axis)
    out = np.full(after.shape, -1)
    whole = tuple(slice(0, length) for length in after.shape)
    for overlap in earlier_pieces(before.shape, runs).within(whole):
        out[overlap.target] = before[overlap.inside]
    assert_array_equal(out, after)


def test_pieces_of_one_source_become_one() -> None:
    tiles = Pieces.of(
        [[0, 0], [0, 3], [2, 0], [2, 3]],
        [[2, 3], [2, 1], [4, 3], [4, 1]],
        [[5, 1], [5, 4], [7, 1], [7, 4]],
        [0, 0, 0, 0],
    ).merged()
    assert (len(tiles), tiles.lengths.tolist(), tiles.origins.tolist()) == (1, [[6, 4]], [[5, 1]])


@given(
    st.lists(st.integers(1, 400), min_size=1, max_size=6),
    st.lists(st.integers(1, 2000), min_size=1, max_size=4),
)
def test_packed_runs_share_no_chunk(lengths: list[int], chunks: list[int]) -> None:
    starts = packed_starts(np.array(lengths), chunks)
    for chunk in chunks:
        reached = -1
        for start, length in zip(starts.tolist(), lengths, strict=False):
            cells = start // chunk + np.arange(-(-length // chunk))
            assert cells[0] > reached
            reached = cells[-1]
        assert (reached + 1) * chunk <= -(-int(starts[-1]) // chunk) * chunk


# -- unpacking -------------------------------------------------------------------------------

KINDS = ("i1", "u1", "i2", "u2", "i4", "u4", "f4", "f8")
FACTORS = st.one_of(st.none(), st.sampled_from([0.01, 0.5, 3.0, -0.1]))


@given(
    st.sampled_from(KINDS), FACTORS, FACTORS, st.booleans(), st.booleans(), st.booleans(), st.data()
)
def test_numbers_are_unpacked_as_xarray_does(
    stored: str,
    scale: float | None,
    offset: float | None,
    is_single: bool,
    is_marked: bool,
    is_signed_otherwise: bool,
    data: st.DataObject,
) -> None:
    kind = np.dtype(stored)
    low, high = (-99, 99) if kind.kind == "f" else (np.iinfo(kind).min, np.iinfo(kind).max)
    numbers = st.integers(int(low), int(high))
    values = np.array(data.draw(st.lists(numbers, min_size=1, max_size=9)), kind)
    factor: Any = np.float32 if is_single else np.float64
    attributes: dict[str, Any] = {
        name: factor(value)
        for name, value in (("scale_factor", scale), ("add_offset", offset))
        if value is not None
    }
    if is_marked:
        attributes["_FillValue"] = values[0]
    if is_signed_otherwise and kind.kind in "iu":
        attributes["_Unsigned"] = "true" if kind.kind == "i" else "false"
    expected = xarray.conventions.decode_cf_variable(
        "t", xarray.Variable("x", values, attributes)
    ).values
    # xarray looks for the missing value after it rounded all values, and then does not find it.
    is_exact = bool((values == values.astype(expected.dtype)).all())
    assume(is_exact or not is_marked)
    ours = {
        name: value
        if isinstance(value, str)
        else Single(value)
        if isinstance(value, np.float32) and name != "_FillValue"
        else value.item()
        for name, value in attributes.items()
    }
    decoding = Decoding.of(kind.name, ours)
    if decoding is None:
        assert_array_equal(values, expected)
        assert values.dtype == expected.dtype
        return
    assert decoding.decoded == expected.dtype.name
    out = np.empty(values.shape, decoding.decoded)
    decoding.into(values, out)
    assert_array_equal(out, expected)


def test_what_is_not_a_packed_number_stays_as_it_is() -> None:
    units = {"units": "days since 2000-01-01", "_FillValue": -1}
    assert Decoding.of("int32", units) is None
    assert Decoding.of("string", {"_FillValue": ""}) is None
    assert Decoding.of("float32", {"units": "K"}) is None
    assert Decoding.of({"name": "null_terminated_bytes"}, {"_FillValue": "x"}) is None


@pytest.mark.parametrize(
    ("kind", "attributes", "expected"),
    [
        ("float64", {"_FillValue": "AAAAAAAA+H8="}, "NaN"),
        ("float32", {"_FillValue": "AAAAAAA4j8A="}, -999.0),
        ("float64", {"missing_value": "Infinity"}, "Infinity"),
        ("int8", {"_FillValue": 255, "_Unsigned": "true"}, -1),
        ("int16", {"_FillValue": 70_000}, None),
        ("int16", {"missing_value": [-9, -8]}, -9),
        ("bool", {}, None),
        ("string", {}, ""),
    ],
)
def test_the_value_that_stands_for_missing_ones(
    kind: str, attributes: dict[str, Any], expected: Any
) -> None:
    assert missing_marker(kind, attributes) == expected


# -- jobs ------------------------------------------------------------------------------------


def write(path: Path, start: int, steps: int, **how: Any) -> np.ndarray[Any, Any]:
    """Write times and a field that HDF5 alone can read, unless told otherwise."""
    values = np.random.default_rng(start).integers(0, 99, (steps, 6)).astype("i4")
    with h5py.File(path, "w") as file:
        file.create_dataset("time", data=np.arange(start, start + steps)).make_scale("time")
        file.create_dataset("x", data=np.arange(6.0)).make_scale("x")
        file.create_dataset("t", data=values, **{"chunks": (2, 3), "compression": "lzf", **how})
        file["t"].dims[0].attach_scale(file["time"])
        file["t"].dims[1].attach_scale(file["x"])
    return values


def copied(folder: Path, processes: int = 0, **how: Any) -> Any:
    storage = icefloe.local_filesystem_storage(str(folder / f"repository-{processes}"))
    repository = icefloe.Repository.create(storage)
    with LocalEngine(processes) as engine:
        report = copy_sources(
            engine, repository, f"{folder}/*.h5", TIME, CopyOptions.of(**how.pop("copy", {})), **how
        )
    return report, repository.readonly_session("main")


@pytest.mark.parametrize("processes", [0, 2])
def test_values_of_both_sources_are_joined(tmp_path: Path, processes: int) -> None:
    """Some files by reference, some by opening them, none of whole chunks."""
    parts = [
        write(tmp_path / "0.h5", 0, 5),
        write(tmp_path / "1.h5", 5, 3, compression="gzip"),
        write(tmp_path / "2.h5", 8, 7, compression=None, chunks=None),
        write(tmp_path / "3.h5", 15, 4),
    ]
    with pytest.raises(MisfitsError, match=r"copy=CopyOptions\.of\(\)"):
        icefloe.ingest(repository_for(tmp_path), f"{tmp_path}/*.h5", TIME)
    report, session = copied(tmp_path, processes, copy={"chunks": {"time": 6}})
    found = xarray.open_zarr(session.store, consolidated=False)
    assert_array_equal(found.t.values, np.concatenate(parts))
    assert_array_equal(found.time.values, np.arange(19))
    assert report.scan.used == 4


def test_memory_counts_what_is_read_before_it_is_unpacked(tmp_path: Path) -> None:
    write(tmp_path / "0.h5", 0, 64, compression="gzip", chunks=(64, 6))
    plain, _ = copied(tmp_path)
    with h5py.File(tmp_path / "0.h5", "a") as file:
        file["t"].attrs["scale_factor"] = 0.5
    unpacked, session = copied(tmp_path, 1, copy={"decode": True, "overwrite": True})
    assert unpacked.memory_per_task >= plain.memory_per_task + 64 * 6 * 8
    kind = xarray.open_zarr(session.store, consolidated=False, decode_cf=False).t
    assert kind.dtype == np.float64
    assert "scale_factor" not in kind.attrs


def test_packed_numbers_in_any_order_of_bytes_and_without_dimensions(tmp_path: Path) -> None:
    values = write(tmp_path / "0.h5", 0, 3)
    with h5py.File(tmp_path / "0.h5", "a") as file:
        file.create_dataset("height", data=np.int16(7))
        packed = file.create_dataset(
            "u", data=values.astype(">i2"), chunks=(2, 6), compression="lzf"
        )
        packed.dims[0].attach_scale(file["time"])
        packed.dims[1].attach_scale(file["x"])
        for name in ("height", "u"):
            file[name].attrs["scale_factor"] = 0.5
    _, session = copied(tmp_path, 0, copy={"decode": True})
    found = xarray.open_zarr(session.store, consolidated=False)
    assert_array_equal(found.u.values, values * 0.5)
    assert found.height.item() == 3.5


def test_a_file_that_changed_since_it_was_parsed_is_not_read(tmp_path: Path) -> None:
    write(tmp_path / "0.h5", 0, 2)
    place = InFile(SourceState((tmp_path / "0.h5").as_uri(), 1, "other"), "t")
    with pytest.raises(SourceError, match="changed after it was parsed") as caught:
        place.open(None, SourceAccess())[slice(0, 2), slice(0, 6)]  # type: ignore[arg-type]
    assert caught.value.kind == ErrorKind.SOURCE_CHANGED


def test_only_files_are_decoded(tmp_path: Path) -> None:
    zarr.create_array(str(tmp_path / "a.zarr" / "t"), shape=(2,), dtype="i4")
    zarr.open_group(tmp_path / "a.zarr", mode="a")
    repository = icefloe.Repository.create(icefloe.in_memory_storage())
    with pytest.raises(InvalidInputError, match="only files that are joined are decoded"):
        icefloe.rechunk(repository, str(tmp_path / "a.zarr"), CopyOptions.of(decode=True))


def test_links_are_followed_only_if_told(tmp_path: Path) -> None:
    values = write(tmp_path / "0.h5", 0, 2)
    (tmp_path / "secret").write_bytes(values.tobytes())
    with h5py.File(tmp_path / "0.h5", "a") as file:
        where = [(str(tmp_path / "secret"), 0, values.nbytes)]
        file.create_dataset("u", values.shape, "i4", external=where)
    with pytest.raises(MisfitsError, match="follow_links=True, if these files are to be trusted"):
        copied(tmp_path)
    _, session = copied(tmp_path, 1, parse=ParseOptions(("time",), follow_links=True))
    assert_array_equal(xarray.open_zarr(session.store, consolidated=False).u.values, values)


def test_nothing_is_offered_that_does_not_help(tmp_path: Path) -> None:
    """One file is damaged: a copy does not mend it, but takes the other."""
    write(tmp_path / "0.h5", 0, 2)
    (tmp_path / "1.h5").write_bytes(b"no HDF5")
    with pytest.raises(MisfitsError, match="All files but 1 file fit as copies") as caught:
        icefloe.ingest(repository_for(tmp_path), f"{tmp_path}/*.h5", TIME)
    assert "remedy" in caught.value.report.to_dict()
    (tmp_path / "0.h5").unlink()
    with pytest.raises(MisfitsError) as caught:
        icefloe.ingest(repository_for(tmp_path), f"{tmp_path}/*.h5", TIME)
    assert caught.value.report.remedy == ""
    assert "copies" not in str(caught.value)
