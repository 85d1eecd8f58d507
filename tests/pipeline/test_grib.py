"""GRIB files: indices beside them, groups, and files that are not what they seem."""

import json
import random
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray
from numpy.testing import assert_array_equal

import icefloe
from icefloe.codecs import FitsImage, GribField
from icefloe.errors import FormatError, SourceError
from icefloe.pipeline import CombineOptions, ParseOptions
from icefloe.pipeline.combining.report import MisfitsError
from icefloe.pipeline.files.facts import FileFacts
from icefloe.pipeline.files.grib import starts_of_index
from icefloe.pipeline.files.parsing import parse_file, parse_or_report
from icefloe.pipeline.files.sources import SourceAccess
from icefloe.pipeline.local import virtualize_locally
from tests.archives.grib import LAMBERT, message, product, small, surface
from tests.pipeline.repositories import opened, repository_for

TIME = ParseOptions(("time",))
ROOT = "s3://weather/"


@pytest.fixture(scope="module")
def messages() -> list[bytes]:
    """Make messages of 260 KB each."""
    size: dict[str, Any] = {
        "Ni": 360,
        "Nj": 361,
        "numberOfDataPoints": 360 * 361,
        "numberOfValues": 360 * 361,
        "iDirectionIncrementInDegrees": 1.0,
        "jDirectionIncrementInDegrees": 0.5,
        "latitudeOfLastGridPointInDegrees": -90.0,
        "longitudeOfLastGridPointInDegrees": 359.0,
        "shortName": "t",
        "bitsPerValue": 16,
    }
    return [message(seed=level, level=level, **size) for level in range(100, 1000, 100)]


def wgrib2(parts: Sequence[bytes]) -> bytes:
    offsets = accumulate(map(len, parts[:-1]), initial=0)
    lines = [f"{n}:{o}:d=2024010100:TMP:{n} mb:anl:" for n, o in enumerate(offsets, 1)]
    return "\n".join(lines).encode() + b"\n"


def ecmwf(parts: Sequence[bytes]) -> bytes:
    offsets = accumulate(map(len, parts[:-1]), initial=0)
    lines = [
        json.dumps({"param": "t", "_offset": offset, "_length": len(part)})
        for offset, part in zip(offsets, parts, strict=True)
    ]
    return "\n".join(reversed(lines)).encode()  # in no set order


def parsed(files: Mapping[str, bytes], name: str) -> tuple[Any, Any]:
    """Parse a file of a storage; return also what that read."""
    from icefloe.effects import run_blocking

    storage = icefloe.in_memory_storage()
    for key, data in files.items():
        run_blocking(storage.open().put(key, data))
    before = storage.request_counts()
    found = parse_file(f"{ROOT}{name}", TIME, SourceAccess({ROOT: storage}))
    return found, storage.request_counts() - before


@pytest.mark.parametrize(
    ("name", "index", "write"),
    [("a.f000", "a.f000.idx", wgrib2), ("a.grib2", "a.index", ecmwf)],
)
def test_with_an_index_only_headers_are_read(
    messages: list[bytes], name: str, index: str, write: Any
) -> None:
    whole = b"".join(messages)
    told, counts = parsed({name: whole, index: write(messages)}, name)
    scanned, without = parsed({name: whole}, name)
    assert not told.facts.notes
    assert told.metadata == scanned.metadata
    assert_array_equal(told.references["t"].offsets, scanned.references["t"].offsets)
    assert_array_equal(told.references["t"].lengths, list(map(len, reversed(messages))))
    headers = counts.bytes_in - len(write(messages))
    assert headers <= 4096 * (len(messages) + 1) + 2 * 4096  # of which the first tells the format
    assert counts.bytes_in < without.bytes_in
    assert without.bytes_in < len(whole) / 4  # headers, too, but each tells where the next one is
    assert counts.get <= len(messages) + 4


@pytest.mark.parametrize(
    "wrong",
    [
        lambda parts: wgrib2(parts[:-1]),
        lambda parts: wgrib2([*parts, parts[0]]),
        lambda parts: wgrib2([parts[0][:-10], *parts[1:]]),
        lambda parts: wgrib2([parts[0] + parts[1], *parts[2:]]),
        lambda parts: b"no index",
        lambda parts: b'{"_offset": "zero"}',
        lambda parts: b"\xff\xfe\x00",
        lambda parts: b"",
    ],
)
def test_an_index_that_does_not_match_is_not_used(messages: list[bytes], wrong: Any) -> None:
    whole = b"".join(messages)
    found, _ = parsed({"a.grib2": whole, "a.grib2.idx": wrong(messages)}, "a.grib2")
    assert found.facts.notes == (
        "the index 'a.grib2.idx' does not describe the file beside it, and was not used",
    )
    scanned, _ = parsed({"a.grib2": whole}, "a.grib2")
    assert_array_equal(found.references["t"].offsets, scanned.references["t"].offsets)


def test_an_index_with_several_fields_in_a_message() -> None:
    assert starts_of_index(b"1.1:0:d=1:UGRD\n1.2:0:d=1:VGRD\n2:900:d=1:TMP\n") == [0, 900]


def test_a_small_remote_file_is_one_request() -> None:
    found, counts = parsed({"a.grib2": b"".join(product(500, 850, hours=(6, 12)))}, "a.grib2")
    assert len(found.references["t"]) == 4
    assert counts.get == 2  # the format, then everything


