"""What the fuzzer starts from: golden files, and files that we encode ourselves."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from icefloe.config import RepositoryConfig
from icefloe.errors import FormatError
from icefloe.format.config_file import encode_config_yaml
from icefloe.format.envelope import FileType, decompress, open_envelope
from icefloe.format.locations import LocationCompression
from icefloe.format.manifest import encode_manifest
from icefloe.format.repo_info import encode_repo_info
from icefloe.format.snapshot import encode_snapshot
from icefloe.format.transaction_log import TransactionLog, encode_transaction_log
from tests.golden.files import GOLDEN
from tests.unit.format import samples


@dataclass(frozen=True, slots=True)
class Seed:
    """A valid file; `buffer` is its flatbuffer, and empty for a configuration."""

    name: str
    data: bytes
    file_type: FileType | None
    spec_version: int
    buffer: bytes


def as_seed(name: str, data: bytes) -> Seed:
    try:
        envelope = open_envelope(data)
    except FormatError:
        return Seed(name, data, None, 1, b"")
    buffer = bytes(decompress(envelope.payload))
    return Seed(name, data, envelope.file_type, envelope.spec_version, buffer)


def golden_files() -> Iterator[tuple[str, bytes]]:
    wanted = {"snapshots", "manifests", "transactions", "overwritten"}
    for path in sorted(GOLDEN.rglob("*")):
        is_metadata = path.parent.name in wanted or path.name in {"repo", "config.yaml"}
        if path.is_file() and is_metadata:
            yield str(path.relative_to(GOLDEN)), path.read_bytes()


def own_files() -> Iterator[tuple[str, bytes]]:
    tables = samples.manifest_tables()
    compression = LocationCompression(min_num_chunks=1)
    yield "own/config.yaml", encode_config_yaml(RepositoryConfig(inline_chunk_threshold_bytes=7))
    yield "own/repo", encode_repo_info(samples.repo_info())
    yield (
        "own/manifest-compressed",
        encode_manifest(samples.manifest_id(1), tables, location_compression=compression),
    )
    for spec in (1, 2):
        yield (
            f"own/manifest-{spec}",
            encode_manifest(samples.manifest_id(1), tables, spec_version=spec),
        )
        yield f"own/snapshot-{spec}", encode_snapshot(samples.snapshot(spec))
        yield (
            f"own/log-{spec}",
            encode_transaction_log(samples.transaction_log(), spec_version=spec),
        )
        small = TransactionLog(samples.snapshot_id(1))
        yield f"own/log-empty-{spec}", encode_transaction_log(small, spec_version=spec)
    for node, table in tables.items():
        yield f"own/manifest-of-{node}", encode_manifest(samples.manifest_id(2), {node: table})


@cache
def corpus() -> tuple[Seed, ...]:
    """All seeds, in a fixed order."""
    files = [*golden_files(), *own_files()]
    return tuple(as_seed(name, data) for name, data in files)


@cache
def by_type() -> tuple[tuple[Seed, ...], ...]:
    """The same by type, so that the types of which there are few files get their share."""
    return tuple(
        tuple(seed for seed in corpus() if seed.file_type is one) for one in (*FileType, None)
    )
