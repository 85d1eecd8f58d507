"""Icefloe's side of the comparisons; run as a process by `bench.measure`."""

import sys
from pathlib import Path

from bench.archive import Archive
from bench.measure import Sample, emit, measured
from icefloe.format.chunk_table import ChunkTable
from icefloe.format.columns import BytesColumn
from icefloe.format.ids import ManifestId, NodeId, SnapshotId
from icefloe.format.manifest import ManifestFile, encode_manifest
from icefloe.format.transaction_log import TransactionLog, encode_transaction_log

NODE = NodeId(b"benchmrk")


def encode(archive: Archive, folder: Path) -> Sample:
    """Turn columns into a finished manifest and the chunk part of its log, on disk."""
    locations = BytesColumn.from_strings(archive.files())
    targets = archive.file_of_row().astype("u4")
    coordinates, offsets, lengths = archive.coordinates(), archive.offsets(), archive.lengths()

    def work() -> int:
        table = ChunkTable.virtual(coordinates, locations, offsets, lengths, targets=targets)
        manifest = encode_manifest(ManifestId.random(), {NODE: table})
        (folder / "manifest").write_bytes(manifest)
        log = TransactionLog(SnapshotId.random(), updated_chunks={NODE: coordinates})
        encoded = encode_transaction_log(log)
        (folder / "log").write_bytes(encoded)
        return len(manifest) + len(encoded)

    return measured(work)


def decode(manifest: Path) -> Sample:
    """Turn a manifest into columns with all locations."""

    def work() -> int:
        file = ManifestFile(manifest.read_bytes())
        return sum(len(table) for table in file.tables().values())

    return measured(work)


def lookup(manifest: Path, coordinates: list[int]) -> Sample:
    """Find one chunk in a manifest that was never read before."""

    def work() -> int:
        file = ManifestFile(manifest.read_bytes())
        ref = file.find(next(iter(file.nodes)), coordinates)
        assert ref is not None
        return 0

    return measured(work)


def main(task: str, *arguments: str) -> None:
    match task, arguments:
        case "encode", (rows, per_file, dimensions, varying, folder):
            archive = Archive(int(rows), int(per_file), int(dimensions), varying == "varying")
            emit(encode(archive, Path(folder)))
        case "decode", (path,):
            emit(decode(Path(path)))
        case "lookup", (path, *coordinates):
            emit(lookup(Path(path), [int(c) for c in coordinates]))
        case _:
            raise SystemExit(f"unknown task {task} {arguments}")


if __name__ == "__main__":
    main(*sys.argv[1:])