def test_groups_are_named_with_the_line_that_opens_them(tmp_path: Path) -> None:
    parts = [*product(500, 850), surface(2, "2t"), surface(3, "10u")]
    (tmp_path / "a.grib").write_bytes(b"".join(parts))
    repository = repository_for(tmp_path)
    session = repository.writable_session("main")
    report = virtualize_locally(session, tmp_path / "a.grib", CombineOptions(("time",)))
    [note] = [note for note in report.notes if "group" in note]
    for group in ("isobaricInhPa (t)", "heightAboveGround_2 (t2m)", "heightAboveGround_10 (u10)"):
        assert group in note
    assert "xr.open_dataset(..., engine=\"icefloe\", group='isobaricInhPa')" in note
    source: Any = session
    with xarray.open_dataset(source, engine="icefloe", group="isobaricInhPa") as dataset:
        assert dataset.t.dims == ("time", "isobaricInhPa", "latitude", "longitude")


def test_a_group_that_is_not_there_is_refused_with_those_that_are(tmp_path: Path) -> None:
    path = tmp_path / "a.grib"
    path.write_bytes(b"".join([*product(500), surface(2, "2t"), surface(3, "10u")]))
    with pytest.raises(SourceError, match=r"no group 'surface'.*'isobaricInhPa', 'heightAbove"):
        parse_file(path.as_uri(), ParseOptions(("time",), group="surface"))


def test_missing_fields_are_counted(tmp_path: Path) -> None:
    (tmp_path / "a.grib").write_bytes(b"".join(product(500, 850, hours=(6, 12))[:3]))
    session = repository_for(tmp_path).writable_session("main")
    report = virtualize_locally(session, tmp_path / "a.grib", CombineOptions(("time",)))
    assert "1 of 4 fields of 't' are not in the GRIB file, and read as NaN" in report.notes
    found = opened(session).t
    assert np.isnan(found.isel(step=1).sel(isobaricInhPa=850).values).all()
    assert not np.isnan(found.isel(step=0).values).any()


def test_files_on_other_grids_do_not_fit(tmp_path: Path) -> None:
    """Their points have the same number, and latitudes and longitudes of two dimensions."""
    (tmp_path / "a.grib").write_bytes(message(**LAMBERT))
    moved = {**LAMBERT, "longitudeOfFirstGridPointInDegrees": 6.0}
    (tmp_path / "b.grib").write_bytes(message(dataDate=20240102, **moved))
    session = repository_for(tmp_path).writable_session("main")
    with pytest.raises(MisfitsError) as caught:
        virtualize_locally(session, tmp_path / "*.grib", CombineOptions(("time",)))
    misfits = caught.value.report.misfits
    assert {misfit.kind.value for misfit in misfits} == {"other-coordinate"}


def test_a_file_of_another_step_is_not_taken_for_the_same(tmp_path: Path) -> None:
    for day, hour in ((1, 6), (2, 12)):
        parts = product(500, hours=(hour,), day=20240100 + day)
        (tmp_path / f"{day}.grib").write_bytes(b"".join(parts))
    session = repository_for(tmp_path).writable_session("main")
    with pytest.raises(MisfitsError) as caught:
        virtualize_locally(session, tmp_path / "*.grib", CombineOptions(("time",)))
    assert "step" in str(caught.value)


def test_damaged_files_are_refused_or_read(tmp_path: Path) -> None:
    chance = random.Random(5)
    whole = b"".join([*product(500, 850), message("regular_ll_sfc_grib1", shortName="2t")])
    path = tmp_path / "a.grib"
    for _ in range(150):
        damaged = bytearray(whole)
        for _ in range(chance.randint(1, 4)):
            damaged[chance.randrange(len(whole))] = chance.randrange(256)
        path.write_bytes(damaged[: chance.choice([len(whole), chance.randrange(40, len(whole))])])
        found = parse_or_report(path.as_uri(), TIME)
        assert isinstance(found, FileFacts) or found.references


@pytest.mark.parametrize("kept", [20, 500, -1])
def test_truncated_files_are_refused(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "a.grib"
    path.write_bytes(b"".join(product(500, 850))[:kept])
    with pytest.raises(SourceError):
        parse_file(path.as_uri(), TIME)


def test_codecs_refuse_what_they_cannot_decode() -> None:
    kind = np.dtype("f8")
    with pytest.raises(FormatError, match="no GRIB message"):
        GribField().decoded(b"something else", (4,), kind)
    with pytest.raises(FormatError, match="has 496 points, instead of 4"):
        GribField().decoded(small(1), (4,), kind)
    with pytest.raises(FormatError, match="has 1 fields, and number 1 is needed"):
        GribField(field=1).decoded(small(1), (496,), kind)
    with pytest.raises(FormatError, match="no setting 'colour'"):
        GribField.from_dict({"configuration": {"colour": 1}})
    with pytest.raises(FormatError, match="astropy cannot decode"):
        FitsImage(compressed=True).decoded(b"x" * 2880, (4,), kind)
    with pytest.raises(FormatError, match="has 3 bytes"):
        FitsImage(stored=">i2").decoded(bytes(3), (1,), np.dtype("u2"))
    with pytest.raises(FormatError, match="no setting 'colour'"):
        FitsImage.from_dict({"configuration": {"colour": 1}})
    for codec in (GribField("latitudes", 2), FitsImage(stored=">i4"), FitsImage(compressed=True)):
        assert type(codec).from_dict(codec.to_dict()) == codec
