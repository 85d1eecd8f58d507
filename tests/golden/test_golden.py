"""Every file that the reference wrote decodes to what the reference says is in it."""

import hashlib
import json
from datetime import datetime
from typing import Any

import pytest
import zarr

from icefloe.config import RepositoryConfig
from icefloe.format.chunk_table import InlineChunk, NativeChunk, VirtualChunk
from icefloe.format.config_file import (
    decode_config_flexbuffer,
    decode_config_yaml,
    encode_config_flexbuffer,
    encode_config_yaml,
)
from icefloe.format.ids import ManifestId, SnapshotId
from icefloe.format.layout import manifest_key, snapshot_key, transaction_log_key
from icefloe.format.manifest import ManifestFile
from icefloe.format.snapshot import decode_snapshot
from icefloe.format.transaction_log import decode_transaction_log
from tests.golden import describe
from tests.golden.files import GOLDEN, expected
from tests.golden.repository import GoldenRepository, values_of

REPOSITORIES = [GoldenRepository(name) for name in sorted(expected())]
KIND_NAMES = {NativeChunk: "native", VirtualChunk: "virtual", InlineChunk: "inline"}

every_repository = pytest.mark.parametrize("repository", REPOSITORIES, ids=lambda r: r.name)


def each(section: str) -> pytest.MarkDecorator:
    cases = [
        pytest.param(repository, name, id=f"{repository.name}-{name}")
        for repository in REPOSITORIES
        for name in repository.expected[section]
    ]
    return pytest.mark.parametrize(("repository", "name"), cases)


@each("snapshots")
def test_snapshot(repository: GoldenRepository, name: str) -> None:
    data = repository.read(snapshot_key(SnapshotId.parse(name)))
    found = describe.snapshot(decode_snapshot(data), data)
    assert found == repository.expected["snapshots"][name]


@each("manifests")
def test_manifest(repository: GoldenRepository, name: str) -> None:
    data = repository.read(manifest_key(ManifestId.parse(name)))
    found = describe.manifest(ManifestFile(data), data)
    assert found == repository.expected["manifests"][name]


@each("transaction_logs")
def test_transaction_log(repository: GoldenRepository, name: str) -> None:
    wanted = repository.expected["transaction_logs"][name]
    key = transaction_log_key(SnapshotId.parse(name))
    assert repository.has(key) == (wanted is not None)
    if wanted is not None:
        log = decode_transaction_log(repository.read(key))
        assert str(log.id) == name
        found = describe.transaction_log(log, repository.read(key))
        if "synthetic_composite" in wanted:
            found, wanted = with_pruned_logs(repository, found, wanted)
        assert found == wanted


