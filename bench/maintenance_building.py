"""Repositories for the comparisons of maintenance with very many chunks.

They are built once for all rounds and both sides, by us and in processes of their own: to write
this many chunks the usual way would take far longer than what is measured. Nothing that is measured
changes what it finds.
"""

import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any, Final

import numpy as np
import zarr

import icefloe
from bench.engine_location import Location
from bench.manifests_building import config_of
from icefloe.format.chunk_table import ChunkTable
from icefloe.format.columns import Bytes
from icefloe.format.ids import texts_of_rows

CHUNK_BYTES: Final = 4
_SHARED: Final = "shared"
_DONE: Final = "done"


def build_objects(location: Location, count: int) -> None:
    """Make an array of chunks, each an object in the folder of chunks."""
    repo = location.create(icefloe)
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="a", shape=count, chunks=1, dtype="i4")
    ids = _ids(count)
    folder = os.open(_folder_of_chunks(location), os.O_RDONLY)
    for name in texts_of_rows(ids):
        file = os.open(name, os.O_WRONLY | os.O_CREAT, dir_fd=folder)
        os.write(file, bytes(CHUNK_BYTES))
        os.close(file)
    os.close(folder)
    _refer(session, 0, ids)
    session.commit("references")


def build_versions(location: Location, layout: str, count: int, versions: int) -> None:
    """Make an array that grows by as many chunks in each version; there are no objects."""
    repo = location.create(icefloe, config=config_of(icefloe, layout))
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="a", shape=count, chunks=1, dtype="i4")
    session.commit("created")
    for first in range(0, count, count // versions):
        session = repo.writable_session("main")
        _refer(session, first, _ids(count // versions))
        session.commit("more")


def _folder_of_chunks(location: Location) -> Path:
    folder = Path(location.path) / "chunks"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _ids(count: int) -> Bytes:
    return np.random.default_rng().integers(0, 256, (count, 12), dtype=np.uint8)


def _refer(session: Any, first: int, ids: Bytes) -> None:
    rows = np.arange(first, first + len(ids), dtype=np.uint32).reshape(-1, 1)
    state = session._session  # noqa: SLF001 - there is no public way to refer to such objects
    node = state.tree.find("/a")
    assert node is not None
    table = ChunkTable.native(rows, ids, np.full(len(ids), CHUNK_BYTES, "u8"))
    state.changes.put_table(node.id, table)


_BUILDERS: Final = {"objects": build_objects, "versions": build_versions}


def shared(location: Location, builder: str, *arguments: str | int) -> Location:
    """Return the location of a repository that is built when first asked for."""
    texts = tuple(map(str, arguments))
    folder = Path(location.path).parent / _SHARED / "-".join((builder, *texts))
    at = Location(str(folder / "repository"))
    if not (folder / _DONE).exists():
        command = [sys.executable, "-m", "bench.maintenance_building", builder, at.dumps(), *texts]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=os.environ)
        (folder / _DONE).touch()
    return at


def main(builder: str, location: str, *arguments: str) -> None:
    warnings.simplefilter("ignore")
    values = [int(one) if one.isdigit() else one for one in arguments]
    build: Any = _BUILDERS[builder]
    build(Location.loads(location), *values)


if __name__ == "__main__":
    main(*sys.argv[1:])
