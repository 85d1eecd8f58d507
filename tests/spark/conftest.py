"""One Spark session for all tests that need a real one."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

JAVA_HOME = Path(__file__).parents[2] / ".cache" / "java_home"


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """Start Spark on the Java that the project's setup chose."""
    from pyspark.sql import SparkSession

    with pytest.MonkeyPatch.context() as environment:
        if JAVA_HOME.exists():
            environment.setenv("JAVA_HOME", JAVA_HOME.read_text().strip())
        environment.setenv("PYSPARK_PYTHON", sys.executable)
        environment.setenv("SPARK_LOCAL_HOSTNAME", "localhost")  # no name server is asked
        session = (
            SparkSession.builder.master("local[2]")
            .appName("icefloe-tests")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.memory", "1g")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.ui.showConsoleProgress", "false")
            .getOrCreate()
        )
        yield session
        session.stop()
