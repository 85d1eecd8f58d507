"""Workers of dask in processes of their own, for all tests here."""

from collections.abc import Iterator

import pytest
from distributed import Client, LocalCluster


@pytest.fixture(scope="session")
def workers_elsewhere() -> Iterator[LocalCluster]:
    with LocalCluster(
        n_workers=2, threads_per_worker=2, processes=True, dashboard_address=":0"
    ) as workers:
        yield workers


@pytest.fixture
def cluster(workers_elsewhere: LocalCluster) -> Iterator[Client]:
    """Let dask use the workers for the time of a test."""
    with Client(workers_elsewhere) as client:
        yield client
