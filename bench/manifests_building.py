"""Repositories with millions of references, built in processes of their own.

So the memory that building takes is not counted. All are written by us, which is quicker; in
`one-each` every array has one manifest, as the reference lays them out unless told otherwise.
"""

import os
import subprocess
import sys
import warnings
from typing import Any, Final

import numpy as np
import pyarrow as pa
import zarr

import icefloe
from bench.archive import BUCKET, CHUNK_BYTES, HEADER_BYTES
from bench.engine_location import Location

PART_CHUNKS: Final = 50_000
"""Chunks in a manifest of the layout that is split by hand."""
_PER_FILE: Final = 10
_AT_ONCE: Final = 1_000_000
_UNSPLIT: Final = 2**32 - 1


def splitting(lib: Any, num_chunks: int) -> Any:
    """Split all arrays along all dimensions, for either implementation."""
    rules = {
        lib.ManifestSplitCondition.AnyArray(): {lib.ManifestSplitDimCondition.Any(): num_chunks}
    }
    return lib.ManifestConfig(splitting=lib.ManifestSplittingConfig.from_dict(rules))


def config_of(lib: Any, layout: str) -> Any:
    """Return the configuration of a layout: `default`, `one-each` or `split`."""
    config = lib.RepositoryConfig()
    if layout == "split":
        config.manifest = splitting(lib, PART_CHUNKS)
    if layout == "one-each" and lib is icefloe:
        config.manifest = splitting(lib, _UNSPLIT)
        config.chunk_manifests = icefloe.ChunkManifestsConfig(
            [icefloe.ManifestSet("default", arrays_per_manifest=1)]
        )
    store = lib.s3_store(region="us-east-1")
    config.set_virtual_chunk_container(lib.VirtualChunkContainer(BUCKET, store))
    return config


def set_refs(session: Any, path: str, first: int, count: int) -> None:
    """Set virtual references along an array of one dimension, ten to a file."""
    rows = np.arange(first, first + count)
    names = [f"{BUCKET}run-7/year=2020/file-{n:07d}.nc" for n in range(count // _PER_FILE + 1)]
    files = pa.array((rows - first).astype(np.uint32) // _PER_FILE)
    refused = session.store.set_virtual_refs_columns(
        path,
        coordinates=rows.astype(np.uint32),
        locations=pa.DictionaryArray.from_arrays(files, pa.array(names)),
        offsets=(HEADER_BYTES + CHUNK_BYTES * (rows % _PER_FILE)).astype(np.uint64),
        lengths=CHUNK_BYTES,
    )
    assert len(refused) == 0


def build(location: Location, layout: str, variables: int, rows: int) -> None:
    """Make a dataset: `time` with a few chunks, and variables with many references each."""
    repo = location.create(icefloe, config=config_of(icefloe, layout))
    session = repo.writable_session("main")
    root = zarr.group(session.store)
    root.create_array("time", shape=(1000,), chunks=(100,), dtype="u1")[:] = np.arange(1000) % 256
    for number in range(variables):
        root.create_array(
            f"v{number}",
            shape=(rows,),
            chunks=(1,),
            dtype="u1",
            compressors=None,
            dimension_names=("time",),
        )
        for first in range(0, rows, _AT_ONCE):
            set_refs(session, f"/v{number}", first, min(_AT_ONCE, rows - first))
    session.commit("build")


def built(location: Location, layout: str, variables: int, rows: int) -> None:
    """Build in another process."""
    arguments = (location.dumps(), layout, str(variables), str(rows))
    subprocess.run(
        [sys.executable, "-m", "bench.manifests_building", *arguments],
        check=True,
        stdout=subprocess.DEVNULL,
        env=os.environ,
    )


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    build(Location.loads(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
