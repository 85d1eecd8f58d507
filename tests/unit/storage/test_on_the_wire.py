"""What each setting and option does to the requests that are sent."""

import json
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Any

import pytest

from icefloe.config import (
    ChecksumAlgorithm,
    StorageConcurrencySettings,
    StorageRetriesSettings,
    StorageSettings,
    StorageTimeoutSettings,
)
from icefloe.credentials import GcsBearerCredential, S3StaticCredentials
from icefloe.effects import run_blocking
from icefloe.errors import (
    ErrorKind,
    OutcomeUnknownError,
    PreconditionFailedError,
    ReadOnlyError,
    StorageError,
)
from icefloe.storage import (
    Backend,
    Storage,
    azure_storage,
    gcs_storage,
    s3_storage,
    tigris_storage,
    user_agent,
)
from icefloe.storage.port import Version
from tests.support.loopback import LoopbackHandler, LoopbackServer, serving

FOUND = {"ETag": '"e"', "Last-Modified": "Wed, 21 Oct 2015 07:28:00 GMT"}
ONE_TRY = StorageSettings(retries=StorageRetriesSettings(max_tries=1))
THREE_TRIES = StorageSettings(
    retries=StorageRetriesSettings(max_tries=3, initial_backoff_ms=1, max_backoff_ms=2)
)


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]


@dataclass
class Recorder:
    """A server that notes requests and answers them as it is told."""

    url: str
    requests: list[Request] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    """What to answer, in order; afterwards success."""
    body: bytes = b"0123456789"

    @property
    def last(self) -> Request:
        return self.requests[-1]

    @property
    def methods(self) -> list[str]:
        return [request.method for request in self.requests]


@pytest.fixture
def server() -> Iterator[Recorder]:
    recorder = Recorder("")

    class Handler(LoopbackHandler):
        def respond(self) -> None:
            self.read_body()
            headers = {name.lower(): value for name, value in self.headers.items()}
            recorder.requests.append(Request(self.command, self.path, headers))
            status = recorder.statuses.pop(0) if recorder.statuses else 200
            if status != HTTPStatus.OK:
                self.answer(status, b"<Error><Code>Told</Code></Error>")
            elif self.command in {"GET", "HEAD"}:
                self.answer(200, recorder.body, FOUND)
            else:
                self.answer(200, b"", FOUND)

    with serving(LoopbackServer(Handler)) as running:
        recorder.url = running.url
        yield recorder


def s3_at(server: Recorder, **options: Any) -> Storage:
    defaults: dict[str, Any] = {
        "bucket": "bucket",
        "prefix": "some/prefix",
        "region": "eu-west-1",
        "endpoint_url": server.url,
        "allow_http": True,
        "force_path_style": True,
    }
    if not options.keys() & {"get_credentials", "anonymous", "from_env", "access_key_id"}:
        options |= {"access_key_id": "AKIA", "secret_access_key": "s3cr3t"}
    return s3_storage(**{**defaults, **options})


def get(backend: Backend) -> None:
    run_blocking(backend.get("key"))


def put(backend: Backend, key: str = "key", **conditions: Any) -> None:
    run_blocking(backend.put(key, b"content", **conditions))


def test_place_and_name(server: Recorder) -> None:
    get(s3_at(server).open())
    assert server.last.path == "/bucket/some/prefix/key"
    assert server.last.headers["user-agent"] == user_agent()
    assert "AKIA/" in server.last.headers["authorization"]
    assert "/eu-west-1/s3/" in server.last.headers["authorization"]


def test_host_style() -> None:
    def endpoint(**options: Any) -> tuple[bool, str | None]:
        spec: Any = s3_storage(bucket="b", prefix="p", anonymous=True, **options).spec
        return spec.uses_path_style, spec.endpoint

    assert endpoint() == (False, None)
    assert endpoint(endpoint_url="https://s3.host:1") == (False, "https://b.s3.host:1")
    assert endpoint(endpoint_url="https://host", force_path_style=True) == (True, "https://host")
    assert endpoint(endpoint_url="https://127.0.0.1:9") == (True, "https://127.0.0.1:9")
    assert endpoint(endpoint_url="https://localhost") == (True, "https://localhost")


