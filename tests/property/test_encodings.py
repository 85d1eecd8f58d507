"""Encodings of metadata and configuration: what goes in comes out, and garbage is refused."""

import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from flatbuffers import flexbuffers as library
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

import icefloe
from icefloe.config import (
    CachingConfig,
    ChecksumAlgorithm,
    CompressionAlgorithm,
    CompressionConfig,
    ManifestConfig,
    ManifestPreloadCondition,
    ManifestPreloadConfig,
    ManifestSplitCondition,
    ManifestSplitDimCondition,
    ManifestSplittingConfig,
    ManifestVirtualChunkLocationCompressionConfig,
    ObjectStoreConfig,
    RepositoryConfig,
    RepoUpdateRetryConfig,
    S3Options,
    StorageConcurrencySettings,
    StorageRetriesSettings,
    StorageSettings,
    StorageTimeoutSettings,
    VirtualChunkContainer,
    effective_config,
)
from icefloe.errors import FormatError
from icefloe.format.config_file import (
    decode_config_flexbuffer,
    decode_config_yaml,
    encode_config_flexbuffer,
    encode_config_yaml,
)
from icefloe.format.flexbuffers import decode_flexbuffer, encode_flexbuffer
from icefloe.format.json_value import JsonValue
from icefloe.format.metadata import decode_messagepack, decode_metadata_value, encode_metadata_value
from icefloe.values.model import MASK

text = st.text(st.characters(codec="utf-8"), max_size=20)
keys = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=10)


def json_values_with(
    keys: st.SearchStrategy[str], numbers: st.SearchStrategy[float]
) -> st.SearchStrategy[Any]:
    return st.recursive(
        st.none() | st.booleans() | numbers | text,
        lambda inner: (
            st.lists(inner, max_size=6)
            | st.dictionaries(keys, inner, max_size=6)
            | st.lists(st.integers(-300, 300), max_size=8)
            | st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=6)
            | st.lists(st.booleans(), max_size=4)
        ),
        max_leaves=30,
    )


json_values = json_values_with(
    keys, st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
)
# The library takes only ASCII keys, no integers of more than 63 bits, no floats beyond 32 bits.
library_values = json_values_with(
    st.text(st.characters(codec="ascii", min_codepoint=1), max_size=10),
    st.integers(-(2**62), 2**63 - 1) | st.floats(-3e38, 3e38),
)


def maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


def unsigned(bits: int, low: int = 0) -> st.SearchStrategy[Any]:
    return maybe(st.integers(low, 2**bits - 1))


split_conditions = st.recursive(
    st.just(ManifestSplitCondition.AnyArray())
    | st.builds(ManifestSplitCondition.path_matches, text)
    | st.builds(ManifestSplitCondition.name_matches, text),
    lambda inner: (
        st.builds(ManifestSplitCondition.or_conditions, st.lists(inner, max_size=3))
        | st.builds(ManifestSplitCondition.and_conditions, st.lists(inner, max_size=3))
    ),
    max_leaves=4,
)
dimensions = (
    st.builds(ManifestSplitDimCondition.Axis, st.integers(0, 2**32))
    | st.builds(ManifestSplitDimCondition.DimensionName, text)
    | st.just(ManifestSplitDimCondition.Any())
)
split_sizes = st.lists(
    st.tuples(
        split_conditions,
        st.lists(st.tuples(dimensions, st.integers(1, 2**32 - 1)), max_size=3),
    ),
    max_size=3,
)
preload_conditions = st.recursive(
    st.just(ManifestPreloadCondition.true())
    | st.just(ManifestPreloadCondition.false())
    | st.builds(ManifestPreloadCondition.path_matches, text)
    | st.builds(ManifestPreloadCondition.num_refs, unsigned(32), unsigned(32)),
    lambda inner: (
        st.builds(ManifestPreloadCondition.or_conditions, st.lists(inner, max_size=3))
        | st.builds(ManifestPreloadCondition.and_conditions, st.lists(inner, max_size=3))
    ),
    max_leaves=4,
)
retries = st.builds(StorageRetriesSettings, unsigned(16, 1), unsigned(32), unsigned(32))
storage_settings = st.builds(
    StorageSettings,
    maybe(st.builds(StorageConcurrencySettings, unsigned(16, 1), unsigned(64, 1))),
    maybe(retries),
    maybe(st.booleans()),
    maybe(st.booleans()),
    maybe(st.booleans()),
    maybe(text),
    maybe(text),
    maybe(text),
    unsigned(64),
    maybe(st.builds(StorageTimeoutSettings, unsigned(32), unsigned(32))),
)
endpoints = st.builds(
    "{}://{}{}".format,
    st.sampled_from(["http", "https"]),
    st.sampled_from(["localhost", "minio.example", "[::1]", "10.0.0.1"]),
    st.sampled_from(["", ":9000", "/path"]),
)
s3_options = st.builds(
    S3Options,
    maybe(text),
    maybe(endpoints),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    unsigned(32),
    st.booleans(),
    maybe(st.sampled_from(ChecksumAlgorithm)),
)
option_maps = maybe(st.dictionaries(keys.filter(lambda key: key != "headers"), text, max_size=3))
names = maybe(st.text(st.characters(codec="utf-8", exclude_characters="/"), min_size=1, max_size=5))
s3_stores = (
    st.builds(ObjectStoreConfig.S3, s3_options)
    | st.builds(ObjectStoreConfig.S3Compatible, s3_options)
    | st.builds(ObjectStoreConfig.Tigris, s3_options)
)
STORES: list[tuple[str, st.SearchStrategy[Any]]] = [
    ("s3://a/", s3_stores),
    ("s3://b/c/", s3_stores),
    ("gs://a/", st.builds(ObjectStoreConfig.Gcs, option_maps)),
    ("az://a/", st.builds(ObjectStoreConfig.Azure, option_maps)),
    ("https://a/", st.builds(ObjectStoreConfig.Http, option_maps, option_maps)),
    ("file:///a/", st.builds(ObjectStoreConfig.LocalFileSystem, text)),
]
containers = st.one_of(
    [st.builds(VirtualChunkContainer, st.just(prefix), store, names) for prefix, store in STORES]
)


