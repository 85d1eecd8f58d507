"""Broken, odd and changing files each get their own error, which names the file."""

import os
import pickle
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from astropy.io import fits

import icefloe
from examples.archives import Archive, write_archive
from icefloe.effects import run_blocking
from icefloe.errors import ErrorKind, SourceError, StorageError
from icefloe.pipeline.files.describing import ParsedFile
from icefloe.pipeline.files.facts import ANY_CHUNK, Kind, SourceState, share_equal
from icefloe.pipeline.files.options import CombineOptions, Format, ParseOptions, detect_format
from icefloe.pipeline.files.parsing import parse_file, parse_or_report, references_of
from icefloe.pipeline.files.references import References
from icefloe.pipeline.files.sources import SourceAccess
from icefloe.pipeline.local import virtualize_locally
from icefloe.storage import Storage
from tests.pipeline.repositories import opened
from tests.support.servers import S3Endpoint

OPTIONS = ParseOptions(("time",))


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    return write_archive(tmp_path, 1, steps=2)


def broken(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    return path.as_uri()


@pytest.mark.parametrize("kept", [9, 60, 2000, -1])
def test_a_truncated_file(archive: Archive, kept: int) -> None:
    path = archive.path(0)
    url = broken(path, path.read_bytes()[:kept])
    with pytest.raises(SourceError, match=r"truncated|cannot be read") as caught:
        parse_file(url, OPTIONS)
    assert caught.value.url == url
    if kept != 9:  # too short to say how long it should be
        assert caught.value.kind == ErrorKind.SOURCE_TRUNCATED
    assert pickle.loads(pickle.dumps(caught.value)).url == url


@pytest.mark.parametrize(
    ("content", "kind", "text"),
    [
        (b"", Kind.TRUNCATED, "empty"),
        (b"not an archive at all", Kind.WRONG_FORMAT, "like no kind we know"),
        (b"\x0e\x03\x13\x01 HDF4", Kind.WRONG_FORMAT, "HDF4"),
        (b"\x1f\x8b gzip", Kind.WRONG_FORMAT, "gzip"),
        (b"CDF\x01\x00\x00", Kind.UNREADABLE, "netcdf3"),
        (b'{"refs": [', Kind.UNREADABLE, "kerchunk"),
        (b"GRIB" + bytes(3) + b"\x02" + (10**6).to_bytes(8), Kind.TRUNCATED, "truncated"),
        (b"\x89HDF\r\n\x1a\n" + b"\x07" * 500, Kind.UNREADABLE, "hdf5"),
        (b"II*\0\x08\0\0\0\0\0", Kind.TRUNCATED, "truncated"),
    ],
)
def test_a_broken_file_is_reported_with_its_kind(
    tmp_path: Path, content: bytes, kind: Kind, text: str
) -> None:
    url = broken(tmp_path / "some.nc", content)
    facts = parse_or_report(url, OPTIONS)
    assert not isinstance(facts, ParsedFile)
    assert facts.problem is not None
    assert (facts.problem.kind, facts.url) == (kind, url)
    assert text in facts.problem.message
    assert url in facts.problem.message


def test_a_file_that_is_not_there_is_reported(tmp_path: Path) -> None:
    facts = parse_or_report((tmp_path / "absent.nc").as_uri(), OPTIONS)
    assert not isinstance(facts, ParsedFile)
    assert facts.problem is not None
    assert facts.problem.kind is Kind.UNREADABLE


def test_another_format_than_was_said(archive: Archive) -> None:
    with pytest.raises(SourceError, match=r"expected tiff.*it is hdf5") as caught:
        parse_file(archive.urls()[0], ParseOptions(("time",), format=Format.TIFF))
    assert caught.value.kind == ErrorKind.SOURCE_WRONG_FORMAT


def test_what_cannot_be_virtualised_can_be_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("time", data=np.arange(2.0)).make_scale("time")
        file.create_dataset("odd", (2,), h5py.vlen_dtype(np.int32))
    with pytest.raises(SourceError, match="drop=") as caught:
        parse_file(path.as_uri(), OPTIONS)
    assert caught.value.kind == ErrorKind.SOURCE_UNSUPPORTED
    parsed = parse_file(path.as_uri(), ParseOptions(("time",), drop=("odd",)))
    assert list(parsed.references) == ["time"]


class ChangingStorage:
    """A directory in which something happens when a file has been read."""

    def __init__(self, storage: Storage, after_read: Callable[[], None]) -> None:
        self._storage = storage
        self._after_read = after_read

    def open(self) -> Any:
        return self

    @property
    def spec(self) -> Any:
        return self._storage.spec

    async def get(self, *given: Any) -> Any:
        fetched = await self._storage.open().get(*given)
        self._after_read()
        return fetched

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage.open(), name)


def test_a_file_that_changes_while_it_is_parsed(archive: Archive) -> None:
    path = archive.path(0)
    moments = count(path.stat().st_mtime + 10, 10)  # no file system's clock is too coarse for that

    def change() -> None:
        archive.write(0)
        moment = next(moments)
        os.utime(path, (moment, moment))

    storage = icefloe.local_filesystem_storage(str(archive.folder))
    access = SourceAccess()
    prefix = f"{archive.folder.as_uri()}/"
    object.__setattr__(access, "storages", {prefix: ChangingStorage(storage, change)})
    with pytest.raises(SourceError, match="changed while it was parsed") as caught:
        parse_file(archive.urls()[0], OPTIONS, access)
    assert caught.value.kind == ErrorKind.SOURCE_CHANGED


def test_an_old_listing_does_no_harm(archive: Archive) -> None:
    old = SourceState(archive.urls()[0], archive.path(0).stat().st_size, "old", 5)
    parsed = parse_file(archive.urls()[0], OPTIONS, listed=old)
    assert parsed.facts.state.etag not in {None, "old"}