def test_anonymous(server: Recorder) -> None:
    get(s3_at(server, anonymous=True).open())
    assert "authorization" not in server.last.headers


def test_given_keys_are_not_mixed_with_the_environment(
    server: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "FROMENV")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token-of-the-environment")
    get(s3_at(server).open())
    assert "AKIA/" in server.last.headers["authorization"]
    assert "x-amz-security-token" not in server.last.headers
    get(s3_at(server, from_env=True).open())
    assert "FROMENV/" in server.last.headers["authorization"]
    assert server.last.headers["x-amz-security-token"] == "token-of-the-environment"


def test_profile_files(
    server: Recorder, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    home = tmp_path_factory.mktemp("aws")
    (home / "credentials").write_text(
        "[default]\naws_access_key_id=USUAL\naws_secret_access_key=x\n"
        "[work]\naws_access_key_id=WORK\naws_secret_access_key=y%z\naws_session_token=t\n"
    )
    (home / "config").write_text("[profile work]\nregion = ap-south-1\n")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(home / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(home / "config"))
    get(s3_at(server, from_env=True).open())
    assert "USUAL/" in server.last.headers["authorization"]
    monkeypatch.setenv("AWS_PROFILE", "work")
    get(s3_at(server, from_env=True, region=None).open())
    assert "WORK/" in server.last.headers["authorization"]
    assert "/ap-south-1/" in server.last.headers["authorization"]
    assert server.last.headers["x-amz-security-token"] == "t"


def test_refreshable_keys_are_renewed_when_they_end(server: Recorder, tmp_path: Any) -> None:
    calls = tmp_path / "calls"

    def get_credentials() -> S3StaticCredentials:
        number = int(calls.read_text()) + 1 if calls.exists() else 1
        calls.write_text(str(number))
        life = timedelta(seconds=-1) if number == 1 else timedelta(hours=1)
        return S3StaticCredentials(f"KEY{number}", "x", expires_after=datetime.now(UTC) + life)

    backend = s3_at(server, get_credentials=get_credentials).open(THREE_TRIES)
    for _ in range(4):
        get(backend)
    used = [request.headers["authorization"].split("=")[1] for request in server.requests]
    assert used[-1].startswith("KEY2/")
    assert calls.read_text() == "2"


def test_a_failing_function_is_named_without_its_text(server: Recorder) -> None:
    def get_credentials() -> S3StaticCredentials:
        raise RuntimeError("s3cr3t")

    backend = s3_at(server, get_credentials=get_credentials).open(ONE_TRY)
    with pytest.raises(StorageError, match="failed with RuntimeError") as caught:
        get(backend)
    assert "s3cr3t" not in str(caught.value)
    assert caught.value.kind == ErrorKind.INVALID_CREDENTIALS
    assert server.requests == []


def test_headers_by_kind_of_request(server: Recorder) -> None:
    backend = s3_at(
        server,
        headers={"X-All": "1", "X-Both": "all"},
        read_headers={"X-Read": "2", "X-Both": "read"},
        write_headers={"X-Write": "3"},
    ).open()
    get(backend)
    sent = server.last.headers
    assert (sent["x-all"], sent["x-read"], sent["x-both"]) == ("1", "2", "read")
    assert "x-write" not in sent
    put(backend)
    sent = server.last.headers
    assert (sent["x-all"], sent["x-write"], sent["x-both"]) == ("1", "3", "all")
    assert "x-read" not in sent


def test_tigris_is_bound_to_its_region(server: Recorder) -> None:
    options: dict[str, Any] = {
        "bucket": "bucket",
        "prefix": "p",
        "endpoint_url": server.url,
        "allow_http": True,
        "anonymous": True,
    }
    backend = tigris_storage(**options, region="iad").open()
    get(backend)
    assert server.last.headers["x-tigris-regions"] == "iad"
    assert server.last.headers["x-tigris-consistent"] == "true"
    assert server.last.headers["cache-control"] == "no-cache"
    put(backend)
    assert server.last.headers["x-tigris-regions"] == "iad"
    weak = tigris_storage(**options, use_weak_consistency=True).open()
    get(weak)
    assert "x-tigris-regions" not in server.last.headers
    with pytest.raises(ReadOnlyError):
        put(weak)


def test_requester_pays_and_checksum(server: Recorder) -> None:
    backend = s3_at(server, requester_pays=True, checksum_algorithm=ChecksumAlgorithm.Sha256).open()
    get(backend)
    assert server.last.headers["x-amz-request-payer"] == "requester"
    put(backend)
    assert "x-amz-checksum-sha256" in server.last.headers


def test_storage_classes(server: Recorder) -> None:
    def stored_as(key: str, **settings: str) -> str | None:
        put(s3_at(server).open(StorageSettings(**settings)), key)  # type: ignore[arg-type]
        return server.last.headers.get("x-amz-storage-class")

    assert stored_as("repo") is None
    assert stored_as("repo", storage_class="A") == "A"
    assert stored_as("chunks/X", storage_class="A", chunks_storage_class="B") == "B"
    assert stored_as("repo", storage_class="A", chunks_storage_class="B") == "A"
    assert stored_as("repo", storage_class="A", metadata_storage_class="C") == "C"
    assert stored_as("chunks/X", metadata_storage_class="C") is None


def test_conditions_and_write_id(server: Recorder) -> None:
    backend = s3_at(server).open()
    put(backend, if_absent=True, attributes={"icfiletype": "repo-info"})
    assert server.last.headers["if-none-match"] == "*"
    assert server.last.headers["x-amz-meta-icfiletype"] == "repo-info"
    assert len(server.last.headers["x-amz-meta-icechunkwriteid"]) == 36
    put(backend, if_version=Version('"old"'), content_type="application/json")
    assert server.last.headers["if-match"] == '"old"'
    assert server.last.headers["content-type"] == "application/json"
    put(backend)
    assert "x-amz-meta-icechunkwriteid" not in server.last.headers


def test_metadata_off(server: Recorder) -> None:
    backend = s3_at(server).open(StorageSettings(unsafe_use_metadata=False))
    put(backend, if_absent=True, attributes={"icfiletype": "repo-info"})
    assert not [name for name in server.last.headers if name.startswith("x-amz-meta-")]
    server.statuses = [500]  # then it is seen under another state, without anybody's id
    with pytest.raises(OutcomeUnknownError):
        put(backend, if_version=Version('"old"'))


def test_conditions_off(server: Recorder) -> None:
    backend = s3_at(server).open(
        StorageSettings(unsafe_use_conditional_create=False, unsafe_use_conditional_update=False)
    )
    put(backend, if_version=Version('"e"'))
    assert "if-match" not in server.last.headers
    with pytest.raises(PreconditionFailedError):
        put(backend, if_version=Version('"old"'))
    with pytest.raises(PreconditionFailedError):
        put(backend, if_absent=True)
    server.statuses = [404]
    put(backend, if_absent=True)
    assert server.last.method == "PUT"
    assert "if-none-match" not in server.last.headers


def test_retries_are_ours_alone_and_counted(server: Recorder) -> None:
    storage = s3_at(server)
    server.statuses = [503, 500]
    get(storage.open(THREE_TRIES))
    assert server.methods == ["GET", "GET", "GET"]
    assert storage.request_counts().retries == 2
    server.requests.clear()
    server.statuses = [503, 503, 503, 503]
    with pytest.raises(StorageError, match="status 503, Told") as caught:
        get(storage.open(THREE_TRIES))
    assert caught.value.retryable
    assert len(server.requests) == 3
    server.requests.clear()
    server.statuses = [400]
    with pytest.raises(StorageError):
        get(storage.open(THREE_TRIES))
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("request_of", "method"),
    [
        (lambda backend: backend.put("key", b"content"), "PUT"),
        (lambda backend: backend.copy("key", "other"), "PUT"),
        (lambda backend: backend.get("key"), "GET"),
    ],
    ids=["put", "copy", "get"],
)
def test_a_conflict_without_a_condition_is_tried_again(
    server: Recorder, request_of: Callable[[Backend], Coroutine[Any, Any, object]], method: str
) -> None:
    backend = s3_at(server).open(THREE_TRIES)
    server.statuses = [409, 409]
    run_blocking(request_of(backend))
    assert server.methods == [method] * 3
    server.statuses = [409] * 3
    with pytest.raises(StorageError, match="409") as caught:
        run_blocking(request_of(backend))
    assert caught.value.retryable
    assert not isinstance(caught.value, PreconditionFailedError)


