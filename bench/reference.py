"""The reference implementation's side of the comparisons; run as a process by `bench.measure`."""

import sys
from pathlib import Path

import icechunk
import zarr

from bench.archive import BUCKET, Archive
from bench.measure import Sample, emit, measured

ARRAY = "/array"


def create(archive: Archive, folder: Path) -> icechunk.Session:
    config = icechunk.RepositoryConfig.default()
    store = icechunk.s3_store(region="us-east-1")
    config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(BUCKET, store))
    storage = icechunk.local_filesystem_storage(str(folder))
    repository = icechunk.Repository.create(storage, config=config)
    session = repository.writable_session("main")
    zarr.create_array(
        session.store,
        name=ARRAY,
        shape=archive.shape,
        chunks=(1,) * archive.dimensions,
        dtype="u1",
        compressors=None,
    )
    session.commit("create the array")
    return repository.writable_session("main")


def size_of(folder: Path) -> int:
    return sum(
        max(path.stat().st_size for path in (folder / kind).iterdir())
        for kind in ("manifests", "transactions")
    )


def commit(archive: Archive, folder: Path, *, with_set: bool) -> Sample:
    """Set all references and commit them; the sample covers the commit, or both."""
    session = create(archive, folder)
    files, rows = archive.files(), archive.file_of_row().tolist()
    locations = [files[row] for row in rows]
    offsets, lengths = archive.offsets(), archive.lengths()

    def set_all() -> int:
        session.store.set_virtual_refs_arr(
            ARRAY, archive.shape, locations, offsets, lengths, validate_containers=False
        )
        return 0

    def commit_all() -> int:
        session.commit("set references")
        return size_of(folder)

    if with_set:
        return measured(lambda: set_all() + commit_all())
    set_all()
    return measured(commit_all)


def read_session(folder: Path) -> icechunk.Session:
    storage = icechunk.local_filesystem_storage(str(folder))
    return icechunk.Repository.open(storage).readonly_session("main")


def main(task: str, *arguments: str) -> None:
    match task, arguments:
        case "commit" | "set-and-commit", (rows, per_file, dimensions, varying, folder):
            archive = Archive(int(rows), int(per_file), int(dimensions), varying == "varying")
            emit(commit(archive, Path(folder), with_set=task != "commit"))
        case "locations", (folder,):
            session = read_session(Path(folder))
            emit(measured(lambda: len(session.all_virtual_chunk_locations())))
        case "lookup", (folder, *coordinates):
            session = read_session(Path(folder))
            wanted = [int(c) for c in coordinates]
            emit(measured(lambda: int(session.chunk_type(ARRAY, wanted) is None)))
        case _:
            raise SystemExit(f"unknown task {task} {arguments}")


if __name__ == "__main__":
    main(*sys.argv[1:])
