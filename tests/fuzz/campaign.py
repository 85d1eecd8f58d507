"""Run mutants in processes of their own, each with a hard limit of memory."""

import faulthandler
import json
import os
import resource
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.fuzz.corpus import corpus
from tests.fuzz.exercise import is_refused
from tests.fuzz.mutations import mutant

MEMORY_CAP_BYTES = 3 * 2**29
"""Address space that decoding may take beyond what the process has with all seeds loaded."""
SLOWEST_SECONDS = 5.0
HANG_SECONDS = 60
ROOT = Path(__file__).parents[2]

_PAGE_BYTES = resource.getpagesize()
_QUIET_ALLOCATORS = {"MALLOC_ARENA_MAX": "2", "ARROW_DEFAULT_MEMORY_POOL": "system"}
"""Allocators that reserve address space ahead would hide what decoding takes."""


@dataclass(slots=True)
class Report:
    """What became of a run of mutants."""

    mutants: int = 0
    refused: int = 0
    slowest_seconds: float = 0.0
    slowest: int = -1
    peak_bytes: int = 0
    """Resident memory beyond that of a process with all seeds loaded."""
    failures: list[str] = field(default_factory=list)

    def add(self, other: "Report") -> None:
        """Take in another report."""
        self.mutants += other.mutants
        self.refused += other.refused
        if other.slowest_seconds > self.slowest_seconds:
            self.slowest_seconds, self.slowest = other.slowest_seconds, other.slowest
        self.peak_bytes = max(self.peak_bytes, other.peak_bytes)
        self.failures += other.failures


def limit_memory(cap_bytes: int = MEMORY_CAP_BYTES) -> int:
    """Cap the address space of this process; give its resident size so far."""
    pages, resident = map(int, Path("/proc/self/statm").read_text().split()[:2])
    most = pages * _PAGE_BYTES + cap_bytes
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    return resident * _PAGE_BYTES


def peak_bytes() -> int:
    """Give the most memory that this process has held; unlike `getrusage`, not its parent."""
    status = Path("/proc/self/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


def run_mutants(seed: int, first: int, last: int, *, start_bytes: int) -> Report:
    """Decode a range of mutants in this process."""
    report = Report()
    for number in range(first, last):
        origin, data = mutant(seed, number)
        begin = time.perf_counter()
        faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
        try:
            report.refused += is_refused(origin.file_type, data)
        except Exception:  # noqa: BLE001 - whatever escapes is what the fuzzer looks for
            report.failures.append(f"mutant {number} of {origin.name}\n{traceback.format_exc()}")
        finally:
            faulthandler.cancel_dump_traceback_later()
        seconds = time.perf_counter() - begin
        report.mutants += 1
        if seconds > report.slowest_seconds:
            report.slowest_seconds, report.slowest = seconds, number
        if seconds > SLOWEST_SECONDS:
            report.failures.append(f"mutant {number} of {origin.name} took {seconds:.1f} s")
    report.peak_bytes = max(0, peak_bytes() - start_bytes)
    return report


def work(seed: int, first: int, last: int, step: int) -> None:
    """Be a worker: decode a range, and tell the parent about each part of it."""
    corpus()
    start_bytes = limit_memory()
    for begin in range(first, last, step):
        report = run_mutants(seed, begin, min(begin + step, last), start_bytes=start_bytes)
        sys.stdout.write(json.dumps(asdict(report)) + "\n")
        sys.stdout.flush()


def in_process(seed: int, first: int, last: int, step: int = 200) -> Iterator[Report]:
    """Run a range of mutants in a process with limited memory; yields a report per part."""
    command = [sys.executable, "-c", _WORK.format(seed, first, last, step)]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=os.environ | _QUIET_ALLOCATORS,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        done = 0
        for line in process.stdout:
            report = Report(**json.loads(line))
            done += report.mutants
            yield report
        errors = process.stderr.read()
    if process.returncode or done != last - first:
        begin = first + done
        yield Report(
            failures=[
                f"the process died ({process.returncode}) at mutant {begin} or up to "
                f"{step - 1} later\n{errors}"
            ]
        )


_WORK = "from tests.fuzz.campaign import work; work({}, {}, {}, {})"
