"""Reading against the other readers of Zarr: `python -m bench peers [--delay MS] [--rounds N]`.

The same values and codecs as a repository and as plain Zarr of format 3, on a local disk and on
SeaweedFS behind a proxy that delays each request. The readers take turns, in processes of their
own; the best of all rounds counts. All of them may have 128 requests under way.

- `zarrs` is the codec pipeline in Rust, TensorStore the library of Google in C++.
- "raw" is 128 threads that fetch with obstore and decode with numcodecs: as simple as it can be.
- Ours reads the repository as `icefloe.open` opens it. "plain" is our pipeline on the plain Zarr,
  which leaves stores of others to the pipeline of Zarr.

Each table comes twice: elapsed time, and processor time, on which other programs of the machine
have less influence. The last table reads from a disk cache that another process has filled, against
`icechunk`.
"""

import argparse
import importlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import numcodecs.zstd
import numpy as np
import obstore
import zarr
from obstore.store import LocalStore as ObstoreFolder
from obstore.store import S3Store
from rich.console import Console
from rich.table import Table
from zarr.storage import LocalStore, ObjectStore

import icefloe
from bench.engine_location import Location
from bench.measure import environment
from tests.support.distance import far_away
from tests.support.servers import seaweedfs

TINY, SMALL, LARGE = "tiny", "small", "large"
ARRAYS: Final = {TINY: (2_000, 32), SMALL: (1_500, 160), LARGE: (48, 1_024)}
"""The number of chunks of each array, and their side; values of four bytes."""
ROWS: Final = {
    TINY: "2,000 chunks of 4 KB, zstd",
    SMALL: "1,500 chunks of 100 KB, zstd",
    LARGE: "48 chunks of 4 MB, zstd",
}
OURS, PLAIN, ZARRS, TENSORSTORE, RAW = "icefloe", "icefloe plain", "zarrs", "tensorstore", "raw"
ICECHUNK, CACHED = "icechunk", "icefloe cached"
SIDES: Final = (OURS, PLAIN, ZARRS, TENSORSTORE, RAW)
GOALS: Final = {ZARRS: 1.2, TENSORSTORE: 1.2, RAW: 1.5}
CACHE_GOAL: Final = 0.1
_AT_ONCE: Final = 128

type Figures = dict[str, list[float]]
"""For a row: seconds, and seconds of the processor."""


def main(arguments: list[str]) -> None:
    """Measure, and print the figures with what is asked of them."""
    parser = argparse.ArgumentParser(prog="python -m bench peers")
    parser.add_argument("--delay", type=int, action="append", help="in milliseconds")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--local", action="store_true", help="only the local disk")
    options = parser.parse_args(arguments)
    console = Console()
    with tempfile.TemporaryDirectory() as folder:
        local = Location(folder)
        _create(local)
        _print(console, "local disk", _best(SIDES, local, options.rounds))
    if options.local:
        return
    with seaweedfs() as endpoint:
        _create(Location.on(endpoint, "peers"))
        for delay in options.delay or (0, 5, 20):
            with far_away(endpoint.url, delay / 1000) as url:
                location = Location.on(endpoint, "peers", url)
                best = _best(SIDES, location, options.rounds)
                _print(console, f"S3, {delay} ms for a request", best)
                if delay:
                    console.print(_cache_table(delay, location, options.rounds))


def _best(
    sides: tuple[str, ...],
    location: Location,
    rounds: int,
    more: dict[str, str] | None = None,
) -> dict[str, Figures]:
    best: dict[str, Figures] = {side: {} for side in sides}
    for _ in range(rounds):
        for side in sides:
            for row, figures in _run(side, location, more or {}).items():
                best[side][row] = [*map(min, figures, best[side].get(row, figures))]
    return best


def _print(console: Console, title: str, best: Mapping[str, Figures]) -> None:
    console.print(_table(title, best, 0, GOALS))
    console.print(_table(f"{title}, processor time", best, 1, {}))


