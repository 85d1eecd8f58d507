import asyncio
import gc
import os
import pickle
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable
from datetime import UTC, datetime
from inspect import signature
from pathlib import Path
from typing import Any

import pytest

import icefloe.storage
from icefloe.config import (
    Attribution,
    ChecksumAlgorithm,
    S3Options,
    StorageRetriesSettings,
    StorageSettings,
    effective_storage_settings,
)
from icefloe.credentials import S3StaticCredentials
from icefloe.effects import run_blocking
from icefloe.errors import (
    ErrorKind,
    IcefloeError,
    InvalidInputError,
    ReadOnlyError,
    StorageError,
)
from icefloe.storage import (
    LatencyStorage,
    Storage,
    azure_storage,
    gcs_storage,
    hf_storage,
    http_storage,
    in_memory_storage,
    local_filesystem_storage,
    r2_storage,
    redirect_storage,
    s3_object_store_storage,
    s3_storage,
    storage_from_url,
    tigris_storage,
)
from icefloe.storage.clients import open_clients
from icefloe.storage.specs import S3Spec

SECRET = "s3cr3t-s3cr3t"


def with_secrets() -> list[Storage]:
    def get_credentials() -> S3StaticCredentials:
        return S3StaticCredentials("AKIA", SECRET)

    keys: dict[str, Any] = {"access_key_id": "AKIAEXAMPLE", "secret_access_key": SECRET}
    return [
        s3_storage(bucket="b", prefix="p", region="r", headers={"X-Auth": SECRET}, **keys),
        s3_storage(bucket="b", prefix="p", get_credentials=get_credentials),
        s3_storage(
            bucket="b",
            prefix=None,
            get_credentials=get_credentials,
            scatter_initial_credentials=True,
        ),
        gcs_storage(bucket="b", prefix="p", bearer_token=SECRET),
        azure_storage(account="a", container="c", prefix="p", access_key=SECRET),
        azure_storage(account="a", container="c", prefix="p", config={"sas_key": SECRET}),
        http_storage(f"https://host/path?token={SECRET}", headers={"X": SECRET}),
        redirect_storage(f"https://host/path?token={SECRET}"),
    ]


def without_secrets() -> list[Storage]:
    return [
        local_filesystem_storage("/data/repo"),
        local_filesystem_storage("/data/repo", durable=True),
        s3_storage(bucket="b", prefix=None),
        s3_storage(bucket="b", prefix="p/q/", region="r", anonymous=True, requester_pays=True),
        s3_storage(bucket="b", prefix="p", checksum_algorithm=ChecksumAlgorithm.Sha256),
        s3_object_store_storage(bucket="b", prefix="p", from_env=True),
        gcs_storage(bucket="b", prefix="p"),
        azure_storage(account="a", container="c", prefix="p", anonymous=True),
        http_storage("https://host/path"),
        redirect_storage("https://host/path", from_env=True),
    ]


@pytest.mark.parametrize("storage", with_secrets(), ids=lambda each: type(each.spec).__name__)
def test_nothing_prints_secrets(storage: Storage) -> None:
    shown = [repr(storage), str(storage), storage._repr_html_(), repr(storage.spec)]
    assert not [text for text in shown if SECRET in text]


@pytest.mark.parametrize("storage", without_secrets(), ids=repr)
def test_repr_evaluates_back(storage: Storage) -> None:
    assert eval(repr(storage), {"icefloe": icefloe}) == storage


@pytest.mark.parametrize(
    "storage", with_secrets() + without_secrets(), ids=lambda each: type(each.spec).__name__
)
def test_pickling(storage: Storage) -> None:
    again = pickle.loads(pickle.dumps(storage))
    assert again == storage
    assert again.spec == storage.spec
    assert hash(again) == hash(storage)


def test_memory_equals_itself_only() -> None:
    storage = in_memory_storage()
    assert storage == storage  # noqa: PLR0124
    assert storage != in_memory_storage()


def test_memory_is_pickled_within_its_process() -> None:
    storage = in_memory_storage()
    again = pickle.loads(pickle.dumps(storage))
    assert again == storage
    assert hash(again) == hash(storage)
    repository = icefloe.Repository.create(storage)
    new = repository.writable_session("main").commit("shared", allow_empty=True)
    for copy in (icefloe.Repository.open(again), pickle.loads(pickle.dumps(repository))):
        assert copy.lookup_branch("main") == new
        newer = copy.writable_session("main").commit("by the copy", allow_empty=True)
        assert repository.lookup_branch("main") == newer
        new = newer


