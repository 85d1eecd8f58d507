"""Manifest sets and rules: as values, as YAML, stored, and what is refused."""

import logging
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest

import icefloe
from icefloe.config import (
    ChunkManifestsConfig,
    ManifestRule,
    ManifestSet,
    ManifestSetPreload,
    RepositoryConfig,
    effective_config,
)
from icefloe.config.manifest_sets import (
    DEFAULT_CHUNK_MANIFESTS,
    MAX_PATTERN_LENGTH,
    MAX_RULES,
    MAX_SETS,
    effective_chunk_manifests,
)
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format.config_file import (
    decode_config_flexbuffer,
    decode_config_yaml,
    encode_config_flexbuffer,
    encode_config_yaml,
)

WRITTEN_BY_HAND = """
chunk-manifests:
  sets:
    - coord1:
        max-manifest-size: 10000
        arrays-per-manifest: null
        overflow-to: coord2
        cardinality: 2
    - coord2:
        max-manifest-size: 10000
    - big-array:
        max-manifest-size: null
        arrays-per-manifest: 1
        cardinality: null
    - default:
  rules:
    - path: .*/(latitude|longitude|time)
      metadata-chunks: [0, 500]
      target: coord1
    - metadata-chunks: [0, 200]
      target: coord2
    - metadata-chunks: [2000000, null]
      initialized-chunks: [null, 3]
      target: big-array
  preload:
    max-manifest-size: 40000
    max-manifests: 10
    arrays:
      - path: .*/time
      - path: .*/latitude
"""
AS_VALUES = ChunkManifestsConfig(
    [
        ManifestSet("coord1", max_manifest_size=10_000, overflow_to="coord2", cardinality=2),
        ManifestSet("coord2", max_manifest_size=10_000),
        ManifestSet("big-array", arrays_per_manifest=1, cardinality=None),
        ManifestSet("default"),
    ],
    [
        ManifestRule("coord1", path=".*/(latitude|longitude|time)", metadata_chunks=(0, 500)),
        ManifestRule("coord2", metadata_chunks=(0, 200)),
        ManifestRule("big-array", metadata_chunks=(2_000_000, None), initialized_chunks=(None, 3)),
    ],
    preload=ManifestSetPreload(
        [".*/time", ".*/latitude"], max_manifest_size=40_000, max_manifests=10
    ),
)
ANOTHER_BY_HAND = """
chunk-manifests:
  sets:
    - coordinates:
        max-manifest-size: 50000
        cardinality: 1
        max-arrays-per-manifest: null
        overflow-to: default
    - default:
        max-manifest-size: 1000000
        cardinality: null
        max-arrays-per-manifest: null
        overflow-to: null
  rules:
    - metadata-chunks: [0, 5000]
      path: .*
      target: coordinates
"""
HOW_TO = Path(__file__).parents[3] / "docs" / "how-to" / "manifests.md"


def problems(text: str) -> list[str]:
    """List what is said to be wrong."""
    with pytest.raises(InvalidInputError) as caught:
        ChunkManifestsConfig.from_yaml(text)
    assert caught.value.kind == ErrorKind.INVALID_CONFIG
    first, *lines = str(caught.value).splitlines()
    assert first.startswith("the chunk-manifests configuration has ")
    assert all(line.startswith("- ") for line in lines)
    return [line.removeprefix("- ") for line in lines]


def test_a_configuration_written_by_hand_is_understood() -> None:
    assert ChunkManifestsConfig.from_yaml(WRITTEN_BY_HAND) == AS_VALUES
    without_key = "\n".join(line[2:] for line in WRITTEN_BY_HAND.splitlines()[2:])
    assert ChunkManifestsConfig.from_yaml(without_key.encode()) == AS_VALUES


def test_keys_may_be_written_out_where_they_say_nothing() -> None:
    assert ChunkManifestsConfig.from_yaml(ANOTHER_BY_HAND) == ChunkManifestsConfig(
        [
            ManifestSet("coordinates", max_manifest_size=50_000, overflow_to="default"),
            ManifestSet("default", max_manifest_size=1_000_000),
        ],
        [ManifestRule("coordinates", metadata_chunks=(0, 5000), path=".*")],
    )


def test_the_default_is_the_documented_one() -> None:
    (written,) = re.findall(r"^```yaml\n(.*?)^```", HOW_TO.read_text(), re.DOTALL | re.MULTILINE)
    assert ChunkManifestsConfig.from_yaml(written) == DEFAULT_CHUNK_MANIFESTS
    assert effective_config().chunk_manifests == effective_chunk_manifests(DEFAULT_CHUNK_MANIFESTS)


