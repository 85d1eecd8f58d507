"""A second S3 server with other keys, and the addresses of clouds in front of servers."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from icefloe.storage.addresses import AddressGuard
from tests.support.gcs_server import GcsEndpoint
from tests.support.servers import S3Endpoint, seaweedfs
from tests.virtual.impostor import Impostor, impersonating

REGIONS = ("us-east-1", "eu-central-1", "sa-east-1")
AMAZON = [f"s3.{region}.amazonaws.com" for region in REGIONS]


@pytest.fixture(scope="session")
def other_s3_endpoint(servers_folder: Path) -> Iterator[S3Endpoint]:
    """Another server than `s3_endpoint`, which takes other keys and knows names of Amazon's."""
    with seaweedfs(
        shared=servers_folder,
        name="seaweedfs-of-others",
        access_key_id="somebody-else",
        secret_access_key="known-to-all-tests",
        domains=AMAZON,
    ) as endpoint:
        yield endpoint


@pytest.fixture
def clouds(
    other_s3_endpoint: S3Endpoint, gcs_endpoint: GcsEndpoint, tmp_path: Path
) -> Iterator[Impostor]:
    """Amazon S3 in some regions, and Google Cloud Storage, at their own addresses."""
    if shutil.which("openssl") is None:
        reason = "a certificate is needed, and openssl was not found"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    folder = tmp_path / "certificates"
    folder.mkdir()
    servers = dict.fromkeys(AMAZON, other_s3_endpoint.url)
    servers["storage.googleapis.com"] = gcs_endpoint.url
    with impersonating(servers, folder) as server:
        yield server


@pytest.fixture
def public_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let servers on this machine count as servers of the internet."""
    defaults = AddressGuard.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "allows", lambda _: True)
