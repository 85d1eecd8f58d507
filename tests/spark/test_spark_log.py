"""What Spark itself says goes to a file, which errors name."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from examples.archives import write_archive

JAVA_HOME = Path(__file__).parents[2] / ".cache" / "java_home"
pytestmark = pytest.mark.spark

FAILS = """
from icefloe.spark import session_while
try:
    with session_while() as spark:
        spark.sparkContext.parallelize([1]).map(lambda number: number / 0).collect()
except Exception as error:
    print(*error.__notes__)
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ)
    if JAVA_HOME.exists():
        environment["JAVA_HOME"] = JAVA_HOME.read_text().strip()
    return subprocess.run(
        [sys.executable, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_command_shows_nothing_of_java(tmp_path: Path) -> None:
    archive = write_archive(tmp_path / "archive", 3)
    arguments = ["--repo", str(tmp_path / "cube"), "--concat", "time", "--engine", "spark"]
    done = run("-m", "icefloe", "ingest", "virtual", archive.pattern, *arguments)
    assert done.returncode == 0, done.stderr
    assert "3 of 3 files fit" in done.stdout
    for word in ("WARN", "log4j", "incubator", "Setting default", "java."):
        assert word not in done.stderr + done.stdout


def test_an_error_names_the_log_and_keeps_it() -> None:
    done = run("-c", FAILS)
    name = done.stdout.strip().rpartition(" ")[2]
    assert done.stdout.startswith("what Spark itself said is in "), done.stdout + done.stderr
    assert "WARN" not in done.stderr
    log = Path(name)
    assert "ZeroDivisionError" in log.read_text()
    log.unlink()
