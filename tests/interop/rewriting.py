"""A repository's own files, decoded and encoded again by us under the same names."""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import numpy as np

from icefloe.format.envelope import open_envelope
from icefloe.format.ids import ManifestId, ids_of_rows
from icefloe.format.locations import LocationCompression
from icefloe.format.manifest import ManifestFile, encode_manifest
from icefloe.format.repo_info import RepoInfo, decode_repo_info, encode_repo_info
from icefloe.format.snapshot import Snapshot, decode_snapshot, encode_snapshot
from icefloe.format.transaction_log import (
    TransactionLog,
    decode_transaction_log,
    encode_transaction_log,
)
from icefloe.records import replace


class Kind(StrEnum):
    """The files that can be written again, by where they are."""

    REPO = "repo"
    BACKUPS = "overwritten"
    SNAPSHOTS = "snapshots"
    MANIFESTS = "manifests"
    LOGS = "transactions"


@dataclass(frozen=True, slots=True)
class Decoded:
    """All metadata files of a repository, as we read them."""

    snapshots: dict[str, Snapshot]
    manifests: dict[str, ManifestFile]
    logs: dict[str, TransactionLog]
    repo: RepoInfo | None
    backups: dict[str, RepoInfo]


def decode_all(path: Path) -> Decoded:
    """Decode every metadata file of a repository."""
    repo = path / Kind.REPO
    return Decoded(
        {file.name: decode_snapshot(file.read_bytes()) for file in files(path, Kind.SNAPSHOTS)},
        {file.name: ManifestFile(file.read_bytes()) for file in files(path, Kind.MANIFESTS)},
        {file.name: decode_transaction_log(file.read_bytes()) for file in files(path, Kind.LOGS)},
        decode_repo_info(repo.read_bytes()) if repo.exists() else None,
        {file.name: decode_repo_info(file.read_bytes()) for file in files(path, Kind.BACKUPS)},
    )


def files(path: Path, kind: Kind) -> list[Path]:
    """List the files of one kind, save for backups of `config.yaml`."""
    return sorted(f for f in (path / kind).glob("*") if not f.name.startswith("config.yaml"))


def rewrite(
    path: Path, kinds: AbstractSet[Kind], compression: LocationCompression | None = None
) -> int:
    """Replace all files of some kinds by our own; say how many.

    A snapshot names the exact sizes of its manifests, so it changes along with them.
    """
    count = 0
    if Kind.MANIFESTS in kinds:
        for file in files(path, Kind.MANIFESTS):
            _replace(file, _manifest_again(file.read_bytes(), compression))
            count += 1
    if kinds & {Kind.MANIFESTS, Kind.SNAPSHOTS}:
        for file in files(path, Kind.SNAPSHOTS):
            snapshot = decode_snapshot(file.read_bytes())
            _replace(file, encode_snapshot(_with_true_sizes(snapshot, path)))
            count += 1
    if Kind.LOGS in kinds:
        for file in files(path, Kind.LOGS):
            data = file.read_bytes()
            spec = open_envelope(data).spec_version
            _replace(file, encode_transaction_log(decode_transaction_log(data), spec_version=spec))
            count += 1
    infos = [path / Kind.REPO] if Kind.REPO in kinds and (path / Kind.REPO).exists() else []
    for file in [*infos, *(files(path, Kind.BACKUPS) if Kind.BACKUPS in kinds else [])]:
        _replace(file, encode_repo_info(decode_repo_info(file.read_bytes())))
        count += 1
    return count


def _replace(file: Path, data: bytes) -> None:
    assert file.read_bytes() != data, "the file must really be another one"
    file.write_bytes(data)


def _manifest_again(data: bytes, compression: LocationCompression | None) -> bytes:
    manifest = ManifestFile(data)
    return encode_manifest(
        manifest.id,
        manifest.tables(),
        spec_version=manifest.spec_version,
        location_compression=compression,
    )


def _with_true_sizes(snapshot: Snapshot, path: Path) -> Snapshot:
    names = ids_of_rows(ManifestId, snapshot.manifests.ids)
    # Collection may have deleted manifests of snapshots that nothing names any more.
    places = [path / Kind.MANIFESTS / str(name) for name in names]
    sizes = np.array([p.stat().st_size if p.exists() else 0 for p in places], np.uint64)
    return replace(snapshot, files=replace(snapshot.manifests, sizes_bytes=sizes))
