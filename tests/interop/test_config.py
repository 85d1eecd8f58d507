"""Configuration and metadata values, exchanged with the reference implementation."""

import json
import random
import struct
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import icechunk
import icechunk.storage
import pytest
import zstandard
from flatbuffers import encode, number_types
from flatbuffers.table import Table

import icefloe.config
from icefloe.config import RepositoryConfig
from icefloe.format.config_file import (
    decode_config_flexbuffer,
    decode_config_yaml,
    encode_config_flexbuffer,
    encode_config_yaml,
)
from icefloe.format.metadata import decode_metadata_value, encode_metadata_value

pytestmark = pytest.mark.interop

GOLDEN = Path(__file__).parents[3] / "shared" / "golden"
HEADER_BYTES = 39
METADATA_SLOT = {"repo": 6, "snapshot": 5}
CONFIG_SLOT = 9


@pytest.fixture(autouse=True)
def _quiet() -> None:
    icechunk.set_logs_filter("error")


def flatbuffer(path: Path) -> Table:
    frame = path.read_bytes()[HEADER_BYTES:]
    buffer = zstandard.ZstdDecompressor().decompress(frame, max_output_size=2**30)
    return Table(buffer, encode.Get(number_types.UOffsetTFlags.packer_type, buffer, 0))


def byte_field(table: Table, slot: int) -> bytes | None:
    offset = table.Offset(4 + 2 * slot)
    if not offset:
        return None
    start, size = table.Vector(offset), table.VectorLen(offset)
    return bytes(table.Bytes[start : start + size])


def metadata_items(table: Table, slot: int) -> dict[str, bytes]:
    offset = table.Offset(4 + 2 * slot)
    start = table.Vector(offset)
    items = [
        Table(table.Bytes, table.Indirect(start + 4 * index))
        for index in range(table.VectorLen(offset))
    ]
    return {(byte_field(item, 0) or b"").decode(): byte_field(item, 1) or b"" for item in items}


def plain_config(m: ModuleType) -> Any:
    return m.RepositoryConfig(inline_chunk_threshold_bytes=7, max_concurrent_decodes=3)


def nested_config(m: ModuleType) -> Any:
    return m.RepositoryConfig(
        compression=m.CompressionConfig(m.CompressionAlgorithm.Zstd, 9),
        caching=m.CachingConfig(num_chunk_refs=2**40, num_bytes_chunks=0),
        storage=m.StorageSettings(
            storage_class="12",
            timeouts=m.StorageTimeoutSettings(5, None, 6),
            minimum_size_for_multipart_upload=2**33,
        ),
        manifest=m.ManifestConfig(
            virtual_chunk_location_compression=m.ManifestVirtualChunkLocationCompressionConfig(
                3, dictionary_max_size_bytes=4, compression_level=-2
            ),
            max_concurrent_manifest_fetches_during_commit=2,
        ),
        num_updates_per_repo_info_file=3,
    )


def conditions_config(m: ModuleType) -> Any:
    preload, split = m.ManifestPreloadCondition, m.ManifestSplitCondition
    dimension = m.ManifestSplitDimCondition
    return m.RepositoryConfig(
        manifest=m.ManifestConfig(
            preload=m.ManifestPreloadConfig(
                max_total_refs=4,
                preload_if=preload.or_conditions(
                    [
                        preload.num_refs(1, 5),
                        preload.num_refs(None, 7),
                        preload.num_refs(3, None),
                        preload.and_conditions([preload.true(), preload.false()]),
                        preload.path_matches("a: \"b' #\n \x85\u2028"),
                        preload.name_matches("true"),
                    ]
                ),
            ),
            splitting=m.ManifestSplittingConfig(
                [
                    (
                        split.or_conditions([split.AnyArray(), split.path_matches("0x1F")]),
                        [
                            (dimension.Axis(0), 3),
                            (dimension.DimensionName("1e5"), 4),
                            (dimension.Any(), 4_294_967_295),
                        ],
                    ),
                    (split.and_conditions([split.name_matches("~")]), []),
                ]
            ),
        )
    )


def containers_config(m: ModuleType) -> Any:
    azure_store = m.storage.azure_store if m is icechunk else icefloe.config.azure_store
    container, config = m.VirtualChunkContainer, m.RepositoryConfig()
    for each in (
        container(
            "s3://b/",
            m.s3_store(region="0o12", checksum_algorithm=m.ChecksumAlgorithm.Crc64Nvme),
            "yes",
        ),
        container("s3://c/", m.s3_store(region="null", s3_compatible=True, anonymous=True)),
        container("gs://c/", m.gcs_store({"b": "true", "a": "1e3", "c": "\x85 \r\n"})),
        container("az://c/", azure_store(account="q", config={"x": "08"})),
        container("http://c/", m.http_store({"q": ""}, {"h": "v: #\u2028\x07"})),
        container("file:///c/", m.local_filesystem_store("/c d/é")),
        container("tigris://c/", m.ObjectStoreConfig.Tigris(m.S3Options())),
    ):
        config.set_virtual_chunk_container(each)
    return config


