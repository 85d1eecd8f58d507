"""Garbage collection, expiration and statistics, beside the reference."""

import shutil
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from types import ModuleType
from typing import Any, Final

import numpy as np
import zarr

from bench.engine_location import Location, seconds_of
from bench.engine_rows import Group, Row, Run, Scale
from bench.maintenance_building import CHUNK_BYTES, shared
from bench.measure import measured
from icefloe.records import replace
from tests.support.proxy import cutting_proxy

_COMMITS: Final = 300
_CHUNKS_EACH: Final = 40
_CHUNK_BYTES: Final = 600
"""More than is kept inline."""
_COPIES: Final = 3
_MANY: Final = 1_000_000
_VERSIONS: Final = 50
_STORAGE_TICK_SECONDS: Final = 1.1
"""Object stores tell times in whole seconds: wait until what was written is older than now."""


def _later() -> datetime:
    return datetime.now(UTC) + timedelta(days=1)


# -- versions that nothing leads to --------------------------------------------------------


def _with_dead_chunks(lib: ModuleType, location: Location, commits: int) -> int:
    """Make commits on a branch that is deleted; give how many chunks they wrote."""
    repo = location.create(lib)
    session = repo.writable_session("main")
    chunks = commits * _CHUNKS_EACH
    zarr.create_array(
        session.store,
        name="a",
        shape=chunks * _CHUNK_BYTES,
        chunks=_CHUNK_BYTES,
        dtype="u1",
        compressors=None,
    )
    repo.create_branch("gone", session.commit("created"))
    step = _CHUNKS_EACH * _CHUNK_BYTES
    for number in range(commits):
        session = repo.writable_session("gone")
        array: Any = zarr.open_array(session.store, path="a")
        array[number * step : (number + 1) * step] = np.uint8(number % 255 + 1)
        session.commit(f"commit {number}")
    repo.delete_branch("gone")
    return chunks


def _collect(repo: Any, chunks: int) -> None:
    summary = repo.garbage_collect(_later())
    assert summary.chunks_deleted == chunks, summary


def _best_of_copies(location: Location, work: Callable[[Location], float]) -> float:
    """Do work that changes a repository on copies of it."""
    seconds = []
    for number in range(_COPIES):
        copy = f"{location.path}-{number}"
        shutil.copytree(location.path, copy)
        seconds.append(work(Location(copy)))
        shutil.rmtree(copy)
    return min(seconds)


def _dead(lib: ModuleType, location: Location, scale: Scale) -> Mapping[str, float]:
    chunks = _with_dead_chunks(lib, location, scale.of(_COMMITS, 20))

    def collect(at: Location) -> float:
        repo = at.open(lib)
        return seconds_of(lambda: _collect(repo, chunks))

    return {"seconds": _best_of_copies(location, collect)}


def _dead_on_s3(lib: ModuleType, location: Location, scale: Scale) -> Mapping[str, float]:
    chunks = _with_dead_chunks(lib, location, scale.of(_COMMITS, 20))
    time.sleep(_STORAGE_TICK_SECONDS)
    repo = location.open(lib)
    return {"seconds": seconds_of(lambda: _collect(repo, chunks))}


def _requests_on_s3(lib: ModuleType, location: Location, scale: Scale) -> Mapping[str, float]:
    """Count what passes a proxy, which takes time: so that is measured apart."""
    chunks = _with_dead_chunks(lib, location, scale.of(_COMMITS, 20))
    time.sleep(_STORAGE_TICK_SECONDS)
    assert location.url is not None
    with cutting_proxy(location.url) as proxy:
        repo = replace(location, url=proxy.url).open(lib)
        proxy.plan()
        _collect(repo, chunks)
        exchanges = proxy.exchanges
    return {
        "requests": len(exchanges),
        "bytes": sum(one.bytes_in + one.bytes_out for one in exchanges),
    }


# -- nothing to do -------------------------------------------------------------------------


def _nothing(lib: ModuleType, location: Location, scale: Scale) -> Mapping[str, float]:
    """Collect where all is needed: what is found is the same every time."""
    at = shared(location, "objects", scale.of(_MANY, _MANY // 20))
    repo = at.open(lib)

    def work() -> int:
        _collect(repo, 0)
        return 0

    sample = measured(work)
    return {"seconds": sample.seconds, "rss": sample.rss_growth_bytes}


# -- expiration ----------------------------------------------------------------------------


def _expire(lib: ModuleType, location: Location, scale: Scale) -> Mapping[str, float]:
    commits = scale.of(_COMMITS, 20)
    repo = location.create(lib)
    for number in range(commits):
        session = repo.writable_session("main")
        zarr.group(session.store, attributes={"number": number}, overwrite=True)
        session.commit(f"commit {number}")

    def expire(at: Location) -> float:
        copy = at.open(lib)

        def work() -> None:
            assert len(copy.expire_snapshots(_later())) == commits - 1

        return seconds_of(work)

    return {"seconds": _best_of_copies(location, expire)}


# -- statistics ----------------------------------------------------------------------------


def _statistics(layout: str) -> Run:
    def run(lib: ModuleType, location: Location, scale: Scale) -> Mapping[str, float]:
        chunks = scale.of(_MANY, _MANY // 20)
        at = shared(location, "versions", layout, chunks, _VERSIONS)
        repo = at.open(lib)

        def work() -> int:
            found = repo.chunk_storage_stats()
            assert found.native_bytes == chunks * CHUNK_BYTES, found
            return 0

        sample = measured(work)
        return {"seconds": sample.seconds, "rss": sample.rss_growth_bytes}

    return run


GROUPS: Final = {
    "gc-dead": Group(
        _dead, (Row("seconds", "gc, 300 dead commits with 12,000 chunks", 0.7),), rounds=2
    ),
    "gc-s3-dead": Group(
        _dead_on_s3,
        (Row("seconds", "S3, gc, 300 dead commits with 12,000 chunks", 0.7),),
        on_s3=True,
        rounds=2,
    ),
    "gc-s3-requests": Group(
        _requests_on_s3,
        (
            Row("requests", "S3, the same, requests", 0.7, "count"),
            Row("bytes", "S3, the same, bytes", unit="bytes"),
        ),
        on_s3=True,
        rounds=1,
    ),
    "gc-nothing": Group(
        _nothing,
        (
            Row("seconds", "gc, 1M chunks, nothing to delete", 0.3),
            Row("rss", "gc, 1M chunks, nothing to delete, memory", 0.3, "bytes"),
        ),
        rounds=3,
    ),
    "expire": Group(_expire, (Row("seconds", "expire 300 snapshots", 1.5),), rounds=3),
    "statistics": Group(
        _statistics("default"),
        (
            Row("seconds", "statistics, 1M chunks, 50 versions", 0.3),
            Row("rss", "statistics, 1M chunks, 50 versions, memory", unit="bytes"),
        ),
        rounds=3,
    ),
    "statistics-one-each": Group(
        _statistics("one-each"),
        (
            Row("seconds", "statistics, the same, one manifest per version", 0.3),
            Row("rss", "statistics, the same, one manifest per version, memory", unit="bytes"),
        ),
        rounds=3,
    ),
}
