"""What is set in columns reads as it should, for the real icechunk too."""

import datetime as dt
from pathlib import Path
from typing import Any

import icechunk
import numpy as np
import pyarrow as pa
import pytest
import zarr

import icefloe

CHUNK = 16
FILES = 7
EARLIER = dt.datetime(1971, 1, 1, tzinfo=dt.UTC)
LATER = dt.datetime.now(dt.UTC) + dt.timedelta(days=1)


def contents(number: int, chunks: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(number).integers(0, 256, chunks * CHUNK, np.uint8)


def write_files(folder: Path, chunks: int) -> list[str]:
    folder.mkdir()
    for number in range(FILES):
        (folder / f"file {number}.bin").write_bytes(contents(number, chunks).tobytes())
    return [f"{folder.as_uri()}/file%20{number}.bin" for number in range(FILES)]


def container(lib: Any, folder: Path) -> tuple[Any, dict[str, Any]]:
    config = lib.RepositoryConfig.default()
    prefix = folder.as_uri() + "/"
    store = lib.local_filesystem_store(str(folder))
    config.set_virtual_chunk_container(lib.VirtualChunkContainer(prefix, store))
    access = lib.credentials.Credentials.LocalFileSystemAccess()
    return config, lib.containers_credentials({prefix: access})


def written(
    folder: Path, files: Path, rows: int, *, modified: Any, spec_version: int
) -> np.ndarray[Any, Any]:
    """Set references in a shuffled order; gives what the array holds then."""
    each = -(-rows // FILES)
    names = write_files(files, each)
    config, access = container(icefloe, files)
    repo = icefloe.Repository.create(
        icefloe.local_filesystem_storage(str(folder)),
        config=config,
        authorize_virtual_chunk_access=access,
        spec_version=spec_version,
    )
    session = repo.writable_session("main")
    zarr.create_array(
        session.store,
        name="a",
        shape=(rows, CHUNK),
        chunks=(1, CHUNK),
        dtype="u1",
        compressors=None,
    )
    order = np.random.default_rng(1).permutation(rows)
    refused = session.store.set_virtual_refs_columns(
        "a",
        coordinates=np.stack([order, np.zeros(rows, int)], axis=1),
        locations=pa.DictionaryArray.from_arrays(pa.array(order % FILES), pa.array(names)),
        offsets=order // FILES * CHUNK,
        lengths=CHUNK,
        last_modified=modified,
    )
    assert len(refused) == 0
    session.commit("in columns")
    whole = np.stack([contents(number, each).reshape(each, CHUNK) for number in range(FILES)])
    chosen = np.arange(rows)
    result: np.ndarray[Any, Any] = whole[chosen % FILES, chosen // FILES]
    return result


def read(lib: Any, folder: Path, files: Path) -> Any:
    _, access = container(lib, files)
    repo = lib.Repository.open(
        lib.local_filesystem_storage(str(folder)), authorize_virtual_chunk_access=access
    )
    return repo.readonly_session("main")


@pytest.mark.parametrize("spec_version", [1, 2])
@pytest.mark.parametrize("rows", [5, 3000])
def test_both_read_what_was_set(tmp_path: Path, rows: int, spec_version: int) -> None:
    folder, files = tmp_path / "repo", tmp_path / "files"
    expected = written(folder, files, rows, modified=LATER, spec_version=spec_version)
    locations = []
    for lib in (icefloe, icechunk):
        session = read(lib, folder, files)
        array: Any = zarr.open_array(session.store, path="a", mode="r")
        assert np.array_equal(array[:], expected)
        locations.append(sorted(session.all_virtual_chunk_locations()))
    assert locations[0] == locations[1]
    assert len(locations[0]) == rows


def test_both_notice_a_changed_file(tmp_path: Path) -> None:
    folder, files = tmp_path / "repo", tmp_path / "files"
    times = np.full(5, int(LATER.timestamp()))
    times[3] = int(EARLIER.timestamp())
    # Rows are shuffled: what is old is wherever the fourth row went.
    written(folder, files, 5, modified=times, spec_version=2)
    stale = int(np.random.default_rng(1).permutation(5)[3])
    for lib in (icefloe, icechunk):
        array: Any = zarr.open_array(read(lib, folder, files).store, path="a", mode="r")
        for row in range(5):
            if row == stale:
                with pytest.raises(lib.IcechunkError):
                    array[row]
            else:
                assert len(array[row]) == CHUNK
