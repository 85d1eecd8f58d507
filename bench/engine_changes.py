"""Many changes in one session: telling them, sending them around, taking them in."""

import os
import pickle
import subprocess
import sys
from collections.abc import Mapping
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any, Final

import zarr

from bench.archive import BUCKET, Archive
from bench.engine_location import Location, best_of, seconds_of
from bench.engine_rows import Group, Row, Scale

WORKERS: Final = 16


def _session_with(lib: ModuleType, location: Location, rows: int) -> Any:
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


def _set_refs(session: Any, archive: Archive, start: int, count: int) -> None:
    rows = slice(start, start + count)
    files = archive.files()
    session.store.set_virtual_refs_arr(
        "/a",
        (count,),
        [files[number] for number in archive.file_of_row()[rows].tolist()],
        archive.offsets()[rows],
        archive.lengths()[rows],
        validate_containers=False,
        arr_offset=(start,),
    )


def telling(lib: ModuleType, location: Location, scale: Scale) -> Mapping[str, float]:
    rows = scale.of(1_000_000, 50_000)
    session = _session_with(lib, location, rows)
    before = session.snapshot_id
    _set_refs(session, Archive(rows), 0, rows)

    def status() -> None:
        assert not session.status().is_empty()

    figures = {"status": best_of(2, status)}
    after = session.commit("set")

    def diff() -> None:
        found = location.open(lib).diff(from_snapshot_id=before, to_snapshot_id=after)
        assert not found.is_empty()

    figures["diff"] = best_of(2, diff)

    def every_chunk() -> None:
        told = location.open(lib).diff(from_snapshot_id=before, to_snapshot_id=after)
        assert len(told.updated_chunks["/a"]) == rows

    figures["diff read"] = seconds_of(every_chunk)
    return figures


def forks(lib: ModuleType, location: Location, scale: Scale) -> Mapping[str, float]:
    """Fork, let workers set references, bring them back: without the time of the setting."""
    each = scale.of(10_000, 1_000)
    archive = Archive(WORKERS * each)
    session = _session_with(lib, location, WORKERS * each)
    sent, figures = list[bytes](), dict[str, float]()
    figures["fork"] = seconds_of(lambda: sent.append(pickle.dumps(session.fork())))
    returned = []
    for worker in range(WORKERS):
        fork = pickle.loads(sent[0])  # noqa: S301 - our own
        _set_refs(fork, archive, worker * each, each)
        returned.append(fork)
    pickles: list[bytes] = []
    figures["dumps"] = seconds_of(lambda: pickles.extend(map(pickle.dumps, returned)))
    back: list[Any] = []
    figures["loads"] = seconds_of(lambda: back.extend(map(pickle.loads, pickles)))
    figures["merge"] = seconds_of(lambda: session.merge(*back))
    assert len(session.status().updated_chunks["/a"]) == WORKERS * each
    return {
        "seconds": sum(figures.values()),
        "pickles": sum(map(len, pickles)),
        "commit": seconds_of(lambda: session.commit("merged")),
    }


_START = """
import time, numpy, zarr, zarr.storage
started = time.perf_counter()
import {library} as library
repository = library.Repository.open(library.local_filesystem_storage({folder!r}))
{work}
print(time.perf_counter() - started)
"""
_READ = """session = repository.readonly_session("main")
assert zarr.open_array(session.store, path="a", mode="r")[0] == 0"""
_COMMIT = """session = repository.writable_session("main")
zarr.open_array(session.store, path="a", mode="r+")[0] = 7
session.commit("first")"""


def starting(lib: ModuleType, location: Location, _scale: Scale) -> Mapping[str, float]:
    """Time fresh processes from the import to a first result, with compiled modules.

    Zarr and numpy are loaded before: they cost both sides the same.
    """
    session = location.create(lib).writable_session("main")
    array = zarr.create_array(session.store, name="a", shape=100, chunks=10, dtype="f4")
    array[:] = range(100)
    session.commit("data")
    name, folder = lib.__name__, location.path
    with TemporaryDirectory() as compiled:
        environment = dict(os.environ, PYTHONPYCACHEPREFIX=compiled)
        environment.pop("PYTHONDONTWRITEBYTECODE", None)

        def run(*arguments: str) -> str:
            return subprocess.run(
                [sys.executable, *arguments],
                capture_output=True,
                check=True,
                text=True,
                env=environment,
            ).stdout

        def inside(work: str) -> float:
            code = _START.format(library=name, folder=folder, work=work)
            return min(float(run("-c", code).splitlines()[-1]) for _ in range(8))

        figures = {"chunk": inside(_READ), "commit": inside(_COMMIT)}
        if name == "icefloe":
            command = "from icefloe.cli.main import app; app()"
            figures["help"] = best_of(8, lambda: run("-c", command, "--help"))
            figures["stats"] = best_of(8, lambda: run("-c", command, "stats", folder))
        return figures


GROUPS: Final = {
    "telling": Group(
        telling,
        (
            Row("status", "status of 1M changed chunks", 0.2),
            Row("diff", "diff of 1M changed chunks", 0.2),
            Row("diff read", "diff of 1M, all coordinates read"),
        ),
        rounds=2,
    ),
    "forks": Group(
        forks,
        (
            Row("seconds", "fork + merge, 16 x 10k references", 0.3),
            Row("pickles", "pickles of 16 x 10k references", 0.2, "bytes"),
            Row("commit", "commit of the merged 160k"),
        ),
        rounds=2,
    ),
    "start": Group(
        starting,
        (
            Row("chunk", "fresh process: import to first chunk", 4.0),
            Row("commit", "fresh process: import to first commit", 4.0),
            Row("help", "icefloe --help", at_most=0.4),
            Row("stats", "icefloe stats, small repository", at_most=0.4),
        ),
        rounds=1,
    ),
}
