"""Manifests at scale: appends, first reads, packing and rewriting. `python -m bench manifests`.

We work with no configuration at all. The reference works with its default, one manifest for each
array, and with a layout split by hand.
"""

import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import numpy as np
import zarr

from bench.archive import BUCKET, CHUNK_BYTES
from bench.engine_location import Location, best_of, seconds_of
from bench.engine_rows import Group, Row, Run, Scale
from bench.manifests_building import PART_CHUNKS, build, built, config_of, set_refs
from bench.measure import in_fresh_process, measured
from icefloe.config.manifest_sets import DEFAULT_CHUNK_MANIFESTS, effective_chunk_manifests
from icefloe.format.ids import NodeId
from icefloe.manifests.packer import ArrayFacts, pack
from icefloe.testing.faulty import FaultyBackend
from icefloe.testing.schedules import WrappedStorage

_REFERENCE: Final = "icechunk"
_APPENDED: Final = 1000
_ARRAYS: Final = 5000
_MOST_BYTES: Final = 2_000_000_000
_MOST_PACKING_SECONDS: Final = 0.2


def _layouts(lib: ModuleType) -> dict[str, str]:
    """Return the layouts that a side is measured with, by the prefix of their figures."""
    if lib.__name__ == _REFERENCE:
        return {"": "one-each", "split ": "split"}
    return {"": "default"}


def _open(lib: ModuleType, location: Location, layout: str = "default") -> Any:
    return lib.Repository.open(location.storage(lib), config_of(lib, layout))


# -- appending -----------------------------------------------------------------------------


