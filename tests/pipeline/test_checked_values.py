"""What references lead to is compared with what an independent reader finds in the files."""

import os
import pickle
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from astropy.io import fits

import icefloe
from examples.archives import write_archive
from icefloe.effects import run_blocking
from icefloe.errors import ErrorKind, InvalidInputError, SourceError, StorageError
from icefloe.pipeline.checking.readers import Expected
from icefloe.pipeline.checking.values import (
    CheckPlan,
    check_file,
    choose_files,
    first_difference,
    plan_check,
    require_same_values,
)
from icefloe.pipeline.combining.combine import Combined, PlacedFile, combine
from icefloe.pipeline.combining.report import CheckedValues, ValuesMismatchError
from icefloe.pipeline.files.describing import ParsedFile
from icefloe.pipeline.files.options import CombineOptions, ParseOptions, ValueCheck
from icefloe.pipeline.files.parsing import parse_file
from icefloe.pipeline.files.references import References
from icefloe.pipeline.files.sources import SourceAccess
from icefloe.pipeline.local import virtualize_locally
from icefloe.records import replace
from icefloe.storage import Storage
from icefloe.storage.specs import MemorySpec
from tests.pipeline.files_of_formats import FILES, FileOfFormat, grib_message, write_kerchunk
from tests.pipeline.repositories import opened, repository_for
from tests.support.servers import S3Endpoint

IN_ORDER: Mapping[str, Any] = {"by": "order"}
by_name = pytest.mark.parametrize("kind", FILES, ids=lambda kind: kind.name)


def parsed_alone(path: Path, concat: str = "time") -> tuple[ParsedFile, Combined]:
    options = CombineOptions((concat,), by="order")
    parsed = parse_file(path.as_uri(), ParseOptions((concat,)))
    combined = combine([parsed.facts], options)
    assert not combined.report.misfits
    return parsed, combined


def checked(
    parsed: ParsedFile,
    combined: Combined,
    *,
    wanted: ValueCheck = 2,
    access: SourceAccess | None = None,
    wrong: Mapping[str, References] | None = None,
) -> CheckedValues:
    """Compare the values of a parsed file, some references of which are replaced."""
    [file] = choose_files([parsed.facts], combined, wanted).values()
    references = {**parsed.references, **(wrong or {})}
    plan = plan_check(combined, wanted, None)
    return check_file(file, references, plan, access or SourceAccess())


def moved(references: References, by: int) -> References:
    return replace(references, offsets=references.offsets + np.uint64(by))


def swapped(references: References) -> References:
    """Give the last chunk the place of the first one."""
    rows = np.arange(len(references))
    rows[[0, -1]] = rows[[-1, 0]]
    return replace(
        references,
        offsets=references.offsets[rows],
        lengths=references.lengths[rows],
        location_rows=references.location_rows[rows],
    )


# -- every format ----------------------------------------------------------------------------


@by_name
@pytest.mark.parametrize("wanted", [2, "all"])
def test_values_of_every_format(tmp_path: Path, kind: FileOfFormat, wanted: ValueCheck) -> None:
    path = tmp_path / kind.name
    kind.write(path)
    outcome = checked(*parsed_alone(path, kind.concat), wanted=wanted)
    assert not outcome.mismatches
    assert sorted(item.path for item in outcome.unchecked) == sorted(kind.unchecked)
    assert (outcome.files, set(outcome.readers)) == (1, {kind.reader})
    assert outcome.values > outcome.chunks > 0


@by_name
def test_references_to_other_bytes_are_found(tmp_path: Path, kind: FileOfFormat) -> None:
    path = tmp_path / kind.name
    kind.write(path)
    parsed, combined = parsed_alone(path, kind.concat)
    wrong = moved(parsed.references[kind.path], 3)
    [mismatch] = checked(parsed, combined, wrong={kind.path: wrong}).mismatches
    assert (mismatch.url, mismatch.path) == (path.as_uri(), kind.path)
    assert mismatch.expected != mismatch.got
    assert path.as_uri() in str(mismatch)


@pytest.mark.parametrize(
    "kind", [kind for kind in FILES if kind.is_cut], ids=lambda kind: kind.name
)
def test_chunks_in_another_order_are_found(tmp_path: Path, kind: FileOfFormat) -> None:
    path = tmp_path / kind.name
    kind.write(path)
    parsed, combined = parsed_alone(path, kind.concat)
    wrong = swapped(parsed.references[kind.path])
    assert len(checked(parsed, combined, wrong={kind.path: wrong}).mismatches) == 1


