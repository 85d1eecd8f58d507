"""VirtualiZarr with icechunk on an archive: a process in which nothing of ours is loaded.

`python -m bench.pipeline_peer FOLDER FILES` prints what it took, in one process and in a pool. With
`alone` behind it, it does so once, in this process.
"""

import json
import multiprocessing
import sys
import time
import warnings
from collections.abc import Mapping
from concurrent.futures import Executor, ProcessPoolExecutor
from pathlib import Path
from typing import Any

import icechunk
from obspec_utils.registry import ObjectStoreRegistry
from obstore.store import LocalStore
from virtualizarr import open_virtual_mfdataset
from virtualizarr.parsers import HDFParser

from bench.pipeline_processes import CORES, DRIVER, watched


def measure(folder: Path, files: int) -> Mapping[str, float]:
    """Take all files to a commit, twice."""
    with watched() as peaks:
        alone = _committed(folder, files, "one", parallel=False)
    context = multiprocessing.get_context("forkserver")
    with ProcessPoolExecutor(CORES, mp_context=context) as pool:
        list(pool.map(int, range(CORES)))
        with watched() as with_pool:
            parallel = _committed(folder, files, "many", parallel=pool)
    return {
        "seconds": alone,
        "per file": alone / files,
        "parallel": parallel,
        "parallel rss": float(with_pool.by_kind[DRIVER]),
        **peaks.figures(),
    }


def _committed(folder: Path, files: int, name: str, *, parallel: bool | Executor) -> float:
    data = folder / "data"
    config = icechunk.RepositoryConfig.default()
    config.set_virtual_chunk_container(
        icechunk.VirtualChunkContainer(
            f"{data.as_uri()}/", icechunk.local_filesystem_store(str(data))
        )
    )
    storage = icechunk.local_filesystem_storage(str(folder / name))
    repo = icechunk.Repository.create(storage, config)
    urls = sorted(path.as_uri() for path in data.glob("*/*.nc"))
    registry: Any = ObjectStoreRegistry({"file://": LocalStore()})
    began = time.perf_counter()
    dataset: Any = open_virtual_mfdataset(
        urls,
        registry=registry,
        parser=HDFParser(),
        combine="nested",
        concat_dim="time",
        coords="minimal",
        data_vars="minimal",
        compat="override",
        loadable_variables=["time", "lat", "lon"],
        parallel=parallel,  # type: ignore[arg-type] # what it says of itself is narrower
    )
    writing = repo.writable_session("main")
    dataset.vz.to_icechunk(writing.store)
    writing.commit("all files")
    seconds = time.perf_counter() - began
    assert dataset.sizes["time"] == files
    return seconds


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    icechunk.set_logs_filter("error")
    folder, files = Path(sys.argv[1]), int(sys.argv[2])
    if sys.argv[3:] == ["alone"]:
        print(_committed(folder, files, "one", parallel=False))
    else:
        print(json.dumps(measure(folder, files)))