def test_a_conflict_of_a_deletion_is_tried_again(server: Recorder) -> None:
    config = {"google_base_url": server.url, "allow_http": "true"}
    storage = gcs_storage(bucket="b", prefix="p", config=config, bearer_token="t")
    backend = storage.open(THREE_TRIES)
    server.statuses = [409, 409]
    report = run_blocking(backend.delete_many(["key"]))
    assert (report.deleted, dict(report.failures)) == (1, {})
    assert server.methods == ["DELETE"] * 3


def test_a_conflict_with_a_condition_keeps_its_meaning(server: Recorder) -> None:
    server.statuses = [409]
    with pytest.raises(PreconditionFailedError):
        put(s3_at(server).open(THREE_TRIES), if_absent=True)
    assert server.methods.count("PUT") == 1
    server.statuses = [409]
    put(s3_at(server).open(THREE_TRIES), if_version=Version('"e"'))
    assert server.methods.count("PUT") == 3


def test_operation_timeout_ends_retrying(server: Recorder) -> None:
    settings = StorageSettings(
        retries=StorageRetriesSettings(max_tries=1000, initial_backoff_ms=20, max_backoff_ms=20),
        timeouts=StorageTimeoutSettings(operation_timeout_ms=1000),
    )
    server.statuses = [503] * 2000
    with pytest.raises(StorageError):
        get(s3_at(server).open(settings))
    assert 1 < len(server.requests) < 1000


