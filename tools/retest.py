"""Distinguish flaky tests from broken tests: run each failed test once more, alone.

    pytest -p tools.retest --outcome FILE ...    run tests and record in FILE how they ended
    python -m tools.retest FILE                  run the failed tests of FILE again, one by one

The second command exits with 0 if every failed test passes alone, and then prints those tests
as `flaky: ...`. It does not help a run that ended early, that could not collect its tests, or in
which very many tests failed: such a run is broken.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

MOST_FLAKY: Final = 12
"""More failed tests than this are a broken run: no test gets a second chance."""

_OPTION: Final = "--outcome"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that names the file of the outcome."""
    parser.addoption(_OPTION, metavar="FILE", help="record exit status and failed tests in FILE")


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Record how the run ended; the workers of pytest-xdist leave that to the main process."""
    target = session.config.getoption(_OPTION)
    if target is None or hasattr(session.config, "workerinput"):
        return
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    stats = {} if reporter is None else reporter.stats
    reports = [*stats.get("failed", []), *stats.get("error", [])]
    failed = list(dict.fromkeys(report.nodeid for report in reports))
    is_whole = (
        exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
        and not session.shouldfail  # as with `--exitfirst`
        and not session.shouldstop
    )
    outcome = {"is_whole": is_whole, "exit_status": int(exitstatus), "failed": failed}
    Path(target).write_text(json.dumps(outcome))


def run_again(outcome: Path) -> int:
    """Run the failed tests of a recorded run again, and return an exit status."""
    if not outcome.exists():
        print(f"the test run did not record its outcome in {outcome}: it ended early")
        return 1
    recorded = json.loads(outcome.read_text())
    failed: list[str] = recorded["failed"]
    if not recorded["is_whole"]:
        print(f"the test run ended early, with exit status {recorded['exit_status']}")
        return 1
    if len(failed) > MOST_FLAKY:
        print(f"{len(failed)} tests failed, which is too many for flaky tests")
        return 1
    if recorded["exit_status"] and not failed:
        print("the test run failed, but no test did")
        return 1
    broken = [test for test in failed if not _passes_alone(test)]
    if broken:
        print("broken: " + ", ".join(broken))
        return 1
    if failed:
        print("flaky: " + ", ".join(failed))
    return 0


def _passes_alone(test: str) -> bool:
    """Run one test in a process of its own."""
    print(f"\n==> once more, alone: {test}", flush=True)
    command = [sys.executable, "-m", "pytest", "-n", "0", test]
    return subprocess.run(command, check=False).returncode == 0


def main(arguments: Sequence[str]) -> int:
    """Read the command line."""
    if len(arguments) != 1:
        print(__doc__)
        return 2
    return run_again(Path(arguments[0]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