def _append(rows: int) -> Run:
    """Add 1,000 references at the end of an array, and commit."""

    def run(lib: ModuleType, location: Location, scale: Scale) -> Mapping[str, float]:
        figures: dict[str, float] = {}
        warm = location.below("warm")
        build(warm, "default", 1, _APPENDED)
        _append_once(lib, _open(lib, warm), _APPENDED)  # what a process loads for the first time
        count = scale.of(rows, rows // 20)
        for name, layout in _layouts(lib).items():
            at = location.below(layout)
            built(at, layout, 1, count)
            repo = _open(lib, at, layout)
            sample = measured(partial(_append_once, lib, repo, count))
            figures |= {f"{name}seconds": sample.seconds, f"{name}rss": sample.rss_growth_bytes}
        return figures

    return run


def _append_once(lib: ModuleType, repo: Any, first: int) -> int:
    session = repo.writable_session("main")
    array: Any = zarr.open_array(session.store, path="v0")
    array.resize((first + _APPENDED,))
    _set_appended(lib, session, first)
    session.commit("append")
    return 0


def _set_appended(lib: ModuleType, session: Any, first: int) -> None:
    if lib.__name__ != _REFERENCE:
        set_refs(session, "/v0", first, _APPENDED)
        return
    session.store.set_virtual_refs_arr(
        "/v0",
        (_APPENDED,),
        [f"{BUCKET}run-8/file-{n // 10:07d}.nc" for n in range(_APPENDED)],
        np.arange(_APPENDED, dtype=np.uint64),
        np.full(_APPENDED, CHUNK_BYTES, np.uint64),
        arr_offset=(first,),
    )


# -- reading -------------------------------------------------------------------------------


def _find(session: Any, index: int) -> None:
    """Find where a chunk is, without fetching it from elsewhere: that is the same for all."""
    try:
        zarr.open_array(session.store, path="v0", mode="r")[index]
    except Exception:  # noqa: BLE001 - it was found, and nobody may read it
        return
    raise AssertionError("a chunk of a bucket that does not exist was read")


def _first_chunk(lib: ModuleType, location: Location, scale: Scale) -> Mapping[str, float]:
    rows = scale.of(1_000_000, 50_000)
    figures = {}
    for name, layout in _layouts(lib).items():
        at = location.below(layout)
        built(at, layout, 1, rows)

        def work(at: Location = at, layout: str = layout) -> None:
            _find(_open(lib, at, layout).readonly_session("main"), rows // 2)

        work()  # once for what the process loads for the first time
        figures[f"{name}seconds"] = best_of(3, work)
    return figures


def _first_coordinate(lib: ModuleType, location: Location, scale: Scale) -> Mapping[str, float]:
    """Read the first chunk of a coordinate of a dataset with many large variables."""
    variables, rows = scale.of(50, 5), scale.of(1_000_000, 50_000)
    layout = _layouts(lib)[""]
    built(location, layout, variables, rows)

    def work() -> None:
        session = _open(lib, location, layout).readonly_session("main")
        assert zarr.open_array(session.store, path="time", mode="r")[1] == 1

    work()
    figures = {"seconds": best_of(5, work)}
    repo = _open(lib, location, layout)
    files = repo.list_manifest_files(repo.lookup_branch("main"))
    own = min(file.size_bytes for file in files)
    if lib.__name__ != _REFERENCE:
        figures["excess"] = _bytes_of_first_read(lib, location) / own
    return figures


def _bytes_of_first_read(lib: ModuleType, location: Location) -> int:
    """Count the bytes of manifests that are fetched for it."""
    storage = WrappedStorage(location.storage(lib), FaultyBackend)
    session = lib.Repository.open(storage).readonly_session("main")
    assert zarr.open_array(session.store, path="time", mode="r")[1] == 1
    assert isinstance(storage.backend, FaultyBackend)
    fetched = [step.key for step in storage.backend.trace if step.key.startswith("manifests/")]
    return sum((Path(location.path) / key).stat().st_size for key in fetched)


def _written_by_reference(lib: ModuleType, location: Location, scale: Scale) -> Mapping[str, float]:
    """Look up a chunk, and compare versions, where the reference wrote all of it."""
    rows = scale.of(1_000_000, 50_000)
    in_fresh_process("bench.reference", "commit", str(rows), "10", "1", "alike", location.path)
    commits = [one.id for one in location.open(lib).ancestry(branch="main")]

    def find() -> None:
        session = location.open(lib).readonly_session("main")
        assert session.chunk_type("/array", [rows * 7 // 9]) == lib.ChunkType.virtual

    def compare() -> None:
        diff = location.open(lib).diff(from_snapshot_id=commits[1], to_snapshot_id=commits[0])
        assert not diff.is_empty()

    figures = {}
    for name, work in (("find", find), ("diff", compare)):
        figures[f"{name} seconds"] = best_of(5, work)
        figures[f"{name} cpu"] = min(_processor_seconds_of(work) for _ in range(5))
    return figures


def _processor_seconds_of(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


# -- packing -------------------------------------------------------------------------------


def _pack(lib: ModuleType, location: Location, scale: Scale) -> Mapping[str, float]:
    """Change a chunk of one of many small arrays; decide on the manifests of mixed ones."""
    count = scale.of(_ARRAYS, 200)
    repo = location.create(lib)
    session = repo.writable_session("main")
    root = zarr.group(session.store)
    for number in range(count):
        root.create_array(f"a{number}", shape=(3,), chunks=(1,), dtype="u1")[:1] = 1
    before = {file.id for file in repo.list_manifest_files(session.commit("create"))}

    def one_chunk() -> None:
        session = repo.writable_session("main")
        array: Any = zarr.open_array(session.store, path="a7")
        array[1] = 7
        session.commit("change one")

    commit_seconds = seconds_of(one_chunk)
    after = {file.id for file in repo.list_manifest_files(repo.lookup_branch("main"))}
    figures = {"rewritten": len(after - before), "commit": commit_seconds}
    return figures if lib.__name__ == _REFERENCE else figures | {"seconds": _packing_seconds(count)}


def _packing_seconds(count: int) -> float:
    """Time the decision alone, which the reference has no need of."""
    sizes = (np.random.default_rng(3).pareto(1, count) * 20 + 1).astype(int).clip(1, 100_000)
    arrays = [
        ArrayFacts(NodeId(number.to_bytes(8)), f"/group/array-{number}", size, size)
        for number, size in enumerate(sizes.tolist())
    ]
    config = effective_chunk_manifests(DEFAULT_CHUNK_MANIFESTS)
    return best_of(3, lambda: pack(arrays, config))


# -- rewriting -----------------------------------------------------------------------------


def _rewrite(lib: ModuleType, location: Location, scale: Scale) -> Mapping[str, float]:
    """Turn one manifest of ten million references into many; both sides start with the same."""
    built(location, "one-each", 1, scale.of(10_000_000, 200_000))
    repo = _open(lib, location, "split")

    def work() -> int:
        new = repo.rewrite_manifests("split", branch="main")
        return int(sum(file.size_bytes for file in repo.list_manifest_files(new)))

    sample = measured(work)
    return {
        "seconds": sample.seconds,
        "rss": sample.rss_growth_bytes,
        "bytes": sample.size_bytes,
    }


def _append_rows(what: str) -> tuple[Row, ...]:
    by_hand = f"append {_APPENDED} to {what}, against {PART_CHUNKS} chunks a manifest by hand"
    return (
        Row("seconds", f"append {_APPENDED} to {what} + commit", 0.05),
        Row("rss", f"append {_APPENDED} to {what}: memory", 0.05, "bytes"),
        Row("seconds", by_hand, 0.8, theirs=("split seconds",)),
        Row("rss", f"{by_hand}: memory", 0.8, "bytes", theirs=("split rss",)),
    )


GROUPS: Final = {
    "append-1m": Group(_append(1_000_000), _append_rows("1M")),
    "append-10m": Group(_append(10_000_000), _append_rows("10M"), rounds=2),
    "first-chunk-1m": Group(
        _first_chunk,
        (
            Row("seconds", "first chunk of 1M", 0.1),
            Row("seconds", "first chunk of 1M, against split by hand", theirs=("split seconds",)),
        ),
    ),
    "first-coordinate": Group(
        _first_coordinate,
        (
            Row("seconds", "first coordinate chunk beside 50 variables of 1M", 0.8),
            Row("excess", "bytes of manifests for it / its own", unit="ratio", at_most=2),
        ),
        rounds=1,
    ),
    "written-by-reference": Group(
        _written_by_reference,
        (
            Row("find seconds", "first chunk of 1M that the reference wrote", 0.1),
            Row("find cpu", "first chunk of 1M that the reference wrote, processor", 0.1),
            Row("diff seconds", "diff of 1M changed chunks that the reference wrote", 0.2),
            Row("diff cpu", "diff of 1M changed chunks that the reference wrote, processor", 0.2),
        ),
        rounds=2,
    ),
    "packing": Group(
        _pack,
        (
            Row("seconds", "pack 5,000 arrays", at_most=_MOST_PACKING_SECONDS),
            Row("rewritten", "manifests rewritten for one of them", unit="count", at_most=1),
            Row("commit", "change one of 5,000 small arrays + commit"),
        ),
        rounds=2,
    ),
    "rewriting": Group(
        _rewrite,
        (
            Row("seconds", "rewrite manifests of 10M", 0.5),
            Row("rss", "rewrite manifests of 10M: memory", unit="bytes", at_most=_MOST_BYTES),
            Row("rss", "… against the reference", unit="bytes"),
            Row("bytes", "… stored", unit="bytes"),
        ),
        rounds=1,
    ),
}
