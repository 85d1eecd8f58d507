"""The memory of Spark's processes: the driver, Java, and the Python workers."""

import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil

CORES: Final = 2
DRIVER, JAVA, WORKER = "driver", "java", "worker"
_JAVA_HOME: Final = Path(__file__).parents[1] / ".cache" / "java_home"
_SECONDS_BETWEEN_LOOKS: Final = 0.2
_RESET_PEAK: Final = "5"


@contextmanager
def session(cores: int = CORES) -> Iterator[Any]:
    """Start Spark, and its Python workers; what these import is for the job to pay."""
    from icefloe.spark import local_session  # noqa: PLC0415 - the other side does without us

    if "JAVA_HOME" not in os.environ and _JAVA_HOME.exists():
        os.environ["JAVA_HOME"] = _JAVA_HOME.read_text().strip()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = local_session(cores, settings={"spark.log.level": "ERROR"})
    try:
        spark.range(0, 4, 1, cores).mapInArrow(lambda batches: batches, "id long").toArrow()
        yield spark
    finally:
        spark.stop()


def cpu_seconds() -> float:
    """Sum up the processor time of this process and all below it, those that ended included."""
    total = 0.0
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        with suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


@dataclass(slots=True)
class Peaks:
    """The most memory that any process of each kind had."""

    by_kind: dict[str, int] = field(default_factory=dict)

    def look(self) -> None:
        for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
            with suppress(psutil.Error, OSError, StopIteration):
                kind = _kind(process)
                peak = _peak_bytes(process.pid)
                self.by_kind[kind] = max(self.by_kind.get(kind, 0), peak)

    def figures(self) -> Mapping[str, float]:
        """Return them as figures of a comparison."""
        return {f"{kind} rss": float(peak) for kind, peak in self.by_kind.items()}


def _kind(process: psutil.Process) -> str:
    if process.pid == os.getpid():
        return DRIVER
    return JAVA if "java" in process.name() else WORKER


def _peak_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    line = next(line for line in lines if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


@contextmanager
def watched() -> Iterator[Peaks]:
    """Note peaks of memory from now on, until the end of the body."""
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        with suppress(OSError):  # it ended meanwhile
            Path(f"/proc/{process.pid}/clear_refs").write_text(_RESET_PEAK)
    peaks, ended = Peaks(), threading.Event()

    def keep_looking() -> None:
        while not ended.wait(_SECONDS_BETWEEN_LOOKS):
            peaks.look()

    looking = threading.Thread(target=keep_looking, daemon=True)
    looking.start()
    try:
        yield peaks
    finally:
        ended.set()
        looking.join()
        peaks.look()