def test_large_reads_come_in_parts(server: Recorder) -> None:
    settings = StorageSettings(
        concurrency=StorageConcurrencySettings(
            max_concurrent_requests_for_object=2, ideal_concurrent_request_size=3
        ),
        retries=StorageRetriesSettings(max_tries=1),
    )
    with pytest.raises(StorageError):
        get(s3_at(server).open(settings))  # this server gives whole bodies: not what was asked
    ranges = {request.headers.get("range") for request in server.requests}
    assert ranges <= {None, "bytes=0-2", "bytes=3-5", "bytes=6-8", "bytes=9-9"}
    assert len(ranges) >= 2
    assert server.requests[-1].headers["if-match"] == '"e"'


def test_bearer_tokens_of_google(server: Recorder) -> None:
    def get_credentials() -> GcsBearerCredential:
        return GcsBearerCredential("renewed")

    options: dict[str, Any] = {
        "bucket": "b",
        "prefix": "p",
        "config": {"google_base_url": server.url, "allow_http": "true"},
    }
    get(gcs_storage(**options, bearer_token="given").open())
    assert server.last.headers["authorization"] == "Bearer given"
    get(gcs_storage(**options, get_credentials=get_credentials).open())
    assert server.last.headers["authorization"] == "Bearer renewed"
    get(gcs_storage(**options, anonymous=True).open())
    assert "authorization" not in server.last.headers
    key = json.dumps(
        {
            "disable_oauth": True,
            "private_key": "",
            "private_key_id": "",
            "client_email": "",
            "gcs_base_url": server.url,
        }
    )
    get(
        gcs_storage(**{**options, "config": {"allow_http": "true"}}, service_account_key=key).open()
    )
    assert server.last.path == "/b/p%2Fkey"


def test_ways_into_azure(server: Recorder) -> None:
    options: dict[str, Any] = {
        "account": "acme",
        "container": "c",
        "prefix": "p",
        "config": {"azure_storage_endpoint": server.url, "allow_http": "true"},
    }
    get(azure_storage(**options, access_key="a2V5").open())
    assert server.last.headers["authorization"].startswith("SharedKey acme:")
    get(azure_storage(**options, bearer_token="token").open())
    assert server.last.headers["authorization"] == "Bearer token"
    get(azure_storage(**options, sas_token="sv=1&sig=s3cr3t").open())
    assert "sig=s3cr3t" in server.last.path
    server.statuses = [403]
    with pytest.raises(StorageError) as caught:
        get(azure_storage(**options, sas_token="sv=1&sig=s3cr3t").open())
    assert "s3cr3t" not in str(caught.value)
    assert caught.value.__cause__ is None
    get(azure_storage(**options, anonymous=True).open())
    assert "authorization" not in server.last.headers