@by_name
def test_files_on_a_storage_without_paths(tmp_path: Path, kind: FileOfFormat) -> None:
    path = tmp_path / kind.name
    kind.write(path)
    storage = CountedStorage(tmp_path)
    outcome = checked(*parsed_alone(path, kind.concat), access=storage.access())
    assert not outcome.mismatches
    assert set(outcome.readers) == {kind.reader}
    assert storage.bytes_read


class CountedStorage:
    """A directory that does not look like one, and counts what is read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._storage: Storage = icefloe.local_filesystem_storage(str(folder))
        self.bytes_read = 0
        self.spec = MemorySpec()
        self.fails = False

    def access(self) -> SourceAccess:
        access = SourceAccess()
        object.__setattr__(access, "storages", {f"{self._folder.as_uri()}/": self})
        return access

    def open(self) -> Any:
        return self

    async def get(self, key: str, *given: Any) -> Any:
        fetched = await self._storage.open().get(key, *given)
        self.bytes_read += len(fetched.data)
        return fetched

    async def get_ranges(self, key: str, ranges: Any) -> Any:
        if self.fails:
            raise StorageError("out of order", ErrorKind.OBJECT_STORE, key=key)
        fetched = await self._storage.open().get_ranges(key, ranges)
        self.bytes_read += sum(map(len, fetched))
        return fetched

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage.open(), name)


@pytest.mark.server
def test_files_on_s3(s3_endpoint: S3Endpoint, prefix: str, tmp_path: Path) -> None:
    storage = icefloe.s3_storage(
        bucket=s3_endpoint.bucket,
        prefix=prefix,
        endpoint_url=s3_endpoint.url,
        region=s3_endpoint.region,
        allow_http=True,
        force_path_style=True,
        access_key_id=s3_endpoint.access_key_id,
        secret_access_key=s3_endpoint.secret_access_key,
    )
    root = f"s3://{s3_endpoint.bucket}/{prefix}/"
    access = SourceAccess({root: storage})
    for kind in FILES:
        if kind.name.endswith((".zarr", ".json")):
            continue
        kind.write(tmp_path / kind.name)
        run_blocking(storage.open().put(kind.name, (tmp_path / kind.name).read_bytes()))
        options = CombineOptions((kind.concat,), by="order")
        parsed = parse_file(f"{root}{kind.name}", ParseOptions((kind.concat,)), access)
        combined = combine([parsed.facts], options)
        outcome = checked(parsed, combined, access=access)
        assert (set(outcome.readers), outcome.mismatches) == ({kind.reader}, ())


# -- how much is read ------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["netcdf4", "netcdf3", "fits"])
def test_of_large_chunks_only_parts_are_read(tmp_path: Path, layout: str) -> None:
    values = np.arange(3 * 1024 * 1024, dtype=np.float64).reshape(3, 1024, 1024)
    path = tmp_path / "large"
    match layout:
        case "netcdf4":
            with h5py.File(path, "w") as file:
                file.create_dataset("t", data=values)
        case "netcdf3":
            from scipy.io import netcdf_file

            with netcdf_file(path, "w") as file:
                for name, length in zip("zyx", values.shape, strict=True):
                    file.createDimension(name, length)
                file.createVariable("t", "f8", ("z", "y", "x"))[:] = values
        case _:
            fits.PrimaryHDU(values).writeto(path)
    storage = CountedStorage(tmp_path)
    parsed, combined = parsed_alone(path)
    outcome = checked(parsed, combined, access=storage.access())
    assert (outcome.chunks, outcome.mismatches, outcome.unchecked) == (3, (), ())
    assert outcome.values == 3 * 128 * 1024
    assert storage.bytes_read < values.nbytes / 2
    [name] = parsed.references
    whole = checked(parsed, combined, wanted="all")
    assert whole.values == values.size
    wrong = checked(parsed, combined, wrong={name: moved(parsed.references[name], 8)})
    assert len(wrong.mismatches) == 1


def test_a_storage_that_fails_is_no_fault_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.nc"
    FILES[0].write(path)
    storage = CountedStorage(tmp_path)
    parsed, combined = parsed_alone(path)
    storage.fails = True
    with pytest.raises(StorageError, match="out of order"):
        checked(parsed, combined, access=storage.access())


def test_compressed_chunks_that_are_too_large_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        shape = (1, 6000, 6000)
        array = file.create_dataset("t", shape, np.float64, chunks=shape, compression="gzip")
        array.id.write_direct_chunk((0, 0, 0), b"not looked at")
    outcome = checked(*parsed_alone(path))
    assert [(item.path, "too much" in item.reason) for item in outcome.unchecked] == [("t", True)]


# -- lies of all kinds -----------------------------------------------------------------------


def test_a_mismatch_says_where_and_what(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("t", data=np.arange(12.0).reshape(3, 4), chunks=(1, 4))
    parsed, combined = parsed_alone(path)
    wrong = moved(parsed.references["t"], 8)
    outcome = checked(parsed, combined, wrong={"t": wrong})
    [mismatch] = outcome.mismatches
    assert (mismatch.chunk, mismatch.index) == ((0, 0, 0), (0, 0))
    assert (mismatch.expected, mismatch.got, mismatch.reader) == ("0.0", "1.0", "h5py")
    with pytest.raises(ValuesMismatchError) as caught:
        require_same_values(combined.report, [outcome], [parsed.facts], SourceAccess())
    assert caught.value.kind == ErrorKind.SOURCE_VALUES
    assert caught.value.url == path.as_uri()
    for text in ("'t'", path.as_uri(), "chunk [0, 0, 0]", "h5py reads 0.0", "lead to 1.0"):
        assert text in str(caught.value)
    assert pickle.loads(pickle.dumps(caught.value)).checked == outcome


def test_a_mismatch_of_a_file_that_changed_is_told_as_that(tmp_path: Path) -> None:
    archive = write_archive(tmp_path, 1)
    parsed = parse_file(archive.urls()[0], ParseOptions(("time",)))
    combined = combine([parsed.facts], CombineOptions(("time",)))
    wrong = moved(parsed.references["pressure"], 2)
    outcome = checked(parsed, combined, wrong={"pressure": wrong})
    assert outcome.mismatches
    later = archive.path(0).stat().st_mtime + 10
    os.utime(archive.path(0), (later, later))
    with pytest.raises(SourceError, match="changed after it was parsed") as caught:
        require_same_values(combined.report, [outcome], [parsed.facts], SourceAccess())
    assert caught.value.kind == ErrorKind.SOURCE_CHANGED


@pytest.mark.parametrize(
    ("path", "change", "text"),
    [
        ("big_endian", {"codecs": [{"name": "bytes", "configuration": {"endian": "little"}}]}, ""),
        ("holed", {"fill_value": 0.0}, "0.0"),
        ("contiguous", {"data_type": "int32", "fill_value": 0}, ""),
        ("packed", {"codecs": [{"name": "bytes", "configuration": {"endian": "little"}}]}, "error"),
        ("scalar", {"data_type": "float32"}, ""),
    ],
)
def test_metadata_that_lies(tmp_path: Path, path: str, change: dict[str, Any], text: str) -> None:
    FILES[0].write(tmp_path / "a.nc")
    parsed, combined = parsed_alone(tmp_path / "a.nc")
    arrays = tuple(
        replace(array, metadata={**array.metadata, **change}) if array.path == path else array
        for array in combined.arrays
    )
    [mismatch] = checked(parsed, replace(combined, arrays=arrays)).mismatches
    assert mismatch.path == path
    assert text in mismatch.got


def test_an_array_that_is_not_in_the_file(tmp_path: Path) -> None:
    FILES[0].write(tmp_path / "a.nc")
    parsed, combined = parsed_alone(tmp_path / "a.nc")
    array = next(one for one in combined.arrays if one.path == "packed")
    invented = replace(combined, arrays=(replace(array, path="invented"),))
    outcome = checked(parsed, invented, wrong={"invented": parsed.references["packed"]})
    assert [each.expected for each in outcome.mismatches] == ["no such array"]
    longer = {**array.metadata, "shape": [4, 7, 5]}
    outcome = checked(parsed, replace(combined, arrays=(replace(array, metadata=longer),)))
    assert [each.expected for each in outcome.mismatches] == ["the shape [4, 6, 5]"]


def test_coordinates_that_lie(tmp_path: Path) -> None:
    archive = write_archive(tmp_path, 1, steps=3)
    parsed = parse_file(archive.urls()[0], ParseOptions(("time",)))
    loaded = parsed.facts.values["time"]
    other = replace(loaded, values=loaded.values + 1)
    facts = replace(parsed.facts, values={**parsed.facts.values, "time": other})
    combined = combine([facts], CombineOptions(("time",)))
    outcome = checked(replace(parsed, facts=facts), combined)
    assert [each.path for each in outcome.mismatches] == ["time"]


def test_messages_of_another_parameter_time_or_level(tmp_path: Path) -> None:
    """The values are those of the message, but it is not the one of this place."""
    path = tmp_path / "a.grib2"
    same = np.full(16 * 31, 280.0)
    same[0] = 270
    path.write_bytes(b"".join(grib_message(6, level, same) for level in (500, 850)))
    parsed, combined = parsed_alone(path)
    name = "t"
    [mismatch] = checked(
        parsed, combined, wrong={name: swapped(parsed.references[name])}
    ).mismatches
    assert "isobaricInhPa" in mismatch.expected
    path.write_bytes(b"".join(grib_message(hours, 500, same) for hours in (6, 12)))
    parsed, combined = parsed_alone(path)
    [mismatch] = checked(
        parsed, combined, wrong={name: swapped(parsed.references[name])}
    ).mismatches
    assert "step" in mismatch.expected
    path.write_bytes(b"".join(grib_message(6, 500, same, name=each) for each in ("t", "r")))
    parsed, combined = parsed_alone(path)
    [other] = {
        path
        for path, found in parsed.references.items()
        if len(found) and path not in {name, *parsed.facts.values}
    }
    [mismatch] = checked(parsed, combined, wrong={name: parsed.references[other]}).mismatches
    assert mismatch.expected == "a message with shortName r"


def test_chunks_that_nobody_can_read(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        values = np.random.default_rng(1).random((2, 100))
        file.create_dataset("t", data=values, chunks=(1, 100), compression="gzip")
        offset = file["t"].id.get_chunk_info(0).byte_offset
    with path.open("r+b") as damaged:
        damaged.seek(offset + 20)
        damaged.write(bytes(200))
    [mismatch] = checked(*parsed_alone(path)).mismatches
    assert (mismatch.path, mismatch.chunk) == ("t", (0, 0, 0))
    assert "h5py cannot read it" in mismatch.expected


# -- comparing -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("got", "wanted", "expected"),
    [
        ([np.nan, 1.0], [np.nan, 1.0], None),
        ([0.0], [-0.0], (0,)),
        (np.array([1, 2], ">i4"), np.array([1, 2], "<i4"), None),
        (np.array([[1, 2], [3, 4]]), np.array([[1, 2], [9, 4]]), (1, 0)),
        (np.array(["a", ""], np.dtypes.StringDType()), np.array([b"a", b""], object), None),
        (np.array([b"ab"]), np.array(["ac"]), (0,)),
        (np.array([1 + 2j]), np.array([1 + 3j]), (0,)),
        (np.array([(1, b"x")], "i4,S1"), np.array([(1, b"y")], "i4,S1"), (0,)),
        (np.array([200], np.uint8), np.array([-56], np.int8), (0,)),
        (np.array([True]), np.array([True]), None),
        (np.array("2020", "M8[D]"), np.array("2021", "M8[D]"), ()),
    ],
)
def test_what_counts_as_the_same(got: Any, wanted: Any, expected: Any) -> None:
    assert first_difference(np.asarray(got), Expected(np.asarray(wanted))) == expected


def test_what_decoders_may_differ_in() -> None:
    one = np.array([1.0, np.nan, np.inf, 359.9])
    assert first_difference(one + 1e-9, Expected(one, tolerance=1e-8)) is None
    assert first_difference(one + 1e-7, Expected(one, tolerance=1e-8)) == (0,)
    turned = np.array([1.0, np.nan, np.inf, -0.1])
    assert first_difference(turned, Expected(one, 1e-8, period=360)) is None


# -- which files -----------------------------------------------------------------------------


def test_files_of_every_schema_and_parser_are_chosen(tmp_path: Path) -> None:
    archive = write_archive(tmp_path, 9)
    with h5py.File(archive.path(4), "r+") as file:
        # Only the general parser reads that.
        file.attrs.create("odd", np.array([1, 2]), dtype=np.dtype("(2,)i4"))
    parsed = [parse_file(url, ParseOptions(("time",))).facts for url in archive.urls()]
    combined = combine(parsed, CombineOptions(("time",)))
    assert [facts.parser for facts in parsed].count("virtualizarr") == 1
    assert len({facts.schema.digest for facts in parsed if facts.schema}) == 1
    assert list(choose_files(parsed, combined, 1)) == [0, 4]
    assert list(choose_files(parsed, combined, 2)) == [0, 4, 8]
    assert len(choose_files(parsed, combined, 3)) == 4
    assert choose_files(parsed, combined, 3).keys() == choose_files(parsed, combined, 3).keys()
    assert list(choose_files(parsed, combined, "all")) == list(range(9))
    assert not choose_files(parsed, combined, "none")


@pytest.mark.parametrize("wanted", [0, -1, "some", 1.5, True])
def test_numbers_that_make_no_sense(wanted: Any) -> None:
    with pytest.raises(InvalidInputError, match="check_values"):
        CombineOptions(("time",), check_values=wanted)


# -- the whole way ---------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["RICE_1", "GZIP_1", "GZIP_2", "HCOMPRESS_1", "PLIO_1"])
def test_tile_compressed_images_are_decoded(tmp_path: Path, codec: str) -> None:
    image = np.random.default_rng(1).integers(0, 250, (128, 128)).astype(np.int16)
    path = tmp_path / "image.fits"
    packed = fits.CompImageHDU(image, compression_type=codec, name="SCI")
    fits.HDUList([fits.PrimaryHDU(), fits.ImageHDU(image, name="PLAIN"), packed]).writeto(path)
    session = repository_for(tmp_path).writable_session("main")
    options = CombineOptions(("exposure",), by="order")
    report = virtualize_locally(session, path, options)
    assert report.checked is not None
    assert report.checked.values == 2 * image.size
    found = opened(session, decode_cf=False)
    np.testing.assert_array_equal(found.SCI.values[0], image)
    np.testing.assert_array_equal(found.PLAIN.values[0], image)


def test_lies_stop_everything(tmp_path: Path) -> None:
    for number in range(5):
        write_kerchunk(tmp_path / f"{number}.json", first=2 * number, moved_by=4 * (number == 2))
    session = repository_for(tmp_path).writable_session("main")
    options = CombineOptions(("time",), check_values="all")
    with pytest.raises(ValuesMismatchError) as caught:
        virtualize_locally(session, tmp_path / "*.json", options)
    assert caught.value.url == (tmp_path / "2.json").as_uri()
    assert not session.has_uncommitted_changes
    few = virtualize_locally(session, tmp_path / "*.json", CombineOptions(("time",)))
    assert few.checked is not None
    assert "values in 6 chunks of 2 files compared (h5py)" in few.summary()
    none = CombineOptions(("time",), check_values="none")
    session = repository_for(tmp_path).writable_session("main")
    assert virtualize_locally(session, tmp_path / "*.json", none).checked is None


@pytest.mark.parametrize(
    ("number", "library", "extra"), [(2, "scipy", "formats"), (0, "h5py", "virtual")]
)
def test_a_reader_that_is_not_installed_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, library: str, extra: str
) -> None:
    path = tmp_path / FILES[number].name
    FILES[number].write(path)
    parsed, combined = parsed_alone(path)
    for name in (library, f"{library}.io"):
        monkeypatch.setitem(sys.modules, name, None)  # as if it were not installed
    outcome = checked(parsed, combined)
    assert (outcome.chunks, outcome.files) == (0, 0)
    [item] = outcome.unchecked
    assert "is not installed" in item.reason
    assert f'pip install "icefloe[{extra}]"' in item.reason
    assert "no values compared" in replace(combined.report, checked=outcome).summary()


def test_references_to_several_files_are_told(tmp_path: Path) -> None:
    write_kerchunk(tmp_path / "a.json")
    write_kerchunk(tmp_path / "b.json")
    text = (tmp_path / "a.json").read_text()
    mixed = text.replace("a.h5", "b.h5", 1)
    assert mixed != text
    (tmp_path / "a.json").write_text(mixed)
    outcome = checked(*parsed_alone(tmp_path / "a.json"))
    assert [item.reason for item in outcome.unchecked] == ["its chunks lie in 2 files"]


def test_a_file_of_another_family_is_left_alone(tmp_path: Path) -> None:
    FILES[0].write(tmp_path / "a.nc")
    parsed, combined = parsed_alone(tmp_path / "a.nc")
    file = PlacedFile(parsed.facts, 1, {"time": 0})
    outcome = check_file(file, parsed.references, CheckPlan(combined.arrays), SourceAccess())
    assert (outcome.chunks, outcome.mismatches, outcome.unchecked) == (0, (), ())