def level_config(m: ModuleType) -> Any:
    """Hold a number that the reference stores as signed, and we as unsigned."""
    return m.RepositoryConfig(
        manifest=m.ManifestConfig(
            virtual_chunk_location_compression=m.ManifestVirtualChunkLocationCompressionConfig(
                compression_level=5
            )
        )
    )


CONFIGS = [plain_config, nested_config, conditions_config, containers_config]
each_config = pytest.mark.parametrize("make", CONFIGS, ids=lambda make: make.__name__)


def stored(config: Any, folder: Path, spec_version: int) -> bytes:
    """Let the reference create a repository, and take the configuration that it stored."""
    storage = icechunk.local_filesystem_storage(str(folder))
    icechunk.Repository.create(storage, config=config, spec_version=spec_version)
    if spec_version == 1:
        return (folder / "config.yaml").read_bytes()
    data = byte_field(flatbuffer(folder / "repo"), CONFIG_SLOT)
    assert data is not None
    return data


def without_storage(config: RepositoryConfig) -> RepositoryConfig:
    copy = config.merge(RepositoryConfig())
    copy.storage = None
    return copy


@each_config
@pytest.mark.parametrize("spec_version", [1, 2])
def test_we_read_what_the_reference_stores(
    make: Callable[[ModuleType], Any], spec_version: int, tmp_path: Path
) -> None:
    data = stored(make(icechunk), tmp_path, spec_version)
    config = decode_config_yaml(data) if spec_version == 1 else decode_config_flexbuffer(data)
    ours: RepositoryConfig = make(icefloe.config)
    assert without_storage(config) == without_storage(ours)
    # The reference stores the settings of its local storage, below those that were given.
    assert config.storage is not None
    assert config.storage.retries == icefloe.config.StorageRetriesSettings(1, 0, 0)
    assert config.storage.unsafe_use_conditional_update is False
    if ours.storage is not None:
        assert config.storage.storage_class == ours.storage.storage_class
        assert config.storage.timeouts == ours.storage.timeouts


@each_config
def test_the_reference_reads_what_we_store(
    make: Callable[[ModuleType], Any], tmp_path: Path
) -> None:
    theirs = make(icechunk)
    stored(theirs, tmp_path, 1)
    (tmp_path / "config.yaml").write_bytes(encode_config_yaml(make(icefloe.config)))
    storage = icechunk.local_filesystem_storage(str(tmp_path))
    assert icechunk.Repository.fetch_config(storage) == theirs
    opened = icechunk.Repository.open(storage).config
    assert opened.manifest == theirs.manifest
    assert opened.compression == theirs.compression
    assert opened.virtual_chunk_containers == (theirs.virtual_chunk_containers or None)


def replace_config(path: Path, config: bytes) -> None:
    """Put other bytes into a repo object: append them, and turn the field's offset to them."""
    table = flatbuffer(path)
    field = table.Pos + table.Offset(4 + 2 * CONFIG_SLOT)
    buffer = bytearray(table.Bytes)
    buffer += bytes(-len(buffer) % 4)
    struct.pack_into("<I", buffer, field, len(buffer) - field)
    buffer += struct.pack("<I", len(config)) + config
    frame = zstandard.ZstdCompressor(level=3).compress(bytes(buffer))
    path.write_bytes(path.read_bytes()[:HEADER_BYTES] + frame)


@pytest.mark.parametrize("make", [*CONFIGS, level_config], ids=lambda make: make.__name__)
def test_the_reference_reads_our_flexbuffers(
    make: Callable[[ModuleType], Any], tmp_path: Path
) -> None:
    stored(icechunk.RepositoryConfig(inline_chunk_threshold_bytes=1), tmp_path, 2)
    replace_config(tmp_path / "repo", encode_config_flexbuffer(make(icefloe.config)))
    storage = icechunk.local_filesystem_storage(str(tmp_path))
    assert icechunk.Repository.fetch_config(storage) == make(icechunk)


@pytest.mark.parametrize("make", [plain_config, nested_config, conditions_config])
def test_flexbuffers_are_the_same_bytes(make: Callable[[ModuleType], Any], tmp_path: Path) -> None:
    data = stored(make(icechunk), tmp_path, 2)
    assert encode_config_flexbuffer(decode_config_flexbuffer(data)) == data


