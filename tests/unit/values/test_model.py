"""What every value gets from its fields: checks, printing, comparing, pickling."""

import pickle
from collections.abc import Callable
from typing import Any

import pytest

import icefloe.config
import icefloe.credentials
from icefloe.config import (
    CachingConfig,
    ChecksumAlgorithm,
    CompressionConfig,
    ManifestConfig,
    ManifestPreloadCondition,
    ManifestPreloadConfig,
    ManifestSplitCondition,
    ManifestSplitDimCondition,
    ManifestSplittingConfig,
    ObjectStoreConfig,
    RepositoryConfig,
    RepoUpdateRetryConfig,
    S3Options,
    SpecVersion,
    StorageRetriesSettings,
    StorageSettings,
    StorageTimeoutSettings,
    VirtualChunkContainer,
    azure_store,
    gcs_store,
    http_store,
    local_filesystem_store,
    s3_store,
)
from icefloe.errors import ErrorKind, InvalidInputError

Preload = ManifestPreloadCondition
Split = ManifestSplitCondition
Dimension = ManifestSplitDimCondition


def wrong(value: Any) -> Any:
    """Give something that the annotations forbid."""
    return value


VALUES: list[object] = [
    RepositoryConfig(),
    RepositoryConfig(
        inline_chunk_threshold_bytes=0,
        compression=CompressionConfig(level=9),
        storage=StorageSettings(
            storage_class="quote ' and \" and \\ and \n", timeouts=StorageTimeoutSettings(1)
        ),
        virtual_chunk_containers={
            "s3://b/": VirtualChunkContainer("s3://b/", s3_store(region="x"), "n")
        },
        repo_update_retries=RepoUpdateRetryConfig(StorageRetriesSettings(1)),
    ),
    ManifestConfig(
        preload=ManifestPreloadConfig(
            preload_if=Preload.or_conditions(
                [
                    Preload.and_conditions([Preload.true(), Preload.false()]),
                    Preload.num_refs(None, 3),
                    Preload.path_matches("a'b"),
                    Preload.name_matches('a"b'),
                ]
            )
        ),
        splitting=ManifestSplittingConfig.from_dict(
            {
                Split.or_conditions([Split.AnyArray()]): {Dimension.Axis(0): 1},
                Split.and_conditions([]): {
                    Dimension.DimensionName("t"): 2,
                    Dimension.Any(): 3,
                },
                Split.path_matches("x"): {},
            }
        ),
    ),
    S3Options(checksum_algorithm=ChecksumAlgorithm.Sha256),
    s3_store(s3_compatible=True),
    ObjectStoreConfig.Tigris(S3Options()),
    ObjectStoreConfig.InMemory(),
    gcs_store({"a": "b"}),
    azure_store(account="q"),
    http_store({"a": "b"}, {"c": "d"}),
    local_filesystem_store("/x"),
    icefloe.config.Attribution(client="a/1", workload="b c"),
    SpecVersion.v2,
    ChecksumAlgorithm.Crc32,
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_repr_evaluates_back(value: object) -> None:
    again = eval(repr(value), {"icefloe": icefloe})
    assert again == value
    assert type(again) is type(value)


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_values_can_be_pickled(value: object) -> None:
    assert pickle.loads(pickle.dumps(value)) == value


def test_str_shows_what_applies_where_nothing_is_set() -> None:
    config = RepositoryConfig(
        max_concurrent_requests=4,
        repo_update_retries=RepoUpdateRetryConfig(StorageRetriesSettings(max_tries=7)),
    )
    lines = str(config).splitlines()
    assert lines[0] == "<icefloe.config.RepositoryConfig>"
    assert "inline_chunk_threshold_bytes: 512 (default)" in lines
    assert "max_concurrent_requests: 4" in lines
    assert "    <icefloe.config.CompressionConfig>" in lines
    assert "    level: 3 (default)" in lines
    assert "        max_tries: 7" in lines
    assert "        max_backoff_ms: 30000 (default)" in lines
    assert "storage: None" in lines


def test_str_of_containers_nests_their_stores() -> None:
    config = RepositoryConfig()
    config.set_virtual_chunk_container(VirtualChunkContainer("s3://b/", s3_store(region="x"), "n"))
    assert """\
virtual_chunk_containers:
    s3://b/:
        <icefloe.config.VirtualChunkContainer>
        url_prefix: 's3://b/'
        store:
            <icefloe.config.ObjectStoreConfig.S3>
            region: 'x'
            endpoint_url: None
""" in str(config)


def test_html_escapes_and_nests() -> None:
    config = RepositoryConfig(storage=StorageSettings(storage_class="<script>alert(1)</script>"))
    page = config._repr_html_()
    assert "<script>" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "<summary>storage</summary>" in page
    assert "<span>level:</span> 3 (default)</div>" in page
    assert page.count("<div") == page.count("</div>")
    assert page.count("<details>") == page.count("</details>")


def test_secret_options_of_stores_are_masked() -> None:
    store = http_store(headers={"Authorization": "Bearer hush", "Accept": "x/y"})
    for shown in (repr(store), str(store), store._repr_html_()):
        assert "hush" not in shown
        assert "x/y" in shown
    assert "hush" not in repr(gcs_store({"google_service_account_key": "hush"}))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: RepositoryConfig(inline_chunk_threshold_bytes=70_000),
            "from 0 to 65535, got 70000",
        ),
        (lambda: RepositoryConfig(max_concurrent_requests=-1), "from 0 to 65535, got -1"),
        (lambda: CachingConfig(num_chunk_refs=wrong("1")), "an integer from 0 to .*, got str"),
        (lambda: CachingConfig(num_chunk_refs=True), "got bool"),
        (lambda: CompressionConfig(level=256), "from 0 to 255, got 256"),
        (lambda: StorageRetriesSettings(max_tries=0), "from 1 to 65535, got 0"),
        (lambda: StorageSettings(unsafe_use_metadata=wrong(1)), "a value of type bool, got int"),
        (lambda: StorageSettings(retries=wrong(3)), "StorageRetriesSettings, got int"),
        (
            lambda: RepositoryConfig(virtual_chunk_containers=wrong({"a": 1})),
            "VirtualChunkContainer",
        ),
        (lambda: ManifestSplittingConfig(wrong([(1, 2)])), "from_dict"),
        (
            lambda: ManifestSplittingConfig([(Split.AnyArray(), [(Dimension.Any(), 0)])]),
            "from 1 to 4294967295, got 0",
        ),
        (lambda: ManifestSplittingConfig.from_dict(wrong([])), "takes {condition"),
        (lambda: Preload.num_refs(-1, None), "got -1"),
        (lambda: Split.or_conditions(wrong([1])), "a list of ManifestSplitCondition"),
        (lambda: gcs_store(wrong({"a": 1})), "a mapping of strings to strings"),
        (lambda: azure_store(account="a", config={"account": "b"}), "contradict"),
        (lambda: RepositoryConfig().merge(wrong(None)), "takes a RepositoryConfig"),
        (lambda: icefloe.config.Attribution(client="a b"), "name/version"),
        (lambda: icefloe.config.Attribution(workload="a;b"), "without any of"),
        (lambda: icefloe.config.Attribution(principal="x" * 129), "longer than 128"),
    ],
)
def test_wrong_values_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message) as caught:
        make()
    assert caught.value.kind == ErrorKind.INVALID_CONFIG


