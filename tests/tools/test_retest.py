"""A test that passes when it runs alone is flaky; a test that fails again is broken."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.retest import MOST_FLAKY

ROOT = Path(__file__).parents[2]

PASSING = "def test_fine() -> None: ...\n"
BROKEN = "def test_broken() -> None: assert False\n"
FLAKY = """
from pathlib import Path

def test_flaky() -> None:
    mark = Path(__file__).with_suffix(".mark")
    was_here = mark.exists()
    mark.touch()
    assert was_here
"""
FLAKY_SETUP = """
import pytest
from pathlib import Path

@pytest.fixture
def server() -> None:
    mark = Path(__file__).with_suffix(".mark")
    was_here = mark.exists()
    mark.touch()
    assert was_here

def test_with_server(server: None) -> None: ...
"""
DYING_WORKER = """
import os
from pathlib import Path

def test_dies() -> None:
    mark = Path(__file__).with_suffix(".mark")
    if not mark.exists():
        mark.touch()
        os._exit(1)
"""


def python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("PYTEST_ADDOPTS", None)
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def run_tests(folder: Path, *options: str, **modules: str) -> subprocess.CompletedProcess[str]:
    for name, content in modules.items():
        (folder / f"test_{name}.py").write_text(content)
    (folder / "pytest.ini").touch()
    return python(folder, "-m", "pytest", "-p", "tools.retest", "--outcome=outcome.json", *options)


def retest(folder: Path) -> subprocess.CompletedProcess[str]:
    return python(folder, "-m", "tools.retest", "outcome.json")


@pytest.mark.parametrize(
    ("module", "workers", "test"),
    [
        (FLAKY, 0, "test_it.py::test_flaky"),
        (FLAKY_SETUP, 0, "test_it.py::test_with_server"),
        (FLAKY, 1, "test_it.py::test_flaky"),
        (DYING_WORKER, 1, "test_it.py::test_dies"),
    ],
    ids=["call", "setup", "call in a worker", "worker dies"],
)
def test_flaky(tmp_path: Path, module: str, workers: int, test: str) -> None:
    assert run_tests(tmp_path, f"-n{workers}", fine=PASSING, it=module).returncode == 1
    again = retest(tmp_path)
    assert again.returncode == 0, again.stdout
    assert again.stdout.splitlines()[-1] == f"flaky: {test}"


def test_broken(tmp_path: Path) -> None:
    assert run_tests(tmp_path, it=FLAKY, bad=BROKEN).returncode == 1
    again = retest(tmp_path)
    assert again.returncode == 1
    assert again.stdout.splitlines()[-1] == "broken: test_bad.py::test_broken"


def test_nothing_failed(tmp_path: Path) -> None:
    assert run_tests(tmp_path, fine=PASSING).returncode == 0
    again = retest(tmp_path)
    assert (again.returncode, again.stdout) == (0, "")


@pytest.mark.parametrize(
    ("options", "modules", "message"),
    [
        ((), {"it": "import missing"}, "ended early"),
        (("-x",), {"fine": PASSING, "bad": BROKEN, "it": FLAKY}, "ended early"),
        ((), {}, "ended early"),
        ((), {f"bad{n}": BROKEN for n in range(MOST_FLAKY + 1)}, "too many"),
    ],
    ids=["import", "stopped", "no tests", "very many"],
)
def test_no_second_chance(
    tmp_path: Path, options: tuple[str, ...], modules: dict[str, str], message: str
) -> None:
    assert run_tests(tmp_path, *options, **modules).returncode != 0
    again = retest(tmp_path)
    assert again.returncode == 1
    assert message in again.stdout


def test_no_outcome(tmp_path: Path) -> None:
    again = retest(tmp_path)
    assert again.returncode == 1
    assert "did not record its outcome" in again.stdout