def _table(
    title: str, best: Mapping[str, Figures], column: int, goals: Mapping[str, float]
) -> Table:
    table = Table("whole array", "reader", "", "ours", "ratio", "plain", "ratio", title=title)
    for row, text in ROWS.items():
        for peer in GOALS:
            theirs = best[peer][row][column]
            cells = [text, peer, _shown(theirs)]
            for side in (OURS, PLAIN):
                seconds = best[side][row][column]
                cells += [_shown(seconds), _ratio(seconds / theirs, goals.get(peer))]
            table.add_row(*cells)
    return table


def _cache_table(delay: int, location: Location, rounds: int) -> Table:
    with tempfile.TemporaryDirectory() as folder:
        more = {"ICEFLOE_CACHE": folder}
        first = _run(CACHED, location, more)
        best = _best((CACHED, ICECHUNK), location, rounds, more)
    title = f"open and read again with a disk cache, {delay} ms"
    table = Table("whole array", "first read", "second", "icechunk", "ratio", title=title)
    for row, text in ROWS.items():
        ours, theirs = best[CACHED][row][0], best[ICECHUNK][row][0]
        shown = map(_shown, (first[row][0], ours, theirs))
        table.add_row(text, *shown, _ratio(ours / theirs, CACHE_GOAL))
    return table


def _shown(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms"


def _ratio(ratio: float, goal: float | None) -> str:
    if goal is None:
        return f"{ratio:.2f}x"
    return f"[{'green' if ratio <= goal else 'red'}]{ratio:.2f}x[/] (≤ {goal:g})"


# -- the data ------------------------------------------------------------------------------


def _create(location: Location) -> None:
    """Write all arrays to a repository, and as plain Zarr beside it."""
    config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0)
    repository = location.below("repository").create(icefloe, config=config)
    stores: list[Any] = [ObjectStore(_obstore(location.below("plain")))]
    with repository.transaction("main", message="arrays") as store:
        for name, (_, side) in ARRAYS.items():
            values = _values(name)
            for target in (*stores, store):
                zarr.create_array(
                    target, name=name, shape=values.shape, chunks=(1, side, side), dtype="f4"
                )[:] = values


def _values(name: str) -> Any:
    count, side = ARRAYS[name]
    return np.random.default_rng(side).integers(0, 2_000, (count, side, side)).astype("f4")


def _obstore(location: Location) -> Any:
    if location.url is None:
        return ObstoreFolder(location.path, mkdir=True)
    return S3Store(
        location.bucket,
        prefix=location.path,
        region="us-east-1",
        endpoint=location.url,
        client_options={"allow_http": True, "pool_max_idle_per_host": str(_AT_ONCE)},
        virtual_hosted_style_request=False,
        access_key_id=location.access_key_id,
        secret_access_key=location.secret_access_key,
    )


# -- the readers ---------------------------------------------------------------------------


def _run(side: str, location: Location, more: dict[str, str]) -> Figures:
    if side == ZARRS and not location.is_local:
        more = more | {"RAYON_NUM_THREADS": str(_AT_ONCE)}
    done = subprocess.run(
        [sys.executable, "-m", __name__, side, location.dumps()],
        capture_output=True,
        text=True,
        check=False,
        env=environment(
            AWS_ACCESS_KEY_ID=location.access_key_id,
            AWS_SECRET_ACCESS_KEY=location.secret_access_key,
            **more,
        ),
    )
    if done.returncode != 0:
        raise RuntimeError(f"{side} failed:\n{done.stderr[-1500:]}")
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    return figures


def _work(side: str, location: Location) -> Figures:
    reader = READERS[side](location)
    figures: Figures = {}
    for name in ARRAYS:
        read = reader(name)
        started, processor = time.perf_counter(), time.process_time()
        result = read()
        figures[name] = [time.perf_counter() - started, time.process_time() - processor]
        assert np.array_equal(result, _values(name))
    return figures


type Reader = Callable[[Location], Callable[[str], Callable[[], Any]]]


