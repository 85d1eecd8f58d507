"""One Spark session for all tests that need a real one."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from icefloe.spark import local_session

ROOT = Path(__file__).parents[2]
JAVA_HOME = ROOT / ".cache" / "java_home"
EVENTS_PATIENCE = 90_000  # milliseconds


def wait_for_events(spark: Any) -> None:
    """Wait until all that happened so far is logged: jobs end without waiting for that."""
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty(EVENTS_PATIENCE)


@pytest.fixture(scope="session")
def event_logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the directory in which Spark keeps its event logs."""
    return tmp_path_factory.mktemp("events")


@pytest.fixture(scope="session")
def spark(event_logs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Start Spark on the Java that the project's setup chose."""
    with pytest.MonkeyPatch.context() as environment:
        if JAVA_HOME.exists():
            environment.setenv("JAVA_HOME", JAVA_HOME.read_text().strip())
        environment.setenv("PYSPARK_PYTHON", sys.executable)
        environment.setenv("SPARK_LOCAL_HOSTNAME", "localhost")
        session = local_session(
            2,
            settings={
                "spark.sql.shuffle.partitions": "2",
                "spark.eventLog.enabled": "true",
                "spark.eventLog.compress": "false",
                "spark.eventLog.rolling.enabled": "false",
                "spark.eventLog.dir": event_logs.as_uri(),
                "spark.local.dir": str(tmp_path_factory.mktemp("blocks")),
                # Java may run already, and elsewhere, for a test that changed its directory.
                "spark.executorEnv.PYTHONPATH": str(ROOT),
            },
        )
        yield session
        session.stop()