@each_config
def test_yaml_is_the_same_but_for_quotes(make: Callable[[ModuleType], Any], tmp_path: Path) -> None:
    data = stored(make(icechunk), tmp_path, 1)
    ours = encode_config_yaml(decode_config_yaml(data))
    keys = [line.partition(":")[0] for line in data.decode().splitlines() if line[0].isalpha()]
    assert [
        line.partition(":")[0] for line in ours.decode().splitlines() if line[0].isalpha()
    ] == keys
    assert decode_config_yaml(ours) == decode_config_yaml(data)


def any_json(dice: random.Random, depth: int) -> Any:
    match dice.randrange(10 if depth else 6):
        case 0:
            return dice.choice([None, True, False])
        case 1:
            return dice.choice([0, 255, 256, 65_536, 2**32, 2**64 - 1, dice.getrandbits(40)])
        case 2:
            return -dice.choice([1, 128, 129, 32_769, 2**31 + 1, 2**63])
        case 3:
            return dice.choice([0.0, 1.5, 0.1, -2.5, 1e300, dice.random()])
        case 4 | 5:
            return dice.choice(["", "a", "é☃", "x" * dice.choice([255, 256, 300])])
        case 6:
            return [dice.randrange(300) for _ in range(dice.randrange(7))]
        case 7:
            return [any_json(dice, depth - 1) for _ in range(dice.randrange(6))]
        case 8:
            return [dice.choice([0.5, 0.1]) for _ in range(dice.randrange(6))]
    return {
        dice.choice("abcdé") * dice.randrange(1, 4): any_json(dice, depth - 1)
        for _ in range(dice.randrange(5))
    }


def test_metadata_values_are_the_same_bytes(tmp_path: Path) -> None:
    dice = random.Random(20)
    values = {f"{index:04}": any_json(dice, 4) for index in range(500)}
    storage = icechunk.local_filesystem_storage(str(tmp_path))
    icechunk.Repository.create(storage).set_metadata(values)
    items = metadata_items(flatbuffer(tmp_path / "repo"), METADATA_SLOT["repo"])
    assert len(items) == len(values)
    for name, data in items.items():
        assert decode_metadata_value(data, 2) == values[name]
        assert encode_metadata_value(values[name], 2) == data


@pytest.mark.parametrize("spec_version", [1, 2])
def test_commit_metadata_is_the_same_bytes(spec_version: int, tmp_path: Path) -> None:
    dice = random.Random(21)
    values = {f"{index:04}": any_json(dice, 3) for index in range(100)}
    storage = icechunk.local_filesystem_storage(str(tmp_path))
    repository = icechunk.Repository.create(storage, spec_version=spec_version)
    session = repository.writable_session("main")
    snapshot = session.commit("metadata", values, allow_empty=True)
    items = metadata_items(flatbuffer(tmp_path / "snapshots" / snapshot), METADATA_SLOT["snapshot"])
    assert set(values) <= set(items)
    for name, value in values.items():
        assert decode_metadata_value(items[name], spec_version) == value
        assert encode_metadata_value(value, spec_version) == items[name]


def test_golden_snapshots_have_the_expected_metadata() -> None:
    expected = json.loads((GOLDEN / "expected.json").read_text())["repositories"]
    checked = 0
    for name, repository in expected.items():
        for history in repository["ancestry"].values():
            for snapshot in history:
                path = GOLDEN / name / "snapshots" / snapshot["id"]
                spec_version = path.read_bytes()[36]
                items = metadata_items(flatbuffer(path), METADATA_SLOT["snapshot"])
                decoded = {
                    key: decode_metadata_value(data, spec_version) for key, data in items.items()
                }
                assert decoded == snapshot["metadata"]
                for key, data in items.items():
                    assert encode_metadata_value(decoded[key], spec_version) == data
                checked += len(items)
    assert checked > 50


def test_golden_configs_are_read() -> None:
    checked = 0
    for folder in sorted(path for path in GOLDEN.iterdir() if path.is_dir()):
        if (folder / "config.yaml").exists():
            config = decode_config_yaml((folder / "config.yaml").read_bytes())
        elif (folder / "repo").exists() and (
            data := byte_field(flatbuffer(folder / "repo"), CONFIG_SLOT)
        ):
            config = decode_config_flexbuffer(data)
        else:
            continue
        checked += 1
        storage = icechunk.local_filesystem_storage(str(folder))
        theirs = icechunk.Repository.fetch_config(storage)
        assert theirs is not None
        ours = set(config.virtual_chunk_containers or {})
        assert ours == set(theirs.virtual_chunk_containers or {})
        assert config.inline_chunk_threshold_bytes == theirs.inline_chunk_threshold_bytes
    assert checked > 5