def test_memory_that_nothing_uses_any_more_is_not_found() -> None:
    pickled = pickle.dumps(in_memory_storage())
    gc.collect()
    with pytest.raises(InvalidInputError, match="nothing in this process uses it"):
        pickle.loads(pickled)


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_memory_is_not_found_by_another_process(method: str) -> None:
    storage = in_memory_storage()
    pickled = pickle.dumps(storage)
    if method == "spawn":
        program = "import pickle, sys; pickle.loads(sys.stdin.buffer.read())"
        done = subprocess.run(
            [sys.executable, "-c", program], input=pickled, capture_output=True, check=False
        )
        said = done.stderr.decode()
    else:
        said = _said_in_a_fork(pickled)
    assert "InvalidInputError" in said
    assert "in the memory of another process" in said
    assert "local_filesystem_storage" in said


def _said_in_a_fork(pickled: bytes) -> str:
    """Unpickle in a forked child, and return the error that it met."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking while threads run
        child = os.fork()
    if child == 0:
        try:
            pickle.loads(pickled)
        except BaseException as error:  # noqa: BLE001 - the child must not go on with the tests
            os.write(writing, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        said = answer.read()
    os.waitpid(child, 0)
    return said


def test_equality() -> None:
    assert s3_storage(bucket="b", prefix="p") == s3_storage(bucket="b", prefix="p/")
    assert s3_storage(bucket="b", prefix="p") != s3_storage(bucket="b", prefix="q")
    assert local_filesystem_storage("/a") != in_memory_storage()


def test_options_are_copied() -> None:
    options = S3Options(region="r")
    storage = Storage.new_s3(options, "b", "p")
    options.region = "other"
    spec: Any = storage.spec
    assert spec.options.region == "r"


def test_paths_are_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    storage = local_filesystem_storage("repo")
    monkeypatch.chdir("/")
    run_blocking(storage.open().put("object", b"x"))
    assert (tmp_path / "repo" / "object").exists()


def test_making_a_storage_touches_nothing(tmp_path: Path) -> None:
    storage = local_filesystem_storage(str(tmp_path / "new"))
    assert storage.list_objects() == []
    assert not (tmp_path / "new").exists()


def test_listing(tmp_path: Path) -> None:
    storage = local_filesystem_storage(str(tmp_path))
    for key in ("repo", "chunks/A", "chunks/B", "chunkyard/C"):
        run_blocking(storage.open().put(key, key.encode()))
    assert sorted(storage.list_objects()) == [
        ("chunks/A", 8),
        ("chunks/B", 8),
        ("chunkyard/C", 11),
        ("repo", 4),
    ]
    # As in the reference: a prefix is a directory, and keys are relative to it.
    for prefix in ("chunks", "chunks/"):
        assert sorted(storage.list_objects(prefix=prefix)) == [("A", 8), ("B", 8)]
    assert storage.list_objects(prefix="chu") == []
    (info,) = asyncio.run(storage.list_objects_metadata_async(prefix="chunkyard"))
    assert (info.key, info.size_bytes) == ("C", 11)
    assert info.created_at.tzinfo is not None


def test_default_settings_are_those_of_the_reference() -> None:
    memory = in_memory_storage().default_settings()
    local = local_filesystem_storage("/data").default_settings()
    assert memory.retries == local.retries == StorageRetriesSettings(1, 0, 0)
    assert memory.unsafe_use_conditional_update is None
    assert local.unsafe_use_conditional_update is False
    assert local.unsafe_use_metadata is False
    assert s3_storage(bucket="b", prefix="p").default_settings() == StorageSettings()


def test_the_same_settings_give_the_same_backend() -> None:
    storage = in_memory_storage()
    assert storage.open() is storage.open(StorageSettings())
    assert storage.open() is not storage.open(StorageSettings(storage_class="X"))


def test_counting() -> None:
    storage = in_memory_storage()
    backend = storage.open()
    run_blocking(backend.put("object", b"12345"))
    before = storage.request_counts()
    run_blocking(backend.get("object"))
    run_blocking(backend.get_ranges("object", [(0, 1), (2, 4)]))
    with pytest.raises(StorageError):
        run_blocking(backend.put("object", b"xyz", if_absent=True))
    with pytest.raises(StorageError):
        run_blocking(backend.get("absent"))
    since = storage.request_counts() - before
    assert (since.get, since.get_ranges, since.put, since.conflicts) == (2, 1, 1, 1)
    assert (since.bytes_in, since.bytes_out) == (8, 3)
    assert since.requests == 4
    assert storage.reset_request_counts().put == 2
    assert storage.request_counts().requests == 0


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_opens_anew(tmp_path: Path) -> None:
    storage = local_filesystem_storage(str(tmp_path))
    run_blocking(storage.open().put("object", b"x"))
    mine = storage.open()
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        try:
            count = storage.request_counts().requests
            is_new = storage.open() is not mine
            os.write(writer, b"%d %d" % (count, is_new))
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 100) == b"0 1"
    assert storage.open() is mine
    os.close(reader)
    os.close(writer)


def test_latency(tmp_path: Path) -> None:
    inner = local_filesystem_storage(str(tmp_path))
    slow = LatencyStorage(inner, write_latency_ms=1, read_latency_ms=2)
    run_blocking(slow.open().put("object", b"x"))
    assert inner.list_objects() == slow.list_objects() == [("object", 1)]
    assert slow.request_counts().put == 1
    assert pickle.loads(pickle.dumps(slow)) == slow
    slow.read_latency_ms = 0
    assert bytes(run_blocking(slow.open().get("object")).data) == b"x"
    with pytest.raises(InvalidInputError):
        LatencyStorage(inner, read_latency_ms=-1)


class TestRefusals:
    @pytest.mark.parametrize("name", ["bad name", "", "x:y", "naïve"])
    def test_header_names(self, name: str) -> None:
        for kind in ("headers", "read_headers", "write_headers"):
            with pytest.raises(ValueError, match="cannot be the name of an HTTP header"):
                s3_storage(bucket="b", prefix="p", **{kind: {name: "x"}})  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="header"):
            http_storage("https://host", headers={name: "x"})

    def test_header_values(self) -> None:
        with pytest.raises(InvalidInputError) as caught:
            s3_storage(bucket="b", prefix="p", headers={"X": f"{SECRET}\r\nInjected: 1"})
        assert SECRET not in str(caught.value)

    def test_rooted_keys(self) -> None:
        with pytest.raises(StorageError, match="only valid with an empty prefix"):
            s3_storage(bucket="b", prefix="p", legacy_rooted_keys=True)
        with pytest.raises(InvalidInputError, match="begin with a slash"):
            s3_storage(bucket="b", prefix="", legacy_rooted_keys=True)
        plain = s3_storage(bucket="b", prefix="", legacy_rooted_keys=False)
        assert plain == s3_storage(bucket="b", prefix=None)

    @pytest.mark.parametrize(
        "algorithm", [ChecksumAlgorithm.Crc32, ChecksumAlgorithm.Crc32c, ChecksumAlgorithm.Sha1]
    )
    def test_checksums_that_cannot_be_sent(self, algorithm: ChecksumAlgorithm) -> None:
        with pytest.raises(InvalidInputError, match="only Crc64Nvme and Sha256"):
            s3_storage(bucket="b", prefix="p", checksum_algorithm=algorithm)

    @pytest.mark.parametrize("prefix", ["/p", "a//b", "a/../b", "."])
    def test_prefixes(self, prefix: str) -> None:
        with pytest.raises(InvalidInputError):
            s3_storage(bucket="b", prefix=prefix)
        with pytest.raises(InvalidInputError):
            gcs_storage(bucket="b", prefix=prefix)

    def test_unencrypted_endpoint(self) -> None:
        with pytest.raises(InvalidInputError, match="allow_http"):
            s3_storage(bucket="b", prefix="p", endpoint_url="http://host")

    @pytest.mark.parametrize("url", ["nope", "ftp://host", "http://", "http://host:99999999"])
    def test_web_addresses(self, url: str) -> None:
        for make in (http_storage, redirect_storage):
            with pytest.raises(StorageError) as caught:
                make(url)
            assert caught.value.kind == ErrorKind.CANNOT_PARSE_URL

    def test_unknown_client_options(self) -> None:
        for storage in (
            gcs_storage(bucket="b", prefix="p", config={"no_such": "x"}, anonymous=True),
            azure_storage(account="a", container="c", prefix="p", config={"no_such": "x"}),
            http_storage("https://host", {"no_such": "x"}),
        ):
            with pytest.raises(InvalidInputError, match="no_such"):
                storage.open()

    def test_web_servers_are_read_only(self) -> None:
        backend = http_storage("http://127.0.0.1:9").open()
        with pytest.raises(ReadOnlyError) as caught:
            run_blocking(backend.put("key", b"x"))
        assert caught.value.kind == ErrorKind.READ_ONLY_STORAGE
        with pytest.raises(ReadOnlyError):
            run_blocking(backend.delete_many(["key"]))

    def test_r2_and_tigris(self) -> None:
        with pytest.raises(StorageError, match="account_id"):
            r2_storage(bucket="b")
        with pytest.raises(StorageError, match="bucket or a prefix"):
            r2_storage(account_id="a")
        with pytest.raises(StorageError, match="region"):
            tigris_storage(bucket="b", prefix="p")


def test_platforms() -> None:
    r2: Any = r2_storage(prefix="bucket/p/q", account_id="abc", anonymous=True).spec
    assert (r2.bucket, r2.prefix, r2.options.region) == ("bucket", "p/q", "auto")
    assert r2.endpoint == "https://abc.r2.cloudflarestorage.com"
    tigris: Any = tigris_storage(bucket="b", prefix="p", region="iad", anonymous=True).spec
    assert tigris.endpoint == "https://b.t3.storage.dev"
    face: Any = hf_storage(bucket="b", prefix="p", namespace="me").spec
    assert face.endpoint == "https://s3.hf.co/me"
    assert face.options.region == "us-east-1"


class TestUrls:
    @pytest.mark.parametrize(
        ("url", "same"),
        [
            ("/data/a repo", local_filesystem_storage("/data/a repo")),
            ("file:///data/a%20repo", local_filesystem_storage("/data/a repo")),
            ("gs://bucket/p/q", gcs_storage(bucket="bucket", prefix="p/q")),
            (
                "gcs://bucket?anonymous=true",
                gcs_storage(bucket="bucket", prefix=None, anonymous=True),
            ),
            ("az://acme/c/p/q", azure_storage(account="acme", container="c", prefix="p/q")),
            ("https://host/path/", http_storage("https://host/path")),
            ("https+ic://host/path", http_storage("https://host/path")),
        ],
    )
    def test_storages(self, url: str, same: Storage) -> None:
        assert storage_from_url(url) == same

    def test_s3_options(self) -> None:
        url = "s3://bucket/p/q?region=r&endpoint_url=http://host:9&allow_http=true&anonymous=1"
        spec: Any = storage_from_url(f"{url}&force_path_style=true").spec
        assert (spec.bucket, spec.prefix) == ("bucket", "p/q")
        assert spec.options == S3Options(
            region="r", endpoint_url="http://host:9", allow_http=True, force_path_style=True
        )
        assert type(spec.credentials).__name__ == "Anonymous"

    def test_memory(self) -> None:
        assert storage_from_url("memory://").list_objects() == []

    @pytest.mark.parametrize(
        "url",
        [
            "nope://x",
            "s3://",
            "s3:///prefix",
            "s3://b/p?secret_access_key=x",
            "s3://user:pw@b/p",
            "s3://b/p?anonymous=maybe",
            "file://host/path",
            "az://account",
            "http://[broken",
            "s3://[broken",
        ],
    )
    def test_refusals(self, url: str) -> None:
        with pytest.raises((InvalidInputError, StorageError)):
            storage_from_url(url)


USERS_IN_URLS: dict[str, Callable[[], object]] = {
    "s3": lambda: storage_from_url(f"s3://user:{SECRET}@bucket/prefix"),
    "s3 endpoint": lambda: storage_from_url(f"s3://b/p?endpoint_url=https://u:{SECRET}@host"),
    "tigris endpoint": lambda: storage_from_url(f"tigris://b/p?endpoint_url=https://{SECRET}@h"),
    "r2 endpoint": lambda: storage_from_url(f"r2://b/p?endpoint_url=https://u:{SECRET}@h"),
    "https": lambda: storage_from_url(f"https://user:{SECRET}@host/path"),
    "https+icechunk": lambda: storage_from_url(f"https+icechunk://user:{SECRET}@host/path"),
    "no scheme": lambda: s3_storage(
        bucket="b", prefix="p", endpoint_url=f"user:{SECRET}@localhost:9000"
    ),
    "malformed": lambda: http_storage(f"https://user:{SECRET}@ho\u2100st/"),
    "malformed endpoint": lambda: storage_from_url(f"s3://user:{SECRET}@ho\u2100st/"),
    "s3_storage": lambda: s3_storage(
        bucket="b", prefix="p", endpoint_url=f"https://user:{SECRET}@host"
    ),
    "gcs_storage": lambda: gcs_storage(
        bucket="b", prefix="p", config={"google_base_url": f"https://user:{SECRET}@host"}
    ),
    "azure_storage": lambda: azure_storage(
        account="a", container="c", prefix="p", config={"endpoint": f"https://u:{SECRET}@host"}
    ),
    "http_storage": lambda: http_storage(f"https://user:{SECRET}@host/path"),
    "redirect_storage": lambda: redirect_storage(f"https://user:{SECRET}@host/path"),
}


@pytest.mark.parametrize("form", USERS_IN_URLS)
def test_users_and_passwords_in_urls_are_refused(form: str) -> None:
    with pytest.raises(IcefloeError) as caught:
        USERS_IN_URLS[form]()
    assert SECRET not in str(caught.value)
    assert SECRET not in "".join(traceback.format_exception(caught.value))


# -- clients -------------------------------------------------------------------------------


def client_of(storage: Storage, attribution: Attribution | None = None) -> object:
    settings = effective_storage_settings(storage.default_settings())
    assert isinstance(storage.spec, S3Spec)
    agent = "test" if attribution is None else attribution.label("test")
    return open_clients(storage.spec, settings, agent).reader


def bucket(**changes: Any) -> Storage:
    given = {"access_key_id": "a", "secret_access_key": "b", "region": "us-east-1", "prefix": "p"}
    return s3_storage(bucket="bucket", **(given | changes))


def test_equal_storages_share_a_client() -> None:
    assert client_of(bucket()) is client_of(bucket())
    assert client_of(bucket(headers={"a": "b"})) is client_of(bucket(headers={"a": "b"}))


@pytest.mark.parametrize(
    "changes",
    [
        {"prefix": "q"},
        {"secret_access_key": "c"},
        {"session_token": "t"},
        {"region": "eu-west-1"},
        {"endpoint_url": "https://elsewhere"},
        {"headers": {"a": "b"}},
        {"read_headers": {"a": "b"}},
    ],
)
def test_storages_that_differ_share_no_client(changes: dict[str, Any]) -> None:
    assert client_of(bucket(**changes)) is not client_of(bucket())


def test_who_asks_in_the_name_of_another_gets_another_client() -> None:
    assert client_of(bucket(), Attribution(client="somebody")) is not client_of(bucket())


def test_a_client_is_not_shared_once_its_environment_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = client_of(bucket())
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:1")
    assert client_of(bucket()) is not before


def test_credentials_that_may_change_share_no_client() -> None:
    def fetch() -> S3StaticCredentials:
        return S3StaticCredentials("a", "b")

    def refreshed() -> Storage:
        return s3_storage(bucket="bucket", prefix="p", region="us-east-1", get_credentials=fetch)

    assert client_of(refreshed()) is not client_of(refreshed())


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_makes_clients_of_its_own() -> None:
    before = client_of(bucket())
    child = os.fork()
    if child == 0:
        os._exit(1 if client_of(bucket()) is before else 0)
    assert os.waitpid(child, 0)[1] == 0


S3_ARGUMENTS: dict[str, Any] = {
    "access_key_id": "key",
    "secret_access_key": SECRET,
    "session_token": "token",
    "expires_after": datetime(2030, 1, 1, tzinfo=UTC),
    "region": "eu-west-1",
    "endpoint_url": "http://host",
    "allow_http": True,
    "force_path_style": True,
    "network_stream_timeout_seconds": 7,
    "requester_pays": True,
    "checksum_algorithm": ChecksumAlgorithm.Sha256,
    "headers": {"X-All": "1"},
    "read_headers": {"X-Read": "2"},
    "write_headers": {"X-Write": "3"},
}


@pytest.mark.parametrize(
    ("make", "own"),
    [
        (s3_storage, {}),
        (s3_object_store_storage, {}),
        (tigris_storage, {"use_weak_consistency": False}),
        (r2_storage, {"account_id": "account"}),
        (hf_storage, {"namespace": "names"}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_every_argument_arrives(make: Callable[..., Storage], own: dict[str, Any]) -> None:
    names = signature(make).parameters
    chosen = {name: value for name, value in S3_ARGUMENTS.items() if name in names}
    spec: Any = make(bucket="bucket", prefix="a/b", **own, **chosen).spec
    assert (spec.bucket, spec.prefix) == ("bucket", "a/b")
    keys = spec.credentials.credentials
    for name, value in chosen.items():
        if hasattr(keys, name):
            assert getattr(keys, name) == value
        elif name == "endpoint_url":
            assert spec.options.endpoint_url.startswith(value)
        elif "headers" not in name:
            assert getattr(spec.options, name) == value
    assert {"X-All": "1", "X-Read": "2"}.items() <= spec.headers.reads.items()
    assert {"X-All": "1", "X-Write": "3"}.items() <= spec.headers.writes.items()
