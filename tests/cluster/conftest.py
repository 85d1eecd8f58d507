"""A real cluster, and a driver on it, for all tests that need them."""

from collections.abc import Iterator

import pytest

from tests.cluster.drivers import Driver, driver_on
from tests.spark.conftest import JAVA_HOME
from tests.support.clusters import SparkCluster, spark_cluster


@pytest.fixture(scope="session", autouse=True)
def java_home() -> Iterator[None]:
    """Use the Java that the project's setup chose."""
    with pytest.MonkeyPatch.context() as environment:
        if JAVA_HOME.exists():
            environment.setenv("JAVA_HOME", JAVA_HOME.read_text().strip())
        yield


@pytest.fixture(scope="session")
def cluster(java_home: None) -> Iterator[SparkCluster]:
    """Start a master and two workers, with room for more sessions than there ever are at once.

    Otherwise the executors of a session could all be on one machine, if another was lost before.
    """
    with spark_cluster(workers=2, cores=4, memory="4g") as started:
        yield started


@pytest.fixture(scope="session")
def shared_driver(cluster: SparkCluster) -> Iterator[Driver]:
    """Start a driver for all tests that leave it alive."""
    with driver_on(cluster.url) as started:
        yield started


@pytest.fixture
def driver(shared_driver: Driver) -> Driver:
    """Give the driver with all its executors, whatever tests before have killed."""
    shared_driver.wait_for_executors()
    return shared_driver
