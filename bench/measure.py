"""Time and peak memory of a piece of work, each in a fresh process."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

_STATUS, _CLEAR_REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_RESET_PEAK = "5"
_ENVIRONMENT = {
    "ICECHUNK_LOG": "error",
    "PYTHONDONTWRITEBYTECODE": "",  # modules are compiled once, as on the machines of users
}


def environment(**others: str) -> dict[str, str]:
    """Return the environment of a process that is measured."""
    return os.environ | _ENVIRONMENT | others


@dataclass(frozen=True, slots=True)
class Sample:
    seconds: float
    rss_growth_bytes: int = 0
    size_bytes: int = 0

    def best_with(self, other: "Sample") -> "Sample":
        return Sample(
            min(self.seconds, other.seconds),
            min(self.rss_growth_bytes, other.rss_growth_bytes),
            min(self.size_bytes, other.size_bytes),
        )


def _status_bytes(field: str) -> int:
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def measured(work: Callable[[], int]) -> Sample:
    """Run work that returns the bytes it made; memory is the peak above what was there before."""
    _CLEAR_REFS.write_text(_RESET_PEAK)
    before = _status_bytes("VmRSS")
    started = time.perf_counter()
    size_bytes = work()
    seconds = time.perf_counter() - started
    return Sample(seconds, max(_status_bytes("VmHWM") - before, 0), size_bytes)


def emit(sample: Sample) -> None:
    """Hand a sample to the process that asked for it."""
    print(json.dumps(asdict(sample)))


def in_fresh_process(module: str, *arguments: str) -> Sample:
    """Run a worker module and read the sample it prints."""
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=environment(),
    )
    if done.returncode != 0:
        raise RuntimeError(f"{module} {' '.join(arguments)} failed:\n{done.stderr[-2000:]}")
    return Sample(**json.loads(done.stdout.splitlines()[-1]))


@contextmanager
def scratch() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="icefloe-bench-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)