def test_what_is_found_in_a_file(archive: Archive) -> None:
    parsed = parse_file(archive.urls()[0], OPTIONS)
    facts = parsed.facts
    assert facts.schema is not None
    assert (facts.format, facts.lengths, facts.references) == ("hdf5", {"time": 2}, 7)
    assert facts.values["time"].values.tolist() == [0.0, 1.0]
    assert facts.values["time"].units == "hours since 2000-01-01"
    assert facts.digests.keys() == {"lat", "lon"}
    assert facts.schema.by_path["pressure"].chunks[0] == ANY_CHUNK
    assert facts.schema.by_path["temperature"].chunks[0] == 1
    assert facts.chunks["pressure"] == 1
    [again, twin] = share_equal([facts, pickle.loads(pickle.dumps(facts))])
    assert again == twin == facts
    assert again.schema is twin.schema
    assert again.attributes is twin.attributes
    assert pickle.loads(pickle.dumps(facts)) == facts
    references = parsed.references["temperature"]
    assert references.coordinates.tolist() == [[0, 0, 0], [1, 0, 0]]
    assert references.locations == (archive.urls()[0],)
    back = References.from_bytes(references.to_bytes())
    assert back.offsets.tolist() == references.offsets.tolist()
    assert back.coordinates.tolist() == references.coordinates.tolist()
    assert back.locations == references.locations


def test_formats_are_told_by_content() -> None:
    assert detect_format(bytes(512) + b"\x89HDF\r\n\x1a\n") is Format.HDF5
    assert detect_format(b"\n<?xml?><Dataset xmlns='http://xml.opendap.org/x'>") is Format.DMRPP
    assert detect_format(b"TTAA00 KWBC\r\r\nGRIB") is Format.GRIB
    assert detect_format(b"<html>") is None


@pytest.mark.server
def test_files_on_s3(s3_endpoint: S3Endpoint, prefix: str, tmp_path: Path) -> None:
    """References, etags and values of files in a bucket; a storage that fails is no bad file."""
    secrets: dict[str, Any] = {
        "access_key_id": s3_endpoint.access_key_id,
        "secret_access_key": s3_endpoint.secret_access_key,
    }
    place: dict[str, Any] = {
        "bucket": s3_endpoint.bucket,
        "prefix": prefix,
        "endpoint_url": s3_endpoint.url,
        "region": s3_endpoint.region,
        "allow_http": True,
        "force_path_style": True,
    }
    storage = icefloe.s3_storage(**place, **secrets)
    archive = write_archive(tmp_path, 3)
    for number in range(3):
        run_blocking(storage.open().put(f"{number}.nc", archive.path(number).read_bytes()))
    root = f"s3://{s3_endpoint.bucket}/{prefix}/"
    access = SourceAccess({root: storage})
    config = icefloe.RepositoryConfig.default()
    store = icefloe.s3_store(
        region=s3_endpoint.region,
        endpoint_url=s3_endpoint.url,
        allow_http=True,
        force_path_style=True,
        s3_compatible=True,
    )
    config.set_virtual_chunk_container(icefloe.VirtualChunkContainer(root, store))
    repository = icefloe.Repository.create(
        icefloe.in_memory_storage(),
        config,
        authorize_virtual_chunk_access=icefloe.containers_credentials(
            {root: icefloe.s3_credentials(**secrets)}
        ),
    )
    session = repository.writable_session("main")
    report = virtualize_locally(session, f"{root}*.nc", CombineOptions(("time",)), access=access)
    assert report.used == 3
    expected = np.concatenate([archive.expected_temperature(number) for number in range(3)])
    np.testing.assert_array_equal(opened(session).temperature.values, expected)
    run_blocking(storage.open().put("1.nc", archive.path(2).read_bytes()))
    with pytest.raises(StorageError, match=r"1\.nc") as caught:
        opened(session).temperature.values  # noqa: B018 - reads
    assert caught.value.kind == ErrorKind.VIRTUAL_CHUNK_MODIFIED
    wrong = icefloe.s3_storage(**place, access_key_id="wrong", secret_access_key="wrong")
    with pytest.raises(StorageError):
        parse_or_report(f"{root}0.nc", OPTIONS, SourceAccess({root: wrong}))


def test_a_missing_library_is_named_with_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = tmp_path / "image.fits"
    fits.PrimaryHDU(np.zeros((4, 4))).writeto(image)
    monkeypatch.setitem(sys.modules, "astropy.io", None)  # as if it were not installed
    with pytest.raises(SourceError, match=r'pip install "icefloe\[virtual,formats\]"'):
        parse_file(image.as_uri(), OPTIONS)


def test_all_rows_of_a_manifest_of_virtualizarr_are_taken() -> None:
    """Its columns are private: each minor release may have others."""
    from virtualizarr.manifests import ChunkManifest

    rows: dict[str, Any] = {
        "0.0": {"path": "s3://bucket/a.nc", "offset": 1, "length": 2},
        "0.1": {"path": "__inlined__", "offset": 0, "length": 3, "data": b"abc"},
        "1.1": {"path": "s3://bucket/b.nc", "offset": 5, "length": 7},
    }
    references = references_of(ChunkManifest(rows), 2)
    assert references.coordinates.tolist() == [[0, 0], [1, 1]]
    assert [references.locations[row] for row in references.location_rows] == [
        "s3://bucket/a.nc",
        "s3://bucket/b.nc",
    ]
    assert (references.offsets.tolist(), references.lengths.tolist()) == ([1, 5], [2, 7])
    assert references.inlined_coordinates.tolist() == [[0, 1]]
    assert references.inlined.to_list() == [b"abc"]
