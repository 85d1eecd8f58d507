"""Stores that refuse a credential: it is replaced once, and the request is made again."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Any

import pytest

import icefloe
from icefloe.effects import run_blocking
from icefloe.errors import StorageError
from icefloe.storage import Storage
from icefloe.storage.port import Backend
from tests.support.http_server import ScriptedHandler, ScriptedServer, scripted_server

LISTING = b"""<ListBucketResult><IsTruncated>false</IsTruncated><Contents><Key>p/a</Key>
<LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>"x"</ETag><Size>1</Size></Contents>
</ListBucketResult>"""
DELETED = b"<DeleteResult><Deleted><Key>p/a</Key></Deleted></DeleteResult>"
HEADERS = {"ETag": '"x"', "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}


class Keys:
    """Hands out numbered keys."""

    def __init__(self) -> None:
        self.given = 0

    def __call__(self) -> icefloe.S3StaticCredentials:
        self.given += 1
        end = datetime.now(UTC) + timedelta(hours=1)
        return icefloe.S3StaticCredentials(f"KEY{self.given}", "secret", "token", end)


def store(status: int, code: str | None, accepted: int) -> Callable[[ScriptedHandler], None]:
    """Return a store that accepts keys from a number on, and says why it refuses others."""

    def script(handler: ScriptedHandler) -> None:
        handler.read_body()
        authorization = handler.headers["Authorization"] or ""
        number = int(authorization.partition("KEY")[2].partition("/")[0])
        if number < accepted:
            body = b"" if code is None else f"<Error><Code>{code}</Code></Error>".encode()
            handler.answer(status, body)
        elif "list-type" in handler.path:
            handler.answer(HTTPStatus.OK, LISTING)
        elif "delete" in handler.path:
            handler.answer(HTTPStatus.OK, DELETED)
        elif "Range" in handler.headers:
            handler.answer(
                HTTPStatus.PARTIAL_CONTENT, b"1", {**HEADERS, "Content-Range": "bytes 0-0/1"}
            )
        else:
            handler.answer(HTTPStatus.OK, b"1", HEADERS)

    return script


# The function is pickled on its way into a storage, so it is found by name there.
_keys = Keys()


def give_keys() -> icefloe.S3StaticCredentials:
    return _keys()


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> Keys:
    keys = Keys()
    monkeypatch.setattr(f"{__name__}._keys", keys)
    return keys


def storage_at(server: ScriptedServer) -> Storage:
    return icefloe.s3_storage(
        bucket="data",
        prefix="p",
        endpoint_url=server.url,
        region="us-east-1",
        allow_http=True,
        force_path_style=True,
        get_credentials=give_keys,
    )


async def listed(backend: Backend) -> Any:
    return [info.key async for batch in backend.list() for info in batch]


REQUESTS: dict[str, Callable[[Backend], Any]] = {
    "get": lambda backend: backend.get("a"),
    "ranges": lambda backend: backend.get_ranges("a", [(0, 1)]),
    "head": lambda backend: backend.head("a"),
    "put": lambda backend: backend.put("a", b"1"),
    "create": lambda backend: backend.put("a", b"1", if_absent=True),
    "copy": lambda backend: backend.copy("a", "b"),
    "delete": lambda backend: backend.delete_many(["a"]),
    "list": listed,
}


@pytest.mark.parametrize("drive", [run_blocking, asyncio.run], ids=["blocking", "awaited"])
@pytest.mark.parametrize("name", REQUESTS)
def test_every_request_is_made_again(keys: Keys, name: str, drive: Callable[[Any], Any]) -> None:
    with scripted_server(store(403, "InvalidAccessKeyId", accepted=2)) as server:
        backend = storage_at(server).open()
        result = drive(REQUESTS[name](backend))
        if name == "delete":
            assert not result.failures
    assert keys.given == 2


@pytest.mark.parametrize(
    ("status", "code"), [(400, "ExpiredToken"), (400, None), (401, None), (403, "AccessDenied")]
)
@pytest.mark.parametrize("name", ["get", "head", "put", "list"])
def test_stores_say_it_in_many_ways(keys: Keys, name: str, status: int, code: str | None) -> None:
    with scripted_server(store(status, code, accepted=2)) as server:
        run_blocking(REQUESTS[name](storage_at(server).open()))
    assert keys.given == 2


@pytest.mark.parametrize("name", ["get", "put", "create", "list"])
def test_a_refusal_that_stays_is_reported(keys: Keys, name: str) -> None:
    with scripted_server(store(403, "AccessDenied", accepted=99)) as server:
        backend = storage_at(server).open()
        for _ in range(3):
            with pytest.raises(StorageError, match="AccessDenied"):
                run_blocking(REQUESTS[name](backend))
    assert keys.given == 2


def test_other_faults_of_a_request_renew_nothing(keys: Keys) -> None:
    with (
        scripted_server(store(400, "InvalidArgument", accepted=2)) as server,
        pytest.raises(StorageError, match="InvalidArgument"),
    ):
        run_blocking(REQUESTS["get"](storage_at(server).open()))
    assert keys.given == 1