def with_pruned_logs(
    repository: GoldenRepository, found: dict[str, Any], wanted: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Unite a log with those of the ancestors that expiration took out, as the reference does."""
    names = wanted["synthetic_composite"]["merged_pruned_ancestor_tx_logs"]
    for name in names:
        data = repository.read(transaction_log_key(SnapshotId.parse(name)))
        for field, more in describe.transaction_log(decode_transaction_log(data), data).items():
            if field != "header":
                found[field] += [one for one in more if one not in found[field]]
    return found, {key: wanted[key] for key in wanted if key != "synthetic_composite"}


@every_repository
def test_repo_object(repository: GoldenRepository) -> None:
    if repository.repo is None:
        assert "repo_info" not in repository.expected
        assert repository.expected["spec_version"] == 1
        return
    assert repository.expected["spec_version"] == 2
    found = describe.repo_info(repository.repo, repository.read("repo"))
    assert found == repository.expected["repo_info"]
    status = repository.repo.status
    assert repository.expected["status"]["reason"] == status.reason
    name = describe.AVAILABILITIES[status.availability].replace("ReadOnly", "read_only").lower()
    assert repository.expected["status"]["availability"] == f"RepoAvailability.{name}"


@every_repository
def test_feature_flags(repository: GoldenRepository) -> None:
    if repository.repo is None:
        return
    enabled = repository.repo.enabled_flags or ()
    disabled = repository.repo.disabled_flags or ()
    for flag in repository.expected["feature_flags"].values():
        setting = True if flag["id"] in enabled else False if flag["id"] in disabled else None
        assert setting is flag["setting"]


@every_repository
def test_log_of_operations(repository: GoldenRepository) -> None:
    wanted = repository.expected.get("ops_log", [])
    found = [
        {"kind": describe.update_name(entry.kind), "backup_path": entry.backup_path}
        for entry in repository.ops_log()
    ]
    assert found == wanted


@every_repository
def test_refs(repository: GoldenRepository) -> None:
    for kind, name in (("branch", "branches"), ("tag", "tags")):
        found = {ref: str(tip) for ref, tip in repository.refs(kind).items()}
        assert found == repository.expected[name]


@every_repository
def test_ancestry(repository: GoldenRepository) -> None:
    for tip, wanted in repository.expected["ancestry"].items():
        history = repository.ancestry(SnapshotId.parse(tip))
        assert len(history) == len(wanted)
        for (one, parent), entry in zip(history, wanted, strict=True):
            snapshot = repository.snapshot(one)
            written = datetime.fromisoformat(entry["written_at"])
            micros = int(written.timestamp()) * 10**6 + written.microsecond
            assert str(one) == entry["id"]
            assert (None if parent is None else str(parent)) == entry["parent"]
            assert snapshot.message == entry["message"]
            assert snapshot.metadata == entry["metadata"]
            assert snapshot.flushed_at == micros


@every_repository
def test_contents(repository: GoldenRepository) -> None:
    for tip, wanted in repository.expected["contents"].items():
        snapshot = repository.snapshot(SnapshotId.parse(tip))
        paths = snapshot.nodes.paths.to_strings()
        assert sorted(paths) == sorted(wanted)
        if paths:
            group = repository.as_zarr(snapshot)
            for path, described in wanted.items():
                node = group[path[1:]] if path != "/" else group
                assert dict(node.attrs) == described["attributes"]
                if described["type"] == "array":
                    assert isinstance(node, zarr.Array)
                    check_array(repository, snapshot.nodes.find(path), node, described)


def check_array(
    repository: GoldenRepository, node: Any, array: "zarr.Array[Any]", wanted: dict[str, Any]
) -> None:
    names = node.array.dimension_names
    assert list(node.array.shape) == wanted["shape"] == list(array.shape)
    assert list(array.chunks) == wanted["chunks"]
    assert str(array.dtype) == wanted["dtype"]
    assert (None if names is None else list(names)) == wanted["dimension_names"]
    chunks = repository.chunks(node)
    kinds = {"/".join(map(str, index)): KIND_NAMES[type(ref)] for index, ref in chunks.items()}
    if "count" in wanted["chunk_kinds"]:
        distinct = sorted(set(kinds.values()))
        assert wanted["chunk_kinds"] == {"count": len(kinds), "distinct": distinct}
    else:
        assert kinds == wanted["chunk_kinds"]
    if "values_sha256" in wanted:
        values = values_of(array)
        assert hashlib.sha256(values.tobytes()).hexdigest() == wanted["values_sha256"]
        assert values.size > 40 or values.tolist() == wanted["values"]
    for index, read in wanted.get("virtual_reads", {}).items():
        if isinstance(read, str):
            ref = chunks[(int(index),)]
            assert chunk_of_target(repository, ref).hex() == read


def chunk_of_target(repository: GoldenRepository, ref: Any) -> bytes:
    """Resolve a reference into the only container that exists."""
    if isinstance(ref, VirtualChunk):
        target = (GOLDEN / "virtual" / ref.location.removeprefix("vcc://data/")).read_bytes()
        return target[ref.offset : ref.offset + ref.length]
    data = repository.chunk_bytes(ref)
    assert data is not None
    return data


@every_repository
def test_sizes_of_files(repository: GoldenRepository) -> None:
    found = {
        str(path.relative_to(GOLDEN / repository.name)): path.stat().st_size
        for path in (GOLDEN / repository.name).rglob("*")
        if path.is_file()
    }
    assert found == repository.expected["files"]
    for snapshot in repository.expected["snapshots"].values():
        for file in snapshot["manifests"]:
            assert found[f"manifests/{file['id']}"] == file["size_bytes"]


def test_virtual_references_carry_every_kind_of_checksum() -> None:
    repository = GoldenRepository("v2-basic")
    tip = repository.refs("branch")["main"]
    node = repository.snapshot(tip).nodes.find("/virtual")
    assert node is not None
    assert [repository.chunks(node)[(n,)] for n in range(6)] == [
        VirtualChunk("vcc://data/raw.bin", 0, 10),
        VirtualChunk("vcc://data/raw.bin", 100, 10, None, 4102444800),
        VirtualChunk("vcc://data/raw.bin", 200, 10, None, 31536000),
        VirtualChunk("s3://golden-bucket/a/b.nc", 4096, 10, '"0123456789abcdef"'),
        VirtualChunk("s3://golden-bucket/a//b%20c.nc", 0, 10),
        VirtualChunk("file:///golden-virtual/raw.bin", 300, 10),
    ]


def test_compressed_locations_expand() -> None:
    repository = GoldenRepository("v2-compressed-locations")
    [name] = repository.expected["manifests"]
    file = ManifestFile(repository.read(f"manifests/{name}"))
    [(node, table)] = file.tables().items()
    for n in range(1100):
        location = f"s3://golden-bucket/year={2000 + n % 20}/part-{n:06d}.nc"
        assert table.ref(n) == VirtualChunk(location, n, 1)
    assert file.find(node, [777]) == table.ref(777)


def test_expiration_left_pruned_logs_behind() -> None:
    repository = GoldenRepository("v2-expired")
    assert repository.repo is not None
    table = repository.repo.snapshots
    pruned = [table.entry(row).pruned_ancestors for row in range(len(table))]
    assert any(pruned)
    for snapshot in {one for some in pruned for one in some}:
        assert decode_transaction_log(repository.read(transaction_log_key(snapshot))).id == snapshot


@every_repository
def test_configuration(repository: GoldenRepository) -> None:
    """What generate.py set is read from both encodings, and survives ours."""
    configs: list[RepositoryConfig] = []
    if repository.has("config.yaml"):
        configs.append(decode_config_yaml(repository.read("config.yaml")))
        assert decode_config_yaml(encode_config_yaml(configs[-1])) == configs[-1]
    if repository.repo is not None and repository.repo.config is not None:
        configs.append(decode_config_flexbuffer(repository.repo.config))
        assert decode_config_flexbuffer(encode_config_flexbuffer(configs[-1])) == configs[-1]
    has_config = not repository.name.endswith("-empty")
    assert bool(configs) == has_config
    for config in configs:
        containers = config.virtual_chunk_containers or {}
        if any(part in repository.name for part in ("basic", "migrated", "compressed")):
            assert sorted(containers) == ["file:///golden-virtual/", "s3://golden-bucket/"]
        if "expired" in repository.name:
            assert config.inline_chunk_threshold_bytes == 0
        if repository.name == "v2-ops-log":
            assert config.num_updates_per_repo_info_file == 3
        if "split" in repository.name:
            assert config.manifest is not None
            assert config.manifest.splitting is not None


def test_refs_of_spec_1_are_the_shortest_json() -> None:
    repository = GoldenRepository("v1-basic")
    raw = repository.read("refs/branch.main/ref.json")
    assert raw == json.dumps(json.loads(raw), separators=(",", ":")).encode()
    assert len(raw) == 35
