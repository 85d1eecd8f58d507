"""Spark sessions: on a cluster, or on this machine."""

import atexit
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Final

from icefloe.errors import (
    ConflictError,
    ErrorKind,
    IcefloeError,
    InvalidInputError,
    SourceError,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SETTINGS: Final[Mapping[str, str]] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.python.worker.reuse": "true",
    # Each task begins with a few short messages, for which TCP waits 40 ms in all.
    "spark.python.unix.domain.socket.enabled": "true",
}
_LOOPBACK: Final = "127.0.0.1"
_LOCAL_SETTINGS: Final[Mapping[str, str]] = {
    "spark.driver.host": _LOOPBACK,
    "spark.driver.bindAddress": _LOOPBACK,
    # Java only hands on bytes here: to optimise it, beside its compiler's and collector's
    # threads, takes more of few cores than it ever gives back.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
_USUAL_CORES: Final = 8
_STANDARD_ERROR: Final = 2
_ATTEMPTS: Final = 4
"""How often a task is tried before the job fails."""


def local_session(
    cores: int | None = None, *, memory: str = "1g", settings: Mapping[str, str] | None = None
) -> "SparkSession":
    """Start Spark in this process and its children, or give the session that runs already.

    Everything stays on this machine: nothing listens on the network but the loopback. `cores`
    are all that there are unless said otherwise; `memory` is for the Java part, the Python workers
    come on top. Stop the session with `stop()` when it is not needed any more.

    >>> spark = local_session(2)
    >>> spark.range(5).count()
    5
    >>> spark.stop()
    """
    chosen = {**_LOCAL_SETTINGS, "spark.driver.memory": memory, **(settings or {})}
    os.environ.setdefault("SPARK_LOCAL_HOSTNAME", "localhost")  # no name server is asked
    return session_for(f"local[{cores or '*'},{_ATTEMPTS}]", settings=chosen)


def session_for(
    master: str, *, name: str = "icefloe", settings: Mapping[str, str] | None = None
) -> "SparkSession":
    """Start a session on a cluster, or give the one that runs already.

    `master` is a URL as Spark has them: `local[4]`, `spark://host:7077`, `yarn`, `k8s://…`, or
    `sc://host:15002` for Spark Connect.

    >>> spark = session_for("local[2]", settings={"spark.driver.host": "127.0.0.1"})
    >>> spark.range(5).count()
    5
    >>> spark.stop()
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError as missing:
        raise IcefloeError(
            "Spark is not installed: pip install 'icefloe[spark,virtual]'",
            ErrorKind.SPARK_NOT_AVAILABLE,
        ) from missing
    # Workers must run the Python that this code is installed for.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    chosen = {**_SETTINGS, **(settings or {})}
    if master.startswith("sc://"):
        builder = builder.remote(master)
        # All other settings belong to the owner of the server.
        chosen = {key: value for key, value in chosen.items() if key.startswith("spark.sql.")}
    else:
        builder = builder.master(master)
    for key, value in chosen.items():
        builder = builder.config(key, value)
    try:
        return builder.getOrCreate()
    except Exception as error:
        if "JAVA" not in str(error).upper():
            raise
        raise IcefloeError(
            "Spark could not start Java: install Java 17 or newer, and set JAVA_HOME to its home",
            ErrorKind.SPARK_NOT_AVAILABLE,
        ) from error


@contextmanager
def session_while(master: str | None = None) -> "Iterator[SparkSession]":
    """Open a session; stop it in the end unless it existed before.

    Without a master it is one on this machine. What Spark itself says goes to a file, which is
    removed in the end; an error that is not about files or options names it, and keeps it.

    >>> with session_while() as spark:
    ...     spark.range(5).count()
    5
    """
    before = _running()
    with _explained_by_log():
        with nullcontext() if before is not None or _is_remote(master) else _chatter_in_log():
            session = local_session() if master is None else session_for(master)
        try:
            yield session
        finally:
            if session is not before:
                session.stop()


def _is_remote(master: str | None) -> bool:
    return master is not None and master.startswith("sc://")


class _Log:
    """The file that has what Java and its children say, from when this process started Java."""

    path: Path | None = None
    is_kept = False

    @classmethod
    def open(cls) -> Path:
        """Return the file; the first call makes it."""
        if cls.path is None:
            descriptor, name = tempfile.mkstemp(prefix="icefloe-spark-", suffix=".log")
            os.close(descriptor)
            cls.path = Path(name)
            atexit.register(cls.remove, cls.path, os.getpid())
        return cls.path

    @classmethod
    def remove(cls, path: Path, process: int) -> None:
        if not cls.is_kept and process == os.getpid():
            path.unlink(missing_ok=True)


@contextmanager
def _chatter_in_log() -> Iterator[None]:
    """Send what is written to standard error to the log, while the body starts Java.

    Java and the Python workers, its children, keep the file for good.
    """
    sys.stderr.flush()
    with _Log.open().open("ab") as log:
        before = os.dup(_STANDARD_ERROR)
        os.dup2(log.fileno(), _STANDARD_ERROR)
        try:
            yield
        finally:
            os.dup2(before, _STANDARD_ERROR)
            os.close(before)


@contextmanager
def _explained_by_log() -> Iterator[None]:
    """Name the log in errors that it may explain."""
    try:
        yield
    except (SourceError, InvalidInputError, ConflictError):
        raise  # which explain themselves
    except Exception as error:
        if _Log.path is not None:
            _Log.is_kept = True
            error.add_note(f"what Spark itself said is in {_Log.path}")
        raise


def _running() -> "SparkSession | None":
    if "pyspark" not in sys.modules:
        return None
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession()


def cores_of(spark: "SparkSession") -> int:
    """Return how many tasks a session can run at once, if it is known."""
    if hasattr(spark, "_jsparkSession"):
        return int(spark.sparkContext.defaultParallelism)
    told = spark.conf.get("spark.default.parallelism", None)
    return int(told) if told else _USUAL_CORES