@pytest.mark.parametrize("config", [AS_VALUES, DEFAULT_CHUNK_MANIFESTS, ChunkManifestsConfig()])
def test_what_is_written_is_read_back(config: ChunkManifestsConfig) -> None:
    assert ChunkManifestsConfig.from_yaml(config.to_yaml()) == config
    assert eval(repr(config), {"icefloe": icefloe}) == config
    assert pickle.loads(pickle.dumps(config)) == config
    stored = RepositoryConfig(inline_chunk_threshold_bytes=1, chunk_manifests=config)
    assert decode_config_yaml(encode_config_yaml(stored)) == stored
    assert decode_config_flexbuffer(encode_config_flexbuffer(stored)) == stored


def test_nothing_is_stored_unless_it_is_set() -> None:
    assert b"chunk-manifests" not in encode_config_yaml(RepositoryConfig())
    assert b"chunk-manifests" not in encode_config_flexbuffer(RepositoryConfig())


def test_a_later_configuration_replaces_an_earlier_one_whole() -> None:
    stored = RepositoryConfig(inline_chunk_threshold_bytes=1, chunk_manifests=AS_VALUES)
    runtime = ChunkManifestsConfig([ManifestSet("default", arrays_per_manifest=1)])
    merged = stored.merge(RepositoryConfig(chunk_manifests=runtime))
    assert merged.chunk_manifests == runtime
    assert stored.merge(RepositoryConfig()).chunk_manifests == AS_VALUES
    effective = effective_config(stored, RepositoryConfig(chunk_manifests=runtime))
    assert effective.chunk_manifests == effective_chunk_manifests(runtime)


def test_what_is_left_out_has_a_meaning() -> None:
    assert ManifestSet("a", max_manifest_size=1).cardinality == 1
    assert ManifestSet("default").cardinality is None
    (only,) = effective_chunk_manifests(ChunkManifestsConfig()).sets
    assert only == ManifestSet("default", max_manifest_size=1_000_000)
    effective = effective_chunk_manifests(AS_VALUES)
    assert {each.name: each.overflow_to for each in effective.sets} == {
        "coord1": "coord2",
        "coord2": "default",
        "big-array": "default",
        "default": None,
    }
    assert effective.counts_initialized_chunks
    assert not effective_chunk_manifests(DEFAULT_CHUNK_MANIFESTS).counts_initialized_chunks


def test_sets_are_filled_in_the_order_of_overflow_then_of_configuration() -> None:
    chained = ChunkManifestsConfig(
        [
            ManifestSet("default", max_manifest_size=5),
            ManifestSet("last", max_manifest_size=5),
            ManifestSet("x", max_manifest_size=5, overflow_to="last"),
            ManifestSet("other", max_manifest_size=5),
            ManifestSet("first", max_manifest_size=5, overflow_to="x"),
        ],
        [ManifestRule("first"), ManifestRule("other")],
    )
    names = [each.name for each in effective_chunk_manifests(chained).sets]
    assert names == ["other", "first", "x", "last", "default"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5", ["chunk-manifests must be a map, got int"]),
        ("sets: 5", ["sets must be a list, got int"]),
        ("rules: {}", ["rules must be a list, got a map of 0"]),
        ("colour: red", ["chunk-manifests.colour is unknown; there are sets, rules, preload"]),
        ("rules: [{target: x}]", ["rules[0] has an unknown target 'x'; there are default"]),
        ("rules: [{path: x}]", ["rules[0] has no target"]),
        (
            "sets: [default: {cardinality: 2}]",
            ["the default set cannot have a cardinality: whatever fits nowhere else goes there"],
        ),
        (
            "sets: [default: {overflow-to: default}]",
            [
                "the default set cannot have an overflow-to: it takes everything",
                "overflow-to leads in a circle: default -> default",
            ],
        ),
        (
            "sets: [default: {max-manifest-size: 1, arrays-per-manifest: 2}]",
            [
                "the set 'default' has both max-manifest-size and arrays-per-manifest: "
                "choose one of them"
            ],
        ),
        (
            "sets: [a: ]\nrules: [{target: a}]",
            ["the set 'a' needs either max-manifest-size or arrays-per-manifest"],
        ),
        (
            "sets: [a: {max-manifest-size: 0}]\nrules: [{target: a}]",
            [f"sets[0].a.max-manifest-size must be an integer from 1 to {2**64 - 1}, got 0"],
        ),
        (
            "sets: [a: {max-manifest-size: yes}]\nrules: [{target: a}]",
            [f"sets[0].a.max-manifest-size must be an integer from 1 to {2**64 - 1}, got str"],
        ),
        (
            "sets: [a: {max-manifest-size: 1, overflow-to: b}]\nrules: [{target: a}]",
            ["the set 'a' overflows to an unknown set 'b'"],
        ),
        (
            "sets: [a: {max-manifest-size: 1}, a: {max-manifest-size: 2}]\nrules: [{target: a}]",
            ["there is more than one set 'a'"],
        ),
        (
            "sets: [a: {max-manifest-size: 1}]",
            ["no array can come to the set 'a': no rule nor overflow leads there"],
        ),
        (
            "sets: [a: {max-manifest-size: 1, overflow-to: b}, "
            "b: {max-manifest-size: 1, overflow-to: a}]\nrules: [{target: a}]",
            ["overflow-to leads in a circle: a -> b -> a"],
        ),
        (
            "rules: [{target: default, metadata-chunks: [3]}]",
            [
                "rules[0].metadata-chunks must be two numbers, from and to, "
                "of which either may be None"
            ],
        ),
        (
            "rules: [{target: default, initialized-chunks: [3, 3]}]",
            [
                "rules[0].initialized-chunks must be a range of some numbers: "
                "there are none from 3 to below 3"
            ],
        ),
        (
            "rules: [{target: default, path: '(a)\\1'}]",
            [
                "rules[0].path is no regular expression that can be used: '(a)\\\\1': "
                "Invalid regular expression: invalid escape sequence: \\1"
            ],
        ),
        (
            f"preload: {{arrays: [path: {'a' * 1001}]}}",
            [
                "preload.arrays[0].path is no regular expression that can be used: "
                f"it has 1001 characters, the most is {MAX_PATTERN_LENGTH}"
            ],
        ),
        ("preload: {arrays: [time]}", ["preload.arrays[0] must be a map, got str"]),
        ("preload: {arrays: [path: [x]]}", ["preload.arrays[0].path must be text, got list"]),
        (
            "preload: {max-manifests: -1}",
            [f"preload.max-manifests must be an integer from 0 to {2**32 - 1}, got -1"],
        ),
        ("a: &x 1\nb: *x", ["it uses an alias"]),
    ],
)
def test_each_problem_is_named(text: str, expected: list[str]) -> None:
    assert problems(text) == expected