def _ours(location: Location) -> Callable[[str], Callable[[], Any]]:
    group: Any = icefloe.open(location.below("repository").storage(icefloe))
    return lambda name: _whole(group[name])


def _whole(array: Any) -> Callable[[], Any]:
    return lambda: array[:]


def _cached(location: Location) -> Callable[[str], Callable[[], Any]]:
    """Open the repository for each array again: what is in memory does not count."""
    storage = location.below("repository").storage(icefloe)

    def read(name: str) -> Any:
        array: Any = icefloe.open(storage, name)
        return array[:]

    return lambda name: lambda: read(name)


def _icechunk(location: Location) -> Callable[[str], Callable[[], Any]]:
    lib = importlib.import_module("icechunk")

    def read(name: str) -> Any:
        session: Any = location.below("repository").open(lib).readonly_session("main")
        array: Any = zarr.open_array(session.store, path=name, mode="r")
        return array[:]

    return lambda name: lambda: read(name)


def _plain(location: Location) -> Callable[[str], Callable[[], Any]]:
    icefloe.use_selection_pipeline()
    return _zarr(location)


def _zarrs(location: Location) -> Callable[[str], Callable[[], Any]]:
    settings = {"path": "zarrs.ZarrsCodecPipeline", "strict": True}
    if not location.is_local:  # so does RAYON_NUM_THREADS: each of its threads waits by itself
        settings["chunk_concurrent_maximum"] = _AT_ONCE
        zarr.config.set({"threading.max_workers": _AT_ONCE})
    zarr.config.set({f"codec_pipeline.{name}": value for name, value in settings.items()})
    return _zarr(location)


def _zarr(location: Location) -> Callable[[str], Callable[[], Any]]:
    zarr.config.set({"async.concurrency": _AT_ONCE})
    plain = location.below("plain")
    store: Any = LocalStore(plain.path) if location.is_local else ObjectStore(_obstore(plain))
    group: Any = zarr.open_group(store, mode="r")
    return lambda name: _whole(group[name])


def _tensorstore(location: Location) -> Callable[[str], Callable[[], Any]]:
    lib: Any = importlib.import_module("tensorstore")
    plain = location.below("plain")

    def opened(name: str) -> Callable[[], Any]:
        place: dict[str, Any] = {"driver": "file", "path": f"{plain.path}/{name}/"}
        context: dict[str, Any] = {"cache_pool": {"total_bytes_limit": 0}}
        if plain.url is not None:
            context["s3_request_concurrency"] = {"limit": _AT_ONCE}
            place = {
                "driver": "s3",
                "bucket": plain.bucket,
                "path": f"{plain.path}/{name}/",
                "endpoint": plain.url,
                "aws_region": "us-east-1",
                "aws_credentials": {"type": "environment"},
            }
        spec = {"driver": "zarr3", "kvstore": place, "context": context}
        array = lib.open(spec, open=True, read=True).result()
        return lambda: array.read().result()

    return opened


def _raw(location: Location) -> Callable[[str], Callable[[], Any]]:
    store = _obstore(location.below("plain"))
    pool = ThreadPoolExecutor(_AT_ONCE)

    def read(name: str) -> Any:
        count, side = ARRAYS[name]
        result = np.empty((count, side, side), "f4")

        def fetch(number: int) -> None:
            data = obstore.get(store, f"{name}/c/{number}/0/0").bytes()
            numcodecs.zstd.decompress(memoryview(data), result[number])

        list(pool.map(fetch, range(count)))
        return result

    return lambda name: lambda: read(name)


READERS: Final[dict[str, Reader]] = {
    OURS: _ours,
    CACHED: _cached,
    PLAIN: _plain,
    ZARRS: _zarrs,
    TENSORSTORE: _tensorstore,
    RAW: _raw,
    ICECHUNK: _icechunk,
}


if __name__ == "__main__":
    print(json.dumps(_work(sys.argv[1], Location.loads(sys.argv[2]))))
