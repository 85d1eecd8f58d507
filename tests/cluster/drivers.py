"""Drivers that can be killed: sessions of Spark, each in a process of its own."""

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import psutil

from icefloe.spark import session_for
from tests.cluster.gates import wait_until
from tests.support.clusters import QUICK_JAVA

ROOT: Final = Path(__file__).parents[2]
PATIENCE_SECONDS: Final = 240
EXECUTORS: Final = 2
SETTINGS: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.cores.max": str(EXECUTORS),
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    "spark.executorEnv.PYTHONPATH": str(ROOT),
    "spark.python.worker.reuse": "true",
    # What an executor wrote is lost with it, even if one on the same machine could read its files.
    "spark.shuffle.readHostLocalDisk": "false",
    "spark.shuffle.io.maxRetries": "1",
    "spark.shuffle.io.retryWait": "1s",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
}

_session: Any = None


def _start(master: str, settings: Mapping[str, str]) -> None:
    global _session  # noqa: PLW0603 - the one session of this process
    os.environ["JAVA_TOOL_OPTIONS"] = QUICK_JAVA
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_HOSTNAME"] = "localhost"
    _session = session_for(master, settings=settings)


def _act[T](action: Callable[..., T], args: tuple[Any, ...]) -> T:
    return action(_session, *args)


def _stop(spark: Any) -> None:
    spark.stop()


def _wait_for_executors(spark: Any) -> None:
    scheduler = spark.sparkContext._jsc.sc()
    wait_until(
        lambda: scheduler.getExecutorIds().size() == EXECUTORS, "a complete set of executors"
    )


def wait_until_dead(processes: Sequence[psutil.Process]) -> None:
    """Wait until none of them does anything any more."""
    wait_until(lambda: not any(map(_is_alive, processes)), "the end of all processes")


def _is_alive(process: psutil.Process) -> bool:
    try:
        # The dead stay listed until a parent asks for them, which that of orphans may never do.
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class Driver:
    """A process with a session, which does what it is told, one thing after the other."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self._pool = pool
        self.pid = pool.submit(os.getpid).result(PATIENCE_SECONDS)

    def submit[T](self, action: Callable[..., T], *args: Any) -> "Future[T]":
        """Have an action begun, with the session as its first argument."""
        return self._pool.submit(_act, action, args)

    def run[T](self, action: Callable[..., T], *args: Any) -> T:
        """Have an action done."""
        return self.submit(action, *args).result(PATIENCE_SECONDS)

    def wait_for_executors(self) -> None:
        """Wait until those that were lost are replaced: jobs begin with whatever is there."""
        self.run(_wait_for_executors)


@contextmanager
def driver_on(master: str, settings: Mapping[str, str] | None = None) -> Iterator[Driver]:
    """Start a session in a new process, and end both."""
    chosen = {**({} if master.startswith("sc://") else SETTINGS), **(settings or {})}
    with TemporaryDirectory(prefix="icefloe-driver-") as folder:  # the dead do not tidy up
        yield from _driver(partial(_start, master, {"spark.local.dir": folder, **chosen}))


def _driver(start: Callable[[], None]) -> Iterator[Driver]:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=start) as pool:
        driver = Driver(pool)
        java = psutil.Process(driver.pid).children(recursive=True)
        yield driver
        with suppress(BrokenProcessPool):  # it may be dead
            driver.run(_stop)
    wait_until_dead(java)
