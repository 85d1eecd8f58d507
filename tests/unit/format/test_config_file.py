"""The stored configuration: what is read leniently, what is refused, and how it is laid out."""

import logging

import pytest

from icefloe.config import (
    ChecksumAlgorithm,
    CompressionAlgorithm,
    CompressionConfig,
    ManifestConfig,
    ManifestPreloadCondition,
    ManifestPreloadConfig,
    ManifestSplitCondition,
    ManifestSplitDimCondition,
    ManifestSplittingConfig,
    ObjectStoreConfig,
    RepositoryConfig,
    S3Options,
    StorageSettings,
    VirtualChunkContainer,
    azure_store,
    gcs_store,
    http_store,
    local_filesystem_store,
    s3_store,
)
from icefloe.errors import ErrorKind, FormatError, InvalidInputError
from icefloe.format.config_file import (
    decode_config_flexbuffer,
    decode_config_yaml,
    encode_config_flexbuffer,
    encode_config_yaml,
)
from icefloe.format.flexbuffers import decode_flexbuffer, encode_flexbuffer
from icefloe.values.yaml_tree import MAX_YAML_BYTES
from tests.support.logged import own_messages

Preload = ManifestPreloadCondition
Split = ManifestSplitCondition
Dimension = ManifestSplitDimCondition


def full_config() -> RepositoryConfig:
    config = RepositoryConfig(
        inline_chunk_threshold_bytes=3,
        compression=CompressionConfig(CompressionAlgorithm.Zstd, 7),
        storage=StorageSettings(storage_class="12"),
        manifest=ManifestConfig(
            preload=ManifestPreloadConfig(
                preload_if=Preload.or_conditions(
                    [
                        Preload.num_refs(1, 5),
                        Preload.num_refs(None, None),
                        Preload.and_conditions([Preload.true(), Preload.false()]),
                        Preload.path_matches("a: \"b' #\n"),
                        Preload.name_matches("true"),
                    ]
                )
            ),
            splitting=ManifestSplittingConfig(
                [
                    (
                        Split.or_conditions([Split.AnyArray(), Split.path_matches("x")]),
                        [
                            (Dimension.Axis(0), 3),
                            (Dimension.DimensionName("1e5"), 4),
                            (Dimension.Any(), 5),
                        ],
                    ),
                    (Split.and_conditions([Split.name_matches("~")]), []),
                ]
            ),
        ),
    )
    algorithm = ChecksumAlgorithm.Crc64Nvme
    for container in (
        VirtualChunkContainer("s3://b/", s3_store("0o12", checksum_algorithm=algorithm), "yes"),
        VirtualChunkContainer("s3://c/", s3_store(region="null", s3_compatible=True)),
        VirtualChunkContainer(
            "gs://c/", gcs_store({"b": "true", "a": "1e3", "\x85 ": " \x85\r\n\t "})
        ),
        VirtualChunkContainer("gs://d/", gcs_store()),
        VirtualChunkContainer("az://c/", azure_store(account="q")),
        VirtualChunkContainer("http://c/", http_store({"q": "0x1F"}, {"h": "v: #\u2028\x07"})),
        VirtualChunkContainer("https://c/", http_store()),
        VirtualChunkContainer("file:///c/", local_filesystem_store("/c d/é")),
        VirtualChunkContainer("tigris://c/", ObjectStoreConfig.Tigris(S3Options())),
    ):
        config.set_virtual_chunk_container(container)
    return config


def test_round_trips() -> None:
    for config in (RepositoryConfig(), full_config()):
        assert decode_config_yaml(encode_config_yaml(config)) == config
        assert decode_config_flexbuffer(encode_config_flexbuffer(config)) == config


def test_every_key_is_written_in_order() -> None:
    written = encode_config_yaml(RepositoryConfig()).decode().splitlines()
    assert written == [
        "inline_chunk_threshold_bytes: null",
        "get_partial_values_concurrency: null",
        "compression: null",
        "max_concurrent_requests: null",
        "max_concurrent_decodes: null",
        "caching: null",
        "storage: null",
        "virtual_chunk_containers: null",
        "manifest: null",
        "previous_file: null",
        "repo_update_retries: null",
        "num_updates_per_repo_info_file: null",
    ]
    root = decode_flexbuffer(encode_config_flexbuffer(RepositoryConfig()))
    assert isinstance(root, dict)
    assert sorted(root) == sorted(line.partition(":")[0] for line in written)


