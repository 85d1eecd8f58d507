"""Servers that tests share: started when first asked for, once for all workers."""

import os
import uuid
from collections.abc import Generator, Iterator
from pathlib import Path

import pyproj  # noqa: F401 - before eccodes, whose own PROJ else breaks the end of the process
import pytest
from hypothesis import HealthCheck, settings

from tests.support.gcs_server import GcsEndpoint, gcs_server
from tests.support.processes import log_tail
from tests.support.servers import AzureEndpoint, S3Endpoint, azurite, has_node, seaweedfs

# How long an example takes says more about the machine than about the code.
settings.register_profile(
    "patient", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("patient")

AZURITE_PROJECT = Path(__file__).parent.parent / "tools" / "azurite"


@pytest.fixture(scope="session")
def servers_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the servers of this test run live, the same for all of its workers."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "servers"


@pytest.fixture(scope="session")
def s3_endpoint(servers_folder: Path) -> Iterator[S3Endpoint]:
    with seaweedfs(shared=servers_folder) as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def azure_endpoint(servers_folder: Path) -> Iterator[AzureEndpoint]:
    if not has_node():
        reason = "Azurite needs Node.js with npm, which was not found"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    with azurite(AZURITE_PROJECT, shared=servers_folder) as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def gcs_endpoint() -> Iterator[GcsEndpoint]:
    with gcs_server() as endpoint:
        yield endpoint


@pytest.fixture
def prefix() -> str:
    """A place in a shared bucket that no other test uses."""
    return f"test-{uuid.uuid4().hex}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show what the servers logged beside the failure of a test that needs them."""
    report = yield
    if report.failed:
        used = getattr(item, "funcargs", {})
        for fixture, server in (("s3_endpoint", "seaweedfs"), ("azure_endpoint", "azurite")):
            if fixture in used:
                log = log_tail(used["servers_folder"] / server)
                report.sections.append((f"log of {server}", log))
    return report
