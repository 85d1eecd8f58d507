"""Millions of virtual references set and committed through the public interface."""

from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import numpy as np
import pyarrow as pa
import zarr

from bench.archive import BUCKET, CHUNK_BYTES, HEADER_BYTES, Archive
from bench.engine_location import Location
from bench.engine_rows import Group, Row, Run, Scale
from bench.measure import Sample, measured

PER_FILE: Final = {"few": 1000, "ten": 10, "distinct": 1}
_MOST_BYTES: Final = 2_000_000_000
_REFERENCE: Final = "icechunk"


def session_with(lib: ModuleType, location: Location, rows: int) -> Any:
    """Return a session on a repository with an empty array and a container for the archive."""
    config = lib.RepositoryConfig.default()
    store = lib.s3_store(region="us-east-1")
    config.set_virtual_chunk_container(lib.VirtualChunkContainer(BUCKET, store))
    repo = location.create(lib, config=config)
    session = repo.writable_session("main")
    zarr.create_array(
        session.store, name="a", shape=(rows,), chunks=(1,), dtype="u1", compressors=None
    )
    session.commit("create")
    return repo.writable_session("main")


def locations_of(archive: Archive) -> list[str]:
    """Name the file of each row; rows of one file share the text."""
    files = archive.files()
    return [files[number] for number in archive.file_of_row().tolist()]


def _stored(location: Location) -> int:
    """Count what the session wrote for its references."""
    kinds = ("manifests", "transactions")
    return sum(
        one.stat().st_size for kind in kinds for one in (Path(location.path) / kind).iterdir()
    )


def _figures(sample: Sample) -> Mapping[str, float]:
    return {
        "seconds": sample.seconds,
        "rss": sample.rss_growth_bytes,
        "bytes": sample.size_bytes,
    }


def _same_call(per_file: int) -> Run:
    """Run `set_virtual_refs_arr` with the same list on both sides, then commit."""

    def run(lib: ModuleType, location: Location, scale: Scale) -> Mapping[str, float]:
        archive = Archive(scale.of(1_000_000, 50_000), per_file)
        session = session_with(lib, location, archive.rows)
        locations = locations_of(archive)
        offsets, lengths = archive.offsets(), archive.lengths()

        def work() -> int:
            refused = session.store.set_virtual_refs_arr(
                "/a", archive.shape, locations, offsets, lengths, validate_containers=True
            )
            assert refused is None
            session.commit("set")
            return _stored(location)

        return _figures(measured(work))

    return run


def _own_call(per_file: int) -> Run:
    """Run `set_virtual_refs_columns` with Arrow, and the reference's best call beside it."""
    theirs = _same_call(per_file)

    def run(lib: ModuleType, location: Location, scale: Scale) -> Mapping[str, float]:
        if lib.__name__ == _REFERENCE:
            return theirs(lib, location, scale)
        archive = Archive(scale.of(1_000_000, 50_000), per_file)
        session = session_with(lib, location, archive.rows)
        files = pa.DictionaryArray.from_arrays(
            pa.array(archive.file_of_row().astype("u4")), pa.array(archive.files())
        )
        columns = {
            "coordinates": archive.coordinates(),
            "locations": files,
            "offsets": archive.offsets(),
            "lengths": archive.lengths(),
        }

        def work() -> int:
            assert len(session.store.set_virtual_refs_columns("/a", **columns)) == 0
            session.commit("set")
            return _stored(location)

        return _figures(measured(work))

    return run


def _ten_million(lib: ModuleType, location: Location, scale: Scale) -> Mapping[str, float]:
    """Set ten million in ten calls, and commit them; all memory of it counts."""
    each = scale.of(1_000_000, 50_000)
    session = session_with(lib, location, 10 * each)

    def work() -> int:
        for call in range(10):
            first = np.arange(call * each, (call + 1) * each, dtype=np.uint32)
            names = [f"{BUCKET}run-{call}/file-{n:07d}.nc" for n in range(each // 10)]
            numbers = pa.array(np.arange(each, dtype=np.uint32) // 10)
            session.store.set_virtual_refs_columns(
                "/a",
                coordinates=first,
                locations=pa.DictionaryArray.from_arrays(numbers, pa.array(names)),
                offsets=HEADER_BYTES + CHUNK_BYTES * (np.arange(each) % 10),
                lengths=CHUNK_BYTES,
            )
        session.commit("set")
        return _stored(location)

    return _figures(measured(work))


def _one_by_one(lib: ModuleType, location: Location, scale: Scale) -> Mapping[str, float]:
    """Set references with a call for each."""
    rows = scale.of(20_000, 1_000)
    session = session_with(lib, location, rows)

    def work() -> int:
        for row in range(rows):
            session.store.set_virtual_ref(
                f"a/c/{row}", f"{BUCKET}file-{row // 10}.nc", offset=row % 10 * 100, length=100
            )
        session.commit("set")
        return _stored(location)

    return _figures(measured(work))


def _rows(what: str, seconds: float, rss: float, size: float) -> tuple[Row, ...]:
    return (
        Row("seconds", f"{what}: set + commit", seconds),
        Row("rss", f"{what}: memory", rss, "bytes"),
        Row("bytes", f"{what}: stored", size, "bytes"),
    )


GROUPS: Final = {
    "write-few-files": Group(
        _same_call(PER_FILE["few"]), _rows("1M references, 1,000 files", 0.2, 0.12, 0.5)
    ),
    "write-ten-per-file": Group(
        _same_call(PER_FILE["ten"]), _rows("1M references, ten a file", 0.2, 0.12, 0.5)
    ),
    "write-distinct-files": Group(
        _same_call(PER_FILE["distinct"]), _rows("1M references, 1M files", 0.3, 0.4, 0.6)
    ),
    "write-columns-ten-per-file": Group(
        _own_call(PER_FILE["ten"]), _rows("the same in columns, ten a file", 0.2, 0.12, 0.5)
    ),
    "write-columns-distinct-files": Group(
        _own_call(PER_FILE["distinct"]), _rows("the same in columns, 1M files", 0.3, 0.4, 0.6)
    ),
    "write-ten-million": Group(
        _ten_million,
        (
            Row("seconds", "10M references in one session"),
            Row("rss", "10M references: memory", unit="bytes", at_most=_MOST_BYTES),
            Row("bytes", "10M references: stored", unit="bytes"),
        ),
        rounds=1,
        ours_only=True,
    ),
    "write-one-by-one": Group(
        _one_by_one, (Row("seconds", "20k references, one call each, + commit"),), rounds=2
    ),
}
