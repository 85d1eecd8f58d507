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
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from icefloe.format.envelope import FileType
from tests.fuzz.bombs import bombs
from tests.fuzz.corpus import corpus
from tests.fuzz.exercise import is_refused
from tests.fuzz.mutations import mutant

MEMORY_CAP_BYTES = 3 * 2**29
"""Address space that decoding may take beyond what the process has with all seeds loaded."""
SLOWEST_SECONDS = 15.0
"""Of computing, which depends little on what else the machine does; ten times the slowest here."""
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


@contextmanager
def limited_memory() -> Iterator[None]:
    """Cap the address space of this process at what it has now and a little more."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * _PAGE_BYTES + MEMORY_CAP_BYTES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def memory_bytes(line: str) -> int:
    """Give the resident memory now (`VmRSS`) or at most (`VmHWM`), of this process alone."""
    for found in Path("/proc/self/status").read_text().splitlines():
        if found.startswith(line):
            return int(found.split()[1]) * 1024
    raise AssertionError(line)


def check(report: Report, number: int, name: str, file_type: FileType | None, data: bytes) -> None:
    """Decode one file under all limits, and note what should not have happened."""
    begin = time.process_time()
    faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
    try:
        report.refused += is_refused(file_type, data)
    except Exception:  # noqa: BLE001 - whatever escapes is what the fuzzer looks for
        report.failures.append(f"{name}\n{traceback.format_exc()}")
    finally:
        faulthandler.cancel_dump_traceback_later()
    seconds = time.process_time() - begin
    report.mutants += 1
    if seconds > report.slowest_seconds:
        report.slowest_seconds, report.slowest = seconds, number
    if seconds > SLOWEST_SECONDS:
        report.failures.append(f"{name} took {seconds:.1f} s")


def check_mutants(seed: int, first: int, last: int) -> Report:
    """Decode a range of mutants."""
    report = Report()
    for number in range(first, last):
        origin, data = mutant(seed, number)
        check(report, number, f"mutant {number} of {origin.name}", origin.file_type, data)
    return report


def check_bombs(file_type: FileType) -> Report:
    """Decode all bombs of a type; what it takes to build them does not count."""
    report = Report()
    for number, build in enumerate(bombs(file_type)):
        data = build()
        Path("/proc/self/clear_refs").write_text("5")  # forgets the peak so far
        start_bytes = memory_bytes("VmRSS")
        with limited_memory():
            check(report, number, f"bomb {number}: {build}", file_type, data)
        report.peak_bytes = max(report.peak_bytes, memory_bytes("VmHWM") - start_bytes)
    return report


def work(*ranges: tuple[int, int, int]) -> None:
    """Be a worker: decode ranges of mutants, and tell the parent about each of them."""
    corpus()
    start_bytes = memory_bytes("VmRSS")
    with limited_memory():
        for seed, first, last in ranges:
            report = check_mutants(seed, first, last)
            report.peak_bytes = max(0, memory_bytes("VmHWM") - start_bytes)
            tell(report)


def tell(report: Report) -> None:
    """Send a report to the parent."""
    sys.stdout.write(json.dumps(asdict(report)) + "\n")
    sys.stdout.flush()


def mutants_in_process(seed: int, first: int, last: int, step: int = 200) -> Iterator[Report]:
    """Run a range of mutants in a process with limited memory; yields a report per part."""
    parts = [(seed, begin, min(begin + step, last)) for begin in range(first, last, step)]
    arguments = ", ".join(map(str, parts))
    yield from _in_process(f"from tests.fuzz.campaign import work; work({arguments})", len(parts))


def bombs_in_process(file_type: FileType) -> Report:
    """Run all bombs of a type in a process with limited memory."""
    code = (
        "from tests.fuzz.campaign import FileType, check_bombs, tell; "
        f"tell(check_bombs(FileType({file_type.value})))"
    )
    total = Report()
    for report in _in_process(code, 1):
        total.add(report)
    return total


def _in_process(code: str, reports: int) -> Iterator[Report]:
    with subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=os.environ | _QUIET_ALLOCATORS,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        for line in process.stdout:
            reports -= 1
            yield Report(**json.loads(line))
        errors = process.stderr.read()
    if process.returncode or reports:
        yield Report(
            failures=[f"a process died ({process.returncode}), {reports} reports short\n{errors}"]
        )