@st.composite
def configs(draw: st.DrawFn) -> RepositoryConfig:
    config = RepositoryConfig(
        inline_chunk_threshold_bytes=draw(unsigned(16)),
        compression=draw(
            maybe(
                st.builds(
                    CompressionConfig, maybe(st.sampled_from(CompressionAlgorithm)), unsigned(8)
                )
            )
        ),
        max_concurrent_requests=draw(unsigned(16)),
        caching=draw(maybe(st.builds(CachingConfig, unsigned(64), unsigned(64)))),
        storage=draw(maybe(storage_settings)),
        manifest=draw(
            maybe(
                st.builds(
                    ManifestConfig,
                    maybe(
                        st.builds(ManifestPreloadConfig, unsigned(32), maybe(preload_conditions))
                    ),
                    maybe(st.builds(ManifestSplittingConfig, maybe(split_sizes))),
                    maybe(
                        st.builds(
                            ManifestVirtualChunkLocationCompressionConfig,
                            unsigned(32),
                            compression_level=maybe(st.integers(-(2**31), 2**31 - 1)),
                        )
                    ),
                    unsigned(16),
                )
            )
        ),
        repo_update_retries=draw(maybe(st.builds(RepoUpdateRetryConfig, maybe(retries)))),
        max_concurrent_decodes=draw(unsigned(16)),
    )
    # Two containers of one name are a warning.
    drawn = st.lists(containers, max_size=3, unique_by=lambda one: one.name or id(one))
    for container in draw(drawn):
        config.set_virtual_chunk_container(container)
    return config


@given(json_values, st.sampled_from([1, 2]))
def test_metadata_round_trips(value: JsonValue, spec_version: int) -> None:
    again = decode_metadata_value(encode_metadata_value(value, spec_version), spec_version)
    assert again == value
    assert repr(again) == repr(_sorted(value))  # the same types too: 1 is not 1.0


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(each) for each in value] if isinstance(value, list) else value


@given(library_values)
def test_flexbuffers_agree_with_the_library(value: JsonValue) -> None:
    assert library.Loads(encode_flexbuffer(value)) == value
    assert decode_flexbuffer(library.Dumps(value)) == value


@given(configs())
def test_configs_round_trip(config: RepositoryConfig) -> None:
    assert decode_config_yaml(encode_config_yaml(config)) == config
    assert decode_config_flexbuffer(encode_config_flexbuffer(config)) == config


@given(configs())
def test_configs_evaluate_back(config: RepositoryConfig) -> None:
    assume(MASK not in repr(config))
    assert eval(repr(config), {"icefloe": icefloe}) == config


@given(configs(), configs(), configs())
def test_merging_is_a_monoid(a: RepositoryConfig, b: RepositoryConfig, c: RepositoryConfig) -> None:
    nothing = RepositoryConfig()
    assert a.merge(nothing) == nothing.merge(a) == a == a.merge(a)
    assert a.merge(b).merge(c) == a.merge(b.merge(c))
    assert effective_config(a, b) == effective_config(a.merge(b))


DECODERS = [decode_flexbuffer, decode_messagepack, decode_config_flexbuffer, decode_config_yaml]


@pytest.mark.parametrize("decode", DECODERS, ids=lambda decode: decode.__name__)
@settings(max_examples=300)
@given(data=st.binary(max_size=200))
@example(data=b"\x01" * 4000)
@example(data=b"\xff" * 4000)
@example(data=b"[" * 4000)
@example(data=b"\x91" * 4000)
@example(data=b"? " * 2000)
@example(data=b"- " * 2000)
@example(data=b"&a !b " * 500)
def test_garbage_raises_only_format_errors(decode: Callable[[bytes], Any], data: bytes) -> None:
    with suppress(FormatError):
        decode(data)


@settings(max_examples=300)
@given(
    value=json_values,
    edits=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=4),
    length=st.floats(0, 1),
)
def test_damaged_values_raise_only_format_errors(
    value: JsonValue, edits: list[tuple[float, int]], length: float
) -> None:
    for spec_version, decode in ((1, decode_messagepack), (2, decode_flexbuffer)):
        data = bytearray(encode_metadata_value(value, spec_version))
        for where, byte in edits:
            data[int(where * len(data))] = byte
        for damaged in (data, data[: int(length * len(data))]):
            with suppress(FormatError):
                decode(bytes(damaged))


@given(
    st.lists(st.sampled_from([0, 1, 2, 3, 4, 8, 0x14, 0x24, 0x28, 0x2A, 0x38, 0x90]), max_size=60),
    st.sampled_from([0x14, 0x24, 0x25, 0x28, 0x29, 0x2A, 0x2B, 0x38, 0x3C, 0x64, 0x90]),
    st.sampled_from([1, 2, 4, 8]),
    st.integers(0, 60),
)
def test_plausible_flexbuffers_raise_only_format_errors(
    body: list[int], kind: int, width: int, offset: int
) -> None:
    form = {1: "B", 2: "<H", 4: "<I", 8: "<Q"}[width]
    with suppress(FormatError):
        decode_flexbuffer(bytes(body) + struct.pack(form, offset) + bytes((kind, width)))