def test_alternatives_are_tags_in_yaml_and_maps_in_flexbuffers() -> None:
    text = encode_config_yaml(full_config()).decode()
    assert "    store: !s3\n      region: '0o12'\n" in text
    assert "    store: !local_file_system /c d/é\n" in text
    assert "      from: !Included 1\n      to: !Excluded 5\n" in text
    assert "condition: !Axis 0\n" in text
    assert "condition: !DimensionName '1e5'\n" in text
    assert "condition: Any\n" in text
    root = decode_flexbuffer(encode_config_flexbuffer(full_config()))
    assert isinstance(root, dict)
    containers = root["virtual_chunk_containers"]
    assert isinstance(containers, dict)
    assert containers["file:///c/"] == {
        "name": None,
        "url_prefix": "file:///c/",
        "store": {"local_file_system": "/c d/é"},
    }


def test_an_option_cannot_hide_the_headers() -> None:
    config = RepositoryConfig()
    config.set_virtual_chunk_container(
        VirtualChunkContainer("https://h/", http_store({"headers": "x"}))
    )
    with pytest.raises(InvalidInputError, match="named 'headers'"):
        encode_config_yaml(config)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", RepositoryConfig()),
        ("# nothing\n", RepositoryConfig()),
        ("{}", RepositoryConfig()),
        ("unknown: [1, 2]\nfuture: !tag {a: b}", RepositoryConfig()),
        ("inline_chunk_threshold_bytes: 7", RepositoryConfig(inline_chunk_threshold_bytes=7)),
        ("inline_chunk_threshold_bytes: 0x10", RepositoryConfig(inline_chunk_threshold_bytes=16)),
        (
            "storage: {storage_class: 012, unknown: 1}",
            RepositoryConfig(storage=StorageSettings(storage_class="012")),
        ),
        (
            "storage: {storage_class: yes, metadata_storage_class: true}",
            RepositoryConfig(
                storage=StorageSettings(storage_class="yes", metadata_storage_class="true")
            ),
        ),
        (
            "manifest: {preload: {preload_if: true}}",
            RepositoryConfig(
                manifest=ManifestConfig(preload=ManifestPreloadConfig(preload_if=Preload.true()))
            ),
        ),
        (
            "manifest: {preload: {preload_if: !num_refs {from: !Excluded 3, to: !Included 9}}}",
            RepositoryConfig(
                manifest=ManifestConfig(
                    preload=ManifestPreloadConfig(preload_if=Preload.num_refs(4, 10))
                )
            ),
        ),
    ],
)
def test_lenient_reading(text: str, expected: RepositoryConfig) -> None:
    assert decode_config_yaml(text.encode()) == expected


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("null", ""),
        ("[1]", ""),
        ("inline_chunk_threshold_bytes: 70000", "inline_chunk_threshold_bytes"),
        ("inline_chunk_threshold_bytes: '7'", "inline_chunk_threshold_bytes"),
        ("inline_chunk_threshold_bytes: 7.0", "inline_chunk_threshold_bytes"),
        ("inline_chunk_threshold_bytes: [7]", "inline_chunk_threshold_bytes"),
        ("compression: 3", "compression"),
        ("compression: {algorithm: gzip}", "compression.algorithm"),
        ("compression: {level: true}", "compression.level"),
        ("storage: {retries: {max_tries: 0}}", "storage.retries.max_tries"),
        ("storage: {unsafe_use_metadata: 1}", "storage.unsafe_use_metadata"),
        ("storage: {storage_class: [a]}", "storage.storage_class"),
        ("previous_file: {a: b}", "previous_file"),
        ("manifest: {preload: {preload_if: maybe}}", "manifest.preload.preload_if"),
        ("manifest: {preload: {preload_if: !or 3}}", "manifest.preload.preload_if"),
        (
            "manifest: {preload: {preload_if: !num_refs {from: !Included x}}}",
            "manifest.preload.preload_if.from",
        ),
        (
            "manifest: {preload: {preload_if: !num_refs {to: !Excluded 9999999999}}}",
            "manifest.preload.preload_if",
        ),
        ("manifest: {splitting: {split_sizes: [any_array]}}", "manifest.splitting.split_sizes[0]"),
        (
            "manifest: {splitting: {split_sizes: [[any_array, [{condition: !Axis x}]]]}}",
            "manifest.splitting.split_sizes[0][0].condition",
        ),
        (
            "manifest: {splitting: {split_sizes: [[any_array, [{condition: Any}]]]}}",
            "manifest.splitting.split_sizes",
        ),
        (
            "manifest: {splitting: {split_sizes: [[any_array, [{condition: Any, num_chunks: 0}]]]"
            "}}",
            "manifest.splitting.split_sizes",
        ),
        ("virtual_chunk_containers: {'s3://b/': 1}", "virtual_chunk_containers.s3://b/"),
        (
            "virtual_chunk_containers: {'s3://b/': {store: !ftp {}}}",
            "virtual_chunk_containers.s3://b/.store",
        ),
        (
            "virtual_chunk_containers: {'s3://b/': {store: !s3 {anonymous: 3}}}",
            "virtual_chunk_containers.s3://b/.store.anonymous",
        ),
        (
            "virtual_chunk_containers: {'gs://b/': {store: !gcs {a: [b]}}}",
            "virtual_chunk_containers.gs://b/.store.a",
        ),
    ],
)
def test_wrong_values_name_their_key(text: str, key: str) -> None:
    with pytest.raises(FormatError, match="the stored configuration is damaged") as caught:
        decode_config_yaml(text.encode())
    assert caught.value.kind == ErrorKind.CONFIG_DESERIALIZATION
    assert caught.value.context == {"key": key}
    assert key in str(caught.value)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"a: [", "not YAML .line"),
        (b"a: 1\na: 2", "'a' appears twice"),
        (b"--- {}\n--- {}", "exactly one"),
        (b"\xff\xfe", "not UTF-8"),
        (b"a: &x 1\nb: *x", "alias"),
        (b"[a]: 1", "a key is not text"),
        (b"a: " + b"[" * 150 + b"]" * 150, "nested deeper"),
        (b" " * (MAX_YAML_BYTES + 1), "more than the"),
        (b"a: \x00", "not YAML"),
    ],
)
def test_unsound_yaml_is_refused(data: bytes, problem: str) -> None:
    with pytest.raises(FormatError, match=problem) as caught:
        decode_config_yaml(data)
    assert caught.value.kind == ErrorKind.CONFIG_DESERIALIZATION