def test_all_problems_are_named_at_once() -> None:
    text = """
    sets:
      - a: {max-manifest-size: many, overflow-to: b}
      - b: {overflow-to: a}
      - 3
    rules:
      - 7
      - {target: b, path: "(", metadata-chunks: [9, 1]}
      - {target: c}
    """
    found = problems(text)
    starts = [
        "sets[0].a.max-manifest-size must be",
        "sets[2] must be a map of one entry",
        "rules[0] must be a map",
        "rules[1].metadata-chunks must be",
        "the set 'b' needs either",
        "rules[2] has an unknown target 'c'",
        "overflow-to leads in a circle",
        "rules[1].path is no regular expression",
    ]
    assert [one.startswith(start) for one, start in zip(found, starts, strict=True)] == [True] * 8


def test_values_are_checked_like_text() -> None:
    with pytest.raises(InvalidInputError, match="unknown target 'x'"):
        ChunkManifestsConfig(rules=[ManifestRule("x")])
    with pytest.raises(InvalidInputError, match="no regular expression"):
        ChunkManifestsConfig(rules=[ManifestRule("default", path="[")])
    with pytest.raises(InvalidInputError, match="must be a list of ManifestSet"):
        ChunkManifestsConfig([ManifestRule("default")])  # type: ignore[list-item]
    with pytest.raises(InvalidInputError, match="the most is"):
        ChunkManifestsConfig(rules=[ManifestRule("default")] * (MAX_RULES + 1))
    with pytest.raises(InvalidInputError, match="the most is"):
        ChunkManifestsConfig(
            [ManifestSet(str(n), max_manifest_size=1) for n in range(MAX_SETS + 1)]
        )


def test_stored_sets_with_problems_are_ignored_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    text = b"inline_chunk_threshold_bytes: 9\nchunk-manifests: {rules: [{target: nowhere}]}"
    with caplog.at_level(logging.WARNING):
        config = decode_config_yaml(text)
    assert config == RepositoryConfig(inline_chunk_threshold_bytes=9)
    assert "unknown target 'nowhere'" in caplog.text


def test_stored_keys_of_the_future_are_ignored() -> None:
    text = b"chunk-manifests: {rules: [{target: default, moon: full}], tides: high}"
    rules = [ManifestRule("default")]
    assert decode_config_yaml(text).chunk_manifests == ChunkManifestsConfig(rules=rules)


def test_common_patterns_need_no_arrow() -> None:
    code = """
import sys
from icefloe.config.manifest_sets import ChunkManifestsConfig
ChunkManifestsConfig.from_yaml('rules: [{target: default, path: ".*/(lat|lon)"}]')
assert "pyarrow" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