def test_assignments_are_checked_too() -> None:
    settings = StorageRetriesSettings()
    settings.max_tries = 3
    assert settings == StorageRetriesSettings(3)
    with pytest.raises(InvalidInputError, match="max_tries must be an integer"):
        settings.max_tries = 0
    assert settings.max_tries == 3
    with pytest.raises(AttributeError):
        settings.max_retries = 3


def test_unions_have_no_values_of_their_own() -> None:
    with pytest.raises(TypeError, match=r"make one of ObjectStoreConfig\.InMemory"):
        ObjectStoreConfig()


def test_variants_are_kinds_of_their_union() -> None:
    store = s3_store(region="x")
    assert isinstance(store, ObjectStoreConfig)
    assert issubclass(ObjectStoreConfig.S3, ObjectStoreConfig)
    match store:
        case ObjectStoreConfig.S3(options):
            assert options.region == "x"
        case _:
            pytest.fail("the variant does not match its own pattern")
    assert (len(store), store[0], store._0) == (1, store.options, store.options)
    assert bool(ObjectStoreConfig.InMemory())
    condition = Preload.num_refs(2, 5)
    assert (getattr(condition, "from"), condition[1]) == (2, 5)


def test_numbers_with_names_compare_as_numbers() -> None:
    assert SpecVersion.v1 < SpecVersion.v2 == int("2")
    assert str(SpecVersion.v1) == "SpecVersion.v1"
    assert SpecVersion.current() is SpecVersion.v2