def test_a_bomb_of_aliases_does_not_go_off() -> None:
    lines = ["a0: &a0 [x, x]"]
    lines += [f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 60)]
    with pytest.raises(FormatError, match="alias"):
        decode_config_yaml("\n".join(lines).encode())


@pytest.mark.parametrize("tag", ["!!python/object/apply:os.system", "!!python/name:os.system"])
def test_tags_construct_nothing(tag: str) -> None:
    config = decode_config_yaml(f"unknown: {tag} ['true']".encode())
    assert config == RepositoryConfig()
    with pytest.raises(FormatError, match=r"storage\.storage_class"):
        decode_config_yaml(f"storage: {{storage_class: {tag} ['true']}}".encode())


def test_unsound_flexbuffers_are_refused() -> None:
    for data in (b"", b"\x00\x00\x01", encode_flexbuffer({"compression": {"level": "x"}})):
        with pytest.raises(FormatError, match="the stored configuration is damaged") as caught:
            decode_config_flexbuffer(data)
        assert caught.value.kind == ErrorKind.CONFIG_DESERIALIZATION


def test_stored_containers_are_mended_or_ignored(caplog: pytest.LogCaptureFixture) -> None:
    text = """
virtual_chunk_containers:
  old-name: {name: n, url_prefix: "s3://no-slash", store: !s3 {}}
  "gs://wrong-store/": {url_prefix: "gs://wrong-store/", store: !s3 {}}
  "s3:///": {url_prefix: "s3:///", store: !s3 {}}
  "s3://by-key/": {store: !s3 {region: x}}
"""
    with caplog.at_level(logging.WARNING):
        config = decode_config_yaml(text.encode())
    assert config.virtual_chunk_containers == {
        "s3://no-slash/": VirtualChunkContainer(
            "s3://no-slash/", ObjectStoreConfig.S3(S3Options()), "n"
        ),
        "s3://by-key/": VirtualChunkContainer(
            "s3://by-key/", ObjectStoreConfig.S3(S3Options(region="x"))
        ),
    }
    assert ["wrong-store" in message for message in own_messages(caplog)] == [True, False]


def test_the_internal_file_name_survives() -> None:
    config = decode_config_yaml(b"previous_file: x")
    assert config.previous_file == "x"
    assert RepositoryConfig().merge(config).previous_file == "x"
    assert b"previous_file: x" in encode_config_yaml(config)
