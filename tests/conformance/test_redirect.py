"""A storage behind a redirection, on real servers; and redirections that must not be followed."""

import socket
from pathlib import Path
from urllib.parse import urlencode

import pytest

from icefloe.effects import run_blocking
from icefloe.errors import ErrorKind, PreconditionFailedError, StorageError
from icefloe.storage import redirect_storage
from icefloe.testing.storage_suite import StorageConformance, driven, keys_of
from tests.support.http_server import file_server, redirect_server
from tests.support.servers import S3Endpoint


class TestRedirect:
    drive = StorageConformance.drive

    @driven
    async def test_to_a_web_server(self, tmp_path: Path) -> None:
        (tmp_path / "repo").write_bytes(b"content")
        with file_server(tmp_path) as files:
            target = files.url.replace("http://", "http+icechunk://")
            with redirect_server(target) as last, redirect_server(last.url) as first:
                backend = redirect_storage(first.url).open()
                assert bytes((await backend.get("repo")).data) == b"content"
            # It was found once and for all: the redirecting servers are gone by now.
            assert bytes((await backend.get("repo", (1, 4))).data) == b"ont"

    @pytest.mark.server
    @driven
    async def test_to_s3(
        self, s3_endpoint: S3Endpoint, prefix: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_endpoint.access_key_id)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_endpoint.secret_access_key)
        options = {"endpoint_url": s3_endpoint.url, "allow_http": "true", "region": "us-east-1"}
        target = f"s3://{s3_endpoint.bucket}/{prefix}?{urlencode(options)}"
        with redirect_server(target) as server:
            trusting = redirect_storage(
                server.url, from_env=True, trusted_endpoints=[s3_endpoint.url]
            )
            backend = trusting.open()
            version = await backend.put("object", b"1", if_absent=True)
            with pytest.raises(PreconditionFailedError):
                await backend.put("object", b"2", if_absent=True)
            await backend.put("object", b"3", if_version=version)
            assert bytes((await backend.get("object")).data) == b"3"
            assert await keys_of(backend) == ["object"]
            stranger = redirect_storage(server.url).open()
            with pytest.raises(StorageError):  # nobody's credentials go along unasked
                await stranger.get("object")


def test_credentials_do_not_follow_to_an_endpoint_that_a_server_chose(tmp_path: Path) -> None:
    with file_server(tmp_path) as attacker:
        options = {"endpoint_url": attacker.url, "allow_http": "true", "region": "us-east-1"}
        with redirect_server(f"s3://bucket/prefix?{urlencode(options)}") as server:
            backend = redirect_storage(server.url, from_env=True).open()
            with pytest.raises(StorageError, match="trusted_endpoints") as caught:
                run_blocking(backend.get("repo"))
    assert caught.value.kind == ErrorKind.BAD_REDIRECT


@pytest.mark.parametrize("from_env", [True, False])
@pytest.mark.parametrize(
    "target",
    [
        "s3://bucket/x?region=x%40{host}/%23",
        "s3://bucket/x?region=x%40{host}%5C",
        "s3://{host}\\/x?region=us-east-1",
        "az://{host}\\/container/x",
        "r2://bucket/x?account_id={host}/",
        "tigris://bucket/x?region=x%40{host}/%23",
    ],
)
def test_names_do_not_lead_away_from_their_platform(
    target: str, from_env: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server along the way must not have signed requests sent to a host of its choice."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-a-secret")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "bm90LWEtc2VjcmV0")
    with socket.create_server(("127.0.0.1", 0)) as attacker:
        attacker.setblocking(False)
        host = f"127.0.0.1:{attacker.getsockname()[1]}"
        with redirect_server(target.format(host=host)) as server:
            backend = redirect_storage(server.url, from_env=from_env).open()
            with pytest.raises(StorageError, match="malformed") as caught:
                run_blocking(backend.get("repo"))
        with pytest.raises(BlockingIOError):  # nobody came
            attacker.accept()
    assert caught.value.kind == ErrorKind.BAD_REDIRECT


@pytest.mark.parametrize(
    "target",
    ["file:///etc", "memory://", "ftp://host/path", "s3://", "http://[broken", "gopher://x"],
)
def test_targets_that_are_not_allowed(target: str) -> None:
    with redirect_server(target) as server:
        backend = redirect_storage(server.url).open()
        with pytest.raises(StorageError) as caught:
            run_blocking(backend.get("repo"))
    assert caught.value.kind == ErrorKind.BAD_REDIRECT


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("http://169.254.169.254/latest/meta-data", "credentials"),
        ("http://[::ffff:169.254.169.254]/latest/meta-data", "credentials"),
        ("http://localhost:99999/path", "malformed"),
    ],
)
def test_steps_that_are_not_taken(target: str, reason: str) -> None:
    with redirect_server(target) as server:
        backend = redirect_storage(server.url).open()
        with pytest.raises(StorageError, match=reason) as caught:
            run_blocking(backend.get("repo"))
    assert caught.value.kind == ErrorKind.BAD_REDIRECT
    assert not caught.value.retryable


def test_circle_ends() -> None:
    with redirect_server("/again") as server:
        backend = redirect_storage(server.url).open()
        with pytest.raises(StorageError) as caught:
            run_blocking(backend.get("repo"))
    assert caught.value.kind == ErrorKind.BAD_REDIRECT
    assert not caught.value.retryable


def test_no_redirection(tmp_path: Path) -> None:
    with file_server(tmp_path) as server:
        backend = redirect_storage(server.url).open()
        with pytest.raises(StorageError) as caught:
            run_blocking(backend.get("repo"))
    assert caught.value.kind == ErrorKind.BAD_REDIRECT
